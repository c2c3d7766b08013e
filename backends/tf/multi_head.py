"""Attention with several heads, and how much each of them matters, in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from attention_core.errors import check, check_options, check_per_head
from attention_core.operators.multi_head import ABLATION_IMPORTANCE, MULTI_HEAD_ATTENTION, TAYLOR_IMPORTANCE
from backends.tf.attention import Attention, Memory, attention_layer
from backends.tf.masking import attention_mask, size
from backends.tf.module import drawn_mask, drops, projected
from backends.tf.pooling import attention_pooling

__all__ = ["MultiHeadAttention", "ablation_importance", "taylor_importance"]


@keras.saving.register_keras_serializable(package="attention_parity")
class MultiHeadAttention(Attention):
    """Attention by several heads at once, each with its own projections.

    context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h), with
    queries_h the h-th part of W_q queries + b_q, keys_h of W_k keys + b_k, values_h of W_v values + b_v

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size), or
    (queries, batch, query_size) and so on with time_major; mask with heads after batch or without; returns (context,
    weights): the shape of queries, and (batch, queries, keys), or (batch, heads, queries, keys) with per_head.
    """

    specification = MULTI_HEAD_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_heads: int,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        hidden_size: int | None = None,
        score: str = "scaled_dot",
        num_positions: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size,
            num_heads=num_heads,
            key_size=key_size,
            value_size=value_size,
            hidden_size=hidden_size,
            score=score,
            num_positions=num_positions,
            bias=bias,
            dropout=dropout,
            time_major=time_major,
            dtype=dtype,
            name=name,
        )
        hidden_size = self.sizes["hidden_size"]
        self.W_q = self.projection("W_q", query_size, hidden_size, bias)
        self.W_k = self.projection("W_k", self.sizes["key_size"], hidden_size, bias)
        self.W_v = self.projection("W_v", self.sizes["value_size"], hidden_size, bias)
        self.W_o = self.projection("W_o", hidden_size, query_size, bias)
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], caller=self, name="scored")

    def project(self, keys: tf.Tensor) -> tf.Tensor:
        """The keys of every head, projected."""
        return self.scored.project(self.split(projected(self.W_k, keys)))

    def score(self, queries: tf.Tensor, keys: tf.Tensor) -> tf.Tensor:
        """The scores of every head."""
        return self.scored.score(self.heads(queries), keys)

    def heads(self, queries: tf.Tensor) -> tf.Tensor:
        """The queries of every head, projected."""
        return self.split(projected(self.W_q, queries))

    def prepare(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
    ) -> Memory:
        """Project the keys and values of every head, and keep them for many queries.

        memory = (projected keys, projected values, mask), of keys and values 0 where hidden from all
        """
        self.check("prepare", keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        keys, values = self.to_batch_first(keys), self.to_batch_first(values)
        allowed = attention_mask(size(keys, -2), valid_lens, mask)
        if allowed is not None:
            allowed = allowed[:, None] if allowed.shape.rank == 3 else allowed
            seen = tf.expand_dims(tf.reduce_any(allowed, axis=(-3, -2)), axis=-1)
            keys, values = tf.where(seen, keys, 0.0), tf.where(seen, values, 0.0)
        return Memory(self.project(keys), self.split(projected(self.W_v, values)), allowed)

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Attend with queries to a prepared memory.

        context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h)

        Shapes: head_mask (heads,) or (batch, heads), dropout_mask (batch, heads, queries, keys).
        """
        check_options(self.methods["attend"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        self.check("attend", queries=queries, memory=memory, head_mask=head_mask, dropout_mask=dropout_mask)
        heads, dropped = self.heads(self.to_batch_first(queries)), drops(self.dropout, dropout_mask, training)
        context, weights = None if need_weights or dropped else self.scored.in_blocks(heads, memory), None
        if context is None:
            scores = self.scored.score(heads, memory.keys)
            if dropout_mask is None:
                dropout_mask = drawn_mask(self.dropout, scores, training)
            context, weights = attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        if head_mask is not None:
            context *= head_mask[..., None, None]
        context = self.to_batch_first(projected(self.W_o, self.joined(context)))
        if not need_weights:
            return context, None
        return context, weights if per_head else tf.reduce_mean(weights, axis=-3)

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them."""
        check_per_head(self.specification.name, per_head, need_weights)
        options = {"per_head": per_head, "need_weights": need_weights}
        keywords = {"head_mask": head_mask, "dropout_mask": dropout_mask}
        return self.entered(queries, keys, values, valid_lens, mask, training, options, **keywords)

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        mask: tf.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(
            queries,
            memory,
            per_head=per_head,
            need_weights=need_weights,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
            training=training,
        )

    def split(self, array: tf.Tensor) -> tf.Tensor:
        """(batch, steps, hidden_size) as (batch, heads, steps, features of a head)."""
        heads = tf.reshape(array, (size(array, 0), size(array, 1), self.sizes["heads"], self.sizes["head_size"]))
        return tf.transpose(heads, (0, 2, 1, 3))

    def joined(self, array: tf.Tensor) -> tf.Tensor:
        """What split gives, as it was before."""
        return tf.reshape(
            tf.transpose(array, (0, 2, 1, 3)), (size(array, 0), size(array, 2), self.sizes["hidden_size"])
        )


def ablation_importance(losses: Callable[[tf.Tensor], tf.Tensor], head_mask: tf.Tensor) -> tf.Tensor:
    """How much the loss rises when a head is switched off, for each head.

    importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]

    Shapes: head_mask (batch, heads), 1 for a head that is on; losses is a function from it to the loss of each example,
    (batch,); the result (heads,).
    """
    check_options(ABLATION_IMPORTANCE, losses=losses)
    check(ABLATION_IMPORTANCE, head_mask=head_mask)
    whole, heads = losses(head_mask), tf.range(size(head_mask, 1))

    def rise(head: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(losses(tf.where(tf.not_equal(heads, head), head_mask, 0.0)) - whole)

    return tf.map_fn(rise, heads, fn_output_signature=tf.TensorSpec((), whole.dtype))


def taylor_importance(losses: Callable[[tf.Tensor], tf.Tensor], head_mask: tf.Tensor) -> tf.Tensor:
    """How much the loss would change to first order if a head were switched off, for each head.

    importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|

    Shapes: as ablation_importance; an example's loss depends on its own row of head_mask alone.
    """
    check_options(TAYLOR_IMPORTANCE, losses=losses)
    check(TAYLOR_IMPORTANCE, head_mask=head_mask)
    head_mask = tf.convert_to_tensor(head_mask)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(head_mask)
        loss = losses(head_mask)
    slope = tape.gradient(loss, head_mask, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return tf.reduce_mean(tf.abs(head_mask * slope), axis=0)
