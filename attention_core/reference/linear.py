"""Attention in time and memory linear in the number of keys."""

from __future__ import annotations

import numpy as np

from attention_core.operators.linear import LINEAR_ATTENTION, LINEAR_ATTENTION_STEP
from attention_core.reference.arrays import check, promote
from attention_core.reference.memory import zero_masked

__all__ = ["linear_attention", "linear_attention_step"]


def linear_attention(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    valid_lens: np.ndarray | None = None,
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
    """
    check(LINEAR_ATTENTION, causal=causal, queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask)
    keys, values, allowed = zero_masked(promote(keys), promote(values), valid_lens, mask)
    keys = feature_map(keys)
    if allowed is not None:  # the features of 0 are 1
        keys = np.where(allowed.swapaxes(-1, -2), keys, 0.0)
    sums, norms = keys[..., :, None] * values[..., None, :], keys
    if causal:
        sums, norms = sums.cumsum(axis=-3), norms.cumsum(axis=-2)
    else:
        sums, norms = sums.sum(axis=-3, keepdims=True), norms.sum(axis=-2, keepdims=True)
    return read_sums(feature_map(promote(queries)), sums, norms)


def linear_attention_step(
    queries: np.ndarray, keys: np.ndarray, values: np.ndarray, sums: np.ndarray, norms: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Take one step of causal linear attention, as a recurrent network.

    context = φ(queries)ᵀ sums' / (φ(queries)ᵀ norms')
    sums' = sums + φ(keys) valuesᵀ
    norms' = norms + φ(keys)

    The steps of a sequence, one by one, give what linear_attention gives with causal; φ is the same. The sums grow with
    the steps, and half precision drops what is small beside them: decode in float32.
    """
    check(LINEAR_ATTENTION_STEP, queries=queries, keys=keys, values=values, sums=sums, norms=norms)
    keys = feature_map(promote(keys))
    sums = promote(sums) + keys[..., :, None] * promote(values)[..., None, :]
    norms = promote(norms) + keys
    return read_sums(feature_map(promote(queries)), sums, norms), sums, norms


def feature_map(array: np.ndarray) -> np.ndarray:
    """Map an array to positive features: x + 1 above 0, exp(x) elsewhere."""
    positive = array.real > 0.0
    return np.where(positive, array + 1.0, np.exp(np.where(positive, 0.0, array)))


def read_sums(features: np.ndarray, sums: np.ndarray, norms: np.ndarray) -> np.ndarray:
    """Read the sums by the features of a query, and divide by the norm; 0 where it is 0."""
    totals = (features[..., None, :] @ sums)[..., 0, :]
    norm = (features * norms).sum(axis=-1, keepdims=True)
    zero = norm.real == 0.0
    return np.where(zero, 0.0, totals / np.where(zero, 1.0, norm))
