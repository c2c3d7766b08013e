"""Where each canonical parameter lives in the JAX layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attention_core.errors import check_parameters
from backends.jax.runtime import to_numpy

__all__ = ["get_parameters", "set_parameters"]

# Canonical name, path in nnx.state(), and the axes of the one in the order of the other (None: the same).
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


EMBEDDING: tuple[Entry, ...] = (("embedding", "embedding.embedding", None),)
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
    layer: nnx.Module, read: Callable[[nnx.Param], jax.Array | None] = lambda parameter: parameter[...]
) -> dict[str, np.ndarray]:
    """Copy a layer's parameters out as canonical arrays.

    read says what to copy of each parameter: itself, or what an optimiser keeps of it, say. Where it gives None, the
    array is 0. Gradients have the structure of the layer: merge them into one, as `vjp` does, and copy them from there.
    """
    arrays = {}
    for name, parameter, axes in located(layer):
        values = read(parameter)
        array = to_numpy(jnp.zeros_like(parameter[...]) if values is None else values)
        arrays[name] = np.ascontiguousarray(array if axes is None else array.transpose(axes))
    return {name: arrays[name] for name in layer.specification.shapes(layer.sizes)}


def set_parameters(layer: nnx.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    dtype = next((parameter.dtype for _, parameter, _ in located(layer)), None)
    check_parameters(layer.specification, layer.sizes, dtype, arrays)
    for name, parameter, axes in located(layer):
        array = arrays[name] if axes is None else arrays[name].transpose(np.argsort(axes))
        parameter[...] = jnp.array(array, device=parameter[...].sharding)


def located(layer: nnx.Module) -> Iterator[tuple[str, nnx.Param, tuple[int, ...] | None]]:
    """Each canonical name with its parameter here and the order of its axes."""
    parameters = {".".join(map(str, path)): node for path, node in nnx.iter_graph(layer) if isinstance(node, nnx.Param)}
    for name, path, axes in TABLES[layer.specification.name]:
        for index in range(layer.sizes["num_layers"]) if "{layer}" in name else range(1):
            yield name.format(layer=index), parameters[path.format(layer=index)], axes
