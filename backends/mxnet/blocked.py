"""Attention in blocks, in MXNet: the same numbers without the arrays of all queries, keys and features."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate

import mxnet as mx
from mxnet import autograd, np, npx

from attention_core.errors import check_path
from backends.mxnet.masking import softmax_over
from backends.mxnet.pooling import average, shown

__all__ = ["takes_blocks", "force", "blocked_additive_score", "blocked_additive_attention", "blocked_dot_attention"]

ADDITIVE_LEAST = 2**19
"""The elements, batch · heads · queries · keys · hidden_size, from which on blocks are faster on a CPU."""

DOT_LEAST = 2**24
"""The elements, batch · heads · queries · keys · features, from which on a context alone is faster in blocks."""

STEPS_LEAST = 2**12
"""The elements of a decoder's step, batch · keys · hidden_size, from which on one function for all steps is faster."""

DOT_BLOCK = 2**21
"""The scores of a block, unless one head of one sequence has more."""

SCORES = 2**17
"""The additive scores that are pooled at once, unless one query has more: they are made of blocks of their own."""

BLOCK = 2**21
"""The elements of a block, few enough for a cache, and enough to outweigh the cost of a call."""

FEATURES = 32
"""The features of a block: fewer give the sum over features too little to do, more leave the products too few rows."""

SPREAD = 4
"""The features of a block for which the gradient of the scores is multiplied by w_v at once."""

forced: str | None = None


def takes_blocks(queries: np.ndarray, keys: np.ndarray, least: int) -> bool:
    """Whether to compute in blocks: from `least` elements on, or as `force` says.

    elements = batch · heads · queries · keys · features

    A graph has no sizes and holds no blocks: there it is False, forced or not.
    """
    if isinstance(queries, mx.symbol.Symbol):
        return False
    return forced == "blocked" if forced else math.prod(queries.shape) * keys.shape[-2] >= least


def force(path: str | None) -> None:
    """Take one path for all sizes, "blocked" or "plain", or the one that suits them: None.

    For the whole process, which begins as the environment variable ATTENTION_PARITY_PATH says at the import. A
    graph, which holds no blocks, keeps the plain path.

    Raises: OptionError.
    """
    global forced
    check_path(path)
    forced = path


force(os.environ.get("ATTENTION_PARITY_PATH") or None)


