"""Trainable attention layers in MXNet: prepare keys and values once, attend many times.

A block that overrides `forward` silently ignores `hybridize`. So the layers check their arguments and build one mask in
`__call__` and `attend`, and `hybrid_forward` holds the formula: on arrays, or as a graph that is built once. `project`
and `score` are written for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import mxnet as mx
from mxnet import autograd, np, npx
from mxnet.gluon import Block, HybridBlock, nn

from attention_core.errors import (
    check,
    check_length,
    check_offset,
    check_options,
    check_per_head,
    check_positions,
    dtype_name,
)
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
from attention_core.specification import Layer, Part
from backends.mxnet.blocked import (
    ADDITIVE_LEAST,
    DOT_LEAST,
    blocked_additive_attention,
    blocked_dot_attention,
    takes_blocks,
)
from backends.mxnet.masking import attention_mask, positions, softmax_over
from backends.mxnet.pooling import average, shown
from backends.mxnet.scoring import additive, direction, dot, gaussian

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

Pair = tuple[np.ndarray, np.ndarray]
Answer = tuple[np.ndarray, np.ndarray | Any]
"""Context and weights, which are None without need_weights."""


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: np.ndarray
    values: np.ndarray
    mask: np.ndarray | None


class Sized(NamedTuple):
    """What is known of an array before it is there."""

    shape: tuple[int, ...]


class Attention(HybridBlock):
    """What the attention layers share: prepare, attend and a call, around one score.

    context, weights = attention_pooling(score(queries, project(keys)), values)
    """

    specification: Layer

    def __init__(
        self, prefix: str | None, params: mx.gluon.ParameterDict | None, *, time_major: bool = False, **options: Any
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(self.specification, time_major=time_major, **options)
        methods = {name: self.specification.method(name) for name in ("prepare", "attend", "call")}
        self.methods = {name: method.time_major if time_major else method for name, method in methods.items()}
        self.time_major = time_major
        self.dropout = options.get("dropout", 0.0)

    @property
    def dtype(self) -> Any:
        """The floating type of the parameters; None, for any, where there are none."""
        return next((parameter.dtype for parameter in self.collect_params().values()), None)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """What memory holds of keys: themselves, where a layer does not say otherwise."""
        return keys

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """The score of each query against each projected key, on arrays or in a graph."""
        raise NotImplementedError

    def inner(self, features: int) -> float | None:
        """The factor of q·k where the score is an inner product with a projected key; None for another score."""
        return None

    def perceptron(self, queries: np.ndarray) -> Pair | None:
        """The projected queries and w_v where the score is w_v · tanh(q + k) with a projected key; None for another."""
        return None

    def check_keys(self, num_keys: int) -> None:
        """Refuse more keys than the layer can score."""

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all

        Shapes: keys (batch, keys, features of a key), values (batch, keys, value_features), both with heads after batch
        or without, or (keys, batch, ...) with time_major; valid_lens and mask as in attention_mask.
        """
        check(
            self.methods["prepare"],
            self.sizes,
            self.dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = self.cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=self.project(memory.keys))

    def attend(
        self, queries: np.ndarray, memory: Memory, *, need_weights: bool = True, dropout_mask: np.ndarray | None = None
    ) -> Answer:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(score(queries, memory.keys), memory.values)

        Shapes: queries (batch, queries, features of a query), with heads after batch or without, or
        (queries, batch, ...) with time_major, as is context then; dropout_mask as weights, (batch, queries, keys);
        weights is None without need_weights.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            self.dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        queries = self.turned(queries)
        if not need_weights and self.takes_context(queries, memory, dropout_mask):
            return self.context(queries, memory), None
        context, weights = self.run(self.attended_graph, queries, memory, dropout_mask)
        return context, weights if need_weights else None

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        dropout_mask: np.ndarray | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], need_weights=need_weights)
        check(
            self.methods["call"],
            self.sizes,
            self.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        memory = self.cleared(keys, values, valid_lens, mask)
        queries = self.turned(queries)
        if not need_weights and self.takes_context(queries, memory, dropout_mask):
            return self.context(queries, memory._replace(keys=self.project(memory.keys))), None
        context, weights = self.run(super().__call__, queries, memory, dropout_mask)
        return context, weights if need_weights else None

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        *others: np.ndarray,
        **parameters: np.ndarray,
    ) -> Pair:
        """The formula of a whole call."""
        return self.attended(queries, self.project(keys), values, mask, dropout_mask, *others)

    def attended(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        *others: np.ndarray,
    ) -> Pair:
        """The formula of attend, on arrays or in a graph."""
        return pooled(functions(queries), self.score(queries, keys), values, mask, dropout_mask)

    def forward(self, queries: np.ndarray, keys: np.ndarray, *others: np.ndarray) -> Pair:
        """The formula of a whole call, or its graph; a graph cannot hold blocks."""
        if isinstance(queries, np.ndarray) and self.in_blocks(queries, keys):
            return self.hybrid_forward(mx, queries, keys, *others)
        return super().forward(queries, keys, *others)

    def in_blocks(self, queries: np.ndarray, keys: np.ndarray) -> bool:
        """Whether an additive score takes blocks of these arguments."""
        return False

    def takes_context(self, queries: np.ndarray, memory: Memory, dropout_mask: np.ndarray | None) -> bool:
        """Whether a context alone takes blocks: of inner products or additive scores, without dropout."""
        if dropout_mask is not None or (self.dropout > 0 and autograd.is_training()):
            return False
        if self.inner(queries.shape[-1]) is None:
            return self.in_blocks(queries, memory.keys)
        return takes_blocks(queries, memory.keys, DOT_LEAST)

    def context(self, queries: np.ndarray, memory: Memory) -> np.ndarray:
        """The context alone, in blocks."""
        scale, perceptron = self.inner(queries.shape[-1]), self.perceptron(queries)
        if scale is not None:
            context = blocked_dot_attention(queries, *memory, scale)
        else:
            assert perceptron is not None
            context = blocked_additive_attention(perceptron[0], *memory, perceptron[1])
        return self.turned(context)

    def attended_graph(self, *arrays: np.ndarray) -> Pair:
        """The formula of attend, as a graph where that of a call is the same: where keys are not projected."""
        return super().__call__(*arrays) if type(self).project is Attention.project else self.attended(*arrays)

    def run(
        self,
        formula: Callable[..., Pair],
        queries: np.ndarray,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        *others: np.ndarray,
    ) -> Pair:
        """The formula with all its arguments, of which MXNet's operators do not survive empty ones."""
        shape = (*queries.shape[:-1], memory.keys.shape[-2])
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, shape, queries)
        context = np.zeros((*shape[:-1], memory.values.shape[-1]), dtype=queries.dtype, ctx=queries.ctx)
        weights = np.zeros(shape, dtype=queries.dtype, ctx=queries.ctx)
        if 0 not in shape:
            arrays = (filled(array) for array in (queries, memory.keys, memory.values))
            found, weights = formula(*arrays, *given(memory.mask, dropout_mask, queries), *others)
            context = found if context.size else context
        return self.turned(context), weights

    def cleared(
        self, keys: np.ndarray, values: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None
    ) -> Memory:
        """The memory before its keys are projected."""
        memory = cleared(self.turned(keys), self.turned(values), valid_lens, mask)
        self.check_keys(memory.keys.shape[-2])
        return memory

    def turned(self, array: np.ndarray) -> np.ndarray:
        """The array with batch first, of one with time first, or the other way round; as it is without time_major."""
        return np.swapaxes(array, 0, 1) if self.time_major else array


