"""PyTorch's own attention, as targets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional

from backends.torch import runtime

Said = Callable[[torch.Tensor], torch.Tensor]


def as_it_is(mask: torch.Tensor) -> torch.Tensor:
    """The mask as the call is handed it without a thought."""
    return mask


def _scaled_dot_product(
    parameters: dict[str, torch.Tensor],
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, None]:
    if mask is not None and mask.dim() < queries.dim():
        mask = mask[:, None]
    return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale), None


scaled_dot_product_attention = SimpleNamespace(runtime=runtime, DotProductAttention=_scaled_dot_product)


def _multihead(training: bool, need_weights: bool, said: Said = torch.logical_not) -> SimpleNamespace:
    def called(
        parameters: dict[str, torch.Tensor],
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None,
        num_heads: int,
        bias: bool,
        per_head: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Call the module on features that zeros fill up to its one size: those of all heads together."""
        size, given = parameters["W_q"].shape
        module = nn.MultiheadAttention(size, num_heads, bias=bias, batch_first=True, dtype=queries.dtype)
        module.train(training)
        own = {
            "in_proj_weight": torch.cat([widened(parameters[name], size) for name in ("W_q", "W_k", "W_v")]),
            "out_proj.weight": widened(parameters["W_o"].T, size).T,
        }
        if bias:
            own["in_proj_bias"] = torch.cat([parameters[name] for name in ("b_q", "b_k", "b_v")])
            own["out_proj.bias"] = widened(parameters["b_o"], size)
        keywords = {} if mask is None else told(said(mask), num_heads, queries.shape[1])
        context, weights = torch.func.functional_call(
            module,
            own,
            tuple(widened(array, size) for array in (queries, keys, values)),
            {"need_weights": need_weights, "average_attn_weights": not per_head, **keywords},
        )
        return context[..., :given], weights

    def with_weights(
        parameters: dict[str, torch.Tensor],
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        num_heads: int,
        bias: bool = True,
        per_head: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return called(parameters, queries, keys, values, mask, num_heads, bias, per_head)

    def without(
        parameters: dict[str, torch.Tensor],
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        num_heads: int,
        bias: bool = True,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return called(parameters, queries, keys, values, mask, num_heads, bias, per_head=False)

    return SimpleNamespace(runtime=runtime, MultiHeadAttention=with_weights if need_weights else without)


def widened(array: torch.Tensor, size: int) -> torch.Tensor:
    """The array with zeros behind its last axis, up to that size."""
    return functional.pad(array, (0, size - array.shape[-1]))


def told(hidden: torch.Tensor, num_heads: int, num_queries: int) -> dict[str, torch.Tensor]:
    """The keyword that takes the mask: one row for all queries is a padding mask, all else a mask for every head."""
    if hidden.dim() == 3 and hidden.shape[1] == 1 != num_queries:
        return {"key_padding_mask": hidden[:, 0]}
    if hidden.dim() == 3:
        hidden = hidden[:, None]
    return {"attn_mask": hidden.expand(-1, num_heads, -1, -1).flatten(0, 1)}


multihead_attention_train = _multihead(training=True, need_weights=False)
multihead_attention_eval = _multihead(training=False, need_weights=False)
multihead_attention_weights_train = _multihead(training=True, need_weights=True)
multihead_attention_weights_eval = _multihead(training=False, need_weights=True)

multihead_attention_train.raw = _multihead(training=True, need_weights=False, said=as_it_is)
multihead_attention_eval.raw = _multihead(training=False, need_weights=False, said=as_it_is)
multihead_attention_weights_train.raw = _multihead(training=True, need_weights=True, said=as_it_is)
multihead_attention_weights_eval.raw = _multihead(training=False, need_weights=True, said=as_it_is)
