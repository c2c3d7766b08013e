"""What a target is: what its functions take, the shapes that it may have, and its runtime."""

import ast
import os
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import backends
from backends import FRAMEWORKS
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import Case
from parity_tests.format.selection import cells_of
from parity_tests.judge.check import apply_requirements, is_registered
from parity_tests.judge.compare import judge_all
from parity_tests.judge.question import Questions
from parity_tests.tests.commands import invoke, squeezed
from parity_tests.tests.judge.sources import EXAMPLE, SOFTMAX, Check, asked_of, target_of, verdicts_of
from parity_tests.tests.places import FAKES, ROOT
from parity_tests.workers.answers import Answer
from parity_tests.workers.environment import environment, requirements_of
from parity_tests.workers.process import Job
from parity_tests.workers.recordings import Recording
from parity_tests.workers.target import Target, load

pytestmark = pytest.mark.once


# ------------------------------------------------------------------------------------------------ what a function takes


SCORES = np.zeros((2, 3, 4))


def case_of(inputs: dict[str, np.ndarray]) -> Case:
    """A softmax of those arrays."""
    return Case("masked_softmax", "own", "An example.", inputs)


def test_a_function_without_lengths_gets_them_in_its_mask(tmp_path: Path):
    target = target_of("def masked_softmax(scores, mask=None): return scores", tmp_path)

    def mask_of(**inputs: np.ndarray) -> np.ndarray:
        return target.fit(asked_of(case_of(inputs)), inputs)[1]["mask"]

    lens = np.array([1, 4])
    np.testing.assert_array_equal(mask_of(scores=SCORES, valid_lens=lens)[:, 0], [[True] + [False] * 3, [True] * 4])
    assert mask_of(scores=np.zeros((2, 5, 3, 4)), valid_lens=lens).shape == (2, 1, 1, 4)
    mask = np.array([[[True, True, False, True]]])
    np.testing.assert_array_equal(
        mask_of(scores=SCORES, valid_lens=lens, mask=mask)[:, 0], [[True] + [False] * 3, [True, True, False, True]]
    )


@pytest.mark.parametrize(
    "given",
    [
        {"mask": np.ones((2, 3, 4), bool)},
        {"valid_lens": np.array([4, 9])},
        {"mask": np.ones((2, 3, 4), bool), "valid_lens": np.array([4, 4])},
    ],
)
def test_arguments_that_mask_nothing_may_be_missing(given: dict, tmp_path: Path):
    target = target_of("def masked_softmax(scores): return scores", tmp_path)
    inputs = {"scores": SCORES, **given}
    assert list(target.fit(asked_of(case_of(inputs)), inputs)[1]) == ["scores"]


NOT_IMPLEMENTED = {
    "mask": ("def masked_softmax(scores): return scores", "masked_softmax does not take mask"),
    "lengths": ("def masked_softmax(scores, valid_lens=None): return scores", "masked_softmax does not take mask"),
    "absent": ("def dot_score(queries, keys): return queries", "there is no masked_softmax"),
}


@pytest.mark.parametrize(("source", "reason"), NOT_IMPLEMENTED.values(), ids=NOT_IMPLEMENTED)
def test_an_argument_that_a_function_lacks_is_not_implemented(check: Check, source: str, reason: str):
    result = check(source, "--case", "masked_softmax-mask", "--require-all")
    assert result.exit_code == 1 and reason in squeezed(result)


LAYER = """
import numpy as np

def AdditiveAttention(parameters, queries, keys, values):
    W_q, W_k, w_v = (parameters[name] for name in ("W_q", "W_k", "w_v"))
    scores = np.tanh((queries @ W_q.T)[:, :, None] + (keys @ W_k.T)[:, None]) @ w_v
    raised = np.exp(scores - scores.max(-1, keepdims=True))
    weights = raised / raised.sum(-1, keepdims=True)
    return weights @ values, weights
"""


def test_a_layer_is_a_function_of_its_parameters(check: Check):
    result = check(LAYER, "--case", "AdditiveAttention-open")
    assert result.exit_code == 0, result.output
    assert "gradients of AdditiveAttention" in squeezed(result)


GROUPED = """
import numpy as np

def DotProductAttention(parameters, queries, keys, values):
    groups = queries.shape[1] // keys.shape[1]
    {spread}
    raised = np.exp(queries @ keys.swapaxes(2, 3) / queries.shape[-1] ** 0.5)
    weights = raised / raised.sum(-1, keepdims=True)
    return weights @ values, weights
"""
SPREADS = {
    "repeated": ("keys, values = (np.repeat(array, groups, axis=1) for array in (keys, values))", "green"),
    "tiled": ("keys, values = (np.tile(array, (1, groups, 1, 1)) for array in (keys, values))", "red"),
    "refused": ("", "num_key_heads of DotProductAttention"),
}


