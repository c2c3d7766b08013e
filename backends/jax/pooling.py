"""Attention pooling in JAX: from scores and values to context and weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from attention_core.errors import check
from attention_core.operators.pooling import ATTENTION_POOLING
from backends.jax.arrays import Lengths
from backends.jax.masking import _attention_mask, open_keys, softmax_over

__all__ = ["attention_pooling"]


def attention_pooling(
    scores: jax.Array,
    values: jax.Array,
    valid_lens: Lengths | None = None,
    mask: jax.Array | None = None,
    *,
    dropout_mask: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Average the values of each query's open keys, weighted by the softmax of their scores.

    context[i] = sum over j of dropout_mask[i, j] weights[i, j] values[j]
    weights = masked_softmax(scores)

    A query that may attend to nothing gets weights and context 0. A value that no query may attend to, NaN and inf
    included, has no effect and gets gradient 0. The weights are those before dropout. A mask has as many axes as the
    scores; lengths apply to all heads.

    Args:
        scores: (batch, [heads], queries, keys); logits (natural logarithm)
        values: (batch, [heads], keys, value_features); value vectors, one for each key
        valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
        mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
        dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight
    Returns:
        context: (batch, [heads], queries, value_features); weighted averages of the values
        weights: (batch, [heads], queries, keys); probabilities over the keys
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473
    Example:
        context, weights = attention.attention_pooling(scores, values)
    """
    check(ATTENTION_POOLING, scores=scores, values=values, valid_lens=valid_lens, mask=mask, dropout_mask=dropout_mask)
    return _attention_pooling(scores, values, _attention_mask(scores.shape[-1], valid_lens, mask), dropout_mask)


def _attention_pooling(
    scores: jax.Array, values: jax.Array, mask: jax.Array | None, dropout_mask: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    allowed = open_keys(scores, mask)
    weights = softmax_over(scores, allowed)
    return average(weights, values, allowed, dropout_mask), weights


def for_each_head(array: jax.Array, queries: jax.Array) -> jax.Array:
    """Keys or values with as many heads as the queries: head h of these has head ⌊h · key_heads / heads⌋."""
    if array.ndim < 4 or array.shape[1] == queries.shape[1]:
        return array
    return jnp.repeat(array, queries.shape[1] // array.shape[1], axis=1)


def average(
    weights: jax.Array, values: jax.Array, allowed: jax.Array | None, dropout_mask: jax.Array | None
) -> jax.Array:
    """The sum of the values by their weights; allowed is None where the values that it hides have been cleared."""
    if allowed is not None:  # a weight of 0 does not silence a NaN, so values that no query may attend to are cleared
        values = jnp.where(jnp.any(allowed, axis=-2)[..., None], values, 0.0)
    return (weights if dropout_mask is None else weights * dropout_mask) @ values
