"""Trainable attention layers in JAX: prepare keys and values once, attend many times."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_length, check_offset, check_options, check_per_head, check_positions
from attention_core.operators import (
    ABLATION_IMPORTANCE,
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
    HARD_ATTENTION,
    KERNEL_ATTENTION,
    LEARNED_POSITIONS,
    LOCAL_ATTENTION,
    LOCATION_ATTENTION,
    MULTI_HEAD_ATTENTION,
    NADARAYA_WATSON,
    POSITION_PERMUTATION,
    SINUSOIDAL_POSITIONS,
    TAYLOR_IMPORTANCE,
)
from attention_core.sinusoids import rates
from attention_core.specification import Layer, Operator, Part
from backends.jax.blocked import (
    ADDITIVE_LEAST,
    DOT_LEAST,
    blocked_additive_attention,
    blocked_dot_attention,
    takes_blocks,
)
from backends.jax.masking import attention_mask, distances, open_keys
from backends.jax.pooling import attention_pooling, average
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
    "LocalAttention",
    "HardAttention",
    "NadarayaWatson",
    "MultiHeadAttention",
    "ablation_importance",
    "taylor_importance",
    "SinusoidalPositions",
    "LearnedPositions",
    "position_permutation",
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
        memory = cleared(self.turned(keys), self.turned(values), valid_lens, mask)
        return memory._replace(keys=self.project(memory.keys))

    def inner(self, features: int) -> float | None:
        """The factor of q·k where the score is an inner product with a projected key; None for another score."""
        return None

    def perceptron(self, queries: jax.Array) -> tuple[jax.Array, jax.Array] | None:
        """The projected queries and w_v, where the score is w_v · tanh(q + k) with a projected key; else None."""
        return None

    def drops(self, dropout_mask: jax.Array | None) -> bool:
        """Whether weights are dropped."""
        return dropout_mask is not None or drops(self.dropout)

    def in_blocks(self, queries: jax.Array, memory: Memory, dropout_mask: jax.Array | None) -> jax.Array | None:
        """The context alone, in blocks; None for small sizes, another score, or dropout, which needs the weights."""
        if self.drops(dropout_mask):
            return None
        factor = self.inner(queries.shape[-1])
        if factor is not None and takes_blocks(queries, memory.keys, DOT_LEAST):
            return blocked_dot_attention(queries, *memory, factor)
        # Of queries and keys it is the keys that are projected by now.
        if takes_blocks(memory.keys, queries, ADDITIVE_LEAST) and (found := self.perceptron(queries)) is not None:
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
        queries = self.turned(queries)
        if not need_weights and (context := self.in_blocks(queries, memory, dropout_mask)) is not None:
            return self.turned(context), None
        scores = self.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        context, weights = attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        return self.turned(context), weights if need_weights else None

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
        own, others = self.turned(queries), self.turned(keys)
        whole = self.projects or need_weights or self.drops(dropout_mask)
        if not whole and takes_blocks(own, others, DOT_LEAST):
            # Blocks clear what is hidden as they come to it, without a copy of all keys and values.
            memory = Memory(others, self.turned(values), one_mask(others, valid_lens, mask))
        else:
            memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, dropout_mask=dropout_mask)

    def method(self, name: str) -> Operator:
        """The method of that name in the specification, with the axes that it has here."""
        method = self.specification.method(name)
        return method.time_major if self.sizes["time_major"] else method

    def turned(self, array: jax.Array) -> jax.Array:
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

    def inner(self, features: int) -> float:
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

    def perceptron(self, queries: jax.Array) -> tuple[jax.Array, jax.Array]:
        """W_q q, and w_v."""
        return self.W_q(queries), self.w_v[...]

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Give w_v · tanh(W_q q + W_k k)."""
        queries, w_v = self.perceptron(queries)
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

    def inner(self, features: int) -> float:
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

    def perceptron(self, queries: jax.Array) -> tuple[jax.Array, jax.Array]:
        """W [q; 0], and v."""
        return queries @ self.W.kernel[: self.sizes["query_size"]], self.v[...]

    def score(self, queries: jax.Array, keys: jax.Array) -> jax.Array:
        """Give v · tanh(W [q; 0] + W [0; k])."""
        queries, v = self.perceptron(queries)
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
        queries = self.turned(queries)
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
        return self.turned(context), weights if need_weights else None

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
        scores = jax.lax.stop_gradient(self.score(self.turned(queries), memory.keys))
        allowed = open_keys(scores, None, memory.mask)
        chances = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
        if noise is not None:
            chances = chances - jnp.log(-jnp.log(jax.lax.stop_gradient(noise).astype(chances.dtype)))
        weights = jnp.zeros_like(scores)
        if scores.shape[-1]:
            best = jnp.argmax(jnp.where(allowed, chances, -jnp.inf), axis=-1, keepdims=True)
            weights = (allowed & (jnp.arange(scores.shape[-1]) == best)).astype(scores.dtype)
        return self.turned(average(weights, memory.values, allowed)), weights if need_weights else None

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


