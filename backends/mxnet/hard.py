"""Attention to one key, in MXNet."""

from __future__ import annotations

import mxnet as mx
from mxnet import np

from attention_core.errors import check, check_options
from attention_core.operators.hard import HARD_ATTENTION
from backends.mxnet.attention import Answer, Attention, Memory, attention_layer
from backends.mxnet.masking import open_keys, positions
from backends.mxnet.module import initialise
from backends.mxnet.pooling import attention_pooling, average

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

    def attend(  # type: ignore[override]
        self, queries: np.ndarray, memory: Memory, *, need_weights: bool = True, noise: np.ndarray | None = None
    ) -> Answer:
        """Attend with queries to a prepared memory.

        weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0

        Shapes: as Attention.attend; noise as weights, strictly between 0 and 1.
        """
        check_options(self.methods["attend"], need_weights=need_weights)
        check(self.methods["attend"], self.sizes, self.dtype, queries=queries, memory=memory, noise=noise)
        scores = self.score(self.to_batch_first(queries), memory.keys).detach()
        allowed = open_keys(scores, None, memory.mask)
        if scores.size == 0:
            context, weights = attention_pooling(scores, memory.values)
            return self.to_batch_first(context), weights if need_weights else None
        visible = scores if noise is None else scores - np.log(-np.log(noise.detach()))
        best = np.argmax(np.where(allowed, visible, np.full_like(visible, -np.inf)), axis=-1).astype("float64")
        chosen = (positions(scores.shape[-1], scores.ctx) == np.expand_dims(best, -1)) * allowed
        weights = chosen.astype(scores.dtype)
        return self.to_batch_first(average(weights, memory.values, allowed)), weights if need_weights else None

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
        context, weights = super(Attention, self).__call__(queries, keys, values, valid_lens, mask, noise)
        return context, weights if need_weights else None

    def forward(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None,
        mask: np.ndarray | None,
        noise: np.ndarray | None,
    ) -> Answer:
        """Prepare the keys and values, and attend to them; Gluon enters here."""
        return self.attend(queries, self.prepare(keys, values, valid_lens, mask), noise=noise)

    def check_keys(self, num_keys: int) -> None:
        """As the layer of the score."""
        self.scored.check_keys(num_keys)
