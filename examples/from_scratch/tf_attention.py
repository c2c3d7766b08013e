"""Bahdanau's additive attention with masks, in TensorFlow and Keras and nothing else: a file to read, or to copy.

    scores[i, j] = w_v · tanh(W_q queries[i] + W_k keys[j])
    weights[i, j] = exp(scores[i, j]) / sum over open k of exp(scores[i, k])
    context[i] = sum over j of weights[i, j] values[j]

A mask is True where a query may attend; of lengths, it is `tf.range(num_keys) < valid_lens[:, None, None]`. A query
that may attend to nothing has weights, context and gradients of 0. What is hidden from all has no effect, even as NaN.
"""

import keras
import tensorflow as tf


def masked_softmax(scores: tf.Tensor, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Softmax over the open keys, the last axis; 0 elsewhere."""
    opened = scores != -float("inf")
    if mask is not None:
        opened = opened & mask
    # Only -inf loses against every score. tf.nn.softmax multiplies by a rounded reciprocal: a saturated row is not 1.
    zeros = tf.zeros_like(scores)
    scores = tf.where(opened, scores, -float("inf"))
    highest = tf.stop_gradient(tf.reduce_max(scores, axis=-1, keepdims=True))
    exponentials = tf.where(opened, tf.exp(scores - tf.where(highest > -float("inf"), highest, 0.0)), zeros)
    total = tf.reduce_sum(exponentials, axis=-1, keepdims=True)
    return exponentials / tf.where(total != 0.0, total, 1.0)


def additive_attention(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    W_q: tf.Tensor,
    W_k: tf.Tensor,
    w_v: tf.Tensor,
    mask: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Context, (batch, queries, value_size), and weights, (batch, queries, keys); a heads axis may follow batch.

    queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size), W_q
    (hidden_size, query_size), W_k (hidden_size, key_size), w_v (hidden_size,), mask (batch, queries or 1, keys).
    """
    if mask is not None:  # 0 times NaN is NaN: what is hidden from all has to go before the products
        seen = tf.reduce_any(mask, axis=-2)[..., None]
        keys, values = tf.where(seen, keys, tf.zeros_like(keys)), tf.where(seen, values, tf.zeros_like(values))
    queries, keys = tf.linalg.matmul(queries, W_q, transpose_b=True), tf.linalg.matmul(keys, W_k, transpose_b=True)
    hidden = tf.tanh(queries[..., :, None, :] + keys[..., None, :, :])
    weights = masked_softmax(tf.linalg.matvec(hidden, w_v), mask)
    return tf.linalg.matmul(weights, values), weights


class BahdanauAttention(keras.layers.Layer):
    """The same as a layer, with its parameters."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        sizes = {"W_q": (hidden_size, query_size), "W_k": (hidden_size, key_size), "w_v": (hidden_size,)}
        for name, shape in sizes.items():
            bound = shape[-1] ** -0.5
            drawn = keras.initializers.RandomUniform(-bound, bound)
            setattr(self, name, self.add_weight(name=name, shape=shape, initializer=drawn))

    def call(
        self, queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Context and weights."""
        return additive_attention(queries, keys, values, self.W_q, self.W_k, self.w_v, mask)
