"""Which keys a query may attend to, and weights over them, in PyTorch."""

from __future__ import annotations

import torch

from attention_core.errors import check, check_one_row, check_options
from attention_core.operators.masking import (
    ATTENTION_MASK,
    BLOCK_MASK,
    CAUSAL_MASK,
    FROM_ADDITIVE_MASK,
    FROM_KEY_PADDING_MASK,
    GLOBAL_MASK,
    MASK_AND,
    MASK_OR,
    MASKED_SOFTMAX,
    STRIDE_MASK,
    TO_ADDITIVE_MASK,
    TO_KEY_PADDING_MASK,
    WINDOW_MASK,
)

__all__ = [
    "attention_mask",
    "causal_mask",
    "window_mask",
    "block_mask",
    "stride_mask",
    "global_mask",
    "mask_and",
    "mask_or",
    "from_key_padding_mask",
    "to_key_padding_mask",
    "from_additive_mask",
    "to_additive_mask",
    "masked_softmax",
]


def attention_mask(
    num_keys: int, valid_lens: torch.Tensor | None = None, mask: torch.Tensor | None = None
) -> torch.Tensor | None:
    """Combine lengths and a boolean mask into one mask of what each query may attend to.

    open[b, i, j] = (j < valid_lens[b, i]) and mask[b, i, j]

    Shapes: valid_lens (batch,) or (batch, queries); mask (batch, queries, keys), with heads after batch or without,
    each axis its size or 1; the result has the rank of mask, 3 without one. None where both are None.
    """
    check_options(ATTENTION_MASK, num_keys=num_keys)
    check(ATTENTION_MASK, {"keys": num_keys}, valid_lens=valid_lens, mask=mask)
    if valid_lens is None:
        return None if mask is None else mask.expand(*mask.shape[:-1], num_keys)
    lens = valid_lens[:, None, None] if valid_lens.ndim == 1 else valid_lens[:, :, None]
    open_keys = torch.arange(num_keys, device=lens.device) < lens
    if mask is None:
        return open_keys
    return mask & (open_keys if mask.ndim == 3 else open_keys[:, None])


def causal_mask(
    num_queries: int, num_keys: int, *, offset: int = 0, device: torch.device | str | None = None
) -> torch.Tensor:
    """Let each query attend to its own position and those before it.

    open[i, j] = j <= i + offset

    Shapes: the result is (1, num_queries, num_keys). offset is the position of the first query among the keys.
    """
    check_options(CAUSAL_MASK, num_queries=num_queries, num_keys=num_keys, offset=offset)
    return (distances(num_queries, num_keys, offset, device) <= 0)[None]


def window_mask(
    num_queries: int, num_keys: int, *, left: int, right: int, offset: int = 0, device: torch.device | str | None = None
) -> torch.Tensor:
    """Let each query attend to a window around its own position.

    open[i, j] = -left <= j - (i + offset) <= right

    Shapes: the result is (1, num_queries, num_keys). offset is the position of the first query among the keys.
    """
    check_options(WINDOW_MASK, num_queries=num_queries, num_keys=num_keys, left=left, right=right, offset=offset)
    distance = distances(num_queries, num_keys, offset, device)
    return ((distance >= -left) & (distance <= right))[None]


