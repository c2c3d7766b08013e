"""Prepared keys and values in MXNet: what `prepare` and `extend` return, and `attend` and `step` read."""

from __future__ import annotations

from typing import NamedTuple

import numpy
from mxnet import np

from backends.mxnet.arrays import Lengths, Offset, lengths
from backends.mxnet.masking import _attention_mask, positions
from backends.mxnet.pooling import for_each_head, zero_hidden

__all__ = ["Memory"]


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: np.ndarray
    values: np.ndarray
    mask: np.ndarray | None


def zero_masked(keys: np.ndarray, values: np.ndarray, valid_lens: Lengths | None, mask: np.ndarray | None) -> Memory:
    """Set keys and values to 0 where no query may attend to them, and join lengths and mask."""
    allowed = _attention_mask(keys.shape[-2], valid_lens, mask, keys.ctx)
    if allowed is None:
        return Memory(keys, values, None)
    if allowed.ndim < keys.ndim:
        allowed = allowed[:, None]
    seen = np.any(allowed, axis=-2)
    if keys.ndim == 4 and seen.shape[1] > max(keys.shape[1], 1):  # heads in groups
        seen = np.any(seen.reshape(len(seen), keys.shape[1], seen.shape[1] // keys.shape[1], seen.shape[-1]), axis=2)
    seen = np.expand_dims(seen, -1)
    visible = zero_hidden(seen, keys)
    # A decoder's keys and values are the same.
    return Memory(visible, visible if values is keys else zero_hidden(seen, values), allowed)


def in_heads(memory: Memory, queries: np.ndarray) -> Memory:
    """Repeat heads of keys and values so that there are as many as of queries."""
    keys, values = (for_each_head(array, queries) for array in (memory.keys, memory.values))
    return memory._replace(keys=keys, values=values)


def extend_memory(memory: Memory, steps: Memory, position: Offset | None) -> Memory:
    """Append prepared steps to the memory, or with position replace the keys from there."""
    num_keys, num_steps = memory.keys.shape[-2], steps.keys.shape[-2]
    keys, values = (np.concatenate(pair, axis=-2) for pair in zip(memory[:2], steps[:2], strict=True))
    mask = join_masks(memory, steps)
    if position is None:
        return Memory(keys, values, mask)
    first = lengths(position, keys.ctx).astype("float64").reshape(-1, 1)
    places = np.expand_dims(positions(num_keys, keys.ctx), 0)
    step = places - first
    order = np.where((step >= 0) * (step < num_steps), num_keys + step, places + np.zeros_like(step)).astype("int64")
    keys, values = (take_along(array, order, -2) for array in (keys, values))
    return Memory(keys, values, None if mask is None else take_along(mask, order, -1))


def join_masks(memory: Memory, steps: Memory) -> np.ndarray | None:
    """The mask of later queries: every key that a query could attend to so far, and the new steps."""
    if memory.mask is None and steps.mask is None:
        return None
    past, new = (
        np.ones((*[1] * (part.keys.ndim - 1), part.keys.shape[-2]), dtype=bool, ctx=part.keys.ctx)
        if part.mask is None
        else part.mask
        for part in (memory, steps)
    )
    past = np.any(past, axis=-2, keepdims=True)
    leading = numpy.broadcast_shapes(past.shape[:-1], new.shape[:-1])
    parts = [np.broadcast_to(mask, (*leading, mask.shape[-1])) for mask in (past, new)]
    return np.concatenate(parts, axis=-1)


def at_step(memory: Memory, step: int) -> Memory:
    """Take the mask's row for that step, or its only row, and set the values that it hides to 0."""
    if memory.mask is None or memory.mask.shape[1] == 1:  # what its only row hides, `prepare` has cleared
        return memory
    row = memory.mask[:, step : step + 1]
    return memory._replace(values=zero_hidden(np.expand_dims(row[:, 0], -1), memory.values), mask=row)


def last_open(memory: Memory) -> np.ndarray:
    """Whether each key is the last one that may be attended to, (batch, 1, keys)."""
    batch, keys, _ = memory.values.shape
    allowed = np.ones((batch, 1, keys), dtype="bool", ctx=memory.values.ctx)
    if keys == 0:  # over an empty axis, MXNet reads foreign memory or crashes
        return allowed
    allowed = allowed if memory.mask is None else allowed * memory.mask
    places = np.arange(1, keys + 1, dtype="int32", ctx=memory.values.ctx)
    return places == np.max(places * allowed, axis=-1, keepdims=True)


# ------------------------------------------------------------------------------------------------ particular to MXNet


def take_along(array: np.ndarray, order: np.ndarray, axis: int) -> np.ndarray:
    """The entries of an array along an axis, in an order for each sequence, or one for all."""
    if len(order) == 1:
        return np.take(array, order[0], axis=axis)
    array = np.broadcast_to(array, (len(order), *array.shape[1:]))
    return np.stack([np.take(row, places, axis=axis) for row, places in zip(array, order, strict=True)])
