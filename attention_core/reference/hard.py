"""Attention to one key in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.operators.hard import HARD_ATTENTION
from attention_core.reference.arrays import promote
from attention_core.reference.attention import Memory, ScoredAttention
from attention_core.reference.masking import open_keys
from attention_core.reference.pooling import average
from attention_core.specification import Layer

__all__ = ["HardAttention"]


class HardAttention(ScoredAttention):
    """Attention to a single key: the one with the highest score, or one sampled with a noise tensor.

    weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
    context = weights values, and no gradient reaches the scores

    Without noise, its term is 0. With noise, each key is drawn with its softmax probability.

    Arguments: query_size and key_size are the features of a query and a key; score is the name of the score, and scored
    the layer of that score; hidden_size is that of an additive or concat score, query_size unless given; num_positions
    is for score="location" only; time_major as in DotProductAttention.
    Parameters: those of scored as scored.W_q, ...
    Raises: OptionError as the layer of the score, and if an argument would be ignored.
    Source: Xu et al. 2015, section 4.1, arXiv:1502.03044; drawn by the Gumbel-max trick.
    """

    specification: Layer = HARD_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        *,
        score: str = "additive",
        hidden_size: int | None = None,
        num_positions: int | None = None,
        time_major: bool = False,
    ) -> None:
        super().__init__(
            query_size=query_size,
            key_size=key_size,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            time_major=time_major,
        )

    def attend(  # type: ignore[override]
        self, queries: np.ndarray, memory: Memory, *, need_weights: bool = True, noise: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0

        Shapes: as Attention.attend; noise as weights, strictly between 0 and 1.
        Edge cases: a query that may attend to nothing gets weights and context 0.
        Raises: ShapeError, DtypeError; OptionError if need_weights is not a bool.
        """
        self._check("attend", need_weights=need_weights, queries=queries, memory=memory, noise=noise)
        scores = self._score(self._to_batch_first(promote(queries)), memory.keys)
        allowed = open_keys(scores, None, memory.mask)
        scores = scores.real if noise is None else scores.real - np.log(-np.log(promote(noise).real))
        weights = np.zeros(scores.shape)
        if scores.shape[-1]:
            best = np.where(allowed, scores, -np.inf).argmax(axis=-1)
            weights = np.where(allowed, np.arange(scores.shape[-1]) == best[..., None], 0.0)
        return self._to_batch_first(average(weights, memory.values, allowed)), weights if need_weights else None

    def __call__(  # type: ignore[override]
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        noise: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Prepare the keys and values, and attend to them."""
        self._check(
            "call",
            need_weights=need_weights,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            noise=noise,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, noise=noise)
