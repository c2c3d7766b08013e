"""Keras's own attention, on TensorFlow, as targets."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import keras
import tensorflow as tf

from backends.tf import runtime
from parity_tests.third_party.keras_heads import (
    multi_head_context,
    multi_head_scores,
    ops_dot_product,
    shared_heads,
)
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


attention = SimpleNamespace(runtime=runtime, DotProductAttention=dot_product)
additive_attention = SimpleNamespace(runtime=runtime, AdditiveAttention=additive)
multi_head_attention = SimpleNamespace(runtime=runtime, MultiHeadAttention=multi_head_context)
multi_head_attention_scores = SimpleNamespace(runtime=runtime, MultiHeadAttention=multi_head_scores)
group_query_attention = SimpleNamespace(runtime=runtime, MultiHeadAttention=shared_heads)
ops_dot_product_attention = SimpleNamespace(runtime=runtime, DotProductAttention=ops_dot_product)
