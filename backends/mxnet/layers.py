"""Trainable attention layers in MXNet: prepare keys and values once, attend many times.

A block that overrides `forward` silently ignores `hybridize`. So the layers check their arguments and build one mask in
`__call__` and `attend`, and `hybrid_forward` holds the formula: on arrays, or as a graph that is built once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import NamedTuple

import mxnet as mx
from mxnet import autograd, np, npx
from mxnet.gluon import Block, HybridBlock, nn

from attention_core.errors import check, check_options
from attention_core.operators import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
)
from backends.mxnet.masking import attention_mask, softmax_over
from backends.mxnet.pooling import attention_pooling, average
from backends.mxnet.scoring import (
    additive,
    additive_score,
    cosine_score,
    direction,
    dot,
    dot_score,
    scaled_dot_score,
)

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

    keys: np.ndarray
    values: np.ndarray
    mask: np.ndarray | None


class DotProductAttention(HybridBlock):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = DOT_PRODUCT_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(self.specification, dropout=dropout, scale=scale)
        self.scale = scale
        self.dropout = dropout

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(self.specification.method("prepare"), keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return cleared(keys, values, valid_lens, mask)

    def attend(
        self, queries: np.ndarray, memory: Memory, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(scaled_dot_score(queries, keys), values)
        """
        check(self.specification.method("attend"), queries=queries, memory=memory, dropout_mask=dropout_mask)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (*queries.shape[:-1], memory.keys.shape[-2]), queries)
        if has_empty_axis(queries, memory):
            scores = scaled_dot_score(queries, memory.keys, scale=self.scale)
            return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        scale = queries.shape[-1] ** -0.5 if self.scale is None else self.scale
        context, weights = super().__call__(
            queries, memory.keys, memory.values, *given(memory.mask, dropout_mask, queries), number(scale, queries)
        )
        return context, weights

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        scale: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula of attend."""
        return pooled(F, dot(F, queries, keys) * scale, values, mask, dropout_mask)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
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


class AdditiveAttention(HybridBlock):
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(
            self.specification, query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout
        )
        self.dropout = dropout
        with self.name_scope():
            self.W_q = linear(query_size, hidden_size, use_bias=False, dtype=dtype)
            self.W_k = linear(key_size, hidden_size, use_bias=False, dtype=dtype)
            self.w_v = self.params.get("w_v", shape=(hidden_size,), dtype=dtype, init=Uniform(hidden_size**-0.5))
            self.pool = AdditivePooling()
        initialise(self)

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
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
        return memory._replace(keys=projected(self.W_k, memory.keys))

    def attend(
        self, queries: np.ndarray, memory: Memory, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
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
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (*queries.shape[:-1], memory.keys.shape[-2]), queries)
        query, w_v = projected(self.W_q, queries), self.w_v.data(queries.ctx)
        if has_empty_axis(queries, memory):
            scores = additive_score(query, memory.keys, w_v)
            return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        masks = given(memory.mask, dropout_mask, queries)
        context, weights = self.pool(query, memory.keys, memory.values, *masks, w_v)
        return context, weights

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        w_v: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula of a whole call, in which attend finds its part under `pool`."""
        return self.pool(self.W_q(queries), self.W_k(keys), values, mask, dropout_mask, w_v)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
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
        memory = cleared(keys, values, valid_lens, mask)
        if has_empty_axis(queries, memory):
            memory = memory._replace(keys=projected(self.W_k, memory.keys))
            return self.attend(queries, memory, dropout_mask=dropout_mask)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (*queries.shape[:-1], keys.shape[-2]), queries)
        masks = given(memory.mask, dropout_mask, queries)
        context, weights = super().__call__(queries, memory.keys, memory.values, *masks)
        return context, weights