class DotProductAttention(Attention):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without, or steps before batch with time_major; returns (context, weights).
    """

    specification = DOT_PRODUCT_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        time_major: bool = False,
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix, params, dropout=dropout, scale=scale, time_major=time_major)
        self.scale = scale

    def inner(self, features: int) -> float | None:
        """Give scale."""
        return max(features, 1) ** -0.5 if self.scale is None else self.scale

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give scale · q·k."""
        F, scale = functions(queries), self.scale
        if scale is None and isinstance(queries, np.ndarray):
            scale = queries.shape[-1] ** -0.5
        elif scale is None:  # a graph does not know the number of features: it has to count
            scale = F.np.sum(F.np.ones_like(queries), axis=-1, keepdims=True) ** -0.5
        return dot(F, queries, keys) * scale


class AdditiveAttention(Attention):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or steps before batch with time_major; returns (context, weights).
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
            query_size=query_size,
            key_size=key_size,
            hidden_size=hidden_size,
            dropout=dropout,
            time_major=time_major,
        )
        with self.name_scope():
            self.W_q = linear(query_size, hidden_size, use_bias=False, dtype=dtype)
            self.W_k = linear(key_size, hidden_size, use_bias=False, dtype=dtype)
            self.w_v = self.params.get("w_v", shape=(hidden_size,), dtype=dtype, init=Uniform(hidden_size**-0.5))
            self.pool = AdditivePooling()
        initialise(self)

    def in_blocks(self, queries: np.ndarray, keys: np.ndarray) -> bool:
        """Whether the additive score takes blocks of these arguments once they are projected."""
        q, k = (Sized((*array.shape[:-1], self.sizes["hidden_size"])) for array in (queries, keys))
        return takes_blocks(q, k, ADDITIVE_LEAST)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give W_k k."""
        return projected(self.W_k, keys)

    def perceptron(self, queries: np.ndarray) -> Pair:
        """Give W_q q and w_v."""
        return projected(self.W_q, queries), held(self.w_v, queries)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give w_v · tanh(W_q q + W_k k)."""
        query, w_v = self.perceptron(queries)
        return additive(functions(queries), query, keys, w_v)

    def attended(self, queries: np.ndarray, *others: np.ndarray) -> Pair:
        """The formula of attend, whose part behind the projection is a graph of its own."""
        query, w_v = self.perceptron(queries)
        return self.pool(query, *others, w_v)


