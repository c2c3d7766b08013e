"""`attention-parity check`: what is judged, what its author gets to read, known divergences and JUnit."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from parity_tests.cases.suite import all_cases
from parity_tests.format.selection import cells_of
from parity_tests.judge.check import name_of
from parity_tests.judge.drawn_cells import DRAWN
from parity_tests.tests.commands import invoke, squeezed
from parity_tests.tests.judge.sources import ENTRY, EXAMPLE, SOFTMAX, WRITTEN, WRONG, Check
from parity_tests.tests.places import FAKES
from parity_tests.workers.target import load

pytestmark = pytest.mark.once


# ------------------------------------------------------------------------------------------------ what is judged


def test_numpy_functions_are_judged_and_missing_ones_are_reported(check: Check):
    result = check(SOFTMAX)
    assert result.exit_code == 0, result.output
    listed = cells_of(all_cases().select(operators=["masked_softmax"]), ["float64"])
    assert f"masked_softmax │ {len(listed) + DRAWN:5} │" in result.output
    assert "missing gradients of masked_softmax; 113 functions (--every lists them) drawn" in squeezed(result)
    named = check(SOFTMAX, "--operator", "masked_softmax,dot_score", "--case", "*-[op]*", "--every")
    assert "missing gradients of masked_softmax; 1 function: dot_score" in squeezed(named)


def test_what_is_missing_is_red_where_all_is_required(check: Check):
    result = check(SOFTMAX, "--require-all", "--operator", "masked_softmax,dot_score", "--case", "*-[op]*")
    assert result.exit_code == 1
    assert "there is no dot_score" in result.output and "missing" in result.output
    assert "attention-parity check mine.py --require-all --case 'dot_score-plain' --dtype float64" in squeezed(result)


def test_a_target_without_a_selected_function_is_refused_before_any_cell(check: Check):
    result = check(SOFTMAX, "--operator", "dot_score,cosine_score")
    assert result.exit_code == 2 and "none of the selected functions: dot_score, cosine_score" in squeezed(result)
    assert "finished" not in result.output


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.py", "there is no file"),
        ("mine.py:nothing", "has no nothing"),
        ("no_such_module", "No module named 'no_such_module'"),
        ("json", "json has none of the specification's functions, attention_mask, causal_mask, window_mask and so on"),
    ],
)
def test_a_target_that_cannot_be_judged_is_refused(check: Check, target: str, message: str):
    result = check(SOFTMAX, target=target)
    assert result.exit_code == 2 and message in squeezed(result)


def test_a_file_with_an_error_shows_its_trace(check: Check):
    result = check("import numpy as np\nraise RuntimeError('not today')\n")
    assert result.exit_code == 2 and "not today" in result.output and "mine.py" in result.output


STATES = {
    "dtype of the first call": "kind = KEPT.setdefault(scores.shape, scores.dtype)",
    "dtype of the last call": "kind = KEPT.get(scores.shape, scores.dtype); KEPT[scores.shape] = scores.dtype",
    "fourth answer": "KEPT[str((scores, mask))] += 1; kind = '>f2' if KEPT[str((scores, mask))] == 4 else scores.dtype",
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_an_answer_may_not_depend_on_the_calls_before(check: Check, state: str):
    source = f"""{SOFTMAX.replace("masked_softmax", "softmax")}
from collections import Counter

KEPT = {"Counter()" if "+=" in state else "{}"}

def masked_softmax(scores, mask=None):
    {state}
    return softmax(scores.astype(kind), mask).astype(scores.dtype)
