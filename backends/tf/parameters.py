"""Where each canonical parameter lives in the Keras layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import keras
import numpy as np
import tensorflow as tf

from attention_core.errors import check_parameters
from attention_core.specification import pattern
from backends.tf.arrays import from_numpy, to_numpy

__all__ = ["get_parameters", "set_parameters"]

# Canonical name, path of attributes here, and the axes of the one in the order of the other (None: the same).
Entry = tuple[str, str, tuple[int, ...] | None]


def both_directions(*names: str) -> tuple[Entry, ...]:
    """The entries of a recurrent layer whose layers each have these parameters, for one direction or for both."""
    forward = tuple((f"{{layer}}.{name}", f"layers.{{layer}}.{name}", None) for name in names)
    backward = tuple((f"{{layer}}.backward.{name}", f"backward_layers.{{layer}}.{name}", None) for name in names)
    return (*forward, *backward)


EMBEDDING: Entry = ("embedding", "embedding.embeddings", None)
DECODER: tuple[Entry, ...] = (
    EMBEDDING,
    ("initial", "initial", None),
    ("dense.W", "dense.kernel", (1, 0)),
    ("dense.b", "dense.bias", None),
)
# Each layer's own entries: those of a layer inside it are found there. A layer may lack some, by its options.
TABLES: dict[str, tuple[Entry, ...]] = {
    "DotProductAttention": (),
    "AdditiveAttention": (("W_q", "W_q.kernel", (1, 0)), ("W_k", "W_k.kernel", (1, 0)), ("w_v", "w_v", None)),
    "GeneralAttention": (("W", "W.kernel", (1, 0)),),
    "ConcatAttention": (("W", "W.kernel", (1, 0)), ("v", "v", None)),
    "CosineAttention": (),
    "LocationAttention": (("W", "W.kernel", (1, 0)),),
    "KernelAttention": (("w", "w", None),),
    "LocalAttention": (("W_p", "W_p.kernel", (1, 0)), ("v_p", "v_p", None)),
    "HardAttention": (),
    "NadarayaWatson": (),
    "MultiHeadAttention": (
        ("W_q", "W_q.kernel", (1, 0)),
        ("W_k", "W_k.kernel", (1, 0)),
        ("W_v", "W_v.kernel", (1, 0)),
        ("W_o", "W_o.kernel", (1, 0)),
        ("b_q", "W_q.bias", None),
        ("b_k", "W_k.bias", None),
        ("b_v", "W_v.bias", None),
        ("b_o", "W_o.bias", None),
    ),
    "SinusoidalPositions": (),
    "LearnedPositions": (("P", "P", None),),
    "GRU": both_directions("W", "U", "b", "b_hn"),
    "LSTM": both_directions("W", "U", "b"),
    "GRUEncoder": (EMBEDDING,),
    "LSTMEncoder": (EMBEDDING,),
    "Bridge": (("{layer}.W", "layers.{layer}.W", None), ("{layer}.b_s", "layers.{layer}.b_s", None)),
    "BahdanauDecoder": (*DECODER, ("readout.W", "readout.kernel", (1, 0)), ("readout.b", "readout.bias", None)),
    "LuongDecoder": (*DECODER, ("W_c", "W_c.kernel", (1, 0))),
    "FixedContextDecoder": DECODER,
    "Translator": (),
}


def get_parameters(
    layer: keras.layers.Layer, read: Callable[[keras.Variable], tf.Tensor | None] = lambda parameter: parameter
) -> dict[str, np.ndarray]:
    """Copy a layer's parameters out as canonical arrays.

    read says what to copy of each parameter: itself, or its gradient, say. Where it gives None, the array is 0.
    """
    arrays = {}
    for name, parameter, axes in located(layer):
        values = read(parameter)
        array = to_numpy(tf.zeros_like(parameter) if values is None else values)
        arrays[name] = array if axes is None else np.ascontiguousarray(array.transpose(axes))
    return arrays


def set_parameters(layer: keras.layers.Layer, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    check_parameters(layer.specification, layer.sizes, layer.variable_dtype, arrays)
    for name, parameter, axes in located(layer):
        array = arrays[name] if axes is None else arrays[name].transpose(np.argsort(axes))
        parameter.assign(from_numpy(array))


def located(layer: keras.layers.Layer) -> Iterator[tuple[str, keras.Variable, tuple[int, ...] | None]]:
    """Each canonical name with its parameter here and the order of its axes, in the order of the specification."""
    entries = {name: (path, axes) for name, path, axes in TABLES[layer.specification.name]}
    for name in layer.specification.own_shapes(layer.sizes):
        path, axes = entries[pattern(name)]
        parameter = layer
        for part in path.format(layer=name.partition(".")[0]).split("."):
            parameter = parameter[int(part)] if part.isdigit() else getattr(parameter, part)
        yield name, parameter, axes
    for inside in layer.specification.inside(layer.sizes):
        for name, parameter, axes in located(getattr(layer, inside)):
            yield f"{inside}.{name}", parameter, axes
