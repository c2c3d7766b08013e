"""The judge catches every mutant where it should, and would not without any one of its checks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_core import reference
from parity_tests.cases.suite import all_cases
from parity_tests.format.call import TRAINING
from parity_tests.format.case import Arrays, Case, is_floating
from parity_tests.format.expected import expected_values
from parity_tests.format.selection import Cell, Selection
from parity_tests.judge import compare
from parity_tests.judge.compare import CELL_CHECKS, CHECKS, judge_all
from parity_tests.judge.question import Questions
from parity_tests.mutants import explain
from parity_tests.mutants.derived import Derived
from parity_tests.mutants.explain import explanations
from parity_tests.mutants.families import MUTANTS
from parity_tests.mutants.mutant import Mutant, Replacement, answer, in_place_of_the_reference
from parity_tests.mutants.outcome import Outcome, attempt, outcome_of
from parity_tests.mutants.trace import cells_touched, is_empty, is_generated, touching
from parity_tests.tests.commands import invoke, squeezed
from parity_tests.workers.answers import Answer
from parity_tests.workers.recordings import Recording
from tools.core import killers_among

pytestmark = pytest.mark.once

by_name = {mutant.name: mutant for mutant in MUTANTS}
LIBRARIES = [mutant.name for mutant in MUTANTS if mutant.source]
GRADIENTS = ["bias_of_the_first_query", "bias_of_the_first_sequence", "bias_not_summed", "key_heads_not_summed"]
"""Mutants with wrong gradients alone of what is shared."""
RIGHT = Mutant("right", "It is the reference.", ("masked_softmax-*", "GRU-step*"))

Answers = Callable[[str], tuple[list[Cell], Recording]]
Outcomes = Callable[[str], Outcome]


@pytest.fixture(scope="session")
def more_answers() -> dict[Any, tuple[Any, Arrays]]:
    return {}


@pytest.fixture
def answered_once(answers: Answers, more_answers: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagnosis that computes no mutant's answer twice."""

    def remembered(mutant: Mutant, case: Case, dtype: str, without: tuple[str, ...] = ()) -> tuple[Any, Arrays]:
        recording, name = answers(mutant.name)[1], f"{case.id}/{dtype}"
        if name in recording.cells:
            return recording.answers[name], recording.cells[name]
        key = mutant.name, name, case.gradients
        if key not in more_answers:
            more_answers[key] = answer(mutant, case, dtype, without)
        return more_answers[key]

    monkeypatch.setattr(explain, "answer", remembered)


