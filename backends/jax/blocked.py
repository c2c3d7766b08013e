"""The fast paths in JAX: the same numbers in blocks, so that no array over queries, keys and features exists."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_core.errors import check_path
from backends.jax.masking import softmax_over

__all__ = ["use_blocks", "set_path", "blocked_additive_score", "blocked_additive_attention", "blocked_dot_attention"]

ADDITIVE_MIN_ELEMENTS = 2**24
"""So many elements, batch · heads · queries · keys · hidden_size, take blocks: measured on a CPU."""

DOT_MIN_ELEMENTS = 2**22
"""So many elements, batch · heads · queries · keys · features, take blocks: a guess, not measured."""

BLOCK = 2**17
"""So many elements are in a block: in float32 half a MiB, which a core's cache holds."""

ROWS, COLUMNS = 512, 128
"""So many queries and keys, at most, are in a block of inner products."""

BOUND = {"float32": 10.75, "float64": 88.0}
"""Up to this magnitude of x and y (1 + e^(-2(x + y)))² is a number of that dtype."""

forced: str | None = None

Gradients = tuple[jax.Array, jax.Array, jax.Array]


def use_blocks(queries: jax.Array, keys: jax.Array, least: int) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `set_path` says.

    elements = batch · heads · queries · keys · features

    A size that is symbolic, as jax.export has them, counts as small, forced or not: there is no number of blocks then.
    """
    sizes = (*queries.shape, keys.shape[-2])
    if not all(isinstance(size, int) for size in sizes):
        return False
    return math.prod(sizes) >= least if forced is None else forced == "blocked"


def set_path(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or the one that suits them: None.

    For the whole process, which begins as the environment variable ATTENTION_PARITY_PATH says at the import. A
    function that jax.jit has compiled keeps its path: jax.clear_caches() lets it be compiled again.

    Raises: OptionError.
    """
    global forced
    check_path(path)
    forced = path


set_path(os.environ.get("ATTENTION_PARITY_PATH") or None)


