"""What the frameworks' own attention does: asked, called by its name, kept, and written down."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from attention_core import reference
from parity_tests.behaviour import classify, findings, questions
from parity_tests.behaviour.classify import Answer
from parity_tests.behaviour.findings import changes, merged
from parity_tests.behaviour.page import COLUMNS, Convention, conventions, page
from parity_tests.behaviour.questions import asked
from parity_tests.cases.case import Case
from parity_tests.cases.expected import expected
from parity_tests.cases.selection import Cell
from parity_tests.cases.suite import all_cases
from parity_tests.cli.behaviour import command
from parity_tests.judge.check import KNOWN, check
from parity_tests.judge.divergences import load_divergences
from parity_tests.third_party.attention import PEERS, Peer
from parity_tests.workers.process import Job

KEPT = findings.load()
MODULES = tuple(dict.fromkeys(peer.module for peer in PEERS))

# ------------------------------------------------------------------------------------------------ the page


def test_the_page_is_that_of_what_is_kept():
    written = findings.PAGE.read_text(encoding="utf-8")
    assert written == page(KEPT), "write it again: attention-parity behaviour --write"


def test_every_call_has_findings_for_every_question():
    for peer in PEERS:
        wanted = {name for name in asked(peer.operator, peer.takes) if name != "half"} | set(questions.HALF)
        for entry in KEPT[peer.id]:
            assert set(entry["found"]) == wanted, peer.id


def test_every_entry_leads_to_a_section_of_the_page():
    text = page(KEPT)
    headings = {re.sub(r"[^\w -]", "", line[3:].lower()).replace(" ", "-") for line in re.findall("## .*", text)}
    links = set(re.findall(r"\]\(#([^)]*)\)", text))
    assert links and links <= headings


def test_every_case_that_the_page_names_exists():
    named = set(re.findall(r"attention-parity show ([\w-]+)", page(KEPT)))
    assert named and named <= {case.id for case in all_cases()}


def test_every_word_of_the_table_is_explained():
    """But for figures, and what half precision is told in."""
    for peer in PEERS:
        for entry in KEPT[peer.id]:
            for column in COLUMNS:
                known = " ".join(own.words for own in column.conventions)
                for name in column.questions:
                    for words in re.split(r" \(float64: |\)$|; ", entry["found"].get(name, "")):
                        plain = re.sub(r" in \d+ of \d+ rows|True = ", "", words)
                        explained = not plain or plain in known or plain in ("∇ 0", "∇ NaN", "∇ flows", "error")
                        assert explained or name in questions.HALF or plain.startswith("outputs"), (peer.id, words)


# ------------------------------------------------------------------------------------------------ the words


def answered(name: str, change: str, operator: str = "DotProductAttention") -> Answer:
    """What the reference answers to a question, with one thing made wrong."""
    case = asked(operator, "lengths" if name in ("beyond", "below") else "mask")[name].case
    wanted = expected(case, "float64")
    found = {key: array.copy() for key, array in wanted.items()}
    if change == "context NaN":
        found["context"][:] = np.nan
    elif change == "uniform":
        closed = found["weights"].sum(-1) == 0.0
        found["context"][closed] = classify.without_scores(case, "float64")[closed]
    elif change == "opened":
        closed = found["weights"].sum(-1) == 0.0
        found["context"][closed] = classify.opened(case, "float64")[closed]
    elif change == "gradient NaN":
        found["gradient_queries"][0, 0] = np.nan
    elif change == "gradient":
        found["gradient_values"] += 1.0
    elif change == "row":
        found["context"][1, 3] += 1.0
    elif change == "rounding":
        found = {key: array.astype("float32").astype("float64") for key, array in found.items()}
    elif change == "gradients absent":
        found = {key: array for key, array in found.items() if not key.startswith("gradient_")}
    return Answer(Cell(case, "float64"), {"status": "ok"}, found, wanted)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("closed", "", "0; ∇ 0"),
        ("closed", "uniform", "uniform; ∇ 0"),
        ("closed", "opened", "as without a mask; ∇ 0"),
        ("closed", "context NaN", "something else; ∇ 0"),
        ("closed", "gradient NaN", "0; ∇ NaN"),
        ("closed", "gradient", "0; ∇ flows"),
        ("closed", "gradients absent", "0"),
        ("hidden_value", "", "ignored"),
        ("hidden_value", "context NaN", "NaN"),
        ("hidden_key", "gradient NaN", "ignored; ∇ NaN"),
        ("hidden_key", "row", "wrong"),
        ("large", "", "right"),
        ("large", "row", "wrong in 1 of 10 rows"),
        ("huge", "context NaN", "NaN in 10 of 10 rows"),
        ("below", "", "clipped"),
        ("below", "row", "wrong in 1 of 10 rows"),
        ("beyond", "", "clipped"),
        ("beyond", "row", "undefined"),
        ("beyond", "context NaN", "undefined"),
        ("gradients", "", "right"),
        ("gradients", "gradient NaN", "NaN"),
        ("gradients", "rounding", "as float32"),
        ("gradients", "gradients absent", "none"),
    ],
)
def test_an_answer_is_called_by_its_name(name: str, change: str, words: str):
    given = answered(name, change)
    if (name, change) == ("closed", "context NaN"):  # where NaN alone is: the other rows are not looked at
        given.found["context"][given.found["weights"].sum(-1) == 0.0] = np.nan
        words = "NaN; ∇ 0"
    assert classify.classified(name, given) == words


@pytest.mark.parametrize(("name", "words"), [("beyond", "undefined"), ("below", "crash")])
def test_a_crash_beyond_the_array_is_one_of_its_undefined_answers(name: str, words: str):
    given = replace(answered(name, ""), said={"status": "crash"}, found={}, wanted={})
    assert classify.classified(name, given) == words


@pytest.mark.parametrize("operator", ["DotProductAttention", "AdditiveAttention", "MultiHeadAttention"])
@pytest.mark.parametrize("change", ["", "uniform"])
def test_closed_rows_are_called_alike_in_every_operator(operator: str, change: str):
    wanted = "uniform; ∇ 0" if change else "0; ∇ 0"
    assert classify.classified("closed", answered("closed", change, operator)) == wanted


def test_gradients_are_off_where_they_are():
    given = answered("gradients", "gradient")
    assert re.fullmatch(r"off by [13]e\+1\d eps", classify.classified("gradients", given))


@pytest.mark.parametrize("operator", ["DotProductAttention", "AdditiveAttention", "MultiHeadAttention"])
def test_uniform_is_the_mean_of_all_values(operator: str):
    """Which the page says: in every operator, the context does not depend on the query."""
    case = asked(operator, "mask")["closed"].case
    context = classify.without_scores(case, "float64")
    np.testing.assert_allclose(context, np.broadcast_to(context[:, :1], context.shape))
    if operator != "MultiHeadAttention":
        np.testing.assert_allclose(context[:, 0], case.inputs["values"].mean(axis=1))


@pytest.mark.parametrize("operator", ["DotProductAttention", "AdditiveAttention", "MultiHeadAttention"])
@pytest.mark.parametrize("name", ["large", "huge"])
def test_large_scores_have_gaps(operator: str, name: str):
    """The answer does not change with scores that are half as large: each softmax is saturated."""
    for takes in ("mask", "lengths"):
        case = asked(operator, takes)[name].case
        small = replace(
            case,
            inputs={**case.inputs, "keys": case.inputs["keys"] / (1 if "w_v" in case.parameters else 2)},
            parameters={key: array / 2 if key == "w_v" else array for key, array in case.parameters.items()},
        )
        found = [classify.computed_outputs(own, *own.at("float64"))["context"] for own in (case, small)]
        np.testing.assert_array_equal(*found)


# ------------------------------------------------------------------------------------------------ what is kept


def entry(versions: str, **found: str) -> dict[str, object]:
    return {"versions": versions, "found": found}


def test_another_finding_is_told_with_call_column_versions_was_and_is():
    kept = {"jax:attend": [entry("jax 0.7.1", closed="NaN"), entry("jax 0.10.2", closed="uniform")]}
    (told,) = changes(kept, {"jax:attend": ("jax 0.11.0", {"closed": "0"})})
    assert told == "jax:attend: fully masked rows: was 'uniform' (jax 0.10.2), is '0' (jax 0.11.0)"


def test_a_version_that_is_kept_is_held_against_itself():
    kept = {"jax:attend": [entry("jax 0.7.1", closed="NaN"), entry("jax 0.10.2", closed="uniform")]}
    assert not list(changes(kept, {"jax:attend": ("jax 0.7.1", {"closed": "NaN"})}))
    assert list(changes(kept, {"jax:attend": ("jax 0.7.1", {"closed": "uniform"})}))


def test_a_new_version_that_does_the_same_is_no_change():
    assert not list(changes({"a": [entry("a 1", closed="0")]}, {"a": ("a 2", {"closed": "0"})}))


@pytest.mark.parametrize(("was", "now", "same"), [("≤ 1", "≤ 3", True), ("≤ 10", "≤ 3", True), ("≤ 1", "≤ 10", False)])
def test_figures_of_half_precision_may_move_by_a_step(was: str, now: str, same: bool):
    assert same == (not list(changes({"a": [entry("a 1", float16=was)]}, {"a": ("a 2", {"float16": now})})))


def test_a_call_that_was_never_asked_is_a_change():
    assert list(changes({}, {"a": ("a 1", {"closed": "0"})})) == ["a (a 1) was never asked before"]


def test_versions_are_kept_in_order_and_replaced():
    kept = {"a": [entry("a 0.9", closed="0"), entry("a 0.10", closed="1")]}
    found = merged(kept, {"a": ("a 0.9", {"closed": "2"})})
    assert [own["versions"] for own in found["a"]] == ["a 0.9", "a 0.10"]
    assert found["a"][0]["found"] == {"closed": "2"} and kept["a"][0]["found"] == {"closed": "0"}


def test_what_an_older_version_did_otherwise_is_on_the_page():
    peer = PEERS[0]
    newest = KEPT[peer.id][-1]
    older = {"versions": "torch 1.0.0", "found": {**newest["found"], "closed": "NaN; ∇ NaN"}}
    text = page({**KEPT, peer.id: [older, newest]})
    assert f"{peer.call} in torch 1.0.0: fully masked rows: NaN; ∇ NaN" in text


# ------------------------------------------------------------------------------------------------ the command


@pytest.fixture
def kept_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What is kept, and the page, in a folder of the test; every framework is here, and does what it did."""
    newest = {name: (own[-1]["versions"], dict(own[-1]["found"])) for name, own in KEPT.items()}
    monkeypatch.setattr(findings, "installed", lambda peer: True)
    monkeypatch.setattr(findings, "ask_all", lambda peers, *_, **__: {peer.id: newest[peer.id] for peer in peers})
    monkeypatch.setattr(findings, "DATA", tmp_path / "behaviour.json")
    monkeypatch.setattr(findings, "PAGE", tmp_path / "behaviour.md")
    findings.save(KEPT, findings.DATA)
    newest[PEERS[0].id][1]["closed"] = "NaN"
    return tmp_path


