"""Trainable attention layers in Keras: prepare keys and values once, attend many times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

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
from attention_core.specification import Part
from backends.tf.blocked import (
    ADDITIVE_MIN_ELEMENTS,
    DOT_MIN_ELEMENTS,
    SEQUENCE_MIN_ELEMENTS,
    blocked_additive_attention,
    blocked_dot_attention,
    use_blocks,
)
from backends.tf.masking import attention_mask, open_keys, size, softmax_over
from backends.tf.module import Specified, chosen, drawn_mask, drops, projected
from backends.tf.pooling import attention_pooling
from backends.tf.scoring import (
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

    keys: tf.Tensor
    values: tf.Tensor
    mask: tf.Tensor | None


class Attention(Specified):
    """What the attention layers share: prepare, attend and a call, around one score.

    context, weights = attention_pooling(score(queries, project(keys)), values)

    Shapes: queries (batch, queries, features of a query), keys (batch, keys, features of a key), values
    (batch, keys, value_features), all with heads after batch or without, or (queries, batch, ...) and (keys, batch,
    ...) with time_major, as is context then; returns (context, weights).
    """

    def __init__(self, *, time_major: bool = False, **options: Any) -> None:
        super().__init__(time_major=time_major, **options)
        methods = {name: self.specification.method(name) for name in ("prepare", "attend", "call")}
        self.methods = {name: method.time_major if time_major else method for name, method in methods.items()}
        self.time_major = time_major
        self.dropout = keras.layers.Dropout(options.get("dropout", 0.0), autocast=False)

    def project(self, keys: tf.Tensor) -> tf.Tensor:
        """What memory holds of keys: themselves, where a layer does not say otherwise."""
        return keys

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """The score of each query against each projected key."""
        raise NotImplementedError

    def prepare(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        self.check("prepare", keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        memory = zero_masked(self.to_batch_first(keys), self.to_batch_first(values), valid_lens, mask)
        return memory._replace(keys=self.project(memory.keys))

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        need_weights: bool = True,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(score(queries, memory.keys), memory.values)

        Shapes: as the call; weights is None without need_weights.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        self.check("attend", queries=queries, memory=memory, dropout_mask=dropout_mask)
        queries, dropped = self.to_batch_first(queries), drops(self.dropout, dropout_mask, training)
        context = None if need_weights or dropped else self.in_blocks(queries, memory)
        if context is not None:
            return self.to_batch_first(context), None
        scores = self.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores, training)
        context, weights = attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        return self.to_batch_first(context), weights if need_weights else None

    def dot_scale(self, features: int) -> float | None:
        """The factor of q·k where the score is an inner product with a projected key; None for another score."""
        return None

    def additive_terms(self, queries: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
        """The projected queries and w_v where the score is w_v · tanh(q + k) with a projected key; None for another."""
        return None

    def in_blocks(self, queries: tf.Tensor, memory: Memory) -> tf.Tensor | None:
        """The context alone, in blocks; None where they do not win, or do not know the score."""
        features, keys, sequences = queries.shape[-1], memory.keys, math.prod(n or 1 for n in queries.shape[:-2])
        scale = None if features is None else self.dot_scale(features)
        if scale is not None and use_blocks(queries, keys, sequences * DOT_MIN_ELEMENTS):
            return blocked_dot_attention(queries, keys, memory.values, memory.mask, scale)
        # Of queries and keys it is the keys that are projected by now.
        if scale is None and use_blocks(keys, queries, max(ADDITIVE_MIN_ELEMENTS, sequences * SEQUENCE_MIN_ELEMENTS)):
            perceptron = self.additive_terms(queries)
            if perceptron is not None:
                projected_queries, w_v = perceptron
                return blocked_additive_attention(projected_queries, keys, memory.values, memory.mask, w_v)
        return None

    def attend_cleared(
        self, queries: tf.Tensor, memory: Memory, dropout_mask: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """As attend, in evaluation mode, to a memory whose values are 0 where its mask is closed to all queries."""
        return self.attend(queries, memory, dropout_mask=dropout_mask)

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them."""
        options = {"need_weights": need_weights}
        return self.entered(queries, keys, values, valid_lens, mask, training, options, dropout_mask=dropout_mask)

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, dropout_mask=dropout_mask, training=training)

    def entered(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None,
        mask: tf.Tensor | None,
        training: bool | None,
        options: Mapping[str, bool],
        **keywords: tf.Tensor | None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Check the arguments of a call, and give them to Keras, which calls `call`."""
        check_options(self.methods["call"], **options)
        self.check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask, **keywords)
        # Keras takes a mask given by keyword for one that belongs to the first input, and warns that it gets lost.
        return super().__call__(queries, keys, values, valid_lens, mask, **options, **keywords, **chosen(training))

    def check(self, method: str, **arrays: Any) -> None:
        """Refuse what does not fit the layer, with time first or batch first, and more keys than can be scored."""
        check(self.methods[method], self.sizes, self.required_dtype, **arrays)
        positions = self.sizes.get("num_positions")  # of a location score, by this layer or by the one inside
        if positions is not None and "keys" in arrays:
            num_keys = arrays["keys"].shape[0 if self.time_major else -2]
            if num_keys is not None:
                check_positions(LOCATION_ATTENTION.name, num_keys, positions)

    def to_batch_first(self, array: tf.Tensor) -> tf.Tensor:
        """The array with batch first, of one with time first, or the other way round; as it is without time_major."""
        return tf.transpose(array, (1, 0, 2)) if self.time_major else array


@keras.saving.register_keras_serializable(package="attention_parity")
class DotProductAttention(Attention):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features), all
    with heads after batch or without, or (queries, batch, features) and so on with time_major; returns
    (context, weights). Inputs of any floating type, or of dtype if given.
    """

    specification = DOT_PRODUCT_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dropout=dropout, scale=scale, time_major=time_major, dtype=dtype, name=name)

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Give scale · q·k."""
        return scaled_dot_score(queries, keys, scale=self.sizes["scale"])

    def dot_scale(self, features: int) -> float | None:
        """Give scale."""
        scale: float | None = self.sizes["scale"]
        return max(features, 1) ** -0.5 if scale is None else scale


@keras.saving.register_keras_serializable(package="attention_parity")
class AdditiveAttention(Attention):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or (queries, batch, query_size) and so on with time_major; returns
    (context, weights).
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size,
            key_size=key_size,
            hidden_size=hidden_size,
            dropout=dropout,
            time_major=time_major,
            dtype=dtype,
            name=name,
        )
        self.W_q = self.projection("W_q", query_size, hidden_size)
        self.W_k = self.projection("W_k", key_size, hidden_size)
        self.w_v = self.uniform("w_v", (hidden_size,), hidden_size)

    def project(self, keys: tf.Tensor) -> tf.Tensor:
        """Give W_k k."""
        return projected(self.W_k, keys)

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Give w_v · tanh(W_q q + W_k k)."""
        projected_queries, w_v = self.additive_terms(queries)
        return additive_score(projected_queries, keys, w_v)

    def additive_terms(self, queries: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Give W_q q and w_v."""
        return projected(self.W_q, queries), self.w_v.value

    def attend_cleared(
        self, queries: tf.Tensor, memory: Memory, dropout_mask: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """As attend, but nothing is left to clear: tanh is bounded, so that the mask alone hides keys."""
        scores = self.score(queries, memory.keys)
        weights = softmax_over(scores, open_keys(scores, None, memory.mask))
        return tf.matmul(weights if dropout_mask is None else weights * dropout_mask, memory.values), weights


@keras.saving.register_keras_serializable(package="attention_parity")
class GeneralAttention(Attention):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Shapes: as AdditiveAttention.
    """

    specification = GENERAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size, key_size=key_size, dropout=dropout, time_major=time_major, dtype=dtype, name=name
        )
        self.W = self.projection("W", key_size, query_size)

    def project(self, keys: tf.Tensor) -> tf.Tensor:
        """Give W k."""
        return projected(self.W, keys)

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Give q·W k."""
        return dot_score(queries, keys)

    def dot_scale(self, features: int) -> float | None:
        """Give 1."""
        return 1.0


@keras.saving.register_keras_serializable(package="attention_parity")
class ConcatAttention(Attention):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)

    Shapes: as AdditiveAttention.
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size,
            key_size=key_size,
            hidden_size=hidden_size,
            dropout=dropout,
            time_major=time_major,
            dtype=dtype,
            name=name,
        )
        self.W = self.projection("W", query_size + key_size, hidden_size)
        self.v = self.uniform("v", (hidden_size,), hidden_size)

    def project(self, keys: tf.Tensor) -> tf.Tensor:
        """Give W [0; k]."""
        return tf.matmul(keys, self.W.kernel[self.sizes["query_size"] :])

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Give v · tanh(W [q; 0] + W [0; k])."""
        projected_queries, v = self.additive_terms(queries)
        return additive_score(projected_queries, keys, v)

    def additive_terms(self, queries: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Give W [q; 0] and v."""
        return tf.matmul(queries, self.W.kernel[: self.sizes["query_size"]]), self.v.value


@keras.saving.register_keras_serializable(package="attention_parity")
class CosineAttention(Attention):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Shapes: as DotProductAttention. Inputs of any floating type, or of dtype if given.
    """

    specification = COSINE_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        scale: float | None = None,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dropout=dropout, scale=scale, time_major=time_major, dtype=dtype, name=name)

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Give scale · q·k/(‖q‖ ‖k‖)."""
        return cosine_score(queries, keys, scale=self.sizes["scale"])


@keras.saving.register_keras_serializable(package="attention_parity")
class LocationAttention(Attention):
    """Attention by the query alone: it scores positions, whatever keys stand there.

    context, weights = attention_pooling(location_score(keys, W queries), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, any features) with at most num_positions keys,
    values (batch, keys, value_features), all with heads after batch or without, or (queries, batch, query_size) and so
    on with time_major; returns (context, weights).
    """

    specification = LOCATION_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_positions: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size,
            num_positions=num_positions,
            dropout=dropout,
            time_major=time_major,
            dtype=dtype,
            name=name,
        )
        self.W = self.projection("W", query_size, num_positions)

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Give W q, at the positions of the keys."""
        return location_score(size(keys, -2), projected(self.W, queries))


