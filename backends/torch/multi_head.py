"""Attention with several heads, and how much each of them matters, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from attention_core.errors import check, check_options, check_per_head
from attention_core.operators.multi_head import ABLATION_IMPORTANCE, MULTI_HEAD_ATTENTION, TAYLOR_IMPORTANCE
from backends.torch.attention import Attention, Memory, attention_layer
from backends.torch.masking import attention_mask
from backends.torch.module import dtype_of

__all__ = ["MultiHeadAttention", "ablation_importance", "taylor_importance"]


class MultiHeadAttention(Attention):
    """Attention by several heads at once, each with its own projections.

    context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h), with
    queries_h the h-th part of W_q queries + b_q, keys_h of W_k keys + b_k, values_h of W_v values + b_v

    scored is the layer of the score; the heads share its parameters.

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size),
    valid_lens and mask as in attention_mask, the mask with heads after batch or without, head_mask (heads,) or
    (batch, heads), dropout_mask (batch, heads, queries, keys); returns (context, weights): the shape of queries, and
    (batch, queries, keys), or with per_head (batch, heads, queries, keys). time_major as in DotProductAttention.
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
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
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
        )
        hidden_size = self.sizes["hidden_size"]
        self.W_q = nn.Linear(query_size, hidden_size, bias=bias, dtype=dtype, device=device)
        self.W_k = nn.Linear(self.sizes["key_size"], hidden_size, bias=bias, dtype=dtype, device=device)
        self.W_v = nn.Linear(self.sizes["value_size"], hidden_size, bias=bias, dtype=dtype, device=device)
        self.W_o = nn.Linear(hidden_size, query_size, bias=bias, dtype=dtype, device=device)
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype, device=device)

    def prepare(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> Memory:
        """Project the keys and values of every head, and keep them for many queries.

        memory = (projected keys, projected values, mask), of keys and values 0 where hidden from all
        """
        check(
            self.methods["prepare"],
            self.sizes,
            dtype_of(self),
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        keys, values = self.to_batch_first(keys), self.to_batch_first(values)
        allowed = attention_mask(keys.shape[-2], valid_lens, mask)
        if allowed is not None:
            if allowed.ndim == 3:
                allowed = allowed[:, None]
            hidden = ~allowed.any(dim=1).any(dim=1)[..., None]
            keys, values = keys.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0)
        return Memory(self.scored.project(self.split(self.W_k(keys))), self.split(self.W_v(values)), allowed)

    def attend(
        self,
        queries: torch.Tensor,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Attend with queries to a prepared memory.

        context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h)
        """
        check_options(self.methods["attend"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            dtype_of(self),
            queries=queries,
            memory=memory,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        queries = self.split(self.W_q(self.to_batch_first(queries)))
        heads, weights = self.pooled(self.scored, queries, memory, need_weights, dropout_mask)
        if head_mask is not None:
            heads = heads * head_mask[..., None, None]
        context = self.to_batch_first(self.W_o(heads.transpose(1, 2).flatten(2)))
        if weights is None or not need_weights:
            return context, None
        return context, weights if per_head else weights.mean(dim=1)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.methods["call"],
            self.sizes,
            dtype_of(self),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        options = {"per_head": per_head, "need_weights": need_weights}
        return self.attend(queries, memory, **options, head_mask=head_mask, dropout_mask=dropout_mask)

    def split(self, tensor: torch.Tensor) -> torch.Tensor:
        """(batch, steps, hidden_size) as (batch, heads, steps, features of a head)."""
        return tensor.unflatten(-1, (self.sizes["heads"], self.sizes["head_size"])).transpose(1, 2)


Losses = Callable[[torch.Tensor], torch.Tensor]


def ablation_importance(losses: Losses, head_mask: torch.Tensor) -> torch.Tensor:
    """How much the loss rises when a head is switched off, for each head.

    importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]

    Shapes: head_mask (batch, heads), 1 for a head that is on; losses gives (batch,); the result (heads,). Under
    torch.no_grad(), nothing is kept for a backward pass.
    """
    check_options(ABLATION_IMPORTANCE, losses=losses)
    check(ABLATION_IMPORTANCE, head_mask=head_mask)
    num_heads = head_mask.shape[-1]
    heads = torch.arange(num_heads, device=head_mask.device)
    without = [losses(head_mask.masked_fill(heads == head, 0.0)) for head in range(num_heads)]
    found = torch.stack([losses(head_mask), *without])
    return (found[1:] - found[0]).mean(dim=-1)


def taylor_importance(losses: Losses, head_mask: torch.Tensor) -> torch.Tensor:
    """How much the loss would change to first order if a head were switched off, for each head.

    importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|

    Shapes: as ablation_importance; an example's loss depends on its own row alone. Under torch.no_grad(), the result is
    the same, and nothing is kept for a backward pass.
    """
    check_options(TAYLOR_IMPORTANCE, losses=losses)
    check(TAYLOR_IMPORTANCE, head_mask=head_mask)
    # A transform of functions, which asks neither for a leaf nor for gradients to be on, and fills no .grad.
    slope = torch.func.grad(lambda factors: losses(factors).sum())(head_mask)
    return (head_mask * slope).abs().mean(dim=0)