class GeneralAttention(Attention):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or steps before batch with time_major; returns (context, weights).
    """

    specification = GENERAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            prefix, params, query_size=query_size, key_size=key_size, dropout=dropout, time_major=time_major
        )
        with self.name_scope():
            self.W = linear(key_size, query_size, use_bias=False, dtype=dtype)
            self.pool = DotPooling()
        initialise(self)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give W k."""
        return projected(self.W, keys)

    def inner(self, features: int) -> float | None:
        """Give 1."""
        return 1.0

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give q·W k."""
        return dot(functions(queries), queries, keys)

    def attended(self, queries: np.ndarray, *others: np.ndarray) -> Pair:
        """The formula of attend, as a graph of its own."""
        return self.pool(queries, *others)


class ConcatAttention(Attention):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or steps before batch with time_major; returns (context, weights).
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
            query_size=query_size,
            key_size=key_size,
            hidden_size=hidden_size,
            dropout=dropout,
            time_major=time_major,
        )
        with self.name_scope():
            self.W = linear(query_size + key_size, hidden_size, use_bias=False, dtype=dtype)
            self.v = self.params.get("v", shape=(hidden_size,), dtype=dtype, init=Uniform(hidden_size**-0.5))
            self.pool = AdditivePooling()
        initialise(self)

    def in_blocks(self, queries: np.ndarray, keys: np.ndarray) -> bool:
        """Whether the additive score takes blocks of these arguments once they are projected."""
        q, k = (Sized((*array.shape[:-1], self.sizes["hidden_size"])) for array in (queries, keys))
        return takes_blocks(q, k, ADDITIVE_LEAST)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give W [0; k]."""
        return self.projected(keys, slice(self.sizes["query_size"], None))

    def perceptron(self, queries: np.ndarray) -> Pair:
        """Give W [q; 0] and v."""
        return self.projected(queries, slice(self.sizes["query_size"])), held(self.v, queries)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give v · tanh(W [q; 0] + W [0; k])."""
        query, v = self.perceptron(queries)
        return additive(functions(queries), query, keys, v)

    def attended(self, queries: np.ndarray, *others: np.ndarray) -> Pair:
        """The formula of attend, whose part behind the projection is a graph of its own."""
        query, v = self.perceptron(queries)
        return self.pool(query, *others, v)

    def projected(self, inputs: np.ndarray, columns: slice) -> np.ndarray:
        """The inputs under those columns of W; there may be none: MXNet then writes foreign memory into gradients."""
        if is_empty(inputs):
            return np.zeros((*inputs.shape[:-1], self.sizes["hidden_size"]), dtype=inputs.dtype, ctx=inputs.ctx)
        return product(functions(inputs), inputs, held(self.W.weight, inputs)[:, columns], self.sizes)


class CosineAttention(Attention):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without, or steps before batch with time_major; returns (context, weights).
    """

    specification = COSINE_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        time_major: bool = False,
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix, params, dropout=dropout, scale=scale, time_major=time_major)
        self.scale = scale

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give scale · q·k/(‖q‖ ‖k‖)."""
        F = functions(queries)
        scores = dot(F, direction(F, queries), direction(F, keys))
        return scores if self.scale is None else scores * self.scale


class LocationAttention(Attention):
    """Attention by the query alone: it scores positions, whatever keys stand there.

    context, weights = attention_pooling(location_score(keys, W queries), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, any features), values
    (batch, keys, value_features), all with heads after batch or without, or steps before batch with time_major; at most
    num_positions keys; returns (context, weights).
    """

    specification = LOCATION_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_positions: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            prefix, params, query_size=query_size, num_positions=num_positions, dropout=dropout, time_major=time_major
        )
        with self.name_scope():
            self.W = linear(query_size, num_positions, use_bias=False, dtype=dtype)
        initialise(self)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give W q, at the positions of the keys."""
        F = functions(queries)
        # A graph does not know the number of keys: it has to count.
        places = F.npx.arange_like(wide(self.dtype, keys), axis=-2)
        return F.np.take(projected(self.W, queries), places, axis=-1)

    def check_keys(self, num_keys: int) -> None:
        """Refuse more keys than positions."""
        check_positions(self.specification.name, num_keys, self.sizes["num_positions"])


