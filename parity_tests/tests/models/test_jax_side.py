"""Flax models and JAX functions as sides: float64 within the model, gradients, recordings, and an untouched model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from attention_core.draws import uniform
from parity_tests.models.calls import Call, Recorder
from parity_tests.models.flax import open_model
from parity_tests.models.sides import SideError

INPUTS = {"x": uniform("inputs", (3, 5)), "other": uniform("other", (3, 4))}
COTANGENTS = {"output": uniform("cotangents", (3, 4))}


class Block(nnx.Module):
    """Two tied layers, a normalization and dropout."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.inner = nnx.Linear(5, 4, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)])
        self.layers[1].kernel = self.layers[0].kernel
        self.normal = nnx.BatchNorm(4, epsilon=1e-3, momentum=0.75, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.unused = nnx.Linear(2, 2, rngs=rngs)

    def __call__(self, x: jax.Array, other: jax.Array) -> jax.Array:
        hidden = self.dropout(self.normal(self.inner(x) + other))
        return self.layers[1](jnp.tanh(self.layers[0](hidden)))


class Inheriting(nnx.Linear):
    """A layer whose call is that of its base."""


class Calling(Inheriting):
    """A layer whose call makes that of its base."""

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return super().__call__(inputs) + 1


class Encoder(linen.Module):
    """The same in Linen, which is told whether it trains."""

    @linen.compact
    def __call__(self, x: jax.Array, other: jax.Array, train: bool) -> jax.Array:
        hidden = linen.Dense(4, name="inner")(x) + other
        hidden = linen.BatchNorm(not train, epsilon=1e-3, momentum=0.75, name="normal")(hidden)
        hidden = linen.Dropout(0.5, deterministic=not train)(hidden)
        layer = linen.Dense(4, name="layer")
        return layer(jnp.tanh(layer(hidden)))


def made(kind: str) -> Any:
    if kind == "nnx":
        return Block(nnx.Rngs(0))
    return Encoder(), Encoder().init(jax.random.key(0), jnp.ones((3, 5)), jnp.ones((3, 4)), train=False)


def expected(
    kind: str, arrays: Mapping[str, np.ndarray], training: bool, x: np.ndarray, other: np.ndarray
) -> dict[str, np.ndarray]:
    """What either of them computes, in NumPy."""
    arrays = {name.removeprefix("batch_stats."): array for name, array in arrays.items()}
    hidden = x @ arrays["inner.kernel"] + arrays["inner.bias"] + other
    mean = hidden.mean(0) if training else arrays["normal.mean"]
    variance = hidden.var(0) if training else arrays["normal.var"]
    hidden = (hidden - mean) / np.sqrt(variance + 1e-3) * arrays["normal.scale"] + arrays["normal.bias"]
    first, second = ("layers.0", "layers.1") if kind == "nnx" else ("layer", "layer")
    kernel = arrays[f"{first}.kernel"]
    output = np.tanh(hidden @ kernel + arrays[f"{first}.bias"]) @ kernel + arrays[f"{second}.bias"]
    state = {"mean": mean, "var": variance}
    return {"output": output, "normal": hidden} | {
        f"normal.{name}": 0.75 * arrays[f"normal.{name}"] + 0.25 * array for name, array in state.items()
    }


def recorded(side: Any, folder: Path, **options: Any) -> tuple[dict[tuple[str, int], Call], Any]:
    answer = side.run(INPUTS, "float64", recorder=Recorder(folder), **options)
    return {(call.path, call.number): call for call in answer.calls}, answer


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_float64_is_computed_without_dropout_and_with_the_statistics_of_the_mode(kind: str, training: bool):
    side = open_model(made(kind))
    answer = side.run(INPUTS, "float64", training=training)
    due = expected(kind, side.arrays, training, **INPUTS)
    assert answer.outputs["output"].dtype == np.float64
    np.testing.assert_allclose(answer.outputs["output"], due["output"], rtol=0, atol=1e-12)
    assert set(answer.state) == (set(side.state) if training else set())
    for name, array in answer.state.items():
        np.testing.assert_allclose(array, due[name.removeprefix("batch_stats.")], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_gradients_are_finite_differences_of_the_float64_answer(kind: str):
    side = open_model(made(kind))
    gradients = side.run(INPUTS, "float64", cotangents=COTANGENTS, training=True).gradients
    assert set(gradients) == {"input.x", "input.other", *(f"parameter.{name}" for name in side.parameters)}
    for name, gradient in gradients.items():
        scope, _, short = name.partition(".")
        direction = uniform(name, gradient.shape)
        sums = []
        for step in (1e-5, -1e-5):
            inputs, arrays = dict(INPUTS), dict(side.arrays)
            changed = inputs if scope == "input" else arrays
            changed[short] = changed[short] + step * direction
            output = expected(kind, arrays, True, **inputs)["output"]
            sums.append((output * COTANGENTS["output"]).sum())
        assert (gradient * direction).sum() == pytest.approx((sums[0] - sums[1]) / 2e-5, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_calls_are_recorded_with_arrays_parameters_and_gradients(kind: str, tmp_path: Path):
    side = open_model(made(kind))
    calls, answer = recorded(side, tmp_path, cotangents=COTANGENTS)
    due = expected(kind, side.arrays, False, **INPUTS)
    first, second = (("layers.0", 0), ("layers.1", 0)) if kind == "nnx" else (("layer", 0), ("layer", 1))
    dropout = "dropout" if kind == "nnx" else "Dropout_0"
    assert set(calls) == {("", 0), ("inner", 0), ("normal", 0), (dropout, 0), first, second}
    assert all(calls["", 0].encloses(call) for key, call in calls.items() if key != ("", 0))
    assert [seen.name for seen in calls["", 0].inputs] == ["x", "other"]
    assert calls["normal", 0].kind == "BatchNorm"
    assert sorted(calls["normal", 0].parameters) == ["normal.bias", "normal.scale"]
    assert calls["normal", 0].settings["epsilon"] == 1e-3
    assert sorted(calls[second].parameters) == sorted({f"{second[0]}.bias", f"{first[0]}.kernel"})
    np.testing.assert_array_equal(calls["inner", 0].inputs[0].array, INPUTS["x"])
    np.testing.assert_allclose(calls["normal", 0].outputs[0].array, due["normal"], rtol=0, atol=1e-12)
    np.testing.assert_array_equal(calls[second].gradients["output"].array, COTANGENTS["output"])
    inside = calls[first].gradients["output"].array  # behind a sum with the bias: the bias's gradient is its sum
    due_bias = answer.gradients[f"parameter.{first[0]}.bias"] - (COTANGENTS["output"].sum(0) if kind == "linen" else 0)
    np.testing.assert_allclose(inside.sum(0), due_bias, rtol=0, atol=1e-12)
    assert list(answer.unseen) == [
        f"{path} (not called: its parameters are read by the layer around it)" for path in ["unused"] if kind == "nnx"
    ]


def test_a_layer_is_recorded_once_whatever_its_class_inherits(tmp_path: Path):
    layers = [kind(5, 5, rngs=nnx.Rngs(0)) for kind in (Inheriting, Calling, nnx.Linear)]
    side = open_model(nnx.Sequential(*layers))
    answer = side.run({"x": INPUTS["x"]}, "float64", recorder=Recorder(tmp_path))
    names = ["layers.0", "layers.1", "layers.2", ""]
    assert [(call.path, call.kind) for call in answer.calls] == list(
        zip(names, ["Inheriting", "Calling", "Linear", "Sequential"], strict=True)
    )
    assert "__call__" not in vars(Inheriting) and "__call__" in vars(Calling)


def test_a_tied_parameter_is_there_once():
    side = open_model(made("nnx"))
    assert side.tied == {"layers.1.kernel": "layers.0.kernel"}
    assert "layers.1.kernel" not in side.parameters and "layers.1.bias" in side.parameters
    side.arrays["layers.0.kernel"] = uniform("kernel", (4, 4))
    output = side.run(INPUTS, "float64").outputs["output"]
    np.testing.assert_allclose(output, expected("nnx", side.arrays, False, **INPUTS)["output"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_nothing_of_the_user_changes(kind: str, tmp_path: Path):
    model = made(kind)
    arrays = nnx.state(model) if kind == "nnx" else model[1]
    readable = (leaf for leaf in jax.tree.leaves(arrays) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key))
    before = [np.array(leaf) for leaf in readable]
    methods = [vars(layer).get("__call__") for layer in (Block, nnx.Linear, nnx.Dropout, nnx.Embed)]
    settings = jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision
    recorded(open_model(model), tmp_path, cotangents=COTANGENTS, training=True)
    arrays = nnx.state(model) if kind == "nnx" else model[1]
    after = [leaf for leaf in jax.tree.leaves(arrays) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]
    for one, other in zip(before, after, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    if kind == "nnx":
        assert model.dropout.rate == 0.5 and not hasattr(model.inner, "parity_path")
        assert model.normal.use_running_average is False and model.inner.param_dtype is jnp.float32
    assert methods == [vars(layer).get("__call__") for layer in (Block, nnx.Linear, nnx.Dropout, nnx.Embed)]
    assert settings == (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision)


@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_a_recurrent_model_is_wide_throughout_and_its_cell_unseen(kind: str, tmp_path: Path):
    if kind == "nnx":
        layers = [nnx.Embed(7, 5, rngs=nnx.Rngs(0)), nnx.RNN(nnx.GRUCell(5, 4, rngs=nnx.Rngs(1)))]
        side = open_model(nnx.Sequential(*layers))
    else:
        module = linen.Sequential([linen.Embed(7, 5), linen.RNN(linen.GRUCell(4))])
        side = open_model((module, module.init(jax.random.key(0), jnp.ones((2, 3), int))))
    tokens = np.array([[1, 2, 6], [0, 5, 3]])
    answer = side.run(
        {"tokens": tokens}, "float64", recorder=Recorder(tmp_path), cotangents={"output": np.ones((2, 3, 4))}
    )
    narrow = side.run({"tokens": tokens}, "float32").outputs["output"]
    assert answer.outputs["output"].dtype == np.float64 and narrow.dtype == np.float32
    np.testing.assert_allclose(answer.outputs["output"], narrow, rtol=0, atol=1e-6)
    assert np.any(answer.outputs["output"] != narrow)
    table = next(name for name in side.parameters if name.endswith("embedding"))
    side.arrays[table] = side.arrays[table] + 1e-12  # which float32 has not
    moved = side.run({"tokens": tokens}, "float64").outputs["output"] - answer.outputs["output"]
    slope = answer.gradients[f"parameter.{table}"].sum()
    assert moved.sum() == pytest.approx(slope * 1e-12, rel=1e-2)
    assert any("(inside a transformation)" in reason for reason in answer.unseen)
    assert any(call.kind == "RNN" and call.gradients for call in answer.calls)


def test_a_float32_run_of_a_float32_model_makes_no_wide_arrays():
    side = open_model(lambda x: x + jnp.zeros(3))
    assert side.run({"x": np.ones(3)}, "float32").outputs["output"].dtype == np.float32
    assert side.run({"x": np.ones(3)}, "bfloat16").outputs["output"].dtype == np.float32  # as JAX promotes
    assert side.run({"x": np.ones(3)}, "float64").outputs["output"].dtype == np.float64


def test_a_function_takes_inputs_by_name_and_in_order_and_gives_a_tree():
    def function(one: jax.Array, other: jax.Array, *, training: bool = False) -> Any:
        return {"difference": one - 2 * other, "all": [one.sum(), training, object()]}

    side = open_model(function)
    one, other = np.arange(3.0), np.ones(3)
    due = {"difference": one - 2 * other, "all.0": one.sum()}
    for inputs in ({"other": other, "one": one}, {"a": one, "b": other}):
        answer = side.run(inputs, "float64", cotangents={"difference": np.arange(3.0), "all.0": np.array(5.0)})
        assert answer.unread == ("all.2 (object)",)
        for name, array in due.items():
            np.testing.assert_array_equal(answer.outputs[name], array)
        names = [name for name in inputs if inputs[name] is one] + [name for name in inputs if inputs[name] is other]
        np.testing.assert_array_equal(answer.gradients[f"input.{names[0]}"], np.arange(3.0) + 5)
        np.testing.assert_array_equal(answer.gradients[f"input.{names[1]}"], -2 * np.arange(3.0))
    with pytest.raises(SideError, match="takes no 'another'; it takes one, other"):
        side.run({"one": one, "another": other}, "float64")


def test_what_is_no_model_is_refused():
    with pytest.raises(SideError, match="holds no parameters: pass"):
        open_model(Encoder())
    with pytest.raises(SideError, match="by collection"):
        open_model((Encoder(), made("linen")[1]["params"]))
