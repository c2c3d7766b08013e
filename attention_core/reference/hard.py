"""Attention to one key in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.operators.hard import HARD_ATTENTION
from attention_core.reference.arrays import promote
from attention_core.reference.attention import ScoredAttention
from attention_core.reference.masking import log_softmax_over, open_keys
from attention_core.reference.memory import Memory
from attention_core.reference.pooling import average
from attention_core.specification import Layer

__all__ = ["HardAttention"]


class HardAttention(ScoredAttention):
    """Attention to a single key: the one with the highest score, or one sampled with a noise tensor.

    weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
    context = weights values, and no gradient reaches the scores; without noise, its term is 0

    Without noise, its term is 0. With noise drawn uniformly from (0, 1), each key is drawn with its softmax
    probability, and `log_prob` trains the scores. `scored` is the attention layer of score, and hidden_size that of an
    additive or concat score. The scores dot, scaled_dot, cosine and gaussian compare features one by one, and need as
    many in a query as in a key.
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
        super().__init__(locals())

    def attend(  # type: ignore[override]
        self, queries: np.ndarray, memory: Memory, *, need_weights: bool = True, noise: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Attend with queries to a prepared memory.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
        context = weights values, and no gradient reaches the scores; without noise, its term is 0

        A query that may attend to nothing gets weights and context 0.
        """
        self._check("attend", need_weights=need_weights, queries=queries, memory=memory, noise=noise)
        scores = self._score(self._to_batch_first(promote(queries)), memory.keys)
        allowed = open_keys(scores, None, memory.mask)
        with np.errstate(divide="ignore"):  # the term of a noise of 0 is -inf
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
        """Prepare the keys and values, and attend to them.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
        context = weights values, and no gradient reaches the scores; without noise, its term is 0

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
            noise=noise,
        )
        memory = self.prepare(keys, values, valid_lens, mask)
        return self.attend(queries, memory, need_weights=need_weights, noise=noise)

    def log_prob(self, queries: np.ndarray, memory: Memory, weights: np.ndarray) -> np.ndarray:
        """Compute the log-probability of each query's key, which trains the scores.

        log_prob[i] = sum over open j of weights[i, j] ln masked_softmax(scores)[i, j]

        The probability is that with which noise draws the key. The gradient of (loss - baseline) * log_prob, where loss
        - baseline is a constant, is the score-function estimator of the gradient of the expected loss, also called
        REINFORCE: Williams 1992, doi:10.1007/BF00992696. A query that may attend to nothing gets 0.
        """
        self._check("log_prob", queries=queries, memory=memory, weights=weights)
        scores = self._score(self._to_batch_first(promote(queries)), memory.keys)
        allowed = open_keys(scores, None, memory.mask)
        return np.where(allowed, promote(weights) * log_softmax_over(scores, allowed), 0.0).sum(axis=-1)
