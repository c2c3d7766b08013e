"""Keras's own attention, on TensorFlow, as targets."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from backends.tf import runtime
from parity_tests.third_party.signatures import Attention, Outputs, takes


def one_query_each(layer: keras.layers.Layer, variable: tf.Tensor, call: Attention) -> Outputs:
    """Call a layer of one variable that takes sequences without heads, and one mask for all queries of each.

    Heads become sequences; where queries differ in their mask, so does every query.
    """
    *outer, steps, features = call.queries.shape
    num_keys, value_features = call.values.shape[-2:]
    count = math.prod(outer)
    arrays = (call.queries, call.keys, call.values)
    queries, keys, values = (tf.reshape(array, (count, *array.shape[-2:])) for array in arrays)
    mask, rows = call.mask, None
    if mask is not None:
        if len(mask.shape) == len(outer) + 1:  # heads that share a mask
            mask = mask[:, None]
        apart = mask.shape[-2]
        rows = tf.reshape(tf.broadcast_to(mask, (*outer, apart, num_keys)), (count * apart, num_keys))
        if apart != 1:
            queries = tf.reshape(queries, (count * steps, 1, features))
            keys, values = (tf.repeat(array, steps, axis=0) for array in (keys, values))
    layer.build([queries.shape, values.shape, keys.shape])
    (context, weights), _ = layer.stateless_call(
        [variable],
        [],
        [queries, values, keys],
        mask=[None, rows],
        return_attention_scores=True,
        use_causal_mask=call.causal,
    )
    return tf.reshape(context, (*outer, steps, value_features)), tf.reshape(weights, (*outer, steps, num_keys))


@takes(Attention, "mask", "scale", "causal")
def dot_product(call: Attention) -> Outputs:
    """layers.Attention: its scale is a parameter, 1 in the beginning."""
    layer = keras.layers.Attention(use_scale=True, dtype=call.queries.dtype.name)
    return one_query_each(layer, tf.constant(call.factor, call.queries.dtype), call)


@takes(Attention, "mask", "causal")
def additive(call: Attention) -> Outputs:
    """layers.AdditiveAttention: it has w_v alone, and calls it scale; queries and keys are projected before."""
    layer = keras.layers.AdditiveAttention(dtype=call.queries.dtype.name)
    queries = tf.tensordot(call.queries, call.parameters["W_q"], [[-1], [1]])
    keys = tf.tensordot(call.keys, call.parameters["W_k"], [[-1], [1]])
    return one_query_each(layer, call.parameters["w_v"], replace(call, queries=queries, keys=keys))


def projections(call: Attention) -> dict[str, tf.Tensor]:
    """The canonical arrays by Keras's names: a kernel (features, heads, features of a head) and a bias for each."""
    parameters, size = call.parameters, call.head_size
    made = {"attention_output/kernel": tf.reshape(tf.transpose(parameters["W_o"]), (-1, size, call.queries.shape[-1]))}
    for name in ("query", "key", "value"):
        weight = tf.transpose(parameters[f"W_{name[0]}"])
        made[f"{name}/kernel"] = tf.reshape(weight, (len(weight), -1, size))
    if call.bias:
        made["attention_output/bias"] = parameters["b_o"]
        for name in ("query", "key", "value"):
            made[f"{name}/bias"] = tf.reshape(parameters[f"b_{name[0]}"], (-1, size))
    return made


def multi_head(call: Attention, **keywords: Any) -> Any:
    """Call layers.MultiHeadAttention with the canonical arrays as its parameters."""
    layer = keras.layers.MultiHeadAttention(
        call.num_heads, call.head_size, use_bias=call.bias, dtype=call.queries.dtype.name
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
    return context, weights if call.per_head else tf.reduce_mean(weights, axis=1)


@takes(Attention, "mask", "num_heads", "num_key_heads", "bias", "causal")
def grouped(call: Attention) -> Outputs:
    """layers.GroupQueryAttention."""
    layer = keras.layers.GroupQueryAttention(
        call.head_size,
        call.num_heads,
        call.num_key_heads or call.num_heads,
        use_bias=call.bias,
        dtype=call.queries.dtype.name,
    )
    return with_parameters(layer, call), None


@takes(Attention, "mask", "scale", "num_key_heads", "softcap", "causal")
def ops_dot_product(call: Attention) -> Outputs:
    """ops.dot_product_attention: its heads are the axis before the last."""
    heads, arrays = len(call.queries.shape) == 4, (call.queries, call.keys, call.values)
    arrays = tuple(tf.einsum("bhtc->bthc", array) if heads else array[:, :, None] for array in arrays)
    keywords = {"is_causal": call.causal, "attn_logits_soft_cap": call.softcap}
    context = keras.ops.dot_product_attention(*arrays, mask=call.head_mask, scale=call.factor, **keywords)
    return tf.einsum("bthc->bhtc", context) if heads else context[:, :, 0], None


attention = SimpleNamespace(runtime=runtime, DotProductAttention=dot_product)
additive_attention = SimpleNamespace(runtime=runtime, AdditiveAttention=additive)
multi_head_attention = SimpleNamespace(runtime=runtime, MultiHeadAttention=multi_head_context)
multi_head_attention_scores = SimpleNamespace(runtime=runtime, MultiHeadAttention=multi_head_scores)
group_query_attention = SimpleNamespace(runtime=runtime, MultiHeadAttention=grouped)
ops_dot_product_attention = SimpleNamespace(runtime=runtime, DotProductAttention=ops_dot_product)
