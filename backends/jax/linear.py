"""Attention in time and memory linear in the number of keys, in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from attention_core.errors import check
from attention_core.operators.linear import LINEAR_ATTENTION, LINEAR_ATTENTION_STEP
from backends.jax.arrays import Lengths
from backends.jax.masking import precise
from backends.jax.memory import zero_masked

__all__ = ["linear_attention", "linear_attention_step"]

BLOCK = 64
"""The number of steps in a block of causal attention."""


def linear_attention(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    valid_lens: Lengths | None = None,
    mask: jax.Array | None = None,
    *,
    causal: bool = False,
) -> jax.Array:
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
    queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array | None, causal: bool
) -> jax.Array:
    dtype = values.dtype
    queries, keys = feature_map(queries), feature_map(keys)
    if mask is not None:  # the features of 0 are 1
        keys = jnp.where(mask.mT, keys, 0.0)
    last = [(0, 0)] * (values.ndim - 1) + [(0, 1)]
    values = jnp.pad(precise(values), last, constant_values=1.0)  # a feature of ones, whose weighted sum is the norm
    totals = causal_totals(queries, keys, values) if causal else queries @ (keys.mT @ values)
    return quotient(totals[..., :-1], totals[..., -1:]).astype(dtype)


def linear_attention_step(
    queries: jax.Array, keys: jax.Array, values: jax.Array, sums: jax.Array, norms: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
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
    queries: jax.Array, keys: jax.Array, values: jax.Array, sums: jax.Array, norms: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    dtype = values.dtype
    queries, keys = feature_map(queries), feature_map(keys)
    sums = precise(sums) + keys[..., :, None] * precise(values)[..., None, :]
    norms = precise(norms) + keys
    totals = (queries[..., None, :] @ sums)[..., 0, :]
    context = quotient(totals, jnp.sum(queries * norms, axis=-1, keepdims=True))
    return context.astype(dtype), sums.astype(dtype), norms.astype(dtype)


def feature_map(array: jax.Array) -> jax.Array:
    """Map an array to positive features: x + 1 above 0, exp(x) elsewhere; narrow types become float32."""
    array = precise(array)
    positive = array > 0.0
    # The exponential of a large number would be inf, and its gradient, where it is not chosen, NaN.
    return jnp.where(positive, array + 1.0, jnp.exp(jnp.where(positive, 0.0, array)))


def causal_totals(queries: jax.Array, keys: jax.Array, values: jax.Array) -> jax.Array:
    """Sum the values up to each query, weighted by inner products: one by one in its block, by their sums before it."""
    *leading, steps, features = values.shape
    queries, keys, values = in_blocks(queries), in_blocks(keys), in_blocks(values)
    inside = jnp.tril(queries @ keys.mT) @ values
    sums = jnp.cumsum(keys.mT @ values, axis=-3)
    before = jnp.concatenate([jnp.zeros_like(sums[..., :1, :, :]), sums[..., :-1, :, :]], axis=-3)
    totals = inside + queries @ before
    return totals.reshape(*leading, totals.shape[-3] * BLOCK, features)[..., :steps, :]


def in_blocks(array: jax.Array) -> jax.Array:
    """Split the steps of an array into blocks; zeros fill the last one."""
    *leading, steps, features = array.shape
    blocks = -(-steps // BLOCK)
    filled = jnp.pad(array, [(0, 0)] * len(leading) + [(0, blocks * BLOCK - steps), (0, 0)])
    return filled.reshape(*leading, blocks, BLOCK, features)


def quotient(totals: jax.Array, norms: jax.Array) -> jax.Array:
    """Divide totals by their norms; 0 where a norm is 0."""
    zero = norms == 0.0
    return jnp.where(zero, 0.0, totals / jnp.where(zero, 1.0, norms))
