"""Kernel regression as attention, in TensorFlow."""

from __future__ import annotations

import keras
import tensorflow as tf

from attention_core.operators.regression import NADARAYA_WATSON
from backends.tf.arrays import Lengths, lengths
from backends.tf.attention import attention_layer
from backends.tf.module import Specified, join_attached, mode_of

__all__ = ["NadarayaWatson"]


@keras.saving.register_keras_serializable(package="attention_parity")
class NadarayaWatson(Specified):
    """Kernel regression: average the values, weighted by how near their keys are to the query.

    predictions[i] = sum over j of weights[i, j] values[j]
    weights as of KernelAttention

    width is in the units of queries and keys.

    Args:
        width (default 1.0): standard deviation of the kernel, 1/w
        learned (default False): whether w is a parameter with initial value 1/width, or the constant 1/width
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        kernel.*: the KernelAttention that weighs the keys
    Source: Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372
    Example:
        layer = attention.NadarayaWatson()
        predictions, weights = layer(queries, keys, values)
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
        super().__init__(locals())
        self.kernel = attention_layer(self.specification.inside(self.sizes)["kernel"], caller=self, name="kernel")

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Predict at each query.

        predictions[i] = sum over j of weights[i, j] values[j]
        weights as of KernelAttention

        Args:
            queries: (batch, queries); points at which to predict
            keys: (batch, keys); observed points
            values: (batch, keys); observed values
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, queries, keys), broadcast; True where a query may attend
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            predictions: (batch, queries); weighted averages of the values, in their units
            weights: (batch, queries, keys); probabilities over the keys
        """
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return super().__call__(queries, keys, values, lengths(valid_lens), mask, **mode_of(training))

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Predict at each query; Keras enters here."""
        mask = join_attached(mask, keys, values)
        queries, keys, values = (tf.expand_dims(array, axis=-1) for array in (queries, keys, values))
        predictions, weights = self.kernel(queries, keys, values, valid_lens, mask)
        return tf.squeeze(predictions, axis=-1), weights