class KernelAttention(Attention):
    """Attention by a Gaussian kernel of the distance between query and key.

    context, weights = attention_pooling(gaussian_score(queries, keys, w), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without, or steps before batch with time_major; returns (context, weights).
    """

    specification = KERNEL_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        width: float = 1.0,
        learned: bool = False,
        time_major: bool = False,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix, params, dropout=dropout, width=width, learned=learned, time_major=time_major)
        with self.name_scope():
            self.w = Number(1.0 / width, dtype=dtype) if learned else None
        initialise(self)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give -½ ‖(q - k) w‖²."""
        w = 1.0 / self.sizes["width"] if self.w is None else held(self.w.value, queries)
        return gaussian(functions(queries), queries, keys, w)


class LocalAttention(Attention):
    """Attention to a window of keys, around the query's own position or around one that it predicts.

    weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights values
    monotonic:  p[i] = i + offset, g = 1
    predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

    S is the number of keys up to the last that the query may attend to: its valid length. g is a Gaussian of standard
    deviation window/2, and the weights are not normalised again: predictive ones add up to less than 1.

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or steps before batch with time_major; offset (batch,); returns
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
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
        self.window, self.predictive = window, mode == "predictive"
        hidden_size = self.sizes["hidden_size"]
        with self.name_scope():
            self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype)
            if self.predictive:
                self.W_p = linear(query_size, hidden_size, use_bias=False, dtype=dtype)
                self.v_p = self.params.get("v_p", shape=(hidden_size,), dtype=dtype, init=Uniform(hidden_size**-0.5))
        initialise(self)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def check_keys(self, num_keys: int) -> None:
        """As the layer of the score."""
        self.scored.check_keys(num_keys)

    def attend(
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> Answer:
        """Attend with queries to a prepared memory.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window

        Shapes: as Attention.attend; offset (batch,), 0 unless given, for mode="monotonic" alone.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            self.dtype,
            queries=queries,
            memory=memory,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        check_offset(self.specification.name, self.sizes["mode"], offset)
        queries = self.turned(queries)
        places = self.places(queries, memory, offset)
        context, weights = self.run(self.attended, queries, memory, dropout_mask, *places)
        return context, weights if need_weights else None

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        offset: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], need_weights=need_weights)
        check(
            self.methods["call"],
            self.sizes,
            self.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        memory, queries = self.cleared(keys, values, valid_lens, mask), self.turned(queries)
        check_offset(self.specification.name, self.sizes["mode"], offset)
        places = self.places(queries, memory, offset)
        context, weights = self.run(super(Attention, self).__call__, queries, memory, dropout_mask, *places)
        return context, weights if need_weights else None

    def attended(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        *others: np.ndarray,
    ) -> Pair:
        """The formula of attend, on arrays or in a graph, with what places gives."""
        place, middle = others
        F, scores = functions(queries), self.score(queries, keys)
        if self.predictive:
            hidden = F.npx.activation(projected(self.W_p, queries), act_type="tanh")
            middle = middle * F.npx.sigmoid(wide(self.dtype, F.np.dot(hidden, held(self.v_p, queries))))
        distance = place - F.np.expand_dims(middle, -1)
        mask = mask * (distance * distance <= self.window**2)
        if not self.predictive:
            return pooled(F, scores, values, mask, dropout_mask)
        distance = distance / self.window
        near = F.np.exp(-2.0 * distance * distance)
        near = F.np.where(mask, near, F.np.zeros_like(near)).astype(dtype_name(self.dtype))
        context, weights = pooled(F, scores, values, mask, near * dropout_mask)
        return context, weights * near

    def places(self, queries: np.ndarray, memory: Memory, offset: np.ndarray | None) -> Pair:
        """The position of each key; and that of each query, or, if predictive, behind the last key it may attend to."""
        dtype = wide_name(self.dtype) if self.predictive else "float64"
        (*lead, steps, _), keys = queries.shape, memory.keys.shape[-2]
        place = positions(keys, queries.ctx)
        if not self.predictive:
            middle = positions(steps, queries.ctx).reshape(*[1] * len(lead), steps)
            if offset is not None:  # for each sequence, which heads follow where there are some
                middle = middle + offset.astype("float64").reshape(-1, *[1] * len(lead))
        elif memory.mask is None or keys == 0:
            middle = np.full([1] * (queries.ndim - 1), keys, dtype="float64", ctx=queries.ctx)
        else:
            middle = np.max((place + 1.0) * memory.mask.astype("float64"), axis=-1)
        return place.astype(dtype), middle.astype(dtype)


class HardAttention(Attention):
    """Attention to a single key: the one with the highest score, or one drawn by given noise.

    weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
    context = weights values, and no gradient reaches the scores

    Without noise, its term is 0. With noise, each key is drawn with its softmax probability.

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or steps before batch with time_major; noise as weights; returns
    (context, weights).
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
            query_size=query_size,
            key_size=key_size,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            time_major=time_major,
        )
        with self.name_scope():
            self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype)
        initialise(self)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def check_keys(self, num_keys: int) -> None:
        """As the layer of the score."""
        self.scored.check_keys(num_keys)

    def attend(  # type: ignore[override]
        self, queries: np.ndarray, memory: Memory, *, need_weights: bool = True, noise: np.ndarray | None = None
    ) -> Answer:
        """Attend with queries to a prepared memory.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0

        Shapes: as Attention.attend; noise as weights, strictly between 0 and 1.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(self.methods["attend"], self.sizes, self.dtype, queries=queries, memory=memory, noise=noise)
        queries = self.turned(queries)
        context, weights = self.run(self.attended, queries, memory, None, *draws(queries, memory, noise))
        return context, weights if need_weights else None

    def __call__(  # type: ignore[override]
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        noise: np.ndarray | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], need_weights=need_weights)
        check(
            self.methods["call"],
            self.sizes,
            self.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            noise=noise,
        )
        memory, queries = self.cleared(keys, values, valid_lens, mask), self.turned(queries)
        noisy = draws(queries, memory, noise)
        context, weights = self.run(super(Attention, self).__call__, queries, memory, None, *noisy)
        return context, weights if need_weights else None

    def attended(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        *others: np.ndarray,
    ) -> Pair:
        """The formula of attend, on arrays or in a graph, with what draws gives."""
        place, term = others
        F, scores = functions(queries), self.score(queries, keys)
        allowed = (scores != -np.inf) * mask
        best = F.np.argmax(F.np.where(allowed, scores + term, F.np.full_like(scores, -np.inf)), axis=-1)
        chosen = (place == F.np.expand_dims(best, -1).astype("float64")) * allowed
        # Comparisons end every gradient: none reaches the scores.
        weights = F.np.where(chosen, F.np.ones_like(scores), F.np.zeros_like(scores))
        return average(F, weights, values, allowed, dropout_mask), weights


class NadarayaWatson(Block):
    """Kernel regression: predict at each query the average of the values, weighted by nearness of their keys.

    predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

    Shapes: queries (batch, queries), keys and values (batch, keys); returns (predictions, weights): (batch, queries),
    (batch, queries, keys).
    """

    specification = NADARAYA_WATSON

    def __init__(
        self,
        *,
        width: float = 1.0,
        learned: bool = False,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(self.specification, width=width, learned=learned)
        with self.name_scope():
            self.kernel = attention_layer(self.specification.inside(self.sizes)["kernel"], dtype=dtype)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Pair:
        """Predict at each query.

        predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

        Shapes: valid_lens (batch,) or (batch, queries), mask (batch, queries, keys), each axis its size or 1.
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.kernel.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        return super().__call__(queries, keys, values, valid_lens, mask)

    def forward(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None,
        mask: np.ndarray | None,
    ) -> Pair:
        """The formula: points are vectors of one feature."""
        queries, keys, values = (np.expand_dims(array, -1) for array in (queries, keys, values))
        predictions, weights = self.kernel(queries, keys, values, valid_lens, mask)
        return predictions[..., 0], weights


