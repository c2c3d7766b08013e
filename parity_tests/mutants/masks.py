"""Wrong masks, and conversions of masks."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_core.reference.masking import attention_mask, distances
from parity_tests.format.case import Arrays
from parity_tests.mutants.mutant import INPUTS, mutant
from parity_tests.mutants.shared import is_passed


def _has_hidden(mask: Any) -> bool:
    """Whether a mask hides a key."""
    return mask is not None and not mask.all()


def _differs(axis: int, num_keys: int, valid_lens: Any, mask: Any) -> bool:
    """Whether what may be attended to is not the same along an axis."""
    allowed = attention_mask(num_keys, valid_lens, mask)
    return allowed is not None and bool((allowed != np.roll(allowed, 1, axis)).any())


def _has_lengths_of_sequences(num_keys: int, valid_lens: Any) -> bool:
    """Whether there is one length for each sequence, and a shorter one than the keys."""
    return valid_lens is not None and valid_lens.ndim == 1 and bool((valid_lens < num_keys).any())


def _is_aligned_otherwise(num_queries: int, num_keys: int, offset: Any) -> bool:
    """Whether another mask aligns the last query with the last key."""
    given, of_end = (
        distances(num_queries, num_keys, first) <= 0 for first in (offset, np.maximum(num_keys - num_queries, 0))
    )
    return bool((given != of_end).any())


def _is_of_one_head(scores: Any, valid_lens: Any, mask: Any) -> bool:
    """Whether several heads share a mask, and sequences do not."""
    allowed = attention_mask(scores.shape[-1], valid_lens, mask)
    if scores.ndim != 4 or scores.shape[1] == 1 or allowed is None:
        return False
    return (mask is None or mask.shape[1] == 1) and bool((allowed != allowed[:1]).any())


def _lengths_by_batch(scores: Any, valid_lens: Any) -> Any:
    """The lengths of sequences, repeated by the batch size and read as those of queries."""
    batch, queries = len(valid_lens), scores.shape[-2]
    return np.resize(np.repeat(valid_lens.astype(np.int64), batch), batch * queries).reshape(batch, queries)


def _has_other_lengths_by_batch(scores: Any, valid_lens: Any, mask: Any) -> bool:
    """Whether there are no heads, and lengths of sequences that are others when they are repeated by the batch size."""
    if valid_lens is None or valid_lens.ndim > 1 or (scores if mask is None else mask).ndim == 4:
        return False
    by_batch = np.minimum(_lengths_by_batch(scores, valid_lens), scores.shape[-1])
    return bool((by_batch != np.minimum(valid_lens.astype(np.int64)[:, None], scores.shape[-1])).any())


def _is_square(scores: Any, valid_lens: Any, mask: Any) -> bool:
    """Whether there are as many queries as keys, and a mask of keys alone is another one of queries."""
    allowed = attention_mask(scores.shape[-1], valid_lens, mask)
    if allowed is None or allowed.shape[-2] > 1 or scores.shape[-2] != scores.shape[-1]:
        return False
    return bool((allowed != allowed.swapaxes(-1, -2)).any())


@mutant("global_mask")
def global_queries_lost(original: Any, global_queries: Any) -> Any:
    """Global queries attend to global keys alone."""
    return original(global_queries=np.zeros_like(global_queries))


@mutant("mask_or")
def and_for_or(first: Any, second: Any) -> Any:
    """Masks that combine by or combine by and."""
    return first & second


@mutant("mask_and")
def or_for_and(first: Any, second: Any) -> Any:
    """Masks that combine by and combine by or."""
    return first | second


@mutant("from_key_padding_mask")
def key_padding_as_mask(original: Any) -> Any:
    """A key padding mask is taken for a mask, in which True means 'may attend'."""
    return ~original()


@mutant("to_key_padding_mask")
def mask_as_key_padding(original: Any) -> Any:
    """A mask is taken for a key padding mask, in which True means 'hidden'."""
    return ~original()


@mutant("from_additive_mask")
def additive_inverted(original: Any) -> Any:
    """What is above the threshold is hidden."""
    return ~original()


@mutant("from_additive_mask", touches=lambda additive_mask, threshold: (additive_mask == threshold).any())
def threshold_met(additive_mask: Any, threshold: float) -> Any:
    """What equals the threshold is open."""
    return additive_mask >= np.asarray(threshold).astype(additive_mask.dtype)


@mutant("from_additive_mask", cases="from_additive_mask-fills", dtype="bfloat16")
def threshold_exact(additive_mask: Any, threshold: float) -> Any:
    """The threshold is not rounded to the type of the additive mask, whose fill was."""
    return additive_mask.astype(np.float64) > threshold


@mutant(
    "from_additive_mask",
    touches=lambda additive_mask, threshold: (~(additive_mask > threshold) & (additive_mask != -np.inf)).any(),
)
def infinite_alone(additive_mask: Any) -> Any:
    """Only -inf hides a key."""
    return additive_mask != -np.inf


@mutant(
    "from_additive_mask",
    touches=lambda additive_mask, threshold: ((additive_mask > threshold) & (additive_mask != 0.0)).any(),
)
def bias_hides(additive_mask: Any) -> Any:
    """Only a key to whose score 0 is added is open."""
    return additive_mask == 0.0


@mutant("to_additive_mask")
def additive_turned(original: Any, mask: Any) -> Any:
    """An additive mask hides what is open."""
    return original(mask=~mask)


@mutant("to_additive_mask", unseen="to_additive_mask-float16")  # where -1e9 is -inf
def additive_fill(mask: Any) -> Any:
    """A hidden key gets -1e9."""
    return np.where(mask, 0.0, -1e9)


@mutant("masked_softmax", touches=is_passed("mask"))
def mask_inverted(original: Any, mask: Any) -> Any:
    """True in the mask means hidden."""
    return original(mask=~mask)


@mutant(
    INPUTS,
    cases="masked_softmax-* AdditiveAttention-* DotProductAttention-*",
    touches=lambda case: {"valid_lens", "mask"} & case.inputs.keys(),
)
def polarity_inverted(inputs: Arrays) -> Arrays:
    """The mask is inverted: what may be attended to is hidden, and what is hidden is attended to.

    The inputs with lengths and mask as one mask, inverted.
    """
    lens, mask, keys = (inputs.get(name) for name in ("valid_lens", "mask", "keys"))
    rest = {name: array for name, array in inputs.items() if name not in ("valid_lens", "mask")}
    count = inputs["scores"].shape[-1] if keys is None else keys.shape[-2]
    if keys is not None and mask is not None and mask.shape[-1] not in (1, count):  # the time comes first
        count = keys.shape[0]
    mask = np.asarray(attention_mask(count, lens, mask))
    heads = mask.ndim == 3 and (inputs["scores"] if keys is None else keys).ndim == 4
    return {**rest, "mask": ~(mask[:, None] if heads else mask)}


@mutant("masked_softmax", touches=_has_hidden)
def mask_shifted(original: Any, mask: Any) -> Any:
    """The mask is shifted by one key."""
    return original(mask=np.roll(mask, 1, -1))


@mutant("masked_softmax", touches=lambda mask: mask is not None and mask.ndim == 4)
def first_mask(original: Any, mask: Any) -> Any:
    """All heads use the mask of the first."""
    return original(mask=np.broadcast_to(mask[:, :1], mask.shape))


@mutant("attention_mask", touches=lambda valid_lens: valid_lens is not None and valid_lens.ndim == 2)
def first_length(original: Any, valid_lens: Any) -> Any:
    """All queries use the length of the first."""
    return original(valid_lens=np.broadcast_to(valid_lens[:, :1], valid_lens.shape))


@mutant("attention_mask", touches=partial(_differs, -2))
def mask_of_the_first_query(original: Any) -> Any:
    """All queries may attend to what the first one may."""
    return np.broadcast_to(original()[..., :1, :], original().shape)


@mutant("attention_mask", touches=partial(_differs, 0))
def mask_of_the_first_sequence(original: Any) -> Any:
    """The queries of all sequences may attend to what those of the first one may."""
    return np.broadcast_to(original()[:1], original().shape)


@mutant("attention_mask", touches=is_passed("valid_lens"))
def length_included(original: Any, valid_lens: Any) -> Any:
    """Key j is open where j <= valid_len."""
    return original(valid_lens=valid_lens + valid_lens.dtype.type(1))


@mutant("attention_mask", touches=lambda valid_lens, mask: valid_lens is not None and mask is not None)
def lengths_or_mask(original: Any, mask: Any) -> Any:
    """Lengths and mask combine by or."""
    by_length = original(mask=None)
    return mask | (by_length if mask.ndim == 3 else by_length[:, None])


@mutant(
    "attention_mask",
    cases="masked_softmax-* DotProductAttention-*ragged*",
    touches=_has_lengths_of_sequences,
    source="jax-ml/jax#23349",
)
def lengths_of_sequences_ignored(original: Any) -> Any:
    """Lengths are ignored where there is one for each sequence."""
    return original(valid_lens=None)


@mutant("causal_mask", touches=_is_aligned_otherwise, source="ml-explore/mlx#2835")
def causal_to_the_end(original: Any, num_queries: int, num_keys: int, offset: Any) -> Any:
    """The last query of causal_mask is aligned with the last key, whatever the offset."""
    return original(offset=np.full(np.shape(offset), max(num_keys - num_queries, 0)))


@mutant("window_mask")
def window_exclusive(num_queries: int, num_keys: int, left: int, right: int, offset: Any) -> Any:
    """A window is open inside of its ends alone: -left < j - i < right."""
    distance = distances(num_queries, num_keys, offset)
    return (distance > -left) & (distance < right)


@mutant(
    "open_keys",
    cases="masked_softmax-* DotProductAttention-heads*",
    touches=_is_of_one_head,
    source="ooples/AiDotNet.Tensors#947",
)
def mask_of_one_head_overrun(original: Any, scores: Any, valid_lens: Any, mask: Any) -> Any:
    """A mask of one head is read as if it had all: the next heads meet the masks of the next sequences.

    Head h of sequence b meets the mask of sequence b + h.
    """
    allowed = np.asarray(attention_mask(scores.shape[-1], valid_lens, mask))
    allowed = allowed[:, None] if mask is None else allowed
    sequences = np.add.outer(np.arange(len(allowed)), np.arange(scores.shape[1])) % len(allowed)
    return original(valid_lens=None, mask=allowed[sequences, 0])


@mutant("open_keys", cases="masked_softmax-*", touches=_has_other_lengths_by_batch)
def lengths_repeated_by_batch(original: Any, scores: Any, valid_lens: Any) -> Any:
    """Lengths are repeated by the batch size, not by the number of queries, before sequences become rows."""
    return original(valid_lens=_lengths_by_batch(scores, valid_lens))


@mutant("open_keys", cases="masked_softmax-*", touches=_is_square)
def key_mask_over_queries(original: Any, scores: Any, valid_lens: Any, mask: Any) -> Any:
    """A mask of keys is broadcast over the axis of keys, and hides queries, where there are as many."""
    allowed = np.asarray(attention_mask(scores.shape[-1], valid_lens, mask))
    allowed = allowed[:, None] if mask is None and scores.ndim == 4 else allowed
    return original(valid_lens=None, mask=allowed.swapaxes(-1, -2))
