"""The base class of layers in PyTorch: options, the check of a call, initial values and dropout masks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from attention_core.errors import check_options, check_tokens
from attention_core.specification import Layer
from backends.torch.arrays import autocast_dtype, check
from backends.torch.graphs import TypedCall, is_known

AUTOCAST = ("float32", "float16", "bfloat16")
"""The floating types that autocast casts."""


class Specified(nn.Module):
    """A layer of the specification, with checked options and checked calls.

    A constructor hands over its arguments, `locals()`, of which the specification's options are taken. A public method
    checks its arguments, once, and calls methods that begin with an underscore, which check nothing.
    """

    specification: Layer

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        options = {option.name: arguments[option.name] for option in self.specification.options}
        self.sizes = check_options(self.specification, **options)

    def _check(self, method: str, **arguments: Any) -> None:
        """Refuse arguments that do not fit the layer or each other."""
        operator = self.specification.method(method)
        operator = operator.time_major if self.sizes.get("time_major") else operator
        check(operator, self.sizes, dtype_of(self), castable(arguments.values()), **arguments)

    # particular to PyTorch

    __call__: TypedCall

    def reset_parameters(self) -> None:
        """Draw all parameters anew, those of inner layers included, as the constructor draws them."""
        fans = self.specification.fans(self.sizes)
        for name, parameter in self.named_parameters(recurse=False):
            redraw(parameter, fans[name])
        reset_children(self)


def draw_parameter(
    shape: tuple[int, ...], fan_in: int, dtype: torch.dtype | None, device: torch.device | str | None
) -> nn.Parameter:
    """Return a parameter with values from PyTorch's own generator, uniform in ±1/√fan_in."""
    parameter = nn.Parameter(torch.empty(shape, dtype=dtype, device=device))
    redraw(parameter, fan_in)
    return parameter


def dtype_of(layer: nn.Module) -> torch.dtype | None:
    """Return the floating type of a layer's parameters; None if it has none."""
    return next((parameter.dtype for parameter in layer.parameters()), None)


def draw_mask(dropout: nn.Dropout, like: torch.Tensor, *, shape: Sequence[int] | None = None) -> torch.Tensor | None:
    """Draw a dropout mask, in the shape of an array unless another is given; None where nothing is dropped."""
    if not dropout.training or dropout.p == 0.0:
        return None
    return dropout(torch.ones(like.shape if shape is None else shape, dtype=like.dtype, device=like.device))


def check_ids(title: str, name: str, tokens: torch.Tensor, vocab_size: int) -> None:
    """Refuse token ids outside the vocabulary, where there are values: not while compiling, on meta, or in a vmap."""
    if tokens.numel() and is_known(tokens):
        lowest, highest = tokens.aminmax()
        check_tokens(title, name, int(lowest), int(highest), vocab_size)


# ------------------------------------------------------------------------------------------------ particular to PyTorch


def castable(arguments: Iterable[Any]) -> Collection[str]:
    """The floating types that autocast casts to its own, if it is on for the device of the arguments."""
    fields = (field for one in arguments for field in (one if isinstance(one, tuple) else (one,)))  # of a memory, too
    first = next((field for field in fields if isinstance(field, torch.Tensor)), None)
    return () if first is None or autocast_dtype(first) is None else AUTOCAST


def redraw(parameter: nn.Parameter, fan_in: int) -> None:
    """Fill a parameter with new values, uniform in ±1/√fan_in."""
    nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5)


def reset_children(module: nn.Module) -> None:
    """Call `reset_parameters` of all modules below that have one."""
    for child in module.children():
        if hasattr(child, "reset_parameters"):
            child.reset_parameters()
        else:
            reset_children(child)


class Matrix(nn.Linear):
    """A Linear whose weight a layer reads itself; `quantize_dynamic`, which goes by the type, leaves it as it is."""
