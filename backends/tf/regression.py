"""Kernel regression as attention, in TensorFlow."""

from __future__ import annotations

import keras
import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.regression import NADARAYA_WATSON
from backends.tf.attention import attention_layer
from backends.tf.module import Specified

__all__ = ["NadarayaWatson"]


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
        self.kernel = attention_layer(self.specification.inside(self.sizes)["kernel"], caller=self, name="kernel")

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
