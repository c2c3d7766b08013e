"""Which keys a query may attend to, and weights over them, in TensorFlow."""

from __future__ import annotations

import math

import tensorflow as tf

from attention_core.errors import check
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
from backends.tf.arrays import Lengths, Offset

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
    num_keys: int | tf.Tensor, valid_lens: Lengths | None = None, mask: tf.Tensor | None = None
) -> tf.Tensor | None:
    """Combine lengths and a boolean mask into one mask of what each query may attend to.

    open[b, i, j] = (j < valid_lens[b, i]) and mask[b, i, j]

    Without lengths and mask the result is None: everything is open. Otherwise it has the rank of mask, or 3, and
    num_keys keys; its other axes are those given, or 1.

    Args:
        num_keys: number of keys
        valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
        mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
    Returns:
        mask: booleans (batch, [heads], queries, keys), broadcast; True = may attend
    Source: this specification; True means 'may attend', as in ONNX Attention
    Example:
        mask = attention.attention_mask(num_keys, valid_lens)

    In TensorFlow: while a graph is traced, num_keys may be a scalar tensor.
    """
    known = {} if tf.is_symbolic_tensor(num_keys) else {"num_keys": num_keys}
    check(ATTENTION_MASK, {"keys": num_keys}, **known, valid_lens=valid_lens, mask=mask)
    return _attention_mask(num_keys, valid_lens, mask)


def _attention_mask(num_keys: int | tf.Tensor, valid_lens: Lengths | None, mask: tf.Tensor | None) -> tf.Tensor | None:
    if valid_lens is None:
        return None if mask is None else tf.logical_and(mask, tf.ones([num_keys], tf.bool))
    lens = tf.cast(valid_lens, tf.int64)
    lens = lens[:, None, None] if lens.shape.rank == 1 else lens[:, :, None]
    open_keys = tf.range(num_keys, dtype=tf.int64) < lens
    if mask is None:
        return open_keys
    return tf.logical_and(mask, open_keys if mask.shape.rank == 3 else open_keys[:, None])


def causal_mask(num_queries: int, num_keys: int, *, offset: Offset | None = None) -> tf.Tensor:
    """Let each query attend to its own position and those before it.

    open[b, i, j] = j <= i + offset[b]

    With n cached keys before the first query, offset is n. Where the last query is aligned with the last key, offset is
    num_keys - num_queries.

    Args:
        num_queries: number of queries
        num_keys: number of keys
        offset (default None): integers (batch,), a list, or one number; position of the first query; 0 if None
    Returns:
        mask: booleans (batch, queries, keys), broadcast; True = may attend; the same for every sequence if offset is.
            With heads, insert their axis: mask[:, None]
    Source: Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762
    Example:
        mask = attention.causal_mask(num_queries, num_keys)
    """
    check(CAUSAL_MASK, num_queries=num_queries, num_keys=num_keys, offset=offset)
    return distances(num_queries, num_keys, offset) <= 0


def window_mask(num_queries: int, num_keys: int, *, left: int, right: int, offset: Offset | None = None) -> tf.Tensor:
    """Let each query attend to a window around its own position.

    open[b, i, j] = -left <= j - (i + offset[b]) <= right

    With n cached keys before the first query, offset is n. Where the last query is aligned with the last key, offset is
    num_keys - num_queries.

    Args:
        num_queries: number of queries
        num_keys: number of keys
        left: number of keys before the query's position
        right: number of keys after the query's position
        offset (default None): integers (batch,), a list, or one number; position of the first query; 0 if None
    Returns:
        mask: booleans (batch, queries, keys), broadcast; True = may attend; the same for every sequence if offset is.
            With heads, insert their axis: mask[:, None]
    Source: Beltagy et al. 2020, section 3.1, arXiv:2004.05150
    Example:
        mask = attention.window_mask(num_queries, num_keys, left=left, right=right)
    """
    check(WINDOW_MASK, num_queries=num_queries, num_keys=num_keys, left=left, right=right, offset=offset)
    distance = distances(num_queries, num_keys, offset)
    return tf.logical_and(distance >= -left, distance <= right)