def without(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one check out of the comparison."""
    for table in ("CELL_CHECKS", "CHECKS"):
        kept = {name: function for name, function in getattr(compare, table).items() if name != check}
        monkeypatch.setattr(compare, table, kept)


def test_there_are_many_each_with_a_name_and_a_sentence():
    assert len(by_name) == len(MUTANTS) >= 100
    assert len({mutant.sentence for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        ways = (mutant.broken, mutant.spoiled, mutant.misread, mutant.withheld)
        assert mutant.sentence.endswith(".") and sum(map(bool, ways)) == 1


def test_a_mutant_replaces_functions_that_exist_and_names_their_arguments():
    for mutant in MUTANTS:
        with in_place_of_the_reference(mutant):  # whose errors would be red answers
            pass
    unfit = replace(by_name["scale_off"], broken={"dot_score": Replacement(lambda original, scale: original())})
    with pytest.raises(TypeError, match="dot_score has no argument scale"), in_place_of_the_reference(unfit):
        pass


@pytest.mark.parametrize("name", by_name)
def test_a_mutant_is_red_exactly_where_it_should_be(name: str, outcomes: Outcomes):
    outcome = outcomes(name)
    assert (outcome.survived, outcome.unexpected) == ([], []) and outcome.killed_by


def test_many_are_mistakes_that_libraries_have_made():
    assert len(LIBRARIES) >= 25
    for name in LIBRARIES:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", by_name[name].source)


def among_right_answers(mutant: Mutant, cells: Sequence[Cell], recording: Recording) -> tuple[list[Cell], Recording]:
    """The mutant's answers, and right ones to the cases by hand that do not touch it."""
    by_hand = (case for pattern in mutant.cases for case in all_cases().select(pattern) if not is_generated(case))
    others = [Cell(case, mutant.dtype) for case in by_hand if mutant.dtype in case.dtypes]
    touched = touching(mutant, others)
    others = [cell for cell in others if cell not in touched]
    more = replace(recording, answers={**recording.answers}, cells={**recording.cells})
    for cell in others:
        arrays, more.answers[cell.key] = expected_values(*cell), Answer()
        more.cells[cell.key] = {
            name: array.astype(cell.dtype) if is_floating(array) else array for name, array in arrays.items()
        }
    return [*cells, *others], more


@pytest.mark.parametrize("name", [*LIBRARIES, *GRADIENTS])
def test_a_library_with_a_known_mistake_is_explained_by_it(name: str, answers: Answers, answered_once: None):
    cells, recording = among_right_answers(by_name[name], *answers(name))
    verdicts = judge_all(cells, [recording], Questions())
    # One training is enough: to compare all mutants with another one takes long.
    trainings = list(dict.fromkeys(one.case for one in verdicts if one.red and one.operator == TRAINING))
    verdicts = [one for one in verdicts if one.case not in trainings[1:]]
    explained = list(explanations(cells, recording, verdicts, seconds=math.inf))
    assert explained and {one.mutant for one in explained} == {name}
    assert all(one.sentence == by_name[name].description and by_name[name].source in one.sentence for one in explained)


@pytest.mark.parametrize("check", [*CELL_CHECKS, *CHECKS])
def test_without_any_one_check_a_mutant_passes(
    check: str, answers: Answers, outcomes: Outcomes, monkeypatch: pytest.MonkeyPatch
):
    # What another check has found red, it finds red without this one, too.
    alone = [name for name in by_name if set(outcomes(name).killed_by) == {check}]
    alone.sort(key=lambda name: sum(array.size for cell in answers(name)[1].cells.values() for array in cell.values()))
    without(check, monkeypatch)

    def is_unseen(name: str, cells: list[Cell], recording: Recording) -> bool:
        try:
            return not outcome_of(by_name[name], cells, recording).killed_by
        except (IndexError, ValueError):  # the next check cannot read an array of another shape
            return False

    found = (name for name in alone if is_unseen(name, *answers(name)))
    assert any(is_unseen(name, *attempt(by_name[name])) for name in found), f"no mutant needs the check {check!r}"


def test_the_core_kills_every_mutant_and_none_of_its_cells_could_be_left_out(
    outcomes: Outcomes, derived_killers: dict[Derived, set[str]]
):
    cells = Selection(core=True).cells(all_cases())
    killers = killers_among(cells, {name: outcomes(name).red for name in by_name}, derived_killers)
    silent = {name for name, names in killers.items() if not names}
    assert silent == {name for name in by_name if all(pattern.startswith(TRAINING) for pattern in by_name[name].cases)}
    alone = {name for names in killers.values() if len(names) == 1 for name in names}
    asked_before = {f"{case.again}/{dtype}" for case, dtype in cells if case.again}
    assert {cell.key for cell in cells} == {*all_cases().core} == alone | asked_before


def test_a_right_implementation_is_not_killed():
    for dtype in ("float64", "float32"):
        cells, recording = attempt(replace(RIGHT, dtype=dtype))
        outcome = outcome_of(RIGHT, cells, recording)
        assert not outcome.killed_by and outcome.survived == [case.id for case, _ in cells]


def test_a_mutant_is_touched_where_its_function_is_called_under_its_condition():
    def touched(name: str) -> list[str]:
        return [case.id for case, _ in cells_touched(by_name[name])]

    written = [case for case in all_cases().select("masked_softmax-*") if not (is_generated(case) or is_empty(case))]
    assert touched("mask_inverted") == [case.id for case in written if "mask" in case.inputs]
    assert touched("softmax_over_queries") == [case.id for case in written]
    assert touched("scale_ignored") == ["scaled_dot_score-scale"]
    assert touched("features_beyond_64") and all("-cover_" in name for name in touched("features_beyond_64"))


def test_a_call_that_does_not_touch_a_mutant_is_answered_by_the_reference():
    (case,) = all_cases().select("masked_softmax-none")
    right, given = (answer(mutant, case, "float64")[1] for mutant in (RIGHT, by_name["mask_inverted"]))
    assert right.keys() == given.keys() and all(np.array_equal(right[name], given[name]) for name in right)


def test_the_reference_is_whole_again_afterwards():
    before = reference.masked_softmax, reference.recurrent.GRU.__call__
    with in_place_of_the_reference(by_name["padding_answers"]), in_place_of_the_reference(by_name["mask_inverted"]):
        assert reference.masked_softmax is not before[0] and reference.recurrent.GRU.__call__ is not before[1]
    assert before == (reference.masked_softmax, reference.recurrent.GRU.__call__)


def test_a_case_that_is_blind_to_a_mutant_is_reported(answers: Answers):
    cells, recording = answers("scale_ignored")
    right = replace(recording, cells={cell.key: answer(RIGHT, *cell)[1] for cell in cells})
    assert outcome_of(by_name["scale_ignored"], cells, right).survived == ["scaled_dot_score-scale"]


def test_an_unseen_case_that_is_red_or_missing_is_reported(answers: Answers):
    mutant = replace(by_name["scale_ignored"], unseen=("scaled_dot_score-scale", "scaled_dot_score-nowhere"))
    outcome = outcome_of(mutant, *answers("scale_ignored"))
    assert (outcome.survived, outcome.unexpected) == (["scaled_dot_score-nowhere"], ["scaled_dot_score-scale"])
    assert not outcome.as_demanded


def test_a_quantity_that_is_far_off_and_passes_is_reported(answers: Answers, monkeypatch: pytest.MonkeyPatch):
    without("value", monkeypatch)
    survived = outcome_of(by_name["scale_off"], *answers("scale_off")).survived
    assert {"scaled_dot_score-plain", "scaled_dot_score-plain:scores"} <= {*survived}


def test_the_matrix_names_every_mutant_and_what_killed_it(monkeypatch: pytest.MonkeyPatch):
    result = invoke("mutate", "--name", "scale_*", "--sentences")
    assert result.exit_code == 0 and "all 6 mutants are killed" in result.output
    assert "The scale is off by 1e-5." in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
    without("value", monkeypatch)
    result = invoke("mutate", "--name", "scale_ignored")
    assert result.exit_code == 1
    assert "should be red: scaled_dot_score-scale, scaled_dot_score-scale:scores" in squeezed(result)


def test_rounding_a_mutant_keeps_its_derivatives():
    """Otherwise the gradient would be wrong for another reason than the one stated."""
    from parity_tests.mutants.scores import _to_tensor_float
    from parity_tests.mutants.weights import round_to

    perturbed = np.array([1.0 + 2.0**-40 + 3e-91j])
    assert round_to(perturbed, "float32")[0] == 1.0 + 3e-91j
    assert _to_tensor_float(np.array([1.0 + 2.0**-9 + 2.0**-12 + 3e-91j]))[0] == 1.0 + 2.0**-9 + 3e-91j
