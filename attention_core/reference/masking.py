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
from attention_core.reference.arrays import check, promote

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

    Shapes: valid_lens (batch,) for all queries of a sequence, or (batch, queries); mask (batch, queries, keys), or
    (batch, heads, queries, keys), each axis its size or 1. The result has the rank of mask (3 without one) and
    num_keys keys; its other axes are those given, or 1: (batch, 1, keys) or (batch, queries, keys). Without lengths
    and mask it is None: everything is open.
    Edge cases: a length below 0 counts as 0, one beyond num_keys as num_keys.
    Raises: ShapeError if the axes do not fit; DtypeError if lengths are not integers; MaskError if mask is not boolean;
    OptionError if num_keys is negative.
    Source: this specification; True means "may attend", as in ONNX Attention.
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


def causal_mask(num_queries: int, num_keys: int, *, offset: int = 0) -> np.ndarray:
    """Let each query attend to its own position and those before it.

    open[i, j] = j <= i + offset

    Arguments: offset is the position of the first query among the keys: with a cache of n keys before it, n.
    Shapes: the result is (1, num_queries, num_keys), the same for every sequence; with heads, give it their axis.
    Raises: OptionError if a size or offset is negative.
    Source: Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762.
    """
    check(CAUSAL_MASK, num_queries=num_queries, num_keys=num_keys, offset=offset)
    return (distances(num_queries, num_keys, offset) <= 0)[None]


def window_mask(num_queries: int, num_keys: int, *, left: int, right: int, offset: int = 0) -> np.ndarray:
    """Let each query attend to a window around its own position.

    open[i, j] = -left <= j - (i + offset) <= right

    Arguments: left and right are the numbers of keys before and after the query's position; offset as in causal_mask.
    Shapes: the result is (1, num_queries, num_keys).
    Raises: OptionError if a size, left, right or offset is negative.
    Source: Beltagy et al. 2020, section 3.1, arXiv:2004.05150.
    """
    check(WINDOW_MASK, num_queries=num_queries, num_keys=num_keys, left=left, right=right, offset=offset)
    distance = distances(num_queries, num_keys, offset)
    return ((distance >= -left) & (distance <= right))[None]


