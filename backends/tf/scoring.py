"""How well a key matches a query, in TensorFlow: scores of projected tensors."""

from __future__ import annotations

import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.scoring import (
    ADDITIVE_SCORE,
    COSINE_SCORE,
    DOT_SCORE,
    GAUSSIAN_SCORE,
    LOCATION_SCORE,
    SCALED_DOT_SCORE,
)
from backends.tf import kernels
from backends.tf.masking import size

__all__ = ["dot_score", "scaled_dot_score", "additive_score", "cosine_score", "location_score", "gaussian_score"]


def dot_score(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Score each query against each key by their inner product.

    scores[i, j] = sum over c of queries[i, c] keys[j, c]

    Args:
        queries: (batch, [heads], queries, features); query vectors
        keys: (batch, [heads], keys, features); key vectors
    Returns:
        scores: (batch, [heads], queries, keys); logits (natural logarithm)
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025
    Example:
        scores = attention.dot_score(queries, keys)
    """
    check(DOT_SCORE, queries=queries, keys=keys)
    return _dot_score(queries, keys)


def _dot_score(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    return tf.matmul(queries, keys, transpose_b=True)


def scaled_dot_score(
    queries: tf.Tensor, keys: tf.Tensor, *, scale: float | None = None, softcap: float | None = None
) -> tf.Tensor:
    """Score each query against each key by a scaled inner product.

    scores[i, j] = cap(scale · sum over c of queries[i, c] keys[j, c])
    cap(x) = softcap · tanh(x / softcap), or x without softcap

    Args:
        queries: (batch, [heads], queries, features); query vectors
        keys: (batch, [heads], keys, features); key vectors
        scale (default None): factor of the scores; 1/√features if None
        softcap (default None): bound of the scores; none if None
    Returns:
        scores: (batch, [heads], queries, keys); logits (natural logarithm)
    Source: Vaswani et al. 2017, section 3.2.1, arXiv:1706.03762; softcap: Gemma Team 2024, section 2, arXiv:2408.00118
    Example:
        scores = attention.scaled_dot_score(queries, keys)
    """
    check(SCALED_DOT_SCORE, scale=scale, softcap=softcap, queries=queries, keys=keys)
    return _scaled_dot_score(queries, keys, scale, softcap)


def _scaled_dot_score(queries: tf.Tensor, keys: tf.Tensor, scale: float | None, softcap: float | None) -> tf.Tensor:
    if scale is None:
        features = tf.maximum(size(queries, -1), 1)
        scale = tf.cast(tf.cast(features, tf.float64) ** -0.5, queries.dtype)
    scores = tf.matmul(queries, keys, transpose_b=True) * scale
    return scores if softcap is None else softcap * tf.tanh(scores / softcap)


def additive_score(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> tf.Tensor:
    """Score each projected query against each projected key by a weighted tanh of their sum.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])

    Args:
        queries: (batch, [heads], queries, hidden_size); projected queries, W_q q
        keys: (batch, [heads], keys, hidden_size); projected keys, W_k k
        w_v: (hidden_size,); weight of each hidden feature
    Returns:
        scores: (batch, [heads], queries, keys); logits (natural logarithm)
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473
    Example:
        scores = attention.additive_score(queries, keys, w_v)
    """
    check(ADDITIVE_SCORE, queries=queries, keys=keys, w_v=w_v)
    return _additive_score(queries, keys, w_v)


def _additive_score(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> tf.Tensor:
    kernel = kernels.of("additive_score", queries, keys, w_v)
    if kernel is not None:
        return kernel(queries, keys, w_v)
    hidden = tf.tanh(tf.expand_dims(queries, axis=-2) + tf.expand_dims(keys, axis=-3))
    # As rows of one matrix, which is faster in a graph than tf.linalg.matvec, and which TensorFlow Lite converts.
    rows = tf.matmul(tf.reshape(hidden, (-1, size(w_v, 0))), tf.expand_dims(w_v, axis=-1))
    return tf.reshape(rows, [size(hidden, axis) for axis in range(hidden.shape.rank - 1)])


def cosine_score(queries: tf.Tensor, keys: tf.Tensor, *, scale: float | None = None) -> tf.Tensor:
    """Score each query against each key by the cosine of the angle between them.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c] / (‖queries[i]‖ ‖keys[j]‖)

    The score of a zero vector is 0, and so are its gradients. The length of any other vector has no effect, even where
    squares of its entries underflow or overflow in the type of the arrays. Graves et al. call scale the key strength β.

    Args:
        queries: (batch, [heads], queries, features); query vectors
        keys: (batch, [heads], keys, features); key vectors
        scale (default None): factor of the cosines; 1 if None
    Returns:
        scores: (batch, [heads], queries, keys); logits (natural logarithm)
    Source: Graves et al. 2014, section 3.3.1, arXiv:1410.5401
    Example:
        scores = attention.cosine_score(queries, keys)
    """
    check(COSINE_SCORE, scale=scale, queries=queries, keys=keys)
    return _cosine_score(queries, keys, scale)


def _cosine_score(queries: tf.Tensor, keys: tf.Tensor, scale: float | None) -> tf.Tensor:
    scores = tf.matmul(direction(queries), direction(keys), transpose_b=True)
    return scores if scale is None else scores * scale


def location_score(num_keys: int | tf.Tensor, queries: tf.Tensor) -> tf.Tensor:
    """Score each position by the projected query alone; the keys do not matter.

    scores[i, j] = queries[i, j]

    The first num_keys positions are taken.

    Args:
        num_keys: number of keys
        queries: (batch, [heads], queries, positions); projected queries, W q
    Returns:
        scores: (batch, [heads], queries, keys); logits (natural logarithm)
    Raises:
        ShapeError: more keys than a location score has positions
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025
    Example:
        scores = attention.location_score(num_keys, queries)

    In TensorFlow: while a graph is traced, num_keys may be a scalar tensor.
    """
    known = {} if tf.is_symbolic_tensor(num_keys) else {"num_keys": num_keys}
    check(LOCATION_SCORE, **known, queries=queries)
    return _location_score(num_keys, queries)


def _location_score(num_keys: int | tf.Tensor, queries: tf.Tensor) -> tf.Tensor:
    return queries[..., :num_keys]


def gaussian_score(queries: tf.Tensor, keys: tf.Tensor, w: tf.Tensor | None = None) -> tf.Tensor:
    """Score each query against each key by a Gaussian kernel of their distance.

    scores[i, j] = -½ sum over c of ((queries[i, c] - keys[j, c]) w)²

    Their softmax are the weights of Nadaraya-Watson kernel regression with a kernel of standard deviation 1/w; w is in
    1/(units of queries and keys).

    Args:
        queries: (batch, [heads], queries, features); query vectors
        keys: (batch, [heads], keys, features); key vectors
        w (default None): (); inverse width of the kernel; 1 if None
    Returns:
        scores: (batch, [heads], queries, keys); logits (natural logarithm)
    Source: Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372
    Example:
        scores = attention.gaussian_score(queries, keys)
    """
    check(GAUSSIAN_SCORE, queries=queries, keys=keys, w=w)
    return _gaussian_score(queries, keys, w)


def _gaussian_score(queries: tf.Tensor, keys: tf.Tensor, w: tf.Tensor | None) -> tf.Tensor:
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
