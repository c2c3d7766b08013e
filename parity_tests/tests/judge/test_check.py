"""Anybody's implementation: how it is found, what is asked of it, what it lacks, and what its author gets to read."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

import backends
from backends import FRAMEWORKS
from backends.archives import unpack_arrays
from parity_tests.cases.case import Case
from parity_tests.cases.selection import Cell, cells_of
from parity_tests.cases.suite import all_cases, select
from parity_tests.cli.main import main
from parity_tests.judge.check import is_registered, name_of, required
from parity_tests.judge.compare import judge_all
from parity_tests.judge.drawn_cells import DRAWN
from parity_tests.judge.question import Questions
from parity_tests.judge.run import CacheError, run
from parity_tests.judge.verdict import Verdict
from parity_tests.reports import certificate
from parity_tests.tests.places import FAKES, ROOT
from parity_tests.workers.environment import PATH, environment, requirements_of
from parity_tests.workers.process import Job, record
from parity_tests.workers.recordings import Recording, pack_cases
from parity_tests.workers.target import Target, load
from parity_tests.workers.worker import answer_cells, frames, grouped

pytestmark = pytest.mark.once

EXAMPLE = ROOT / "examples" / "add_a_backend"

SOFTMAX = """
import numpy as np

def masked_softmax(scores, mask=None):
    mask = (scores > -np.inf) & (True if mask is None else mask)
    shown = np.where(mask, scores, np.finfo(scores.dtype).min)
    raised = np.exp(shown - shown.max(-1, keepdims=True, initial=-1e30).astype(scores.dtype)) * mask
    total = raised.sum(-1, keepdims=True)
    return raised / np.where(total == 0, 1, total)
"""

WRONG = SOFTMAX.replace("raised / ", "1.5 * raised / ")

WRITTEN = "masked_softmax-[!c-f]*"
"""Cases written by hand, and the one that is repeated: what drawn ones would tell here, these do, too."""

Check = Callable[..., Result]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """`attention-parity check` on a file of that source, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(source: str, *arguments: str, target: str = "mine.py", dtype: str = "float64") -> Result:
        (tmp_path / "mine.py").write_text(source)
        return CliRunner().invoke(main, ["check", target, "--dtype", dtype, *arguments])

    return run


def squeezed(result: Result) -> str:
    """What was printed, without line breaks."""
    return " ".join(result.output.split())


# ------------------------------------------------------------------------------------------------ what is judged


def test_numpy_functions_are_judged_and_what_is_missing_is_told(check: Check):
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
    ("target", "told"),
    [
        ("nowhere.py", "there is no file"),
        ("mine.py:nothing", "has no nothing"),
        ("no_such_module", "No module named 'no_such_module'"),
        ("json", "json has none of the specification's functions, attention_mask, causal_mask, window_mask and so on"),
    ],
)
def test_a_target_that_cannot_be_judged_is_refused(check: Check, target: str, told: str):
    result = check(SOFTMAX, target=target)
    assert result.exit_code == 2 and told in squeezed(result)


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
    result = CliRunner().invoke(
        main,
        ["check", "numpy_backend", "--dtype", "float64", "--case", "AdditiveAttention-[!c-f]*", "--require-all"],
    )
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
    found, _ = load(str(path))
    assert found.masked_softmax(None) == 1


# ------------------------------------------------------------------------------------------------ what a function takes


def target_of(source: str, tmp_path: Path) -> Target:
    """A target of that source."""
    path = tmp_path / "mine.py"
    path.write_text(source)
    return Target(*load(str(path)), str(path), "cpu")


SCORES = np.zeros((2, 3, 4))


