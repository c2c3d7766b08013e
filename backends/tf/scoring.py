"""How well a key matches a query, in TensorFlow: scores of projected tensors."""

from __future__ import annotations

import tensorflow as tf

from attention_core.errors import check, check_options, check_positions
from attention_core.operators.scoring import (
    ADDITIVE_SCORE,
    COSINE_SCORE,
    DOT_SCORE,
    GAUSSIAN_SCORE,
    LOCATION_SCORE,
    SCALED_DOT_SCORE,
)
from backends.tf.blocked import ADDITIVE_MIN_ELEMENTS, blocked_additive_score, use_blocks
from backends.tf.masking import size

__all__ = ["dot_score", "scaled_dot_score", "additive_score", "cosine_score", "location_score", "gaussian_score"]


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
    if use_blocks(queries, keys, ADDITIVE_MIN_ELEMENTS):
        return blocked_additive_score(queries, keys, w_v)
    hidden = tf.tanh(tf.expand_dims(queries, axis=-2) + tf.expand_dims(keys, axis=-3))
    return tf.linalg.matvec(hidden, w_v)


def cosine_score(queries: tf.Tensor, keys: tf.Tensor, *, scale: float | None = None) -> tf.Tensor:
    """Score each query against each key by the cosine of the angle between them.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c] / (‖queries[i]‖ ‖keys[j]‖)

    Shapes: as dot_score. scale is 1 unless given. A vector of zeros scores 0, and gets and gives gradient 0.
    """
    check_options(COSINE_SCORE, scale=scale)
    check(COSINE_SCORE, queries=queries, keys=keys)
    scores = tf.matmul(direction(queries), direction(keys), transpose_b=True)
    return scores if scale is None else scores * scale


def location_score(num_keys: int | tf.Tensor, queries: tf.Tensor) -> tf.Tensor:
    """Score each position by the projected query alone, whatever key stands there.

    scores[i, j] = queries[i, j]

    Shapes: queries (batch, queries, positions), with heads after batch or without, of which the first num_keys
    positions are taken; the result (batch, queries, num_keys), or (batch, heads, queries, num_keys). While a graph is
    traced, num_keys may be a scalar tensor.
    """
    known = not tf.is_symbolic_tensor(num_keys)
    if known:
        check_options(LOCATION_SCORE, num_keys=num_keys)
    check(LOCATION_SCORE, queries=queries)
    if known and queries.shape[-1] is not None:
        check_positions(LOCATION_SCORE.title, num_keys, queries.shape[-1])
    return queries[..., :num_keys]


def gaussian_score(queries: tf.Tensor, keys: tf.Tensor, w: tf.Tensor | None = None) -> tf.Tensor:
    """Score each query against each key by a Gaussian kernel of their distance.

    scores[i, j] = -½ sum over c of ((queries[i, c] - keys[j, c]) w)²

    Shapes: queries and keys as dot_score; w (), an inverse width, 1 unless given.
    """
    check(GAUSSIAN_SCORE, queries=queries, keys=keys, w=w)
    differences = tf.expand_dims(queries, axis=-2) - tf.expand_dims(keys, axis=-3)
    if w is not None:
        differences = differences * w
    return -0.5 * tf.reduce_sum(differences * differences, axis=-1)


def direction(vectors: tf.Tensor) -> tf.Tensor:
    """The vectors at length 1, along the last axis; zeros stay zeros."""
    # Divided by its largest entry, which does not turn it, a vector has squares that neither underflow nor overflow.
    largest = tf.reduce_max(tf.abs(tf.stop_gradient(vectors)), axis=-1, keepdims=True)
    vectors /= tf.where(tf.math.is_finite(largest) & (largest > 0.0), largest, tf.ones_like(largest))
    square = tf.reduce_sum(vectors * vectors, axis=-1, keepdims=True)
    zero = tf.equal(square, 0.0)
    # A square of 1 stands in where there is no direction: the root of 0 would have an infinite gradient.
    return tf.where(zero, tf.zeros_like(vectors), vectors / tf.sqrt(tf.where(zero, tf.ones_like(square), square)))
