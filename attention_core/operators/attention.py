"""The attention layers, as data."""

from __future__ import annotations

from dataclasses import replace

from attention_core.errors import OptionError, check_needed, check_unused
from attention_core.operators.common import (
    AINSLIE,
    BAHDANAU,
    BIAS,
    CONTEXT,
    DROPOUT,
    DROPOUT_MASK,
    GRAVES,
    LUONG,
    MASK,
    NADARAYA,
    NEED_WEIGHTS,
    POSITION,
    SCALE,
    SOFTCAP,
    TIME_MAJOR,
    VALID_LENS,
    VALUES,
    VASWANI,
    WEIGHTS,
)
from attention_core.operators.scoring import COSINE_SCORE
from attention_core.rules import heads_in_groups, position_for_each_key
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Part, Rule, Tensor

# ------------------------------------------------------------------------------------------------ options by name

_QUERY_SIZE = Option("query_size", "int", "features of a query")
_KEY_SIZE = Option("key_size", "int", "features of a key")
_WIDTH = Option("width", "float", "standard deviation of the kernel, 1/w", "1.0", "positive", keyword_only=True)
_LEARNED = Option(
    "learned",
    "bool",
    "whether w is a parameter with initial value 1/width, or the constant 1/width",
    "False",
    keyword_only=True,
)
_HIDDEN_OR_QUERY = Option(
    "hidden_size", "int", "features of the hidden layers; query_size if None", "None", keyword_only=True
)


# ------------------------------------------------------------------------------------------------ methods


_NOTHING_OPEN = "A query that may attend to nothing gets weights and context 0."
HIDDEN = (
    " A key and value that no query may attend to, NaN and inf included, have no effect and get gradient 0. Lengths "
    "apply to all heads."
)


def of_steps(tensor: Tensor) -> Tensor:
    """The tensor with further steps in place of keys."""
    return replace(tensor, axes=tuple("steps" if axis == "keys" else axis for axis in tensor.axes))


def extension(layer: str, given: tuple[Tensor, ...], memory: tuple[Tensor, ...], rules: tuple[Rule, ...]) -> Operator:
    """The method that adds steps to a memory; given is what `prepare` takes."""
    mask = memory[-1]
    past = replace(mask, axes=tuple("earlier" if axis == "queries" else axis for axis in mask.axes))
    return Operator(
        name=f"{layer}.extend",
        summary="Add the keys and values of further steps to a prepared memory.",
        formula=(
            "memory' = [memory; steps], with steps = prepare(keys, values, valid_lens, mask);  with position, "
            "memory'[b, position[b] + t] = steps[b, t], and memory'[b, j] = memory[b, j] at every other key j"
        ),
        source="this specification",
        tensors=(*memory[:-1], past, *map(of_steps, given)),
        keyword_tensors=(POSITION,),
        outputs=memory,
        rules=rules,
        notes=(
            "A key of the memory that any query could attend to is open to all later ones. With position, the memory "
            "keeps its number of keys, as compilers need it: prepare one with hidden keys as room, whose valid_lens "
            "are the first position. A step before the first key (position may be negative) or beyond the last is left "
            "out."
        ),
    )


