"""Cells, which are cases in one dtype each, and the selection of cells for a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parity_tests.format.call import TRAINING
from parity_tests.format.case import DTYPES, MIXED, Case
from parity_tests.format.families import OPERATORS, Suite


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

    def cases(self, suite: Suite) -> list[Case]:
        """The cases of the suite that have such a cell."""
        operators = self.operators or [name for name in OPERATORS if self.training or name != TRAINING]
        chosen = suite.select(self.pattern, operators)
        ids = {case.id for case in chosen}
        first = (suite.find(case.again) for case in chosen if case.again and case.again not in ids)
        return [case for case in (*filter(None, first), *chosen) if any(map(case.has, self.dtypes))]

    def cells(self, suite: Suite) -> list[Cell]:
        """The cells of the suite."""
        cells = cells_of(self.cases(suite), self.dtypes)
        if not (self.core or self.once):
            return cells
        kept = {cell.key for cell in cells if cell.case.operator == TRAINING or cell.dtype in MIXED} | suite.core
        if self.once:
            kept |= {cell.key for cell in {cell.case.id: cell for cell in reversed(cells)}.values()}
        return [cell for cell in cells if cell.key in kept]