def block_mask(num_queries: int, num_keys: int, *, size: int, offset: int = 0) -> np.ndarray:
    """Let each query attend to the block of positions that contains it.

    open[i, j] = floor((i + offset) / size) == floor(j / size)

    Arguments: size is the number of positions in a block, the first of which begins at key 0; offset as in causal_mask.
    Shapes: the result is (1, num_queries, num_keys).
    Raises: OptionError if a size or offset is negative, or size is 0.
    Source: Liu et al. 2018, section 4.2.4, arXiv:1801.10198.
    """
    check(BLOCK_MASK, num_queries=num_queries, num_keys=num_keys, size=size, offset=offset)
    queries, keys = np.arange(num_queries)[:, None] + offset, np.arange(num_keys)
    return (queries // size == keys // size)[None]


def stride_mask(num_queries: int, num_keys: int, *, stride: int, offset: int = 0) -> np.ndarray:
    """Let each query attend to every stride-th position, counted from its own.

    open[i, j] = (i + offset - j) mod stride == 0

    Arguments: stride is the distance of two positions that are attended to; offset as in causal_mask. With window_mask,
    by mask_and, it makes a dilated window.
    Shapes: the result is (1, num_queries, num_keys).
    Raises: OptionError if a size or offset is negative, or stride is 0.
    Source: Child et al. 2019, section 4.2, arXiv:1904.10509.
    """
    check(STRIDE_MASK, num_queries=num_queries, num_keys=num_keys, stride=stride, offset=offset)
    return (distances(num_queries, num_keys, offset) % stride == 0)[None]


def global_mask(global_queries: np.ndarray, global_keys: np.ndarray) -> np.ndarray:
    """Let global queries attend to every key, and every query to global keys.

    open[b, i, j] = global_queries[b, i] or global_keys[b, j]

    Shapes: global_queries (batch, queries), global_keys (batch, keys), both boolean; the result (batch, queries, keys).
    Raises: ShapeError; MaskError if one is not boolean.
    Source: Beltagy et al. 2020, section 3.1, arXiv:2004.05150.
    """
    check(GLOBAL_MASK, global_queries=global_queries, global_keys=global_keys)
    return global_queries[:, :, None] | global_keys[:, None, :]


def mask_and(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Combine two masks: a key is open where both masks open it.

    open[b, i, j] = first[b, i, j] and second[b, i, j]

    Shapes: both (batch, queries, keys), or both with heads after batch, each axis its size or 1; the result the larger.
    Raises: ShapeError; MaskError if one is not boolean.
    Source: this specification.
    """
    check(MASK_AND, first=first, second=second)
    return first & second


def mask_or(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Combine two masks: a key is open where either mask opens it.

    open[b, i, j] = first[b, i, j] or second[b, i, j]

    Shapes: as mask_and.
    Raises: ShapeError; MaskError if one is not boolean.
    Source: this specification.
    """
    check(MASK_OR, first=first, second=second)
    return first | second


def from_key_padding_mask(key_padding_mask: np.ndarray) -> np.ndarray:
    """Convert a key padding mask (True = hidden) to a mask (True = may attend).

    open[b, 0, j] = not key_padding_mask[b, j]

    Shapes: key_padding_mask (batch, keys), boolean; the result is (batch, 1, keys), one row for all queries.
    Raises: ShapeError; MaskError if it is not boolean.
    Source: this specification; key_padding_mask as in torch.nn.MultiheadAttention.
    """
    check(FROM_KEY_PADDING_MASK, key_padding_mask=key_padding_mask)
    return ~key_padding_mask[:, None]


def to_key_padding_mask(mask: np.ndarray) -> np.ndarray:
    """Convert a mask with one row for all queries to a key padding mask (True = hidden).

    hidden[b, j] = not mask[b, 0, j]

    Shapes: mask (batch, 1, keys), such as attention_mask makes of one length for each sequence; the result is
    (batch, keys).
    Raises: ShapeError, also if mask has more than one row: a key padding mask cannot hide a key from some queries only;
    MaskError if it is not boolean.
    Source: this specification; key_padding_mask as in torch.nn.MultiheadAttention.
    """
    check(TO_KEY_PADDING_MASK, mask=mask)
    return ~mask[:, 0]


def from_additive_mask(additive_mask: np.ndarray, *, threshold: float = -1e4) -> np.ndarray:
    """Convert an additive mask, which other libraries add to the scores, to a boolean mask.

    open[b, i, j] = additive_mask[b, i, j] > threshold

    Arguments: threshold is rounded to the dtype of additive_mask first, so that a fill with the same number is hidden
    in every dtype. Fills of -1e9, the lowest finite number and -inf are hidden, too; a bias above the threshold is
    open.
    Shapes: additive_mask (batch, queries, keys), or (batch, heads, queries, keys), each axis its size or 1; the result
    has the same.
    Edge cases: NaN is hidden. A bias that the array adds to open scores is lost.
    Raises: ShapeError; DtypeError if additive_mask is not floating; OptionError if threshold is not finite.
    Source: this specification.
    """
    check(FROM_ADDITIVE_MASK, threshold=threshold, additive_mask=additive_mask)
    with np.errstate(over="ignore"):  # beyond float16's range it becomes -inf
        return additive_mask > np.asarray(threshold).astype(additive_mask.dtype)


def to_additive_mask(mask: np.ndarray, *, dtype: str = "float32", finite: bool = False) -> np.ndarray:
    """Convert a boolean mask to an additive mask, which other libraries add to the scores.

    additive_mask[b, i, j] = 0 if mask[b, i, j] else -inf; if finite, the lowest finite number of dtype

    Arguments: dtype is "float64", "float32", "float16" or "bfloat16": that of the scores to which it is added.
    Shapes: mask (batch, queries, keys), or (batch, heads, queries, keys), each axis its size or 1; the result has the
    same. Here it is float64 and holds the numbers of dtype.
    Raises: ShapeError; MaskError if mask is not boolean; OptionError if dtype is none of these, or finite no bool.
    Source: this specification.
    """
    check(TO_ADDITIVE_MASK, dtype=dtype, finite=finite, mask=mask)
    return np.where(mask, 0.0, least_finite(dtype) if finite else -np.inf)


def masked_softmax(
    scores: np.ndarray, valid_lens: np.ndarray | None = None, mask: np.ndarray | None = None
) -> np.ndarray:
    """Normalise scores over the keys each query may attend to.

    weights[i, j] = open[i, j] exp(scores[i, j]) / sum over open k of exp(scores[i, k])

    Shapes: scores (batch, queries, keys) or (batch, heads, queries, keys); valid_lens and mask as in attention_mask,
    the mask with as many axes as scores. The result has the shape of scores.
    Units: scores are logits (natural logarithm); weights are probabilities.
    Edge cases: a score of -inf counts as hidden. A query that may attend to nothing gets weights 0. A hidden score,
    NaN and inf included, has no effect and gets gradient 0.
    Raises: ShapeError, DtypeError, MaskError, as attention_mask.
    Source: Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762; fully masked rows as in ONNX Attention.
    """
    check(MASKED_SOFTMAX, scores=scores, valid_lens=valid_lens, mask=mask)
    return softmax_over(promote(scores), open_keys(scores, valid_lens, mask))


def least_finite(dtype: str) -> float:
    """The lowest finite number of a floating type."""
    bits, exponent = BINARY[dtype]
    return math.ldexp(2.0**-bits - 1.0, exponent)


def distances(num_queries: int, num_keys: int, offset: int) -> np.ndarray:
    """The distance from each query's position to each key, (queries, keys)."""
    return np.arange(num_keys) - (np.arange(num_queries)[:, None] + offset)


def open_keys(scores: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None) -> np.ndarray:
    """The keys that each query may attend to, in the shape of scores: by lengths, by mask, and by scores above -inf."""
    allowed = attention_mask(scores.shape[-1], valid_lens, mask)
    seen = scores.real != -np.inf
    if allowed is None:
        return seen
    if mask is None and scores.ndim == 4:
        allowed = allowed[:, None]
    return seen & allowed


def softmax_over(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Softmax of the allowed scores; 0 elsewhere, and in rows that allow nothing."""
    if scores.shape[-1] == 0:
        return scores
    highest = np.where(allowed, scores.real, -np.inf).max(axis=-1, keepdims=True)
    highest = np.where(highest == -np.inf, 0.0, highest)
    exponentials = np.where(allowed, np.exp(np.where(allowed, scores, highest) - highest), 0.0)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total.real == 0.0, 1.0, total)
