"""Every mutant is answered and judged once, and every derived one judged once on every cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from parity_tests.cases.case import DTYPES
from parity_tests.cases.selection import Cell, cells_of
from parity_tests.cases.suite import all_cases
from parity_tests.mutants.derived import Derived, derived, killers
from parity_tests.mutants.families import MUTANTS
from parity_tests.mutants.mutant import Outcome, attempt, judged
from parity_tests.workers.recordings import Recording

Value = TypeVar("Value")


class Lazy(dict[str, Value]):
    """Values by name, each made when it is first read."""

    def __init__(self, make: Callable[[str], Value]) -> None:
        super().__init__()
        self.make = make

    def __missing__(self, name: str) -> Value:
        self[name] = self.make(name)
        return self[name]


@pytest.fixture(scope="session")
def answers() -> Lazy[tuple[list[Cell], Recording]]:
    """The cells of each mutant, and its answers."""
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    return Lazy(lambda name: attempt(by_name[name]))


@pytest.fixture(scope="session")
def outcomes(answers: Lazy[tuple[list[Cell], Recording]]) -> Lazy[Outcome]:
    """The judgement of each mutant."""
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    return Lazy(lambda name: judged(by_name[name], *answers[name]))


@pytest.fixture(scope="session")
def derived_killers() -> dict[Derived, set[str]]:
    """Each derived mutant with the names of the cells that kill it."""
    return killers(cells_of(all_cases(), DTYPES), derived())
