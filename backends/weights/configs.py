"""A layer's constructor arguments, found from the shapes of its canonical arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attention_core.operators import find
from attention_core.specification import Layer
from backends.weights.errors import WeightError

Shapes = Mapping[str, tuple[int, ...]]


def config_of(layer: Layer, shapes: Shapes, options: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's arguments that arrays of these shapes were made with, completed by options.

    Sizes come from shapes; options are what no shape shows (num_heads, window, dropout, ...).

    Raises: WeightError if an array that tells a size is missing, or an option is needed.
    """
    known = {option.name for option in layer.options}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise WeightError(f"{layer.name} has no option {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    found = FOUND[layer.name](shapes) if layer.name in FOUND else {}
    for name, value in options.items():
        if found.get(name, value) != value:
            raise WeightError(f"{layer.name}: {name} is {found[name]!r} by the shapes of the arrays, given {value!r}.")
    config = {**found, **options}
    needed = [option.name for option in layer.options if option.default is None and option.name not in config]
    if needed:
        raise WeightError(
            f"{layer.name}: {needed[0]} is not found in the shapes of the arrays: give it as an option ({needed[0]}=...)."
        )
    return config


def _size(shapes: Shapes, name: str, rank: int, axis: int) -> int:
    shape = shapes.get(name)
    if shape is None:
        raise WeightError(f"the array {name} is missing; there are {', '.join(sorted(shapes)) or 'none'}.")
    if len(shape) != rank:
        raise WeightError(f"{name} has shape {shape}, expected {rank} {'axis' if rank == 1 else 'axes'}.")
    return shape[axis]


def inner(shapes: Shapes, part: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the arrays of a layer inside, under their own names."""
    return {name.removeprefix(f"{part}."): shape for name, shape in shapes.items() if name.startswith(f"{part}.")}


def _recurrent(shapes: Shapes) -> dict[str, Any]:
    layers = {int(name.partition(".")[0]) for name in shapes if name.partition(".")[0].isdigit()}
    return {
        "input_size": _size(shapes, "0.W", 3, 2),
        "hidden_size": _size(shapes, "0.U", 3, 2),
        "num_layers": max(layers, default=0) + 1,
        "bidirectional": any(".backward." in name for name in shapes),
    }


FOUND: dict[str, Callable[[Shapes], dict[str, Any]]] = {"GRU": _recurrent, "LSTM": _recurrent}


def cell_of(shapes: Shapes) -> str:
    """The recurrent layer that the arrays of a part are of, by its option's name."""
    return "lstm" if _size(shapes, "0.b", 2, 0) == 4 else "gru"


def check_shapes(layer: Layer, config: Mapping[str, Any], shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """The shapes that the layer has with these arguments; refuses others."""
    try:
        wanted = layer.shapes(layer.sizes(config))
    except ValueError as error:
        raise WeightError(f"{layer.name}: no layer has arrays of these shapes: {error}") from error
    for name, shape in shapes.items():
        if name not in wanted:
            raise WeightError(
                f"{layer.name}: {name} {shape} is left over; the layer has {', '.join(wanted) or 'no arrays'}."
            )
        if shape != wanted[name]:
            hint = " Its transpose would fit." if shape[::-1] == wanted[name] else ""
            raise WeightError(f"{layer.name}: {name} has shape {shape}, expected {wanted[name]}.{hint}")
    return wanted


def layer_named(name: str) -> Layer:
    """The layer of the specification of that name."""
    try:
        found = find(name)
    except KeyError as error:
        raise WeightError(str(error.args[0])) from error
    if not isinstance(found, Layer):
        raise WeightError(f"{name} is a function, expected a layer.")
    return found
