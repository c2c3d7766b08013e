"""Scores in blocks, in TensorFlow: the numbers of the plain formulas without their largest arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from attention_core.errors import AttentionError, check_path
from backends.tf.masking import precise, size
from backends.tf.pooling import attention_pooling

__all__ = ["takes_blocks", "force", "blocked_additive_score", "blocked_dot_attention"]

ADDITIVE_LEAST = 2**24
"""The elements, batch · heads · queries · keys · hidden_size, from which on blocks win, though they are compiled."""

DOT_LEAST = 2**22
"""The elements of one head, queries · keys · features, from which on blocks win: no block has more than one head."""

BLOCK = 2**19
"""The elements of one block: 2 MiB in float32, what a cache holds."""

DOT_BLOCK = 2**21
"""The scores of one block: products of larger matrices gain more than a smaller cache."""

BOUND = {tf.float32: 43.0, tf.float64: 354.0}
"""How large a query or a key may be before e^(-2q) e^(-2k) may be 0 · infinity: 4 · 43 < ln(largest / smallest)."""

LIMIT = {tf.float32: 1e30, tf.float64: 1e300}
"""How large half the sum of the squares of an array may be, so that inner products with another are finite."""

forced: str | None = None


def takes_blocks(queries: tf.Tensor, keys: tf.Tensor, least: int) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `force` says.

    elements = batch · heads · queries · keys · features

    A size that is unknown while a graph is traced counts as small.
    """
    if forced is not None:
        return forced == "blocked"
    shape = (*queries.shape, keys.shape[-2])
    return None not in shape and math.prod(shape) >= least


