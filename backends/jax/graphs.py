"""What compilers, transformations and meshes need of layers in JAX; no arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any, TypeVar

import jax
import numpy as np
from flax import nnx

Tree = TypeVar("Tree")


def is_known(array: Any) -> bool:
    """Whether an array has values that may decide what is computed: not while it is traced."""
    return isinstance(array, (jax.Array, np.ndarray)) and not isinstance(array, jax.core.Tracer)


# ------------------------------------------------------------------------------------------------ particular to JAX


def varying(start: Tree, *read: Any) -> Tree:
    """Let the start of a loop, and its weights, vary over all axes of a mesh over which what the loop reads varies.

    Under jax.shard_map alone anything varies, and there a loop must give what it was started with, in this, too.
    Weights that vary from before the loop have a gradient that the devices add up once, and not after every step.
    """
    axes = frozenset().union(*map(axes_of, jax.tree.leaves((start, read))))
    return jax.tree.map(lambda array: vary(array, axes - axes_of(array)), start)


def axes_of(array: Any) -> frozenset[Any]:
    """Return the axes of a mesh over which an array varies."""
    kind: Any = jax.typeof(array)
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying  # the latter in later versions


def vary(array: Any, axes: Collection[Any]) -> Any:
    """Let an array that is the same along the axes of a mesh count as one that may differ there."""
    if not axes:
        return array
    if hasattr(jax.lax, "pcast"):  # in later versions, in place of pvary
        return jax.lax.pcast(array, tuple(axes), to="varying")
    return jax.lax.pvary(array, tuple(axes))


class Split:
    """The variables of flax.nnx objects, held once, and a compiled function of their arrays.

    nnx.jit walks through the objects in every call, which costs more than a small step does.
    """

    def __init__(
        self, objects: Any, function: Callable[..., Any], device: jax.sharding.Sharding, *options: Any
    ) -> None:
        graphdef, self.state = nnx.split(objects)
        self.variables = jax.tree.leaves(self.state, is_leaf=lambda node: isinstance(node, nnx.Variable))
        self.compiled = compile_once(function, graphdef, jax.tree.structure(self.state), device, *options)

    def run(self, *arguments: Any) -> Any:
        """Call the function with the variables as they are now, and the arguments."""
        return self.compiled(jax.tree.leaves(self.state), *arguments)

    def write(self, arrays: list[jax.Array]) -> None:
        """Set the arrays of the variables."""
        for variable, array in zip(self.variables, arrays, strict=True):
            variable[...] = array


@lru_cache
def compile_once(
    function: Callable[..., Any], graphdef: Any, structure: Any, device: Any, *options: Any
) -> Callable[..., Any]:
    """Compile a function of objects as one of their arrays, once for equal objects."""

    def run(arrays: list[jax.Array], *arguments: Any) -> Any:
        return function(nnx.merge(graphdef, jax.tree.unflatten(structure, arrays)), *arguments, *options)

    # What a call returns is bound to its device; what is new, like a fresh counter, is not, and JAX would compile the
    # second call again, were the device not given here. Arrays on many devices keep their own places.
    single = len(device.device_set) == 1
    return jax.jit(run, in_shardings=device) if single else jax.jit(run)
