"""Cases of what calls leave behind: second calls that change one argument, and memories that grow often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from parity_tests.cases.masking import ATTENTION, SIZED
from parity_tests.cases.ranges import drawn_call
from parity_tests.format.call import PIECES, SECOND, STEPS
from parity_tests.format.case import EXACT, Arrays, Case, layer_case
from parity_tests.format.families import Family

CALLS = ("", "call")
BASES = ("lens_and_mask", "masked", "ragged", "mask", "plain")
"""The cases whose arguments a second call changes: the first of these names that an operator has."""


def second_calls(cases: Sequence[Case]) -> Iterator[Case]:
    """For each operator and argument with several rows, two calls; the second has the rows of that one reversed.

    Gradients of several layers are left to others: they cost much to compile.
    """
    for operator in dict.fromkeys(case.operator for case in cases):
        named = {case.name: case for case in cases if case.operator == operator and case.method in CALLS}
        base = next((named[name] for name in BASES if name in named), None)
        if base is None or not base.gradients or len(base.inputs) == 1:
            continue
        base = replace(base, twice=True, dtypes=EXACT, gradients="num_layers" not in base.config)
        for name, array in base.inputs.items():
            if array.ndim and not np.array_equal(array, array[::-1]):
                inputs = {**base.inputs, SECOND + name: array[::-1].copy()}
                shows = f"A second call, in which {name} alone is another array."
                yield replace(base, name=f"second_{name}", shows=shows, inputs=inputs)


GROWTH: Mapping[str, Mapping[str, Any]] = {
    "DotProductAttention": {},
    "MultiHeadAttention": {
        **SIZED,
        "value_size": 11,
        "num_heads": 3,
        "hidden_size": 12,
        "rotary_layout": "interleaved",
    },
}
"""The layers whose memory grows often, with the constructor's arguments."""
OFTEN = 20
"""The number of steps by which it grows, one by one."""


def growing_cases(name: str) -> Iterator[Case]:
    """Memories to which steps are added one by one, behind the last key and in their room."""
    plain, more = (drawn_call(name, {**ATTENTION, "keys": keys}) for keys in (3, OFTEN))
    room = drawn_call(name, {**ATTENTION, "keys": 3 + OFTEN})
    steps = {STEPS + key: more[key] for key in ("keys", "values")}
    free: Arrays = {"valid_lens": np.array([3, 2]), f"{STEPS}position": np.array([3, 2])}
    for label, shows, inputs in (
        ("often", "Twenty steps, one by one.", plain),
        ("often_at", "Twenty steps, one by one, in the room of a memory.", {**room, **free}),
    ):
        case = layer_case(name, f"extended_{label}", shows, {**inputs, **steps}, GROWTH[name], EXACT)
        yield replace(case, method="extend", options={PIECES: OFTEN})


FAMILIES = tuple(Family((name,), partial(growing_cases, name)) for name in GROWTH)
