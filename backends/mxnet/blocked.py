"""Additive scores in blocks, in MXNet: the same numbers without the array of all queries, keys and features."""

from __future__ import annotations

import math
import os

import mxnet as mx
from mxnet import autograd, np

from attention_core.errors import OptionError

__all__ = ["takes_blocks", "force", "blocked_additive_score"]

LEAST = 2**18
"""The elements, batch · heads · queries · keys · hidden_size, from which on blocks are faster on a CPU."""

BLOCK = 2**21
"""The elements of a block, few enough for a cache, and enough to outweigh the cost of a call."""

FEATURES = 32
"""The features of a block: fewer give the sum over features too little to do, more leave the products too few rows."""

choice: str | None = None


def takes_blocks(queries: np.ndarray, keys: np.ndarray) -> bool:
    """Whether scores of these projected queries and keys are computed in blocks.

    batch · heads · queries · keys · hidden_size >= LEAST, unless `force` or the environment variable
    ATTENTION_PARITY_PATH ("blocked" or "plain", read at the import) says otherwise.

    In a graph nothing has a size, nor can it hold blocks: there it is False, forced or not.

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), both with heads after batch or
    without.
    """
    if isinstance(queries, mx.symbol.Symbol):
        return False
    return choice == "blocked" if choice else math.prod(queries.shape) * keys.shape[-2] >= LEAST


def force(path: str | None) -> None:
    """Take the "blocked" or the "plain" path from here on, whatever the sizes; with None, as takes_blocks says.

    Raises: OptionError.
    """
    global choice
    if path not in ("blocked", "plain", None):
        raise OptionError(f"force: path is {path!r}, expected one of 'blocked', 'plain', None.")
    choice = path