class MultiHeadAttention(Attention):
    """Attention by several heads at once, each with its own projections.

    context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h), with
    queries_h the h-th part of W_q queries + b_q, keys_h of W_k keys + b_k, values_h of W_v values + b_v

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size), or
    steps before batch with time_major; head_mask (heads,) or (batch, heads); returns (context, weights): the shape of
    queries, and (batch, queries, keys), or (batch, heads, queries, keys) with per_head.
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
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
        hidden_size = self.sizes["hidden_size"]
        with self.name_scope():
            self.W_q = linear(query_size, hidden_size, use_bias=bias, dtype=dtype)
            self.W_k = linear(self.sizes["key_size"], hidden_size, use_bias=bias, dtype=dtype)
            self.W_v = linear(self.sizes["value_size"], hidden_size, use_bias=bias, dtype=dtype)
            self.W_o = linear(hidden_size, query_size, use_bias=bias, dtype=dtype)
            self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype)
        initialise(self)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give each head's part of W_k k + b_k, as the layer of the score projects it."""
        return self.scored.project(self.split(projected(self.W_k, keys)))

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score, of each head's part of W_q q + b_q."""
        return self.scored.score(self.split(projected(self.W_q, queries)), keys)

    def check_keys(self, num_keys: int) -> None:
        """As the layer of the score."""
        self.scored.check_keys(num_keys)

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys and values of every head, and keep them for many queries.

        memory = (projected keys, projected values, mask), of keys and values 0 where hidden from all

        Shapes: the mask with heads after batch or without; the memory's keys and values are
        (batch, heads, keys, features of a head), its mask (batch, heads or 1, queries, keys).
        """
        memory = super().prepare(keys, values, valid_lens, mask)
        return memory._replace(values=self.split(projected(self.W_v, memory.values)))

    def attend(
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> Answer:
        """Attend with queries to a prepared memory.

        context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h)

        Shapes: queries (batch, queries, query_size), or (queries, batch, query_size) with time_major, as is context
        then; head_mask (heads,) or (batch, heads); dropout_mask (batch, heads, queries, keys).
        """
        check_options(self.methods["attend"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            self.dtype,
            queries=queries,
            memory=memory,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        queries = self.turned(queries)
        if not need_weights and self.takes_context(queries, memory, dropout_mask):
            return self.context(queries, memory, head_mask), None
        context, weights = self.run_heads(self.attended, queries, memory, per_head, head_mask, dropout_mask)
        return context, weights if need_weights else None

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.methods["call"],
            self.sizes,
            self.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        memory, queries = self.cleared(keys, values, valid_lens, mask), self.turned(queries)
        if not need_weights and self.takes_context(queries, memory, dropout_mask):
            parts = self.project(memory.keys), self.split(projected(self.W_v, memory.values))
            return self.context(queries, Memory(*parts, memory.mask), head_mask), None
        graph = super(Attention, self).__call__
        context, weights = self.run_heads(graph, queries, memory, per_head, head_mask, dropout_mask)
        return context, weights if need_weights else None

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        *others: np.ndarray,
        **parameters: np.ndarray,
    ) -> Pair:
        """The formula of a whole call."""
        return self.attended(queries, self.project(keys), self.split(projected(self.W_v, values)), *others)

    def attended(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        *others: np.ndarray,
    ) -> Pair:
        """The formula of attend, on arrays or in a graph, with the factor of each head."""
        (factor,), F = others, functions(queries)
        heads, weights = pooled(F, self.score(queries, keys), values, mask, dropout_mask)
        return self.joined(heads * factor), weights

    def inner(self, features: int) -> float | None:
        """As the layer of the score."""
        return self.scored.inner(self.sizes["head_size"])

    def in_blocks(self, queries: np.ndarray, keys: np.ndarray) -> bool:
        """As the layer of the score, of every head."""
        batch, steps, _ = queries.shape
        return self.scored.in_blocks(Sized((batch, self.sizes["heads"], steps, self.sizes["head_size"])), keys)

    def context(self, queries: np.ndarray, memory: Memory, head_mask: np.ndarray | None = None) -> np.ndarray:
        """The context alone, of the heads in blocks."""
        heads = self.scored.context(self.split(projected(self.W_q, queries)), memory)
        return self.turned(self.joined(heads * head_factor(head_mask, queries)))

    def joined(self, heads: np.ndarray) -> np.ndarray:
        """Give W_o [head_0; head_1; ...] + b_o, on arrays or in a graph."""
        F = functions(heads)
        return projected(self.W_o, F.npx.reshape(F.np.swapaxes(heads, 1, 2), (-2, -2, -5)))

    def run_heads(
        self,
        formula: Callable[..., Pair],
        queries: np.ndarray,
        memory: Memory,
        per_head: bool,
        head_mask: np.ndarray | None,
        dropout_mask: np.ndarray | None,
    ) -> Pair:
        """The formula with all its arguments, of which MXNet's operators do not survive empty ones."""
        like = {"dtype": queries.dtype, "ctx": queries.ctx}
        (batch, steps, _), keys, heads = queries.shape, memory.keys.shape[-2], self.sizes["heads"]
        shape = (batch, heads, steps, keys)
        if 0 in shape:
            context = projected(self.W_o, np.zeros((batch, steps, self.sizes["hidden_size"]), **like))
            weights = np.zeros(shape if per_head else (batch, steps, keys), **like)
            return self.turned(context), weights
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, shape, queries)
        factor = head_factor(head_mask, queries)
        masks = given(memory.mask, dropout_mask, memory.values)
        context, weights = formula(queries, memory.keys, memory.values, *masks, factor)
        return self.turned(context), weights if per_head else np.mean(weights, axis=1)

    def cleared(
        self, keys: np.ndarray, values: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None
    ) -> Memory:
        """The memory before it is projected, with what is hidden from all queries and heads cleared."""
        keys, values = self.turned(keys), self.turned(values)
        self.check_keys(keys.shape[-2])
        allowed = attention_mask(keys.shape[-2], valid_lens, mask)
        if allowed is None:
            return Memory(keys, values, None)
        if allowed.ndim == 3:
            allowed = allowed[:, None]
        seen = np.expand_dims(np.any(np.any(allowed, axis=-2), axis=-2), -1)
        return Memory(where_seen(seen, keys), where_seen(seen, values), allowed)

    def split(self, array: np.ndarray) -> np.ndarray:
        """(batch, steps, hidden_size) as (batch, heads, steps, features of a head), on arrays or in a graph."""
        heads, size = self.sizes["heads"], self.sizes["head_size"]
        if is_empty(array):
            batch, steps, _ = array.shape
            return np.zeros((batch, heads, steps, size), dtype=array.dtype, ctx=array.ctx)
        F = functions(array)
        return F.np.swapaxes(F.npx.reshape(array, (-2, -2, -6, heads, size)), 1, 2)


