"""Shared parts of the kernels in JAX: blocks of rows and sequences, and the plain formula behind them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from backends.jax.graphs import axes_of

Function = TypeVar("Function", bound=Callable[..., jax.Array])

BLOCK = 2**17
"""The elements of a block: in float32 half a MiB, which fits in the cache of a core."""


def with_auto_axes(function: Function) -> Function:
    """Leave the sharding inside of a function to XLA where a mesh has explicit axes, over which blocks have no type.

    The first argument, (..., queries, features), says how the result is sharded. What is no array is a keyword.
    """

    @wraps(function)
    def call(queries: jax.Array, *arrays: jax.Array | None, **keywords: Any) -> jax.Array:
        sharding: Any = jax.typeof(queries).sharding
        if not sharding.mesh.explicit_axes:
            return function(queries, *arrays, **keywords)
        result = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:-1], None))
        inside = jax.sharding.auto_axes(function, axes=sharding.mesh.explicit_axes, out_sharding=result)
        return inside(queries, *arrays, **keywords)

    return call  # type: ignore[return-value]


def in_lanes(function: Callable[..., jax.Array], *arrays: jax.Array | None) -> jax.Array:
    """Return function(*arrays), with a loop over batch or heads only where no mesh can have sharded them.

    What a loop goes through is on every device, or XLA gathers it there. So batch and heads are split into as many
    lanes as the devices can share evenly, which are computed side by side, by jax.vmap: each device has its own. With
    one device there is one lane, and so under jax.shard_map, where a device has its own part already.

    Shapes: arrays and the result (batch, [heads], rows, columns), each lead axis its size or 1; or None.
    """
    first, *_ = arrays
    assert first is not None
    for axis in range(first.ndim - 2):
        sizes = {array.shape[axis] for array in arrays if array is not None} - {1}  # heads may share those of keys
        width = 1 if axes_of(first) or not sizes else math.gcd(*sizes, jax.device_count())
        if width > 1:
            function = partial(side_by_side, function, axis, width)
    return function(*arrays)


def side_by_side(function: Callable[..., jax.Array], axis: int, width: int, *arrays: jax.Array | None) -> jax.Array:
    """Return function(*arrays), for that many parts of an axis at once, which share an array of size 1 there."""

    def cut(array: jax.Array) -> jax.Array:
        parts = array.reshape(*array.shape[:axis], width, -1, *array.shape[axis + 1 :])
        return jnp.moveaxis(parts, axis, 0)

    split = [array is not None and array.shape[axis] > 1 for array in arrays]
    parts = [cut(array) if is_split else array for array, is_split in zip(arrays, split, strict=True)]
    results = jax.vmap(function, in_axes=[0 if is_split else None for is_split in split])(*parts)
    joined = jnp.moveaxis(results, 0, axis)
    return joined.reshape(*joined.shape[:axis], -1, *joined.shape[axis + 2 :])


def distinct_masks(mask: jax.Array | None, lead: tuple[int, ...], num_keys: int) -> tuple[jax.Array, jax.Array]:
    """Return the different masks, (masks, queries or 1, keys), and the number of that of each sequence and head."""
    mask = jnp.full((1,) * (len(lead) + 2), True) if mask is None else mask
    masks = jnp.broadcast_to(mask, (*mask.shape[:-1], num_keys))
    masks = masks.reshape(math.prod(masks.shape[:-2]), *masks.shape[-2:])
    numbers = np.broadcast_to(np.arange(len(masks)).reshape(mask.shape[:-2]), lead)
    return masks, jnp.asarray(numbers.reshape(math.prod(lead)))


def positions(array: jax.Array) -> jax.Array:
    """Return the position of each row of (batch, rows, ...)."""
    return jnp.broadcast_to(jnp.arange(array.shape[1]), array.shape[:2])


def in_blocks(
    function: Callable[..., Any], elements: int, rows: tuple[jax.Array, ...], others: Any, *, least: int = 1
) -> Any:
    """Return function(*rows, others), by blocks of at most BLOCK elements or the least rows.

    A block has some rows of one sequence, or all rows of several.

    Shapes: rows (batch, rows, ...), each row with so many elements in the function; others, an array or several,
    (batch, ...); the result, or each of them, (batch, rows, ...).
    """
    batch, count = rows[0].shape[:2]
    high, wide = fitting(count, elements, least=least), fitting(batch, elements * count)

    def cut(array: jax.Array) -> jax.Array:
        array = pad(pad(array, 0, wide, "edge"), 1, high, "edge")
        return jnp.swapaxes(
            array.reshape(len(array) // wide, wide, array.shape[1] // high, high, *array.shape[2:]), 1, 2
        )

    def join(array: jax.Array) -> jax.Array:
        array = jnp.swapaxes(array, 1, 2)
        parts, _, more, _ = array.shape[:4]
        return array.reshape(parts * wide, more * high, *array.shape[4:])[:batch, :count]

    def sequences(at: tuple[Any, jax.Array]) -> Any:
        rows, others = at
        return map_parts(lambda block: function(*block, others), rows)

    def group(array: jax.Array) -> jax.Array:
        array = pad(array, 0, wide, "edge")
        return array.reshape(len(array) // wide, wide, *array.shape[1:])

    blocks = tuple(cut(array) for array in rows), jax.tree.map(group, others)
    return jax.tree.map(join, map_parts(sequences, blocks))


def fitting(size: int, elements: int, *, least: int = 1) -> int:
    """Return the size of equal parts that fit a block, with so many elements in an entry, or have the least entries."""
    return part_size(size, max(least, BLOCK // max(elements, 1)))


def part_size(size: int, most: int) -> int:
    """Return the size of equal parts, of at most `most` and at least 1 each."""
    parts = -(-size // max(most, 1))
    return -(-size // max(parts, 1)) or 1


def parts(arrays: tuple[jax.Array, ...], axis: int, part: int) -> tuple[jax.Array, ...]:
    """Split an axis of each array into equal parts, along a new first axis; zeros fill the last part."""

    def cut(array: jax.Array) -> jax.Array:
        array = pad(array, axis, part)
        count = array.shape[axis] // part
        return jnp.moveaxis(array.reshape(*array.shape[:axis], count, part, *array.shape[axis + 1 :]), axis, 0)

    return tuple(map(cut, arrays))


def whole(parts: jax.Array, axis: int, size: int) -> jax.Array:
    """Join the parts along the first axis to an axis of that size, without what filled the last part."""
    array = jnp.moveaxis(parts, 0, axis)
    lead, (count, part), rest = array.shape[:axis], array.shape[axis : axis + 2], array.shape[axis + 2 :]
    return jax.lax.slice_in_dim(array.reshape(*lead, count * part, *rest), 0, size, axis=axis)


def map_parts(function: Callable[[Any], Any], parts: Any) -> Any:
    """Call the function for each part; for a single one without a loop, which compiles in a fraction of the time."""
    if len(jax.tree.leaves(parts)[0]) == 1:
        return jax.tree.map(lambda array: array[None], function(first(parts)))
    return jax.lax.map(function, parts)


def sum_parts(start: Any, function: Callable[[Any], tuple[Any, Any]], parts: Any) -> tuple[Any, Any]:
    """Add up the first results of all parts, from the start on, and keep the second ones, as `map_parts` does."""

    def add(sums: Any, part: Any) -> tuple[Any, Any]:
        more, kept = function(part)
        return jax.tree.map(jnp.add, sums, more), kept

    if len(jax.tree.leaves(parts)[0]) == 1:
        sums, kept = add(start, first(parts))
        return sums, jax.tree.map(lambda array: array[None], kept)
    return jax.lax.scan(add, start, parts)


def first(parts: Any) -> Any:
    """Return the first part."""
    return jax.tree.map(lambda array: array[0], parts)


def pad(array: jax.Array, axis: int, part: int, mode: str = "constant") -> jax.Array:
    """Pad the end of an axis to a multiple of the part, with zeros, or with its last entry."""
    missing = -array.shape[axis] % part
    if missing == 0:
        return array
    return jnp.pad(array, [(0, missing if at == axis else 0) for at in range(array.ndim)], mode=mode)


# ------------------------------------------------------------------------------------------------ particular to JAX

Arrays = tuple[jax.Array, ...]
Linear = Callable[[Arrays, Arrays], jax.Array]
Transpose = Callable[[Arrays, jax.Array], Arrays]

# A primitive, since jax.custom_vjp refuses forward mode, and the transpose that JAX derives keeps what blocks do not.
linear_p = Primitive("linear_with_transpose")
linear_p.multiple_results = True


def linear(forward: Linear, transpose: Transpose, kept: Arrays, tangents: Arrays) -> jax.Array:
    """Return forward(kept, tangents), linear in the tangents; its transpose is transpose(kept, cotangents)."""
    return linear_p.bind(*kept, *tangents, forward=forward, transpose=transpose, count=len(kept))[0]


def compute(*arrays: jax.Array, forward: Linear, transpose: Transpose, count: int) -> list[jax.Array]:
    """Compute forward alone, as where nothing is transposed."""
    return [forward(arrays[:count], arrays[count:])]


def result_types(*types: Any, **parameters: Any) -> Any:
    """Return the type of the result, with what jax.shard_map asks of it."""
    return jax.make_jaxpr(partial(compute, **parameters))(*types).out_avals


def tangents_of(primals: Any, tangents: Any, *, count: int, **parameters: Any) -> tuple[Any, Any]:
    """Return the result and its tangent: by what is kept, as of any function, and by what it is linear in."""
    kept, others = tuple(primals[:count]), tuple(primals[count:])
    result = linear_p.bind(*primals, count=count, **parameters)
    moved = [type(tangent) is not ad.Zero for tangent in tangents]
    given = tuple(ad.instantiate_zeros(tangent) for tangent in tangents)
    parts = []
    if any(moved[:count]):
        parts.append(jax.jvp(lambda *kept: parameters["forward"](kept, others), kept, given[:count])[1])
    if any(moved[count:]):
        parts += linear_p.bind(*kept, *given[count:], count=count, **parameters)
    return result, [sum(parts[1:], parts[0])]


def transpose_rule(cotangents: Any, *arrays: Any, transpose: Transpose, count: int, **_: Any) -> list[Any]:
    """Return the cotangents of what the result is linear in; None for a tangent that is known."""
    gradients = transpose(arrays[:count], ad.instantiate_zeros(cotangents[0]))
    unknown = (ad.is_undefined_primal(array) for array in arrays[count:])
    return [None] * count + [gradient if needs else None for gradient, needs in zip(gradients, unknown, strict=True)]


def batch_rule(arrays: Any, axes: Any, *, forward: Linear, transpose: Transpose, count: int) -> tuple[Any, list[int]]:
    """Compute along one more axis, which becomes the first of all tangents."""
    size = next(array.shape[axis] for array, axis in zip(arrays, axes, strict=True) if axis is not None)
    front = []
    for index, (array, axis) in enumerate(zip(arrays, axes, strict=True)):
        if axis is not None:
            array = jnp.moveaxis(array, axis, 0)
        elif index >= count:
            array = jnp.broadcast_to(array, (size, *array.shape))
        front.append(array)
    kept = tuple(None if axis is None else 0 for axis in axes[:count])
    forward, transpose = jax.vmap(forward, (kept, 0)), jax.vmap(transpose, (kept, 0))
    return linear_p.bind(*front, forward=forward, transpose=transpose, count=count), [0]


linear_p.def_impl(compute)
linear_p.def_abstract_eval(result_types)
mlir.register_lowering(linear_p, mlir.lower_fun(compute, multiple_results=True))
ad.primitive_jvps[linear_p] = tangents_of
ad.primitive_transposes[linear_p] = transpose_rule
batching.primitive_batchers[linear_p] = batch_rule