@pytest.mark.parametrize(("spread", "words"), SPREADS.values(), ids=SPREADS)
def test_heads_that_share_keys_are_asked_for_by_shapes_alone(check: Check, spread: str, words: str):
    drawn = 'Drawn("DotProductAttention", method="call", sizes={"queries": 2, "keys": 3, "heads": 4, "key_heads": 2})'
    assert words in squeezed(check(GROUPED.format(spread=spread), "--drawn", drawn))


def test_the_green_line_counts_what_no_argument_takes(check: Check):
    result = check(LAYER, "--case", "AdditiveAttention-[bflo]*")
    counts = re.search(r"(\d+) need arguments not taken: valid_lens \((\d+)\)", squeezed(result))
    assert result.exit_code == 0 and counts and int(counts[1]) > int(counts[2]) > 1


def test_a_number_that_is_not_a_size_is_required(check: Check):
    source = "def MultiHeadAttention(parameters, queries, keys, values, mask=None): return values, None"
    result = check(source, "--case", "MultiHeadAttention-open", "--require-all")
    assert "MultiHeadAttention does not take num_heads" in squeezed(result)


def test_a_method_is_a_function_of_its_own(check: Check):
    source = "def BahdanauDecoder_greedy(parameters, **given): raise RuntimeError(sorted(given))"
    words = squeezed(check(source, "--operator", "BahdanauDecoder", "--every"))
    assert "RuntimeError: [" in words and "functions: BahdanauDecoder" in words and "BahdanauDecoder_beam" in words
    assert "BahdanauDecoder_greedy," not in words


def test_an_argument_that_is_changed_is_red(check: Check):
    source = SOFTMAX.replace("    shown =", "    scores *= 1.5\n    shown =")
    result = check(source, "--case", "masked_softmax-none")
    assert result.exit_code == 1 and "the call modified its argument scores in place" in squeezed(result)


# ------------------------------------------------------------------------------------------------ shapes of a target


SHAPES = FAKES / "shapes.py"


RIGHT = [name for name, shape in vars(load(str(SHAPES))[0]).items() if hasattr(shape, "cases") and name[0] != "_"]


@pytest.mark.parametrize("shape", RIGHT)
def test_what_is_right_is_green_in_every_shape(shape: str):
    where = f"{SHAPES}:{shape}"
    target, runtime = load(where)
    verdicts = verdicts_of(Target(target, runtime, where, "cpu"), target.cases)
    assert [f"{one.case} {one.quantity}: {one.reason}" for one in verdicts if one.red] == []
    asked = {one.quantity for one in verdicts if one.is_judged}
    assert any(name.startswith("gradient_") for name in asked) == ("Gradients" in shape)
    if hasattr(target, "lacks"):
        assert not asked and all(target.lacks in one.reason for one in verdicts)
    else:
        assert asked


TORCH = """
import torch
from backends import torch as ours
from backends.torch import runtime

def AdditiveAttention(parameters, queries, keys, values, mask=None):
    queries, keys = queries @ parameters["W_q"].T, keys @ parameters["W_k"].T
    return ours.attention_pooling(ours.additive_score(queries, keys, parameters["w_v"]), values, mask=mask)
"""


@pytest.mark.frameworks("torch")
def test_what_is_right_is_green_in_the_arrays_of_a_framework(tmp_path: Path):
    verdicts = verdicts_of(target_of(TORCH, tmp_path), "AdditiveAttention-[mr]*[kd]")
    assert [f"{one.case} {one.quantity}: {one.reason}" for one in verdicts if one.red] == []
    assert {"context", "weights", "gradient_queries", "gradient_w_v"} <= {
        one.quantity for one in verdicts if one.is_judged
    }


CHANGING = """
import numpy as np

class Hidden:
    def __init__(self, array): self.array = array

class Open(Hidden):
    def __array__(self, dtype=None, copy=None): return self.array

class runtime:
    kept = {}
    def from_numpy(array): MAKE; runtime.kept[id(made)] = made, array.copy(); return made
    def to_numpy(array): return runtime.kept[id(array)][1] if id(array) in runtime.kept else array
    def describe(): return {"framework": "NumPy", "versions": {}}

def dot_score(queries, keys):
    queries, keys = (own.array if isinstance(own, Hidden) else own for own in (queries, keys))
    answer = queries @ keys.swapaxes(-1, -2)
    if CHANGED: queries *= 1.5
    return answer
"""
MAKES = {
    "NumPy's own": "made = array",
    "a subclass": "made = array.copy().view(type('Own', (np.ndarray,), {'__array__': lambda own: 0}))",
    "one that hides it": "made = Hidden(array)",
    "one with a copy that may be read": "made = Open(array.copy())",
}
"""What a runtime makes of an array."""


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("kind", MAKES)
def test_a_runtime_cannot_hide_what_a_call_changed(kind: str, changed: bool, tmp_path: Path):
    source = CHANGING.replace("MAKE", MAKES[kind]).replace("CHANGED", str(changed))
    red = [one.quantity for one in verdicts_of(target_of(source, tmp_path), "dot_score-plain") if one.red]
    assert red == ["argument_queries"] * changed


