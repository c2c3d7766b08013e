"""Attention by inner products in JAX without the (batch, queries, keys) array."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from backends.jax import kernels
from backends.jax.arrays import Lengths
from backends.jax.attention import Answer, Attention, DotProductAttention, Form
from backends.jax.blocked.blocks import Arrays, distinct_masks, in_lanes, linear, pad, part_size, with_auto_axes
from backends.jax.graphs import varying
from backends.jax.masking import add_bias, expand_to_rank
from backends.jax.memory import Memory, one_mask

__all__ = ["blocked_dot_attention"]

ROWS, COLUMNS = 512, 128
"""So many queries and keys, at most, are in a block of inner products."""

DOT_MIN_ELEMENTS = 2**20
"""The number of elements of one head, queries · keys · features, from which on blocks are faster: on a CPU."""


@with_auto_axes
def blocked_dot_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None,
    scale: float,
    softcap: float | None = None,
    bias: jax.Array | None = None,
) -> jax.Array:
    """Average the values by the softmax of scaled inner products, without keeping scores or weights.

    context = attention_pooling(cap(scale · queries keysᵀ) + bias, values, mask=mask), the context alone, with
    cap(x) = softcap · tanh(x / softcap), or x without softcap

    By blocks of keys, with s the scores, top the largest so far, z the sum of e^(s - top) and a the sum of e^(s - top)
    v: a block with a larger score first multiplies z and a by e^(top - larger). In the end context = a/z. A block that
    its mask closes is left out.

    The backward pass computes each block again, from ln of the sum of e^s of each row: with the weights w, the
    cotangents g of the context and d[i, j] = g[i]·v[j], gradient of v[j] = sum over i of w[i, j] g[i], and of s[i, j] =
    w[i, j] (d[i, j] - sum over k of w[i, k] d[i, k]), which is that of the bias, too, summed over the axes where its
    size is 1; of q·k, that times scale (1 - tanh²).

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features), with
    heads after batch or without; mask as in Memory; bias of the rank of queries, each axis its size or 1; the result
    (batch, queries, value_features). What no query may attend to need not be cleared before. float16 and bfloat16 are
    computed in float32. Second derivatives and forward mode: as of blocked_additive_score.
    """
    precise = jnp.promote_types(queries.dtype, jnp.float32)
    if 0 in (*queries.shape[:-1], keys.shape[-2]):
        return jnp.zeros((*queries.shape[:-1], values.shape[-1]), values.dtype)
    q, k, v, mask = varying((*(array.astype(precise) for array in (queries, keys, values)), mask))
    added = None if bias is None else varying(bias.astype(precise), q)
    finite = varying(jnp.all(in_lanes(finite_values, v, in_groups(mask, v))), q)
    score = Score(float(scale), None if softcap is None else float(softcap), bias is not None)

    def context(
        queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array | None, bias: jax.Array | None
    ) -> jax.Array:
        lead, num_keys = queries.shape[:-2], keys.shape[-2]
        masks, numbers = varying(distinct_masks(mask, lead, num_keys), queries)
        biases, numbers_of_biases = varying(distinct_masks(bias, lead, num_keys), queries)
        flat = (array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:]) for array in (queries, keys, values))
        given = *flat, biases.astype(precise), masks, numbers, numbers_of_biases
        return pool(score, *given, finite).reshape(*queries.shape[:-1], values.shape[-1])

    return in_lanes(context, q, k, v, mask, added).astype(values.dtype)


def serves(form: Form, queries: jax.Array, memory: Memory, need_weights: bool, bias: jax.Array | None) -> bool:
    """Whether to compute the context of inner products in blocks: from DOT_MIN_ELEMENTS elements of one head on."""
    one_head = jax.ShapeDtypeStruct(queries.shape[-2:], queries.dtype)
    is_context_alone = form.w_v is None and not need_weights
    return is_context_alone and kernels.use_blocks(one_head, memory.keys, DOT_MIN_ELEMENTS)


@kernels.register("attention", serves)
def attend(form: Form, queries: jax.Array, memory: Memory, need_weights: bool, bias: jax.Array | None) -> Answer:
    """Attend to a memory by the score of that form, for the context alone."""
    added = None if bias is None else expand_to_rank(bias, queries.ndim)
    return blocked_dot_attention(queries, *memory, scale=form.scale, softcap=form.softcap, bias=added), None


def serves_memory(
    layer: Attention,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    valid_lens: Lengths | None,
    mask: jax.Array | None,
    need_weights: bool,
) -> bool:
    """Whether a call of a layer without projections is computed in blocks, which clear what they read."""
    if not isinstance(layer, DotProductAttention):
        return False
    queries, keys = layer._to_batch_first(queries), layer._to_batch_first(keys)
    return serves(layer._form(queries.shape[-1]), queries, Memory(keys, keys, None), need_weights, None)


@kernels.register("memory", serves_memory)
def prepare(
    layer: Attention,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    valid_lens: Lengths | None,
    mask: jax.Array | None,
    need_weights: bool,
) -> Memory:
    """Prepare keys and values as they are, so that no copy is needed, and their mask."""
    keys, values = layer._to_batch_first(keys), layer._to_batch_first(values)
    return Memory(keys, values, one_mask(keys, valid_lens, mask))


class Score(NamedTuple):
    """What makes a score of an inner product: its factor, the bound of the result, and whether there is a bias."""

    scale: float
    softcap: float | None
    has_bias: bool


class Blocks(NamedTuple):
    """The arrays of one head, by blocks of queries and of keys.

    Shapes: queries (row blocks, rows, features), keys and values (column blocks, columns, ...), opened and visible
    (column blocks, columns), which say what any query may attend to, by mask alone and by scores, too; masks
    (row blocks or 1, column blocks, rows or 1, columns), needed (row blocks or 1, column blocks), which is False for a
    fully masked block of finite numbers; biases (biases, row blocks or 1, column blocks, rows or 1, columns), of all
    heads, and the number of that of this head.
    """

    queries: jax.Array
    keys: jax.Array
    values: jax.Array
    opened: jax.Array
    visible: jax.Array
    masks: jax.Array
    needed: jax.Array
    biases: jax.Array
    number: jax.Array

    def mask(self, row: Any, column: Any) -> jax.Array:
        """The mask of a block."""
        return self.masks[jnp.minimum(row, len(self.masks) - 1), column]

    def scores(self, score: Score, row: Any, column: Any) -> jax.Array:
        """The scores of a block, -inf where they are hidden."""
        scores = self.queries[row] @ self.zero_masked_keys(column).T * score.scale
        if score.softcap is not None:
            scores = score.softcap * jnp.tanh(scores / score.softcap)
        if score.has_bias:
            scores = add_bias(scores, self.biases[self.number, jnp.minimum(row, self.biases.shape[1] - 1), column])
        return jnp.where(self.mask(row, column), scores, -jnp.inf)

    def zero_masked_keys(self, column: Any) -> jax.Array:
        """The keys of a block, and 0 for those that are hidden from all."""
        return jnp.where(self.opened[column][:, None], self.keys[column], 0.0)

    def zero_masked_values(self, column: Any) -> jax.Array:
        """The values of a block, and 0 for those that are hidden from all, by a score of -inf or else."""
        return jnp.where(self.visible[column][:, None], self.values[column], 0.0)

    def add(self, row: Any, column: Any, function: Callable[[Any], Any], sums: Any) -> Any:
        """Return function(sums), or the sums alone where the block adds nothing."""
        needed = self.needed[jnp.minimum(row, len(self.needed) - 1), column]
        return jax.lax.cond(needed, function, lambda sums: sums, sums)


def by_heads(
    function: Callable[..., Any],
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    biases: jax.Array,
    masks: jax.Array,
    numbers: jax.Array,
    numbers_of_biases: jax.Array,
    visible: jax.Array,
    *more: jax.Array,
    sums: Any = None,
) -> Any:
    """Return function(blocks, *more) of each head, with more, (heads, queries, ...), by blocks of queries.

    With sums, function(blocks, sums, *more) returns (new sums, result), and these are the last ones and all results.
    """
    rows, columns = part_size(queries.shape[1], ROWS), part_size(keys.shape[1], COLUMNS)

    def cut(array: jax.Array, part: int, mode: str = "constant") -> jax.Array:
        array = pad(array, 1, part, mode)
        return array.reshape(len(array), array.shape[1] // part, part, *array.shape[2:])

    # A row that fills a block repeats the last one, so that it adds no NaN; its cotangent is 0.
    opened = opened_keys(masks, numbers)
    sides = cut(queries, rows, "edge"), cut(opened, columns), cut(visible, columns)
    keys, values = cut(keys, columns), cut(values, columns)
    of_keys = jnp.arange(len(queries)) // (len(queries) // len(keys))  # heads in groups, one after the other
    tiles, biases = to_tiles(masks, rows, columns), to_tiles(biases, rows, columns)
    needed = jnp.any(tiles, axis=(3, 4))

    def one(sums: Any, at: tuple[tuple[jax.Array, ...], tuple[jax.Array, ...], tuple[jax.Array, ...]]) -> Any:
        (queries, opened, visible), (number, of_bias, of_key), more = at
        keys_and_values = keys[of_key], values[of_key]
        finite = [jnp.all(jnp.isfinite(array), axis=(1, 2)) for array in keys_and_values]
        masking = opened, visible, tiles[number], needed[number] | ~(finite[0] & finite[1])
        blocks = Blocks(queries, *keys_and_values, *masking, biases, of_bias)
        return (None, function(blocks, *more)) if sums is None else function(blocks, sums, *more)

    of_heads = sides, (numbers, numbers_of_biases, of_keys), tuple(cut(array, rows) for array in more)
    last, results = jax.lax.scan(one, sums, of_heads)
    return results if sums is None else (last, results)


def to_tiles(array: jax.Array, rows: int, columns: int) -> jax.Array:
    """Turn (parts, queries or 1, keys) into (parts, row blocks or 1, column blocks, rows or 1, columns)."""
    high = rows if array.shape[1] > 1 else 1
    tiles = pad(pad(array, 2, columns), 1, high, "edge")
    tiles = tiles.reshape(len(array), tiles.shape[1] // high, high, -1, columns)
    return jnp.swapaxes(tiles, 2, 3)


def from_tiles(tiles: jax.Array, like: jax.Array) -> jax.Array:
    """Undo `to_tiles`, in the shape of the array that the tiles were made of."""
    parts, row_blocks, column_blocks, rows, columns = tiles.shape
    array = jnp.swapaxes(tiles, 2, 3).reshape(parts, row_blocks * rows, column_blocks * columns)
    return array[:, : like.shape[1], : like.shape[2]]


def whole(array: jax.Array, count: int) -> jax.Array:
    """Turn (heads, blocks, rows, ...) into (heads, count, ...), without what filled the last block."""
    heads, blocks, part, *rest = array.shape
    return array.reshape(heads, blocks * part, *rest)[:, :count]


def in_groups(mask: jax.Array | None, keys: jax.Array) -> jax.Array | None:
    """The mask of the heads that share a key head, which is open where one of them may attend."""
    if mask is None or mask.ndim < 4 or mask.shape[1] <= keys.shape[1]:
        return mask
    groups = keys.shape[1], mask.shape[1] // keys.shape[1]
    return jnp.any(mask.reshape(len(mask), *groups, *mask.shape[2:]), axis=2)


def opened_keys(masks: jax.Array, numbers: jax.Array) -> jax.Array:
    """Whether any query may attend to the key by its mask, (heads, keys)."""
    return jnp.any(masks, axis=1)[numbers]


def finite_values(values: jax.Array, mask: jax.Array | None) -> jax.Array:
    """Whether all values of a head are finite that any query may attend to, (batch, heads, 1, 1)."""
    masks, numbers = distinct_masks(mask, values.shape[:-2], values.shape[-2])
    opened, flat = opened_keys(masks, numbers), values.reshape(len(numbers), *values.shape[-2:])
    # One head after the other: XLA would write down what is finite of all of them.
    finite = jax.lax.map(lambda at: jnp.all(jnp.isfinite(at[1]) | ~at[0][:, None]), (opened, flat))
    return finite.reshape(*values.shape[:-2], 1, 1)


def visible_keys(score: Score, finite: jax.Array, *arguments: jax.Array) -> jax.Array:
    """Whether any query may attend to the key, (heads, keys), by mask and by scores above -inf."""
    opened = opened_keys(*arguments[4:6])

    def head(blocks: Blocks) -> jax.Array:
        def column_block(column: jax.Array) -> jax.Array:
            def add(row: Any, visible: jax.Array) -> jax.Array:
                return visible | jnp.any(blocks.scores(score, row, column) != -jnp.inf, axis=0)

            none = varying(jnp.zeros_like(blocks.visible[0]), blocks)
            return jax.lax.fori_loop(0, len(blocks.queries), add, none)

        return jax.lax.map(column_block, jnp.arange(len(blocks.keys)))

    # A weight of 0 does not silence a NaN, so values that no query may attend to are cleared; numbers it silences.
    return jax.lax.cond(
        finite,
        lambda: opened,
        lambda: whole(by_heads(head, *arguments, opened), opened.shape[1]),
    )


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def pool(
    score: Score,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    biases: jax.Array,
    masks: jax.Array,
    numbers: jax.Array,
    numbers_of_biases: jax.Array,
    finite: jax.Array,
) -> jax.Array:
    """The context of each query, (heads, queries, value_features); finite as all values that any may attend to."""
    return pool_there(score, queries, keys, values, biases, masks, numbers, numbers_of_biases, finite)[0]


def pool_there(score: Score, *given: jax.Array) -> tuple[jax.Array, Arrays]:
    """The context; and what the backward pass reads: arguments, visible keys, ln of the sum of e^s of each row."""
    *arguments, finite = given
    visible = visible_keys(score, finite, *arguments)

    def head(blocks: Blocks) -> tuple[jax.Array, jax.Array]:
        def row_block(row: jax.Array) -> tuple[jax.Array, jax.Array]:
            def column_block(column: Any, sums: tuple[jax.Array, ...]) -> Any:
                def add(sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                    total, z, top = sums
                    scores = blocks.scores(score, row, column)
                    larger = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
                    shift = jnp.where(larger == -jnp.inf, 0.0, larger)
                    parts, kept = jnp.exp(scores - shift), jnp.exp(top - shift)
                    total = total * kept + parts @ blocks.zero_masked_values(column)
                    return total, z * kept + jnp.sum(parts, axis=-1, keepdims=True), larger

                return blocks.add(row, column, add, sums)

            rows, dtype = blocks.queries.shape[1], blocks.queries.dtype
            none = jnp.zeros((rows, blocks.values.shape[2]), dtype), jnp.zeros((rows, 1), dtype)
            start = varying((*none, jnp.full((rows, 1), -jnp.inf, dtype)), blocks)
            total, z, top = jax.lax.fori_loop(0, len(blocks.keys), column_block, start)
            masked = z == 0.0
            z = jnp.where(masked, 1.0, z)
            return total / z, jnp.where(masked, 0.0, top + jnp.log(z))

        return jax.lax.map(row_block, jnp.arange(len(blocks.queries)))

    by_head = by_heads(head, *arguments, visible)
    context, logs = (whole(array, arguments[0].shape[1]) for array in by_head)
    return context, (*arguments, visible, logs)


@pool.defjvp
def pool_tangents(score: Score, arguments: Arrays, tangents: Arrays) -> tuple[jax.Array, jax.Array]:
    """The context and its tangents."""
    context, kept = pool_there(score, *arguments)
    kept = *kept, arguments[-1]
    return context, linear(partial(pool_forward, score), partial(pool_back, score), kept, tangents[:4])


def pool_forward(score: Score, kept: Arrays, tangents: Arrays) -> jax.Array:
    """The tangents of the context."""
    *arguments, _, _, finite = kept
    sides, rest = tuple(arguments[:4]), (*arguments[4:], finite)
    return jax.jvp(lambda *sides: pool_there(score, *sides, *rest)[0], sides, tangents)[1]


def pool_back(score: Score, kept: Arrays, cotangents: jax.Array) -> Arrays:
    """The gradients of queries, keys, values and biases."""
    *arguments, logs, _ = kept

    def head(blocks: Blocks, of_biases: jax.Array, cotangents: jax.Array, logs: jax.Array) -> tuple[jax.Array, Arrays]:
        def row_block(of_sides: Arrays, row: jax.Array) -> tuple[Arrays, jax.Array]:
            def weigh(column: Any, sums: tuple[jax.Array, ...]) -> Any:
                def add(sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                    weights, slopes, mean = sums
                    scores = blocks.scores(score, row, column)
                    weight = jnp.where(blocks.mask(row, column), jnp.exp(scores - logs[row]), 0.0)
                    slope = jnp.where(scores == -jnp.inf, 0.0, cotangents[row] @ blocks.zero_masked_values(column).T)
                    mean = mean + jnp.sum(weight * slope, axis=-1, keepdims=True)
                    return weights.at[column].set(weight), slopes.at[column].set(slope), mean

                return blocks.add(row, column, add, sums)

            none = jnp.zeros((len(blocks.keys), blocks.queries.shape[1], blocks.keys.shape[1]), logs.dtype)
            start = varying((none, none, jnp.zeros_like(logs[0])), blocks, cotangents)
            weighed = jax.lax.fori_loop(0, len(blocks.keys), weigh, start)

            def back(column: Any, sums: tuple[jax.Array, ...]) -> Any:
                def add(sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                    of_queries, of_keys, of_values, of_biases = sums
                    weights, slopes, mean = weighed
                    of_scores = weights[column] * (slopes[column] - mean)
                    of_scores = jnp.where(blocks.mask(row, column), of_scores, 0.0)
                    if score.has_bias:
                        spread = jnp.sum(of_scores, axis=0, keepdims=True) if of_biases.shape[3] == 1 else of_scores
                        at = blocks.number, jnp.minimum(row, of_biases.shape[1] - 1), column
                        of_biases = of_biases.at[at].add(spread)
                    if score.softcap is not None:
                        bounded = blocks.scores(score._replace(has_bias=False), row, column) / score.softcap
                        of_scores *= jnp.where(bounded == -jnp.inf, 0.0, 1.0 - bounded**2)
                    of_scores *= score.scale
                    of_queries = of_queries + of_scores @ blocks.zero_masked_keys(column)
                    of_keys = of_keys.at[column].add(of_scores.T @ blocks.queries[row])
                    of_values = of_values.at[column].add(weights[column].T @ cotangents[row])
                    return of_queries, of_keys, of_values, of_biases

                return blocks.add(row, column, add, sums)

            start = varying(jnp.zeros_like(blocks.queries[0]), blocks, cotangents), *of_sides
            of_queries, *sides = jax.lax.fori_loop(0, len(blocks.keys), back, start)
            return tuple(sides), of_queries

        none = varying((jnp.zeros_like(blocks.keys), jnp.zeros_like(blocks.values)), blocks, cotangents)
        rows = jnp.arange(len(blocks.queries))
        (of_keys, of_values, of_biases), of_queries = jax.lax.scan(row_block, (*none, of_biases), rows)
        of_keys = jnp.where(blocks.opened[..., None], of_keys, 0.0)
        return of_biases, (of_queries, of_keys, jnp.where(blocks.visible[..., None], of_values, 0.0))

    queries, keys, _, biases = arguments[:4]
    none = to_tiles(jnp.zeros_like(biases), part_size(queries.shape[1], ROWS), part_size(keys.shape[1], COLUMNS))
    none = varying(none, tuple(arguments), cotangents)
    of_biases, by_head = by_heads(head, *arguments, cotangents, logs, sums=none)
    of_sides = (whole(array, argument.shape[1]) for array, argument in zip(by_head, arguments, strict=False))
    of_groups = (
        jnp.sum(array.reshape(len(argument), len(array) // len(argument), *array.shape[1:]), axis=1)
        for array, argument in zip(of_sides, arguments, strict=False)
    )
    return *of_groups, from_tiles(of_biases, biases)
