"""Keras layers and models, and TensorFlow functions, as sides of a comparison of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from attention_core.draws import uniform
from parity_tests.models.calls import Recorder
from parity_tests.models.keras import open_model
from parity_tests.models.sides import SideError

X = np.asarray(uniform("x", (5, 3)), np.float64)
INPUTS = {"x": X}


class Encoder(keras.Model):
    """Layers in attributes and lists, a constant, dropout, statistics, and arguments that no configuration holds."""

    def __init__(self, kinds: type) -> None:
        super().__init__(name="encoder")
        self.hidden = [keras.layers.Dense(4, activation="tanh", name="first"), keras.layers.Dense(4, name="second")]
        self.norm = keras.layers.BatchNormalization(momentum=0.75, epsilon=0.01, name="norm")
        self.drop = keras.layers.Dropout(0.5)
        self.offset = tf.constant([0.1, 0.2, 0.3], tf.float32)
        self.kinds = kinds

    @tf.function
    def call(self, x: tf.Tensor, scale: Any = 1.0) -> dict[str, tf.Tensor]:
        """The normalized features, and those before."""
        hidden = x + self.offset
        for layer in self.hidden:
            hidden = layer(hidden)
        return {"features": self.norm(self.drop(hidden)) * scale, "hidden": hidden}


def encoder() -> Encoder:
    model = Encoder(int)
    model(tf.zeros((1, 3)))
    for place, variable in enumerate(model.weights):
        variable.assign(0.5 + np.asarray(uniform(f"w{place}", variable.shape)) / 2)
    return model


def expected(model: Encoder, x: np.ndarray, training: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The outputs of the encoder, by NumPy in float64."""
    arrays = [np.asarray(variable.numpy(), np.float64) for variable in model.weights]
    first, bias, second, other, gamma, beta, mean, variance = arrays
    hidden = np.tanh((x + np.float32([0.1, 0.2, 0.3])) @ first + bias) @ second + other
    if training:
        mean, variance = hidden.mean(axis=0), hidden.var(axis=0)
    return (hidden - mean) / np.sqrt(variance + 0.01) * gamma + beta, hidden


def functional() -> keras.Model:
    left, right = keras.Input((3,), name="left"), keras.Input((3,), name="right")
    shared = keras.layers.Dense(2, name="shared")
    head = keras.Sequential(
        [keras.layers.Dense(2, activation="relu", name="inner"), keras.layers.Dropout(0.5)], name="head"
    )
    return keras.Model([left, right], head(shared(left) - 3.0 * shared(right)))


@pytest.mark.parametrize("training", [False, True])
def test_float64_is_computed_in_float64_without_dropout(training: bool) -> None:
    model = encoder()
    answer = open_model(model).run(INPUTS, "float64", training=training)
    features, hidden = expected(model, X, training)
    np.testing.assert_allclose(answer.outputs["features"], features, rtol=0, atol=1e-12)
    np.testing.assert_allclose(answer.outputs["hidden"], hidden, rtol=0, atol=1e-12)


def test_the_model_is_untouched_and_its_own_dtype_gives_its_own_bits() -> None:
    model = encoder()
    before = [variable.numpy().tobytes() for variable in model.weights]
    side = open_model(model)
    for dtype in side.dtypes:
        side.run(INPUTS, dtype, cotangents={"features": np.ones((5, 4))}, training=True)
    assert [variable.numpy().tobytes() for variable in model.weights] == before
    assert {variable.dtype for variable in model.weights} == {"float32"} and model.drop.rate == 0.5
    own = side.run(INPUTS, "float32").outputs["features"]
    np.testing.assert_array_equal(own, model(tf.constant(X, tf.float32))["features"].numpy())


def test_statistics_after_a_run_for_training() -> None:
    model = encoder()
    side = open_model(model)
    state = side.run(INPUTS, "float64", training=True).state
    _, hidden = expected(model, X)
    assert side.state == ("encoder/norm/moving_mean", "encoder/norm/moving_variance")
    for name, statistic in zip(side.state, (hidden.mean(axis=0), hidden.var(axis=0)), strict=True):
        np.testing.assert_allclose(state[name], 0.75 * side.arrays[name] + 0.25 * statistic, rtol=0, atol=1e-12)
    assert not side.run(INPUTS, "float64").state


def test_gradients_are_those_of_finite_differences() -> None:
    side = open_model(encoder())
    cotangents = {name: np.asarray(uniform(name, (5, 4)), np.float64) for name in ("features", "hidden")}
    inputs = {"x": X.copy(), "scale": np.array(2.0)}
    gradients = side.run(inputs, "float64", cotangents=cotangents, training=True).gradients
    assert {*gradients} == {"input.x", "input.scale", *(f"parameter.{name}" for name in side.parameters)}

    def value() -> float:
        outputs = side.run(inputs, "float64", training=True).outputs
        return sum(float((outputs[name] * cotangents[name]).sum()) for name in cotangents)

    for kind, arrays in {"input": inputs, "parameter": {name: side.arrays[name] for name in side.parameters}}.items():
        for name, array in arrays.items():
            place = tuple(size - 1 for size in array.shape)
            kept, step = float(array[place]), 1e-5
            array[place] = kept + step
            above = value()
            array[place] = kept - step
            difference = (above - value()) / (2 * step)
            array[place] = kept
            np.testing.assert_allclose(gradients[f"{kind}.{name}"][place], difference, rtol=1e-6, atol=1e-7)


