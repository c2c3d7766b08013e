"""Wrong averages of values."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.reference.arrays import promote
from attention_core.reference.masking import softmax_over
from attention_core.reference.pooling import average
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import is_passed


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


@mutant("pooling.average", touches=lambda values: not np.isfinite(values).all(), cases="attention_pooling-*")
def hidden_values_kept(weights: Any, values: Any, dropout_mask: Any) -> Any:
    """Hidden values are multiplied by a weight of 0."""
    return (weights if dropout_mask is None else weights * promote(dropout_mask)) @ values


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
