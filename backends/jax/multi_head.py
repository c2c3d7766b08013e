"""Attention with several heads, and how much each of them matters, in JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention_core.errors import check, check_options, check_per_head
from attention_core.operators.multi_head import ABLATION_IMPORTANCE, MULTI_HEAD_ATTENTION, TAYLOR_IMPORTANCE
from backends.jax.attention import Attention, Memory, attention_layer
from backends.jax.masking import attention_mask
from backends.jax.module import drawn_mask, dropout_layer, dtype_of
from backends.jax.pooling import attention_pooling

__all__ = ["MultiHeadAttention", "ablation_importance", "taylor_importance"]


class MultiHeadAttention(Attention):
    """Attention by several heads at once, each with its own projections.

    context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h), with
    queries_h the h-th part of W_q queries + b_q, keys_h of W_k keys + b_k, values_h of W_v values + b_v

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size), or
    (steps, batch, ...) with time_major; mask with heads after batch or without; returns (context, weights): the shape
    of queries, and (batch, queries, keys), or (batch, heads, queries, keys) with per_head.
    """

    specification = MULTI_HEAD_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_heads: int,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        hidden_size: int | None = None,
        score: str = "scaled_dot",
        num_positions: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            rngs,
            query_size=query_size,
            num_heads=num_heads,
            key_size=key_size,
            value_size=value_size,
            hidden_size=hidden_size,
            score=score,
            num_positions=num_positions,
            bias=bias,
            dropout=dropout,
            time_major=time_major,
        )
        linear = partial(nnx.Linear, use_bias=bias, param_dtype=dtype, rngs=rngs)
        hidden_size = self.sizes["hidden_size"]
        self.W_q = linear(query_size, hidden_size)
        self.W_k = linear(self.sizes["key_size"], hidden_size)
        self.W_v = linear(self.sizes["value_size"], hidden_size)
        self.W_o = linear(hidden_size, query_size)
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype, rngs=rngs)
        self.scored.dropout = dropout_layer(0.0, None)  # weights are dropped here, and need one stream of numbers

    def prepare(
        self,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> Memory:
        """Project the keys and values of every head, and keep them for many queries.

        memory = (projected keys, projected values, mask), of keys and values 0 where hidden from all
        """
        check(
            self.method("prepare"),
            self.sizes,
            dtype_of(self),
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        keys, values = self.to_batch_first(keys), self.to_batch_first(values)
        allowed = attention_mask(keys.shape[-2], valid_lens, mask)
        if allowed is not None:
            allowed = allowed if allowed.ndim == 4 else allowed[:, None]
            # Cleared before they are projected, where a bias would hide that they were 0, and a NaN would spread.
            seen = jnp.any(allowed, axis=(1, 2))[..., None]
            keys, values = jnp.where(seen, keys, 0.0), jnp.where(seen, values, 0.0)
        return Memory(self.scored.project(self.split(self.W_k(keys))), self.split(self.W_v(values)), allowed)

    def attend(
        self,
        queries: jax.Array,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: jax.Array | None = None,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | Any]:
        """Attend with queries to a prepared memory.

        context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h)

        Shapes: head_mask (heads,) or (batch, heads); dropout_mask (batch, heads, queries, keys).
        """
        check_options(self.method("attend"), per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.method("attend"),
            self.sizes,
            dtype_of(self),
            queries=queries,
            memory=memory,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        own = self.split(self.W_q(self.to_batch_first(queries)))
        heads, weights = None if need_weights else self.in_blocks(own, memory, dropout_mask), None
        if heads is None:
            scores = self.scored.score(own, memory.keys)
            if dropout_mask is None:
                dropout_mask = drawn_mask(self.dropout, scores)
            heads, weights = attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        if head_mask is not None:
            heads = heads * head_mask[..., None, None]
        joined = jnp.swapaxes(heads, 1, 2)
        context = self.W_o(joined.reshape(*joined.shape[:2], self.sizes["hidden_size"]))
        if not need_weights:
            return self.to_batch_first(context), None
        return self.to_batch_first(context), weights if per_head else jnp.mean(weights, axis=1)

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: jax.Array | None = None,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | Any]:
        """Prepare the keys and values, and attend to them."""
        check_options(self.method("call"), per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.method("call"),
            self.sizes,
            dtype_of(self),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        options = {"per_head": per_head, "need_weights": need_weights}
        return self.attend(queries, memory, **options, head_mask=head_mask, dropout_mask=dropout_mask)

    def dot_scale(self, features: int) -> float | None:
        """As the layer of the score."""
        return self.scored.dot_scale(features)

    def additive_terms(self, queries: jax.Array) -> tuple[jax.Array, jax.Array] | None:
        """As the layer of the score."""
        return self.scored.additive_terms(queries)

    def split(self, array: jax.Array) -> jax.Array:
        """(batch, steps, hidden_size) as (batch, heads, steps, features of a head)."""
        parts = array.reshape(*array.shape[:2], self.sizes["heads"], self.sizes["head_size"])
        return jnp.swapaxes(parts, 1, 2)


Losses = Callable[[jax.Array], jax.Array]


def ablation_importance(losses: Losses, head_mask: jax.Array) -> jax.Array:
    """How much the loss rises when a head is switched off, for each head.

    importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]

    Shapes: losses is a function from (batch, heads) to (batch,); head_mask (batch, heads); the result (heads,).
    """
    check_options(ABLATION_IMPORTANCE, losses=losses)
    check(ABLATION_IMPORTANCE, head_mask=head_mask)
    heads = jnp.arange(head_mask.shape[-1])
    whole = losses(head_mask)
    without = [losses(jnp.where(heads == head, 0.0, head_mask)) for head in range(head_mask.shape[-1])]
    return jnp.array([jnp.mean(loss - whole) for loss in without], whole.dtype)


def taylor_importance(losses: Losses, head_mask: jax.Array) -> jax.Array:
    """How much the loss would change to first order if a head were switched off, for each head.

    importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|

    Shapes: as ablation_importance; an example's loss depends on its own row of head_mask alone.
    """
    check_options(TAYLOR_IMPORTANCE, losses=losses)
    check(TAYLOR_IMPORTANCE, head_mask=head_mask)
    found, pull_back = jax.vjp(losses, head_mask)
    (slope,) = pull_back(jnp.ones_like(found))
    return jnp.mean(jnp.abs(head_mask * slope), axis=0)
