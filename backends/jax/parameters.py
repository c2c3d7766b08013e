"""Where each canonical parameter lives in the JAX layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attention_core.errors import check_parameters
from attention_core.specification import Layer, Sizes, pattern
from backends.jax.arrays import to_numpy

__all__ = ["get_parameters", "set_parameters"]

# Canonical name, path in nnx.state(), and the axes of the one in the order of the other (None: the same).
Entry = tuple[str, str, tuple[int, ...] | None]


def matrix(name: str) -> Entry:
    """The weights of an nnx.Linear of that name, whose kernel is the transpose."""
    return name, f"{name}.kernel", (1, 0)


def stacked(*names: str) -> tuple[Entry, ...]:
    """What each layer of a stack has."""
    return tuple((f"{{layer}}.{name}", f"layers.{{layer}}.{name}", None) for name in names)


def both_directions(*names: str) -> tuple[Entry, ...]:
    """The entries of a recurrent layer: those of the forward and of the backward direction."""
    backward = tuple((f"{{layer}}.backward.{name}", f"backward_layers.{{layer}}.{name}", None) for name in names)
    return (*stacked(*names), *backward)


EMBEDDING: Entry = ("embedding", "embedding.embedding", None)
DECODER: tuple[Entry, ...] = (
    EMBEDDING,
    ("initial", "initial", None),
    ("dense.W", "dense.kernel", (1, 0)),
    ("dense.b", "dense.bias", None),
)
# The layer's own arrays, with every option; those of the layers inside it are in their own tables.
TABLES: dict[str, tuple[Entry, ...]] = {
    "DotProductAttention": (),
    "AdditiveAttention": (matrix("W_q"), matrix("W_k"), ("w_v", "w_v", None)),
    "GeneralAttention": (matrix("W"),),
    "ConcatAttention": (matrix("W"), ("v", "v", None)),
    "CosineAttention": (),
    "LocationAttention": (matrix("W"),),
    "KernelAttention": (("w", "w", None),),
    "LocalAttention": (matrix("W_p"), ("v_p", "v_p", None)),
    "HardAttention": (),
    "NadarayaWatson": (),
    "MultiHeadAttention": (
        *(matrix(name) for name in ("W_q", "W_k", "W_v", "W_o")),
        *((f"b_{of}", f"W_{of}.bias", None) for of in "qkvo"),
    ),
    "SinusoidalPositions": (),
    "LearnedPositions": (("P", "P", None),),
    "GRU": both_directions("W", "U", "b", "b_hn"),
    "LSTM": both_directions("W", "U", "b"),
    "GRUEncoder": (EMBEDDING,),
    "LSTMEncoder": (EMBEDDING,),
    "Bridge": stacked("W", "b_s"),
    "BahdanauDecoder": (*DECODER, ("readout.W", "readout.kernel", (1, 0)), ("readout.b", "readout.bias", None)),
    "LuongDecoder": (*DECODER, matrix("W_c")),
    "FixedContextDecoder": DECODER,
    "Translator": (),
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
        arrays[name] = np.array(array if axes is None else array.transpose(axes), order="C")
    return arrays


def set_parameters(layer: nnx.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy canonical arrays into a layer."""
    dtype = next((parameter.dtype for _, parameter, _ in located(layer)), None)
    check_parameters(layer.specification, layer.sizes, dtype, arrays)
    for name, parameter, axes in located(layer):
        array = arrays[name] if axes is None else arrays[name].transpose(np.argsort(axes))
        # Copied by NumPy, since JAX may keep its memory; jnp.array would compile a function for every shape.
        parameter[...] = jax.device_put(np.array(array), parameter[...].sharding)


def located(layer: nnx.Module) -> Iterator[tuple[str, nnx.Param, tuple[int, ...] | None]]:
    """Each canonical name with its parameter here and the order of its axes."""
    parameters = {".".join(map(str, path)): node for path, node in nnx.iter_graph(layer) if isinstance(node, nnx.Param)}
    for name, path, axes in entries(layer.specification, layer.sizes):
        yield name, parameters[path], axes


def entries(layer: Layer, sizes: Sizes) -> Iterator[Entry]:
    """Each canonical name of a layer with these sizes, in order, with its path and the order of its axes."""
    table = {name: (path, axes) for name, path, axes in TABLES[layer.name]}
    for name in layer.own_shapes(sizes):
        path, axes = table[pattern(name)]
        yield name, path.format(layer=name.partition(".")[0]), axes
    for inside, part in layer.inside(sizes).items():
        for name, path, axes in entries(part.layer, part.layer.sizes(part.config)):
            yield f"{inside}.{name}", f"{inside}.{path}", axes
