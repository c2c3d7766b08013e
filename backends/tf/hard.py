"""Attention to one key, in TensorFlow."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from attention_core.errors import check_options
from attention_core.operators.hard import HARD_ATTENTION
from backends.tf.attention import Attention, Memory, attention_layer
from backends.tf.masking import open_keys, precise
from backends.tf.pooling import average

__all__ = ["HardAttention"]


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
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], caller=self, name="scored")

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
        scores = tf.stop_gradient(self.score(self.to_batch_first(queries), memory.keys))
        allowed = open_keys(scores, None, memory.mask)
        ranked = precise(scores)
        if noise is not None:
            ranked -= tf.math.log(-tf.math.log(precise(tf.stop_gradient(noise))))
        # Not tf.argmax, which refuses to choose among no keys.
        ranked = tf.where(allowed, ranked, -math.inf)
        best = tf.logical_and(allowed, tf.equal(ranked, tf.reduce_max(ranked, axis=-1, keepdims=True)))
        first = tf.logical_and(best, tf.equal(tf.cumsum(tf.cast(best, tf.int32), axis=-1), 1))
        weights = tf.cast(first, scores.dtype)
        return self.to_batch_first(average(weights, memory.values, allowed)), weights if need_weights else None

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
