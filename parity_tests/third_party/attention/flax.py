"""Flax's own attention, as targets: that of nnx and that of linen."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from backends.jax import runtime


def widened(array: jax.Array, size: int) -> jax.Array:
    """The array with zeros behind its last axis, up to that size."""
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])


def _dot_product(function: Callable[..., jax.Array]) -> SimpleNamespace:
    def DotProductAttention(
        parameters: dict[str, jax.Array],
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        mask: jax.Array | None = None,
    ) -> tuple[jax.Array, None]:
        """Zeros fill all features up to one size; what that changes in the scale is taken back from the queries."""
        features, value_features = queries.shape[-1], values.shape[-1]
        size = max(features, value_features)
        queries = queries * (size / features) ** 0.5
        arrays = [widened(array, size) for array in (queries, keys, values)]
        heads = queries.ndim == 4
        arrays = [jnp.swapaxes(array, 1, 2) if heads else array[:, :, None] for array in arrays]
        context = function(*arrays, mask=mask[:, None] if mask is not None and mask.ndim == 3 else mask)
        context = jnp.swapaxes(context, 1, 2) if heads else context[:, :, 0]
        return context[..., :value_features], None

    return SimpleNamespace(runtime=runtime, DotProductAttention=DotProductAttention)


nnx_dot_product_attention = _dot_product(nnx.dot_product_attention)
linen_dot_product_attention = _dot_product(linen.dot_product_attention)

PROJECTIONS = {"query": "q", "key": "k", "value": "v"}


def projections(parameters: dict[str, jax.Array], num_heads: int, bias: bool) -> dict[str, dict[str, jax.Array]]:
    """The canonical arrays as Flax has them: a kernel (features, heads, features of a head) and a bias for each."""
    hidden, query_size = parameters["W_q"].shape
    size = hidden // num_heads
    found = {
        name: {"kernel": parameters[f"W_{letter}"].T.reshape(-1, num_heads, size)}
        for name, letter in PROJECTIONS.items()
    }
    found["out"] = {"kernel": parameters["W_o"].T.reshape(num_heads, size, query_size)}
    if bias:
        for name, letter in PROJECTIONS.items():
            found[name]["bias"] = parameters[f"b_{letter}"].reshape(num_heads, size)
        found["out"]["bias"] = parameters["b_o"]
    return found


def for_heads(mask: jax.Array | None) -> jax.Array | None:
    """The mask with an axis of heads."""
    return mask[:, None] if mask is not None and mask.ndim == 3 else mask


def _nnx_multi_head(
    parameters: dict[str, jax.Array],
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_heads: int,
    bias: bool = True,
) -> tuple[jax.Array, None]:
    """Keys and values have one size there: zeros fill the smaller."""
    hidden, query_size = parameters["W_q"].shape
    size = max(keys.shape[-1], values.shape[-1])
    parameters = {**parameters, **{name: widened(parameters[name], size) for name in ("W_k", "W_v")}}

    def made() -> nnx.MultiHeadAttention:
        return nnx.MultiHeadAttention(
            num_heads,
            in_features=query_size,
            qkv_features=hidden,
            out_features=query_size,
            in_kv_features=size,
            use_bias=bias,
            decode=False,
            rngs=nnx.Rngs(0),
        )

    layer = nnx.eval_shape(made)
    for name, arrays in projections(parameters, num_heads, bias).items():
        for kind, array in arrays.items():
            setattr(getattr(layer, name), kind, nnx.Param(array))
    return layer(queries, widened(keys, size), widened(values, size), mask=for_heads(mask)), None


def _linen_multi_head(
    parameters: dict[str, jax.Array],
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    mask: jax.Array | None = None,
    *,
    num_heads: int,
    bias: bool = True,
) -> tuple[jax.Array, None]:
    hidden, query_size = parameters["W_q"].shape
    layer = linen.MultiHeadDotProductAttention(
        num_heads, qkv_features=hidden, out_features=query_size, use_bias=bias, deterministic=True
    )
    variables: dict[str, Any] = {"params": projections(parameters, num_heads, bias)}
    return layer.apply(variables, queries, keys, values, mask=for_heads(mask)), None


nnx_multi_head_attention = SimpleNamespace(runtime=runtime, MultiHeadAttention=_nnx_multi_head)
linen_multi_head_attention = SimpleNamespace(runtime=runtime, MultiHeadAttention=_linen_multi_head)
