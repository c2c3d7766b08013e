"""Attention to a window of the keys in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.operators.local import LOCAL_ATTENTION
from attention_core.reference.arrays import align, linear, promote, sigmoid, tanh
from attention_core.reference.attention import ScoredAttention
from attention_core.reference.masking import open_keys
from attention_core.reference.memory import Memory
from attention_core.reference.pooling import pool
from attention_core.specification import Layer

__all__ = ["LocalAttention"]


class LocalAttention(ScoredAttention):
    """Attention to a window of keys, around the query's position or around a predicted one.

    weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights values
    monotonic: p[i] = i + offset, g = 1
    predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

    S[i] is the number of keys up to the last one that query i may attend to: its valid length. g is a Gaussian of
    standard deviation window/2, and the weights are not normalised again: predictive ones add up to less than 1.
    `scored` is the layer of score, and hidden_size that of an additive or concat score and of W_p. The scores dot,
    scaled_dot, cosine and gaussian compare features one by one, and need as many in a query as in a key.
    """

    specification: Layer = LOCAL_ATTENTION

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
    ) -> None:
        super().__init__(locals())

    def attend(  # type: ignore[override]
        self,
        queries: np.ndarray,
        memory: Memory,
        *,
        need_weights: bool = True,
        offset: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights
        values
        monotonic: p[i] = i + offset, g = 1
        predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

        A query that may attend to nothing gets weights and context 0.
        """
        self._check(
            "attend",
            need_weights=need_weights,
            queries=queries,
            memory=memory,
            offset=offset,
            dropout_mask=dropout_mask,
        )
        queries = self._to_batch_first(promote(queries))
        scores = self._score(queries, memory.keys)
        allowed = open_keys(scores, None, memory.mask)
        if self.sizes["mode"] == "monotonic":
            centre = np.arange(scores.shape[-2]) + np.zeros(scores.shape[:-1])
            if offset is not None:  # one for each sequence, shared by the heads
                rank = memory.values.ndim if memory.mask is None else memory.mask.ndim
                centre = centre + np.reshape(offset, (-1, *[1] * (rank - 2)))
        else:
            hidden = tanh(linear(queries, self.parameters["W_p"]))
            seen = np.ones(scores.shape[-1], bool) if memory.mask is None else memory.mask
            ends = (np.arange(1, scores.shape[-1] + 1) * seen).max(axis=-1, initial=0)
            centre = ends * sigmoid((hidden * align(self.parameters["v_p"], 1, hidden.ndim)).sum(axis=-1))
        distance = np.arange(scores.shape[-1]) - centre[..., None]
        allowed = allowed & (distance.real**2 <= self.sizes["window"] ** 2)
        if self.sizes["mode"] == "monotonic":
            context, weights = pool(scores, memory.values, allowed, dropout_mask)
        else:
            near = np.where(allowed, np.exp(-2.0 * (distance / self.sizes["window"]) ** 2), 0.0)
            factor = near if dropout_mask is None else near * promote(dropout_mask)
            context, weights = pool(scores, memory.values, allowed, factor)
            weights = weights * near
        return self._to_batch_first(context), weights if need_weights else None

    def __call__(  # type: ignore[override]
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        offset: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Prepare the keys and values, and attend to them.

        weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights
        values
        monotonic: p[i] = i + offset, g = 1
        predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), g[i, j] = exp(-2 (j - p[i])²/window²)

        A query that may attend to nothing gets weights and context 0. A key and value that no query may attend to, NaN
        and inf included, have no effect and get gradient 0. Lengths apply to all heads.
        """
        self._check(
            "call",
            need_weights=need_weights,
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
