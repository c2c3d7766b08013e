"""How well a key matches a query, in TensorFlow: scores of projected tensors."""

from __future__ import annotations

import tensorflow as tf

from attention_core.errors import check, check_options
from attention_core.operators import ADDITIVE_SCORE, DOT_SCORE, SCALED_DOT_SCORE
from backends.tf.masking import size

__all__ = ["dot_score", "scaled_dot_score", "additive_score"]


def dot_score(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Score each query against each key by their inner product.

    scores[i, j] = sum over c of queries[i, c] keys[j, c]

    Shapes: queries (batch, queries, features), keys (batch, keys, features), both with heads after batch or without;
    the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    check(DOT_SCORE, queries=queries, keys=keys)
    return tf.matmul(queries, keys, transpose_b=True)


def scaled_dot_score(queries: tf.Tensor, keys: tf.Tensor, *, scale: float | None = None) -> tf.Tensor:
    """Score each query against each key by a scaled inner product.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c]

    Shapes: as dot_score. scale is 1/√features unless given.
    """
    check_options(SCALED_DOT_SCORE, scale=scale)
    check(SCALED_DOT_SCORE, queries=queries, keys=keys)
    if scale is None:
        features = tf.maximum(size(queries, -1), 1)
        scale = tf.cast(tf.cast(features, tf.float64) ** -0.5, queries.dtype)
    return tf.matmul(queries, keys, transpose_b=True) * scale


def additive_score(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> tf.Tensor:
    """Score each projected query against each projected key by a weighted tanh of their sum.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), both with heads after batch or
    without; w_v (hidden_size,); the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    check(ADDITIVE_SCORE, queries=queries, keys=keys, w_v=w_v)
    hidden = tf.tanh(tf.expand_dims(queries, axis=-2) + tf.expand_dims(keys, axis=-3))
    return tf.linalg.matvec(hidden, w_v)
