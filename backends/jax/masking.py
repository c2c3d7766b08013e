"""Which keys a query may attend to, and weights over them, in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from attention_core.errors import check, check_available
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
from backends.jax.arrays import Lengths, Offset

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


def attention_mask(num_keys: int, valid_lens: Lengths | None = None, mask: jax.Array | None = None) -> jax.Array | None:
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
    """
    check(ATTENTION_MASK, {"keys": num_keys}, num_keys=num_keys, valid_lens=valid_lens, mask=mask)
    return _attention_mask(num_keys, valid_lens, mask)


def _attention_mask(num_keys: int, valid_lens: Lengths | None, mask: jax.Array | None) -> jax.Array | None:
    if valid_lens is None:
        return None if mask is None else jnp.broadcast_to(mask, (*mask.shape[:-1], num_keys))
    lens = jnp.asarray(valid_lens)
    lens = lens[:, None, None] if lens.ndim == 1 else lens[:, :, None]
    open_keys = jnp.arange(num_keys) < lens
    if mask is None:
        return open_keys
    return mask & (open_keys if mask.ndim == 3 else open_keys[:, None])


def causal_mask(num_queries: int, num_keys: int, *, offset: Offset | None = None) -> jax.Array:
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


def window_mask(num_queries: int, num_keys: int, *, left: int, right: int, offset: Offset | None = None) -> jax.Array:
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
    return (distance >= -left) & (distance <= right)


def block_mask(num_queries: int, num_keys: int, *, size: int, offset: Offset | None = None) -> jax.Array:
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
    return query_positions(num_queries, offset) // size == jnp.arange(num_keys) // size


def stride_mask(num_queries: int, num_keys: int, *, stride: int, offset: Offset | None = None) -> jax.Array:
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
    return distances(num_queries, num_keys, offset) % stride == 0


def global_mask(global_queries: jax.Array, global_keys: jax.Array) -> jax.Array:
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
    return global_queries[:, :, None] | global_keys[:, None, :]


def mask_and(first: jax.Array, second: jax.Array) -> jax.Array:
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
    return first & second


def mask_or(first: jax.Array, second: jax.Array) -> jax.Array:
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
    return first | second


def from_key_padding_mask(key_padding_mask: jax.Array) -> jax.Array:
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
    return ~key_padding_mask[:, None]


def to_key_padding_mask(mask: jax.Array) -> jax.Array:
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
    return ~mask[:, 0]


def from_additive_mask(additive_mask: jax.Array, *, threshold: float = -1e4) -> jax.Array:
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
    return additive_mask > jnp.asarray(threshold, additive_mask.dtype)


def to_additive_mask(mask: jax.Array, *, dtype: str = "float32", finite: bool = False) -> jax.Array:
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
    if not jax.config.jax_enable_x64:
        check_available(TO_ADDITIVE_MASK.title, dtype, "float64", "JAX has it only where jax_enable_x64 is set")
    hidden = jnp.finfo(dtype).min if finite else -jnp.inf
    return jnp.where(mask, jnp.zeros((), dtype), jnp.asarray(hidden, dtype))


def masked_softmax(scores: jax.Array, valid_lens: Lengths | None = None, mask: jax.Array | None = None) -> jax.Array:
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
    return softmax_over(scores, open_keys(scores, _attention_mask(scores.shape[-1], valid_lens, mask)))


def query_positions(num_queries: int, offset: Offset | None) -> jax.Array:
    """The position of each query among the keys, (batch or 1, queries, 1)."""
    first = jnp.asarray(0 if offset is None else offset).astype(int).reshape(-1, 1, 1)
    return jnp.arange(num_queries)[:, None] + first


def distances(num_queries: int, num_keys: int, offset: Offset | None) -> jax.Array:
    """The distance from each query's position to each key, (batch or 1, queries, keys)."""
    return jnp.arange(num_keys) - query_positions(num_queries, offset)


def open_keys(scores: jax.Array, mask: jax.Array | None) -> jax.Array:
    """What each query may attend to, in the shape of scores: by the mask, and by scores above -inf."""
    seen = scores != -jnp.inf
    if mask is None:
        return seen
    return seen & (mask if mask.ndim == scores.ndim else mask[:, None])


def add_bias(scores: jax.Array, bias: jax.Array) -> jax.Array:
    """Add a bias to the scores; one of -inf hides a key, whatever its score."""
    bias = expand_to_rank(bias, scores.ndim)
    return jnp.where(bias == -jnp.inf, -jnp.inf, scores + bias)


def open_to(mask: jax.Array | None, bias: jax.Array | None) -> jax.Array | None:
    """The mask, with what a bias of -inf hides."""
    if bias is None:
        return mask
    opened = bias != -jnp.inf
    if mask is None:
        return expand_to_rank(opened, max(opened.ndim, 3))
    rank = max(opened.ndim, mask.ndim)
    return expand_to_rank(opened, rank) & expand_to_rank(mask, rank)


def expand_to_rank(array: jax.Array, rank: int) -> jax.Array:
    """The array with an axis of size 1 for those of batch and heads that it leaves out."""
    return array.reshape(*array.shape[:-2], *(1,) * (rank - array.ndim), *array.shape[-2:])


def softmax_over(scores: jax.Array, allowed: jax.Array) -> jax.Array:
    """Softmax of the allowed scores; 0 elsewhere, and in rows that allow nothing."""
    # A fill of -inf loses against every real score, where a finite one may win. A fully masked row would come out NaN:
    # zeros keep it, and its gradient, finite until the last line discards it; so `jax_debug_nans` stays usable.
    visible = jnp.where(allowed, precise(scores), -jnp.inf)
    visible = jnp.where(jnp.any(allowed, axis=-1, keepdims=True), visible, 0.0)
    return jnp.where(allowed, jax.nn.softmax(visible, axis=-1), 0.0).astype(scores.dtype)


def precise(array: jax.Array) -> jax.Array:
    """Widen an array to float32 where its type is narrower."""
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))
