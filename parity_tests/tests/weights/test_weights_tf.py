"""Weights of Keras' own layers, through its .weights.h5 files: the canonical arrays compute what the layers do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from attention_core.draws import uniform
from backends import tf as attention
from backends import weights
from parity_tests.tests.weights.arrays import same

INPUTS = uniform("inputs", (3, 6, 5))
RECURRENT = {"GRU": keras.layers.GRU, "LSTM": keras.layers.LSTM}


def model_of(*layers: keras.layers.Layer, shape: tuple[int, ...] = (6, 5)) -> keras.Model:
    """A model with drawn weights; biases would begin at 0 or 1, which hides them."""
    outputs = inputs = keras.Input(shape, dtype="float64")
    for layer in layers:
        outputs = layer(outputs)
    return drawn(keras.Model(inputs, outputs))


def drawn(model: keras.Model) -> keras.Model:
    model.set_weights([uniform(f"weight {number}", tuple(one.shape)) for number, one in enumerate(model.weights)])
    return model


def paths(model: keras.Model) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in model.weights}


def saved(model: keras.Model, folder: Path, name: str = "model.weights.h5") -> dict[str, np.ndarray]:
    (model.save if name.endswith(".keras") else model.save_weights)(folder / name)
    return weights.read_arrays(folder / name)


def recurrent(name: str, bidirectional: bool = False, **options: Any) -> keras.layers.Layer:
    layer = RECURRENT[name](4, return_sequences=True, dtype="float64", **options)
    return keras.layers.Bidirectional(layer, dtype="float64") if bidirectional else layer


@pytest.mark.parametrize("kind", ["model.weights.h5", "model.keras", "paths"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_layer_and_its_canonical_arrays_compute_the_same(
    name: str, bidirectional: bool, kind: str, tmp_path: Path, answered
):
    model = model_of(recurrent(name, bidirectional))
    arrays = paths(model) if kind == "paths" else saved(model, tmp_path, kind)
    assert weights.recognise(arrays) == [f"keras.{name}"]
    converted = weights.to_canonical(arrays)
    np.testing.assert_allclose(answered(converted, INPUTS)[0], model(INPUTS), rtol=0, atol=1e-14)


@pytest.mark.parametrize("name", RECURRENT)
def test_layers_on_top_of_each_other_are_one_by_their_prefixes(name: str, tmp_path: Path, answered):
    model = model_of(recurrent(name), recurrent(name))
    arrays = saved(model, tmp_path)
    first, second = sorted(
        {key.split("cell/")[0] for key in arrays}, key=lambda key: arrays[f"{key}cell/vars/0"].shape[0]
    )[::-1]
    with pytest.raises(weights.WeightError, match="fits under several prefixes"):
        weights.to_canonical(arrays)
    converted = weights.to_canonical(arrays, prefix=(first, second))
    assert converted.config["num_layers"] == 2
    np.testing.assert_allclose(answered(converted, INPUTS)[0], model(INPUTS), rtol=0, atol=1e-14)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_file_that_is_written_here_is_loaded_there(name: str, bidirectional: bool, tmp_path: Path):
    model = model_of(recurrent(name, bidirectional))
    expected, arrays = np.array(model(INPUTS)), saved(model, tmp_path)
    converted = weights.to_canonical(arrays)
    start = converted.notes[0].split("'")[1].replace(".", "/")  # The names begin with 'layers.gru.'.
    back = weights.from_canonical(name, converted.arrays, f"keras.{name}", spelling=1, prefix=start)
    assert back.keys() == arrays.keys()
    weights.write_arrays(tmp_path / "back.weights.h5", back)
    model.set_weights([np.zeros(one.shape) for one in model.weights])
    model.load_weights(tmp_path / "back.weights.h5")
    np.testing.assert_allclose(model(INPUTS), expected, rtol=0, atol=1e-15)


def test_reset_after_false_is_refused(tmp_path: Path):
    with pytest.raises(weights.WeightError, match="reset_after=False, where the reset gate acts before"):
        weights.to_canonical(saved(model_of(recurrent("GRU", reset_after=False)), tmp_path), "keras.GRU")


@pytest.mark.parametrize("kind", ["file", "paths"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("name", "heads", "key_size", "value_size"),
    [("MultiHeadAttention", (3, 4), 7, 9), ("GroupQueryAttention", (4, 6, 2), 6, 6)],
)
def test_multi_head_attention_and_its_canonical_arrays_compute_the_same(
    name: str,
    heads: tuple[int, ...],
    key_size: int,
    value_size: int,
    bias: bool,
    kind: str,
    tmp_path: Path,
    answered,
):
    shapes = (4, 6), (5, value_size), (5, key_size)
    queries, values, keys = (keras.Input(shape, dtype="float64") for shape in shapes)
    layer = getattr(keras.layers, name)(*heads, use_bias=bias, dtype="float64")
    outputs = layer(queries, values, keys, return_attention_scores=True)
    model = drawn(keras.Model([queries, values, keys], outputs))
    given = [uniform(name, (2, *shape)) for name, shape in zip("qvk", shapes, strict=True)]
    arrays = saved(model, tmp_path) if kind == "file" else paths(model)
    assert f"keras.{name}" in weights.recognise(arrays)
    converted = weights.to_canonical(arrays)
    assert converted.source == f"keras.{name}"
    context, mean = answered(converted, given[0], given[2], given[1])
    expected = model(given)
    np.testing.assert_allclose(context, expected[0], rtol=0, atol=1e-14)
    np.testing.assert_allclose(mean, np.mean(expected[1], axis=1), rtol=0, atol=1e-14)


def test_a_gate_behind_the_heads_is_refused(tmp_path: Path):
    queries = keras.Input((4, 6))
    model = keras.Model(queries, keras.layers.GroupQueryAttention(4, 4, 2, use_gate=True)(queries, queries))
    for arrays in (paths(model), saved(model, tmp_path)):
        with pytest.raises(
            weights.WeightError, match=r"gate.* \(6, 4, 4\): use_gate multiplies the outputs of the heads"
        ):
            weights.to_canonical(arrays, "keras.GroupQueryAttention")


def test_heads_of_another_size_for_the_values_are_refused():
    queries = keras.Input((4, 6))
    model = keras.Model(queries, keras.layers.MultiHeadAttention(3, 4, value_dim=5)(queries, queries))
    with pytest.raises(weights.WeightError, match=r"value/kernel has shape \(6, 3, 5\), expected \(v, 3, 4\)"):
        weights.to_canonical(paths(model), "keras.MultiHeadAttention")


@pytest.mark.parametrize("kind", ["file", "paths"])
@pytest.mark.parametrize(
    ("name", "options"),
    [("LayerNormalization", {"center": True}), ("LayerNormalization", {"center": False}), ("RMSNormalization", {})],
)
def test_a_normalization_and_its_canonical_arrays_compute_the_same(
    name: str, options: dict[str, bool], kind: str, tmp_path: Path, answered
):
    model = model_of(getattr(keras.layers, name)(epsilon=2.0**-10, dtype="float64", **options))
    arrays = saved(model, tmp_path) if kind == "file" else paths(model)
    converted = weights.to_canonical(arrays, f"keras.{name}", epsilon=2.0**-10)
    np.testing.assert_allclose(answered(converted, INPUTS), model(INPUTS), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["file", "paths"])
def test_additive_attention_and_its_canonical_arrays_compute_the_same(kind: str, tmp_path: Path, answered):
    queries, values, keys = (keras.Input(shape, dtype="float64") for shape in ((4, 6), (5, 9), (5, 6)))
    layer = keras.layers.AdditiveAttention(dtype="float64")
    model = drawn(keras.Model([queries, values, keys], layer([queries, values, keys])))
    given = uniform("q", (2, 4, 6)), uniform("v", (2, 5, 9)), uniform("k", (2, 5, 6))
    arrays = saved(model, tmp_path) if kind == "file" else paths(model)
    assert "keras.AdditiveAttention" in weights.recognise(arrays)
    converted = weights.to_canonical(arrays, "keras.AdditiveAttention")
    context, _ = answered(converted, given[0], given[2], given[1])
    np.testing.assert_allclose(context, model(list(given)), rtol=0, atol=1e-14)


class Holder(keras.Model):
    """A model with one backend layer."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        super().__init__()
        self.held = layer
        self.built = True

    def call(self, inputs: Any) -> Any:
        return inputs


