"""Attention to one key, in PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from attention_core.errors import check, check_options
from attention_core.operators.hard import HARD_ATTENTION
from backends.torch.attention import Attention, Memory, attention_layer
from backends.torch.masking import open_keys
from backends.torch.module import dtype_of
from backends.torch.pooling import average

__all__ = ["HardAttention"]


class HardAttention(Attention):
    """Attention to a single key: the one with the highest score, or one drawn by given noise.

    weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
    context = weights values, and no gradient reaches the scores

    Without noise, its term is 0. With noise, each key is drawn with its softmax probability. scored is the layer of the
    score.

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, noise as weights; returns (context, weights). time_major as in
    DotProductAttention.
    """

    specification = HARD_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        score: str = "additive",
        hidden_size: int | None = None,
        num_positions: int | None = None,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size,
            key_size=key_size,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            time_major=time_major,
        )
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype, device=device)

    def project(self, keys: torch.Tensor) -> torch.Tensor:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def attend(  # type: ignore[override]
        self, queries: torch.Tensor, memory: Memory, *, need_weights: bool = True, noise: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(self.methods["attend"], self.sizes, dtype_of(self), queries=queries, memory=memory, noise=noise)
        scores = self.score(self.to_batch_first(queries), memory.keys).detach()
        allowed = open_keys(scores, None, memory.mask)
        if scores.shape[-1] == 0:  # argmax refuses it
            weights = scores
        else:
            visible = scores.to(torch.promote_types(scores.dtype, torch.float32))
            if noise is not None:
                visible = visible - torch.log(-torch.log(noise.detach().to(visible.dtype)))
            best = visible.masked_fill(~allowed, -torch.inf).argmax(dim=-1, keepdim=True)
            weights = (allowed & (torch.arange(scores.shape[-1], device=scores.device) == best)).to(scores.dtype)
        return self.to_batch_first(average(weights, memory.values, allowed)), weights if need_weights else None

    def forward(  # type: ignore[override]
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        need_weights: bool = True,
        noise: torch.Tensor | None = None,
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
            noise=noise,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, noise=noise)