class NadarayaWatson(nnx.Module):
    """Kernel regression: predict at each query the average of the values, weighted by nearness of their keys.

    predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

    Shapes: queries (batch, queries), keys and values (batch, keys), valid_lens (batch,) or (batch, queries), mask
    (batch, queries, keys), each axis its size or 1; returns (predictions, weights): (batch, queries) and
    (batch, queries, keys).
    """

    specification = NADARAYA_WATSON

    def __init__(
        self,
        *,
        width: float = 1.0,
        learned: bool = False,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        self.sizes = freeze(check_options(self.specification, width=width, learned=learned))
        self.kernel = attention_layer(self.specification.inside(self.sizes)["kernel"], dtype=dtype, rngs=rngs)

    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: jax.Array | None = None,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Predict at each query.

        predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention
        """
        check(
            self.specification.method("call"),
            self.sizes,
            dtype_of(self),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        predictions, weights = self.kernel(queries[..., None], keys[..., None], values[..., None], valid_lens, mask)
        return predictions[..., 0], weights


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
        keys, values = self.turned(keys), self.turned(values)
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
        own = self.split(self.W_q(self.turned(queries)))
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
            return self.turned(context), None
        return self.turned(context), weights if per_head else jnp.mean(weights, axis=1)

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

    def inner(self, features: int) -> float | None:
        """As the layer of the score."""
        return self.scored.inner(features)

    def perceptron(self, queries: jax.Array) -> tuple[jax.Array, jax.Array] | None:
        """As the layer of the score."""
        return self.scored.perceptron(queries)

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


class SinusoidalPositions(nnx.Module):
    """Add to each input the sines and cosines of its position; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(...)

    With layout="concatenated", all sines come first, then all cosines.

    Shapes: inputs (batch, steps, features), as is the result.
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved", rngs: nnx.Rngs | None = None) -> None:
        self.sizes = freeze(check_options(self.specification, features=features, layout=layout))

    def __call__(self, inputs: jax.Array, *, offset: int = 0) -> jax.Array:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, inputs=inputs)
        return inputs + self.table(inputs.shape[-2], offset).astype(inputs.dtype)

    def table(self, steps: int, offset: int) -> np.ndarray:
        """The rows of P from offset on, (steps, features)."""
        # On the host, and a constant under jit: jax has no float64 unless it is switched on.
        high, low = rates(self.sizes["features"])
        positions = (np.arange(steps) + float(offset))[:, None]
        sine, cosine = np.sin(positions * high), np.cos(positions * high)
        small_sine, small_cosine = np.sin(positions * low), np.cos(positions * low)
        pair = sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return table.reshape(steps, self.sizes["features"])


class LearnedPositions(nnx.Module):
    """Add to each input a learned vector for its position.

    outputs[t] = inputs[t] + P[t + offset]

    Shapes: inputs (batch, steps, features), as is the result; P (num_positions, features).
    """

    specification = LEARNED_POSITIONS

    def __init__(self, num_positions: int, features: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs) -> None:
        self.sizes = freeze(check_options(self.specification, num_positions=num_positions, features=features))
        self.P = drawn((num_positions, features), features, dtype, rngs)

    def __call__(self, inputs: jax.Array, *, offset: int = 0) -> jax.Array:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, self.P.dtype, inputs=inputs)
        end = offset + inputs.shape[-2]
        check_length(operator.title, end, self.sizes["num_positions"])
        return inputs + self.P[offset:end]


def position_permutation(features: int) -> jax.Array:
    """The order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]

    Shapes: the result (features,), int32.
    """
    check_options(POSITION_PERMUTATION, features=features)
    return jnp.arange(features, dtype=jnp.int32).reshape(-1, 2).T.reshape(-1)


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
        LocalAttention,
    )
}


def attention_layer(part: Part, *, dtype: DTypeLike, rngs: nnx.Rngs | None) -> Attention:
    """The attention layer that stands inside another one."""
    keywords = {"dtype": dtype} if part.layer.trainable else {}
    return LAYERS[part.layer.name](**part.config, **keywords, rngs=rngs)


def drawn(shape: tuple[int, ...], fan_in: int, dtype: DTypeLike, rngs: nnx.Rngs) -> nnx.Param:
    """A parameter with values from the stream of parameters, uniform in ±1/√fan_in."""
    bound = fan_in**-0.5
    return nnx.Param(jax.random.uniform(rngs.params(), shape, dtype, -bound, bound))


def dtype_of(layer: nnx.Module) -> jnp.dtype | None:
    """The floating type that a layer has fixed: that of its parameters, or None where it has none."""
    return next((node.dtype for _, node in nnx.iter_graph(layer) if isinstance(node, nnx.Param)), None)


def cleared(keys: jax.Array, values: jax.Array, valid_lens: jax.Array | None, mask: jax.Array | None) -> Memory:
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


def dropout_layer(rate: float, rngs: nnx.Rngs | None) -> nnx.Dropout:
    """Dropout that asks for a stream of random numbers only where it will draw from it."""
    # nnx.Dropout casts by numpy.float64, which is a float, too; and it refuses nnx.Rngs(params=0) even at rate 0.
    return nnx.Dropout(float(rate), rngs=rngs if rate > 0.0 else None)


def drops(dropout: nnx.Dropout) -> bool:
    """Whether anything is dropped."""
    return not dropout.deterministic and dropout.rate > 0.0


def drawn_mask(dropout: nnx.Dropout, like: jax.Array | jax.ShapeDtypeStruct) -> jax.Array | None:
    """A dropout mask from the layer's own stream of random numbers, or None where nothing is dropped."""
    return dropout(jnp.ones_like(like)) if drops(dropout) else None
