"""Every mistake that shows under one condition alone is seen, and would not be without the cases of its dimension."""

from __future__ import annotations

from collections import Counter

import pytest

from parity_tests.cases import covering
from parity_tests.cases.conditions import FURTHER
from parity_tests.cases.covering import DIMENSIONS
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import DTYPES, FULL
from parity_tests.format.selection import cells_of
from parity_tests.mutants.derived import Derived, derived_mutants, killers
from parity_tests.tests.commands import invoke

pytestmark = pytest.mark.once


def test_each_function_layer_and_search_has_mistakes_of_every_dimension_that_it_has():
    count = Counter(mistake.dimension for mistake in derived_mutants())
    assert set(count) == set(DIMENSIONS) and sum(count.values()) > 2500
    assert {mistake.scope for mistake in derived_mutants()} == {call.kin for call in covering.calls()}


def test_no_mistake_survives(derived_killers: dict[Derived, set[str]]):
    assert [(mistake.scope, mistake.name) for mistake, names in derived_killers.items() if not names] == []


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_without_the_cases_of_a_dimension_mistakes_of_it_survive(
    dimension: str, derived_killers: dict[Derived, set[str]]
):
    varied = {cell.key for cell in cells_of(all_cases(), DTYPES) if covering.varies(cell.case, dimension)}
    mistakes = {mistake: names for mistake, names in derived_killers.items() if mistake.dimension == dimension}
    alive = {mistake.scope for mistake, names in mistakes.items() if names <= varied}
    assert alive == {mistake.scope for mistake in mistakes}


def test_no_mistake_survives_under_a_condition_of_several_arguments(request: pytest.FixtureRequest):
    """Of every 40th one, or with --slow of each."""
    mistakes = [*derived_mutants(FURTHER)][:: 1 if request.config.getoption("--slow") else 40]
    found = killers(cells_of(all_cases(), FULL), mistakes, first=True)
    assert [(mistake.scope, mistake.name) for mistake, names in found.items() if not names] == []
    assert {mistake.dimension for mistake in found} == {*FURTHER}


def test_the_command_counts_them_by_dimension(monkeypatch: pytest.MonkeyPatch):
    arguments = ("mutate", "--derived", "--name", "dot_score-*")
    result = invoke(*arguments)
    assert result.exit_code == 0 and "mutants are killed" in result.output
    kept = [case for case in all_cases() if not covering.varies(case, "sizes")]
    monkeypatch.setattr("parity_tests.cli.mutate.all_cases", lambda: kept)
    result = invoke(*arguments)
    assert result.exit_code == 1 and "survived  dot_score: keys_beyond_64" in result.output
