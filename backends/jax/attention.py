"""Trainable attention layers in JAX: prepare keys and values once, attend many times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_options, check_positions
from attention_core.operators.attention import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
    KERNEL_ATTENTION,
    LOCATION_ATTENTION,
)
from attention_core.specification import Layer, Operator, Part
from backends.jax.blocked import (
    ADDITIVE_MIN_ELEMENTS,
    DOT_MIN_ELEMENTS,
    blocked_additive_attention,
    blocked_dot_attention,
    use_blocks,
)
from backends.jax.masking import attention_mask
from backends.jax.module import drawn, drawn_mask, dropout_layer, drops, dtype_of
from backends.jax.pooling import attention_pooling
from backends.jax.scoring import (
    additive_score,
    cosine_score,
    dot_score,
    gaussian_score,
    location_score,
    scaled_dot_score,
)

__all__ = [
    "Memory",
    "DotProductAttention",
    "AdditiveAttention",
    "GeneralAttention",
    "ConcatAttention",
    "CosineAttention",
    "LocationAttention",
    "KernelAttention",
]


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: jax.Array
    values: jax.Array
    mask: jax.Array | None


class Attention(nnx.Module):
    """What the attention layers share: prepare, attend and a call, around one score.

    context, weights = attention_pooling(score(queries, project(keys)), values)
    """

    specification: Layer
    projects = True
    """Whether memory holds something else than the keys themselves."""

    def __init__(self, rngs: nnx.Rngs | None, **options: Any) -> None:
        # For a graphdef to be a static argument of jax.jit, all in a layer that is no array must have a hash.
        self.sizes = freeze(check_options(self.specification, **options))
        self.dropout = dropout_layer(options.get("dropout", 0.0), rngs)

    def project(self, keys: jax.Array) -> jax.Array:
        """What memory holds of keys: themselves, where a layer does not say otherwise."""
        return keys

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """The score of each query against each projected key."""
        raise NotImplementedError

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
            self.method("prepare"),
            self.sizes,
            dtype_of(self),
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = zero_masked(self.to_batch_first(keys), self.to_batch_first(values), valid_lens, mask)
        return memory._replace(keys=self.project(memory.keys))

    def dot_scale(self, features: int) -> float | None:
        """The factor of q·k where the score is an inner product with a projected key; None for another score."""
        return None

    def additive_terms(self, queries: jax.Array) -> tuple[jax.Array, jax.Array] | None:
        """The projected queries and w_v, where the score is w_v · tanh(q + k) with a projected key; else None."""
        return None

    def drops(self, dropout_mask: jax.Array | None) -> bool:
        """Whether weights are dropped."""
        return dropout_mask is not None or drops(self.dropout)

    def in_blocks(self, queries: jax.Array, memory: Memory, dropout_mask: jax.Array | None) -> jax.Array | None:
        """The context alone, in blocks; None for small sizes, another score, or dropout, which needs the weights."""
        if self.drops(dropout_mask):
            return None
        factor = self.dot_scale(queries.shape[-1])
        if factor is not None and use_blocks(queries, memory.keys, DOT_MIN_ELEMENTS):
            return blocked_dot_attention(queries, *memory, factor)
        # Of queries and keys it is the keys that are projected by now.
        if (
            use_blocks(memory.keys, queries, ADDITIVE_MIN_ELEMENTS)
            and (found := self.additive_terms(queries)) is not None
        ):
            queries, w_v = found
            return blocked_additive_attention(queries, *memory, w_v)
        return None

    def attend(
        self, queries: jax.Array, memory: Memory, *, need_weights: bool = True, dropout_mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array | Any]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(score(queries, memory.keys), memory.values)

        Shapes: returns (context, weights) as attention_pooling; weights is None without need_weights.
        """
        check_options(self.method("attend"), need_weights=need_weights)
        check(
            self.method("attend"), self.sizes, dtype_of(self), queries=queries, memory=memory, dropout_mask=dropout_mask
        )
        queries = self.to_batch_first(queries)
        if not need_weights and (context := self.in_blocks(queries, memory, dropout_mask)) is not None:
            return self.to_batch_first(context), None
        scores = self.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        context, weights = attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
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
            dropout_mask=dropout_mask,
        )
        own, others = self.to_batch_first(queries), self.to_batch_first(keys)
        whole = self.projects or need_weights or self.drops(dropout_mask)
        if not whole and use_blocks(own, others, DOT_MIN_ELEMENTS):
            # Blocks clear what is hidden as they come to it, without a copy of all keys and values.
            memory = Memory(others, self.to_batch_first(values), one_mask(others, valid_lens, mask))
        else:
            memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, dropout_mask=dropout_mask)

    def method(self, name: str) -> Operator:
        """The method of that name in the specification, with the axes that it has here."""
        method = self.specification.method(name)
        return method.time_major if self.sizes["time_major"] else method

    def to_batch_first(self, array: jax.Array) -> jax.Array:
        """The array with batch first, of one with time first, or the other way round; as it is without time_major."""
        return jnp.swapaxes(array, 0, 1) if self.sizes["time_major"] else array


