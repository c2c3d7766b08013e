"""JAX's own attention, as targets."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp

from backends.jax import runtime
from parity_tests.third_party.signatures import Attention, Outputs, takes


def widened(array: jax.Array, size: int) -> jax.Array:
    """The array with zeros behind its last axis, up to that size."""
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])


def attend(
    arrays: tuple[jax.Array, ...], factor: float, mask: jax.Array | None = None, lengths: jax.Array | None = None
) -> jax.Array:
    """Call it with heads before the last axis, and zeros that fill the features of all arrays up to one size."""
    queries, _, values = arrays
    size, heads = max(queries.shape[-1], values.shape[-1]), queries.ndim == 4
    wide = [widened(array, size) for array in arrays]
    wide = [jnp.swapaxes(array, 1, 2) if heads else array[:, :, None] for array in wide]
    context = jax.nn.dot_product_attention(*wide, mask=mask, scale=factor, key_value_seq_lengths=lengths)
    context = jnp.swapaxes(context, 1, 2) if heads else context[:, :, 0]
    return context[..., : values.shape[-1]]


@takes(Attention, "mask", "scale")
def with_mask(call: Attention) -> Outputs:
    """DotProductAttention by mask."""
    return attend((call.queries, call.keys, call.values), call.factor, call.head_mask), None


@takes(Attention, "valid_lens", "scale")
def with_lengths(call: Attention) -> Outputs:
    """DotProductAttention by key_value_seq_lengths: one length for each sequence, in 32 bits."""
    arrays = (call.queries, call.keys, call.values)
    if call.valid_lens is None:
        return attend(arrays, call.factor), None
    lengths = call.valid_lens.astype(jnp.int32)
    if lengths.ndim == 1:
        return attend(arrays, call.factor, lengths=lengths), None
    # Repeat the sequence for each of its queries' lengths, and take that query's row from each.
    # A single query for each would do, but not in bfloat16 on a CPU, where XLA aborts the process.
    batch, steps = lengths.shape
    repeated = tuple(jnp.repeat(array, steps, axis=0) for array in arrays)
    context = attend(repeated, call.factor, lengths=lengths.reshape(-1))
    context, rows = context.reshape(batch, steps, *context.shape[1:]), jnp.arange(steps)
    return jnp.moveaxis(context[:, rows, ..., rows, :], 0, -2), None


dot_product_attention = SimpleNamespace(runtime=runtime, DotProductAttention=with_mask)
dot_product_attention_lengths = SimpleNamespace(runtime=runtime, DotProductAttention=with_lengths)
