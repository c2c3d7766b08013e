"""Families of cases, and a suite of them that builds only those that a selection needs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from attention_core.operators import ENTRIES
from parity_tests.format.call import TRAINING
from parity_tests.format.case import Case

OPERATORS = (*(entry.name for entry in ENTRIES), TRAINING)
"""The operators of cases, in the order of the specification."""


@dataclass(frozen=True)
class Family:
    """Cases that are built together: the operators that they call, and the function that builds them."""

    operators: tuple[str, ...]
    build: Callable[[], Iterable[Case]]

    @functools.cached_property
    def cases(self) -> tuple[Case, ...]:
        """The cases, built once."""
        return tuple(self.build())


@dataclass(frozen=True, eq=False)
class Suite:
    """The cases of families, in the order of the specification; a family is built when one of its operators is needed.

    The first case of every function and method is repeated after all others: the outputs must be bitwise equal.
    Trainings come last. core_file has the names of the cells of the core, a line each; includes decides which cases
    there are.
    """

    families: Sequence[Family]
    core_file: Path
    includes: Callable[[Case], bool] = lambda case: True
    _repeats: dict[str, list[Case]] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[Case]:
        return iter(self.select())

    def where(self, includes: Callable[[Case], bool]) -> Suite:
        """The suite with those of its cases alone."""
        return replace(self, includes=lambda case: self.includes(case) and includes(case))

    def select(self, pattern: str | None = None, operators: Sequence[str] | None = None) -> list[Case]:
        """The cases whose id matches the pattern (with * and ?) and whose operator is among those given."""
        names = [name for name in OPERATORS if (not operators or name in operators) and _may_match(pattern, name)]
        others = [name for name in names if name != TRAINING]
        built = [case for name in others for case in self._cases_of(name)]
        built += [case for name in others for case in self._repeats_of(name)]
        built += self._cases_of(TRAINING) if TRAINING in names else ()
        return [case for case in built if self.includes(case) and (pattern is None or fnmatchcase(case.id, pattern))]

    def find(self, case_id: str) -> Case | None:
        """The case of that id, if there is one."""
        operator, _, _ = case_id.partition("-")
        return next((case for case in self.select(operators=[operator]) if case.id == case_id), None)

    @functools.cached_property
    def core(self) -> frozenset[str]:
        """The names of the cells that kill every mutant, known or derived."""
        return frozenset(self.core_file.read_text(encoding="utf-8").splitlines())

    def _cases_of(self, operator: str) -> Iterator[Case]:
        families = (family for family in self.families if operator in family.operators)
        return (case for family in families for case in family.cases if case.operator == operator)

    def _repeats_of(self, operator: str) -> list[Case]:
        if operator not in self._repeats:
            first: dict[str, Case] = {}
            for case in self._cases_of(operator):
                first.setdefault(case.method, case)
            self._repeats[operator] = [
                replace(
                    case, name=f"{case.name}_again", again=case.id, dtypes=case.dtypes[:1], shows="The same, later."
                )
                for case in first.values()
            ]
        return self._repeats[operator]


def _may_match(pattern: str | None, operator: str) -> bool:
    """Whether a case of the operator may match: its id begins as the pattern does, up to the first wildcard."""
    begins = "" if pattern is None else re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    return f"{operator}-".startswith(begins) or begins.startswith(f"{operator}-")
