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
from mxnet import autograd, np
from mxnet.gluon import HybridBlock

from attention_core.errors import (
    check,
    check_options,
    check_positions,
)
from attention_core.operators.attention import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
    KERNEL_ATTENTION,
    LOCATION_ATTENTION,
)
from attention_core.specification import Layer, Part
from backends.mxnet.blocked import (
    ADDITIVE_LEAST,
    DOT_LEAST,
    blocked_additive_attention,
    blocked_dot_attention,
    takes_blocks,
)
from backends.mxnet.masking import attention_mask, softmax_over
from backends.mxnet.module import (
    Number,
    Sized,
    Uniform,
    drawn_mask,
    functions,
    held,
    initialise,
    is_empty,
    linear,
    product,
    projected,
    wide,
)
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
]

Pair = tuple[np.ndarray, np.ndarray]
Answer = tuple[np.ndarray, np.ndarray | Any]
"""Context and weights, which are None without need_weights."""


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: np.ndarray
    values: np.ndarray
    mask: np.ndarray | None


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


def attention_layer(part: Part, layers: Mapping[str, type[Attention]] = LAYERS, *, dtype: str = "float32") -> Attention:
    """The attention layer, of those given, that stands inside another one."""
    keywords: dict[str, Any] = {"dtype": dtype} if part.layer.trainable else {}
    return layers[part.layer.name](**part.config, **keywords)


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
