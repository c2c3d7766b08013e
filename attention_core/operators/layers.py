"""The attention layers, as data."""

from __future__ import annotations

from attention_core.errors import OptionError, check_needed, check_unused
from attention_core.operators.scoring import COSINE_SCORE
from attention_core.operators.tensors import (
    BAHDANAU,
    CONTEXT,
    DROPOUT,
    DROPOUT_MASK,
    GRAVES,
    LUONG,
    LUONG_LOCAL,
    MASK,
    MICHEL,
    NADARAYA,
    NEED_WEIGHTS,
    OFFSET,
    SCALE,
    TIME_MAJOR,
    VALID_LENS,
    VALUES,
    VASWANI,
    VASWANI_HEADS,
    VASWANI_POSITIONS,
    WEIGHTS,
    XU,
)
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Part, Sizes, Tensor

# ------------------------------------------------------------------------------------------------ options by name

_QUERY_SIZE = Option("query_size", "int", "features of a query")
_KEY_SIZE = Option("key_size", "int", "features of a key")
_WIDTH = Option("width", "float", "standard deviation of the kernel, 1/w", "1.0", "positive", keyword_only=True)
_LEARNED = Option(
    "learned",
    "bool",
    "whether w = 1/width is a parameter that begins there, or a constant",
    "False",
    keyword_only=True,
)
_HIDDEN_OR_QUERY = Option(
    "hidden_size", "int", "features of the hidden layers; query_size unless given", "None", keyword_only=True
)
NUM_POSITIONS = Option(
    "num_positions", "int", "positions of location scores, for score='location' alone", "None", keyword_only=True
)

SCORE_NAMES = ("dot", "scaled_dot", "general", "additive", "concat", "cosine", "location", "gaussian")
"""What the option `score` may be: the score of the layer that `scored` names."""
HIDDEN_SCORES = ("additive", "concat")
"""Those with a hidden layer, whose size may be chosen."""
ALIKE_SCORES = ("dot", "scaled_dot", "cosine", "gaussian")
"""Those that compare query and key feature by feature, so that both have the same size."""


def score_option(default: str) -> Option:
    """The option that names a score."""
    return Option(
        "score", "str", "how a key is scored, by name", f"'{default}'", keyword_only=True, choices=SCORE_NAMES
    )


# ------------------------------------------------------------------------------------------------ methods


def _attention_methods(
    layer: str,
    formula: str,
    source: str,
    query_axis: str,
    key_axis: str,
    memory_axis: str,
    keywords: tuple[Tensor, ...] = (DROPOUT_MASK,),
) -> tuple[Operator, ...]:
    queries = Tensor("queries", ("batch", "heads?", "queries", query_axis), "what is looked for")
    keys = Tensor("keys", ("batch", "heads?", "keys", key_axis), "what the queries are compared with")
    memory_keys = Tensor("memory.keys", ("batch", "heads?", "keys", memory_axis), "prepared keys")
    memory_values = Tensor("memory.values", VALUES.axes, "prepared values")
    memory_mask = Tensor("memory.mask", MASK.axes, "one mask of what may be attended to", "boolean", True, True)
    return (
        Operator(
            name=f"{layer}.prepare",
            module="layers",
            summary="Project the keys, clear what no query may attend to, and keep it for many queries.",
            formula="memory = (projected keys, values, mask), with keys and values 0 where they are hidden from all",
            source="this specification",
            tensors=(keys, VALUES, VALID_LENS, MASK),
            outputs=(memory_keys, memory_values, memory_mask),
        ),
        Operator(
            name=f"{layer}.attend",
            module="layers",
            summary="Attend with queries to a prepared memory.",
            formula=formula,
            source=source,
            tensors=(queries, memory_keys, memory_values, memory_mask),
            options=(NEED_WEIGHTS,),
            keyword_tensors=keywords,
            outputs=(CONTEXT, WEIGHTS),
        ),
        Operator(
            name=f"{layer}.call",
            module="layers",
            summary="Prepare the keys and values, and attend to them.",
            formula=formula,
            source=source,
            tensors=(queries, keys, VALUES, VALID_LENS, MASK),
            options=(NEED_WEIGHTS,),
            keyword_tensors=keywords,
            outputs=(CONTEXT, WEIGHTS),
        ),
    )


# ------------------------------------------------------------------------------------------------ one score each

