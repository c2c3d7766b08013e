"""Shared parts of the kernels in TensorFlow: blocks and rows of sequences, and the plain formula behind them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from attention_core.errors import AttentionError
from backends.tf.masking import open_to, precise, size
from backends.tf.pooling import _attention_pooling, for_each_head, heads_for_each_key

DOT_BLOCK = 2**21
"""The scores of one block: products of larger matrices gain more than a smaller cache."""

LIMIT = {tf.float32: 1e30, tf.float64: 1e300}
"""How large half the sum of the squares of an array may be, so that inner products with another are finite."""


WIDTHS = 4
"""The parts of a batch, of which each step takes some where sequences end, so that XLA compiles for few sizes."""


def refuse(*_: tf.Tensor) -> None:
    """Refuse second derivatives."""
    raise AttentionError(
        'blocks have no second derivatives. Compute them by the plain formula: backends.tf.kernels.set_path("plain").'
    )


def xla_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of tensors by XLA, and trace it for known sizes apart from unknown ones.

    TensorFlow calls what was traced for unknown sizes with known ones, too, and the loops of the former are longer.
    """
    known, unknown = (tf.function(function, jit_compile=True, autograph=False) for _ in range(2))

    @functools.wraps(function)
    def call(*arrays: tf.Tensor, **options: Any) -> Any:
        return (known if all(array.shape.is_fully_defined() for array in arrays) else unknown)(*arrays, **options)

    return call


def as_sequences(array: tf.Tensor) -> tf.Tensor:
    """Merge the axes before rows and features, those of batch and heads; without a sequence, add one of zeros."""
    lead, (rows, features) = math.prod(sizes(array)[:-2]), sizes(array)[-2:]
    array = tf.reshape(array, (lead, rows, features))
    # XLA compiles the body of a loop that never turns, and finds nothing there to take the first entry of.
    none = int(lead == 0) if isinstance(lead, int) else tf.cast(tf.equal(lead, 0), tf.int32)
    return tf.pad(array, [[0, none], [0, 0], [0, 0]])


def in_blocks(array: tf.Tensor, most: int, of_query: int | tf.Tensor, fill: float = 0.0) -> tf.Tensor:
    """Divide the rows of each sequence into blocks, (sequences, blocks, rows, features); fill ends the last block.

    A block has `most` elements at most, of which a row needs `of_query`.
    """
    array = as_sequences(array)
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
    """Undo `in_blocks`: the array with the axes of queries but the last."""
    sequences, blocks, rows, features = sizes(array)
    return with_lead_of(tf.reshape(array, (sequences, blocks * rows, features))[:, : size(queries, -2)], queries)


