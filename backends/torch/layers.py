"""Trainable attention layers in PyTorch: prepare keys and values once, attend many times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from attention_core.errors import check, check_length, check_offset, check_options, check_per_head, check_positions
from attention_core.operators import (
    ABLATION_IMPORTANCE,
    ADDITIVE_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    DOT_PRODUCT_ATTENTION,
    GENERAL_ATTENTION,
    HARD_ATTENTION,
    KERNEL_ATTENTION,
    LEARNED_POSITIONS,
    LOCAL_ATTENTION,
    LOCATION_ATTENTION,
    MULTI_HEAD_ATTENTION,
    NADARAYA_WATSON,
    POSITION_PERMUTATION,
    SINUSOIDAL_POSITIONS,
    TAYLOR_IMPORTANCE,
)
from attention_core.sinusoids import rates
from attention_core.specification import Layer, Part
from backends.torch.blocked import (
    ADDITIVE_LEAST,
    DOT_LEAST,
    blocked_additive_attention,
    dot_attention,
    takes_blocks,
)
from backends.torch.masking import attention_mask, distances, open_keys, softmax_over
from backends.torch.pooling import attention_pooling, average
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
    "LocalAttention",
    "HardAttention",
    "NadarayaWatson",
    "MultiHeadAttention",
    "ablation_importance",
    "taylor_importance",
    "SinusoidalPositions",
    "LearnedPositions",
    "position_permutation",
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

    def inner(self, features: int) -> float | None:
        """The factor of q·k where the score is an inner product with a projected key; None for another score."""
        return None

    def perceptron(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
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
        memory = cleared(self.turned(keys), self.turned(values), valid_lens, mask)
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
        context, weights = self.pooled(self, self.turned(queries), memory, need_weights, dropout_mask)
        return self.turned(context), weights

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

        Inner products have them from DOT_LEAST elements of one head on, additive scores for the context alone.
        """
        factor, one_head = self.inner(queries.shape[-1]), queries[(slice(1),) * (queries.ndim - 2)]
        if factor is not None and takes_blocks(one_head, memory.keys, DOT_LEAST):
            return dot_attention(queries, *memory, factor, need_weights)
        # Of queries and keys it is the keys that are projected by now.
        perceptron = None
        if not need_weights and takes_blocks(memory.keys, queries, ADDITIVE_LEAST):
            perceptron = self.perceptron(queries)
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

    def turned(self, tensor: torch.Tensor) -> torch.Tensor:
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

    def inner(self, features: int) -> float | None:
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
        projected, w_v = self.perceptron(queries)
        return additive_score(projected, keys, w_v)

    def perceptron(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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

    def inner(self, features: int) -> float | None:
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
        projected, v = self.perceptron(queries)
        return additive_score(projected, keys, v)

    def perceptron(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
        queries = self.turned(queries)
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
        return self.turned(context), weights if need_weights else None

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
        scores = self.score(self.turned(queries), memory.keys).detach()
        allowed = open_keys(scores, None, memory.mask)
        if scores.shape[-1] == 0:  # argmax refuses it
            weights = scores
        else:
            visible = scores.to(torch.promote_types(scores.dtype, torch.float32))
            if noise is not None:
                visible = visible - torch.log(-torch.log(noise.detach().to(visible.dtype)))
            best = visible.masked_fill(~allowed, -torch.inf).argmax(dim=-1, keepdim=True)
            weights = (allowed & (torch.arange(scores.shape[-1], device=scores.device) == best)).to(scores.dtype)
        return self.turned(average(weights, memory.values, allowed)), weights if need_weights else None

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


class NadarayaWatson(nn.Module):
    """Kernel regression: predict at each query the average of the values, weighted by nearness of their keys.

    predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

    Shapes: queries (batch, queries), keys and values (batch, keys), valid_lens (batch,) or (batch, queries), mask
    (batch, queries, keys), each axis its size or 1; returns (predictions, weights): (batch, queries),
    (batch, queries, keys).
    """

    specification = NADARAYA_WATSON

    def __init__(
        self,
        *,
        width: float = 1.0,
        learned: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(self.specification, width=width, learned=learned)
        self.kernel = KernelAttention(width=width, learned=learned, dtype=dtype, device=device)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Predict at each query.

        predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention
        """
        check(
            self.specification.method("call"),
            self.sizes,
            dtype_of(self),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        predictions, weights = self.kernel(queries[..., None], keys[..., None], values[..., None], valid_lens, mask)
        return predictions[..., 0], weights


class MultiHeadAttention(Attention):
    """Attention by several heads at once, each with its own projections.

    context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h), with
    queries_h the h-th part of W_q queries + b_q, keys_h of W_k keys + b_k, values_h of W_v values + b_v

    scored is the layer of the score; the heads share its parameters.

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_size),
    valid_lens and mask as in attention_mask, the mask with heads after batch or without, head_mask (heads,) or
    (batch, heads), dropout_mask (batch, heads, queries, keys); returns (context, weights): the shape of queries, and
    (batch, queries, keys), or with per_head (batch, heads, queries, keys). time_major as in DotProductAttention.
    """

    specification = MULTI_HEAD_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_heads: int,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        hidden_size: int | None = None,
        score: str = "scaled_dot",
        num_positions: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        time_major: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            query_size=query_size,
            num_heads=num_heads,
            key_size=key_size,
            value_size=value_size,
            hidden_size=hidden_size,
            score=score,
            num_positions=num_positions,
            bias=bias,
            dropout=dropout,
            time_major=time_major,
        )
        hidden_size = self.sizes["hidden_size"]
        self.W_q = nn.Linear(query_size, hidden_size, bias=bias, dtype=dtype, device=device)
        self.W_k = nn.Linear(self.sizes["key_size"], hidden_size, bias=bias, dtype=dtype, device=device)
        self.W_v = nn.Linear(self.sizes["value_size"], hidden_size, bias=bias, dtype=dtype, device=device)
        self.W_o = nn.Linear(hidden_size, query_size, bias=bias, dtype=dtype, device=device)
        self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype, device=device)

    def prepare(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> Memory:
        """Project the keys and values of every head, and keep them for many queries.

        memory = (projected keys, projected values, mask), of keys and values 0 where hidden from all
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
        keys, values = self.turned(keys), self.turned(values)
        allowed = attention_mask(keys.shape[-2], valid_lens, mask)
        if allowed is not None:
            if allowed.ndim == 3:
                allowed = allowed[:, None]
            hidden = ~allowed.any(dim=1).any(dim=1)[..., None]
            keys, values = keys.masked_fill(hidden, 0.0), values.masked_fill(hidden, 0.0)
        return Memory(self.scored.project(self.split(self.W_k(keys))), self.split(self.W_v(values)), allowed)

    def attend(
        self,
        queries: torch.Tensor,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Attend with queries to a prepared memory.

        context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h)
        """
        check_options(self.methods["attend"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.methods["attend"],
            self.sizes,
            dtype_of(self),
            queries=queries,
            memory=memory,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        queries = self.split(self.W_q(self.turned(queries)))
        heads, weights = self.pooled(self.scored, queries, memory, need_weights, dropout_mask)
        if head_mask is not None:
            heads = heads * head_mask[..., None, None]
        context = self.turned(self.W_o(heads.transpose(1, 2).flatten(2)))
        if weights is None or not need_weights:
            return context, None
        return context, weights if per_head else weights.mean(dim=1)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        head_mask: torch.Tensor | None = None,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | Any]:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], per_head=per_head, need_weights=need_weights)
        check_per_head(self.specification.name, per_head, need_weights)
        check(
            self.methods["call"],
            self.sizes,
            dtype_of(self),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        options = {"per_head": per_head, "need_weights": need_weights}
        return self.attend(queries, memory, **options, head_mask=head_mask, dropout_mask=dropout_mask)

    def split(self, tensor: torch.Tensor) -> torch.Tensor:
        """(batch, steps, hidden_size) as (batch, heads, steps, features of a head)."""
        return tensor.unflatten(-1, (self.sizes["heads"], self.sizes["head_size"])).transpose(1, 2)


Losses = Callable[[torch.Tensor], torch.Tensor]


def ablation_importance(losses: Losses, head_mask: torch.Tensor) -> torch.Tensor:
    """How much the loss rises when a head is switched off, for each head.

    importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]

    Shapes: head_mask (batch, heads), 1 for a head that is on; losses gives (batch,); the result (heads,). Under
    torch.no_grad(), nothing is kept for a backward pass.
    """
    check_options(ABLATION_IMPORTANCE, losses=losses)
    check(ABLATION_IMPORTANCE, head_mask=head_mask)
    num_heads = head_mask.shape[-1]
    heads = torch.arange(num_heads, device=head_mask.device)
    without = [losses(head_mask.masked_fill(heads == head, 0.0)) for head in range(num_heads)]
    found = torch.stack([losses(head_mask), *without])
    return (found[1:] - found[0]).mean(dim=-1)


def taylor_importance(losses: Losses, head_mask: torch.Tensor) -> torch.Tensor:
    """How much the loss would change to first order if a head were switched off, for each head.

    importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|

    Shapes: as ablation_importance; an example's loss depends on its own row alone. Under torch.no_grad(), the result is
    the same, and nothing is kept for a backward pass.
    """
    check_options(TAYLOR_IMPORTANCE, losses=losses)
    check(TAYLOR_IMPORTANCE, head_mask=head_mask)
    # A transform of functions, which asks neither for a leaf nor for gradients to be on, and fills no .grad.
    slope = torch.func.grad(lambda factors: losses(factors).sum())(head_mask)
    return (head_mask * slope).abs().mean(dim=0)


class SinusoidalPositions(nn.Module):
    """Add to each input the sines and cosines of its position; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(...)

    With layout="concatenated", all sines stand before all cosines.

    Shapes: inputs (batch, steps, features), as is the result.
    """

    specification = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved") -> None:
        super().__init__()
        self.sizes = check_options(self.specification, features=features, layout=layout)
        # No buffers: those would follow the module into float32.
        self.high, self.low = (torch.tensor(rate, dtype=torch.float64, device="cpu") for rate in rates(features))

    def forward(self, inputs: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, inputs=inputs)
        device = torch.device("cpu") if inputs.device.type == "mps" else inputs.device  # which has no float64
        positions = torch.arange(inputs.shape[-2], dtype=torch.float64, device=device)[:, None] + offset
        large, small = positions * self.high.to(device), positions * self.low.to(device)
        pair = [
            torch.sin(large) * torch.cos(small) + torch.cos(large) * torch.sin(small),
            torch.cos(large) * torch.cos(small) - torch.sin(large) * torch.sin(small),
        ]
        interleaved = self.sizes["layout"] == "interleaved"
        table = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
        return inputs + table.to(inputs.dtype).to(inputs.device)


class LearnedPositions(nn.Module):
    """Add to each input a learned vector for its position.

    outputs[t] = inputs[t] + P[t + offset]

    Shapes: inputs (batch, steps, features), as is the result.
    """

    specification = LEARNED_POSITIONS

    def __init__(
        self,
        num_positions: int,
        features: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(self.specification, num_positions=num_positions, features=features)
        self.P = drawn((num_positions, features), features, dtype, device)

    def forward(self, inputs: torch.Tensor, *, offset: int = 0) -> torch.Tensor:
        """Add the positions from offset on.

        outputs[t] = inputs[t] + P[t + offset]
        """
        operator = self.specification.method("call")
        check_options(operator, offset=offset)
        check(operator, self.sizes, self.P.dtype, inputs=inputs)
        end = offset + inputs.shape[-2]
        check_length(operator.title, end, self.sizes["num_positions"])
        return inputs + self.P[offset:end]


def position_permutation(features: int, *, device: torch.device | str | None = None) -> torch.Tensor:
    """The order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]

    Shapes: the result (features,), int32.
    """
    check_options(POSITION_PERMUTATION, features=features)
    return torch.arange(features, dtype=torch.int32, device=device).reshape(-1, 2).T.reshape(-1)


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
        LocalAttention,
    )
}


def attention_layer(
    part: Part, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Attention:
    """The attention layer that stands inside another one."""
    keywords: dict[str, Any] = {"dtype": dtype, "device": device} if part.layer.trainable else {}
    return LAYERS[part.layer.name](**part.config, **keywords)


def drawn(
    shape: tuple[int, ...], fan_in: int, dtype: torch.dtype | None, device: torch.device | str | None
) -> nn.Parameter:
    """A parameter with values from PyTorch's own generator, uniform in ±1/√fan_in."""
    bound = fan_in**-0.5
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device).uniform_(-bound, bound))


def dtype_of(layer: nn.Module) -> torch.dtype | None:
    """The floating type that a layer has fixed: that of its parameters, or None where it has none."""
    return next((parameter.dtype for parameter in layer.parameters()), None)


def cleared(
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


def drawn_mask(dropout: nn.Dropout, like: torch.Tensor) -> torch.Tensor | None:
    """A dropout mask from PyTorch's own generator, or None where nothing is dropped."""
    return dropout(torch.ones_like(like)) if dropout.training and dropout.p > 0.0 else None
