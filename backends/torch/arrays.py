"""Arrays of NumPy into PyTorch, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import torch

from attention_core import errors
from attention_core.errors import DtypeError, ShapeError
from attention_core.specification import Operator, Sizes

__all__ = ["from_numpy", "to_numpy"]

Lengths: TypeAlias = torch.Tensor | Sequence[int] | Sequence[Sequence[int]]
"""A length for each sequence, or one for each of its queries."""
Offset: TypeAlias = torch.Tensor | Sequence[int] | int
"""A position among the keys, of each sequence or of all."""


def from_numpy(array: np.ndarray, device: str = "cpu") -> torch.Tensor:
    """Copy a NumPy array to the device, with its strides unless one is negative, which PyTorch does not have."""
    strides = [stride // array.itemsize for stride in array.strides]
    if array.size and not array.flags.c_contiguous and min(strides) >= 0:
        spanned = 1 + sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
        flat = np.lib.stride_tricks.as_strided(array, (spanned,), (array.itemsize,), writeable=False)
        return from_numpy(flat, device).as_strided(array.shape, strides)
    array = np.array(array, order="C")
    if array.dtype.name == "bfloat16":  # which torch.tensor does not know: its bits go in as integers
        return torch.tensor(array.view(np.int16), device=device).view(torch.bfloat16)
    return torch.tensor(array, device=device)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Copy a tensor to a NumPy array."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16).copy()
    return tensor.numpy().copy()


def lengths(valid_lens: Lengths, device: torch.device | None) -> torch.Tensor:
    """Lengths as a tensor; a list becomes one on the device."""
    return valid_lens if isinstance(valid_lens, torch.Tensor) else torch.tensor(valid_lens, device=device)


# ------------------------------------------------------------------------------------------------ particular to PyTorch


def check(
    operator: Operator,
    sizes: Sizes | None = None,
    dtype: torch.dtype | None = None,
    castable: Collection[str] = (),
    /,
    **arguments: Any,
) -> dict[str, int]:
    """Refuse NumPy arrays and nested tensors, and what `attention_core.errors.check` refuses."""
    for name, argument in arguments.items():
        if isinstance(argument, np.ndarray) and all(option.name != name for option in operator.options):
            given = f"{operator.title}: {name} is a NumPy array, expected a tensor"
            raise DtypeError(f"{given}. Convert it with torch.from_numpy first.")
        if isinstance(argument, torch.Tensor) and argument.is_nested:
            given = f"{operator.title}: {name} is a nested tensor, expected a padded one"
            raise ShapeError(f"{given}. Pad it with torch.nested.to_padded_tensor, and give the lengths as valid_lens.")
    return errors.check(operator, sizes, dtype, castable, **arguments)


def autocast_dtype(tensor: torch.Tensor) -> torch.dtype | None:
    """The dtype of autocast on the device of the tensor; None where it is off, or unknown."""
    device = tensor.device.type
    on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if on else None
