"""Attention to a window of the keys, in TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from attention_core.errors import check_offset, check_options
from attention_core.operators.local import LOCAL_ATTENTION
from backends.tf.attention import Attention, Memory, attention_layer
from backends.tf.masking import precise, size
from backends.tf.module import drawn_mask
from backends.tf.pooling import attention_pooling

__all__ = ["LocalAttention"]


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
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], caller=self, name="scored")
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
        queries = self.to_batch_first(queries)
        scores = self.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores, training)
        if self.sizes["mode"] == "monotonic":
            distance = self.distance_from(self.own_positions(scores, offset), scores)
            context, weights = attention_pooling(
                scores, memory.values, mask=self.windowed(distance, memory.mask), dropout_mask=dropout_mask
            )
            return self.to_batch_first(context), weights if need_weights else None
        distance = self.distance_from(self.predicted_positions(queries, memory), scores)
        allowed = self.windowed(distance, memory.mask)
        near = tf.exp(-2.0 * (distance / self.sizes["window"]) ** 2)
        near = tf.cast(tf.where(allowed, near, tf.zeros_like(near)), scores.dtype)
        factor = near if dropout_mask is None else near * dropout_mask
        # A factor of the weights in the average, as a dropout mask is: the softmax comes before both.
        context, soft = attention_pooling(scores, memory.values, mask=allowed, dropout_mask=factor)
        return self.to_batch_first(context), soft * near if need_weights else None

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
