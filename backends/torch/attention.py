"""Trainable attention layers in PyTorch: prepare keys and values once, attend many times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from attention_core.errors import check, check_options, check_positions
from attention_core.operators.attention import (
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
    KERNEL_ATTENTION,
    LOCATION_ATTENTION,
)
from attention_core.specification import Layer, Part
from backends.torch.blocked import (
    ADDITIVE_MIN_ELEMENTS,
    DOT_MIN_ELEMENTS,
    blocked_additive_attention,
    dot_attention,
    use_blocks,
)
from backends.torch.masking import attention_mask, open_keys, softmax_over
from backends.torch.module import drawn, drawn_mask, dtype_of
from backends.torch.pooling import attention_pooling
from backends.torch.scoring import (
    additive_score,
    cosine_score,
    dot_score,
    gaussian_score,
    location_score,
    scaled_dot_score,
)

__all__ = [
    "Memory",
    "DotProductAttention",
    "AdditiveAttention",
    "GeneralAttention",
    "ConcatAttention",
    "CosineAttention",
    "LocationAttention",
    "KernelAttention",
]


class Memory(NamedTuple):
    """Prepared keys and values, and one mask of what may be attended to; made by `prepare`, read by `attend`."""

    keys: torch.Tensor
    values: torch.Tensor
    mask: torch.Tensor | None


class Attention(nn.Module):
    """What the attention layers share: prepare, attend and a call, around one score.

    context, weights = attention_pooling(score(queries, project(keys)), values)
    """

    specification: Layer
    bounded = False
    """Whether scores are finite for all queries and keys, as a sum of tanh is."""

    def __init__(self, *, time_major: bool = False, **options: Any) -> None:
        super().__init__()
        self.sizes = check_options(self.specification, time_major=time_major, **options)
        methods = {name: self.specification.method(name) for name in ("prepare", "attend", "call")}
        self.methods = {name: method.time_major if time_major else method for name, method in methods.items()}
        self.time_major = time_major
        self.dropout = nn.Dropout(self.sizes.get("dropout", 0.0))

    def project(self, keys: torch.Tensor) -> torch.Tensor:
        """What memory holds of keys: themselves, where a layer does not say otherwise."""
        return keys

    def score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """The score of each query against each projected key."""
        raise NotImplementedError

    def dot_scale(self, features: int) -> float | None:
        """The factor of q·k where the score is an inner product with a projected key; None for another score."""
        return None

    def additive_terms(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The projected queries and w_v where the score is w_v · tanh(q + k) with a projected key; None for another."""
        return None

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
            self.methods["prepare"],
            self.sizes,
            dtype_of(self),
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = zero_masked(self.to_batch_first(keys), self.to_batch_first(values), valid_lens, mask)
        return memory._replace(keys=self.project(memory.keys))

    def attend(
        self,
        queries: torch.Tensor,
        memory: Memory,
        *,
        need_weights: bool = True,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Attend with queries to a prepared memory.

        context, weights = attention_pooling(score(queries, memory.keys), memory.values)

        Shapes: those of the layer; weights is None without need_weights.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            dtype_of(self),
            queries=queries,
            memory=memory,
            dropout_mask=dropout_mask,
        )
        context, weights = self.pooled(self, self.to_batch_first(queries), memory, need_weights, dropout_mask)
        return self.to_batch_first(context), weights

    def pooled(
        self,
        scored: Attention,
        queries: torch.Tensor,
        memory: Memory,
        need_weights: bool,
        dropout_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Pool by the score of a layer, of this one or of one inside it; where nothing is dropped, in blocks if it can.

        context, weights = attention_pooling(scored.score(queries, memory.keys), memory.values)
        """
        dropped = dropout_mask is not None or (self.dropout.training and self.dropout.p > 0.0)
        found = None if dropped else scored.in_blocks(queries, memory, need_weights)
        if found is not None:
            return found
        scores = scored.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        context, weights = attention_pooling(scores, memory.values, mask=memory.mask, dropout_mask=dropout_mask)
        return context, weights if need_weights else None

    def in_blocks(
        self, queries: torch.Tensor, memory: Memory, need_weights: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """The same in blocks, where there are some for the score and they suit the sizes; else None.

        Inner products have them from DOT_MIN_ELEMENTS elements of one head on, additive scores for the context alone.
        """
        factor, one_head = self.dot_scale(queries.shape[-1]), queries[(slice(1),) * (queries.ndim - 2)]
        if factor is not None and use_blocks(one_head, memory.keys, DOT_MIN_ELEMENTS):
            return dot_attention(queries, *memory, factor, need_weights)
        # Of queries and keys it is the keys that are projected by now.
        perceptron = None
        if not need_weights and use_blocks(memory.keys, queries, ADDITIVE_MIN_ELEMENTS):
            perceptron = self.additive_terms(queries)
        return None if perceptron is None else (blocked_additive_attention(perceptron[0], *memory, perceptron[1]), None)

    def attend_cleared(
        self, queries: torch.Tensor, memory: Memory, dropout_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend with checked arguments to a memory whose values are 0 where its mask hides them from all queries.

        Clearing the values costs a copy of them, which a decoder would make at every step.
        """
        if not self.bounded:  # a score of -inf hides values, too
            return self.attend(queries, memory, dropout_mask=dropout_mask)
        scores = self.score(queries, memory.keys)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, scores)
        weights = softmax_over(scores, open_keys(scores, None, memory.mask))
        return (weights if dropout_mask is None else weights * dropout_mask) @ memory.values, weights

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        need_weights: bool = True,
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
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, dropout_mask=dropout_mask)

    def to_batch_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with batch first, of one with time first, or the other way round; as it is without time_major."""
        return tensor.transpose(0, 1) if self.time_major else tensor


class DotProductAttention(Attention):
    """Attention by scaled inner products; it has no parameters.

    context, weights = attention_pooling(scaled_dot_score(queries, keys), values)

    Shapes: queries (batch, queries, features), keys (batch, keys, features), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights). With time_major, queries, keys, values and
    context are (steps, batch, features).
    """

    specification = DOT_PRODUCT_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None, time_major: bool = False) -> None:
        super().__init__(dropout=dropout, scale=scale, time_major=time_major)

    def dot_scale(self, features: int) -> float | None:
        """The scale."""
        scale: float | None = self.sizes["scale"]
        return max(features, 1) ** -0.5 if scale is None else scale

    def score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Give scale · q·k."""
        return scaled_dot_score(queries, keys, scale=self.sizes["scale"])


