"""Converted weights: every source validates itself, a wrong mapping is red, and the command refuses bad requests."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import backends
from attention_core.draws import uniform
from attention_core.operators import find
from backends import weights
from parity_tests.cases.case import Arrays
from parity_tests.cases.expected import programs_folder
from parity_tests.cli.main import main
from parity_tests.conversion import conversion
from parity_tests.conversion.conversion import Move, is_numbered
from parity_tests.conversion.validation import MOST_ENTRIES, Side, chosen_entries, validate
from parity_tests.judge.run import Run
from parity_tests.tests.commands import squeezed
from parity_tests.tests.places import ROOT
from parity_tests.third_party import layers
from parity_tests.workers.answers import Answer
from parity_tests.workers.environment import environment
from parity_tests.workers.process import Job, Progress, Server
from parity_tests.workers.recordings import Batch, Recording

STACK = {"input_size": 8, "hidden_size": 5, "num_layers": 2, "bidirectional": True}
BOTH = {"input_size": 8, "hidden_size": 5, "bidirectional": True}
HEADS = {"query_size": 12, "num_heads": 3, "hidden_size": 12}
SIZED = {"query_size": 6, "key_size": 7, "hidden_size": 8}
DECODER = {"vocab_size": 9, "embed_size": 4, "hidden_size": 6, "num_layers": 2}
LAYER_OF: dict[str, tuple[str, dict[str, Any]]] = {
    "torch.nn.GRU": ("GRU", STACK),
    "torch.nn.LSTM": ("LSTM", STACK),
    "torch.nn.MultiheadAttention": ("MultiHeadAttention", {**HEADS, "key_size": 10, "value_size": 11}),
    "keras.GRU": ("GRU", BOTH),
    "keras.LSTM": ("LSTM", BOTH),
    "keras.MultiHeadAttention": ("MultiHeadAttention", {**HEADS, "key_size": 10, "value_size": 11}),
    "keras.AdditiveAttention": ("AdditiveAttention", {"query_size": 6, "key_size": 6, "hidden_size": 6}),
    "flax.linen.GRUCell": ("GRU", BOTH),
    "flax.linen.LSTMCell": ("LSTM", BOTH),
    "flax.linen.MultiHeadDotProductAttention": ("MultiHeadAttention", HEADS),
    "flax.nnx.GRUCell": ("GRU", BOTH),
    "flax.nnx.LSTMCell": ("LSTM", BOTH),
    "flax.nnx.OptimizedLSTMCell": ("LSTM", BOTH),
    "flax.nnx.MultiHeadAttention": ("MultiHeadAttention", HEADS),
    "gluon.rnn.GRU": ("GRU", STACK),
    "gluon.rnn.LSTM": ("LSTM", STACK),
    "onnx.GRU": ("GRU", BOTH),
    "onnx.LSTM": ("LSTM", BOTH),
    "textbook.Encoder": ("LSTMEncoder", {**DECODER, "bidirectional": True}),
    "textbook.BahdanauDecoder": ("BahdanauDecoder", {**DECODER, "cell": "lstm"}),
    "textbook.Encoder in Gluon": ("GRUEncoder", DECODER),
    "textbook.BahdanauDecoder in Gluon": ("BahdanauDecoder", DECODER),
    "opennmt.GlobalAttention": ("AdditiveAttention", SIZED),
    "tfa.BahdanauAttention": ("AdditiveAttention", SIZED),
    "tfa.LuongAttention": ("GeneralAttention", {"query_size": 6, "key_size": 7}),
    "attention_parity.torch": ("BahdanauDecoder", DECODER),
    "attention_parity.tf": ("BahdanauDecoder", DECODER),
    "attention_parity.jax": ("BahdanauDecoder", DECODER),
    "attention_parity.mxnet": ("BahdanauDecoder", DECODER),
}
"""A layer for each source, with sizes that all differ where the source lets them."""
ABSENT = {"flax.nnx.GRUCell": "b_hn"}
"""What a source has no array for is 0."""
BESIDE = {"opennmt.GlobalAttention": {"W_c": uniform("W_c", (6, 13))}}
"""Arrays that a source has beside the layer, and that no canonical file holds."""
WHOLE = {
    name
    for name in LAYER_OF
    if name.startswith(("gluon.", "textbook.Encoder in")) or (name.startswith("flax.") and name.endswith("Cell"))
}
"""The sources that take no lengths, or not as the specification means them."""
OTHER_SPELLINGS = ("keras.GRU", "keras.MultiHeadAttention", "gluon.rnn.GRU", "attention_parity.tf")
"""The sources whose second spelling is run, too: the numbers of a .weights.h5 file, the names of collect_params."""


def drawn(layer: str, config: dict[str, Any], absent: str = "-") -> dict[str, np.ndarray]:
    specification = find(layer)
    shapes = specification.shapes(specification.sizes(config))
    return {name: uniform(name, shape, 0.0 if name.endswith(absent) else 0.3) for name, shape in shapes.items()}


def job(name: str) -> Job:
    variables = environment(layers.framework_of(name), programs_folder(), "cpu")
    return Job(name, layers.place_of(name), sys.executable, variables=variables)


def validated(
    source: str,
    raw: dict[str, np.ndarray],
    layer: str,
    config: dict[str, Any],
    canonical: dict[str, np.ndarray],
    server: Server,
) -> Run:
    """The verdicts on the source's layer, in a worker that answers several validations."""
    if is_numbered(source):
        raw = {f"0/{name}": array for name, array in raw.items()}
    server.hello()
    side = Side(server.job, raw, layers.framework_of(source))
    return validate(find(layer), config, canonical, [side], recorder=lambda job, batches, _: server.answers(*batches))


