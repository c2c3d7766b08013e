"""Every source of weights validates itself."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import backends
from attention_core.draws import uniform
from backends import weights
from backends.weights.table import sinusoid_halves
from parity_tests.conversion import conversion
from parity_tests.conversion.conversion import Move
from parity_tests.conversion.validation import validate
from parity_tests.format.case import Arrays
from parity_tests.judge.run import Run
from parity_tests.tests.conversion.conversions import (
    HEADS,
    SQUARE,
    drawn,
    failures,
    invoke,
    job,
    of,
    takes_lengths,
    validated,
)
from parity_tests.tests.places import ROOT
from parity_tests.third_party import layers
from parity_tests.workers.process import Progress, Server

STACK = {"input_size": 8, "hidden_size": 5, "num_layers": 2, "bidirectional": True}
BOTH = {"input_size": 8, "hidden_size": 5, "bidirectional": True}
SIZED = {"query_size": 6, "key_size": 7, "hidden_size": 8}
TRANSFORMER = {
    "features": 12,
    "num_heads": 3,
    "hidden_size": 7,
    "norm": "pre",
    "activation": "gelu",
    "epsilon": 1e-3,
}
STACKS = {**TRANSFORMER, "num_layers": 2}
BY_ROOT = {**STACKS, "features": 16, "num_heads": 4}
"""A stack whose embedding loses no bit, times and by the root of its features."""
CAUSAL = {**BY_ROOT, "vocab_size": 9, "causal": True}
SHARED = {**BY_ROOT, "source_vocab_size": 9, "target_vocab_size": 9, "shared": True, "tied": True}
LEARNED = {"positions": "learned", "num_positions": 8}
ROTARY = {"positions": "rotary", "rotary_layout": "concatenated"}
DISTANCES = {"positions": "relative", "num_buckets": 6, "score": "dot", "activation": "relu"}
BARE = {"rms": True, "bias": False}
IMAGES = {"height": 4, "width": 4, "channels": 3, "patch_size": 2, "num_classes": 5}
PATCHES = {"features": 8, "num_heads": 2, "hidden_size": 10, "num_layers": 2, "activation": "gelu", "epsilon": 1e-3}
NORM = {"features": 12, "epsilon": 2.0**-10}
DECODER = {"vocab_size": 9, "embed_size": 4, "hidden_size": 6, "num_layers": 2}
LAYER_OF: dict[str, tuple[str, dict[str, Any]]] = {
    "torch.nn.GRU": ("GRU", STACK),
    "torch.nn.LSTM": ("LSTM", STACK),
    "torch.nn.MultiheadAttention": ("MultiHeadAttention", {**HEADS, "key_size": 10, "value_size": 11}),
    "torch.nn.TransformerEncoderLayer": ("TransformerEncoderLayer", {**TRANSFORMER, "causal": True}),
    "torch.nn.TransformerDecoderLayer": ("TransformerDecoderLayer", TRANSFORMER),
    "torch.nn.TransformerEncoder": (
        "TransformerEncoder",
        {**STACKS, "vocab_size": 9, "positions": "learned", "num_positions": 8, "causal": True},
    ),
    "torch.nn.TransformerDecoder": ("TransformerDecoder", {**STACKS, "vocab_size": 9, "positions": "none"}),
    "transformers.GPT2Model": ("TransformerEncoder", {**CAUSAL, **LEARNED}),
    "transformers.LlamaModel": (
        "TransformerEncoder",
        {**CAUSAL, **ROTARY, **BARE, "gated": True, "activation": "silu"},
    ),
    "transformers.MarianMTModel": ("TransformerTranslator", {**SHARED, **LEARNED, "norm": "post", "epsilon": 1e-5}),
    "transformers.T5ForConditionalGeneration": ("TransformerTranslator", {**SHARED, **DISTANCES, **BARE}),
    "transformers.ViTForImageClassification": ("VisionTransformer", {**IMAGES, **PATCHES}),
    "torch.nn.Transformer": (
        "TransformerTranslator",
        {**STACKS, "source_vocab_size": 9, "target_vocab_size": 10, "positions": "sinusoidal"},
    ),
    "torch.nn.LayerNorm": ("LayerNorm", NORM),
    "torch.nn.RMSNorm": ("RMSNorm", NORM),
    "keras.LayerNormalization": ("LayerNorm", NORM),
    "keras.RMSNormalization": ("RMSNorm", NORM),
    "keras_hub.TransformerEncoder": ("TransformerEncoderLayer", {**TRANSFORMER, "activation": "relu"}),
    "keras_hub.TransformerDecoder": (
        "TransformerDecoderLayer",
        {**TRANSFORMER, "activation": "silu", "memory_size": 10},
    ),
    "flax.nnx.LayerNorm": ("LayerNorm", NORM),
    "flax.nnx.RMSNorm": ("RMSNorm", NORM),
    "gluon.nn.LayerNorm": ("LayerNorm", NORM),
    "keras.GRU": ("GRU", BOTH),
    "keras.LSTM": ("LSTM", BOTH),
    "keras.MultiHeadAttention": ("MultiHeadAttention", {**HEADS, "key_size": 10, "value_size": 11}),
    "keras.GroupQueryAttention": (
        "MultiHeadAttention",
        {"query_size": 12, "num_heads": 6, "num_key_heads": 2, "hidden_size": 24, "key_size": 10, "value_size": 11},
    ),
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
    "joeynmt.BahdanauAttention": ("AdditiveAttention", SIZED),
    "joeynmt.LuongAttention": ("GeneralAttention", {"query_size": 6, "key_size": 7}),
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
    if name.startswith(("gluon.rnn", "textbook.Encoder in")) or (name.startswith("flax.") and name.endswith("Cell"))
}
"""The sources that take no lengths, or not as the specification means them."""
IN_FLOAT32 = ("onnx.", "transformers.Llama", "transformers.T5", "transformers.ViT")
"""The sources that compute in float32, or a part of it."""
OTHER_SPELLINGS = (
    "keras.GRU",
    "keras.MultiHeadAttention",
    "keras.GroupQueryAttention",
    "keras.LayerNormalization",
    "keras.RMSNormalization",
    "keras_hub.TransformerEncoder",
    "keras_hub.TransformerDecoder",
    "gluon.rnn.GRU",
    "attention_parity.tf",
)
"""The sources whose second spelling is run, too: the numbers of a .weights.h5 file, the names of collect_params."""


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
    for name in weights.SOURCES[source.removesuffix(layers.IN_GLUON)].sinusoids:
        canonical[name] = sinusoid_halves(*canonical[name].shape).astype(canonical[name].dtype)
    return layer, config, canonical


def validates_itself(source: str, server: Server, prefix: str = "", spelling: int = 0) -> None:
    """Raises: AssertionError if any cell is red, or not judged."""
    layer, config, canonical = layer_of(source)
    name = source.removesuffix(layers.IN_GLUON)
    whole = {**canonical, **BESIDE.get(source, {})}
    raw = weights.from_canonical(layer, whole, name, prefix=prefix, spelling=spelling, **config)
    assert layers.entry_of(name, raw) == source
    converted = weights.to_canonical(raw, name, layer=layer, **config)
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
    back = weights.to_canonical(weights.read_arrays(folder / "goal.safetensors"), source, layer=layer, **config)
    assert all(np.array_equal(back.arrays[name], array) for name, array in canonical.items()), source


def check_green(source: str, layer: str, run: Run) -> None:
    """Raises: AssertionError if any cell is red, or not judged."""
    assert not run.red, f"{source}\n{failures(run)}"
    judged = {(one.case, one.dtype) for one in run.verdicts if one.status == "pass"}
    ragged = takes_lengths(layer) and source not in WHOLE
    cases = [f"{layer}-converted"] + [f"{layer}-converted_ragged"] * ragged
    dtypes = ["float32"] + ["float64"] * (not source.startswith(IN_FLOAT32))
    assert judged == {(case, dtype) for case in cases for dtype in dtypes}, source


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
