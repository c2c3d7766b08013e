"""Where each canonical parameter lives in the MXNet layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy
from mxnet import np
from mxnet.gluon import Block, Parameter

from attention_core.errors import check_parameters
from backends.mxnet.arrays import from_numpy, to_numpy
from backends.mxnet.module import dtype_of

__all__ = ["get_parameters", "set_parameters"]

# Canonical name, name among the blocks' attributes, and the axes of the one in the order of the other (None: the same).
Entry = tuple[str, str, tuple[int, ...] | None]

RECURRENT: tuple[Entry, ...] = tuple(
    (f"{{layer}}.{direction}{name}", f"{place}.{{layer}}.{name}", None)
    for direction, place in (("", "layers"), ("backward.", "backward_layers"))
    for name in ("W", "U", "b", "b_hn")
)
EMBEDDING: tuple[Entry, ...] = (("embedding", "embedding.weight", None),)
DECODER: tuple[Entry, ...] = (
    *EMBEDDING,
    ("initial", "initial", None),
    ("dense.W", "dense.weight", None),
    ("dense.b", "dense.bias", None),
)
TABLES: dict[str, tuple[Entry, ...]] = {
    "AdditiveAttention": (("W_q", "W_q.weight", None), ("W_k", "W_k.weight", None), ("w_v", "w_v", None)),
    "GeneralAttention": (("W", "W.weight", None),),
    "ConcatAttention": (("W", "W.weight", None), ("v", "v", None)),
    "LocationAttention": (("W", "W.weight", None),),
    "KernelAttention": (("w", "w", None),),
    "LocalAttention": (("W_p", "W_p.weight", None), ("v_p", "v_p", None)),
    "MultiHeadAttention": (
        ("W_q", "W_q.weight", None),
        ("W_k", "W_k.weight", None),
        ("W_v", "W_v.weight", None),
        ("W_o", "W_o.weight", None),
        ("b_q", "W_q.bias", None),
        ("b_k", "W_k.bias", None),
        ("b_v", "W_v.bias", None),
        ("b_o", "W_o.bias", None),
    ),
    "LearnedPositions": (("P", "P.weight", None),),
    "GRU": RECURRENT,
    "LSTM": RECURRENT,
    "GRUEncoder": EMBEDDING,
    "LSTMEncoder": EMBEDDING,
    "Bridge": (("{layer}.W", "layers.{layer}.W", None), ("{layer}.b_s", "layers.{layer}.b_s", None)),
    "BahdanauDecoder": (*DECODER, ("readout.W", "readout.weight", None), ("readout.b", "readout.bias", None)),
    "LuongDecoder": (*DECODER, ("W_c", "W_c.weight", None)),
    "FixedContextDecoder": DECODER,
    "Translator": (),
}
"""Each layer's own entries, of which it has those that its options ask for; a layer without parameters has none."""


def get_parameters(
    layer: Block, read: Callable[[Parameter], np.ndarray | None] = lambda parameter: parameter.data()
) -> dict[str, numpy.ndarray]:
    """Copy a layer's parameters out as canonical arrays.

    read says what to copy of each parameter: itself, or its gradient, say. Where it gives None, the array is 0.
    """
    arrays = {}
    for name, parameter, axes in located(layer):
        values = read(parameter)
        array = to_numpy(np.zeros_like(parameter.data()) if values is None else values)
        arrays[name] = numpy.array(array if axes is None else array.transpose(axes), order="C")
    return {name: arrays[name] for name in layer.specification.shapes(layer.sizes)}


def set_parameters(layer: Block, arrays: Mapping[str, numpy.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    check_parameters(layer.specification, layer.sizes, dtype_of(layer), arrays)
    for name, parameter, axes in located(layer):
        array = arrays[name] if axes is None else arrays[name].transpose(numpy.argsort(axes))
        parameter.set_data(from_numpy(array))


def located(layer: Block) -> Iterator[tuple[str, Parameter, tuple[int, ...] | None]]:
    """Each canonical name with its parameter here and the order of its axes, those of the layers inside included."""
    own = layer.specification.own_shapes(layer.sizes)
    for pattern, path, axes in TABLES.get(layer.specification.name, ()):
        for index in range(layer.sizes["num_layers"]) if "{layer}" in pattern else range(1):
            name = pattern.format(layer=index)
            if name in own:
                yield name, found(layer, path.format(layer=index)), axes
    for inside in layer.specification.inside(layer.sizes):
        for name, parameter, axes in located(getattr(layer, inside)):
            yield f"{inside}.{name}", parameter, axes


def found(layer: Block, path: str) -> Parameter:
    """The parameter at a path of attributes, and of indices into a sequence of blocks."""
    for part in path.split("."):
        layer = layer[int(part)] if part.isdigit() else getattr(layer, part)
    return layer
