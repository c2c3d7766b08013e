"""Normalization of the features of each step, in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention_core.operators.normalization import LAYER_NORM, RMS_NORM
from attention_core.specification import Part
from backends.jax.module import Specified, at_dtype

__all__ = ["LayerNorm", "RMSNorm"]


class LayerNorm(Specified):
    """Shift and scale the features of each step to mean 0 and variance 1, then by a learned gain and bias.

    outputs = g (inputs - μ)/√(σ² + epsilon) + b
    μ = mean of the features, σ² = mean of (inputs - μ)²

    The variance divides by the number of features, not by one less. Half precision is normalized in float32.

    Args:
        features: features of a step
        epsilon (default 1e-05): number added to the mean square under the root
        bias (default True): whether there is a bias
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Parameters:
        g: (features,), gain of each feature; 1 at first
        b: (features,), bias of each feature, if bias; 0 at first
    Source: Ba et al. 2016, section 3, arXiv:1607.06450
    Example:
        layer = attention.LayerNorm(features, rngs=nnx.Rngs(0))
        outputs = layer(inputs)
    """

    specification = LAYER_NORM

    def __init__(
        self,
        features: int,
        *,
        epsilon: float = 1e-5,
        bias: bool = True,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        super().__init__(locals())
        self.g = nnx.Param(jnp.ones(features, param_dtype))
        self.b = nnx.Param(jnp.zeros(features, param_dtype)) if bias else None

    @at_dtype
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Normalize each step on its own.

        outputs = g (inputs - μ)/√(σ² + epsilon) + b
        μ = mean of the features, σ² = mean of (inputs - μ)²

        Args:
            inputs: (batch, steps, features); one vector for each step
        Returns:
            outputs: (batch, steps, features); the normalized vectors
        """
        self._check("call", inputs=inputs)
        wide = widen(inputs)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        scaled = self.g[...].astype(wide.dtype) * scaled_to_one(centred, self.sizes["epsilon"])
        return (scaled if self.b is None else scaled + self.b[...].astype(wide.dtype)).astype(inputs.dtype)


class RMSNorm(Specified):
    """Scale the features of each step to mean square 1, then by a learned gain.

    outputs = g inputs/√(mean of inputs² + epsilon)

    No mean is subtracted, and there is no bias. Half precision is normalized in float32.

    Args:
        features: features of a step
        epsilon (default 1e-05): number added to the mean square under the root
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Parameters:
        g: (features,), gain of each feature; 1 at first
    Source: Zhang and Sennrich 2019, section 3, arXiv:1910.07467
    Example:
        layer = attention.RMSNorm(features, rngs=nnx.Rngs(0))
        outputs = layer(inputs)
    """

    specification = RMS_NORM

    def __init__(
        self,
        features: int,
        *,
        epsilon: float = 1e-5,
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        super().__init__(locals())
        self.g = nnx.Param(jnp.ones(features, param_dtype))

    @at_dtype
    def __call__(self, inputs: jax.Array) -> jax.Array:
        """Normalize each step on its own.

        outputs = g inputs/√(mean of inputs² + epsilon)

        Args:
            inputs: (batch, steps, features); one vector for each step
        Returns:
            outputs: (batch, steps, features); the normalized vectors
        """
        self._check("call", inputs=inputs)
        wide = widen(inputs)
        return (self.g[...].astype(wide.dtype) * scaled_to_one(wide, self.sizes["epsilon"])).astype(inputs.dtype)


def widen(inputs: jax.Array) -> jax.Array:
    """Return half-precision inputs as float32, for normalization."""
    return inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))


def scaled_to_one(inputs: jax.Array, epsilon: float) -> jax.Array:
    """inputs/√(mean of inputs² + epsilon)."""
    return inputs * jax.lax.rsqrt(jnp.mean(inputs * inputs, axis=-1, keepdims=True) + epsilon)


LAYERS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


def norm_layer(
    part: Part, *, dtype: DTypeLike | None = None, param_dtype: DTypeLike = jnp.float32
) -> LayerNorm | RMSNorm:
    """Make the normalization inside another layer."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype, param_dtype=param_dtype)