def block_mask(num_queries: int, num_keys: int, *, size: int, offset: Offset | None = None) -> tf.Tensor:
    """Let each query attend to the block of positions that contains it.

    open[b, i, j] = floor((i + offset[b]) / size) == floor(j / size)

    The first block begins at key 0. With n cached keys before the first query, offset is n. Where the last query is
    aligned with the last key, offset is num_keys - num_queries.

    Args:
        num_queries: number of queries
        num_keys: number of keys
        size: number of positions in a block
        offset (default None): integers (batch,), a list, or one number; position of the first query; 0 if None
    Returns:
        mask: booleans (batch, queries, keys), broadcast; True = may attend; the same for every sequence if offset is.
            With heads, insert their axis: mask[:, None]
    Source: Liu et al. 2018, section 4.2.4, arXiv:1801.10198
    Example:
        mask = attention.block_mask(num_queries, num_keys, size=size)
    """
    check(BLOCK_MASK, num_queries=num_queries, num_keys=num_keys, size=size, offset=offset)
    return tf.equal(query_positions(num_queries, offset) // size, tf.range(num_keys, dtype=tf.int64) // size)


def stride_mask(num_queries: int, num_keys: int, *, stride: int, offset: Offset | None = None) -> tf.Tensor:
    """Let each query attend to every stride-th position, counted from its own.

    open[b, i, j] = (i + offset[b] - j) mod stride == 0

    With window_mask, by mask_and, it makes a dilated window. With n cached keys before the first query, offset is n.
    Where the last query is aligned with the last key, offset is num_keys - num_queries.

    Args:
        num_queries: number of queries
        num_keys: number of keys
        stride: distance between the positions that a query attends to
        offset (default None): integers (batch,), a list, or one number; position of the first query; 0 if None
    Returns:
        mask: booleans (batch, queries, keys), broadcast; True = may attend; the same for every sequence if offset is.
            With heads, insert their axis: mask[:, None]
    Source: Child et al. 2019, section 4.2, arXiv:1904.10509
    Example:
        mask = attention.stride_mask(num_queries, num_keys, stride=stride)
    """
    check(STRIDE_MASK, num_queries=num_queries, num_keys=num_keys, stride=stride, offset=offset)
    return tf.equal(distances(num_queries, num_keys, offset) % stride, 0)


def global_mask(global_queries: tf.Tensor, global_keys: tf.Tensor) -> tf.Tensor:
    """Let global queries attend to every key, and every query to global keys.

    open[b, i, j] = global_queries[b, i] or global_keys[b, j]

    Args:
        global_queries: booleans (batch, queries); True where a query attends to every key
        global_keys: booleans (batch, keys); True where a key is attended to by every query
    Returns:
        mask: booleans (batch, queries, keys); True = may attend
    Source: Beltagy et al. 2020, section 3.1, arXiv:2004.05150
    Example:
        mask = attention.global_mask(global_queries, global_keys)
    """
    check(GLOBAL_MASK, global_queries=global_queries, global_keys=global_keys)
    return tf.logical_or(global_queries[:, :, None], global_keys[:, None, :])


def mask_and(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Combine two masks: a key is open where both masks open it.

    open[b, i, j] = first[b, i, j] and second[b, i, j]

    Both masks have heads, or neither; an axis of size 1 is extended to the size of the other.

    Args:
        first: booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
        second: booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
    Returns:
        mask: booleans (batch, [heads], queries, keys), broadcast; True = may attend
    Source: this specification
    Example:
        mask = attention.mask_and(first, second)
    """
    check(MASK_AND, first=first, second=second)
    return tf.logical_and(first, second)


def mask_or(first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Combine two masks: a key is open where either mask opens it.

    open[b, i, j] = first[b, i, j] or second[b, i, j]

    Both masks have heads, or neither; an axis of size 1 is extended to the size of the other.

    Args:
        first: booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
        second: booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
    Returns:
        mask: booleans (batch, [heads], queries, keys), broadcast; True = may attend
    Source: this specification
    Example:
        mask = attention.mask_or(first, second)
    """
    check(MASK_OR, first=first, second=second)
    return tf.logical_or(first, second)


def from_key_padding_mask(key_padding_mask: tf.Tensor) -> tf.Tensor:
    """Convert a key padding mask (True = hidden) to a mask (True = may attend).

    open[b, 0, j] = not key_padding_mask[b, j]

    Args:
        key_padding_mask: booleans (batch, keys); True = hidden from every query
    Returns:
        mask: booleans (batch, one, keys); True = may attend; the same for every query
    Source: this specification; key_padding_mask as in torch.nn.MultiheadAttention
    Example:
        mask = attention.from_key_padding_mask(key_padding_mask)
    """
    check(FROM_KEY_PADDING_MASK, key_padding_mask=key_padding_mask)
    return tf.logical_not(key_padding_mask[:, None])


def to_key_padding_mask(mask: tf.Tensor) -> tf.Tensor:
    """Convert a mask with one row for all queries to a key padding mask (True = hidden).

    hidden[b, j] = not mask[b, 0, j]

    attention_mask makes such a mask of one length for each sequence.

    Args:
        mask: booleans (batch, one, keys); True = may attend; the same for every query
    Returns:
        key_padding_mask: booleans (batch, keys); True = hidden from every query
    Raises:
        ShapeError: a mask that a key padding mask cannot represent: one with several rows
    Source: this specification; key_padding_mask as in torch.nn.MultiheadAttention
    Example:
        key_padding_mask = attention.to_key_padding_mask(mask)
    """
    check(TO_KEY_PADDING_MASK, mask=mask)
    return tf.logical_not(tf.squeeze(mask, axis=1))


def from_additive_mask(additive_mask: tf.Tensor, *, threshold: float = -1e4) -> tf.Tensor:
    """Convert an additive mask, which other libraries add to the scores, to a boolean mask.

    open[b, i, j] = additive_mask[b, i, j] > threshold

    The threshold is first rounded to the dtype of additive_mask, so that a fill with the same number is hidden in every
    dtype. Fills of -1e9, the lowest finite number and -inf are hidden, too, and so is NaN. A bias above the threshold
    is open, and its value is lost; attention layers take one as bias.

    Args:
        additive_mask: (batch, [heads], queries, keys), broadcast; numbers added to the scores: 0 for an open key, at
            most threshold for a hidden one
        threshold (default -10000.0): a key is hidden where additive_mask is at most this
    Returns:
        mask: booleans (batch, [heads], queries, keys), broadcast; True = may attend
    Source: this specification
    Example:
        mask = attention.from_additive_mask(additive_mask)
    """
    check(FROM_ADDITIVE_MASK, threshold=threshold, additive_mask=additive_mask)
    return additive_mask > tf.constant(threshold, additive_mask.dtype)


def to_additive_mask(mask: tf.Tensor, *, dtype: str = "float32", finite: bool = False) -> tf.Tensor:
    """Convert a boolean mask to an additive mask, which other libraries add to the scores.

    additive_mask[b, i, j] = 0 if mask[b, i, j] else -inf; if finite, the lowest finite number of dtype

    dtype is that of the scores to which the mask is added.

    Args:
        mask: booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
        dtype (default 'float32'): floating type of the result: 'float64', 'float32', 'float16', 'bfloat16'
        finite (default False): whether to fill with the lowest finite number, not -inf
    Returns:
        additive_mask: (batch, [heads], queries, keys), broadcast; numbers to add to the scores
    Source: this specification
    Example:
        additive_mask = attention.to_additive_mask(mask)
    """
    check(TO_ADDITIVE_MASK, dtype=dtype, finite=finite, mask=mask)
    chosen = tf.as_dtype(dtype)
    return tf.where(mask, tf.zeros([], chosen), tf.constant(chosen.min if finite else -math.inf, chosen))


def masked_softmax(scores: tf.Tensor, valid_lens: Lengths | None = None, mask: tf.Tensor | None = None) -> tf.Tensor:
    """Normalise scores over the keys each query may attend to.

    weights[i, j] = open[i, j] exp(scores[i, j]) / sum over open k of exp(scores[i, k])

    A query that may attend to nothing gets weights 0. A score of -inf counts as hidden. A hidden score, NaN and inf
    included, has no effect and gets gradient 0. A mask has as many axes as the scores; lengths apply to all heads.

    Args:
        scores: (batch, [heads], queries, keys); logits (natural logarithm)
        valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
        mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
    Returns:
        weights: (batch, [heads], queries, keys); probabilities over the keys
    Source: Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762; fully masked rows as in ONNX Attention
    Example:
        weights = attention.masked_softmax(scores)
    """
    check(MASKED_SOFTMAX, scores=scores, valid_lens=valid_lens, mask=mask)
    return softmax_over(scores, open_keys(scores, _attention_mask(size(scores, -1), valid_lens, mask)))


def query_positions(num_queries: int | tf.Tensor, offset: Offset | None) -> tf.Tensor:
    """The position of each query among the keys, (batch or 1, queries, 1), in int64."""
    first = tf.reshape(tf.cast(0 if offset is None else offset, tf.int64), (-1, 1, 1))
    return tf.range(num_queries, dtype=tf.int64)[:, None] + first


def distances(num_queries: int | tf.Tensor, num_keys: int | tf.Tensor, offset: Offset | None) -> tf.Tensor:
    """The distance from each query's position to each key, (batch or 1, queries, keys), in int64."""
    return tf.range(num_keys, dtype=tf.int64) - query_positions(num_queries, offset)


def open_keys(scores: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor:
    """What each query may attend to, in the shape of scores: by the mask, and by scores above -inf."""
    seen = tf.not_equal(scores, -math.inf)
    if mask is None:
        return seen
    return tf.logical_and(seen, mask if len(mask.shape) == len(scores.shape) else mask[:, None])


def add_bias(scores: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
    """Add a bias to the scores; one of -inf hides a key, whatever its score."""
    bias = expand_to_rank(bias, scores.shape.rank)
    return tf.where(tf.equal(bias, -math.inf), tf.cast(-math.inf, scores.dtype), scores + bias)


def open_to(mask: tf.Tensor | None, bias: tf.Tensor | None) -> tf.Tensor | None:
    """The mask, with what a bias of -inf hides."""
    if bias is None:
        return mask
    opened = tf.not_equal(bias, -math.inf)
    if mask is None:
        return expand_to_rank(opened, max(opened.shape.rank, 3))
    rank = max(opened.shape.rank, mask.shape.rank)
    return tf.logical_and(expand_to_rank(opened, rank), expand_to_rank(mask, rank))


def expand_to_rank(array: tf.Tensor, rank: int) -> tf.Tensor:
    """The array with an axis of size 1 for those of batch and heads that it leaves out."""
    return array[(slice(None),) * (array.shape.rank - 2) + (tf.newaxis,) * (rank - array.shape.rank)]


def softmax_over(scores: tf.Tensor, allowed: tf.Tensor) -> tf.Tensor:
    """Softmax of the allowed scores; 0 elsewhere, and in rows that allow nothing."""
    # A fill of -inf loses against every real score, where a finite one may win. The softmax is spelled out because
    # tf.nn.softmax multiplies by a rounded reciprocal on a CPU: a saturated float32 row would not be exactly 1.
    # In a graph, a number takes the type of a tensor before it, and is float32 where the tensor stands behind it.
    visible = tf.where(allowed, precise(scores), -math.inf)
    highest = tf.stop_gradient(tf.reduce_max(visible, axis=-1, keepdims=True))
    exponentials = tf.exp(visible - tf.where(tf.not_equal(highest, -math.inf), highest, 0.0))
    exponentials = tf.where(allowed, exponentials, 0.0)
    total = tf.reduce_sum(exponentials, axis=-1, keepdims=True)
    return tf.cast(exponentials / tf.where(tf.not_equal(total, 0.0), total, 1.0), scores.dtype)


def precise(array: tf.Tensor) -> tf.Tensor:
    """Widen an array to float32 where its type is narrower."""
    return tf.cast(array, tf.float32) if array.dtype in (tf.float16, tf.bfloat16) else array


# ------------------------------------------------------------------------------------------- particular to TensorFlow


def size(array: tf.Tensor, axis: int) -> int | tf.Tensor:
    """Return the size of an axis: a number if it is known, a scalar tensor if only the running graph knows it."""
    known = array.shape[axis]
    return tf.shape(array)[axis] if known is None else known
