"""`attention-parity check`: what is judged, what its author gets to read, known divergences and JUnit."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from parity_tests.cases.selection import cells_of
from parity_tests.cases.suite import all_cases, select
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
    listed = cells_of(select(all_cases(), operators=["masked_softmax"]), ["float64"])
    assert f"masked_softmax │ {len(listed) + DRAWN:5} │" in result.output
    assert "missing masked_softmax gives no gradients" in squeezed(result)
    assert "functions: attention_mask, causal_mask" in squeezed(result)


def test_what_is_missing_is_red_where_all_is_required(check: Check):
    result = check(SOFTMAX, "--require-all", "--operator", "masked_softmax,dot_score", "--case", "*-[op]*")
    assert result.exit_code == 1
    assert "there is no dot_score" in result.output and "missing" in result.output
    assert "attention-parity check mine.py --require-all --case 'dot_score-plain' --dtype float64" in squeezed(result)


def test_nothing_judged_is_not_green(check: Check):
    result = check(SOFTMAX, "--operator", "dot_score")
    assert result.exit_code == 1 and "nothing was judged" in result.output


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


def test_an_unknown_mistake_is_not_explained(check: Check):
    result = check(SOFTMAX.replace("raised / ", "0.123 * raised / "), "--operator", "masked_softmax")
    assert result.exit_code == 1 and "looks like" not in result.output


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


def test_junit_has_a_test_for_every_cell(check: Check, tmp_path: Path):
    source = WRONG.replace("scores, mask=None", "scores, mask=None, *, missing=None")
    source += "def dot_score(queries): return queries\n"
    result = check(source, "--operator", "masked_softmax,dot_score", "--junit", "out.xml", "--json", "out.json")
    assert result.exit_code == 1
    root = ElementTree.parse(tmp_path / "out.xml").getroot()
    cells = {(one["case"], one["dtype"]) for one in json.loads((tmp_path / "out.json").read_text())["cells"]}
    names = [test.get("name") for test in root.iter("testcase")]
    assert sorted(names) == sorted(f"{case}[{dtype}]" for case, dtype in cells)
    failed = [test for test in root.iter("testcase") if test.find("failure") is not None]
    assert int(root.get("failures")) == len(failed) > 3
    message = failed[0].find("failure")
    assert "weights" in message.get("message") and "attention-parity check mine.py --case" in message.text
    skipped = {test.get("name") for test in root.iter("testcase") if test.find("skipped") is not None}
    assert skipped == {name for name in names if name.startswith("dot_score")}
    assert int(root.get("skipped")) == len(skipped) and int(root.get("tests")) == len(names)
