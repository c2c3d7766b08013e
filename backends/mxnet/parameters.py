"""Where each canonical parameter lives in the MXNet layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy
from mxnet import np
from mxnet.gluon import Block, Parameter

from attention_core.errors import check_parameters
from backends.mxnet.runtime import from_numpy, to_numpy

__all__ = ["get_parameters", "set_parameters"]

# Canonical name, name among the blocks' attributes, and the axes of the one in the order of the other (None: the same).
Entry = tuple[str, str, tuple[int, ...] | None]

GRU: tuple[Entry, ...] = (
    ("{layer}.W", "layers.{layer}.W", None),
    ("{layer}.U", "layers.{layer}.U", None),
    ("{layer}.b", "layers.{layer}.b", None),
    ("{layer}.b_hn", "layers.{layer}.b_hn", None),
)
ADDITIVE: tuple[Entry, ...] = (
    ("W_q", "W_q.weight", None),
    ("W_k", "W_k.weight", None),
    ("w_v", "w_v", None),
)


def within(prefix: str, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The entries of a layer that stands inside another one, under the same name here and in the specification."""
    return tuple((f"{prefix}.{name}", f"{prefix}.{path}", axes) for name, path, axes in entries)


EMBEDDING: tuple[Entry, ...] = (("embedding", "embedding.weight", None),)
TABLES: dict[str, tuple[Entry, ...]] = {
    "DotProductAttention": (),
    "AdditiveAttention": ADDITIVE,
    "GeneralAttention": (("W", "W.weight", None),),
    "ConcatAttention": (("W", "W.weight", None), ("v", "v", None)),
    "CosineAttention": (),
    "GRU": GRU,
    "GRUEncoder": (*EMBEDDING, *within("rnn", GRU)),
    "BahdanauDecoder": (
        *EMBEDDING,
        *within("attention", ADDITIVE),
        *within("rnn", GRU),
        ("dense.W", "dense.weight", None),
        ("dense.b", "dense.bias", None),
    ),
}


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
        arrays[name] = numpy.ascontiguousarray(array if axes is None else array.transpose(axes))
    return {name: arrays[name] for name in layer.specification.shapes(layer.sizes)}


def set_parameters(layer: Block, arrays: Mapping[str, numpy.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    dtype = next((parameter.dtype for parameter in layer.collect_params().values()), None)
    check_parameters(layer.specification, layer.sizes, dtype, arrays)
    for name, parameter, axes in located(layer):
        array = arrays[name] if axes is None else arrays[name].transpose(numpy.argsort(axes))
        parameter.set_data(from_numpy(array))


def located(layer: Block) -> Iterator[tuple[str, Parameter, tuple[int, ...] | None]]:
    """Each canonical name with its parameter here and the order of its axes."""
    for name, path, axes in TABLES[layer.specification.name]:
        for index in range(layer.sizes["num_layers"]) if "{layer}" in name else range(1):
            yield name.format(layer=index), found(layer, path.format(layer=index)), axes


def found(layer: Block, path: str) -> Parameter:
    """The parameter at a path of attributes, and of indices into a sequence of blocks."""
    for part in path.split("."):
        layer = layer[int(part)] if part.isdigit() else getattr(layer, part)
    return layer
