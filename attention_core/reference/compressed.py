"""Attention to a memory that is shorter than the input, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.operators.compressed import COMPRESSED_ATTENTION, INDUCED_ATTENTION, LOW_RANK_ATTENTION
from attention_core.reference.arrays import Specified, align, inner, linear, optional, promote
from attention_core.reference.masking import attention_mask, open_keys
from attention_core.reference.memory import Memory, zero_masked
from attention_core.reference.multi_head import MultiHeadAttention
from attention_core.reference.pooling import pool
from attention_core.reference.scoring import scaled_dot_score
from attention_core.specification import Layer

__all__ = ["LowRankAttention", "InducedAttention", "CompressedAttention"]


class ShortenedAttention(Specified):
    """Base class of the layers that shorten keys and values, and attend to them by scaled inner products."""

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Shorten the keys and values, and attend to what they become.

        A shortened key mixes positions, so that lengths and mask are the same for all queries. A sequence without an
        open key gets weights and context 0. A hidden key and value, NaN and inf included, counts as 0, and gets
        gradient 0.
        """
        self._check(
            "call",
            need_weights=need_weights,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
        )
        mask = np.ones((1,) * min(keys.ndim, 4), bool) if mask is None else mask
        memory = self._shorten(*zero_masked(promote(keys), promote(values), valid_lens, mask))
        scores = scaled_dot_score(promote(queries), memory.keys, scale=self.sizes["scale"])
        context, weights = pool(scores, memory.values, open_keys(scores, None, memory.mask), dropout_mask)
        return context, weights if need_weights else None

    def _shorten(self, keys: np.ndarray, values: np.ndarray, mask: np.ndarray | Any) -> Memory:
        """Shorten keys and values whose hidden ones are 0, and their mask, which is the same for all queries."""
        raise NotImplementedError


class LowRankAttention(ShortenedAttention):
    """Attention to weighted sums of the keys and values over their positions, as many as rank.

    context, weights = attention_pooling(scaled_dot_score(queries, E keys), F values)
    (E keys)[r] = sum over open j of E[r, j] keys[j]
    (F values)[r] = sum over open j of F[r, j] values[j]

    There may be fewer keys than num_positions, but not more: the first columns of E and F count. The cost is linear in
    the number of keys.
    """

    specification: Layer = LOW_RANK_ATTENTION

    def __init__(self, num_positions: int, rank: int, *, scale: float | None = None, dropout: float = 0.0) -> None:
        super().__init__(locals())

    def _shorten(self, keys: np.ndarray, values: np.ndarray, mask: np.ndarray | Any) -> Memory:
        """Return E keys and F values, all of them open where any key is."""
        E, F = (align(self.parameters[name][..., : keys.shape[-2]], 2, keys.ndim) for name in "EF")
        opened = np.any(mask, axis=-1, keepdims=True)
        return Memory(E @ keys, F @ values, np.repeat(opened, self.sizes["rank"], axis=-1))


class InducedAttention(Specified):
    """Attention by way of a few learned queries, the inducing points, that attend to the keys instead.

    context, weights = spread(queries, memory, memory)
    memory = gather(inducing, keys, values)

    query_size is the features of a query, of an inducing point, of what it has gathered, and of the context. The
    weights are the mean of spread's heads. The cost is linear in the number of keys, and in that of queries.
    """

    specification: Layer = INDUCED_ATTENTION

    def __init__(
        self,
        query_size: int,
        num_heads: int,
        num_inducing: int,
        *,
        key_size: int | None = None,
        value_size: int | None = None,
        hidden_size: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(locals())
        parts = self.specification.inside(self.sizes)
        self.gather, self.spread = (MultiHeadAttention(**parts[name].config) for name in ("gather", "spread"))

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        need_weights: bool = True,
        gather_dropout_mask: np.ndarray | None = None,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | Any]:
        """Let the inducing points attend to the keys, and the queries to what these have gathered.

        context, weights = spread(queries, memory, memory)
        memory = gather(inducing, keys, values)

        Lengths and mask are the same for all queries, which attend to the inducing points alone. In a sequence without
        an open key, they attend to nothing: weights 0, and context b_o of spread. A hidden key and value, NaN and inf
        included, have no effect and get gradient 0.
        """
        self._check(
            "call",
            need_weights=need_weights,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
            gather_dropout_mask=gather_dropout_mask,
            dropout_mask=dropout_mask,
        )
        self.gather.parameters = inner(self.parameters, "gather.")
        self.spread.parameters = inner(self.parameters, "spread.")
        mask = attention_mask(keys.shape[-2], valid_lens, np.ones((1, 1, 1), bool) if mask is None else mask)
        inducing = align(self.parameters["inducing"], 2, keys.ndim)
        inducing = np.broadcast_to(inducing, (*keys.shape[:-2], *inducing.shape[-2:]))
        gathered = inducing, promote(keys), promote(values), None, mask
        memory, _ = self.gather(*gathered, dropout_mask=optional(gather_dropout_mask))
        spread = promote(queries), memory, memory, None, np.any(mask, axis=-1, keepdims=True)
        return self.spread(*spread, need_weights=need_weights, dropout_mask=optional(dropout_mask))


class CompressedAttention(ShortenedAttention):
    """Attention to blocks of keys and values, each compressed to a single one by a strided convolution.

    context, weights = attention_pooling(scaled_dot_score(queries, keys'), values')
    keys'[t] = W_k [keys[t·stride]; ...; keys[t·stride + stride - 1]] + b_k, and values' likewise by W_v and b_v

    There are ⌈keys / stride⌉ blocks, of which the last is filled with zeros; a block is open where any of its keys is.
    A compressed value has the features of a value, and all heads share the convolutions.
    """

    specification: Layer = COMPRESSED_ATTENTION

    def __init__(
        self,
        query_size: int,
        key_size: int,
        stride: int,
        *,
        value_size: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(locals())

    def _shorten(self, keys: np.ndarray, values: np.ndarray, mask: np.ndarray | Any) -> Memory:
        """Return a key and a value for each block, open where any of its keys is."""
        steps = keys, values, mask[..., 0, :, None]
        keys, values, opened = (joined_blocks(array, self.sizes["stride"]) for array in steps)
        opened = np.any(opened, axis=-1, keepdims=True)[..., None, :, 0]
        return Memory(self._compress("k", keys), self._compress("v", values), opened)

    def _compress(self, which: str, blocks: np.ndarray) -> np.ndarray:
        """W x + b, by the convolution of that letter."""
        return linear(blocks, self.parameters[f"W_{which}"], self.parameters.get(f"b_{which}"))


def joined_blocks(steps: np.ndarray, stride: int) -> np.ndarray:
    """The features of each `stride` steps in a row; zeros fill the last block."""
    *leading, length, features = steps.shape
    count = (length + stride - 1) // stride
    missing = np.zeros((*leading, count * stride - length, features), steps.dtype)
    return np.concatenate([steps, missing], axis=-2).reshape(*leading, count, stride * features)
