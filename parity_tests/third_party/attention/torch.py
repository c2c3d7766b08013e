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


def _fast(said: Said = torch.logical_not) -> SimpleNamespace:
    """The fast path of nn.MultiheadAttention: evaluation, no gradients, one array, and an even number of heads.

    The array holds the queries, and behind them the keys with their values, each in features of its own that only its
    projection reads; zeros fill the rest, and heads up to one size. NaN in a key is NaN in its value, too.
    """

    def MultiHeadAttention(
        parameters: dict[str, torch.Tensor],
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None = None,
        *,
        num_heads: int,
    ) -> tuple[torch.Tensor, None]:
        given = (queries, keys, values)
        hidden, query_size = parameters["W_q"].shape
        count, own = num_heads + num_heads % 2, hidden // num_heads
        size = -(-sum(array.shape[-1] for array in given) // count)
        width, ahead, behind = count * size, queries.shape[1], keys.shape[1]
        first = functional.pad(queries, (0, 0, 0, behind))
        rest = [functional.pad(array, (0, 0, ahead, 0)) for array in (keys, values)]
        inputs = widened(torch.cat([first, *rest], dim=-1), width)

        def in_heads(rows: torch.Tensor) -> torch.Tensor:
            apart = rows.reshape(num_heads, own, -1)
            return functional.pad(apart, (0, 0, 0, size - own, 0, count - num_heads)).reshape(width, -1)

        weights, biases, before = [], [], 0
        for array, name in zip(given, "qkv", strict=True):
            factor = (size / own) ** 0.5 if name == "q" else 1.0  # it divides by the square root of the wider size
            after = width - before - array.shape[-1]
            weights.append(factor * functional.pad(in_heads(parameters[f"W_{name}"]), (before, after)))
            biases.append(factor * in_heads(parameters[f"b_{name}"][:, None])[:, 0])
            before += array.shape[-1]
        module = nn.MultiheadAttention(width, count, batch_first=True, dtype=queries.dtype).eval()
        module.load_state_dict(
            {
                "in_proj_weight": torch.cat(weights),
                "in_proj_bias": torch.cat(biases),
                "out_proj.weight": functional.pad(in_heads(parameters["W_o"].T).T, (0, 0, 0, width - query_size)),
                "out_proj.bias": widened(parameters["b_o"], width),
            }
        )
        whole = torch.ones(len(queries), count, ahead + behind, ahead + behind, dtype=torch.bool)
        whole[..., :ahead] = False
        if mask is not None:
            whole[:, :num_heads, :ahead, ahead:] = mask if mask.dim() == 4 else mask[:, None]
        before_call = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(True)
        try:
            with torch.no_grad():
                context, _ = module(inputs, inputs, inputs, attn_mask=said(whole).flatten(0, 1), need_weights=False)
        finally:
            torch.backends.mha.set_fastpath_enabled(before_call)
        return context[:, :ahead, :query_size], None

    plain = SimpleNamespace(
        configure=runtime.configure,
        describe=runtime.describe,
        from_numpy=runtime.from_numpy,
        to_numpy=runtime.to_numpy,
    )
    return SimpleNamespace(runtime=plain, MultiHeadAttention=MultiHeadAttention)


multihead_attention_fast = _fast()
multihead_attention_fast.raw = _fast(as_it_is)

multihead_attention_train = _multihead(training=True, need_weights=False)
multihead_attention_eval = _multihead(training=False, need_weights=False)
multihead_attention_weights_train = _multihead(training=True, need_weights=True)
multihead_attention_weights_eval = _multihead(training=False, need_weights=True)

multihead_attention_train.raw = _multihead(training=True, need_weights=False, said=as_it_is)
multihead_attention_eval.raw = _multihead(training=False, need_weights=False, said=as_it_is)
multihead_attention_weights_train.raw = _multihead(training=True, need_weights=True, said=as_it_is)
multihead_attention_weights_eval.raw = _multihead(training=False, need_weights=True, said=as_it_is)
