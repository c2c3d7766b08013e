"""Attention in time and memory linear in the number of keys, in TensorFlow."""

from __future__ import annotations

import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.linear import LINEAR_ATTENTION, LINEAR_ATTENTION_STEP
from backends.tf.arrays import Lengths
from backends.tf.masking import precise, size
from backends.tf.memory import zero_masked

__all__ = ["linear_attention", "linear_attention_step"]

BLOCK = 64
"""The number of steps in a block of causal attention."""


def linear_attention(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    valid_lens: Lengths | None = None,
    mask: tf.Tensor | None = None,
    *,
    causal: bool = False,
) -> tf.Tensor:
    """Average the values of the open keys, weighted by inner products of positive features.

    context[i] = φ(queries[i])ᵀ S[i] / (φ(queries[i])ᵀ z[i])
    S[i] = sum over open j of φ(keys[j]) values[j]ᵀ
    z[i] = sum over open j of φ(keys[j])
    open j <= i if causal
    φ(x) = elu(x) + 1

    No weights are computed: time and memory are linear in the number of keys, and if causal, in blocks of steps, too.
    φ(x) is x + 1 above 0 and exp(x) elsewhere, which keeps digits that elu(x) + 1 loses. A query that may attend to
    nothing gets context 0 and gradient 0, and so does one whose divisor underflows to 0. A hidden key or value, NaN and
    inf included, has no effect and gets gradient 0. Half precision is summed in float32.

    Args:
        queries: (batch, [heads], queries, features); query vectors
        keys: (batch, [heads], keys, features); key vectors
        values: (batch, [heads], keys, value_features); value vectors, one for each key
        valid_lens (default None): integers (batch,), or a list; key j is open where j < valid_len
        mask (default None): booleans (batch, [heads], one, keys), broadcast; True where a key is open, to all queries
        causal (default False): whether query i attends to the keys up to i alone, of as many as there are queries
    Returns:
        context: (batch, [heads], queries, value_features); weighted averages of the values
    Raises:
        ShapeError: a mask with a row for each query
        ShapeError: causal attention with more or fewer queries than keys
    Source: Katharopoulos et al. 2020, sections 3.2 and 3.3, arXiv:2006.16236
    Example:
        context = attention.linear_attention(queries, keys, values)
    """
    check(LINEAR_ATTENTION, causal=causal, queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask)
    return _linear_attention(queries, *zero_masked(keys, values, valid_lens, mask), causal)


def _linear_attention(
    queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None, causal: bool
) -> tf.Tensor:
    dtype = values.dtype
    queries, keys = feature_map(queries), feature_map(keys)
    if mask is not None:  # the features of 0 are 1
        keys = tf.where(tf.linalg.matrix_transpose(mask), keys, 0.0)
    last = [[0, 0]] * (values.shape.rank - 1) + [[0, 1]]
    values = tf.pad(precise(values), last, constant_values=1.0)  # a feature of ones, whose weighted sum is the norm
    if causal:
        totals = causal_totals(queries, keys, values)
    else:
        totals = tf.matmul(queries, tf.matmul(keys, values, transpose_a=True))
    return tf.cast(quotient(totals[..., :-1], totals[..., -1:]), dtype)


def linear_attention_step(
    queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, sums: tf.Tensor, norms: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Take one step of causal linear attention, as a recurrent network.

    context = φ(queries)ᵀ sums' / (φ(queries)ᵀ norms')
    sums' = sums + φ(keys) valuesᵀ
    norms' = norms + φ(keys)

    The steps of a sequence, one by one, give what linear_attention gives with causal; φ is the same. The sums grow with
    the steps, and half precision drops what is small beside them: decode in float32.

    Args:
        queries: (batch, [heads], features); query vector of the step
        keys: (batch, [heads], features); key vector of the step
        values: (batch, [heads], value_features); value vector of the step
        sums: (batch, [heads], features, value_features); S of the steps before; 0 at first
        norms: (batch, [heads], features); z of the steps before; 0 at first
    Returns:
        context: (batch, [heads], value_features); weighted average of the values so far
        sums: (batch, [heads], features, value_features); sums', for the next step
        norms: (batch, [heads], features); norms', for the next step
    Source: Katharopoulos et al. 2020, section 3.4, arXiv:2006.16236
    Example:
        context, sums, norms = attention.linear_attention_step(queries, keys, values, sums, norms)
    """
    check(LINEAR_ATTENTION_STEP, queries=queries, keys=keys, values=values, sums=sums, norms=norms)
    return _linear_attention_step(queries, keys, values, sums, norms)


def _linear_attention_step(
    queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, sums: tf.Tensor, norms: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    dtype = values.dtype
    queries, keys = feature_map(queries), feature_map(keys)
    sums = precise(sums) + keys[..., :, None] * precise(values)[..., None, :]
    norms = precise(norms) + keys
    totals = tf.matmul(queries[..., None, :], sums)[..., 0, :]
    context = quotient(totals, tf.reduce_sum(queries * norms, axis=-1, keepdims=True))
    return tf.cast(context, dtype), tf.cast(sums, dtype), tf.cast(norms, dtype)


def feature_map(array: tf.Tensor) -> tf.Tensor:
    """Map an array to positive features: x + 1 above 0, exp(x) elsewhere; narrow types become float32."""
    array = precise(array)
    positive = array > 0.0
    # The exponential of a large number would be inf, and its gradient, where it is not chosen, NaN.
    return tf.where(positive, array + 1.0, tf.exp(tf.where(positive, tf.zeros_like(array), array)))


def causal_totals(queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Sum the values up to each query, weighted by inner products: one by one in its block, by their sums before it."""
    *leading, steps, features = (size(values, axis) for axis in range(values.shape.rank))
    queries, keys, values = in_blocks(queries), in_blocks(keys), in_blocks(values)
    inside = tf.matmul(tf.linalg.band_part(tf.matmul(queries, keys, transpose_b=True), -1, 0), values)
    before = tf.cumsum(tf.matmul(keys, values, transpose_a=True), axis=-3, exclusive=True)
    totals = inside + tf.matmul(queries, before)
    return tf.reshape(totals, [*leading, size(totals, -3) * BLOCK, features])[..., :steps, :]


def in_blocks(array: tf.Tensor) -> tf.Tensor:
    """Split the steps of an array into blocks; zeros fill the last one."""
    *leading, steps, features = (size(array, axis) for axis in range(array.shape.rank))
    blocks = -(-steps // BLOCK)
    filled = tf.pad(array, [[0, 0]] * len(leading) + [[0, blocks * BLOCK - steps], [0, 0]])
    return tf.reshape(filled, [*leading, blocks, BLOCK, features])


def quotient(totals: tf.Tensor, norms: tf.Tensor) -> tf.Tensor:
    """Divide totals by their norms; 0 where a norm is 0."""
    some = tf.not_equal(norms, 0.0)
    return tf.where(some, totals / tf.where(some, norms, 1.0), 0.0)
