"""Keras' mixed policies: in force or of one layer, beside layers of Keras, and what they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np
import pytest
import tensorflow as tf

from attention_core.draws import integers, uniform
from attention_core.errors import DtypeError
from backends import tf as attention

POLICIES = {"mixed_bfloat16": tf.bfloat16, "mixed_float16": tf.float16}


@contextmanager
def in_force(policy: str) -> Iterator[None]:
    """Have layers that are made meanwhile take that policy of Keras."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def floats(name: str, *shape: int) -> np.ndarray:
    return uniform(name, shape).astype(np.float32)


def near(actual: tf.Tensor, expected: tf.Tensor, allowed: float):
    """See that two tensors of one half type agree: NumPy compares them in float32."""
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(tf.cast(actual, tf.float32), tf.cast(expected, tf.float32), rtol=0.0, atol=allowed)


VECTORS = floats("queries", 3, 4, 8), floats("keys", 3, 6, 8), floats("values", 3, 6, 8)
TOKENS = integers("tokens", (3, 4), 11)


def made(kind: str, dtype: str | keras.DTypePolicy | None = None) -> tuple[keras.layers.Layer, tuple[tf.Tensor, ...]]:
    """A layer with some inputs in float32."""
    sizes: dict[str, tuple[tuple[int, ...], tuple[np.ndarray, ...]]] = {
        "DotProductAttention": ((), VECTORS),
        "AdditiveAttention": ((8, 8, 5), VECTORS),
        "GRU": ((8, 8), VECTORS[:1]),
        "BahdanauDecoder": ((11, 5, 8), (TOKENS, VECTORS[1], floats("state", 1, 3, 8))),
        "LuongDecoder": ((11, 5, 8), (TOKENS, VECTORS[1], floats("state", 1, 3, 8))),
        "Translator": ((11, 11, 5, 8), (TOKENS, TOKENS)),
    }
    given, inputs = sizes[kind]
    return getattr(attention, kind)(*given, dtype=dtype), tuple(map(tf.constant, inputs))


KINDS = ["DotProductAttention", "AdditiveAttention", "GRU", "BahdanauDecoder", "LuongDecoder", "Translator"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_is_as_binding_in_force_as_for_one_layer_and_comes_back_from_the_configuration(kind: str):
    with in_force("mixed_bfloat16"):
        by_default, inputs = made(kind)
    named, _ = made(kind, "mixed_bfloat16")
    given, _ = made(kind, keras.DTypePolicy("mixed_bfloat16"))
    again = type(named).from_config(by_default.get_config())
    arrays = attention.get_parameters(named)
    for layer in (by_default, named, given, again):
        assert (layer.compute_dtype, layer.variable_dtype) == ("bfloat16", "float32")
        assert {weight.dtype for weight in layer.trainable_weights} <= {"float32"}
        attention.set_parameters(layer, arrays)
        for own, expected in zip(layer(*inputs), named(*inputs), strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, own, expected)
            assert {part.dtype for part in tf.nest.flatten(own)} <= {tf.bfloat16, tf.int32}


def test_every_public_method_casts_as_a_call_does():
    layer, (queries, keys, values) = made("AdditiveAttention", "mixed_bfloat16")
    for own, expected in zip(
        layer.attend(queries, layer.prepare(keys, values)), layer(queries, keys, values), strict=True
    ):
        np.testing.assert_array_equal(own, expected)
        assert own.dtype == tf.bfloat16
    layer, (inputs,) = made("GRU", "mixed_bfloat16")
    output, state = layer.step(inputs[:, 0], tf.zeros((1, 3, 8)))
    np.testing.assert_array_equal(output, layer(inputs[:, :1])[0][:, 0])
    assert output.dtype == state.dtype == tf.bfloat16
    for kind in ("BahdanauDecoder", "LuongDecoder"):
        decoder, (tokens, outputs, state) = made(kind, "mixed_bfloat16")
        memory = decoder.prepare(outputs)
        logits, after, _ = decoder.step(tokens[:, 0], decoder.start(memory, state), memory)
        near(logits, decoder(tokens, outputs, state)[0][:, 0], 2.0**-7)
        assert {part.dtype for part in tf.nest.flatten(after)} <= {tf.bfloat16, tf.int32}
        best = decoder.greedy(outputs, state, bos=1, eos=2, max_steps=5)
        beam = decoder.beam(outputs, state, bos=1, eos=2, max_steps=5, width=1)
        np.testing.assert_array_equal(best[0], beam[0][:, 0])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_model_of_keras_trains_under_a_policy_with_a_dense_before_and_after(policy: str):
    keras.utils.set_random_seed(0)
    with in_force(policy):
        inputs = keras.Input((4, 6))
        hidden = keras.layers.Dense(8)(inputs)
        context, weights = attention.AdditiveAttention(8, 8, 5)(hidden, hidden, hidden)
        outputs, _ = attention.GRU(8, 8)(context)
        model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(keras.layers.Dense(3)(outputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    before = model.get_weights()
    data, targets = floats("inputs", 3, 4, 6), floats("targets", 3, 4, 1)
    losses = model.fit(data, targets, batch_size=3, epochs=3, shuffle=False, verbose=0).history["loss"]
    assert weights.dtype == outputs.dtype == POLICIES[policy].name
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer) == (policy == "mixed_float16")
    assert losses[0] > losses[1] > losses[2]
    assert all((new != old).any() for new, old in zip(model.get_weights(), before, strict=True))


@pytest.mark.parametrize("policy", POLICIES)
def test_multi_head_attention_is_that_of_keras(policy: str):
    theirs = keras.layers.MultiHeadAttention(2, 4, use_bias=False, dtype=policy)
    theirs.build(*(array.shape for array in VECTORS))
    ours = attention.MultiHeadAttention(8, 2, bias=False, dtype=policy)
    kernels = [np.reshape(array, (8, 8)) for array in theirs.get_weights()]  # of queries, keys, values and outputs
    attention.set_parameters(ours, {f"W_{of}": kernel.T for of, kernel in zip("qkvo", kernels, strict=True)})
    queries, keys, values = map(tf.constant, VECTORS)
    expected, scores = theirs(queries, values, keys, return_attention_scores=True)
    context, weights = ours(queries, keys, values, per_head=True)
    eps = 2.0**-7 if policy == "mixed_bfloat16" else 2.0**-10
    near(context, expected, 2 * eps)
    near(weights, scores, eps)


def test_without_a_mixed_policy_nothing_is_cast():
    layer, inputs = made("AdditiveAttention")
    for dtype in (tf.float64, tf.bfloat16):
        with pytest.raises(DtypeError, match=f"queries is {dtype.name} but the layer is float32"):
            layer(*(tf.cast(array, dtype) for array in inputs))

    class Around(keras.layers.Layer):
        """A layer under another policy, whose cast does not reach the parameters of the one inside."""

        def call(self, inputs: tf.Tensor) -> tf.Tensor:
            inside = tf.cast(inputs, tf.float32)
            return layer(inside, inside, inside)[0]

    assert Around(dtype="mixed_bfloat16")(tf.constant(VECTORS[0])).dtype == tf.float32