def _attention_methods(
    layer: str,
    formula: str,
    source: str,
    query_axis: str,
    key_axis: str,
    memory_axis: str,
    keywords: tuple[Tensor, ...] = (BIAS, DROPOUT_MASK),
    rules: tuple[Rule, ...] = (),
    key_heads: str = "heads?",
) -> tuple[Operator, ...]:
    queries = Tensor("queries", ("batch", "heads?", "queries", query_axis), "query vectors")
    keys = Tensor("keys", ("batch", key_heads, "keys", key_axis), "key vectors")
    values = replace(VALUES, axes=("batch", key_heads, "keys", "value_features"))
    in_groups = (heads_in_groups,) if key_heads == "key_heads?" else ()
    memory_keys = Tensor("memory.keys", ("batch", key_heads, "keys", memory_axis), "prepared keys")
    memory_values = Tensor("memory.values", values.axes, "prepared values")
    memory_mask = Tensor("memory.mask", MASK.axes, "valid_lens and mask combined", "boolean", True, True)
    given, memory = (keys, values, VALID_LENS, MASK), (memory_keys, memory_values, memory_mask)
    return (
        Operator(
            name=f"{layer}.prepare",
            summary="Project the keys and zero what no query may attend to, once for many queries.",
            formula="memory = (projected keys, values, mask), with keys and values 0 where no query may attend",
            source="this specification",
            tensors=given,
            outputs=memory,
            rules=(position_for_each_key, *in_groups),
        ),
        extension(layer, given, memory, (position_for_each_key, *in_groups)),
        Operator(
            name=f"{layer}.attend",
            summary="Attend with queries to a prepared memory.",
            formula=formula,
            source=source,
            tensors=(queries, *memory),
            options=(NEED_WEIGHTS,),
            keyword_tensors=keywords,
            outputs=(CONTEXT, WEIGHTS),
            rules=(*in_groups, *rules),
            notes=_NOTHING_OPEN,
        ),
        Operator(
            name=f"{layer}.call",
            summary="Prepare the keys and values, and attend to them.",
            formula=formula,
            source=source,
            tensors=(queries, *given),
            options=(NEED_WEIGHTS,),
            keyword_tensors=keywords,
            outputs=(CONTEXT, WEIGHTS),
            rules=(position_for_each_key, *in_groups, *rules),
            notes=_NOTHING_OPEN + HIDDEN,
        ),
    )


# ------------------------------------------------------------------------------------------------ one score each

_DOT_FORMULA = "context, weights = attention_pooling(scaled_dot_score(queries, keys), values)"

DOT_PRODUCT_ATTENTION = Layer(
    name="DotProductAttention",
    summary="Attention by scaled inner products; it has no parameters.",
    formula=_DOT_FORMULA,
    source=VASWANI,
    options=(DROPOUT, SCALE, SOFTCAP, TIME_MAJOR),
    parameters=(),
    methods=_attention_methods(
        "DotProductAttention",
        _DOT_FORMULA,
        VASWANI,
        "features",
        "features",
        "features",
        key_heads="key_heads?",
    ),
    notes=(
        "Keys and values may have fewer heads than queries: query head h reads key head ⌊h · key_heads / heads⌋. "
        f"Source: {AINSLIE}."
    ),
)

_ADDITIVE_FORMULA = "context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)"

ADDITIVE_ATTENTION = Layer(
    name="AdditiveAttention",
    summary="Attention by a one-layer perceptron over query and key.",
    formula=_ADDITIVE_FORMULA,
    source=BAHDANAU,
    options=(
        _QUERY_SIZE,
        _KEY_SIZE,
        Option("hidden_size", "int", "features of the hidden layer"),
        DROPOUT,
        TIME_MAJOR,
    ),
    parameters=(
        Parameter("W_q", ("hidden_size", "query_size"), "projects queries", "query_size"),
        Parameter("W_k", ("hidden_size", "key_size"), "projects keys", "key_size"),
        Parameter("w_v", ("hidden_size",), "weight of each hidden feature", "hidden_size"),
    ),
    methods=_attention_methods(
        "AdditiveAttention", _ADDITIVE_FORMULA, BAHDANAU, "query_size", "key_size", "hidden_size"
    ),
    own_shapes=lambda sizes: {
        "W_q": (sizes["hidden_size"], sizes["query_size"]),
        "W_k": (sizes["hidden_size"], sizes["key_size"]),
        "w_v": (sizes["hidden_size"],),
    },
)

_GENERAL_FORMULA = "context, weights = attention_pooling(dot_score(queries, W keys), values)"

GENERAL_ATTENTION = Layer(
    name="GeneralAttention",
    summary="Attention by a bilinear form of query and key, also called multiplicative.",
    formula=_GENERAL_FORMULA,
    source=LUONG,
    options=(_QUERY_SIZE, _KEY_SIZE, DROPOUT, TIME_MAJOR),
    parameters=(Parameter("W", ("query_size", "key_size"), "projects keys to the size of queries", "key_size"),),
    methods=_attention_methods("GeneralAttention", _GENERAL_FORMULA, LUONG, "query_size", "key_size", "query_size"),
    own_shapes=lambda sizes: {"W": (sizes["query_size"], sizes["key_size"])},
)