def force(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or the one that suits them: None.

    For the whole process, which begins as the environment variable ATTENTION_PARITY_PATH says at the import. A
    tf.function keeps the path with which it was traced.

    Raises: OptionError.
    """
    global forced
    check_path(path)
    forced = path


force(os.environ.get("ATTENTION_PARITY_PATH") or None)


def blocked_additive_score(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> tf.Tensor:
    """Score each projected query against each projected key by a weighted tanh of their sum, block by block.

    scores[i, j] = sum over h of w_v[h] t[i, j, h];  t = tanh(queries[i, h] + keys[j, h])

    tanh(q + k) = 2 r - 1 with r = 1 / (1 + e^(-2q) e^(-2k)): the exponentials are taken per query and per key, and each
    of the (queries, keys, hidden_size) elements costs a product, a sum and a reciprocal. The backward computes each
    block again, with tanh' = 1 - t² = 4 r (1 - r):

    dqueries[i, h] = w_v[h] sum over j of g[i, j] tanh'[i, j, h];  dkeys[j, h] = w_v[h] sum over i of the same
    dw_v[h] = sum over i and j of g[i, j] t[i, j, h]

    XLA compiles both for each set of shapes, so that a block is computed in one pass. Where a query or a key is beyond
    BOUND, or NaN, the blocks hold tanh(q + k) itself. Half types are computed in float32.

    Shapes: as additive_score. Second derivatives raise an AttentionError: force("plain") has them.
    """
    # A variable would be an argument that tf.custom_gradient does not expect.
    arrays = [precise(tf.convert_to_tensor(array)) for array in (queries, keys, w_v)]
    scores = tf.cast(with_backward(*arrays), queries.dtype)
    scores.set_shape([*queries.shape[:-1], keys.shape[-2]])
    return scores


def blocked_dot_attention(
    queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None, scale: float
) -> tf.Tensor:
    """Average the values by the softmax of scaled inner products, without keeping scores or weights.

    context = attention_pooling(scale · queries keysᵀ, values, mask=mask), the context alone

    A block is of some queries and all keys of one head. With s the scores and m[i] the largest that is open to query i,

    e[i, j] = exp(s[i, j] - m[i]) where open, else 0;  total[i] = sum over j of e[i, j]
    context[i] = sum over j of e[i, j] values[j] / total[i], 0 in a row that is closed

    The backward computes each block again. With u[i] = upstream[i] / total[i] and p[i, j] = u[i]·values[j],

    dvalues[j] = sum over i of e[i, j] u[i];  ds[i, j] = e[i, j] (p[i, j] - sum over k of e[i, k] p[i, k] / total[i])
    dqueries[i] = scale · sum over j of ds[i, j] keys[j];  dkeys[j] = scale · sum over i of ds[i, j] queries[i]

    Below LIMIT every score is finite, so that the mask alone hides keys, and a weight of 0 silences what it hides.
    Beyond it, and where a number is NaN, the plain formula is computed. Half types are computed in float32.

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features), with
    heads after batch or without; mask of the same rank, each axis its size or 1, or None; returns the context, (batch,
    queries, value_features), with heads or without. Second derivatives raise an AttentionError, force("plain") apart.
    """

    @tf.custom_gradient
    def with_gradients(*arrays: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The context, and the function that gives the gradients."""
        q, k, v = map(tf.stop_gradient, arrays)  # a tape that saw the inside would keep every block
        # By Cauchy and Schwarz, no score is larger.
        finite = abs(scale) * 2 * LIMIT[q.dtype] <= q.dtype.max
        fits = tf.logical_and(below_limit(q, k, v), finite)
        found = tf.cond(fits, lambda: dot_blocks(q, k, v, mask, scale), lambda: plain_dot(q, k, v, mask, scale))

        @tf.custom_gradient
        def gradients(upstream: tf.Tensor, *_: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
            """The gradients, which have none themselves."""
            given = tf.stop_gradient(upstream)
            of_arrays = tf.cond(
                tf.logical_and(fits, below_limit(given)),
                lambda: dot_gradients(given, q, k, v, mask, scale, *found[1:]),
                lambda: plain_gradients(given, q, k, v, mask, scale),
            )
            for gradient, array in zip(of_arrays, arrays, strict=True):
                gradient.set_shape(array.shape)
            return of_arrays, refused

        return found[0], lambda upstream: gradients(upstream, *arrays)

    context = with_gradients(*(precise(tf.convert_to_tensor(array)) for array in (queries, keys, values)))
    context.set_shape([*queries.shape[:-1], values.shape[-1]])
    return tf.cast(context, queries.dtype)


@tf.custom_gradient
def with_backward(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The scores, and the function that gives their gradients."""
    fits = within(queries, keys)

    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = only_once(upstream, queries, keys, w_v, fits)
        for gradient, array in zip(found, (queries, keys, w_v), strict=True):
            gradient.set_shape(array.shape)
        return found

    return chosen_by(fits, forward_blocks, queries, keys, w_v), backward


@tf.custom_gradient
def only_once(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, fits: tf.Tensor
) -> tuple[tuple[tf.Tensor, ...], Any]:
    """The gradients, which have none themselves."""
    return chosen_by(fits, backward_blocks, upstream, queries, keys, w_v), refused


def refused(*_: tf.Tensor) -> None:
    """Refuse second derivatives."""
    raise AttentionError(
        'blocks have no second derivatives. Compute them by the plain formula: backends.tf.blocked.force("plain").'
    )


def within(*arrays: tf.Tensor) -> tf.Tensor:
    """Whether the factored form holds for these arrays; False where one holds a NaN."""
    return tf.reduce_all([tf.reduce_all(tf.abs(array) <= BOUND[array.dtype]) for array in arrays])


def chosen_by(fits: tf.Tensor, function: tf.types.experimental.PolymorphicFunction, *arrays: tf.Tensor) -> Any:
    """The function of the arrays, in the factored form where it holds."""
    # A tape that saw the inside would ask the compiled loop for the arrays of every turn.
    arrays = tuple(map(tf.stop_gradient, arrays))
    return tf.cond(fits, lambda: function(*arrays, factored=True), lambda: function(*arrays, factored=False))


@tf.function(jit_compile=True, autograph=False)
def forward_blocks(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, *, factored: bool) -> tf.Tensor:
    """The scores."""

    def of_sequence(pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        blocks, against = pair
        return tf.map_fn(lambda block: tf.linalg.matvec(hidden(block, against, factored)[0], w_v), blocks)

    blocks = in_blocks(factor(queries, factored), BLOCK, size(keys, -2) * size(keys, -1))
    scores = tf.map_fn(of_sequence, (blocks, merged(factor(keys, factored))), fn_output_signature=w_v.dtype)
    return out_of_blocks(scores, queries)


@tf.function(jit_compile=True, autograph=False)
def backward_blocks(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, *, factored: bool
) -> tuple[tf.Tensor, ...]:
    """The gradients of queries, keys and w_v."""
    dtype, hidden_size, sequences = w_v.dtype, size(w_v, 0), tf.reduce_prod(tf.shape(keys)[:-2])

    def of_sequence(arrays: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        given, blocks, against = arrays
        count = size(blocks, 0)

        def add(
            index: tf.Tensor, of_queries: tf.TensorArray, of_keys: tf.Tensor, of_w_v: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            tanh, slope = hidden(blocks[index], against, factored)
            rows = given[index][:, None]
            of_queries = of_queries.write(index, tf.squeeze(tf.matmul(rows, slope), axis=1))
            of_keys += tf.reduce_sum(given[index][:, :, None] * slope, axis=0)
            of_w_v += tf.reduce_sum(tf.matmul(rows, tanh), axis=(0, 1))
            return index + 1, of_queries, of_keys, of_w_v

        of_queries = tf.TensorArray(dtype, size=count)
        start = (0, of_queries, tf.zeros_like(against), tf.zeros((hidden_size,), dtype))
        _, of_queries, of_keys, of_w_v = tf.while_loop(lambda index, *_: index < count, add, start)
        return of_queries.stack(), of_keys, of_w_v

    of_query = size(keys, -2) * size(keys, -1)
    arrays = (
        in_blocks(upstream, BLOCK, of_query),
        in_blocks(factor(queries, factored), BLOCK, of_query),
        merged(factor(keys, factored)),
    )
    of_queries, of_keys, of_w_v = tf.map_fn(of_sequence, arrays, fn_output_signature=(dtype, dtype, dtype))
    of_queries, of_keys = out_of_blocks(of_queries, queries), tf.reshape(of_keys[:sequences], tf.shape(keys))
    return w_v * of_queries, w_v * of_keys, tf.reduce_sum(of_w_v, axis=0)


def factor(array: tf.Tensor, factored: bool) -> tf.Tensor:
    """What a block is made of: e^(-2x), or x itself."""
    return tf.exp(-2.0 * array) if factored else array


def hidden(block: tf.Tensor, against: tf.Tensor, factored: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """tanh(q + k) and its slope, (rows, keys, hidden_size), from the factors of some queries and of all keys."""
    if factored:
        reciprocal = 1.0 / (1.0 + block[:, None] * against)
        return 2.0 * reciprocal - 1.0, 4.0 * reciprocal * (1.0 - reciprocal)
    tanh = tf.tanh(block[:, None] + against)
    return tanh, 1.0 - tanh * tanh


def merged(array: tf.Tensor) -> tf.Tensor:
    """The array with one axis for sequences and their heads, (sequences, rows, features), and one sequence at least."""
    shape = tf.shape(array)
    sequences = tf.reduce_prod(shape[:-2])
    array = tf.reshape(array, tf.concat([[sequences], shape[-2:]], axis=0))
    # XLA compiles the body of a loop that never turns, and finds nothing there to take the first entry of.
    return tf.pad(array, [[0, tf.cast(tf.equal(sequences, 0), tf.int32)], [0, 0], [0, 0]])


def in_blocks(array: tf.Tensor, most: int, of_query: int | tf.Tensor) -> tf.Tensor:
    """Something of each query as (sequences, blocks, rows, features), with rows of 0 at the end of the last block.

    A block has at most that many elements, and a query so many of them.
    """
    array = merged(array)
    sequences, queries, features = tf.unstack(tf.shape(array))
    rows = tf.clip_by_value(most // tf.maximum(of_query, 1), 1, tf.maximum(queries, 1))
    blocks = tf.maximum((queries + rows - 1) // rows, 1)
    padded = tf.pad(array, [[0, 0], [0, blocks * rows - queries], [0, 0]])
    return tf.reshape(padded, (sequences, blocks, rows, features))


def out_of_blocks(array: tf.Tensor, queries: tf.Tensor) -> tf.Tensor:
    """The array with the axes of queries but the last, of one that stands in blocks."""
    _, blocks, rows, features = tf.unstack(tf.shape(array))
    sequences = tf.reduce_prod(tf.shape(queries)[:-2])
    whole = tf.reshape(array, (-1, blocks * rows, features))[:sequences, : size(queries, -2)]
    return tf.reshape(whole, tf.concat([tf.shape(queries)[:-1], [features]], axis=0))


# ------------------------------------------------------------------------------------------------ inner products


def below_limit(*arrays: tf.Tensor) -> tf.Tensor:
    """Whether all is finite that is made of these arrays; False where one holds a NaN."""
    return tf.reduce_all([tf.nn.l2_loss(array) <= LIMIT[array.dtype] for array in arrays])


def dot_blocks(
    queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None, scale: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The context, and each query's highest score and total of exponentials."""
    outputs = (keys.dtype,) * 3
    hiding, which = hidden_by(mask, queries, keys)

    def of_sequence(arrays: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        blocks, own_keys, own_values, shown = arrays

        def of_block(pair: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            index, block = pair
            scores = tf.matmul(block * scale, own_keys, transpose_b=True) + hiding(shown, index)
            highest = tf.reduce_max(scores, axis=-1, keepdims=True)
            highest = tf.where(tf.math.is_finite(highest), highest, 0.0)
            exponentials = tf.exp(scores - highest)
            total = tf.reduce_sum(exponentials, axis=-1, keepdims=True)
            total = tf.where(tf.not_equal(total, 0.0), total, 1.0)
            return tf.matmul(exponentials, own_values) / total, highest, total

        return tf.map_fn(of_block, (tf.range(size(blocks, 0)), blocks), fn_output_signature=outputs)

    arrays = in_blocks(queries, DOT_BLOCK, size(keys, -2)), merged(keys), merged(values), which
    found = tf.map_fn(of_sequence, arrays, fn_output_signature=outputs)
    context, highest, total = (out_of_blocks(array, queries) for array in found)
    return context, highest, total


def dot_gradients(
    upstream: tf.Tensor,
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None,
    scale: float,
    highest: tf.Tensor,
    total: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    """The gradients of queries, keys and values."""
    dtype, sequences = keys.dtype, tf.reduce_prod(tf.shape(keys)[:-2])
    hiding, which = hidden_by(mask, queries, keys)

    def of_sequence(arrays: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        blocks, given, highest, inverse, own_keys, own_values, shown = arrays
        count = size(blocks, 0)

        def add(
            index: tf.Tensor, of_queries: tf.TensorArray, of_keys: tf.Tensor, of_values: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            block, above = blocks[index] * scale, given[index] * inverse[index]
            scores = tf.matmul(block, own_keys, transpose_b=True) + hiding(shown, index)
            exponentials = tf.exp(scores - highest[index])
            slopes = tf.matmul(above, own_values, transpose_b=True)
            # Not above · context, which is rounded otherwise: a single open key has to get a gradient of 0.
            mean = tf.reduce_sum(exponentials * slopes, axis=-1, keepdims=True) * inverse[index]
            slopes = exponentials * (slopes - mean)
            of_queries = of_queries.write(index, tf.matmul(slopes, own_keys))
            of_keys += tf.matmul(slopes, block, transpose_a=True)
            of_values += tf.matmul(exponentials, above, transpose_a=True)
            return index + 1, of_queries, of_keys, of_values

        start = (0, tf.TensorArray(dtype, size=count), tf.zeros_like(own_keys), tf.zeros_like(own_values))
        _, of_queries, of_keys, of_values = tf.while_loop(lambda index, *_: index < count, add, start)
        return of_queries.stack(), of_keys, of_values

    blocks = (in_blocks(array, DOT_BLOCK, size(keys, -2)) for array in (queries, upstream, highest, 1.0 / total))
    arrays = (*blocks, merged(keys), merged(values), which)
    of_queries, of_keys, of_values = tf.map_fn(of_sequence, arrays, fn_output_signature=(dtype, dtype, dtype))
    of_keys, of_values = (
        tf.reshape(own[:sequences], tf.shape(array)) for own, array in ((of_keys, keys), (of_values, values))
    )
    return out_of_blocks(of_queries, queries) * scale, of_keys, of_values


def plain_dot(
    queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None, scale: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The context by the plain formula, and two arrays in place of what else dot_blocks gives."""
    scores = tf.matmul(queries, keys, transpose_b=True) * scale
    nothing = tf.zeros_like(queries[..., :1])
    return attention_pooling(scores, values, mask=mask)[0], nothing, nothing


def plain_gradients(
    upstream: tf.Tensor,
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None,
    scale: float,
) -> tuple[tf.Tensor, ...]:
    """The gradients of the plain formula."""
    arrays = queries, keys, values
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(arrays)
        context, *_ = plain_dot(*arrays, mask, scale)
    return tuple(tape.gradient(context, arrays, upstream))


def hidden_by(
    mask: tf.Tensor | None, queries: tf.Tensor, keys: tf.Tensor
) -> tuple[Callable[[tf.Tensor, tf.Tensor], tf.Tensor], tf.Tensor]:
    """What a block adds to its scores, -inf where the mask is closed, of the mask for a sequence; and which that is."""
    lead = tf.shape(queries)[:-2]
    own = tf.ones_like(lead) if mask is None else tf.shape(mask)[:-2]
    which = tf.reshape(tf.broadcast_to(tf.reshape(tf.range(tf.reduce_prod(own)), own), lead), (-1,))
    which = tf.pad(which, [[0, tf.cast(tf.equal(size(which, 0), 0), tf.int32)]])  # as merged does
    if mask is None:
        return lambda shown, index: tf.zeros((), keys.dtype), which
    one = mask.shape[-2] == 1
    if not one:
        rows = tf.concat([own, [size(queries, -2), tf.shape(mask)[-1]]], axis=0)
        mask = tf.broadcast_to(mask, rows)
    blocks = in_blocks(mask, DOT_BLOCK, 1 if one else size(keys, -2))

    def hiding(shown: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        return tf.where(blocks[shown, 0 if one else index], tf.zeros((), keys.dtype), -math.inf)

    return hiding, which