TRANSFORMER = {"num_heads": 2, "norm": "pre", "activation": "gelu", "epsilon": 1e-3}
STACK = {"features": 6, "hidden_size": 8, "num_layers": 3, **TRANSFORMER}
V = {"vocab_size": 11, "embed_size": 5, "hidden_size": 4}
OURS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "AdditiveAttention": ({"query_size": 3, "key_size": 5, "hidden_size": 4}, {}),
    "KernelAttention": ({"learned": True}, {}),
    "LearnedPositions": ({"num_positions": 9, "features": 4}, {}),
    "MultiHeadAttention": ({"query_size": 6, "num_heads": 2}, {"num_heads": 2}),
    "LayerNorm": ({"features": 6}, {"epsilon": 1e-5}),
    "RMSNorm": ({"features": 6}, {"epsilon": 1e-5, "layer": "RMSNorm"}),
    "FeedForward": ({"features": 6, "hidden_size": 8, "gated": True}, {"activation": "relu"}),
    "TransformerEncoderLayer": ({"features": 6, "hidden_size": 8, **TRANSFORMER}, TRANSFORMER),
    "TransformerDecoderLayer": ({"features": 6, "hidden_size": 8, "memory_size": 5, **TRANSFORMER}, TRANSFORMER),
    "TransformerEncoder": ({**STACK, "vocab_size": 11}, {**TRANSFORMER, "positions": "sinusoidal"}),
    "TransformerDecoder": ({**STACK, "vocab_size": 11, "memory_size": 5}, {**TRANSFORMER, "positions": "sinusoidal"}),
    "TransformerTranslator": (
        {**STACK, "source_vocab_size": 11, "target_vocab_size": 13, "positions": "learned", "num_positions": 9},
        TRANSFORMER,
    ),
    "GRU": ({"input_size": 5, "hidden_size": 4, "num_layers": 2, "bidirectional": True}, {}),
    "Bridge": ({"hidden_size": 4, "num_layers": 2, "method": "project"}, {"method": "project"}),
    "BahdanauDecoder": ({**V, "num_layers": 2, "memory_size": 6, "initial": "learned", "readout": "maxout"}, {}),
    "LuongDecoder": ({**V, "memory_size": 6, "cell": "lstm"}, {}),
}


@pytest.mark.parametrize("name", OURS)
def test_backend_layers_convert_through_their_files(name: str, tmp_path: Path):
    made, options = OURS[name]
    layer = getattr(attention, name)(**made)
    arrays = saved(Holder(layer), tmp_path)
    converted = weights.to_canonical(arrays, "attention_parity.tf", **options)
    assert converted.layer == name and same(converted.arrays, attention.get_parameters(layer))
    start = converted.notes[0].split("'")[1].replace(".", "/")  # The names begin with 'layers.gru.'.
    back = weights.from_canonical(
        name, converted.arrays, "attention_parity.tf", spelling=1, prefix=start, **converted.config
    )
    assert back.keys() == arrays.keys() and all(np.array_equal(back[key], arrays[key]) for key in arrays)