def with_lead_of(array: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Undo `as_sequences`: the array with the axes before rows and features that `like` has."""
    lead = sizes(like)[:-2]
    return tf.reshape(array[: math.prod(lead)], lead + sizes(array)[1:])


def map_blocks(function: Callable[[tf.Tensor], tf.Tensor], blocks: tf.Tensor) -> tf.Tensor:
    """Map a function over blocks; a single one without a loop, which compiles in a fraction of the time."""
    if blocks.shape[0] == 1:
        return function(blocks[0])[None]
    return tf.map_fn(function, blocks)


def repeat(turn: Callable[..., tuple[Any, ...]], count: int | tf.Tensor, start: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run `count` turns from start, (0, ...); a single one without a loop."""
    if isinstance(count, int) and count == 1:
        return turn(*start)
    return tf.while_loop(lambda index, *_: index < count, turn, start)


def sizes(array: tf.Tensor) -> list[int | tf.Tensor]:
    """Return the size of each axis, as `size` does."""
    return [size(array, axis) for axis in range(array.shape.rank)]


class Score(NamedTuple):
    """A score: of whole arrays; of some queries with all keys of one sequence; and the gradients of these.

    plain(queries, keys, *parameters) and rows(queries, keys, *parameters) return scores, and gradients(of_scores,
    queries, keys, *parameters) the gradients of queries, keys and each parameter.
    """

    plain: Callable[..., tf.Tensor]
    rows: Callable[..., tf.Tensor]
    gradients: Callable[..., tuple[tf.Tensor, ...]]


def blocked_context(
    score: Score,
    fits: bool | tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None,
    *arrays: tf.Tensor,
    bias: tf.Tensor | None = None,
) -> tf.Tensor:
    """Compute the context of queries, keys and parameters: in blocks if `fits` and all arrays are below LIMIT.

    A bias is added to the scores; what it hides by -inf is hidden by the mask.
    """
    mask, biases = open_to(mask, bias), tuple[tf.Tensor, ...]()
    if bias is not None:
        rows = 1 if bias.shape[-2] == 1 else size(arrays[0], -2)
        wide = tf.concat([tf.shape(bias)[:-2], [rows, size(arrays[1], -2)]], axis=0)
        biases = (tf.broadcast_to(tf.where(tf.equal(bias, -math.inf), tf.zeros_like(bias), bias), wide),)

    @tf.custom_gradient
    def with_gradients(*arrays: tf.Tensor) -> tuple[tf.Tensor, Any]:
        """Return the context, and the function that computes the gradients; a bias comes first, if there is one."""
        inside = tuple(map(tf.stop_gradient, arrays))  # a tape that saw the inside would keep every block
        small = tf.logical_and(below_limit(*inside), fits)
        given = inside if biases else (None, *inside)
        results = tf.cond(small, lambda: by_blocks(score, mask, *given), lambda: by_plain(score, mask, *given))

        @tf.custom_gradient
        def gradients(upstream: tf.Tensor, *_: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Any]:
            """Return the first derivatives, and refuse second ones."""
            above = tf.stop_gradient(upstream)
            of_arrays = tf.cond(
                tf.logical_and(small, below_limit(above)),
                lambda: block_gradients(score, mask, above, *results[1:], *given),
                lambda: plain_gradients(score, mask, above, *given),
            )
            for gradient, array in zip(of_arrays, arrays, strict=True):
                gradient.set_shape(array.shape)
            return of_arrays, refuse

        return results[0], lambda upstream: gradients(upstream, *arrays)

    queries = arrays[0]
    # A variable would be an argument that tf.custom_gradient does not expect.
    context = with_gradients(*(precise(tf.convert_to_tensor(array)) for array in (*biases, values, *arrays)))
    context.set_shape([*queries.shape[:-1], values.shape[-1]])
    return tf.cast(context, queries.dtype)


def below_limit(*arrays: tf.Tensor) -> tf.Tensor:
    """Whether inner products of these arrays are finite; False where one holds a NaN."""
    return tf.reduce_all([0.5 * tf.reduce_sum(tf.square(array)) <= LIMIT[array.dtype] for array in arrays])


def by_blocks(
    score: Score,
    mask: tf.Tensor | None,
    bias: tf.Tensor | None,
    values: tf.Tensor,
    queries: tf.Tensor,
    keys: tf.Tensor,
    *parameters: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the context, and each query's highest score and sum of exponentials."""
    outputs, all_keys, all_values = (keys.dtype,) * 3, as_sequences(keys), as_sequences(values)
    hiding, which = hidden_by(mask, queries, keys)
    adding, which_bias = added_by(bias, queries, keys)

    def of_sequence(arrays: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        blocks, of_keys, visible, added = arrays
        example_keys, example_values = all_keys[of_keys], all_values[of_keys]

        def of_block(pair: tuple[tf.Tensor, tf.Tensor]) -> tuple[tf.Tensor, ...]:
            index, block = pair
            scores = score.rows(block, example_keys, *parameters) + adding(added, index) + hiding(visible, index)
            highest = tf.reduce_max(scores, axis=-1, keepdims=True)
            highest = tf.where(tf.math.is_finite(highest), highest, 0.0)
            exponentials = tf.exp(scores - highest)
            total = tf.reduce_sum(exponentials, axis=-1, keepdims=True)
            total = tf.where(tf.not_equal(total, 0.0), total, 1.0)
            return tf.matmul(exponentials, example_values) / total, highest, total

        return tf.map_fn(of_block, (tf.range(size(blocks, 0)), blocks), fn_output_signature=outputs)

    arrays = in_blocks(queries, DOT_BLOCK, size(keys, -2)), key_index(queries, keys), which, which_bias
    results = tf.map_fn(of_sequence, arrays, fn_output_signature=outputs)
    context, highest, total = (out_of_blocks(array, queries) for array in results)
    return context, highest, total


def block_gradients(
    score: Score,
    mask: tf.Tensor | None,
    upstream: tf.Tensor,
    highest: tf.Tensor,
    total: tf.Tensor,
    bias: tf.Tensor | None,
    values: tf.Tensor,
    queries: tf.Tensor,
    keys: tf.Tensor,
    *parameters: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    """The gradients of a bias, if there is one, and of values, queries, keys and parameters."""
    hiding, which = hidden_by(mask, queries, keys)
    adding, which_bias = added_by(bias, queries, keys)
    narrow, all_keys, all_values = bias is not None and bias.shape[-2] == 1, as_sequences(keys), as_sequences(values)

    def of_sequence(arrays: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        """The gradients of a sequence; that of its bias comes first, (blocks or 1, rows or 1, keys)."""
        blocks, given, highest, inverse, of_keys, visible, added = arrays
        example_keys, example_values = all_keys[of_keys], all_values[of_keys]
        count = size(blocks, 0)

        def add(
            index: tf.Tensor, of_queries: tf.TensorArray, of_bias: tf.TensorArray, *sums: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            above = given[index] * inverse[index]
            scores = score.rows(blocks[index], example_keys, *parameters)
            scores += adding(added, index) + hiding(visible, index)
            exponentials = tf.exp(scores - highest[index])
            slopes = tf.matmul(above, example_values, transpose_b=True)
            # Not above · context, which is rounded otherwise: a single open key has to get a gradient of 0.
            mean = tf.reduce_sum(exponentials * slopes, axis=-1, keepdims=True) * inverse[index]
            slopes = exponentials * (slopes - mean)
            if bias is not None:
                of_bias = of_bias.write(index, tf.reduce_sum(slopes, axis=0, keepdims=True) if narrow else slopes)
            of_block, *others = score.gradients(slopes, blocks[index], example_keys, *parameters)
            parts = tf.matmul(exponentials, above, transpose_a=True), *others
            return index + 1, of_queries.write(index, of_block), of_bias, *map(tf.add, sums, parts)

        sums = map(tf.zeros_like, (example_values, example_keys, *parameters))
        start = 0, *(tf.TensorArray(keys.dtype, size=count) for _ in range(2)), *sums
        _, of_queries, of_bias, *totals = repeat(add, count, start)
        if bias is None:
            return of_queries.stack(), *totals
        blocks_of_bias = of_bias.stack()
        if narrow:
            blocks_of_bias = tf.reduce_sum(blocks_of_bias, axis=0, keepdims=True)
        return blocks_of_bias, of_queries.stack(), *totals

    # The rows at the end of the last block have an exponential of 0, whatever their score.
    rows = ((queries, 0.0), (upstream, 0.0), (highest, math.inf), (1.0 / total, 0.0))
    blocks = (in_blocks(array, DOT_BLOCK, size(keys, -2), fill) for array, fill in rows)
    arrays = (*blocks, key_index(queries, keys), which, which_bias)
    outputs = (keys.dtype,) * (3 + len(parameters))
    if bias is None:
        of_biases: tuple[tf.Tensor, ...] = ()
        of_queries, of_values, of_keys, *others = tf.map_fn(of_sequence, arrays, fn_output_signature=outputs)
    else:
        of_bias, of_queries, of_values, of_keys, *others = accumulate(of_sequence, arrays, bias)
        of_biases = (of_bias,)
    return (
        *of_biases,
        of_groups(of_values, values, queries),
        out_of_blocks(of_queries, queries),
        of_groups(of_keys, keys, queries),
        *(tf.reduce_sum(array, axis=0) for array in others),
    )


def by_plain(
    score: Score,
    mask: tf.Tensor | None,
    bias: tf.Tensor | None,
    values: tf.Tensor,
    queries: tf.Tensor,
    keys: tf.Tensor,
    *parameters: tf.Tensor,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the context by the plain formula, and two arrays in place of the other results of `by_blocks`."""
    keys, values = for_each_head(keys, queries), for_each_head(values, queries)
    scores, nothing = score.plain(queries, keys, *parameters), tf.zeros_like(queries[..., :1])
    scores = scores if bias is None else scores + bias
    return _attention_pooling(scores, values, mask, None)[0], nothing, nothing


def plain_gradients(
    score: Score, mask: tf.Tensor | None, upstream: tf.Tensor, *arrays: tf.Tensor | None
) -> tuple[tf.Tensor, ...]:
    """The gradients of the plain formula."""
    given = [array for array in arrays if array is not None]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(given)
        context, *_ = by_plain(score, mask, *arrays)
    return tuple(tape.gradient(context, given, upstream))


def hidden_by(
    mask: tf.Tensor | None, queries: tf.Tensor, keys: tf.Tensor
) -> tuple[Callable[[tf.Tensor, tf.Tensor], tf.Tensor], tf.Tensor]:
    """Return the function of what the mask adds to a block's scores, and the index of each sequence's mask."""
    which = shared_index(mask, queries)
    if mask is None:
        return lambda visible, index: tf.zeros((), keys.dtype), which
    mask = tf.convert_to_tensor(mask)
    one = mask.shape[-2] == 1
    if not one:
        rows = tf.concat([tf.shape(mask)[:-2], [size(queries, -2), tf.shape(mask)[-1]]], axis=0)
        mask = tf.broadcast_to(mask, rows)
    blocks = in_blocks(mask, DOT_BLOCK, 1 if one else size(keys, -2))

    def hiding(visible: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
        return tf.where(blocks[visible, 0 if one else index], tf.zeros((), keys.dtype), -math.inf)

    return hiding, which


def added_by(
    bias: tf.Tensor | None, queries: tf.Tensor, keys: tf.Tensor
) -> tuple[Callable[[tf.Tensor, tf.Tensor], tf.Tensor], tf.Tensor]:
    """Return the function of what the bias adds to a block's scores, and the index of each sequence's bias."""
    which = shared_index(bias, queries)
    if bias is None:
        return lambda added, index: tf.zeros((), keys.dtype), which
    blocks, one = bias_in_blocks(bias), bias.shape[-2] == 1
    return lambda added, index: blocks[added, 0 if one else index], which


def bias_in_blocks(bias: tf.Tensor) -> tf.Tensor:
    """A bias of all keys as (biases, blocks, rows, keys), one row of one block if it is the same for all queries."""
    return in_blocks(bias, DOT_BLOCK, 1 if bias.shape[-2] == 1 else size(bias, -1))


def key_index(queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
    """Return the index of the keys that each sequence and head reads: several heads may share them."""
    count = heads_for_each_key(queries, keys)
    count = max(count, 1) if isinstance(count, int) else tf.maximum(count, 1)
    return tf.range(size(as_sequences(queries), 0)) // count


def of_groups(array: tf.Tensor, keys: tf.Tensor, queries: tf.Tensor) -> tf.Tensor:
    """Sum an array of all sequences and heads over the heads that share keys, in the shape of keys."""
    count = heads_for_each_key(queries, keys)
    if isinstance(count, int) and count == 1:
        return with_lead_of(array, keys)
    batch, _, rows, features = sizes(keys)
    array = tf.reshape(with_lead_of(array, queries), (batch, size(keys, 1), count, rows, features))
    return tf.reduce_sum(array, axis=2)


def shared_index(shared: tf.Tensor | None, queries: tf.Tensor) -> tf.Tensor:
    """Return the index of the mask or bias that each sequence and head reads."""
    lead = tf.shape(queries)[:-2]
    of_shared = tf.ones_like(lead) if shared is None else tf.shape(shared)[:-2]
    which = tf.reshape(tf.broadcast_to(tf.reshape(tf.range(tf.reduce_prod(of_shared)), of_shared), lead), (-1,))
    return tf.pad(which, [[0, tf.cast(tf.equal(size(which, 0), 0), tf.int32)]])  # as as_sequences does


def accumulate(
    of_sequence: Callable[[tuple[tf.Tensor, ...]], tuple[tf.Tensor, ...]],
    arrays: tuple[tf.Tensor, ...],
    bias: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    """Map over sequences, and sum the first result over those with the same bias, whose index is the last array."""
    count, dtype = size(arrays[0], 0), bias.dtype

    def turn(number: tf.Tensor, total: tf.Tensor, *results: tf.TensorArray) -> tuple[Any, ...]:
        of_bias, *others = of_sequence(tuple(array[number] for array in arrays))
        total = tf.tensor_scatter_nd_add(total, [[arrays[-1][number]]], of_bias[None])
        return number + 1, total, *(array.write(number, one) for array, one in zip(results, others, strict=True))

    start = 0, tf.zeros_like(bias_in_blocks(bias)), *(tf.TensorArray(dtype, size=count) for _ in range(3))
    _, total, *results = repeat(turn, count, start)
    return out_of_blocks(total, bias), *(array.stack() for array in results)


class Rows:
    """The sequences that take each step: those that have not ended, the longest first; without lens, all.

    An array of all steps, (rows, features), holds the rows of a step behind those of the step before. Step t has the
    first running[t] sequences, of which there are no more than in the step before. XLA compiles for each number of
    rows, so that it is a multiple of the batch by WIDTHS: some sequences take steps of which nothing is read.
    """

    def __init__(self, shape: tf.TensorShape, lens: tf.Tensor | None) -> None:
        """Order the sequences of that shape, (batch, steps), by the number of steps that each takes."""
        self.batch, self.steps = shape
        self.ragged = lens is not None
        if lens is None:
            self.longest: int | tf.Tensor = self.steps
            self.fewest: int | tf.Tensor = self.batch
            places = tf.range(self.batch * self.steps)
            self.sources, self.ends = places, self.batch * self.steps + tf.range(self.batch)
            return
        lens = tf.clip_by_value(tf.cast(lens, tf.int32), 0, self.steps)
        self.order = tf.argsort(lens, direction="DESCENDING", stable=True)
        self.back, self.lens = tf.argsort(self.order), tf.gather(lens, self.order)
        self.longest = tf.maximum(self.lens[0], 1)
        part = -(-self.batch // WIDTHS)
        steps, sequences = tf.range(self.steps), tf.range(self.batch)
        running = tf.math.count_nonzero(steps[:, None] < self.lens, axis=1, dtype=tf.int32)
        running = tf.clip_by_value(-(-running // part) * part, part, self.batch)
        self.running = tf.where(steps < self.longest, running, 0)
        self.fewest = self.running[self.longest - 1]
        self.starts = tf.cumsum(self.running, exclusive=True)
        taken = tf.cast(tf.where(sequences < self.running[:, None]), tf.int32)
        step, row = taken[:, 0], taken[:, 1]
        self.places = tf.gather(self.order, row) * self.steps + step
        # Behind the rows before the first step:
        before = self.batch + tf.gather(self.starts, tf.maximum(step - 1, 0)) + row
        self.sources = tf.where(step > 0, before, row)
        self.counts = step < tf.gather(self.lens, row)
        last = self.batch + tf.gather(self.starts, tf.maximum(self.lens - 1, 0)) + sequences
        self.ends = tf.where(self.lens > 0, last, sequences)
        self.inside = steps < lens[:, None]
        self.found = tf.where(self.inside, self.starts + self.back[:, None], 0)

    def sort(self, array: tf.Tensor, axis: int = 0) -> tf.Tensor:
        """Sort the sequences along an axis, the longest first."""
        return tf.gather(array, self.order, axis=axis) if self.ragged else array

    def unsort(self, array: tf.Tensor, axis: int = 0) -> tf.Tensor:
        """Undo `sort`."""
        return tf.gather(array, self.back, axis=axis) if self.ragged else array

    def pack(self, array: tf.Tensor) -> tf.Tensor:
        """Join the rows of all steps of an array (batch, steps, ...)."""
        if self.ragged:
            return tf.gather(tf.reshape(array, (-1, *array.shape[2:])), self.places)
        return tf.reshape(tf.transpose(array, (1, 0, *range(2, len(array.shape)))), (-1, *array.shape[2:]))

    def unpack(self, array: tf.Tensor) -> tf.Tensor:
        """Undo `pack`: (batch, steps, features), 0 where a sequence has ended."""
        if not self.ragged:
            return tf.transpose(tf.reshape(array, (self.steps, self.batch, array.shape[-1])), (1, 0, 2))

        @tf.custom_gradient
        def gather(array: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            # The gradient of tf.gather would be one of sums.
            def backward(upstream: tf.Tensor) -> tf.Tensor:
                return tf.where(self.counts[:, None], self.pack(upstream), 0.0)

            return tf.where(self.inside[..., None], tf.gather(array, self.found), 0.0), backward

        return gather(array)

    def at(self, arrays: Any, t: tf.Tensor) -> Any:
        """Take the rows of step t from a structure of arrays of all steps."""
        start, count = (self.starts[t], self.running[t]) if self.ragged else (t * self.batch, self.batch)
        return tf.nest.map_structure(lambda array: tf.slice(array, [start, 0], [count, array.shape[1]]), arrays)

    def grow(self, array: tf.Tensor, t: tf.Tensor | None) -> tf.Tensor:
        """Add rows of zeros to those of step t + 1, for as many as step t has; all if t is None."""
        return pad_rows(array, self.batch if t is None or not self.ragged else self.running[t])

    def state_gradients(
        self, gradients: list[list[tf.Tensor]], ended: list[list[tf.Tensor]], t: tf.Tensor | None
    ) -> Any:
        """Return the gradients of the states after step t, or of those before the first step.

        They are those of the rows that the step behind it has, and of the last states where a sequence ends there.
        """
        if not self.ragged:
            return [*map(list, gradients)]
        count, length = (self.batch, 0) if t is None else (self.running[t], t + 1)
        ends = (self.lens[:count] == length)[:, None]

        def join(gradient: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
            return pad_rows(gradient, count) + tf.where(ends, last[:count], 0.0)

        return [[*map(join, *pair)] for pair in zip(gradients, ended, strict=True)]


def pad_rows(array: tf.Tensor, count: int | tf.Tensor) -> tf.Tensor:
    """Add rows of zeros, for `count` rows in all."""
    if array.shape[0] is not None and array.shape[0] == count:
        return array
    return tf.pad(array, [[0, count - size(array, 0)], *[[0, 0]] * (len(array.shape) - 1)])
