"""Attention pooling: from scores and values to context and weights."""

from __future__ import annotations

import numpy as np

from attention_core.operators.pooling import ATTENTION_POOLING
from attention_core.reference.arrays import check, promote
from attention_core.reference.masking import open_keys, softmax_over

__all__ = ["attention_pooling"]


def attention_pooling(
    scores: np.ndarray,
    values: np.ndarray,
    valid_lens: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    *,
    dropout_mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Average the values of each query's open keys, weighted by the softmax of their scores.

    context[i] = sum over j of dropout_mask[i, j] weights[i, j] values[j]
    weights = masked_softmax(scores)

    A query that may attend to nothing gets weights and context 0. A value that no query may attend to, NaN and inf
    included, has no effect and gets gradient 0. The weights are those before dropout. A mask has as many axes as the
    scores; lengths apply to all heads.

    Args:
        scores: (batch, [heads], queries, keys); logits (natural logarithm)
        values: (batch, [heads], keys, value_features); value vectors, one for each key
        valid_lens (default None): integers (batch, [queries]), or a list; number of valid keys: key j is open where j <
            valid_len; out-of-range lengths are clipped
        mask (default None): booleans (batch, [heads], queries, keys), each axis its size or 1; True where a query may
            attend to a key; combined with valid_lens by logical and
        dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight: 0 or 1/(1 - rate)
    Returns:
        context: (batch, [heads], queries, value_features); weighted averages of the values
        weights: (batch, [heads], queries, keys); probabilities over the keys
    Raises:
        ShapeError, DtypeError: an array does not fit the operator or the other arrays
        MaskError: a mask is not boolean
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473
    Example:
        context, weights = attention.attention_pooling(scores, values)
    """
    check(ATTENTION_POOLING, scores=scores, values=values, valid_lens=valid_lens, mask=mask, dropout_mask=dropout_mask)
    return pool(promote(scores), promote(values), open_keys(scores, valid_lens, mask), dropout_mask)


def pool(
    scores: np.ndarray, values: np.ndarray, allowed: np.ndarray, dropout_mask: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Context and weights under a mask in the shape of scores."""
    weights = softmax_over(scores, allowed)
    return average(weights, values, allowed, dropout_mask), weights


def for_each_head(array: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Keys or values with as many heads as the queries: head h of these has head ⌊h · key_heads / heads⌋."""
    heads, key_heads = queries.shape[-3], array.shape[-3]
    return array if heads == key_heads else np.repeat(array, heads // key_heads, axis=-3)


def average(
    weights: np.ndarray, values: np.ndarray, allowed: np.ndarray, dropout_mask: np.ndarray | None = None
) -> np.ndarray:
    """The weighted sum of the values; a value that no query may attend to counts as 0."""
    values = np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0)
    return (weights if dropout_mask is None else weights * promote(dropout_mask)) @ values
