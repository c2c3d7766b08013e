"""How well a key matches a query, in PyTorch: scores of projected tensors."""

from __future__ import annotations

import torch

from attention_core.errors import check, check_options, check_positions
from attention_core.operators.scoring import (
    ADDITIVE_SCORE,
    COSINE_SCORE,
    DOT_SCORE,
    GAUSSIAN_SCORE,
    LOCATION_SCORE,
    SCALED_DOT_SCORE,
)
from backends.torch.blocked import ADDITIVE_MIN_ELEMENTS, blocked_additive_score, use_blocks

__all__ = ["dot_score", "scaled_dot_score", "additive_score", "cosine_score", "location_score", "gaussian_score"]


def dot_score(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Score each query against each key by their inner product.

    scores[i, j] = sum over c of queries[i, c] keys[j, c]

    Shapes: queries (batch, queries, features), keys (batch, keys, features), both with heads after batch or without;
    the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    check(DOT_SCORE, queries=queries, keys=keys)
    return queries @ keys.mT


def scaled_dot_score(queries: torch.Tensor, keys: torch.Tensor, *, scale: float | None = None) -> torch.Tensor:
    """Score each query against each key by a scaled inner product.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c]

    Shapes: as dot_score. scale is 1/√features unless given.
    """
    check_options(SCALED_DOT_SCORE, scale=scale)
    check(SCALED_DOT_SCORE, queries=queries, keys=keys)
    if scale is None:
        scale = max(queries.shape[-1], 1) ** -0.5
    return queries @ keys.mT * scale


def additive_score(queries: torch.Tensor, keys: torch.Tensor, w_v: torch.Tensor) -> torch.Tensor:
    """Score each projected query against each projected key by a weighted tanh of their sum.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), both with heads after batch or
    without; w_v (hidden_size,); the result (batch, queries, keys), or (batch, heads, queries, keys).
    """
    check(ADDITIVE_SCORE, queries=queries, keys=keys, w_v=w_v)
    if use_blocks(queries, keys, ADDITIVE_MIN_ELEMENTS):
        return blocked_additive_score(queries, keys, w_v)
    return torch.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v


def cosine_score(queries: torch.Tensor, keys: torch.Tensor, *, scale: float | None = None) -> torch.Tensor:
    """Score each query against each key by the cosine of the angle between them.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c] / (‖queries[i]‖ ‖keys[j]‖)

    Shapes: as dot_score. scale is 1 unless given. A vector of zeros scores 0, and gets and gives gradient 0.
    """
    check_options(COSINE_SCORE, scale=scale)
    check(COSINE_SCORE, queries=queries, keys=keys)
    scores = direction(queries) @ direction(keys).mT
    return scores if scale is None else scores * scale


def location_score(num_keys: int, queries: torch.Tensor) -> torch.Tensor:
    """Score each position by the projected query alone, whatever key stands there.

    scores[i, j] = queries[i, j]

    Shapes: queries (batch, queries, positions), with heads after batch or without, of which the first num_keys
    positions are taken; the result (batch, queries, num_keys), or (batch, heads, queries, num_keys).
    """
    check_options(LOCATION_SCORE, num_keys=num_keys)
    check(LOCATION_SCORE, queries=queries)
    check_positions(LOCATION_SCORE.title, num_keys, queries.shape[-1])
    return queries[..., :num_keys]


def gaussian_score(queries: torch.Tensor, keys: torch.Tensor, w: torch.Tensor | None = None) -> torch.Tensor:
    """Score each query against each key by a Gaussian kernel of their distance.

    scores[i, j] = -½ sum over c of ((queries[i, c] - keys[j, c]) w)²

    Shapes: queries and keys as dot_score; w (), an inverse width, 1 unless given.
    """
    check(GAUSSIAN_SCORE, queries=queries, keys=keys, w=w)
    differences = queries[..., :, None, :] - keys[..., None, :, :]
    if w is not None:
        differences = differences * w
    return -0.5 * (differences * differences).sum(dim=-1)


def direction(vectors: torch.Tensor) -> torch.Tensor:
    """The vectors at length 1, along the last axis; zeros stay zeros."""
    if vectors.shape[-1] == 0:  # which amax refuses
        return vectors
    # Divided by its largest entry, which does not turn it, a vector has squares that neither underflow nor overflow.
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    vectors = vectors / largest.masked_fill(~largest.isfinite() | (largest == 0.0), 1.0)
    square = (vectors * vectors).sum(dim=-1, keepdim=True)
    zero = square == 0.0
    # A square of 1 stands in where there is no direction: the root of 0 would have an infinite gradient.
    return (vectors / square.masked_fill(zero, 1.0).sqrt()).masked_fill(zero, 0.0)
