"""The frameworks' own attention: questions to it, words for its answers, the records of them, and the page."""

from __future__ import annotations

import functools
import importlib
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from attention_core import reference
from backends import FRAMEWORKS
from parity_tests.behaviour import classify, findings, questions
from parity_tests.behaviour.classify import Answer
from parity_tests.behaviour.findings import changes
from parity_tests.behaviour.questions import questions_for
from parity_tests.cases.suite import all_cases
from parity_tests.cli.behaviour import command
from parity_tests.format.case import FULL, Case
from parity_tests.format.expected import expected_values
from parity_tests.format.selection import Cell, cells_of
from parity_tests.judge import check
from parity_tests.judge.check import KNOWN
from parity_tests.judge.divergences import load_divergences
from parity_tests.third_party.attention import BACKENDS, THIRD_PARTY, ThirdParty
from parity_tests.workers.process import Job
from parity_tests.workers.recordings import Recording
from tools import behaviour
from tools.behaviour_page import ABSENT, SECTIONS, Convention, Section, conventions, disagreement, page

RECORDS = findings.load()
OPERATORS = ("DotProductAttention", "AdditiveAttention", "MultiHeadAttention")

# ------------------------------------------------------------------------------------------------ the page


def test_the_page_is_that_of_the_records():
    written = behaviour.PAGE.read_text(encoding="utf-8")
    assert written == page(RECORDS), "write it again: python -m tools.behaviour"


def test_every_call_has_findings_for_every_question():
    for target in THIRD_PARTY:
        asked = {name: questions.HALF if name == "half" else (name,) for name in findings.questions(target)}
        expected = {*itertools.chain(*asked.values()), *target.undefined}
        for entry in RECORDS[target.id]:
            assert set(entry["found"]) == expected, target.id


def test_every_link_leads_to_a_section_of_the_page():
    text = page(RECORDS)
    headings = {re.sub(r"[^\w -]", "", line[3:].lower()).replace(" ", "-") for line in re.findall("## .*", text)}
    links = set(re.findall(r"\]\(#([^)]*)\)", text))
    assert links and links <= headings


def test_every_case_that_the_page_names_exists():
    named = set(re.findall(r"attention-parity show ([\w-]+)", page(RECORDS)))
    assert named and named <= {case.id for case in all_cases()}


@pytest.mark.parametrize("section", [own for own in SECTIONS if own.conventions], ids=lambda own: own.title)
def test_every_word_of_a_table_is_explained(section: Section):
    """But for figures."""
    known = " ".join(own.words for own in section.conventions)
    for target in THIRD_PARTY:
        for entry, name in itertools.product(RECORDS[target.id], section.findings):
            for words in re.split(r" \(float64: |\)$|; ", entry["found"].get(name, "")):
                plain = re.sub(r" in \d+ of \d+ rows|True = |the padding gets ", "", words)
                explained = plain in known or plain in ("gradients 0", "gradients NaN", "gradients flow", ABSENT)
                assert explained or plain.startswith("outputs"), (target.id, words)


def test_the_page_begins_with_what_calls_disagree_about_most():
    """By hand: among seven calls with the argument, four answer otherwise than the three that say "a"."""
    words = ["a", "a; c", "a", "b; c", "b (float64: a)", "b", "d", ABSENT, ABSENT, ABSENT, ABSENT]
    records = {target.id: [entry("x 1", causal=word)] for target, word in zip(THIRD_PARTY, words, strict=False)}
    assert disagreement("causal", records) == 4
    titles = re.findall(r"^\| \[([^\]]*)\]", page(RECORDS), re.M)
    assert f"Most of all about: *{titles[0]}*" in page(RECORDS)


def test_a_table_names_settings_only_where_they_change_the_answer():
    rows = [line for line in page(RECORDS).splitlines() if line.startswith("| PyTorch ")]
    assert any("`nn.MultiheadAttention` |" in row or "`nn.MultiheadAttention`<br>" in row for row in rows)
    assert any("`nn.MultiheadAttention`, `need_weights=True`, eval" in row for row in rows)


