"""Additive scores in blocks, in MXNet: the same numbers without the array of all queries, keys and features."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import product

import mxnet as mx
from mxnet import autograd, np, npx

from attention_core.errors import OptionError

__all__ = ["takes_blocks", "force", "blocked_additive_score"]

LEAST = 2**18
"""The elements, batch · heads · queries · keys · hidden_size, from which on blocks are faster on a CPU."""

BLOCK = 2**19
"""The elements of a block, which shall fit a cache."""

FEATURES = 32
"""The features of a block: fewer give the sum over features too little to do, more leave the products too few rows."""

Part = tuple[slice, slice, slice]

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
    # all, it is always asked to write: the rest is left to operators of MXNet's own.
    packed = np.concatenate([array.reshape(-1) for array in (queries, keys, w_v)])
    if queries.dtype == "float16":
        packed = packed.astype("float32")
    scores = AdditiveScore(items, rows, shape[-1], features)(packed)
    return scores.reshape(shape).astype(queries.dtype)


class AdditiveScore(autograd.Function):
    """The scores of queries, keys and w_v that stand one after the other in one vector, and their gradients."""

    def __init__(self, items: int, queries: int, keys: int, features: int) -> None:
        super().__init__()
        self.sizes = items, queries, keys, features

    def parts(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of the vector: [2 queries, 1], (items, features, queries, 2); [1; 2 keys], (items, features, 2, keys); w_v."""
        items, queries, keys, features = self.sizes
        first, second = items * queries * features, items * keys * features
        left = 2 * packed[:first].reshape(items, queries, features).swapaxes(1, 2)
        right = 2 * packed[first : first + second].reshape(items, keys, features).swapaxes(1, 2)
        left = np.stack([left, np.ones_like(left)], axis=-1)
        return left, np.stack([np.ones_like(right), right], axis=-2), packed[first + second :]

    def blocks(self) -> Iterator[tuple[slice, slice, list[slice]]]:
        """The items, the queries and, over and over, the features of each block."""
        items, queries, keys, features = self.sizes
        depth = min(features, FEATURES)
        height = min(queries, max(1, BLOCK // (depth * keys)))
        count = max(1, BLOCK // (depth * height * keys))
        for own, rows in product(cut(items, count), cut(queries, height)):
            yield own, rows, cut(features, depth)

    def forward(self, packed: np.ndarray) -> np.ndarray:
        """The scores, (items, queries, keys)."""
        items, queries, keys, _ = self.sizes
        left, right, w_v = self.parts(packed)
        scores, total = np.zeros((items, queries, keys), dtype=packed.dtype, ctx=packed.ctx), np.sum(w_v)
        for own, rows, columns in self.blocks():
            summed = -total
            for some in columns:
                r = sigmoid(left[own, some, rows], right[own, some])
                weights = np.broadcast_to(2 * w_v[some], (r.shape[0], 1, r.shape[1]))
                summed = summed + npx.batch_dot(weights, r.reshape(*r.shape[:2], -1))
            scores[own, rows] = summed.reshape(-1, rows.stop - rows.start, keys)
        self.save_for_backward(packed)
        return scores

    @mx.util.use_np  # another thread calls it, in which MXNet's NumPy mode is off
    def backward(self, gradient: mx.nd.NDArray) -> mx.nd.NDArray:
        """The gradients, in one vector like the arguments. Arrays come and go as legacy ones, of the same memory."""
        (packed,), g = self.saved_tensors, gradient.as_np_ndarray()
        items, queries, keys, features = self.sizes
        left, right, w_v = self.parts(packed)
        like = {"dtype": packed.dtype, "ctx": packed.ctx}
        d_queries, d_keys = np.zeros((items, features, queries), **like), np.zeros((items, features, keys), **like)
        d_w_v = np.zeros((features,), **like)
        for own, rows, columns in self.blocks():
            here = g[own, rows]
            count, height = here.shape[:2]
            flat = here.reshape(count, -1, 1)
            spread = npx.batch_dot(np.ones((count, columns[0].stop, 1), **like), flat, transpose_b=True)
            for some in columns:
                r = sigmoid(left[own, some, rows], right[own, some])
                r = r.reshape(*r.shape[:2], -1)
                d_w_v[some] += 2 * np.sum(npx.batch_dot(r, flat)[..., 0], axis=0)
                s = spread[:, : r.shape[1]] * r
                s = (s - s * r).reshape(-1, height, keys)
                ones = np.ones((s.shape[0], 1, height), **like)
                d_keys[own, some] += npx.batch_dot(ones, s).reshape(count, -1, keys)
                d_queries[own, some, rows] = np.dot(s, np.ones((keys,), **like)).reshape(count, -1, height)
        d_w_v = d_w_v - np.sum(g)
        scale = 4 * w_v
        d_queries, d_keys = d_queries.swapaxes(1, 2) * scale, d_keys.swapaxes(1, 2) * scale
        return np.concatenate([array.reshape(-1) for array in (d_queries, d_keys, d_w_v)]).as_nd_ndarray()


def cut(size: int, length: int) -> list[slice]:
    """The slices of that length that make up an axis of that size; the last may be shorter."""
    return [slice(start, min(start + length, size)) for start in range(0, size, length)]


def sigmoid(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """σ of the product of matrices, (items, features, queries, keys)."""
    (items, features, queries, _), keys = left.shape, right.shape[-1]
    products = npx.batch_dot(left.reshape(-1, queries, 2), right.reshape(-1, 2, keys))
    return npx.activation(products, act_type="sigmoid").reshape(items, features, queries, keys)


force(os.environ.get("ATTENTION_PARITY_PATH"))