Losses = Callable[[np.ndarray], np.ndarray]


def ablation_importance(losses: Losses, head_mask: np.ndarray) -> np.ndarray:
    """How much the loss rises when a head is switched off, for each head.

    importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]

    Shapes: losses from head_mask (batch, heads), 1 for a head that is on, to (batch,); the result (heads,).
    """
    check_options(ABLATION_IMPORTANCE, losses=losses)
    check(ABLATION_IMPORTANCE, head_mask=head_mask)
    whole, heads = losses(head_mask), positions(head_mask.shape[-1], head_mask.ctx)
    zeros = np.zeros_like(head_mask)
    rises = [(losses(np.where(heads == head, zeros, head_mask)) - whole).mean() for head in range(heads.size)]
    return np.stack(rises) if rises else np.zeros((0,), dtype=head_mask.dtype, ctx=head_mask.ctx)


def taylor_importance(losses: Losses, head_mask: np.ndarray) -> np.ndarray:
    """How much the loss would change to first order if a head were switched off, for each head.

    importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|

    Shapes: losses from head_mask (batch, heads), 1 for a head that is on, to (batch,), an example's loss depending on
    its own row alone; the result (heads,).
    """
    check_options(TAYLOR_IMPORTANCE, losses=losses)
    check(TAYLOR_IMPORTANCE, head_mask=head_mask)
    factors = head_mask.detach()
    factors.attach_grad()
    with autograd.record(train_mode=autograd.is_training()):
        # MXNet refuses to differentiate what does not depend on the factors: adding 0 times them makes it depend.
        total = losses(factors).sum() + 0.0 * factors.sum()
    (slopes,) = autograd.grad(total, [factors], train_mode=autograd.is_training())
    with autograd.pause():
        return np.abs(factors * slopes.as_np_ndarray()).mean(axis=0)


