"""Attention pooling in TensorFlow: from scores and values to context and weights."""

from __future__ import annotations

import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.pooling import ATTENTION_POOLING
from backends.tf.arrays import Lengths
from backends.tf.masking import _attention_mask, open_keys, size, softmax_over

__all__ = ["attention_pooling"]


def attention_pooling(
    scores: tf.Tensor,
    values: tf.Tensor,
    valid_lens: Lengths | None = None,
    mask: tf.Tensor | None = None,
    *,
    dropout_mask: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
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
    return _attention_pooling(scores, values, _attention_mask(size(scores, -1), valid_lens, mask), dropout_mask)


def _attention_pooling(
    scores: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None, dropout_mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    allowed = open_keys(scores, mask)
    weights = softmax_over(scores, allowed)
    return average(weights, values, allowed, dropout_mask), weights


def for_each_head(array: tf.Tensor, queries: tf.Tensor) -> tf.Tensor:
    """Keys or values with as many heads as the queries: head h of these has head ⌊h · key_heads / heads⌋."""
    count = heads_for_each_key(queries, array)
    return array if isinstance(count, int) and count == 1 else tf.repeat(array, count, axis=1)


def average(
    weights: tf.Tensor, values: tf.Tensor, allowed: tf.Tensor | None, dropout_mask: tf.Tensor | None
) -> tf.Tensor:
    """The sum of the values by their weights; allowed is None where the values that it hides have been cleared."""
    if allowed is not None:  # a weight of 0 does not silence a NaN, so values that no query may attend to are cleared
        values = tf.where(tf.expand_dims(tf.reduce_any(allowed, axis=-2), axis=-1), values, 0.0)
    return tf.matmul(weights if dropout_mask is None else weights * dropout_mask, values)


# ------------------------------------------------------------------------------------------- particular to TensorFlow


def heads_for_each_key(queries: tf.Tensor, keys: tf.Tensor) -> int | tf.Tensor:
    """How many heads of the queries read each head of the keys."""
    if keys.shape.rank < 4 or (keys.shape[1] is not None and keys.shape[1] == queries.shape[1]):
        return 1
    heads, key_heads = size(queries, 1), size(keys, 1)
    known = isinstance(heads, int) and isinstance(key_heads, int)
    return heads // (max(key_heads, 1) if known else tf.maximum(key_heads, 1))
