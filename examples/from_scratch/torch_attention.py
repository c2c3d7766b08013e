"""Bahdanau's additive attention with masks, in PyTorch and nothing else: a file to read, or to copy.

    scores[i, j] = w_v · tanh(W_q queries[i] + W_k keys[j])
    weights[i, j] = exp(scores[i, j]) / sum over open k of exp(scores[i, k])
    context[i] = sum over j of weights[i, j] values[j]

A mask is True where a query may attend; of lengths, it is `torch.arange(num_keys) < valid_lens[:, None, None]`. A query
that may attend to nothing has weights, context and gradients of 0. What is hidden from all has no effect, even as NaN.
"""

import torch
from torch import Tensor, nn


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax over the open keys, the last axis; 0 elsewhere."""
    opened = scores != -torch.inf
    if mask is not None:
        opened = opened & mask
    # Only -inf loses against every score. A row of nothing else would come out NaN: zeros keep it finite on the way.
    scores = scores.masked_fill(~opened, -torch.inf)
    scores = scores.masked_fill(~opened.any(dim=-1, keepdim=True), 0.0)
    return torch.softmax(scores, dim=-1).masked_fill(~opened, 0.0)


def additive_attention(
    queries: Tensor, keys: Tensor, values: Tensor, W_q: Tensor, W_k: Tensor, w_v: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Context, (batch, queries, value_size), and weights, (batch, queries, keys); a heads axis may follow batch.

    queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size), W_q
    (hidden_size, query_size), W_k (hidden_size, key_size), w_v (hidden_size,), mask (batch, queries or 1, keys).
    """
    if mask is not None:  # 0 times NaN is NaN: what is hidden from all has to go before the products
        hidden = ~mask.any(dim=-2).unsqueeze(-1)
        keys, values = keys.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0)
    queries, keys = queries @ W_q.T, keys @ W_k.T
    scores = torch.tanh(queries.unsqueeze(-2) + keys.unsqueeze(-3)) @ w_v
    weights = masked_softmax(scores, mask)
    return weights @ values, weights


class BahdanauAttention(nn.Module):
    """The same as a module, with its parameters."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int) -> None:
        super().__init__()
        self.W_q = nn.Parameter(torch.empty(hidden_size, query_size))
        self.W_k = nn.Parameter(torch.empty(hidden_size, key_size))
        self.w_v = nn.Parameter(torch.empty(hidden_size))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(parameter.shape[-1] ** -0.5), parameter.shape[-1] ** -0.5)

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Context and weights."""
        return additive_attention(queries, keys, values, self.W_q, self.W_k, self.w_v, mask)
