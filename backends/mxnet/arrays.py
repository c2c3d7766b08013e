"""Arrays of NumPy into MXNet, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import mxnet as mx
import numpy
from mxnet import np

from attention_core import errors
from attention_core.specification import Operator, Sizes

__all__ = ["from_numpy", "to_numpy"]

Lengths: TypeAlias = np.ndarray | Sequence[int] | Sequence[Sequence[int]]
"""A length for each sequence, or one for each of its queries."""
Offset: TypeAlias = np.ndarray | Sequence[int] | int
"""A position among the keys, of each sequence or of all."""


def from_numpy(array: numpy.ndarray, device: str = "cpu") -> np.ndarray:
    """Copy a NumPy array to the device."""
    return np.array(array, dtype=array.dtype, ctx=context(device))  # without dtype, everything becomes float32


def to_numpy(tensor: np.ndarray) -> numpy.ndarray:
    """Copy a tensor to a NumPy array."""
    return tensor.asnumpy()


def lengths(valid_lens: Lengths, ctx: mx.Context | None) -> np.ndarray:
    """Lengths as an array; a list becomes one on the device."""
    return valid_lens if isinstance(valid_lens, np.ndarray) else np.array(valid_lens, dtype="int64", ctx=ctx)


# ------------------------------------------------------------------------------------------------ particular to MXNet


def context(device: str) -> mx.Context:
    """Return MXNet's context for a device, as the parity tests name it."""
    return {"cpu": mx.cpu, "cuda": mx.gpu}[device]()


def check(operator: Operator, sizes: Sizes | None = None, dtype: Any = None, /, **arguments: Any) -> None:
    """Refuse the symbols that a hybridized block computes with, then what does not fit the operator.

    Raises: DtypeError, and what errors.check raises.
    """
    for name, argument in arguments.items():
        if isinstance(argument, mx.sym.Symbol):
            raise errors.DtypeError(
                f"{operator.title}: {name} is a symbol, expected an array: layers and functions are imperative. Make "
                "the block that calls them a Block, or do not hybridize it."
            )
    errors.check(operator, sizes, dtype, **arguments)
