"""Every mutant is answered and outcome_of once, when a test first needs it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from parity_tests.cases.suite import all_cases
from parity_tests.format.case import DTYPES
from parity_tests.format.selection import Cell, Selection, cells_of
from parity_tests.mutants.derived import Derived, derived_mutants, killers
from parity_tests.mutants.families import MUTANTS
from parity_tests.mutants.outcome import Outcome, attempt, outcome_of
from parity_tests.workers.recordings import Recording

by_name = {mutant.name: mutant for mutant in MUTANTS}

Answers = Callable[[str], tuple[list[Cell], Recording]]


@pytest.fixture(scope="session")
def answers() -> Answers:
    """The cells of a mutant, and its answers, without gradients where the outputs are red."""
    return functools.cache(lambda name: attempt(by_name[name], brief=True))


@pytest.fixture(scope="session")
def outcomes(answers: Answers) -> Callable[[str], Outcome]:
    """The judgement of a mutant."""
    return functools.cache(lambda name: outcome_of(by_name[name], *answers(name)))


@pytest.fixture(scope="session")
def derived_killers(request: pytest.FixtureRequest) -> dict[Derived, set[str]]:
    """Each derived mutant with the names of the cells that kill it: of those of the core, or with --slow of all."""
    every = request.config.getoption("--slow")
    return killers(
        cells_of(all_cases(), DTYPES) if every else Selection(core=True).cells(all_cases()), derived_mutants()
    )
