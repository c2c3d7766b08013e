"""Cells, which are cases in one tier each, and which of them a run asks for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from parity_tests.cases.call import TRAINING
from parity_tests.cases.case import TIERS, Case
from parity_tests.cases.suite import select

Cell = tuple[Case, str]


def key(cell: Cell) -> str:
    """The name of a cell in files: case and tier."""
    return f"{cell[0].id}/{cell[1]}"


def cells_of(cases: Iterable[Case], tiers: Iterable[str]) -> list[Cell]:
    """Every case in every tier that it has among those given, tier by tier."""
    cases = list(cases)
    return [(case, tier) for tier in tiers for case in cases if tier in case.tiers]


CORE = Path(__file__).with_name("core.txt")
"""The names of the cells of the core, a line each; `python -m parity_tests.mutants.core` writes them."""


@functools.cache
def core() -> frozenset[str]:
    """The names of the cells that tell every known and every derived mistake (`parity_tests.mutants.core`)."""
    return frozenset(CORE.read_text(encoding="utf-8").splitlines())


@dataclass(frozen=True)
class Selection:
    """Which cells are run: those of these tiers whose case id matches the pattern, of these operators if any.

    Trainings are among them only where they are asked for, by training or as an operator. core leaves out, of all
    others, what is not in the core.
    """

    tiers: Sequence[str] = TIERS
    pattern: str | None = None
    operators: Sequence[str] = ()
    training: bool = False
    core: bool = False

    def cases(self, cases: Sequence[Case]) -> list[Case]:
        """The cases among those given that have such a cell."""
        training = self.training or TRAINING in self.operators
        chosen = [case for case in select(cases, self.pattern, self.operators) if training or case.operator != TRAINING]
        repeated = {case.again for case in chosen if case.again} - {case.id for case in chosen}
        chosen = [*(case for case in cases if case.id in repeated), *chosen]
        return [case for case in chosen if set(self.tiers) & set(case.tiers)]

    def cells(self, cases: Sequence[Case]) -> list[Cell]:
        """The cells of the cases given."""
        cells = cells_of(self.cases(cases), self.tiers)
        return [cell for cell in cells if not self.core or cell[0].operator == TRAINING or key(cell) in core()]