@pytest.mark.parametrize("lie", ["np.nan_to_num(array)", "np.clip(array, -50, 50)"])
def test_a_runtime_round_trip_preserves_arrays(lie: str, tmp_path: Path):
    source = CHANGING.replace("MAKE", "made = array").replace("CHANGED", "False")
    lying = f"{source}\nruntime.to_numpy = staticmethod(lambda array: {lie})"
    (one,) = [one for one in verdicts_of(target_of(lying, tmp_path), "dot_score-plain") if one.red]
    assert one.status == "error" and "to_numpy(from_numpy(array)) differs from" in one.reason


# ------------------------------------------------------------------------------------------------ runtimes


RUNTIME = """
class runtime:
    def from_numpy(array): return array.astype("float32") if array.dtype == "float64" else array
    def to_numpy(array): return array
    def describe(): return {"framework": "Half of NumPy", "versions": {"half": "1.0"}}
"""


ABSENT = """
class runtime:
    def from_numpy(array): return array
    def to_numpy(array): return array
    def describe():
        return {"framework": "NumPy", "versions": {}, "absent": [
            {"operator": "masked_*", "dtype": "float32", "device": "*", "reason": "no such product here"}
        ]}
"""


@pytest.mark.parametrize(
    ("runtime", "reason"), [(RUNTIME, "float64 comes back as float32"), (ABSENT, "no such product here")]
)
def test_what_a_target_has_not_is_counted_and_red_where_all_is_required(check: Check, runtime: str, reason: str):
    chosen = partial(check, SOFTMAX + runtime, "--case", "masked_softmax-mask", dtype="float64,float32")
    result = chosen()
    assert result.exit_code == 0 and f"1 not applicable: {reason}" in squeezed(result)
    assert "green 1 comparisons" in squeezed(result)
    result = chosen("--require-all")
    assert result.exit_code == 1 and reason in squeezed(result) and "n/a" not in result.output


def test_what_a_registered_backend_cannot_have_is_not_red(monkeypatch: pytest.MonkeyPatch):
    known = {"fake": SimpleNamespace(module="numpy_backend"), "other": SimpleNamespace(module="elsewhere")}
    monkeypatch.setattr("backends.available", lambda: known)
    cells = cells_of(all_cases().select("masked_softmax-mask"), ["float64"])
    for job, status in ((Job("fake", "numpy_backend"), "not-applicable"), (Job("other", "mine.py"), "missing")):
        answer = Answer("not-applicable", "there is no such product")
        recording = Recording(job.backend, "cpu", answers={cell.key: answer for cell in cells})
        (verdict,) = apply_requirements(judge_all(cells, [recording], Questions()), True, is_registered(job))
        assert verdict.status == status


def test_gradients_are_those_of_the_returned_outputs(check: Check):
    """The example's attention without its weights: the reference leaves their share out of every gradient."""
    source = (EXAMPLE / "numpy_attention.py").read_text()
    source = source.replace("    return attention_pooling(dot_score", "    context, _ = attention_pooling(dot_score")
    source = source.replace(
        "seen(keys, mask)), values, mask)\n", "seen(keys, mask)), values, mask)\n    return context, None\n", 1
    )
    result = check(source, "--operator", "DotProductAttention")
    assert result.exit_code == 0, result.output
    assert "weights of DotProductAttention" in squeezed(result)


def test_the_runtime_of_a_backend_will_do(check: Check, backend):
    modules = {
        "torch": "import torch as np",
        "jax": "import jax.numpy as np",
        "tf": "import tensorflow as tf",
        "mxnet": "from mxnet import np",
    }
    products = {"tf": "tf.linalg.matmul(queries, keys, transpose_b=True)"}
    source = f"""
from backends.{backend.name} import runtime
{modules[backend.name]}

def dot_score(queries, keys):
    return {products.get(backend.name, "queries @ keys.swapaxes(-1, -2)")}
"""
    result = check(source, "--case", "dot_score-plain", dtype="float64,float32")
    assert result.exit_code == 0, result.output
    assert "gradients" not in result.output


