"""Where each canonical parameter lives in the Keras layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter

import keras
import numpy as np
import tensorflow as tf

from attention_core.errors import check_parameters
from backends.tf.runtime import from_numpy, to_numpy

__all__ = ["get_parameters", "set_parameters"]

# Canonical name, path of attributes here, and the axes of the one in the order of the other (None: the same).
Entry = tuple[str, str, tuple[int, ...] | None]

GRU: tuple[Entry, ...] = (
    ("{layer}.W", "layers.{layer}.W", None),
    ("{layer}.U", "layers.{layer}.U", None),
    ("{layer}.b", "layers.{layer}.b", None),
    ("{layer}.b_hn", "layers.{layer}.b_hn", None),
)
ADDITIVE: tuple[Entry, ...] = (
    ("W_q", "W_q.kernel", (1, 0)),
    ("W_k", "W_k.kernel", (1, 0)),
    ("w_v", "w_v", None),
)


def within(prefix: str, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The entries of a layer that stands inside another one, under the same name here and in the specification."""
    return tuple((f"{prefix}.{name}", f"{prefix}.{path}", axes) for name, path, axes in entries)


EMBEDDING: tuple[Entry, ...] = (("embedding", "embedding.embeddings", None),)
TABLES: dict[str, tuple[Entry, ...]] = {
    "DotProductAttention": (),
    "AdditiveAttention": ADDITIVE,
    "GeneralAttention": (("W", "W.kernel", (1, 0)),),
    "ConcatAttention": (("W", "W.kernel", (1, 0)), ("v", "v", None)),
    "CosineAttention": (),
    "GRU": GRU,
    "GRUEncoder": (*EMBEDDING, *within("rnn", GRU)),
    "BahdanauDecoder": (
        *EMBEDDING,
        *within("attention", ADDITIVE),
        *within("rnn", GRU),
        ("dense.W", "dense.kernel", (1, 0)),
        ("dense.b", "dense.bias", None),
    ),
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
        arrays[name] = np.ascontiguousarray(array if axes is None else array.transpose(axes))
    return {name: arrays[name] for name in layer.specification.shapes(layer.sizes)}


def set_parameters(layer: keras.layers.Layer, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    check_parameters(layer.specification, layer.sizes, layer.variable_dtype, arrays)
    for name, parameter, axes in located(layer):
        array = arrays[name] if axes is None else arrays[name].transpose(np.argsort(axes))
        parameter.assign(from_numpy(array))


def located(layer: keras.layers.Layer) -> Iterator[tuple[str, keras.Variable, tuple[int, ...] | None]]:
    """Each canonical name with its parameter here and the order of its axes."""
    for name, path, axes in TABLES[layer.specification.name]:
        before, listed, inside = path.partition("layers.{layer}.")
        if not listed:
            yield name, attrgetter(path)(layer), axes
            continue
        for index, one in enumerate(attrgetter(f"{before}layers")(layer)):
            yield name.format(layer=index), getattr(one, inside), axes
