"""Wrong attention where the context alone is requested, so that weights may be computed in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.reference.arrays import promote
from attention_core.reference.masking import add_bias, open_keys
from attention_core.reference.pooling import for_each_head, pool
from parity_tests.mutants.mutant import Wrong, mutant
from parity_tests.mutants.shared import has_fully_masked_rows

ATTEND = "attention.DotProductAttention.attend"


def _context(wrong: Wrong) -> Wrong:
    """Attending with a wrong context, of the right one, all scores, what they may see, and values; without weights."""

    def attend(original: Any, self: Any, queries: Any, memory: Any, bias: Any) -> Any:
        return wrong(original()[0], *_scores(self, queries, memory, bias)), None

    return attend


def _scores(layer: Any, queries: Any, memory: Any, bias: Any) -> tuple[Any, Any, Any]:
    """The scores of a layer, what they may see, and the values of each head that any may."""
    queries = layer._to_batch_first(promote(queries))
    keys, values = (for_each_head(array, queries) for array in (memory.keys, memory.values))
    scores = add_bias(layer._score(queries, keys), bias)
    allowed = open_keys(scores, None, memory.mask)
    return scores, allowed, np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0)


def _softmax_sums(scores: Any, allowed: Any, least: float = -np.inf) -> tuple[Any, Any, Any]:
    """The largest score of each row, `least` or more, the exponentials below it, and their sum."""
    top = np.where(allowed, scores.real, -np.inf).max(axis=-1, keepdims=True, initial=least)
    parts = np.where(allowed, np.exp(np.where(allowed, scores - np.where(allowed, top, 0.0), 0.0)), 0.0)
    return top, parts, parts.sum(axis=-1, keepdims=True)


def _is_alone(need_weights: bool) -> bool:
    """Whether the context alone is requested."""
    return not need_weights


def _is_alone_of_nothing(self: Any, queries: Any, memory: Any, need_weights: bool, bias: Any) -> bool:
    """Whether the context alone is requested, and a query may attend to nothing."""
    return not need_weights and has_fully_masked_rows(_scores(self, queries, memory, bias)[1])


def _is_first_cut(self: Any, queries: Any, memory: Any, need_weights: bool, bias: Any) -> bool:
    """Whether the context alone is requested, and the last key that any sequence sees is hidden from the first."""
    seen = _scores(self, queries, memory, bias)[1].any(axis=-2)
    if need_weights or not seen.size:
        return False
    first = np.flatnonzero(seen[(0,) * (seen.ndim - 1)])
    return bool(seen[..., first.max(initial=-1) + 1 :].any())


LOWEST = -5e4
"""With what a running maximum of inner products, before they are scaled, begins."""


def _lowest(self: Any, queries: Any) -> float:
    """The same of scores, which are scaled."""
    return LOWEST * float(queries.shape[-1] ** -0.5 if self.sizes["scale"] is None else self.sizes["scale"])


def _is_below_the_lowest(self: Any, queries: Any, memory: Any, need_weights: bool, bias: Any) -> bool:
    """Whether the context alone is requested, and all scores of some query lie below the first value of a maximum."""
    scores, allowed, _ = _scores(self, queries, memory, bias)
    low = np.where(allowed, scores.real, -np.inf).max(axis=-1, initial=-np.inf) < _lowest(self, queries)
    return not need_weights and bool((low & allowed.any(axis=-1)).any())


def _has_partial_block(self: Any, queries: Any, memory: Any, need_weights: bool) -> bool:
    """Whether the context alone is requested, and few queries attend to all keys, which do not fill blocks of 32."""
    count, (rows, features) = memory.keys.shape[-2], self._to_batch_first(queries).shape[-2:]
    is_alone = not need_weights and memory.mask is None
    return is_alone and features in (64, 96, 128) and rows <= min(8, count) and count % 32 > 0


@mutant(ATTEND, via=_context, touches=_is_alone_of_nothing)
def fully_masked_averaged(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Without weights, a query that may attend to nothing gets the average of all values.

    A finite fill makes all keys alike.
    """
    return np.where(allowed.any(axis=-1)[..., None], context, values.mean(axis=-2, keepdims=True))


