"""Trainable attention layers in JAX: prepare keys and values once, attend many times."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_options
from attention_core.operators import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
)
from backends.jax.masking import attention_mask
from backends.jax.pooling import attention_pooling
from backends.jax.scoring import additive_score, cosine_score, dot_score, scaled_dot_score

__all__ = [
    "Memory",
    "DotProductAttention",
    "AdditiveAttention",
    "GeneralAttention",
    "ConcatAttention",
    "CosineAttention",
]


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: jax.Array
    values: jax.Array
    mask: jax.Array | None


class DotProductAttention(nnx.Module):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = DOT_PRODUCT_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None, rngs: nnx.Rngs | None = None) -> None:
        # For a graphdef to be a static argument of jax.jit, all in a layer that is no array must have a hash.
        self.sizes = freeze(check_options(self.specification, dropout=dropout, scale=scale))
        self.scale = scale
        self.dropout = dropout_layer(dropout, rngs)

    def prepare(
        self,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(self.specification.method("prepare"), keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return cleared(keys, values, valid_lens, mask)

    def attend(
        self, queries: jax.Array, memory: Memory, *, dropout_mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(scaled_dot_score(queries, keys), values)
        """
        check(self.specification.method("attend"), queries=queries, memory=memory, dropout_mask=dropout_mask)
        scores = scaled_dot_score(queries, memory.keys, scale=self.scale)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class AdditiveAttention(nnx.Module):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = ADDITIVE_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.sizes = freeze(
            check_options(
                self.specification, query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout
            )
        )
        self.W_q = nnx.Linear(query_size, hidden_size, use_bias=False, param_dtype=dtype, rngs=rngs)
        self.W_k = nnx.Linear(key_size, hidden_size, use_bias=False, param_dtype=dtype, rngs=rngs)
        bound = hidden_size**-0.5
        self.w_v = nnx.Param(jax.random.uniform(rngs.params(), (hidden_size,), dtype, -bound, bound))
        self.dropout = dropout_layer(dropout, rngs)

    def prepare(
        self,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.w_v.dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=self.W_k(memory.keys))

    def attend(
        self, queries: jax.Array, memory: Memory, *, dropout_mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.w_v.dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        scores = additive_score(self.W_q(queries), memory.keys, self.w_v[...])
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.w_v.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class GeneralAttention(nnx.Module):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = GENERAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.sizes = freeze(
            check_options(self.specification, query_size=query_size, key_size=key_size, dropout=dropout)
        )
        self.W = nnx.Linear(key_size, query_size, use_bias=False, param_dtype=dtype, rngs=rngs)
        self.dropout = dropout_layer(dropout, rngs)

    def prepare(
        self,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.W.kernel.dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=self.W(memory.keys))

    def attend(
        self, queries: jax.Array, memory: Memory, *, dropout_mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(dot_score(queries, W keys), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.W.kernel.dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        scores = dot_score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.W.kernel.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class ConcatAttention(nnx.Module):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = CONCAT_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        self.sizes = freeze(
            check_options(
                self.specification, query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout
            )
        )
        self.W = nnx.Linear(query_size + key_size, hidden_size, use_bias=False, param_dtype=dtype, rngs=rngs)
        bound = hidden_size**-0.5
        self.v = nnx.Param(jax.random.uniform(rngs.params(), (hidden_size,), dtype, -bound, bound))
        self.dropout = dropout_layer(dropout, rngs)

    def prepare(
        self,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.v.dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=memory.keys @ self.W.kernel[self.sizes["query_size"] :])

    def attend(
        self, queries: jax.Array, memory: Memory, *, dropout_mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.v.dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        query = queries @ self.W.kernel[: self.sizes["query_size"]]
        scores = additive_score(query, memory.keys, self.v[...])
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.v.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class CosineAttention(nnx.Module):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = COSINE_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None, rngs: nnx.Rngs | None = None) -> None:
        # For a graphdef to be a static argument of jax.jit, all in a layer that is no array must have a hash.
        self.sizes = freeze(check_options(self.specification, dropout=dropout, scale=scale))
        self.scale = scale
        self.dropout = dropout_layer(dropout, rngs)

    def prepare(
        self,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(self.specification.method("prepare"), keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return cleared(keys, values, valid_lens, mask)

    def attend(
        self, queries: jax.Array, memory: Memory, *, dropout_mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(cosine_score(queries, keys), values)
        """
        check(self.specification.method("attend"), queries=queries, memory=memory, dropout_mask=dropout_mask)
        scores = cosine_score(queries, memory.keys, scale=self.scale)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


def cleared(keys: jax.Array, values: jax.Array, valid_lens: jax.Array | None, mask: jax.Array | None) -> Memory:
    """Keys and values with 0 where no query may attend to them, and the one mask."""
    allowed = attention_mask(keys.shape[-2], valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if allowed.ndim < keys.ndim:
        allowed = allowed[:, None]
    seen = jnp.any(allowed, axis=-2)[..., None]
    return Memory(jnp.where(seen, keys, 0.0), jnp.where(seen, values, 0.0), allowed)


def dropout_layer(rate: float, rngs: nnx.Rngs | None) -> nnx.Dropout:
    """Dropout that asks for a stream of random numbers only where it will draw from it."""
    # nnx.Dropout casts by numpy.float64, which is a float, too; and it refuses nnx.Rngs(params=0) even at rate 0.
    return nnx.Dropout(float(rate), rngs=rngs if rate > 0.0 else None)


def drawn_mask(dropout: nnx.Dropout, like: jax.Array | jax.ShapeDtypeStruct) -> jax.Array | None:
    """A dropout mask from the layer's own stream of random numbers, or None where nothing is dropped."""
    return None if dropout.deterministic or dropout.rate == 0.0 else dropout(jnp.ones_like(like))
