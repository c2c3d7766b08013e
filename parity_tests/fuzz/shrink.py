"""Minimisation of failing cases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from attention_core.errors import AttentionError
from attention_core.operators import find
from parity_tests.cases.covering import Call, equal_sizes, is_forward
from parity_tests.format.drawn import Drawn, options_of

MOST_SHRINKS = 400


def shrink(drawn: Drawn, differs: Callable[[Drawn], bool], most: int = MOST_SHRINKS) -> Drawn:
    """Reduce a failing case to the simplest failing one that hypothesis finds."""
    simplest, known = drawn, {repr(drawn): True}

    def test(candidate: Drawn) -> None:
        nonlocal simplest
        line = repr(candidate)
        if line not in known:
            known[line] = len(known) <= most and differs(candidate)
        if known[line]:
            simplest = candidate
            raise Difference

    quiet = settings(
        database=InMemoryExampleDatabase(),
        phases=(Phase.reuse, Phase.shrink),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    run: Any = quiet(given(simpler_cases(drawn))(test))
    # Bytes that are all ones choose the last of every list: the case itself, which hypothesis then shrinks.
    try:
        run.hypothesis.fuzz_one_input(b"\xff" * 2**12)
    except Difference:
        with contextlib.suppress(Difference):
            run()
    else:
        raise RuntimeError(f"{drawn} is not among its own simplifications")
    return simplest


class Difference(Exception):
    """Raised for hypothesis if a case fails."""


@st.composite
def simpler_cases(draw: st.DrawFn, drawn: Drawn) -> Drawn:
    """The case, or one of which some parts are simpler."""

    def pick(*values: Any) -> Any:
        """One of the values, simplest first; that of the case is last, and fills the list to a power of two."""
        values = tuple(value for value in values[:-1] if value != values[-1]) + values[-1:]
        length = 1 << (len(values) - 1).bit_length()
        return draw(st.sampled_from(values + values[-1:] * (length - len(values))))

    def some(values: Mapping[str, Any], *simpler: Any) -> dict[str, Any]:
        return {name: pick(*simpler, value) for name, value in values.items() if pick(False, True)}

    def part(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if pick(False, True))

    call = Call(find(drawn.operator), drawn.method)
    needed = {option.name for option in options_of(call.entry, call.method) if option.default is None}
    options = {
        name: pick(0, value) if name in needed else value
        for name, value in drawn.options.items()
        if name in needed or pick(False, True)
    }
    sizes, shared = some(drawn.sizes, 1, 2), part(drawn.shared)
    equal = equal_sizes(call, {**dict.fromkeys(drawn.sizes, 1), **sizes}, shared)
    simpler = Drawn(
        operator=drawn.operator,
        method=drawn.method,
        dtype=pick("float64", drawn.dtype),
        seed=pick(0, 1, 2, drawn.seed),
        sizes=sizes | {axis: size for axis, size in equal.items() if size != 1 or axis in sizes},
        options=options,
        given=part(drawn.given) or (drawn.given[:1] if all(tensor.optional for tensor in call.inputs) else ()),
        rows=pick(False, drawn.rows),
        ones=part(drawn.ones),
        types=some(drawn.types),
        wild=pick(False, drawn.wild),
        scales=some(drawn.scales),
        whole=pick(False, drawn.whole),
        infinite=pick(False, drawn.infinite),
        hidden=pick("", drawn.hidden),
        pattern=pick("", drawn.pattern),
        lens=pick("", drawn.lens),
        layouts=some(drawn.layouts),
        shared=shared,
        twice=pick(False, drawn.twice),
        changed=pick("", drawn.changed),
    )
    forward = drawn.forward and pick(False, True)
    if drawn.forward and not forward:
        try:  # gradients that are rounding alone would differ for a reason of their own
            forward = is_forward(call, simpler)
        except AttentionError:  # some parts do not go without others
            reject()
    return replace(simpler, forward=forward)
