"""What the comparison of two models is made of, without a framework: NumPy functions, inputs, names, the command."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

from parity_tests import assert_models_agree, compare_models
from parity_tests.cli.main import main
from parity_tests.models.alignment import Alignment
from parity_tests.models.calls import Recorder
from parity_tests.models.formulas import ACTIVATIONS
from parity_tests.models.inputs import constants_of, read_inputs
from parity_tests.models.mistakes import explain
from parity_tests.models.names import ParameterEntry, read_names
from parity_tests.models.parameters import pair_parameters
from parity_tests.models.sides import Side, SideError

LINES = "tokens: int (3, 7) < 9; lens: lengths (3,) <= 7; mask: mask (3, 7); x: float (3, 7, 4)"


class Holder(Side):
    """Arrays alone."""

    def __init__(self, framework: str, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.framework = framework
        random = np.random.default_rng(1)
        self.arrays = {name.replace("__", "."): random.normal(size=shape) for name, shape in shapes.items()}
        self.parameters = tuple(self.arrays)

    def answer(self, inputs, options):
        raise NotImplementedError


# ------------------------------------------------------------------------------------------------ inputs


def test_drawn_inputs_expose_what_is_masked():
    inputs = read_inputs(LINES, seed=3)
    assert inputs["tokens"].max() < 9 and len(np.unique(inputs["tokens"])) > 3
    assert {1, 7} <= {*inputs["lens"].tolist()} and inputs["lens"].min() >= 1
    mask = inputs["mask"]
    assert mask[-1].tolist() == [True] + 6 * [False]
    assert any(not row[1] and row[2] for row in mask), "padding inside"
    assert np.array_equal(read_inputs(LINES, seed=3)["x"], inputs["x"])
    assert not np.array_equal(read_inputs(LINES, seed=4)["x"], inputs["x"])


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("tokens: int (2, 7)", "tokens needs an end"),
        ("tokens: int", "declares nothing"),
        ("x: complex (2, 3)", "declares nothing"),
    ],
)
def test_what_declares_nothing_is_refused_with_an_example(lines: str, words: str):
    with pytest.raises(SideError, match=words):
        read_inputs(lines)


def test_what_does_not_vary_is_listed():
    notes = list(constants_of({"mask": np.ones((2, 3), bool), "x": np.zeros((4, 4)), "one": np.arange(3)[None]}))
    assert notes == ["mask is True everywhere", "one has a batch of 1", "axes of x have equal sizes: (4, 4)"]


def test_an_input_of_objects_is_refused():
    with pytest.raises(SideError, match="input x: it is no array of numbers"):
        read_inputs({"x": np.array([object()])})


# ------------------------------------------------------------------------------------------------ names, parameters


def test_names_are_checked_and_read_from_a_file(tmp_path: Path):
    file = tmp_path / "names.toml"
    file.write_text(
        '[parameters]\n"blocks.{}.w" = "layers.{}.weight"\n[inputs]\nhidden = {name="mask", inverted=true}\n'
    )
    names = read_names(file)
    assert names.parameter("blocks.12.w") == ParameterEntry(("layers.12.weight",))
    assert names.parameter("block.1.w") is None
    mask = np.array([True, False])
    assert names.actual_inputs({"mask": mask})["hidden"].tolist() == [False, True]
    with pytest.raises(SideError, match="there is no input 'mask', only x"):
        names.check({"x": mask})
    with pytest.raises(SideError, match=r"there is no part \[weights\]"):
        read_names({"weights": {}})


def test_arrays_are_paired_by_name_in_the_words_of_each_framework():
    actual = Holder(
        "flax",
        attention__query__kernel=(6, 2, 3),
        attention__key__kernel=(6, 2, 3),
        attention__value__kernel=(6, 2, 3),
        attention__out__kernel=(2, 3, 6),
        dense__kernel=(6, 6),
        conv__kernel=(3, 3, 4, 5),
        norm__scale=(6,),
    )
    expected = Holder(
        "torch",
        attention__in_proj_weight=(18, 6),
        attention__out_proj__weight=(6, 6),
        dense__weight=(6, 6),
        conv__weight=(5, 4, 3, 3),
        norm__weight=(6,),
    )
    pairing = pair_parameters(actual, expected, read_names(None))
    assert not pairing.only_actual and not pairing.only_expected and not pairing.has_guesses
    copied, arrays = pairing.copy(expected.arrays), expected.arrays
    x = np.random.default_rng(0).normal(size=(2, 6))
    joined = arrays["attention.in_proj_weight"]
    np.testing.assert_array_equal(x @ copied["dense.kernel"], x @ arrays["dense.weight"].T)
    for index, name in enumerate(("query", "key", "value")):
        heads = np.einsum("bi,ihd->bhd", x, copied[f"attention.{name}.kernel"]).reshape(2, 6)
        np.testing.assert_allclose(heads, x @ joined[6 * index : 6 * index + 6].T, rtol=1e-13)
    np.testing.assert_array_equal(copied["conv.kernel"], arrays["conv.weight"].transpose(2, 3, 1, 0))
    for pair in pairing.pairs:
        for name, array in pair.to_expected(copied).items():
            np.testing.assert_array_equal(array, arrays[name])


def test_arrays_of_a_names_file_are_cut_turned_and_scaled():
    actual = Holder("flax", q=(4, 6), k=(4, 6), v=(4, 6), joined=(6, 4), embedding=(5, 4))
    expected = Holder("torch", qkv=(4, 18), one=(2, 4), two=(2, 4), three=(2, 4), table=(5, 4))
    third = {"name": "qkv", "axes": "i (3 h) -> 3 i h"}
    parameters = {name: {**third, "part": part} for part, name in enumerate("qkv")}
    parameters |= {"joined": {"names": ["one", "two", "three"], "axes": "3 h i -> (3 h) i"}}
    parameters |= {"embedding": {"name": "table", "scale": 0.5}, "lost": "table", "table": "lost"}
    pairing = pair_parameters(actual, expected, read_names({"parameters": parameters}))
    assert not (pairing.only_actual or pairing.only_expected or pairing.has_guesses)
    assert pairing.notes == [f"names: [parameters] {name!r} matches no array of " for name in ("lost", "table")]
    copied, arrays = pairing.copy(expected.arrays), expected.arrays
    np.testing.assert_array_equal(np.concatenate([copied[name] for name in "qkv"], 1), arrays["qkv"])
    np.testing.assert_array_equal(copied["joined"], np.concatenate([arrays[name] for name in ("one", "two", "three")]))
    np.testing.assert_array_equal(copied["embedding"], 0.5 * arrays["table"])
    for pair in pairing.pairs:
        for name, array in pair.to_expected(copied).items():
            np.testing.assert_array_equal(array, arrays[name])
    for entry, words in (
        ({**third, "axes": "i h -> i i"}, "both sides have to name the same axes"),
        ({**third, "axes": "i (2 h) -> 2 i h"}, r"q \(4, 6\) does not fit qkv \(4, 18\) with the axes 'i \(2 h\)"),
        ("qkv", "state its axes"),
    ):
        with pytest.raises(SideError, match=words):
            pair_parameters(actual, expected, read_names({"parameters": {"q": entry}}))
    for entry, words in (
        ({"name": "table", "axis": 0}, "[parameters] q.axis"),
        ({"axes": "i -> i"}, "[parameters] q.names"),
        ({"name": "table", "scale": 0}, "scale is 0"),
        (3, "[parameters] q: 3"),
    ):
        with pytest.raises(SideError, match=re.escape(words)):
            read_names({"parameters": {"q": entry}})
    lost = pair_parameters(actual, expected, read_names({"parameters": {"q": "lost"}}))
    assert lost.notes == ["names: [parameters] q = 'lost':  has no such array"]


def test_two_names_for_one_array_are_named():
    names = read_names({"parameters": {"a": "c", "b": "c"}})
    pairing = pair_parameters(Holder("torch", a=(3, 4), b=(3, 4)), Holder("torch", c=(3, 4)), names)
    assert [pair.actual for pair in pairing.pairs] == [("a",)] and pairing.only_actual == ["b"]
    assert pairing.notes == ["names: [parameters] b and a are both c: b was left out; state the part of each"]


def test_stored_arrays_are_paired_by_their_values():
    actual, expected = Holder("torch", a=(3, 4), b=(3, 4)), Holder("flax", c=(4, 3), d=(4, 3))
    expected.arrays = {"c": actual.arrays["b"].T, "d": actual.arrays["a"].T}
    pairs = pair_parameters(actual, expected, read_names(None), by_values=True).pairs
    assert {(pair.expected, pair.actual, pair.how) for pair in pairs} == {
        (("c",), ("b",), "values"),
        (("d",), ("a",), "values"),
    }


def test_parts_in_one_array_are_paired_on_either_side():
    names = [f"layers__{layer}__attn__{name}__kernel" for layer in (0, 1) for name in ("query", "key", "value")]
    parts = Holder("flax", **dict.fromkeys(names, (4, 4)))
    whole = Holder("torch", **{f"h__{layer}__attn__c_attn__weight": (12, 4) for layer in (0, 1)})
    for sides in ((parts, whole), (whole, parts)):
        pairing = pair_parameters(*sides, read_names(None))
        assert (
            len(pairing.pairs) == 2
            and not pairing.has_guesses
            and pairing.pairs[0].remarks == ["axes (0, 2, 1)", "3 parts"]
        )
        copied = pairing.copy(sides[1].arrays)
        for pair in pairing.pairs:
            for name, array in pair.to_expected(copied).items():
                np.testing.assert_array_equal(array, sides[1].arrays[name])


def test_what_is_paired_by_order_alone_is_a_guess():
    pairing = pair_parameters(Holder("torch", a=(3, 4), b=(5,)), Holder("torch", c=(3, 4), d=(6,)), read_names(None))
    assert pairing.has_guesses and "a guess" in str(pairing.pairs[0])
    assert pairing.only_actual == ["b"] and pairing.only_expected == ["d"]


# ------------------------------------------------------------------------------------------------ alignment


def record(folder: Path, calls: list[tuple[str, np.ndarray, np.ndarray]]) -> Recorder:
    folder.mkdir()
    recorder = Recorder(folder)
    for path, given, result in calls:
        recorder.leave(recorder.enter(path, "Layer", {"0": given}), {"output": result})
    return recorder


def test_permuted_reshaped_and_joined_twins_are_found(tmp_path: Path):
    x, q, k, h = (np.random.default_rng(seed).normal(size=(2, 3, 4)) for seed in range(4))
    expected = record(tmp_path / "e", [("q", x, q), ("k", x, k), ("heads", q, h), ("end", h, 2.0 * h)])
    both = np.concatenate([q, k], -1)
    actual = record(tmp_path / "a", [("qk", x, both), ("heads", both, h.transpose(0, 2, 1)), ("end", h, 3.0 * h)])
    alignment = Alignment(actual.completed_calls, expected.completed_calls, lambda seen: 1e-12)
    difference = alignment.first_difference()
    assert difference is not None and difference.kind == "output"
    assert (difference.actual.path, difference.expected.path) == ("end", "end")


def test_an_activation_within_a_layer_of_one_side_is_no_difference(tmp_path: Path):
    x, y = (np.random.default_rng(seed).normal(size=(2, 3)) for seed in range(2))
    expected = record(tmp_path / "e", [("dense", x, y), ("out", np.maximum(y, 0.0), 2.0 * y)])
    actual = record(tmp_path / "a", [("dense", x, np.maximum(y, 0.0)), ("out", np.maximum(y, 0.0), 3.0 * y)])
    difference = Alignment(actual.completed_calls, expected.completed_calls, lambda seen: 1e-12).first_difference()
    assert difference is not None and difference.expected.path == "out"
    other = record(tmp_path / "o", [("dense", x, np.tanh(y)), ("out", np.tanh(y), 3.0 * y)])
    difference = Alignment(other.completed_calls, expected.completed_calls, lambda seen: 1e-12).first_difference()
    assert difference is not None and difference.expected.path == "dense"
    pairing = pair_parameters(Holder("a"), Holder("b"), read_names(None))
    looks = explain(difference, Holder("torch"), Holder("torch"), pairing)
    assert looks == ([], ["tanh of the expected output, inside of the layer"])


def test_a_layer_beside_a_wrong_one_does_not_hide_it(tmp_path: Path):
    x, y, z = (np.random.default_rng(seed).normal(size=(2, 3)) for seed in range(3))
    folders = zip(("e", "a"), (2.0, 3.0), strict=True)
    expected, actual = (
        record(tmp_path / name, [("wrong", x, size * y), ("beside", x + 1.0, z)]) for name, size in folders
    )
    difference = Alignment(actual.completed_calls, expected.completed_calls, lambda seen: 1e-12).first_difference()
    assert difference is not None and difference.expected.path == "wrong"


def test_the_code_between_two_sublayers_is_named(tmp_path: Path):
    x, y = (np.random.default_rng(seed).normal(size=(2, 3)) for seed in range(2))
    expected = record(tmp_path / "e", [("first", x, y), ("second", np.maximum(y, 0.0), 2.0 * y)])
    actual = record(tmp_path / "a", [("first", x, y), ("second", np.tanh(y), 3.0 * y)])
    difference = Alignment(actual.completed_calls, expected.completed_calls, lambda seen: 1e-12).first_difference()
    assert difference is not None
    assert difference.sentence.startswith("between the output of first and the input 0 of second")
    looks = explain(
        difference, Holder("torch"), Holder("torch"), pair_parameters(Holder("a"), Holder("b"), read_names(None))
    )
    assert looks == (["tanh, expected ReLU"], [])


def test_activations_differ_from_each_other():
    x = np.linspace(-3.0, 3.0, 61)
    values = [function(x) for function in ACTIVATIONS.values()]
    assert all(np.abs(a - b).max() > 1e-4 for i, a in enumerate(values) for b in values[:i])


# ------------------------------------------------------------------------------------------------ the command


def functions(folder: Path) -> tuple[str, str]:
    new, old = folder / "new.py", folder / "old.py"
    old.write_text("import numpy as np\ndef model(x):\n    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)\n")
    new.write_text(
        "import numpy as np, os, time\n"
        "def model(x):\n    e = np.exp(x - x.max(-1, keepdims=True))\n    return e / e.sum(-1, keepdims=True)\n"
        "def scaled(x):\n    return 2.0 * model(x)\n"
        "def raises(x):\n    raise ValueError('no such size')\n"
        "def dies(x):\n    os._exit(3)\n"
        "def hangs(x):\n    time.sleep(60)\n"
    )
    return str(new), str(old)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["compare-models", *arguments, "--inputs", "x: float (3, 5)", "--no-gradients"])


def test_the_command_runs_each_side_in_a_process_and_writes_reports(tmp_path: Path):
    new, old = functions(tmp_path)
    files = [str(tmp_path / name) for name in ("v.json", "v.xml")]
    result = command(
        f"{new}:model", f"{old}:model", "--json", files[0], "--junit", files[1], "--python", f"new={sys.executable}"
    )
    assert result.exit_code == 0, result.output
    assert "green" in result.output and "nothing is masked" in result.output
    assert json.loads(Path(files[0]).read_text())["header"]["weights"] == "stored"
    assert ElementTree.parse(files[1]).getroot().get("failures") == "0"


def test_a_difference_exits_with_1_and_is_named(tmp_path: Path):
    new, old = functions(tmp_path)
    result = command(f"{new}:scaled", f"{old}:model")
    assert result.exit_code == 1 and "2 times what is expected" in result.output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", "error       evaluation, float64  new.py:raises: ValueError: no such size"),
        ("dies", "crash       evaluation, float64  new.py:dies: the worker ended with exit code 3"),
        ("hangs", "timeout     evaluation, float64  new.py:hangs: the worker exceeded its time limit"),
    ],
)
def test_a_side_that_fails_is_one_line(tmp_path: Path, name: str, words: str):
    new, old = functions(tmp_path)
    result = command(f"{new}:{name}", f"{old}:model", "--limit", "3")
    assert (
        result.exit_code == 1 and words in " ".join(result.output.split("  ")).replace("   ", "  ")
    ) or words in result.output


def test_what_is_no_model_is_refused(tmp_path: Path):
    _, old = functions(tmp_path)
    file = tmp_path / "other.py"
    file.write_text("model = 3\n")
    result = command(f"{file}:model", f"{old}:model")
    assert result.exit_code == 2 and "int is no model of" in result.output
    result = command(f"{old}:nothing", f"{old}:model")
    assert result.exit_code == 2 and "has no nothing" in result.output


def test_kept_outputs_are_an_expected_side(tmp_path: Path):
    new, _ = functions(tmp_path)
    x = np.linspace(-1.0, 1.0, 12).reshape(3, 4)
    np.savez(tmp_path / "kept.npz", **{"input.x": x, "output.output": np.exp(x) / np.exp(x).sum(-1, keepdims=True)})
    kept = str(tmp_path / "kept.npz")
    result = CliRunner().invoke(main, ["compare-models", f"{new}:model", kept])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, ["compare-models", f"{new}:scaled", kept])
    assert result.exit_code == 1, result.output


def test_live_functions_agree_and_an_assertion_has_the_text():
    assert_models_agree(lambda x: np.exp(2.0 * x), lambda x: np.exp(x) ** 2, inputs="x: float (3, 4)")
    with pytest.raises(
        AssertionError, match=r"red +1 of 4 comparisons|red +1 of 2 comparisons|red +1 of 1 comparisons"
    ):
        assert_models_agree(lambda x: np.exp(x), lambda x: np.exp(x) + 1e-9, inputs={"x": np.ones((3, 4)) * 0.3})


def test_a_token_that_rounding_alone_decides_is_undecided():
    x = np.full((2, 3), 1.0 / 3.0)
    x[:, 1] *= 1.0 + 2.0**-53
    comparison = compare_models(
        lambda x: (x * 3.0).argmax(-1), lambda x: 2 - np.flip(x, -1).argmax(-1), inputs={"x": x}
    )
    assert comparison.undecided_verdicts and not comparison.red and not comparison.agree


def test_another_token_is_red():
    comparison = compare_models(lambda x: x.argmin(-1), lambda x: x.argmax(-1), inputs="x: float (3, 5)")
    assert comparison.red and comparison.red[0].check == "exact"
