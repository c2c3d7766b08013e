"""How well a key matches a query: scores of projected tensors."""

from __future__ import annotations

import numpy as np

from attention_core.operators.scoring import (
    ADDITIVE_SCORE,
    COSINE_SCORE,
    DOT_SCORE,
    GAUSSIAN_SCORE,
    LOCATION_SCORE,
    SCALED_DOT_SCORE,
)
from attention_core.reference.arrays import align, check, promote, tanh

__all__ = ["dot_score", "scaled_dot_score", "additive_score", "cosine_score", "location_score", "gaussian_score"]


def dot_score(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Score each query against each key by their inner product.

    scores[i, j] = sum over c of queries[i, c] keys[j, c]
    """
    check(DOT_SCORE, queries=queries, keys=keys)
    return promote(queries) @ promote(keys).swapaxes(-1, -2)


def scaled_dot_score(
    queries: np.ndarray, keys: np.ndarray, *, scale: float | None = None, softcap: float | None = None
) -> np.ndarray:
    """Score each query against each key by a scaled inner product.

    scores[i, j] = cap(scale · sum over c of queries[i, c] keys[j, c])
    cap(x) = softcap · tanh(x / softcap), or x without softcap
    """
    check(SCALED_DOT_SCORE, scale=scale, softcap=softcap, queries=queries, keys=keys)
    if scale is None:
        scale = max(queries.shape[-1], 1) ** -0.5
    scores = promote(queries) @ promote(keys).swapaxes(-1, -2) * scale
    return scores if softcap is None else softcap * tanh(scores / softcap)


def additive_score(queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray) -> np.ndarray:
    """Score each projected query against each projected key by a weighted tanh of their sum.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])
    """
    check(ADDITIVE_SCORE, queries=queries, keys=keys, w_v=w_v)
    hidden = tanh(promote(queries)[..., :, None, :] + promote(keys)[..., None, :, :])
    return (hidden * align(promote(w_v), 1, hidden.ndim)).sum(axis=-1)


def cosine_score(queries: np.ndarray, keys: np.ndarray, *, scale: float | None = None) -> np.ndarray:
    """Score each query against each key by the cosine of the angle between them.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c] / (‖queries[i]‖ ‖keys[j]‖)

    The score of a zero vector is 0, and so are its gradients. The length of any other vector has no effect, even where
    squares of its entries underflow or overflow in the type of the arrays. Graves et al. call scale the key strength β.
    """
    check(COSINE_SCORE, scale=scale, queries=queries, keys=keys)
    return direction(promote(queries)) @ direction(promote(keys)).swapaxes(-1, -2) * (1.0 if scale is None else scale)


def direction(vectors: np.ndarray) -> np.ndarray:
    """The vectors at length 1, along the last axis; zeros stay zeros."""
    square = (vectors * vectors).sum(axis=-1, keepdims=True)
    zero = square.real == 0.0
    return np.where(zero, 0.0, vectors / np.sqrt(np.where(zero, 1.0, square)))


def location_score(num_keys: int, queries: np.ndarray) -> np.ndarray:
    """Score each position by the projected query alone; the keys do not matter.

    scores[i, j] = queries[i, j]

    The first num_keys positions are taken.
    """
    check(LOCATION_SCORE, num_keys=num_keys, queries=queries)
    return promote(queries)[..., :num_keys]


def gaussian_score(queries: np.ndarray, keys: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
    """Score each query against each key by a Gaussian kernel of their distance.

    scores[i, j] = -½ sum over c of ((queries[i, c] - keys[j, c]) w)²

    Their softmax are the weights of Nadaraya-Watson kernel regression with a kernel of standard deviation 1/w; w is in
    1/(units of queries and keys).
    """
    check(GAUSSIAN_SCORE, queries=queries, keys=keys, w=w)
    differences = promote(queries)[..., :, None, :] - promote(keys)[..., None, :, :]
    if w is not None:
        differences = differences * align(promote(w), 0, differences.ndim)
    return -0.5 * (differences * differences).sum(axis=-1)
