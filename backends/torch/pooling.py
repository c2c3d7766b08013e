"""Attention pooling in PyTorch: from scores and values to context and weights."""

from __future__ import annotations

import torch

from attention_core.operators.pooling import ATTENTION_POOLING
from backends.torch.arrays import Lengths, check
from backends.torch.masking import _attention_mask, open_keys, softmax_over

__all__ = ["attention_pooling"]


def attention_pooling(
    scores: torch.Tensor,
    values: torch.Tensor,
    valid_lens: Lengths | None = None,
    mask: torch.Tensor | None = None,
    *,
    dropout_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Average the values of each query's open keys, weighted by the softmax of their scores.

    context[i] = sum over j of dropout_mask[i, j] weights[i, j] values[j]
    weights = masked_softmax(scores)

    A query that may attend to nothing gets weights and context 0. A value that no query may attend to, NaN and inf
    included, has no effect and gets gradient 0. The weights are those before dropout. A mask has as many axes as the
    scores; lengths apply to all heads.

    Args:
        scores: (batch, [heads], queries, keys); logits (natural logarithm)
        values: (batch, [heads], keys, value_features); value vectors, one for each key
        valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
        mask (default None): booleans (batch, [heads], queries, keys), broadcast; True where a query may attend
        dropout_mask (default None): (batch, [heads], queries, keys); factor of each weight
    Returns:
        context: (batch, [heads], queries, value_features); weighted averages of the values
        weights: (batch, [heads], queries, keys); probabilities over the keys
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473
    Example:
        context, weights = attention.attention_pooling(scores, values)
    """
    check(ATTENTION_POOLING, scores=scores, values=values, valid_lens=valid_lens, mask=mask, dropout_mask=dropout_mask)
    allowed = _attention_mask(scores.shape[-1], valid_lens, mask, scores.device)
    return _attention_pooling(scores, values, allowed, dropout_mask)


def _attention_pooling(
    scores: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, dropout_mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    allowed = open_keys(scores, mask)
    weights = softmax_over(scores, allowed)
    return average(weights, values, allowed, dropout_mask), weights


def for_each_head(array: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Keys or values with as many heads as the queries: head h of these has head ⌊h · key_heads / heads⌋."""
    if array.ndim < 4 or array.shape[1] == queries.shape[1]:
        return array
    return array.repeat_interleave(queries.shape[1] // array.shape[1], dim=1)


def average(
    weights: torch.Tensor, values: torch.Tensor, allowed: torch.Tensor | None, dropout_mask: torch.Tensor | None
) -> torch.Tensor:
    """The sum of the values by their weights; allowed is None where the values that it hides have been cleared."""
    if allowed is not None:  # a weight of 0 does not silence a NaN, so values that no query may attend to are cleared
        values = values.masked_fill(~allowed.any(dim=-2).unsqueeze(-1), 0.0)
    return (weights if dropout_mask is None else weights * dropout_mask) @ values
