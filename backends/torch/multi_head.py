"""Attention with several heads, how much each of them matters, and how it flows through layers, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from attention_core.operators.multi_head import (
    ABLATION_IMPORTANCE,
    ATTENTION_ROLLOUT,
    MULTI_HEAD_ATTENTION,
    TAYLOR_IMPORTANCE,
    remaining,
)
from backends.torch.arrays import Lengths, Offset, check
from backends.torch.attention import Answer, ScoredAttention, attention_layer
from backends.torch.masking import _attention_mask, open_to
from backends.torch.memory import Memory
from backends.torch.positions import RotaryPositions

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
        dtype: floating type of the parameters
        device: where to allocate
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
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(locals())
        hidden_size, of_keys = self.sizes["hidden_size"], self.sizes["num_key_heads · head_size"]
        self.W_q = nn.Linear(query_size, hidden_size, bias=bias, dtype=dtype, device=device)
        self.W_k = nn.Linear(self.sizes["key_size"], of_keys, bias=bias, dtype=dtype, device=device)
        self.W_v = nn.Linear(self.sizes["value_size"], of_keys, bias=bias, dtype=dtype, device=device)
        self.W_o = nn.Linear(hidden_size, query_size, bias=bias, dtype=dtype, device=device)
        parts = self.specification.inside(self.sizes)
        self.scored = attention_layer(parts["scored"], dtype=dtype, device=device)
        self.rotary = RotaryPositions(**parts["rotary"].config) if "rotary" in parts else None

    def prepare(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: Lengths | None = None,
        mask: torch.Tensor | None = None,
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

    def attend(
        self,
        queries: torch.Tensor,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: torch.Tensor | None = None,
        offset: Offset | None = None,
        head_mask: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
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

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: Lengths | None = None,
        mask: torch.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: torch.Tensor | None = None,
        offset: Offset | None = None,
        head_mask: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
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
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: Lengths | None,
        mask: torch.Tensor | None,
        position: Offset | None = None,
    ) -> Memory:
        keys, values = self._to_batch_first(keys), self._to_batch_first(values)
        allowed = _attention_mask(keys.shape[-2], valid_lens, mask, keys.device)
        if allowed is not None:
            if allowed.ndim == 3:
                allowed = allowed[:, None]
            hidden = ~allowed.any(dim=1).any(dim=1)[..., None]
            keys, values = keys.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0)
        heads = self.W_k(keys), self.W_v(values)
        keys, values = (split_heads(array, self.sizes["head_size"]) for array in heads)
        keys = keys if self.rotary is None else self.rotary._rotate(keys, position)
        return Memory(self._project(keys), values, allowed)

    def _attend(
        self,
        queries: torch.Tensor,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: torch.Tensor | None = None,
        offset: Offset | None = None,
        head_mask: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> Answer:
        queries = split_heads(self.W_q(self._to_batch_first(queries)), self.sizes["head_size"])
        queries = queries if self.rotary is None else self.rotary._rotate(queries, offset)
        heads, weights = self._pool(self.scored, queries, memory, need_weights, bias, dropout_mask)
        if head_mask is not None:
            heads = heads * head_mask[..., None, None]
        context = self._to_batch_first(self.W_o(merge_heads(heads)))
        if weights is None:
            return context, None
        return context, weights if per_head else weights.mean(dim=1)

    def _prune(self, heads: Sequence[int]) -> MultiHeadAttention:
        config, of_queries, of_keys = remaining(self.sizes, heads)
        weight = self.W_q.weight
        layer = MultiHeadAttention(**config, dtype=weight.dtype, device=weight.device)
        arrays = self.state_dict()
        for name, rows in (("W_q", of_queries), ("W_k", of_keys), ("W_v", of_keys)):
            for kind in ("weight", "bias")[: 1 + self.sizes["bias"]]:
                arrays[f"{name}.{kind}"] = arrays[f"{name}.{kind}"][rows]
        arrays["W_o.weight"] = arrays["W_o.weight"][:, of_queries]
        layer.load_state_dict(arrays)
        return layer.train(self.training)


def split_heads(tensor: torch.Tensor, head_size: int) -> torch.Tensor:
    """Turn (batch, steps, features of all heads) into (batch, heads, steps, features of a head)."""
    return tensor.unflatten(-1, (tensor.shape[-1] // head_size, head_size)).transpose(1, 2)


def merge_heads(heads: torch.Tensor) -> torch.Tensor:
    """Turn (batch, heads, steps, features of a head) into (batch, steps, features of all heads)."""
    return heads.transpose(1, 2).flatten(2)


Losses = Callable[[torch.Tensor], torch.Tensor]


def ablation_importance(losses: Losses, head_mask: torch.Tensor) -> torch.Tensor:
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

    In PyTorch: under torch.no_grad(), nothing is kept for a backward pass.
    """
    check(ABLATION_IMPORTANCE, losses=losses, head_mask=head_mask)
    whole, heads = losses(head_mask), torch.arange(head_mask.shape[-1], device=head_mask.device)
    rises = [(losses(head_mask.masked_fill(heads == head, 0.0)) - whole).mean() for head in heads]
    return torch.stack(rises) if rises else whole.new_zeros(0)


def taylor_importance(losses: Losses, head_mask: torch.Tensor) -> torch.Tensor:
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

    In PyTorch: under torch.no_grad(), the result is the same, and nothing is kept for a backward pass.
    """
    check(TAYLOR_IMPORTANCE, losses=losses, head_mask=head_mask)
    # A transform of functions, which asks neither for a leaf nor for gradients to be on, and fills no .grad.
    slope = torch.func.grad(lambda factors: losses(factors).sum())(head_mask)
    return (head_mask * slope).abs().mean(dim=0)


def attention_rollout(weights: torch.Tensor, *, residual: float = 0.5) -> torch.Tensor:
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
    identity = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)
    rollout, *above = (residual * identity + (1.0 - residual) * weights.mean(dim=2)).unbind()
    for layer in above:
        rollout = layer @ rollout
    return rollout