# ------------------------------------------------------------------------------------------------ the questions


@pytest.mark.parametrize(("operator", "takes"), [*itertools.product(OPERATORS, ["mask"]), (OPERATORS[0], "lengths")])
def test_a_question_with_the_id_of_a_case_is_that_case(operator: str, takes: str):
    """One worker answers both, and knows them by their ids alone."""
    cases = {case.id: case for case in all_cases()}
    for name, question in questions_for(operator, takes).items():
        case = question.case
        same = cases.get(case.id, case)
        assert case.inputs is same.inputs and case.parameters is same.parameters, name


@pytest.mark.parametrize("takes", ["mask", "lengths"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_alternatives_of_a_question_differ(operator: str, takes: str):
    for name, question in questions_for(operator, takes).items():
        contexts = {words: classify.context_of(case, "float32") for words, case in question.alternatives.items()}
        for (first, one), (second, other) in itertools.combinations(contexts.items(), 2):
            assert not classify.alike(one, other), (name, first, second)


def test_padding_on_the_left_leaves_queries_with_nothing_and_others_with_less():
    mask = questions_for("DotProductAttention", "mask")["left_padding"].case.inputs["mask"]
    assert not mask[0, :2].any() and mask[0, 2:].any(-1).all() and mask[1].any(-1).all() and not mask[1, :, 0].any()


# ------------------------------------------------------------------------------------------------ the words


def answered(name: str, change: str, operator: str = "DotProductAttention") -> Answer:
    """The reference's answer to a question, with one thing made wrong."""
    case = questions_for(operator, "lengths" if name in ("beyond", "below") else "mask")[name].case
    right = expected_values(case, "float64")
    actual = {key: array.copy() for key, array in right.items()}
    masked = actual["weights"].sum(-1) == 0.0
    if change == "context NaN":
        actual["context"][:] = np.nan
    elif change == "uniform":
        actual["context"][masked] = classify.without_scores(case, "float64")[masked]
    elif change == "without mask":
        actual["context"][masked] = classify.without_mask(case, "float64")[masked]
    elif change == "gradient NaN":
        actual["gradient_queries"][0, 0] = np.nan
    elif change == "gradient":
        actual["gradient_values"] += 1.0
    elif change == "row":
        actual["context"][1, 3] += 1.0
    elif change == "rounding":
        actual = {key: array.astype("float32").astype("float64") for key, array in actual.items()}
    elif change == "gradients absent":
        actual = {key: array for key, array in actual.items() if not key.startswith("gradient_")}
    return Answer(Cell(case, "float64"), "ok", actual, right)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("fully_masked", "", "0; gradients 0"),
        ("fully_masked", "uniform", "uniform; gradients 0"),
        ("fully_masked", "without mask", "as without a mask; gradients 0"),
        ("fully_masked", "context NaN", "NaN; gradients 0"),
        ("fully_masked", "gradient NaN", "0; gradients NaN"),
        ("fully_masked", "gradient", "0; gradients flow"),
        ("fully_masked", "gradients absent", "0"),
        ("hidden_value", "", "ignored"),
        ("hidden_value", "context NaN", "NaN"),
        ("hidden_key", "gradient NaN", "ignored; gradients NaN"),
        ("hidden_key", "row", "wrong"),
        ("large", "", "right"),
        ("large", "row", "wrong in 1 of 10 rows"),
        ("huge", "context NaN", "NaN in 10 of 10 rows"),
        ("below", "", "clipped"),
        ("below", "row", "wrong in 1 of 10 rows"),
        ("beyond", "", "clipped"),
        ("beyond", "row", "wrong in 1 of 10 rows"),
        ("beyond", "context NaN", "NaN in 10 of 10 rows"),
        ("left_padding", "", "the padding gets 0; the rest as if padded on the right"),
        ("left_padding", "uniform", "the padding gets uniform; the rest as if padded on the right"),
        ("left_padding", "row", "the padding gets 0; the rest not as if padded on the right"),
        ("left_padding", "gradient NaN", "the padding gets 0; the rest as if padded on the right; gradients NaN"),
        ("gradients", "", "right"),
        ("gradients", "gradient NaN", "NaN"),
        ("gradients", "rounding", "as float32"),
        ("gradients", "gradients absent", "none"),
    ],
)
def test_an_answer_is_called_by_its_name(name: str, change: str, words: str):
    assert classify.classify(name, answered(name, change)) == words


