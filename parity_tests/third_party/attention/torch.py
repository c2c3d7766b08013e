"""PyTorch's own attention, as targets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from backends.torch import runtime
from parity_tests.third_party.signatures import Attention, Outputs, takes


@takes(Attention, "mask", "scale", "num_key_heads", "causal")
def scaled_dot_product(call: Attention) -> Outputs:
    """F.scaled_dot_product_attention."""
    mask = call.mask[:, None] if call.mask is not None and call.mask.dim() < call.queries.dim() else call.mask
    arrays, grouped = (call.queries, call.keys, call.values), call.num_key_heads is not None
    context = functional.scaled_dot_product_attention(
        *arrays, attn_mask=mask, scale=call.scale, is_causal=call.causal, enable_gqa=grouped
    )
    return context, None


# Its warning names this switch: without it, every new mask_mod is traced, which takes most of the time.
flex_module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True


@takes(Attention, "mask", "scale", "softcap", "num_key_heads")
def flex(call: Attention) -> Outputs:
    """flex_attention without a compiler: a mask as mask_mod, and a soft cap as score_mod."""
    arrays = [array if array.dim() == 4 else array[:, None] for array in (call.queries, call.keys, call.values)]
    cap, hidden = call.softcap, None
    if call.mask is not None:
        shape = (*arrays[0].shape[:3], arrays[1].shape[2])
        mask = (call.mask[:, None] if call.mask.dim() == 3 else call.mask).expand(shape)
        hidden = create_block_mask(lambda b, h, q, k: mask[b, h, q, k], *shape, device=mask.device)
    context = flex_attention(
        *arrays,
        score_mod=None if cap is None else lambda score, *_: cap * torch.tanh(score / cap),
        block_mask=hidden,
        scale=call.scale,
        enable_gqa=call.num_key_heads is not None,
    )
    return context if call.queries.dim() == 4 else context[:, 0], None


def pad_features(array: torch.Tensor, size: int) -> torch.Tensor:
    """The array with zeros behind its last axis, up to that size."""
    return functional.pad(array, (0, size - array.shape[-1]))


def mask_keyword(call: Attention) -> dict[str, Any]:
    """The keyword that takes the mask: one row for all queries is a padding mask, all else a mask for every head."""
    if call.mask is None:
        return {}
    hidden = call.mask if call.raw else ~call.mask
    if hidden.dim() == 3 and hidden.shape[1] == 1 != call.queries.shape[1]:
        return {"key_padding_mask": hidden[:, 0]}
    if hidden.dim() == 3:
        hidden = hidden[:, None]
    return {"attn_mask": hidden.expand(-1, call.num_heads, -1, -1).flatten(0, 1)}


def multi_head(training: bool, need_weights: bool) -> SimpleNamespace:
    """A target whose MultiHeadAttention is nn.MultiheadAttention without its fast path."""

    @takes(Attention, "mask", "num_heads", "bias", "raw", "causal", *["per_head"] * need_weights)
    def MultiHeadAttention(call: Attention) -> Outputs:
        """Zeros fill the features up to the module's one size: those of all heads together."""
        parameters = call.parameters
        size, query_size = parameters["W_q"].shape
        module = nn.MultiheadAttention(
            size, call.num_heads, bias=call.bias, batch_first=True, dtype=call.queries.dtype
        ).train(training)
        arrays = {
            "in_proj_weight": torch.cat([pad_features(parameters[name], size) for name in ("W_q", "W_k", "W_v")]),
            "out_proj.weight": pad_features(parameters["W_o"].T, size).T,
        }
        if call.bias:
            arrays["in_proj_bias"] = torch.cat([parameters[name] for name in ("b_q", "b_k", "b_v")])
            arrays["out_proj.bias"] = pad_features(parameters["b_o"], size)
        context, weights = torch.func.functional_call(
            module,
            arrays,
            tuple(pad_features(array, size) for array in (call.queries, call.keys, call.values)),
            {
                "need_weights": need_weights,
                "average_attn_weights": not call.per_head,
                "is_causal": call.causal,
                **mask_keyword(call),
            },
        )
        return context[..., :query_size], weights

    return SimpleNamespace(runtime=runtime, MultiHeadAttention=MultiHeadAttention)


