"""Gluon blocks and MXNet functions as sides of a comparison of models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from attention_core.draws import uniform
from backends.mxnet.arrays import to_numpy
from parity_tests.models.calls import Recorder
from parity_tests.models.mxnet import open_model
from parity_tests.models.sides import SideError

# MXNet cannot be imported before the backend has given NumPy its old alias back.
from mxnet import gluon, np, npx  # isort: skip

X = numpy.asarray(uniform("x", (5, 3)), numpy.float64)
INPUTS = {"x": X}
OFFSET = numpy.float32([0.1, 0.2, 0.3])


class Encoder(gluon.Block):
    """Blocks in attributes, a constant, dropout, statistics, and a parameter that is used twice."""

    def __init__(self, known: bool = True) -> None:
        super().__init__()
        units = (3, 3) if known else (0, 0)
        self.first = gluon.nn.Dense(3, activation="tanh", in_units=units[0])
        self.second = gluon.nn.Dense(3, in_units=units[1], params=self.first.params)
        self.norm = gluon.nn.BatchNorm(momentum=0.75, epsilon=0.01, in_channels=units[0])
        self.drop = gluon.nn.Dropout(0.5)
        self.offset = np.array(OFFSET, dtype="float32")

    def forward(self, x: np.ndarray, scale: Any = 1.0) -> tuple[np.ndarray, np.ndarray]:
        hidden = self.second(self.first(x + self.offset))
        return self.norm(self.drop(hidden)) * scale, hidden


def encoder() -> Encoder:
    model = Encoder()
    model.initialize()
    for place, parameter in enumerate(model.collect_params().values()):
        drawn = 0.5 + numpy.asarray(uniform(f"w{place}", parameter.shape)) / 2
        parameter.set_data(np.array(drawn, dtype="float32"))
    return model


def sequential() -> gluon.nn.HybridSequential:
    model = gluon.nn.HybridSequential()
    model.add(gluon.nn.Dense(4, activation="relu"), gluon.nn.Dropout(0.5), gluon.nn.Dense(2))
    model.initialize()
    model.hybridize()
    model(np.array(X, dtype="float32"))
    return model


def expected(model: Encoder, x: numpy.ndarray, training: bool = False) -> tuple[numpy.ndarray, numpy.ndarray]:
    """The outputs of the encoder, by NumPy in float64."""
    arrays = [to_numpy(parameter.data()).astype(numpy.float64) for parameter in model.collect_params().values()]
    weight, bias, gamma, beta, mean, variance = arrays
    hidden = numpy.tanh((x + OFFSET) @ weight.T + bias) @ weight.T + bias
    if training:
        mean, variance = hidden.mean(axis=0), hidden.var(axis=0)
    return (hidden - mean) / numpy.sqrt(variance + 0.01) * gamma + beta, hidden


@pytest.mark.parametrize("training", [False, True])
def test_float64_is_computed_in_float64_without_dropout(training: bool) -> None:
    model = encoder()
    answer = open_model(model).run(INPUTS, "float64", training=training)
    for name, output in zip("01", expected(model, X, training), strict=True):
        numpy.testing.assert_allclose(answer.outputs[name], output, rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [encoder, sequential])
def test_the_block_is_untouched_and_its_own_dtype_gives_its_own_bits(make: Any, tmp_path: Path) -> None:
    model = make()
    gluon.Trainer(model.collect_params(), "sgd")
    parameters = list(model.collect_params().values())
    before = [to_numpy(one.data()).tobytes() for one in parameters]
    graph, side = getattr(model, "_cached_op", None), open_model(model)
    own = side.run(INPUTS, "float32").outputs
    for dtype in side.dtypes:
        cotangents = {name: numpy.ones_like(output) for name, output in own.items()}
        side.run(INPUTS, dtype, cotangents=cotangents, training=True, recorder=Recorder(tmp_path))
    assert [to_numpy(one.data()).tobytes() for one in parameters] == before
    assert {one.dtype.__name__ if isinstance(one.dtype, type) else one.dtype for one in parameters} == {"float32"}
    assert all(not one.grad().any() for one in parameters if one.grad_req != "null")
    assert model._children["drop" if make is encoder else "1"]._rate == 0.5
    assert getattr(model, "_cached_op", None) is graph and all(one._trainer is not None for one in parameters)
    outputs = model(np.array(X, dtype="float32"))
    numpy.testing.assert_array_equal(
        next(iter(own.values())), to_numpy(outputs[0] if isinstance(outputs, tuple) else outputs)
    )


def test_statistics_after_a_run_for_training() -> None:
    model = encoder()
    side = open_model(model)
    _, hidden = expected(model, X)
    assert side.state == ("norm.running_mean", "norm.running_var")
    for cotangents in (None, {"0": numpy.ones((5, 3))}):
        state = side.run(INPUTS, "float64", training=True, cotangents=cotangents).state
        for name, statistic in zip(side.state, (hidden.mean(axis=0), hidden.var(axis=0)), strict=True):
            mixed = 0.75 * side.arrays[name] + 0.25 * statistic
            numpy.testing.assert_allclose(state[name], mixed, rtol=0, atol=1e-12)
    assert not side.run(INPUTS, "float64").state


def test_gradients_are_those_of_finite_differences_with_a_tied_parameter_once() -> None:
    side = open_model(encoder())
    assert side.tied == {"second.weight": "first.weight", "second.bias": "first.bias"}
    cotangents = {name: numpy.asarray(uniform(name, (5, 3)), numpy.float64) for name in "01"}
    inputs = {"x": X.copy(), "scale": numpy.array(2.0)}
    gradients = side.run(inputs, "float64", cotangents=cotangents, training=True).gradients
    names = ("first.weight", "first.bias", "norm.gamma", "norm.beta")
    assert {*gradients} == {"input.x", "input.scale", *(f"parameter.{name}" for name in names)}
    for name, gradient in side.run(inputs, "float32", cotangents=cotangents, training=True).gradients.items():
        numpy.testing.assert_allclose(gradient, gradients[name], rtol=1e-3, atol=1e-4)

    def value() -> float:
        outputs = side.run(inputs, "float64", training=True).outputs
        return sum(float((outputs[name] * cotangents[name]).sum()) for name in cotangents)

    for kind, arrays in {"input": inputs, "parameter": {name: side.arrays[name] for name in names}}.items():
        for name, array in arrays.items():
            place = tuple(size - 1 for size in array.shape)
            kept, step = float(array[place]), 1e-5
            array[place] = kept + step
            above = value()
            array[place] = kept - step
            difference = (above - value()) / (2 * step)
            array[place] = kept
            numpy.testing.assert_allclose(gradients[f"{kind}.{name}"][place], difference, rtol=1e-6, atol=1e-7)


def test_a_recording_names_the_calls_their_arrays_and_parameters(tmp_path: Path) -> None:
    side = open_model(encoder())
    cotangents = {"0": numpy.ones((5, 3)), "1": numpy.full((5, 3), 2.0)}
    answer = side.run(INPUTS, "float64", cotangents=cotangents, recorder=Recorder(tmp_path))
    assert [call.path for call in answer.calls] == ["first.act", "first", "second", "drop", "norm", ""]
    _, first, second, _, norm, whole = answer.calls
    assert first.parameters == second.parameters == ("first.weight", "first.bias")
    assert (first.kind, norm.settings["eps"], norm.settings["fix_gamma"]) == ("Dense", 0.01, False)
    assert [seen.name for seen in whole.inputs] == ["0"] and first.inputs[0].dtype == "float64"
    numpy.testing.assert_array_equal(second.inputs[0].array, first.outputs[0].array)
    numpy.testing.assert_array_equal(second.outputs[0].array, answer.outputs["1"])
    scale = side.arrays["norm.gamma"] / numpy.sqrt(side.arrays["norm.running_var"] + 0.01)
    numpy.testing.assert_allclose(second.gradients["output"].array, 2.0 + scale * numpy.ones((5, 3)), rtol=1e-12)
    numpy.testing.assert_array_equal(whole.gradients["1"].array, numpy.full((5, 3), 2.0))
    assert not answer.unseen and whole.encloses(first)


def test_a_hybridized_block_is_recorded_as_one_that_is_not(tmp_path: Path) -> None:
    side = open_model(sequential())
    answer = side.run(INPUTS, "float64", training=True, recorder=Recorder(tmp_path))
    assert [call.path for call in answer.calls] == ["0.act", "0", "1", "2", ""]
    hidden = numpy.maximum(X @ side.arrays["0.weight"].T + side.arrays["0.bias"], 0.0)
    output = hidden @ side.arrays["2.weight"].T + side.arrays["2.bias"]
    numpy.testing.assert_allclose(answer.outputs["output"], output, rtol=0, atol=1e-12)
    for dtype, distance in {"float64": 1e-12, "float32": 1e-6}.items():  # compiled, without the dropout of the graph
        again = side.run(INPUTS, dtype, training=True).outputs["output"]
        numpy.testing.assert_allclose(again, output, rtol=0, atol=distance)


def test_inputs_go_by_name_or_in_order() -> None:
    model = encoder()
    side = open_model(model)
    doubled = 2.0 * expected(model, X)[0]
    for inputs in ({"scale": numpy.array(2.0), "x": X}, {"a": X, "b": numpy.array(2.0)}):
        numpy.testing.assert_allclose(side.run(inputs, "float64").outputs["0"], doubled, rtol=0, atol=1e-12)
    with pytest.raises(SideError, match="takes no 'wrong'; it takes x, scale"):
        side.run({"x": X, "wrong": X}, "float64")


def test_parameters_of_unknown_shape_are_drawn_once() -> None:
    model = Encoder(known=False)
    model.initialize()
    side = open_model(model)
    one = side.run(INPUTS, "float64").outputs["1"]
    numpy.testing.assert_allclose(side.run(INPUTS, "float32").outputs["1"], one, atol=1e-6)
    assert side.arrays["first.weight"].shape == (3, 3) and model.first.weight._data is None


def test_a_function_is_a_side_that_tells_which_inputs_it_changed() -> None:
    def shifted(x: np.ndarray, by: np.ndarray) -> list[Any]:
        x[:] = x + by
        return [npx.relu(x), "text"]

    answer = open_model(shifted).run({"by": numpy.array(1.0), "x": X}, "float64")
    numpy.testing.assert_array_equal(answer.outputs["0"], numpy.maximum(X + 1.0, 0.0))
    assert answer.changed == ("x",)
    gradients = open_model(lambda x: x**3).run(INPUTS, "float64", cotangents={"output": X}).gradients
    numpy.testing.assert_allclose(gradients["input.x"], 3 * X**3, rtol=1e-13)