def test_the_command_tells_a_change_and_fails(kept_elsewhere: Path):
    result = CliRunner().invoke(command, ["--framework", "torch"])
    assert result.exit_code == 1
    assert f"changed     {PEERS[0].id}: fully masked rows: was '0; ∇ 0'" in result.output
    assert "attention-parity behaviour --write" in result.output
    assert not (kept_elsewhere / "behaviour.md").exists()


def test_the_command_passes_where_nothing_is_different(kept_elsewhere: Path):
    result = CliRunner().invoke(command, ["--framework", "keras"])
    assert result.exit_code == 0, result.output
    assert "the same    5 calls do what is kept" in result.output


def test_what_is_kept_is_what_a_cpu_does(kept_elsewhere: Path):
    result = CliRunner().invoke(command, ["--framework", "torch", "--device", "cuda"])
    assert result.exit_code == 1 and "changed" in result.output and "--write" not in result.output
    result = CliRunner().invoke(command, ["--device", "cuda", "--write"])
    assert result.exit_code == 2 and "--write keeps what calls do on a CPU" in result.output
    assert not (kept_elsewhere / "behaviour.md").exists()


def test_the_command_writes_what_is_kept_and_the_page(kept_elsewhere: Path):
    assert CliRunner().invoke(command, ["--write"]).exit_code == 0
    kept = findings.load(findings.DATA)
    assert kept[PEERS[0].id][-1]["found"]["closed"] == "NaN"
    assert findings.PAGE.read_text(encoding="utf-8") == page(kept)
    assert CliRunner().invoke(command, []).exit_code == 0


