"""What Keras saves with other than default settings: converted to the same function, or refused by the setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest

from backends import weights
from parity_tests.tests.weights.test_weights_tf import INPUTS, drawn, model_of

L = keras.layers
Make = Callable[[], keras.layers.Layer]


def gru(**settings: object) -> keras.layers.Layer:
    return L.GRU(4, return_sequences=True, dtype="float64", **settings)


def lstm(**settings: object) -> keras.layers.Layer:
    return L.LSTM(4, return_sequences=True, dtype="float64", **settings)


def both(merge_mode: str | None = "concat", backward: keras.layers.Layer | None = None) -> keras.layers.Layer:
    return L.Bidirectional(gru(), merge_mode=merge_mode, backward_layer=backward, dtype="float64")


OTHER_ACTIVATIONS = ("relu", "hard_sigmoid", "linear", "gelu", "elu", "softsign", "swish", "selu")
REFUSED: dict[str, tuple[Make, str]] = {
    **{
        f"{make.__name__} {setting} {name}": (
            lambda make=make, setting=setting, name=name: make(**{setting: name}),
            word,
        )
        for make in (gru, lstm)
        for setting in ("activation", "recurrent_activation")
        for name in OTHER_ACTIVATIONS
        for word in (f"{setting}=",)
    },
    "gru of a function": (lambda: gru(activation=keras.ops.sin), "activation="),
    "gru backwards": (lambda: gru(go_backwards=True), "go_backwards=True"),
    "lstm backwards": (lambda: lstm(go_backwards=True), "go_backwards=True"),
    "gru without biases, reset before": (lambda: gru(use_bias=False, reset_after=False), "reset_after=False"),
    "cell": (lambda: L.RNN(L.GRUCell(4, activation="relu"), return_sequences=True, dtype="float64"), "activation="),
    **{
        f"bidirectional {mode}": (lambda mode=mode: both(mode), f"merge_mode='{mode}'")
        for mode in ("sum", "mul", "ave")
    },
    "another backward layer": (
        lambda: both(backward=gru(activation="relu", go_backwards=True)),
        "backward_layer.activation='relu'",
    ),
    "norm of another axis": (lambda: L.LayerNormalization(axis=1, epsilon=0.1, dtype="float64"), "axis=1"),
    "norm of two axes": (lambda: L.LayerNormalization(axis=[1, 2], dtype="float64"), "axis="),
    "rms norm of another axis": (lambda: L.RMSNormalization(axis=1, dtype="float64"), "axis=1"),
    "groups": (lambda: L.GroupNormalization(5, dtype="float64"), "GroupNormalization"),
    "batch": (lambda: L.BatchNormalization(dtype="float64"), "BatchNormalization"),
    "unit": (lambda: L.Dense(5, dtype="float64"), "Dense"),
    "simple": (lambda: L.SimpleRNN(4, return_sequences=True, dtype="float64"), "SimpleRNN"),
    "steps": (lambda: L.TimeDistributed(L.LayerNormalization(dtype="float64"), dtype="float64"), "TimeDistributed"),
}
SAME: dict[str, Make] = {
    "gru": gru,
    "lstm": lstm,
    "gru in training": lambda: gru(
        dropout=0.3, recurrent_dropout=0.2, kernel_regularizer="l2", bias_constraint="non_neg"
    ),
    "lstm as it runs": lambda: lstm(unroll=True, unit_forget_bias=False, zero_output_for_mask=True),
    "gru without biases": lambda: gru(use_bias=False),
    "lstm of drawn biases": lambda: lstm(bias_initializer="uniform", recurrent_initializer="zeros"),
    "bidirectional": both,
    "bidirectional in training": lambda: both(backward=gru(go_backwards=True, dropout=0.3)),
    "cell": lambda: L.RNN(L.LSTMCell(4, dtype="float64"), return_sequences=True, dtype="float64"),
    **{f"norm {eps}": lambda eps=eps: L.LayerNormalization(epsilon=eps, dtype="float64") for eps in (1e-6, 1e-3, 0.5)},
    "norm of the last axis": lambda: L.LayerNormalization(axis=2, dtype="float64"),
    "norm without beta": lambda: L.LayerNormalization(center=False, dtype="float64"),
    **{f"rms norm {eps}": lambda eps=eps: L.RMSNormalization(epsilon=eps, dtype="float64") for eps in (1e-6, 1e-2)},
}


def converted_from(model: keras.Model, folder: Path) -> weights.Converted:
    model.save(folder / "model.keras")
    settings = weights.read_settings(folder / "model.keras")
    assert settings
    return weights.to_canonical(weights.read_arrays(folder / "model.keras"), settings=settings)


@pytest.mark.parametrize("title", REFUSED)
def test_a_setting_that_the_specification_lacks_is_refused_by_its_name(title: str, tmp_path: Path):
    make, word = REFUSED[title]
    with pytest.raises(weights.WeightError) as refusal:
        converted_from(model_of(make()), tmp_path)
    assert word in str(refusal.value)


@pytest.mark.parametrize("title", SAME)
def test_other_settings_are_read_from_the_file_and_the_layer_computes_the_same(title: str, tmp_path: Path, answered):
    model = model_of(SAME[title]())
    converted = converted_from(model, tmp_path)
    assert not converted.assumed
    answer = answered(converted, INPUTS)
    outputs = answer[0] if isinstance(answer, tuple) else answer
    np.testing.assert_allclose(outputs, model(INPUTS), rtol=0, atol=1e-13)


def test_what_a_file_does_not_hold_is_assumed(tmp_path: Path):
    model = model_of(gru())
    model.save_weights(tmp_path / "model.weights.h5")
    assert weights.read_settings(tmp_path / "model.weights.h5") == []
    converted = weights.to_canonical(weights.read_arrays(tmp_path / "model.weights.h5"))
    assert converted.assumed == {"activation": "tanh", "recurrent_activation": "sigmoid", "go_backwards": False}


def test_heads_over_other_axes_are_refused_and_the_size_of_the_outputs_is_that_of_the_arrays(tmp_path: Path):
    shapes = (4, 6), (5, 6)
    for axes, size, words in (((0,), 6, "attention_axes="), (None, 5, r"has shape \(6, 3, 4\), expected \(5, 3, 4\)")):
        layer = L.MultiHeadAttention(3, 4, output_shape=size, attention_axes=axes, dtype="float64")
        inputs = [keras.Input(shape, dtype="float64") for shape in shapes]
        with pytest.raises(weights.WeightError, match=words):
            converted_from(drawn(keras.Model(inputs, layer(*inputs))), tmp_path)
    inputs = keras.Input(shapes[0], dtype="float64")
    layer = L.MultiHeadAttention(3, 4, output_shape=6, dtype="float64")
    converted = converted_from(drawn(keras.Model(inputs, layer(inputs, inputs))), tmp_path)
    assert converted.config["num_heads"] == 3 and not converted.assumed


def test_a_scale_alone_is_no_layer_of_ours(tmp_path: Path):
    shapes = (4, 6), (5, 6)
    inputs = [keras.Input(shape, dtype="float64") for shape in shapes]
    model = drawn(keras.Model(inputs, L.Attention(use_scale=True, dtype="float64")(inputs)))
    with pytest.raises(weights.WeightError, match="is a 'Attention': of that class there is no table"):
        converted_from(model, tmp_path)
    model.save_weights(tmp_path / "model.weights.h5")
    arrays = weights.read_arrays(tmp_path / "model.weights.h5")
    assert weights.recognise(arrays) == []
    with pytest.raises(weights.WeightError, match="no source fits the arrays"):
        weights.to_canonical(arrays)


def test_a_file_and_an_option_that_contradict_each_other_are_refused(tmp_path: Path):
    model_of(L.LayerNormalization(epsilon=0.25, dtype="float64")).save(tmp_path / "model.keras")
    arrays, settings = (read(tmp_path / "model.keras") for read in (weights.read_arrays, weights.read_settings))
    with pytest.raises(weights.WeightError, match=r"epsilon is 0\.25 in the file, but 0\.5 was passed"):
        weights.to_canonical(arrays, settings=settings, epsilon=0.5)


@keras.saving.register_keras_serializable("somebody")
class Halved(keras.layers.GRU):
    """A GRU with other outputs."""

    def call(self, sequences, initial_state=None, mask=None, training=False):
        return super().call(sequences, initial_state, mask, training) / 2


def test_a_class_of_ones_own_is_converted_only_if_its_source_is_named(tmp_path: Path):
    model = model_of(Halved(4, return_sequences=True, dtype="float64"))
    with pytest.raises(weights.WeightError, match=r"is a 'somebody>Halved', and no keras\.GRU: no file says what"):
        converted_from(model, tmp_path)
    arrays, settings = (read(tmp_path / "model.keras") for read in (weights.read_arrays, weights.read_settings))
    assert weights.to_canonical(arrays, "keras.GRU", settings=settings).assumed["activation"] == "tanh"


def test_layers_of_models_in_models_have_their_own_settings(tmp_path: Path):
    inner = keras.Sequential([keras.Input((6, 5), dtype="float64"), gru(name="one", activation="relu")], name="inner")
    model = drawn(keras.Sequential([inner, gru(name="one")], name="outer"))
    model.save(tmp_path / "model.keras")
    found = {layer.path: layer.settings["activation"] for layer in weights.read_settings(tmp_path / "model.keras")}
    assert sorted(found.values()) == ["relu", "tanh"] and len(found) == 2
    right = next(path for path, name in found.items() if name == "tanh")
    arrays, settings = (read(tmp_path / "model.keras") for read in (weights.read_arrays, weights.read_settings))
    assert weights.to_canonical(arrays, settings=settings, prefix=f"{right}/").layer == "GRU"
    with pytest.raises(weights.WeightError, match="activation='relu'"):
        weights.to_canonical(arrays, settings=settings, prefix=f"{next(path for path in found if path != right)}/")


def test_a_whole_model_in_an_h5_file_has_its_settings(tmp_path: Path):
    for activation in ("tanh", "relu"):
        model_of(lstm(activation=activation)).save(tmp_path / "model.h5")
        arrays, settings = (read(tmp_path / "model.h5") for read in (weights.read_arrays, weights.read_settings))
        assert [layer.kind for layer in settings if layer.kind != "InputLayer"] == ["LSTM"]
        if activation == "tanh":
            assert not weights.to_canonical(arrays, settings=settings).assumed
            continue
        with pytest.raises(weights.WeightError, match="activation='relu'"):
            weights.to_canonical(arrays, settings=settings)
