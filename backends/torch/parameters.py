"""Where each canonical parameter lives in the PyTorch layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import nn

from attention_core.errors import check_parameters
from backends.torch.arrays import from_numpy, to_numpy

__all__ = ["get_parameters", "set_parameters"]

# Canonical name, name in state_dict(), and the axes of the one in the order of the other (None: the same).
Entry = tuple[str, str, tuple[int, ...] | None]

LSTM: tuple[Entry, ...] = (
    ("{layer}.W", "layers.{layer}.W", None),
    ("{layer}.U", "layers.{layer}.U", None),
    ("{layer}.b", "layers.{layer}.b", None),
    ("{layer}.backward.W", "backward_layers.{layer}.W", None),
    ("{layer}.backward.U", "backward_layers.{layer}.U", None),
    ("{layer}.backward.b", "backward_layers.{layer}.b", None),
)
GRU: tuple[Entry, ...] = (
    *LSTM,
    ("{layer}.b_hn", "layers.{layer}.b_hn", None),
    ("{layer}.backward.b_hn", "backward_layers.{layer}.b_hn", None),
)
EMBEDDING: tuple[Entry, ...] = (("embedding", "embedding.weight", None),)
DECODER: tuple[Entry, ...] = (
    *EMBEDDING,
    ("initial", "initial", None),
    ("dense.W", "dense.weight", None),
    ("dense.b", "dense.bias", None),
)
# The entries of each layer alone: those of a layer inside it stand in that layer's table.
TABLES: dict[str, tuple[Entry, ...]] = {
    "DotProductAttention": (),
    "AdditiveAttention": (("W_q", "W_q.weight", None), ("W_k", "W_k.weight", None), ("w_v", "w_v", None)),
    "GeneralAttention": (("W", "W.weight", None),),
    "ConcatAttention": (("W", "W.weight", None), ("v", "v", None)),
    "CosineAttention": (),
    "LocationAttention": (("W", "W.weight", None),),
    "KernelAttention": (("w", "w", None),),
    "LocalAttention": (("W_p", "W_p.weight", None), ("v_p", "v_p", None)),
    "HardAttention": (),
    "NadarayaWatson": (),
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
    "SinusoidalPositions": (),
    "LearnedPositions": (("P", "P", None),),
    "GRU": GRU,
    "LSTM": LSTM,
    "GRUEncoder": EMBEDDING,
    "LSTMEncoder": EMBEDDING,
    "Bridge": (("{layer}.W", "layers.{layer}.W", None), ("{layer}.b_s", "layers.{layer}.b_s", None)),
    "BahdanauDecoder": (*DECODER, ("readout.W", "readout.weight", None), ("readout.b", "readout.bias", None)),
    "LuongDecoder": (*DECODER, ("W_c", "W_c.weight", None)),
    "FixedContextDecoder": DECODER,
    "Translator": (),
}


def get_parameters(
    layer: nn.Module, read: Callable[[nn.Parameter], torch.Tensor | None] = lambda parameter: parameter
) -> dict[str, np.ndarray]:
    """Copy a layer's parameters out as canonical arrays.

    read says what to copy of each parameter: itself, or its gradient, say. Where it gives None, the array is 0.
    """
    arrays = {}
    for name, parameter, axes in located(layer):
        values = read(parameter)
        array = to_numpy(torch.zeros_like(parameter) if values is None else values)
        arrays[name] = array if axes is None else array.transpose(axes).copy()
    return {name: arrays[name] for name in layer.specification.shapes(layer.sizes)}


def set_parameters(layer: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    dtype = next((parameter.dtype for parameter in layer.parameters()), None)
    check_parameters(layer.specification, layer.sizes, dtype, arrays)
    with torch.no_grad():
        for name, parameter, axes in located(layer):
            array = arrays[name] if axes is None else arrays[name].transpose(np.argsort(axes))
            parameter.copy_(from_numpy(array))


def located(layer: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Parameter, tuple[int, ...] | None]]:
    """Each canonical name with its parameter here and the order of its axes."""
    shapes = layer.specification.own_shapes(layer.sizes)
    for entry, path, axes in TABLES[layer.specification.name]:
        for index in range(layer.sizes["num_layers"]) if "{layer}" in entry else range(1):
            name = entry.format(layer=index)
            if name in shapes:  # which the options may have left out
                yield prefix + name, layer.get_parameter(path.format(layer=index)), axes
    for name in layer.specification.inside(layer.sizes):
        yield from located(getattr(layer, name), f"{prefix}{name}.")
