"""The cases: what is asked of every implementation, as data.

A case is one call of one operator: its options, its inputs, its parameters. Arrays are drawn in float64 and rounded to
the dtype of the tier in which the case runs. In the cases written by hand all axes have different sizes, so that a
swapped axis cannot pass, and lengths and masks are full arrays of one shape wherever the case allows it, so that a
compiled function serves many cases. Those of `covering` vary sizes, masks, memory layout, state and magnitude.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from attention_core.operators import LAYERS, OPERATORS, UPDATES
from parity_tests import text
from parity_tests.cases import attention, covering, decoders, recurrent, training, translation
from parity_tests.cases.case import (
    EXACT,
    FULL,
    SEED,
    TIERS,
    Arrays,
    Case,
    epsilon,
    is_floating,
    least_normal,
)
from parity_tests.found import FOUND
from parity_tests.invocation import TRAINING

__all__ = [
    "EXACT",
    "FULL",
    "NAMES",
    "SEED",
    "TIERS",
    "Arrays",
    "Case",
    "all_cases",
    "epsilon",
    "is_floating",
    "least_normal",
    "select",
]

NAMES = (
    *(operator.name for operator in (*OPERATORS, *UPDATES)),
    *(layer.name for layer in LAYERS),
    TRAINING,
)


def all_cases(pairs: Sequence[text.Pair] | None = None, trained: bool = False) -> list[Case]:
    """Every case, in the order of the specification, with the sentences of `pairs` or of the generated dates.

    Those that train take longer than all others together, and are left out unless asked for.
    """
    return [*_made(tuple(pairs or text.dates(8))), *(training.cases() if trained else ())]


@functools.cache
def _made(pairs: tuple[text.Pair, ...]) -> tuple[Case, ...]:
    made = [
        *attention.cases(),
        *recurrent.cases(),
        *decoders.cases(),
        *translation.cases(pairs),
        *training.clipping_cases(),
        *training.optimiser_cases(),
        *found_cases(),
        *covering.cases(),
    ]
    order = {name: position for position, name in enumerate(NAMES)}
    made.sort(key=lambda case: order[case.operator])
    return (*made, *repeated_cases(made))


def select(cases: Sequence[Case], pattern: str | None = None, operators: Sequence[str] | None = None) -> list[Case]:
    """The cases whose id matches the pattern (with * and ?) and whose operator is among those given."""
    return [
        case
        for case in cases
        if (pattern is None or fnmatchcase(case.id, pattern)) and (not operators or case.operator in operators)
    ]


def seeded(case: Case, seed: int) -> Case | None:
    """The case with numbers of that seed where they decide a token, a choice or a window; None where none is."""
    for module in (translation, attention, decoders):
        if module.decides(case):
            return module.seeded(case, seed)
    return None


def repeated_cases(cases: Sequence[Case]) -> Iterator[Case]:
    """The first case of every function and method once more: behind all others, and with the same bits."""
    first: dict[tuple[str, str], Case] = {}
    for case in cases:
        first.setdefault((case.operator, case.method), case)
    for case in first.values():
        yield replace(case, name=f"{case.name}_again", again=case.id, tiers=case.tiers[:1], shows="The same, later.")


def found_cases() -> Iterator[Case]:
    """What fuzzing found, as cases like any other."""
    for drawn in FOUND:
        case = Case(**drawn.as_case())
        yield replace(case, name=f"found_{case.name.removeprefix('drawn_')}", shows="Found by fuzzing.")