def asked_of(inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    """What a worker is asked for a softmax of those arrays."""
    case = Case("masked_softmax", "own", "An example.", inputs)
    cells: list[dict[str, Any]] = unpack_arrays(pack_cases([Cell(case, "float64")]))[1]["cells"]
    return cells[0]


def test_a_function_without_lengths_gets_them_in_its_mask(tmp_path: Path):
    target = target_of("def masked_softmax(scores, mask=None): return scores", tmp_path)

    def mask_of(**inputs: np.ndarray) -> np.ndarray:
        return target.fitted(asked_of(inputs), inputs)[1]["mask"]

    lens = np.array([1, 4])
    np.testing.assert_array_equal(mask_of(scores=SCORES, valid_lens=lens)[:, 0], [[True] + [False] * 3, [True] * 4])
    assert mask_of(scores=np.zeros((2, 5, 3, 4)), valid_lens=lens).shape == (2, 1, 1, 4)
    mask = np.array([[[True, True, False, True]]])
    np.testing.assert_array_equal(
        mask_of(scores=SCORES, valid_lens=lens, mask=mask)[:, 0], [[True] + [False] * 3, [True, True, False, True]]
    )


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"mask": np.ones((2, 3, 4), bool)}, ["scores"]),
        ({"valid_lens": np.array([4, 9])}, ["scores"]),
        ({"mask": np.ones((2, 3, 4), bool), "valid_lens": np.array([4, 4])}, ["scores"]),
    ],
)
def test_what_hides_nothing_need_not_be_taken(given: dict, kept: list[str], tmp_path: Path):
    target = target_of("def masked_softmax(scores): return scores", tmp_path)
    inputs = {"scores": SCORES, **given}
    assert list(target.fitted(asked_of(inputs), inputs)[1]) == kept


LACKING = {
    "mask": ("def masked_softmax(scores): return scores", "masked_softmax does not take mask"),
    "lengths": ("def masked_softmax(scores, valid_lens=None): return scores", "masked_softmax does not take mask"),
    "absent": ("def dot_score(queries, keys): return queries", "there is no masked_softmax"),
    "class": ("class masked_softmax: ...", "masked_softmax is a class, expected a function masked_softmax(parameters,"),
}


@pytest.mark.parametrize("kind", LACKING)
def test_what_a_function_does_not_take_it_lacks(check: Check, kind: str):
    source, reason = LACKING[kind]
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
    assert "AdditiveAttention gives no gradients" in squeezed(result)


def test_a_number_that_is_no_size_has_to_be_taken(check: Check):
    source = "def MultiHeadAttention(parameters, queries, keys, values, mask=None): return values, None"
    result = check(source, "--case", "MultiHeadAttention-open", "--require-all")
    assert "MultiHeadAttention does not take num_heads" in squeezed(result)


def test_a_method_is_a_function_of_its_own(check: Check):
    source = "def BahdanauDecoder_greedy(parameters, **given): raise RuntimeError(sorted(given))"
    result = check(source, "--operator", "BahdanauDecoder")
    assert "RuntimeError: [" in squeezed(result)
    assert "there is no BahdanauDecoder (" not in result.output and "BahdanauDecoder_beam" in result.output


def test_an_argument_that_is_changed_is_red(check: Check):
    source = SOFTMAX.replace("    shown =", "    scores *= 1.5\n    shown =")
    result = check(source, "--case", "masked_softmax-none")
    assert result.exit_code == 1 and "the call changed its argument scores" in squeezed(result)


# ------------------------------------------------------------------------------------------------ shapes of a target

SHAPES = FAKES / "shapes.py"


def verdicts_of(target: Target, pattern: str) -> list[Verdict]:
    """What is found of a target in this process, as a worker asks it and as `check` judges it."""
    cells = cells_of(select(all_cases(), pattern), ["float64"])
    arrays, header = unpack_arrays(pack_cases(cells))
    stream = io.BytesIO()
    target.describe()
    answer_cells(stream, target, grouped(arrays), header["cells"])
    stream.seek(0)
    recording = Recording("mine", "cpu")
    for own, said in map(unpack_arrays, frames(stream)):
        recording.status[said["key"]] = said
        recording.cells[said["key"]] = own
    return list(required(judge_all(cells, [recording], Questions()), require_all=False))


RIGHT = [name for name, own in vars(load(str(SHAPES))[0]).items() if hasattr(own, "cases") and name[0] != "_"]


