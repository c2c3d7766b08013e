"""Attention with several heads, how much each of them matters, and how it flows through layers, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attention_core.differentiation import gradients
from attention_core.operators.multi_head import (
    ABLATION_IMPORTANCE,
    ATTENTION_ROLLOUT,
    MULTI_HEAD_ATTENTION,
    TAYLOR_IMPORTANCE,
    remaining,
)
from attention_core.reference.arrays import check, linear, promote
from attention_core.reference.attention import ScoredAttention
from attention_core.reference.masking import add_bias, attention_mask
from attention_core.reference.memory import Memory
from attention_core.reference.pooling import for_each_head, pool
from attention_core.reference.positions import RotaryPositions
from attention_core.specification import Layer

__all__ = ["MultiHeadAttention", "ablation_importance", "taylor_importance", "attention_rollout"]


class MultiHeadAttention(ScoredAttention):
    """Attention by several heads at once, each with its own projections.

    context = W_o [head_0; head_1; ...] + b_o
    head_h, weights_h = attention(queries_h, keys_h, values_h), with queries_h the h-th part of W_q queries + b_q,
    keys_h of W_k keys + b_k, values_h of W_v values + b_v

    query_size is the features of a query and of the context. num_heads must divide hidden_size: head h has the rows
    from h·head_size to (h + 1)·head_size - 1 of W_q, W_k and W_v, with head_size = hidden_size/num_heads. With
    num_key_heads, query head h reads key head ⌊h · num_key_heads / num_heads⌋, and has the rows of that of W_k and W_v:
    Ainslie et al. 2023, section 2.2, arXiv:2305.13245. With rotary_layout, RotaryPositions rotate query i by position i
    + offset and key j by position j, so that their inner product depends on the distance alone: Su et al. 2021, section
    3.2, arXiv:2104.09864.
    """

    specification: Layer = MULTI_HEAD_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_heads: int,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        hidden_size: int | None = None,
        num_key_heads: int | None = None,
        score: str = "scaled_dot",
        num_positions: int | None = None,
        softcap: float | None = None,
        bias: bool = True,
        rotary_layout: str | None = None,
        rotary_base: float | None = None,
        dropout: float = 0.0,
        time_major: bool = False,
    ) -> None:
        super().__init__(locals())
        part = self.specification.inside(self.sizes).get("rotary")
        self.rotary = None if part is None else RotaryPositions(**part.config)

    def prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> Memory:
        """Project the keys and values of every head, once for many queries.

        memory = (projected keys, projected values, mask), of keys and values 0 where no query may attend
        """
        self._check("prepare", keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return self._prepare(keys, values, valid_lens, mask)

    def attend(
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: np.ndarray | None = None,
        offset: np.ndarray | None = None,
        head_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend with queries to a prepared memory.

        context = W_o [head_0; head_1; ...] + b_o
        head_h, weights_h = attention(queries_h, keys_h, values_h), with queries_h the h-th part of W_q queries + b_q,
        keys_h of W_k keys + b_k, values_h of W_v values + b_v

        A query that may attend to nothing gets weights 0 and context b_o, or 0 without bias.
        """
        self._check(
            "attend",
            per_head=per_head,
            need_weights=need_weights,
            queries=queries,
            memory=memory,
            bias=bias,
            offset=offset,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        queries = self._rotate(self._split(self._linear("q", self._to_batch_first(promote(queries)))), offset)
        keys, values = (for_each_head(array, queries) for array in (memory.keys, memory.values))
        scores = add_bias(self._score(queries, keys), bias)
        allowed = scores.real != -np.inf
        if memory.mask is not None:
            allowed = allowed & memory.mask
        context, weights = pool(scores, values, allowed, dropout_mask)
        if head_mask is not None:
            factors = promote(head_mask)
            if factors.ndim < context.ndim - 2:  # one factor for all sequences
                factors = factors[..., None, :]
            context = context * factors[..., None, None]
        projected = self._to_batch_first(self._linear("o", joined_heads(context)))
        if not need_weights:
            return projected, None
        return projected, weights if per_head else weights.mean(axis=-3)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        bias: np.ndarray | None = None,
        offset: np.ndarray | None = None,
        head_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Prepare the keys and values, and attend to them.

        context = W_o [head_0; head_1; ...] + b_o
        head_h, weights_h = attention(queries_h, keys_h, values_h), with queries_h the h-th part of W_q queries + b_q,
        keys_h of W_k keys + b_k, values_h of W_v values + b_v

        A query that may attend to nothing gets weights 0 and context b_o, or 0 without bias. A key and value that no
        query may attend to, NaN and inf included, have no effect and get gradient 0. Lengths apply to all heads.
        """
        self._check(
            "call",
            per_head=per_head,
            need_weights=need_weights,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            bias=bias,
            offset=offset,
            head_mask=head_mask,
            dropout_mask=dropout_mask,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        options: dict[str, Any] = {"per_head": per_head, "need_weights": need_weights, "offset": offset}
        return self.attend(queries, memory, **options, bias=bias, head_mask=head_mask, dropout_mask=dropout_mask)

    def pruned(self, heads: Sequence[int]) -> MultiHeadAttention:
        """Make a smaller layer without some of the heads.

        context = that of the whole layer with head_mask[h] = 0 for every h in heads, 1 for the others

        Its weights are those of the remaining heads, and its parameters are copies of theirs: their rows of W_q, W_k,
        W_v and biases, and their columns of W_o. head_size stays, and with it the scale. A key head remains as long as
        a query head reads it; where that leaves groups of unequal sizes, each query head gets a copy of the key head
        that it reads.
        """
        self._check("pruned", heads=heads)
        config, of_queries, of_keys = remaining(self.sizes, heads)
        layer = MultiHeadAttention(**config)
        layer.parameters = {name: array.copy() for name, array in self.parameters.items()}
        for which, rows in (("q", of_queries), ("k", of_keys), ("v", of_keys)):
            layer.parameters[f"W_{which}"] = self.parameters[f"W_{which}"][..., rows, :]
            if self.sizes["bias"]:
                layer.parameters[f"b_{which}"] = self.parameters[f"b_{which}"][..., rows]
        layer.parameters["W_o"] = self.parameters["W_o"][..., of_queries]
        return layer

    def _prepare(
        self,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None,
        mask: np.ndarray | None,
        position: np.ndarray | None = None,
    ) -> Memory:
        keys, values = self._to_batch_first(promote(keys)), self._to_batch_first(promote(values))
        allowed = attention_mask(keys.shape[-2], valid_lens, mask)
        if allowed is not None:
            if mask is None or mask.ndim == 3:
                allowed = allowed[:, None]
            seen = np.expand_dims(allowed.any(axis=(-2, -3)), -1)
            keys, values = np.where(seen, keys, 0.0), np.where(seen, values, 0.0)
        keys, values = self._split(self._linear("k", keys)), self._split(self._linear("v", values))
        return Memory(self._project(self._rotate(keys, position)), values, allowed)

    def _rotate(self, heads: np.ndarray, position: np.ndarray | None) -> np.ndarray:
        """Rotate the queries or keys of each head, if the layer has rotary positions, from that position on."""
        return heads if self.rotary is None else self.rotary.rotate(heads, position)

    def _linear(self, which: str, inputs: np.ndarray) -> np.ndarray:
        """W x + b, by the projection of that letter."""
        return linear(inputs, self.parameters[f"W_{which}"], self.parameters.get(f"b_{which}"))

    def _split(self, array: np.ndarray) -> np.ndarray:
        """(batch, steps, features of all heads) as (batch, heads, steps, features of a head)."""
        return split_heads(array, self.sizes["head_size"])


def split_heads(array: np.ndarray, head_size: int) -> np.ndarray:
    """(batch, steps, features of all heads) as (batch, heads, steps, features of a head)."""
    return array.reshape(*array.shape[:-1], array.shape[-1] // head_size, head_size).swapaxes(-2, -3)


def joined_heads(heads: np.ndarray) -> np.ndarray:
    """(batch, heads, steps, features of a head) as (batch, steps, features of all heads)."""
    joined = heads.swapaxes(-2, -3)
    return joined.reshape(*joined.shape[:-2], joined.shape[-2] * joined.shape[-1])


Losses = Callable[[np.ndarray], np.ndarray]


def ablation_importance(losses: Losses, head_mask: np.ndarray) -> np.ndarray:
    """Compute how much the loss rises when a head is switched off, for each head.

    importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]
    """
    check(ABLATION_IMPORTANCE, losses=losses, head_mask=head_mask)
    head_mask = promote(head_mask)
    heads = head_mask.shape[-1]
    whole = losses(head_mask)
    without = [losses(np.where(np.arange(heads) == head, 0.0, head_mask)) for head in range(heads)]
    return np.array([(loss - whole).mean() for loss in without])


def taylor_importance(losses: Losses, head_mask: np.ndarray) -> np.ndarray:
    """Estimate to first order how much the loss changes when a head is switched off, for each head.

    importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|

    The loss of an example must depend on no row of head_mask but its own.
    """
    check(TAYLOR_IMPORTANCE, losses=losses, head_mask=head_mask)
    head_mask = promote(head_mask)
    ones = {"0": np.ones(head_mask.shape[0])}
    slope = gradients(lambda arrays: (losses(arrays["head_mask"]),), {"head_mask": head_mask}, ones, stacked=False)[
        "head_mask"
    ]
    product = head_mask * slope
    return np.where(product < 0.0, -product, product).mean(axis=0)


def attention_rollout(weights: np.ndarray, *, residual: float = 0.5) -> np.ndarray:
    """Multiply the attention of all layers: how much each step at the top attends to each step at the bottom.

    rollout[b] = A[layers - 1, b] @ ... @ A[1, b] @ A[0, b]
    A[l, b] = residual I + (1 - residual) mean over h of weights[l, b, h]

    A step that may attend to nothing in a layer, whose weights are 0, keeps its residual share alone.
    """
    check(ATTENTION_ROLLOUT, weights=weights, residual=residual)
    weights = promote(weights)
    mixed = residual * np.eye(weights.shape[-1]) + (1.0 - residual) * weights.mean(axis=-3)
    first, *others = (mixed[..., layer, :, :, :] for layer in range(mixed.shape[-4]))
    for layer in others:
        first = layer @ first
    return first
