"""Which keys a query may attend to, and weights over them."""

from __future__ import annotations

import math

import numpy as np

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
from attention_core.reference.arrays import align, check, promote

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

BINARY = {"float64": (53, 1024), "float32": (24, 128), "float16": (11, 16), "bfloat16": (8, 128)}
"""Bits of the fraction and largest exponent of each floating type, which NumPy does not know for all of them."""


def attention_mask(
    num_keys: int, valid_lens: np.ndarray | None = None, mask: np.ndarray | None = None
) -> np.ndarray | None:
    """Combine lengths and a boolean mask into one mask of what each query may attend to.

    open[b, i, j] = (j < valid_lens[b, i]) and mask[b, i, j]

    Without lengths and mask the result is None: everything is open. Otherwise it has the rank of mask, or 3, and
    num_keys keys; its other axes are those given, or 1.
    """
    check(ATTENTION_MASK, {"keys": num_keys}, num_keys=num_keys, valid_lens=valid_lens, mask=mask)
    if valid_lens is None:
        return None if mask is None else mask & np.ones(num_keys, bool)
    valid_lens = np.asarray(valid_lens)
    lens = valid_lens[:, None, None] if valid_lens.ndim == 1 else valid_lens[:, :, None]
    open_keys = np.arange(num_keys) < lens
    if mask is None:
        return open_keys
    return mask & (open_keys if mask.ndim == 3 else open_keys[:, None])


def causal_mask(num_queries: int, num_keys: int, *, offset: np.ndarray | None = None) -> np.ndarray:
    """Let each query attend to its own position and those before it.

    open[b, i, j] = j <= i + offset[b]

    With n cached keys before the first query, offset is n. Where the last query is aligned with the last key, offset is
    num_keys - num_queries.
    """
    check(CAUSAL_MASK, num_queries=num_queries, num_keys=num_keys, offset=offset)
    return distances(num_queries, num_keys, offset) <= 0


def window_mask(
    num_queries: int, num_keys: int, *, left: int, right: int, offset: np.ndarray | None = None
) -> np.ndarray:
    """Let each query attend to a window around its own position.

    open[b, i, j] = -left <= j - (i + offset[b]) <= right

    With n cached keys before the first query, offset is n. Where the last query is aligned with the last key, offset is
    num_keys - num_queries.
    """
    check(WINDOW_MASK, num_queries=num_queries, num_keys=num_keys, left=left, right=right, offset=offset)
    distance = distances(num_queries, num_keys, offset)
    return (distance >= -left) & (distance <= right)


def block_mask(num_queries: int, num_keys: int, *, size: int, offset: np.ndarray | None = None) -> np.ndarray:
    """Let each query attend to the block of positions that contains it.

    open[b, i, j] = floor((i + offset[b]) / size) == floor(j / size)

    The first block begins at key 0. With n cached keys before the first query, offset is n. Where the last query is
    aligned with the last key, offset is num_keys - num_queries.
    """
    check(BLOCK_MASK, num_queries=num_queries, num_keys=num_keys, size=size, offset=offset)
    return query_positions(num_queries, offset) // size == np.arange(num_keys) // size


def stride_mask(num_queries: int, num_keys: int, *, stride: int, offset: np.ndarray | None = None) -> np.ndarray:
    """Let each query attend to every stride-th position, counted from its own.

    open[b, i, j] = (i + offset[b] - j) mod stride == 0

    With window_mask, by mask_and, it makes a dilated window. With n cached keys before the first query, offset is n.
    Where the last query is aligned with the last key, offset is num_keys - num_queries.
    """
    check(STRIDE_MASK, num_queries=num_queries, num_keys=num_keys, stride=stride, offset=offset)
    return distances(num_queries, num_keys, offset) % stride == 0


def global_mask(global_queries: np.ndarray, global_keys: np.ndarray) -> np.ndarray:
    """Let global queries attend to every key, and every query to global keys.

    open[b, i, j] = global_queries[b, i] or global_keys[b, j]
    """
    check(GLOBAL_MASK, global_queries=global_queries, global_keys=global_keys)
    return global_queries[:, :, None] | global_keys[:, None, :]


