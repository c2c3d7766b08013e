"""Keras's own attention, on TensorFlow, as targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from backends.tf import runtime


def one_query_each(
    layer: keras.layers.Layer,
    variables: Sequence[tf.Tensor],
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Call a layer that takes sequences without heads and one mask for all queries of each.

    Heads become sequences; where queries differ in their mask, every query becomes a sequence of its own.
    """
    *outer, steps, features = queries.shape
    num_keys, value_features = values.shape[-2:]
    count = math.prod(outer)
    queries, keys, values = (tf.reshape(array, (count, *array.shape[-2:])) for array in (queries, keys, values))
    rows = None
    if mask is not None:
        if len(mask.shape) == len(outer) + 1:  # heads that share a mask
            mask = mask[:, None]
        own = mask.shape[-2]
        rows = tf.reshape(tf.broadcast_to(mask, (*outer, own, num_keys)), (count * own, num_keys))
        if own != 1:
            queries = tf.reshape(queries, (count * steps, 1, features))
            keys, values = (tf.repeat(array, steps, axis=0) for array in (keys, values))
    layer.build([queries.shape, values.shape, keys.shape])
    (context, weights), _ = layer.stateless_call(
        variables, [], [queries, values, keys], mask=[None, rows], return_attention_scores=True
    )
    return tf.reshape(context, (*outer, steps, value_features)), tf.reshape(weights, (*outer, steps, num_keys))


def _attention(
    parameters: dict[str, tf.Tensor],
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None = None,
    *,
    scale: float | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Its scale is a parameter, 1 in the beginning."""
    layer = keras.layers.Attention(use_scale=True, dtype=queries.dtype.name)
    factor = tf.constant(queries.shape[-1] ** -0.5 if scale is None else scale, queries.dtype)
    return one_query_each(layer, [factor], queries, keys, values, mask)


def _additive_attention(
    parameters: dict[str, tf.Tensor],
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """It has w_v alone, and calls it scale: queries and keys are projected before."""
    layer = keras.layers.AdditiveAttention(dtype=queries.dtype.name)
    queries = tf.tensordot(queries, parameters["W_q"], [[-1], [1]])
    keys = tf.tensordot(keys, parameters["W_k"], [[-1], [1]])
    return one_query_each(layer, [parameters["w_v"]], queries, keys, values, mask)


def projections(parameters: dict[str, tf.Tensor], num_heads: int, bias: bool) -> dict[str, tf.Tensor]:
    """The canonical arrays by Keras's names: a kernel (features, heads, features of a head) and a bias for each."""
    hidden, query_size = parameters["W_q"].shape
    size = hidden // num_heads
    found = {"attention_output/kernel": tf.reshape(tf.transpose(parameters["W_o"]), (num_heads, size, query_size))}
    for name in ("query", "key", "value"):
        found[f"{name}/kernel"] = tf.reshape(tf.transpose(parameters[f"W_{name[0]}"]), (-1, num_heads, size))
    if bias:
        found["attention_output/bias"] = parameters["b_o"]
        for name in ("query", "key", "value"):
            found[f"{name}/bias"] = tf.reshape(parameters[f"b_{name[0]}"], (num_heads, size))
    return found


def multi_head(
    parameters: dict[str, tf.Tensor],
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None,
    num_heads: int,
    bias: bool,
    **keywords: Any,
) -> Any:
    """Call the layer with the canonical arrays as its parameters."""
    size = parameters["W_q"].shape[0] // num_heads
    layer = keras.layers.MultiHeadAttention(num_heads, size, use_bias=bias, dtype=queries.dtype.name)
    layer.build(queries.shape, values.shape, keys.shape)
    own = projections(parameters, num_heads, bias)
    ordered = [own["/".join(variable.path.split("/")[-2:])] for variable in layer.trainable_variables]
    fixed = [variable.value for variable in layer.non_trainable_variables]
    return layer.stateless_call(ordered, fixed, queries, values, keys, attention_mask=mask, **keywords)[0]


def _multi_head_attention(
    parameters: dict[str, tf.Tensor],
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None = None,
    *,
    num_heads: int,
    bias: bool = True,
) -> tuple[tf.Tensor, None]:
    return multi_head(parameters, queries, keys, values, mask, num_heads, bias), None


def _multi_head_attention_scores(
    parameters: dict[str, tf.Tensor],
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None = None,
    *,
    num_heads: int,
    bias: bool = True,
    per_head: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Its scores are the weights of every head."""
    context, weights = multi_head(
        parameters, queries, keys, values, mask, num_heads, bias, return_attention_scores=True
    )
    return context, weights if per_head else tf.reduce_mean(weights, axis=1)


def _ops_dot_product_attention(
    parameters: dict[str, tf.Tensor],
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None = None,
    *,
    scale: float | None = None,
) -> tuple[tf.Tensor, None]:
    """Its heads are the axis before the last."""
    heads = len(queries.shape) == 4
    arrays = [tf.einsum("bhtc->bthc", array) if heads else array[:, :, None] for array in (queries, keys, values)]
    if mask is not None and len(mask.shape) == 3:
        mask = mask[:, None]
    factor = queries.shape[-1] ** -0.5 if scale is None else scale
    context = keras.ops.dot_product_attention(*arrays, mask=mask, scale=factor)
    return tf.einsum("bthc->bhtc", context) if heads else context[:, :, 0], None


attention = SimpleNamespace(runtime=runtime, DotProductAttention=_attention)
additive_attention = SimpleNamespace(runtime=runtime, AdditiveAttention=_additive_attention)
multi_head_attention = SimpleNamespace(runtime=runtime, MultiHeadAttention=_multi_head_attention)
multi_head_attention_scores = SimpleNamespace(runtime=runtime, MultiHeadAttention=_multi_head_attention_scores)
ops_dot_product_attention = SimpleNamespace(runtime=runtime, DotProductAttention=_ops_dot_product_attention)
