"""Wrong averages of values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_core.reference.arrays import promote
from attention_core.reference.masking import softmax_over
from attention_core.reference.pooling import average
from parity_tests.mutants.mutant import Wrong, mutant
from parity_tests.mutants.shared import is_passed


@mutant(
    "pool",
    cases="attention_pooling-* DotProductAttention-* AdditiveAttention-* MultiHeadAttention-*",
    touches=is_passed("dropout_mask"),
    unseen="*-gap_*",
)
def dropout_ignored(original: Any) -> Any:
    """Weights are not dropped, whatever the dropout mask."""
    return original(dropout_mask=None)


@mutant("pooling.pool", touches=is_passed("dropout_mask"), unseen="*-gap_*", cases="attention_pooling-*")
def dropout_on_scores(original: Any, scores: Any, allowed: Any, dropout_mask: Any) -> Any:
    """Dropout acts on the scores."""
    return original(scores=np.where(allowed, scores, 0.0) * dropout_mask, dropout_mask=None)


@mutant(
    "pooling.pool",
    touches=is_passed("dropout_mask"),
    unseen="*-gap_*",
    source="pytorch/pytorch#42929",
    cases="attention_pooling-*",
)
def weights_dropped(original: Any, dropout_mask: Any) -> Any:
    """The weights returned are those after dropout."""
    context, weights = original()
    return context, weights * dropout_mask


def average_of_all(weights: Any, values: Any, dropout_mask: Any) -> Any:
    """The weighted sum of the values, hidden ones included."""
    return (weights if dropout_mask is None else weights * promote(dropout_mask)) @ values


@mutant(cases="attention_pooling-* AdditiveAttention-hidden_*", touches=lambda values: not np.isfinite(values).all())
def hidden_values_kept() -> Mapping[str, Wrong]:
    """Hidden values are multiplied by a weight of 0."""
    return {
        "pooling.average": average_of_all,
        "zero_masked": lambda original, values: original()._replace(values=values),
    }


@mutant(
    "pool",
    cases="attention_pooling-* DotProductAttention-dropout",
    touches=lambda dropout_mask: np.any(dropout_mask is not None and dropout_mask.real > 1.0),
    source="NVIDIA/apex#816",
)
def dropout_scaled_by_its_rate(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> Any:
    """The backward of dropout multiplies by the rate, not by 1/(1 - rate)."""
    weights = softmax_over(scores, allowed)
    factor = promote(dropout_mask)
    dropped = weights * factor
    if np.iscomplexobj(weights):
        rate = 1.0 - 1.0 / factor.real.max()
        dropped = weights.real * factor + 1j * weights.imag * np.where(factor.real > 0.0, rate, 0.0)
    return average(dropped, values, allowed), weights