def mask_and(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Combine two masks: a key is open where both masks open it.

    open[b, i, j] = first[b, i, j] and second[b, i, j]

    Both masks have heads, or neither; an axis of size 1 is extended to the size of the other.
    """
    check(MASK_AND, first=first, second=second)
    return first & second


def mask_or(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Combine two masks: a key is open where either mask opens it.

    open[b, i, j] = first[b, i, j] or second[b, i, j]

    Both masks have heads, or neither; an axis of size 1 is extended to the size of the other.
    """
    check(MASK_OR, first=first, second=second)
    return first | second


def from_key_padding_mask(key_padding_mask: np.ndarray) -> np.ndarray:
    """Convert a key padding mask (True = hidden) to a mask (True = may attend).

    open[b, 0, j] = not key_padding_mask[b, j]
    """
    check(FROM_KEY_PADDING_MASK, key_padding_mask=key_padding_mask)
    return ~key_padding_mask[:, None]


def to_key_padding_mask(mask: np.ndarray) -> np.ndarray:
    """Convert a mask with one row for all queries to a key padding mask (True = hidden).

    hidden[b, j] = not mask[b, 0, j]

    attention_mask makes such a mask of one length for each sequence.
    """
    check(TO_KEY_PADDING_MASK, mask=mask)
    return ~mask[:, 0]


def from_additive_mask(additive_mask: np.ndarray, *, threshold: float = -1e4) -> np.ndarray:
    """Convert an additive mask, which other libraries add to the scores, to a boolean mask.

    open[b, i, j] = additive_mask[b, i, j] > threshold

    The threshold is first rounded to the dtype of additive_mask, so that a fill with the same number is hidden in every
    dtype. Fills of -1e9, the lowest finite number and -inf are hidden, too, and so is NaN. A bias above the threshold
    is open, and its value is lost; attention layers take one as bias.
    """
    check(FROM_ADDITIVE_MASK, threshold=threshold, additive_mask=additive_mask)
    with np.errstate(over="ignore"):  # beyond float16's range it becomes -inf
        return additive_mask > np.asarray(threshold).astype(additive_mask.dtype)


def to_additive_mask(mask: np.ndarray, *, dtype: str = "float32", finite: bool = False) -> np.ndarray:
    """Convert a boolean mask to an additive mask, which other libraries add to the scores.

    additive_mask[b, i, j] = 0 if mask[b, i, j] else -inf; if finite, the lowest finite number of dtype

    dtype is that of the scores to which the mask is added.

    In NumPy: the result is float64, and holds the numbers of dtype.
    """
    check(TO_ADDITIVE_MASK, dtype=dtype, finite=finite, mask=mask)
    return np.where(mask, 0.0, least_finite(dtype) if finite else -np.inf)


def masked_softmax(
    scores: np.ndarray, valid_lens: np.ndarray | None = None, mask: np.ndarray | None = None
) -> np.ndarray:
    """Normalise scores over the keys each query may attend to.

    weights[i, j] = open[i, j] exp(scores[i, j]) / sum over open k of exp(scores[i, k])

    A query that may attend to nothing gets weights 0. A score of -inf counts as hidden. A hidden score, NaN and inf
    included, has no effect and gets gradient 0. A mask has as many axes as the scores; lengths apply to all heads.
    """
    check(MASKED_SOFTMAX, scores=scores, valid_lens=valid_lens, mask=mask)
    return softmax_over(promote(scores), open_keys(scores, valid_lens, mask))


def least_finite(dtype: str) -> float:
    """The lowest finite number of a floating type."""
    bits, exponent = BINARY[dtype]
    return math.ldexp(2.0**-bits - 1.0, exponent)


def query_positions(num_queries: int, offset: np.ndarray | None) -> np.ndarray:
    """The position of each query among the keys, (batch or 1, queries, 1)."""
    first = np.reshape(0 if offset is None else offset, (-1, 1, 1))
    return np.arange(num_queries)[:, None] + first.astype(np.int64)


def distances(num_queries: int, num_keys: int, offset: np.ndarray | None) -> np.ndarray:
    """The distance from each query's position to each key, (batch or 1, queries, keys)."""
    return np.arange(num_keys) - query_positions(num_queries, offset)


def open_keys(scores: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None) -> np.ndarray:
    """The keys that each query may attend to, in the shape of scores: by lengths, by mask, and by scores above -inf."""
    allowed = attention_mask(scores.shape[-1], valid_lens, mask)
    seen = scores.real != -np.inf
    if allowed is None:
        return seen
    if mask is None and scores.ndim == 4:
        allowed = allowed[:, None]
    return seen & allowed


def add_bias(scores: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """Add a bias, if any, to the scores; one of -inf hides a key, whatever its score."""
    if bias is None:
        return scores
    bias = align(promote(bias), 2, scores.ndim)
    return np.where(bias.real == -np.inf, -np.inf, scores + bias)


def softmax_over(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Softmax of the allowed scores; 0 elsewhere, and in rows that allow nothing."""
    if scores.shape[-1] == 0:
        return scores
    highest = np.where(allowed, scores.real, -np.inf).max(axis=-1, keepdims=True)
    highest = np.where(highest == -np.inf, 0.0, highest)
    exponentials = np.where(allowed, np.exp(np.where(allowed, scores, highest) - highest), 0.0)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total.real == 0.0, 1.0, total)


def log_softmax_over(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Ln of the softmax of the allowed scores; 0 elsewhere."""
    highest = np.where(allowed, scores.real, -np.inf).max(axis=-1, keepdims=True, initial=-np.inf)
    centred = np.where(allowed, scores, 0.0) - np.where(highest == -np.inf, 0.0, highest)
    total = np.where(allowed, np.exp(centred), 0.0).sum(axis=-1, keepdims=True)
    return np.where(allowed, centred - np.log(np.where(total.real == 0.0, 1.0, total)), 0.0)