class DotProductAttention(Attention):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without, or (steps, batch, features) with time_major; returns (context, weights).
    """

    specification = DOT_PRODUCT_ATTENTION
    projects = False

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        time_major: bool = False,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        super().__init__(rngs, dropout=dropout, scale=scale, time_major=time_major)

    def dot_scale(self, features: int) -> float:
        """The scale, or 1/√features."""
        scale = self.sizes["scale"]
        return float(max(features, 1) ** -0.5 if scale is None else scale)

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Give scale · q·k."""
        return scaled_dot_score(queries, keys, scale=self.sizes["scale"])


class AdditiveAttention(Attention):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or (steps, batch, ...) with time_major; returns (context, weights).
    """

    specification = ADDITIVE_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            rngs,
            query_size=query_size,
            key_size=key_size,
            hidden_size=hidden_size,
            dropout=dropout,
            time_major=time_major,
        )
        self.W_q = nnx.Linear(query_size, hidden_size, use_bias=False, param_dtype=dtype, rngs=rngs)
        self.W_k = nnx.Linear(key_size, hidden_size, use_bias=False, param_dtype=dtype, rngs=rngs)
        self.w_v = drawn((hidden_size,), hidden_size, dtype, rngs)

    def project(self, keys: jax.Array) -> jax.Array:
        """Give W_k k."""
        return self.W_k(keys)

    def additive_terms(self, queries: jax.Array) -> tuple[jax.Array, jax.Array]:
        """W_q q, and w_v."""
        return self.W_q(queries), self.w_v[...]

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Give w_v · tanh(W_q q + W_k k)."""
        queries, w_v = self.additive_terms(queries)
        return additive_score(queries, keys, w_v)


class GeneralAttention(Attention):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or (steps, batch, ...) with time_major; returns (context, weights).
    """

    specification = GENERAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(rngs, query_size=query_size, key_size=key_size, dropout=dropout, time_major=time_major)
        self.W = nnx.Linear(key_size, query_size, use_bias=False, param_dtype=dtype, rngs=rngs)

    def project(self, keys: jax.Array) -> jax.Array:
        """Give W k."""
        return self.W(keys)

    def dot_scale(self, features: int) -> float:
        """One: W is in the projected key."""
        return 1.0

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Give q·W k."""
        return dot_score(queries, keys)


class ConcatAttention(Attention):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or (steps, batch, ...) with time_major; returns (context, weights).
    """

    specification = CONCAT_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            rngs,
            query_size=query_size,
            key_size=key_size,
            hidden_size=hidden_size,
            dropout=dropout,
            time_major=time_major,
        )
        self.W = nnx.Linear(query_size + key_size, hidden_size, use_bias=False, param_dtype=dtype, rngs=rngs)
        self.v = drawn((hidden_size,), hidden_size, dtype, rngs)

    def project(self, keys: jax.Array) -> jax.Array:
        """Give W [0; k]."""
        return keys @ self.W.kernel[self.sizes["query_size"] :]

    def additive_terms(self, queries: jax.Array) -> tuple[jax.Array, jax.Array]:
        """W [q; 0], and v."""
        return queries @ self.W.kernel[: self.sizes["query_size"]], self.v[...]

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Give v · tanh(W [q; 0] + W [0; k])."""
        queries, v = self.additive_terms(queries)
        return additive_score(queries, keys, v)