@pytest.mark.parametrize(("operator", "takes"), [*itertools.product(OPERATORS, ["mask"]), (OPERATORS[0], "lengths")])
def test_an_answer_has_the_words_of_the_alternative_that_it_is(operator: str, takes: str):
    for name, question in questions_for(operator, takes).items():
        for words, case in question.alternatives.items():
            context = classify.context_of(case, "float32").astype("float32")
            for actual, known in ((context, words), (context + 1.0, "something else"), (context * np.nan, "NaN")):
                answer = Answer(Cell(question.case, "float32"), "ok", {"context": actual}, {})
                assert classify.classify(name, answer, question.alternatives) == known
    refused = Answer(Cell(question.case, "float32"), "not-implemented", {}, {})
    assert classify.classify(name, refused, question.alternatives) == ABSENT


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("change", "words"), [("", "0; gradients 0"), ("uniform", "uniform; gradients 0")])
def test_fully_masked_rows_have_the_same_name_in_every_operator(operator: str, change: str, words: str):
    assert classify.classify("fully_masked", answered("fully_masked", change, operator)) == words


def test_gradients_are_off_where_they_are():
    answer = answered("gradients", "gradient")
    assert re.fullmatch(r"off by [13]e\+1\d eps", classify.classify("gradients", answer))


@pytest.mark.parametrize("operator", OPERATORS)
def test_uniform_is_the_mean_of_all_values(operator: str):
    """As the page has it: in every operator, the context does not depend on the query."""
    case = questions_for(operator, "mask")["fully_masked"].case
    context = classify.without_scores(case, "float64")
    np.testing.assert_allclose(context, np.broadcast_to(context[:, :1], context.shape))
    if operator != "MultiHeadAttention":
        np.testing.assert_allclose(context[:, 0], case.inputs["values"].mean(axis=1))


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", ["large", "huge"])
def test_large_scores_have_gaps(operator: str, name: str):
    """Scores half as large give the same answer: each softmax is saturated."""
    for takes in ("mask", "lengths"):
        case = questions_for(operator, takes)[name].case
        small = replace(
            case,
            inputs={**case.inputs, "keys": case.inputs["keys"] / (1 if "w_v" in case.parameters else 2)},
            parameters={key: array / 2 if key == "w_v" else array for key, array in case.parameters.items()},
        )
        contexts = [classify.computed_outputs(own, *own.at("float64"))["context"] for own in (case, small)]
        np.testing.assert_array_equal(*contexts)


# ------------------------------------------------------------------------------------------------ the records


def entry(versions: str, **found: str) -> dict[str, object]:
    return {"versions": versions, "found": found}


TWO = {"jax:attend": [entry("jax 0.7.1", fully_masked="NaN"), entry("jax 0.10.2", fully_masked="uniform")]}


def test_a_change_names_call_question_versions_and_both_findings():
    (change,) = changes(TWO, {"jax:attend": ("jax 0.11.0", {"fully_masked": "0"})})
    assert change == "jax:attend: fully masked rows: was 'uniform' (jax 0.10.2), is '0' (jax 0.11.0)"


