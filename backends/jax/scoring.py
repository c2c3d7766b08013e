"""How well a key matches a query, in JAX: scores of projected tensors."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from attention_core.errors import check, check_options
from attention_core.operators import ADDITIVE_SCORE, DOT_SCORE, SCALED_DOT_SCORE

__all__ = ["dot_score", "scaled_dot_score", "additive_score"]


def dot_score(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """Score each query against each key by their inner product.

    scores[i, j] = sum over c of queries[i, c] keys[j, c]

    Shapes: queries (batch, queries, features), keys (batch, keys, features), both with heads after batch or without;
    the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    check(DOT_SCORE, queries=queries, keys=keys)
    return jnp.einsum("...qc,...kc->...qk", queries, keys)


def scaled_dot_score(queries: jax.Array, keys: jax.Array, *, scale: float | None = None) -> jax.Array:
    """Score each query against each key by a scaled inner product.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c]

    Shapes: as dot_score. scale is 1/√features unless given.
    """
    check_options(SCALED_DOT_SCORE, scale=scale)
    check(SCALED_DOT_SCORE, queries=queries, keys=keys)
    if scale is None:
        scale = max(queries.shape[-1], 1) ** -0.5
    # numpy.float64 is a float, too, but would promote float16 scores.
    return jnp.einsum("...qc,...kc->...qk", queries, keys) * float(scale)


def additive_score(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """Score each projected query against each projected key by a weighted tanh of their sum.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), both with heads after batch or
    without; w_v (hidden_size,); the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    check(ADDITIVE_SCORE, queries=queries, keys=keys, w_v=w_v)
    return jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v
