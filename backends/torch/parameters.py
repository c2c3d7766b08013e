"""Where each canonical parameter lives in the PyTorch layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from attention_core.errors import check_parameters
from attention_core.operators import LAYERS
from attention_core.specification import pattern
from backends.torch.arrays import from_numpy, to_numpy
from backends.torch.module import dtype_of

__all__ = ["get_parameters", "set_parameters"]

# Canonical name, path of attributes here, and the axes of the one in the order of the other (None: the same).
Entry = tuple[str, str, tuple[int, ...] | None]

# The arrays that the rule of `entry` does not find, by canonical name.
PATHS = {
    **{f"{{layer}}.{name}": f"layers.{{layer}}.{name}" for name in ("W", "U", "b", "b_hn", "b_s")},
    **{f"{{layer}}.backward.{name}": f"backward_layers.{{layer}}.{name}" for name in ("W", "U", "b", "b_hn")},
    "embedding": "embedding.weight",
    **{f"{layer}.W": f"{layer}.weight" for layer in ("dense", "readout")},
    **{f"{layer}.b": f"{layer}.bias" for layer in ("dense", "readout")},
    **{f"b_{of}": f"W_{of}.bias" for of in "qkvop123"},
}


def entry(name: str) -> Entry:
    """Return the entry of a canonical name: a matrix W is in the nn.Linear of its name, others are attributes."""
    path = PATHS.get(name, f"{name}.weight" if name.startswith("W") else name)
    return name, path, None


# The entries of each layer, with every option; those of a layer inside it are in that layer's table.
TABLES = {layer.name: tuple(entry(parameter.name) for parameter in layer.parameters) for layer in LAYERS}


def get_parameters(
    layer: nn.Module, read: Callable[[nn.Parameter], torch.Tensor | None] = lambda parameter: parameter
) -> dict[str, np.ndarray]:
    """Copy a layer's parameters out as canonical arrays.

    read selects what to copy of each parameter, such as its value or its gradient. If it returns None, the array is 0.
    """
    arrays = {}
    for name, parameter, axes in locate_parameters(layer):
        values = read(parameter)
        array = to_numpy(torch.zeros_like(parameter) if values is None else values)
        arrays[name] = array if axes is None else np.ascontiguousarray(array.transpose(axes))
    return arrays


def set_parameters(layer: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    check_parameters(layer.specification, layer.sizes, dtype_of(layer), arrays)
    with torch.no_grad():
        for name, parameter, axes in locate_parameters(layer):
            array = arrays[name] if axes is None else arrays[name].transpose(np.argsort(axes))
            parameter.copy_(from_numpy(array))


def locate_parameters(layer: nn.Module) -> Iterator[tuple[str, nn.Parameter, tuple[int, ...] | None]]:
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