def test_a_recorded_version_is_compared_with_its_own_record():
    assert not list(changes(TWO, {"jax:attend": ("jax 0.7.1", {"fully_masked": "NaN"})}))
    assert list(changes(TWO, {"jax:attend": ("jax 0.7.1", {"fully_masked": "uniform"})}))


def test_a_new_version_with_the_same_finding_is_no_change():
    assert not list(changes({"a": [entry("a 1", fully_masked="0")]}, {"a": ("a 2", {"fully_masked": "0"})}))


@pytest.mark.parametrize(("was", "now", "same"), [("≤ 1", "≤ 3", True), ("≤ 10", "≤ 3", True), ("≤ 1", "≤ 10", False)])
def test_figures_of_half_precision_may_move_by_a_step(was: str, now: str, same: bool):
    assert same == (not list(changes({"a": [entry("a 1", float16=was)]}, {"a": ("a 2", {"float16": now})})))


def test_a_call_without_a_record_is_a_change():
    assert list(changes({}, {"a": ("a 1", {"fully_masked": "0"})})) == ["a (a 1) has no record"]


def test_versions_are_recorded_in_order_and_replaced():
    records = {"a": [entry("a 0.9", fully_masked="0"), entry("a 0.10", fully_masked="1")]}
    new = behaviour.merge(records, {"a": ("a 0.9", {"fully_masked": "2"})})
    assert [own["versions"] for own in new["a"]] == ["a 0.9", "a 0.10"]
    assert new["a"][0]["found"] == {"fully_masked": "2"} and records["a"][0]["found"] == {"fully_masked": "0"}


