"""Arrays of NumPy into MXNet, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import mxnet as mx
import numpy
from mxnet import np

__all__ = ["from_numpy", "to_numpy"]

Lengths: TypeAlias = np.ndarray | Sequence[int] | Sequence[Sequence[int]]
"""A length for each sequence, or one for each of its queries."""


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
    """MXNet's name of a device of the judge."""
    return {"cpu": mx.cpu, "cuda": mx.gpu}[device]()
