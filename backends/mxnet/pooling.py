"""Attention pooling in MXNet: from scores and values to context and weights."""

from __future__ import annotations

import mxnet as mx
from mxnet import np, npx

from attention_core.operators.pooling import ATTENTION_POOLING
from backends.mxnet.arrays import Lengths, check
from backends.mxnet.masking import _attention_mask, open_keys, softmax_over

__all__ = ["attention_pooling"]


def attention_pooling(
    scores: np.ndarray,
    values: np.ndarray,
    valid_lens: Lengths | None = None,
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
    allowed = _attention_mask(scores.shape[-1], valid_lens, mask, scores.ctx)
    return _attention_pooling(scores, values, allowed, dropout_mask)


def _attention_pooling(
    scores: np.ndarray, values: np.ndarray, mask: np.ndarray | None, dropout_mask: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    allowed = open_keys(scores, mask)
    weights = softmax_over(scores, allowed)
    return average(weights, values, allowed, dropout_mask), weights


def for_each_head(array: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Keys or values with as many heads as the queries: head h of these has head ⌊h · key_heads / heads⌋."""
    if array.ndim < 4 or array.shape[1] == queries.shape[1]:
        return array
    return np.repeat(array, queries.shape[1] // array.shape[1], axis=1)


def average(
    weights: np.ndarray, values: np.ndarray, allowed: np.ndarray | None, dropout_mask: np.ndarray | None
) -> np.ndarray:
    """The sum of the values by their weights; allowed is None where the values that it hides have been cleared."""
    if weights.size == 0 or values.size == 0:  # over an empty axis, MXNet reads foreign memory or crashes
        return np.zeros((*weights.shape[:-1], values.shape[-1]), dtype=values.dtype, ctx=values.ctx)
    if allowed is not None:  # a weight of 0 does not silence a NaN, so values that no query may attend to are cleared
        values = zero_hidden(np.expand_dims(np.any(allowed, axis=-2), -1), values)
    return npx.batch_dot(weights if dropout_mask is None else weights * dropout_mask, values)


# ------------------------------------------------------------------------------------------------ particular to MXNet


def zero_hidden(seen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Clear the values that no query may attend to."""
    if values.size == 0:
        return values
    # Of sequences of one step, those of length 0 are cleared: MXNet's where takes ten times as long. Legacy arrays, of
    # the same memory, reshape without a copy.
    rows = values.as_nd_ndarray().reshape((1, -1, values.shape[-1]))
    lens = np.broadcast_to(seen, (*values.shape[:-1], 1)).astype(values.dtype).as_nd_ndarray().reshape((-1,))
    return mx.nd.SequenceMask(rows, lens, use_sequence_length=True, axis=0).reshape(values.shape).as_np_ndarray()
