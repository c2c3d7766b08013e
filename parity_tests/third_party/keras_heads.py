"""Keras's attention with heads as a target, on whichever backend of Keras a worker has chosen."""

from __future__ import annotations

from typing import Any

import keras

from parity_tests.third_party.signatures import Attention, Outputs, takes


def projections(call: Attention) -> dict[str, Any]:
    """The canonical arrays by Keras's names: a kernel (features, heads, features of a head) and a bias for each."""
    parameters, size = call.parameters, call.head_size
    made = {
        "attention_output/kernel": keras.ops.reshape(
            keras.ops.transpose(parameters["W_o"]), (-1, size, call.queries.shape[-1])
        )
    }
    for name in ("query", "key", "value"):
        weight = keras.ops.transpose(parameters[f"W_{name[0]}"])
        made[f"{name}/kernel"] = keras.ops.reshape(weight, (len(weight), -1, size))
    if call.bias:
        made["attention_output/bias"] = parameters["b_o"]
        for name in ("query", "key", "value"):
            made[f"{name}/bias"] = keras.ops.reshape(parameters[f"b_{name[0]}"], (-1, size))
    return made


def multi_head(call: Attention, **keywords: Any) -> Any:
    """Call layers.MultiHeadAttention with the canonical arrays as its parameters."""
    layer = keras.layers.MultiHeadAttention(
        call.num_heads, call.head_size, use_bias=call.bias, dtype=keras.backend.standardize_dtype(call.queries.dtype)
    )
    return with_parameters(layer, call, **keywords)


def with_parameters(layer: keras.layers.Layer, call: Attention, **keywords: Any) -> Any:
    """Call the layer with the canonical arrays as its parameters."""
    queries, keys, values = call.queries, call.keys, call.values
    layer.build(queries.shape, values.shape, keys.shape)
    arrays = projections(call)
    ordered = [arrays["/".join(variable.path.split("/")[-2:])] for variable in layer.trainable_variables]
    fixed = [variable.value for variable in layer.non_trainable_variables]
    keywords |= {"attention_mask": call.mask, "use_causal_mask": call.causal}
    return layer.stateless_call(ordered, fixed, queries, values, keys, **keywords)[0]


@takes(Attention, "mask", "num_heads", "bias", "causal")
def multi_head_context(call: Attention) -> Outputs:
    """layers.MultiHeadAttention."""
    return multi_head(call), None


@takes(Attention, "mask", "num_heads", "bias", "per_head", "causal")
def multi_head_scores(call: Attention) -> Outputs:
    """layers.MultiHeadAttention with its scores, which are the weights of every head."""
    context, weights = multi_head(call, return_attention_scores=True)
    return context, weights if call.per_head else keras.ops.mean(weights, axis=1)


@takes(Attention, "mask", "num_heads", "num_key_heads", "bias", "causal")
def shared_heads(call: Attention) -> Outputs:
    """layers.GroupQueryAttention."""
    layer = keras.layers.GroupQueryAttention(
        call.head_size,
        call.num_heads,
        call.num_key_heads or call.num_heads,
        use_bias=call.bias,
        dtype=keras.backend.standardize_dtype(call.queries.dtype),
    )
    return with_parameters(layer, call), None


@takes(Attention, "mask", "scale", "num_key_heads", "softcap", "causal")
def ops_dot_product(call: Attention) -> Outputs:
    """ops.dot_product_attention: its heads are the axis before the last."""
    heads, arrays = len(call.queries.shape) == 4, (call.queries, call.keys, call.values)
    arrays = tuple(keras.ops.swapaxes(array, 1, 2) if heads else array[:, :, None] for array in arrays)
    if keras.backend.backend() == "jax":  # where all have one number of features: zeros fill it up
        size = max(array.shape[-1] for array in arrays)
        arrays = tuple(keras.ops.pad(one, [(0, 0)] * 3 + [(0, size - one.shape[-1])]) for one in arrays)
    keywords = {"is_causal": call.causal, "attn_logits_soft_cap": call.softcap}
    context = keras.ops.dot_product_attention(*arrays, mask=call.head_mask, scale=call.factor, **keywords)
    context = context[..., : call.values.shape[-1]]
    return keras.ops.swapaxes(context, 1, 2) if heads else context[:, :, 0], None
