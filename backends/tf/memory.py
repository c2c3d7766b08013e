"""Prepared keys and values in TensorFlow: what `prepare` and `extend` return, and `attend` and `step` read."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from backends.tf.arrays import Lengths, Offset
from backends.tf.masking import _attention_mask, size
from backends.tf.pooling import for_each_head

__all__ = ["Memory"]


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: tf.Tensor
    values: tf.Tensor
    mask: tf.Tensor | None


def zero_masked(keys: tf.Tensor, values: tf.Tensor, valid_lens: Lengths | None, mask: tf.Tensor | None) -> Memory:
    """Set keys and values to 0 where no query may attend to them, and join lengths and mask."""
    allowed = _attention_mask(size(keys, -2), valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if allowed.shape.rank < keys.shape.rank:
        allowed = allowed[:, None]
    seen = tf.reduce_any(allowed, axis=-2)
    if keys.shape.rank == 4 and allowed.shape[1] not in (1, keys.shape[1]):  # heads in groups
        groups = size(keys, 1), size(seen, 1) // size(keys, 1)
        seen = tf.reshape(seen, (size(seen, 0), *groups, size(seen, -1)))
        seen = tf.reduce_any(seen, axis=2)
    seen = tf.expand_dims(seen, axis=-1)
    return Memory(tf.where(seen, keys, 0.0), tf.where(seen, values, 0.0), allowed)


def in_heads(memory: Memory, queries: tf.Tensor) -> Memory:
    """Repeat heads of keys and values so that there are as many as of queries."""
    keys, values = (for_each_head(array, queries) for array in (memory.keys, memory.values))
    return memory._replace(keys=keys, values=values)


def extend_memory(memory: Memory, steps: Memory, position: Offset | None) -> Memory:
    """Append prepared steps to the memory, or with position replace the keys from there."""
    num_keys, num_steps = (tf.cast(size(part.keys, -2), tf.int64) for part in (memory, steps))
    keys, values = (tf.concat(pair, axis=-2) for pair in zip(memory[:2], steps[:2], strict=True))
    mask = join_masks(memory, steps)
    if position is None:
        return Memory(keys, values, mask)
    first, places = tf.cast(position, tf.int64)[..., None], tf.range(num_keys)
    step = places - first
    inside = tf.logical_and(step >= 0, step < num_steps)
    order = tf.where(inside, num_keys + step, places)
    if mask is not None and order.shape.rank == 2:  # which has a row for each sequence, then
        mask = tf.broadcast_to(mask, tf.concat([tf.shape(order)[:1], tf.shape(mask)[1:]], axis=0))

    def take_along(array: tf.Tensor, axis: int) -> tf.Tensor:
        return tf.gather(array, order, axis=array.shape.rank + axis, batch_dims=order.shape.rank - 1)

    return Memory(take_along(keys, -2), take_along(values, -2), None if mask is None else take_along(mask, -1))


def join_masks(memory: Memory, steps: Memory) -> tf.Tensor | None:
    """The mask of later queries: every key that a query could attend to so far, and the new steps."""
    if memory.mask is None and steps.mask is None:
        return None
    past, new = (
        tf.ones((*[1] * (part.keys.shape.rank - 1), size(part.keys, -2)), tf.bool) if part.mask is None else part.mask
        for part in (memory, steps)
    )
    past = tf.reduce_any(past, axis=-2, keepdims=True)
    leading = tf.broadcast_dynamic_shape(tf.shape(past)[:-1], tf.shape(new)[:-1])
    parts = [tf.broadcast_to(mask, tf.concat([leading, tf.shape(mask)[-1:]], axis=0)) for mask in (past, new)]
    return tf.concat(parts, axis=-1)


def at_step(memory: Memory, step: tf.Tensor) -> Memory:
    """Take the mask's row for that step, or its only row, and set the values that it hides to 0."""
    if is_shared(memory.mask):  # what its only row hides, `prepare` has cleared
        return memory
    last = size(memory.mask, 1) - 1
    row = tf.expand_dims(tf.gather(memory.mask, tf.minimum(step, last), axis=1), axis=1)
    return memory._replace(values=tf.where(tf.transpose(row, (0, 2, 1)), memory.values, 0.0), mask=row)


def last_open(memory: Memory) -> tf.Tensor:
    """Whether each key is the last one that may be attended to, (batch, 1, keys)."""
    batch, keys = size(memory.values, 0), size(memory.values, 1)
    places = tf.range(1, keys + 1)
    allowed = tf.broadcast_to(True if memory.mask is None else memory.mask, (batch, 1, keys))
    return tf.equal(places, tf.reduce_max(tf.where(allowed, places, 0), axis=-1, keepdims=True))


# ------------------------------------------------------------------------------------------- particular to TensorFlow


def is_shared(mask: tf.Tensor | None) -> bool:
    """Whether what a mask hides from one step it hides from all."""
    return mask is None or mask.shape[1] == 1