class CosineAttention(Attention):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without, or (steps, batch, features) with time_major; returns (context, weights).
    """

    specification = COSINE_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        time_major: bool = False,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        super().__init__(rngs, dropout=dropout, scale=scale, time_major=time_major)

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Give scale · q·k/(‖q‖ ‖k‖)."""
        return cosine_score(queries, keys, scale=self.sizes["scale"])


class LocationAttention(Attention):
    """Attention by the query alone: it scores positions, whatever keys stand there.

    context, weights = attention_pooling(location_score(keys, W queries), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, any), values (batch, keys, value_features), with
    at most num_positions keys, all with heads after batch or without, or (steps, batch, ...) with time_major; returns
    (context, weights).
    """

    specification = LOCATION_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_positions: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            rngs, query_size=query_size, num_positions=num_positions, dropout=dropout, time_major=time_major
        )
        self.W = nnx.Linear(query_size, num_positions, use_bias=False, param_dtype=dtype, rngs=rngs)

    def project(self, keys: jax.Array) -> jax.Array:
        """The keys as they are, of which there may not be more than positions."""
        check_positions(self.specification.name, keys.shape[-2], self.sizes["num_positions"])
        return keys

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Give W q, at the positions of the keys."""
        return location_score(keys.shape[-2], self.W(queries))


class KernelAttention(Attention):
    """Attention by a Gaussian kernel of the distance between query and key.

    context, weights = attention_pooling(gaussian_score(queries, keys, w), values)

    w is 1/width: a parameter that begins there if learned, else a constant.

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without, or (steps, batch, features) with time_major; returns (context, weights).
    """

    specification = KERNEL_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        width: float = 1.0,
        learned: bool = False,
        time_major: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        super().__init__(rngs, dropout=dropout, width=width, learned=learned, time_major=time_major)
        if learned:
            self.w = nnx.Param(jnp.array(1.0 / width, dtype))

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Give -½ ‖(q - k) w‖²."""
        w = self.w[...] if self.sizes["learned"] else jnp.array(1.0 / self.sizes["width"], queries.dtype)
        return gaussian_score(queries, keys, w)


LAYERS: dict[str, type[Attention]] = {
    layer.__name__: layer
    for layer in (
        DotProductAttention,
        AdditiveAttention,
        GeneralAttention,
        ConcatAttention,
        CosineAttention,
        LocationAttention,
        KernelAttention,
    )
}


def attention_layer(
    part: Part, layers: Mapping[str, type[Attention]] = LAYERS, *, dtype: DTypeLike, rngs: nnx.Rngs | None
) -> Attention:
    """The attention layer, of those given, that stands inside another one."""
    keywords = {"dtype": dtype} if part.layer.trainable else {}
    return layers[part.layer.name](**part.config, **keywords, rngs=rngs)


def zero_masked(keys: jax.Array, values: jax.Array, valid_lens: jax.Array | None, mask: jax.Array | None) -> Memory:
    """Keys and values with 0 where no query may attend to them, and the one mask."""
    allowed = one_mask(keys, valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    seen = jnp.any(allowed, axis=-2)[..., None]
    return Memory(jnp.where(seen, keys, 0.0), jnp.where(seen, values, 0.0), allowed)


def one_mask(keys: jax.Array, valid_lens: jax.Array | None, mask: jax.Array | None) -> jax.Array | None:
    """Lengths and mask as one mask, with an axis for heads where the keys have one."""
    allowed = attention_mask(keys.shape[-2], valid_lens, mask)
    return allowed if allowed is None or allowed.ndim == keys.ndim else allowed[:, None]
