"""What red answers look like: the right name, or none, and what is printed of them in which order."""

import io
import itertools
import re
import warnings

import numpy as np
import pytest
from rich.console import Console

from parity_tests.cases.suite import all_cases
from parity_tests.cli import terminal
from parity_tests.format.case import Case
from parity_tests.format.expected import computed_outputs, expected_values
from parity_tests.format.selection import Cell, cells_of
from parity_tests.judge.compare import judge
from parity_tests.judge.question import Question
from parity_tests.judge.run import Run
from parity_tests.mutants import explain
from parity_tests.mutants.explain import explanations_of
from parity_tests.reports.table import red_groups, red_lines
from parity_tests.tests.commands import invoke, squeezed
from parity_tests.tests.judge.sources import SOFTMAX, Check
from parity_tests.tests.reports import runs
from parity_tests.workers.answers import Answer
from parity_tests.workers.recordings import Recording

pytestmark = pytest.mark.once

NAMED = r"looks like (\w+): .* ([1-9]\d*) of \2 wrong answers and (\d+) of \3 right ones .* are those of (\w+)$"

TUTORIAL = """
import numpy as np

def softmax(scores, mask):
    scores = np.where(True if mask is None else mask, scores, -np.inf)
    with np.errstate(all="ignore"):
        raised = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        return np.nan_to_num(raised / raised.sum(-1, keepdims=True), nan=0.0)
"""
"""The softmax of every tutorial: hidden scores are -inf, and rows that would be NaN are 0."""

SCALED = f"""{TUTORIAL}
def DotProductAttention(parameters, queries, keys, values, mask=None, dropout_mask=None):
    weights = softmax(queries @ keys.swapaxes(-1, -2) * queries.shape[-1] ** -0.5, mask)
    return weights @ values, weights
"""
ADDITIVE = f"""{TUTORIAL}
def AdditiveAttention(parameters, queries, keys, values, mask=None):
    W_q, W_k, w_v = (parameters[name] for name in ("W_q", "W_k", "w_v"))
    weights = softmax(np.tanh((queries @ W_q.T)[..., :, None, :] + (keys @ W_k.T)[..., None, :, :]) @ w_v, mask)
    return weights @ values, weights
"""
HEADS = f"""{TUTORIAL}
def rotated(heads):
    angles = np.arange(heads.shape[-2])[:, None] * 1e4 ** (-np.arange(0, heads.shape[-1], 2) / heads.shape[-1])
    first, second = np.split(heads, 2, axis=-1)
    return np.concatenate(
        [first * np.cos(angles) - second * np.sin(angles), first * np.sin(angles) + second * np.cos(angles)], axis=-1
    )

def MultiHeadAttention(parameters, queries, keys, values, mask=None, *, num_heads, ROTARY_LAYOUT=None):
    def project(name, array):
        return array @ parameters[f"W_{{name}}"].T + parameters[f"b_{{name}}"]
    def split(array):
        return array.reshape(*array.shape[:-1], num_heads, -1).swapaxes(-2, -3)
    q, k, v = (split(project(*one)) for one in (("q", queries), ("k", keys), ("v", values)))
    size = q.shape[-1]
    if ROTARY_LAYOUT:
        q, k = rotated(q), rotated(k)
    weights = softmax(q @ k.swapaxes(-1, -2) / size ** 0.5, mask if mask is None or mask.ndim == 4 else mask[:, None])
    context = (weights @ v).swapaxes(-2, -3)
    return project("o", context.reshape(*context.shape[:-2], -1)), weights.mean(-3)
"""
LSTM = """
import numpy as np

def LSTM(parameters, inputs, *, num_layers=1):
    inputs = inputs.swapaxes(0, 1)
    for layer in range(num_layers):
        W, U, b = (parameters[f"{layer}.{name}"] for name in "WUb")
        hidden = cells = np.zeros((len(inputs), U.shape[-1]))
        outputs = []
        for step in inputs.swapaxes(0, 1):
            i, f, g, o = (step @ W[gate].T + hidden @ U[gate].T + b[gate] for gate in range(4))
            i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
            cells = f * cells + i * np.tanh(g)
            hidden = o * np.tanh(cells)
            outputs.append(hidden)
        inputs = np.stack(outputs, axis=1)
        states = [*([] if layer == 0 else states), np.concatenate([hidden, cells], -1)]
    return inputs.swapaxes(0, 1), np.stack(states)
"""
LOCAL = f"""{TUTORIAL}
def LocalAttention(parameters, queries, keys, values, *, window):
    scores = queries @ parameters["scored.W"] @ keys.swapaxes(-1, -2)
    weights = softmax(scores, abs(np.arange(keys.shape[-2]) - np.arange(queries.shape[-2])[:, None]) < window)
    return weights @ values, weights
"""
WINDOW = """
import numpy as np

def window_mask(num_queries, num_keys, *, left, right):
    distances = np.arange(num_keys) - np.arange(num_queries)[:, None]
    return ((-left < distances) & (distances < right))[None]
"""
MISTAKES = {
    "hidden_values_kept": (ADDITIVE, "AdditiveAttention"),
    "dropout_ignored": (SCALED, "DotProductAttention-dropout"),
    "scale_of_all_heads": (HEADS.replace("size ** 0.5", "(size * num_heads) ** 0.5"), "MultiHeadAttention-[nor]*"),
    "heads_rotated_by_halves": (HEADS.replace("ROTARY_LAYOUT", "rotary_layout"), "MultiHeadAttention-[nor]*"),
    "window_exclusive": (WINDOW, "window_mask"),
    "local_window_exclusive": (LOCAL, "LocalAttention"),
    "batch_for_steps": (LSTM, "LSTM"),
    "mask_of_the_first_query": (
        f"{SOFTMAX.replace('masked_softmax', 'right')}\ndef masked_softmax(scores, mask=None):\n"
        "    return right(scores, mask if mask is None else mask[..., :1, :])",
        "masked_softmax",
    ),
    "mask_of_the_first_sequence": (
        f"{SOFTMAX.replace('masked_softmax', 'right')}\ndef masked_softmax(scores, mask=None):\n"
        "    return right(scores, mask if mask is None else mask[:1])",
        "masked_softmax",
    ),
}
"""Targets with one mistake, and the operator or the cases that show it."""