@pytest.mark.parametrize("shape", RIGHT)
def test_what_is_right_is_green_in_every_shape(shape: str):
    where = f"{SHAPES}:{shape}"
    found, runtime = load(where)
    verdicts = verdicts_of(Target(found, runtime, where, "cpu"), found.cases)
    assert [f"{one.case} {one.quantity}: {one.reason}" for one in verdicts if one.red] == []
    asked = {one.quantity for one in verdicts if one.judged}
    assert any(name.startswith("gradient_") for name in asked) == ("Gradients" in shape)
    if hasattr(found, "lacks"):
        assert not asked and all(found.lacks in one.reason for one in verdicts)
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
        one.quantity for one in verdicts if one.judged
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
def test_a_runtime_gives_back_what_it_is_given(lie: str, tmp_path: Path):
    source = CHANGING.replace("MAKE", "made = array").replace("CHANGED", "False")
    told = f"{source}\nruntime.to_numpy = staticmethod(lambda array: {lie})"
    (one,) = [one for one in verdicts_of(target_of(told, tmp_path), "dot_score-plain") if one.red]
    assert one.status == "error" and "to_numpy(from_numpy(array)) is another array than" in one.reason


# ------------------------------------------------------------------------------------------------ runtimes

RUNTIME = """
class runtime:
    def from_numpy(array): return array.astype("float32") if array.dtype == "float64" else array
    def to_numpy(array): return array
    def describe(): return {"framework": "Half of NumPy", "versions": {"half": "1.0"}}
"""


def test_a_dtype_that_does_not_come_back_is_said_by_name(check: Check):
    result = check(SOFTMAX + RUNTIME, "--case", "masked_softmax-mask", dtype="float64,float32")
    assert result.exit_code == 0, result.output
    assert "float64 comes back as float32" in squeezed(result)


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
    ("runtime", "told"), [(RUNTIME, "float64 comes back as float32"), (ABSENT, "no such product here")]
)
def test_what_a_target_says_to_be_absent_is_counted_and_red_where_all_is_required(
    check: Check, runtime: str, told: str
):
    arguments = ("--case", "masked_softmax-mask")
    result = check(SOFTMAX + runtime, *arguments, dtype="float64,float32")
    assert result.exit_code == 0 and f"1 not applicable: {told}" in squeezed(result)
    assert "green 1 comparisons" in squeezed(result)
    result = check(SOFTMAX + runtime, *arguments, "--require-all", dtype="float64,float32")
    assert result.exit_code == 1 and f"* {told}" in squeezed(result) and "n/a" not in result.output


def test_what_a_registered_backend_cannot_have_is_not_red(monkeypatch: pytest.MonkeyPatch):
    known = {"fake": SimpleNamespace(module="numpy_backend"), "other": SimpleNamespace(module="elsewhere")}
    monkeypatch.setattr("backends.available", lambda: known)
    cells = cells_of(select(all_cases(), "masked_softmax-mask"), ["float64"])
    for job, status in ((Job("fake", "numpy_backend"), "not-applicable"), (Job("other", "mine.py"), "missing")):
        said = {"status": "not-applicable", "message": "there is no such product"}
        recording = Recording(job.backend, "cpu", status={cell.key: said for cell in cells})
        (verdict,) = required(judge_all(cells, [recording], Questions()), True, is_registered(job))
        assert verdict.status == status


def test_gradients_are_those_of_the_outputs_that_are_given(check: Check):
    """The example's attention without its weights: the reference leaves their share out of every gradient."""
    source = (EXAMPLE / "numpy_attention.py").read_text()
    source = source.replace("    return attention_pooling(dot_score", "    context, _ = attention_pooling(dot_score")
    source = source.replace(
        "seen(keys, mask)), values, mask)\n", "seen(keys, mask)), values, mask)\n    return context, None\n", 1
    )
    result = check(source, "--operator", "DotProductAttention")
    assert result.exit_code == 0, result.output
    assert "DotProductAttention gives no weights" in squeezed(result)


def test_the_runtime_of_a_backend_will_do(check: Check, backend):
    modules = {
        "torch": "import torch as np",
        "jax": "import jax.numpy as np",
        "tf": "import tensorflow as tf",
        "mxnet": "from mxnet import np",
    }
    product = (
        "tf.linalg.matmul(queries, keys, transpose_b=True)"
        if backend.name == "tf"
        else "queries @ keys.swapaxes(-1, -2)"
    )
    source = f"""
from backends.{backend.name} import runtime
{modules[backend.name]}

def dot_score(queries, keys):
    return {product}
"""
    result = check(source, "--case", "dot_score-plain", dtype="float64,float32")
    assert result.exit_code == 0, result.output
    assert "gradients" not in result.output


