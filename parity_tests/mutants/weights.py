"""Wrong weights over keys, made of right scores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_core.reference.masking import open_keys, softmax_over
from parity_tests.mutants.mutant import Wrong, mutant
from parity_tests.mutants.pooling import average_of_all
from parity_tests.mutants.shared import has_fully_masked_rows, has_hidden

SOFTMAX = ("masking.softmax_over", "pooling.softmax_over")
"""Where weights are made of scores: in masked_softmax, and in what pools."""

of_masked_softmax = partial(mutant, "masking.softmax_over", cases="masked_softmax-*")


def round_to(array: np.ndarray, dtype: str) -> np.ndarray:
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
        **dict.fromkeys(SOFTMAX, softmax),
        "pooling.average": average_of_all,
        "zero_masked": lambda original, keys, values: original()._replace(keys=keys, values=values),
    }


def _has_low_rows(scores: Any, allowed: Any) -> bool:
    """Whether a query with a hidden key has no score above a low one."""
    highest = np.where(allowed, scores.real, -np.inf).max(axis=-1, initial=-np.inf)
    return bool(((highest < -1e5) & ~allowed.all(axis=-1)).any())


@mutant(cases="masked_softmax-*", touches=_has_low_rows)
def finite_fill() -> Mapping[str, Wrong]:
    """Hidden scores are filled with a large negative number, not with -inf."""
    return _leaking(lambda scores, allowed: _plain_softmax(np.where(allowed, scores, -1e6)))


@of_masked_softmax(touches=has_fully_masked_rows, source="microsoft/onnxruntime#28904")
def fully_masked_uniform(original: Any, scores: Any, allowed: Any) -> Any:
    """A fully masked row attends to all keys alike."""
    return np.where(allowed.any(axis=-1, keepdims=True), original(), 1.0 / max(scores.shape[-1], 1))


@of_masked_softmax(touches=has_fully_masked_rows, source="pytorch/pytorch#41508")
def fully_masked_nan(original: Any, allowed: Any) -> Any:
    """A fully masked row is NaN."""
    return np.where(allowed.any(axis=-1, keepdims=True), original(), np.nan)


@of_masked_softmax()
def softmax_over_queries(original: Any, scores: Any, allowed: Any) -> Any:
    """Weights are normalised over the queries."""
    return original(scores=scores.swapaxes(-1, -2), allowed=allowed.swapaxes(-1, -2)).swapaxes(-1, -2)


@of_masked_softmax(unseen="*-one_key *-large")
def float32_inside(original: Any, scores: Any) -> Any:
    """Scores are rounded to float32 on the way."""
    return original(scores=round_to(scores, "float32"))


@of_masked_softmax(dtype="float32")
def half_weights(original: Any) -> Any:
    """Weights are rounded to float16."""
    return round_to(original(), "float16")


@mutant("masking.softmax_over", cases="masked_softmax-gap_*", dtype="float32")
def small_weights_flushed(original: Any) -> Any:
    """Weights below 1e-10 are 0."""
    weights = original()
    return np.where(weights.real < 1e-10, 0.0 * weights, weights)


@mutant("masking.softmax_over", cases="masked_softmax-gap_80 masked_softmax-gap_700")
def small_weights_short(original: Any) -> Any:
    """Weights below 1e-13 keep eight bits."""
    weights = original()
    return np.where(weights.real < 1e-13, round_to(weights, "bfloat16"), weights)


@mutant("masking.softmax_over", cases="masked_softmax-gap_* masked_softmax-large", dtype="float32")
def gaps_bounded(original: Any, scores: Any, allowed: Any) -> Any:
    """No score counts as more than 20 below the largest of its row."""
    top = np.where(allowed, scores, -np.inf).real.max(axis=-1, keepdims=True, initial=-np.inf)
    gaps = np.where(allowed, scores - np.where(np.isfinite(top), top, 0.0), 0.0)
    return original(scores=np.where(gaps.real < -20.0, -20.0, gaps))


@of_masked_softmax(unseen="*-none *-open *-one_key")
def weights_kept_from_zero(original: Any) -> Any:
    """1e-20 is added to every weight."""
    return original() + 1e-20


@mutant(
    "masked_softmax",
    touches=lambda scores, valid_lens, mask: mask is not None and not open_keys(scores, valid_lens, mask).all(),
    cases="masked_softmax-[!s]*",  # a second call would read what the first has filled
    unseen="*-infinite",
)
def argument_filled(original: Any, scores: Any, valid_lens: Any, mask: Any) -> Any:
    """Hidden scores are filled in the caller's own array."""
    weights = original()
    if not np.iscomplexobj(scores):
        scores[~open_keys(scores, valid_lens, mask)] = -np.inf
    return weights


@mutant(cases="masked_softmax-*", touches=has_hidden, source="awslabs/gluonts#1401")
def fill_near_zero() -> Mapping[str, Wrong]:
    """Hidden scores are filled with 1e-9, where -1e9 was meant."""
    return _leaking(lambda scores, allowed: _plain_softmax(np.where(allowed, scores, 1e-9)))


@mutant(cases="masked_softmax-*", touches=has_hidden, source="huggingface/transformers#41443")
def mask_added() -> Mapping[str, Wrong]:
    """A boolean mask is added to the scores, as 0 and 1."""
    return _leaking(lambda scores, allowed: _plain_softmax(scores + allowed))


@mutant(*SOFTMAX, cases="masked_softmax-*", source="PetrochukM/PyTorch-NLP#2")
def softmax_over_the_batch(scores: Any, allowed: Any) -> Any:
    """Weights are normalised over the queries of all sequences."""
    rows = (*scores.shape[:-3], scores.shape[-3] * scores.shape[-2], scores.shape[-1])
    flat = (np.broadcast_to(array, scores.shape).reshape(rows).swapaxes(-1, -2) for array in (scores, allowed))
    return softmax_over(*flat).swapaxes(-1, -2).reshape(scores.shape)


@mutant(*SOFTMAX, cases="masked_softmax-* DotProductAttention-open")
def softmax_without_axis(original: Any, scores: Any, allowed: Any) -> Any:
    """The softmax has no axis: it normalises over the batch, or over heads where there are some."""
    first, second = (array.swapaxes(-3, -1) for array in np.broadcast_arrays(scores, allowed))
    return original(scores=first, allowed=second).swapaxes(-3, -1)
