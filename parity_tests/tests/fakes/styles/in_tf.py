"""Right implementations in TensorFlow, as people write them: each class is one style, with the cases it is asked."""

import keras
import tensorflow as tf

from backends.tf import runtime  # noqa: F401


class Softmax(keras.layers.Layer):
    def call(self, scores, mask=None):
        allowed = tf.ones_like(scores, tf.bool) & (scores > -float("inf"))
        if mask is not None:
            allowed = allowed & mask
        highest = tf.reduce_max(tf.where(allowed, scores, scores.dtype.min), axis=-1, keepdims=True)
        raised = tf.where(allowed, tf.exp(tf.where(allowed, scores, highest) - highest), 0)
        return tf.math.divide_no_nan(raised, tf.reduce_sum(raised, axis=-1, keepdims=True))


class Layers:
    """An instance of a layer as a function: call has the signature."""

    cases = ("masked_softmax-[mlo]*",)
    masked_softmax = Softmax(dtype="float64")


class Graphs:
    """Functions that are traced to graphs."""

    cases = "dot_score-*", "gaussian_score-[ph]*"

    @tf.function(reduce_retracing=True)
    def dot_score(queries, keys):
        return tf.einsum("...qd,...kd->...qk", queries, keys)

    @tf.function(reduce_retracing=True)
    def gaussian_score(queries, keys, w=None):
        distance = tf.expand_dims(queries, -2) - tf.expand_dims(keys, -3)
        return -tf.reduce_sum(tf.square(distance if w is None else distance * w), axis=-1) / 2
