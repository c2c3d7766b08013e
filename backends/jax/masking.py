"""Which keys a query may attend to, and weights over them, in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from attention_core.errors import check, check_options
from attention_core.operators import ATTENTION_MASK, MASKED_SOFTMAX

__all__ = ["attention_mask", "masked_softmax"]


def attention_mask(
    num_keys: int, valid_lens: jax.Array | None = None, mask: jax.Array | None = None
) -> jax.Array | None:
    """Combine lengths and a boolean mask into one mask of what each query may attend to.

    open[b, i, j] = (j < valid_lens[b, i]) and mask[b, i, j]

    Shapes: valid_lens (batch,) or (batch, queries); mask (batch, queries, keys), with heads after batch or without,
    each axis its size or 1; the result has the rank of mask, 3 without one. None where both are None.
    """
    check_options(ATTENTION_MASK, num_keys=num_keys)
    check(ATTENTION_MASK, {"keys": num_keys}, valid_lens=valid_lens, mask=mask)
    if valid_lens is None:
        return None if mask is None else jnp.broadcast_to(mask, (*mask.shape[:-1], num_keys))
    lens = valid_lens[:, None, None] if valid_lens.ndim == 1 else valid_lens[:, :, None]
    open_keys = jnp.arange(num_keys) < lens
    if mask is None:
        return open_keys
    return mask & (open_keys if mask.ndim == 3 else open_keys[:, None])


def masked_softmax(scores: jax.Array, valid_lens: jax.Array | None = None, mask: jax.Array | None = None) -> jax.Array:
    """Normalise scores over the keys each query may attend to.

    weights[i, j] = open[i, j] exp(scores[i, j]) / sum over open k of exp(scores[i, k])

    Shapes: scores (batch, queries, keys) or (batch, heads, queries, keys); valid_lens and mask as in attention_mask;
    the result has the shape of scores.
    """
    check(MASKED_SOFTMAX, scores=scores, valid_lens=valid_lens, mask=mask)
    return softmax_over(scores, open_keys(scores, valid_lens, mask))


def open_keys(scores: jax.Array, valid_lens: jax.Array | None, mask: jax.Array | None) -> jax.Array:
    """What each query may attend to, in the shape of scores: by lengths, by mask, and by scores above -inf."""
    seen = scores != -jnp.inf
    allowed = attention_mask(scores.shape[-1], valid_lens, mask)
    if allowed is None:
        return seen
    return seen & (allowed if allowed.ndim == scores.ndim else allowed[:, None])


def softmax_over(scores: jax.Array, allowed: jax.Array) -> jax.Array:
    """Softmax of the allowed scores; 0 elsewhere, and in rows that allow nothing."""
    precise = scores.astype(jnp.float32) if scores.dtype in (jnp.float16, jnp.bfloat16) else scores
    # A fill of -inf loses against every real score, where a finite one may win. Softmax of a closed row would be NaN:
    # zeros keep it, and its gradient, finite until the last line discards it; so `jax_debug_nans` stays usable.
    visible = jnp.where(allowed, precise, -jnp.inf)
    visible = jnp.where(jnp.any(allowed, axis=-1, keepdims=True), visible, 0.0)
    return jnp.where(allowed, jax.nn.softmax(visible, axis=-1), 0.0).astype(scores.dtype)
