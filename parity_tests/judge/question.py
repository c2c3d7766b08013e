"""A cell with its expected answer, computed once for all recordings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from parity_tests.format import expected as reference
from parity_tests.format.call import SECOND
from parity_tests.format.case import MIXED, Arrays
from parity_tests.format.selection import Cell
from parity_tests.judge.condition import Condition, Entries, condition_of
from parity_tests.judge.pair import Quantity, Spread
from parity_tests.judge.tolerances import MOST, drawn_tolerance, entry_tolerance_of, tolerance_of

CAST = ("context", "predictions", "logits")
"""The operators that mixed precision computes in half precision in every framework: layers with parameters."""


@dataclass(frozen=True)
class Question:
    """A cell and the quantities of its expected answer; gradients are those of the outputs that are not omitted.

    given is the expected answer if it is not the reference's, which is computed on first use: a cell that is not
    implemented needs none. entries are those of each gradient that it has, if not all.
    """

    cell: Cell
    without: tuple[str, ...] = ()
    given: Arrays | None = None
    entries: Entries | None = None

    @cached_property
    def quantities(self) -> dict[str, Quantity]:
        """The quantities with their tolerances: those of the name, or of drawn cases."""
        case, dtype = self.cell
        arrays = reference.expected_values(case, dtype, self.without) if self.given is None else self.given
        quantities = {}
        for name, array in arrays.items():
            key = case.operator, case.id, case.answer_dtype(dtype), name.removeprefix(SECOND)
            tolerance, by_entry = tolerance_of(*key), entry_tolerance_of(*key)
            if case.drawn is not None:
                tolerance = drawn_tolerance(case.answer_dtype(dtype), name)
                by_entry = by_entry and replace(by_entry, eps=max(by_entry.eps, tolerance.eps) if by_entry.eps else 0.0)
            beside, stored = arrays.get(tolerance.beside_of(name)), self._stored_dtypes(name)
            quantities[name] = Quantity(
                name,
                case.answer_dtype(dtype),
                array,
                tolerance,
                by_entry,
                beside,
                stored,
                partial(self._spread, name),
            )
        return quantities

    @property
    def is_listed(self) -> bool:
        """Whether the case is on the list, and asked as a whole: then it is certain, as a test shows."""
        case, _ = self.cell
        return case.drawn is None or (case.name != case.drawn.name and not self.without)

    @cached_property
    def is_certain(self) -> bool:
        """Whether rounding alone could not change the answer: nothing flips, and no tolerance has to exceed MOST."""
        tolerances = (one.largest_allowance <= MOST[one.dtype] for one in self.quantities.values())
        return not self._condition.flips and all(tolerances)

    def _spread(self, name: str) -> Spread | None:
        """The spread of a quantity, whose case is measured when the first one is needed."""
        return self._condition.spread_of(name)

    @cached_property
    def _condition(self) -> Condition:
        return condition_of(*self.cell, self.without, entries=self.entries)

    def _stored_dtypes(self, name: str) -> tuple[str, ...]:
        """The allowed dtypes of a floating quantity; frameworks keep some outputs in float32, but none of CAST."""
        case, dtype = self.cell
        if dtype not in MIXED:
            return (case.answer_dtype(dtype),)
        if name.startswith("gradient_"):
            return ("float32",)
        return (MIXED[dtype],) if case.parameters and name in CAST else (MIXED[dtype], "float32")


class Questions:
    """Cache the question of each cell, for each set of omitted outputs.

    given has the expected answers, by cell, that are not the reference's, and entries those that their gradients have.
    """

    def __init__(self, given: Mapping[str, Arrays] | None = None, entries: Mapping[str, Entries] | None = None) -> None:
        self.given, self.entries = given or {}, entries or {}
        self._made: dict[tuple[str, tuple[str, ...]], Question] = {}

    def of(self, cell: Cell, without: tuple[str, ...] = ()) -> Question:
        """The question of a cell."""
        key = cell.key, without
        if key not in self._made:
            self._made[key] = Question(cell, without, self.given.get(cell.key), self.entries.get(cell.key))
        return self._made[key]

    def prepare(self, cell: Cell) -> None:
        """Compute the expected answer of a cell now."""
        _ = self.of(cell).quantities
