"""Attention to one key, in MXNet."""

from __future__ import annotations

import mxnet as mx
from mxnet import np

from attention_core.errors import check, check_options
from attention_core.operators.hard import HARD_ATTENTION
from backends.mxnet.attention import Answer, Attention, Memory, Pair, attention_layer
from backends.mxnet.masking import positions
from backends.mxnet.module import functions, initialise
from backends.mxnet.pooling import average

__all__ = ["HardAttention"]


class HardAttention(Attention):
    """Attention to a single key: the one with the highest score, or one drawn by given noise.

    weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0
    context = weights values, and no gradient reaches the scores

    Without noise, its term is 0. With noise, each key is drawn with its softmax probability.

    Shapes: queries (batch, queries, query_size), keys (batch, keys, key_size), values (batch, keys, value_features),
    all with heads after batch or without, or steps before batch with time_major; noise as weights; returns
    (context, weights).
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            prefix,
            params,
            query_size=query_size,
            key_size=key_size,
            score=score,
            hidden_size=hidden_size,
            num_positions=num_positions,
            time_major=time_major,
        )
        with self.name_scope():
            self.scored = attention_layer(self.specification.inside(self.sizes)["scored"], dtype=dtype)
        initialise(self)

    def project(self, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        return self.scored.project(keys)

    def score(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """As the layer of the score."""
        return self.scored.score(queries, keys)

    def check_keys(self, num_keys: int) -> None:
        """As the layer of the score."""
        self.scored.check_keys(num_keys)

    def attend(  # type: ignore[override]
        self, queries: np.ndarray, memory: Memory, *, need_weights: bool = True, noise: np.ndarray | None = None
    ) -> Answer:
        """Attend with queries to a prepared memory.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0

        Shapes: as Attention.attend; noise as weights, strictly between 0 and 1.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(self.methods["attend"], self.sizes, self.dtype, queries=queries, memory=memory, noise=noise)
        queries = self.turned(queries)
        context, weights = self.run(self.attended, queries, memory, None, *draws(queries, memory, noise))
        return context, weights if need_weights else None

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
    ) -> Answer:
        """Prepare the keys and values, and attend to them."""
        check_options(self.methods["call"], need_weights=need_weights)
        check(
            self.methods["call"],
            self.sizes,
            self.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            noise=noise,
        )
        memory, queries = self.cleared(keys, values, valid_lens, mask), self.turned(queries)
        noisy = draws(queries, memory, noise)
        context, weights = self.run(super(Attention, self).__call__, queries, memory, None, *noisy)
        return context, weights if need_weights else None

    def attended(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        mask: np.ndarray,
        dropout_mask: np.ndarray,
        *others: np.ndarray,
    ) -> Pair:
        """The formula of attend, on arrays or in a graph, with what draws gives."""
        place, term = others
        F, scores = functions(queries), self.score(queries, keys)
        allowed = (scores != -np.inf) * mask
        best = F.np.argmax(F.np.where(allowed, scores + term, F.np.full_like(scores, -np.inf)), axis=-1)
        chosen = (place == F.np.expand_dims(best, -1).astype("float64")) * allowed
        # Comparisons end every gradient: none reaches the scores.
        weights = F.np.where(chosen, F.np.ones_like(scores), F.np.zeros_like(scores))
        return average(F, weights, values, allowed, dropout_mask), weights


def draws(queries: np.ndarray, memory: Memory, noise: np.ndarray | None) -> Pair:
    """The position of each key; and what uniform noise adds to scores, so that the highest one is a draw by softmax."""
    place = positions(memory.keys.shape[-2], queries.ctx)
    if noise is None or noise.size == 0:
        return place, np.zeros((1,) * queries.ndim, dtype=queries.dtype, ctx=queries.ctx)
    return place, -np.log(-np.log(noise.detach()))
