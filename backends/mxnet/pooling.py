"""Attention pooling in MXNet: from scores and values to context and weights."""

from __future__ import annotations

import mxnet as mx
from mxnet import np, npx

from attention_core.errors import check
from attention_core.operators.pooling import ATTENTION_POOLING
from backends.mxnet.masking import open_keys, softmax_over

__all__ = ["attention_pooling"]


def attention_pooling(
    scores: np.ndarray,
    values: np.ndarray,
    valid_lens: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    *,
    dropout_mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Average the values of each query's open keys by the softmax of their scores.

    context[i] = sum over j of dropout_mask[i, j] weights[i, j] values[j];  weights = masked_softmax(scores)

    Shapes: scores (batch, queries, keys), values (batch, keys, value_features), both with heads after batch or without;
    valid_lens and mask as in masked_softmax; dropout_mask as scores. Returns (context, weights):
    (batch, queries, value_features), with heads or without, and the shape of scores.
    """
    check(ATTENTION_POOLING, scores=scores, values=values, valid_lens=valid_lens, mask=mask, dropout_mask=dropout_mask)
    allowed = open_keys(scores, valid_lens, mask)
    weights = softmax_over(scores, allowed)
    if scores.size == 0 or values.size == 0:  # over an empty axis, MXNet reads foreign memory or crashes
        return np.zeros((*scores.shape[:-1], values.shape[-1]), dtype=values.dtype, ctx=values.ctx), weights
    return average(weights, values, allowed, dropout_mask), weights


def average(
    weights: np.ndarray, values: np.ndarray, allowed: np.ndarray, dropout_mask: np.ndarray | None = None
) -> np.ndarray:
    """The sum of the values by their weights, of values that any query may attend to."""
    # A weight of 0 does not silence a NaN, so values that no query may attend to are cleared.
    values = shown(np.expand_dims(np.any(allowed, axis=-2), -1), values)
    return npx.batch_dot(weights if dropout_mask is None else weights * dropout_mask, values)


def shown(seen: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values with 0 where they are not seen."""
    if values.size == 0:
        return values
    # Of sequences of one step, those of length 0 are cleared: MXNet's where takes ten times as long. Legacy arrays, of
    # the same memory, reshape without a copy.
    rows = values.as_nd_ndarray().reshape((1, -1, values.shape[-1]))
    lens = np.broadcast_to(seen, (*values.shape[:-1], 1)).astype(values.dtype).as_nd_ndarray().reshape((-1,))
    return mx.nd.SequenceMask(rows, lens, use_sequence_length=True, axis=0).reshape(values.shape).as_np_ndarray()
