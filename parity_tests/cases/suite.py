"""Every case, in families, and the seeds of those whose numbers decide something."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

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
    ranges,
    recurrent,
    regressions,
    scoring,
    segments,
    states,
    trained_layers,
    training,
    transformer,
    translation,
)
from parity_tests.cases.seeds import SEEDS
from parity_tests.format.case import Case
from parity_tests.format.families import Family, Suite
from parity_tests.translation import corpus

CORE = Path(__file__).with_name("core.txt")
"""The names of the cells of the core, a line each; `python -m tools.core` writes them."""

WRITTEN = (
    *(masking, scoring, linear, attention, choices, multi_head, compressed, segments),
    *(positions, transformer, recurrent, decoders, images, translation, ranges, states),
)
"""The modules of cases that are written by hand, and have a seed where their numbers decide something."""


def all_cases(pairs: Sequence[corpus.Pair] | None = None, trained: bool = False) -> Suite:
    """Every case, in the order of the specification, with the sentences of `pairs` or of the generated dates.

    Training cases take longer than all others together; trained adds them.
    """
    return _suite(tuple(pairs or corpus.dates(8)), trained)


@functools.cache
def _suite(pairs: tuple[corpus.Pair, ...], trained: bool) -> Suite:
    written = (*FAMILIES, with_seeds(translation.sentence_family(pairs)))
    others = (*training.FAMILIES, *trained_layers.FAMILIES, *regressions.FAMILIES, *covering.FAMILIES)
    return Suite((*written, *others, *((training.TRAININGS,) if trained else ())), CORE)


def with_seeds(family: Family) -> Family:
    """The family with the seeds of its cases."""

    def build() -> Iterator[Case]:
        return (with_seed(case, SEEDS.get(case.id, 1)) or case for case in family.build())

    return replace(family, build=build)


def with_states(family: Family) -> Family:
    """The family with second calls that change one argument."""

    def build() -> Iterator[Case]:
        cases = family.cases
        yield from cases
        yield from states.second_calls(cases)

    return replace(family, build=build)


def with_seed(case: Case, seed: int) -> Case | None:
    """Return the case with numbers of that seed, if they decide a token, a choice or a window; else None."""
    for module in (translation, choices, decoders):
        if module.decides(case):
            return module.with_seed(case, seed)
    return None


FAMILIES = tuple(with_seeds(with_states(family)) for module in WRITTEN for family in module.FAMILIES)
