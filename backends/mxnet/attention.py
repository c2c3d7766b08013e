"""Trainable attention layers in MXNet: prepare keys and values once, attend many times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import mxnet as mx
from mxnet import np, npx
from mxnet.gluon import Block

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
from attention_core.specification import Layer, Part
from backends.mxnet.masking import attention_mask
from backends.mxnet.module import Number, Uniform, drawn_mask, initialise, linear, projected
from backends.mxnet.pooling import attention_pooling, shown
from backends.mxnet.scoring import (
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

Pair = tuple[np.ndarray, np.ndarray]
Answer = tuple[np.ndarray, np.ndarray | Any]
"""Context and weights, which are None without need_weights."""


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: np.ndarray
    values: np.ndarray
    mask: np.ndarray | None


class Attention(Block):
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
        """The score of each query against each projected key."""
        raise NotImplementedError

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
        memory = zero_masked(self.to_batch_first(keys), self.to_batch_first(values), valid_lens, mask)
        self.check_keys(memory.keys.shape[-2])
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
        context, weights = self.pooled(self, self.to_batch_first(queries), memory, dropout_mask)
        return self.to_batch_first(context), weights if need_weights else None

    def pooled(
        self, scored: Attention, queries: np.ndarray, memory: Memory, dropout_mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pool by the score of a layer, of this one or of one inside it.

        context, weights = attention_pooling(scored.score(queries, memory.keys), memory.values)
        """
        scores = scored.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores.shape, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

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
        context, weights = super().__call__(queries, keys, values, valid_lens, mask, dropout_mask)
        return context, weights if need_weights else None

    def forward(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None,
        mask: np.ndarray | None,
        dropout_mask: np.ndarray | None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them; Gluon enters here."""
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)

    def check_keys(self, num_keys: int) -> None:
        """Refuse more keys than the layer can score."""

    def to_batch_first(self, array: np.ndarray) -> np.ndarray:
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

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give scale · q·k."""
        return scaled_dot_score(queries, keys, scale=self.sizes["scale"])


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
        initialise(self)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give W_k k."""
        return projected(self.W_k, keys)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give w_v · tanh(W_q q + W_k k)."""
        return additive_score(projected(self.W_q, queries), keys, self.w_v.data(queries.ctx))


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
        initialise(self)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give W k."""
        return projected(self.W, keys)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give q·W k."""
        return dot_score(queries, keys)


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
        initialise(self)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """Give W [0; k]."""
        return self.projected(keys, slice(self.sizes["query_size"], None))

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give v · tanh(W [q; 0] + W [0; k])."""
        own = self.projected(queries, slice(self.sizes["query_size"]))
        return additive_score(own, keys, self.v.data(queries.ctx))

    def projected(self, inputs: np.ndarray, columns: slice) -> np.ndarray:
        """The inputs under those columns of W; there may be none: MXNet then writes foreign memory into gradients."""
        hidden_size = self.sizes["hidden_size"]
        if inputs.size == 0:
            return np.zeros((*inputs.shape[:-1], hidden_size), dtype=inputs.dtype, ctx=inputs.ctx)
        weight = self.W.weight.data(inputs.ctx)[:, columns]
        return npx.fully_connected(inputs, weight, num_hidden=hidden_size, no_bias=True, flatten=False)


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

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Give scale · q·k/(‖q‖ ‖k‖)."""
        return cosine_score(queries, keys, scale=self.sizes["scale"])


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
        return location_score(keys.shape[-2], projected(self.W, queries))

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
        if self.w is not None:
            return gaussian_score(queries, keys, self.w.data())
        return gaussian_score(queries, keys, np.array(1.0 / self.sizes["width"], dtype=queries.dtype, ctx=queries.ctx))


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


def zero_masked(keys: np.ndarray, values: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None) -> Memory:
    """Keys and values with 0 where no query may attend to them, and the one mask."""
    allowed = attention_mask(keys.shape[-2], valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if allowed.ndim < keys.ndim:
        allowed = allowed[:, None]
    seen = np.expand_dims(np.any(allowed, axis=-2), -1)
    own = shown(seen, keys)
    return Memory(own, own if values is keys else shown(seen, values), allowed)  # a decoder's are the same