def blocked_additive_score(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """Score each projected query against each projected key by a weighted tanh of their sum, block by block.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])
    tanh(q + k) = s + (1 - s) r / (1 + c + r),  s = tanh(q + m), c = e^(-2(q + m)), r = e^(2(k - m)) - 1

    with m the smallest key of the sequence in that feature. Nothing cancels that is larger than the tanh of the key m,
    so a small tanh keeps its digits: 2 / (1 + e^(-2q) e^(-2k)) - 1 would be off by the eps of 1.

    What is of a query or of a key alone is computed once for each, and two features share a division, which is what a
    CPU has least of: with a = 1 + c + r of one feature, b of another, and their numerators v and w,

    v/a + w/b = (v b + w a) / (a b)

    Nothing overflows while all |q| and |k| are at most BOUND, since w_v is divided by its largest entry before. With
    larger numbers, a NaN, or a w_v that is not finite, blocks are of plain tanh.

    Nothing of a block is kept. The way back computes each block again; with t = tanh(q + k) and the cotangents g,
    gradient of queries[i, h] = w_v[h] sum over j of g[i, j] (1 - t[i, j, h]²), of keys[j, h] the same sum over i, and
    of w_v[h] the sum over i and j of g[i, j] t[i, j, h].

    Shapes: as additive_score. float16 and bfloat16 are computed in float32. Reverse mode can be repeated: a second
    derivative is right, but holds what the first one did not. JAX refuses forward mode (jax.jvp, jax.hessian) with a
    TypeError: force("plain") has it.
    """
    precise = jnp.promote_types(queries.dtype, jnp.float32)
    shape = (*queries.shape[:-1], keys.shape[-2])
    together = math.prod(shape[:-2])
    flat = [array.astype(precise).reshape(together, *array.shape[-2:]) for array in (queries, keys)]
    return score(*flat, w_v.astype(precise)).reshape(shape).astype(queries.dtype)


@jax.custom_vjp
def score(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """The scores of (batch, queries, hidden_size) and (batch, keys, hidden_size)."""
    return jax.lax.cond(narrow(queries, keys, w_v), partial(there, FACTORED), partial(there, PLAIN), queries, keys, w_v)


def score_there(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> tuple[jax.Array, Gradients]:
    """The scores, and what the way back reads: the arguments."""
    return score(queries, keys, w_v), (queries, keys, w_v)


def score_back(arguments: Gradients, cotangents: jax.Array) -> Gradients:
    """The gradients of the arguments."""
    branches = partial(back, FACTORED), partial(back, PLAIN)
    return jax.lax.cond(narrow(*arguments), *branches, *arguments, cotangents)


score.defvjp(score_there, score_back)


Side = tuple[jax.Array, ...]


class Tanh(NamedTuple):
    """One way to the tanh of sums: first what each side gives by itself, then what two sides give together.

    sides are of the queries and of the keys. join gives the tanh of each feature, and slopes 1 - tanh². For the sum of
    tanh with the weights w_v, over the last axis, ready gives both sides anew, and that part of the sum which is of the
    queries alone; sum gives the rest.
    """

    sides: Callable[[jax.Array, jax.Array], tuple[Side, Side]]
    join: Callable[[Side, Side], jax.Array]
    slopes: Callable[[Side, Side], jax.Array]
    ready: Callable[[Side, Side, jax.Array], tuple[Side, Side, jax.Array | float]]
    sum: Callable[[Side, Side, jax.Array], jax.Array]


def factors(queries: jax.Array, keys: jax.Array) -> tuple[Side, Side]:
    """(c, s) and (b, 1 - b) for b = 1/(1 + r).

    Clipped, which changes nothing where it counts: jax.vmap computes both branches, and keeps one.
    """
    bound = BOUND[queries.dtype.name]
    queries, keys = (jnp.clip(side, -bound, bound) for side in (queries, keys))
    smallest = jax.lax.stop_gradient(jnp.min(keys, axis=1, keepdims=True, initial=bound))
    sums = queries + smallest
    exponents = -2.0 * (keys - smallest)
    return (jnp.exp(-2.0 * sums), jnp.tanh(sums)), (jnp.exp(exponents), -jnp.expm1(exponents))


def joined(query: Side, key: Side) -> jax.Array:
    """The tanh, s + (1 - s) (1 - b) / (1 + c b): numerator and denominator are divided by 1 + r."""
    (c, start), (b, rise) = query, key
    return start + (1.0 - start) * rise / (1.0 + c * b)


def slopes(query: Side, key: Side) -> jax.Array:
    """1 - tanh² = 4 c b / (1 + c b)²."""
    product = query[0] * key[0]
    return 4.0 * product / jnp.square(1.0 + product)


def halves(query: Side, key: Side, w_v: jax.Array) -> tuple[Side, Side, jax.Array]:
    """(1 + c, w_v (1 - s)) and r, of one half of the features and of the other, and the sum of w_v s.

    Of w_v by its largest entry, so that no product overflows.
    """
    (c, start), (b, rise) = query, key
    sides = 1.0 + padded(c, 2, 2), padded((1.0 - start) * (w_v / scale_of(w_v)), 2, 2), padded(rise / b, 2, 2)
    first, weights, others = (tuple(jnp.split(side, 2, axis=2)) for side in sides)
    return first + weights, others, (start @ w_v)[:, :, None]


def paired(query: Side, key: Side, w_v: jax.Array) -> jax.Array:
    """The weighted sum of tanh - s, with one division for a feature of the one half and one of the other."""
    (a, b, v, w), (p, r) = query, key
    a, b = a + p, b + r
    return scale_of(w_v) * (((v * p * b + w * r * a) / (a * b)) @ jnp.ones(a.shape[-1], a.dtype))


def scale_of(w_v: jax.Array) -> jax.Array:
    """The largest magnitude of the weights, or 1."""
    largest = jnp.max(jnp.abs(w_v), initial=0.0)
    return jnp.where(largest == 0.0, 1.0, largest)


FACTORED = Tanh(factors, joined, slopes, halves, paired)
PLAIN = Tanh(
    lambda queries, keys: ((queries,), (keys,)),
    lambda query, key: jnp.tanh(query[0] + key[0]),
    lambda query, key: 1.0 - jnp.square(jnp.tanh(query[0] + key[0])),
    lambda query, key, w_v: (query, key, 0.0),
    lambda query, key, w_v: jnp.tanh(query[0] + key[0]) @ w_v,
)


def narrow(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """Whether all exponentials are normal numbers, and weights are finite; a NaN is no number."""
    bound = BOUND[queries.dtype.name]
    within = (jnp.max(jnp.abs(side), initial=0.0) <= bound for side in (queries, keys))
    return jnp.all(jnp.stack([*within, jnp.all(jnp.isfinite(w_v))]))


def there(tanh: Tanh, queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """The scores, by blocks of queries."""

    def block(*arrays: Any) -> jax.Array:
        *rows, others = arrays
        return tanh.sum(tuple(row[:, :, None] for row in rows), tuple(other[:, None] for other in others), w_v)

    rows, others, start = tanh.ready(*tanh.sides(queries, keys), w_v)
    return start + in_blocks(block, keys.size // max(len(keys), 1), rows, others)


def back(tanh: Tanh, queries: jax.Array, keys: jax.Array, w_v: jax.Array, cotangents: jax.Array) -> Gradients:
    """The gradients: those of queries by blocks of queries, and those of keys by blocks of keys."""

    def block(both: bool, *arrays: Any) -> tuple[jax.Array, ...]:
        # The others come last, which is where XLA sums fast.
        *rows, cotangents, others = arrays
        sides = tuple(row[..., None] for row in rows), tuple(other[:, None] for other in others)
        parts = (tanh.slopes(*sides), tanh.join(*sides)) if both else (tanh.slopes(*reversed(sides)),)
        return tuple(jnp.einsum("brho,bro->brh", part, cotangents) for part in parts)

    def summed(both: bool, rows: Side, others: Side, cotangents: jax.Array) -> tuple[jax.Array, ...]:
        turned = tuple(jnp.swapaxes(other, 1, 2) for other in others)
        elements = others[0].size // max(len(others[0]), 1)
        return in_blocks(partial(block, both), elements, (*rows, cotangents), turned)

    of_query, of_key = tanh.sides(queries, keys)
    of_queries, of_weights = summed(True, of_query, of_key, cotangents)
    (of_keys,) = summed(False, of_key, of_query, jnp.swapaxes(cotangents, 1, 2))
    return w_v * of_queries, w_v * of_keys, jnp.sum(of_weights, axis=(0, 1))


def blocked_additive_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array | None, w_v: jax.Array
) -> jax.Array:
    """Average the values by the softmax of additive scores, without keeping scores or weights.

    context = attention_pooling(additive_score(queries, keys, w_v), values, mask=mask), the context alone

    By blocks of queries, each with all keys. Nothing of a block is kept: the way back computes each block again, with
    the weights w, the cotangents g of the context and d[i, j] = g[i]·v[j], gradient of v[j] = sum over i of
    w[i, j] g[i], of scores[i, j] = w[i, j] (d[i, j] - sum over k of w[i, k] d[i, k]), and from these what
    blocked_additive_score says.

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), values (batch, keys, features), with
    heads after batch or without; mask as in Memory; the result (batch, queries, features). What no query may
    attend to need not be cleared before. float16 and bfloat16 are computed in float32. Second derivatives and forward
    mode: as of blocked_additive_score.
    """
    precise, lead = jnp.promote_types(queries.dtype, jnp.float32), queries.shape[:-2]
    if 0 in (*queries.shape[:-1], keys.shape[-2]):
        return jnp.zeros((*queries.shape[:-1], values.shape[-1]), values.dtype)
    masks, numbers = shared(mask, lead, keys.shape[-2])
    q, k, v = (array.astype(precise).reshape(len(numbers), *array.shape[-2:]) for array in (queries, keys, values))
    w_v, opened = w_v.astype(precise), opened_keys(masks, numbers)
    k = jnp.where(opened[..., None], k, 0.0)

    def allowed(masks: jax.Array, scores: jax.Array, rows: jax.Array, numbers: jax.Array) -> jax.Array:
        rows = jnp.minimum(rows, masks.shape[1] - 1)
        return masks[numbers[:, None], rows] & (scores != -jnp.inf)

    def visible() -> jax.Array:
        def any_query(keys: jax.Array, rows: jax.Array, others: tuple[jax.Array, ...]) -> jax.Array:
            queries, numbers = others
            scores = blocked_additive_score(keys, queries, w_v)
            return jnp.any(allowed(jnp.swapaxes(masks, 1, 2), scores, rows, numbers), axis=-1)

        return in_blocks(any_query, q.shape[1], (k, positions(k)), (q, numbers))

    # Only a w_v that is infinite has a score of -inf, which hides a value as a mask does.
    seen = jax.lax.cond(jnp.all(jnp.isfinite(w_v)), lambda: opened, visible)
    v = jnp.where(seen[..., None], v, 0.0)

    @partial(jax.checkpoint, prevent_cse=False)  # each block is a step of a loop, where there is nothing to prevent
    def block(queries: jax.Array, rows: jax.Array, others: tuple[jax.Array, ...]) -> jax.Array:
        keys, values, numbers = others
        scores = blocked_additive_score(queries, keys, w_v)
        return softmax_over(scores, allowed(masks, scores, rows, numbers)) @ values

    context = in_blocks(block, k.shape[1], (q, positions(q)), (k, v, numbers))
    return context.reshape(*queries.shape[:-1], values.shape[-1]).astype(values.dtype)


def shared(mask: jax.Array | None, lead: tuple[int, ...], num_keys: int) -> tuple[jax.Array, jax.Array]:
    """The different masks, (masks, queries or 1, keys), and of each sequence and head the number of its own."""
    mask = jnp.full((1,) * (len(lead) + 2), True) if mask is None else mask
    masks = jnp.broadcast_to(mask, (*mask.shape[:-1], num_keys))
    masks = masks.reshape(math.prod(masks.shape[:-2]), *masks.shape[-2:])
    numbers = np.broadcast_to(np.arange(len(masks)).reshape(mask.shape[:-2]), lead)
    return masks, jnp.asarray(numbers.reshape(math.prod(lead)))


def positions(array: jax.Array) -> jax.Array:
    """The position of each row of (batch, rows, ...)."""
    return jnp.broadcast_to(jnp.arange(array.shape[1]), array.shape[:2])


def in_blocks(function: Callable[..., Any], elements: int, rows: tuple[jax.Array, ...], others: Any) -> Any:
    """function(*rows, others) by blocks of at most BLOCK elements, or of one row: some rows, or some whole sequences.

    Shapes: rows (batch, rows, ...), each row with so many elements in the function; others, an array or several,
    (batch, ...); the result, or each of them, (batch, rows, ...).
    """
    batch, count = rows[0].shape[:2]
    high = parted(count, BLOCK // max(elements, 1))
    wide = parted(batch, BLOCK // max(elements * count, 1))

    def cut(array: jax.Array) -> jax.Array:
        array = padded(padded(array, 0, wide, "edge"), 1, high, "edge")
        return jnp.swapaxes(
            array.reshape(len(array) // wide, wide, array.shape[1] // high, high, *array.shape[2:]), 1, 2
        )

    def joined(array: jax.Array) -> jax.Array:
        array = jnp.swapaxes(array, 1, 2)
        parts, _, more, _ = array.shape[:4]
        return array.reshape(parts * wide, more * high, *array.shape[4:])[:batch, :count]

    def sequences(at: tuple[Any, jax.Array]) -> Any:
        rows, others = at
        return jax.lax.map(lambda block: function(*block, others), rows)

    def gathered(array: jax.Array) -> jax.Array:
        array = padded(array, 0, wide, "edge")
        return array.reshape(len(array) // wide, wide, *array.shape[1:])

    blocks = tuple(cut(array) for array in rows), jax.tree.map(gathered, others)
    return jax.tree.map(joined, jax.lax.map(sequences, blocks))


def parted(size: int, most: int) -> int:
    """The size of equal parts, of at most `most` and at least 1 each."""
    parts = -(-size // max(most, 1))
    return -(-size // max(parts, 1)) or 1


def padded(array: jax.Array, axis: int, part: int, mode: str = "constant") -> jax.Array:
    """The array with zeros after it, or its last entry, so that the axis is a multiple of the part."""
    lacking = -array.shape[axis] % part
    if lacking == 0:
        return array
    return jnp.pad(array, [(0, lacking if at == axis else 0) for at in range(array.ndim)], mode=mode)


def blocked_dot_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array | None, scale: float
) -> jax.Array:
    """Average the values by the softmax of scaled inner products, without keeping scores or weights.

    context = attention_pooling(scale · queries keysᵀ, values, mask=mask), the context alone

    By blocks of keys, with s = scale · q·k, top the largest score so far, z the sum of e^(s - top) and a the sum of
    e^(s - top) v: a block with a larger score first multiplies z and a by e^(top - larger). In the end context = a/z.
    A block that its mask closes is left out.

    The way back computes each block again, from ln of the sum of e^s of each row: with the weights w, the cotangents g
    of the context and d[i, j] = g[i]·v[j], gradient of v[j] = sum over i of w[i, j] g[i], and of s[i, j] =
    w[i, j] (d[i, j] - sum over k of w[i, k] d[i, k]).

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features), with
    heads after batch or without; mask as in Memory; the result (batch, queries, value_features). What no query may
    attend to need not be cleared before. float16 and bfloat16 are computed in float32. Second derivatives and forward
    mode: as of blocked_additive_score.
    """
    precise, lead = jnp.promote_types(queries.dtype, jnp.float32), queries.shape[:-2]
    if 0 in (*queries.shape[:-1], keys.shape[-2]):
        return jnp.zeros((*queries.shape[:-1], values.shape[-1]), values.dtype)
    masks, numbers = shared(mask, lead, keys.shape[-2])
    flat = (array.astype(precise).reshape(len(numbers), *array.shape[-2:]) for array in (queries, keys, values))
    context = pooled(float(scale), *flat, masks, numbers)
    return context.reshape(*queries.shape[:-1], values.shape[-1]).astype(values.dtype)


class Blocks(NamedTuple):
    """What one head holds, by blocks of queries and of keys.

    Shapes: queries (row blocks, rows, features), keys and values (column blocks, columns, ...), opened and visible
    (column blocks, columns), which say what any query may attend to, by mask alone and by scores, too; masks
    (row blocks or 1, column blocks, rows or 1, columns), needed (row blocks or 1, column blocks), which is False for a
    closed block of finite numbers.
    """

    queries: jax.Array
    keys: jax.Array
    values: jax.Array
    opened: jax.Array
    visible: jax.Array
    masks: jax.Array
    needed: jax.Array

    def mask(self, row: Any, column: Any) -> jax.Array:
        """The mask of a block."""
        return self.masks[jnp.minimum(row, len(self.masks) - 1), column]

    def scores(self, scale: float, row: Any, column: Any) -> jax.Array:
        """The scores of a block, -inf where they are hidden."""
        scores = self.queries[row] @ self.cleared_keys(column).T * scale
        return jnp.where(self.mask(row, column), scores, -jnp.inf)

    def cleared_keys(self, column: Any) -> jax.Array:
        """The keys of a block, and 0 for those that are hidden from all."""
        return jnp.where(self.opened[column][:, None], self.keys[column], 0.0)

    def cleared_values(self, column: Any) -> jax.Array:
        """The values of a block, and 0 for those that are hidden from all, by a score of -inf or else."""
        return jnp.where(self.visible[column][:, None], self.values[column], 0.0)

    def add(self, row: Any, column: Any, function: Callable[[Any], Any], sums: Any) -> Any:
        """function(sums), or the sums alone where the block adds nothing."""
        needed = self.needed[jnp.minimum(row, len(self.needed) - 1), column]
        return jax.lax.cond(needed, function, lambda sums: sums, sums)


def by_heads(
    function: Callable[..., Any],
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    masks: jax.Array,
    numbers: jax.Array,
    visible: jax.Array,
    *more: jax.Array,
) -> Any:
    """function(blocks, *more) for each head, with more, (heads, queries, ...), by blocks of queries."""
    rows, columns = parted(queries.shape[1], ROWS), parted(keys.shape[1], COLUMNS)

    def cut(array: jax.Array, part: int, mode: str = "constant") -> jax.Array:
        array = padded(array, 1, part, mode)
        return array.reshape(len(array), array.shape[1] // part, part, *array.shape[2:])

    # A row that fills a block repeats the last one, so that it has no NaN of its own; its cotangent is 0.
    opened = opened_keys(masks, numbers)
    sides = cut(queries, rows, "edge"), *(cut(array, columns) for array in (keys, values, opened, visible))
    tiles = cut(padded(masks, 2, columns), rows if masks.shape[1] > 1 else 1, "edge")
    tiles = jnp.swapaxes(tiles.reshape(*tiles.shape[:3], -1, columns), 2, 3)
    needed = jnp.any(tiles, axis=(3, 4))

    def one(at: tuple[tuple[jax.Array, ...], jax.Array, tuple[jax.Array, ...]]) -> Any:
        (queries, keys, values, opened, visible), number, more = at
        finite = jnp.all(jnp.isfinite(keys), axis=(1, 2)) & jnp.all(jnp.isfinite(values), axis=(1, 2))
        return function(Blocks(queries, keys, values, opened, visible, tiles[number], needed[number] | ~finite), *more)

    return jax.lax.map(one, (sides, numbers, tuple(cut(array, rows) for array in more)))


def whole(array: jax.Array, count: int) -> jax.Array:
    """The array without its blocks, (heads, blocks, rows, ...) as (heads, count, ...)."""
    heads, blocks, part, *rest = array.shape
    return array.reshape(heads, blocks * part, *rest)[:, :count]


def opened_keys(masks: jax.Array, numbers: jax.Array) -> jax.Array:
    """Whether any query may attend to the key by its mask, (heads, keys)."""
    return jnp.any(masks, axis=1)[numbers]


def finite_where(opened: jax.Array, values: jax.Array) -> jax.Array:
    """Whether all values are finite that any query may attend to."""
    # One head after the other: XLA would write down what is finite of all of them.
    return jnp.all(jax.lax.map(lambda at: jnp.all(jnp.isfinite(at[1]) | ~at[0][:, None]), (opened, values)))


def visible_keys(scale: float, *arguments: jax.Array) -> jax.Array:
    """Whether any query may attend to the key, (heads, keys), by mask and by scores above -inf."""
    opened = opened_keys(*arguments[3:])

    def head(blocks: Blocks) -> jax.Array:
        def column_block(column: jax.Array) -> jax.Array:
            def add(row: Any, found: jax.Array) -> jax.Array:
                return found | jnp.any(blocks.scores(scale, row, column) != -jnp.inf, axis=0)

            return jax.lax.fori_loop(0, len(blocks.queries), add, jnp.zeros_like(blocks.visible[0]))

        return jax.lax.map(column_block, jnp.arange(len(blocks.keys)))

    # A weight of 0 does not silence a NaN, so values that no query may attend to are cleared; numbers it silences.
    return jax.lax.cond(
        finite_where(opened, arguments[2]),
        lambda: opened,
        lambda: whole(by_heads(head, *arguments, opened), opened.shape[1]),
    )


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def pooled(
    scale: float, queries: jax.Array, keys: jax.Array, values: jax.Array, masks: jax.Array, numbers: jax.Array
) -> jax.Array:
    """The context of each query, (heads, queries, value_features)."""
    return pooled_there(scale, queries, keys, values, masks, numbers)[0]


def pooled_there(scale: float, *arguments: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """The context; and what the way back reads: the arguments, what is visible, ln of the sum of e^s of each row."""
    visible = visible_keys(scale, *arguments)

    def head(blocks: Blocks) -> tuple[jax.Array, jax.Array]:
        def row_block(row: jax.Array) -> tuple[jax.Array, jax.Array]:
            def column_block(column: Any, sums: tuple[jax.Array, ...]) -> Any:
                def add(sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                    total, z, top = sums
                    scores = blocks.scores(scale, row, column)
                    larger = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
                    shift = jnp.where(larger == -jnp.inf, 0.0, larger)
                    parts, kept = jnp.exp(scores - shift), jnp.exp(top - shift)
                    total = total * kept + parts @ blocks.cleared_values(column)
                    return total, z * kept + jnp.sum(parts, axis=-1, keepdims=True), larger

                return blocks.add(row, column, add, sums)

            rows, dtype = blocks.queries.shape[1], blocks.queries.dtype
            none = jnp.zeros((rows, blocks.values.shape[2]), dtype), jnp.zeros((rows, 1), dtype)
            start = *none, jnp.full((rows, 1), -jnp.inf, dtype)
            total, z, top = jax.lax.fori_loop(0, len(blocks.keys), column_block, start)
            closed = z == 0.0
            z = jnp.where(closed, 1.0, z)
            return total / z, jnp.where(closed, 0.0, top + jnp.log(z))

        return jax.lax.map(row_block, jnp.arange(len(blocks.queries)))

    found = by_heads(head, *arguments, visible)
    context, logs = (whole(array, arguments[0].shape[1]) for array in found)
    return context, (*arguments, visible, logs)


def pooled_back(scale: float, kept: tuple[jax.Array, ...], cotangents: jax.Array) -> tuple[jax.Array | None, ...]:
    """The gradients of queries, keys and values."""
    *arguments, logs = kept

    def head(blocks: Blocks, cotangents: jax.Array, logs: jax.Array) -> tuple[jax.Array, ...]:
        def row_block(of_sides: tuple[jax.Array, jax.Array], row: jax.Array) -> tuple[Any, jax.Array]:
            def weigh(column: Any, found: tuple[jax.Array, ...]) -> Any:
                def add(found: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                    weights, slopes, mean = found
                    scores = blocks.scores(scale, row, column)
                    weight = jnp.where(blocks.mask(row, column), jnp.exp(scores - logs[row]), 0.0)
                    slope = jnp.where(scores == -jnp.inf, 0.0, cotangents[row] @ blocks.cleared_values(column).T)
                    mean = mean + jnp.sum(weight * slope, axis=-1, keepdims=True)
                    return weights.at[column].set(weight), slopes.at[column].set(slope), mean

                return blocks.add(row, column, add, found)

            none = jnp.zeros((len(blocks.keys), blocks.queries.shape[1], blocks.keys.shape[1]), logs.dtype)
            found = jax.lax.fori_loop(0, len(blocks.keys), weigh, (none, none, jnp.zeros_like(logs[0])))

            def back(column: Any, sums: tuple[jax.Array, ...]) -> Any:
                def add(sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
                    of_queries, of_keys, of_values = sums
                    weights, slopes, mean = found
                    of_scores = weights[column] * (slopes[column] - mean) * scale
                    of_scores = jnp.where(blocks.mask(row, column), of_scores, 0.0)
                    of_queries = of_queries + of_scores @ blocks.cleared_keys(column)
                    of_keys = of_keys.at[column].add(of_scores.T @ blocks.queries[row])
                    return of_queries, of_keys, of_values.at[column].add(weights[column].T @ cotangents[row])

                return blocks.add(row, column, add, sums)

            start = jnp.zeros_like(blocks.queries[0]), *of_sides
            of_queries, *sides = jax.lax.fori_loop(0, len(blocks.keys), back, start)
            return tuple(sides), of_queries

        none = jnp.zeros_like(blocks.keys), jnp.zeros_like(blocks.values)
        (of_keys, of_values), of_queries = jax.lax.scan(row_block, none, jnp.arange(len(blocks.queries)))
        of_keys = jnp.where(blocks.opened[..., None], of_keys, 0.0)
        return of_queries, of_keys, jnp.where(blocks.visible[..., None], of_values, 0.0)

    found = by_heads(head, *arguments, cotangents, logs)
    gradients = (whole(array, own.shape[1]) for array, own in zip(found, arguments, strict=False))
    return *gradients, None, None


pooled.defvjp(pooled_there, pooled_back)
