"""Which cases touch a mutant: those in which the reference calls a function that it breaks, under its condition.

A mutant has to be red in each of these, but for those that it names as unseen. Everywhere else the reference answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any

import numpy as np

from parity_tests.cases.suite import all_cases
from parity_tests.format.case import Case
from parity_tests.format.expected import computed_outputs
from parity_tests.format.selection import Cell
from parity_tests.mutants.mutant import Mutant, Replacement, Wrong, all_mutants, in_place_of_the_reference, is_met

MOST = 3
"""In how many cases of each layer a mutant runs, beside those that it does not show in; of a function, in all."""
MOST_GENERATED = 3
"""In how many generated cases a mutant runs that no case written by hand touches."""


def cells_touched(mutant: Mutant) -> list[Cell]:
    """The cells in which a mutant runs: the first cases written by hand that touch it, or the smallest generated ones.

    If none of these cells is in the core, or it is unseen in those, the first one of the core that touches it is added.
    """
    suite = all_cases(trained=True)
    cases = [case for pattern in mutant.cases for case in suite.select(pattern) if mutant.empty or not is_empty(case)]
    written = [Cell(case, mutant.dtype) for case in cases if not is_generated(case) and mutant.dtype in case.dtypes]
    generated = [Cell(case, case.dtypes[0]) for case in sorted(filter(is_generated, cases), key=_size)]
    chosen = _first(mutant, touching(mutant, written)) or touching(mutant, generated)[:MOST_GENERATED]

    def shows(cell: Cell) -> bool:
        return cell.key in suite.core and not has_match(cell.case.id, mutant.unseen)

    if not any(map(shows, chosen)):
        chosen += touching(mutant, list(filter(shows, written + generated)))[:1]
    return chosen


def has_match(name: str, patterns: Sequence[str]) -> bool:
    """Whether the name matches one of the patterns (with * and ?)."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_empty(case: Case) -> bool:
    """Whether an axis of the case is empty, so that there is nothing to compute wrongly."""
    counts = (case.options.get(name) for name in ("num_queries", "num_keys"))
    return 0 in counts or any(array.size == 0 for array in case.inputs.values())


def is_generated(case: Case) -> bool:
    """Whether the case was not written by hand."""
    return case.drawn is not None or bool(case.again)


def _size(case: Case) -> int:
    return sum(array.size for array in (*case.inputs.values(), *case.parameters.values()))


def _first(mutant: Mutant, cells: Sequence[Cell]) -> list[Cell]:
    """All cells of functions, and of each layer the first ones and those that the mutant names as unseen."""
    by_operator = [[*group] for _, group in groupby(cells, key=lambda cell: cell.case.operator)]
    return [
        cell
        for group in by_operator
        for index, cell in enumerate(group)
        if index < MOST or not cell.case.method or has_match(cell.case.id, mutant.unseen)
    ]


def touching(mutant: Mutant, cells: Sequence[Cell]) -> list[Cell]:
    """Those of the cells that touch a mutant."""
    if not mutant.broken:
        return [cell for cell in cells if is_met(mutant.touches, {"case": cell.case})]
    _trace([case for case, _ in cells if case.id not in _traces])
    return [cell for cell in cells if mutant.name in _traces[cell.case.id]]


_traces: dict[str, set[str]] = {}
"""The names of the mutants that each case touches."""


def _trace(cases: Sequence[Case]) -> None:
    """Compute the outputs of each case once, and record which mutants it touches."""
    watched: dict[str, list[Mutant]] = defaultdict(list)
    touched: set[str] = set()

    def recorder(name: str) -> Wrong:
        def record(original: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
            for mutant in watched[name]:
                if mutant.name not in touched and is_met(mutant.touches, arguments, otherwise=False):
                    touched.add(mutant.name)
            return original()

        return record

    names = {name for mutant in all_mutants() for name in mutant.broken}
    recorders = Mutant("", "", (), broken={name: Replacement(recorder(name)) for name in names})
    with in_place_of_the_reference(recorders), np.errstate(all="ignore"):
        for case in cases:
            watched.clear()
            touched.clear()
            for mutant in all_mutants():
                for name in mutant.broken if has_match(case.id, mutant.cases) else ():
                    watched[name].append(mutant)
            computed_outputs(case, *case.at(case.dtypes[0]))
            _traces[case.id] = {*touched}
