"""How well a key matches a query, in MXNet: scores of projected tensors."""

from __future__ import annotations

from types import ModuleType

import mxnet as mx
from mxnet import np

from attention_core.errors import check, check_options
from attention_core.operators import ADDITIVE_SCORE, DOT_SCORE, SCALED_DOT_SCORE

__all__ = ["dot_score", "scaled_dot_score", "additive_score"]


def dot_score(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Score each query against each key by their inner product.

    scores[i, j] = sum over c of queries[i, c] keys[j, c]

    Shapes: queries (batch, queries, features), keys (batch, keys, features), both with heads after batch or without;
    the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    check(DOT_SCORE, queries=queries, keys=keys)
    if queries.size == 0 or keys.size == 0:
        return no_scores(queries, keys)
    return dot(mx, queries, keys)


def scaled_dot_score(queries: np.ndarray, keys: np.ndarray, *, scale: float | None = None) -> np.ndarray:
    """Score each query against each key by a scaled inner product.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c]

    Shapes: as dot_score. scale is 1/√features unless given.
    """
    check_options(SCALED_DOT_SCORE, scale=scale)
    check(SCALED_DOT_SCORE, queries=queries, keys=keys)
    if queries.size == 0 or keys.size == 0:
        return no_scores(queries, keys)
    if scale is None:
        scale = max(queries.shape[-1], 1) ** -0.5
    return dot(mx, queries, keys) * scale


def additive_score(queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray) -> np.ndarray:
    """Score each projected query against each projected key by a weighted tanh of their sum.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), both with heads after batch or
    without; w_v (hidden_size,); the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    check(ADDITIVE_SCORE, queries=queries, keys=keys, w_v=w_v)
    if queries.size == 0 or keys.size == 0:
        return no_scores(queries, keys)
    return additive(mx, queries, keys, w_v)


def dot(F: ModuleType, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The formula of dot_score, on arrays or in a graph."""
    return F.npx.batch_dot(queries, keys, transpose_b=True)


def additive(F: ModuleType, queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray) -> np.ndarray:
    """The formula of additive_score, on arrays or in a graph."""
    hidden = F.np.expand_dims(queries, -2) + F.np.expand_dims(keys, -3)
    # np.tanh is slower than the activation function, and less accurate in float32.
    return F.np.dot(F.npx.activation(hidden, act_type="tanh"), w_v)


def no_scores(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The scores where an axis is empty: over one, MXNet's products read foreign memory or crash."""
    return np.zeros((*queries.shape[:-1], keys.shape[-2]), dtype=queries.dtype, ctx=queries.ctx)