def block_mask(
    num_queries: int, num_keys: int, *, size: int, offset: int = 0, device: torch.device | str | None = None
) -> torch.Tensor:
    """Let each query attend to the block of positions in which it stands.

    open[i, j] = floor((i + offset) / size) == floor(j / size)

    Shapes: the result is (1, num_queries, num_keys). offset is the position of the first query among the keys.
    """
    check_options(BLOCK_MASK, num_queries=num_queries, num_keys=num_keys, size=size, offset=offset)
    queries = torch.arange(num_queries, device=device)[:, None] + offset
    return (queries // size == torch.arange(num_keys, device=device) // size)[None]


def stride_mask(
    num_queries: int, num_keys: int, *, stride: int, offset: int = 0, device: torch.device | str | None = None
) -> torch.Tensor:
    """Let each query attend to every so manieth position, counted from its own.

    open[i, j] = (i + offset - j) mod stride == 0

    Shapes: the result is (1, num_queries, num_keys). offset is the position of the first query among the keys.
    """
    check_options(STRIDE_MASK, num_queries=num_queries, num_keys=num_keys, stride=stride, offset=offset)
    return (distances(num_queries, num_keys, offset, device) % stride == 0)[None]


def global_mask(global_queries: torch.Tensor, global_keys: torch.Tensor) -> torch.Tensor:
    """Let global queries attend to every key, and every query to global keys.

    open[b, i, j] = global_queries[b, i] or global_keys[b, j]

    Shapes: global_queries (batch, queries), global_keys (batch, keys); the result (batch, queries, keys).
    """
    check(GLOBAL_MASK, global_queries=global_queries, global_keys=global_keys)
    return global_queries[:, :, None] | global_keys[:, None, :]


def mask_and(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Combine two masks: open where both are.

    open[b, i, j] = first[b, i, j] and second[b, i, j]

    Shapes: both (batch, queries, keys), or both with heads after batch, each axis its size or 1; the result the larger.
    """
    check(MASK_AND, first=first, second=second)
    return first & second


def mask_or(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Combine two masks: open where either is.

    open[b, i, j] = first[b, i, j] or second[b, i, j]

    Shapes: as mask_and.
    """
    check(MASK_OR, first=first, second=second)
    return first | second


def from_key_padding_mask(key_padding_mask: torch.Tensor) -> torch.Tensor:
    """Turn a key padding mask, in which True means 'hidden', into a mask.

    open[b, 0, j] = not key_padding_mask[b, j]

    Shapes: key_padding_mask (batch, keys), boolean; the result is (batch, 1, keys), one row for all queries.
    """
    check(FROM_KEY_PADDING_MASK, key_padding_mask=key_padding_mask)
    return ~key_padding_mask[:, None]


def to_key_padding_mask(mask: torch.Tensor) -> torch.Tensor:
    """Turn a mask with one row into a key padding mask, in which True means 'hidden'.

    hidden[b, j] = not mask[b, 0, j]

    Shapes: mask (batch, 1, keys); the result is (batch, keys).
    """
    check(TO_KEY_PADDING_MASK, mask=mask)
    check_one_row(TO_KEY_PADDING_MASK.title, mask.shape)
    return ~mask[:, 0]


def from_additive_mask(additive_mask: torch.Tensor, *, threshold: float = -1e4) -> torch.Tensor:
    """Turn a mask that others add to the scores into a boolean one.

    open[b, i, j] = additive_mask[b, i, j] > threshold

    Shapes: additive_mask (batch, queries, keys), with heads after batch or without, each axis its size or 1; the result
    has the same. threshold is rounded to the dtype of additive_mask first.
    """
    check_options(FROM_ADDITIVE_MASK, threshold=threshold)
    check(FROM_ADDITIVE_MASK, additive_mask=additive_mask)
    # As a tensor: on some devices a number is compared as it is, and a fill of bfloat16 with -1e4 is -9984.
    return additive_mask > additive_mask.new_tensor(threshold)


def to_additive_mask(mask: torch.Tensor, *, dtype: str = "float32", finite: bool = False) -> torch.Tensor:
    """Turn a mask into one that others add to the scores.

    additive_mask[b, i, j] = 0 if mask[b, i, j] else -inf; if finite, the least finite number of dtype

    Shapes: mask (batch, queries, keys), with heads after batch or without, each axis its size or 1; the result has the
    same.
    """
    check_options(TO_ADDITIVE_MASK, dtype=dtype, finite=finite)
    check(TO_ADDITIVE_MASK, mask=mask)
    chosen = getattr(torch, dtype)
    hidden = torch.finfo(chosen).min if finite else -torch.inf
    return torch.zeros(mask.shape, dtype=chosen, device=mask.device).masked_fill(~mask, hidden)


def masked_softmax(
    scores: torch.Tensor, valid_lens: torch.Tensor | None = None, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Normalise scores over the keys each query may attend to.

    weights[i, j] = open[i, j] exp(scores[i, j]) / sum over open k of exp(scores[i, k])

    Shapes: scores (batch, queries, keys) or (batch, heads, queries, keys); valid_lens and mask as in attention_mask;
    the result has the shape of scores.
    """
    check(MASKED_SOFTMAX, scores=scores, valid_lens=valid_lens, mask=mask)
    return softmax_over(scores, open_keys(scores, valid_lens, mask))


def distances(
    num_queries: int, num_keys: int, offset: int | torch.Tensor, device: torch.device | str | None
) -> torch.Tensor:
    """How far each key stands behind each query's own position, (queries, keys) after the axes of offset."""
    return torch.arange(num_keys, device=device) - (torch.arange(num_queries, device=device)[:, None] + offset)


def open_keys(scores: torch.Tensor, valid_lens: torch.Tensor | None, mask: torch.Tensor | None) -> torch.Tensor:
    """What each query may attend to, in the shape of scores: by lengths, by mask, and by scores above -inf."""
    seen = scores != -torch.inf
    allowed = attention_mask(scores.shape[-1], valid_lens, mask)
    if allowed is None:
        return seen
    return seen & (allowed if allowed.ndim == scores.ndim else allowed[:, None])


def softmax_over(scores: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Softmax of the allowed scores; 0 elsewhere, and in rows that allow nothing."""
    precise = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    # A fill of -inf loses against every real score, where a finite one may win. A fully masked row would come out NaN:
    # zeros keep it, and its gradient, finite until the last line discards it.
    visible = precise.masked_fill(~allowed, -torch.inf)
    visible = visible.masked_fill(~allowed.any(dim=-1, keepdim=True), 0.0)
    return torch.softmax(visible, dim=-1).masked_fill(~allowed, 0.0).to(scores.dtype)
