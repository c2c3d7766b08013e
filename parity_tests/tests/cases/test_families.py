"""Families of cases: a selection builds those that it needs, and is what is left of all cases."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from parity_tests.cases.suite import CORE, all_cases
from parity_tests.format.call import TRAINING
from parity_tests.format.case import Case
from parity_tests.format.families import OPERATORS, Family, Suite
from parity_tests.format.selection import Selection

ALL = [*all_cases(trained=True)]
PATTERNS = (
    *("additive_score-plain", "additive_score-*", "additive_scor?-plain", "dot_score-[!p]*", "GRU*", "GRU-"),
    *("GR[UV]-o*", "dot_score-plain_again", "Translator-sentences*", "nothing-*", "training-short", "sgd-plain"),
)
OPEN_PATTERNS = ("*-plain", "[ad]*_score-no_keys", "?RU-open", "*_again", "[", "*")
"""Patterns that any operator may match, as they begin with a wildcard."""


def unbuilt() -> Suite:
    """Every case, of which none is built."""
    return Suite([replace(family) for family in all_cases(trained=True).families], CORE)


def built(suite: Suite) -> list[Family]:
    return [family for family in suite.families if "cases" in vars(family)]


def test_a_family_has_the_operators_that_it_says():
    for family in all_cases(trained=True).families:
        assert {case.operator for case in family.cases} == {*family.operators}, family


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_cases_of_an_operator_are_those_of_its_families(operator: str):
    suite = unbuilt()
    ids = [case.id for case in suite.select(operators=[operator])]
    assert ids and ids == [case.id for case in ALL if case.operator == operator]
    assert built(suite) == [family for family in suite.families if operator in family.operators]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_builds_the_families_that_it_may_match(pattern: str):
    suite = unbuilt()
    assert [case.id for case in suite.select(pattern)] == [case.id for case in ALL if fnmatchcase(case.id, pattern)]
    assert len(built(suite)) <= 10


@pytest.mark.parametrize("pattern", OPEN_PATTERNS)
def test_a_pattern_that_begins_with_a_wildcard_selects_from_all_cases(pattern: str):
    chosen = all_cases(trained=True).select(pattern)
    assert chosen == [case for case in ALL if fnmatchcase(case.id, pattern)] and (chosen or pattern == "[")


@pytest.mark.parametrize("operators", [["GRU", "dot_score"], ["LSTM", TRAINING], []])
def test_operators_come_in_the_order_of_the_specification(operators: list[str]):
    chosen, known = all_cases(trained=True).select("*n*", operators), operators or OPERATORS
    assert chosen == [case for case in ALL if case.operator in known and fnmatchcase(case.id, "*n*")]


def test_a_selection_of_a_repeated_case_has_the_first_one():
    suite = unbuilt()
    chosen = Selection(["float64"], "GRU-*_again").cases(suite)
    assert [case.again for case in chosen[len(chosen) // 2 :]] == [case.id for case in chosen[: len(chosen) // 2]]
    assert chosen and {name for family in built(suite) for name in family.operators} == {"GRU"}


def test_a_suite_without_some_cases_has_the_others():
    def is_short(case: Case) -> bool:
        return len(case.name) < 10

    def is_open(case: Case) -> bool:
        return "open" in case.name

    suite = all_cases(trained=True).where(is_short).where(is_open)
    assert [*suite] == [case for case in ALL if is_short(case) and is_open(case)]


def test_a_case_is_found_by_its_id():
    suite = unbuilt()
    found = suite.find("additive_score-plain")
    assert found is not None and found.id == "additive_score-plain"
    assert suite.find("additive_score-*") is None and suite.find("additive_score") is None and suite.find("") is None
