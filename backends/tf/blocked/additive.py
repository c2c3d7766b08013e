"""Additive scores in TensorFlow without the (batch, queries, keys, hidden_size) array, and their context alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from backends.tf import kernels
from backends.tf.attention import Answer, Form
from backends.tf.blocked.blocks import (
    Score,
    as_sequences,
    blocked_context,
    in_blocks,
    map_blocks,
    out_of_blocks,
    refuse,
    repeat,
    with_lead_of,
    xla_function,
)
from backends.tf.masking import precise, size
from backends.tf.memory import Memory, in_heads

__all__ = ["blocked_additive_score", "blocked_additive_attention"]

ADDITIVE_MIN_ELEMENTS = 2**24
"""The elements, batch · heads · queries · keys · hidden_size, from which on blocks win, though they are compiled."""

ADDITIVE_MIN_ELSEWHERE = 2**30
"""The same on other devices: an array of so many elements takes 4 GiB in float32."""

SEQUENCE_MIN_ELEMENTS = 2**20
"""The elements of one sequence, queries · keys · hidden_size, from which on a context may be computed alone."""

BLOCK = 2**19
"""The elements of one block: 2 MiB in float32, what fits in a cache."""

PART = 2**17
"""The elements of the keys that a block goes through: what stays in a cache beside it."""

VARIANTS = ("sum", "exponentials", "tangents")
"""How a block computes tanh(q + k): from the sum itself, or from a `factor` of queries and one of keys."""

KEY_BOUND = {tf.float32: 20.0, tf.float64: 160.0}
"""How large a key may be for e^(-2q) e^(-2k) beside any query, clipped to QUERY_BOUND."""

QUERY_BOUND = {tf.float32: 43.0, tf.float64: 354.0}
"""Where a query is clipped: tanh(q + k) has long been 1 there, and e^(-2q) is still finite."""


def serves_score(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> bool:
    """Whether to compute scores in blocks: from ADDITIVE_MIN_ELEMENTS elements on, or ADDITIVE_MIN_ELSEWHERE."""
    least = kernels.threshold(ADDITIVE_MIN_ELEMENTS)
    return kernels.use_blocks(queries, keys, least, ADDITIVE_MIN_ELSEWHERE) and not kernels.has_tangents(w_v)


@kernels.register("additive_score", serves_score)
def blocked_additive_score(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> tf.Tensor:
    """Score each projected query against each projected key by a weighted tanh of their sum, block by block.

    scores[i, j] = sum over h of w_v[h] t[i, j, h];  t = tanh(queries[i, h] + keys[j, h])

    t is taken from functions of the queries and of the keys alone, so that each of its (queries, keys, hidden_size)
    elements costs a product, sums and a quotient. `variant_of` chooses between

    t = (tanh q + tanh k) / (1 + tanh q tanh k)   where all |k| <= 1: accurate at every magnitude of q + k
    t = 2 / (1 + e^(-2q) e^(-2k)) - 1             with an absolute error of eps, where the largest |t| are not small
    t = tanh(q + k)                               else: keys that are large, nearly equal, infinite or NaN

    The backward computes each block again:

    dqueries[i, h] = sum over j of g[i, j] w_v[h] (1 - t[i, j, h]²);  dkeys[j, h] = sum over i of the same
    dw_v[h] = sum over i and j of g[i, j] t[i, j, h]

    XLA compiles both for each set of shapes, so that a block is computed in one pass. Half types are computed in
    float32.

    Shapes: as additive_score. Second derivatives raise an AttentionError: set_path("plain") has them.
    """
    # A variable would be an argument that tf.custom_gradient does not expect.
    arrays = [precise(tf.convert_to_tensor(array)) for array in (queries, keys, w_v)]
    scores = tf.cast(with_backward(*arrays), queries.dtype)
    scores.set_shape([*queries.shape[:-1], keys.shape[-2]])
    return scores


def blocked_additive_attention(
    queries: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None, w_v: tf.Tensor
) -> tf.Tensor:
    """Average the values by the softmax of additive scores, without keeping scores or weights.

    context = attention_pooling(additive_score(queries, keys, w_v), values, mask=mask), the context alone

    As blocked_dot_attention, with the scores of a block and their gradients as in blocked_additive_score: XLA compiles
    these alone, for one sequence. Where an array is beyond LIMIT, or a number is NaN, blocked_additive_score and
    attention_pooling are computed. Half types are computed in float32.

    Shapes: queries (batch, queries, hidden_size) and keys (batch, keys, hidden_size), both projected, w_v
    (hidden_size,); values, mask and the result as in blocked_dot_attention. Second derivatives raise an AttentionError,
    set_path("plain") apart.
    """
    variant = variant_of(*(tf.stop_gradient(precise(tf.convert_to_tensor(array))) for array in (keys, w_v)))
    score = Score(
        blocked_additive_score,
        lambda *arrays: call_variant(variant, scores_of, *arrays),
        lambda *arrays: call_variant(variant, gradients_of, *arrays),
    )
    return blocked_context(score, True, values, mask, queries, keys, w_v)


def serves_attention(
    form: Form, queries: tf.Tensor, memory: Memory, need_weights: bool, bias: tf.Tensor | None
) -> bool:
    """Whether to compute the context in blocks: as scores, and from SEQUENCE_MIN_ELEMENTS of one sequence on."""
    if form.w_v is None or need_weights or bias is not None:
        return False
    sequences = math.prod(n or 1 for n in queries.shape[:-2])
    least = kernels.threshold(max(ADDITIVE_MIN_ELEMENTS, sequences * SEQUENCE_MIN_ELEMENTS))
    # Of queries and keys it is the keys that are projected by now.
    if not kernels.use_blocks(memory.keys, queries, least, ADDITIVE_MIN_ELSEWHERE):
        return False
    W_q = form.W_q.variables if isinstance(form.W_q, keras.layers.Layer) else [form.W_q()] if form.W_q else []
    return not kernels.has_tangents(memory.values, form.w_v, *W_q)


@kernels.register("attention", serves_attention)
def attend(form: Form, queries: tf.Tensor, memory: Memory, need_weights: bool, bias: tf.Tensor | None) -> Answer:
    """Attend to a memory by the score of that form, for the context alone."""
    assert form.w_v is not None
    return blocked_additive_attention(form.project(queries), *in_heads(memory, queries), form.w_v), None


@tf.custom_gradient
def with_backward(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """Return the scores, and the function that computes their gradients."""
    # A tape that saw the inside would ask the compiled loop for the arrays of every turn.
    inside = tuple(map(tf.stop_gradient, (queries, keys, w_v)))
    variant = variant_of(*inside[1:])

    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
        gradients = only_once(upstream, queries, keys, w_v, variant)
        for gradient, array in zip(gradients, (queries, keys, w_v), strict=True):
            gradient.set_shape(array.shape)
        return gradients

    return call_variant(variant, forward_blocks, *inside), backward


@tf.custom_gradient
def only_once(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, variant: tf.Tensor
) -> tuple[tuple[tf.Tensor, ...], Any]:
    """Return the first derivatives, and refuse second ones."""
    return call_variant(variant, backward_blocks, *map(tf.stop_gradient, (upstream, queries, keys, w_v))), refuse


@xla_function
def variant_of(keys: tf.Tensor, w_v: tf.Tensor) -> tf.Tensor:
    """Return the index of the one of VARIANTS that is accurate for these keys, whatever the queries are.

    With spread[h] half the range of feature h in a sequence, some |q + k| of each query is at least that. The error of
    "tangents" is about eps |k|, that of "exponentials" eps, and either has to be small beside a tanh of that size, by
    the weights of the features. A feature whose keys are nearly equal, and cancel a query, is thus taken by the sum.
    """
    low, high = tf.reduce_min(keys, axis=-2), tf.reduce_max(keys, axis=-2)
    features = size(keys, -1)
    half_range = tf.reshape(0.5 * high - 0.5 * low, (-1, features))
    spread = tf.minimum(tf.reduce_max(half_range, axis=0), 1.0)
    largest = tf.reduce_max(tf.reshape(tf.maximum(tf.abs(low), tf.abs(high)), (-1, features)), axis=0)
    total = tf.reduce_sum(tf.abs(w_v))
    least = 4.0 * tf.reduce_sum(tf.abs(w_v) * spread)
    tangents = tf.reduce_all(largest <= 1.0) & (tf.reduce_sum(tf.abs(w_v) * largest) <= least)
    exponentials = tf.reduce_all(largest <= KEY_BOUND[keys.dtype]) & (total <= least)
    variant = tf.where(tangents, VARIANTS.index("tangents"), tf.where(exponentials, VARIANTS.index("exponentials"), 0))
    # Under an infinite weight, a tanh that is rounded to 0 differs from one that is tiny.
    return tf.where(tf.math.is_finite(total), variant, 0)


def call_variant(variant: tf.Tensor, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function with that variant."""
    by_sum, by_exponentials, by_tangents = (partial(function, *arguments, variant=name) for name in VARIANTS)
    # Not tf.switch_case: inside tf.vectorized_map it fails for functions that return several arrays.
    return tf.cond(tf.equal(variant, 0), by_sum, lambda: tf.cond(tf.equal(variant, 1), by_exponentials, by_tangents))


