"""Arrays of NumPy into MXNet, and back."""

from __future__ import annotations

import mxnet as mx
import numpy
from mxnet import np

__all__ = ["from_numpy", "to_numpy"]


def from_numpy(array: numpy.ndarray, device: str = "cpu") -> np.ndarray:
    """Copy a NumPy array to the device."""
    return np.array(array, dtype=array.dtype, ctx=context(device))  # without dtype, everything becomes float32


def to_numpy(tensor: np.ndarray) -> numpy.ndarray:
    """Copy a tensor to a NumPy array."""
    return tensor.asnumpy()


# ------------------------------------------------------------------------------------------------ particular to MXNet


def context(device: str) -> mx.Context:
    """MXNet's name of a device of the judge."""
    return {"cpu": mx.cpu, "cuda": mx.gpu}[device]()