def self_attention(call: Attention, made: Callable[..., nn.Module]) -> torch.Tensor:
    """The context of a module that takes one array, and an even number of heads: made of its width, heads and dtype.

    The array holds the queries, and behind them the keys with their values, each in separate features that only its
    projection reads; zeros fill the rest, and heads up to one size. NaN in a key is NaN in its value, too. Behind all
    features stand their negatives: a normalisation that subtracts the mean leaves them.
    """
    parameters, num_heads, head_size = call.parameters, call.num_heads, call.head_size
    arrays = (call.queries, call.keys, call.values)
    query_size = call.queries.shape[-1]
    count = num_heads + num_heads % 2
    half = -(-sum(array.shape[-1] for array in arrays) // count) * count
    width, size = 2 * half, 2 * half // count
    ahead, behind = call.queries.shape[1], call.keys.shape[1]
    first = functional.pad(call.queries, (0, 0, 0, behind))
    rest = [functional.pad(array, (0, 0, ahead, 0)) for array in (call.keys, call.values)]
    inputs = pad_features(torch.cat([first, *rest], dim=-1), half)
    inputs = torch.cat([inputs, -inputs], dim=-1)

    def in_heads(rows: torch.Tensor) -> torch.Tensor:
        apart = rows.reshape(num_heads, head_size, -1)
        return functional.pad(apart, (0, 0, 0, size - head_size, 0, count - num_heads)).reshape(width, -1)

    weights, biases, before = [], [], 0
    for array, name in zip(arrays, "qkv", strict=True):
        factor = (size / head_size) ** 0.5 if name == "q" else 1.0  # it divides by the square root of the wider size
        after = width - before - array.shape[-1]
        weights.append(factor * functional.pad(in_heads(parameters[f"W_{name}"]), (before, after)))
        biases.append(factor * in_heads(parameters[f"b_{name}"][:, None])[:, 0])
        before += array.shape[-1]
    outward = functional.pad(in_heads(parameters["W_o"].T).T, (0, 0, 0, half - query_size))
    bias = pad_features(parameters["b_o"], half)
    module = made(width, count, dtype=call.queries.dtype).to(inputs.device)
    attention = module if isinstance(module, nn.MultiheadAttention) else module.self_attn
    attention.load_state_dict(
        {
            "in_proj_weight": torch.cat(weights),
            "in_proj_bias": torch.cat(biases),
            "out_proj.weight": torch.cat([outward, -outward]),
            "out_proj.bias": torch.cat([bias, -bias]),
        }
    )
    floating = call.mask is not None and call.mask.is_floating_point()
    opened, closed = (0.0, -torch.inf) if floating else (True, False)
    mask = torch.full((len(inputs), count, ahead + behind, ahead + behind), opened, device=inputs.device)
    mask[..., :ahead] = closed
    if call.mask is not None:
        mask[:, :num_heads, :ahead, ahead:] = call.head_mask
    hidden = (mask if call.raw else ~mask).flatten(0, 1)
    with torch.no_grad():
        if module is attention:
            context = module(inputs, inputs, inputs, attn_mask=hidden, need_weights=False)[0]
        else:
            context = module(inputs, src_mask=hidden) - inputs
    return context[:, :ahead, :query_size]


def multi_head_alone(width: int, count: int, dtype: torch.dtype) -> nn.Module:
    """nn.MultiheadAttention in evaluation."""
    return nn.MultiheadAttention(width, count, batch_first=True, dtype=dtype).eval()


def encoder_layer(training: bool) -> Callable[..., nn.Module]:
    """nn.TransformerEncoderLayer as its attention alone: x + attention(x), to rounding.

    Its feed-forward layers add 0, and with an epsilon far above every variance, (x - mean) / √(variance + ε) · √ε is
    the identity for an array whose mean is 0.
    """

    def make_layer(width: int, count: int, dtype: torch.dtype) -> nn.Module:
        layer = nn.TransformerEncoderLayer(
            width, count, 1, 0.0, layer_norm_eps=NORM_EPSILON, batch_first=True, dtype=dtype
        )
        for norm in (layer.norm1, layer.norm2):
            nn.init.constant_(norm.weight, NORM_EPSILON**0.5)
        for parameter in (layer.linear2.weight, layer.linear2.bias):
            nn.init.zeros_(parameter)
        return layer.train(training)

    return make_layer


NORM_EPSILON = 2.0**40
"""Far above the variance of the inputs; its square root is a power of 2."""


def self_attending(made: Callable[..., nn.Module], fast: bool) -> SimpleNamespace:
    """A target whose MultiHeadAttention is such a module, on its fast path or not."""

    @takes(Attention, "mask", "num_heads", "raw")
    def MultiHeadAttention(call: Attention) -> Outputs:
        enabled = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(fast)
        try:
            return self_attention(call, made), None
        finally:
            torch.backends.mha.set_fastpath_enabled(enabled)

    return SimpleNamespace(runtime=without_gradients, MultiHeadAttention=MultiHeadAttention)


without_gradients = SimpleNamespace(
    configure=runtime.configure,
    describe=runtime.describe,
    from_numpy=runtime.from_numpy,
    to_numpy=runtime.to_numpy,
)

scaled_dot_product_attention = SimpleNamespace(runtime=runtime, DotProductAttention=scaled_dot_product)
flex_attention_eager = SimpleNamespace(runtime=without_gradients, DotProductAttention=flex)
multihead_attention_train = multi_head(training=True, need_weights=False)
multihead_attention_eval = multi_head(training=False, need_weights=False)
multihead_attention_weights_train = multi_head(training=True, need_weights=True)
multihead_attention_weights_eval = multi_head(training=False, need_weights=True)
multihead_attention_fast = self_attending(multi_head_alone, fast=True)
transformer_encoder_layer_train = self_attending(encoder_layer(training=True), fast=False)
transformer_encoder_layer_eval = self_attending(encoder_layer(training=False), fast=False)
transformer_encoder_layer_fast = self_attending(encoder_layer(training=False), fast=True)