@xla_function
def forward_blocks(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, *, variant: str) -> tf.Tensor:
    """The scores."""

    def of_sequence(pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return sequence_scores(*pair, w_v, variant=variant)

    scores = tf.map_fn(of_sequence, (as_sequences(queries), as_sequences(keys)), fn_output_signature=w_v.dtype)
    return with_lead_of(scores, queries)


@xla_function
def backward_blocks(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, *, variant: str
) -> tuple[tf.Tensor, ...]:
    """The gradients of queries, keys and w_v."""

    def of_sequence(arrays: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        given, example_queries, example_keys = arrays
        return sequence_gradients(given, example_queries, example_keys, w_v, variant=variant)

    arrays = tuple(map(as_sequences, (upstream, queries, keys)))
    of_queries, of_keys, of_w_v = tf.map_fn(of_sequence, arrays, fn_output_signature=(w_v.dtype,) * 3)
    return with_lead_of(of_queries, queries), with_lead_of(of_keys, keys), tf.reduce_sum(of_w_v, axis=0)


def sequence_scores(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, *, variant: str) -> tf.Tensor:
    """The scores of one sequence, (queries, keys)."""
    parts = parts_of(factor(keys, variant))
    blocks = in_blocks(factor(queries, variant), BLOCK, size(parts, 1) * size(keys, 1))[0]

    def of_part(part: tf.Tensor) -> tf.Tensor:
        return map_blocks(lambda block: tf.linalg.matvec(tanh_of_sum(block[:, None], part, variant), w_v), blocks)

    scores = tf.transpose(map_blocks(of_part, parts), (1, 2, 0, 3))
    scores = tf.reshape(scores, (size(scores, 0), size(scores, 1), size(parts, 0) * size(parts, 1)))
    return out_of_blocks(scores[None, ..., : size(keys, 0)], queries)


def sequence_gradients(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, *, variant: str
) -> tuple[tf.Tensor, ...]:
    """The gradients of queries, keys and w_v of one sequence."""
    parts = parts_of(factor(keys, variant))
    given = in_blocks(tf.transpose(upstream), PART, size(keys, 1))[0]  # of all queries with each part
    count, width = size(parts, 0), size(parts, 1)

    def add(
        index: tf.Tensor, of_queries: tf.Tensor, of_keys: tf.TensorArray, of_w_v: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        inside = index * width + tf.range(width) < size(keys, 0)
        part = part_gradients(tf.transpose(given[index]), queries, parts[index], inside, w_v, variant=variant)
        return index + 1, of_queries + part[0], of_keys.write(index, part[1]), of_w_v + part[2]

    start = (0, tf.zeros_like(queries), tf.TensorArray(w_v.dtype, size=count), tf.zeros_like(w_v))
    _, of_queries, of_keys, of_w_v = repeat(add, count, start)
    return of_queries, out_of_blocks(of_keys.stack()[None], keys), of_w_v


def part_gradients(
    upstream: tf.Tensor, queries: tf.Tensor, factors: tf.Tensor, inside: tf.Tensor, w_v: tf.Tensor, *, variant: str
) -> tuple[tf.Tensor, ...]:
    """The gradients of queries, some keys and w_v of one sequence; inside is False for padding keys."""
    of_query = 2 * size(factors, 0) * size(factors, 1)  # the tanh and its slope
    blocks, given = (in_blocks(array, BLOCK, of_query)[0] for array in (factor(queries, variant), upstream))
    count = size(blocks, 0)

    def add(
        index: tf.Tensor, of_queries: tf.TensorArray, of_keys: tf.Tensor, of_w_v: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        tanh = tanh_of_sum(blocks[index][:, None], factors, variant)
        slope = w_v * (1.0 - tanh * tanh)
        rows = given[index][:, None]
        if variant == "sum":  # an infinite weight makes NaN of what fills the last block and the last part
            slope = tf.where(inside[:, None], slope, 0.0)
        of_queries = of_queries.write(index, tf.squeeze(tf.matmul(rows, slope), axis=1))
        terms = given[index][:, :, None] * slope
        if variant == "sum":
            there = index * size(rows, 0) + tf.range(size(rows, 0)) < size(queries, 0)
            terms = tf.where(there[:, None, None], terms, 0.0)
        of_keys += tf.reduce_sum(terms, axis=0)
        of_w_v += tf.reduce_sum(tf.matmul(rows, tanh), axis=(0, 1))
        return index + 1, of_queries, of_keys, of_w_v

    start = (0, tf.TensorArray(w_v.dtype, size=count), tf.zeros_like(factors), tf.zeros_like(w_v))
    _, of_queries, of_keys, of_w_v = repeat(add, count, start)
    return out_of_blocks(of_queries.stack()[None], queries), of_keys, of_w_v


def parts_of(factors: tf.Tensor) -> tf.Tensor:
    """Divide the keys of a sequence into parts, (parts, keys, hidden_size); zeros fill the last one."""
    return in_blocks(factors, PART, size(factors, 1))[0]


scores_of, gradients_of = xla_function(sequence_scores), xla_function(sequence_gradients)


def factor(array: tf.Tensor, variant: str) -> tf.Tensor:
    """Return what a variant reads of queries, or of keys within their bound: e^(-2x), tanh x, or x itself."""
    if variant == "exponentials":
        bound = QUERY_BOUND[array.dtype]
        return tf.exp(-2.0 * tf.maximum(tf.minimum(array, bound), -bound))  # which keep a NaN
    return tf.tanh(array) if variant == "tangents" else array


def tanh_of_sum(queries: tf.Tensor, keys: tf.Tensor, variant: str) -> tf.Tensor:
    """Return tanh(q + k) from the factors of queries, (rows, 1, hidden_size), and of keys, (keys, hidden_size)."""
    if variant == "exponentials":
        return 2.0 / (1.0 + queries * keys) - 1.0
    if variant == "tangents":
        return (queries + keys) / (1.0 + queries * keys)
    return tf.tanh(queries + keys)
