"""Attention to a window of the keys, in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention_core.errors import check, check_offset, check_options
from attention_core.operators.local import LOCAL_ATTENTION
from backends.jax.attention import Attention, Memory, attention_layer
from backends.jax.masking import distances, open_keys
from backends.jax.module import drawn, drawn_mask, dtype_of
from backends.jax.pooling import attention_pooling

__all__ = ["LocalAttention"]


class LocalAttention(Attention):
    """Attention to a window of keys, around the query's own position or around one that it predicts.

    weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights values
    monotonic:  p[i] = i + offset, g = 1
    predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

    S is the number of keys up to the last that the query may attend to. The weights are not normalised again.

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or (steps, batch, ...) with time_major; offset (batch,); returns
    (context, weights).
    """

    specification = LOCAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        window: int,
        *,
        mode: str = "monotonic",
        score: str = "general",
        hidden_size: int | None = None,
        num_positions: int | None = None,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            rngs,
            query_size=query_size,
            key_size=key_size,
            window=window,
            mode=mode,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            dropout=dropout,
            time_major=time_major,
        )
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype, rngs=rngs)
        if mode == "predictive":
            hidden_size = self.sizes["hidden_size"]
            self.W_p = nnx.Linear(query_size, hidden_size, use_bias=False, param_dtype=dtype, rngs=rngs)
            self.v_p = drawn((hidden_size,), hidden_size, dtype, rngs)

    def project(self, keys: jax.Array) -> jax.Array:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def attend(
        self,
        queries: jax.Array,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: jax.Array | None = None,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window
        """
        check_options(self.method("attend"), need_weights=need_weights)
        check(
            self.method("attend"),
            self.sizes,
            dtype_of(self),
            queries=queries,
            memory=memory,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        check_offset(self.specification.name, self.sizes["mode"], offset)
        queries = self.to_batch_first(queries)
        scores = self.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        num_queries, num_keys = scores.shape[-2:]
        window = self.sizes["window"]
        if self.sizes["mode"] == "monotonic":
            first = 0 if offset is None else offset.reshape(-1, *[1] * (scores.ndim - 1))
            distance = distances(num_queries, num_keys, first)
        else:
            distance = jnp.arange(num_keys) - self.centres(queries, memory.mask, num_keys)
        allowed = open_keys(scores, None, memory.mask) & (distance >= -window) & (distance <= window)
        if self.sizes["mode"] == "monotonic":
            context, weights = attention_pooling(scores, memory.values, mask=allowed, dropout_mask=dropout_mask)
        else:
            near = jnp.where(allowed, jnp.exp(-2.0 * (distance / window) ** 2), 0.0).astype(scores.dtype)
            factor = near if dropout_mask is None else near * dropout_mask
            context, weights = attention_pooling(scores, memory.values, mask=allowed, dropout_mask=factor)
            weights = weights * near
        return self.to_batch_first(context), weights if need_weights else None

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        need_weights: bool = True,
        offset: jax.Array | None = None,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | Any]:
        """Prepare the keys and values, and attend to them."""
        check_options(self.method("call"), need_weights=need_weights)
        check(
            self.method("call"),
            self.sizes,
            dtype_of(self),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, offset=offset, dropout_mask=dropout_mask)

    def centres(self, queries: jax.Array, mask: jax.Array | None, num_keys: int) -> jax.Array:
        """The position p that each query predicts, (batch, queries, 1), with heads or without; float32 at least."""
        # A float16 or bfloat16 position may be off by a good part of the distance to the next key.
        precise = jnp.promote_types(queries.dtype, jnp.float32)
        hidden = jnp.tanh(self.W_p(queries.astype(precise)))
        places = jax.nn.sigmoid(hidden @ self.v_p[...].astype(precise))[..., None]
        if mask is None:
            return num_keys * places
        return jnp.max(jnp.arange(1, num_keys + 1) * mask, axis=-1, keepdims=True, initial=0) * places
