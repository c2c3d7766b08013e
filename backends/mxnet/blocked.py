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
    if not isinstance(queries, np.ndarray):
        return False
    return choice == "blocked" if choice else queries.size * keys.shape[-2] >= LEAST


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
    # A Function writes no gradient behind an argument that wants none, and adds to none. With one argument that holds
    # all, it is always asked to write: the rest is left to operators of MXNet's own. (Rows join fast, vectors do not.)
    packed = np.concatenate([array.reshape(-1, features) for array in (queries, keys, w_v)], axis=0)
    if queries.dtype == "float16":
        packed = packed.astype("float32")
    kind = OneQuery if rows == 1 else AdditiveScore
    scores = kind(items, rows, shape[-1], features)(packed)
    return scores.reshape(shape).astype(queries.dtype)


class AdditiveScore(autograd.Function):
    """The scores of queries, keys and w_v that are the rows of one matrix, and their gradients.

    Inside, arrays are legacy ones, of the same memory: those reshape without a copy, and can be written to. The arrays
    of a block are made once for all blocks, since MXNet has each new one cleared by the system.
    """

    def __init__(self, items: int, queries: int, keys: int, features: int) -> None:
        super().__init__()
        self.sizes = items, queries, keys, features
        depth = min(features, FEATURES)
        height = min(queries, max(1, BLOCK // (depth * keys)))
        count = min(items, max(1, BLOCK // (depth * height * keys)))
        self.length = depth * count * height * keys
        self.blocks = [(own, rows) for own in cut(items, count) for rows in cut(queries, height)]
        self.columns = cut(features, depth)

    def parts(self, packed: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray, mx.nd.NDArray]:
        """[2 queries, 1], (features, items, queries, 2); [1; 2 keys], (features, items, 2, keys); and w_v."""
        items, queries, keys, features = self.sizes
        left = 2 * packed[: items * queries].reshape((items, queries, features)).transpose((2, 0, 1))
        right = 2 * packed[items * queries : -1].reshape((items, keys, features)).transpose((2, 0, 1))
        left, right = mx.nd.stack(left, left.ones_like(), axis=3), mx.nd.stack(right.ones_like(), right, axis=2)
        return left, right, packed[-1]

    def forward(self, matrix: np.ndarray) -> np.ndarray:
        """The scores, (items, queries, keys)."""
        self.save_for_backward(matrix)
        packed, (items, queries, keys, _) = matrix.as_nd_ndarray(), self.sizes
        left, right, w_v = self.parts(packed)
        like = {"dtype": packed.dtype, "ctx": packed.ctx}
        scores, place = mx.nd.empty((items, queries, keys), **like), mx.nd.empty((self.length,), **like)
        for own, rows in self.blocks:
            summed = -w_v.sum()
            for some in self.columns:
                r = sigmoids(left, right, (some, own, rows), place)
                summed = mx.nd.batch_dot(2 * w_v[some].reshape((1, 1, -1)), r.reshape((1, r.shape[0], -1))) + summed
            scores[own, rows] = summed.reshape(r.shape[1:])
        return scores.as_np_ndarray()

    @mx.util.use_np  # another thread calls it, in which MXNet's NumPy mode is off
    def backward(self, g: mx.nd.NDArray) -> mx.nd.NDArray:
        """The gradients, in one matrix as the arguments are."""
        packed, (items, queries, keys, features) = self.saved_tensors[0].as_nd_ndarray(), self.sizes
        left, right, w_v = self.parts(packed)
        like = {"dtype": packed.dtype, "ctx": packed.ctx}
        d_queries = mx.nd.zeros((features, items, queries), **like)
        d_keys, d_w_v = mx.nd.zeros((features, items, keys), **like), mx.nd.zeros((features,), **like)
        places = [mx.nd.empty((self.length,), **like) for _ in range(3)]
        for own, rows in self.blocks:
            flat = g[own, rows].reshape((1, -1))
            spread = None
            for some in self.columns:
                r = sigmoids(left, right, (some, own, rows), places[0])
                (depth, count, height, _), length = r.shape, r.size
                if spread is None:  # g for each feature of a block
                    spread = places[1][:length].reshape((1, depth, -1))
                    mx.nd.batch_dot(mx.nd.ones((1, depth, 1), **like), flat.expand_dims(0), out=spread)
                d_w_v[some] += 2 * row_sums(r.reshape((depth, -1)), flat)
                s = places[2][:length]
                mx.nd._internal._backward_sigmoid(spread.reshape((-1,))[:length], r.reshape((-1,)), out=s)
                d_queries[some, own, rows] = row_sums(s.reshape((-1, keys)), mx.nd.ones((1, keys), **like)).reshape(
                    (depth, count, height)
                )
                ones = mx.nd.ones((depth * count, 1, height), **like)
                d_keys[some, own] += mx.nd.batch_dot(ones, s.reshape((-1, height, keys))).reshape((depth, count, keys))
        rows = [(4 * array.reshape((features, -1)).T) * w_v for array in (d_queries, d_keys)]
        return mx.nd.concat(*rows, (d_w_v - g.sum()).reshape((1, -1)), dim=0)


class OneQuery(autograd.Function):
    """The same of one query, as in a decoder's step: r is as large as the keys, and takes one block, laid out as they."""

    def __init__(self, items: int, queries: int, keys: int, features: int) -> None:
        super().__init__()
        self.sizes = items, keys, features

    def parts(self, packed: mx.nd.NDArray) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
        """r, (items · keys, features), and w_v."""
        items, keys, features = self.sizes
        queries = packed[:items].reshape((items, 1, features))
        own = packed[items:-1].reshape((items, keys, features))
        ones = mx.nd.ones((items, keys, 1), dtype=packed.dtype, ctx=packed.ctx)
        r = mx.nd.linalg.gemm(ones, queries, own, alpha=2.0, beta=2.0)
        mx.nd.Activation(r, act_type="sigmoid", out=r)
        return r.reshape((-1, features)), packed[-1]

    def forward(self, matrix: np.ndarray) -> np.ndarray:
        """The scores, (items, 1, keys)."""
        self.save_for_backward(matrix)
        items, keys, features = self.sizes
        r, w_v = self.parts(matrix.as_nd_ndarray())
        scores = row_sums(r, 2 * w_v.reshape((1, -1))) - w_v.sum()
        return scores.reshape((items, 1, keys)).as_np_ndarray()

    @mx.util.use_np  # another thread calls it, in which MXNet's NumPy mode is off
    def backward(self, g: mx.nd.NDArray) -> mx.nd.NDArray:
        """The gradients, in one matrix as the arguments are."""
        items, keys, features = self.sizes
        r, w_v = self.parts(self.saved_tensors[0].as_nd_ndarray())
        flat, shape = g.reshape((1, 1, -1)), (items, keys, features)
        d_w_v = 2 * mx.nd.batch_dot(flat, r.expand_dims(0)).reshape((1, -1)) - g.sum()
        d_keys = mx.nd.batch_dot(flat, 4 * w_v.reshape((1, 1, -1)), transpose_a=True).reshape((-1, features))
        mx.nd._internal._backward_sigmoid(d_keys, r, out=d_keys)
        ones = mx.nd.ones((items, 1, keys), dtype=g.dtype, ctx=g.ctx)
        d_queries = mx.nd.batch_dot(ones, d_keys.reshape(shape))
        return mx.nd.concat(d_queries.reshape((-1, features)), d_keys, d_w_v, dim=0)


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
