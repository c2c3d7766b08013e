"""Attention to a memory that is shorter than the input."""

from __future__ import annotations

from dataclasses import replace

from attention_core.operators.attention import _KEY_SIZE, _QUERY_SIZE, DOT_PRODUCT_ATTENTION
from attention_core.operators.common import (
    CONTEXT,
    DROPOUT,
    DROPOUT_MASK,
    LEE,
    LENS_FOR_ALL,
    LIU_COMPRESSED,
    MASK_FOR_ALL,
    NEED_WEIGHTS,
    SCALE,
    VALUES,
    WANG,
    WEIGHTS,
)
from attention_core.operators.multi_head import MULTI_HEAD_ATTENTION
from attention_core.rules import column_for_each_key, mask_for_each_block
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Part, Rule, Sizes, Tensor

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
    value_axis: str,
    memory_axis: str,
    *rules: Rule,
) -> Operator:
    axes = ("batch", "heads?", "queries", memory_axis)
    return Operator(
        name=f"{layer}.call",
        summary="Shorten the keys and values, and attend to what they become.",
        formula=formula,
        source=source,
        tensors=(
            Tensor("queries", ("batch", "heads?", "queries", query_axis), "query vectors"),
            Tensor("keys", ("batch", "heads?", "keys", key_axis), "key vectors"),
            replace(VALUES, axes=("batch", "heads?", "keys", value_axis)),
            LENS_FOR_ALL,
            MASK_FOR_ALL,
        ),
        options=(NEED_WEIGHTS,),
        keyword_tensors=(replace(DROPOUT_MASK, axes=axes),),
        outputs=(
            replace(CONTEXT, axes=("batch", "heads?", "queries", value_axis)),
            replace(WEIGHTS, axes=axes, meaning="probabilities over the shortened keys"),
        ),
        rules=rules,
        notes=_MIXED,
    )


# ------------------------------------------------------------------------------------------------ sums over positions

_LOW_RANK_FORMULA = (
    "context, weights = attention_pooling(scaled_dot_score(queries, E keys), F values);  "
    "(E keys)[r] = sum over open j of E[r, j] keys[j];  (F values)[r] = sum over open j of F[r, j] values[j]"
)


def _score_part(sizes: Sizes) -> dict[str, Part]:
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
        _call(
            *("LowRankAttention", _LOW_RANK_FORMULA, WANG),
            *("features", "features", "value_features", "rank"),
            column_for_each_key,
        ),
    ),
    complete=lambda config: {**config, "one": 1},
    own_shapes=lambda sizes: dict.fromkeys("EF", (sizes["rank"], sizes["num_positions"])),
    inside=_score_part,
    parts={"scored": "the DotProductAttention to the sums, which has none"},
    notes=(
        "There may be fewer keys than num_positions, but not more: the first columns of E and F count. The cost is "
        "linear in the number of keys."
    ),
)

# ------------------------------------------------------------------------------------------------ inducing points

_INDUCED_FORMULA = "context, weights = spread(queries, memory, memory);  memory = gather(inducing, keys, values)"
_INDUCING_AXES = ("batch", "heads", "num_inducing", "keys")
_SPREAD_AXES = ("batch", "heads", "queries", "num_inducing")
_MULTI_HEAD = {option.name: option for option in MULTI_HEAD_ATTENTION.options}


def _induced_sizes(config: Config) -> Sizes:
    key_size = config["key_size"] or config["query_size"]
    sizes = {"hidden_size": config["hidden_size"] or config["query_size"], "heads": config["num_heads"], "one": 1}
    return {**config, **sizes, "key_size": key_size, "value_size": config["value_size"] or key_size}


def _induced_inside(sizes: Sizes) -> dict[str, Part]:
    common = {name: sizes[name] for name in ("query_size", "num_heads", "hidden_size", "dropout")}
    of_keys = {name: sizes[name] for name in ("key_size", "value_size")}
    return {"gather": Part(MULTI_HEAD_ATTENTION, {**common, **of_keys}), "spread": Part(MULTI_HEAD_ATTENTION, common)}


