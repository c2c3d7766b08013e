"""What layers in PyTorch share: the check at the door, drawn parameters and drawn dropout."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from attention_core.errors import check_options, check_tokens
from attention_core.specification import Layer
from backends.torch.arrays import autocast_dtype, check

AUTOCAST = ("float32", "float16", "bfloat16")
"""The floating types that autocast casts."""


class Specified(nn.Module):
    """What all layers share: options that are checked, and the check of a call.

    A public method checks its arguments, once, and calls methods that begin with an underscore, which check nothing.
    """

    specification: Layer

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.sizes = check_options(self.specification, **options)

    def _check(self, method: str, **arguments: Any) -> None:
        """Refuse arguments that do not fit the layer or each other."""
        operator = self.specification.method(method)
        operator = operator.time_major if self.sizes.get("time_major") else operator
        check(operator, self.sizes, dtype_of(self), castable(arguments.values()), **arguments)


def drawn(
    shape: tuple[int, ...], fan_in: int, dtype: torch.dtype | None, device: torch.device | str | None
) -> nn.Parameter:
    """A parameter with values from PyTorch's own generator, uniform in ±1/√fan_in."""
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device).uniform_(-bound, bound))


def dtype_of(layer: nn.Module) -> torch.dtype | None:
    """The floating type that a layer has fixed: that of its parameters, or None where it has none."""
    return next((parameter.dtype for parameter in layer.parameters()), None)


def drawn_mask(dropout: nn.Dropout, like: torch.Tensor, *, shape: Sequence[int] | None = None) -> torch.Tensor | None:
    """Draw a dropout mask, in the shape of an array unless another is given; None where nothing is dropped."""
    if not dropout.training or dropout.p == 0.0:
        return None
    return dropout(torch.ones(like.shape if shape is None else shape, dtype=like.dtype, device=like.device))


def check_ids(title: str, name: str, tokens: torch.Tensor, vocab_size: int) -> None:
    """Refuse token ids outside the vocabulary, where there are values: not while compiling, on meta, or in a vmap."""
    traced = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(tokens)
    if tokens.numel() and not (traced or tokens.is_meta or type(tokens) is not torch.Tensor):
        lowest, highest = tokens.aminmax()
        check_tokens(title, name, int(lowest), int(highest), vocab_size)


# ------------------------------------------------------------------------------------------------ particular to PyTorch


def castable(arguments: Iterable[Any]) -> Collection[str]:
    """The floating types that autocast casts to its own, if it is on for the device of the arguments."""
    first = next((argument for argument in arguments if isinstance(argument, torch.Tensor)), None)
    return () if first is None or autocast_dtype(first) is None else AUTOCAST
