"""The fast paths in JAX: the same numbers in blocks, so that no array over queries, keys and features exists."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from backends.jax import kernels
from backends.jax.attention import Answer, Form
from backends.jax.blocked.blocks import (
    Arrays,
    distinct_masks,
    fitting,
    in_blocks,
    in_lanes,
    linear,
    map_parts,
    pad,
    part_size,
    parts,
    positions,
    sum_parts,
    whole,
    with_auto_axes,
)
from backends.jax.blocked.dot_product import opened_keys
from backends.jax.graphs import varying
from backends.jax.masking import softmax_over
from backends.jax.memory import Memory, in_heads
from backends.jax.module import cast

__all__ = ["blocked_additive_score", "blocked_additive_attention"]

ADDITIVE_MIN_ELEMENTS = 2**24
"""So many elements, batch · heads · queries · keys · hidden_size, take blocks: measured on a CPU."""

ADDITIVE_MIN_ELSEWHERE = 2**30
"""The same on other devices: an array of so many elements takes 4 GiB in float32."""

ROWS = 96
"""The least queries of a block of a context: what is of one key alone is computed once for so many queries."""

FEATURES, KEYS = 2, 512
"""The features that a block of gradients has room for at least, and its most keys; queries fill the rest."""

BOUND = {"float32": 10.75, "float64": 88.0}
"""Up to this magnitude of x and y (1 + e^(-2(x + y)))² is a number of that dtype."""

Gradients = tuple[jax.Array, jax.Array, jax.Array]


def serves_score(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> bool:
    """Whether to compute scores in blocks: from ADDITIVE_MIN_ELEMENTS elements on, or ADDITIVE_MIN_ELSEWHERE."""
    return kernels.use_blocks(queries, keys, ADDITIVE_MIN_ELEMENTS, ADDITIVE_MIN_ELSEWHERE)


@kernels.register("additive_score", serves_score)
@with_auto_axes
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

    Nothing of a block is kept. The backward pass computes each block again; with t = tanh(q + k) and the cotangents g,
    gradient of queries[i, h] = w_v[h] sum over j of g[i, j] (1 - t[i, j, h]²), of keys[j, h] the same sum over i, and
    of w_v[h] the sum over i and j of g[i, j] t[i, j, h], all by one division: `factored_gradients`.

    Shapes: as additive_score. float16 and bfloat16 are computed in float32. Forward mode goes by blocks of plain tanh.
    Both modes can be repeated and mixed: a second derivative is right, but allocates what the first one did not.
    """
    precise = jnp.promote_types(queries.dtype, jnp.float32)
    q, k, w_v = varying([array.astype(precise) for array in (queries, keys, w_v)])
    factored = is_narrow(q, k, w_v)

    def scores(queries: jax.Array, keys: jax.Array) -> jax.Array:
        shape = (*queries.shape[:-1], keys.shape[-2])
        flat = [array.reshape(math.prod(shape[:-2]), *array.shape[-2:]) for array in (queries, keys)]
        return score(factored, *flat, w_v).reshape(shape)

    return in_lanes(scores, q, k).astype(queries.dtype)