@mutant(ATTEND, via=_context, touches=_is_alone)
def blocks_not_rescaled(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Without weights, blocks of keys are added up that were divided by e to their own largest score each.

    The blocks have four keys.
    """
    above, below = np.zeros_like(context), np.zeros_like(context[..., :1])
    for start in range(0, scores.shape[-1], 4):
        block = np.s_[..., start : start + 4]
        _, parts, total = _softmax_sums(scores[block], allowed[block])
        above, below = above + parts @ values[..., start : start + 4, :], below + total
    return above / np.where(below == 0.0, 1.0, below)


@mutant(ATTEND, via=_context, touches=_is_first_cut)
def keys_cut_at_the_first(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Without weights, keys are cut off behind the last that the first sequence may attend to."""
    seen = allowed[(0,) * (allowed.ndim - 2)]
    kept = np.arange(scores.shape[-1]) <= np.flatnonzero(seen.any(axis=-2)).max(initial=-1)
    return pool(scores, values, allowed & kept, None)[0]


@mutant("attention.AdditiveAttention.attend", touches=_is_alone)
def last_block_overwrites(original: Any, memory: Any) -> Any:
    """Without weights, the gradients of keys and values are those of the last block of queries, not of all.

    Keys and values get the gradient of the last query alone.
    """
    context, _ = original()
    detached = memory._replace(keys=promote(memory.keys).real, values=promote(memory.values).real)
    before, _ = original(memory=detached)
    return np.concatenate([before[..., :-1, :], context[..., -1:, :]], axis=-2), None


@mutant(
    ATTEND,
    via=_context,
    touches=lambda memory, need_weights: not need_weights and memory.keys.shape[-2] % 64,
    source="flashinfer-ai/flashinfer#5090",
)
def padding_counted(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Without weights, zeros that fill the last block of 64 keys are attended to."""
    top, _, below = _softmax_sums(scores, allowed, least=0.0)
    whole = below + -scores.shape[-1] % 64 * np.exp(-top)
    return context * (below / np.where(whole.real == 0.0, 1.0, whole))


@mutant(
    ATTEND,
    via=_context,
    touches=lambda self, queries, memory, need_weights: (
        not need_weights and self._to_batch_first(queries).shape[-2] < memory.keys.shape[-2]
    ),
    source="jax-ml/jax#24491",
)
def as_many_keys_as_queries(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Without weights, no more keys are attended to than there are queries."""
    queries, keys = scores.shape[-2:]
    return pool(scores, values, allowed & (np.arange(keys) < queries), None)[0]


@mutant(ATTEND, touches=_is_below_the_lowest, source="flashinfer-ai/flashinfer#4267")
def largest_from_a_number(self: Any, queries: Any, memory: Any, bias: Any) -> Any:
    """Without weights, the largest score is sought from -5e4 on: where all lie below, the context is 0."""
    scores, allowed, values = _scores(self, queries, memory, bias)
    _, parts, below = _softmax_sums(scores, allowed, least=_lowest(self, queries))
    return self._to_batch_first(parts @ values / np.where(below.real == 0.0, 1.0, below)), None


@mutant(ATTEND, touches=_has_partial_block, source="pytorch/pytorch#169222")
def next_keys_read(original: Any, memory: Any) -> Any:
    """Without weights, up to eight queries read the last block of 32 keys whole, and so the next sequence's.

    The keys of a sequence are followed by those of the next one.
    """
    count = memory.keys.shape[-2]

    def read(array: Any) -> Any:
        behind = np.concatenate([array[..., 1:, :, :], np.zeros_like(array[..., :1, :, :])], axis=-3)
        return np.concatenate([array, behind[..., : -count % 32, :]], axis=-2)

    return original(memory=memory._replace(keys=read(memory.keys), values=read(memory.values)))


@mutant(
    ATTEND,
    touches=lambda self, queries, memory: self._to_batch_first(queries).shape[-2] <= 8 < 1024 <= memory.keys.shape[-2],
    dtype="float32",
    source="EricLBuehler/candle#73",
)
def second_pass_missing(original: Any) -> Any:
    """The context of up to eight queries over 1024 keys and more is never written."""
    context, weights = original()
    return context * 0.0, weights
