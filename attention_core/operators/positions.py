"""Positions of vectors in a sequence."""

from __future__ import annotations

from attention_core.operators.common import VASWANI_POSITIONS
from attention_core.rules import position_for_each_step
from attention_core.specification import Layer, Operator, Option, Parameter, Tensor

_POSITIONED = Tensor("inputs", ("batch", "steps", "features"), "one vector for each position")

_POSITIONED_OUT = Tensor("outputs", ("batch", "steps", "features"), "the inputs with their positions added")

_OFFSET = Option("offset", "int", "position of the first step", "0", "count", keyword_only=True)

_SINUSOID_FORMULA = (
    "outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), "
    "P[p, 2i + 1] = cos(p/10000^(2i/features)); concatenated: all sines first, then all cosines"
)

SINUSOIDAL_POSITIONS = Layer(
    name="SinusoidalPositions",
    summary="Add the sines and cosines of its position to each input; it has no parameters.",
    formula=_SINUSOID_FORMULA,
    source=VASWANI_POSITIONS,
    options=(
        Option("features", "int", "features of an input", domain="even"),
        Option(
            "layout",
            "str",
            "whether sines and cosines alternate, or all sines come first",
            "'interleaved'",
            keyword_only=True,
            choices=("interleaved", "concatenated"),
        ),
    ),
    parameters=(),
    notes=(
        "Sines and cosines are interleaved in the paper; position_permutation returns the order that concatenates "
        "them. features is an even number."
    ),
    methods=(
        Operator(
            name="SinusoidalPositions.call",
            summary="Add the positions, starting at offset.",
            formula=_SINUSOID_FORMULA,
            source=VASWANI_POSITIONS,
            tensors=(_POSITIONED,),
            options=(_OFFSET,),
            outputs=(_POSITIONED_OUT,),
        ),
    ),
)

_LEARNED_FORMULA = "outputs[t] = inputs[t] + P[t + offset]"

LEARNED_POSITIONS = Layer(
    name="LearnedPositions",
    summary="Add a learned vector for its position to each input.",
    formula=_LEARNED_FORMULA,
    source="Gehring et al. 2017, section 3.1, arXiv:1705.03122",
    options=(
        Option("num_positions", "int", "positions that have a vector"),
        Option("features", "int", "features of an input"),
    ),
    parameters=(Parameter("P", ("num_positions", "features"), "one row for each position", "features"),),
    methods=(
        Operator(
            name="LearnedPositions.call",
            summary="Add the positions, starting at offset.",
            formula=_LEARNED_FORMULA,
            source="Gehring et al. 2017, section 3.1, arXiv:1705.03122",
            tensors=(_POSITIONED,),
            options=(_OFFSET,),
            outputs=(_POSITIONED_OUT,),
            rules=(position_for_each_step,),
        ),
    ),
    own_shapes=lambda sizes: {"P": (sizes["num_positions"], sizes["features"])},
)

POSITION_PERMUTATION = Operator(
    name="position_permutation",
    summary="Return the order that turns interleaved sines and cosines into concatenated ones.",
    formula="permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]",
    source="this specification",
    options=(Option("features", "int", "features of an input", domain="even"),),
    tensors=(),
    outputs=(Tensor("permutation", ("features",), "interleaved index of each concatenated feature, int32", "integer"),),
)

OPERATORS = (SINUSOIDAL_POSITIONS, LEARNED_POSITIONS, POSITION_PERMUTATION)
