"""Attention with several heads, how much each of them matters, and how it flows through layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from attention_core.errors import OptionError, check_unused
from attention_core.operators.attention import (
    _QUERY_SIZE,
    CAPPED_SCORES,
    HIDDEN,
    INNER_PRODUCTS,
    extension,
    score_layer,
    score_option,
)
from attention_core.operators.common import (
    ABNAR,
    AINSLIE,
    BIAS,
    DROPOUT,
    DROPOUT_MASK,
    MASK,
    MICHEL,
    NEED_WEIGHTS,
    OFFSET,
    SOFTCAP,
    SU,
    TIME_MAJOR,
    VALID_LENS,
    VASWANI_HEADS,
    WEIGHTS,
)
from attention_core.operators.local import NUM_POSITIONS
from attention_core.operators.positions import ROTARY_BASE, ROTARY_LAYOUT, ROTARY_POSITIONS
from attention_core.rules import (
    offset_of_rotary_positions,
    position_for_each_key,
    some_heads,
    some_weights,
    weights_per_head,
)
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Part, Sizes, Tensor

_HEADS_FORMULA = (
    "context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h), with "
    "queries_h the h-th part of W_q queries + b_q, keys_h of W_k keys + b_k, values_h of W_v values + b_v"
)

PER_HEAD = Option(
    "per_head",
    "bool",
    "whether to return the weights of every head, or their mean",
    "False",
    keyword_only=True,
)

_HEAD_MASK = Tensor(
    "head_mask",
    ("batch?", "heads"),
    "factor of each head in the context; 0 switches it off",
    optional=True,
)

_HEADS_DROPOUT = Tensor("dropout_mask", ("batch", "heads", "queries", "keys"), DROPOUT_MASK.meaning, optional=True)

_HEADS_OFFSET = replace(OFFSET, meaning="position of the first query, with rotary_layout only; 0 if None")

ROTARY_OPTIONS = (
    replace(
        ROTARY_LAYOUT,
        name="rotary_layout",
        default="None",
        meaning=(
            "which features rotate together by position: neighbours, or one of each half; none if None; scores "
            f"{' and '.join(map(repr, INNER_PRODUCTS))} only"
        ),
    ),
    replace(
        ROTARY_BASE,
        name="rotary_base",
        default="None",
        meaning=f"{ROTARY_BASE.meaning}; {ROTARY_BASE.default} if None; needs rotary_layout",
    ),
)

_HEADS_QUERIES = Tensor("queries", ("batch", "queries", "query_size"), "query vectors")

_HEADS_KEYS = Tensor("keys", ("batch", "keys", "key_size"), "key vectors")

_HEADS_VALUES = Tensor("values", ("batch", "keys", "value_size"), "value vectors, one for each key")

_HEADS_MEMORY = (
    Tensor("memory.keys", ("batch", "key_heads", "keys", "memory_features"), "prepared keys of each head"),
    Tensor("memory.values", ("batch", "key_heads", "keys", "head_size"), "prepared values of each head"),
    Tensor("memory.mask", ("batch", "heads", "queries", "keys"), MASK.meaning, "boolean", True, True),
)

_NOTHING_OPEN = "A query that may attend to nothing gets weights 0 and context b_o, or 0 without bias."

_HEADS_CONTEXT = Tensor("context", ("batch", "queries", "query_size"), "the heads' averages, projected")


def _heads_sizes(config: Config) -> Sizes:
    hidden, heads = config["hidden_size"] or config["query_size"], config["num_heads"]
    if hidden % heads:
        raise OptionError(
            f"MultiHeadAttention: hidden_size is {hidden}, expected a multiple of num_heads, which is {heads}. "
            "Every head has the same number of features."
        )
    key_heads = config["num_key_heads"] or heads
    if heads % key_heads:
        raise OptionError(
            f"MultiHeadAttention: num_heads is {heads}, expected a multiple of num_key_heads, which is {key_heads}. "
            "Every key head is read by as many query heads as the others."
        )
    if config["rotary_layout"] is None:
        check_unused("MultiHeadAttention", "rotary_base", config["rotary_base"], "rotary_layout=None has no positions")
    elif config["score"] not in INNER_PRODUCTS:
        why = f"score={config['score']!r} is no inner product, which rotation makes one of distances"
        check_unused("MultiHeadAttention", "rotary_layout", config["rotary_layout"], why)
    elif hidden // heads % 2:
        raise OptionError(
            f"MultiHeadAttention: a head has {hidden // heads} features, expected an even number: with rotary_layout, "
            "they are rotated in pairs. Change hidden_size or num_heads."
        )
    return {
        **config,
        "hidden_size": hidden,
        "key_size": config["key_size"] or config["query_size"],
        "value_size": config["value_size"] or config["key_size"] or config["query_size"],
        "heads": heads,
        "head_size": hidden // heads,
        "key_heads": key_heads,
        "num_key_heads · head_size": key_heads * (hidden // heads),
    }


def _heads_inside(sizes: Sizes) -> dict[str, Part]:
    head, score = sizes["head_size"], sizes["score"]
    options = sizes["num_positions"], sizes["dropout"], sizes["softcap"]
    parts = {"scored": score_layer("MultiHeadAttention", score, head, head, None, *options)}
    if sizes["rotary_layout"] is not None:
        base = ROTARY_BASE.value if sizes["rotary_base"] is None else sizes["rotary_base"]
        parts["rotary"] = Part(ROTARY_POSITIONS, {"features": head, "layout": sizes["rotary_layout"], "base": base})
    return parts


def _heads_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    hidden, query = sizes["hidden_size"], sizes["query_size"]
    of_keys = sizes["num_key_heads · head_size"]
    matrices: dict[str, tuple[int, ...]] = {
        "W_q": (hidden, query),
        "W_k": (of_keys, sizes["key_size"]),
        "W_v": (of_keys, sizes["value_size"]),
        "W_o": (query, hidden),
    }
    if not sizes["bias"]:
        return matrices
    return {**matrices, **{f"b{name[1:]}": shape[:1] for name, shape in matrices.items()}}


_HEADS = Option("heads", "indices", "numbers of the heads to leave out")

_PRUNED = Tensor("layer.parameters", (), "the parameters of the remaining heads")


class Remaining(NamedTuple):
    """A layer without some of its heads: its constructor's arguments, and which rows of the whole layer it has.

    of_queries are the rows of W_q and b_q and the columns of W_o, of_keys the rows of W_k, b_k, W_v and b_v.
    """

    config: dict[str, Any]
    of_queries: list[int]
    of_keys: list[int]


def remaining(sizes: Sizes, heads: Sequence[int]) -> Remaining:
    """What remains of a layer of these sizes without some heads.

    A key head remains as long as a query head reads it. Where the remaining query heads form groups of unequal sizes,
    each gets a key head of its own.
    """
    size, num_key_heads = sizes["head_size"], sizes["key_heads"]
    without = {int(head) for head in heads}
    query_heads = [head for head in range(sizes["heads"]) if head not in without]
    read = [head * num_key_heads // sizes["heads"] for head in query_heads]
    key_heads = sorted({*read})
    if len({read.count(head) for head in key_heads}) > 1:
        key_heads = read
    config = {option.name: sizes[option.name] for option in MULTI_HEAD_ATTENTION.options}
    config |= {"num_heads": len(query_heads), "hidden_size": len(query_heads) * size, "num_key_heads": len(key_heads)}
    of_queries, of_keys = (
        [row for head in remain for row in range(head * size, (head + 1) * size)] for remain in (query_heads, key_heads)
    )
    return Remaining(config, of_queries, of_keys)


MULTI_HEAD_ATTENTION = Layer(
    name="MultiHeadAttention",
    summary="Attention by several heads at once, each with its own projections.",
    formula=_HEADS_FORMULA,
    source=VASWANI_HEADS,
    options=(
        _QUERY_SIZE,
        Option("num_heads", "int", "number of heads"),
        Option("key_size", "int", "features of a key; query_size if None", "None", keyword_only=True),
        Option("value_size", "int", "features of a value; key_size if None", "None", keyword_only=True),
        Option("hidden_size", "int", "features of all heads together; query_size if None", "None", keyword_only=True),
        Option(
            "num_key_heads", "int", "number of heads of keys and values; num_heads if None", "None", keyword_only=True
        ),
        score_option("scaled_dot"),
        NUM_POSITIONS,
        replace(SOFTCAP, meaning=f"{SOFTCAP.meaning}; of the scores {' and '.join(map(repr, CAPPED_SCORES))} only"),
        Option("bias", "bool", "whether the four projections have biases", "True", keyword_only=True),
        *ROTARY_OPTIONS,
        DROPOUT,
        TIME_MAJOR,
    ),
    parameters=(
        Parameter("W_q", ("hidden_size", "query_size"), "projects queries", "query_size"),
        Parameter("W_k", ("num_key_heads · head_size", "key_size"), "projects keys", "key_size"),
        Parameter("W_v", ("num_key_heads · head_size", "value_size"), "projects values", "value_size"),
        Parameter("W_o", ("query_size", "hidden_size"), "projects the heads' averages", "hidden_size"),
        Parameter("b_q", ("hidden_size",), "biases of the queries, if bias", "query_size"),
        Parameter("b_k", ("num_key_heads · head_size",), "biases of the keys, if bias", "key_size"),
        Parameter("b_v", ("num_key_heads · head_size",), "biases of the values, if bias", "value_size"),
        Parameter("b_o", ("query_size",), "biases of the context, if bias", "hidden_size"),
    ),
    methods=(
        Operator(
            name="MultiHeadAttention.prepare",
            summary="Project the keys and values of every head, once for many queries.",
            formula="memory = (projected keys, projected values, mask), of keys and values 0 where no query may attend",
            source="this specification",
            tensors=(_HEADS_KEYS, _HEADS_VALUES, VALID_LENS, MASK),
            outputs=_HEADS_MEMORY,
            rules=(position_for_each_key,),
        ),
        extension(
            "MultiHeadAttention",
            (_HEADS_KEYS, _HEADS_VALUES, VALID_LENS, MASK),
            _HEADS_MEMORY,
            (position_for_each_key,),
        ),
        Operator(
            name="MultiHeadAttention.attend",
            summary="Attend with queries to a prepared memory.",
            formula=_HEADS_FORMULA,
            source=VASWANI_HEADS,
            tensors=(_HEADS_QUERIES, *_HEADS_MEMORY),
            options=(PER_HEAD, NEED_WEIGHTS),
            keyword_tensors=(BIAS, _HEADS_OFFSET, _HEAD_MASK, _HEADS_DROPOUT),
            outputs=(_HEADS_CONTEXT, WEIGHTS),
            rules=(weights_per_head, offset_of_rotary_positions),
            notes=_NOTHING_OPEN,
        ),
        Operator(
            name="MultiHeadAttention.call",
            summary="Prepare the keys and values, and attend to them.",
            formula=_HEADS_FORMULA,
            source=VASWANI_HEADS,
            tensors=(_HEADS_QUERIES, _HEADS_KEYS, _HEADS_VALUES, VALID_LENS, MASK),
            options=(PER_HEAD, NEED_WEIGHTS),
            keyword_tensors=(BIAS, _HEADS_OFFSET, _HEAD_MASK, _HEADS_DROPOUT),
            outputs=(_HEADS_CONTEXT, WEIGHTS),
            rules=(position_for_each_key, weights_per_head, offset_of_rotary_positions),
            notes=_NOTHING_OPEN + HIDDEN,
        ),
        Operator(
            name="MultiHeadAttention.pruned",
            summary="Make a smaller layer without some of the heads.",
            formula="context = that of the whole layer with head_mask[h] = 0 for every h in heads, 1 for the others",
            source=MICHEL,
            tensors=(),
            options=(_HEADS,),
            outputs=(_PRUNED,),
            rules=(some_heads,),
            notes=(
                "Its weights are those of the remaining heads, and its parameters are copies of theirs: their "
                "rows of W_q, W_k, W_v and biases, and their columns of W_o. head_size stays, and with it the scale. A "
                "key head remains as long as a query head reads it; where that leaves groups of unequal sizes, each "
                "query head gets a copy of the key head that it reads."
            ),
        ),
    ),
    complete=_heads_sizes,
    own_shapes=_heads_shapes,
    inside=_heads_inside,
    parts={
        "scored": "the attention layer of score, whose parameters the heads share",
        "rotary": "the RotaryPositions of rotary_layout, which has none",
    },
    notes=(
        "query_size is the features of a query and of the context. num_heads must divide hidden_size: head h has the "
        "rows from h·head_size to (h + 1)·head_size - 1 of W_q, W_k and W_v, with head_size = hidden_size/num_heads. "
        "With num_key_heads, query head h reads key head ⌊h · num_key_heads / num_heads⌋, and has the rows of that of "
        f"W_k and W_v: {AINSLIE}. With rotary_layout, RotaryPositions rotate query i by position i + offset and key j "
        f"by position j, so that their inner product depends on the distance alone: {SU}."
    ),
)

_LOSSES = Option("losses", "function", "function from head_mask (batch, heads) to the loss of each example (batch,)")

_FACTORS = Tensor("head_mask", ("batch", "heads"), "factor of each head: 1, or 0 for a head that is off already")

_IMPORTANCE = Tensor("importance", ("heads",), "in the units of the loss")

ABLATION_IMPORTANCE = Operator(
    name="ablation_importance",
    summary="Compute how much the loss rises when a head is switched off, for each head.",
    formula="importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]",
    source="Michel et al. 2019, section 3.2, arXiv:1905.10650",
    options=(_LOSSES,),
    tensors=(_FACTORS,),
    outputs=(_IMPORTANCE,),
)

TAYLOR_IMPORTANCE = Operator(
    name="taylor_importance",
    summary="Estimate to first order how much the loss changes when a head is switched off, for each head.",
    formula="importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|",
    source=MICHEL,
    options=(_LOSSES,),
    tensors=(_FACTORS,),
    outputs=(_IMPORTANCE,),
    notes="The loss of an example must depend on no row of head_mask but its own.",
)

_RESIDUAL = Option(
    "residual",
    "float",
    "share of the residual connection around each layer: a step passes on so much of itself",
    "0.5",
    "rate",
    keyword_only=True,
)

ATTENTION_ROLLOUT = Operator(
    name="attention_rollout",
    summary="Multiply the attention of all layers: how much each step at the top attends to each step at the bottom.",
    formula=(
        "rollout[b] = A[layers - 1, b] @ ... @ A[1, b] @ A[0, b];  "
        "A[l, b] = residual I + (1 - residual) mean over h of weights[l, b, h]"
    ),
    source=ABNAR,
    tensors=(
        Tensor(
            "weights",
            ("layers", "batch", "heads", "steps", "steps"),
            "weights of self-attention in every head of every layer, the layer next to the inputs first",
        ),
    ),
    options=(_RESIDUAL,),
    outputs=(
        Tensor("rollout", ("batch", "steps", "steps"), "probabilities over the steps at the bottom, if weights are"),
    ),
    rules=(some_weights,),
    notes="A step that may attend to nothing in a layer, whose weights are 0, keeps its residual share alone.",
)

OPERATORS = (MULTI_HEAD_ATTENTION, ABLATION_IMPORTANCE, TAYLOR_IMPORTANCE, ATTENTION_ROLLOUT)
