"""Attention by inner products in TensorFlow without the (batch, queries, keys) array."""

from __future__ import annotations

import math

import tensorflow as tf

from backends.tf import kernels
from backends.tf.attention import Answer, Form
from backends.tf.blocked.blocks import LIMIT, Score, blocked_context
from backends.tf.masking import expand_to_rank, precise
from backends.tf.memory import Memory
from backends.tf.scoring import _scaled_dot_score

__all__ = ["blocked_dot_attention"]

DOT_MIN_ELEMENTS = 2**22
"""The elements of one head, queries · keys · features, from which on blocks win: no block has more than one head."""


def blocked_dot_attention(
    queries: tf.Tensor,
    keys: tf.Tensor,
    values: tf.Tensor,
    mask: tf.Tensor | None,
    scale: float,
    softcap: float | None = None,
    bias: tf.Tensor | None = None,
) -> tf.Tensor:
    """Average the values by the softmax of scaled inner products, without keeping scores or weights.

    context = attention_pooling(cap(scale · queries keysᵀ) + bias, values, mask=mask), the context alone, with
    cap(x) = softcap · tanh(x / softcap), or x without softcap

    A block is of some queries and all keys of one head. With s the scores and m[i] the largest that is open to query i,

    e[i, j] = exp(s[i, j] - m[i]) where open, else 0;  total[i] = sum over j of e[i, j]
    context[i] = sum over j of e[i, j] values[j] / total[i], 0 in a fully masked row

    The backward computes each block again. With u[i] = upstream[i] / total[i] and p[i, j] = u[i]·values[j],

    dvalues[j] = sum over i of e[i, j] u[i];  ds[i, j] = e[i, j] (p[i, j] - sum over k of e[i, k] p[i, k] / total[i])
    dqueries[i] = scale · sum over j of ds[i, j] keys[j];  dkeys[j] = scale · sum over i of ds[i, j] queries[i], with
    ds[i, j] (1 - tanh²) for ds[i, j] if softcap is given;  dbias = ds, summed over the axes where its size is 1

    Below LIMIT every score is finite, so that the mask alone hides keys, and a weight of 0 silences what it hides.
    Beyond it, and where a number is NaN, the plain formula is computed. Half types are computed in float32.

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features), with
    heads after batch or without; mask and bias of the same rank, each axis its size or 1, or None; returns the context,
    (batch, queries, value_features), with heads or without. Second derivatives raise an AttentionError but for
    set_path("plain").
    """

    # By Cauchy and Schwarz, no score is larger.
    dtype = precise(tf.convert_to_tensor(queries)).dtype
    finite = abs(scale) * 2 * LIMIT[dtype] <= dtype.max

    def rows_scored(rows: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        scores = tf.matmul(rows * scale, keys, transpose_b=True)
        return scores if softcap is None else softcap * tf.tanh(scores / softcap)

    def gradients(slopes: tf.Tensor, rows: tf.Tensor, keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if softcap is not None:
            slopes *= 1.0 - tf.square(rows_scored(rows, keys) / softcap)
        return tf.matmul(slopes, keys) * scale, tf.matmul(slopes, rows * scale, transpose_a=True)

    score = Score(lambda queries, keys: _scaled_dot_score(queries, keys, scale, softcap), rows_scored, gradients)
    return blocked_context(score, finite, values, mask, queries, keys, bias=bias)


def serves(form: Form, queries: tf.Tensor, memory: Memory, need_weights: bool, bias: tf.Tensor | None) -> bool:
    """Whether to compute the context of inner products in blocks: from DOT_MIN_ELEMENTS elements of one head on."""
    if form.w_v is not None or need_weights or queries.shape[-1] is None:
        return False
    sequences = math.prod(n or 1 for n in queries.shape[:-2])
    if not kernels.use_blocks(queries, memory.keys, sequences * kernels.threshold(DOT_MIN_ELEMENTS)):
        return False
    return not kernels.has_tangents(memory.values, *(() if bias is None else (bias,)))


@kernels.register("attention", serves)
def attend(form: Form, queries: tf.Tensor, memory: Memory, need_weights: bool, bias: tf.Tensor | None) -> Answer:
    """Attend to a memory by the score of that form, for the context alone."""
    added = None if bias is None else expand_to_rank(bias, queries.shape.rank)
    return blocked_dot_attention(queries, *memory, form.scale, form.softcap, added), None
