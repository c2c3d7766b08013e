"""Wrong averages of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_core.reference import masking
from attention_core.reference.arrays import promote
from attention_core.reference.masking import softmax_over
from attention_core.reference.pooling import pool
from parity_tests.cases.case import Arrays, Case
from parity_tests.mutants.mutant import Break, mutant
from parity_tests.mutants.shared import where_all


def _pool(change: Callable[..., tuple[Any, Any]]) -> Break:
    """The pooling of scores and values under a mask, by another formula."""
    return lambda original: change


def _dropout_scaled_by_its_rate(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> tuple[Any, Any]:
    """Backward, what was kept is multiplied by the rate, not by 1/(1 - rate)."""
    if dropout_mask is None or not np.size(dropout_mask):
        return pool(scores, values, allowed, dropout_mask)
    weights = softmax_over(scores, allowed)
    factor = promote(dropout_mask)
    rate = 1.0 - 1.0 / max(factor.real.max(), 1.0)
    dropped = weights.real * factor
    if rate > 0.0 and np.iscomplexobj(weights):
        dropped = dropped + 1j * weights.imag * np.where(factor.real > 0.0, rate, 0.0)
    elif np.iscomplexobj(weights):
        dropped = weights * factor
    return dropped @ np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0), weights


def _drops(case: Case, inputs: Arrays) -> bool:
    return case.gradients and bool((inputs.get("dropout_mask", np.ones(1)) > 1.0).any())


@mutant(
    "attention_pooling-*", of="pooling.pool", via=_pool, red=("attention_pooling-dropout:*", "*:gradient_dropout_mask")
)
def dropout_on_scores(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> tuple[Any, Any]:
    """Dropout acts on the scores."""
    scores = scores if dropout_mask is None else np.where(allowed, scores, 0.0) * dropout_mask
    weights = masking.softmax_over(scores, allowed)
    return weights @ np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0), weights


@mutant(
    "attention_pooling-*",
    of="pooling.pool",
    via=_pool,
    red=(
        "attention_pooling-dropout:weights",
        "attention_pooling-dropout:gradient_scores",
        "*:gradient_dropout_mask",
    ),
    source="pytorch/pytorch#42929",
)
def weights_dropped(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> tuple[Any, Any]:
    """The weights returned are those after dropout."""
    weights = masking.softmax_over(scores, allowed)
    weights = weights if dropout_mask is None else weights * dropout_mask
    return weights @ np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0), weights


@mutant(
    "attention_pooling-*",
    of="pooling.pool",
    via=_pool,
    red=("attention_pooling-dropout:*", "*:gradient_dropout_mask"),
    green="*:weights",
)
def dropout_ignored(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> tuple[Any, Any]:
    """The dropout mask is ignored."""
    weights = masking.softmax_over(scores, allowed)
    return weights @ np.where(np.expand_dims(allowed.any(axis=-2), -1), values, 0.0), weights


@mutant(
    "attention_pooling-*",
    of="pooling.pool",
    via=_pool,
    red=tuple(f"attention_pooling-{name}:*" for name in ("hidden_nan", "hidden_inf", "infinite")),
    green="*:weights",
)
def hidden_values_kept(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> tuple[Any, Any]:
    """Hidden values are multiplied by a weight of 0."""
    weights = masking.softmax_over(scores, allowed)
    return (weights if dropout_mask is None else weights * dropout_mask) @ values, weights


@mutant(
    ("attention_pooling-dropout", "attention_pooling-open", "DotProductAttention-dropout"),
    of="pool",
    touches=where_all(_drops),
    source="NVIDIA/apex#816",
)
def dropout_scaled_by_its_rate(_: Any) -> Any:
    """The backward of dropout multiplies by the rate, not by 1/(1 - rate)."""
    return _dropout_scaled_by_its_rate
