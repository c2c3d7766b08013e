"""Scores in blocks, in TensorFlow: the numbers of the plain formulas without their largest arrays."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from attention_core.errors import AttentionError, check_path
from backends.tf.masking import open_keys, precise, size, softmax_over
from backends.tf.pooling import _attention_pooling

__all__ = ["use_blocks", "set_path", "blocked_additive_score", "blocked_additive_attention", "blocked_dot_attention"]

ADDITIVE_MIN_ELEMENTS = 2**24
"""The elements, batch · heads · queries · keys · hidden_size, from which on blocks win, though they are compiled."""

SEQUENCE_MIN_ELEMENTS = 2**20
"""The elements of one sequence, queries · keys · hidden_size, from which on a context may be computed on its own."""

DOT_MIN_ELEMENTS = 2**22
"""The elements of one head, queries · keys · features, from which on blocks win: no block has more than one head."""

BLOCK = 2**19
"""The elements of one block: 2 MiB in float32, what a cache holds."""

DOT_BLOCK = 2**21
"""The scores of one block: products of larger matrices gain more than a smaller cache."""

FORMS = ("sum", "exponentials", "tangents")
"""How a block computes tanh(q + k): of the sum itself, or from what `factor` makes of queries and of keys."""

KEY_BOUND = {tf.float32: 20.0, tf.float64: 160.0}
"""How large a key may be for e^(-2q) e^(-2k) beside any query, clipped to QUERY_BOUND."""

QUERY_BOUND = {tf.float32: 43.0, tf.float64: 354.0}
"""Where a query is clipped: tanh(q + k) has long been 1 there, and e^(-2q) is still finite."""

LIMIT = {tf.float32: 1e30, tf.float64: 1e300}
"""How large half the sum of the squares of an array may be, so that inner products with another are finite."""

STEPS_MIN_ELEMENTS = 2**12
"""The elements, batch · steps · keys · features, from which on a decoder's steps are one function in a graph."""

forced: str | None = None


def use_blocks(queries: tf.Tensor, keys: tf.Tensor, least: int) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `set_path` says.

    elements = batch · heads · queries · keys · features

    A size that is unknown while a graph is traced counts as small.
    """
    if forced is not None:
        return forced == "blocked"
    shape = (*queries.shape, keys.shape[-2])
    return None not in shape and math.prod(shape) >= least


def set_path(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or the one that suits them: None.

    For the whole process, which begins as the environment variable ATTENTION_PARITY_PATH says at the import. A
    tf.function keeps the path with which it was traced.

    Raises: OptionError.
    """
    global forced
    check_path(path)
    forced = path


set_path(os.environ.get("ATTENTION_PARITY_PATH") or None)


