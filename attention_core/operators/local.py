"""Attention to a window of the keys."""

from __future__ import annotations

from dataclasses import replace

from attention_core.errors import check_unused
from attention_core.operators.attention import (
    _HIDDEN_OR_QUERY,
    _KEY_SIZE,
    _QUERY_SIZE,
    ALIKE,
    HIDDEN_SCORES,
    _attention_methods,
    score_layer,
    score_option,
)
from attention_core.operators.common import DROPOUT, DROPOUT_MASK, LUONG_LOCAL, OFFSET, TIME_MAJOR
from attention_core.rules import offset_of_window
from attention_core.specification import Config, Layer, Option, Parameter, Part, Sizes

NUM_POSITIONS = Option(
    "num_positions", "int", "number of positions to score, for score='location' only", "None", keyword_only=True
)

_LOCAL_FORMULA = (
    "weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights "
    "values;  monotonic: p[i] = i + offset, g = 1;  predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), "
    "g[i, j] = exp(-2 (j - p[i])²/window²)"
)

_OFFSET = replace(OFFSET, meaning="position of the first query among the keys, for mode='monotonic'; 0 if None")


def _local_inside(sizes: Sizes) -> dict[str, Part]:
    score, hidden = sizes["score"], sizes["hidden_size"]
    hidden = hidden if score in HIDDEN_SCORES else None
    part = score_layer("LocalAttention", score, sizes["query_size"], sizes["key_size"], hidden, sizes["num_positions"])
    return {"scored": part}


def _local_sizes(config: Config) -> Sizes:
    if config["mode"] == "monotonic" and config["score"] not in HIDDEN_SCORES:
        why = f"mode='monotonic' with score={config['score']!r} has no hidden layer"
        check_unused("LocalAttention", "hidden_size", config["hidden_size"], why)
    return {**config, "hidden_size": config["hidden_size"] or config["query_size"]}


LOCAL_ATTENTION = Layer(
    name="LocalAttention",
    summary="Attention to a window of keys, around the query's position or around a predicted one.",
    formula=_LOCAL_FORMULA,
    source=LUONG_LOCAL,
    options=(
        _QUERY_SIZE,
        _KEY_SIZE,
        Option("window", "int", "keys on either side of the centre, D"),
        Option(
            "mode",
            "str",
            "centre of the window: the query's position, or a predicted one",
            "'monotonic'",
            keyword_only=True,
            choices=("monotonic", "predictive"),
        ),
        score_option("general"),
        _HIDDEN_OR_QUERY,
        NUM_POSITIONS,
        DROPOUT,
        TIME_MAJOR,
    ),
    parameters=(
        Parameter("W_p", ("hidden_size", "query_size"), "projects queries, if predictive", "query_size"),
        Parameter("v_p", ("hidden_size",), "weight of each hidden feature, if predictive", "hidden_size"),
    ),
    methods=_attention_methods(
        "LocalAttention",
        _LOCAL_FORMULA,
        LUONG_LOCAL,
        "query_size",
        "key_size",
        "memory_features",
        (_OFFSET, DROPOUT_MASK),
        (offset_of_window,),
    ),
    complete=_local_sizes,
    own_shapes=lambda sizes: (
        {"W_p": (sizes["hidden_size"], sizes["query_size"]), "v_p": (sizes["hidden_size"],)}
        if sizes["mode"] == "predictive"
        else {}
    ),
    inside=_local_inside,
    parts={"scored": "the attention layer of score, which projects the keys and scores them"},
    notes=(
        "S[i] is the number of keys up to the last one that query i may attend to: its valid length. g is a Gaussian "
        "of standard deviation window/2, and the weights are not normalised again: predictive ones add up to less than "
        "1. `scored` is the layer of score, and hidden_size that of an additive or concat score and of W_p. " + ALIKE
    ),
)

OPERATORS = (LOCAL_ATTENTION,)
