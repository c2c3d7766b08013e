"""Wrong masks, and wrong weights over keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attention_core import reference
from attention_core.reference import masking
from attention_core.reference.arrays import promote
from attention_core.reference.attention import Memory
from attention_core.reference.masking import attention_mask, softmax_over
from parity_tests.cases.case import Arrays, Case
from parity_tests.mutants.mutant import INPUTS, Break, mutant
from parity_tests.mutants.shared import NOTHING, open_to, where_all


def _rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array with its values rounded to dtype, and the derivatives that it carries left alone."""
    array = np.asarray(array)
    rounded = array.real.astype(dtype).astype(np.float64)
    return rounded + 1j * array.imag if np.iscomplexobj(array) else rounded


def _masks(change: Callable[..., Any]) -> Break:
    """A function of scores, lengths and mask that is given another mask."""

    def wrong(original: Any) -> Any:
        def call(scores: Any, valid_lens: Any = None, mask: Any = None) -> Any:
            return original(scores, valid_lens, None if mask is None else change(mask))

        return call

    return wrong


def _fixed(option: str, value: int) -> Break:
    """A rule that always takes the same value for an option."""

    def wrong(original: Any) -> Any:
        return lambda num_queries, num_keys, **options: original(num_queries, num_keys, **{**options, option: value})

    return wrong


def _hiding_kept(original: Any) -> Any:
    return lambda **given: ~original(**given)


def _dtype_ignored(original: Any) -> Any:
    return lambda mask, *, dtype="float32", finite=False: original(mask, finite=finite)


def _filled(value: float) -> Break:
    """to_additive_mask with another number where a key is hidden."""
    return lambda original: lambda mask, *, dtype="float32", finite=False: np.where(mask, 0.0, value)


def _softmax(change: Callable[[Any, Any], Any]) -> Break:
    """masked_softmax, made of scores and what is open to them by another formula."""

    def wrong(original: Any) -> Any:
        def call(scores: Any, valid_lens: Any = None, mask: Any = None) -> Any:
            scores = np.asarray(scores)
            return change(scores, masking.open_keys(scores, valid_lens, mask))

        return call

    return wrong


