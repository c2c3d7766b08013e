"""Where each canonical parameter lives in the JAX layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attention_core.errors import check_parameters
from attention_core.operators import LAYERS
from attention_core.specification import pattern
from backends.jax.arrays import to_numpy
from backends.jax.module import dtype_of

__all__ = ["get_parameters", "set_parameters"]

# Canonical name, path of attributes here, and the axes of the one in the order of the other (None: the same).
Entry = tuple[str, str, tuple[int, ...] | None]

# The arrays that the rule of `entry` does not find, by canonical name.
PATHS = {
    **{f"{{layer}}.{name}": f"layers.{{layer}}.{name}" for name in ("W", "U", "b", "b_hn", "b_s")},
    **{f"{{layer}}.backward.{name}": f"backward_layers.{{layer}}.{name}" for name in ("W", "U", "b", "b_hn")},
    "embedding": "embedding.embedding",
    **{f"{layer}.W": f"{layer}.kernel" for layer in ("dense", "readout")},
    **{f"{layer}.b": f"{layer}.bias" for layer in ("dense", "readout")},
    **{f"b_{of}": f"W_{of}.bias" for of in "qkvop123"},
}


def entry(name: str) -> Entry:
    """Return the entry of a canonical name: a matrix W is in the nnx.Linear of its name, others are attributes.

    The kernel of a Linear is the transpose.
    """
    path = PATHS.get(name, f"{name}.kernel" if name.startswith("W") else name)
    return name, path, (1, 0) if path.endswith(".kernel") else None


# The entries of each layer, with every option; those of a layer inside it are in that layer's table.
TABLES = {layer.name: tuple(entry(parameter.name) for parameter in layer.parameters) for layer in LAYERS}


def get_parameters(
    layer: nnx.Module, read: Callable[[nnx.Param], jax.Array | None] = lambda parameter: parameter[...]
) -> dict[str, np.ndarray]:
    """Copy a layer's parameters out as canonical arrays.

    read selects what to copy of each parameter, such as its value or an optimiser's state. If it returns None, the
    array is 0. Gradients have the structure of the layer: merge them into one, as `vjp` does, and copy them from there.
    """
    arrays = {}
    for name, parameter, axes in locate_parameters(layer):
        values = read(parameter)
        array = to_numpy(jnp.zeros_like(parameter[...]) if values is None else values)
        arrays[name] = array if axes is None else np.ascontiguousarray(array.transpose(axes))
    return arrays


def set_parameters(layer: nnx.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    check_parameters(layer.specification, layer.sizes, dtype_of(layer), arrays)
    for name, parameter, axes in locate_parameters(layer):
        array = arrays[name] if axes is None else arrays[name].transpose(np.argsort(axes))
        # Copied by NumPy, since JAX may keep its memory; jnp.array would compile a function for every shape.
        parameter[...] = jax.device_put(np.array(array), parameter[...].sharding)


def locate_parameters(layer: nnx.Module) -> Iterator[tuple[str, nnx.Param, tuple[int, ...] | None]]:
    """Return each canonical name, in the specification's order, with its parameter here and the order of its axes."""
    entries = {name: (path, axes) for name, path, axes in TABLES[layer.specification.name]}
    for name in layer.specification.own_shapes(layer.sizes):
        path, axes = entries[pattern(name)]
        yield name, attribute_at(layer, path.format(layer=name.partition(".")[0])), axes
    for inside, part in layer.specification.inside(layer.sizes).items():
        for name, parameter, axes in locate_parameters(attribute_at(layer, inside)):
            if name not in part.shared:
                yield f"{inside}.{name}", parameter, axes


def attribute_at(layer: Any, path: str) -> Any:
    """Follow a path of attributes, and of numbers in lists."""
    for part in path.split("."):
        layer = layer[int(part)] if part.isdigit() else getattr(layer, part)
    return layer
