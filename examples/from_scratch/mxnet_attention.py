"""Bahdanau's additive attention with masks, in MXNet and nothing else: a file to read, or to copy.

    scores[i, j] = w_v · tanh(W_q queries[i] + W_k keys[j])
    weights[i, j] = exp(scores[i, j]) / sum over open k of exp(scores[i, k])
    context[i] = sum over j of weights[i, j] values[j]

A mask is True where a query may attend; of lengths, it is `np.arange(num_keys) < valid_lens[:, None, None]`. A query
that may attend to nothing has weights, context and gradients of 0. What is hidden from all has no effect, even as NaN.
"""

import mxnet as mx
from mxnet import gluon, np, npx

npx.set_np()


def masked_softmax(scores: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """Softmax over the open keys, the last axis; 0 elsewhere."""
    if scores.size == 0:  # MXNet reads foreign memory where an axis is empty
        return scores
    zeros = np.zeros_like(scores)
    opened = scores != -np.inf
    if mask is not None:
        opened = opened * mask
    # Only -inf loses against every score. A row of nothing else would come out NaN: zeros keep it finite on the way.
    scores = np.where(opened, scores, zeros - np.inf)
    scores = np.where(np.any(opened, axis=-1, keepdims=True), scores, zeros)
    return np.where(opened, npx.softmax(scores, axis=-1), zeros)


def additive_attention(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    W_q: np.ndarray,
    W_k: np.ndarray,
    w_v: np.ndarray,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Context, (batch, queries, value_size), and weights, (batch, queries, keys); a heads axis may follow batch.

    queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size), W_q
    (hidden_size, query_size), W_k (hidden_size, key_size), w_v (hidden_size,), mask (batch, queries or 1, keys).
    """
    if keys.size == 0:
        sizes = values.shape[-1], keys.shape[-2]
        context, weights = (np.zeros((*queries.shape[:-1], size), dtype=keys.dtype) for size in sizes)
        return context, weights
    if mask is not None:  # 0 times NaN is NaN: what is hidden from all has to go before the products
        seen = np.expand_dims(np.any(mask, axis=-2), -1)
        keys, values = np.where(seen, keys, np.zeros_like(keys)), np.where(seen, values, np.zeros_like(values))
    queries, keys = np.dot(queries, W_q.T), np.dot(keys, W_k.T)
    # np.tanh is less accurate in float32.
    hidden = npx.activation(np.expand_dims(queries, -2) + np.expand_dims(keys, -3), act_type="tanh")
    weights = masked_softmax(np.dot(hidden, w_v), mask)
    return npx.batch_dot(weights, values), weights


class BahdanauAttention(gluon.Block):
    """The same as a block, with its parameters."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        sizes = {"W_q": (hidden_size, query_size), "W_k": (hidden_size, key_size), "w_v": (hidden_size,)}
        for name, shape in sizes.items():
            setattr(self, name, self.params.get(name, shape=shape, init=mx.init.Uniform(shape[-1] ** -0.5)))

    def forward(
        self, queries: np.ndarray, keys: np.ndarray, values: np.ndarray, mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Context and weights."""
        W_q, W_k, w_v = self.W_q.data(), self.W_k.data(), self.w_v.data()
        return additive_attention(queries, keys, values, W_q, W_k, w_v, mask)