INDUCED_ATTENTION = Layer(
    name="InducedAttention",
    summary="Attention by way of a few learned queries, the inducing points, that attend to the keys instead.",
    formula=_INDUCED_FORMULA,
    source=LEE,
    options=(
        _QUERY_SIZE,
        _MULTI_HEAD["num_heads"],
        Option("num_inducing", "int", "number of inducing points"),
        _MULTI_HEAD["key_size"],
        _MULTI_HEAD["value_size"],
        _MULTI_HEAD["hidden_size"],
        DROPOUT,
    ),
    parameters=(Parameter("inducing", ("num_inducing", "query_size"), "the inducing points", "hidden_size"),),
    methods=(
        Operator(
            name="InducedAttention.call",
            summary="Let the inducing points attend to the keys, and the queries to what these have gathered.",
            formula=_INDUCED_FORMULA,
            source=LEE,
            tensors=(
                Tensor("queries", ("batch", "queries", "query_size"), "query vectors"),
                Tensor("keys", ("batch", "keys", "key_size"), "key vectors"),
                Tensor("values", ("batch", "keys", "value_size"), "value vectors, one for each key"),
                LENS_FOR_ALL,
                replace(MASK_FOR_ALL, axes=("batch", "one", "keys")),
            ),
            options=(NEED_WEIGHTS,),
            keyword_tensors=(
                Tensor(
                    "gather_dropout_mask",
                    _INDUCING_AXES,
                    "factor of each weight of gather",
                    optional=True,
                ),
                Tensor("dropout_mask", _SPREAD_AXES, "factor of each weight of spread, likewise", optional=True),
            ),
            outputs=(
                Tensor("context", ("batch", "queries", "query_size"), "the averages that spread returns"),
                Tensor("weights", ("batch", "queries", "num_inducing"), "probabilities over the inducing points"),
            ),
            notes=(
                "Lengths and mask are the same for all queries, which attend to the inducing points alone. In a "
                "sequence without an open key, they attend to nothing: weights 0, and context b_o of spread. A hidden "
                "key and value, NaN and inf included, have no effect and get gradient 0."
            ),
        ),
    ),
    complete=_induced_sizes,
    own_shapes=lambda sizes: {"inducing": (sizes["num_inducing"], sizes["query_size"])},
    inside=_induced_inside,
    parts={
        "gather": "the MultiHeadAttention of the inducing points to the keys",
        "spread": "the MultiHeadAttention of the queries to what the inducing points have gathered",
    },
    notes=(
        "query_size is the features of a query, of an inducing point, of what it has gathered, and of the context. The "
        "weights are the mean of spread's heads. The cost is linear in the number of keys, and in that of queries."
    ),
)

# ------------------------------------------------------------------------------------------------ blocks of keys

_COMPRESSED_FORMULA = (
    "context, weights = attention_pooling(scaled_dot_score(queries, keys'), values');  "
    "keys'[t] = W_k [keys[t·stride]; ...; keys[t·stride + stride - 1]] + b_k, and values' likewise by W_v and b_v"
)


def _compressed_sizes(config: Config) -> Sizes:
    value_size, stride = config["value_size"] or config["key_size"], config["stride"]
    sizes = {"value_size": value_size, "stride · key_size": stride * config["key_size"]}
    return {**config, **sizes, "stride · value_size": stride * value_size, "one": 1}


def _compressed_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    matrices: dict[str, tuple[int, ...]] = {
        "W_k": (sizes["query_size"], sizes["stride · key_size"]),
        "W_v": (sizes["value_size"], sizes["stride · value_size"]),
    }
    return matrices | ({f"b{name[1:]}": shape[:1] for name, shape in matrices.items()} if sizes["bias"] else {})


COMPRESSED_ATTENTION = Layer(
    name="CompressedAttention",
    summary="Attention to blocks of keys and values, each compressed to a single one by a strided convolution.",
    formula=_COMPRESSED_FORMULA,
    source=LIU_COMPRESSED,
    options=(
        _QUERY_SIZE,
        _KEY_SIZE,
        Option("stride", "int", "keys in a block: width and stride of the convolution"),
        _MULTI_HEAD["value_size"],
        Option("bias", "bool", "whether the convolutions have biases", "True", keyword_only=True),
        SCALE,
        DROPOUT,
    ),
    parameters=(
        Parameter("W_k", ("query_size", "stride · key_size"), "compresses the keys of a block", "stride · key_size"),
        Parameter(
            "W_v", ("value_size", "stride · value_size"), "compresses the values of a block", "stride · value_size"
        ),
        Parameter("b_k", ("query_size",), "biases of the keys, if bias", "stride · key_size"),
        Parameter("b_v", ("value_size",), "biases of the values, if bias", "stride · value_size"),
    ),
    methods=(
        _call(
            *("CompressedAttention", _COMPRESSED_FORMULA, LIU_COMPRESSED),
            *("query_size", "key_size", "value_size", "blocks"),
            mask_for_each_block,
        ),
    ),
    complete=_compressed_sizes,
    own_shapes=_compressed_shapes,
    inside=_score_part,
    parts={"scored": "the DotProductAttention to the blocks, which has none"},
    notes=(
        "There are ⌈keys / stride⌉ blocks, of which the last is filled with zeros; a block is open where any of its "
        "keys is. A compressed value has the features of a value, and all heads share the convolutions."
    ),
)

OPERATORS = (LOW_RANK_ATTENTION, INDUCED_ATTENTION, COMPRESSED_ATTENTION)