def test_a_third_party_file_has_the_variables_of_every_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    chosen = environment("mine", tmp_path, "cpu")
    for framework in FRAMEWORKS:
        needed = requirements_of(framework)
        assert needed is not None and needed.variables(tmp_path, "cpu").items() <= chosen.items()
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert environment("mine", tmp_path, "cpu")["KERAS_BACKEND"] == "jax"
    assert environment("tf", tmp_path, "cpu")["KERAS_BACKEND"] == "tensorflow"


def test_a_fifth_backend_edits_no_existing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for path in (FAKES / "numpy_backend").glob("*.py"):
        text = path.read_text(encoding="utf-8").replace("numpy_backend", "fifth")
        (tmp_path / "fifth").mkdir(exist_ok=True)
        (tmp_path / "fifth" / path.name).write_text(text, encoding="utf-8")
    (tmp_path / "fifth" / "requirements.py").write_text(
        """
from backends.requirements import Requirements

REQUIREMENTS = Requirements(
    ("numpy",),
    variables=lambda cache, device: {"FAKE_FAULT": ""},
    gaps=[{"dtype": "float16", "device": "*", "operator": "dot_score", "reason": "there is no such product"}],
)
"""
    )
    information = tmp_path / "fifth-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fifth\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[attention_core.backends]\nfifth = fifth\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv("FAKE_FAULT", "what the variables of the backend take away")
    chosen = ("--dtype", "float32,float16", "--operator", "dot_score,masked_softmax")
    result = invoke("run", "--backend", "fifth", *chosen)
    assert result.exit_code == 0, result.output
    assert "there is no such product" in result.output
    assert [*backends.available()] == [*FRAMEWORKS, "fifth"]


# ------------------------------------------------------------------------------------------------ classes


SOFTMAX_CLASS = (
    SOFTMAX
    + """
class ScaledDotProductAttention:
    def __init__(self, sharpness): self.sharpness = sharpness

    def __call__(self, q, k, v, attn_mask=None):
        scores = self.sharpness * q.shape[-1] ** -0.5 * q @ k.swapaxes(-1, -2)
        weights = softmax(scores, attn_mask)
        return weights @ np.where(weights.any(-2)[..., None], v, 0), weights

def attend(q, k, v, key_mask=None): return ScaledDotProductAttention(1)(q, k, v, key_mask)
"""
).replace("masked_softmax", "softmax")


@pytest.mark.parametrize("target", ["mine.py", "mine", "mine:attend"])
def test_a_class_is_answered_with_an_adapter(check: Check, tmp_path: Path, target: str):
    result = check(SOFTMAX_CLASS, target=target)
    assert result.exit_code == 2 and "Traceback" not in result.output
    adapter = result.output[result.output.index("import mine") :]
    assert len(adapter.splitlines()) == 6
    (tmp_path / "adapter.py").write_text(adapter.replace("...", "1"))
    assert check(SOFTMAX_CLASS, "--case", "DotProductAttention-[omr]*", target="adapter.py").exit_code == 0


def test_a_class_beside_functions_is_not_implemented(check: Check):
    source = SOFTMAX + "class dot_score: pass\n"
    result = check(source, "--operator", "masked_softmax,dot_score", "--case", "*-[op]*")
    assert result.exit_code == 0 and "dot_score is a class, expected a function (--init dot_score" in squeezed(result)


def test_init_calls_the_class_that_a_file_has_and_imports_nothing(check: Check):
    source = "raise ImportError\nclass Config: pass\nclass Mine:\n    def __init__(self, rate): pass\n"
    source += "    def forward(self, q, k, v, *, attn_mask=None): pass\n"
    written = check(source, "--init", "DotProductAttention").output
    assert "return mine.Mine(rate=...)(queries, keys, values, attn_mask=mask)" in written
    named = source + "class DotProductAttention:\n    def forward(self, q, k, v): pass\n"
    assert (
        "return mine.DotProductAttention()(queries, keys, values)"
        in check(named, "--init", "DotProductAttention").output
    )


@pytest.mark.parametrize("name", ["DotProductAttention", "MultiHeadAttention", "GRU", "masked_softmax"])
def test_init_writes_a_function(check: Check, tmp_path: Path, name: str):
    assert check("import torch\n", "--init", name, "-o", "adapter.py").exit_code == 0
    written = (tmp_path / "adapter.py").read_text()
    printed = invoke("check", "--init", name)
    assert printed.exit_code == 0 and printed.output == written
    function = next(node for node in ast.parse(written).body if isinstance(node, ast.FunctionDef))
    assert function.name == name and "from backends.torch import runtime" in written