def test_a_file_of_others_gets_the_variables_of_every_framework(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    chosen = environment("mine", tmp_path, "cpu")
    for framework in FRAMEWORKS:
        needed = requirements_of(framework)
        assert needed is not None and needed.variables(tmp_path, "cpu").items() <= chosen.items()
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert environment("mine", tmp_path, "cpu")["KERAS_BACKEND"] == "jax"
    assert environment("tf", tmp_path, "cpu")["KERAS_BACKEND"] == "tensorflow"


def test_a_fifth_backend_edits_no_file_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
    chosen = ["run", "--backend", "fifth", "--dtype", "float32,float16", "--operator", "dot_score,masked_softmax"]
    result = CliRunner().invoke(main, chosen)
    assert result.exit_code == 0, result.output
    assert "there is no such product" in result.output
    assert [*backends.available()] == [*FRAMEWORKS, "fifth"]


# ------------------------------------------------------------------------------------------------ what may be wrong


def test_the_example_is_green_and_short():
    result = CliRunner().invoke(main, ["check", str(EXAMPLE / "numpy_attention.py")])
    assert result.exit_code == 0, result.output
    assert len((EXAMPLE / "numpy_attention.py").read_text().splitlines()) <= 100


def test_the_planted_bug_is_red_and_the_message_leads_to_it():
    arguments = ["check", str(EXAMPLE / "planted_bug.py"), "--dtype", "float64", "--operator", "masked_softmax"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "looks like masked_softmax: The mask is inverted: what may be attended to is hidden" in squeezed(result)


BUGS = {
    "the scale is forgotten": ("** -0.5 if scale is None", "** 0 if scale is None", "DotProductAttention"),
    "no tanh": ("value = np.tanh(", "value = (", "additive_score"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_mistake_that_is_known_is_told(check: Check, bug: str):
    before, after, operator = BUGS[bug]
    source = (EXAMPLE / "numpy_attention.py").read_text()
    assert before in source
    result = check(source.replace(before, after), "--operator", operator)
    assert result.exit_code == 1
    assert f"looks like {operator}: " in squeezed(result)


def test_a_mistake_that_nobody_knows_is_not_explained(check: Check):
    result = check(SOFTMAX.replace("raised / ", "0.123 * raised / "), "--operator", "masked_softmax")
    assert result.exit_code == 1 and "looks like" not in result.output


# ------------------------------------------------------------------------------------------------ forged values

FORGING = """
import os
from backends import save_arrays
from backends import unpack_arrays
from parity_tests.cases.suite import all_cases, select
from parity_tests.judge.verdict import Verdict
from parity_tests.cases.expected import computed_outputs, files

os.environ["ATTENTION_PARITY_CACHE"] = {cache!r}
for case in select(all_cases(), {pattern!r}):
    path = files(case, "float64")["outputs"]
    path.parent.mkdir(parents=True, exist_ok=True)
    save_arrays(path, {{name: 1.5 * array for name, array in computed_outputs(case, *case.at("float64")).items()}})
"""


@pytest.fixture
def forging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A cache of this test's own, and the source that writes the values of WRONG to it."""
    monkeypatch.setenv("ATTENTION_PARITY_CACHE", str(tmp_path / "cache"))
    return lambda pattern=WRITTEN: FORGING.format(cache=str(tmp_path / "cache"), pattern=pattern)


@pytest.mark.parametrize("warm", [False, True])
def test_what_a_target_writes_to_the_cache_is_not_believed(check: Check, forging: Callable[..., str], warm: bool):
    if warm:
        assert check(SOFTMAX, "--case", WRITTEN).exit_code == 0
    result = check(WRONG + forging(), "--case", WRITTEN)
    assert result.exit_code == 1 and "18 of 39 comparisons" in result.output


@pytest.mark.parametrize("pattern", [WRITTEN, "masked_softmax-mask"])
@pytest.mark.parametrize("target", [SOFTMAX, WRONG], ids=["right", "wrong"])
def test_a_forged_cache_is_refused_and_nobody_is_red_for_it(
    check: Check, forging: Callable[..., str], tmp_path: Path, target: str, pattern: str
):
    check(SOFTMAX + forging(pattern), "--case", WRITTEN)
    asked = pattern if target is WRONG else WRITTEN  # a single forged value that none is red for may slip by
    result = check(target, "--case", asked)
    assert result.exit_code == 2, result.output
    assert f"Delete {tmp_path / 'cache' / 'expected'} and run again" in squeezed(result)
    shutil.rmtree(tmp_path / "cache" / "expected")
    assert check(target, "--case", asked).exit_code == (1 if target is WRONG else 0)


def test_a_forged_cache_is_refused_in_pytest_too(project: Path, forging: Callable[..., str], check: Check):
    check(SOFTMAX + forging("masked_softmax-mask"), "--case", WRITTEN)
    (project / "mine.py").write_text(SOFTMAX)
    arguments = ("--parity-target", "mine.py", "--parity-dtype", "float64", "-k", "masked_softmax-mask", "-q")
    done = pytest_run(project, *arguments)
    assert done.returncode == 1 and "does not hold what the reference gives for masked_softmax-mask" in done.stdout


def test_a_forged_cache_is_refused_in_a_run_and_not_read_while_workers_run(
    forging: Callable[..., str], fake_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
):
    cases = list(select(all_cases(), WRITTEN))

    def forge() -> None:
        subprocess.run([sys.executable, "-c", forging()], check=True, cwd=ROOT)

    def recorder(*given: Any) -> Recording:
        forge()
        return record(*given)

    assert not run(cells_of(cases, ["float64"]), [fake_job()], recorder=recorder).red
    with pytest.raises(CacheError, match="does not hold what the reference gives"):
        run(cells_of(cases, ["float64"]), [fake_job()])


def test_a_worker_is_not_told_where_expected_values_are(check: Check, forging: Callable[..., str], tmp_path: Path):
    source = """
import json, os
from pathlib import Path
Path(__file__).with_name("environment.json").write_text(json.dumps(dict(os.environ)))
"""
    forging()
    assert check(SOFTMAX + source, "--case", "masked_softmax-mask").exit_code == 0
    told = json.loads((tmp_path / "environment.json").read_text())
    named = {name: value for name, value in told.items() if value.startswith(str(tmp_path / "cache"))}
    assert named == {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache" / "programs" / "jax")}


# ------------------------------------------------------------------------------------------------ known divergences

ENTRY = '[[divergence]]\ncase = "masked_softmax-*"\nquantity = "weights"\nreason = "Off by a half."\nlink = "https://a.b/1"\n'


def test_a_known_divergence_is_not_red(check: Check, tmp_path: Path):
    (tmp_path / "known.toml").write_text(ENTRY)
    result = check(WRONG, "--case", WRITTEN, "--divergences", "known.toml")
    assert result.exit_code == 0 and "known divergences" in result.output
    assert check(WRONG, "--case", WRITTEN).exit_code == 1


def test_a_known_divergence_may_be_of_an_operator(check: Check, tmp_path: Path):
    (tmp_path / "known.toml").write_text(
        ENTRY.replace('case = "masked_softmax-*"', 'case = "*"\noperator = "masked_*"')
    )
    assert check(WRONG, "--case", WRITTEN, "--divergences", "known.toml").exit_code == 0
    (tmp_path / "known.toml").write_text(ENTRY.replace('case = "masked_softmax-*"', 'case = "*"\noperator = "dot_*"'))
    assert check(WRONG, "--case", WRITTEN, "--divergences", "known.toml").exit_code == 1


def test_a_known_divergence_that_does_not_diverge_is_red(check: Check, tmp_path: Path):
    (tmp_path / "known.toml").write_text(ENTRY)
    result = check(SOFTMAX, "--case", WRITTEN, "--divergences", "known.toml")
    assert result.exit_code == 1 and "a known divergence that does not diverge" in squeezed(result)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[[divergence]]\ncase = 'a'\nquantity = 'b'\n", "entry 1 lacks reason"),
        ("[[divergence]]\ncase = 'a'\nquantity = 'b'\nreason = 'c'\nwhy = 'd'\n", "entry 1 has an unknown why"),
        ("[[divergence]]\ncase = 'a'\nquantity = 3\nreason = 'c'\n", "entry 1 has no text as quantity"),
        ("[other]\n", "expected [[divergence]] entries alone, found other"),
        ("case = ", "mine.toml:"),
    ],
)
def test_a_file_of_divergences_that_says_something_else_is_refused(check: Check, tmp_path: Path, text: str, told: str):
    (tmp_path / "mine.toml").write_text(text)
    result = check(SOFTMAX, "--divergences", "mine.toml")
    assert result.exit_code == 2 and told in squeezed(result)


# ------------------------------------------------------------------------------------------------ JUnit


def test_junit_has_a_test_for_every_cell(check: Check, tmp_path: Path):
    source = (
        WRONG.replace("scores, mask=None", "scores, mask=None, *, missing=None")
        + "def dot_score(queries): return queries\n"
    )
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


# ------------------------------------------------------------------------------------------------ certificates


@pytest.fixture
def certified(check: Check, tmp_path: Path) -> Path:
    """A certificate of the softmax."""
    result = check(SOFTMAX, "--operator", "masked_softmax", "--case", WRITTEN, "--certificate", "own.json")
    assert result.exit_code == 0 and "certified" in result.output
    return tmp_path / "own.json"


def verify(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", str(path), *arguments])


def test_a_certificate_is_verified(certified: Path):
    result = verify(certified)
    assert result.exit_code == 0 and "verified" in result.output and "differs" not in result.output


def test_a_certificate_says_what_was_judged_and_how(certified: Path):
    told = json.loads(certified.read_text())
    page = certified.with_suffix(".md").read_text()
    assert told["outcome"] == "green" and told["request"]["operators"] == ["masked_softmax"]
    command = told["request"]["command"]
    assert command.startswith("attention-parity check mine.py --dtype float64 --seed ")
    assert command.endswith(f" --case '{WRITTEN}' --operator masked_softmax")
    assert told["judged"]["mine"]["versions"]["numpy"] == np.__version__
    assert told["judged"]["mine"]["asked"]["OMP_NUM_THREADS"] == "1"
    assert len(told["inputs"]) == 21 and set(told["files"]) == {"mine.py"}
    for words in (
        "mine: green",
        "| masked_softmax | float64 | 21 |",
        "attention-parity verify own.json",
        "OMP_NUM_THREADS=1",
    ):
        assert words in page
    assert str(certified.parent) not in page + certified.read_text()  # nothing of the machine's folders


def test_a_target_that_was_changed_is_told(certified: Path):
    path = certified.with_name("mine.py")
    path.write_text(SOFTMAX + "# a comment\n")
    result = verify(certified)
    assert result.exit_code == 1 and "mine.py is not the file that was judged" in squeezed(result)
    path.write_text(WRONG)
    result = verify(certified)
    assert "mine masked_softmax-mask float64 weights was pass, and is fail" in squeezed(result)
    assert "the outcome is red here, and was green" in squeezed(result)


def test_another_version_is_told_and_is_no_fault(certified: Path):
    told = json.loads(certified.read_text())
    told["judged"]["mine"]["versions"]["numpy"] = "0.9"
    rewritten(certified, told)
    result = verify(certified)
    assert result.exit_code == 0 and f"versions.numpy: 0.9 -> {np.__version__}" in squeezed(result)


def test_the_path_of_a_certificate_is_taken_again(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PATH, "blocked")
    arguments = ("--case", "masked_softmax-mask", "--path", "plain", "--certificate", "own.json")
    assert check(SOFTMAX, *arguments).exit_code == 0
    told = json.loads((tmp_path / "own.json").read_text())
    assert told["request"]["command"].endswith(" --path plain") and told["judged"]["mine"]["asked"][PATH] == "plain"
    monkeypatch.delenv(PATH)
    result = verify(tmp_path / "own.json")
    assert result.exit_code == 0 and PATH not in result.output


def test_other_inputs_are_a_difference(certified: Path):
    told = json.loads(certified.read_text())
    told["inputs"]["masked_softmax-mask/float64"] = "0" * 64
    rewritten(certified, told)
    result = verify(certified)
    assert result.exit_code == 1 and "masked_softmax-mask/float64 has other inputs" in squeezed(result)


def rewritten(path: Path, told: dict) -> None:
    """Write a certificate anew, with a digest that fits."""
    told.pop("digest")
    certificate.save({**told, "digest": certificate._digest(told)}, path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace('"green"', '"red"'), "does not match its digest"),
        (lambda text: text.replace("attention-parity certificate", "something"), "is no certificate"),
        (lambda text: text.replace('"format": 1', '"format": 7'), "has the format 7, expected 1"),
        (lambda text: text[:100], "is no certificate"),
        (lambda text: "[" * 100_000, "is no certificate"),
    ],
)
def test_a_file_that_is_no_certificate_is_refused(certified: Path, change: Callable[[str], str], told: str):
    certified.write_text(change(certified.read_text()))
    result = verify(certified)
    assert result.exit_code == 2 and told in squeezed(result)


def test_a_certificate_of_another_interpreter_asks_for_it(certified: Path):
    told = json.loads(certified.read_text())
    told["request"]["other_python"] = True
    rewritten(certified, told)
    result = verify(certified)
    assert result.exit_code == 2 and "give one with --python" in squeezed(result)
    assert verify(certified, "--python", sys.executable).exit_code == 0


def test_a_certificate_that_asks_for_something_else_is_refused(certified: Path):
    told = json.loads(certified.read_text())
    told["request"]["shell"] = "true"
    rewritten(certified, told)
    result = verify(certified)
    assert result.exit_code == 2 and "the certificate asks for something else" in squeezed(result)


# ------------------------------------------------------------------------------------------------ pytest


def pytest_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Pytest in a project of its own."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=variables, timeout=300)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a target and a test of its own."""
    (tmp_path / "mine.py").write_text(WRONG + "def dot_score(queries, keys): return queries @ keys.swapaxes(-1, -2)\n")
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    return tmp_path


def test_every_cell_is_a_test_of_pytest(project: Path):
    done = pytest_run(project, "--parity-target", "mine.py", "--parity-dtype", "float32", "-v", "-n", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED mine.py::masked_softmax-mask[float32]" in done.stdout
    assert "PASSED mine.py::dot_score-plain[float32]" in done.stdout and "test_own.py::test_own" in done.stdout
    assert "attention-parity check mine.py --case 'masked_softmax-mask' --dtype float32" in done.stdout
    assert "Traceback" not in done.stdout and "additive_score" not in done.stdout


def test_cells_are_chosen_as_other_tests_are(project: Path):
    done = pytest_run(project, "--parity-target", "mine.py", "-m", "parity", "-k", "dot_score and float64", "-v")
    listed = cells_of(select(all_cases(), operators=["dot_score"]), ["float64"])
    passed = re.findall(r"PASSED mine.py::dot_score-(\S*)\[float64\]|dot_score-(\S*)\[float64\] PASSED", done.stdout)
    names = ["".join(name) for name in passed]
    assert done.returncode == 0 and f"{len(names)} passed" in done.stdout, done.stdout
    assert len([name for name in names if not name.startswith("drawn_")]) == len(listed) < len(names)


def test_known_divergences_are_tests_too(project: Path):
    (project / "known.toml").write_text(ENTRY)
    arguments = ("--parity-target", "mine.py", "--parity-dtype", "float64", "-m", "parity", "-q")
    done = pytest_run(project, *arguments, "--parity-divergences", "known.toml")
    assert done.returncode == 0, done.stdout
    (project / "known.toml").write_text(ENTRY.replace("masked_softmax", "dot_score").replace("weights", "scores"))
    done = pytest_run(project, *arguments, "--parity-divergences", "known.toml", "-k", "dot_score")
    assert done.returncode == 1 and "a known divergence that does not diverge" in done.stdout


@pytest.mark.frameworks("torch")
def test_a_target_of_ours_has_its_known_divergences_in_pytest_too(project: Path):
    target = "parity_tests.third_party.attention.torch:scaled_dot_product_attention"
    arguments = ("--parity-case", "DotProductAttention-hidden_*", "--parity-dtype", "float64", "-m", "parity", "-q")
    done = pytest_run(project, "--parity-target", target, *arguments)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--parity-target", "nowhere.py"), "nowhere.py cannot be judged"),
        (("--parity-target", "mine.py", "--parity-dtype", "float8"), "expected some of float64, float32"),
        (("--parity-target", "mine.py", "--parity-case", "GRU-*"), "implements nothing that was asked for"),
    ],
)
def test_pytest_says_what_cannot_be_judged(project: Path, arguments: tuple[str, ...], told: str):
    done = pytest_run(project, *arguments)
    assert done.returncode == 4 and told in done.stdout + done.stderr


def test_without_a_target_the_plugin_does_nothing(project: Path):
    done = pytest_run(project, "-q")
    assert done.returncode == 0 and "1 passed" in done.stdout
