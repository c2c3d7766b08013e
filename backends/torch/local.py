"""Attention to a window of the keys, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from attention_core.errors import check, check_offset, check_options
from attention_core.operators.local import LOCAL_ATTENTION
from backends.torch.attention import Attention, Memory, attention_layer
from backends.torch.masking import distances
from backends.torch.module import drawn, drawn_mask, dtype_of
from backends.torch.pooling import attention_pooling

__all__ = ["LocalAttention"]


class LocalAttention(Attention):
    """Attention to a window of keys, around the query's own position or around one that it predicts.

    weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights values
    monotonic:  p[i] = i + offset, g = 1
    predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

    S is the number of keys up to the last that the query may attend to. scored is the layer of the score.

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, offset (batch,), for mode="monotonic" alone; returns (context, weights).
    time_major as in DotProductAttention.
    """

    specification = LOCAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        window: int,
        *,
        mode: str = "monotonic",
        score: str = "general",
        hidden_size: int | None = None,
        num_positions: int | None = None,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size,
            key_size=key_size,
            window=window,
            mode=mode,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            dropout=dropout,
            time_major=time_major,
        )
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype, device=device)
        if mode == "predictive":
            hidden_size = self.sizes["hidden_size"]
            self.W_p = nn.Linear(query_size, hidden_size, bias=False, dtype=dtype, device=device)
            self.v_p = drawn((hidden_size,), hidden_size, dtype, device)

    def project(self, keys: torch.Tensor) -> torch.Tensor:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def attend(
        self,
        queries: torch.Tensor,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            dtype_of(self),
            queries=queries,
            memory=memory,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        check_offset(self.specification.name, self.sizes["mode"], offset)
        queries = self.to_batch_first(queries)
        scores = self.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        num_queries, num_keys = scores.shape[-2:]
        window = self.sizes["window"]
        if self.sizes["mode"] == "monotonic":
            first = 0 if offset is None else offset.long().reshape(-1, *[1] * (scores.ndim - 1))
            distance = distances(num_queries, num_keys, first, scores.device)
        else:
            distance = torch.arange(num_keys, device=scores.device) - self.centres(queries, memory.mask, num_keys)
        allowed = ((distance >= -window) & (distance <= window)).expand(scores.shape)
        if memory.mask is not None:
            allowed = allowed & memory.mask
        if self.sizes["mode"] == "monotonic":
            context, weights = attention_pooling(scores, memory.values, mask=allowed, dropout_mask=dropout_mask)
        else:
            near = torch.exp(-2.0 * (distance / window) ** 2).to(scores.dtype).masked_fill(~allowed, 0.0)
            factor = near if dropout_mask is None else near * dropout_mask
            context, weights = attention_pooling(scores, memory.values, mask=allowed, dropout_mask=factor)
            weights = weights * near
        return self.to_batch_first(context), weights if need_weights else None

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        need_weights: bool = True,
        offset: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], need_weights=need_weights)
        check(
            self.methods["call"],
            self.sizes,
            dtype_of(self),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, offset=offset, dropout_mask=dropout_mask)

    def centres(self, queries: torch.Tensor, mask: torch.Tensor | None, num_keys: int) -> torch.Tensor:
        """The position p that each query predicts, (batch, queries, 1), with heads or without; float32 at least."""
        precise = torch.promote_types(queries.dtype, torch.float32)
        hidden = torch.tanh(nn.functional.linear(queries.to(precise), self.W_p.weight.to(precise)))
        share = torch.sigmoid(hidden @ self.v_p.to(precise))
        if mask is None:
            return (num_keys * share)[..., None]
        # The 0 in front is the end of a row in which no key is open, and of one without keys.
        ends = torch.arange(1, num_keys + 1, device=mask.device) * mask
        return (nn.functional.pad(ends, (1, 0)).amax(dim=-1) * share)[..., None]
