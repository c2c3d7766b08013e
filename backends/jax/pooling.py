"""Attention pooling in JAX: from scores and values to context and weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from attention_core.errors import check
from attention_core.operators.pooling import ATTENTION_POOLING
from backends.jax.masking import open_keys, softmax_over

__all__ = ["attention_pooling"]


def attention_pooling(
    scores: jax.Array,
    values: jax.Array,
    valid_lens: jax.Array | None = None,
    mask: jax.Array | None = None,
    *,
    dropout_mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Average the values of each query's open keys by the softmax of their scores.

    context[i] = sum over j of dropout_mask[i, j] weights[i, j] values[j];  weights = masked_softmax(scores)

    Shapes: scores (batch, queries, keys), values (batch, keys, value_features), both with heads after batch or without;
    valid_lens and mask as in masked_softmax; dropout_mask as scores. Returns (context, weights):
    (batch, queries, value_features), with heads or without, and the shape of scores.
    """
    check(ATTENTION_POOLING, scores=scores, values=values, valid_lens=valid_lens, mask=mask, dropout_mask=dropout_mask)
    allowed = open_keys(scores, valid_lens, mask)
    weights = softmax_over(scores, allowed)
    dropped = weights if dropout_mask is None else weights * dropout_mask
    return average(dropped, values, allowed), weights


def average(weights: jax.Array, values: jax.Array, allowed: jax.Array) -> jax.Array:
    """The sum of the values by their weights, of values that any query may attend to."""
    # A weight of 0 does not silence a NaN, so values that no query may attend to are cleared.
    return weights @ jnp.where(jnp.any(allowed, axis=-2)[..., None], values, 0.0)
