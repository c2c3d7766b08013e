"""Normalization of the features of each step, in MXNet."""

from __future__ import annotations

import mxnet as mx
from mxnet import np

from attention_core.operators.normalization import LAYER_NORM, RMS_NORM
from attention_core.specification import Part
from backends.mxnet.module import Specified, initialise

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
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())
        with self.name_scope():
            self.g = self.params.get("g", shape=(features,), dtype=dtype, init=mx.init.One())
            self.b = self.params.get("b", shape=(features,), dtype=dtype, init=mx.init.Zero()) if bias else None
        initialise(self)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Normalize each step on its own.

        outputs = g (inputs - μ)/√(σ² + epsilon) + b
        μ = mean of the features, σ² = mean of (inputs - μ)²

        Args:
            inputs: (batch, steps, features); one vector for each step
        Returns:
            outputs: (batch, steps, features); the normalized vectors
        """
        self._check("call", inputs=inputs)
        return super().__call__(inputs)

    def forward(self, inputs: np.ndarray) -> np.ndarray:
        """Normalize each step; Gluon enters here."""
        if inputs.size == 0:  # a sum over nothing fails in a backward of MXNet
            return np.zeros_like(inputs)
        wide = widen(inputs)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        scaled = self.g.data().astype(wide.dtype) * scaled_to_one(centred, self.sizes["epsilon"])
        return (scaled if self.b is None else scaled + self.b.data().astype(wide.dtype)).astype(inputs.dtype)


class RMSNorm(Specified):
    """Scale the features of each step to mean square 1, then by a learned gain.

    outputs = g inputs/√(mean of inputs² + epsilon)

    No mean is subtracted, and there is no bias. Half precision is normalized in float32.

    Args:
        features: features of a step
        epsilon (default 1e-05): number added to the mean square under the root
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())
        with self.name_scope():
            self.g = self.params.get("g", shape=(features,), dtype=dtype, init=mx.init.One())
        initialise(self)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Normalize each step on its own.

        outputs = g inputs/√(mean of inputs² + epsilon)

        Args:
            inputs: (batch, steps, features); one vector for each step
        Returns:
            outputs: (batch, steps, features); the normalized vectors
        """
        self._check("call", inputs=inputs)
        return super().__call__(inputs)

    def forward(self, inputs: np.ndarray) -> np.ndarray:
        """Normalize each step; Gluon enters here."""
        if inputs.size == 0:  # a sum over nothing fails in a backward of MXNet
            return np.zeros_like(inputs)
        wide = widen(inputs)
        scaled = self.g.data().astype(wide.dtype) * scaled_to_one(wide, self.sizes["epsilon"])
        return scaled.astype(inputs.dtype)


def widen(inputs: np.ndarray) -> np.ndarray:
    """Half-precision inputs as float32, for normalization."""
    return inputs if inputs.dtype == "float64" else inputs.astype("float32")


def scaled_to_one(inputs: np.ndarray, epsilon: float) -> np.ndarray:
    """inputs/√(mean of inputs² + epsilon)."""
    return inputs / np.sqrt((inputs * inputs).mean(axis=-1, keepdims=True) + epsilon)


LAYERS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


def norm_layer(part: Part, *, dtype: str = "float32") -> LayerNorm | RMSNorm:
    """Make the normalization inside another layer."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype)
