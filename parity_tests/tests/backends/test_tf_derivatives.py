"""Forward mode, Jacobians and gradients of each sample in TensorFlow, on both paths.

Where a fast path has no tangents, the plain formula is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from attention_core.draws import uniform
from attention_core.errors import AttentionError
from backends import tf as attention
from parity_tests.tests.backends.blocks import on_path

QUERIES, KEYS, VALUES = uniform("queries", (2, 3, 4)), uniform("keys", (2, 5, 4)), uniform("values", (2, 5, 6))
Function = Callable[..., tf.Tensor]


def context(layer: tf.keras.layers.Layer) -> Function:
    return lambda queries, keys, values: layer(queries, keys, values, need_weights=False)[0]


def outputs(layer: tf.keras.layers.Layer) -> Function:
    return lambda inputs: layer(inputs, tf.constant([5, 3]))[0]


def logits(layer: tf.keras.layers.Layer) -> Function:
    return lambda keys, state: layer(tf.constant([[1, 2, 3], [4, 5, 6]]), keys, state)[0]


FUNCTIONS: dict[str, tuple[Callable[[], Function], tuple[np.ndarray, ...]]] = {
    "additive_score": (lambda: attention.additive_score, (QUERIES, KEYS, uniform("w_v", (4,)))),
    "dot": (lambda: context(attention.DotProductAttention()), (QUERIES, KEYS, VALUES)),
    "additive": (lambda: context(attention.AdditiveAttention(4, 4, 6, dtype="float64")), (QUERIES, KEYS, VALUES)),
    "decoder": (
        lambda: logits(attention.BahdanauDecoder(7, 3, 4, dtype="float64")),
        (KEYS, uniform("state", (1, 2, 4))),
    ),
    "Luong's decoder": (
        lambda: logits(attention.LuongDecoder(7, 3, 4, cell="lstm", dtype="float64")),
        (KEYS, uniform("state", (1, 2, 8))),
    ),
}


def differences(function: Callable[..., tf.Tensor], primals: Sequence[tf.Tensor], index: int) -> np.ndarray:
    """The derivative along ones of an argument, by central differences."""
    step = 1e-5
    moved = [
        function(*(array + sign * step if at == index else array for at, array in enumerate(primals)))
        for sign in (1.0, -1.0)
    ]
    return ((moved[0] - moved[1]) / (2.0 * step)).numpy()


@pytest.mark.parametrize("path", ["plain", "blocked"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_argument_has_a_tangent(name: str, path: str):
    make, arrays = FUNCTIONS[name]
    function, primals = make(), [tf.constant(array) for array in arrays]
    with on_path(SimpleNamespace(name="tf"), path):
        for index, primal in enumerate(primals):
            with tf.autodiff.ForwardAccumulator(primal, tf.ones_like(primal)) as followed:
                output = function(*primals)
            np.testing.assert_allclose(followed.jvp(output), differences(function, primals, index), atol=1e-8)


@pytest.mark.parametrize("name", ["additive_score", "dot", "additive"])
def test_a_tangent_in_a_graph_is_that_of_the_plain_formula(name: str):
    make, arrays = FUNCTIONS[name]
    function, primals = make(), [tf.constant(array) for array in arrays]

    def tangent(primal: tf.Tensor) -> tf.Tensor:
        with tf.autodiff.ForwardAccumulator(primal, primal) as followed:
            output = function(primals[0], primal, *primals[2:])
        return followed.jvp(output)

    with on_path(SimpleNamespace(name="tf"), "plain"):
        expected = tangent(primals[1])
    with on_path(SimpleNamespace(name="tf"), "blocked"):
        actual = tf.function(tangent, autograph=False)(primals[1])
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(actual, expected, atol=1e-14)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_mode_around_a_graph_of_blocks_is_refused_with_the_way_out(name: str):
    make, arrays = FUNCTIONS[name]
    function, primals = tf.function(make(), autograph=False), [tf.constant(array) for array in arrays]
    followed, refused = tf.autodiff.ForwardAccumulator(primals[0], tf.ones_like(primals[0])), r'\.set_path\("plain"\)'
    with on_path(SimpleNamespace(name="tf"), "blocked"), followed, pytest.raises(AttentionError, match=refused):
        function(*primals)


def test_a_parameter_has_a_tangent_in_blocks():
    layer = attention.AdditiveAttention(4, 4, 6, dtype="float64")
    for parameter in layer.trainable_variables:
        tangents = {}
        for path in ("plain", "blocked"):
            with on_path(SimpleNamespace(name="tf"), path):
                ones = tf.ones_like(parameter.value)
                with tf.autodiff.ForwardAccumulator(parameter.value, ones) as followed:
                    output = context(layer)(*map(tf.constant, (QUERIES, KEYS, VALUES)))
            tangents[path] = followed.jvp(output).numpy()
        assert np.abs(tangents["plain"]).max() > 1e-3
        np.testing.assert_allclose(tangents["blocked"], tangents["plain"], atol=1e-14)


DERIVED = {
    **{name: FUNCTIONS[name] for name in ("dot", "additive", "decoder", "Luong's decoder")},
    "GRU": (lambda: outputs(attention.GRU(4, 3, bidirectional=True, dtype="float64")), (KEYS,)),
}


@pytest.mark.parametrize("path", ["plain", "blocked"])
@pytest.mark.parametrize("name", DERIVED)
def test_a_jacobian_is_that_of_one_output_after_another(name: str, path: str):
    make, arrays = DERIVED[name]
    function, primals = make(), [tf.constant(array) for array in arrays]
    with on_path(SimpleNamespace(name="tf"), path), tf.GradientTape(persistent=True) as tape:
        tape.watch(primals[0])
        output = function(*primals)
        entry = output[1, 0, 2]
    jacobian = tape.jacobian(output, primals[0])
    assert np.abs(jacobian[1, 0, 2]).max() > 1e-3
    np.testing.assert_allclose(jacobian[1, 0, 2], tape.gradient(entry, primals[0]), atol=1e-14)


@pytest.mark.parametrize("path", ["plain", "blocked"])
@pytest.mark.parametrize("name", ["dot", "additive"])
def test_gradients_of_each_sample_are_those_of_the_sample_alone(name: str, path: str):
    make, arrays = DERIVED[name]
    layer, inputs = make(), tuple(map(tf.constant, arrays))

    def gradients(sample: tuple[tf.Tensor, ...]) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(sample)
            loss = tf.reduce_sum(layer(*(array[None] for array in sample)) ** 2)
        return tape.gradient(loss, sample)

    with on_path(SimpleNamespace(name="tf"), path):
        each = tf.vectorized_map(gradients, inputs, fallback_to_while_loop=False)
        alone = [gradients(tuple(array[index] for array in inputs)) for index in range(2)]
    for actual, *expected in zip(each, *alone, strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(actual, expected, atol=1e-14)


def test_a_recurrent_layer_can_be_vectorised():
    layer = attention.GRU(4, 3, bidirectional=True, dtype="float64")
    inputs = tf.constant(KEYS), tf.constant([5, 3])
    each = tf.vectorized_map(
        lambda sample: layer(*(array[None] for array in sample))[0], inputs, fallback_to_while_loop=False
    )
    np.testing.assert_allclose(each[:, 0], layer(*inputs)[0], atol=1e-14)