def blocked_additive_score(queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray) -> np.ndarray:
    """Score each projected query against each projected key by a weighted tanh of their sum, block by block.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])

    With t[i, j, h] = tanh(queries[i, h] + keys[j, h]) and the gradient g of the scores,

    d w_v[h] = sum over i, j of g[i, j] t[i, j, h]
    d queries[i, h] = sum over j of s[i, j, h];  d keys[j, h] = sum over i of s[i, j, h]
    s[i, j, h] = g[i, j] w_v[h] (1 - t[i, j, h]²)

    A block holds t for some features, queries and keys: the backward pass computes it again. MXNet broadcasts and sums
    slowly and multiplies matrices fast: the features stand before queries and keys, where a sum of the two is the
    matrix product [queries, 1] [1; keys], and each sum above a product with w_v, g or ones.

    float16 is computed in float32. A second derivative raises MXNetError.

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), both with heads after batch or
    without; w_v (hidden_size,); the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    shape = (*queries.shape[:-1], keys.shape[-2])
    if queries.size == 0 or keys.size == 0:
        return np.zeros(shape, dtype=queries.dtype, ctx=queries.ctx)
    # Legacy arrays, of the same memory, reshape without a copy.
    arrays = rows_of(*(array.as_nd_ndarray() for array in (queries, keys, w_v)))
    if queries.dtype == "float16":
        arrays = [array.astype("float32") for array in arrays]
    score = score_of(queries, keys, {})
    # A Function writes no gradient behind an argument that wants none, and adds to none. With one argument that holds
    # all, it is always asked to write: the rest is left to operators of MXNet's own.
    recorded = autograd.is_recording()
    scores = score(mx.nd.concat(*arrays, dim=0)) if recorded else score.scores(*arrays)
    return scores.reshape(shape).as_np_ndarray().astype(queries.dtype, copy=False)


def blocked_additive_attention(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, mask: np.ndarray | None, w_v: np.ndarray
) -> np.ndarray:
    """Average the values by the softmax of additive scores, without keeping scores or weights.

    context = attention_pooling(additive_score(queries, keys, w_v), values, mask=mask), the context alone

    A block holds some queries of some sequences and heads, with all keys: its scores, weights and context. The backward
    pass computes its scores again, as blocked_additive_score does, and from them

    d values = wᵀ g;  d w = g valuesᵀ;  d scores = w (d w - sum over j of w[j] d w[j])

    with the weights w and g = d context; of d scores it makes what blocked_additive_score says. With a w_v that is not
    finite a score may be infinite: then all is computed plainly.

    float16 is computed in float32. A second derivative raises MXNetError.

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), values (batch, keys,
    value_features), with heads after batch or without; mask as in blocked_dot_attention; w_v (hidden_size,); returns
    the context, (batch, queries, value_features), with heads or without.
    """
    if 0 not in (queries.size, keys.size, values.size) and not finite(w_v.as_nd_ndarray()):
        keys = seen_by_some(mask, keys)
        hidden = np.expand_dims(queries, -2) + np.expand_dims(keys, -3)
        return plain_context(np.dot(npx.activation(hidden, act_type="tanh"), w_v), values, mask)
    return in_blocks(AdditiveContext, queries, keys, values, mask, w_v)


def blocked_dot_attention(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, mask: np.ndarray | None, scale: float
) -> np.ndarray:
    """Average the values by the softmax of scaled inner products, without keeping scores or weights.

    context = attention_pooling(scale · queries keysᵀ, values, mask=mask), the context alone

    A block holds all queries and keys of some sequences and heads, and the backward pass computes its weights w again.
    With g = d context,

    d values = wᵀ g;  d w = g valuesᵀ;  d scores = w (d w - sum over j of w[j] d w[j])
    d queries = scale · d scores keys;  d keys = scale · d scoresᵀ queries

    What is hidden gets -inf added to its score, and what a closed row gives is multiplied by 0: that holds of finite
    numbers. Where a score, a value or g is not, the block takes the plain formula, whose own where is slow in MXNet,
    and autograd its gradients.

    float16 is computed in float32. A second derivative raises MXNetError.

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features), with
    heads after batch or without; mask of the same rank, each axis its size or 1, or None; returns the context, (batch,
    queries, value_features), with heads or without.
    """
    return in_blocks(partial(DotContext, scale=scale), queries, keys, values, mask)


def in_blocks(
    function: Callable[..., Context],
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    mask: np.ndarray | None,
    *others: np.ndarray,
) -> np.ndarray:
    """The context, of a function of these arguments, with heads, and of all that is hidden from no query."""
    shape, dtype = (*queries.shape[:-1], values.shape[-1]), queries.dtype
    if 0 in shape or keys.shape[-2] == 0:  # over an empty axis, MXNet reads foreign memory or crashes
        return np.zeros(shape, dtype=dtype, ctx=queries.ctx)
    if queries.shape[-1] == 0:
        queries, keys = (np.zeros((*own.shape[:-1], 1), dtype=dtype, ctx=own.ctx) for own in (queries, keys))
        others = tuple(np.zeros((1,), dtype=dtype, ctx=own.ctx) for own in others)
    if queries.ndim == 3:
        queries, keys, values = (np.expand_dims(own, 1) for own in (queries, keys, values))
        mask = None if mask is None else np.expand_dims(mask, 1)
    keys, values = seen_by_some(mask, keys), seen_by_some(mask, values)
    wide = "float32" if dtype == "float16" else dtype
    arrays = [own.astype(wide, copy=False).as_nd_ndarray() for own in (queries, keys, values, *others)]
    context = function([own.shape for own in arrays], mask)
    # With one argument that holds all, as in blocked_additive_score.
    found = context(row_of(*arrays)) if autograd.is_recording() else context.run(*arrays)
    return found.as_np_ndarray().reshape(shape).astype(dtype, copy=False)


def seen_by_some(mask: np.ndarray | None, array: np.ndarray) -> np.ndarray:
    """Keys or values with 0 where they are hidden from all queries."""
    if mask is None:
        return array
    ones = np.ones((*mask.shape[:-2], 1, mask.shape[-2]), ctx=mask.ctx)
    seen = np.swapaxes(npx.batch_dot(ones, mask.astype("float32")), -2, -1) > 0
    return shown(np.broadcast_to(seen, (*array.shape[:-1], 1)), array)


Block = tuple[slice, ...]
"""Some sequences, some of their heads, and some queries of these."""

Room = dict[str, mx.nd.NDArray]
"""The large arrays of a block by name, of whose memory the next block makes its own."""


class Context(autograd.Function):
    """The context, and the gradients, of queries, keys, values and others that are one row of numbers.

    What is held beside them is of one block: its scores and weights.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], mask: np.ndarray | None, least: int, count: int) -> None:
        """Of blocks of so many scores, but of at least so many queries."""
        super().__init__()
        self.shapes, self.mask = shapes, mask
        (batch, heads, rows, _), columns = shapes[0], shapes[1][2]
        height = min(rows, max(least, count // columns))
        items = max(1, count // (height * columns))
        self.blocks = [
            (own, some, part)
            for own in cut(batch, max(1, items // heads))
            for some in cut(heads, min(heads, items))
            for part in cut(rows, height)
        ]

    def scores(self, room: Room, queries: mx.nd.NDArray, keys: mx.nd.NDArray, *others: mx.nd.NDArray) -> mx.nd.NDArray:
        """The scores of a block."""
        raise NotImplementedError

    def gradients(
        self, room: Room, d_scores: mx.nd.NDArray, queries: mx.nd.NDArray, keys: mx.nd.NDArray, *others: mx.nd.NDArray
    ) -> Sequence[mx.nd.NDArray]:
        """The gradients of what the scores of a block are made of."""
        raise NotImplementedError

    def forward(self, row: mx.nd.NDArray) -> mx.nd.NDArray:
        """The context."""
        self.row = row
        return self.run(*parts(row, self.shapes))

    def run(
        self, queries: mx.nd.NDArray, keys: mx.nd.NDArray, values: mx.nd.NDArray, *others: mx.nd.NDArray
    ) -> mx.nd.NDArray:
        """The context, block by block."""
        context = mx.nd.empty((*queries.shape[:3], values.shape[3]), dtype=values.dtype, ctx=values.ctx)
        room: Room = {}
        for block in self.blocks:
            scores = self.scores(room, queries[block], keys[block[:2]], *others)
            context[block] = pooled(scores, values[block[:2]], self.part(block))
        return context

    @mx.util.use_np  # another thread calls it, in which MXNet's NumPy mode is off
    def backward(self, g: mx.nd.NDArray) -> mx.nd.NDArray:
        """The gradients, as one row."""
        queries, keys, values, *others = parts(self.row, self.shapes)
        row = self.row.zeros_like()
        d_queries, d_keys, d_values, *totals = parts(row, self.shapes)
        room: Room = {}
        for block in self.blocks:
            given = queries[block], keys[block[:2]], *others
            d_scores, slope = pooled_gradients(g[block], self.scores(room, *given), values[block[:2]], self.part(block))
            d_values[block[:2]] += slope
            d_queries[block], slope, *slopes = self.gradients(room, d_scores, *given)
            d_keys[block[:2]] += slope
            for total, own in zip(totals, slopes, strict=True):
                total += own
        return row

    def part(self, block: Block) -> np.ndarray | None:
        """The mask of a block, of whose axes one entry may stand for all."""
        if self.mask is None:
            return None
        return self.mask[
            tuple(own if size > 1 else slice(None) for own, size in zip(block, self.mask.shape, strict=False))
        ]


class DotContext(Context):
    """Of scaled inner products; a block has all queries of a head."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], mask: np.ndarray | None, scale: float) -> None:
        super().__init__(shapes, mask, shapes[0][2], DOT_BLOCK)
        self.scale = scale

    def scores(self, room: Room, queries: mx.nd.NDArray, keys: mx.nd.NDArray) -> mx.nd.NDArray:
        """Give scale · queries keysᵀ."""
        return mx.nd.linalg.gemm2(queries, keys, transpose_b=True, alpha=self.scale)

    def gradients(
        self, room: Room, d_scores: mx.nd.NDArray, queries: mx.nd.NDArray, keys: mx.nd.NDArray
    ) -> Sequence[mx.nd.NDArray]:
        """Give scale · d_scores keys, and scale · d_scoresᵀ queries."""
        return (
            mx.nd.linalg.gemm2(d_scores, keys, alpha=self.scale),
            mx.nd.linalg.gemm2(d_scores, queries, transpose_a=True, alpha=self.scale),
        )


class AdditiveContext(Context):
    """Of additive scores."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], mask: np.ndarray | None) -> None:
        super().__init__(shapes, mask, 1, SCORES)

    def scores(self, room: Room, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray) -> mx.nd.NDArray:
        """As blocked_additive_score."""
        scores = score_of(queries, keys, room).scores(*rows_of(queries, keys, w_v))
        return scores.reshape((*queries.shape[:3], -1))

    def gradients(
        self, room: Room, d_scores: mx.nd.NDArray, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray
    ) -> Sequence[mx.nd.NDArray]:
        """As of blocked_additive_score."""
        flat = d_scores.reshape((-1, *d_scores.shape[2:]))
        found = score_of(queries, keys, room).gradients(flat, *rows_of(queries, keys, w_v))
        return [own.reshape(like.shape) for own, like in zip(found, (queries, keys, w_v), strict=True)]


def pooled(scores: mx.nd.NDArray, values: mx.nd.NDArray, mask: np.ndarray | None) -> mx.nd.NDArray:
    """The context of a block."""
    if not (finite(scores) and finite(values)):
        return plain_context(scores.as_np_ndarray(), values.as_np_ndarray(), mask).as_nd_ndarray()
    weights, kept = weights_of(scores, mask)
    return rows_kept(mx.nd.linalg.gemm2(weights, values), kept)


def pooled_gradients(
    g: mx.nd.NDArray, scores: mx.nd.NDArray, values: mx.nd.NDArray, mask: np.ndarray | None
) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """The gradients of the scores and values of a block."""
    if not (finite(scores) and finite(values) and finite(g)):
        return plain_gradients(g, scores, values, mask)
    weights, kept = weights_of(scores, mask)
    g = rows_kept(g, kept)
    d_scores = mx.nd.linalg.gemm2(g, values, transpose_b=True)
    mx.nd._internal._backward_softmax(d_scores, weights, axis=-1, out=d_scores)
    return d_scores, mx.nd.linalg.gemm2(weights, g, transpose_a=True)


def weights_of(scores: mx.nd.NDArray, mask: np.ndarray | None) -> tuple[mx.nd.NDArray, mx.nd.NDArray | None]:
    """The weights of finite scores, and 0 for each closed row."""
    if mask is None:
        return mx.nd.softmax(scores), None
    seen = mask.astype(scores.dtype).as_nd_ndarray()
    kept = seen.max(axis=-1, keepdims=True)
    # ln 1 = 0 and ln 0 = -inf; a closed row keeps its scores, so that its softmax is finite.
    bias = mx.nd.log(mx.nd.broadcast_maximum(seen, 1 - kept))
    return mx.nd.softmax(mx.nd.broadcast_add(scores, bias)), kept


def plain_context(scores: np.ndarray, values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """The context of a block by the formula of attention_pooling."""
    allowed = scores != -np.inf
    if mask is not None:
        allowed = allowed * mask
    return average(mx, softmax_over(mx, scores, allowed), values, allowed, None)


def plain_gradients(
    g: mx.nd.NDArray, scores: mx.nd.NDArray, values: mx.nd.NDArray, mask: np.ndarray | None
) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """The gradients of a block, as autograd finds them of the plain formula."""
    given = [own.copy().as_np_ndarray() for own in (scores, values)]
    for own in given:
        own.attach_grad()
    with autograd.record():
        context = plain_context(given[0], given[1], mask)
    context.backward(g.as_np_ndarray())
    d_scores, d_values = (own.grad.as_nd_ndarray() for own in given)
    return d_scores, d_values


class Score(autograd.Function):
    """The scores, and the gradients, of queries, keys and w_v that are the rows of one matrix."""

    def __init__(self, items: int, queries: int, keys: int, features: int, room: Room) -> None:
        super().__init__()
        self.sizes, self.room = (items, queries, keys, features), room

    def scores(self, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray) -> mx.nd.NDArray:
        """The scores, (items, queries, keys)."""
        raise NotImplementedError

    def gradients(
        self, g: mx.nd.NDArray, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray
    ) -> tuple[mx.nd.NDArray, mx.nd.NDArray, mx.nd.NDArray]:
        """The gradients of the arguments, in their shapes."""
        raise NotImplementedError

    def arguments(self, matrix: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray, mx.nd.NDArray]:
        """The queries, the keys and w_v, (1, features), of which the rows of the matrix are made."""
        first = self.sizes[0] * self.sizes[1]
        return matrix[:first], matrix[first:-1], matrix[-1:]

    def forward(self, matrix: mx.nd.NDArray) -> mx.nd.NDArray:
        """The scores."""
        self.save_for_backward(matrix)
        return self.scores(*self.arguments(matrix))

    @mx.util.use_np  # another thread calls it, in which MXNet's NumPy mode is off
    def backward(self, g: mx.nd.NDArray) -> mx.nd.NDArray:
        """The gradients, as the rows of one matrix."""
        return mx.nd.concat(*self.gradients(g, *self.arguments(*self.saved_tensors)), dim=0)


class AdditiveScore(Score):
    """Block by block.

    The arrays of a block are made once for all blocks, since the system clears each new one, and since what is freed is
    seldom taken again as it is.
    """

    def __init__(self, items: int, queries: int, keys: int, features: int, room: Room) -> None:
        super().__init__(items, queries, keys, features, room)
        depth = min(features, FEATURES)
        height = min(queries, max(1, BLOCK // (depth * keys)))
        count = min(items, max(1, BLOCK // (depth * height * keys)))
        self.area = count * height * keys
        self.blocks = [(own, rows) for own in cut(items, count) for rows in cut(queries, height)]
        self.columns = cut(features, depth)

    def factors(self, queries: mx.nd.NDArray, keys: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """[queries, 1], (features, items, queries, 2), and [1; keys], (features, items, 2, keys)."""
        items, rows, columns, features = self.sizes
        left = queries.reshape((items, rows, features)).transpose((2, 0, 1))
        right = keys.reshape((items, columns, features)).transpose((2, 0, 1))
        return mx.nd.stack(left, left.ones_like(), axis=3), mx.nd.stack(right.ones_like(), right, axis=2)

    def scores(self, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray) -> mx.nd.NDArray:
        """The scores, (items, queries, keys)."""
        like = {"dtype": w_v.dtype, "ctx": w_v.ctx}
        left, right = self.factors(queries, keys)
        scores, place = mx.nd.empty(self.sizes[:3], **like), taken(self.room, "t", FEATURES * self.area, w_v)
        for own, rows in self.blocks:
            summed = mx.nd.zeros((1,), **like)
            for some in self.columns:
                t = tangents(left, right, (some, own, rows), place)
                summed = mx.nd.batch_dot(w_v[:, some].expand_dims(0), t.reshape((1, t.shape[0], -1))) + summed
            scores[own, rows] = summed.reshape(t.shape[1:])
        return scores

    def gradients(
        self, g: mx.nd.NDArray, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray
    ) -> tuple[mx.nd.NDArray, mx.nd.NDArray, mx.nd.NDArray]:
        """The gradients of the arguments, in their shapes."""
        like = {"dtype": w_v.dtype, "ctx": w_v.ctx}
        left, right = self.factors(queries, keys)
        items, rows_of_all, columns_of_all, features = self.sizes
        d_queries = mx.nd.zeros((features, items, rows_of_all), **like)
        d_keys = mx.nd.zeros((features, items, columns_of_all), **like)
        d_w_v = mx.nd.zeros((features,), **like)
        place = taken(self.room, "t", FEATURES * self.area, w_v)
        spread = taken(self.room, "g", SPREAD * self.area, w_v)
        for own, rows in self.blocks:
            flat = g[own, rows].reshape((1, -1))
            for some in self.columns:
                t = tangents(left, right, (some, own, rows), place)
                depth, count, height, width = t.shape
                s, weights = t.reshape((depth, -1)), w_v[0, some].reshape((-1, 1))
                d_w_v[some] += row_sums(s, flat)
                for few in cut(depth, SPREAD):
                    several = spread[: (few.stop - few.start) * flat.size].reshape((-1, flat.size))
                    mx.nd.linalg.gemm2(weights[few], flat, out=several)
                    mx.nd._internal._backward_tanh(several, s[few], out=s[few])
                sums = row_sums(s.reshape((-1, width)), mx.nd.ones((1, width), **like))
                d_queries[some, own, rows] = sums.reshape((depth, count, height))
                ones = mx.nd.ones((depth * count, 1, height), **like)
                d_keys[some, own] += mx.nd.batch_dot(ones, s.reshape((-1, height, width))).reshape(
                    (depth, count, width)
                )
        return d_queries.reshape((features, -1)).T, d_keys.reshape((features, -1)).T, d_w_v.reshape((1, -1))


class OneQuery(Score):
    """Of one query, as in a decoder's step: t is no larger than the keys, and takes one block, laid out as they."""

    def tanh(self, queries: mx.nd.NDArray, keys: mx.nd.NDArray) -> mx.nd.NDArray:
        """t, (items · keys, features)."""
        items, _, columns, features = self.sizes
        return query_tangents(queries, keys.reshape((items, columns, features))).reshape((-1, features))

    def scores(self, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray) -> mx.nd.NDArray:
        """The scores, (items, 1, keys)."""
        return row_sums(self.tanh(queries, keys), w_v).reshape(self.sizes[:3])

    def gradients(
        self, g: mx.nd.NDArray, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray
    ) -> tuple[mx.nd.NDArray, mx.nd.NDArray, mx.nd.NDArray]:
        """The gradients of the arguments, in their shapes."""
        items, _, columns, features = self.sizes
        t, flat = self.tanh(queries, keys), g.reshape((1, 1, -1))
        d_w_v = mx.nd.batch_dot(flat, t.expand_dims(0)).reshape((1, -1))
        d_keys = mx.nd.batch_dot(flat, w_v.expand_dims(0), transpose_a=True).reshape((-1, features))
        mx.nd._internal._backward_tanh(d_keys, t, out=d_keys)
        ones = mx.nd.ones((items, 1, columns), dtype=g.dtype, ctx=g.ctx)
        d_queries = mx.nd.batch_dot(ones, d_keys.reshape((items, columns, features))).reshape((-1, features))
        return d_queries, d_keys, d_w_v


class Steps(autograd.Function):
    """All steps of a GRU with additive attention by its previous output, as one function.

    context[t], weights[t] = attention(h[t - 1] of the top layer, memory)
    h[t] = gru([context[t]; embedded[t]], h[t - 1])

    MXNet's cost is by call, and its autograd copies and sums all that a step reads, parameters and memory, at each
    step. Here the loop is written out in both directions, and what all steps add to is added to in place. With the
    inputs x of a layer, its state h before a step, a = W x + b, c = U h + [0; 0; b_hn], and the gradient d of h',

    r, z = σ(a + c);  n = tanh(a_n + r c_n);  h' = n + z (h - n)
    d a_n = d (1 - z) (1 - n²);  d c_n = r d a_n;  d r = c_n d a_n r (1 - r);  d z = d (h - n) z (1 - z)
    d h = z d + Uᵀ [d r; d z; d c_n];  d x = Wᵀ [d r; d z; d a_n];  d U += [...] hᵀ;  d W += [...] xᵀ

    Features stand before the batch: there the gates are rows of one array, c_n, r, z, n, and their parts no copies. It
    begins as the biases, to which products are added. The gradients of attention are those of the softmax s and of
    blocked_additive_score:

    d s = values · d context;  d scores = s (d s - sum over j of s[j] d s[j])

    MXNet's product with one row is slow, and that with one column is not: so features stand before the keys in values,
    and in the backward pass in keys. A second derivative raises MXNetError.

    Shapes: embedded (steps, batch, embed_size), state (layers, hidden_size, batch); keys, projected, (batch, keys,
    size), and values (batch, keys, features), both 0 where the mask, (batch, keys) or None, is; W_q (size,
    hidden_size), w_v (1, size); W, U, b and b_hn of each layer, as matrices. Gives (outputs, state, contexts, weights):
    (steps, batch, hidden_size), as state, (steps, batch, features), (steps, batch, keys).
    """

    def __init__(self, mask: mx.nd.NDArray | None, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.mask, self.shapes = mask, shapes

    def forward(self, row: mx.nd.NDArray) -> tuple[mx.nd.NDArray, ...]:
        """The outputs, of arguments that are one row of numbers; what the backward pass needs is kept."""
        self.row = row
        return self.run(*parts(row, self.shapes), keep=True)

    def run(
        self,
        embedded: mx.nd.NDArray,
        state: mx.nd.NDArray,
        keys: mx.nd.NDArray,
        values: mx.nd.NDArray,
        W_q: mx.nd.NDArray,
        w_v: mx.nd.NDArray,
        *layers: mx.nd.NDArray,
        keep: bool = False,
    ) -> tuple[mx.nd.NDArray, ...]:
        """The outputs."""
        like = {"dtype": keys.dtype, "ctx": keys.ctx}
        (steps, batch, embed_size), (count, size, _), (_, width, features) = embedded.shape, state.shape, values.shape
        kept = steps if keep else 1
        self.inputs = mx.nd.empty((kept, features + embed_size, batch), **like)
        self.states = [mx.nd.empty((kept + 1, size, batch), **like) for _ in range(count)]
        self.gates = [mx.nd.empty((kept, 4 * size, batch), **like) for _ in range(count)]
        self.queries = mx.nd.empty((kept, batch, keys.shape[-1]), **like)
        for held, own in zip(self.states, state, strict=True):
            held[0] = own
        network = []
        for W, U, b, b_hn in grouped(layers):
            biases = mx.nd.broadcast_axis(mx.nd.concat(b_hn, b, dim=0), axis=1, size=batch)
            network.append((W, U[: 2 * size], U[2 * size :], biases))
        outputs, contexts, self.weights = (
            mx.nd.empty((steps, batch, last), **like) for last in (size, features, width)
        )
        place, values = mx.nd.empty(keys.shape, **like), values.swapaxes(1, 2)
        if self.mask is not None:  # a row without an open key keeps zeros: its softmax is finite, and no weight is left
            some = self.mask.max(axis=1, keepdims=True).broadcast_like(self.mask)
            hidden = mx.nd.where(some, mx.nd.full(some.shape, -math.inf, **like), some)
        for t in range(steps):
            step, before, after = t % kept, t % (kept + 1), (t + 1) % (kept + 1)
            query, inputs, weights, context = self.queries[step], self.inputs[step], self.weights[t], contexts[t]
            mx.nd.dot(self.states[-1][before], W_q, transpose_a=True, transpose_b=True, out=query)
            scores = row_sums(query_tangents(query, keys, place).reshape((-1, w_v.size)), w_v).reshape((batch, width))
            if self.mask is None:
                mx.nd.softmax(scores, out=weights)
            else:
                mx.nd.softmax(mx.nd.where(self.mask, scores, hidden), out=weights)
                weights *= self.mask
            mx.nd.batch_dot(values, weights.reshape((batch, width, 1)), out=context.reshape((batch, features, 1)))
            mx.nd.transpose(context, out=inputs[:features])
            mx.nd.transpose(embedded[t], out=inputs[features:])
            for (W, U, U_n, biases), held, gates in zip(network, self.states, self.gates, strict=True):
                rows, h, new, (c_n, r, z, n) = gates[step], held[before], held[after], quarters(gates[step])
                biases.copyto(rows)
                add_product(W, inputs, rows[size:])
                add_product(U, h, rows[size:-size])
                add_product(U_n, h, c_n)
                mx.nd.Activation(rows[size:-size], act_type="sigmoid", out=rows[size:-size])
                n += r * c_n
                mx.nd.Activation(n, act_type="tanh", out=n)
                mx.nd.elemwise_sub(h, n, out=new)
                new *= z
                new += n
                inputs = new
            mx.nd.transpose(inputs, out=outputs[t])
        ends = mx.nd.stack(*(held[steps % (kept + 1)] for held in self.states))
        return outputs, ends, contexts, self.weights

    @mx.util.use_np  # another thread calls it, in which MXNet's NumPy mode is off
    def backward(
        self, d_outputs: mx.nd.NDArray, d_ends: mx.nd.NDArray, d_contexts: mx.nd.NDArray, d_weights: mx.nd.NDArray
    ) -> mx.nd.NDArray:
        """The gradients, as one row."""
        _, _, keys, values, W_q, w_v, *layers = parts(self.row, self.shapes)
        like = {"dtype": keys.dtype, "ctx": keys.ctx}
        (steps, batch, size), (_, width, features) = d_outputs.shape, values.shape
        d_embedded, d_contexts = mx.nd.empty(self.shapes[0], **like), d_contexts.copy()
        d_inputs, d_rows = self.inputs[0].zeros_like(), self.gates[0][0].zeros_like()
        d_c_n, d_r, d_z, d_n = quarters(d_rows)
        d_states = [own.copy() for own in d_ends]
        keys = keys.swapaxes(1, 2)
        d_keys, places = keys.zeros_like(), [mx.nd.empty(keys.shape, **like) for _ in range(2)]
        d_W_q, network = W_q.zeros_like(), []
        for W, U, *_ in grouped(layers):
            network.append((W, U, W.zeros_like(), U.zeros_like(), mx.nd.zeros((4 * size, batch), **like)))
        d_w_v = mx.nd.zeros((batch, w_v.size, 1), **like)
        ones, weights = mx.nd.ones((1, width), **like), mx.nd.broadcast_axis(w_v.T.expand_dims(0), 0, batch)
        for t in reversed(range(steps)):
            top = d_states[-1]
            top += mx.nd.transpose(d_outputs[t])
            d_inputs[:] = 0
            for layer in reversed(range(len(self.states))):
                W, U, d_W, d_U, d_biases = network[layer]
                h, d, (c_n, r, z, n) = self.states[layer][t], d_states[layer], quarters(self.gates[layer][t])
                inputs = self.states[layer - 1][t + 1] if layer else self.inputs[t]
                d_below = d_states[layer - 1] if layer else d_inputs
                mx.nd.elemwise_sub(h, n, out=d_z)
                d_z *= d
                mx.nd._internal._backward_sigmoid(d_z, z, out=d_z)
                kept = z * d
                mx.nd.elemwise_sub(d, kept, out=d_n)
                mx.nd._internal._backward_tanh(d_n, n, out=d_n)
                mx.nd.elemwise_mul(d_n, c_n, out=d_r)
                mx.nd._internal._backward_sigmoid(d_r, r, out=d_r)
                mx.nd.elemwise_mul(d_n, r, out=d_c_n)
                kept.copyto(d)
                d_biases += d_rows
                add_product(W, d_rows[size:], d_below, transpose_a=True)
                add_product(d_rows[size:], inputs, d_W, transpose_b=True)
                for part, own in ((slice(None, -size), d_rows[size:-size]), (slice(-size, None), d_c_n)):
                    add_product(U[part], own, d, transpose_a=True)
                    add_product(own, h, d_U[part], transpose_b=True)
            mx.nd.transpose(d_inputs[features:], out=d_embedded[t])
            d_context = d_contexts[t]
            d_context += mx.nd.transpose(d_inputs[:features])
            d_s = mx.nd.batch_dot(values, d_context.reshape((batch, features, 1))).reshape((batch, width))
            g = mx.nd._internal._backward_softmax(d_s + d_weights[t], self.weights[t], axis=-1)
            query = self.queries[t]
            tanh = query_tangents(query, keys, places[0], transposed=True)
            d_w_v += mx.nd.batch_dot(tanh, g.reshape((batch, width, 1)))
            mx.nd.batch_dot(weights, g.reshape((batch, 1, width)), out=places[1])
            mx.nd._internal._backward_tanh(places[1], tanh, out=places[1])
            d_keys += places[1]
            d_query = row_sums(places[1].reshape((-1, width)), ones).reshape(query.shape)
            add_product(d_query, self.states[-1][t], d_W_q, transpose_a=True, transpose_b=True)
            add_product(W_q, d_query, top, transpose_a=True, transpose_b=True)
        d_values = mx.nd.batch_dot(self.weights.swapaxes(0, 1), d_contexts.swapaxes(0, 1), transpose_a=True)
        d_layers = []
        for _, _, d_W, d_U, d_biases in network:
            d_b = d_biases.sum(axis=1)
            d_layers += [d_W, d_U, d_b[size:], d_b[:size]]
        d_state = mx.nd.stack(*d_states)
        return row_of(d_embedded, d_state, d_keys.swapaxes(1, 2), d_values, d_W_q, d_w_v.sum(axis=0), *d_layers)


def blocked_steps(
    embedded: np.ndarray,
    state: np.ndarray,
    memory: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    attention: tuple[np.ndarray, np.ndarray],
    layers: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """All steps of a GRU with additive attention by its previous output, as Steps computes them.

    Shapes: embedded (batch, steps, embed_size), state (layers, batch, hidden_size); memory: projected keys (batch,
    keys, size), values (batch, keys, features), a mask (batch or 1, 1, keys) or None; attention: W_q (size,
    hidden_size), w_v (size,); layers: W (3, hidden_size, inputs), U, b, b_hn of each. Returns (outputs, state,
    contexts, weights): (batch, steps, hidden_size), as state, (batch, steps, features), (batch, steps, keys).
    """
    (keys, values, mask), (W_q, w_v) = memory, attention
    given = [own.as_nd_ndarray() for own in (embedded.swapaxes(0, 1), state.swapaxes(1, 2), keys, values, W_q, w_v)]
    given[-1] = given[-1].reshape((1, -1))
    for W, U, b, b_hn in layers:
        matrices = (W, W.shape[-1]), (U, U.shape[-1]), (b, 1), (b_hn, 1)
        given += [own.as_nd_ndarray().reshape((-1, columns)) for own, columns in matrices]
    if mask is not None:
        mask = np.broadcast_to(mask[:, 0], keys.shape[:2]).astype(keys.dtype).as_nd_ndarray()
    steps = Steps(mask, [array.shape for array in given])
    # With one argument that holds all, as in blocked_additive_score.
    found = steps(row_of(*given)) if autograd.is_recording() else steps.run(*given)
    outputs, state, contexts, weights = (array.as_np_ndarray() for array in found)
    return outputs.swapaxes(0, 1), state.swapaxes(1, 2), contexts.swapaxes(0, 1), weights.swapaxes(0, 1)


def score_of(queries: np.ndarray, keys: np.ndarray, room: Room) -> Score:
    """What scores arrays of these sizes, in that room."""
    items, (rows, features) = math.prod(queries.shape[:-2]), queries.shape[-2:]
    return (OneQuery if rows == 1 else AdditiveScore)(items, rows, keys.shape[-2], features, room)


def taken(room: Room, name: str, length: int, like: mx.nd.NDArray) -> mx.nd.NDArray:
    """The array of that name, at least of that length."""
    if name not in room or room[name].size < length:
        room[name] = mx.nd.empty((length,), dtype=like.dtype, ctx=like.ctx)
    return room[name]


def rows_of(*arrays: mx.nd.NDArray) -> list[mx.nd.NDArray]:
    """All of them as matrices, of as many columns as the first has features."""
    return [array.reshape((-1, arrays[0].shape[-1])) for array in arrays]


def row_of(*arrays: mx.nd.NDArray) -> mx.nd.NDArray:
    """All of them in one row."""
    return mx.nd.concat(*(array.reshape((-1,)) for array in arrays), dim=0)


def parts(row: mx.nd.NDArray, shapes: Sequence[tuple[int, ...]]) -> list[mx.nd.NDArray]:
    """The arrays of those shapes of which a row was made, in the same memory."""
    ends = list(accumulate(map(math.prod, shapes)))
    places = zip([0, *ends], ends, shapes, strict=False)
    return [row[start:end].reshape(shape) for start, end, shape in places]


def finite(array: mx.nd.NDArray) -> bool:
    """Whether every entry is: 0 times another is NaN, as is the sum."""
    rows = array.reshape((-1, array.shape[-1]))
    zeros = mx.nd.zeros((1, rows.shape[1]), dtype=array.dtype, ctx=array.ctx)
    return bool(row_sums(rows, zeros).sum().asscalar() == 0)


def rows_kept(rows: mx.nd.NDArray, kept: mx.nd.NDArray | None) -> mx.nd.NDArray:
    """The rows, 0 where they are closed."""
    return rows if kept is None else mx.nd.broadcast_mul(rows, kept)


def grouped(layers: Sequence[mx.nd.NDArray]) -> Iterator[tuple[mx.nd.NDArray, ...]]:
    """W, U, b and b_hn of each layer."""
    return zip(layers[::4], layers[1::4], layers[2::4], layers[3::4], strict=True)


def quarters(rows: mx.nd.NDArray) -> list[mx.nd.NDArray]:
    """The four parts of the rows, in the same memory."""
    size = rows.shape[0] // 4
    return [rows[part * size : (part + 1) * size] for part in range(4)]


def add_product(left: mx.nd.NDArray, right: mx.nd.NDArray, total: mx.nd.NDArray, **transposed: bool) -> None:
    """Add the product of two matrices, in place."""
    mx.nd.linalg.gemm(left, right, total, beta=1.0, out=total, **transposed)


def query_tangents(
    queries: mx.nd.NDArray, keys: mx.nd.NDArray, place: mx.nd.NDArray | None = None, *, transposed: bool = False
) -> mx.nd.NDArray:
    """Give tanh(queries[i] + keys[i, j]) of one query an item, at that place.

    Shapes: queries (items, features), keys and the result (items, keys, features), or transposed, (items, features,
    keys).
    """
    (items, features), count = queries.shape, keys.shape[2 if transposed else 1]
    factors = [mx.nd.ones((items, count, 1), dtype=keys.dtype, ctx=keys.ctx), queries.reshape((items, 1, features))]
    if transposed:
        factors = [array.reshape((items, array.shape[2], array.shape[1])) for array in reversed(factors)]
    t = mx.nd.linalg.gemm(*factors, keys, beta=1.0, out=place)
    return mx.nd.Activation(t, act_type="tanh", out=t)


def cut(size: int, length: int) -> list[slice]:
    """The slices of that length that make up an axis of that size; the last may be shorter."""
    return [slice(start, min(start + length, size)) for start in range(0, size, length)]


def tangents(
    left: mx.nd.NDArray, right: mx.nd.NDArray, part: tuple[slice, slice, slice], place: mx.nd.NDArray
) -> mx.nd.NDArray:
    """The tanh of the products of matrices, (features, items, queries, keys), of that part, at that place."""
    left, right = left[part], right[part[:2]]
    shape = (*left.shape[:3], right.shape[3])
    flat = place[: math.prod(shape)].reshape((-1, *shape[2:]))
    mx.nd.batch_dot(left.reshape((-1, shape[2], 2)), right.reshape((-1, 2, shape[3])), out=flat)
    return mx.nd.Activation(flat, act_type="tanh", out=flat).reshape(shape)


def row_sums(rows: mx.nd.NDArray, weights: mx.nd.NDArray) -> mx.nd.NDArray:
    """The sum of each row, weighted; this operator is several times faster than a product of matrices."""
    return mx.nd.FullyConnected(rows, weights, num_hidden=1, no_bias=True).reshape((-1,))
