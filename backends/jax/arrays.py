"""Arrays of NumPy into JAX, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

__all__ = ["from_numpy", "to_numpy"]

Lengths: TypeAlias = jax.Array | Sequence[int] | Sequence[Sequence[int]]
"""A length for each sequence, or one for each of its queries."""
Offset: TypeAlias = jax.Array | Sequence[int] | int
"""A position among the keys, of each sequence or of all."""

Tree = TypeVar("Tree")


def from_numpy(array: np.ndarray, device: str = "cpu") -> jax.Array:
    """Copy a NumPy array to the device."""
    # Copied first, since JAX may keep NumPy's memory; jnp.array would compile a function for every shape.
    return jax.device_put(np.array(array), located(device))


def to_numpy(array: jax.Array) -> np.ndarray:
    """Copy an array to a NumPy array."""
    return np.array(array)


# ------------------------------------------------------------------------------------------------ particular to JAX


def located(device: str) -> jax.Device:
    """The device of that name, such as cpu, cuda, or cpu:1."""
    kind, _, index = device.partition(":")
    return jax.devices(kind)[int(index or 0)]


def varying(start: Tree, *read: Any) -> Tree:
    """The start of a loop, and its weights, varying over the axes of a mesh over which anything varies that it reads.

    Under jax.shard_map alone anything varies, and there a loop must give what it was started with, in this, too.
    Weights that vary from before the loop have a gradient that the devices add up once, and not after every step.
    """
    axes = frozenset().union(*map(axes_of, jax.tree.leaves((start, read))))
    return jax.tree.map(lambda array: vary(array, axes - axes_of(array)), start)


def axes_of(array: Any) -> frozenset[Any]:
    """The axes of a mesh over which an array varies."""
    kind: Any = jax.typeof(array)
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying  # the latter in later versions


def vary(array: Any, axes: Collection[Any]) -> Any:
    """An array that is the same along the axes of a mesh, as one that may differ."""
    if not axes:
        return array
    if hasattr(jax.lax, "pcast"):  # in later versions, in place of pvary
        return jax.lax.pcast(array, tuple(axes), to="varying")
    return jax.lax.pvary(array, tuple(axes))
