"""Attention with several heads, how much each of them matters, and how it flows through layers, in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.multi_head import (
    ABLATION_IMPORTANCE,
    ATTENTION_ROLLOUT,
    MULTI_HEAD_ATTENTION,
    TAYLOR_IMPORTANCE,
    remaining,
)
from backends.tf.arrays import Lengths, Offset, lengths
from backends.tf.attention import Answer, ScoredAttention, attention_layer
from backends.tf.masking import _attention_mask, open_to, size
from backends.tf.memory import Memory
from backends.tf.module import join_attached, mode_of, project
from backends.tf.positions import RotaryPositions

__all__ = ["MultiHeadAttention", "ablation_importance", "taylor_importance", "attention_rollout"]


@keras.saving.register_keras_serializable(package="attention_parity")
class MultiHeadAttention(ScoredAttention):
    """Attention by several heads at once, each with its own projections.

    context = W_o [head_0; head_1; ...] + b_o
    head_h, weights_h = attention(queries_h, keys_h, values_h), with queries_h the h-th part of W_q queries + b_q,
    keys_h of W_k keys + b_k, values_h of W_v values + b_v

    query_size is the features of a query and of the context. num_heads must divide hidden_size: head h has the rows
    from h·head_size to (h + 1)·head_size - 1 of W_q, W_k and W_v, with head_size = hidden_size/num_heads. With
    num_key_heads, query head h reads key head ⌊h · num_key_heads / num_heads⌋, and has the rows of that of W_k and W_v:
    Ainslie et al. 2023, section 2.2, arXiv:2305.13245. With rotary_layout, RotaryPositions rotate query i by position i
    + offset and key j by position j, so that their inner product depends on the distance alone: Su et al. 2021, section
    3.2, arXiv:2104.09864.

    Args:
        query_size: features of a query
        num_heads: number of heads
        key_size (default None): features of a key; query_size if None
        value_size (default None): features of a value; key_size if None
        hidden_size (default None): features of all heads together; query_size if None
        num_key_heads (default None): number of heads of keys and values; num_heads if None
        score (default 'scaled_dot'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'location', 'gaussian'
        num_positions (default None): number of positions to score, for score='location' only
        softcap (default None): bound of the scores; none if None; of the scores 'dot' and 'scaled_dot' only
        bias (default True): whether the four projections have biases
        rotary_layout (default None): which features rotate together by position: neighbours, or one of each half; none
            if None; scores 'dot' and 'scaled_dot' only: 'interleaved', 'concatenated'
        rotary_base (default None): highest rate over the limit of the lowest; 10000.0 if None; needs rotary_layout
        dropout (default 0.0): dropout rate of the weights in training
        time_major (default False): whether arrays are (steps, batch, features), without heads
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        W_q: (hidden_size, query_size), projects queries
        W_k: (num_key_heads · head_size, key_size), projects keys
        W_v: (num_key_heads · head_size, value_size), projects values
        W_o: (query_size, hidden_size), projects the heads' averages
        b_q: (hidden_size,), biases of the queries, if bias
        b_k: (num_key_heads · head_size,), biases of the keys, if bias
        b_v: (num_key_heads · head_size,), biases of the values, if bias
        b_o: (query_size,), biases of the context, if bias
        scored.*: the attention layer of score, whose parameters the heads share
        rotary.*: the RotaryPositions of rotary_layout, which has none
    Source: Vaswani et al. 2017, section 3.2.2, arXiv:1706.03762
    Example:
        layer = attention.MultiHeadAttention(query_size, num_heads)
        context, weights = layer(queries, keys, values)
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
        num_key_heads: int | None = None,
        score: str = "scaled_dot",
        num_positions: int | None = None,
        softcap: float | None = None,
        bias: bool = True,
        rotary_layout: str | None = None,
        rotary_base: float | None = None,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        hidden_size, of_keys = self.sizes["hidden_size"], self.sizes["num_key_heads · head_size"]
        self.W_q = self._projection("W_q", query_size, hidden_size, bias)
        self.W_k = self._projection("W_k", self.sizes["key_size"], of_keys, bias)
        self.W_v = self._projection("W_v", self.sizes["value_size"], of_keys, bias)
        self.W_o = self._projection("W_o", hidden_size, query_size, bias)
        parts = self.specification.inside(self.sizes)
        self.scored = attention_layer(parts["scored"], caller=self, name="scored")
        self.rotary = RotaryPositions(**parts["rotary"].config) if "rotary" in parts else None

    def prepare(
        self, keys: tf.Tensor, values: tf.Tensor, valid_lens: Lengths | None = None, mask: tf.Tensor | None = None
    ) -> Memory:
        """Project the keys and values of every head, once for many queries.

        memory = (projected keys, projected values, mask), of keys and values 0 where no query may attend

        Args:
            keys: (batch, keys, key_size); key vectors
            values: (batch, keys, value_size); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
        Returns:
            memory: a `Memory`, which `attend` and `step` take
        Raises:
            ShapeError: more keys than a location score has positions
        """
        self._check("prepare", keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        keys, values = self._cast((keys, values))
        return self._prepare(keys, values, valid_lens, mask)

    def attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        offset: Offset | None = None,
        head_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Attend with queries to a prepared memory.

        context = W_o [head_0; head_1; ...] + b_o
        head_h, weights_h = attention(queries_h, keys_h, values_h), with queries_h the h-th part of W_q queries + b_q,
        keys_h of W_k keys + b_k, values_h of W_v values + b_v

        A query that may attend to nothing gets weights 0 and context b_o, or 0 without bias.

        Args:
            queries: (batch, queries, query_size); query vectors
            memory: as `prepare` returns it
            per_head (default False): whether to return the weights of every head, or their mean
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            bias (default None): ([batch], [heads], queries, keys), broadcast; added to the scores; -inf hides a key
            offset (default None): integers (batch,), a list, or one number; position of the first query, with
                rotary_layout only; 0 if None
            head_mask (default None): ([batch], heads); factor of each head in the context; 0 switches it off
            dropout_mask (default None): (batch, heads, queries, keys); factor of each weight
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            context: (batch, queries, query_size); the heads' averages, projected
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            OptionError: per_head where no weights are returned
            OptionError: an offset that would be ignored
        """
        options: dict[str, Any] = {
            "per_head": per_head,
            "need_weights": need_weights,
            "bias": bias,
            "offset": offset,
            "head_mask": head_mask,
            "dropout_mask": dropout_mask,
        }
        self._check("attend", queries=queries, memory=memory, **options)
        queries, memory, options = self._cast((queries, memory, options))
        return self._attend(queries, memory, **options, training=training)

    def __call__(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        offset: Offset | None = None,
        head_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor | Any]:
        """Prepare the keys and values, and attend to them.

        context = W_o [head_0; head_1; ...] + b_o
        head_h, weights_h = attention(queries_h, keys_h, values_h), with queries_h the h-th part of W_q queries + b_q,
        keys_h of W_k keys + b_k, values_h of W_v values + b_v

        A query that may attend to nothing gets weights 0 and context b_o, or 0 without bias. A key and value that no
        query may attend to, NaN and inf included, have no effect and get gradient 0. Lengths apply to all heads.

        Args:
            queries: (batch, queries, query_size); query vectors
            keys: (batch, keys, key_size); key vectors
            values: (batch, keys, value_size); value vectors, one for each key
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
            per_head (default False): whether to return the weights of every head, or their mean
            need_weights (default True): whether to return the weights; if False, they are None and need not be stored
            bias (default None): ([batch], [heads], queries, keys), broadcast; added to the scores; -inf hides a key
            offset (default None): integers (batch,), a list, or one number; position of the first query, with
                rotary_layout only; 0 if None
            head_mask (default None): ([batch], heads); factor of each head in the context; 0 switches it off
            dropout_mask (default None): (batch, heads, queries, keys); factor of each weight
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            context: (batch, queries, query_size); the heads' averages, projected
            weights: (batch, [heads], queries, keys); probabilities over the keys; None without need_weights
        Raises:
            ShapeError: more keys than a location score has positions
            OptionError: per_head where no weights are returned
            OptionError: an offset that would be ignored
        """
        options: dict[str, Any] = {
            "per_head": per_head,
            "need_weights": need_weights,
            "bias": bias,
            "offset": offset,
            "head_mask": head_mask,
            "dropout_mask": dropout_mask,
        }
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask, **options)
        return self._enter(queries, keys, values, lengths(valid_lens), mask, **options, **mode_of(training))

    def call(
        self,
        queries: tf.Tensor,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        offset: Offset | None = None,
        head_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them; Keras enters here."""
        memory = self._prepare(keys, values, valid_lens, open_to(mask, bias))
        return self._attend(
            queries,
            memory,
            per_head=per_head,
            need_weights=need_weights,
            bias=bias,
            offset=offset,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
            training=training,
        )

    def pruned(self, heads: Sequence[int]) -> MultiHeadAttention:
        """Make a smaller layer without some of the heads.

        context = that of the whole layer with head_mask[h] = 0 for every h in heads, 1 for the others

        Its weights are those of the remaining heads, and its parameters are copies of theirs: their rows of W_q, W_k,
        W_v and biases, and their columns of W_o. head_size stays, and with it the scale. A key head remains as long as
        a query head reads it; where that leaves groups of unequal sizes, each query head gets a copy of the key head
        that it reads.

        Args:
            heads: numbers of the heads to leave out
        Returns:
            layer: the smaller layer
        Raises:
            OptionError: heads that the layer does not have, a head that is named twice, or all heads
        """
        self._check("pruned", heads=heads)
        return self._prune(heads)

    def _prepare(
        self,
        keys: tf.Tensor,
        values: tf.Tensor,
        valid_lens: Lengths | None,
        mask: tf.Tensor | None,
        position: Offset | None = None,
    ) -> Memory:
        mask = join_attached(mask, keys, values, time_major=self.sizes["time_major"])
        keys, values = self._to_batch_first(keys), self._to_batch_first(values)
        allowed = _attention_mask(size(keys, -2), valid_lens, mask)
        if allowed is not None:
            allowed = allowed[:, None] if allowed.shape.rank == 3 else allowed
            seen = tf.expand_dims(tf.reduce_any(allowed, axis=(-3, -2)), axis=-1)
            keys, values = tf.where(seen, keys, 0.0), tf.where(seen, values, 0.0)
        heads = project(self.W_k, keys), project(self.W_v, values)
        keys, values = (split_heads(array, self.sizes["head_size"]) for array in heads)
        keys = keys if self.rotary is None else self.rotary._rotate(keys, position)
        return Memory(self._project(keys), values, allowed)

    def _attend(
        self,
        queries: tf.Tensor,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: tf.Tensor | None = None,
        offset: Offset | None = None,
        head_mask: tf.Tensor | None = None,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> Answer:
        queries = split_heads(project(self.W_q, self._to_batch_first(queries)), self.sizes["head_size"])
        queries = queries if self.rotary is None else self.rotary._rotate(queries, offset)
        heads, weights = self._pool(self.scored, queries, memory, need_weights, bias, dropout_mask, training)
        if head_mask is not None:
            heads = heads * head_mask[..., None, None]
        context = self._to_batch_first(project(self.W_o, merge_heads(heads)))
        if weights is None:
            return context, None
        return context, weights if per_head else tf.reduce_mean(weights, axis=-3)

    def _prune(self, heads: Sequence[int]) -> MultiHeadAttention:
        config, of_queries, of_keys = remaining(self.sizes, heads)
        layer = MultiHeadAttention(**config, dtype=self.dtype_policy)
        for name, columns in (("W_q", of_queries), ("W_k", of_keys), ("W_v", of_keys)):
            part, whole = getattr(layer, name), getattr(self, name)
            part.kernel.assign(tf.gather(whole.kernel, columns, axis=1))
            if self.sizes["bias"]:
                part.bias.assign(tf.gather(whole.bias, columns))
        layer.W_o.kernel.assign(tf.gather(self.W_o.kernel, of_queries))
        if self.sizes["bias"]:
            layer.W_o.bias.assign(self.W_o.bias)
        layer.scored.set_weights(self.scored.get_weights())
        return layer


def split_heads(array: tf.Tensor, head_size: int) -> tf.Tensor:
    """Turn (batch, steps, features of all heads) into (batch, heads, steps, features of a head)."""
    heads = tf.reshape(array, (size(array, 0), size(array, 1), array.shape[-1] // head_size, head_size))
    return tf.transpose(heads, (0, 2, 1, 3))


def merge_heads(heads: tf.Tensor) -> tf.Tensor:
    """Turn (batch, heads, steps, features of a head) into (batch, steps, features of all heads)."""
    parts = tf.transpose(heads, (0, 2, 1, 3))
    return tf.reshape(parts, (size(parts, 0), size(parts, 1), parts.shape[-2] * parts.shape[-1]))


Losses = Callable[[tf.Tensor], tf.Tensor]


def ablation_importance(losses: Losses, head_mask: tf.Tensor) -> tf.Tensor:
    """Compute how much the loss rises when a head is switched off, for each head.

    importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]

    Args:
        losses: function from head_mask (batch, heads) to the loss of each example (batch,)
        head_mask: (batch, heads); factor of each head: 1, or 0 for a head that is off already
    Returns:
        importance: (heads,); in the units of the loss
    Source: Michel et al. 2019, section 3.2, arXiv:1905.10650
    Example:
        importance = attention.ablation_importance(losses, head_mask)
    """
    check(ABLATION_IMPORTANCE, losses=losses, head_mask=head_mask)
    whole, heads = losses(head_mask), tf.range(size(head_mask, 1))

    def rise(head: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean(losses(tf.where(tf.not_equal(heads, head), head_mask, 0.0)) - whole)

    return tf.map_fn(rise, heads, fn_output_signature=tf.TensorSpec((), whole.dtype))


def taylor_importance(losses: Losses, head_mask: tf.Tensor) -> tf.Tensor:
    """Estimate to first order how much the loss changes when a head is switched off, for each head.

    importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|

    The loss of an example must depend on no row of head_mask but its own.

    Args:
        losses: function from head_mask (batch, heads) to the loss of each example (batch,)
        head_mask: (batch, heads); factor of each head: 1, or 0 for a head that is off already
    Returns:
        importance: (heads,); in the units of the loss
    Source: Michel et al. 2019, section 4.1, arXiv:1905.10650
    Example:
        importance = attention.taylor_importance(losses, head_mask)
    """
    check(TAYLOR_IMPORTANCE, losses=losses, head_mask=head_mask)
    head_mask = tf.convert_to_tensor(head_mask)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(head_mask)
        loss = losses(head_mask)
    slope = tape.gradient(loss, head_mask, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return tf.reduce_mean(tf.abs(head_mask * slope), axis=0)


def attention_rollout(weights: tf.Tensor, *, residual: float = 0.5) -> tf.Tensor:
    """Multiply the attention of all layers: how much each step at the top attends to each step at the bottom.

    rollout[b] = A[layers - 1, b] @ ... @ A[1, b] @ A[0, b]
    A[l, b] = residual I + (1 - residual) mean over h of weights[l, b, h]

    A step that may attend to nothing in a layer, whose weights are 0, keeps its residual share alone.

    Args:
        weights: (layers, batch, heads, steps, steps); weights of self-attention in every head of every layer, the layer
            next to the inputs first
        residual (default 0.5): share of the residual connection around each layer: a step passes on so much of itself
    Returns:
        rollout: (batch, steps, steps); probabilities over the steps at the bottom, if weights are
    Raises:
        ShapeError: weights without a layer or without a head
    Source: Abnar and Zuidema 2020, section 3, arXiv:2005.00928
    Example:
        rollout = attention.attention_rollout(weights)
    """
    check(ATTENTION_ROLLOUT, weights=weights, residual=residual)
    identity = tf.eye(size(weights, -1), dtype=weights.dtype)
    layers = residual * identity + (1.0 - residual) * tf.reduce_mean(weights, axis=2)
    return tf.foldl(lambda rollout, layer: layer @ rollout, layers)
