"""Normalization of the features of each step, in PyTorch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from attention_core.operators.normalization import LAYER_NORM, RMS_NORM
from attention_core.specification import Part
from backends.torch.module import Specified

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
        device: where to allocate
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
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        self.g = nn.Parameter(torch.ones(features, dtype=dtype, device=device))
        self.b = nn.Parameter(torch.zeros(features, dtype=dtype, device=device)) if bias else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalize each step on its own.

        outputs = g (inputs - μ)/√(σ² + epsilon) + b
        μ = mean of the features, σ² = mean of (inputs - μ)²

        Args:
            inputs: (batch, steps, features); one vector for each step
        Returns:
            outputs: (batch, steps, features); the normalized vectors
        """
        self._check("call", inputs=inputs)
        return functional.layer_norm(inputs, self.g.shape, self.g, self.b, self.sizes["epsilon"])

    # particular to PyTorch

    def reset_parameters(self) -> None:
        """Set the gains to 1 and the biases to 0."""
        nn.init.ones_(self.g)
        if self.b is not None:
            nn.init.zeros_(self.b)


class RMSNorm(Specified):
    """Scale the features of each step to mean square 1, then by a learned gain.

    outputs = g inputs/√(mean of inputs² + epsilon)

    No mean is subtracted, and there is no bias. Half precision is normalized in float32.

    Args:
        features: features of a step
        epsilon (default 1e-05): number added to the mean square under the root
        dtype: floating type of the parameters
        device: where to allocate
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
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        self.g = nn.Parameter(torch.ones(features, dtype=dtype, device=device))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalize each step on its own.

        outputs = g inputs/√(mean of inputs² + epsilon)

        Args:
            inputs: (batch, steps, features); one vector for each step
        Returns:
            outputs: (batch, steps, features); the normalized vectors
        """
        self._check("call", inputs=inputs)
        return functional.rms_norm(inputs, self.g.shape, self.g, self.sizes["epsilon"])

    # particular to PyTorch

    def reset_parameters(self) -> None:
        """Set the gains to 1."""
        nn.init.ones_(self.g)


LAYERS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


def norm_layer(
    part: Part, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> LayerNorm | RMSNorm:
    """Make the normalization inside another layer."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype, device=device)
