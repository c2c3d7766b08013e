"""Attention to a segment and to those before it, whose positions are distances, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.operators.segments import SEGMENT_ATTENTION
from attention_core.reference.arrays import Specified, align, linear, promote
from attention_core.reference.masking import distances
from attention_core.reference.memory import concatenate, take_along
from attention_core.reference.multi_head import joined_heads, split_heads
from attention_core.reference.pooling import pool
from attention_core.reference.positions import SinusoidalPositions
from attention_core.specification import Layer

__all__ = ["SegmentAttention"]


class SegmentAttention(Specified):
    """Causal attention by several heads to a segment and to the segments before it, by content and distance.

    context = W_o [head_0; head_1; ...] + b_o
    head_h, weights_h = attention_pooling(scores_h, values_h) over keys j with d >= 0, d = previous_steps + i - j
    scores_h[i, j] = ((queries_h[i] + u[h])·keys_h[j] + (queries_h[i] + v[h])·(W_r P[d])_h)/√head_size
    queries_h the h-th part of W_q inputs + b_q, keys_h of W_k [previous; inputs] + b_k, values_h of W_v [previous;
    inputs] + b_v, P[d] the vector that SinusoidalPositions adds at position d

    query_size is the features of an input and of the context, an even number. In a stack, previous is of each layer the
    inputs of that layer, so that the context grows with the number of layers. A memory that is not yet full is hidden
    at its front, by mask. Segments one by one give what one call over all of them gives, if previous has all that came
    before.
    """

    specification: Layer = SEGMENT_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_heads: int,
        *,
        hidden_size: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(locals())
        self.positions = SinusoidalPositions(**self.specification.inside(self.sizes)["positions"].config)

    def __call__(
        self,
        inputs: np.ndarray,
        previous: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        per_head: bool = False,
        need_weights: bool = True,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend from each step to those before it, in its segment and in the segments before.

        context = W_o [head_0; head_1; ...] + b_o
        head_h, weights_h = attention_pooling(scores_h, values_h) over keys j with d >= 0, d = previous_steps + i - j
        scores_h[i, j] = ((queries_h[i] + u[h])·keys_h[j] + (queries_h[i] + v[h])·(W_r P[d])_h)/√head_size
        queries_h the h-th part of W_q inputs + b_q, keys_h of W_k [previous; inputs] + b_k, values_h of W_v [previous;
        inputs] + b_v, P[d] the vector that SinusoidalPositions adds at position d

        A step that may attend to nothing gets weights 0 and context b_o, or 0 without bias. What no step may attend to,
        NaN and inf included, has no effect as a key and gets no gradient as a key; a step of inputs is a query all the
        same. Gradients flow into previous: stop them before the call, as the paper does, or train through several
        segments.
        """
        self._check(
            "call",
            per_head=per_head,
            need_weights=need_weights,
            inputs=inputs,
            previous=previous,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        inputs = promote(inputs)
        steps = inputs if previous is None else concatenate(promote(previous), inputs, -2)
        num_queries, num_keys = inputs.shape[-2], steps.shape[-2]
        distance = num_keys - num_queries - distances(num_queries, num_keys, None)[0]
        allowed = (distance >= 0)[None, None]
        if mask is not None:
            allowed = allowed & (mask[:, None] if mask.ndim == 3 else mask)
            steps = np.where(np.expand_dims(allowed.any(axis=(-2, -3)), -1), steps, 0.0)
        queries, keys, values = (self._heads(which, of) for which, of in (("q", inputs), ("k", steps), ("v", steps)))
        scores = (self._by_content(queries, keys) + self._by_distance(queries, distance)) / np.sqrt(queries.shape[-1])
        heads, weights = pool(scores, values, allowed & (scores.real != -np.inf), dropout_mask)
        context = self._linear("o", joined_heads(heads))
        if not need_weights:
            return context, None
        return context, weights if per_head else weights.mean(axis=-3)

    def _by_content(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """Inner products of the queries with the keys."""
        return (queries + self._added_vector("u", queries)) @ keys.swapaxes(-1, -2)

    def _by_distance(self, queries: np.ndarray, distance: np.ndarray) -> np.ndarray:
        """Inner products of the queries with the distances of the keys up to the query's own."""
        num_keys, rank = distance.shape[-1], queries.ndim - 1
        encoded = self.positions(np.zeros((1, num_keys, self.sizes["query_size"])))
        encoded = linear(encoded.reshape((1,) * (rank - 2) + encoded.shape[1:]), self.parameters["W_r"])
        at_distance = split_heads(encoded, self.sizes["head_size"]).swapaxes(-1, -2)
        return take_along((queries + self._added_vector("v", queries)) @ at_distance, np.maximum(distance, 0), -1)

    def _added_vector(self, which: str, queries: np.ndarray) -> np.ndarray:
        """What every query of a head adds, u or v."""
        return align(self.parameters[which][..., None, :], 3, queries.ndim)

    def _heads(self, which: str, inputs: np.ndarray) -> np.ndarray:
        """The projection of that letter, split into heads."""
        return split_heads(self._linear(which, inputs), self.sizes["head_size"])

    def _linear(self, which: str, inputs: np.ndarray) -> np.ndarray:
        """W x + b, by the projection of that letter."""
        return linear(inputs, self.parameters[f"W_{which}"], self.parameters.get(f"b_{which}"))