_DOT_FORMULA = "context, weights = attention_pooling(scaled_dot_score(queries, keys), values)"

DOT_PRODUCT_ATTENTION = Layer(
    name="DotProductAttention",
    module="layers",
    summary="Attention by scaled inner products; it has no parameters.",
    formula=_DOT_FORMULA,
    source=VASWANI,
    options=(DROPOUT, SCALE, TIME_MAJOR),
    parameters=(),
    methods=_attention_methods("DotProductAttention", _DOT_FORMULA, VASWANI, "features", "features", "features"),
)

_ADDITIVE_FORMULA = "context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)"

ADDITIVE_ATTENTION = Layer(
    name="AdditiveAttention",
    module="layers",
    summary="Attention by a one-layer perceptron over query and key.",
    formula=_ADDITIVE_FORMULA,
    source=BAHDANAU,
    options=(
        _QUERY_SIZE,
        _KEY_SIZE,
        Option("hidden_size", "int", "features of the hidden layer in which query and key meet"),
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
    module="layers",
    summary="Attention by a bilinear form of query and key, also called multiplicative.",
    formula=_GENERAL_FORMULA,
    source=LUONG,
    options=(_QUERY_SIZE, _KEY_SIZE, DROPOUT, TIME_MAJOR),
    parameters=(Parameter("W", ("query_size", "key_size"), "projects keys to the size of queries", "key_size"),),
    methods=_attention_methods("GeneralAttention", _GENERAL_FORMULA, LUONG, "query_size", "key_size", "query_size"),
    own_shapes=lambda sizes: {"W": (sizes["query_size"], sizes["key_size"])},
)

_CONCAT_FORMULA = "context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)"

CONCAT_ATTENTION = Layer(
    name="ConcatAttention",
    module="layers",
    summary="Attention by a one-layer perceptron over the concatenation of query and key.",
    formula=_CONCAT_FORMULA,
    source=LUONG,
    options=(_QUERY_SIZE, _KEY_SIZE, Option("hidden_size", "int", "features of the hidden layer"), DROPOUT, TIME_MAJOR),
    parameters=(
        Parameter("W", ("hidden_size", "query_size + key_size"), "projects [query; key]", "query_size + key_size"),
        Parameter("v", ("hidden_size",), "weight of each hidden feature", "hidden_size"),
    ),
    methods=_attention_methods("ConcatAttention", _CONCAT_FORMULA, LUONG, "query_size", "key_size", "hidden_size"),
    complete=lambda config: {**config, "query_size + key_size": config["query_size"] + config["key_size"]},
    own_shapes=lambda sizes: {
        "W": (sizes["hidden_size"], sizes["query_size"] + sizes["key_size"]),
        "v": (sizes["hidden_size"],),
    },
)

_COSINE_FORMULA = "context, weights = attention_pooling(cosine_score(queries, keys), values)"

COSINE_ATTENTION = Layer(
    name="CosineAttention",
    module="layers",
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
    module="layers",
    summary="Attention by the query alone: it scores positions, whatever keys stand there.",
    formula=_LOCATION_FORMULA,
    source=LUONG,
    options=(_QUERY_SIZE, Option("num_positions", "int", "positions that have a score"), DROPOUT, TIME_MAJOR),
    parameters=(Parameter("W", ("num_positions", "query_size"), "scores of each position", "query_size"),),
    methods=_attention_methods(
        "LocationAttention", _LOCATION_FORMULA, LUONG, "query_size", "key_features", "key_features"
    ),
    own_shapes=lambda sizes: {"W": (sizes["num_positions"], sizes["query_size"])},
)

_KERNEL_FORMULA = "context, weights = attention_pooling(gaussian_score(queries, keys, w), values)"
_KERNEL_PARAMETERS = (Parameter("w", (), "inverse width of the kernel; there if learned", "one"),)

KERNEL_ATTENTION = Layer(
    name="KernelAttention",
    module="layers",
    summary="Attention by a Gaussian kernel of the distance between query and key.",
    formula=_KERNEL_FORMULA,
    source=NADARAYA,
    options=(DROPOUT, _WIDTH, _LEARNED, TIME_MAJOR),
    parameters=_KERNEL_PARAMETERS,
    methods=_attention_methods("KernelAttention", _KERNEL_FORMULA, NADARAYA, "features", "features", "features"),
    complete=lambda config: {**config, "one": 1},
    own_shapes=lambda sizes: {"w": ()} if sizes["learned"] else {},
)


def scored(
    title: str,
    score: str,
    query_size: int,
    key_size: int,
    hidden_size: int | None,
    num_positions: int | None,
    dropout: float = 0.0,
) -> Part:
    """The attention layer with the score of that name, for queries and keys of these sizes.

    Raises: OptionError if the score cannot compare them, needs an argument that is None, or would ignore one.
    """
    if score not in HIDDEN_SCORES:
        check_unused(title, "the attention's hidden size", hidden_size, f"score={score!r} has no hidden layer")
    if score != "location":
        check_unused(title, "num_positions", num_positions, f"score={score!r} scores keys, not positions")
    if score in ALIKE_SCORES and query_size != key_size:
        raise OptionError(
            f"{title}: a key has {key_size} features but a query {query_size}, and score={score!r} compares them one "
            "by one. Give both the same size, or take score='general'."
        )
    sized = {"query_size": query_size, "key_size": key_size, "dropout": dropout}
    hidden = {**sized, "hidden_size": query_size if hidden_size is None else hidden_size}
    if score == "location":
        check_needed(title, "num_positions", num_positions, "score='location' has a score for each position")
        located = {"query_size": query_size, "num_positions": num_positions, "dropout": dropout}
        return Part(LOCATION_ATTENTION, located)
    layers: dict[str, tuple[Layer, Config]] = {
        "dot": (DOT_PRODUCT_ATTENTION, {"scale": 1.0, "dropout": dropout}),
        "scaled_dot": (DOT_PRODUCT_ATTENTION, {"dropout": dropout}),
        "general": (GENERAL_ATTENTION, sized),
        "additive": (ADDITIVE_ATTENTION, hidden),
        "concat": (CONCAT_ATTENTION, hidden),
        "cosine": (COSINE_ATTENTION, {"dropout": dropout}),
        "gaussian": (KERNEL_ATTENTION, {"learned": True, "dropout": dropout}),
    }
    return Part(*layers[score])


# ------------------------------------------------------------------------------------------------ local and hard

_LOCAL_FORMULA = (
    "weights[i, j] = g[i, j] masked_softmax(scores)[i, j] over open j with |j - p[i]| <= window, context = weights "
    "values;  monotonic: p[i] = i + offset, g = 1;  predictive: p[i] = S[i] σ(v_pᵀ tanh(W_p queries[i])), "
    "g[i, j] = exp(-2 (j - p[i])²/window²)"
)
_OFFSET = Tensor(
    "offset", ("batch",), "position of the first query among the keys, for mode='monotonic'", "integer", True
)


def _local_inside(sizes: Sizes) -> dict[str, Part]:
    score, hidden = sizes["score"], sizes["hidden_size"]
    own = hidden if score in HIDDEN_SCORES else None
    part = scored("LocalAttention", score, sizes["query_size"], sizes["key_size"], own, sizes["num_positions"])
    return {"scored": part}


def _local_sizes(config: Config) -> Sizes:
    if config["mode"] == "monotonic" and config["score"] not in HIDDEN_SCORES:
        why = f"mode='monotonic' with score={config['score']!r} has no hidden layer"
        check_unused("LocalAttention", "hidden_size", config["hidden_size"], why)
    sizes = {**config, "hidden_size": config["hidden_size"] or config["query_size"]}
    _local_inside(sizes)
    return sizes


LOCAL_ATTENTION = Layer(
    name="LocalAttention",
    module="layers",
    summary="Attention to a window of keys, around the query's own position or around one that it predicts.",
    formula=_LOCAL_FORMULA,
    source=LUONG_LOCAL,
    options=(
        _QUERY_SIZE,
        _KEY_SIZE,
        Option("window", "int", "keys on either side of the centre, D"),
        Option(
            "mode",
            "str",
            "what the window stands around: the query's own position, or one that it predicts",
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
    ),
    complete=_local_sizes,
    own_shapes=lambda sizes: (
        {"W_p": (sizes["hidden_size"], sizes["query_size"]), "v_p": (sizes["hidden_size"],)}
        if sizes["mode"] == "predictive"
        else {}
    ),
    inside=_local_inside,
    parts={"scored": "the attention layer of score, which projects keys and scores them"},
)

_HARD_FORMULA = (
    "weights[i, j] = 1 where j is the first argmax over open k of scores[i, k] - ln(-ln(noise[i, k])), else 0;  "
    "context = weights values, and no gradient reaches the scores; without noise, its term is 0"
)
_NOISE = Tensor(
    "noise",
    ("batch", "heads?", "queries", "keys"),
    "uniform numbers between 0 and 1; with them, key j is drawn with its softmax probability",
    optional=True,
)


def _hard_inside(sizes: Sizes) -> dict[str, Part]:
    names = ("score", "query_size", "key_size", "hidden_size", "num_positions")
    score, *given = (sizes[name] for name in names)
    return {"scored": scored("HardAttention", score, *given)}


def _hard_sizes(config: Config) -> Sizes:
    _hard_inside(config)
    return config


HARD_ATTENTION = Layer(
    name="HardAttention",
    module="layers",
    summary="Attention to a single key: the one with the highest score, or one drawn by given noise.",
    formula=_HARD_FORMULA,
    source=XU + "; drawn by the Gumbel-max trick",
    options=(_QUERY_SIZE, _KEY_SIZE, score_option("additive"), _HIDDEN_OR_QUERY, NUM_POSITIONS, TIME_MAJOR),
    parameters=(),
    methods=_attention_methods(
        "HardAttention", _HARD_FORMULA, XU, "query_size", "key_size", "memory_features", (_NOISE,)
    ),
    complete=_hard_sizes,
    inside=_hard_inside,
    parts={"scored": "the attention layer of score, which projects keys and scores them"},
)

# ------------------------------------------------------------------------------------------------ kernel regression

_REGRESSION_FORMULA = "predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention"

NADARAYA_WATSON = Layer(
    name="NadarayaWatson",
    module="layers",
    summary="Kernel regression: predict at each query the average of the values, weighted by nearness of their keys.",
    formula=_REGRESSION_FORMULA,
    source=NADARAYA,
    options=(_WIDTH, _LEARNED),
    parameters=(),
    methods=(
        Operator(
            name="NadarayaWatson.call",
            module="layers",
            summary="Predict at each query.",
            formula=_REGRESSION_FORMULA,
            source=NADARAYA,
            tensors=(
                Tensor("queries", ("batch", "queries"), "points at which to predict"),
                Tensor("keys", ("batch", "keys"), "points that were observed"),
                Tensor("values", ("batch", "keys"), "what was observed there"),
                VALID_LENS,
                Tensor("mask", ("batch", "queries", "keys"), MASK.meaning, "boolean", True, True),
            ),
            outputs=(
                Tensor("predictions", ("batch", "queries"), "weighted averages of the values"),
                Tensor("weights", ("batch", "queries", "keys"), "probabilities over the keys"),
            ),
        ),
    ),
    inside=lambda sizes: {"kernel": Part(KERNEL_ATTENTION, {name: sizes[name] for name in ("width", "learned")})},
    parts={"kernel": "the KernelAttention that weighs the keys"},
)

# ------------------------------------------------------------------------------------------------ many heads

_HEADS_FORMULA = (
    "context = W_o [head_0; head_1; ...] + b_o;  head_h, weights_h = attention(queries_h, keys_h, values_h), with "
    "queries_h the h-th part of W_q queries + b_q, keys_h of W_k keys + b_k, values_h of W_v values + b_v"
)
_PER_HEAD = Option(
    "per_head",
    "bool",
    "whether to return the weights of every head, or their mean",
    "False",
    keyword_only=True,
)
_HEAD_MASK = Tensor(
    "head_mask",
    ("batch?", "heads"),
    "a factor of what each head gives to the context; 0 switches it off",
    optional=True,
)
_HEADS_DROPOUT = Tensor("dropout_mask", ("batch", "heads", "queries", "keys"), DROPOUT_MASK.meaning, optional=True)
_HEADS_QUERIES = Tensor("queries", ("batch", "queries", "query_size"), "what is looked for")
_HEADS_KEYS = Tensor("keys", ("batch", "keys", "key_size"), "what the queries are compared with")
_HEADS_VALUES = Tensor("values", ("batch", "keys", "value_size"), "what is averaged")
_HEADS_MEMORY = (
    Tensor("memory.keys", ("batch", "heads", "keys", "memory_features"), "prepared keys of each head"),
    Tensor("memory.values", ("batch", "heads", "keys", "head_size"), "prepared values of each head"),
    Tensor("memory.mask", ("batch", "heads", "queries", "keys"), MASK.meaning, "boolean", True, True),
)
_HEADS_CONTEXT = Tensor("context", ("batch", "queries", "query_size"), "the heads' averages, projected")


def _heads_sizes(config: Config) -> Sizes:
    hidden, heads = config["hidden_size"] or config["query_size"], config["num_heads"]
    if hidden % heads:
        raise OptionError(
            f"MultiHeadAttention: hidden_size is {hidden}, expected a multiple of num_heads, which is {heads}. "
            "Every head has the same number of features."
        )
    sizes = {
        **config,
        "hidden_size": hidden,
        "key_size": config["key_size"] or config["query_size"],
        "value_size": config["value_size"] or config["key_size"] or config["query_size"],
        "heads": heads,
        "head_size": hidden // heads,
    }
    _heads_inside(sizes)
    return sizes


def _heads_inside(sizes: Sizes) -> dict[str, Part]:
    head, score = sizes["head_size"], sizes["score"]
    part = scored("MultiHeadAttention", score, head, head, None, sizes["num_positions"], sizes["dropout"])
    return {"scored": part}


def _heads_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    hidden, query = sizes["hidden_size"], sizes["query_size"]
    matrices: dict[str, tuple[int, ...]] = {
        "W_q": (hidden, query),
        "W_k": (hidden, sizes["key_size"]),
        "W_v": (hidden, sizes["value_size"]),
        "W_o": (query, hidden),
    }
    if not sizes["bias"]:
        return matrices
    return {**matrices, **{f"b{name[1:]}": shape[:1] for name, shape in matrices.items()}}


MULTI_HEAD_ATTENTION = Layer(
    name="MultiHeadAttention",
    module="layers",
    summary="Attention by several heads at once, each with its own projections.",
    formula=_HEADS_FORMULA,
    source=VASWANI_HEADS,
    options=(
        _QUERY_SIZE,
        Option("num_heads", "int", "number of heads"),
        Option("key_size", "int", "features of a key; query_size unless given", "None", keyword_only=True),
        Option("value_size", "int", "features of a value; key_size unless given", "None", keyword_only=True),
        Option(
            "hidden_size", "int", "features of all heads together; query_size unless given", "None", keyword_only=True
        ),
        score_option("scaled_dot"),
        NUM_POSITIONS,
        Option("bias", "bool", "whether the four projections have biases", "True", keyword_only=True),
        DROPOUT,
        TIME_MAJOR,
    ),
    parameters=(
        Parameter("W_q", ("hidden_size", "query_size"), "projects queries", "query_size"),
        Parameter("W_k", ("hidden_size", "key_size"), "projects keys", "key_size"),
        Parameter("W_v", ("hidden_size", "value_size"), "projects values", "value_size"),
        Parameter("W_o", ("query_size", "hidden_size"), "projects the heads' averages", "hidden_size"),
        Parameter("b_q", ("hidden_size",), "biases of the queries, if bias", "query_size"),
        Parameter("b_k", ("hidden_size",), "biases of the keys, if bias", "key_size"),
        Parameter("b_v", ("hidden_size",), "biases of the values, if bias", "value_size"),
        Parameter("b_o", ("query_size",), "biases of the context, if bias", "hidden_size"),
    ),
    methods=(
        Operator(
            name="MultiHeadAttention.prepare",
            module="layers",
            summary="Project the keys and values of every head, and keep them for many queries.",
            formula="memory = (projected keys, projected values, mask), of keys and values 0 where hidden from all",
            source="this specification",
            tensors=(_HEADS_KEYS, _HEADS_VALUES, VALID_LENS, MASK),
            outputs=_HEADS_MEMORY,
        ),
        Operator(
            name="MultiHeadAttention.attend",
            module="layers",
            summary="Attend with queries to a prepared memory.",
            formula=_HEADS_FORMULA,
            source=VASWANI_HEADS,
            tensors=(_HEADS_QUERIES, *_HEADS_MEMORY),
            options=(_PER_HEAD, NEED_WEIGHTS),
            keyword_tensors=(_HEAD_MASK, _HEADS_DROPOUT),
            outputs=(_HEADS_CONTEXT, WEIGHTS),
        ),
        Operator(
            name="MultiHeadAttention.call",
            module="layers",
            summary="Prepare the keys and values, and attend to them.",
            formula=_HEADS_FORMULA,
            source=VASWANI_HEADS,
            tensors=(_HEADS_QUERIES, _HEADS_KEYS, _HEADS_VALUES, VALID_LENS, MASK),
            options=(_PER_HEAD, NEED_WEIGHTS),
            keyword_tensors=(_HEAD_MASK, _HEADS_DROPOUT),
            outputs=(_HEADS_CONTEXT, WEIGHTS),
        ),
    ),
    complete=_heads_sizes,
    own_shapes=_heads_shapes,
    inside=_heads_inside,
    parts={"scored": "the attention layer of score; its parameters are shared by the heads"},
)

_LOSSES = Option("losses", "function", "from head_mask (batch, heads) to the loss of each example, (batch,)")
_FACTORS = Tensor("head_mask", ("batch", "heads"), "the factors at which importance is asked: 1, or 0 for a head cut")
_IMPORTANCE = Tensor("importance", ("heads",), "in the units of the loss")

ABLATION_IMPORTANCE = Operator(
    name="ablation_importance",
    module="layers",
    summary="How much the loss rises when a head is switched off, for each head.",
    formula="importance[h] = mean over b of losses(head_mask with head h at 0)[b] - losses(head_mask)[b]",
    source="Michel et al. 2019, section 3.2, arXiv:1905.10650",
    options=(_LOSSES,),
    tensors=(_FACTORS,),
    outputs=(_IMPORTANCE,),
)

TAYLOR_IMPORTANCE = Operator(
    name="taylor_importance",
    module="layers",
    summary="How much the loss would change to first order if a head were switched off, for each head.",
    formula="importance[h] = mean over b of |head_mask[b, h] d losses(head_mask)[b] / d head_mask[b, h]|",
    source=MICHEL,
    options=(_LOSSES,),
    tensors=(_FACTORS,),
    outputs=(_IMPORTANCE,),
)

# ------------------------------------------------------------------------------------------------ positions

_POSITIONED = Tensor("inputs", ("batch", "steps", "features"), "one vector for each position")
_POSITIONED_OUT = Tensor("outputs", ("batch", "steps", "features"), "the inputs with their positions added")
_SINUSOID_FORMULA = (
    "outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), "
    "P[p, 2i + 1] = cos(p/10000^(2i/features)); concatenated: all sines first, then all cosines"
)

SINUSOIDAL_POSITIONS = Layer(
    name="SinusoidalPositions",
    module="layers",
    summary="Add to each input the sines and cosines of its position; it has no parameters.",
    formula=_SINUSOID_FORMULA,
    source=VASWANI_POSITIONS,
    options=(
        Option("features", "int", "features of an input", domain="even"),
        Option(
            "layout",
            "str",
            "whether sines and cosines take turns, or the sines come first",
            "'interleaved'",
            keyword_only=True,
            choices=("interleaved", "concatenated"),
        ),
    ),
    parameters=(),
    methods=(
        Operator(
            name="SinusoidalPositions.call",
            module="layers",
            summary="Add the positions from offset on.",
            formula=_SINUSOID_FORMULA,
            source=VASWANI_POSITIONS,
            tensors=(_POSITIONED,),
            options=(OFFSET,),
            outputs=(_POSITIONED_OUT,),
        ),
    ),
)

_LEARNED_FORMULA = "outputs[t] = inputs[t] + P[t + offset]"

LEARNED_POSITIONS = Layer(
    name="LearnedPositions",
    module="layers",
    summary="Add to each input a learned vector for its position.",
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
            module="layers",
            summary="Add the positions from offset on.",
            formula=_LEARNED_FORMULA,
            source="Gehring et al. 2017, section 3.1, arXiv:1705.03122",
            tensors=(_POSITIONED,),
            options=(OFFSET,),
            outputs=(_POSITIONED_OUT,),
        ),
    ),
    own_shapes=lambda sizes: {"P": (sizes["num_positions"], sizes["features"])},
)

POSITION_PERMUTATION = Operator(
    name="position_permutation",
    module="layers",
    summary="The order that turns interleaved sines and cosines into concatenated ones.",
    formula="permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]",
    source="this specification",
    options=(Option("features", "int", "features of an input", domain="even"),),
    tensors=(),
    outputs=(Tensor("permutation", ("features",), "the place of each concatenated feature", "integer"),),
)
