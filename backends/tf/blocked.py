"""Additive scores in blocks, in TensorFlow: the numbers of the plain formula without its largest array."""

from __future__ import annotations

import math
import os
from typing import Any

import tensorflow as tf

from attention_core.errors import AttentionError, OptionError
from backends.tf.masking import precise, size

__all__ = ["takes_blocks", "force", "blocked_additive_score"]

LEAST = 2**24
"""The elements, batch · heads · queries · keys · hidden_size, from which on blocks win, though they are compiled."""

BLOCK = 2**19
"""The elements of one block: 2 MiB in float32, what a cache holds."""

BOUND = {tf.float32: 43.0, tf.float64: 354.0}
"""How large a query or a key may be before e^(-2q) e^(-2k) may be 0 · infinity: 4 · 43 < ln(largest / smallest)."""

PATHS = ("blocked", "plain")


def takes_blocks(queries: tf.Tensor, keys: tf.Tensor) -> bool:
    """Whether additive_score is computed in blocks: where there are LEAST elements or more, or as force says.

    batch · heads · queries · keys · hidden_size >= LEAST

    A size that is unknown while a graph is traced counts as small.
    """
    if forced is not None:
        return forced == "blocked"
    shape = (*queries.shape, keys.shape[-2])
    return None not in shape and math.prod(shape) >= LEAST


def force(path: str | None) -> None:
    """Take that path everywhere in this process: "blocked", "plain", or None for the choice of takes_blocks.

    The environment variable ATTENTION_PARITY_PATH says the same, read when this file is imported. A tf.function keeps
    the path with which it was traced.

    Raises: OptionError.
    """
    global forced
    if path is not None and path not in PATHS:
        raise OptionError(f"force: path is {path!r}, expected one of {', '.join(map(repr, PATHS))}, or None.")
    forced = path


def blocked_additive_score(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> tf.Tensor:
    """Score each projected query against each projected key, in blocks of query rows.

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

    def refused(*_: tf.Tensor) -> None:
        raise AttentionError(
            "additive_score: blocks have no second derivatives. Compute them by the plain formula: "
            'backends.tf.blocked.force("plain").'
        )

    return chosen_by(fits, backward_blocks, upstream, queries, keys, w_v), refused


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

    blocks = in_blocks(factor(queries, factored), keys)
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

    arrays = (
        in_blocks(upstream, keys),
        in_blocks(factor(queries, factored), keys),
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


def in_blocks(array: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Something of each query as (sequences, blocks, rows, features), with rows of 0 at the end of the last block."""
    array = merged(array)
    sequences, queries, features = tf.unstack(tf.shape(array))
    of_query = tf.maximum(size(keys, -2) * size(keys, -1), 1)
    rows = tf.clip_by_value(BLOCK // of_query, 1, tf.maximum(queries, 1))
    blocks = tf.maximum((queries + rows - 1) // rows, 1)
    padded = tf.pad(array, [[0, 0], [0, blocks * rows - queries], [0, 0]])
    return tf.reshape(padded, (sequences, blocks, rows, features))


def out_of_blocks(array: tf.Tensor, queries: tf.Tensor) -> tf.Tensor:
    """The array with the axes of queries but the last, of one that stands in blocks."""
    _, blocks, rows, features = tf.unstack(tf.shape(array))
    sequences = tf.reduce_prod(tf.shape(queries)[:-2])
    whole = tf.reshape(array, (-1, blocks * rows, features))[:sequences, : size(queries, -2)]
    return tf.reshape(whole, tf.concat([tf.shape(queries)[:-1], [features]], axis=0))


forced: str | None = None
force(os.environ.get("ATTENTION_PARITY_PATH"))
