"""JAX's own attention, as targets."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from backends.jax import runtime
from parity_tests.third_party.signatures import Attention, Outputs, takes


def pad_features(array: jax.Array, size: int) -> jax.Array:
    """The array with zeros behind its last axis, up to that size."""
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])


def attend(call: Attention, **keywords: Any) -> jax.Array:
    """Call it with heads before the last axis, and zeros that fill the features of all arrays up to one size."""
    queries, values = call.queries, call.values
    size, heads = max(queries.shape[-1], values.shape[-1]), queries.ndim == 4
    wide = [pad_features(array, size) for array in (queries, call.keys, values)]
    wide = [jnp.swapaxes(array, 1, 2) if heads else array[:, :, None] for array in wide]
    context = jax.nn.dot_product_attention(*wide, scale=call.factor, **keywords)
    context = jnp.swapaxes(context, 1, 2) if heads else context[:, :, 0]
    return context[..., : values.shape[-1]]


@takes(Attention, "mask", "scale", "num_key_heads", "causal")
def with_mask(call: Attention) -> Outputs:
    """DotProductAttention by mask."""
    return attend(call, mask=call.head_mask, is_causal=call.causal), None


@takes(Attention, "mask", "scale", "num_key_heads")
def with_bias(call: Attention) -> Outputs:
    """DotProductAttention with the mask as bias."""
    return attend(call, bias=call.head_mask), None


@takes(Attention, "scale", "causal")
def with_window(call: Attention) -> Outputs:
    """DotProductAttention in a window: causal means all keys before and none behind."""
    return attend(call, local_window_size=(call.keys.shape[1], 0) if call.causal else None), None


@takes(Attention, "valid_lens", "scale", "num_key_heads", "causal")
def with_lengths(call: Attention) -> Outputs:
    """DotProductAttention by key_value_seq_lengths: one length for each sequence, in 32 bits."""
    if call.valid_lens is None:
        return attend(call, is_causal=call.causal), None
    lengths = call.valid_lens.astype(jnp.int32)
    if lengths.ndim == 1:
        return attend(call, key_value_seq_lengths=lengths, is_causal=call.causal), None
    # Repeat the sequence for each of its queries' lengths, and take that query's row from each.
    # A single query for each would do, but not in bfloat16 on a CPU, where XLA aborts the process.
    batch, steps = lengths.shape
    arrays = {name: jnp.repeat(getattr(call, name), steps, axis=0) for name in ("queries", "keys", "values")}
    context = attend(replace(call, **arrays), key_value_seq_lengths=lengths.reshape(-1))
    context, rows = context.reshape(batch, steps, *context.shape[1:]), jnp.arange(steps)
    return jnp.moveaxis(context[:, rows, ..., rows, :], 0, -2), None


dot_product_attention = SimpleNamespace(runtime=runtime, DotProductAttention=with_mask)
dot_product_attention_bias = SimpleNamespace(runtime=runtime, DotProductAttention=with_bias)
dot_product_attention_window = SimpleNamespace(runtime=runtime, DotProductAttention=with_window)
dot_product_attention_lengths = SimpleNamespace(runtime=runtime, DotProductAttention=with_lengths)