def test_the_command_says_what_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(findings, "installed", lambda peer: False)
    result = CliRunner().invoke(command, ["--framework", "flax"])
    assert result.exit_code == 1 and "none of flax, jax is installed" in result.output


# ------------------------------------------------------------------------------------------------ frameworks


def test_the_calls_do_what_is_kept(backend: SimpleNamespace):
    peers = [peer for peer in PEERS if peer.backend == backend.name]
    told = list(changes(KEPT, findings.ask_all(peers)))
    assert not told, "\n".join([*told, "keep it with: attention-parity behaviour --write"])


def judged_green(peer: Peer) -> list[str]:
    """What is red in the verdicts of a target, by its own known divergences."""
    cases = [case for case in all_cases() if case.operator in (peer.operator, "masked_softmax")]
    known = load_divergences(KNOWN / f"{peer.module}.toml", peer.name)
    outcome = check(cases, ("float64", "float32"), Job(peer.name, peer.place), divergences=known)
    assert outcome.judged
    return [f"{v.case} {v.dtype} {v.quantity}: {v.reason}" for v in outcome.red]


def test_each_target_has_its_verdicts(backend: SimpleNamespace):
    for peer in PEERS:
        if peer.backend == backend.name:
            red = judged_green(peer)
            assert not red, "\n".join([peer.id, *red])


