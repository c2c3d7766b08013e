"""Attention to a memory that is shorter than the input."""

from __future__ import annotations

from dataclasses import replace

from attention_core.operators.attention import DOT_PRODUCT_ATTENTION
from attention_core.operators.common import (
    CONTEXT,
    DROPOUT,
    DROPOUT_MASK,
    MASK,
    NEED_WEIGHTS,
    SCALE,
    VALID_LENS,
    VALUES,
    WANG,
    WEIGHTS,
)
from attention_core.rules import column_for_each_key
from attention_core.specification import Layer, Operator, Option, Parameter, Part, Rule, Sizes, Tensor

_LENS = replace(VALID_LENS, axes=("batch",))
_ONE_MASK = replace(
    MASK,
    axes=("batch", "heads?", "one", "keys"),
    meaning="True where a key is open, to all queries; combined with valid_lens by logical and",
)
_MIXED = (
    "A shortened key mixes positions, so that lengths and mask are the same for all queries. A sequence without an "
    "open key gets weights and context 0. A hidden key and value, NaN and inf included, counts as 0, and gets gradient "
    "0."
)


def _call(
    layer: str,
    formula: str,
    source: str,
    query_axis: str,
    key_axis: str,
    memory_axis: str,
    rules: tuple[Rule, ...] = (),
) -> Operator:
    axes = ("batch", "heads?", "queries", memory_axis)
    return Operator(
        name=f"{layer}.call",
        summary="Shorten the keys and values, and attend to what they become.",
        formula=formula,
        source=source,
        tensors=(
            Tensor("queries", ("batch", "heads?", "queries", query_axis), "query vectors"),
            Tensor("keys", ("batch", "heads?", "keys", key_axis), "key vectors, one for each value"),
            VALUES,
            _LENS,
            _ONE_MASK,
        ),
        options=(NEED_WEIGHTS,),
        keyword_tensors=(replace(DROPOUT_MASK, axes=axes),),
        outputs=(CONTEXT, replace(WEIGHTS, axes=axes, meaning="probabilities over the shortened keys")),
        rules=rules,
        notes=_MIXED,
    )


# ------------------------------------------------------------------------------------------------ sums over positions

_LOW_RANK_FORMULA = (
    "context, weights = attention_pooling(scaled_dot_score(queries, E keys), F values);  "
    "(E keys)[r] = sum over open j of E[r, j] keys[j];  (F values)[r] = sum over open j of F[r, j] values[j]"
)


def _scored(sizes: Sizes) -> dict[str, Part]:
    return {"scored": Part(DOT_PRODUCT_ATTENTION, {name: sizes[name] for name in ("scale", "dropout")})}


LOW_RANK_ATTENTION = Layer(
    name="LowRankAttention",
    summary="Attention to weighted sums of the keys and values over their positions, as many as rank.",
    formula=_LOW_RANK_FORMULA,
    source=WANG,
    options=(
        Option("num_positions", "int", "positions that have a weight: the maximum number of keys"),
        Option("rank", "int", "number of sums that queries attend to"),
        SCALE,
        DROPOUT,
    ),
    parameters=(
        Parameter("E", ("rank", "num_positions"), "weights of the keys by position", "num_positions"),
        Parameter("F", ("rank", "num_positions"), "weights of the values by position", "num_positions"),
    ),
    methods=(
        _call("LowRankAttention", _LOW_RANK_FORMULA, WANG, "features", "features", "rank", (column_for_each_key,)),
    ),
    complete=lambda config: {**config, "one": 1},
    own_shapes=lambda sizes: dict.fromkeys("EF", (sizes["rank"], sizes["num_positions"])),
    inside=_scored,
    parts={"scored": "the DotProductAttention to the sums, which has none"},
    notes=(
        "There may be fewer keys than num_positions, but not more: the first columns of E and F count. The cost is "
        "linear in the number of keys."
    ),
)

OPERATORS = (LOW_RANK_ATTENTION,)
