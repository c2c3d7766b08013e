"""Attention to a segment and to those before it, whose positions are distances."""

from __future__ import annotations

from dataclasses import replace

from attention_core.errors import OptionError
from attention_core.operators.attention import DOT_PRODUCT_ATTENTION
from attention_core.operators.common import DAI, DROPOUT, DROPOUT_MASK, MASK, NEED_WEIGHTS, WEIGHTS
from attention_core.operators.multi_head import MULTI_HEAD_ATTENTION, PER_HEAD
from attention_core.operators.positions import SINUSOIDAL_POSITIONS
from attention_core.rules import key_for_each_step, weights_per_head
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Part, Sizes, Tensor

_FORMULA = (
    "context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention_pooling(scores_h, values_h) over keys j "
    "with d >= 0, d = previous_steps + i - j;  "
    "scores_h[i, j] = ((queries_h[i] + u[h])·keys_h[j] + (queries_h[i] + v[h])·(W_r P[d])_h)/√head_size;  "
    "queries_h the h-th part of W_q inputs + b_q, keys_h of W_k [previous; inputs] + b_k, values_h of W_v [previous; "
    "inputs] + b_v, P[d] the vector that SinusoidalPositions adds at position d"
)
_MULTI_HEAD = {option.name: option for option in MULTI_HEAD_ATTENTION.options}


def _sizes(config: Config) -> Sizes:
    hidden, heads = config["hidden_size"] or config["query_size"], config["num_heads"]
    if hidden % heads:
        raise OptionError(
            f"SegmentAttention: hidden_size is {hidden}, expected a multiple of num_heads, which is {heads}. "
            "Every head has the same number of features."
        )
    return {**config, "hidden_size": hidden, "heads": heads, "head_size": hidden // heads}


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    hidden, query = sizes["hidden_size"], sizes["query_size"]
    matrices: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("W_q", "W_k", "W_v"), (hidden, query)),
        "W_o": (query, hidden),
    }
    biases = {f"b{name[1:]}": shape[:1] for name, shape in matrices.items()} if sizes["bias"] else {}
    of_head = sizes["heads"], sizes["head_size"]
    return {**matrices, **biases, "W_r": (hidden, query), "u": of_head, "v": of_head}


def _inside(sizes: Sizes) -> dict[str, Part]:
    return {
        "scored": Part(DOT_PRODUCT_ATTENTION, {"dropout": sizes["dropout"]}),
        "positions": Part(SINUSOIDAL_POSITIONS, {"features": sizes["query_size"]}),
    }


SEGMENT_ATTENTION = Layer(
    name="SegmentAttention",
    summary="Causal attention by several heads to a segment and to the segments before it, by content and distance.",
    formula=_FORMULA,
    source=DAI,
    options=(
        Option("query_size", "int", "features of an input", domain="even"),
        _MULTI_HEAD["num_heads"],
        _MULTI_HEAD["hidden_size"],
        replace(_MULTI_HEAD["bias"], meaning="whether the projections of inputs and context have biases"),
        DROPOUT,
    ),
    parameters=(
        Parameter("W_q", ("hidden_size", "query_size"), "projects queries", "query_size"),
        Parameter("W_k", ("hidden_size", "query_size"), "projects keys", "query_size"),
        Parameter("W_v", ("hidden_size", "query_size"), "projects values", "query_size"),
        Parameter("W_o", ("query_size", "hidden_size"), "projects the heads' averages", "hidden_size"),
        Parameter("b_q", ("hidden_size",), "biases of the queries, if bias", "query_size"),
        Parameter("b_k", ("hidden_size",), "biases of the keys, if bias", "query_size"),
        Parameter("b_v", ("hidden_size",), "biases of the values, if bias", "query_size"),
        Parameter("b_o", ("query_size",), "biases of the context, if bias", "hidden_size"),
        Parameter("W_r", ("hidden_size", "query_size"), "projects distances", "query_size"),
        Parameter("u", ("heads", "head_size"), "added to every query for its scores by content", "hidden_size"),
        Parameter("v", ("heads", "head_size"), "added to every query for its scores by distance", "hidden_size"),
    ),
    methods=(
        Operator(
            name="SegmentAttention.call",
            summary="Attend from each step to those before it, in its segment and in the segments before.",
            formula=_FORMULA,
            source=DAI,
            tensors=(
                Tensor("inputs", ("batch", "queries", "query_size"), "the steps of the segment"),
                Tensor(
                    "previous",
                    ("batch", "previous_steps", "query_size"),
                    "the inputs of the segments before, oldest first",
                    optional=True,
                ),
                replace(
                    MASK, meaning="True where a step may attend to a key of [previous; inputs], if it is not later"
                ),
            ),
            options=(PER_HEAD, NEED_WEIGHTS),
            keyword_tensors=(replace(DROPOUT_MASK, axes=("batch", "heads", "queries", "keys")),),
            outputs=(
                Tensor("context", ("batch", "queries", "query_size"), "the heads' averages, projected"),
                WEIGHTS,
            ),
            rules=(key_for_each_step, weights_per_head),
            notes=(
                "A step that may attend to nothing gets weights 0 and context b_o, or 0 without bias. What no step may "
                "attend to, NaN and inf included, has no effect as a key and gets no gradient as a key; a step of "
                "inputs is a query all the same. Gradients flow into previous: stop them before the call, as the paper "
                "does, or train through several segments."
            ),
        ),
    ),
    complete=_sizes,
    own_shapes=_shapes,
    inside=_inside,
    parts={
        "scored": "the DotProductAttention of each head, which has none",
        "positions": "the SinusoidalPositions of the distances, which has none",
    },
    notes=(
        "query_size is the features of an input and of the context, an even number. In a stack, previous is of each "
        "layer the inputs of that layer, so that the context grows with the number of layers. A memory that is not yet "
        "full is hidden at its front, by mask. Segments one by one give what one call over all of them gives, if "
        "previous has all that came before."
    ),
)

OPERATORS = (SEGMENT_ATTENTION,)
