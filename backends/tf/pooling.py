"""Attention pooling in TensorFlow: from scores and values to context and weights."""

from __future__ import annotations

import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.pooling import ATTENTION_POOLING
from backends.tf.masking import open_keys, softmax_over

__all__ = ["attention_pooling"]


def attention_pooling(
    scores: tf.Tensor,
    values: tf.Tensor,
    valid_lens: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    *,
    dropout_mask: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Average the values of each query's open keys by the softmax of their scores.

    context[i] = sum over j of dropout_mask[i, j] weights[i, j] values[j];  weights = masked_softmax(scores)

    Shapes: scores (batch, queries, keys), values (batch, keys, value_features), both with heads after batch or without;
    valid_lens and mask as in masked_softmax; dropout_mask as scores. Returns (context, weights):
    (batch, queries, value_features), with heads or without, and the shape of scores.
    """
    check(ATTENTION_POOLING, scores=scores, values=values, valid_lens=valid_lens, mask=mask, dropout_mask=dropout_mask)
    allowed = open_keys(scores, valid_lens, mask)
    weights = softmax_over(scores, allowed)
    return average(weights if dropout_mask is None else weights * dropout_mask, values, allowed), weights


def average(weights: tf.Tensor, values: tf.Tensor, allowed: tf.Tensor) -> tf.Tensor:
    """The sum of the values by their weights, of values that any query may attend to."""
    # A weight of 0 does not silence a NaN, so values that no query may attend to are cleared.
    return tf.matmul(weights, tf.where(tf.expand_dims(tf.reduce_any(allowed, axis=-2), axis=-1), values, 0.0))
