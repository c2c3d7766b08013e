"""Wrong weights over keys, made of right scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_core.reference.masking import open_keys, softmax_over
from parity_tests.mutants.mutant import Wrong, mutant, several
from parity_tests.mutants.pooling import hidden_values_kept
from parity_tests.mutants.shared import NOTHING, hides, where_all

SOFTMAX = "{masking,pooling}.softmax_over"
"""Where weights are made of scores: in masked_softmax, and in what pools."""

FULLY_MASKED = "masked_softmax-{lens_and_mask,fully_masked,heads_mask,infinite}:weights"


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """Round the values of an array to a dtype, and leave the derivatives that it carries alone."""
    array = np.asarray(array)
    values = array.real.astype(dtype).astype(np.float64)
    return values + 1j * array.imag if np.iscomplexobj(array) else values


def _plain_softmax(scores: Any) -> Any:
    exponentials = np.exp(scores - scores.real.max(axis=-1, keepdims=True, initial=-np.inf))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _leaking(softmax: Wrong) -> dict[str, Wrong]:
    """A softmax that leaves weight on hidden keys, in layers that keep hidden keys and values."""
    return {
        **dict.fromkeys(several(SOFTMAX), softmax),
        "pooling.average": hidden_values_kept,
        "zero_masked": lambda original, keys, values: original()._replace(keys=keys, values=values),
    }


@mutant("masked_softmax-*", red=FULLY_MASKED + " masked_softmax-large:*")
def finite_fill() -> Mapping[str, Wrong]:
    """Hidden scores are filled with a large negative number, not with -inf."""
    return _leaking(lambda scores, allowed: _plain_softmax(np.where(allowed, scores, -1e6)))


@mutant("masked_softmax-*", of="masking.softmax_over", red=FULLY_MASKED, source="microsoft/onnxruntime#28904")
def fully_masked_uniform(original: Any, scores: Any, allowed: Any) -> Any:
    """A fully masked row attends to all keys alike."""
    return np.where(allowed.any(axis=-1, keepdims=True), original(), 1.0 / max(scores.shape[-1], 1))


@mutant("masked_softmax-*", of="masking.softmax_over", red=FULLY_MASKED, source="pytorch/pytorch#41508")
def fully_masked_nan(original: Any, allowed: Any) -> Any:
    """A fully masked row is NaN."""
    return np.where(allowed.any(axis=-1, keepdims=True), original(), np.nan)


@mutant("masked_softmax-*", of="masking.softmax_over", red="*:*", green=NOTHING)
def softmax_over_queries(original: Any, scores: Any, allowed: Any) -> Any:
    """Weights are normalised over the queries."""
    return original(scores=scores.swapaxes(-1, -2), allowed=allowed.swapaxes(-1, -2)).swapaxes(-1, -2)


@mutant("masked_softmax-*", of="masking.softmax_over", red="*:*", green=NOTHING + " masked_softmax-{one_key,large}:*")
def float32_inside(original: Any, scores: Any) -> Any:
    """Scores are rounded to float32 on the way."""
    return original(scores=rounded(scores, "float32"))


@mutant("masked_softmax-*", of="masking.softmax_over", red="*:weights", dtype="float32")
def half_weights(original: Any) -> Any:
    """Weights are rounded to float16."""
    return rounded(original(), "float16")


@mutant("masked_softmax-*", of="masking.softmax_over", red="masked_softmax-gap_*:weights", dtype="float32")
def small_weights_flushed(original: Any) -> Any:
    """Weights below 1e-10 are 0."""
    weights = original()
    return np.where(weights.real < 1e-10, 0.0 * weights, weights)


@mutant("masked_softmax-*", of="masking.softmax_over", red="masked_softmax-gap_{80,700}:weights")
def small_weights_short(original: Any) -> Any:
    """Weights below 1e-13 keep eight bits."""
    weights = original()
    return np.where(weights.real < 1e-13, rounded(weights, "bfloat16"), weights)


@mutant("masked_softmax-*", of="masking.softmax_over", red="masked_softmax-{gap_*,large}:weights", dtype="float32")
def gaps_bounded(original: Any, scores: Any, allowed: Any) -> Any:
    """No score counts as more than 20 below the largest of its row."""
    top = np.where(allowed, scores, -np.inf).real.max(axis=-1, keepdims=True, initial=-np.inf)
    gaps = np.where(allowed, scores - np.where(np.isfinite(top), top, 0.0), 0.0)
    return original(scores=np.where(gaps.real < -20.0, -20.0, gaps))


@mutant(
    "masked_softmax-*",
    of="masking.softmax_over",
    red="*:weights",
    green=NOTHING + " masked_softmax-{none,open,one_key}:weights",
)
def weights_kept_from_zero(original: Any) -> Any:
    """1e-20 is added to every weight."""
    return original() + 1e-20


@mutant(
    "masked_softmax-{mask*,*_mask,open}",
    of="masked_softmax",
    red="masked_softmax-{mask,mask_row,lens_and_mask,heads_mask}:argument_scores",
)
def argument_filled(original: Any, scores: Any, valid_lens: Any, mask: Any) -> Any:
    """Hidden scores are filled in the caller's own array."""
    weights = original()
    if mask is not None and not np.iscomplexobj(scores):
        scores[~open_keys(scores, valid_lens, mask)] = -np.inf
    return weights


@mutant("masked_softmax-*", touches=where_all(hides), source="awslabs/gluonts#1401")
def fill_near_zero() -> Mapping[str, Wrong]:
    """Hidden scores are filled with 1e-9, where -1e9 was meant."""
    return _leaking(lambda scores, allowed: _plain_softmax(np.where(allowed, scores, 1e-9)))


@mutant("masked_softmax-*", touches=where_all(hides), source="huggingface/transformers#41443")
def mask_added() -> Mapping[str, Wrong]:
    """A boolean mask is added to the scores, as 0 and 1."""
    return _leaking(lambda scores, allowed: _plain_softmax(scores + allowed))


@mutant("masked_softmax-*", of=SOFTMAX, red="masked_softmax-*:*", green=NOTHING, source="PetrochukM/PyTorch-NLP#2")
def softmax_over_the_batch(scores: Any, allowed: Any) -> Any:
    """Weights are normalised over the queries of all sequences."""
    rows = (*scores.shape[:-3], scores.shape[-3] * scores.shape[-2], scores.shape[-1])
    if rows[-2] == 0:
        return scores
    flat = (np.broadcast_to(array, scores.shape).reshape(rows).swapaxes(-1, -2) for array in (scores, allowed))
    return softmax_over(*flat).swapaxes(-1, -2).reshape(scores.shape)


@mutant(
    "masked_softmax-{none,ragged,mask,heads,no_keys,no_queries,no_batch} DotProductAttention-open",
    of=SOFTMAX,
    red="masked_softmax-{none,ragged,mask,heads}:* DotProductAttention-open:*",
)
def softmax_without_axis(original: Any, scores: Any, allowed: Any) -> Any:
    """The softmax has no axis: it normalises over the batch, or over heads where there are some."""
    first, second = (array.swapaxes(-3, -1) for array in np.broadcast_arrays(scores, allowed))
    return original(scores=first, allowed=second).swapaxes(-3, -1)