_CONCAT_FORMULA = "context, weights = attention_pooling(vᵀ tanh(W [queries; keys] + b), values), without b unless bias"

CONCAT_ATTENTION = Layer(
    name="ConcatAttention",
    summary="Attention by a one-layer perceptron over the concatenation of query and key.",
    formula=_CONCAT_FORMULA,
    source=LUONG,
    options=(
        _QUERY_SIZE,
        _KEY_SIZE,
        Option("hidden_size", "int", "features of the hidden layer"),
        DROPOUT,
        Option("bias", "bool", "whether the hidden layer has a bias", "False", keyword_only=True),
        TIME_MAJOR,
    ),
    parameters=(
        Parameter("W", ("hidden_size", "query_size + key_size"), "projects [query; key]", "query_size + key_size"),
        Parameter("b", ("hidden_size",), "bias of the hidden layer, if bias", "query_size + key_size"),
        Parameter("v", ("hidden_size",), "weight of each hidden feature", "hidden_size"),
    ),
    methods=_attention_methods("ConcatAttention", _CONCAT_FORMULA, LUONG, "query_size", "key_size", "hidden_size"),
    complete=lambda config: {**config, "query_size + key_size": config["query_size"] + config["key_size"]},
    own_shapes=lambda sizes: {
        "W": (sizes["hidden_size"], sizes["query_size"] + sizes["key_size"]),
        **({"b": (sizes["hidden_size"],)} if sizes["bias"] else {}),
        "v": (sizes["hidden_size"],),
    },
    notes="The two halves of W are W_q and W_k of AdditiveAttention, which is the same function without a bias.",
)

_COSINE_FORMULA = "context, weights = attention_pooling(cosine_score(queries, keys), values)"

COSINE_ATTENTION = Layer(
    name="CosineAttention",
    summary="Attention by the cosine of the angle between query and key; it has no parameters.",
    formula=_COSINE_FORMULA,
    source=GRAVES,
    options=(DROPOUT, COSINE_SCORE.options[0], TIME_MAJOR),
    parameters=(),
    methods=_attention_methods("CosineAttention", _COSINE_FORMULA, GRAVES, "features", "features", "features"),
)

_LOCATION_FORMULA = "context, weights = attention_pooling(location_score(keys, W queries), values)"

LOCATION_ATTENTION = Layer(
    name="LocationAttention",
    summary="Attention by the query alone: it scores positions, and the keys do not matter.",
    formula=_LOCATION_FORMULA,
    source=LUONG,
    options=(_QUERY_SIZE, Option("num_positions", "int", "positions that have a score"), DROPOUT, TIME_MAJOR),
    parameters=(Parameter("W", ("num_positions", "query_size"), "scores of each position", "query_size"),),
    methods=_attention_methods(
        "LocationAttention", _LOCATION_FORMULA, LUONG, "query_size", "key_features", "key_features"
    ),
    own_shapes=lambda sizes: {"W": (sizes["num_positions"], sizes["query_size"])},
    notes=(
        "There may be fewer keys than num_positions, but not more. Only their number matters: keys may have any "
        "features, and get gradient 0."
    ),
)

_KERNEL_FORMULA = "context, weights = attention_pooling(gaussian_score(queries, keys, w), values)"

KERNEL_ATTENTION = Layer(
    name="KernelAttention",
    summary="Attention by a Gaussian kernel of the distance between query and key.",
    formula=_KERNEL_FORMULA,
    source=NADARAYA,
    options=(DROPOUT, _WIDTH, _LEARNED, TIME_MAJOR),
    parameters=(Parameter("w", (), "inverse width of the kernel, if learned", "one"),),
    methods=_attention_methods("KernelAttention", _KERNEL_FORMULA, NADARAYA, "features", "features", "features"),
    complete=lambda config: {**config, "one": 1},
    own_shapes=lambda sizes: {"w": ()} if sizes["learned"] else {},
    notes="width is in the units of queries and keys.",
)

