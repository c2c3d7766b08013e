"""Prepared keys and values in PyTorch: what `prepare` and `extend` return, and `attend` and `step` read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.utils._pytree import _register_namedtuple

from backends.torch.arrays import Lengths, Offset
from backends.torch.masking import _attention_mask
from backends.torch.pooling import for_each_head

__all__ = ["Memory"]


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor | None


_register_namedtuple(Memory, serialized_type_name="backends.torch.Memory")  # for torch.export.save


def zero_masked(
    keys: torch.Tensor, values: torch.Tensor, valid_lens: Lengths | None, mask: torch.Tensor | None
) -> Memory:
    """Set keys and values to 0 where no query may attend to them, and join lengths and mask."""
    allowed = _attention_mask(keys.shape[-2], valid_lens, mask, keys.device)
    if allowed is None:
        return Memory(keys, values, None)
    if allowed.ndim < keys.ndim:
        allowed = allowed[:, None]
    seen = allowed.any(dim=-2)
    if keys.ndim == 4 and seen.shape[1] > max(keys.shape[1], 1):  # heads in groups
        seen = seen.unflatten(1, (keys.shape[1], seen.shape[1] // keys.shape[1])).any(dim=2)
    hidden = ~seen.unsqueeze(-1)
    return Memory(keys.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0), allowed)


def in_heads(memory: Memory, queries: torch.Tensor) -> Memory:
    """Repeat heads of keys and values so that there are as many as of queries."""
    keys, values = (for_each_head(array, queries) for array in (memory.keys, memory.values))
    return memory._replace(keys=keys, values=values)


def extend_memory(memory: Memory, steps: Memory, position: Offset | None) -> Memory:
    """Append prepared steps to the memory, or with position replace the keys from there."""
    num_keys, num_steps = memory.keys.shape[-2], steps.keys.shape[-2]
    keys, values = (torch.cat(pair, dim=-2) for pair in zip(memory[:2], steps[:2], strict=True))
    mask = join_masks(memory, steps)
    if position is None:
        return Memory(keys, values, mask)
    first = torch.as_tensor(position, dtype=torch.int64, device=keys.device).reshape(-1, *[1] * (keys.ndim - 2))
    places = torch.arange(num_keys, device=keys.device)
    step = places - first
    order = torch.where((step >= 0) & (step < num_steps), num_keys + step, places)
    keys, values = (torch.take_along_dim(array, order[..., None], dim=-2) for array in (keys, values))
    return Memory(keys, values, None if mask is None else torch.take_along_dim(mask, order[..., None, :], dim=-1))


def join_masks(memory: Memory, steps: Memory) -> torch.Tensor | None:
    """The mask of later queries: every key that a query could attend to so far, and the new steps."""
    if memory.mask is None and steps.mask is None:
        return None
    past, new = (
        part.keys.new_ones((*[1] * (part.keys.ndim - 1), part.keys.shape[-2]), dtype=torch.bool)
        if part.mask is None
        else part.mask
        for part in (memory, steps)
    )
    past = past.any(dim=-2, keepdim=True)
    leading = torch.broadcast_shapes(past.shape[:-1], new.shape[:-1])
    parts = [mask.expand(*leading, -1) for mask in (past, new)]
    return torch.cat(parts, dim=-1)


def at_step(memory: Memory, step: int) -> Memory:
    """Take the mask's row for that step, or its only row, and set the values that it hides to 0."""
    if memory.mask is None or memory.mask.shape[1] == 1:  # what its only row hides, `prepare` has cleared
        return memory
    return hidden_by(memory, memory.mask[:, step : step + 1])


def last_open(memory: Memory) -> torch.Tensor:
    """Whether each key is the last one that may be attended to, (batch, 1, keys)."""
    allowed = torch.ones_like(memory.values[:, None, :, 0], dtype=torch.bool)
    allowed = allowed if memory.mask is None else allowed & memory.mask
    return allowed & (allowed.flip(-1).cumsum(dim=-1).flip(-1) == 1)


# ------------------------------------------------------------------------------------------------ particular to PyTorch


def is_shared(tokens: torch.Tensor, memory: Memory) -> bool:
    """Whether there are steps, and what hides a value from one of them hides it from all."""
    return tokens.shape[1] > 0 and (memory.mask is None or memory.mask.shape[1] == 1)


def hidden_by(memory: Memory, row: torch.Tensor) -> Memory:
    """Take one row of the mask, and set the values that it hides to 0."""
    return memory._replace(values=memory.values.masked_fill(~row[:, 0, :, None], 0.0), mask=row)
