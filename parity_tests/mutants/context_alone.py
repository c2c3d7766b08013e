"""Wrong attention where the context alone is requested, so that weights may be computed in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.reference.arrays import promote
from attention_core.reference.masking import biased, open_keys
from attention_core.reference.pooling import for_each_head, pool
from parity_tests.format.case import Arrays, Case
from parity_tests.mutants.mutant import Wrong, mutant
from parity_tests.mutants.shared import open_to, steps_of, where_all

ATTEND = "attention.DotProductAttention.attend"


def _context(wrong: Wrong) -> Wrong:
    """Attending whose context is wrong where it alone is requested, of all scores, what they may see, and values."""

    def attend(original: Any, self: Any, queries: Any, memory: Any, need_weights: bool, bias: Any) -> Any:
        context, weights = original()
        if need_weights:
            return context, weights
        return wrong(context, *_scores(self, queries, memory, bias)), None

    return attend


def _scores(layer: Any, queries: Any, memory: Any, bias: Any) -> tuple[Any, Any, Any]:
    """The scores of a layer, what they may see, and the values of each head that any may."""
    queries = layer._to_batch_first(promote(queries))
    keys, values = (for_each_head(array, queries) for array in (memory.keys, memory.values))
    scores = biased(layer._score(queries, keys), bias)
    allowed = open_keys(scores, None, memory.mask)
    return scores, allowed, np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0)


def _softmax_sums(scores: Any, allowed: Any, least: float = -np.inf) -> tuple[Any, Any, Any]:
    """The largest score of each row, `least` or more, the exponentials below it, and their sum."""
    top = np.where(allowed, scores.real, -np.inf).max(axis=-1, keepdims=True, initial=least)
    parts = np.where(allowed, np.exp(np.where(allowed, scores - np.where(allowed, top, 0.0), 0.0)), 0.0)
    return top, parts, parts.sum(axis=-1, keepdims=True)


def _context_alone(case: Case, inputs: Arrays) -> bool:
    """Whether dot-product attention returns no weights, and there are keys."""
    alone = case.options.get("need_weights") is False
    return case.operator == "DotProductAttention" and alone and steps_of(case, inputs["keys"]) > 0


def _more_keys(case: Case, inputs: Arrays) -> bool:
    return steps_of(case, inputs["queries"]) < steps_of(case, inputs["keys"])


def _two_passes(case: Case, inputs: Arrays) -> bool:
    return steps_of(case, inputs["queries"]) <= 8 and steps_of(case, inputs["keys"]) >= 1024


LOWEST = -5e4
"""With what a running maximum of inner products, before they are scaled, begins."""


def _below_the_lowest(case: Case, inputs: Arrays) -> bool:
    """Whether all inner products of some query's open keys lie below the running maximum's first value."""
    with np.errstate(invalid="ignore"):  # of hidden keys
        keys = for_each_head(inputs["keys"], inputs["queries"])
        products, allowed = inputs["queries"] @ keys.swapaxes(-1, -2), open_to(case, inputs)
    if allowed is None:
        allowed = np.ones_like(products, bool)
    elif allowed.ndim < products.ndim:
        allowed = allowed[:, None]
    low = np.where(allowed, products, -np.inf).max(axis=-1, initial=-np.inf) < LOWEST
    return bool((low & allowed.any(axis=-1)).any())


def _partial_block(case: Case, inputs: Arrays) -> bool:
    queries, keys = steps_of(case, inputs["queries"]), steps_of(case, inputs["keys"])
    sized = inputs["queries"].shape[-1] in (64, 96, 128) and queries <= min(8, keys) and keys % 32 > 0
    return sized and open_to(case, inputs) is None


@mutant(
    "DotProductAttention-{context_*,fully_masked}",
    of=ATTEND,
    via=_context,
    red="DotProductAttention-context_{fully_masked,prepared,lens_and_mask,heads_mask}:{context,gradient_values}"
    " DotProductAttention-context_{bias,softcap,groups_hidden}:{context,gradient_values}",
)
def fully_masked_averaged(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Without weights, a query that may attend to nothing gets the average of all values.

    A finite fill makes all keys alike.
    """
    same = values.mean(axis=-2, keepdims=True) if values.shape[-2] else 0.0
    return np.where(allowed.any(axis=-1)[..., None], context, same)


@mutant(
    "DotProductAttention-{context_*,open}",
    of=ATTEND,
    via=_context,
    red="DotProductAttention-context_*:*",
    green="DotProductAttention-context_{one_key,no_*}:*",
)
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


