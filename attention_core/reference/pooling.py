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
