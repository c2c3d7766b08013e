"""Flax's own attention, that of nnx and that of linen, as targets."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

from backends.jax import runtime
from parity_tests.third_party.signatures import Attention, Outputs, takes


def pad_features(array: jax.Array, size: int) -> jax.Array:
    """The array with zeros behind its last axis, up to that size."""
    return jnp.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])])


def causal_by(function: Callable[..., Any]) -> list[str]:
    """The field that needs is_causal, where the function has that argument: nnx has it in newer versions."""
    return ["causal"] * ("is_causal" in inspect.signature(function).parameters)


def dot_product(function: Callable[..., jax.Array], *names: str) -> SimpleNamespace:
    """A target whose DotProductAttention is that function of arrays with heads before the last axis."""

    @takes(Attention, "mask", *names, *causal_by(function))
    def DotProductAttention(call: Attention) -> Outputs:
        """Zeros fill all features up to one size, and a factor of the queries takes back the change of the scale."""
        features, value_features = call.queries.shape[-1], call.values.shape[-1]
        size = max(features, value_features)
        queries = call.queries * (size / features) ** 0.5
        arrays = [pad_features(array, size) for array in (queries, call.keys, call.values)]
        heads = queries.ndim == 4
        arrays = [jnp.swapaxes(array, 1, 2) if heads else array[:, :, None] for array in arrays]
        context = function(*arrays, mask=call.head_mask, **{"is_causal": True} if call.causal else {})
        context = jnp.swapaxes(context, 1, 2) if heads else context[:, :, 0]
        return context[..., :value_features], None

    return SimpleNamespace(runtime=runtime, DotProductAttention=DotProductAttention)


def projections(call: Attention) -> dict[str, dict[str, jax.Array]]:
    """The canonical arrays as Flax has them: a kernel (features, heads, features of a head) and a bias for each."""
    parameters, num_heads, size = call.parameters, call.num_heads, call.head_size
    made = {}
    for name in ("query", "key", "value"):
        heads = num_heads if name == "query" else call.num_key_heads or num_heads
        made[name] = {"kernel": parameters[f"W_{name[0]}"].T.reshape(-1, heads, size)}
        if call.bias:
            made[name]["bias"] = parameters[f"b_{name[0]}"].reshape(heads, size)
    made["out"] = {"kernel": parameters["W_o"].T.reshape(num_heads, size, -1)}
    if call.bias:
        made["out"]["bias"] = parameters["b_o"]
    return made


def nnx_layer(call: Attention) -> nnx.MultiHeadAttention:
    """The layer with the canonical arrays. Keys and values have one size there: zeros fill the smaller."""
    hidden, query_size = call.parameters["W_q"].shape
    size = max(call.keys.shape[-1], call.values.shape[-1])

    def make_layer() -> nnx.MultiHeadAttention:
        return nnx.MultiHeadAttention(
            call.num_heads,
            in_features=query_size,
            qkv_features=hidden,
            out_features=query_size,
            in_kv_features=size,
            use_bias=call.bias,
            decode=False,
            rngs=nnx.Rngs(0),
            **{"num_kv_heads": call.num_key_heads} if call.num_key_heads else {},
        )

    layer = nnx.eval_shape(make_layer)
    for name, arrays in projections(call).items():
        for kind, array in arrays.items():
            narrow = kind == "kernel" and name in ("key", "value")
            filled = jnp.pad(array, [(0, size - len(array)), (0, 0), (0, 0)]) if narrow else array
            setattr(getattr(layer, name), kind, nnx.Param(filled))
    return layer


NNX_GROUPS = ["num_key_heads"] * ("num_kv_heads" in inspect.signature(nnx.MultiHeadAttention.__init__).parameters)
"""Newer versions have fewer heads of keys."""


@takes(Attention, "mask", "num_heads", "bias", *NNX_GROUPS, *causal_by(nnx.MultiHeadAttention.__call__))
def nnx_multi_head(call: Attention) -> Outputs:
    """nnx.MultiHeadAttention."""
    size = max(call.keys.shape[-1], call.values.shape[-1])
    arrays = (call.queries, pad_features(call.keys, size), pad_features(call.values, size))
    causal = {"is_causal": True} if call.causal else {}
    return nnx_layer(call)(*arrays, mask=call.head_mask, **causal), None


@takes(Attention, "num_heads", "bias", "steps", *causal_by(nnx.MultiHeadAttention.__call__))
def nnx_decode(call: Attention) -> Outputs:
    """nnx.MultiHeadAttention with decode=True, which keeps the keys and values of earlier calls."""
    size = max(call.keys.shape[-1], call.values.shape[-1])
    arrays = (call.queries, pad_features(call.keys, size), pad_features(call.values, size))
    layer, causal = nnx_layer(call), {"is_causal": True} if call.causal else {}
    layer.init_cache(call.queries.shape, call.queries.dtype)
    return in_steps(lambda *step: layer(*step, decode=True, **causal), arrays), None


def in_steps(attend: Callable[..., jax.Array], arrays: tuple[jax.Array, ...]) -> jax.Array:
    """The contexts of single steps, one after the other."""
    steps = range(arrays[0].shape[1])
    return jnp.concatenate([attend(*(array[:, step : step + 1] for array in arrays)) for step in steps], axis=1)


def linen_layer(call: Attention, **keywords: Any) -> linen.MultiHeadDotProductAttention:
    """The layer of the sizes of a call."""
    hidden, query_size = call.parameters["W_q"].shape
    return linen.MultiHeadDotProductAttention(
        call.num_heads,
        qkv_features=hidden,
        out_features=query_size,
        use_bias=call.bias,
        deterministic=True,
        **keywords,
    )


@takes(Attention, "mask", "num_heads", "bias")
def linen_multi_head(call: Attention) -> Outputs:
    """Queries, keys and values have sizes of their own there."""
    variables: dict[str, Any] = {"params": projections(call)}
    arrays = (call.queries, call.keys, call.values)
    return linen_layer(call).apply(variables, *arrays, mask=call.head_mask), None


@takes(Attention, "num_heads", "bias", "steps")
def linen_decode(call: Attention) -> Outputs:
    """linen.MultiHeadDotProductAttention with decode=True, whose cache has the sizes of its first call."""
    layer, arrays = linen_layer(call, decode=True), (call.queries, call.keys, call.values)
    cache = layer.init(jax.random.key(0), *arrays)["cache"]

    def attend(*step: jax.Array) -> jax.Array:
        nonlocal cache
        context, changed = layer.apply({"params": projections(call), "cache": cache}, *step, mutable=["cache"])
        cache = changed["cache"]
        return context

    return in_steps(attend, arrays), None


STATIC = ("num_heads", "num_key_heads", "bias", "causal", "steps")


def layer(call: Callable[..., Outputs]) -> SimpleNamespace:
    """A target whose MultiHeadAttention is that, as one program: operation by operation it would be dozens."""
    names = [name for name in STATIC if name in inspect.signature(call).parameters]
    return SimpleNamespace(runtime=runtime, MultiHeadAttention=jax.jit(call, static_argnames=names))


nnx_dot_product_attention = dot_product(nnx.dot_product_attention, *NNX_GROUPS)
linen_dot_product_attention = dot_product(linen.dot_product_attention)
nnx_multi_head_attention = layer(nnx_multi_head)
linen_multi_head_attention = layer(linen_multi_head)
nnx_multi_head_attention_decode = layer(nnx_decode)
linen_multi_head_attention_decode = layer(linen_decode)