class SinusoidalPositions(Block):
    """Add to each input the sines and cosines of its position; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(...)

    Shapes: inputs (batch, steps, features), as is the result. With layout="concatenated", all sines come first, then
    all cosines: position_permutation is the order that turns the one into the other.
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(
        self,
        features: int,
        *,
        layout: str = "interleaved",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(self.specification, features=features, layout=layout)

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]

        Shapes: inputs (batch, steps, features), as is the result.
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, inputs=inputs)
        return super().__call__(inputs, offset)

    def forward(self, inputs: np.ndarray, offset: int) -> np.ndarray:
        """The formula, whose table is made in float64."""
        if inputs.size == 0:
            return np.zeros_like(inputs)
        high, low = (np.array(part, dtype="float64", ctx=inputs.ctx) for part in rates(self.sizes["features"]))
        place = (positions(inputs.shape[-2], inputs.ctx) + offset)[:, None]
        sine, cosine, small_sine, small_cosine = (f(place * r) for r in (high, low) for f in (np.sin, np.cos))
        pair = [sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine]
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return inputs + table.reshape(inputs.shape[-2:]).astype(inputs.dtype)


class LearnedPositions(Block):
    """Add to each input a learned vector for its position.

    outputs[t] = inputs[t] + P[t + offset]

    Shapes: inputs (batch, steps, features), as is the result.
    """

    specification = LEARNED_POSITIONS

    def __init__(
        self,
        num_positions: int,
        features: int,
        *,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(self.specification, num_positions=num_positions, features=features)
        with self.name_scope():
            self.P = nn.Embedding(num_positions, features, dtype=dtype, weight_initializer=Uniform(features**-0.5))
        initialise(self)

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]

        Shapes: inputs (batch, steps, features), as is the result.
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, self.P.weight.dtype, inputs=inputs)
        check_length(operator.title, offset + inputs.shape[-2], self.sizes["num_positions"])
        return super().__call__(inputs, offset)

    def forward(self, inputs: np.ndarray, offset: int) -> np.ndarray:
        """The formula; there may be no inputs: MXNet then writes foreign memory into gradients."""
        if inputs.size == 0:
            return np.zeros_like(inputs)
        return inputs + self.P(positions(inputs.shape[-2], inputs.ctx) + offset)


def position_permutation(features: int, *, ctx: mx.Context | None = None) -> np.ndarray:
    """The order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]

    Shapes: the result (features,), int32.
    """
    check_options(POSITION_PERMUTATION, features=features)
    return np.arange(features, dtype="int32", ctx=ctx).reshape(-1, 2).T.reshape(-1)


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


def attention_layer(part: Part, *, dtype: str = "float32") -> Attention:
    """The attention layer that stands inside another one."""
    keywords: dict[str, Any] = {"dtype": dtype} if part.layer.trainable else {}
    return LAYERS[part.layer.name](**part.config, **keywords)


class AdditivePooling(HybridBlock):
    """What follows the projections: scores, weights and context of projected queries and keys, as one graph.

    What takes blocks is computed without a graph, which cannot hold them.
    """

    def forward(self, queries: np.ndarray, keys: np.ndarray, *others: np.ndarray) -> Pair:
        """The formula, or the graph of it."""
        if takes_blocks(queries, keys, ADDITIVE_LEAST):
            return self.hybrid_forward(mx, queries, keys, *others)
        return super().forward(queries, keys, *others)

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        w_v: np.ndarray,
    ) -> Pair:
        """The formula."""
        return pooled(F, additive(F, queries, keys, w_v), values, mask, dropout_mask)


class DotPooling(HybridBlock):
    """What follows the projection: scores, weights and context of queries and projected keys, as one graph."""

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
    ) -> Pair:
        """The formula."""
        return pooled(F, dot(F, queries, keys), values, mask, dropout_mask)


class Number(HybridBlock):
    """A parameter without axes: MXNet cannot set one, so that it is held as one entry, and read and set here."""

    def __init__(self, value: float, *, dtype: str) -> None:
        super().__init__()
        with self.name_scope():
            self.value = self.params.get("value", shape=(1,), dtype=dtype, init=mx.init.Constant(value))

    def data(self) -> np.ndarray:
        """The number, as of a parameter."""
        return self.value.data().reshape(())

    def grad(self) -> np.ndarray:
        """Its gradient, as of a parameter."""
        return self.value.grad().reshape(())

    def set_data(self, number: np.ndarray) -> None:
        """Set it, as a parameter."""
        self.value.set_data(number.reshape(1))


class Uniform(mx.init.Uniform):
    """Values between -scale and scale, in every floating type: MXNet's own draws float32 alone."""

    def _init_weight(self, name: str, array: np.ndarray) -> None:
        array[:] = np.random.uniform(-self.scale, self.scale, array.shape).astype(array.dtype)


def initialise(block: Block) -> None:
    """Give values to the block's parameters, since their sizes are known, except to those shared with another block."""
    for parameter in block.collect_params().values():
        if parameter._data is None:
            parameter.initialize()


def functions(array: np.ndarray) -> ModuleType:
    """What computes on arrays, or builds a graph: as F of hybrid_forward."""
    return mx if isinstance(array, np.ndarray) else mx.symbol


