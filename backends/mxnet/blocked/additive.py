"""Additive scores in blocks, in MXNet: the same numbers without the array of all queries, keys and features."""

from __future__ import annotations

import math

import mxnet as mx
from mxnet import autograd, np

from backends.mxnet import kernels

__all__ = ["blocked_additive_score"]

ADDITIVE_MIN_ELEMENTS = 2**19
"""The elements, batch · heads · queries · keys · hidden_size, from which on blocks are faster on a CPU."""

ADDITIVE_MIN_ELSEWHERE = 2**30
"""The same on other devices: an array of so many elements takes 4 GiB in float32."""

BLOCK = 2**21
"""The elements of a block, few enough for a cache, and enough to outweigh the cost of a call."""

FEATURES = 32
"""The features of a block: fewer give the sum over features too little to do, more leave the products too few rows."""

SPREAD = 4
"""The features of a block for which the gradient of the scores is multiplied by w_v at once."""


def serves_score(queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray) -> bool:
    """Whether to compute scores in blocks: from ADDITIVE_MIN_ELEMENTS elements on, or ADDITIVE_MIN_ELSEWHERE."""
    return kernels.use_blocks(queries, keys, ADDITIVE_MIN_ELEMENTS, ADDITIVE_MIN_ELSEWHERE)


@kernels.register("additive_score", serves_score)
def blocked_additive_score(queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray) -> np.ndarray:
    """Score each projected query against each projected key by a weighted tanh of their sum, block by block.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])

    With t[i, j, h] = tanh(queries[i, h] + keys[j, h]) and the gradient g of the scores,

    d w_v[h] = sum over i, j of g[i, j] t[i, j, h]
    d queries[i, h] = sum over j of s[i, j, h];  d keys[j, h] = sum over i of s[i, j, h]
    s[i, j, h] = g[i, j] w_v[h] (1 - t[i, j, h]²)

    A block has t for some features, queries and keys: the backward pass computes it again. MXNet broadcasts and sums
    slowly and multiplies matrices fast: the features come before queries and keys, where a sum of the two is the
    matrix product [queries, 1] [1; keys], and each sum above a product with w_v, g or ones.

    float16 is computed in float32. A second derivative raises MXNetError.

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), both with heads after batch or
    without; w_v (hidden_size,); the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    shape = (*queries.shape[:-1], keys.shape[-2])
    if queries.size == 0 or keys.size == 0:
        return np.zeros(shape, dtype=queries.dtype, ctx=queries.ctx)
    items, (rows, features) = math.prod(queries.shape[:-2]), queries.shape[-2:]
    # Legacy arrays, of the same memory, reshape without a copy.
    arrays = [array.as_nd_ndarray().reshape((-1, features)) for array in (queries, keys, w_v)]
    if queries.dtype == "float16":
        arrays = [array.astype("float32") for array in arrays]
    score = AdditiveScore(items, rows, keys.shape[-2], features)
    # A Function writes no gradient behind an argument that wants none, and adds to none. With one argument for all,
    # it always has to write: the rest is left to MXNet's operators.
    recorded = autograd.is_recording()
    scores = score(mx.nd.concat(*arrays, dim=0)) if recorded else score.scores(*arrays)
    return scores.reshape(shape).as_np_ndarray().astype(queries.dtype, copy=False)


class AdditiveScore(autograd.Function):
    """Scores and their gradients, block by block; queries, keys and w_v are the rows of one matrix.

    The arrays of a block are made once for all blocks, since the system clears each new one, and since what is freed is
    seldom taken again as it is.
    """

    def __init__(self, items: int, queries: int, keys: int, features: int) -> None:
        super().__init__()
        self.sizes = items, queries, keys, features
        depth = min(features, FEATURES)
        height = min(queries, max(1, BLOCK // (depth * keys)))
        count = min(items, max(1, BLOCK // (depth * height * keys)))
        self.area = count * height * keys
        self.blocks = [(some_items, rows) for some_items in cut(items, count) for rows in cut(queries, height)]
        self.columns = cut(features, depth)

    def arguments(self, matrix: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray, mx.nd.NDArray]:
        """Split the rows of the matrix: queries, keys, and w_v, (1, features)."""
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
        scores, place = mx.nd.empty(self.sizes[:3], **like), mx.nd.empty((FEATURES * self.area,), **like)
        for some_items, rows in self.blocks:
            summed = mx.nd.zeros((1,), **like)
            for some in self.columns:
                t = tangents(left, right, (some, some_items, rows), place)
                summed = mx.nd.batch_dot(w_v[:, some].expand_dims(0), t.reshape((1, t.shape[0], -1))) + summed
            scores[some_items, rows] = summed.reshape(t.shape[1:])
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
        place = mx.nd.empty((FEATURES * self.area,), **like)
        spread = mx.nd.empty((SPREAD * self.area,), **like)
        for some_items, rows in self.blocks:
            flat = g[some_items, rows].reshape((1, -1))
            for some in self.columns:
                t = tangents(left, right, (some, some_items, rows), place)
                depth, count, height, width = t.shape
                s, weights = t.reshape((depth, -1)), w_v[0, some].reshape((-1, 1))
                d_w_v[some] += row_sums(s, flat)
                for few in cut(depth, SPREAD):
                    several = spread[: (few.stop - few.start) * flat.size].reshape((-1, flat.size))
                    mx.nd.linalg.gemm2(weights[few], flat, out=several)
                    mx.nd._internal._backward_tanh(several, s[few], out=s[few])
                sums = row_sums(s.reshape((-1, width)), mx.nd.ones((1, width), **like))
                d_queries[some, some_items, rows] = sums.reshape((depth, count, height))
                ones = mx.nd.ones((depth * count, 1, height), **like)
                d_keys[some, some_items] += mx.nd.batch_dot(ones, s.reshape((-1, height, width))).reshape(
                    (depth, count, width)
                )
        return d_queries.reshape((features, -1)).T, d_keys.reshape((features, -1)).T, d_w_v.reshape((1, -1))


def cut(size: int, length: int) -> list[slice]:
    """Cut an axis of that size into slices of that length; the last may be shorter."""
    return [slice(start, min(start + length, size)) for start in range(0, size, length)]


def tangents(
    left: mx.nd.NDArray, right: mx.nd.NDArray, part: tuple[slice, slice, slice], place: mx.nd.NDArray
) -> mx.nd.NDArray:
    """Write tanh(q + k) of a part, (features, items, queries, keys), to that place, and return it."""
    left, right = left[part], right[part[:2]]
    shape = (*left.shape[:3], right.shape[3])
    flat = place[: math.prod(shape)].reshape((-1, *shape[2:]))
    mx.nd.batch_dot(left.reshape((-1, shape[2], 2)), right.reshape((-1, 2, shape[3])), out=flat)
    return mx.nd.Activation(flat, act_type="tanh", out=flat).reshape(shape)


def row_sums(rows: mx.nd.NDArray, weights: mx.nd.NDArray) -> mx.nd.NDArray:
    """The sum of each row, weighted; this operator is several times faster than a product of matrices."""
    return mx.nd.FullyConnected(rows, weights, num_hidden=1, no_bias=True).reshape((-1,))