@pytest.mark.parametrize(
    ("mutant", "source", "place"), [(name, *seed) for name, seed in MISTAKES.items()], ids=MISTAKES
)
def test_a_mistake_is_named_with_the_counts(check: Check, mutant: str, source: str, place: str):
    words = squeezed(check(source, *(("--case", place) if "-" in place else ("--operator", place))))
    assert [found[4] for found in re.finditer(NAMED, words)] == [mutant], words


SILENT = {
    "the softmax of every tutorial": f"{TUTORIAL}\ndef masked_softmax(scores, mask=None): return softmax(scores, mask)",
    "a factor": SOFTMAX.replace("raised / ", "0.123 * raised / "),
    "a known mistake without heads alone": f"{SOFTMAX.replace('def masked_softmax', 'def right')}\n"
    "def masked_softmax(scores, mask=None):\n"
    "    return right(scores, mask if mask is None or mask.ndim == 4 else mask[:1])",
    "a known mistake and an unknown one": f"{SOFTMAX.replace('def masked_softmax', 'def right')}\n"
    "def masked_softmax(scores, mask=None):\n"
    "    odd = scores.shape[-1] % 2 == 1\n"
    "    return 0.123 * right(scores, mask) if odd or mask is None else right(scores, mask[:1])",
}


@pytest.mark.parametrize("source", SILENT.values(), ids=SILENT)
def test_what_is_no_known_mistake_has_no_name(check: Check, source: str):
    result = check(source, "--operator", "masked_softmax")
    assert "looks like" not in result.output
    assert result.exit_code == ("nan_to_num" not in source)


def test_a_name_is_looked_for_behind_the_verdict_and_is_in_the_file(check: Check, monkeypatch: pytest.MonkeyPatch):
    class Begun(Exception):
        pass

    def begin(run: object) -> None:
        raise Begun

    monkeypatch.setattr(terminal, "explanations_of", begin)
    result = check(WINDOW, "--operator", "window_mask")
    assert isinstance(result.exception, Begun) and re.search(r"^red  .* comparisons of mine$", result.output, re.M)