# ------------------------------------------------------------------------------------------------ scores by name

SCORES: dict[str, tuple[Layer, Config]] = {
    "dot": (DOT_PRODUCT_ATTENTION, {"scale": 1.0}),
    "scaled_dot": (DOT_PRODUCT_ATTENTION, {}),
    "general": (GENERAL_ATTENTION, {}),
    "additive": (ADDITIVE_ATTENTION, {}),
    "concat": (CONCAT_ATTENTION, {}),
    "concat_bias": (CONCAT_ATTENTION, {"bias": True}),
    "cosine": (COSINE_ATTENTION, {}),
    "location": (LOCATION_ATTENTION, {}),
    "gaussian": (KERNEL_ATTENTION, {"learned": True}),
}
"""The layer of each score that a layer may have inside it, and the arguments that are not its sizes."""


def _sizes_of(score: str) -> set[str]:
    """The sizes that the layer of a score is made with."""
    return {option.name for option in SCORES[score][0].options if option.default is None}


SCORE_NAMES = tuple(SCORES)
"""The choices of the option `score`; `scored` returns the layer of each."""
HIDDEN_SCORES = tuple(score for score in SCORE_NAMES if "hidden_size" in _sizes_of(score))
"""The scores with a hidden layer, whose size is an option."""
ALIKE_SCORES = tuple(score for score in SCORE_NAMES if "query_size" not in _sizes_of(score))
"""The scores that compare query and key feature by feature, so that both must have the same size."""
CAPPED_SCORES = tuple(score for score in SCORE_NAMES if SOFTCAP in SCORES[score][0].options)
"""The scores that may be bounded by softcap."""
INNER_PRODUCTS = tuple(score for score in SCORE_NAMES if SCORES[score][0] is DOT_PRODUCT_ATTENTION)
"""The scores that are an inner product of query and key."""
ALIKE = (
    f"The scores {', '.join(ALIKE_SCORES[:-1])} and {ALIKE_SCORES[-1]} compare features one by one, and need as many "
    "in a query as in a key."
)


def score_option(default: str) -> Option:
    """The option that names a score."""
    return Option("score", "str", "name of the score", f"'{default}'", keyword_only=True, choices=SCORE_NAMES)


def score_layer(
    title: str,
    score: str,
    query_size: int,
    key_size: int,
    hidden_size: int | None,
    num_positions: int | None,
    dropout: float = 0.0,
    softcap: float | None = None,
) -> Part:
    """Return the attention layer with the score of that name, for queries and keys of these sizes.

    Raises: OptionError if the score cannot compare them, needs an argument that is None, or would ignore one.
    """
    if score not in HIDDEN_SCORES:
        check_unused(title, "the attention's hidden size", hidden_size, f"score={score!r} has no hidden layer")
    if score != "location":
        check_unused(title, "num_positions", num_positions, f"score={score!r} scores keys, not positions")
    if score not in CAPPED_SCORES:
        check_unused(title, "softcap", softcap, f"score={score!r} has no bound")
    if score in ALIKE_SCORES and query_size != key_size:
        raise OptionError(
            f"{title}: a key has {key_size} features but a query {query_size}, and score={score!r} compares them one "
            "by one. Give both the same size, or take score='general'."
        )
    if score == "location":
        check_needed(title, "num_positions", num_positions, "score='location' has a score for each position")
    sizes = {
        "query_size": query_size,
        "key_size": key_size,
        "hidden_size": query_size if hidden_size is None else hidden_size,
        "num_positions": num_positions,
    }
    layer, options = SCORES[score]
    given = {name: size for name, size in sizes.items() if name in _sizes_of(score)}
    bound = {} if softcap is None else {"softcap": softcap}
    return Part(layer, {**given, **options, **bound, "dropout": dropout})


OPERATORS = (
    DOT_PRODUCT_ATTENTION,
    ADDITIVE_ATTENTION,
    GENERAL_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    LOCATION_ATTENTION,
    KERNEL_ATTENTION,
)