@keras.saving.register_keras_serializable(package="attention_parity")
class KernelAttention(Attention):
    """Attention by a Gaussian kernel of the distance between query and key.

    context, weights = attention_pooling(gaussian_score(queries, keys, w), values)

    Shapes: as DotProductAttention; w is (). With learned it is a parameter that begins at 1/width, else a constant.
    """

    specification = KERNEL_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        width: float = 1.0,
        learned: bool = False,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(dropout=dropout, width=width, learned=learned, time_major=time_major, dtype=dtype, name=name)
        if learned:
            start = keras.initializers.Constant(1.0 / width)
            self.w = self.add_weight(name="w", shape=(), initializer=start, autocast=False)

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """Give -½ ‖(q - k) w‖²."""
        w = self.w.value if self.sizes["learned"] else tf.constant(1.0 / self.sizes["width"], queries.dtype)
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
    part: Part, layers: Mapping[str, type[Attention]] = LAYERS, *, caller: Specified, name: str
) -> Attention:
    """The attention layer, of those given, that stands inside another one, built."""
    with keras.name_scope(caller.name, caller=caller):
        layer = layers[part.layer.name](**part.config, dtype=caller.variable_dtype, name=name)
        layer.build(None)  # Keras does so at a first call, which a layer inside may never see
    return layer


def zero_masked(keys: tf.Tensor, values: tf.Tensor, valid_lens: tf.Tensor | None, mask: tf.Tensor | None) -> Memory:
    """Keys and values with 0 where no query may attend to them, and the one mask."""
    allowed = attention_mask(size(keys, -2), valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if allowed.shape.rank < keys.shape.rank:
        allowed = allowed[:, None]
    seen = tf.expand_dims(tf.reduce_any(allowed, axis=-2), axis=-1)
    return Memory(tf.where(seen, keys, 0.0), tf.where(seen, values, 0.0), allowed)
