"""Prepared keys and values: what `prepare` and `extend` return, and `attend` and `step` read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attention_core.reference.masking import attention_mask

__all__ = ["Memory"]


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`.

    Shapes: keys (batch, keys, features of a prepared key), values (batch, keys, value_features), both with heads after
    batch or without; mask as in attention_mask, or None where everything is open.
    """

    keys: np.ndarray
    values: np.ndarray
    mask: np.ndarray | None


def zero_masked(keys: np.ndarray, values: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None) -> Memory:
    """Set keys and values to 0 where no query may attend to them; combine lengths and mask."""
    allowed = attention_mask(keys.shape[-2], valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if mask is None and keys.ndim == 4:
        allowed = allowed[:, None]
    seen = allowed.any(axis=-2)
    if keys.ndim >= 4 and allowed.ndim == 4 and allowed.shape[1] > max(keys.shape[-3], 1):  # heads in groups
        groups = keys.shape[-3], seen.shape[1] // keys.shape[-3]
        seen = seen.reshape(seen.shape[0], *groups, seen.shape[-1]).any(axis=2)
    seen = np.expand_dims(seen, -1)
    return Memory(np.where(seen, keys, 0.0), np.where(seen, values, 0.0), allowed)


def extend_memory(memory: Memory, steps: Memory, position: np.ndarray | None) -> Memory:
    """Append prepared steps to the memory, or with position replace the keys from there."""
    num_keys, num_steps = memory.keys.shape[-2], steps.keys.shape[-2]
    keys, values = concatenate(memory.keys, steps.keys, -2), concatenate(memory.values, steps.values, -2)
    mask = joined_masks(memory, steps)
    if position is None:
        return Memory(keys, values, mask)
    step = np.arange(num_keys) - np.reshape(position, (-1, 1)).astype(np.int64)
    order = np.where((step >= 0) & (step < num_steps), num_keys + step, np.arange(num_keys))
    rank = values.ndim if mask is None else mask.ndim
    order = order.reshape(len(order), *[1] * (rank - 3), num_keys)
    keys, values = (take_along(array, order[..., None], -2) for array in (keys, values))
    return Memory(keys, values, None if mask is None else take_along(mask, order[..., None, :], -1))


def joined_masks(memory: Memory, steps: Memory) -> np.ndarray | None:
    """The mask of later queries: every key that a query could attend to so far, and the new steps."""
    masks = [part.mask for part in (memory, steps) if part.mask is not None]
    if not masks:
        return None
    past, new = (
        np.ones((*[1] * (masks[0].ndim - 1), part.keys.shape[-2]), bool) if part.mask is None else part.mask
        for part in (memory, steps)
    )
    return concatenate(np.any(past, axis=-2, keepdims=True), new, -1)


def concatenate(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
    """The two arrays along an axis, -1 or -2, with the axes in front of it broadcast."""
    leading = np.broadcast_shapes(first.shape[:axis], second.shape[:axis])
    parts = (np.broadcast_to(array, (*leading, *array.shape[axis:])) for array in (first, second))
    return np.concatenate([*parts], axis=axis)


def take_along(array: np.ndarray, order: np.ndarray, axis: int) -> np.ndarray:
    """Return the entries of an array along an axis, in this order."""
    return np.take_along_axis(array, order.reshape(*[1] * (array.ndim - order.ndim), *order.shape), axis)