@jax.custom_jvp
def score(factored: jax.Array, queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """The scores of (batch, queries, hidden_size) and (batch, keys, hidden_size), FACTORED if they are narrow."""
    return jax.lax.cond(factored, partial(there, FACTORED), partial(there, PLAIN), queries, keys, w_v)


@score.defjvp
def score_tangents(arguments: Arrays, tangents: Arrays) -> tuple[jax.Array, jax.Array]:
    """The scores and their tangents."""
    return score(*arguments), linear(score_forward, score_back, arguments, tangents[1:])


def score_forward(arguments: Arrays, tangents: Arrays) -> jax.Array:
    """The tangents of the scores, by the plain tanh."""
    return jax.jvp(partial(there, PLAIN), arguments[1:], tangents)[1]


def score_back(arguments: Arrays, cotangents: jax.Array) -> Gradients:
    """The gradients of queries, keys and w_v."""
    factored, *sides = arguments
    return jax.lax.cond(factored, partial(back, FACTORED), partial(back, PLAIN), *sides, cotangents)


Side = tuple[jax.Array, ...]


class Tanh(NamedTuple):
    """One way to the tanh of sums: first what each side gives by itself, then what two sides give together.

    sides are of the queries and of the keys. For the sum of tanh with the weights w_v, over the last axis, ready gives
    both sides anew, and that part of the sum which is of the queries alone; sum gives the rest. gradients gives the
    sums of g (1 - tanh²) over the keys and over the queries, and that of g tanh over both, of the sides (batch,
    features, queries) and (batch, features, keys) and the cotangents g, (batch, queries, keys).
    """

    sides: Callable[[jax.Array, jax.Array], tuple[Side, Side]]
    ready: Callable[[Side, Side, jax.Array], tuple[Side, Side, jax.Array | float]]
    sum: Callable[[Side, Side, jax.Array], jax.Array]
    gradients: Callable[[Side, Side, jax.Array], Gradients]


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


def halves(query: Side, key: Side, w_v: jax.Array) -> tuple[Side, Side, jax.Array]:
    """(1 + c, w_v (1 - s)) and r, of one half of the features and of the other, and the sum of w_v s.

    Of w_v by its largest entry, so that no product overflows.
    """
    (c, start), (b, rise) = query, key
    sides = 1.0 + pad(c, 2, 2), pad((1.0 - start) * (w_v / scale_of(w_v)), 2, 2), pad(rise / b, 2, 2)
    first, weights, others = (tuple(jnp.split(side, 2, axis=2)) for side in sides)
    return first + weights, others, (start @ w_v)[:, :, None]


def sum_in_pairs(query: Side, key: Side, w_v: jax.Array) -> jax.Array:
    """Return the weighted sum of tanh - s, with one division for two features, one of each half."""
    (a, b, v, w), (p, r) = query, key
    a, b = a + p, b + r
    return scale_of(w_v) * (((v * p * b + w * r * a) / (a * b)) @ jnp.ones(a.shape[-1], a.dtype))


def factored_gradients(query: Side, key: Side, cotangents: jax.Array) -> Gradients:
    """The sums of a block, with one division for each element, that of y = c / (1 + c b)².

    1 - tanh² = 4 b y;  tanh = s + 2 (1 - b)² y / (1 + c) + 2 b (1 - b) y

    The factors of y are of a query or of a key alone. So each sum is one of g y, with the cotangents g, and a vector.
    """
    (c, start), (b, rise) = query, key
    y = cotangents[:, None] * (c[..., None] / jnp.square(1.0 + c[..., None] * b[:, :, None]))
    over_keys, over_rises = over_others(y, b), over_others(y, jnp.square(rise))
    over_queries = over_rows(y)
    of_weights = jnp.einsum("bhr,br->h", start, jnp.sum(cotangents, axis=2)) + 2.0 * (
        jnp.sum(over_rises / (1.0 + c), axis=(0, 2)) + jnp.sum(b * rise * over_queries, axis=(0, 2))
    )
    return 4.0 * over_keys, 4.0 * b * over_queries, of_weights


def plain_gradients(query: Side, key: Side, cotangents: jax.Array) -> Gradients:
    """The sums of a block, by the plain tanh."""
    tanh, cotangents = jnp.tanh(query[0][..., None] + key[0][:, :, None]), cotangents[:, None]
    y = cotangents * (1.0 - jnp.square(tanh))
    return over_others(y, key[0] ** 0), over_rows(y), jnp.sum(over_rows(cotangents * tanh), axis=(0, 2))


def over_others(y: jax.Array, factors: jax.Array) -> jax.Array:
    """The sum of (batch, features, queries, keys) over the keys, as a product, which is where XLA sums fast."""
    return jnp.einsum("bhro,bho->bhr", y, factors)


def over_rows(y: jax.Array) -> jax.Array:
    """The same over the queries.

    Ones as a power of y: jax.vmap gives them its axis, too, and without it XLA would transpose every block.
    """
    return jnp.einsum("bhro,bhr->bho", y, y[..., 0] ** 0)


def scale_of(w_v: jax.Array) -> jax.Array:
    """The largest magnitude of the weights, or 1."""
    largest = jnp.max(jnp.abs(w_v), initial=0.0)
    return jnp.where(largest == 0.0, 1.0, largest)


FACTORED = Tanh(factors, halves, sum_in_pairs, factored_gradients)
PLAIN = Tanh(
    lambda queries, keys: ((queries,), (keys,)),
    lambda query, key, w_v: (query, key, 0.0),
    lambda query, key, w_v: jnp.tanh(query[0] + key[0]) @ w_v,
    plain_gradients,
)


def is_narrow(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """Whether all exponentials are normal numbers, and weights are finite; a NaN is no number."""
    bound = BOUND[queries.dtype.name]
    within = (jnp.max(jnp.abs(side), initial=0.0) <= bound for side in (queries, keys))
    return jnp.all(jnp.stack([*within, jnp.all(jnp.isfinite(w_v))]))


def there(tanh: Tanh, queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """The scores, by blocks of queries and of keys."""

    def block(*arrays: Any) -> jax.Array:
        *rows, others = arrays
        return tanh.sum(tuple(row[:, :, None] for row in rows), tuple(other[:, None] for other in others), w_v)

    rows, others, start = tanh.ready(*tanh.sides(queries, keys), w_v)
    num_keys, features = keys.shape[1:]
    part = fitting(num_keys, features)
    scores = map_parts(lambda some: in_blocks(block, part * features, rows, some), parts(others, 1, part))
    return start + whole(scores, 2, num_keys)


def back(tanh: Tanh, queries: jax.Array, keys: jax.Array, w_v: jax.Array, cotangents: jax.Array) -> Gradients:
    """The gradients, by blocks of some features of some queries and keys.

    Features come before both, so that a block of cotangents is that of each feature, and their sums add up in no loop.
    """
    (batch, num_keys, features), num_queries = keys.shape, queries.shape[1]
    wide = part_size(num_keys, KEYS)
    high = fitting(num_queries, FEATURES * wide)
    group, some = fitting(features, high * wide), fitting(batch, features * high * wide)

    def of_rows(key: Side, at: tuple[Side, jax.Array]) -> tuple[Arrays, jax.Array]:
        query, cotangents = at

        def of_features(sides: Side) -> Gradients:
            return tanh.gradients(sides[: len(query)], sides[len(query) :], cotangents)

        of_query, of_key, of_weights = map_parts(of_features, parts((*query, *key), 1, group))
        return (whole(of_key, 1, features), whole(of_weights, 0, features)), whole(of_query, 1, features)

    def of_keys(query: Side, at: tuple[Side, jax.Array]) -> tuple[Arrays, jax.Array]:
        key, cotangents = at
        none = varying((jnp.zeros_like(key[0]), jnp.zeros_like(w_v)), (query, key, cotangents))
        rows = parts(query, 2, high), *parts((cotangents,), 1, high)
        (of_key, of_weights), of_query = sum_parts(none, partial(of_rows, key), rows)
        return (whole(of_query, 2, num_queries), of_weights), of_key

    def of_sequences(at: tuple[Side, Side, jax.Array]) -> Gradients:
        query, key, cotangents = at
        none = varying((jnp.zeros_like(query[0]), jnp.zeros_like(w_v)), (query, key, cotangents))
        columns = parts(key, 2, wide), *parts((cotangents,), 2, wide)
        (of_query, of_weights), of_key = sum_parts(none, partial(of_keys, query), columns)
        return of_query, whole(of_key, 2, num_keys), of_weights

    sides = (tuple(jnp.swapaxes(array, 1, 2) for array in side) for side in tanh.sides(queries, keys))
    query, key = (parts(side, 0, some) for side in sides)
    of_query, of_key, of_weights = map_parts(of_sequences, (query, key, *parts((cotangents,), 0, some)))
    gradients = (w_v * jnp.swapaxes(whole(array, 0, batch), 1, 2) for array in (of_query, of_key))
    return *gradients, jnp.sum(of_weights, axis=0)


@with_auto_axes
def blocked_additive_attention(
    queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array | None, w_v: jax.Array
) -> jax.Array:
    """Average the values by the softmax of additive scores, without keeping scores or weights.

    context = attention_pooling(additive_score(queries, keys, w_v), values, mask=mask), the context alone

    By blocks of queries, each with the scores of all keys. Nothing of a block is kept: the backward pass computes each
    block again, with the weights w, the cotangents g of the context and d[i, j] = g[i]·v[j], gradient of v[j] = sum
    over i of w[i, j] g[i], of scores[i, j] = w[i, j] (d[i, j] - sum over k of w[i, k] d[i, k]), and from these what
    blocked_additive_score says.

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), values (batch, keys, features), with
    heads after batch or without; mask as in Memory; the result (batch, queries, features). What no query may
    attend to need not be cleared before. float16 and bfloat16 are computed in float32. Second derivatives and forward
    mode: as of blocked_additive_score.
    """
    precise = jnp.promote_types(queries.dtype, jnp.float32)
    if 0 in (*queries.shape[:-1], keys.shape[-2]):
        return jnp.zeros((*queries.shape[:-1], values.shape[-1]), values.dtype)
    q, k, v, w_v, mask = varying((*(array.astype(precise) for array in (queries, keys, values, w_v)), mask))
    if mask is not None:
        k = jnp.where(jnp.any(mask, axis=-2)[..., None], k, 0.0)
    return in_lanes(partial(context, is_narrow(q, k, w_v), w_v), q, k, v, mask).astype(values.dtype)


def serves_attention(
    form: Form, queries: jax.Array, memory: Memory, need_weights: bool, bias: jax.Array | None
) -> bool:
    """Whether to compute the context of an additive score in blocks, under the condition of its scores."""
    # Of queries and keys it is the keys that are projected by now.
    is_context_alone = form.w_v is not None and not need_weights and bias is None
    return is_context_alone and kernels.use_blocks(memory.keys, queries, ADDITIVE_MIN_ELEMENTS, ADDITIVE_MIN_ELSEWHERE)


@kernels.register("attention", serves_attention)
def attend(form: Form, queries: jax.Array, memory: Memory, need_weights: bool, bias: jax.Array | None) -> Answer:
    """Attend to a memory by the score of that form, for the context alone."""
    assert form.w_v is not None
    projected, memory = form.project(queries), in_heads(memory, queries)
    return blocked_additive_attention(projected, *memory, cast(form.w_v, queries)), None


def context(
    factored: jax.Array,
    w_v: jax.Array,
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None,
) -> jax.Array:
    """The context of each query, by blocks of queries; what is masked from all is cleared in the keys."""
    lead = queries.shape[:-2]
    masks, numbers = distinct_masks(mask, lead, keys.shape[-2])
    q, k, v = (array.reshape(len(numbers), *array.shape[-2:]) for array in (queries, keys, values))
    opened = opened_keys(masks, numbers)

    def is_open(masks: jax.Array, scores: jax.Array, rows: jax.Array, numbers: jax.Array) -> jax.Array:
        rows = jnp.minimum(rows, masks.shape[1] - 1)
        return masks[numbers[:, None], rows] & (scores != -jnp.inf)

    def visible() -> jax.Array:
        def any_query(keys: jax.Array, rows: jax.Array, others: tuple[jax.Array, ...]) -> jax.Array:
            queries, numbers = others
            scores = there(PLAIN, keys, queries, w_v)
            return jnp.any(is_open(jnp.swapaxes(masks, 1, 2), scores, rows, numbers), axis=-1)

        return in_blocks(any_query, q.shape[1], (k, positions(k)), (q, numbers))

    # Only a w_v that is infinite has a score of -inf, which hides a value as a mask does.
    seen = jax.lax.cond(jnp.all(jnp.isfinite(w_v)), lambda: opened, visible)
    v = jnp.where(seen[..., None], v, 0.0)

    @partial(jax.checkpoint, prevent_cse=False)  # each block is a step of a loop, where there is nothing to prevent
    def block(queries: jax.Array, rows: jax.Array, others: tuple[jax.Array, ...]) -> jax.Array:
        keys, values, numbers = others
        scores = score(factored, queries, keys, w_v)
        return softmax_over(scores, is_open(masks, scores, rows, numbers)) @ values

    contexts = in_blocks(block, k.shape[1], (q, positions(q)), (k, v, numbers), least=ROWS)
    return contexts.reshape(*queries.shape[:-1], values.shape[-1])
