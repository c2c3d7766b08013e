"""Wrong masks, and conversions of masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.reference.masking import attention_mask
from parity_tests.format.case import Arrays, Case
from parity_tests.mutants.mutant import INPUTS, mutant
from parity_tests.mutants.shared import NOTHING, hides, open_to, where_all

CONVERTED_NOTHING = "*-no_{keys,queries,batch}:*"
"""Masks of other conventions without an element."""


def _by_sequence(case: Case, inputs: Arrays) -> bool:
    """Whether there is one length for each sequence."""
    return "valid_lens" in inputs and inputs["valid_lens"].ndim == 1


def _ends_elsewhere(case: Case, inputs: Arrays) -> bool:
    """Whether another mask aligns the last query with the last key."""
    if case.operator != "causal_mask":
        return False
    queries, keys = case.options["num_queries"], case.options["num_keys"]
    distance, offset = np.arange(keys) - np.arange(queries)[:, None], inputs.get("offset", np.array(0))
    return bool(((distance <= offset.reshape(-1, 1, 1)) != (distance <= max(keys - queries, 0))).any())


def _mask_of_one_head(case: Case, inputs: Arrays) -> bool:
    first, allowed = inputs.get("scores", inputs.get("queries")), open_to(case, inputs)
    if first is None or allowed is None or first.ndim < 4 or first.shape[1] < 2:
        return False
    return (allowed.ndim == 3 or allowed.shape[1] == 1) and bool((allowed != allowed[:1]).any())


def _more_queries_or_fewer(case: Case, inputs: Arrays) -> bool:
    """Whether there are not as many queries as sequences, without heads."""
    scores = inputs.get("scores")
    return scores is not None and scores.ndim == 3 and scores.shape[0] not in (1, scores.shape[1])


def _square_key_mask(case: Case, inputs: Arrays) -> bool:
    """Whether all queries share a mask, and there are as many of them as keys."""
    scores, allowed = inputs.get("scores"), open_to(case, inputs)
    square = scores is not None and scores.shape[-1] == scores.shape[-2] > 1
    return square and allowed is not None and allowed.shape[-2] == 1


@mutant("global_mask-*", of="global_mask", red="global_mask-plain:mask")
def global_queries_lost(original: Any, global_queries: Any) -> Any:
    """Global queries attend to global keys alone."""
    return original(global_queries=np.zeros_like(global_queries))


@mutant("mask_or-*", of="mask_or", red="*:mask")
def and_for_or(first: Any, second: Any) -> Any:
    """Masks that combine by or combine by and."""
    return first & second


@mutant("mask_and-*", of="mask_and", red="*:mask")
def or_for_and(first: Any, second: Any) -> Any:
    """Masks that combine by and combine by or."""
    return first | second


@mutant("from_key_padding_mask-*", of="from_key_padding_mask", red="*:mask", green=CONVERTED_NOTHING)
def key_padding_as_mask(original: Any) -> Any:
    """A key padding mask is taken for a mask, in which True means 'may attend'."""
    return ~original()


@mutant("to_key_padding_mask-*", of="to_key_padding_mask", red="*:key_padding_mask", green=CONVERTED_NOTHING)
def mask_as_key_padding(original: Any) -> Any:
    """A mask is taken for a key padding mask, in which True means 'hidden'."""
    return ~original()


@mutant("from_additive_mask-*", of="from_additive_mask", red="*:mask", green=CONVERTED_NOTHING)
def additive_inverted(original: Any) -> Any:
    """What is above the threshold is hidden."""
    return ~original()


@mutant("from_additive_mask-*", of="from_additive_mask", red="from_additive_mask-{threshold,fills}:mask")
def threshold_met(additive_mask: Any, threshold: float) -> Any:
    """What equals the threshold is open."""
    return additive_mask >= np.asarray(threshold).astype(additive_mask.dtype)


@mutant("from_additive_mask-*", of="from_additive_mask", red="from_additive_mask-fills:mask", dtype="bfloat16")
def threshold_exact(additive_mask: Any, threshold: float) -> Any:
    """The threshold is not rounded to the type of the additive mask, whose fill was."""
    return additive_mask.astype(np.float64) > threshold


@mutant(
    "from_additive_mask-*",
    of="from_additive_mask",
    red="from_additive_mask-{fills,threshold,low_threshold,not_finite}:mask",
)
def infinite_alone(additive_mask: Any) -> Any:
    """Only -inf hides a key."""
    return additive_mask != -np.inf


@mutant(
    "from_additive_mask-*",
    of="from_additive_mask",
    red="from_additive_mask-{bias,threshold,low_threshold,not_finite}:mask",
)
def bias_hides(additive_mask: Any) -> Any:
    """Only a key to whose score 0 is added is open."""
    return additive_mask == 0.0


@mutant("to_additive_mask-*", of="to_additive_mask", red="*:additive_mask", green=CONVERTED_NOTHING)
def additive_turned(original: Any, mask: Any) -> Any:
    """An additive mask hides what is open."""
    return original(mask=~mask)


@mutant("to_additive_mask-*", of="to_additive_mask", red="*:additive_mask", green=CONVERTED_NOTHING)
def additive_fill(mask: Any) -> Any:
    """A hidden key gets -1e9."""
    return np.where(mask, 0.0, -1e9)


@mutant(
    "masked_softmax-*",
    of="masked_softmax",
    red="*:*",
    green=NOTHING + " masked_softmax-{none,ragged,heads}:* masked_softmax-one_key:gradient_scores",
)
def mask_inverted(original: Any, mask: Any) -> Any:
    """True in the mask means hidden."""
    return original(mask=None if mask is None else ~mask)


@mutant(
    "{masked_softmax,AdditiveAttention,DotProductAttention}-*",
    of=INPUTS,
    red="*:*",
    green=NOTHING
    + " *none:* *-extended:* *-extended_over:* masked_softmax-one_key:gradient_scores *-context_{no_*,block}:*"
    + " *-context_low:gradient_[qk]*"
    + " *{one_key,large}:gradient_{queries,keys,[Ww]_*} *bias_{hidden,softcap}:*",
)
def polarity_inverted(inputs: Arrays) -> Arrays:
    """The mask is inverted: what may be attended to is hidden, and what is hidden is attended to.

    The inputs with lengths and mask as one mask, inverted.
    """
    lens, mask, keys = (inputs.get(name) for name in ("valid_lens", "mask", "keys"))
    if (lens is None and mask is None) or (keys is None and "scores" not in inputs):
        return inputs
    rest = {name: array for name, array in inputs.items() if name not in ("valid_lens", "mask")}
    count = inputs["scores"].shape[-1] if keys is None else keys.shape[-2]
    if keys is not None and mask is not None and mask.shape[-1] not in (1, count):  # the time comes first
        count = keys.shape[0]
    mask = np.asarray(attention_mask(count, lens, mask))
    heads = mask.ndim == 3 and (inputs["scores"] if keys is None else keys).ndim == 4
    return {**rest, "mask": ~(mask[:, None] if heads else mask)}


@mutant(
    "masked_softmax-*",
    of="masked_softmax",
    red="masked_softmax-{mask,mask_row,lens_and_mask,fully_masked,heads_mask,large}:*",
)
def mask_shifted(original: Any, mask: Any) -> Any:
    """The mask is shifted by one key."""
    return original(mask=None if mask is None else np.roll(mask, 1, -1))


@mutant("masked_softmax-*", of="masked_softmax", red="masked_softmax-heads_mask:*")
def first_mask(original: Any, mask: Any) -> Any:
    """All heads use the mask of the first."""
    heads = mask is not None and mask.ndim == 4
    return original(mask=np.broadcast_to(mask[:, :1], mask.shape) if heads else mask)


@mutant(
    "attention_mask-*", of="attention_mask", red="attention_mask-{row_lens,fully_masked,row_lens_and_mask,heads}:mask"
)
def first_length(original: Any, valid_lens: Any) -> Any:
    """All queries use the length of the first."""
    rows = valid_lens is not None and valid_lens.ndim == 2
    return original(valid_lens=np.broadcast_to(valid_lens[:, :1], valid_lens.shape) if rows else valid_lens)


@mutant("attention_mask-*", of="attention_mask", red="attention_mask-{*lens*,fully_masked,heads}:mask")
def length_included(original: Any, valid_lens: Any) -> Any:
    """Key j is open where j <= valid_len."""
    return original(valid_lens=None if valid_lens is None else valid_lens + valid_lens.dtype.type(1))


@mutant("attention_mask-*", of="attention_mask", red="attention_mask-{*lens_and_mask,heads}:mask")
def lengths_or_mask(original: Any, valid_lens: Any, mask: Any) -> Any:
    """Lengths and mask combine by or."""
    if valid_lens is None or mask is None:
        return original()
    by_length = original(mask=None)
    return mask | (by_length if mask.ndim == 3 else by_length[:, None])


@mutant(
    "masked_softmax-* DotProductAttention-*ragged*",
    of="attention_mask",
    touches=where_all(_by_sequence, hides),
    source="jax-ml/jax#23349",
)
def lengths_of_sequences_ignored(original: Any, valid_lens: Any) -> Any:
    """Lengths are ignored where there is one for each sequence."""
    by_sequence = valid_lens is not None and valid_lens.ndim == 1
    return original(valid_lens=None if by_sequence else valid_lens)


@mutant("causal_mask-*", of="causal_mask", touches=where_all(_ends_elsewhere), source="ml-explore/mlx#2835")
def causal_to_the_end(original: Any, num_queries: int, num_keys: int, offset: Any) -> Any:
    """The last query of causal_mask is aligned with the last key, whatever the offset."""
    return original(offset=np.full(np.shape(offset), max(num_keys - num_queries, 0)))


@mutant(
    "masked_softmax-* DotProductAttention-heads*",
    of="open_keys",
    touches=where_all(_mask_of_one_head),
    source="ooples/AiDotNet.Tensors#947",
)
def mask_of_one_head_overrun(original: Any, scores: Any, valid_lens: Any, mask: Any) -> Any:
    """A mask of one head is read as if it had all: the next heads meet the masks of the next sequences.

    Head h of sequence b meets the mask of sequence b + h.
    """
    by_length = mask is None and scores.ndim == 4
    mask = attention_mask(scores.shape[-1], valid_lens, mask)
    if mask is not None and scores.ndim == 4 and (mask.ndim == 4 or by_length):
        mask = mask[:, None] if by_length else mask
        if mask.shape[1] == 1:
            mask = mask[np.add.outer(np.arange(len(mask)), np.arange(scores.shape[1])) % max(len(mask), 1), 0]
    return original(valid_lens=None, mask=mask)


@mutant(
    "masked_softmax-{ragged,cover_*,none}",
    of="open_keys",
    touches=where_all(_by_sequence, _more_queries_or_fewer, hides),
)
def lengths_repeated_by_batch(original: Any, scores: Any, valid_lens: Any, mask: Any) -> Any:
    """Lengths are repeated by the batch size, not by the number of queries, before sequences become rows."""
    heads = (scores if mask is None else mask).ndim == 4
    if valid_lens is None or valid_lens.ndim > 1 or heads or scores.size == 0:
        return original()
    batch, queries = len(valid_lens), scores.shape[-2]
    return original(valid_lens=np.resize(np.repeat(valid_lens, batch), batch * queries).reshape(batch, queries))


@mutant("masked_softmax-{ragged,cover_*,none}", of="open_keys", touches=where_all(_square_key_mask, hides))
def key_mask_over_queries(original: Any, scores: Any, valid_lens: Any, mask: Any) -> Any:
    """A mask of keys is broadcast over the axis of keys, and hides queries, where there are as many."""
    allowed = attention_mask(scores.shape[-1], valid_lens, mask)
    if allowed is None or allowed.shape[-2] > 1 or scores.shape[-2] != scores.shape[-1]:
        return original()
    allowed = allowed[:, None] if mask is None and scores.ndim == 4 else allowed
    return original(valid_lens=None, mask=allowed.swapaxes(-1, -2))
