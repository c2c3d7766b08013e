"""Normalization of the features of each step, in TensorFlow."""

from __future__ import annotations

import keras
import tensorflow as tf

from attention_core.operators.normalization import LAYER_NORM, RMS_NORM
from attention_core.specification import Part
from backends.tf.module import Specified, mode_of

__all__ = ["LayerNorm", "RMSNorm"]


@keras.saving.register_keras_serializable(package="attention_parity")
class LayerNorm(Specified):
    """Shift and scale the features of each step to mean 0 and variance 1, then by a learned gain and bias.

    outputs = g (inputs - μ)/√(σ² + epsilon) + b
    μ = mean of the features, σ² = mean of (inputs - μ)²

    The variance divides by the number of features, not by one less. Half precision is normalized in float32.

    Args:
        features: features of a step
        epsilon (default 1e-05): number added to the mean square under the root
        bias (default True): whether there is a bias
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        g: (features,), gain of each feature; 1 at first
        b: (features,), bias of each feature, if bias; 0 at first
    Source: Ba et al. 2016, section 3, arXiv:1607.06450
    Example:
        layer = attention.LayerNorm(features)
        outputs = layer(inputs)
    """

    specification = LAYER_NORM

    def __init__(
        self,
        features: int,
        *,
        epsilon: float = 1e-5,
        bias: bool = True,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.g = self.add_weight(name="g", shape=(features,), initializer="ones", autocast=False)
        self.b = self.add_weight(name="b", shape=(features,), initializer="zeros", autocast=False) if bias else None

    def __call__(self, inputs: tf.Tensor, *, training: bool | None = None) -> tf.Tensor:
        """Normalize each step on its own.

        outputs = g (inputs - μ)/√(σ² + epsilon) + b
        μ = mean of the features, σ² = mean of (inputs - μ)²

        Args:
            inputs: (batch, steps, features); one vector for each step
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            outputs: (batch, steps, features); the normalized vectors
        """
        self._check("call", inputs=inputs)
        return super().__call__(inputs, **mode_of(training))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Normalize each step; Keras enters here."""
        wide = widen(inputs)
        centred = wide - tf.reduce_mean(wide, axis=-1, keepdims=True)
        scaled = tf.cast(self.g, wide.dtype) * scaled_to_one(centred, self.sizes["epsilon"])
        return tf.cast(scaled if self.b is None else scaled + tf.cast(self.b, wide.dtype), inputs.dtype)


@keras.saving.register_keras_serializable(package="attention_parity")
class RMSNorm(Specified):
    """Scale the features of each step to mean square 1, then by a learned gain.

    outputs = g inputs/√(mean of inputs² + epsilon)

    No mean is subtracted, and there is no bias. Half precision is normalized in float32.

    Args:
        features: features of a step
        epsilon (default 1e-05): number added to the mean square under the root
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        g: (features,), gain of each feature; 1 at first
    Source: Zhang and Sennrich 2019, section 3, arXiv:1910.07467
    Example:
        layer = attention.RMSNorm(features)
        outputs = layer(inputs)
    """

    specification = RMS_NORM

    def __init__(
        self,
        features: int,
        *,
        epsilon: float = 1e-5,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.g = self.add_weight(name="g", shape=(features,), initializer="ones", autocast=False)

    def __call__(self, inputs: tf.Tensor, *, training: bool | None = None) -> tf.Tensor:
        """Normalize each step on its own.

        outputs = g inputs/√(mean of inputs² + epsilon)

        Args:
            inputs: (batch, steps, features); one vector for each step
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            outputs: (batch, steps, features); the normalized vectors
        """
        self._check("call", inputs=inputs)
        return super().__call__(inputs, **mode_of(training))

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Normalize each step; Keras enters here."""
        wide = widen(inputs)
        return tf.cast(tf.cast(self.g, wide.dtype) * scaled_to_one(wide, self.sizes["epsilon"]), inputs.dtype)


def widen(inputs: tf.Tensor) -> tf.Tensor:
    """Widen half-precision inputs to float32, for normalization."""
    return inputs if inputs.dtype == tf.float64 else tf.cast(inputs, tf.float32)


def scaled_to_one(inputs: tf.Tensor, epsilon: float) -> tf.Tensor:
    """inputs/√(mean of inputs² + epsilon)."""
    return inputs * tf.math.rsqrt(tf.reduce_mean(inputs * inputs, axis=-1, keepdims=True) + epsilon)


LAYERS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


def norm_layer(
    part: Part, *, dtype: keras.dtype_policies.DTypePolicy | None = None, name: str | None = None
) -> LayerNorm | RMSNorm:
    """Make the normalization inside another layer."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype, name=name)
