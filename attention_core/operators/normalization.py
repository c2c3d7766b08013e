"""Normalization of the features of each step, as data."""

from __future__ import annotations

from attention_core.operators.common import BA, ZHANG
from attention_core.specification import Layer, Operator, Option, Parameter, Tensor

FEATURES = Option("features", "int", "features of a step")
EPSILON = Option(
    "epsilon", "float", "number added to the mean square under the root", "1e-05", "positive", keyword_only=True
)
INPUTS = Tensor("inputs", ("batch", "steps", "features"), "one vector for each step")

_OUTPUTS = Tensor("outputs", INPUTS.axes, "the normalized vectors")
_GAIN = Parameter("g", ("features",), "gain of each feature; 1 at first", "features", 1.0)


def _norm(
    name: str,
    summary: str,
    formula: str,
    source: str,
    parameters: tuple[Parameter, ...],
    notes: str,
    options: tuple[Option, ...] = (),
) -> Layer:
    return Layer(
        name=name,
        summary=summary,
        formula=formula,
        source=source,
        options=(FEATURES, EPSILON, *options),
        parameters=parameters,
        methods=(
            Operator(
                name=f"{name}.call",
                summary="Normalize each step on its own.",
                formula=formula,
                source=source,
                tensors=(INPUTS,),
                outputs=(_OUTPUTS,),
            ),
        ),
        own_shapes=lambda sizes: {
            parameter.name: (sizes["features"],)
            for parameter in parameters
            if sizes.get("bias", True) or parameter == _GAIN
        },
        notes=notes,
    )


LAYER_NORM = _norm(
    "LayerNorm",
    "Shift and scale the features of each step to mean 0 and variance 1, then by a learned gain and bias.",
    "outputs = g (inputs - μ)/√(σ² + epsilon) + b;  μ = mean of the features, σ² = mean of (inputs - μ)²",
    BA,
    (_GAIN, Parameter("b", ("features",), "bias of each feature, if bias; 0 at first", "features", 0.0)),
    "The variance divides by the number of features, not by one less. Half precision is normalized in float32.",
    (Option("bias", "bool", "whether there is a bias", "True", keyword_only=True),),
)

RMS_NORM = _norm(
    "RMSNorm",
    "Scale the features of each step to mean square 1, then by a learned gain.",
    "outputs = g inputs/√(mean of inputs² + epsilon)",
    ZHANG,
    (_GAIN,),
    "No mean is subtracted, and there is no bias. Half precision is normalized in float32.",
)

OPERATORS = (LAYER_NORM, RMS_NORM)