def held(parameter: mx.gluon.Parameter, like: np.ndarray) -> np.ndarray:
    """The parameter as an array, or in the graph to which like belongs."""
    return parameter.data(like.ctx) if isinstance(like, np.ndarray) else parameter.var()


def is_empty(array: np.ndarray) -> bool:
    """Whether it has no entry, which nothing in a graph is."""
    return isinstance(array, np.ndarray) and array.size == 0


def linear(inputs: int, outputs: int, *, use_bias: bool, dtype: str) -> nn.Dense:
    """A linear map of the last axis."""
    drawn = Uniform(inputs**-0.5)
    return nn.Dense(
        outputs,
        in_units=inputs,
        flatten=False,
        use_bias=use_bias,
        dtype=dtype,
        weight_initializer=drawn,
        bias_initializer=drawn,
    )


def product(F: ModuleType, inputs: np.ndarray, weight: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
    """The product of the last axis with a weight (hidden_size, features), on arrays or in a graph."""
    return F.npx.fully_connected(inputs, weight, num_hidden=sizes["hidden_size"], no_bias=True, flatten=False)


def projected(dense: nn.Dense, inputs: np.ndarray) -> np.ndarray:
    """The linear map of the inputs, of which there may be none: MXNet then writes foreign memory into gradients."""
    if is_empty(inputs):
        return np.zeros((*inputs.shape[:-1], dense.weight.shape[0]), dtype=inputs.dtype, ctx=inputs.ctx)
    return dense(inputs)


def cleared(keys: np.ndarray, values: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None) -> Memory:
    """Keys and values with 0 where no query may attend to them, and the one mask."""
    allowed = attention_mask(keys.shape[-2], valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if allowed.ndim < keys.ndim:
        allowed = allowed[:, None]
    seen = np.expand_dims(np.any(allowed, axis=-2), -1)
    if values is keys and keys.size:  # a decoder's: once is enough, and MXNet's where is slow
        keys = shown(np.broadcast_to(seen, (*keys.shape[:-1], 1)), keys)
        return Memory(keys, keys, allowed)
    # Of keys that nothing reads, as those of location scores, shown would crash in the backward pass of a graph.
    return Memory(where_seen(seen, keys), where_seen(seen, values), allowed)


def where_seen(seen: np.ndarray, array: np.ndarray) -> np.ndarray:
    """The array with 0 elsewhere."""
    return array if array.size == 0 else np.where(seen, array, np.zeros_like(array))


def filled(array: np.ndarray) -> np.ndarray:
    """The array, or one feature of 0 where it has none: that scores 0, and MXNet does not survive empty axes."""
    return array if array.size else np.zeros((*array.shape[:-1], 1), dtype=array.dtype, ctx=array.ctx)


def pooled(F: ModuleType, scores: np.ndarray, values: np.ndarray, mask: np.ndarray, dropout_mask: np.ndarray) -> Pair:
    """The formula of attention_pooling, on arrays or in a graph."""
    allowed = (scores != -np.inf) * mask
    weights = softmax_over(F, scores, allowed)
    return average(F, weights, values, allowed, dropout_mask), weights


def given(mask: np.ndarray | None, dropout_mask: np.ndarray | None, like: np.ndarray) -> Pair:
    """Both masks as arrays, since a graph has all its arguments in every call: ones of one entry change nothing."""
    one = (1,) * like.ndim
    if mask is None:
        mask = np.ones(one, dtype="bool", ctx=like.ctx)
    if dropout_mask is None:
        dropout_mask = np.ones(one, dtype=like.dtype, ctx=like.ctx)
    return mask, dropout_mask


def head_factor(head_mask: np.ndarray | None, like: np.ndarray) -> np.ndarray:
    """The factor of each head, (batch or 1, heads or 1, 1, 1)."""
    if head_mask is None:
        head_mask = np.ones((1,), dtype=like.dtype, ctx=like.ctx)
    return head_mask.reshape(-1, head_mask.shape[-1], 1, 1)


def draws(queries: np.ndarray, memory: Memory, noise: np.ndarray | None) -> Pair:
    """The position of each key; and what uniform noise adds to scores, so that the highest one is a draw by softmax."""
    place = positions(memory.keys.shape[-2], queries.ctx)
    if noise is None or noise.size == 0:
        return place, np.zeros((1,) * queries.ndim, dtype=queries.dtype, ctx=queries.ctx)
    return place, -np.log(-np.log(noise.detach()))


def wide(dtype: Any, array: np.ndarray) -> np.ndarray:
    """An array of that type as float32 where it has half precision, on arrays or in a graph."""
    return array.astype(wide_name(dtype)) if dtype_name(dtype) != wide_name(dtype) else array


def wide_name(dtype: Any) -> str:
    """The type in which to compute positions: float32 in half precision."""
    return "float32" if dtype_name(dtype) == "float16" else dtype_name(dtype)


def drawn_mask(rate: float, shape: tuple[int, ...], like: np.ndarray) -> np.ndarray | None:
    """A dropout mask from MXNet's own generator, or None where nothing is dropped."""
    if rate == 0.0 or 0 in shape or not autograd.is_training():
        return None
    return npx.dropout(np.ones(shape, dtype=like.dtype, ctx=like.ctx), p=rate)
