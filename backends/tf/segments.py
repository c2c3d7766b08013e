"""Attention to a segment and to those before it, whose positions are distances, in TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from attention_core.operators.segments import SEGMENT_ATTENTION
from backends.tf.attention import attention_layer
from backends.tf.masking import distances, size
from backends.tf.memory import Memory
from backends.tf.module import Specified, attached_mask, draw_parameter, join_attached, mode_of, project, with_mask
from backends.tf.multi_head import merge_heads, split_heads
from backends.tf.positions import SinusoidalPositions
from backends.tf.scoring import _dot_score

__all__ = ["SegmentAttention"]


@keras.saving.register_keras_serializable(package="attention_parity")
class SegmentAttention(Specified):
    """Causal attention by several heads to a segment and to the segments before it, by content and distance.

    context = W_o [head_0; head_1; ...] + b_o
    head_h, weights_h = attention_pooling(scores_h, values_h) over keys j with d >= 0, d = previous_steps + i - j
    scores_h[i, j] = ((queries_h[i] + u[h])·keys_h[j] + (queries_h[i] + v[h])·(W_r P[d])_h)/√head_size
    queries_h the h-th part of W_q inputs + b_q, keys_h of W_k [previous; inputs] + b_k, values_h of W_v [previous;
    inputs] + b_v, P[d] the vector that SinusoidalPositions adds at position d

    query_size is the features of an input and of the context, an even number. In a stack, previous is of each layer the
    inputs of that layer, so that the context grows with the number of layers. A memory that is not yet full is hidden
    at its front, by mask. Segments one by one give what one call over all of them gives, if previous has all that came
    before.

    Args:
        query_size: features of an input
        num_heads: number of heads
        hidden_size (default None): features of all heads together; query_size if None
        bias (default True): whether the projections of inputs and context have biases
        dropout (default 0.0): dropout rate of the weights in training
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        W_q: (hidden_size, query_size), projects queries
        W_k: (hidden_size, query_size), projects keys
        W_v: (hidden_size, query_size), projects values
        W_o: (query_size, hidden_size), projects the heads' averages
        b_q: (hidden_size,), biases of the queries, if bias
        b_k: (hidden_size,), biases of the keys, if bias
        b_v: (hidden_size,), biases of the values, if bias
        b_o: (query_size,), biases of the context, if bias
        W_r: (hidden_size, query_size), projects distances
        u: (heads, head_size), added to every query for its scores by content
        v: (heads, head_size), added to every query for its scores by distance
        scored.*: the DotProductAttention of each head, which has none
        positions.*: the SinusoidalPositions of the distances, which has none
    Source: Dai et al. 2019, section 3 and appendix B, arXiv:1901.02860
    Example:
        layer = attention.SegmentAttention(query_size, num_heads)
        context, weights = layer(inputs)
    """

    specification = SEGMENT_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_heads: int,
        *,
        hidden_size: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        hidden_size, of_head = self.sizes["hidden_size"], (self.sizes["heads"], self.sizes["head_size"])
        parts = self.specification.inside(self.sizes)
        self.W_q = self._projection("W_q", query_size, hidden_size, bias)
        self.W_k = self._projection("W_k", query_size, hidden_size, bias)
        self.W_v = self._projection("W_v", query_size, hidden_size, bias)
        self.W_o = self._projection("W_o", hidden_size, query_size, bias)
        self.W_r = self._projection("W_r", query_size, hidden_size)
        self.u = draw_parameter(self, "u", of_head, hidden_size)
        self.v = draw_parameter(self, "v", of_head, hidden_size)
        self.scored = attention_layer(parts["scored"], caller=self, name="scored")
        with keras.name_scope(self.name, caller=self):
            self.positions = SinusoidalPositions(**parts["positions"].config, dtype=self.dtype_policy, name="positions")
            self.positions.build(None)

    def __call__(
        self,
        inputs: tf.Tensor,
        previous: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Attend from each step to those before it, in its segment and in the segments before.

        context = W_o [head_0; head_1; ...] + b_o
        head_h, weights_h = attention_pooling(scores_h, values_h) over keys j with d >= 0, d = previous_steps + i - j
        scores_h[i, j] = ((queries_h[i] + u[h])·keys_h[j] + (queries_h[i] + v[h])·(W_r P[d])_h)/√head_size
        queries_h the h-th part of W_q inputs + b_q, keys_h of W_k [previous; inputs] + b_k, values_h of W_v [previous;
        inputs] + b_v, P[d] the vector that SinusoidalPositions adds at position d

        A step that may attend to nothing gets weights 0 and context b_o, or 0 without bias. What no step may attend to,
        NaN and inf included, has no effect as a key and gets no gradient as a key; a step of inputs is a query all the
        same. Gradients flow into previous: stop them before the call, as the paper does, or train through several
        segments.

        Args:
            inputs: (batch, queries, query_size); the steps of the segment
            previous (default None): (batch, previous_steps, query_size); the inputs of the segments before, oldest
                first
            mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a step may attend to a
                key of [previous; inputs], if it is not later
            per_head (default False): whether to return the weights of every head, or their mean
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            dropout_mask (default None): (batch, heads, queries, keys); factor of each weight
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            context: (batch, queries, query_size); the heads' averages, projected
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: a mask or a dropout mask with another number of keys than steps of the memory and of the segment
            OptionError: per_head where no weights are returned
        """
        options: dict[str, Any] = {"per_head": per_head, "need_weights": need_weights, "dropout_mask": dropout_mask}
        self._check("call", inputs=inputs, previous=previous, mask=mask, **options)
        return super().__call__(inputs, previous, mask, **options, **mode_of(training))

    def call(
        self,
        inputs: tf.Tensor,
        previous: tf.Tensor | None = None,
        attention_mask: tf.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Attend to the steps so far; Keras has cast the arguments."""
        steps = inputs if previous is None else joined_steps(previous, inputs)
        mask, num_queries, num_keys = join_attached(attention_mask, steps), size(inputs, 1), size(steps, 1)
        farthest = tf.cast(num_keys - num_queries, tf.int64)
        allowed = distances(num_queries, num_keys, None)[:, None] <= farthest
        if mask is not None:
            allowed = tf.logical_and(allowed, mask[:, None] if len(mask.shape) == 3 else mask)
            steps = tf.where(tf.reduce_any(allowed, axis=(1, 2))[..., None], steps, 0.0)
        heads = project(self.W_q, inputs), project(self.W_k, steps), project(self.W_v, steps)
        queries, keys, values = (split_heads(array, self.sizes["head_size"]) for array in heads)
        by_content = queries + tf.cast(self.u, queries.dtype)[:, None]
        by_distance = self._by_distance(queries, num_keys)
        options: dict[str, Any] = {"need_weights": need_weights, "dropout_mask": dropout_mask, "training": training}
        context, weights = self.scored._attend(by_content, Memory(keys, values, allowed), bias=by_distance, **options)
        context = project(self.W_o, merge_heads(context))
        if weights is None:
            return context, None
        return context, weights if per_head else tf.reduce_mean(weights, axis=1)

    def _by_distance(self, queries: tf.Tensor, num_keys: int | tf.Tensor) -> tf.Tensor:
        """Score by distance: one matrix product, then a shift of each query's row."""
        farthest_first = tf.range(num_keys - 1, -1, -1)
        encoded = self.positions._add(tf.zeros((num_keys, self.sizes["query_size"]), queries.dtype), farthest_first)
        distances = split_heads(project(self.W_r, encoded)[None], self.sizes["head_size"])
        scores = _dot_score(queries + tf.cast(self.v, queries.dtype)[:, None], distances)
        return shift_rows(scores) * self.sizes["head_size"] ** -0.5


def shift_rows(scores: tf.Tensor) -> tf.Tensor:
    """Turn columns of distances, farthest first, into columns of keys: row i moves queries - 1 - i places forward."""
    *leading, num_queries, num_keys = (size(scores, axis) for axis in range(scores.shape.rank))
    # Flat, with a column more in front, rows are num_keys + 1 apart; cut at the start, they are read num_keys apart.
    padded = tf.pad(scores, [*[(0, 0)] * (len(leading) + 1), (1, 0)])
    padded = tf.reshape(padded, (*leading, num_queries * (num_keys + 1)))
    return tf.reshape(padded[..., num_queries:], (*leading, num_queries, num_keys))


# ------------------------------------------------------------------------------------------- particular to TensorFlow


def joined_steps(previous: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    """The steps of previous and those of inputs, with the masks that Keras attaches to either."""
    parts, masks = (previous, inputs), [attached_mask(array) for array in (previous, inputs)]
    steps = tf.concat(parts, axis=1)
    if all(mask is None for mask in masks):
        return steps
    pairs = zip(parts, masks, strict=True)
    attached = [tf.ones(tf.shape(array)[:2], tf.bool) if mask is None else mask for array, mask in pairs]
    return with_mask(steps, tf.concat(attached, axis=1))
