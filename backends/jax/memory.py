"""Prepared keys and values in JAX: what `prepare` and `extend` return, and `attend` and `step` read."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from backends.jax.arrays import Lengths, Offset
from backends.jax.masking import _attention_mask
from backends.jax.pooling import for_each_head

__all__ = ["Memory"]


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: jax.Array
    values: jax.Array
    mask: jax.Array | None


def zero_masked(keys: jax.Array, values: jax.Array, valid_lens: Lengths | None, mask: jax.Array | None) -> Memory:
    """Set keys and values to 0 where no query may attend to them, and join lengths and mask."""
    allowed = one_mask(keys, valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    seen = jnp.any(allowed, axis=-2)
    if keys.ndim == 4 and seen.shape[1] > max(keys.shape[1], 1):  # heads in groups
        seen = jnp.any(seen.reshape(len(seen), keys.shape[1], seen.shape[1] // keys.shape[1], seen.shape[-1]), axis=2)
    seen = seen[..., None]
    return Memory(jnp.where(seen, keys, 0.0), jnp.where(seen, values, 0.0), allowed)


def in_heads(memory: Memory, queries: jax.Array) -> Memory:
    """Repeat heads of keys and values so that there are as many as of queries."""
    keys, values = (for_each_head(array, queries) for array in (memory.keys, memory.values))
    return memory._replace(keys=keys, values=values)


def extend_memory(memory: Memory, steps: Memory, position: Offset | None) -> Memory:
    """Append prepared steps to the memory, or with position replace the keys from there."""
    num_keys, num_steps = memory.keys.shape[-2], steps.keys.shape[-2]
    keys, values = (jnp.concatenate(pair, axis=-2) for pair in zip(memory[:2], steps[:2], strict=True))
    mask = join_masks(memory, steps)
    if position is None:
        return Memory(keys, values, mask)
    first = jnp.asarray(position).astype(int).reshape(-1, *[1] * (keys.ndim - 2))
    places = jnp.arange(num_keys)
    step = places - first
    order = jnp.where((step >= 0) & (step < num_steps), num_keys + step, places)
    keys, values = (jnp.take_along_axis(array, order[..., None], axis=-2) for array in (keys, values))
    return Memory(keys, values, None if mask is None else jnp.take_along_axis(mask, order[..., None, :], axis=-1))


def join_masks(memory: Memory, steps: Memory) -> jax.Array | None:
    """The mask of later queries: every key that a query could attend to so far, and the new steps."""
    if memory.mask is None and steps.mask is None:
        return None
    past, new = (
        jnp.ones((*[1] * (part.keys.ndim - 1), part.keys.shape[-2]), bool) if part.mask is None else part.mask
        for part in (memory, steps)
    )
    past = past.any(axis=-2, keepdims=True)
    leading = jnp.broadcast_shapes(past.shape[:-1], new.shape[:-1])
    parts = [jnp.broadcast_to(mask, (*leading, mask.shape[-1])) for mask in (past, new)]
    return jnp.concatenate(parts, axis=-1)


def at_step(memory: Memory, step: jax.Array) -> Memory:
    """Take the mask's row for that step, or its only row, and set the values that it hides to 0."""
    if memory.mask is None or memory.mask.shape[1] == 1:  # what its only row hides, `prepare` has cleared
        return memory
    row = jax.lax.dynamic_slice_in_dim(memory.mask, step, 1, axis=1)
    return memory._replace(values=jnp.where(row[:, 0, :, None], memory.values, 0.0), mask=row)


def last_open(memory: Memory) -> jax.Array:
    """Whether each key is the last one that may be attended to, (batch, 1 or steps, keys)."""
    batch, keys, _ = memory.values.shape
    places = jnp.arange(1, keys + 1)
    allowed = jnp.ones((batch, 1, keys), bool) if memory.mask is None else memory.mask
    ends = jnp.max(places * allowed, axis=-1, keepdims=True, initial=0)
    return jnp.broadcast_to(places == ends, (batch, allowed.shape[1], keys))


# ------------------------------------------------------------------------------------------------ particular to JAX


def one_mask(keys: jax.Array, valid_lens: Lengths | None, mask: jax.Array | None) -> jax.Array | None:
    """Join lengths and mask, with an axis for heads if the keys have one."""
    allowed = _attention_mask(keys.shape[-2], valid_lens, mask)
    return allowed if allowed is None or allowed.ndim == keys.ndim else allowed[:, None]