"""
    result = check(source, "--case", WRITTEN, dtype="float64,float32")
    assert result.exit_code == 1, result.output


@pytest.mark.parametrize("target", ["mine", "mine:Own", "mine.py:Own"])
def test_a_target_may_be_a_module_here_or_an_object(check: Check, target: str):
    body = "".join(f"    {line}\n" for line in SOFTMAX.splitlines())
    result = check(f"{SOFTMAX}\nclass Own:{body}", "--case", "masked_softmax-mask", target=target)
    assert result.exit_code == 0, result.output


def test_a_whole_backend_is_a_target_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(FAKES)
    chosen = ("--dtype", "float64", "--case", "AdditiveAttention-[!c-f]*", "--require-all")
    result = invoke("check", "numpy_backend", *chosen)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("target", "name"),
    [("my/attention.py", "attention"), ("a.b", "a.b"), ("a.b:c.d", "c.d"), ("x.py:Own", "Own"), ("ä b", "ä_b")],
)
def test_a_target_has_a_short_name(target: str, name: str):
    assert name_of(target) == name


def test_a_file_may_be_called_as_the_module_that_it_imports(tmp_path: Path):
    path = tmp_path / "json.py"
    path.write_text("import json\ndef masked_softmax(scores): return json.loads('1')\n")
    target, _ = load(str(path))
    assert target.masked_softmax(None) == 1


# ------------------------------------------------------------------------------------------------ what may be wrong


def test_the_example_is_green_and_short():
    result = invoke("check", EXAMPLE / "numpy_attention.py")
    assert result.exit_code == 0, result.output
    assert len((EXAMPLE / "numpy_attention.py").read_text().splitlines()) <= 100


def test_the_planted_bug_is_red_and_the_message_leads_to_it():
    result = invoke("check", EXAMPLE / "planted_bug.py", "--dtype", "float64", "--operator", "masked_softmax")
    assert result.exit_code == 1
    assert "looks like masked_softmax: The mask is inverted: what may be attended to is hidden" in squeezed(result)


BUGS = {
    "the scale is forgotten": ("** -0.5 if scale is None", "** 0 if scale is None", "DotProductAttention"),
    "no tanh": ("value = np.tanh(", "value = (", "additive_score"),
}


@pytest.mark.parametrize(("before", "after", "operator"), BUGS.values(), ids=BUGS)
def test_a_known_mistake_is_reported(check: Check, before: str, after: str, operator: str):
    source = (EXAMPLE / "numpy_attention.py").read_text()
    assert before in source
    result = check(source.replace(before, after), "--operator", operator)
    assert result.exit_code == 1
    assert f"looks like {operator}: " in squeezed(result)


LSTM = """
import numpy as np

def LSTM(parameters, inputs, state):
    hidden, cells = np.split(state[0], 2, axis=-1)
    i, f, g, o = parameters["0.W"] @ inputs[:, 0].T + parameters["0.U"] @ hidden.T
    i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
    cells = f.T * cells + (i * np.tanh(g)).T
    hidden = o.T * np.tanh(cells)
    return hidden[:, None], np.concatenate([hidden, cells], -1)[None]
"""
SEEDS = {
    "dropout_for_bias": (LSTM, "LSTM-one_step"),
    "causal_to_the_end": (
        "import numpy as np\ndef causal_mask(num_queries, num_keys, offset=0):\n"
        "    return np.tri(num_queries, num_keys, max(num_keys - num_queries, 0), bool)[None]",
        "causal_mask-[ps]*",
    ),
    "softmax_without_axis": (
        f"{SOFTMAX.replace('masked_softmax', 'over_keys')}\ndef masked_softmax(scores, mask=None):\n"
        "    mask = np.broadcast_to(True if mask is None else mask, scores.shape)\n"
        "    return over_keys(scores.swapaxes(-3, -1), mask.swapaxes(-3, -1)).swapaxes(-3, -1)",
        "masked_softmax-[nmr]*",
    ),
    "lengths_repeated_by_batch": (
        f"{SOFTMAX.replace('masked_softmax', 'over_keys')}\ndef masked_softmax(scores, valid_lens):\n"
        "    batch, queries, keys = scores.shape\n"
        "    lens = np.resize(np.repeat(valid_lens, batch), (batch, queries))\n"
        "    return over_keys(scores + 3, np.arange(keys) < lens[..., None])",
        "masked_softmax-ragged",
    ),
    "key_mask_over_queries": (
        f"{SOFTMAX.replace('masked_softmax', 'over_keys')}\ndef masked_softmax(scores, mask):\n"
        "    return over_keys(scores, mask.swapaxes(-1, -2))",
        "masked_softmax-cover_38*",
    ),
}
"""Mistakes of widely copied listings, each with a case that shows it; one rounds otherwise than the reference does."""


@pytest.mark.parametrize(("mutant", "source", "case"), [(name, *seed) for name, seed in SEEDS.items()], ids=SEEDS)
def test_a_mistake_of_many_listings_is_named(check: Check, mutant: str, source: str, case: str):
    words = squeezed(check(source, "--case", case))
    assert re.search(rf"(\d+) of \1 wrong answers .* that were compared are those of {mutant}$", words), words


BOTH = """
import numpy as np