def _plain_softmax(scores: Any) -> Any:
    exponentials = np.exp(scores - scores.real.max(axis=-1, keepdims=True, initial=-np.inf))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _small_weights(least: float, change: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Softmax whose weights below a bound are changed, and their derivatives are not."""

    def weigh(scores: Any, allowed: Any) -> Any:
        weights = masking.softmax_over(scores, allowed)
        return np.where(weights.real < least, change(weights), weights)

    return weigh


CONVERTED_NOTHING = tuple(f"*-{name}:*" for name in ("no_keys", "no_queries", "no_batch"))
"""Masks of other conventions without an element."""


CLOSED = tuple(f"masked_softmax-{name}:weights" for name in ("lens_and_mask", "closed", "heads_mask", "infinite"))


HIDING = tuple(
    f"masked_softmax-{name}:*" for name in ("mask", "mask_row", "lens_and_mask", "closed", "heads_mask", "large")
)


RULES = (
    ("causal_mask", "offset", 0, ("causal_mask-offset:mask",)),
    ("window_mask", "offset", 0, ("window_mask-offset:mask",)),
    ("block_mask", "offset", 0, ("block_mask-offset:mask",)),
    ("stride_mask", "offset", 0, ("stride_mask-offset:mask",)),
    ("window_mask", "left", 2, ("window_mask-left:mask", "window_mask-right:mask")),
    ("window_mask", "right", 1, ("window_mask-left:mask", "window_mask-right:mask")),
    ("block_mask", "size", 3, ("block_mask-ones:mask",)),
    ("stride_mask", "stride", 3, ("stride_mask-one:mask",)),
)


def _hides(case: Case, inputs: Arrays) -> bool:
    """Whether a key is hidden from a query."""
    allowed = open_to(case, inputs)
    hidden = allowed is not None and not allowed.all()
    return hidden or bool(np.isneginf(inputs.get("scores", np.zeros(0))).any())


def _by_sequence(case: Case, inputs: Arrays) -> bool:
    """Whether there is one length for each sequence."""
    return "valid_lens" in inputs and inputs["valid_lens"].ndim == 1


def _filled_near_zero(scores: Any, allowed: Any) -> Any:
    return _plain_softmax(np.where(allowed, scores, 1e-9))


def _mask_added(scores: Any, allowed: Any) -> Any:
    return _plain_softmax(scores + allowed)


def _over_all_queries(scores: Any, allowed: Any) -> Any:
    """Weights normalised over all queries of all sequences, for each key."""
    rows = (*scores.shape[:-3], scores.shape[-3] * scores.shape[-2], scores.shape[-1])
    if rows[-2] == 0:
        return scores
    turned = (np.broadcast_to(array, scores.shape).reshape(rows).swapaxes(-1, -2) for array in (scores, allowed))
    return softmax_over(*turned).swapaxes(-1, -2).reshape(scores.shape)


def _ends_elsewhere(case: Case, inputs: Arrays) -> bool:
    """Whether the last query does not stand at the last key."""
    sizes = case.options
    return case.operator == "causal_mask" and max(sizes["num_keys"] - sizes["num_queries"], 0) != sizes.get("offset", 0)


def _mask_of_one_head(case: Case, inputs: Arrays) -> bool:
    first, allowed = inputs.get("scores", inputs.get("queries")), open_to(case, inputs)
    if first is None or allowed is None or first.ndim < 4 or first.shape[1] < 2:
        return False
    return (allowed.ndim == 3 or allowed.shape[1] == 1) and bool((allowed != allowed[:1]).any())


for operator, option, value, red in RULES:
    name, sentence = f"{operator.removesuffix('_mask')}_{option}", f"The {option} of {operator} is ignored."
    mutant(f"{operator}-*", of=operator, red=red, name=name, sentence=sentence)(_fixed(option, value))


_SOFTMAX = ("masking.softmax_over", "pooling.softmax_over")
"""Where weights are made of scores: for the operator, and for what pools."""


def _leaking(change: Callable[[Any, Any], Any]) -> dict[str, Break]:
    """A softmax that leaves weight on hidden keys, and values that are read for it."""
    softmax: dict[str, Break] = dict.fromkeys(_SOFTMAX, lambda _: change)
    return {**softmax, "pooling.average": _all_averaged, "zero_masked": _nothing_cleared}


def _all_averaged(original: Any) -> Any:
    """An average of values that reads the hidden ones, too."""

    def average(weights: Any, values: Any, allowed: Any, dropout_mask: Any = None) -> Any:
        return (weights if dropout_mask is None else weights * promote(dropout_mask)) @ values

    return average


def _nothing_cleared(original: Any) -> Any:
    """A memory whose hidden keys and values are not cleared."""
    return lambda keys, values, valid_lens, mask: Memory(keys, values, original(keys, values, valid_lens, mask).mask)


@mutant("global_mask-*", of="global_mask", red="global_mask-plain:mask")
def global_queries_lost(original: Any) -> Any:
    """Global queries attend to global keys alone."""
    return lambda global_queries, global_keys: original(np.zeros_like(global_queries), global_keys)


@mutant("mask_or-*", of="mask_or", red="*:mask")
def and_for_or(original: Any) -> Any:
    """Masks that combine by or combine by and."""
    return reference.mask_and


@mutant("mask_and-*", of="mask_and", red="*:mask")
def or_for_and(original: Any) -> Any:
    """Masks that combine by and combine by or."""
    return reference.mask_or


@mutant("from_key_padding_mask-*", of="from_key_padding_mask", red="*:mask", green=CONVERTED_NOTHING)
def key_padding_as_mask(original: Any) -> Any:
    """A key padding mask is taken for a mask, in which True means 'may attend'."""
    return _hiding_kept(original)


@mutant("to_key_padding_mask-*", of="to_key_padding_mask", red="*:key_padding_mask", green=CONVERTED_NOTHING)
def mask_as_key_padding(original: Any) -> Any:
    """A mask is taken for a key padding mask, in which True means 'hidden'."""
    return _hiding_kept(original)


@mutant("from_additive_mask-*", of="from_additive_mask", red="*:mask", green=CONVERTED_NOTHING)
def additive_inverted(original: Any) -> Any:
    """What is above the threshold is hidden."""
    return _hiding_kept(original)


@mutant(
    "from_additive_mask-*",
    of="from_additive_mask",
    red=("from_additive_mask-threshold:mask", "from_additive_mask-low_threshold:mask"),
)
def threshold_ignored(original: Any) -> Any:
    """The threshold of an additive mask is always -1e4."""
    return lambda additive_mask, *, threshold=None: original(additive_mask)


@mutant(
    "from_additive_mask-*",
    of="from_additive_mask",
    red=("from_additive_mask-threshold:mask", "from_additive_mask-fills:mask"),
)
def threshold_met(original: Any) -> Any:
    """What equals the threshold is open."""

    def turn(additive_mask: Any, *, threshold: float = -1e4) -> Any:
        return additive_mask >= np.asarray(threshold).astype(additive_mask.dtype)

    return turn


@mutant("from_additive_mask-*", of="from_additive_mask", red="from_additive_mask-fills:mask", dtype="bfloat16")
def threshold_exact(original: Any) -> Any:
    """The threshold is not rounded to the type of the additive mask, whose fill was."""
    return lambda additive_mask, *, threshold=-1e4: additive_mask.astype(np.float64) > threshold


@mutant(
    "from_additive_mask-*",
    of="from_additive_mask",
    red=tuple(f"from_additive_mask-{name}:mask" for name in ("fills", "threshold", "low_threshold", "not_finite")),
)
def infinite_alone(original: Any) -> Any:
    """Only -inf hides a key."""
    return lambda additive_mask, *, threshold=None: additive_mask != -np.inf


@mutant(
    "from_additive_mask-*",
    of="from_additive_mask",
    red=tuple(f"from_additive_mask-{name}:mask" for name in ("bias", "threshold", "low_threshold", "not_finite")),
)
def bias_hides(original: Any) -> Any:
    """Only a key to whose score 0 is added is open."""
    return lambda additive_mask, *, threshold=None: additive_mask == 0.0


@mutant("to_additive_mask-*", of="to_additive_mask", red="to_additive_mask-finite_float64:additive_mask")
def finite_ignored(original: Any) -> Any:
    """A hidden key gets -inf where the least finite number was asked for."""
    return lambda mask, *, dtype="float32", finite=False: original(mask, dtype=dtype)


@mutant("to_additive_mask-*", of="to_additive_mask", red="to_additive_mask-finite_float64:additive_mask")
def dtype_ignored(original: Any) -> Any:
    """A hidden key gets the least finite number of float32, whatever dtype says."""
    return _dtype_ignored(original)


@mutant(
    "to_additive_mask-*", of="to_additive_mask", red="to_additive_mask-finite_float16:additive_mask", dtype="float16"
)
def dtype_overflows(original: Any) -> Any:
    """The least finite number of float32 becomes -inf in float16."""
    return _dtype_ignored(original)


@mutant("to_additive_mask-*", of="to_additive_mask", red="*:additive_mask", green=CONVERTED_NOTHING)
def additive_turned(original: Any) -> Any:
    """An additive mask hides what is open."""
    return lambda mask, **options: original(~mask, **options)


@mutant("to_additive_mask-*", of="to_additive_mask", red="*:additive_mask", green=CONVERTED_NOTHING)
def additive_fill(original: Any) -> Any:
    """A hidden key gets -1e9."""
    return _filled(-1e9)(original)


@mutant(
    "masked_softmax-*",
    of="masked_softmax",
    via=_masks,
    red="*:*",
    green=(
        *NOTHING,
        *(f"masked_softmax-{name}:*" for name in ("none", "ragged", "heads")),
        "masked_softmax-one_key:gradient_scores",
    ),
)
def mask_inverted(mask: Any) -> Any:
    """True in the mask means hidden."""
    return ~mask


@mutant(
    ("masked_softmax-*", "AdditiveAttention-*", "DotProductAttention-*"),
    of=INPUTS,
    red="*:*",
    green=(
        *NOTHING,
        "*none:*",
        "masked_softmax-one_key:gradient_scores",
        "*-context_no_*:*",
        "*-context_block:*",
        "*-context_low:gradient_[qk]*",
        *(f"*{name}:gradient_{of}" for name in ("one_key", "large") for of in ("queries", "keys", "[Ww]_*")),
    ),
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
    mask = np.asarray(masking.attention_mask(count, lens, mask))
    heads = mask.ndim == 3 and (inputs["scores"] if keys is None else keys).ndim == 4
    return {**rest, "mask": ~(mask[:, None] if heads else mask)}


@mutant("masked_softmax-*", of="masked_softmax", via=_masks, red=HIDING)
def mask_shifted(mask: Any) -> Any:
    """The mask is shifted by one key."""
    return np.roll(mask, 1, -1)


@mutant("masked_softmax-*", of="masked_softmax", via=_masks, red="masked_softmax-heads_mask:*")
def first_mask(mask: Any) -> Any:
    """All heads use the mask of the first."""
    return np.broadcast_to(mask[:, :1], mask.shape) if mask.ndim == 4 else mask


@mutant("masked_softmax-*", of="masked_softmax", via=_softmax, red=(*CLOSED, "masked_softmax-large:*"))
def finite_fill(scores: Any, allowed: Any) -> Any:
    """Hidden scores are filled with -1e6."""
    return _plain_softmax(np.where(allowed, scores, -1e6))


@mutant("masked_softmax-*", of="masked_softmax", via=_softmax, red=CLOSED, source="microsoft/onnxruntime#28904")
def closed_row_uniform(scores: Any, allowed: Any) -> Any:
    """A fully masked row attends to all keys alike."""
    weights = masking.softmax_over(scores, allowed)
    return np.where(allowed.any(axis=-1, keepdims=True), weights, 1.0 / max(scores.shape[-1], 1))


@mutant("masked_softmax-*", of="masked_softmax", via=_softmax, red=CLOSED, source="pytorch/pytorch#41508")
def closed_row_nan(scores: Any, allowed: Any) -> Any:
    """A fully masked row is NaN."""
    return np.where(allowed.any(axis=-1, keepdims=True), masking.softmax_over(scores, allowed), np.nan)


@mutant("masked_softmax-*", of="masked_softmax", via=_softmax, red="*:*", green=NOTHING)
def softmax_over_queries(scores: Any, allowed: Any) -> Any:
    """Weights are normalised over the queries."""
    if scores.shape[-2] == 0:
        return scores
    return masking.softmax_over(scores.swapaxes(-1, -2), allowed.swapaxes(-1, -2)).swapaxes(-1, -2)


@mutant(
    "masked_softmax-*",
    of="masked_softmax",
    via=_softmax,
    red="*:*",
    green=(*NOTHING, "masked_softmax-one_key:*", "masked_softmax-large:*"),
)
def float32_inside(scores: Any, allowed: Any) -> Any:
    """Scores are rounded to float32 on the way."""
    return masking.softmax_over(_rounded(scores, "float32"), allowed)


@mutant("masked_softmax-*", of="masked_softmax", via=_softmax, red="*:weights", dtype="float32")
def half_weights(scores: Any, allowed: Any) -> Any:
    """Weights are rounded to float16."""
    return _rounded(masking.softmax_over(scores, allowed), "float16")


@mutant("masked_softmax-*", of="masked_softmax", red="masked_softmax-gap_*:weights", dtype="float32")
def small_weights_flushed(original: Any) -> Any:
    """Weights below 1e-10 are 0."""
    return _softmax(_small_weights(1e-10, lambda weights: 0.0 * weights))(original)


@mutant(
    "masked_softmax-*", of="masked_softmax", red=("masked_softmax-gap_80:weights", "masked_softmax-gap_700:weights")
)
def small_weights_short(original: Any) -> Any:
    """Weights below 1e-13 keep eight bits."""
    return _softmax(_small_weights(1e-13, lambda weights: _rounded(weights, "bfloat16")))(original)


@mutant(
    "masked_softmax-*",
    of="masked_softmax",
    via=_softmax,
    red=("masked_softmax-gap_*:weights", "masked_softmax-large:weights"),
    dtype="float32",
)
def gaps_bounded(scores: Any, allowed: Any) -> Any:
    """No score counts as more than 20 below the largest of its row."""
    top = np.where(allowed, scores, -np.inf).real.max(axis=-1, keepdims=True, initial=-np.inf)
    gaps = np.where(allowed, scores - np.where(np.isfinite(top), top, 0.0), 0.0)
    return masking.softmax_over(np.where(gaps.real < -20.0, -20.0, gaps), allowed)


@mutant(
    "masked_softmax-*",
    of="masked_softmax",
    via=_softmax,
    red="*:weights",
    green=(*NOTHING, *(f"masked_softmax-{name}:weights" for name in ("none", "open", "one_key"))),
)
def weights_kept_from_zero(scores: Any, allowed: Any) -> Any:
    """1e-20 is added to every weight."""
    return masking.softmax_over(scores, allowed) + 1e-20


@mutant(
    ("masked_softmax-*mask*", "masked_softmax-open"),
    of="masked_softmax",
    red=tuple(f"masked_softmax-{name}:argument_scores" for name in ("mask", "mask_row", "lens_and_mask", "heads_mask")),
)
def argument_filled(original: Any) -> Any:
    """Hidden scores are filled in the caller's own array."""

    def call(scores: Any, valid_lens: Any = None, mask: Any = None) -> Any:
        weights = original(scores, valid_lens, mask)
        if mask is not None and not np.iscomplexobj(scores):
            scores[~masking.open_keys(scores, valid_lens, mask)] = -np.inf
        return weights

    return call


@mutant(
    "attention_mask-*",
    of="attention_mask",
    red=tuple(f"attention_mask-{name}:mask" for name in ("row_lens", "closed", "row_lens_and_mask", "heads")),
)
def first_length(original: Any) -> Any:
    """All queries use the length of the first."""

    def call(num_keys: int, valid_lens: Any = None, mask: Any = None) -> Any:
        per_query = valid_lens is not None and valid_lens.ndim == 2
        return original(
            num_keys, np.repeat(valid_lens[:, :1], valid_lens.shape[1], 1) if per_query else valid_lens, mask
        )

    return call


@mutant(
    "attention_mask-*",
    of="attention_mask",
    red=("attention_mask-*lens*:mask", "attention_mask-closed:mask", "attention_mask-heads:mask"),
)
def length_included(original: Any) -> Any:
    """Key j is open where j <= valid_len."""

    def call(num_keys: int, valid_lens: Any = None, mask: Any = None) -> Any:
        return original(num_keys, None if valid_lens is None else valid_lens + valid_lens.dtype.type(1), mask)

    return call


@mutant(
    "attention_mask-*", of="attention_mask", red=("attention_mask-*lens_and_mask:mask", "attention_mask-heads:mask")
)
def lengths_or_mask(original: Any) -> Any:
    """Lengths and mask combine by or."""

    def call(num_keys: int, valid_lens: Any = None, mask: Any = None) -> Any:
        if valid_lens is None or mask is None:
            return original(num_keys, valid_lens, mask)
        by_length = original(num_keys, valid_lens)
        return mask | (by_length if mask.ndim == 3 else by_length[:, None])

    return call


@mutant("masked_softmax-*", touches=where_all(_hides), source="awslabs/gluonts#1401")
def fill_near_zero() -> Mapping[str, Break]:
    """Hidden scores are filled with 1e-9, where -1e9 was meant."""
    return _leaking(_filled_near_zero)


@mutant("masked_softmax-*", touches=where_all(_hides), source="huggingface/transformers#41443")
def mask_added() -> Mapping[str, Break]:
    """A boolean mask is added to the scores, as 0 and 1."""
    return _leaking(_mask_added)


@mutant(
    "masked_softmax-*",
    of=("masking.softmax_over", "pooling.softmax_over"),
    red="masked_softmax-*:*",
    green=NOTHING,
    source="PetrochukM/PyTorch-NLP#2",
)
def softmax_over_the_batch(_: Any) -> Any:
    """Weights are normalised over the queries of all sequences."""
    return _over_all_queries


@mutant(
    ("masked_softmax-*", "DotProductAttention-*ragged*"),
    of="attention_mask",
    touches=where_all(_by_sequence, _hides),
    source="jax-ml/jax#23349",
)
def lengths_of_sequences_ignored(original: Any) -> Any:
    """Lengths are ignored where there is one for each sequence."""

    def call(num_keys: int, valid_lens: Any = None, mask: Any = None) -> Any:
        by_sequence = valid_lens is not None and valid_lens.ndim == 1
        return original(num_keys, None if by_sequence else valid_lens, mask)

    return call


@mutant("causal_mask-*", of="causal_mask", touches=where_all(_ends_elsewhere), source="ml-explore/mlx#2835")
def causal_to_the_end(original: Any) -> Any:
    """The last query of causal_mask stands at the last key, whatever the offset."""
    return lambda num_queries, num_keys, offset=0: original(
        num_queries, num_keys, offset=max(num_keys - num_queries, 0)
    )


@mutant(
    ("masked_softmax-*", "DotProductAttention-heads*"),
    of="open_keys",
    touches=where_all(_mask_of_one_head),
    source="ooples/AiDotNet.Tensors#947",
)
def mask_of_one_head_overrun(original: Any) -> Any:
    """A mask of one head is read as if it had all: the next heads meet the masks of the next sequences.

    A mask of one head is read as if it had all: head h of sequence b meets the plane that stands at b + h.
    """

    def call(scores: Any, valid_lens: Any, mask: Any) -> Any:
        by_length = mask is None and scores.ndim == 4
        mask = attention_mask(scores.shape[-1], valid_lens, mask)
        if mask is None or scores.ndim < 4 or (mask.ndim < 4 and not by_length):
            return original(scores, None, mask)
        mask = mask[:, None] if by_length else mask
        if mask.shape[1] == 1:
            mask = mask[np.add.outer(np.arange(len(mask)), np.arange(scores.shape[1])) % max(len(mask), 1), 0]
        return original(scores, None, mask)

    return call