class AdditiveAttention(Attention):
    """Attention by a one-layer perceptron over query and key.

    context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights). time_major as in DotProductAttention.
    """

    specification = ADDITIVE_ATTENTION
    bounded = True

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout, time_major=time_major
        )
        self.W_q = nn.Linear(query_size, hidden_size, bias=False, dtype=dtype, device=device)
        self.W_k = nn.Linear(key_size, hidden_size, bias=False, dtype=dtype, device=device)
        self.w_v = drawn((hidden_size,), hidden_size, dtype, device)

    def project(self, keys: torch.Tensor) -> torch.Tensor:
        """Give W_k k."""
        return self.W_k(keys)

    def score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Give w_v · tanh(W_q q + W_k k)."""
        projected, w_v = self.additive_terms(queries)
        return additive_score(projected, keys, w_v)

    def additive_terms(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """W_q q, and w_v."""
        return self.W_q(queries), self.w_v


class GeneralAttention(Attention):
    """Attention by a bilinear form of query and key, also called multiplicative.

    context, weights = attention_pooling(dot_score(queries, W keys), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights). time_major as in DotProductAttention.
    """

    specification = GENERAL_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(query_size=query_size, key_size=key_size, dropout=dropout, time_major=time_major)
        self.W = nn.Linear(key_size, query_size, bias=False, dtype=dtype, device=device)

    def project(self, keys: torch.Tensor) -> torch.Tensor:
        """Give W k."""
        return self.W(keys)

    def dot_scale(self, features: int) -> float | None:
        """1: keys are projected."""
        return 1.0

    def score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Give q·W k."""
        return dot_score(queries, keys)


