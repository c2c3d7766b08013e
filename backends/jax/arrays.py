"""Arrays of NumPy into JAX, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import jax
import numpy as np

__all__ = ["from_numpy", "to_numpy"]

Lengths: TypeAlias = jax.Array | Sequence[int] | Sequence[Sequence[int]]
"""A length for each sequence, or one for each of its queries."""
Offset: TypeAlias = jax.Array | Sequence[int] | int
"""A position among the keys, of each sequence or of all."""


def from_numpy(array: np.ndarray, device: str = "cpu") -> jax.Array:
    """Copy a NumPy array to the device."""
    # Copied first, since JAX may keep NumPy's memory; jnp.array would compile a function for every shape.
    return jax.device_put(np.array(array), find_device(device))


def to_numpy(array: jax.Array) -> np.ndarray:
    """Copy an array to a NumPy array."""
    return np.array(array)


# ------------------------------------------------------------------------------------------------ particular to JAX


def find_device(device: str) -> jax.Device:
    """Return the device of that name, such as cpu, cuda, or cpu:1."""
    kind, _, index = device.partition(":")
    return jax.devices(kind)[int(index or 0)]