class GeneralAttention(HybridBlock):
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(self.specification, query_size=query_size, key_size=key_size, dropout=dropout)
        self.dropout = dropout
        with self.name_scope():
            self.W = linear(key_size, query_size, use_bias=False, dtype=dtype)
            self.pool = DotPooling()
        initialise(self)

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.W.weight.dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=projected(self.W, memory.keys))

    def attend(
        self, queries: np.ndarray, memory: Memory, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(dot_score(queries, W keys), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.W.weight.dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (*queries.shape[:-1], memory.keys.shape[-2]), queries)
        if has_empty_axis(queries, memory):
            scores = dot_score(queries, memory.keys)
            return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        masks = given(memory.mask, dropout_mask, queries)
        context, weights = self.pool(queries, memory.keys, memory.values, *masks)
        return context, weights

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula of a whole call, in which attend finds its part under `pool`."""
        return self.pool(queries, self.W(keys), values, mask, dropout_mask)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.W.weight.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        if has_empty_axis(queries, memory):
            memory = memory._replace(keys=projected(self.W, memory.keys))
            return self.attend(queries, memory, dropout_mask=dropout_mask)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (*queries.shape[:-1], keys.shape[-2]), queries)
        masks = given(memory.mask, dropout_mask, queries)
        context, weights = super().__call__(queries, memory.keys, memory.values, *masks)
        return context, weights


class ConcatAttention(HybridBlock):
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(
            self.specification, query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout
        )
        self.dropout = dropout
        with self.name_scope():
            self.W = linear(query_size + key_size, hidden_size, use_bias=False, dtype=dtype)
            self.v = self.params.get("v", shape=(hidden_size,), dtype=dtype, init=Uniform(hidden_size**-0.5))
            self.pool = AdditivePooling()
        initialise(self)

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
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
        return memory._replace(keys=self.projected(memory.keys, slice(self.sizes["query_size"], None)))

    def attend(
        self, queries: np.ndarray, memory: Memory, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
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
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (*queries.shape[:-1], memory.keys.shape[-2]), queries)
        query, v = self.projected(queries, slice(self.sizes["query_size"])), self.v.data(queries.ctx)
        if has_empty_axis(queries, memory):
            scores = additive_score(query, memory.keys, v)
            return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        masks = given(memory.mask, dropout_mask, queries)
        context, weights = self.pool(query, memory.keys, memory.values, *masks, v)
        return context, weights

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        v: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula of a whole call, in which attend finds its part under `pool`."""
        first, weight = self.sizes["query_size"], self.W.weight
        W = weight.var() if F is mx.symbol else weight.data(queries.ctx)
        query, key = product(F, queries, W[:, :first], self.sizes), product(F, keys, W[:, first:], self.sizes)
        return self.pool(query, key, values, mask, dropout_mask, v)

    def projected(self, inputs: np.ndarray, columns: slice) -> np.ndarray:
        """The inputs under those columns of W; there may be none: MXNet then writes foreign memory into gradients."""
        if inputs.size == 0:
            return np.zeros((*inputs.shape[:-1], self.sizes["hidden_size"]), dtype=inputs.dtype, ctx=inputs.ctx)
        return product(mx, inputs, self.W.weight.data(inputs.ctx)[:, columns], self.sizes)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
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
        memory = cleared(keys, values, valid_lens, mask)
        if has_empty_axis(queries, memory):
            memory = memory._replace(keys=self.projected(memory.keys, slice(self.sizes["query_size"], None)))
            return self.attend(queries, memory, dropout_mask=dropout_mask)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (*queries.shape[:-1], keys.shape[-2]), queries)
        masks = given(memory.mask, dropout_mask, queries)
        context, weights = super().__call__(queries, memory.keys, memory.values, *masks)
        return context, weights


class CosineAttention(HybridBlock):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = COSINE_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(self.specification, dropout=dropout, scale=scale)
        self.scale = scale
        self.dropout = dropout

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(self.specification.method("prepare"), keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return cleared(keys, values, valid_lens, mask)

    def attend(
        self, queries: np.ndarray, memory: Memory, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(cosine_score(queries, keys), values)
        """
        check(self.specification.method("attend"), queries=queries, memory=memory, dropout_mask=dropout_mask)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (*queries.shape[:-1], memory.keys.shape[-2]), queries)
        if has_empty_axis(queries, memory):
            scores = cosine_score(queries, memory.keys, scale=self.scale)
            return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        scale = 1.0 if self.scale is None else self.scale
        context, weights = super().__call__(
            queries, memory.keys, memory.values, *given(memory.mask, dropout_mask, queries), number(scale, queries)
        )
        return context, weights

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        scale: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula of attend."""
        return pooled(F, dot(F, direction(F, queries), direction(F, keys)) * scale, values, mask, dropout_mask)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
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


class AdditivePooling(HybridBlock):
    """What follows the projections: scores, weights and context of projected queries and keys, as one graph."""

    def hybrid_forward(
        self,
        F: ModuleType,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        w_v: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
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
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula."""
        return pooled(F, dot(F, queries, keys), values, mask, dropout_mask)


class Uniform(mx.init.Uniform):
    """Values between -scale and scale, in every floating type: MXNet's own draws float32 alone."""

    def _init_weight(self, name: str, array: np.ndarray) -> None:
        array[:] = np.random.uniform(-self.scale, self.scale, array.shape).astype(array.dtype)


def initialise(block: Block) -> None:
    """Give values to the block's parameters, since their sizes are known, except to those shared with another block."""
    for parameter in block.collect_params().values():
        if parameter._data is None:
            parameter.initialize()


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
    if inputs.size == 0:
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
    keys, values = (
        array if array.size == 0 else np.where(seen, array, np.zeros_like(array)) for array in (keys, values)
    )
    return Memory(keys, values, allowed)


def pooled(
    F: ModuleType, scores: np.ndarray, values: np.ndarray, mask: np.ndarray, dropout_mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The formula of attention_pooling, on arrays or in a graph."""
    allowed = (scores != -np.inf) * mask
    weights = softmax_over(F, scores, allowed)
    return average(F, weights, values, allowed, dropout_mask), weights


def given(mask: np.ndarray | None, dropout_mask: np.ndarray | None, like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Both masks as arrays, since a graph has all its arguments in every call: ones of one entry change nothing."""
    one = (1,) * like.ndim
    if mask is None:
        mask = np.ones(one, dtype="bool", ctx=like.ctx)
    if dropout_mask is None:
        dropout_mask = np.ones(one, dtype=like.dtype, ctx=like.ctx)
    return mask, dropout_mask


def number(value: float, like: np.ndarray) -> np.ndarray:
    """The number as an argument of a graph."""
    return np.full((1,), value, dtype=like.dtype, ctx=like.ctx)


def has_empty_axis(queries: np.ndarray, memory: Memory) -> bool:
    """Whether there is nothing to compute somewhere, which MXNet's operators do not survive."""
    return 0 in (*queries.shape, *memory.keys.shape, *memory.values.shape)


def drawn_mask(rate: float, shape: tuple[int, ...], like: np.ndarray) -> np.ndarray | None:
    """A dropout mask from MXNet's own generator, or None where nothing is dropped."""
    if rate == 0.0 or 0 in shape or not autograd.is_training():
        return None
    return npx.dropout(np.ones(shape, dtype=like.dtype, ctx=like.ctx), p=rate)