def test_the_page_has_the_findings_of_an_older_version_that_differ():
    target = THIRD_PARTY[0]
    newest = RECORDS[target.id][-1]
    older = {"versions": "torch 1.0.0", "found": {**newest["found"], "fully_masked": "NaN; gradients NaN"}}
    text = page({**RECORDS, target.id: [older, newest]})
    assert f"{target.call} in torch 1.0.0: fully masked rows: NaN; gradients NaN" in text


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def changed_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Records and page in a folder of the test; every framework is installed, and the first call alone has changed."""
    newest = {name: (own[-1]["versions"], dict(own[-1]["found"])) for name, own in RECORDS.items()}
    monkeypatch.setattr(findings, "is_installed", lambda target: True)
    monkeypatch.setattr(findings, "ask_all", lambda targets, *_, **__: {own.id: newest[own.id] for own in targets})
    monkeypatch.setattr(findings, "DATA", tmp_path / "behaviour.json")
    monkeypatch.setattr(behaviour, "PAGE", tmp_path / "behaviour.md")
    behaviour.save(RECORDS, findings.DATA)
    newest[THIRD_PARTY[0].id][1]["fully_masked"] = "NaN"
    return tmp_path


def test_the_command_reports_a_change_and_fails(changed_records: Path):
    result = CliRunner().invoke(command, ["--framework", "torch"])
    assert result.exit_code == 1
    assert f"changed     {THIRD_PARTY[0].id}: fully masked rows: was '0; gradients 0'" in result.output
    assert "python -m tools.behaviour" in result.output
    assert not (changed_records / "behaviour.md").exists()


def test_the_command_passes_without_a_change(changed_records: Path):
    result = CliRunner().invoke(command, ["--framework", "keras"])
    assert result.exit_code == 0, result.output
    assert "the same    6 calls behave as recorded" in result.output


def test_the_records_are_those_of_a_cpu(changed_records: Path):
    result = CliRunner().invoke(command, ["--framework", "torch", "--device", "cuda"])
    assert result.exit_code == 1 and "changed" in result.output and "tools.behaviour" not in result.output
    result = CliRunner().invoke(behaviour.command, ["--device", "cuda"])
    assert result.exit_code == 2 and "No such option" in result.output
    assert not (changed_records / "behaviour.md").exists()


def test_the_command_writes_records_and_page(changed_records: Path):
    assert CliRunner().invoke(behaviour.command, []).exit_code == 0
    records = findings.load()
    assert records[THIRD_PARTY[0].id][-1]["found"]["fully_masked"] == "NaN"
    assert behaviour.PAGE.read_text(encoding="utf-8") == page(records)
    assert CliRunner().invoke(command, []).exit_code == 0


def test_the_command_names_the_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(findings, "is_installed", lambda target: False)
    result = CliRunner().invoke(command, ["--framework", "flax"])
    assert result.exit_code == 1 and "none of flax, jax is installed" in result.output


# ------------------------------------------------------------------------------------------------ frameworks

PACKAGES_OF_A_BACKEND = ("torch", "keras", "jax", "flax", "mxnet")
"""The modules that need nothing beside what their backend does."""
PROBED = [
    pytest.param(own, id=own.id, marks=[pytest.mark.frameworks(own.backend)] if own.backend in FRAMEWORKS else [])
    for own in THIRD_PARTY
    if own.module in PACKAGES_OF_A_BACKEND or findings.is_installed(own)
]


def cases_of(target: ThirdParty) -> list[Case]:
    """The cases of the specification that a target is compared in: none where another target has the same call."""
    return [case for case in all_cases() if case.operator in (target.operator, "masked_softmax") and not target.asks]


Recorded = Callable[[str], dict[ThirdParty, Recording]]


@pytest.fixture(scope="session")
def recorded(request: pytest.FixtureRequest) -> Recorded:
    """The answers to the cases and the questions of a backend's targets: one worker answers for JAX and Flax.

    Of the targets, those of the tests that run.
    """
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    chosen = [call.params["target"] for call in calls if isinstance(call.params.get("target"), ThirdParty)]

    @functools.cache
    def answers(backend: str) -> dict[ThirdParty, Recording]:
        targets = [target for target in THIRD_PARTY if target.backend == backend and target in chosen]
        made = findings.record_answers(targets, more=lambda target: cells_of(cases_of(target), FULL))
        return dict(zip(targets, made, strict=True))

    return answers


@pytest.mark.parametrize("target", PROBED)
def test_a_call_behaves_as_recorded_and_diverges_where_it_is_known_to(
    target: ThirdParty, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
):
    cases, recording = cases_of(target), recorded(target.backend)[target]
    found = list(changes(RECORDS, {target.id: findings.findings_of(target, recording)}))
    assert not found, "\n".join([*found, "record it with: python -m tools.behaviour"])
    if not cases:
        return
    monkeypatch.setattr(check, "record", lambda *_, **__: recording)
    known = load_divergences(KNOWN / f"{target.module}.toml", target.name)
    outcome = check.check(cases, FULL, [Job(target.name, target.place)], divergences=known)
    red = [f"{v.case} {v.dtype} {v.quantity}: {v.reason}" for v in outcome.red]
    assert outcome.is_judged and not red, "\n".join(red)


@pytest.mark.parametrize("module", BACKENDS)
def test_every_known_divergence_is_about_a_target_of_its_file(module: str):
    names = [target.name for target in THIRD_PARTY if target.module == module]
    for known in load_divergences(KNOWN / f"{module}.toml"):
        assert any(fnmatchcase(name, known.backend) for name in names), known.backend


# ------------------------------------------------------------------------------------------------ conventions


NAMESPACES = {
    "torch": ("torch", "torch"),
    "tf": ("tf", "tensorflow"),
    "jax": ("jnp", "jax.numpy"),
    "mxnet": ("np", "mxnet.numpy"),
}
"""The name that the lines of the page use for a framework, and its module."""


def arrays_of(case: Case, dtype: str) -> dict[str, np.ndarray]:
    """The arrays that the lines of the page read: those of a case, its scores, and one mask."""
    inputs, _ = case.at(dtype)
    scores = reference.scaled_dot_score(inputs["queries"], inputs["keys"]).astype(dtype)
    mask = reference.attention_mask(7, inputs.get("valid_lens"), inputs.get("mask"))
    mask = np.broadcast_to(mask, scores.shape).copy()
    arrays = {name: inputs[name] for name in ("queries", "keys", "values")}
    return {**arrays, "scores": scores, "mask": mask, "valid_lens": questions.BEYOND}


def run(line: str, backend: SimpleNamespace, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights and the context that a line of the page makes."""
    short, module = NAMESPACES[backend.name]
    names = {
        "attention": backend.package,
        short: importlib.import_module(module),
        **{name: backend.runtime.from_numpy(array) for name, array in arrays.items()},
    }
    exec(line, names)
    return {name: backend.runtime.to_numpy(names[name]) for name in ("weights", "context") if name in names}


