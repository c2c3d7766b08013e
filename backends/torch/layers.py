"""Trainable attention layers in PyTorch: prepare keys and values once, attend many times."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from attention_core.errors import check, check_options
from attention_core.operators import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
)
from backends.torch.masking import attention_mask
from backends.torch.pooling import attention_pooling
from backends.torch.scoring import additive_score, cosine_score, dot_score, scaled_dot_score

__all__ = [
    "Memory",
    "DotProductAttention",
    "AdditiveAttention",
    "GeneralAttention",
    "ConcatAttention",
    "CosineAttention",
]


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor | None


class DotProductAttention(nn.Module):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = DOT_PRODUCT_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None) -> None:
        super().__init__()
        self.sizes = check_options(self.specification, dropout=dropout, scale=scale)
        self.scale = scale
        self.dropout = nn.Dropout(dropout)

    def prepare(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(self.specification.method("prepare"), keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return cleared(keys, values, valid_lens, mask)

    def attend(
        self, queries: torch.Tensor, memory: Memory, *, dropout_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(scaled_dot_score(queries, keys), values)
        """
        check(self.specification.method("attend"), queries=queries, memory=memory, dropout_mask=dropout_mask)
        scores = scaled_dot_score(queries, memory.keys, scale=self.scale)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class AdditiveAttention(nn.Module):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = ADDITIVE_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(
            self.specification, query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout
        )
        self.W_q = nn.Linear(query_size, hidden_size, bias=False, dtype=dtype, device=device)
        self.W_k = nn.Linear(key_size, hidden_size, bias=False, dtype=dtype, device=device)
        bound = hidden_size**-0.5
        self.w_v = nn.Parameter(torch.empty(hidden_size, dtype=dtype, device=device).uniform_(-bound, bound))
        self.dropout = nn.Dropout(dropout)

    def prepare(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.w_v.dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=self.W_k(memory.keys))

    def attend(
        self, queries: torch.Tensor, memory: Memory, *, dropout_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.w_v.dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        scores = additive_score(self.W_q(queries), memory.keys, self.w_v)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.w_v.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class GeneralAttention(nn.Module):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = GENERAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(self.specification, query_size=query_size, key_size=key_size, dropout=dropout)
        self.W = nn.Linear(key_size, query_size, bias=False, dtype=dtype, device=device)
        self.dropout = nn.Dropout(dropout)

    def prepare(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.W.weight.dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=self.W(memory.keys))

    def attend(
        self, queries: torch.Tensor, memory: Memory, *, dropout_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(dot_score(queries, W keys), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.W.weight.dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        scores = dot_score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.W.weight.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class ConcatAttention(nn.Module):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = CONCAT_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(
            self.specification, query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout
        )
        self.W = nn.Linear(query_size + key_size, hidden_size, bias=False, dtype=dtype, device=device)
        bound = hidden_size**-0.5
        self.v = nn.Parameter(torch.empty(hidden_size, dtype=dtype, device=device).uniform_(-bound, bound))
        self.dropout = nn.Dropout(dropout)

    def prepare(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.v.dtype,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = cleared(keys, values, valid_lens, mask)
        return memory._replace(keys=nn.functional.linear(memory.keys, self.W.weight[:, self.sizes["query_size"] :]))

    def attend(
        self, queries: torch.Tensor, memory: Memory, *, dropout_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)
        """
        check(
            self.specification.method("attend"),
            self.sizes,
            self.v.dtype,
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        query = nn.functional.linear(queries, self.W.weight[:, : self.sizes["query_size"]])
        scores = additive_score(query, memory.keys, self.v)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.v.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


class CosineAttention(nn.Module):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights).
    """

    specification = COSINE_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None) -> None:
        super().__init__()
        self.sizes = check_options(self.specification, dropout=dropout, scale=scale)
        self.scale = scale
        self.dropout = nn.Dropout(dropout)

    def prepare(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> Memory:
        """Project the keys, clear what no query may attend to, and keep it for many queries.

        memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all
        """
        check(self.specification.method("prepare"), keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return cleared(keys, values, valid_lens, mask)

    def attend(
        self, queries: torch.Tensor, memory: Memory, *, dropout_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(cosine_score(queries, keys), values)
        """
        check(self.specification.method("attend"), queries=queries, memory=memory, dropout_mask=dropout_mask)
        scores = cosine_score(queries, memory.keys, scale=self.scale)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        return attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare the keys and values, and attend to them."""
        check(
            self.specification.method("call"),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), dropout_mask=dropout_mask)


def cleared(
    keys: torch.Tensor, values: torch.Tensor, valid_lens: torch.Tensor | None, mask: torch.Tensor | None
) -> Memory:
    """Keys and values with 0 where no query may attend to them, and the one mask."""
    allowed = attention_mask(keys.shape[-2], valid_lens, mask)
    if allowed is None:
        return Memory(keys, values, None)
    if allowed.ndim < keys.ndim:
        allowed = allowed[:, None]
    hidden = ~allowed.any(dim=-2).unsqueeze(-1)
    return Memory(keys.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0), allowed)


def drawn_mask(dropout: nn.Dropout, like: torch.Tensor) -> torch.Tensor | None:
    """A dropout mask from PyTorch's own generator, or None where nothing is dropped."""
    return dropout(torch.ones_like(like)) if dropout.training and dropout.p > 0.0 else None