class ConcatAttention(Attention):
    """Attention by a one-layer perceptron over the concatenation of query and key.

    context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without; returns (context, weights). time_major as in DotProductAttention.
    """

    specification = CONCAT_ATTENTION
    bounded = True

    def __init__(
        self,
        query_size: int,
        key_size: int,
        hidden_size: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size, key_size=key_size, hidden_size=hidden_size, dropout=dropout, time_major=time_major
        )
        self.W = nn.Linear(query_size + key_size, hidden_size, bias=False, dtype=dtype, device=device)
        self.v = drawn((hidden_size,), hidden_size, dtype, device)

    def project(self, keys: torch.Tensor) -> torch.Tensor:
        """Give W [0; k]."""
        return nn.functional.linear(keys, self.W.weight[:, self.sizes["query_size"] :])

    def score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Give v · tanh(W [q; 0] + W [0; k])."""
        projected, v = self.additive_terms(queries)
        return additive_score(projected, keys, v)

    def additive_terms(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """W [q; 0], and v."""
        return nn.functional.linear(queries, self.W.weight[:, : self.sizes["query_size"]]), self.v


class CosineAttention(Attention):
    """Attention by the cosine of the angle between query and key; it has no parameters.

    context, weights = attention_pooling(cosine_score(queries, keys), values)

    Shapes: as DotProductAttention.
    """

    specification = COSINE_ATTENTION

    def __init__(self, *, dropout: float = 0.0, scale: float | None = None, time_major: bool = False) -> None:
        super().__init__(dropout=dropout, scale=scale, time_major=time_major)

    def score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Give scale · q·k/(‖q‖ ‖k‖)."""
        return cosine_score(queries, keys, scale=self.sizes["scale"])


class LocationAttention(Attention):
    """Attention by the query alone: it scores positions, whatever keys stand there.

    context, weights = attention_pooling(location_score(keys, W queries), values)

    Shapes: queries (batch, queries, query_size), keys (batch, keys, any features), values
    (batch, keys, value_features), all with heads after batch or without; returns (context, weights). There may be fewer
    keys than num_positions, not more. time_major as in DotProductAttention.
    """

    specification = LOCATION_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_positions: int,
        *,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(query_size=query_size, num_positions=num_positions, dropout=dropout, time_major=time_major)
        self.W = nn.Linear(query_size, num_positions, bias=False, dtype=dtype, device=device)

    def project(self, keys: torch.Tensor) -> torch.Tensor:
        """The keys as they are, of which there may not be more than positions."""
        check_positions(self.specification.name, keys.shape[-2], self.sizes["num_positions"])
        return keys

    def score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Give W q, at the positions of the keys."""
        return location_score(keys.shape[-2], self.W(queries))


class KernelAttention(Attention):
    """Attention by a Gaussian kernel of the distance between query and key.

    context, weights = attention_pooling(gaussian_score(queries, keys, w), values)

    w = 1/width is a parameter that begins there, if learned, else a constant.

    Shapes: as DotProductAttention.
    """

    specification = KERNEL_ATTENTION

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        width: float = 1.0,
        learned: bool = False,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(dropout=dropout, width=width, learned=learned, time_major=time_major)
        w = nn.Parameter(torch.full((), 1.0 / width, dtype=dtype, device=device)) if learned else None
        self.register_parameter("w", w)

    def score(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Give -½ ‖(q - k) w‖²."""
        constant = 1.0 / self.sizes["width"]
        return gaussian_score(queries, keys, queries.new_full((), constant) if self.w is None else self.w)


LAYERS: dict[str, type[Attention]] = {
    layer.__name__: layer
    for layer in (
        DotProductAttention,
        AdditiveAttention,
        GeneralAttention,
        ConcatAttention,
        CosineAttention,
        LocationAttention,
        KernelAttention,
    )
}


def attention_layer(
    part: Part,
    layers: Mapping[str, type[Attention]] = LAYERS,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Attention:
    """The attention layer, of those given, that stands inside another one."""
    keywords: dict[str, Any] = {"dtype": dtype, "device": device} if part.layer.trainable else {}
    return layers[part.layer.name](**part.config, **keywords)


def zero_masked(
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
