"""Flax's own attention, that of nnx and that of linen, as targets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from backends.jax import runtime
from parity_tests.third_party.signatures import Attention, Outputs, takes


def widened(array: jax.Array, size: int) -> jax.Array:
    """The array with zeros behind its last axis, up to that size."""
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])


def dot_product(function: Callable[..., jax.Array]) -> SimpleNamespace:
    """A target whose DotProductAttention is that function of arrays with heads before the last axis."""

    @takes(Attention, "mask")
    def DotProductAttention(call: Attention) -> Outputs:
        """Zeros fill all features up to one size, and a factor of the queries takes back the change of the scale."""
        features, value_features = call.queries.shape[-1], call.values.shape[-1]
        size = max(features, value_features)
        queries = call.queries * (size / features) ** 0.5
        arrays = [widened(array, size) for array in (queries, call.keys, call.values)]
        heads = queries.ndim == 4
        arrays = [jnp.swapaxes(array, 1, 2) if heads else array[:, :, None] for array in arrays]
        context = function(*arrays, mask=call.head_mask)
        context = jnp.swapaxes(context, 1, 2) if heads else context[:, :, 0]
        return context[..., :value_features], None

    return SimpleNamespace(runtime=runtime, DotProductAttention=DotProductAttention)


def projections(call: Attention) -> dict[str, dict[str, jax.Array]]:
    """The canonical arrays as Flax has them: a kernel (features, heads, features of a head) and a bias for each."""
    parameters, num_heads, size = call.parameters, call.num_heads, call.head_size
    made = {}
    for name in ("query", "key", "value"):
        made[name] = {"kernel": parameters[f"W_{name[0]}"].T.reshape(-1, num_heads, size)}
        if call.bias:
            made[name]["bias"] = parameters[f"b_{name[0]}"].reshape(num_heads, size)
    made["out"] = {"kernel": parameters["W_o"].T.reshape(num_heads, size, -1)}
    if call.bias:
        made["out"]["bias"] = parameters["b_o"]
    return made


@takes(Attention, "mask", "num_heads", "bias")
def nnx_multi_head(call: Attention) -> Outputs:
    """Keys and values have one size there: zeros fill the smaller."""
    hidden, query_size = call.parameters["W_q"].shape
    size = max(call.keys.shape[-1], call.values.shape[-1])

    def made() -> nnx.MultiHeadAttention:
        return nnx.MultiHeadAttention(
            call.num_heads,
            in_features=query_size,
            qkv_features=hidden,
            out_features=query_size,
            in_kv_features=size,
            use_bias=call.bias,
            decode=False,
            rngs=nnx.Rngs(0),
        )

    layer = nnx.eval_shape(made)
    for name, arrays in projections(call).items():
        for kind, array in arrays.items():
            narrow = kind == "kernel" and name in ("key", "value")
            filled = jnp.pad(array, [(0, size - len(array)), (0, 0), (0, 0)]) if narrow else array
            setattr(getattr(layer, name), kind, nnx.Param(filled))
    return layer(call.queries, widened(call.keys, size), widened(call.values, size), mask=call.head_mask), None


@takes(Attention, "mask", "num_heads", "bias")
def linen_multi_head(call: Attention) -> Outputs:
    """Queries, keys and values have sizes of their own there."""
    hidden, query_size = call.parameters["W_q"].shape
    layer = linen.MultiHeadDotProductAttention(
        call.num_heads, qkv_features=hidden, out_features=query_size, use_bias=call.bias, deterministic=True
    )
    variables: dict[str, Any] = {"params": projections(call)}
    return layer.apply(variables, call.queries, call.keys, call.values, mask=call.head_mask), None


def layer(call: Callable[..., Outputs]) -> SimpleNamespace:
    """A target whose MultiHeadAttention is that, as one program: operation by operation it would be dozens."""
    return SimpleNamespace(runtime=runtime, MultiHeadAttention=jax.jit(call, static_argnames=("num_heads", "bias")))


nnx_dot_product_attention = dot_product(nnx.dot_product_attention)
linen_dot_product_attention = dot_product(linen.dot_product_attention)
nnx_multi_head_attention = layer(nnx_multi_head)
linen_multi_head_attention = layer(linen_multi_head)