def test_a_recording_names_the_calls_their_arrays_and_parameters(tmp_path: Path) -> None:
    side = open_model(encoder())
    recorder, cotangents = Recorder(tmp_path), {"features": np.ones((5, 4)), "hidden": np.full((5, 4), 2.0)}
    answer = side.run(INPUTS, "float64", cotangents=cotangents, recorder=recorder)
    assert [call.path for call in answer.calls] == ["hidden.0", "hidden.1", "drop", "norm", ""]
    first, second, _, norm, whole = answer.calls
    assert first.parameters == ("encoder/first/kernel", "encoder/first/bias") == side.parameters[:2]
    assert (first.kind, first.settings["activation"], norm.settings["epsilon"]) == ("Dense", "tanh", 0.01)
    assert [seen.name for seen in whole.inputs] == ["x"] and [seen.name for seen in first.inputs] == ["0"]
    np.testing.assert_array_equal(second.inputs[0].array, first.outputs[0].array)
    np.testing.assert_array_equal(second.outputs[0].array, answer.outputs["hidden"])
    variance = side.arrays[side.state[1]]
    gradient = 2.0 + side.arrays[side.parameters[4]] / np.sqrt(variance + 0.01) * np.ones((5, 4))
    np.testing.assert_allclose(second.gradients["output"].array, gradient, rtol=1e-12)
    np.testing.assert_array_equal(whole.gradients["features"].array, np.ones((5, 4)))
    assert not answer.unseen and whole.encloses(first)


def test_a_functional_model_takes_its_inputs_by_name_or_in_order(tmp_path: Path) -> None:
    model = functional()
    left, right = X, X[::-1] + 1.0
    side, recorder = open_model(model), Recorder(tmp_path)
    kernel, bias, inner, offset = (np.asarray(variable.numpy(), np.float64) for variable in model.weights)
    mixed = (left @ kernel + bias) - 3.0 * (right @ kernel + bias)
    result = np.maximum(mixed @ inner + offset, 0.0)
    for inputs in ({"right": right, "left": left}, {"a": left, "b": right}):
        answer = side.run(inputs, "float64", training=True, recorder=recorder)
        np.testing.assert_allclose(answer.outputs["output"], result, rtol=0, atol=1e-12)
    assert [call.name for call in answer.calls[:3]] == ["shared", "shared (call 2)", "head.inner"]
    for inputs in ({"left": left, "wrong": right}, {"left": left}, {"left": left, "right": right, "more": right}):
        with pytest.raises(SideError, match="it takes left, right"):
            side.run(inputs, "float64")
    with pytest.raises(SideError, match="takes no 'wrong'"):
        open_model(encoder()).run({"x": X, "wrong": X}, "float64")


def test_a_layer_that_is_not_built_is_built_once() -> None:
    side = open_model(keras.layers.GRU(2, dropout=0.5))
    assert not side.parameters
    one = side.run({"sequence": X[None]}, "float64").outputs["output"]
    assert len(side.parameters) == 3
    np.testing.assert_allclose(
        side.run({"sequence": X[None]}, "float32", training=True).outputs["output"], one, atol=1e-6
    )


def test_a_tied_variable_is_one_parameter() -> None:
    class Tied(keras.Layer):
        def __init__(self, embedding: keras.layers.Embedding) -> None:
            super().__init__()
            self.table = embedding.embeddings

        def call(self, x: tf.Tensor) -> tf.Tensor:
            return x @ tf.transpose(self.table)

    embedding = keras.layers.Embedding(7, 3, name="words")
    embedding.build()
    side = open_model(keras.Sequential([embedding, Tied(embedding)], name="model"))
    tokens = np.array([[1, 2, 2]])
    gradient = side.run({"tokens": tokens}, "float64", cotangents={"output": np.ones((1, 3, 7))}).gradients
    (name,) = side.parameters
    table = side.arrays[name]
    np.testing.assert_allclose(
        gradient[f"parameter.{name}"], np.eye(7)[tokens[0]].sum(0)[:, None] * table.sum(0) + table[tokens[0]].sum(0)
    )
    assert list(side.tied.values()) == [name] and len(gradient) == 1


def test_a_mixed_policy_stays_in_its_own_dtype() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="mixed_bfloat16")])
    layer = keras.layers.Dense(2, dtype="mixed_bfloat16")
    layer.build((None, 3))
    side = open_model(layer)
    assert side.dtype == "bfloat16" and side.run(INPUTS, "bfloat16").outputs["output"].dtype.name == "bfloat16"
    for one in (side, open_model(model)):
        kernel, bias = one.arrays.values()
        np.testing.assert_allclose(one.run(INPUTS, "float64").outputs["output"], X @ kernel + bias, rtol=0, atol=1e-12)


def test_a_function_is_a_side_without_parameters() -> None:
    @tf.function
    def power(x: tf.Tensor, exponent: tf.Tensor) -> tuple[tf.Tensor, str]:
        return x**exponent, "text"

    inputs = {"exponent": np.array(3.0), "x": X + 2.0}
    answer = open_model(power).run(inputs, "float64", cotangents={"0": np.ones_like(X)})
    np.testing.assert_allclose(answer.outputs["0"], (X + 2.0) ** 3, rtol=1e-14)
    np.testing.assert_allclose(answer.gradients["input.x"], 3 * (X + 2.0) ** 2, rtol=1e-14)
