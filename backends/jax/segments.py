"""Attention to a segment and to those before it, whose positions are distances, in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention_core.operators.segments import SEGMENT_ATTENTION
from backends.jax.attention import attention_layer
from backends.jax.masking import distances
from backends.jax.memory import Memory
from backends.jax.module import Specified, at_dtype, cast, draw_parameter
from backends.jax.multi_head import merge_heads, split_heads
from backends.jax.positions import SinusoidalPositions
from backends.jax.scoring import _dot_score

__all__ = ["SegmentAttention"]


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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
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
        layer = attention.SegmentAttention(query_size, num_heads, rngs=nnx.Rngs(0))
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
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(locals())
        hidden_size, of_head = self.sizes["hidden_size"], (self.sizes["heads"], self.sizes["head_size"])
        parts, linear = self.specification.inside(self.sizes), partial(nnx.Linear, dtype=dtype, param_dtype=param_dtype)
        self.W_q = linear(query_size, hidden_size, use_bias=bias, rngs=rngs)
        self.W_k = linear(query_size, hidden_size, use_bias=bias, rngs=rngs)
        self.W_v = linear(query_size, hidden_size, use_bias=bias, rngs=rngs)
        self.W_o = linear(hidden_size, query_size, use_bias=bias, rngs=rngs)
        self.W_r = linear(query_size, hidden_size, use_bias=False, rngs=rngs)
        self.u = draw_parameter(of_head, hidden_size, param_dtype, rngs)
        self.v = draw_parameter(of_head, hidden_size, param_dtype, rngs)
        self.scored = attention_layer(parts["scored"], dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.positions = SinusoidalPositions(**parts["positions"].config)

    @at_dtype
    def __call__(
        self,
        inputs: jax.Array,
        previous: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | Any]:
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
        Returns:
            context: (batch, queries, query_size); the heads' averages, projected
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: a mask or a dropout mask with another number of keys than steps of the memory and of the segment
            OptionError: per_head where no weights are returned
        """
        options: dict[str, Any] = {"need_weights": need_weights, "dropout_mask": dropout_mask}
        self._check("call", inputs=inputs, previous=previous, mask=mask, per_head=per_head, **options)
        steps = inputs if previous is None else jnp.concatenate([previous, inputs], axis=1)
        num_queries, num_keys = inputs.shape[1], steps.shape[1]
        allowed = distances(num_queries, num_keys, None)[:, None] <= num_keys - num_queries
        if mask is not None:
            allowed = allowed & (mask[:, None] if mask.ndim == 3 else mask)
            steps = jnp.where(jnp.any(allowed, axis=(1, 2))[..., None], steps, 0.0)
        heads = self.W_q(inputs), self.W_k(steps), self.W_v(steps)
        queries, keys, values = (split_heads(array, self.sizes["head_size"]) for array in heads)
        by_content = queries + cast(self.u, queries)[:, None]
        by_distance = self._by_distance(queries, num_keys)
        context, weights = self.scored._attend(by_content, Memory(keys, values, allowed), bias=by_distance, **options)
        context = self.W_o(merge_heads(context))
        if weights is None:
            return context, None
        return context, weights if per_head else jnp.mean(weights, axis=1)

    def _by_distance(self, queries: jax.Array, num_keys: int) -> jax.Array:
        """Score the distances of the keys: one matrix product, then a shift for each query."""
        farthest_first = jnp.arange(num_keys - 1, -1, -1)
        zeros = jnp.zeros((num_keys, self.sizes["query_size"]), queries.dtype)
        distances = split_heads(self.W_r(self.positions._add(zeros, farthest_first))[None], self.sizes["head_size"])
        scores = _dot_score(queries + cast(self.v, queries)[:, None], distances)
        return shift_rows(scores) * self.sizes["head_size"] ** -0.5


def shift_rows(scores: jax.Array) -> jax.Array:
    """Turn columns of distances, farthest first, into columns of keys: row i moves queries - 1 - i places forward."""
    *leading, num_queries, num_keys = scores.shape
    # Flat, with a column more in front, rows are num_keys + 1 apart; cut at the start, they are read num_keys apart.
    padded = jnp.pad(scores, (*[(0, 0)] * (scores.ndim - 1), (1, 0))).reshape(*leading, num_queries * (num_keys + 1))
    return padded[..., num_queries:].reshape(scores.shape)