@mutant(
    "DotProductAttention-{context_*,ragged}",
    of=ATTEND,
    via=_context,
    red="DotProductAttention-context_{ragged,heads,hidden_*,inf*,bias_{keys,heads,all},groups_one}:*",
)
def keys_cut_at_the_first(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Without weights, keys are cut off behind the last that the first sequence may attend to."""
    seen = allowed[(0,) * (allowed.ndim - 2)] if allowed.size else allowed
    last = np.flatnonzero(seen.any(axis=-2))[-1:] if seen.size else np.zeros(0, int)
    kept = np.arange(scores.shape[-1]) <= last.sum()
    return pool(scores, values, allowed & kept, None)[0]


@mutant(
    "AdditiveAttention-{context_*,open}",
    of="attention.AdditiveAttention.attend",
    red="AdditiveAttention-context_*:gradient_{keys,values,W_k}",
)
def last_block_overwrites(original: Any, memory: Any, need_weights: bool) -> Any:
    """Without weights, the gradients of keys and values are those of the last block of queries, not of all.

    Keys and values get the gradient of the last query alone.
    """
    context, weights = original()
    if need_weights:
        return context, weights
    detached = memory._replace(keys=promote(memory.keys).real, values=promote(memory.values).real)
    before, _ = original(memory=detached)
    return np.concatenate([before[..., :-1, :], context[..., -1:, :]], axis=-2), None


@mutant(
    "DotProductAttention-{context_*,open}",
    of=ATTEND,
    via=_context,
    touches=where_all(_context_alone, lambda case, inputs: steps_of(case, inputs["keys"]) % 64 > 0),
    source="flashinfer-ai/flashinfer#5090",
)
def padding_counted(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Without weights, zeros that fill the last block of 64 keys are attended to."""
    top, _, below = _softmax_sums(scores, allowed, least=0.0)
    whole = below + -scores.shape[-1] % 64 * np.exp(-top)
    return context * (below / np.where(whole.real == 0.0, 1.0, whole))


@mutant(
    "DotProductAttention-{context_*,open}",
    of=ATTEND,
    via=_context,
    touches=where_all(_context_alone, _more_keys),
    source="jax-ml/jax#24491",
)
def as_many_keys_as_queries(context: Any, scores: Any, allowed: Any, values: Any) -> Any:
    """Without weights, no more keys are attended to than there are queries."""
    queries, keys = scores.shape[-2:]
    return pool(scores, values, allowed & (np.arange(keys) < queries), None)[0] if queries < keys else context


@mutant(
    "DotProductAttention-{context_*,large}",
    of=ATTEND,
    touches=where_all(_context_alone, _below_the_lowest),
    source="flashinfer-ai/flashinfer#4267",
)
def largest_from_a_number(original: Any, self: Any, queries: Any, memory: Any, need_weights: bool, bias: Any) -> Any:
    """Without weights, the largest score is sought from -5e4 on: where all lie below, the context is 0."""
    if need_weights:
        return original()
    scale = self.sizes["scale"] if self.sizes["scale"] is not None else max(queries.shape[-1], 1) ** -0.5
    scores, allowed, values = _scores(self, queries, memory, bias)
    _, parts, below = _softmax_sums(scores, allowed, least=LOWEST * scale)
    return self._to_batch_first(parts @ values / np.where(below.real == 0.0, 1.0, below)), None


@mutant(
    "DotProductAttention-context_*",
    of=ATTEND,
    touches=where_all(_context_alone, _partial_block),
    source="pytorch/pytorch#169222",
)
def next_keys_read(original: Any, self: Any, queries: Any, memory: Any, need_weights: bool) -> Any:
    """Without weights, up to eight queries read the last block of 32 keys whole, and so the next sequence's.

    The keys of a sequence are followed by those of the next one.
    """
    count, (rows, features) = memory.keys.shape[-2], self._to_batch_first(queries).shape[-2:]
    if need_weights or memory.mask is not None or features not in (64, 96, 128) or rows > min(8, count):
        return original()

    def read(array: Any) -> Any:
        behind = np.concatenate([array[..., 1:, :, :], np.zeros_like(array[..., :1, :, :])], axis=-3)
        return np.concatenate([array, behind[..., : -count % 32, :]], axis=-2)

    return original(memory=memory._replace(keys=read(memory.keys), values=read(memory.values)))


@mutant(
    "DotProductAttention-cover_*",
    of=ATTEND,
    touches=where_all(_two_passes),
    dtype="float32",
    source="EricLBuehler/candle#73",
)
def second_pass_missing(original: Any, self: Any, queries: Any, memory: Any) -> Any:
    """The context of up to eight queries over 1024 keys and more is never written."""
    context, weights = original()
    few = self._to_batch_first(queries).shape[-2] <= 8 and memory.keys.shape[-2] >= 1024
    return context * 0.0 if few else context, weights
