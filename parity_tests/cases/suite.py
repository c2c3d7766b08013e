"""Every case, in the order of the specification, and the ways to choose among them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from attention_core.operators import LAYERS, OPERATORS
from attention_core.operators.training import UPDATES
from parity_tests.cases import (
    attention,
    choices,
    compressed,
    covering,
    decoders,
    images,
    linear,
    masking,
    multi_head,
    positions,
    recurrent,
    scoring,
    segments,
    training,
    transformer,
    translation,
)
from parity_tests.cases.regressions import FOUND
from parity_tests.cases.seeds import SEEDS
from parity_tests.format.call import TRAINING
from parity_tests.format.case import Case
from parity_tests.translation import corpus

NAMES = (*(operator.name for operator in (*OPERATORS, *UPDATES)), *(layer.name for layer in LAYERS), TRAINING)


def all_cases(pairs: Sequence[corpus.Pair] | None = None, trained: bool = False) -> list[Case]:
    """Every case, in the order of the specification, with the sentences of `pairs` or of the generated dates.

    Training cases take longer than all others together; trained adds them.
    """
    return [*_made(tuple(pairs or corpus.dates(8))), *(training.cases() if trained else ())]


FAMILIES = (
    *(masking, scoring, linear, attention, choices, multi_head, compressed, segments),
    *(positions, transformer, recurrent, decoders, images),
)
"""The modules of cases that need nothing but the specification."""


@functools.cache
def _made(pairs: tuple[corpus.Pair, ...]) -> tuple[Case, ...]:
    written = [*(case for family in FAMILIES for case in family.cases()), *translation.cases(pairs)]
    made = [
        *(seeded(case, SEEDS.get(case.id, 1)) or case for case in written),
        *training.clipping_cases(),
        *training.optimiser_cases(),
        *found_cases(),
        *covering.cases(),
    ]
    order = {name: position for position, name in enumerate(NAMES)}
    made.sort(key=lambda case: order[case.operator])
    return (*made, *repeated_cases(made))


def seeded(case: Case, seed: int) -> Case | None:
    """The case with numbers of that seed, if they decide a token, a choice or a window; else None."""
    for module in (translation, choices, decoders):
        if module.decides(case):
            return module.seeded(case, seed)
    return None


def repeated_cases(cases: Sequence[Case]) -> Iterator[Case]:
    """Repeat the first case of every function and method, after all others: the outputs must be bitwise equal."""
    first: dict[tuple[str, str], Case] = {}
    for case in cases:
        first.setdefault((case.operator, case.method), case)
    for case in first.values():
        yield replace(case, name=f"{case.name}_again", again=case.id, dtypes=case.dtypes[:1], shows="The same, later.")


def found_cases() -> Iterator[Case]:
    """The regressions from fuzzing and from other devices, as cases like any other."""
    for drawn in FOUND:
        case = Case(**drawn.as_case())
        yield replace(case, name=f"found_{case.name.removeprefix('drawn_')}", shows="Found by fuzzing, or on a GPU.")
