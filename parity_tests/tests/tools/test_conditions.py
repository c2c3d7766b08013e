"""Every condition under which a mistake may show is met, and what is not varied has a reason."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from parity_tests.cases import covering
from parity_tests.cases.conditions import FURTHER, IMPOSSIBLE, UNVARIED, conditions, every_condition
from tools.covering import cases_by_call, values_met

pytestmark = pytest.mark.once

Table = dict[str, dict[str, list[str]]]


@pytest.fixture(scope="module")
def table() -> Table:
    return values_met()


def test_every_condition_is_met(table: Table):
    missed = {
        call.name: [one.name for one in conditions(call) if one.name not in table[call.entry.name][one.dimension]]
        for call in covering.calls()
    }
    assert {name: names for name, names in missed.items() if names} == {}, "python -m tools.covering adds rows"


def test_no_operator_lacks_a_dimension_without_a_reason(table: Table):
    empty = {(name, dimension) for name, row in table.items() for dimension, values in row.items() if not values}
    reasons = {
        (call.entry.name, dimension)
        for call in covering.calls()
        for dimension, (_, holds) in UNVARIED.items()
        if holds(call) and call.method in ("", "call")
    }
    assert empty - reasons == set()
    assert {dimension for _, dimension in empty} == {*UNVARIED}


def test_what_is_impossible_would_be_a_condition():
    names = [(call.entry.name, one.name) for call in covering.calls() for one in every_condition(call)]
    for operators, patterns in IMPOSSIBLE:
        for operator in operators:
            assert any(fnmatchcase(name, operator) for name, _ in names), operator
        for pattern in patterns:
            known = [one for name, one in names if any(fnmatchcase(name, operator) for operator in operators)]
            assert any(fnmatchcase(one, pattern) for one in known), pattern


@pytest.mark.parametrize("dimension", FURTHER)
def test_without_the_rows_for_them_conditions_of_every_dimension_are_missed(dimension: str):
    cases = cases_by_call()
    for call in covering.calls():
        kept = [case for case in cases[call.name] if not covering.varies(case, dimension)]
        if any(one.dimension == dimension and not any(map(one.holds, kept)) for one in conditions(call)):
            return
    raise AssertionError("every condition is met without them")
