"""Tolerances: each decides somewhere, and a calibration keeps those that are neither tight nor loose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parity_tests.cases.suite import all_cases
from parity_tests.format.call import JUDGED_STEPS, output_names
from parity_tests.format.case import Case, is_floating
from parity_tests.format.expected import expected_values
from parity_tests.format.selection import Selection
from parity_tests.judge import tolerances
from parity_tests.judge.tolerances import Calibration, Tolerance, entry_tolerance_of, tolerance_of

TOLERANCE = Tolerance(10, 3, "an example", ("float64",))


def quantities(case: Case, dtype: str) -> set[str]:
    """The names of what a cell is asked, without computing it."""
    if case.operator != "training":
        inputs, _ = case.at(dtype)
        arguments = [*(name for name, array in inputs.items() if is_floating(array)), *case.parameters]
        named = {f"gradient_{name}" for name in arguments if case.gradients}
        return {*output_names(case.operator, case.method, case.options, case.twice), *named}
    later = {"later_losses", "later_norms"} if len(case.inputs["batches"]) > JUDGED_STEPS else set()
    return {"losses", "norms", "evaluated", *later, *(f"trained_{name}" for name in case.parameters)}


def test_every_tolerance_decides_somewhere_and_has_a_reason():
    (short,) = all_cases(trained=True).select("training-short")
    assert quantities(short, "float64") == set(expected_values(short, "float64"))
    for case, dtype in Selection(core=True).cells(all_cases()):
        assert quantities(case, dtype) == set(expected_values(case, dtype)), case.id
    deciding = {
        tolerance_of(case.operator, case.id, dtype, quantity)
        for case in all_cases(trained=True)
        for dtype in case.dtypes
        for quantity in quantities(case, dtype)
    }
    # As parity_tests/conversion/validation.py names its cases.
    deciding.add(tolerance_of("GRU", "GRU-converted_ragged", "float64", "outputs"))
    assert deciding == set(tolerances.TOLERANCES)
    assert all("largest measured error" in tolerance.reason for tolerance in tolerances.TOLERANCES)


def test_every_tolerance_by_entry_decides_somewhere_and_gradients_have_none():
    deciding = {
        (
            quantity.startswith("gradient_") or quantity == "context",
            entry_tolerance_of(case.operator, case.id, dtype, quantity),
        )
        for case in all_cases()
        for dtype in case.dtypes
        for quantity in quantities(case, dtype)
    }
    deciding.add(
        (False, entry_tolerance_of("MultiHeadAttention", "MultiHeadAttention-converted", "float64", "weights"))
    )
    assert {tolerance for differs, tolerance in deciding if tolerance is not None} == set(tolerances.ENTRY_TOLERANCES)
    assert {tolerance for differs, tolerance in deciding if differs} == {None}


@pytest.mark.parametrize(
    ("measured", "proposed"),
    [(3.0, 10), (5.0, 10), (0.9, 10), (5.1, 20), (6.0, 20), (60.0, 200)],
)
def test_a_calibration_keeps_a_tolerance_as_long_as_it_is_neither_tight_nor_loose(measured: float, proposed: float):
    assert Calibration(TOLERANCE, measured, "here").proposal == proposed


def test_a_tolerance_far_above_all_that_was_seen_is_lowered():
    assert Calibration(replace(TOLERANCE, eps=100), 2.0, "here").proposal == 10


def test_a_calibration_uses_the_largest_error_of_each_tolerance():
    first, second = tolerances.TOLERANCES[0], tolerances.TOLERANCES[-1]
    lines = tolerances.calibrate([(second, 1.0, "a"), (first, 7.0, "b"), (second, 2.0, "c"), (second, 0.5, "d")])
    assert [(line.tolerance, line.measured, line.where) for line in lines] == [(first, 7.0, "b"), (second, 2.0, "c")]


def test_our_own_tolerances_are_neither_tight_nor_loose():
    for tolerance in (*tolerances.TOLERANCES, *tolerances.ENTRY_TOLERANCES):
        assert tolerance.eps == Calibration(tolerance, 0.0, "").proposal, tolerance
