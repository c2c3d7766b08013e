"""Attention pooling in PyTorch: from scores and values to context and weights."""

from __future__ import annotations

import torch

from attention_core.errors import check
from attention_core.operators.pooling import ATTENTION_POOLING
from backends.torch.masking import open_keys, softmax_over

__all__ = ["attention_pooling"]


def attention_pooling(
    scores: torch.Tensor,
    values: torch.Tensor,
    valid_lens: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    *,
    dropout_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Average the values of each query's open keys by the softmax of their scores.

    context[i] = sum over j of dropout_mask[i, j] weights[i, j] values[j];  weights = masked_softmax(scores)

    Shapes: scores (batch, queries, keys), values (batch, keys, value_features), both with heads after batch or without;
    valid_lens and mask as in masked_softmax; dropout_mask as scores. Returns (context, weights):
    (batch, queries, value_features), with heads or without, and the shape of scores.
    """
    check(ATTENTION_POOLING, scores=scores, values=values, valid_lens=valid_lens, mask=mask, dropout_mask=dropout_mask)
    allowed = open_keys(scores, valid_lens, mask)
    weights = softmax_over(scores, allowed)
    return average(weights, values, allowed, dropout_mask), weights


def average(
    weights: torch.Tensor, values: torch.Tensor, allowed: torch.Tensor, dropout_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """The sum of the values by their weights, of values that any query may attend to."""
    # A weight of 0 does not silence a NaN, so values that no query may attend to are cleared.
    values = values.masked_fill(~allowed.any(dim=-2).unsqueeze(-1), 0.0)
    return (weights if dropout_mask is None else weights * dropout_mask) @ values
