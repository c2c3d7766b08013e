"""Wrong averages of values."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.reference.arrays import promote
from attention_core.reference.masking import softmax_over
from attention_core.reference.pooling import average
from parity_tests.format.case import Arrays, Case
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import where_all


def _drops(case: Case, inputs: Arrays) -> bool:
    return case.gradients and bool((inputs.get("dropout_mask", np.ones(1)) > 1.0).any())


@mutant("attention_pooling-*", of="pooling.pool", red="attention_pooling-dropout:* *:gradient_dropout_mask")
def dropout_on_scores(original: Any, scores: Any, allowed: Any, dropout_mask: Any) -> Any:
    """Dropout acts on the scores."""
    dropped = scores if dropout_mask is None else np.where(allowed, scores, 0.0) * dropout_mask
    return original(scores=dropped, dropout_mask=None)


@mutant(
    "attention_pooling-*",
    of="pooling.pool",
    red="attention_pooling-dropout:{weights,gradient_scores} *:gradient_dropout_mask",
    source="pytorch/pytorch#42929",
)
def weights_dropped(original: Any, dropout_mask: Any) -> Any:
    """The weights returned are those after dropout."""
    context, weights = original()
    return context, weights if dropout_mask is None else weights * dropout_mask


@mutant(
    "attention_pooling-*",
    of="pooling.average",
    red="attention_pooling-{hidden_{nan,inf},infinite}:*",
    green="*:weights",
)
def hidden_values_kept(weights: Any, values: Any, dropout_mask: Any) -> Any:
    """Hidden values are multiplied by a weight of 0."""
    return (weights if dropout_mask is None else weights * promote(dropout_mask)) @ values


@mutant(
    "attention_pooling-{dropout,open} DotProductAttention-dropout",
    of="pool",
    touches=where_all(_drops),
    source="NVIDIA/apex#816",
)
def dropout_scaled_by_its_rate(original: Any, scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> Any:
    """The backward of dropout multiplies by the rate, not by 1/(1 - rate)."""
    if dropout_mask is None or not np.size(dropout_mask):
        return original()
    weights = softmax_over(scores, allowed)
    factor = promote(dropout_mask)
    rate = 1.0 - 1.0 / max(factor.real.max(), 1.0)
    dropped = weights * factor
    if rate > 0.0 and np.iscomplexobj(weights):
        dropped = weights.real * factor + 1j * weights.imag * np.where(factor.real > 0.0, rate, 0.0)
    return average(dropped, values, allowed), weights
