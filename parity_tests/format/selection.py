"""Cells, which are cases in one dtype each, and the selection of cells for a run."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from parity_tests.format.call import TRAINING
from parity_tests.format.case import DTYPES, MIXED, Case


class Cell(NamedTuple):
    """A case in one dtype: the unit that a worker runs."""

    case: Case
    dtype: str

    @property
    def key(self) -> str:
        """Its name in files: case and dtype."""
        return f"{self.case.id}/{self.dtype}"


def cells_of(cases: Iterable[Case], dtypes: Iterable[str]) -> list[Cell]:
    """Every case in each of the dtypes that it has, ordered by dtype."""
    cases = list(cases)
    return [Cell(case, dtype) for dtype in dtypes for case in cases if case.has(dtype)]


def select(cases: Sequence[Case], pattern: str | None = None, operators: Sequence[str] | None = None) -> list[Case]:
    """The cases whose id matches the pattern (with * and ?) and whose operator is among those given."""
    return [
        case
        for case in cases
        if (pattern is None or fnmatchcase(case.id, pattern)) and (not operators or case.operator in operators)
    ]


CORE = Path(__file__).parents[1] / "cases" / "core.txt"
"""The names of the cells of the core, a line each; `python -m parity_tests.mutants.core` writes them."""


@functools.cache
def core() -> frozenset[str]:
    """The names of the cells that kill every mutant, known or derived (`parity_tests.mutants.core`)."""
    return frozenset(CORE.read_text(encoding="utf-8").splitlines())


@dataclass(frozen=True)
class Selection:
    """Which cells are run: those of these dtypes whose case id matches the pattern, of these operators if any.

    Training cells are included only if requested, by training or as an operator. core restricts all other cells to the
    core, but for those in mixed precision, of which no mutant is killed. once adds to the core every case in the first
    of these dtypes that it has.
    """

    dtypes: Sequence[str] = DTYPES
    pattern: str | None = None
    operators: Sequence[str] = ()
    training: bool = False
    core: bool = False
    once: bool = False

    def cases(self, cases: Sequence[Case]) -> list[Case]:
        """The cases among those given that have such a cell."""
        training = self.training or TRAINING in self.operators
        chosen = [case for case in select(cases, self.pattern, self.operators) if training or case.operator != TRAINING]
        repeated = {case.again for case in chosen if case.again} - {case.id for case in chosen}
        chosen = [*(case for case in cases if case.id in repeated), *chosen]
        return [case for case in chosen if any(map(case.has, self.dtypes))]

    def cells(self, cases: Sequence[Case]) -> list[Cell]:
        """The cells of the cases given."""
        cells = cells_of(self.cases(cases), self.dtypes)
        if not (self.core or self.once):
            return cells
        kept = {cell.key for cell in cells if cell.case.operator == TRAINING or cell.dtype in MIXED} | core()
        if self.once:
            kept |= {cell.key for cell in {cell.case.id: cell for cell in reversed(cells)}.values()}
        return [cell for cell in cells if cell.key in kept]