def blocked_additive_score(queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray) -> np.ndarray:
    """Score each projected query against each projected key by a weighted tanh of their sum, block by block.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])

    tanh(x) = 2σ(2x) - 1, and MXNet's σ is faster than its tanh. So, with r[i, j, h] = σ(2 queries[i, h] + 2 keys[j, h])
    and the gradient g of the scores,

    scores[i, j] = 2 sum over h of w_v[h] r[i, j, h] - sum over h of w_v[h]
    d w_v[h] = 2 sum over i, j of g[i, j] r[i, j, h] - sum over i, j of g[i, j]
    d queries[i, h] = 4 w_v[h] sum over j of s[i, j, h];  d keys[j, h] = 4 w_v[h] sum over i of s[i, j, h]
    s[i, j, h] = g[i, j] r[i, j, h] (1 - r[i, j, h])

    A block holds r for some features, queries and keys: the backward pass computes it again. MXNet broadcasts and sums
    slowly and multiplies matrices fast: the features stand before queries and keys, where a sum of the two is the
    matrix product [queries, 1] [1; keys], and each sum above a product with w_v, g or ones.

    float16 is computed in float32. A second derivative raises MXNetError.

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), both with heads after batch or
    without; w_v (hidden_size,); the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    shape, (rows, features) = (*queries.shape[:-1], keys.shape[-2]), queries.shape[-2:]
    items = math.prod(shape[:-2])
    if queries.size == 0 or keys.size == 0:
        return np.zeros(shape, dtype=queries.dtype, ctx=queries.ctx)
    # Legacy arrays, of the same memory, reshape without a copy.
    arrays = [array.as_nd_ndarray().reshape((-1, features)) for array in (queries, keys, w_v)]
    if queries.dtype == "float16":
        arrays = [array.astype("float32") for array in arrays]
    score = (OneQuery if rows == 1 else AdditiveScore)(items, rows, shape[-1], features)
    # A Function writes no gradient behind an argument that wants none, and adds to none. With one argument that holds
    # all, it is always asked to write: the rest is left to operators of MXNet's own.
    recorded = autograd.is_recording()
    scores = score(mx.nd.concat(*arrays, dim=0)) if recorded else score.scores(*arrays)
    return scores.reshape(shape).as_np_ndarray().astype(queries.dtype, copy=False)


class Score(autograd.Function):
    """The scores, and the gradients, of queries, keys and w_v that are the rows of one matrix."""

    def __init__(self, items: int, queries: int, keys: int, features: int) -> None:
        super().__init__()
        self.sizes = items, queries, keys, features

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

    The arrays of a block are made once for all blocks, since MXNet has each new one cleared by the system.
    """

    def __init__(self, items: int, queries: int, keys: int, features: int) -> None:
        super().__init__(items, queries, keys, features)
        depth = min(features, FEATURES)
        height = min(queries, max(1, BLOCK // (depth * keys)))
        count = min(items, max(1, BLOCK // (depth * height * keys)))
        self.length = depth * count * height * keys
        self.blocks = [(own, rows) for own in cut(items, count) for rows in cut(queries, height)]
        self.columns = cut(features, depth)

    def factors(self, queries: mx.nd.NDArray, keys: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """[2 queries, 1], (features, items, queries, 2), and [1; 2 keys], (features, items, 2, keys)."""
        items, rows, columns, features = self.sizes
        left = 2 * queries.reshape((items, rows, features)).transpose((2, 0, 1))
        right = 2 * keys.reshape((items, columns, features)).transpose((2, 0, 1))
        return mx.nd.stack(left, left.ones_like(), axis=3), mx.nd.stack(right.ones_like(), right, axis=2)

    def scores(self, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray) -> mx.nd.NDArray:
        """The scores, (items, queries, keys)."""
        like = {"dtype": w_v.dtype, "ctx": w_v.ctx}
        left, right = self.factors(queries, keys)
        scores, place = mx.nd.empty(self.sizes[:3], **like), mx.nd.empty((self.length,), **like)
        for own, rows in self.blocks:
            summed = -w_v.sum()
            for some in self.columns:
                r = sigmoids(left, right, (some, own, rows), place)
                summed = mx.nd.batch_dot(2 * w_v[:, some].expand_dims(0), r.reshape((1, r.shape[0], -1))) + summed
            scores[own, rows] = summed.reshape(r.shape[1:])
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
        places = [mx.nd.empty((self.length,), **like) for _ in range(2)]
        for own, rows in self.blocks:
            flat, spread = g[own, rows].reshape((1, -1)), None
            for some in self.columns:
                r = sigmoids(left, right, (some, own, rows), places[0])
                (depth, count, height, width), length = r.shape, r.size
                if spread is None:  # g for each feature of a block
                    spread = places[1][:length]
                    ones = mx.nd.ones((1, depth, 1), **like)
                    mx.nd.batch_dot(ones, flat.expand_dims(0), out=spread.reshape((1, depth, -1)))
                d_w_v[some] += 2 * row_sums(r.reshape((depth, -1)), flat)
                s = r.reshape((-1,))
                mx.nd._internal._backward_sigmoid(spread[:length], s, out=s)
                sums = row_sums(s.reshape((-1, width)), mx.nd.ones((1, width), **like))
                d_queries[some, own, rows] = sums.reshape((depth, count, height))
                ones = mx.nd.ones((depth * count, 1, height), **like)
                d_keys[some, own] += mx.nd.batch_dot(ones, s.reshape((-1, height, width))).reshape(
                    (depth, count, width)
                )
        d_queries, d_keys = (4 * array.reshape((features, -1)).T * w_v for array in (d_queries, d_keys))
        return d_queries, d_keys, (d_w_v - g.sum()).reshape((1, -1))


class OneQuery(Score):
    """Of one query, as in a decoder's step: r is no larger than the keys, and takes one block, laid out as they."""

    def sigmoid(self, queries: mx.nd.NDArray, keys: mx.nd.NDArray) -> mx.nd.NDArray:
        """r, (items · keys, features)."""
        items, _, columns, features = self.sizes
        ones = mx.nd.ones((items, columns, 1), dtype=keys.dtype, ctx=keys.ctx)
        queries, keys = queries.reshape((items, 1, features)), keys.reshape((items, columns, features))
        r = mx.nd.linalg.gemm(ones, queries, keys, alpha=2.0, beta=2.0)
        return mx.nd.Activation(r, act_type="sigmoid", out=r).reshape((-1, features))

    def scores(self, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray) -> mx.nd.NDArray:
        """The scores, (items, 1, keys)."""
        return (row_sums(self.sigmoid(queries, keys), 2 * w_v) - w_v.sum()).reshape(self.sizes[:3])

    def gradients(
        self, g: mx.nd.NDArray, queries: mx.nd.NDArray, keys: mx.nd.NDArray, w_v: mx.nd.NDArray
    ) -> tuple[mx.nd.NDArray, mx.nd.NDArray, mx.nd.NDArray]:
        """The gradients of the arguments, in their shapes."""
        items, _, columns, features = self.sizes
        r, flat = self.sigmoid(queries, keys), g.reshape((1, 1, -1))
        d_w_v = 2 * mx.nd.batch_dot(flat, r.expand_dims(0)).reshape((1, -1)) - g.sum()
        d_keys = mx.nd.batch_dot(flat, 4 * w_v.expand_dims(0), transpose_a=True).reshape((-1, features))
        mx.nd._internal._backward_sigmoid(d_keys, r, out=d_keys)
        ones = mx.nd.ones((items, 1, columns), dtype=g.dtype, ctx=g.ctx)
        d_queries = mx.nd.batch_dot(ones, d_keys.reshape((items, columns, features))).reshape((-1, features))
        return d_queries, d_keys, d_w_v


def cut(size: int, length: int) -> list[slice]:
    """The slices of that length that make up an axis of that size; the last may be shorter."""
    return [slice(start, min(start + length, size)) for start in range(0, size, length)]


def sigmoids(
    left: mx.nd.NDArray, right: mx.nd.NDArray, part: tuple[slice, slice, slice], place: mx.nd.NDArray
) -> mx.nd.NDArray:
    """σ of the products of matrices, (features, items, queries, keys), of that part, at that place."""
    left, right = left[part], right[part[:2]]
    shape = (*left.shape[:3], right.shape[3])
    flat = place[: math.prod(shape)].reshape((-1, *shape[2:]))
    mx.nd.batch_dot(left.reshape((-1, shape[2], 2)), right.reshape((-1, 2, shape[3])), out=flat)
    return mx.nd.Activation(flat, act_type="sigmoid", out=flat).reshape(shape)


def row_sums(rows: mx.nd.NDArray, weights: mx.nd.NDArray) -> mx.nd.NDArray:
    """The sum of each row, weighted; this operator is several times faster than a product of matrices."""
    return mx.nd.FullyConnected(rows, weights, num_hidden=1, no_bias=True).reshape((-1,))


force(os.environ.get("ATTENTION_PARITY_PATH"))
