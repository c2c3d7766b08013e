"""Kernel regression as attention."""

from __future__ import annotations

from attention_core.operators.attention import _LEARNED, _WIDTH, KERNEL_ATTENTION
from attention_core.operators.common import MASK, NADARAYA, VALID_LENS
from attention_core.specification import Layer, Operator, Part, Tensor

_REGRESSION_FORMULA = "predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention"

NADARAYA_WATSON = Layer(
    name="NadarayaWatson",
    summary="Kernel regression: average the values, weighted by how near their keys are to the query.",
    formula=_REGRESSION_FORMULA,
    source=NADARAYA,
    options=(_WIDTH, _LEARNED),
    parameters=(),
    methods=(
        Operator(
            name="NadarayaWatson.call",
            summary="Predict at each query.",
            formula=_REGRESSION_FORMULA,
            source=NADARAYA,
            tensors=(
                Tensor("queries", ("batch", "queries"), "points at which to predict"),
                Tensor("keys", ("batch", "keys"), "observed points"),
                Tensor("values", ("batch", "keys"), "observed values"),
                VALID_LENS,
                Tensor("mask", ("batch", "queries", "keys"), MASK.meaning, "boolean", True, True),
            ),
            outputs=(
                Tensor("predictions", ("batch", "queries"), "weighted averages of the values, in their units"),
                Tensor("weights", ("batch", "queries", "keys"), "probabilities over the keys"),
            ),
        ),
    ),
    inside=lambda sizes: {"kernel": Part(KERNEL_ATTENTION, {name: sizes[name] for name in ("width", "learned")})},
    parts={"kernel": "the KernelAttention that weighs the keys"},
    notes=KERNEL_ATTENTION.notes,
)

OPERATORS = (NADARAYA_WATSON,)
