"""Trainable attention layers in Keras: prepare keys and values once, attend many times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

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
from attention_core.specification import Layer, Part
from backends.tf.blocked import (
    ADDITIVE_LEAST,
    DOT_LEAST,
    SEQUENCE_LEAST,
    blocked_additive_attention,
    blocked_dot_attention,
    takes_blocks,
)
from backends.tf.masking import attention_mask, open_keys, precise, size, softmax_over
from backends.tf.pooling import attention_pooling, average
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

    keys: tf.Tensor
    values: tf.Tensor
    mask: tf.Tensor | None


class Specified(keras.layers.Layer):
    """What all layers of this file share: options that are checked and written into the configuration, and a dtype.

    A layer without parameters takes inputs of any floating type, or of dtype if given.
    """

    specification: Layer

    def __init__(
        self, *, dtype: str | tf.DType | None = None, name: str | None = None, **options: int | float | str | None
    ) -> None:
        super().__init__(dtype=parameter_dtype(dtype), name=name, autocast=False)
        self.sizes = check_options(self.specification, **options)
        self.options = options
        self.required_dtype = None if dtype is None and not self.specification.trainable else self.variable_dtype

    def projection(self, name: str, input_size: int, units: int, use_bias: bool = False) -> keras.layers.Dense:
        """A projection, with its weights."""
        with keras.name_scope(self.name, caller=self):
            # Keras refuses whole numbers of NumPy.
            dense = keras.layers.Dense(int(units), use_bias=use_bias, dtype=self.variable_dtype, name=name)
            dense.build((None, int(input_size)))
        return dense

    def inside(self, name: str) -> Attention:
        """The attention layer of that name in the specification, which stands inside this one."""
        with keras.name_scope(self.name, caller=self):
            part = self.specification.inside(self.sizes)[name]
            return attention_layer(part, dtype=self.variable_dtype, name=name)

    def uniform(self, name: str, shape: tuple[int, ...], fan_in: int) -> keras.Variable:
        """A parameter drawn from ±1/√fan_in."""
        uniform = keras.initializers.RandomUniform(-(fan_in**-0.5), fan_in**-0.5)
        return self.add_weight(name=name, shape=shape, initializer=uniform, autocast=False)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {**self.options, "dtype": self.required_dtype, "name": self.name}


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
        memory = cleared(self.turned(keys), self.turned(values), valid_lens, mask)
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
        queries, dropped = self.turned(queries), drops(self.dropout, dropout_mask, training)
        context = None if need_weights or dropped else self.in_blocks(queries, memory)
        if context is not None:
            return self.turned(context), None
        scores = self.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores, training)
        context, weights = attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        return self.turned(context), weights if need_weights else None

    def inner(self, features: int) -> float | None:
        """The factor of q·k where the score is an inner product with a projected key; None for another score."""
        return None

    def perceptron(self, queries: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
        """The projected queries and w_v where the score is w_v · tanh(q + k) with a projected key; None for another."""
        return None

    def in_blocks(self, queries: tf.Tensor, memory: Memory) -> tf.Tensor | None:
        """The context alone, in blocks; None where they do not win, or do not know the score."""
        features, keys, sequences = queries.shape[-1], memory.keys, math.prod(n or 1 for n in queries.shape[:-2])
        scale = None if features is None else self.inner(features)
        if scale is not None and takes_blocks(queries, keys, sequences * DOT_LEAST):
            return blocked_dot_attention(queries, keys, memory.values, memory.mask, scale)
        # Of queries and keys it is the keys that are projected by now.
        if scale is None and takes_blocks(keys, queries, max(ADDITIVE_LEAST, sequences * SEQUENCE_LEAST)):
            perceptron = self.perceptron(queries)
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

    def turned(self, array: tf.Tensor) -> tf.Tensor:
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

    def inner(self, features: int) -> float | None:
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
        projected_queries, w_v = self.perceptron(queries)
        return additive_score(projected_queries, keys, w_v)

    def perceptron(self, queries: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
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

    def inner(self, features: int) -> float | None:
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
        projected_queries, v = self.perceptron(queries)
        return additive_score(projected_queries, keys, v)

    def perceptron(self, queries: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
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


@keras.saving.register_keras_serializable(package="attention_parity")
class LocalAttention(Attention):
    """Attention to a window of keys, around the query's own position or around one that it predicts.

    weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights values
    monotonic:  p[i] = i + offset, g = 1
    predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

    S is the number of keys up to the last that the query may attend to: its valid length.

    Shapes: as AdditiveAttention; offset (batch,), 0 unless given, for mode="monotonic" alone.
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size,
            key_size=key_size,
            window=window,
            mode=mode,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            dropout=dropout,
            time_major=time_major,
            dtype=dtype,
            name=name,
        )
        self.scored = self.inside("scored")
        if mode == "predictive":
            hidden_size = self.sizes["hidden_size"]
            self.W_p = self.projection("W_p", query_size, hidden_size)
            self.v_p = self.uniform("v_p", (hidden_size,), hidden_size)

    def project(self, keys: tf.Tensor) -> tf.Tensor:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        self.check("attend", queries=queries, memory=memory, offset=offset, dropout_mask=dropout_mask)
        queries = self.turned(queries)
        scores = self.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores, training)
        if self.sizes["mode"] == "monotonic":
            distance = self.distance_from(self.own_positions(scores, offset), scores)
            context, weights = attention_pooling(
                scores, memory.values, mask=self.windowed(distance, memory.mask), dropout_mask=dropout_mask
            )
            return self.turned(context), weights if need_weights else None
        distance = self.distance_from(self.predicted_positions(queries, memory), scores)
        allowed = self.windowed(distance, memory.mask)
        near = tf.exp(-2.0 * (distance / self.sizes["window"]) ** 2)
        near = tf.cast(tf.where(allowed, near, tf.zeros_like(near)), scores.dtype)
        factor = near if dropout_mask is None else near * dropout_mask
        # A factor of the weights in the average, as a dropout mask is: the softmax comes before both.
        context, soft = attention_pooling(scores, memory.values, mask=allowed, dropout_mask=factor)
        return self.turned(context), soft * near if need_weights else None

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        offset: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them."""
        options, keywords = {"need_weights": need_weights}, {"offset": offset, "dropout_mask": dropout_mask}
        return self.entered(queries, keys, values, valid_lens, mask, training, options, **keywords)

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        offset: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        keywords = {"offset": offset, "dropout_mask": dropout_mask}
        return self.attend(queries, memory, need_weights=need_weights, **keywords, training=training)

    def check(self, method: str, **arrays: Any) -> None:
        """Refuse what does not fit the layer, and an offset that would be ignored."""
        super().check(method, **arrays)
        check_offset(self.specification.name, self.sizes["mode"], arrays.get("offset"))

    def own_positions(self, scores: tf.Tensor, offset: tf.Tensor | None) -> tf.Tensor:
        """Where each query stands among the keys, in the shape of scores without keys, each axis its size or 1."""
        lead = [1] * (scores.shape.rank - 2)
        positions = tf.reshape(tf.range(size(scores, -2), dtype=tf.int64), (*lead, -1))
        return positions if offset is None else positions + tf.reshape(tf.cast(offset, tf.int64), (-1, *lead))

    def predicted_positions(self, queries: tf.Tensor, memory: Memory) -> tf.Tensor:
        """Where each query expects what it looks for, as own_positions; in float32 if it is of a half type."""
        num_keys = size(memory.keys, -2)
        if memory.mask is None:
            ends = num_keys
        else:
            ends = tf.reduce_max(tf.where(memory.mask, tf.range(1, num_keys + 1), 0), axis=-1)
            ends = tf.maximum(ends, 0)  # the largest of no keys is the smallest number
        kernel, v_p = precise(tf.convert_to_tensor(self.W_p.kernel)), precise(self.v_p.value)
        share = tf.sigmoid(tf.linalg.matvec(tf.tanh(tf.matmul(precise(queries), kernel)), v_p))
        return tf.cast(ends, share.dtype) * share

    def distance_from(self, centre: tf.Tensor, scores: tf.Tensor) -> tf.Tensor:
        """How far each key stands behind the middle of each query's window."""
        return tf.cast(tf.range(size(scores, -1)), centre.dtype) - tf.expand_dims(centre, axis=-1)

    def windowed(self, distance: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
        """What of the mask lies in the window."""
        inside = distance * distance <= self.sizes["window"] ** 2
        return inside if mask is None else tf.logical_and(inside, mask)


@keras.saving.register_keras_serializable(package="attention_parity")
class HardAttention(Attention):
    """Attention to a single key: the one with the highest score, or one drawn by given noise.

    weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
    context = weights values, and no gradient reaches the scores

    Shapes: as AdditiveAttention; noise as weights, strictly between 0 and 1. Without noise, its term is 0.
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size,
            key_size=key_size,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            time_major=time_major,
            dtype=dtype,
            name=name,
        )
        self.scored = self.inside("scored")

    def project(self, keys: tf.Tensor) -> tf.Tensor:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def attend(  # type: ignore[override]
        self, queries: tf.Tensor, memory: Memory, *, need_weights: bool = True, noise: tf.Tensor | None = None
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        self.check("attend", queries=queries, memory=memory, noise=noise)
        scores = tf.stop_gradient(self.score(self.turned(queries), memory.keys))
        allowed = open_keys(scores, None, memory.mask)
        ranked = precise(scores)
        if noise is not None:
            ranked -= tf.math.log(-tf.math.log(precise(tf.stop_gradient(noise))))
        # Not tf.argmax, which refuses to choose among no keys.
        ranked = tf.where(allowed, ranked, -math.inf)
        best = tf.logical_and(allowed, tf.equal(ranked, tf.reduce_max(ranked, axis=-1, keepdims=True)))
        first = tf.logical_and(best, tf.equal(tf.cumsum(tf.cast(best, tf.int32), axis=-1), 1))
        weights = tf.cast(first, scores.dtype)
        return self.turned(average(weights, memory.values, allowed)), weights if need_weights else None

    def __call__(  # type: ignore[override]
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        noise: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them."""
        options = {"need_weights": need_weights}
        return self.entered(queries, keys, values, valid_lens, mask, None, options, noise=noise)

    def call(  # type: ignore[override]
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        need_weights: bool = True,
        noise: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, noise=noise)


@keras.saving.register_keras_serializable(package="attention_parity")
class NadarayaWatson(Specified):
    """Kernel regression: predict at each query the average of the values, weighted by nearness of their keys.

    predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

    Shapes: queries (batch, queries), keys and values (batch, keys), valid_lens (batch,) or (batch, queries), mask
    (batch, queries, keys), each axis its size or 1; returns (predictions, weights): (batch, queries),
    (batch, queries, keys).
    """

    specification = NADARAYA_WATSON

    def __init__(
        self,
        *,
        width: float = 1.0,
        learned: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(width=width, learned=learned, dtype=dtype, name=name)
        self.kernel = self.inside("kernel")

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Predict at each query.

        predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.required_dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        return super().__call__(queries, keys, values, valid_lens, mask)

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Predict at each query; Keras enters here."""
        queries, keys, values = (tf.expand_dims(array, axis=-1) for array in (queries, keys, values))
        predictions, weights = self.kernel(queries, keys, values, valid_lens, mask)
        return tf.squeeze(predictions, axis=-1), weights


@keras.saving.register_keras_serializable(package="attention_parity")
class MultiHeadAttention(Attention):
    """Attention by several heads at once, each with its own projections.

    context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h), with
    queries_h the h-th part of W_q queries + b_q, keys_h of W_k keys + b_k, values_h of W_v values + b_v

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size), or
    (queries, batch, query_size) and so on with time_major; mask with heads after batch or without; returns (context,
    weights): the shape of queries, and (batch, queries, keys), or (batch, heads, queries, keys) with per_head.
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
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
            dtype=dtype,
            name=name,
        )
        hidden_size = self.sizes["hidden_size"]
        self.W_q = self.projection("W_q", query_size, hidden_size, bias)
        self.W_k = self.projection("W_k", self.sizes["key_size"], hidden_size, bias)
        self.W_v = self.projection("W_v", self.sizes["value_size"], hidden_size, bias)
        self.W_o = self.projection("W_o", hidden_size, query_size, bias)
        self.scored = self.inside("scored")

    def project(self, keys: tf.Tensor) -> tf.Tensor:
        """The keys of every head, projected."""
        return self.scored.project(self.split(projected(self.W_k, keys)))

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """The scores of every head."""
        return self.scored.score(self.heads(queries), keys)

    def heads(self, queries: tf.Tensor) -> tf.Tensor:
        """The queries of every head, projected."""
        return self.split(projected(self.W_q, queries))

    def prepare(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> Memory:
        """Project the keys and values of every head, and keep them for many queries.

        memory = (projected keys, projected values, mask), of keys and values 0 where hidden from all
        """
        self.check("prepare", keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        keys, values = self.turned(keys), self.turned(values)
        allowed = attention_mask(size(keys, -2), valid_lens, mask)
        if allowed is not None:
            allowed = allowed[:, None] if allowed.shape.rank == 3 else allowed
            seen = tf.expand_dims(tf.reduce_any(allowed, axis=(-3, -2)), axis=-1)
            keys, values = tf.where(seen, keys, 0.0), tf.where(seen, values, 0.0)
        return Memory(self.project(keys), self.split(projected(self.W_v, values)), allowed)

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Attend with queries to a prepared memory.

        context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h)

        Shapes: head_mask (heads,) or (batch, heads), dropout_mask (batch, heads, queries, keys).
        """
        check_options(self.methods["attend"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        self.check("attend", queries=queries, memory=memory, head_mask=head_mask, dropout_mask=dropout_mask)
        heads, dropped = self.heads(self.turned(queries)), drops(self.dropout, dropout_mask, training)
        context, weights = None if need_weights or dropped else self.scored.in_blocks(heads, memory), None
        if context is None:
            scores = self.scored.score(heads, memory.keys)
            if dropout_mask is None:
                dropout_mask = drawn_mask(self.dropout, scores, training)
            context, weights = attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        if head_mask is not None:
            context *= head_mask[..., None, None]
        context = self.turned(projected(self.W_o, self.joined(context)))
        if not need_weights:
            return context, None
        return context, weights if per_head else tf.reduce_mean(weights, axis=-3)

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them."""
        check_per_head(self.specification.name, per_head, need_weights)
        options = {"per_head": per_head, "need_weights": need_weights}
        keywords = {"head_mask": head_mask, "dropout_mask": dropout_mask}
        return self.entered(queries, keys, values, valid_lens, mask, training, options, **keywords)

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(
            queries,
            memory,
            per_head=per_head,
            need_weights=need_weights,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
            training=training,
        )

    def split(self, array: tf.Tensor) -> tf.Tensor:
        """(batch, steps, hidden_size) as (batch, heads, steps, features of a head)."""
        heads = tf.reshape(array, (size(array, 0), size(array, 1), self.sizes["heads"], self.sizes["head_size"]))
        return tf.transpose(heads, (0, 2, 1, 3))

    def joined(self, array: tf.Tensor) -> tf.Tensor:
        """What split gives, as it was before."""
        return tf.reshape(
            tf.transpose(array, (0, 2, 1, 3)), (size(array, 0), size(array, 2), self.sizes["hidden_size"])
        )


def ablation_importance(losses: Callable[[tf.Tensor], tf.Tensor], head_mask: tf.Tensor) -> tf.Tensor:
    """How much the loss rises when a head is switched off, for each head.

    importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]

    Shapes: head_mask (batch, heads), 1 for a head that is on; losses is a function from it to the loss of each example,
    (batch,); the result (heads,).
    """
    check_options(ABLATION_IMPORTANCE, losses=losses)
    check(ABLATION_IMPORTANCE, head_mask=head_mask)
    whole, heads = losses(head_mask), tf.range(size(head_mask, 1))

    def rise(head: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(losses(tf.where(tf.not_equal(heads, head), head_mask, 0.0)) - whole)

    return tf.map_fn(rise, heads, fn_output_signature=tf.TensorSpec((), whole.dtype))


def taylor_importance(losses: Callable[[tf.Tensor], tf.Tensor], head_mask: tf.Tensor) -> tf.Tensor:
    """How much the loss would change to first order if a head were switched off, for each head.

    importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|

    Shapes: as ablation_importance; an example's loss depends on its own row of head_mask alone.
    """
    check_options(TAYLOR_IMPORTANCE, losses=losses)
    check(TAYLOR_IMPORTANCE, head_mask=head_mask)
    head_mask = tf.convert_to_tensor(head_mask)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(head_mask)
        loss = losses(head_mask)
    slope = tape.gradient(loss, head_mask, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return tf.reduce_mean(tf.abs(head_mask * slope), axis=0)


@keras.saving.register_keras_serializable(package="attention_parity")
class SinusoidalPositions(Specified):
    """Add to each input the sines and cosines of its position; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(...)

    With layout="concatenated" the sines come first: P[p, i] = sin(p/10000^(2i/features)), P[p, features/2 + i] =
    cos(...).

    Shapes: inputs (batch, steps, features), as is the result. Inputs of any floating type, or of dtype if given.
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(
        self,
        features: int,
        *,
        layout: str = "interleaved",
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(features=features, layout=layout, dtype=dtype, name=name)

    def __call__(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, self.required_dtype, inputs=inputs)
        return super().__call__(inputs, offset=offset)

    def call(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on; Keras enters here."""
        steps, features = size(inputs, 1), self.sizes["features"]
        high, low = rates(features)
        positions = (tf.range(steps, dtype=tf.float64) + float(offset))[:, None]
        sine, cosine = tf.sin(positions * high), tf.cos(positions * high)
        small_sine, small_cosine = tf.sin(positions * low), tf.cos(positions * low)
        pair = [sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine]
        table = tf.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return inputs + tf.cast(tf.reshape(table, (steps, features)), inputs.dtype)


@keras.saving.register_keras_serializable(package="attention_parity")
class LearnedPositions(Specified):
    """Add to each input a learned vector for its position.

    outputs[t] = inputs[t] + P[t + offset]

    Shapes: inputs (batch, steps, features), with at most num_positions - offset steps, as is the result.
    """

    specification = LEARNED_POSITIONS

    def __init__(
        self,
        num_positions: int,
        features: int,
        *,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(num_positions=num_positions, features=features, dtype=dtype, name=name)
        self.P = self.uniform("P", (num_positions, features), features)

    def __call__(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, self.required_dtype, inputs=inputs)
        if inputs.shape[1] is not None:
            check_length(operator.title, offset + inputs.shape[1], self.sizes["num_positions"])
        return super().__call__(inputs, offset=offset)

    def call(self, inputs: tf.Tensor, *, offset: int = 0) -> tf.Tensor:
        """Add the positions from offset on; Keras enters here."""
        # In a graph that knows the steps only when it runs, tf.slice refuses a step behind the last position.
        return inputs + tf.slice(self.P.value, (offset, 0), (size(inputs, 1), self.sizes["features"]))


def position_permutation(features: int) -> tf.Tensor:
    """The order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]

    Shapes: the result (features,), int32.
    """
    check_options(POSITION_PERMUTATION, features=features)
    return tf.reshape(tf.transpose(tf.reshape(tf.range(features, dtype=tf.int32), (-1, 2))), (-1,))


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


def attention_layer(part: Part, *, dtype: str | tf.DType | None = None, name: str | None = None) -> Attention:
    """The attention layer that stands inside another one, built."""
    layer = LAYERS[part.layer.name](**part.config, dtype=dtype, name=name)
    layer.build(None)  # Keras does so at a first call, which a layer inside may never see
    return layer


def projected(dense: keras.layers.Dense, inputs: tf.Tensor) -> tf.Tensor:
    """The inputs through the layer, as rows of one matrix.

    With more than two axes Keras takes tf.tensordot, which is slower in eager mode, and whose gradient XLA cannot
    compile in a loop over the steps of a batch of unknown size.
    """
    rows = dense(tf.reshape(inputs, (-1, dense.kernel.shape[0])))
    return tf.reshape(rows, [size(inputs, axis) for axis in range(inputs.shape.rank - 1)] + [dense.units])


def cleared(keys: tf.Tensor, values: tf.Tensor, valid_lens: tf.Tensor | None, mask: tf.Tensor | None) -> Memory:
    """Keys and values with 0 where no query may attend to them, and the one mask."""
    allowed = attention_mask(size(keys, -2), valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if allowed.shape.rank < keys.shape.rank:
        allowed = allowed[:, None]
    seen = tf.expand_dims(tf.reduce_any(allowed, axis=-2), axis=-1)
    return Memory(tf.where(seen, keys, 0.0), tf.where(seen, values, 0.0), allowed)


def drops(dropout: keras.layers.Dropout, dropout_mask: tf.Tensor | None, training: bool | None) -> bool:
    """Whether weights are dropped: by a given mask, or by one that is to be drawn."""
    return dropout_mask is not None or bool(training and dropout.rate > 0.0)


def drawn_mask(dropout: keras.layers.Dropout, like: tf.Tensor, training: bool | None) -> tf.Tensor | None:
    """A dropout mask from Keras's own generator, or None where nothing is dropped."""
    return dropout(tf.ones_like(like), training=True) if training and dropout.rate > 0.0 else None


def chosen(training: bool | None) -> dict[str, bool]:
    """`training` as a keyword if it was given: Keras lets an explicit None win over the mode of the layer around it."""
    return {} if training is None else {"training": training}


def parameter_dtype(dtype: str | tf.DType | None) -> str:
    """The type of parameters under that Keras policy; mixed policies would compute in another, by a silent cast."""
    return keras.dtype_policies.get(dtype).variable_dtype