def blocked_additive_score(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> tf.Tensor:
    """Score each projected query against each projected key by a weighted tanh of their sum, block by block.

    scores[i, j] = sum over h of w_v[h] t[i, j, h];  t = tanh(queries[i, h] + keys[j, h])

    t is taken from functions of the queries and of the keys alone, so that each of its (queries, keys, hidden_size)
    elements costs a product, sums and a quotient. `form_of` chooses between

    t = (tanh q + tanh k) / (1 + tanh q tanh k)   where all |k| <= 1: accurate at every magnitude of q + k
    t = 2 / (1 + e^(-2q) e^(-2k)) - 1             with an absolute error of eps, where the largest |t| are not small
    t = tanh(q + k)                               else: keys that are large, nearly equal, infinite or NaN

    The backward computes each block again:

    dqueries[i, h] = sum over j of g[i, j] w_v[h] (1 - t[i, j, h]²);  dkeys[j, h] = sum over i of the same
    dw_v[h] = sum over i and j of g[i, j] t[i, j, h]

    XLA compiles both for each set of shapes, so that a block is computed in one pass. Half types are computed in
    float32.

    Shapes: as additive_score. Second derivatives raise an AttentionError: force("plain") has them.
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
    force("plain") apart.
    """
    form = form_of(*(tf.stop_gradient(precise(tf.convert_to_tensor(array))) for array in (keys, w_v)))
    score = Score(
        blocked_additive_score,
        lambda *arrays: chosen_by(form, scores_of, *arrays),
        lambda *arrays: chosen_by(form, gradients_of, *arrays),
    )
    return attended(score, True, values, mask, queries, keys, w_v)


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

    # By Cauchy and Schwarz, no score is larger.
    dtype = precise(tf.convert_to_tensor(queries)).dtype
    finite = abs(scale) * 2 * LIMIT[dtype] <= dtype.max
    score = Score(
        lambda queries, keys: tf.matmul(queries, keys, transpose_b=True) * scale,
        lambda rows, keys: tf.matmul(rows * scale, keys, transpose_b=True),
        lambda slopes, rows, keys: (
            tf.matmul(slopes, keys) * scale,
            tf.matmul(slopes, rows * scale, transpose_a=True),
        ),
    )
    return attended(score, finite, values, mask, queries, keys)


@tf.custom_gradient
def with_backward(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor) -> tuple[tf.Tensor, Any]:
    """The scores, and the function that gives their gradients."""
    # A tape that saw the inside would ask the compiled loop for the arrays of every turn.
    inside = tuple(map(tf.stop_gradient, (queries, keys, w_v)))
    form = form_of(*inside[1:])

    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
        found = only_once(upstream, queries, keys, w_v, form)
        for gradient, array in zip(found, (queries, keys, w_v), strict=True):
            gradient.set_shape(array.shape)
        return found

    return chosen_by(form, forward_blocks, *inside), backward


@tf.custom_gradient
def only_once(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, form: tf.Tensor
) -> tuple[tuple[tf.Tensor, ...], Any]:
    """The gradients, which have none themselves."""
    return chosen_by(form, backward_blocks, *map(tf.stop_gradient, (upstream, queries, keys, w_v))), refused


def refused(*_: tf.Tensor) -> None:
    """Refuse second derivatives."""
    raise AttentionError(
        'blocks have no second derivatives. Compute them by the plain formula: backends.tf.blocked.set_path("plain").'
    )


@tf.function(jit_compile=True, autograph=False)
def form_of(keys: tf.Tensor, w_v: tf.Tensor) -> tf.Tensor:
    """Which of FORMS, by its index, is accurate for these keys, whatever the queries are.

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
    form = tf.where(tangents, FORMS.index("tangents"), tf.where(exponentials, FORMS.index("exponentials"), 0))
    # An infinite weight tells a tanh that is rounded to 0 from one that is tiny.
    return tf.where(tf.math.is_finite(total), form, 0)


def chosen_by(form: tf.Tensor, function: Callable[..., Any], *arguments: Any) -> Any:
    """The function of the arguments, in that form."""
    return tf.switch_case(form, [partial(function, *arguments, form=name) for name in FORMS])


@tf.function(jit_compile=True, autograph=False)
def forward_blocks(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, *, form: str) -> tf.Tensor:
    """The scores."""

    def of_sequence(pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        return sequence_scores(*pair, w_v, form=form)

    scores = tf.map_fn(of_sequence, (merged(queries), merged(keys)), fn_output_signature=w_v.dtype)
    return unmerged(scores, queries)


@tf.function(jit_compile=True, autograph=False)
def backward_blocks(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, *, form: str
) -> tuple[tf.Tensor, ...]:
    """The gradients of queries, keys and w_v."""

    def of_sequence(arrays: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        given, own_queries, own_keys = arrays
        return sequence_gradients(given, own_queries, own_keys, w_v, form=form)

    arrays = tuple(map(merged, (upstream, queries, keys)))
    of_queries, of_keys, of_w_v = tf.map_fn(of_sequence, arrays, fn_output_signature=(w_v.dtype,) * 3)
    return unmerged(of_queries, queries), unmerged(of_keys, keys), tf.reduce_sum(of_w_v, axis=0)


def sequence_scores(queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, *, form: str) -> tf.Tensor:
    """The scores of one sequence, (queries, keys)."""
    blocks = in_blocks(factor(queries, form), BLOCK, size(keys, 0) * size(keys, 1))[0]
    factors = factor(keys, form)
    scores = tf.map_fn(lambda block: tf.linalg.matvec(hidden(block[:, None], factors, form), w_v), blocks)
    return out_of_blocks(scores[None], queries)


def sequence_gradients(
    upstream: tf.Tensor, queries: tf.Tensor, keys: tf.Tensor, w_v: tf.Tensor, *, form: str
) -> tuple[tf.Tensor, ...]:
    """The gradients of queries, keys and w_v of one sequence."""
    of_query = 2 * size(keys, 0) * size(keys, 1)  # the tanh and its slope
    blocks, given = (in_blocks(array, BLOCK, of_query)[0] for array in (factor(queries, form), upstream))
    factors = factor(keys, form)
    count = size(blocks, 0)

    def add(
        index: tf.Tensor, of_queries: tf.TensorArray, of_keys: tf.Tensor, of_w_v: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        tanh = hidden(blocks[index][:, None], factors, form)
        slope = w_v * (1.0 - tanh * tanh)
        rows = given[index][:, None]
        of_queries = of_queries.write(index, tf.squeeze(tf.matmul(rows, slope), axis=1))
        terms = given[index][:, :, None] * slope
        if form == "sum":  # an infinite weight makes NaN of the rows at the end of the last block
            inside = index * size(rows, 0) + tf.range(size(rows, 0)) < size(queries, 0)
            terms = tf.where(inside[:, None, None], terms, 0.0)
        of_keys += tf.reduce_sum(terms, axis=0)
        of_w_v += tf.reduce_sum(tf.matmul(rows, tanh), axis=(0, 1))
        return index + 1, of_queries, of_keys, of_w_v

    start = (0, tf.TensorArray(w_v.dtype, size=count), tf.zeros_like(keys), tf.zeros_like(w_v))
    _, of_queries, of_keys, of_w_v = tf.while_loop(lambda index, *_: index < count, add, start)
    return out_of_blocks(of_queries.stack()[None], queries), of_keys, of_w_v


scores_of = tf.function(sequence_scores, jit_compile=True, autograph=False)
gradients_of = tf.function(sequence_gradients, jit_compile=True, autograph=False)


def factor(array: tf.Tensor, form: str) -> tf.Tensor:
    """What that form makes of some queries, or of keys within their bound: e^(-2x), tanh x, or x itself."""
    if form == "exponentials":
        bound = QUERY_BOUND[array.dtype]
        return tf.exp(-2.0 * tf.maximum(tf.minimum(array, bound), -bound))  # which keep a NaN
    return tf.tanh(array) if form == "tangents" else array


def hidden(queries: tf.Tensor, keys: tf.Tensor, form: str) -> tf.Tensor:
    """Give tanh(q + k) of what `factor` makes of queries, (rows, 1, hidden_size), and of keys, (keys, hidden_size)."""
    if form == "exponentials":
        return 2.0 / (1.0 + queries * keys) - 1.0
    if form == "tangents":
        return (queries + keys) / (1.0 + queries * keys)
    return tf.tanh(queries + keys)


def merged(array: tf.Tensor) -> tf.Tensor:
    """The array with one axis for sequences and their heads, (sequences, rows, features), and one sequence at least."""
    lead, (rows, features) = math.prod(sizes(array)[:-2]), sizes(array)[-2:]
    array = tf.reshape(array, (lead, rows, features))
    # XLA compiles the body of a loop that never turns, and finds nothing there to take the first entry of.
    none = int(lead == 0) if isinstance(lead, int) else tf.cast(tf.equal(lead, 0), tf.int32)
    return tf.pad(array, [[0, none], [0, 0], [0, 0]])


def in_blocks(array: tf.Tensor, most: int, of_query: int | tf.Tensor, fill: float = 0.0) -> tf.Tensor:
    """Something of each query as (sequences, blocks, rows, features), with rows of fill at the end of the last block.

    A block has at most that many elements, and a query so many of them.
    """
    array = merged(array)
    sequences, queries, features = sizes(array)
    # Sizes that are known make less to trace than those that have to be worked out.
    known = isinstance(queries, int) and isinstance(of_query, int)
    lower, higher = (min, max) if known else (tf.minimum, tf.maximum)
    rows = higher(lower(most // higher(of_query, 1), queries), 1)
    blocks = higher((queries + rows - 1) // rows, 1)
    padding = [[0, 0], [0, blocks * rows - queries], [0, 0]]
    padded = tf.pad(array, padding, constant_values=tf.cast(fill, array.dtype))
    return tf.reshape(padded, (sequences, blocks, rows, features))


def out_of_blocks(array: tf.Tensor, queries: tf.Tensor) -> tf.Tensor:
    """The array with the axes of queries but the last, of one that stands in blocks."""
    sequences, blocks, rows, features = sizes(array)
    return unmerged(tf.reshape(array, (sequences, blocks * rows, features))[:, : size(queries, -2)], queries)


def unmerged(array: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """The array with the axes before rows and features that `like` has, of one that is merged."""
    lead = sizes(like)[:-2]
    return tf.reshape(array[: math.prod(lead)], lead + sizes(array)[1:])


def sizes(array: tf.Tensor) -> list[int | tf.Tensor]:
    """The size of each axis, as `size` gives it."""
    return [size(array, axis) for axis in range(array.shape.rank)]


# ------------------------------------------------------------------------------------------------ the context alone


class Score(NamedTuple):
    """A score: of whole arrays; of some queries with all keys of one sequence; and the gradients of these.

    plain(queries, keys, *parameters) and rows(queries, keys, *parameters) give scores, and gradients(of_scores,
    queries, keys, *parameters) what belongs to queries, keys and each parameter.
    """

    plain: Callable[..., tf.Tensor]
    rows: Callable[..., tf.Tensor]
    gradients: Callable[..., tuple[tf.Tensor, ...]]


def attended(
    score: Score, fits: bool | tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None, *arrays: tf.Tensor
) -> tf.Tensor:
    """The context alone, of queries, keys and parameters: in blocks where that fits, and all is below LIMIT."""

    @tf.custom_gradient
    def with_gradients(*arrays: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """The context, and the function that gives the gradients."""
        inside = tuple(map(tf.stop_gradient, arrays))  # a tape that saw the inside would keep every block
        small = tf.logical_and(below_limit(*inside), fits)
        found = tf.cond(small, lambda: by_blocks(score, mask, *inside), lambda: by_plain(score, mask, *inside))

        @tf.custom_gradient
        def gradients(upstream: tf.Tensor, *_: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
            """The gradients, which have none themselves."""
            given = tf.stop_gradient(upstream)
            of_arrays = tf.cond(
                tf.logical_and(small, below_limit(given)),
                lambda: block_gradients(score, mask, given, *found[1:], *inside),
                lambda: plain_gradients(score, mask, given, *inside),
            )
            for gradient, array in zip(of_arrays, arrays, strict=True):
                gradient.set_shape(array.shape)
            return of_arrays, refused

        return found[0], lambda upstream: gradients(upstream, *arrays)

    queries = arrays[0]
    # A variable would be an argument that tf.custom_gradient does not expect.
    context = with_gradients(*(precise(tf.convert_to_tensor(array)) for array in (values, *arrays)))
    context.set_shape([*queries.shape[:-1], values.shape[-1]])
    return tf.cast(context, queries.dtype)


def below_limit(*arrays: tf.Tensor) -> tf.Tensor:
    """Whether all is finite that is made of these arrays; False where one holds a NaN."""
    return tf.reduce_all([tf.nn.l2_loss(array) <= LIMIT[array.dtype] for array in arrays])


def by_blocks(
    score: Score,
    mask: tf.Tensor | None,
    values: tf.Tensor,
    queries: tf.Tensor,
    keys: tf.Tensor,
    *parameters: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The context, and each query's highest score and total of exponentials."""
    outputs = (keys.dtype,) * 3
    hiding, which = hidden_by(mask, queries, keys)

    def of_sequence(arrays: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        blocks, own_keys, own_values, shown = arrays

        def of_block(pair: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            index, block = pair
            scores = score.rows(block, own_keys, *parameters) + hiding(shown, index)
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


def block_gradients(
    score: Score,
    mask: tf.Tensor | None,
    upstream: tf.Tensor,
    highest: tf.Tensor,
    total: tf.Tensor,
    values: tf.Tensor,
    queries: tf.Tensor,
    keys: tf.Tensor,
    *parameters: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    """The gradients of values, queries, keys and parameters."""
    outputs = (keys.dtype,) * (3 + len(parameters))
    hiding, which = hidden_by(mask, queries, keys)

    def of_sequence(arrays: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        blocks, given, highest, inverse, own_keys, own_values, shown = arrays
        count = size(blocks, 0)

        def add(index: tf.Tensor, of_queries: tf.TensorArray, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            above = given[index] * inverse[index]
            scores = score.rows(blocks[index], own_keys, *parameters) + hiding(shown, index)
            exponentials = tf.exp(scores - highest[index])
            slopes = tf.matmul(above, own_values, transpose_b=True)
            # Not above · context, which is rounded otherwise: a single open key has to get a gradient of 0.
            mean = tf.reduce_sum(exponentials * slopes, axis=-1, keepdims=True) * inverse[index]
            slopes = exponentials * (slopes - mean)
            of_block, *others = score.gradients(slopes, blocks[index], own_keys, *parameters)
            found = tf.matmul(exponentials, above, transpose_a=True), *others
            for own, start in zip(found, sums, strict=True):
                own.set_shape(start.shape)  # what was traced for unknown sizes serves for known ones, too
            return index + 1, of_queries.write(index, of_block), *map(tf.add, sums, found)

        sums = map(tf.zeros_like, (own_values, own_keys, *parameters))
        start = 0, tf.TensorArray(keys.dtype, size=count), *sums
        _, of_queries, *sums = tf.while_loop(lambda index, *_: index < count, add, start)
        return of_queries.stack(), *sums

    # The rows at the end of the last block have an exponential of 0, whatever their score.
    rows = ((queries, 0.0), (upstream, 0.0), (highest, math.inf), (1.0 / total, 0.0))
    blocks = (in_blocks(array, DOT_BLOCK, size(keys, -2), fill) for array, fill in rows)
    arrays = (*blocks, merged(keys), merged(values), which)
    of_queries, of_values, of_keys, *others = tf.map_fn(of_sequence, arrays, fn_output_signature=outputs)
    return (
        unmerged(of_values, values),
        out_of_blocks(of_queries, queries),
        unmerged(of_keys, keys),
        *(tf.reduce_sum(own, axis=0) for own in others),
    )


def by_plain(
    score: Score,
    mask: tf.Tensor | None,
    values: tf.Tensor,
    queries: tf.Tensor,
    keys: tf.Tensor,
    *parameters: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The context by the plain formula, and two arrays in place of what else by_blocks gives."""
    scores, nothing = score.plain(queries, keys, *parameters), tf.zeros_like(queries[..., :1])
    return _attention_pooling(scores, values, mask, None)[0], nothing, nothing


def plain_gradients(
    score: Score, mask: tf.Tensor | None, upstream: tf.Tensor, *arrays: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """The gradients of the plain formula."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(arrays)
        context, *_ = by_plain(score, mask, *arrays)
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
    mask = tf.convert_to_tensor(mask)
    one = mask.shape[-2] == 1
    if not one:
        rows = tf.concat([own, [size(queries, -2), tf.shape(mask)[-1]]], axis=0)
        mask = tf.broadcast_to(mask, rows)
    blocks = in_blocks(mask, DOT_BLOCK, 1 if one else size(keys, -2))

    def hiding(shown: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        return tf.where(blocks[shown, 0 if one else index], tf.zeros((), keys.dtype), -math.inf)

    return hiding, which


# ------------------------------------------------------------------------------------------------ a decoder's steps


def takes_steps(
    tokens: tf.Tensor, state: tf.Tensor, keys: tf.Tensor, values: tf.Tensor, mask: tf.Tensor | None
) -> bool:
    """Whether a decoder's steps become one function: from STEPS_MIN_ELEMENTS elements on, or as `set_path` says.

    elements = batch · steps · keys · features of a key

    In float32 or float64, with one mask for all steps, and where every size is known. Unless forced only in a graph,
    which is traced for each set of sizes anyway, while an eager call would wait for a compiler; and on a CPU, where it
    was measured. Step by step everything else is computed.
    """
    shapes = (*tokens.shape, *keys.shape, *values.shape)
    if keys.dtype not in KEY_BOUND or state.dtype != keys.dtype or None in shapes or 0 in shapes:
        return False
    if mask is not None and mask.shape[1] != 1:
        return False
    if forced is not None:
        return forced == "blocked"
    if tf.executing_eagerly() or tf.config.list_logical_devices("GPU"):
        return False
    return math.prod((*keys.shape, tokens.shape[1])) >= STEPS_MIN_ELEMENTS


def blocked_steps(
    known: tf.Tensor,
    state: tf.Tensor,
    memory: tuple[tf.Tensor, tf.Tensor, tf.Tensor | None],
    W_q: tf.Tensor,
    w_v: tf.Tensor,
    layers: Sequence[tuple[tf.Tensor, ...]],
    dropout_mask: tf.Tensor | None,
    attention_dropout_mask: tf.Tensor | None,
) -> tuple[tf.Tensor, ...]:
    """Run the steps of Bahdanau's decoder: (outputs of the top layer, the last state, weights, contexts).

    With s the top output, k the keys, a = W x + b and u = U h of a layer of units, in parts r, z, n:

        e[j] = w_v · tanh(W_q s + k[j]);  p = softmax(e);  c = sum over j of p[j] values[j]
        r, z = σ(a + u);  m = u + b_hn;  n = tanh(a + r m);  h' = (1 - z) n + z h

    Backwards from step to step, with dh the gradient of h', those of a, and of u, are

        dn = (1 - z)(1 - n²) dh;  dr = r(1 - r) m dn;  dz = z(1 - z)(h - n) dh;  and in u r dn in place of dn

    which give the gradient of x by W, and of h by U and z dh. Of the context it goes to p, e, W_q s, and k:

        dp[j] = dc · values[j];  de = p (dp - p · dp);  d(W_q s) = w_v sum over j of de[j] tanh'[j], as dk[j] over steps

    The gradients of W, U, W_q and of the values are one product each, of all steps, after the loop. Products are
    TensorFlow's, which are faster than XLA's; XLA compiles what stands between them.

    Shapes: known (steps, batch, 3 hidden_size), layer 0's W x + b of the tokens; memory as (keys, values, mask); W_q
    (hidden_size, attention_size); layers as _of_steps gives them; dropout_mask (num_layers - 1, steps, batch,
    hidden_size), attention_dropout_mask (steps, batch, keys). What is returned has its steps first, but the state.
    Second derivatives raise an AttentionError: force("plain") has them.
    """
    keys, values, mask = memory
    count, steps = len(layers), known.shape[0]
    masks = [own for own in (dropout_mask, attention_dropout_mask) if own is not None]
    given = [known, state, keys, values, W_q, w_v, *(own for layer in layers for own in layer), *masks]

    def parted(arrays: Sequence[Any]) -> tuple[list[Any], list[Sequence[Any]], Any, Any]:
        """The six arrays in front, those of each layer, and both dropout masks."""
        own, rest = [arrays[6 + 4 * layer : 10 + 4 * layer] for layer in range(count)], list(arrays[6 + 4 * count :])
        between = None if dropout_mask is None else rest.pop(0)
        return list(arrays[:6]), own, between, None if attention_dropout_mask is None else rest.pop(0)

    @tf.custom_gradient
    def run(*arguments: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
        """The four arrays, and the function that gives the gradients."""
        # A tape that saw the inside would keep every step once more.
        (known, state, keys, values, W_q, w_v), layers, between, factors = parted([*map(tf.stop_gradient, arguments)])
        form = form_of(keys, w_v)
        against = chosen_by(form, factor, keys)
        reads = tf.TensorArray(known.dtype, steps, clear_after_read=False).unstack(known)

        def advance(t: tf.Tensor, states: list[tf.Tensor], *written: Any) -> tuple[Any, ...]:
            query = tf.matmul(states[-1], W_q)
            weights = chosen_by(form, step_weights, query, against, w_v, mask)
            x = tf.squeeze(tf.matmul((weights if factors is None else weights * factors[t])[:, None], values), axis=1)
            kept, after = [query, weights, x], []
            for layer, (W, b, U, b_hn) in enumerate(layers):
                h, rest = states[layer], b if layer else reads.read(t)
                a, u = tf.matmul(x, W), tf.matmul(h, U)
                x = gated(a, rest, u, b_hn, h)
                kept += [a, u, x]
                after.append(x)
                if between is not None and layer + 1 < count:
                    x = x * between[layer, t]
            return t + 1, after, *(array.write(t, own) for array, own in zip(written, kept, strict=True))

        arrays = [tf.TensorArray(known.dtype, steps, clear_after_read=False) for _ in range(3 + 3 * count)]
        _, last, *written = tf.while_loop(
            lambda t, *_: t < steps, advance, (0, tf.unstack(state), *arrays), maximum_iterations=steps
        )
        queries, inputs, recurrent = written[0], written[3::3], written[4::3]
        weights, contexts, *outputs = (array.stack() for array in [*written[1:3], *written[5::3]])

        def backward(*upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return steps_gradients(*upstream, *arguments)

        @tf.custom_gradient
        def steps_gradients(*given: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
            """The gradients, which have none themselves."""
            d_top, d_last, d_weights, d_contexts = map(tf.stop_gradient, given[:4])
            before = [tf.concat([state[layer][None], own[:-1]], axis=0) for layer, own in enumerate(outputs)]
            turned = [(tf.transpose(W), tf.transpose(U)) for W, _, U, _ in layers]
            W_q_turned, follow = tf.transpose(W_q), [weights, d_top, d_weights, d_contexts, *before]
            given_back = [tf.TensorArray(own.dtype, steps).unstack(own) for own in follow]

            def retreat(
                back: tf.Tensor, dh: list[tf.Tensor], d_keys: tf.Tensor, d_w_v: tf.Tensor, *written: Any
            ) -> tuple[Any, ...]:
                t = steps - 1 - back
                p, d_top, d_p, d_context, *states = (array.read(t) for array in given_back)
                dh = [*dh[:-1], dh[-1] + d_top]
                found: list[tf.Tensor] = []
                for layer in reversed(range(count)):
                    W_turned, U_turned = turned[layer]
                    _, b, _, b_hn = layers[layer]
                    a, u, rest = inputs[layer].read(t), recurrent[layer].read(t), b if layer else reads.read(t)
                    d_a, d_u, dh[layer] = gated_gradients(dh[layer], a, rest, u, b_hn, states[layer])
                    dh[layer] += tf.matmul(d_u, U_turned)
                    dx = tf.matmul(d_a, W_turned)
                    found = [d_a, d_u, dx, *found]
                    if layer:
                        dh[layer - 1] += dx if between is None else dx * between[layer - 1, t]
                dx += d_context
                found[2] = dx
                slopes = tf.squeeze(tf.matmul(values, dx[..., None]), axis=-1)
                d_p += slopes if factors is None else slopes * factors[t]
                dq, d_keys, d_w_v = chosen_by(
                    form, step_gradients, d_p, p, queries.read(t), against, w_v, d_keys, d_w_v
                )
                dh[-1] += tf.matmul(dq, W_q_turned)
                found = [array.write(t, own) for array, own in zip(written, [dq, slopes, *found], strict=True)]
                return back + 1, dh, d_keys, d_w_v, *found

            arrays = [tf.TensorArray(known.dtype, steps) for _ in range(2 + 3 * count)]
            start = (0, tf.unstack(d_last), tf.zeros_like(keys), tf.zeros_like(w_v), *arrays)
            _, d_state, d_keys, d_w_v, *written = tf.while_loop(
                lambda back, *_: back < steps, retreat, start, maximum_iterations=steps
            )
            d_queries, slopes, *rest = (array.stack() for array in written)
            d_layers = []
            for layer in range(count):
                d_a, d_u, _ = rest[3 * layer : 3 * layer + 3]
                x = outputs[layer - 1] if layer else contexts
                if layer and between is not None:
                    x = x * between[layer - 1]
                of_b_hn = tf.split(tf.reduce_sum(d_u, axis=(0, 1)), 3)[2]
                # Layer 0's b stands in known.
                d_b = tf.reduce_sum(d_a, axis=(0, 1)) if layer else tf.zeros_like(layers[0][1])
                d_layers += [product(x, d_a), d_b, product(before[layer], d_u), of_b_hn]
            weighted = weights if factors is None else weights * factors
            d_values = tf.matmul(tf.transpose(weighted, (1, 2, 0)), tf.transpose(rest[2], (1, 0, 2)))
            d_masks = [] if between is None else [tf.stack([rest[3 * n + 5] * outputs[n] for n in range(count - 1)])]
            d_masks += [] if factors is None else [slopes * weights]
            of_parameters = product(before[-1], d_queries), d_w_v, *d_layers, *d_masks
            return (rest[0], tf.stack(d_state), d_keys, d_values, *of_parameters), steps_refused

        return (outputs[-1], tf.stack(last), weights, contexts), backward

    found: tuple[tf.Tensor, ...] = run(*map(tf.convert_to_tensor, given))
    return found


@tf.function(jit_compile=True, autograph=False)
def step_weights(
    query: tf.Tensor, against: tf.Tensor, w_v: tf.Tensor, mask: tf.Tensor | None, *, form: str
) -> tf.Tensor:
    """The weights of one step, (batch, keys)."""
    tanh = hidden(factor(query, form)[:, None], against, form)
    scores = tf.linalg.matvec(tanh, w_v)[:, None]
    return tf.squeeze(softmax_over(scores, open_keys(scores, mask)), axis=1)


@tf.function(jit_compile=True, autograph=False)
def step_gradients(
    dp: tf.Tensor,
    p: tf.Tensor,
    query: tf.Tensor,
    against: tf.Tensor,
    w_v: tf.Tensor,
    d_keys: tf.Tensor,
    d_w_v: tf.Tensor,
    *,
    form: str,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gradient of a step's query, and those of keys and of w_v with this step's added."""
    tanh = hidden(factor(query, form)[:, None], against, form)
    slope = w_v * (1.0 - tanh * tanh)
    de = p * (dp - tf.reduce_sum(p * dp, axis=-1, keepdims=True))
    dq = tf.squeeze(tf.matmul(de[:, None], slope), axis=1)
    of_w_v = tf.linalg.matvec(tf.reshape(tanh, (-1, w_v.shape[0])), tf.reshape(de, (-1,)), transpose_a=True)
    return dq, d_keys + de[..., None] * slope, d_w_v + of_w_v


@tf.function(jit_compile=True, autograph=False)
def gated(a: tf.Tensor, rest: tf.Tensor, u: tf.Tensor, b_hn: tf.Tensor, h: tf.Tensor) -> tf.Tensor:
    """The output of a layer of units."""
    _, z, n, _ = gates(a, rest, u, b_hn)
    return (1 - z) * n + z * h


@tf.function(jit_compile=True, autograph=False)
def gated_gradients(
    dh: tf.Tensor, a: tf.Tensor, rest: tf.Tensor, u: tf.Tensor, b_hn: tf.Tensor, h: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """The gradients of a, of u, and of h beside u."""
    r, z, n, m = gates(a, rest, u, b_hn)
    dn = dh * (1 - z) * (1 - n * n)
    dr, dz = dn * m * r * (1 - r), dh * (h - n) * z * (1 - z)
    return tf.concat([dr, dz, dn], axis=-1), tf.concat([dr, dz, r * dn], axis=-1), dh * z


def gates(a: tf.Tensor, rest: tf.Tensor, u: tf.Tensor, b_hn: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The gates r, z, n and m of a layer of units."""
    input_r, input_z, input_n = tf.split(a + rest, 3, axis=-1)
    state_r, state_z, state_n = tf.split(u, 3, axis=-1)
    r, z, m = tf.sigmoid(input_r + state_r), tf.sigmoid(input_z + state_z), state_n + b_hn
    return r, z, tf.tanh(input_n + r * m), m


def product(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """The gradient of what x was multiplied by, of all steps and sequences."""
    rows, columns = tf.reshape(x, (-1, x.shape[-1])), tf.reshape(gradient, (-1, gradient.shape[-1]))
    return tf.matmul(rows, columns, transpose_a=True)


def steps_refused(*_: tf.Tensor) -> None:
    """Refuse second derivatives."""
    raise AttentionError(
        "BahdanauDecoder: no second derivative is known where its steps are one function. Step by step it has all: "
        'call backends.tf.blocked.set_path("plain") before it is called.'
    )
