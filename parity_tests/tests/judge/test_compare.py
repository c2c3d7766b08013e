"""The judge: what it passes, what it refuses, and that it says no to a wrong backend in the right cells."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from attention_core import reference
from backends.archives import unpack_arrays
from parity_tests.cases.suite import all_cases
from parity_tests.format.expected import cotangents
from parity_tests.format.selection import Cell, cells_of
from parity_tests.judge.compare import compare, judge, judge_all, judge_settings
from parity_tests.judge.divergences import Divergence, apply, load_divergences
from parity_tests.judge.pair import Quantity
from parity_tests.judge.question import Question, Questions
from parity_tests.judge.run import Run, conclude
from parity_tests.judge.tolerances import EntryTolerance, Tolerance, tolerance_of
from parity_tests.judge.verdict import Verdict
from parity_tests.reports.table import report
from parity_tests.workers.answers import Answer
from parity_tests.workers.environment import determinism, required_settings
from parity_tests.workers.recordings import Recording, batch_of
from parity_tests.workers.target import open_target

BLANK = Verdict("op", "op-case", "fake", "reference", "cpu", "float64", "weights", "missing")
TOLERANCE = Tolerance(10, 3, "an example", ("float64",))
EPS = 2.0**-52
REFERENCE = np.array([[1.0, -4.0, 0.0], [2.0, 3.0, 0.5]])


def verdict_on(
    actual: np.ndarray, expected: np.ndarray | None = None, reference: np.ndarray = REFERENCE, **quantity: Any
) -> Verdict:
    given = {"name": "weights", "dtype": "float64", "reference": reference, "tolerance": TOLERANCE, **quantity}
    compared = Quantity(**given)
    return compare(replace(BLANK, dtype=compared.dtype), compared, actual, reference if expected is None else expected)


def test_an_exact_answer_passes_with_error_zero():
    verdict = verdict_on(REFERENCE.copy())
    assert (verdict.status, verdict.error, verdict.tolerance) == ("pass", 0.0, 10)
    assert verdict.reason == "an example; largest measured error 3" and verdict.check == ""


@pytest.mark.parametrize(("eps", "status"), [(9.0, "pass"), (11.0, "fail")])
def test_the_error_is_in_eps_of_the_largest_entry(eps: float, status: str):
    actual = REFERENCE.copy()
    actual[1, 2] += eps * EPS * 4.0
    verdict = verdict_on(actual)
    assert verdict.status == status and verdict.error == pytest.approx(eps, rel=0.2)


def test_a_failure_names_the_worst_element_and_how_many_are_wrong():
    actual = REFERENCE.copy()
    actual[0, 1], actual[1, 0] = -4.5, 2.25
    assert verdict_on(actual).reason == (
        "weights[0, 1] is -4.5, expected -4.0: 5.63e+14 eps (relative error 0.12), allowed 10 (33% of elements too far)"
    )


@pytest.mark.parametrize(
    ("actual", "reason"),
    [
        (REFERENCE.T, "weights has shape (3, 2), expected (2, 3)"),
        (REFERENCE[0], "weights has shape (3,), expected (2, 3)"),
        (REFERENCE.astype(np.float32), "weights is float32, expected float64"),
        (REFERENCE > 0, "weights is bool, expected float64"),
        (np.where(REFERENCE == 0, np.nan, REFERENCE), "weights[0, 2] is nan, expected 0.0"),
        (np.where(REFERENCE == 2, np.inf, REFERENCE), "weights[1, 0] is inf, expected 2.0"),
    ],
)
def test_shape_dtype_and_special_values_are_compared(actual: np.ndarray, reason: str):
    verdict = verdict_on(actual)
    assert verdict.status == "fail" and verdict.reason.startswith(reason)


def test_informational_values_are_measured_and_only_checked_for_shape_dtype_and_special_values():
    shown = Tolerance(0, 0, "later steps", ("float64",), informational=True)
    verdict = verdict_on(REFERENCE + 1.0, tolerance=shown)
    assert (verdict.status, verdict.red) == ("informational", False) and verdict.error == pytest.approx(0.25 / EPS)
    for actual in (REFERENCE.T, REFERENCE.astype(np.float32), REFERENCE * np.nan):
        assert verdict_on(actual, tolerance=shown).status == "fail"
    assert "informational" not in {tolerance_of("training", "training-gru_dot_sgd", "float64", "later_losses").reason}
    assert tolerance_of("training", "training-gru_dot_sgd", "float32", "later_losses").informational
    assert not tolerance_of("training", "training-gru_dot_sgd", "float32", "losses").informational


def test_the_report_counts_informational_verdicts_separately(fake: ModuleType):
    (case,) = all_cases().select("dot_score-plain")
    recording = Recording("fake", "cpu")
    passed = replace(BLANK, operator=case.operator, case=case.id, status="pass", error=2.0)
    verdicts = [passed, replace(passed, status="informational", error=77.0)]
    outcome = Run([Cell(case, "float64")], verdicts=verdicts, recordings={"fake": recording}, dtypes=["float64"])
    console = Console(width=100, record=True, file=io.StringIO())
    report(outcome, console)
    printed = console.export_text()
    assert "2 (77 informational)" in printed and "all within tolerance; 1 of them informational" in printed


def test_where_the_reference_is_zero_zero_is_demanded():
    zero = np.zeros((2, 3))
    assert verdict_on(zero.copy(), reference=zero).status == "pass"
    tiny = np.full((2, 3), 1e-300)
    assert verdict_on(tiny, reference=zero).status == "fail"


# ------------------------------------------------------------------------------------------------ each entry by itself

BY_ENTRY = EntryTolerance(4, 2, "an example", ("float64", "float32"))
WEIGHTS = EntryTolerance(4, 2, "an example", ("float64", "float32"), softmax=True)
SMALL = np.array([[0.75, 0.25, 0.0], [1.0, 1e-12, 1e-30]])


def by_entry(actual: np.ndarray, expected: np.ndarray = SMALL, tolerance: EntryTolerance = BY_ENTRY) -> Verdict:
    return verdict_on(actual, expected, SMALL, by_entry=tolerance)


def test_a_small_entry_that_comes_back_as_zero_is_red():
    actual = SMALL.copy()
    actual[1, 2] = 0.0
    verdict = by_entry(actual)
    assert (verdict.status, verdict.check, verdict.tolerance) == ("fail", "entry", 4)
    assert verdict.error == verdict.entry_error == pytest.approx(1.0 / EPS)
    assert verdict.reason == (
        "weights[1, 2] is 0.0, expected 1e-30: relative to this entry, 4.5e+15 eps (relative error 1), allowed 4 "
        "(17% of elements too far)"
    )
    assert verdict_on(actual, reference=SMALL).status == "pass", "where small entries are not asked for"


def test_a_passing_verdict_has_both_errors():
    verdict = by_entry(SMALL * (1.0 + 2.0 * EPS))
    assert (verdict.status, verdict.tolerance, verdict.check) == ("pass", 10, "")
    assert verdict.error == pytest.approx(2.0) and verdict.entry_error == pytest.approx(2.0, rel=0.2)
    assert verdict_on(REFERENCE).entry_error is None
    assert by_entry(SMALL + 1.0).entry_error is None, "an error by the largest entry is told first"


def test_a_hidden_key_has_a_weight_of_zero():
    actual = SMALL.copy()
    actual[0, 2] = 1e-40
    assert by_entry(actual).check == "entry"


@pytest.mark.parametrize(
    ("expected", "actual", "status"),
    [
        (1e-39, 0.0, "pass"),
        (0.0, 1e-39, "pass"),
        (1.1754945e-38, 0.0, "pass"),
        (3e-38, 0.0, "fail"),
        (1e-39, 4e-38, "fail"),
    ],
)
def test_subnormal_numbers_may_be_flushed(expected: float, actual: float, status: str):
    reference = np.array([[1.0, expected]])
    arrays = np.array([[1.0, actual]], np.float32), reference.astype(np.float32), reference
    assert verdict_on(*arrays, dtype="float32", by_entry=BY_ENTRY).status == status


def test_the_tolerance_of_weights_grows_with_the_range_of_scores():
    apart = 1.0 + np.log(1e30)
    for eps, status in ((0.9 * 4 * apart, "pass"), (1.1 * 4 * apart, "fail")):
        actual = SMALL * np.where(SMALL == 1e-12, 1.0 + eps * EPS, 1.0)
        assert by_entry(actual, tolerance=WEIGHTS).status == status
        assert by_entry(actual).status == "fail"
    actual = SMALL * np.where(SMALL == 0.25, 1.0 + 12 * EPS, 1.0)
    assert by_entry(actual, tolerance=WEIGHTS).status == "fail", "the scores of another row count nothing"


def test_two_backends_differ_in_eps_of_the_reference():
    actual = SMALL * np.where(SMALL == 1e-30, 3.0, 1.0)
    assert by_entry(actual, expected=actual).status == "pass"
    verdict = by_entry(SMALL, expected=actual)
    assert verdict.check == "entry" and verdict.error == pytest.approx(2.0 / EPS)


def test_whole_numbers_and_booleans_have_no_tolerance():
    tokens = np.array([3, 1, 2], np.int32)
    assert verdict_on(tokens.copy(), reference=tokens).status == "pass"
    verdict = verdict_on(tokens + np.int32(tokens == 1), reference=tokens)
    assert verdict.status == "fail" and verdict.reason.startswith("weights[1] is 2, expected 1")
    assert verdict_on(tokens.astype(np.int64), reference=tokens).reason == "weights is int64, expected int32"


def test_empty_arrays_are_compared_by_shape_and_dtype():
    empty = np.zeros((2, 0))
    assert verdict_on(empty, reference=empty).status == "pass"
    assert verdict_on(np.zeros((0, 2)), reference=empty).status == "fail"


# ------------------------------------------------------------------------------------------------ whole cells


def recorded(fake: ModuleType, pattern: str) -> tuple[list, Recording]:
    """The cells of a pattern written by hand, and what the fake backend answers to them, in this process."""
    chosen = [case for case in all_cases().select(pattern) if case.drawn is None and not case.again]
    cells = cells_of(chosen, ["float64"])
    backend, recording = open_target("numpy_backend", "cpu"), Recording("fake", "cpu")
    for case, dtype in cells:
        inputs, parameters = case.at(dtype)
        factors = {str(position): array for position, array in cotangents(case, dtype).items()}
        message = unpack_arrays(batch_of([Cell(case, dtype)]).packed)[1]["cells"][0]
        recording.cells[Cell(case, dtype).key] = backend.run(message, inputs, parameters, factors).arrays
        recording.answers[Cell(case, dtype).key] = Answer()
    return cells, recording


def verdicts_of(cells: list, recording: Recording) -> list[Verdict]:
    return judge_all(cells, [recording], Questions())


def red_quantities(verdicts: list[Verdict]) -> set[tuple[str, str]]:
    return {(verdict.case.partition("-")[2], verdict.quantity) for verdict in verdicts if verdict.red}


def test_the_reference_itself_is_green(fake: ModuleType):
    cells, recording = recorded(fake, "scaled_dot_score-*")
    verdicts = verdicts_of(cells, recording)
    assert len(verdicts) == 44 and not red_quantities(verdicts)


def test_an_ignored_scale_is_red_if_a_scale_is_passed(fake: ModuleType, monkeypatch: pytest.MonkeyPatch):
    def ignoring(queries, keys, *, scale=None, softcap=None):
        return reference.scaled_dot_score(queries, keys, softcap=softcap)

    monkeypatch.setattr(fake, "scaled_dot_score", ignoring)
    red = red_quantities(verdicts_of(*recorded(fake, "scaled_dot_score-*")))
    assert red == {("scale", "scores"), ("scale", "gradient_queries"), ("scale", "gradient_keys")}


def test_an_inverted_mask_is_red_where_a_mask_hides_something(fake: ModuleType, monkeypatch: pytest.MonkeyPatch):
    def inverted(scores, valid_lens=None, mask=None):
        return reference.masked_softmax(scores, valid_lens, None if mask is None else ~mask)

    monkeypatch.setattr(fake, "masked_softmax", inverted)
    cells, recording = recorded(fake, "masked_softmax-*")
    red = {name for name, _ in red_quantities(verdicts_of(cells, recording))}
    without_mask = {"none", "ragged", "heads"}
    # With no batch, no queries or no keys there is nothing that a mask could change.
    blind = {"no_batch", "no_queries", "no_keys"}
    assert red == {case.name for case, _ in cells} - without_mask - blind


def test_a_stopped_gradient_is_red_in_that_gradient_alone(fake: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fake, "dot_score", lambda queries, keys: reference.dot_score(queries, np.real(keys)))
    red = red_quantities(verdicts_of(*recorded(fake, "dot_score-*")))
    cases = ("plain", "heads", "large", "one_key", "second_queries", "second_keys")
    assert red == {*((name, "gradient_keys") for name in cases), ("second_keys", "gradient_second.keys")}


def test_quantities_without_an_answer_are_missing_and_additional_ones_are_refused(fake: ModuleType):
    cells, recording = recorded(fake, "attention_pooling-mask")
    answer = recording.cells[cells[0].key]
    answer["surprise"] = answer.pop("gradient_values")
    verdicts = {verdict.quantity: verdict for verdict in verdicts_of(cells, recording)}
    assert verdicts["gradient_values"].status == "missing" and verdicts["gradient_values"].red
    assert verdicts["surprise"].reason == "the specification does not have this quantity"
    assert [name for name, verdict in verdicts.items() if verdict.red] == ["gradient_values", "surprise"]


def test_a_cell_without_an_answer_is_missing(fake: ModuleType):
    cells, recording = recorded(fake, "dot_score-plain")
    recording.answers.clear()
    (verdict,) = verdicts_of(cells, recording)
    assert (verdict.status, verdict.quantity, verdict.red) == ("missing", "*", True)


def test_a_call_that_changes_its_argument_is_red_though_its_answer_is_right(fake: ModuleType):
    cells, recording = recorded(fake, "dot_score-plain")
    recording.answers[cells[0].key] = Answer(changed=("keys",))
    (red,) = [verdict for verdict in verdicts_of(cells, recording) if verdict.red]
    assert (red.quantity, red.status, red.check) == ("argument_keys", "fail", "input")


def test_a_cell_that_cannot_exist_is_neither_red_nor_compared(fake: ModuleType):
    cells, recording = recorded(fake, "dot_score-plain")
    recording.answers[cells[0].key] = Answer("not-applicable", "there is no such product")
    (verdict,) = verdicts_of(cells, recording)
    assert (verdict.status, verdict.red, verdict.reason) == ("not-applicable", False, "there is no such product")


def test_a_setting_that_is_not_in_force_is_red():
    required = required_settings("torch", "cuda")
    in_force = {name: required[name] for name in determinism("torch")}
    recording = Recording("torch", "cuda", {"determinism": in_force})
    assert judge_settings(recording) == []
    in_force["cuda.matmul.allow_tf32"] = True
    del in_force["threads"]
    reasons = [verdict.reason for verdict in judge_settings(recording) if verdict.red]
    assert reasons == ["cuda.matmul.allow_tf32 is True, expected False", "threads was not read back"]


def test_a_run_is_red_where_a_setting_is_not_in_force():
    recording = Recording("torch", "cpu", {"determinism": {}})
    outcome = Run([], recordings={recording.name: recording})
    conclude(outcome, [], Questions(), {})
    assert outcome.red and outcome.verdicts == judge_settings(recording)


def test_backends_are_judged_against_each_other(fake: ModuleType):
    cells, first = recorded(fake, "dot_score-plain")
    _, second = recorded(fake, "dot_score-plain")
    second.backend = "other"
    second.cells[cells[0].key]["scores"] = second.cells[cells[0].key]["scores"] + 1e-9
    verdicts = list(judge(Question(cells[0]), first, second))
    assert [(v.against, v.quantity, v.status) for v in verdicts] == [
        ("other", "scores", "fail"),
        ("other", "gradient_queries", "pass"),
        ("other", "gradient_keys", "pass"),
    ]


# ------------------------------------------------------------------------------------------------ known divergences


def test_a_known_divergence_is_marked_and_a_stale_one_is_red():
    failing = replace(BLANK, status="fail", reason="differs")
    passing = replace(BLANK, case="op-other", status="pass")
    known = Divergence("fake", "op-case", "weights", "does something else")
    (marked, untouched) = apply([failing, passing], [known])
    assert (marked.status, marked.reason, marked.red) == ("known-divergence", "does something else", False)
    assert untouched is passing
    stale = apply([passing], [replace(known, case="op-other")])[-1]
    assert stale.red and "no longer diverges" in stale.reason
    assert apply([passing], [known]) == [passing], "a run that does not cover the case says nothing of it"


def test_our_own_divergences_load():
    assert all(entry.reason for entry in load_divergences())


def test_verdicts_are_json_even_where_the_error_is_infinite(fake: ModuleType):
    verdict = replace(BLANK, status="fail", error=float("inf"), tolerance=1.0, reason="nan")
    text = json.dumps(Run([], [verdict]).as_json(), allow_nan=False)
    (cell,) = json.loads(text)["cells"]
    names = "operator case backend against device dtype quantity status error tolerance reason check entry_error"
    assert cell["error"] is None and sorted(cell) == sorted(names.split())


def mixed_reasons(**dtypes: str) -> list[str]:
    """What is red of the reference's own answer in mixed precision, with quantities in other dtypes than float32."""
    case = next(case for case in all_cases() if case.id == "AdditiveAttention-ragged")
    question = Question(Cell(case, "mixed_bfloat16"))
    assert question.quantities is not None
    given = {"context": "bfloat16", **dtypes}
    arrays = {name: q.reference.astype(given.get(name, "float32")) for name, q in question.quantities.items()}
    recording = Recording("fake", "cpu", cells={question.cell.key: arrays}, answers={question.cell.key: Answer()})
    return [verdict.reason for verdict in judge(question, recording) if verdict.red]


def test_in_mixed_precision_the_framework_casts_and_gradients_are_in_the_dtype_of_the_parameters():
    assert mixed_reasons() == [] == mixed_reasons(weights="bfloat16")
    assert mixed_reasons(context="float32") == ["context is float32, expected bfloat16"]
    assert mixed_reasons(weights="float16") == ["weights is float16, expected bfloat16 or float32"]
    for name in ("gradient_W_q", "gradient_queries"):
        assert mixed_reasons(**{name: "bfloat16"}) == [f"{name} is bfloat16, expected float32"]