def failures(run: Run) -> str:
    return "\n".join(f"{one.name} {one.case} {one.dtype} {one.quantity}: {one.reason}" for one in run.red)


# ------------------------------------------------------------------------------------------------ every source


def test_every_source_has_a_place_and_a_layer():
    assert set(layers.PLACES) == set(LAYER_OF)
    assert {name.removesuffix(layers.IN_GLUON) for name in layers.PLACES} == set(weights.SOURCES)


def test_every_place_has_a_function_for_its_layer():
    """Read from the syntax tree: the frameworks need not be installed."""
    for source, (layer, _) in LAYER_OF.items():
        module, _, name = layers.PLACES[source].partition(":")
        file = ROOT / "parity_tests" / "third_party" / "layers" / f"{module}.py"
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
        made = assigned.get(name)
        if name == "attention_parity":
            assert made is not None
        elif isinstance(made, ast.Call):
            assert layer in {keyword.arg for keyword in made.keywords}, source
        else:
            assert layer in functions | {name for names in assigned for name in names.strip("()").split(", ")}, source


def test_the_sources_of_a_target_validate_themselves(
    source_target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Canonical arrays become the source's, and back; its layer agrees with the reference in all that it implements."""
    sources = [name for name, where in layers.PLACES.items() if where == source_target]
    with Server(job(sources[0])) as server:
        for source in sources:
            if source.endswith(layers.IN_GLUON):  # the spelling that the command does not write
                validates_itself(source, server, spelling=1)
            elif source in BESIDE:
                validates_itself(source, server)
            if not source.endswith(layers.IN_GLUON):
                is_a_goal(source, server, tmp_path, monkeypatch)
            if source in OTHER_SPELLINGS:
                validates_itself(source, server, "there/", 1)


def layer_of(source: str) -> tuple[str, dict[str, Any], Arrays]:
    """A layer that a source can hold, its options, and its canonical arrays."""
    layer, config = LAYER_OF[source]
    canonical = drawn(layer, config, ABSENT.get(source, "-"))
    if source == "keras.AdditiveAttention":
        canonical |= {"W_q": np.eye(6), "W_k": np.eye(6)}
    return layer, config, canonical


def validates_itself(source: str, server: Server, prefix: str = "", spelling: int = 0) -> None:
    """Raises: AssertionError if any cell is red, or not judged."""
    layer, config, canonical = layer_of(source)
    unseen = {name: config[name] for name in ("num_heads",) if name in config}
    name = source.removesuffix(layers.IN_GLUON)
    whole = {**canonical, **BESIDE.get(source, {})}
    raw = weights.from_canonical(layer, whole, name, prefix=prefix, spelling=spelling, **unseen)
    assert layers.entry_of(name, raw) == source
    converted = weights.to_canonical(raw, name, layer=layer, **unseen)
    raw = {name.removeprefix(prefix): array for name, array in raw.items()}
    check_green(source, layer, validated(source, raw, layer, converted.config, converted.arrays, server))


def is_a_goal(source: str, server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command writes the arrays of the source, which are validated, and lead back to the canonical ones."""
    runs: list[Run] = []

    def answered(*arguments: Any, progress: Progress) -> Run:
        *known, sides = arguments
        server.hello()
        sides = [replace(side, job=server.job) for side in sides]
        runs.append(validate(*known, sides, recorder=lambda job, batches, _: server.answers(*batches)))
        return runs[-1]

    layer, config, canonical = layer_of(source)
    backends.save_arrays(folder / "given.safetensors", canonical, {"layer": layer, "config": config})
    monkeypatch.setattr(conversion, "validate", answered)
    result = invoke(folder / "given.safetensors", "--to", source, "-o", folder / "goal.safetensors")
    assert result.exit_code == 0, f"{source}\n{result.output}"
    check_green(source, layer, runs[0])
    if source in BESIDE:
        return
    unseen = {name: config[name] for name in ("num_heads",) if name in config}
    back = weights.to_canonical(weights.read_arrays(folder / "goal.safetensors"), source, layer=layer, **unseen)
    assert all(np.array_equal(back.arrays[name], array) for name, array in canonical.items()), source


def check_green(source: str, layer: str, run: Run) -> None:
    """Raises: AssertionError if any cell is red, or not judged."""
    assert not run.red, f"{source}\n{failures(run)}"
    judged = {(one.case, one.dtype) for one in run.verdicts if one.status == "pass"}
    cases = [f"{layer}-converted"] + [f"{layer}-converted_ragged"] * (source not in WHOLE)
    dtypes = ["float32"] + ["float64"] * (not source.startswith("onnx."))
    assert judged == {(case, dtype) for case in cases for dtype in dtypes}, source


def of(name: str, *arguments: Any) -> Any:
    """A parameter for where the framework of the source is tested."""
    return pytest.param(name, *arguments, marks=pytest.mark.frameworks(layers.framework_of(name)), id=name)


@pytest.mark.parametrize(("single", "backend_of"), [of("keras.LSTM", "tf"), of("flax.linen.GRUCell", "jax")])
def test_a_stack_of_single_layers_validates_itself(single: str, backend_of: str, tmp_path: Path):
    layer = LAYER_OF[single][0]
    canonical = drawn(layer, {"input_size": 8, "hidden_size": 5, "num_layers": 2})
    raw = {}
    for number in range(2):
        single_layer = {f"0{name[1:]}": array for name, array in canonical.items() if name[0] == str(number)}
        raw |= weights.from_canonical(layer, single_layer, single, prefix=f"enc{number}/")
    weights.write_arrays(tmp_path / "stack.safetensors", raw)
    out = tmp_path / "out.safetensors"
    prefixes = ("--prefix", "enc0/", "--prefix", "enc1/")
    result = invoke(tmp_path / "stack.safetensors", *prefixes, "--to", backend_of, "-o", out)
    assert result.exit_code == 0, result.output
    assert all(np.array_equal(weights.read_arrays(out)[name], canonical[name]) for name in canonical)


@pytest.mark.parametrize("target", [of("keras.LSTM"), of("flax.linen.GRUCell")])
def test_a_converted_single_layer_is_validated(target: str, file: Callable[..., Path], tmp_path: Path):
    layer, out = LAYER_OF[target][0], tmp_path / "out.safetensors"
    arrays = weights.from_canonical(layer, drawn(layer, SQUARE), f"torch.nn.{layer}")
    result = invoke(file(arrays), "--to", target, "-o", out, "--validate", "own")
    assert result.exit_code == 0 and out.exists(), result.output


@pytest.mark.parametrize("single", ["keras.GRU", "flax.linen.GRUCell", "onnx.GRU"])
def test_a_stack_of_single_layers_is_numbered(single: str):
    """The validation gets layers with prefixes of their own by number, from the input on."""
    raw, canonical = {}, drawn("GRU", {"input_size": 8, "hidden_size": 5, "num_layers": 2})
    for layer in range(2):
        one = {f"0.{name.partition('.')[2]}": array for name, array in canonical.items() if name[0] == str(layer)}
        raw |= weights.from_canonical("GRU", one, single, prefix=f"enc{layer}.")
    converted = weights.to_canonical(raw, single, prefix=["enc0.", "enc1."])
    move = Move(raw, converted, np.dtype("float64"), ("enc0.", "enc1."))
    assert {name.partition("/")[0] for name in move.source_arrays} == {"0", "1"}
    assert len(move.source_arrays) == len(raw)
    assert all(np.array_equal(converted.arrays[name], canonical[name]) for name in canonical)


# ------------------------------------------------------------------------------------------------ a wrong mapping

SQUARE = {"input_size": 5, "hidden_size": 5}


def swapped(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array[[1, 0, 2]] if name.endswith((".W", ".U", ".b")) else array for name, array in arrays.items()}


def transposed(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.swapaxes(1, 2) if name.endswith(".U") else array for name, array in arrays.items()}


def exchanged(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {**arrays, "0.W": arrays["0.U"], "0.U": arrays["0.W"]}


def without_hidden_bias(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: 0.0 * array if name.endswith("b_hn") else array for name, array in arrays.items()}


def outside_the_gate(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    bias = arrays["0.b"] + np.stack([0.0 * arrays["0.b_hn"]] * 2 + [arrays["0.b_hn"]])
    return {**arrays, "0.b": bias, "0.b_hn": 0.0 * arrays["0.b_hn"]}


WRONG = (swapped, transposed, exchanged, without_hidden_bias, outside_the_gate)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_mapping_is_red_in_outputs_and_gradients(wrong: Callable[..., Any], fake_job: Callable[..., Job]):
    right = drawn("GRU", SQUARE)
    run = validate(find("GRU"), SQUARE, right, [Side(fake_job(), wrong(right))])
    red = {(one.dtype, one.quantity) for one in run.red}
    quantities = ("outputs", "state", "gradient_inputs", "gradient_state")
    assert red == {(dtype, quantity) for dtype in ("float64", "float32") for quantity in quantities}


def test_the_right_mapping_is_green(fake_job: Callable[..., Job]):
    right = drawn("GRU", SQUARE)
    run = validate(find("GRU"), SQUARE, right, [Side(fake_job(), right)])
    assert not run.red and len(run.verdicts) == 16, failures(run)


@pytest.mark.frameworks("torch")
def test_every_wrong_mapping_of_a_framework_s_layer_is_red():
    right = drawn("GRU", SQUARE)
    raw = weights.from_canonical("GRU", right, "torch.nn.GRU")
    with Server(job("torch.nn.GRU")) as server:
        assert not validated("torch.nn.GRU", raw, "GRU", SQUARE, right, server).red
        for wrong in WRONG:
            assert validated("torch.nn.GRU", raw, "GRU", SQUARE, wrong(right), server).red, wrong.__name__


def test_heads_that_are_interleaved_are_red(fake_job: Callable[..., Job]):
    """(head size, heads) for (heads, head size): the shapes are the same."""
    right = drawn("MultiHeadAttention", HEADS)
    wrong = {**right, "W_q": right["W_q"].reshape(3, 4, 12).swapaxes(0, 1).reshape(12, 12)}
    run = validate(find("MultiHeadAttention"), HEADS, right, [Side(fake_job(), wrong)])
    assert {"context", "weights"} <= {one.quantity for one in run.red}


def test_a_side_of_which_nothing_is_judged_is_red(fake_job: Callable[..., Job]):
    right = drawn("GRU", SQUARE)

    def silent(job: Job, batches: Iterable[Batch], progress: Progress) -> Recording:
        answers = {cell.key: Answer("not-implemented", "nothing") for batch in batches for cell in batch.cells}
        return Recording("fake", "cpu", about={"framework": "none"}, answers=answers)

    run = validate(find("GRU"), SQUARE, right, [Side(fake_job(), right)], recorder=silent)
    assert [one.reason for one in run.red] == ["nothing of it could be compared"]


def test_a_large_input_is_judged_in_as_many_entries_as_the_reference_differentiates_by():
    entries = chosen_entries("inputs", np.zeros((3, 5, 400)))
    assert len(set(entries)) == MOST_ENTRIES and entries.max() < 6000
    assert list(chosen_entries("inputs", np.zeros((2, 3)))) == list(range(6))


# ------------------------------------------------------------------------------------------------ the command


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, arguments)])


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """A file of arrays."""

    def write(arrays: dict[str, np.ndarray], name: str = "given.safetensors") -> Path:
        weights.write_arrays(tmp_path / name, arrays)
        return tmp_path / name

    return write


def torch_gru(**config: int) -> dict[str, np.ndarray]:
    sizes = {"input_size": 4, "hidden_size": 5, **config}
    return weights.from_canonical("GRU", drawn("GRU", sizes), "torch.nn.GRU")


def heads() -> dict[str, np.ndarray]:
    return weights.from_canonical(
        "MultiHeadAttention", drawn("MultiHeadAttention", HEADS), "torch.nn.MultiheadAttention", num_heads=3
    )


GRU = torch_gru()
REFUSED: dict[str, tuple[dict[str, np.ndarray], tuple[str, ...], str]] = {
    "unknown target": (GRU, ("--to", "numpy"), "numpy: expected one of torch, tf, jax, mxnet, or of "),
    "unknown source": (GRU, ("--to", "jax", "--from", "torch.GRU"), "no source 'torch.GRU'; there are "),
    "another source": (GRU, ("--to", "jax", "--from", "keras.GRU"), "keras.GRU: none of the arrays "),
    "nothing fits": ({"a": np.ones(3)}, ("--to", "jax"), "no source fits the arrays a (3,)"),
    "missing": (
        {name: array for name, array in GRU.items() if name != "weight_hh_l0"},
        ("--to", "jax", "--from", "torch.nn.GRU"),
        "missing: weight_hh_l0",
    ),
    "left over": (
        {**GRU, "classifier": np.ones(2)},
        ("--to", "jax", "--from", "torch.nn.GRU"),
        "left over: classifier",
    ),
    "transposed": (
        {**GRU, "weight_ih_l0": GRU["weight_ih_l0"].T},
        ("--to", "jax", "--from", "torch.nn.GRU"),
        "weight_ih_l0 has shape (4, 15), expected (15, i)",
    ),
    "unseen": (heads(), ("--to", "jax"), "num_heads=... "),
    "already there": (GRU, ("--to", "torch.nn.GRU"), "the arrays are already those of torch.nn.GRU."),
    "another layer": (GRU, ("--to", "keras.LSTM"), "keras.LSTM holds LSTM, not GRU."),
    "no place": (GRU, ("--to", "flax.nnx.GRUCell"), "b_hn"),
    "wrong option": (GRU, ("--to", "jax", "--set", "heads=2"), "GRU has no option 'heads'"),
    "no option": (GRU, ("--to", "jax", "--set", "heads"), "'heads': expected NAME=VALUE, such as num_heads=8"),
    "no layer": (GRU, ("--to", "jax", "--from", "canonical"), "the layer of the canonical arrays is unknown"),
}


@pytest.mark.parametrize(("arrays", "arguments", "words"), REFUSED.values(), ids=list(REFUSED))
def test_the_command_refuses_and_writes_nothing(arrays, arguments, words, file, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    result = invoke(file(arrays), *arguments, "-o", out, "--validate", "no")
    assert result.exit_code == 2, result.output
    assert words in result.output and not out.exists()


def test_a_refusal_names_the_options_of_this_command(file, tmp_path: Path):
    result = invoke(file(heads()), "--to", "jax", "-o", tmp_path / "out.safetensors")
    assert "any other NAME=... is --set" in result.output


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("given.safetensors", "is SOURCE itself"),
        ("nowhere/out.safetensors", "there is no folder"),
        ("out.pt", "canonical arrays are written as .safetensors"),
    ],
)
def test_the_command_refuses_to_write_there(name: str, words: str, file, tmp_path: Path):
    before = file(GRU).read_bytes()
    result = invoke(file(GRU), "--to", "jax", "-o", tmp_path / name, "--validate", "no")
    assert result.exit_code == 2 and words in result.output
    assert file(GRU).read_bytes() == before


def test_the_command_refuses_a_missing_file(tmp_path: Path):
    result = invoke(tmp_path / "gone.pt", "--to", "jax", "-o", tmp_path / "out.safetensors")
    assert result.exit_code == 2 and "there is no such file" in result.output


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker may start, and nothing be judged."""
    monkeypatch.setattr(conversion, "validate", lambda *arguments, **keywords: pytest.fail("a validation began"))


@pytest.mark.usefixtures("nothing_runs")
def test_a_missing_framework_is_noticed_before_anything_runs(file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reasons = {"torch": "not installed: torch. Run: pip install torch"}
    monkeypatch.setattr(layers, "absence", lambda framework, python=None: reasons.get(framework))
    result = invoke(file(GRU), "--to", "jax", "-o", tmp_path / "out.safetensors")
    assert result.exit_code == 1 and [path.name for path in tmp_path.iterdir()] == ["given.safetensors"]
    assert (
        "torch.nn.GRU cannot be validated here: not installed: torch. Run: pip install torch. Or run it in another "
        "environment, --python torch=PATH; or validate jax only, --validate own; or skip the validation, --validate no."
    ) in squeezed(result)


@pytest.mark.usefixtures("nothing_runs")
@pytest.mark.parametrize(
    ("script", "words"),
    [("echo torch", "python does not have torch"), ("echo oh >&2; exit 3", "python does not run: oh")],
)
def test_an_interpreter_is_probed_for_its_requirements(script: str, words: str, file, tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    python.chmod(0o755)
    result = invoke(file(GRU), "--to", "jax", "-o", tmp_path / "out.safetensors", "--python", f"torch={python}")
    assert result.exit_code == 1 and words in squeezed(result)


@pytest.mark.usefixtures("nothing_runs")
def test_what_cannot_be_written_is_noticed_before_anything_runs(file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An .onnx file is never written, and Keras' file needs names that it finds."""
    for target, name in (("onnx.GRU", "out.onnx"), ("flax.linen.GRUCell", "out.h5")):
        result = invoke(file(GRU), "--to", target, "-o", tmp_path / name)
        assert result.exit_code == 2 and {path.name for path in tmp_path.iterdir()} == {"given.safetensors"}


def test_the_textbooks_decoder_is_converted_out_of_a_whole_model(file, tmp_path: Path):
    """As docs/porting.md has it, which begins with it."""
    sizes = {"embed_size": 32, "hidden_size": 64, "num_layers": 2}
    whole = {}
    for part, vocab, layer in (("Encoder", 60, "GRUEncoder"), ("BahdanauDecoder", 70, "BahdanauDecoder")):
        arrays, prefix = drawn(layer, {"vocab_size": vocab, **sizes}), f"{part[-7:].lower()}."
        whole |= weights.from_canonical(layer, arrays, f"textbook.{part}", prefix=prefix)
    whole = {name: array.astype(np.float32) for name, array in whole.items()}
    out = tmp_path / "out.safetensors"
    result = invoke(file(whole), "--prefix", "decoder.", "--to", "jax", "-o", out, "--validate", "no")
    page = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
    constructor, setter = result.output.splitlines()[-2:]
    assert "layer = attention.BahdanauDecoder(70, 32, 64, " in constructor and constructor in page
    assert setter.replace(str(out), "decoder.safetensors") in page
    for line in (line for line in result.output.splitlines() if line.startswith("warning")):
        assert " ".join(line.split()) in " ".join(page.split())


def test_padding_and_hidden_keys_come_with_a_warning(file, tmp_path: Path):
    """Of both sides: the one that the arrays come from, and the one that they go to."""
    result = invoke(file(GRU), "--to", "keras.GRU", "-o", tmp_path / "out.safetensors", "--validate", "no")
    for words in ("torch.nn.GRU: Without lengths, it reads padding", "keras.GRU: Under a mask its padded"):
        assert f"warning {words}" in squeezed(result)


def test_every_layer_of_a_framework_documents_its_padding_or_hidden_keys():
    known = {name for name, source in weights.SOURCES.items() if source.warnings}
    assert known == {name for name, source in weights.SOURCES.items() if not source.framework}


PASTED = {
    "torch": ("import torch", "layer = attention.GRU(4, 5, num_layers=2, dtype=torch.float64)"),
    "tf": ("import backends", 'layer = attention.GRU(4, 5, num_layers=2, dtype="float64")'),
    "jax": (
        "from flax import nnx",
        'layer = attention.GRU(4, 5, num_layers=2, param_dtype="float64", rngs=nnx.Rngs(0))',
    ),
    "mxnet": ("import backends", 'layer = attention.GRU(4, 5, num_layers=2, dtype="float64")'),
}


@pytest.mark.parametrize("target", [of(name) for name in PASTED])
def test_the_lines_to_paste_load_the_file(target: str, file, tmp_path: Path):
    """The constructor has the arguments that differ from its defaults, and the lines run as they are printed."""
    arrays = file(torch_gru(num_layers=2))
    result = invoke(arrays, "--to", target, "-o", tmp_path / "out.safetensors", "--validate", "no")
    lines = result.output.partition("To load it:\n\n")[2]
    assert set(PASTED[target]) <= set(lines.splitlines())
    (tmp_path / "pasted.py").write_text(lines, encoding="utf-8")
    made = runpy.run_path(str(tmp_path / "pasted.py"))
    parameters, written = (
        made["attention"].get_parameters(made["layer"]),
        backends.load_arrays(tmp_path / "out.safetensors"),
    )
    assert all(np.array_equal(parameters[name], array) for name, array in written.items())


def test_without_a_validation_the_command_reports_the_file_as_unvalidated(file, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    result = invoke(file(GRU), "--to", "jax", "-o", out, "--validate", "no")
    assert result.exit_code == 0 and "unvalidated" in result.output and "green" not in result.output
    arrays, header = backends.load_archive(out)
    assert header["layer"] == "GRU" and header["config"]["hidden_size"] == 5 and header["source"] == "torch.nn.GRU"
    assert list(arrays) == ["0.W", "0.U", "0.b", "0.b_hn"]


def test_the_command_reads_its_own_files(file, tmp_path: Path):
    """Canonical arrays go on to another framework's layer, and back to the same ones."""
    there, on, back = (tmp_path / name for name in ("there.safetensors", "on.safetensors", "back.safetensors"))
    for arguments in ((file(GRU), "--to", "jax", "-o", there), (there, "--to", "onnx.GRU", "-o", on)):
        result = invoke(*arguments, "--validate", "no")
        assert result.exit_code == 0, result.output
    assert list(weights.read_arrays(on)) == ["W", "R", "B"]
    assert invoke(on, "--to", "mxnet", "-o", back, "--validate", "no").exit_code == 0
    first, last = weights.read_arrays(there), weights.read_arrays(back)
    assert all(np.array_equal(first[name], last[name]) for name in first)


def test_the_dtype_of_the_file_is_kept(file, tmp_path: Path):
    out = tmp_path / "out.safetensors"
    single = {name: array.astype(np.float32) for name, array in GRU.items()}
    assert invoke(file(single), "--to", "jax", "-o", out, "--validate", "no").exit_code == 0
    arrays = weights.read_arrays(out)
    assert {array.dtype.name for array in arrays.values()} == {"float32"}
    both = single["bias_ih_l0"] + single["bias_hh_l0"]
    np.testing.assert_array_equal(arrays["0.b"].reshape(-1)[:10], both[:10])


@pytest.mark.frameworks("torch")
def test_a_source_without_its_determinism_settings_is_red():
    right = drawn("GRU", SQUARE)
    side = Side(job("torch.nn.GRU"), weights.from_canonical("GRU", right, "torch.nn.GRU"), "tf")
    red = {one.check for one in validate(find("GRU"), SQUARE, right, [side]).red}
    assert red == {"determinism"}


@pytest.mark.frameworks("torch")
def test_a_wrong_table_is_red_and_nothing_is_written(file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    right = weights.to_canonical

    def wrong(*arguments: Any, **keywords: Any) -> weights.Converted:
        converted = right(*arguments, **keywords)
        return weights.replace(converted, arrays=swapped(converted.arrays))

    monkeypatch.setattr(weights, "to_canonical", wrong)
    out = tmp_path / "out.safetensors"
    result = invoke(file(GRU), "--to", "torch", "-o", out)
    assert result.exit_code == 1 and not out.exists()
    assert "out.safetensors is not written" in result.output.replace("\n", "")


# ------------------------------------------------------------------------------------------------ certificates


def verified(certificate: str, source: str) -> Result:
    return CliRunner().invoke(main, ["verify", certificate, source])


@pytest.mark.frameworks("torch")
def test_a_validated_file_is_written_certified_and_verified(file, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    source, new = file(GRU).name, Path("new.safetensors")
    outputs = ("-o", new, "--json", "verdicts.json", "--certificate", "validation.json")
    done = invoke(source, "--to", "torch", *outputs)
    assert done.exit_code == 0 and new.exists(), done.output
    assert "torch is the same function as torch.nn.GRU in float64 and float32: 48 comparisons" in done.output
    assert '"cells"' in Path("verdicts.json").read_text(encoding="utf-8")
    page = Path("validation.md").read_text(encoding="utf-8")
    assert f"attention-parity convert {source} --to torch -o {new}" in page and f"`{new}`: SHA-256" in page
    again = verified("validation.json", source)
    assert again.exit_code == 0 and "verified" in again.output, again.output
    new.write_bytes(b"something else")
    again = verified("validation.json", source)
    assert again.exit_code == 1 and f"{new} is not the file that was tested" in " ".join(again.output.split())


def test_a_certificate_without_a_validation_is_refused(file, tmp_path: Path):
    new = tmp_path / "new.safetensors"
    done = invoke(file(GRU), "--to", "jax", "-o", new, "--validate", "no", "--certificate", tmp_path / "a.json")
    assert done.exit_code == 2 and "--certificate cannot be combined with --validate=no" in " ".join(
        done.output.split()
    )
    assert not new.exists()