@pytest.mark.parametrize(
    ("title", "own"),
    [(section.title, own) for section in SECTIONS for own in section.conventions if own.line or own.lines],
    ids=lambda value: value.words if isinstance(value, Convention) else value,
)
def test_a_line_of_the_page_does_what_its_words_mean(title: str, own: Convention, backend: SimpleNamespace):
    line = own.line_in(backend.name)
    if not line:
        return  # the page has it for other frameworks
    name = next(section.findings[0] for section in SECTIONS if section.title == title)
    dtype = "float64" if own.words in ("as without a mask", "as float32", "wrong") else "float32"
    question = questions_for("DotProductAttention", "mask")[
        {"beyond": "gradients", "polarity": "gradients"}.get(name, name)
    ]
    if question.alternatives:
        actual = run(line, backend, question.case.at(dtype)[0])["context"]
        assert classify.alike(actual, classify.context_of(question.alternatives[own.words], dtype)), actual[0]
        return
    arrays = arrays_of(question.case, dtype)
    if own.words == "wrong":
        arrays["scores"] = np.where(arrays["mask"], -2e9, 2e9) * np.ones_like(arrays["scores"])
    actual = run(line, backend, arrays)
    assert is_meant(title, own.words, actual, arrays), {name: array[0] for name, array in actual.items()}


def is_meant(title: str, words: str, actual: dict[str, np.ndarray], arrays: dict[str, np.ndarray]) -> bool:
    """Whether the words describe what a line made."""
    weights, context, mask, scores = actual.get("weights"), actual.get("context"), arrays["mask"], arrays["scores"]
    if title == "NaN in a hidden value":
        assert context is not None
        return bool(np.isnan(context).all() if words == "NaN" else np.isfinite(context).all())
    if title == "NaN in a hidden key":
        made = weights if context is None else context
        assert made is not None
        return bool(np.isnan(made).any() == (words == "NaN"))
    assert weights is not None
    right = reference.masked_softmax(np.where(mask, scores, 0.0).astype("float64"), mask=mask)
    if title == "Fully masked rows":
        masked = ~mask.any(-1)
        assert masked.any()
        expected_rows = {
            "0": np.zeros(7),
            "uniform": np.full(7, 1 / 7),
            "as without a mask": reference.masked_softmax(scores)[masked],
            "NaN": np.full(7, np.nan),
        }[words]
        return np.allclose(weights[masked], expected_rows, atol=1e-5, equal_nan=True) and np.allclose(
            weights[~masked], right[~masked], atol=1e-5
        )
    if title == "Large scores" and words == "wrong":
        return not np.allclose(weights, right, atol=1e-2)
    if words == "as float32":
        off = np.abs(weights - right).max()
        return weights.dtype == np.float64 and 1e-12 < off < 1e-6
    if title == "Lengths":
        right = reference.masked_softmax(scores, np.minimum(arrays["valid_lens"], 7))
    elif title == "True in a mask" and words == "hidden":
        right = reference.masked_softmax(scores.astype("float64"), mask=~mask)
    return np.allclose(weights, right, atol=1e-5)


def test_every_convention_has_a_line_in_some_framework():
    assert len(list(conventions())) >= 12
