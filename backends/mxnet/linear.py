"""Attention in time and memory linear in the number of keys, in MXNet."""

from __future__ import annotations

from mxnet import np, npx

from attention_core.operators.linear import LINEAR_ATTENTION, LINEAR_ATTENTION_STEP
from backends.mxnet.arrays import Lengths, check
from backends.mxnet.masking import precise
from backends.mxnet.memory import zero_masked
from backends.mxnet.pooling import zero_hidden

__all__ = ["linear_attention", "linear_attention_step"]

BLOCK = 64
"""The number of steps in a block of causal attention."""


def linear_attention(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    valid_lens: Lengths | None = None,
    mask: np.ndarray | None = None,
    *,
    causal: bool = False,
) -> np.ndarray:
    """Average the values of the open keys, weighted by inner products of positive features.

    context[i] = φ(queries[i])ᵀ S[i] / (φ(queries[i])ᵀ z[i])
    S[i] = sum over open j of φ(keys[j]) values[j]ᵀ
    z[i] = sum over open j of φ(keys[j])
    open j <= i if causal
    φ(x) = elu(x) + 1

    No weights are computed: time and memory are linear in the number of keys, and if causal, in blocks of steps, too.
    φ(x) is x + 1 above 0 and exp(x) elsewhere, which keeps digits that elu(x) + 1 loses. A query that may attend to
    nothing gets context 0 and gradient 0, and so does one whose divisor underflows to 0. A hidden key or value, NaN and
    inf included, has no effect and gets gradient 0. Half precision is summed in float32.

    Args:
        queries: (batch, [heads], queries, features); query vectors
        keys: (batch, [heads], keys, features); key vectors
        values: (batch, [heads], keys, value_features); value vectors, one for each key
        valid_lens (default None): integers (batch,), or a list; key j is open where j < valid_len
        mask (default None): booleans (batch, [heads], one, keys), broadcast; True where a key is open, to all queries
        causal (default False): whether query i attends to the keys up to i alone, of as many as there are queries
    Returns:
        context: (batch, [heads], queries, value_features); weighted averages of the values
    Raises:
        ShapeError: a mask with a row for each query
        ShapeError: causal attention with more or fewer queries than keys
    Source: Katharopoulos et al. 2020, sections 3.2 and 3.3, arXiv:2006.16236
    Example:
        context = attention.linear_attention(queries, keys, values)
    """
    check(LINEAR_ATTENTION, causal=causal, queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask)
    return _linear_attention(queries, *zero_masked(keys, values, valid_lens, mask), causal)


def _linear_attention(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, mask: np.ndarray | None, causal: bool
) -> np.ndarray:
    dtype = values.dtype
    if queries.size == 0 or keys.size == 0 or values.size == 0:  # over an empty axis, MXNet reads foreign memory
        return np.zeros((*queries.shape[:-1], values.shape[-1]), dtype=dtype, ctx=values.ctx)
    queries, keys, values = feature_map(queries), feature_map(keys), precise(values)
    if mask is not None:  # the features of 0 are 1
        keys = zero_hidden(np.expand_dims(mask[..., 0, :], -1), keys)
    ones = np.ones_like(values[..., :1])  # a feature of ones, whose weighted sum is the norm
    values = np.concatenate([values, ones], axis=-1)
    if causal:
        totals = causal_totals(queries, keys, values)
    else:
        totals = npx.batch_dot(queries, npx.batch_dot(keys, values, transpose_a=True))
    return quotient(totals[..., :-1], totals[..., -1:]).astype(dtype, copy=False)


def linear_attention_step(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, sums: np.ndarray, norms: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take one step of causal linear attention, as a recurrent network.

    context = φ(queries)ᵀ sums' / (φ(queries)ᵀ norms')
    sums' = sums + φ(keys) valuesᵀ
    norms' = norms + φ(keys)

    The steps of a sequence, one by one, give what linear_attention gives with causal; φ is the same. The sums grow with
    the steps, and half precision drops what is small beside them: decode in float32.

    Args:
        queries: (batch, [heads], features); query vector of the step
        keys: (batch, [heads], features); key vector of the step
        values: (batch, [heads], value_features); value vector of the step
        sums: (batch, [heads], features, value_features); S of the steps before; 0 at first
        norms: (batch, [heads], features); z of the steps before; 0 at first
    Returns:
        context: (batch, [heads], value_features); weighted average of the values so far
        sums: (batch, [heads], features, value_features); sums', for the next step
        norms: (batch, [heads], features); norms', for the next step
    Source: Katharopoulos et al. 2020, section 3.4, arXiv:2006.16236
    Example:
        context, sums, norms = attention.linear_attention_step(queries, keys, values, sums, norms)
    """
    check(LINEAR_ATTENTION_STEP, queries=queries, keys=keys, values=values, sums=sums, norms=norms)
    return _linear_attention_step(queries, keys, values, sums, norms)


def _linear_attention_step(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, sums: np.ndarray, norms: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dtype = values.dtype
    queries, keys = feature_map(queries), feature_map(keys)
    sums = precise(sums) + np.expand_dims(keys, -1) * np.expand_dims(precise(values), -2)
    norms = precise(norms) + keys
    if sums.size == 0:  # over an empty axis, MXNet reads foreign memory
        return np.zeros_like(values), sums.astype(dtype), norms.astype(dtype)
    totals = np.squeeze(npx.batch_dot(np.expand_dims(queries, -2), sums), axis=-2)
    context = quotient(totals, np.sum(queries * norms, axis=-1, keepdims=True))
    return context.astype(dtype, copy=False), sums.astype(dtype, copy=False), norms.astype(dtype, copy=False)


def feature_map(array: np.ndarray) -> np.ndarray:
    """Map an array to positive features: x + 1 above 0, exp(x) elsewhere; narrow types become float32."""
    array = precise(array)
    positive = array > 0.0
    # The exponential of a large number would be inf, and its gradient, where it is not chosen, NaN.
    return np.where(positive, array + 1.0, np.exp(np.where(positive, np.zeros_like(array), array)))


def causal_totals(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sum the values up to each query, weighted by inner products: one by one in its block, by their sums before it."""
    *leading, steps, features = values.shape
    queries, keys, values = in_blocks(queries), in_blocks(keys), in_blocks(values)
    inside = npx.batch_dot(np.tril(npx.batch_dot(queries, keys, transpose_b=True)), values)
    sums = np.cumsum(npx.batch_dot(keys, values, transpose_a=True), axis=len(leading))
    before = np.concatenate([np.zeros_like(sums[..., :1, :, :]), sums[..., :-1, :, :]], axis=-3)
    totals = inside + npx.batch_dot(queries, before)
    return totals.reshape(*leading, totals.shape[-3] * BLOCK, features)[..., :steps, :]


def in_blocks(array: np.ndarray) -> np.ndarray:
    """Split the steps of an array into blocks; zeros fill the last one."""
    *leading, steps, features = array.shape
    blocks = -(-steps // BLOCK)
    rest = ((0, blocks * BLOCK - steps), (0, 0))
    filled = np.pad(array, ((0, 0),) * len(leading) + rest, mode="constant")
    return filled.reshape(*leading, blocks, BLOCK, features)


def quotient(totals: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Divide totals by their norms; 0 where a norm is 0."""
    zero = norms == 0.0
    return np.where(zero, np.zeros_like(totals), totals / np.where(zero, np.ones_like(norms), norms))