if all(map(findings.installed, [peer for peer in PEERS if peer.module == "onnx"])):  # it is no backend of ours

    def test_onnx_does_what_is_kept():
        told = list(changes(KEPT, findings.ask_all([peer for peer in PEERS if peer.module == "onnx"])))
        assert not told, "\n".join([*told, "keep it with: attention-parity behaviour --write"])

    @pytest.mark.parametrize("peer", [own for own in PEERS if own.module == "onnx"], ids=lambda peer: peer.name)
    def test_each_onnx_target_has_its_verdicts(peer: Peer):
        assert not judged_green(peer)


@pytest.mark.parametrize("module", MODULES)
def test_every_known_divergence_is_about_a_target_of_its_file(module: str):
    names = [peer.name for peer in PEERS if peer.module == module]
    for known in load_divergences(KNOWN / f"{module}.toml"):
        assert any(fnmatchcase(name, known.backend) for name in names), known.backend


# ------------------------------------------------------------------------------------------------ conventions


def given(case: Case, dtype: str) -> dict[str, np.ndarray]:
    """What the lines of the page are given: the arrays of a case, its scores, and one mask."""
    inputs, _ = case.at(dtype)
    scores = reference.scaled_dot_score(inputs["queries"], inputs["keys"]).astype(dtype)
    mask = reference.attention_mask(7, inputs.get("valid_lens"), inputs.get("mask"))
    mask = np.broadcast_to(mask, scores.shape).copy()
    lens = np.array([[7, 3, 9, 5, 6], [2, 12, 4, 1, 8]], np.int32)
    own = {name: inputs[name] for name in ("queries", "keys", "values")}
    return {**own, "scores": scores, "mask": mask, "valid_lens": lens}


