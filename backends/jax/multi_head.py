"""Attention with several heads, how much each of them matters, and how it flows through layers, in JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention_core.errors import check
from attention_core.operators.multi_head import (
    ABLATION_IMPORTANCE,
    ATTENTION_ROLLOUT,
    MULTI_HEAD_ATTENTION,
    TAYLOR_IMPORTANCE,
    remaining,
)
from backends.jax.arrays import Lengths, Offset
from backends.jax.attention import Answer, ScoredAttention, attention_layer
from backends.jax.masking import _attention_mask, open_to
from backends.jax.memory import Memory
from backends.jax.module import at_dtype, dropout_layer
from backends.jax.positions import RotaryPositions

__all__ = ["MultiHeadAttention", "ablation_importance", "taylor_importance", "attention_rollout"]


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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
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
        layer = attention.MultiHeadAttention(query_size, num_heads, rngs=nnx.Rngs(0))
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
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(locals())
        linear = partial(nnx.Linear, use_bias=bias, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        hidden_size, of_keys = self.sizes["hidden_size"], self.sizes["num_key_heads · head_size"]
        self.W_q = linear(query_size, hidden_size)
        self.W_k = linear(self.sizes["key_size"], of_keys)
        self.W_v = linear(self.sizes["value_size"], of_keys)
        self.W_o = linear(hidden_size, query_size)
        parts = self.specification.inside(self.sizes)
        self.scored = attention_layer(parts["scored"], dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.scored.dropout = dropout_layer(0.0, None)  # weights are dropped here, and need one stream of numbers
        self.rotary = RotaryPositions(**parts["rotary"].config) if "rotary" in parts else None

    @at_dtype
    def prepare(
        self, keys: jax.Array, values: jax.Array, valid_lens: Lengths | None = None, mask: jax.Array | None = None
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
        return self._prepare(keys, values, valid_lens, mask)

    @at_dtype
    def attend(
        self,
        queries: jax.Array,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: jax.Array | None = None,
        offset: Offset | None = None,
        head_mask: jax.Array | None = None,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | Any]:
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
        return self._attend(queries, memory, **options)

    @at_dtype
    def __call__(
        self,
        queries: jax.Array,
        keys: jax.Array,
        values: jax.Array,
        valid_lens: Lengths | None = None,
        mask: jax.Array | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: jax.Array | None = None,
        offset: Offset | None = None,
        head_mask: jax.Array | None = None,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | Any]:
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
        return self._attend(queries, self._prepare(keys, values, valid_lens, open_to(mask, bias)), **options)

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
        keys: jax.Array,
        values: jax.Array,
        valid_lens: Lengths | None,
        mask: jax.Array | None,
        position: Offset | None = None,
    ) -> Memory:
        keys, values = self._to_batch_first(keys), self._to_batch_first(values)
        allowed = _attention_mask(keys.shape[-2], valid_lens, mask)
        if allowed is not None:
            if allowed.ndim == 3:
                allowed = allowed[:, None]
            # Cleared before they are projected, where a bias would hide that they were 0, and a NaN would spread.
            seen = jnp.any(allowed, axis=(1, 2))[..., None]
            keys, values = jnp.where(seen, keys, 0.0), jnp.where(seen, values, 0.0)
        heads = self.W_k(keys), self.W_v(values)
        keys, values = (split_heads(array, self.sizes["head_size"]) for array in heads)
        keys = keys if self.rotary is None else self.rotary._rotate(keys, position)
        return Memory(self._project(keys), values, allowed)

    def _attend(
        self,
        queries: jax.Array,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: jax.Array | None = None,
        offset: Offset | None = None,
        head_mask: jax.Array | None = None,
        dropout_mask: jax.Array | None = None,
    ) -> Answer:
        queries = split_heads(self.W_q(self._to_batch_first(queries)), self.sizes["head_size"])
        queries = queries if self.rotary is None else self.rotary._rotate(queries, offset)
        heads, weights = self._pool(self.scored, queries, memory, need_weights, bias, dropout_mask)
        if head_mask is not None:
            heads = heads * head_mask[..., None, None]
        context = self._to_batch_first(self.W_o(merge_heads(heads)))
        if weights is None:
            return context, None
        return context, weights if per_head else jnp.mean(weights, axis=1)

    def _prune(self, heads: Sequence[int]) -> MultiHeadAttention:
        config, of_queries, of_keys = remaining(self.sizes, heads)
        param_dtype = self.W_q.kernel[...].dtype
        layer = MultiHeadAttention(**config, dtype=self.dtype, param_dtype=param_dtype, rngs=nnx.Rngs(0))
        for name, columns in (("W_q", of_queries), ("W_k", of_keys), ("W_v", of_keys)):
            part, whole = getattr(layer, name), getattr(self, name)
            part.kernel[...] = whole.kernel[...][:, jnp.array(columns)]
            if self.sizes["bias"]:
                part.bias[...] = whole.bias[...][jnp.array(columns)]
        layer.W_o.kernel[...] = self.W_o.kernel[...][jnp.array(of_queries)]
        if self.sizes["bias"]:
            layer.W_o.bias[...] = self.W_o.bias[...]
        layer.scored, layer.dropout = nnx.clone(self.scored), nnx.clone(self.dropout)
        return layer


def split_heads(array: jax.Array, head_size: int) -> jax.Array:
    """Turn (batch, steps, features of all heads) into (batch, heads, steps, features of a head)."""
    parts = array.reshape(*array.shape[:2], array.shape[-1] // head_size, head_size)
    return jnp.swapaxes(parts, 1, 2)


def merge_heads(heads: jax.Array) -> jax.Array:
    """Turn (batch, heads, steps, features of a head) into (batch, steps, features of all heads)."""
    parts = jnp.swapaxes(heads, 1, 2)
    return parts.reshape(*parts.shape[:2], parts.shape[-2] * parts.shape[-1])


Losses = Callable[[jax.Array], jax.Array]


def ablation_importance(losses: Losses, head_mask: jax.Array) -> jax.Array:
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
    whole, heads = losses(head_mask), jnp.arange(head_mask.shape[-1])
    rises = [(losses(jnp.where(heads == head, 0.0, head_mask)) - whole).mean() for head in range(heads.size)]
    return jnp.stack(rises) if rises else jnp.zeros(0, whole.dtype)


def taylor_importance(losses: Losses, head_mask: jax.Array) -> jax.Array:
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
    slope = jax.grad(lambda factors: losses(factors).sum())(head_mask)
    return jnp.mean(jnp.abs(head_mask * slope), axis=0)


def attention_rollout(weights: jax.Array, *, residual: float = 0.5) -> jax.Array:
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
    identity = jnp.eye(weights.shape[-1], dtype=weights.dtype)
    rollout, *above = residual * identity + (1.0 - residual) * jnp.mean(weights, axis=2)
    for layer in above:
        rollout = layer @ rollout
    return rollout
