"""Attention to one key, in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention_core.errors import check, check_options
from attention_core.operators.hard import HARD_ATTENTION
from backends.jax.attention import Attention, Memory, attention_layer
from backends.jax.masking import open_keys
from backends.jax.module import dtype_of
from backends.jax.pooling import average

__all__ = ["HardAttention"]


class HardAttention(Attention):
    """Attention to a single key: the one with the highest score, or one drawn by given noise.

    weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
    context = weights values, and no gradient reaches the scores

    Without noise, its term is 0. With noise, each key is drawn with its softmax probability.

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or (steps, batch, ...) with time_major; noise as weights, strictly between 0
    and 1; returns (context, weights).
    """

    specification = HARD_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        score: str = "additive",
        hidden_size: int | None = None,
        num_positions: int | None = None,
        time_major: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            rngs,
            query_size=query_size,
            key_size=key_size,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            time_major=time_major,
        )
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype, rngs=rngs)

    def project(self, keys: jax.Array) -> jax.Array:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def attend(  # type: ignore[override]
        self, queries: jax.Array, memory: Memory, *, need_weights: bool = True, noise: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
        """
        check_options(self.method("attend"), need_weights=need_weights)
        check(self.method("attend"), self.sizes, dtype_of(self), queries=queries, memory=memory, noise=noise)
        scores = jax.lax.stop_gradient(self.score(self.to_batch_first(queries), memory.keys))
        allowed = open_keys(scores, None, memory.mask)
        chances = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
        if noise is not None:
            chances = chances - jnp.log(-jnp.log(jax.lax.stop_gradient(noise).astype(chances.dtype)))
        weights = jnp.zeros_like(scores)
        if scores.shape[-1]:
            best = jnp.argmax(jnp.where(allowed, chances, -jnp.inf), axis=-1, keepdims=True)
            weights = (allowed & (jnp.arange(scores.shape[-1]) == best)).astype(scores.dtype)
        return self.to_batch_first(average(weights, memory.values, allowed)), weights if need_weights else None

    def __call__(  # type: ignore[override]
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        need_weights: bool = True,
        noise: jax.Array | None = None,
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
            noise=noise,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, noise=noise)