def test_names_are_looked_for_in_a_limited_time(monkeypatch: pytest.MonkeyPatch):
    run = runs.judged(red=True)
    answered: list[str] = []

    def counted(mutant: explain.Mutant, *arguments: object) -> object:
        answered.append(mutant.name)
        return answer(mutant, *arguments)

    answer = explain.answer
    monkeypatch.setattr(explain, "answer", counted)
    assert [one.mutant for one in explanations_of(run)] == ["fully_masked_nan"]
    assert len(answered) > 20
    answered.clear()

    ticks = map(float, itertools.count())
    assert explanations_of(run, 10.0, lambda: next(ticks)) == []
    assert 0 < len(answered) < 10


def test_gradients_that_follow_from_wrong_outputs_are_one_line():
    (cell,) = cells_of(all_cases().select("AdditiveAttention-open"), ["float64"])
    recording = Recording("mine", "cpu", cells={cell.key: {}}, answers={cell.key: Answer()})
    expected = expected_values(*cell)
    recording.cells[cell.key] = {name: array + 1.0 for name, array in expected.items() if name != "weights"}
    recording.cells[cell.key]["weights"] = expected["weights"]
    run = Run([cell], recordings={"mine": recording}, dtypes=["float64"])
    run.verdicts = [*judge(Question(cell), recording)]
    gradients = [one for one in run.red if one.quantity != "context"]
    assert len(gradients) == len(run.red) - 1 >= 6 and all(one.quantity.startswith("gradient_") for one in gradients)
    titles = [group.title for group in red_groups(run)]
    assert titles == [
        "mine  AdditiveAttention  context: 1 of 1 float64 case",
        "mine  AdditiveAttention  gradients of wrong outputs: 1 of 1 float64 case",
    ]
    console = Console(file=io.StringIO(), width=200)
    for line in red_lines(run, None):
        console.print(line)
    assert console.file.getvalue().count("\n") == 4
    run.verdicts = [one for one in run.verdicts if one.quantity != "context"]
    assert len(red_groups(run)) == len(gradients)


def test_warnings_of_the_reference_do_not_reach_the_terminal():
    (case,) = all_cases().select("MultiHeadAttention-bias_hidden")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        computed_outputs(case, *case.at("float64"))
        assert any("matmul" in str(warning.message) for warning in caught)
        caught.clear()
        assert invoke("list", "--operator", "dot_score").exit_code in (0, 2)
        computed_outputs(case, *case.at("float64"))
    assert not caught


SCORES = np.arange(24.0).reshape(2, 3, 4)
ZEROS = {
    "valid_lens": (
        Case("masked_softmax", "own", "An example.", {"scores": SCORES, "valid_lens": np.zeros(2, int)}),
        "weights",
    ),
    "scale=0.0": (
        Case("scaled_dot_score", "own", "An example.", {"queries": SCORES, "keys": SCORES}, options={"scale": 0.0}),
        "gradient_keys",
    ),
    "": (Case("dot_score", "own", "An example.", {"queries": 0 * SCORES, "keys": SCORES}), "scores"),
}


@pytest.mark.parametrize(("cause", "case", "quantity"), [(cause, *zero) for cause, zero in ZEROS.items()], ids=ZEROS)
def test_the_argument_that_makes_all_zero_is_named(cause: str, case: Case, quantity: str):
    cell = Cell(case, "float64")
    expected = expected_values(*cell)
    wrong = {name: array + (name == quantity) for name, array in expected.items()}
    recording = Recording("mine", "cpu", cells={cell.key: wrong}, answers={cell.key: Answer()})
    run = Run([cell], recordings={"mine": recording}, dtypes=["float64"])
    run.verdicts = [*judge(Question(cell), recording)]
    (line,) = red_lines(run, None)
    assert f"all is zero here (100% of elements are not){', because of ' * bool(cause)}{cause}\n" in str(line)