def DotProductAttention(parameters, queries, keys, values, mask=None):
    scores = queries @ keys.swapaxes(-1, -2) * queries.shape[-2] ** -0.5
    scores = np.where(True if mask is None else mask, scores, -1e9)
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    weights = raised / raised.sum(-1, keepdims=True)
    return weights @ values, weights
"""
NEITHER_ALONE = "DotProductAttention-[fm]*[kd]"
"""A case that shows the first mistake, and one that shows both."""


@pytest.mark.parametrize("case", ["DotProductAttention-[nrfm]*", NEITHER_ALONE])
def test_two_mistakes_at_once_are_both_named(check: Check, case: str):
    words = squeezed(check(BOTH, "--case", case))
    assert re.search(r"(\d+) of \1 wrong answers .* are those of scale_of_the_queries and finite_fill$", words), words
    assert words.count("looks like") == 1


def test_red_cases_are_counted_by_quantity_and_the_first_three_are_shown(check: Check):
    result = check(WRONG, "--case", "masked_softmax-[!c-f]*")
    words = squeezed(result)
    (count,) = re.findall(r"fail mine masked_softmax weights: (\d+) of (\d+) float64 cases", words)
    assert 3 < int(count[0]) < int(count[1])
    assert words.count(" weights[") == 3 and words.count("attention-parity check mine.py --case") == 1
    assert "none float64 weights[" in words and "eps (relative error 0.5), allowed" in words


SIGNATURES = {
    "no parameters": ("(queries, keys, values, mask=None)", "multiple values for argument 'queries'"),
    "other names": ("(parameters, q, k, values)", "it does not take queries, keys"),
    "one more": ("(parameters, queries, keys, values, heads)", "missing a required argument: 'heads'"),
}


@pytest.mark.parametrize(("signature", "reason"), SIGNATURES.values(), ids=SIGNATURES)
def test_a_wrong_signature_is_reported_once(check: Check, signature: str, reason: str):
    result = check(f"def DotProductAttention{signature}: return None", "--case", "DotProductAttention-[mnor]*")
    words = squeezed(result)
    expected = "expected DotProductAttention(parameters, queries, keys, values), and optional valid_lens, mask"
    assert result.exit_code == 1 and f"DotProductAttention{signature}: {reason}; {expected}" in words
    assert words.count("SignatureError") == 1 and words.count("attention-parity check mine.py") == 1


def test_an_unknown_mistake_is_not_explained(check: Check):
    result = check(SOFTMAX.replace("raised / ", "0.123 * raised / "), "--operator", "masked_softmax")
    assert result.exit_code == 1 and "looks like" not in result.output


# ------------------------------------------------------------------------------------------------ another target


@pytest.mark.parametrize(("other", "code"), [(WRONG, 0), (SOFTMAX, 1), (WRONG.replace("shown -", "1.01 * shown -"), 1)])
def test_two_targets_are_compared_without_the_reference(check: Check, tmp_path: Path, other: str, code: int):
    (tmp_path / "other.py").write_text(f"{other}\ndef dot_score(queries, keys): raise RuntimeError")
    chosen = ("--operator", "masked_softmax,dot_score", "--against", "other.py", "--junit", "out.xml")
    result = check(WRONG, *chosen)
    words = squeezed(result)
    assert result.exit_code == code, result.output
    assert "mine against other" in words and "missing 1 function (--every lists them)" in words
    if code == 0:
        assert re.search(r"masked_softmax │ \d\d │ exact", words)
    else:
        assert re.search(r"fail mine against other masked_softmax weights: \d\d of \d\d float64 cases", words)
        assert "attention-parity check mine.py --against other.py --case 'masked_softmax-none'" in words


def test_a_target_that_fails_alone_is_red_beside_another(check: Check, tmp_path: Path):
    (tmp_path / "other.py").write_text("def masked_softmax(scores, mask=None): raise RuntimeError('not today')")
    result = check(SOFTMAX, "--case", WRITTEN, "--against", "other.py")
    assert result.exit_code == 1 and "error other against mine masked_softmax: " in squeezed(result)
    assert check(SOFTMAX, "--against", "other.py", "--require-all").exit_code == 2


# ------------------------------------------------------------------------------------------------ known divergences


def of_operator(pattern: str) -> str:
    """The entry for every case of some operators."""
    return ENTRY.replace('case = "masked_softmax-*"', f'case = "*"\noperator = "{pattern}"')


@pytest.mark.parametrize(
    ("source", "entry", "code", "message"),
    [
        (WRONG, ENTRY, 0, "known divergences"),
        (WRONG, of_operator("masked_*"), 0, "known divergences"),
        (WRONG, of_operator("dot_*"), 1, "weights"),
        (WRONG, "", 1, "weights"),
        (SOFTMAX, ENTRY, 1, "a known divergence no longer diverges"),
    ],
    ids=["cases", "operator", "another operator", "none", "stale"],
)
def test_a_known_divergence_is_not_red_as_long_as_it_diverges(
    check: Check, tmp_path: Path, source: str, entry: str, code: int, message: str
):
    (tmp_path / "known.toml").write_text(entry)
    result = check(source, "--case", WRITTEN, "--divergences", "known.toml")
    assert result.exit_code == code and message in squeezed(result)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[divergence]]\ncase = 'a'\nquantity = 'b'\n", "divergence[0].reason: missing; an entry has backend, case"),
        (
            "[[divergence]]\ncase = 'a'\nquantity = 'b'\nreason = 'c'\nwhy = 'd'\n",
            "divergence[0].why: there is no such entry",
        ),
        ("[[divergence]]\ncase = 'a'\nquantity = 3\nreason = 'c'\n", "divergence[0].quantity: 3, expected text"),
        ("[other]\n", "other: there is no such entry, expected divergence"),
        ("case = ", "mine.toml:"),
    ],
)
def test_an_invalid_file_of_divergences_is_refused(check: Check, tmp_path: Path, text: str, message: str):
    (tmp_path / "mine.toml").write_text(text)
    result = check(SOFTMAX, "--divergences", "mine.toml")
    assert result.exit_code == 2 and message in squeezed(result)


# ------------------------------------------------------------------------------------------------ JUnit


def junit_of(folder: Path) -> tuple[ElementTree.Element, dict[str, set[str]]]:
    """The file, and the names of its tests by what they have: all, failure, error, skipped."""
    root = ElementTree.parse(folder / "out.xml").getroot()
    tests = list(root.iter("testcase"))
    kinds = ("failure", "error", "skipped")
    found = {kind: {str(test.get("name")) for test in tests if test.find(kind) is not None} for kind in kinds}
    return root, {"all": {str(test.get("name")) for test in tests}, **found}


def test_junit_has_a_test_for_every_cell_that_was_compared(check: Check, tmp_path: Path):
    chosen = ("--operator", "masked_softmax,dot_score", "--case", "*-[!c-g]*", "--junit", "out.xml")
    assert check(WRONG, *chosen, "--json", "out.json").exit_code == 1
    root, names = junit_of(tmp_path)
    cells = json.loads((tmp_path / "out.json").read_text())["cells"]
    assert names["all"] == {f"{one['case']}[{one['dtype']}]" for one in cells if one["operator"] == "masked_softmax"}
    assert {one["operator"] for one in cells} == {"masked_softmax", "dot_score"}
    assert int(root.get("failures")) == len(names["failure"]) > 3 and int(root.get("tests")) == len(names["all"])
    message = next(root.iter("failure"))
    assert "weights" in message.get("message") and "attention-parity check mine.py --case" in message.text
    assert not names["skipped"] and "not-implemented" not in (tmp_path / "out.xml").read_text()
    check(WRONG, *chosen, "--require-all")
    assert any(name.startswith("dot_score") for name in junit_of(tmp_path)[1]["error"])
