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
from attention_core.reference.arrays import align, check, promote

__all__ = ["dot_score", "scaled_dot_score", "additive_score", "cosine_score", "location_score", "gaussian_score"]


def dot_score(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Score each query against each key by their inner product.

    scores[i, j] = sum over c of queries[i, c] keys[j, c]

    Shapes: queries (batch, queries, features), keys (batch, keys, features), both with heads after batch or without;
    the result (batch, queries, keys), or (batch, heads, queries, keys).
    Units: scores are logits (natural logarithm).
    Raises: ShapeError if axes do not fit; DtypeError if the two are not of one floating type.
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025.
    """
    check(DOT_SCORE, queries=queries, keys=keys)
    return promote(queries) @ promote(keys).swapaxes(-1, -2)


def scaled_dot_score(queries: np.ndarray, keys: np.ndarray, *, scale: float | None = None) -> np.ndarray:
    """Score each query against each key by a scaled inner product.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c]

    Shapes: as dot_score. scale is 1/√features unless given.
    Units: scores are logits (natural logarithm).
    Raises: ShapeError, DtypeError, as dot_score; OptionError if scale is not a finite number.
    Source: Vaswani et al. 2017, section 3.2.1, arXiv:1706.03762.
    """
    check(SCALED_DOT_SCORE, scale=scale, queries=queries, keys=keys)
    if scale is None:
        scale = max(queries.shape[-1], 1) ** -0.5
    return promote(queries) @ promote(keys).swapaxes(-1, -2) * scale


def additive_score(queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray) -> np.ndarray:
    """Score each projected query against each projected key by a weighted tanh of their sum.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), both with heads after batch or
    without; w_v (hidden_size,); the result (batch, queries, keys), or (batch, heads, queries, keys).
    Units: scores are logits (natural logarithm).
    Raises: ShapeError if axes do not fit; DtypeError if the three are not of one floating type.
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473.
    """
    check(ADDITIVE_SCORE, queries=queries, keys=keys, w_v=w_v)
    hidden = np.tanh(promote(queries)[..., :, None, :] + promote(keys)[..., None, :, :])
    return (hidden * align(promote(w_v), 1, hidden.ndim)).sum(axis=-1)


def cosine_score(queries: np.ndarray, keys: np.ndarray, *, scale: float | None = None) -> np.ndarray:
    """Score each query against each key by the cosine of the angle between them.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c] / (‖queries[i]‖ ‖keys[j]‖)

    Shapes: as dot_score. scale is 1 unless given; Graves et al. call it the key strength β.
    Units: scores are logits (natural logarithm).
    Edge cases: a zero vector has no direction: its scores are 0, and so are their gradients. The length of any other
    vector has no effect, even where squares of its entries underflow or overflow in the type of the arrays.
    Raises: ShapeError, DtypeError, as dot_score; OptionError if scale is not a finite number.
    Source: Graves et al. 2014, section 3.3.1, arXiv:1410.5401.
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

    Shapes: queries (batch, queries, positions), with heads after batch or without, of which the first num_keys
    positions are taken; the result (batch, queries, num_keys), or (batch, heads, queries, num_keys).
    Units: scores are logits (natural logarithm).
    Raises: ShapeError if there are more keys than positions; DtypeError; OptionError if num_keys is negative.
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025.
    """
    check(LOCATION_SCORE, num_keys=num_keys, queries=queries)
    return promote(queries)[..., :num_keys]


def gaussian_score(queries: np.ndarray, keys: np.ndarray, w: np.ndarray | None = None) -> np.ndarray:
    """Score each query against each key by a Gaussian kernel of their distance.

    scores[i, j] = -½ sum over c of ((queries[i, c] - keys[j, c]) w)²

    Their softmax are the weights of Nadaraya-Watson kernel regression with a kernel of standard deviation 1/w.

    Shapes: queries and keys as dot_score; w (), an inverse width, 1 unless given.
    Units: scores are logits (natural logarithm); w is in 1/(units of queries and keys).
    Raises: ShapeError, DtypeError, as dot_score.
    Source: Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372.
    """
    check(GAUSSIAN_SCORE, queries=queries, keys=keys, w=w)
    differences = promote(queries)[..., :, None, :] - promote(keys)[..., None, :, :]
    if w is not None:
        differences = differences * align(promote(w), 0, differences.ndim)
    return -0.5 * (differences * differences).sum(axis=-1)
