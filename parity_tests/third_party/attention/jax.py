"""JAX's own attention, as targets."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp

from backends.jax import runtime


def widened(array: jax.Array, size: int) -> jax.Array:
    """The array with zeros behind its last axis, up to that size."""
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])


def called(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None = None,
    lengths: jax.Array | None = None,
    scale: float | None = None,
) -> jax.Array:
    """Call it with heads as the axis before the last, and features that zeros fill up to the one size it asks for."""
    features, value_features = queries.shape[-1], values.shape[-1]
    size = max(features, value_features)
    arrays = [widened(array, size) for array in (queries, keys, values)]
    heads = queries.ndim == 4
    arrays = [jnp.swapaxes(array, 1, 2) if heads else array[:, :, None] for array in arrays]
    if mask is not None and mask.ndim == 3:
        mask = mask[:, None]
    context = jax.nn.dot_product_attention(
        *arrays, mask=mask, scale=features**-0.5 if scale is None else scale, key_value_seq_lengths=lengths
    )
    context = jnp.swapaxes(context, 1, 2) if heads else context[:, :, 0]
    return context[..., :value_features]


def _with_mask(
    parameters: dict[str, jax.Array],
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None = None,
    *,
    scale: float | None = None,
) -> tuple[jax.Array, None]:
    return called(queries, keys, values, mask, scale=scale), None


def _with_lengths(
    parameters: dict[str, jax.Array],
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    valid_lens: jax.Array | None = None,
    *,
    scale: float | None = None,
) -> tuple[jax.Array, None]:
    if valid_lens is None or valid_lens.ndim == 1:
        lengths = None if valid_lens is None else valid_lens.astype(jnp.int32)
        return called(queries, keys, values, lengths=lengths, scale=scale), None
    # It takes one length for each sequence: every length gets the sequence for itself, and one of its queries is taken.
    # A single query for each would do, but not in bfloat16 on a CPU, where XLA aborts the process.
    batch, steps = valid_lens.shape
    queries, keys, values = (jnp.repeat(array, steps, axis=0) for array in (queries, keys, values))
    context = called(queries, keys, values, lengths=valid_lens.reshape(-1).astype(jnp.int32), scale=scale)
    context, own = context.reshape(batch, steps, *context.shape[1:]), jnp.arange(steps)
    return jnp.moveaxis(context[:, own, ..., own, :], 0, -2), None


dot_product_attention = SimpleNamespace(runtime=runtime, DotProductAttention=_with_mask)
dot_product_attention_lengths = SimpleNamespace(runtime=runtime, DotProductAttention=_with_lengths)