def run(line: str, backend: SimpleNamespace, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a line of the page makes."""
    names = {
        "attention": backend.package,
        **({"torch": importlib.import_module("torch")} if backend.name == "torch" else {}),
        **({"tf": importlib.import_module("tensorflow")} if backend.name == "tf" else {}),
        **({"jnp": importlib.import_module("jax.numpy")} if backend.name == "jax" else {}),
        **({"np": importlib.import_module("mxnet").np} if backend.name == "mxnet" else {}),
        **{name: backend.runtime.from_numpy(array) for name, array in arrays.items()},
    }
    exec(line, names)
    return {name: backend.runtime.to_numpy(names[name]) for name in ("weights", "context") if name in names}


@pytest.mark.parametrize(
    ("title", "own"),
    [(column.title, own) for column in COLUMNS for own in column.conventions if own.line or own.lines],
    ids=lambda value: value.words if isinstance(value, Convention) else value,
)
def test_a_line_of_the_page_does_what_its_words_say(title: str, own: Convention, backend: SimpleNamespace):
    line = own.said(backend.name)
    if not line:
        return  # the page gives it for other frameworks
    name = next(column.questions[0] for column in COLUMNS if column.title == title)
    dtype = "float64" if own.words in ("as without a mask", "as float32", "wrong") else "float32"
    question = {"beyond": "gradients", "polarity": "gradients"}.get(name, name)
    arrays = given(asked("DotProductAttention", "mask")[question].case, dtype)
    if own.words == "wrong":
        arrays["scores"] = np.where(arrays["mask"], -2e9, 2e9) * np.ones_like(arrays["scores"])
    mask, scores = arrays["mask"], arrays["scores"]
    found = run(line, backend, arrays)
    right = reference.masked_softmax(np.where(mask, scores, 0.0).astype("float64"), mask=mask)
    closed = ~mask.any(-1)
    assert holds(title, own.words, found, arrays, right, closed), {name: array[0] for name, array in found.items()}


def holds(
    title: str,
    words: str,
    found: dict[str, np.ndarray],
    arrays: dict[str, np.ndarray],
    right: np.ndarray,
    closed: np.ndarray,
) -> bool:
    """Whether what a line made is what its words say."""
    weights, context, mask = found.get("weights"), found.get("context"), arrays["mask"]
    if title == "Fully masked rows":
        assert weights is not None and closed.any()
        wanted = {
            "0": np.zeros(7),
            "uniform": np.full(7, 1 / 7),
            "as without a mask": reference.masked_softmax(arrays["scores"])[closed],
            "NaN": np.full(7, np.nan),
        }[words]
        return np.allclose(weights[closed], wanted, atol=1e-5, equal_nan=True) and np.allclose(
            weights[~closed], right[~closed], atol=1e-5
        )
    if title == "NaN in a hidden value":
        assert context is not None
        return bool(np.isnan(context).all() if words == "NaN" else np.isfinite(context).all())
    if title == "NaN in a hidden key":
        made = weights if context is None else context
        assert made is not None
        return bool(np.isnan(made).any() == (words == "NaN"))
    assert weights is not None
    if title == "Large scores" and words == "wrong":
        return not np.allclose(weights, right, atol=1e-2)
    if title == "Lengths":
        clipped = reference.masked_softmax(arrays["scores"], np.minimum(arrays["valid_lens"], 7))
        return np.allclose(weights, clipped, atol=1e-5)
    if title == "True in a mask" and words == "hidden":
        return np.allclose(weights, reference.masked_softmax(arrays["scores"].astype("float64"), mask=~mask), atol=1e-5)
    if words == "as float32":
        off = np.abs(weights - right).max()
        return weights.dtype == np.float64 and 1e-12 < off < 1e-6
    return np.allclose(weights, right, atol=1e-5)


def test_every_convention_has_a_line_in_some_framework():
    assert len(list(conventions())) >= 12
