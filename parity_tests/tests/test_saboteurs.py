"""The court catches every saboteur where it should, and would not without any one of its checks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from attention_core import reference
from parity_tests import cli, comparison, diagnosis
from parity_tests.cases import Arrays, Case, all_cases
from parity_tests.comparison import CELL_CHECKS, CHECKS, judge
from parity_tests.core import told
from parity_tests.diagnosis import explanations
from parity_tests.expected import expected
from parity_tests.invocation import TRAINING
from parity_tests.library_bugs import KNOWN
from parity_tests.recordings import Cell, Recording, Selection, core, key
from parity_tests.saboteurs import Saboteur, answer, attempt, in_place_of_the_reference, judged

pytestmark = [pytest.mark.xdist_group("saboteurs"), pytest.mark.once]

by_name = {saboteur.name: saboteur for saboteur in KNOWN}
LIBRARIES = [saboteur.name for saboteur in KNOWN if saboteur.source]

Answers = dict[str, tuple[list[Cell], Recording]]


@pytest.fixture(scope="session")
def answers() -> Answers:
    return {saboteur.name: attempt(saboteur) for saboteur in KNOWN}


@pytest.fixture
def answered_once(answers: Answers, known: dict[Any, tuple[Any, Arrays]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A diagnosis that asks no saboteur twice."""

    def remembered(saboteur: Saboteur, case: Case, tier: str, without: tuple[str, ...] = ()) -> tuple[Any, Arrays]:
        at = saboteur.name, case.id, tier, case.gradients
        if at not in known:
            known[at] = answer(saboteur, case, tier, without)
        return known[at]

    monkeypatch.setattr(diagnosis, "answer", remembered)


@pytest.fixture(scope="session")
def known(answers: Answers) -> dict[Any, tuple[Any, Arrays]]:
    return {
        (name, case.id, tier, gradients): (recording.status[f"{case.id}/{tier}"], recording.cells[f"{case.id}/{tier}"])
        for name, (cells, recording) in answers.items()
        for case, tier in cells
        for gradients in (case.gradients, False)
    }


def without(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one check out of the comparison."""
    for table in ("CELL_CHECKS", "CHECKS"):
        kept = {name: own for name, own in getattr(comparison, table).items() if name != check}
        monkeypatch.setattr(comparison, table, kept)


def test_there_are_many_each_with_a_name_and_a_sentence():
    assert len(by_name) == len(KNOWN) >= 100
    assert len({saboteur.sentence for saboteur in KNOWN}) == len(KNOWN)
    for saboteur in KNOWN:
        ways = (saboteur.broken, saboteur.spoiled, saboteur.misread, saboteur.withheld)
        assert saboteur.sentence.endswith(".") and sum(map(bool, ways)) == 1


@pytest.mark.parametrize("name", by_name)
def test_a_saboteur_is_red_exactly_where_it_should_be(name: str, answers: Answers):
    caught = judged(by_name[name], *answers[name])
    assert (caught.let_through, caught.accused) == ([], []) and caught.by


def test_many_are_mistakes_that_libraries_have_made():
    assert len(LIBRARIES) >= 25
    for name in LIBRARIES:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", by_name[name].source)


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_that_is_so_is_told_its_mistake(name: str, answers: Answers, answered_once: None):
    cells, recording = answers[name]
    verdicts = [verdict for cell in cells for verdict in judge(cell, expected(*cell), recording)]
    # One training is enough, and all that is known to be wrong with one takes long to be asked about another.
    trainings = list(
        dict.fromkeys(verdict.case for verdict in verdicts if verdict.red and verdict.operator == TRAINING)
    )
    found = list(explanations(cells, recording, [one for one in verdicts if one.case not in trainings[1:]]))
    assert found and {one.saboteur for one in found} == {name}
    assert all(one.sentence == f"{by_name[name].sentence} ({by_name[name].source})" for one in found)


@pytest.mark.parametrize("check", [*CELL_CHECKS, *CHECKS])
def test_without_any_one_check_a_saboteur_passes(check: str, answers, monkeypatch: pytest.MonkeyPatch):
    without(check, monkeypatch)
    unseen = [name for name, answer in answers.items() if not judged(by_name[name], *answer).by]
    assert unseen, f"no saboteur needs the check {check!r}"


def test_the_core_tells_every_mistake_and_none_of_its_cells_could_be_left_out(answers: Answers):
    cells = Selection(core=True).cells(all_cases())
    mistakes = told(cells, answers)
    silent = {name for name, own in mistakes.items() if not own}
    assert silent == {name for name in by_name if all(pattern.startswith(TRAINING) for pattern in by_name[name].cases)}
    alone = {name for own in mistakes.values() if len(own) == 1 for name in own}
    asked_before = {f"{case.again}/{tier}" for case, tier in cells if case.again}
    assert {key(cell) for cell in cells} == {*core()} == alone | asked_before


def test_an_honest_implementation_is_accused_of_nothing():
    honest = Saboteur("honest", "It is the reference.", ("masked_softmax-*", "GRU-step*"), red=(), broken={})
    for tier in ("float64", "float32"):
        caught = judged(honest, *attempt(replace(honest, tier=tier)))
        assert not caught.by and not caught.accused


def test_the_reference_is_whole_again_afterwards():
    before = reference.masked_softmax, reference.recurrent.GRU.__call__
    with in_place_of_the_reference(by_name["padding_answers"]), in_place_of_the_reference(by_name["mask_inverted"]):
        assert reference.masked_softmax is not before[0] and reference.recurrent.GRU.__call__ is not before[1]
    assert before == (reference.masked_softmax, reference.recurrent.GRU.__call__)


def test_a_statement_that_is_wrong_is_a_hole():
    saboteur = replace(by_name["scale_ignored"], red=("scaled_dot_score-plain:*", "scaled_dot_score-nowhere:*"))
    caught = judged(saboteur, *attempt(saboteur))
    assert "scaled_dot_score-scale:scores" in caught.accused and "scaled_dot_score-plain:scores" in caught.let_through
    assert "scaled_dot_score-nowhere:*" in caught.let_through and not caught.as_stated


def test_the_matrix_names_every_saboteur_and_what_caught_it(monkeypatch: pytest.MonkeyPatch):
    result = CliRunner().invoke(cli.main, ["sabotage", "--name", "scale_*", "--sentences"])
    assert result.exit_code == 0 and "all 4 saboteurs are caught" in result.output
    assert "The scale is off by 1e-5." in result.output
    assert max(len(line) for line in result.output.splitlines()) <= 80
    without("value", monkeypatch)
    result = CliRunner().invoke(cli.main, ["sabotage", "--name", "scale_ignored"])
    assert result.exit_code == 1 and "let through: scaled_dot_score-scale:scores" in re.sub(r"\s+", " ", result.output)


def test_rounding_a_saboteur_keeps_its_derivatives():
    """Otherwise the gradient would be wrong for another reason than the one stated."""
    from parity_tests.saboteurs import _rounded, _to_tensor_float

    perturbed = np.array([1.0 + 2.0**-40 + 3e-91j])
    assert _rounded(perturbed, "float32")[0] == 1.0 + 3e-91j
    assert _to_tensor_float(np.array([1.0 + 2.0**-9 + 2.0**-12 + 3e-91j]))[0] == 1.0 + 2.0**-9 + 3e-91j
