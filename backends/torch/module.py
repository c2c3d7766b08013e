"""What layers in PyTorch share: their dtype, drawn parameters and drawn dropout."""

from __future__ import annotations

import torch
from torch import nn


def drawn(
    shape: tuple[int, ...], fan_in: int, dtype: torch.dtype | None, device: torch.device | str | None
) -> nn.Parameter:
    """A parameter with values from PyTorch's own generator, uniform in ±1/√fan_in."""
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device).uniform_(-bound, bound))


def dtype_of(layer: nn.Module) -> torch.dtype | None:
    """The floating type that a layer has fixed: that of its parameters, or None where it has none."""
    return next((parameter.dtype for parameter in layer.parameters()), None)


def drawn_mask(dropout: nn.Dropout, like: torch.Tensor) -> torch.Tensor | None:
    """A dropout mask from PyTorch's own generator, or None where nothing is dropped."""
    return dropout(torch.ones_like(like)) if dropout.training and dropout.p > 0.0 else None
