"""Normalization of the features of each step in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_core.operators.normalization import LAYER_NORM, RMS_NORM
from attention_core.reference.arrays import Specified, align, promote
from attention_core.specification import Layer

__all__ = ["LayerNorm", "RMSNorm"]


class Norm(Specified):
    """Base class of the normalizations: a step is divided by the root of its mean square."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        self.parameters["g"] = np.ones_like(self.parameters["g"])

    def _scale(self, inputs: np.ndarray) -> np.ndarray:
        """Compute g inputs/√(mean of inputs² + epsilon)."""
        square = np.mean(inputs * inputs, axis=-1, keepdims=True)
        return align(self.parameters["g"], 1, inputs.ndim) * inputs / np.sqrt(square + self.sizes["epsilon"])


class LayerNorm(Norm):
    """Shift and scale the features of each step to mean 0 and variance 1, then by a learned gain and bias.

    outputs = g (inputs - μ)/√(σ² + epsilon) + b
    μ = mean of the features, σ² = mean of (inputs - μ)²

    The variance divides by the number of features, not by one less. Half precision is normalized in float32.
    """

    specification: Layer = LAYER_NORM

    def __init__(self, features: int, *, epsilon: float = 1e-5, bias: bool = True) -> None:
        super().__init__(locals())

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Normalize each step on its own.

        outputs = g (inputs - μ)/√(σ² + epsilon) + b
        μ = mean of the features, σ² = mean of (inputs - μ)²
        """
        self._check("call", inputs=inputs)
        inputs = promote(inputs)
        scaled = self._scale(inputs - np.mean(inputs, axis=-1, keepdims=True))
        return scaled + align(self.parameters["b"], 1, scaled.ndim) if self.sizes["bias"] else scaled


class RMSNorm(Norm):
    """Scale the features of each step to mean square 1, then by a learned gain.

    outputs = g inputs/√(mean of inputs² + epsilon)

    No mean is subtracted, and there is no bias. Half precision is normalized in float32.
    """

    specification: Layer = RMS_NORM

    def __init__(self, features: int, *, epsilon: float = 1e-5) -> None:
        super().__init__(locals())

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Normalize each step on its own.

        outputs = g inputs/√(mean of inputs² + epsilon)
        """
        self._check("call", inputs=inputs)
        return self._scale(promote(inputs))
