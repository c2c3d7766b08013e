"""Every function and layer of the specification, as data; and the files and public names that each backend has."""

from __future__ import annotations

from collections.abc import Mapping

from attention_core.specification import Layer, Operator, Option, Parameter, Sizes, Tensor

SPECIFICATION_VERSION = "1"

BAHDANAU = "Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473"
CHO = "Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN"
LUONG = "Luong et al. 2015, section 3.1, arXiv:1508.04025"
CHILD = "Child et al. 2019, section 4.2, arXiv:1904.10509"
GRAVES = "Graves et al. 2014, section 3.3.1, arXiv:1410.5401"
LIU = "Liu et al. 2018, section 4.2.4, arXiv:1801.10198"
LONGFORMER = "Beltagy et al. 2020, section 3.1, arXiv:2004.05150"
NADARAYA = "Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372"
VASWANI = "Vaswani et al. 2017, section 3.2.1, arXiv:1706.03762"

# ------------------------------------------------------------------------------------------------ tensors by name

QUERIES = Tensor("queries", ("batch", "heads?", "queries", "features"), "what is looked for")
KEYS = Tensor("keys", ("batch", "heads?", "keys", "features"), "what the queries are compared with")
VALUES = Tensor("values", ("batch", "heads?", "keys", "value_features"), "what is averaged")
SCORES = Tensor("scores", ("batch", "heads?", "queries", "keys"), "logits (natural logarithm)")
WEIGHTS = Tensor("weights", ("batch", "heads?", "queries", "keys"), "probabilities over the keys")
CONTEXT = Tensor("context", ("batch", "heads?", "queries", "value_features"), "weighted averages of the values")
VALID_LENS = Tensor(
    "valid_lens",
    ("batch", "queries?"),
    "key j is open where j < valid_len; below 0 counts as 0, beyond the keys as all of them",
    kind="integer",
    optional=True,
)
MASK = Tensor(
    "mask",
    ("batch", "heads?", "queries", "keys"),
    "True where a query may attend to a key; combines with valid_lens by and",
    kind="boolean",
    optional=True,
    broadcast=True,
)
DROPOUT_MASK = Tensor(
    "dropout_mask",
    ("batch", "heads?", "queries", "keys"),
    "0 or 1/(1 - rate), a factor of each weight",
    optional=True,
)

# ------------------------------------------------------------------------------------------------ options by name

NUM_KEYS = Option("num_keys", "int", "number of keys", domain="count")
SCALE = Option("scale", "float", "factor of the scores; 1/√features unless given", "None", "number", keyword_only=True)
NUM_QUERIES = Option("num_queries", "int", "number of queries", domain="count")
OFFSET = Option("offset", "int", "position of the first query among the keys", "0", "count", keyword_only=True)
DROPOUT = Option("dropout", "float", "rate at which weights are dropped in training", "0.0", "rate", keyword_only=True)

# ------------------------------------------------------------------------------------------------ functions

ATTENTION_MASK = Operator(
    name="attention_mask",
    module="masking",
    summary="Combine lengths and a boolean mask into one mask of what each query may attend to.",
    formula="open[b, i, j] = (j < valid_lens[b, i]) and mask[b, i, j]",
    source="this specification; True means 'may attend', as in ONNX Attention",
    options=(NUM_KEYS,),
    tensors=(VALID_LENS, MASK),
    outputs=(Tensor("mask", ("batch", "heads?", "queries", "keys"), "True = may attend", "boolean", broadcast=True),),
)

_RULE = Tensor("mask", ("one", "queries", "keys"), "True = may attend; the same for every sequence", "boolean")

CAUSAL_MASK = Operator(
    name="causal_mask",
    module="masking",
    summary="Let each query attend to its own position and those before it.",
    formula="open[i, j] = j <= i + offset",
    source="Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762",
    options=(NUM_QUERIES, NUM_KEYS, OFFSET),
    tensors=(),
    outputs=(_RULE,),
)

WINDOW_MASK = Operator(
    name="window_mask",
    module="masking",
    summary="Let each query attend to a window around its own position.",
    formula="open[i, j] = -left <= j - (i + offset) <= right",
    source=LONGFORMER,
    options=(
        NUM_QUERIES,
        NUM_KEYS,
        Option("left", "int", "number of keys before the query's position", domain="count", keyword_only=True),
        Option("right", "int", "number of keys after the query's position", domain="count", keyword_only=True),
        OFFSET,
    ),
    tensors=(),
    outputs=(_RULE,),
)

BLOCK_MASK = Operator(
    name="block_mask",
    module="masking",
    summary="Let each query attend to the block of positions in which it stands.",
    formula="open[i, j] = floor((i + offset) / size) == floor(j / size)",
    source=LIU,
    options=(
        NUM_QUERIES,
        NUM_KEYS,
        Option("size", "int", "number of positions in a block", keyword_only=True),
        OFFSET,
    ),
    tensors=(),
    outputs=(_RULE,),
)

STRIDE_MASK = Operator(
    name="stride_mask",
    module="masking",
    summary="Let each query attend to every so manieth position, counted from its own.",
    formula="open[i, j] = (i + offset - j) mod stride == 0",
    source=CHILD,
    options=(
        NUM_QUERIES,
        NUM_KEYS,
        Option("stride", "int", "distance of two positions that are attended to", keyword_only=True),
        OFFSET,
    ),
    tensors=(),
    outputs=(_RULE,),
)

GLOBAL_MASK = Operator(
    name="global_mask",
    module="masking",
    summary="Let global queries attend to every key, and every query to global keys.",
    formula="open[b, i, j] = global_queries[b, i] or global_keys[b, j]",
    source=LONGFORMER,
    tensors=(
        Tensor("global_queries", ("batch", "queries"), "True where a query attends to every key", "boolean"),
        Tensor("global_keys", ("batch", "keys"), "True where a key is attended to by every query", "boolean"),
    ),
    outputs=(Tensor("mask", ("batch", "queries", "keys"), "True = may attend", "boolean"),),
)

_TWO_MASKS = tuple(
    Tensor(name, MASK.axes, "True where a query may attend to a key", "boolean", broadcast=True)
    for name in ("first", "second")
)

MASK_AND = Operator(
    name="mask_and",
    module="masking",
    summary="Combine two masks: open where both are.",
    formula="open[b, i, j] = first[b, i, j] and second[b, i, j]",
    source="this specification",
    tensors=_TWO_MASKS,
    outputs=(Tensor("mask", MASK.axes, "True = may attend", "boolean", broadcast=True),),
)

MASK_OR = Operator(
    name="mask_or",
    module="masking",
    summary="Combine two masks: open where either is.",
    formula="open[b, i, j] = first[b, i, j] or second[b, i, j]",
    source="this specification",
    tensors=_TWO_MASKS,
    outputs=(Tensor("mask", MASK.axes, "True = may attend", "boolean", broadcast=True),),
)

MASKED_SOFTMAX = Operator(
    name="masked_softmax",
    module="masking",
    summary="Normalise scores over the keys each query may attend to.",
    formula="weights[i, j] = open[i, j] exp(scores[i, j]) / sum over open k of exp(scores[i, k])",
    source="Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762; closed rows as in ONNX Attention",
    tensors=(SCORES, VALID_LENS, MASK),
    outputs=(WEIGHTS,),
)

DOT_SCORE = Operator(
    name="dot_score",
    module="scoring",
    summary="Score each query against each key by their inner product.",
    formula="scores[i, j] = sum over c of queries[i, c] keys[j, c]",
    source=LUONG,
    tensors=(QUERIES, KEYS),
    outputs=(SCORES,),
)

SCALED_DOT_SCORE = Operator(
    name="scaled_dot_score",
    module="scoring",
    summary="Score each query against each key by a scaled inner product.",
    formula="scores[i, j] = scale · sum over c of queries[i, c] keys[j, c]",
    source=VASWANI,
    tensors=(QUERIES, KEYS),
    options=(SCALE,),
    outputs=(SCORES,),
)

ADDITIVE_SCORE = Operator(
    name="additive_score",
    module="scoring",
    summary="Score each projected query against each projected key by a weighted tanh of their sum.",
    formula="scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])",
    source=BAHDANAU,
    tensors=(
        Tensor("queries", ("batch", "heads?", "queries", "hidden_size"), "projected queries, W_q q"),
        Tensor("keys", ("batch", "heads?", "keys", "hidden_size"), "projected keys, W_k k"),
        Tensor("w_v", ("hidden_size",), "weight of each hidden feature"),
    ),
    outputs=(SCORES,),
)

COSINE_SCORE = Operator(
    name="cosine_score",
    module="scoring",
    summary="Score each query against each key by the cosine of the angle between them.",
    formula="scores[i, j] = scale · sum over c of queries[i, c] keys[j, c] / (‖queries[i]‖ ‖keys[j]‖)",
    source=GRAVES,
    tensors=(QUERIES, KEYS),
    options=(Option("scale", "float", "factor of the cosines; 1 unless given", "None", "number", keyword_only=True),),
    outputs=(SCORES,),
)

LOCATION_SCORE = Operator(
    name="location_score",
    module="scoring",
    summary="Score each position by the projected query alone, whatever key stands there.",
    formula="scores[i, j] = queries[i, j]",
    source=LUONG,
    options=(NUM_KEYS,),
    tensors=(Tensor("queries", ("batch", "heads?", "queries", "positions"), "projected queries, W q"),),
    outputs=(SCORES,),
)

GAUSSIAN_SCORE = Operator(
    name="gaussian_score",
    module="scoring",
    summary="Score each query against each key by a Gaussian kernel of their distance.",
    formula="scores[i, j] = -½ sum over c of ((queries[i, c] - keys[j, c]) w)²",
    source=NADARAYA,
    tensors=(QUERIES, KEYS, Tensor("w", (), "inverse width of the kernel; 1 unless given", optional=True)),
    outputs=(SCORES,),
)

ATTENTION_POOLING = Operator(
    name="attention_pooling",
    module="pooling",
    summary="Average the values of each query's open keys by the softmax of their scores.",
    formula="context[i] = sum over j of dropout_mask[i, j] weights[i, j] values[j];  weights = masked_softmax(scores)",
    source=BAHDANAU,
    tensors=(SCORES, VALUES, VALID_LENS, MASK),
    keyword_tensors=(DROPOUT_MASK,),
    outputs=(CONTEXT, WEIGHTS),
)

OPERATORS = (
    ATTENTION_MASK,
    CAUSAL_MASK,
    WINDOW_MASK,
    BLOCK_MASK,
    STRIDE_MASK,
    GLOBAL_MASK,
    MASK_AND,
    MASK_OR,
    MASKED_SOFTMAX,
    DOT_SCORE,
    SCALED_DOT_SCORE,
    ADDITIVE_SCORE,
    COSINE_SCORE,
    LOCATION_SCORE,
    GAUSSIAN_SCORE,
    ATTENTION_POOLING,
)

# ------------------------------------------------------------------------------------------------ attention layers


def _attention_methods(
    layer: str, formula: str, source: str, query_axis: str, key_axis: str, memory_axis: str
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
            keyword_tensors=(DROPOUT_MASK,),
            outputs=(CONTEXT, WEIGHTS),
        ),
        Operator(
            name=f"{layer}.call",
            module="layers",
            summary="Prepare the keys and values, and attend to them.",
            formula=formula,
            source=source,
            tensors=(queries, keys, VALUES, VALID_LENS, MASK),
            keyword_tensors=(DROPOUT_MASK,),
            outputs=(CONTEXT, WEIGHTS),
        ),
    )


_DOT_FORMULA = "context, weights = attention_pooling(scaled_dot_score(queries, keys), values)"
_ADDITIVE_FORMULA = "context, weights = attention_pooling(additive_score(W_q queries, W_k keys, w_v), values)"

DOT_PRODUCT_ATTENTION = Layer(
    name="DotProductAttention",
    module="layers",
    summary="Attention by scaled inner products; it has no parameters.",
    formula=_DOT_FORMULA,
    source=VASWANI,
    options=(DROPOUT, SCALE),
    parameters=(),
    methods=_attention_methods("DotProductAttention", _DOT_FORMULA, VASWANI, "features", "features", "features"),
    sizes=lambda config: {},
    shapes=lambda sizes: {},
)

ADDITIVE_ATTENTION = Layer(
    name="AdditiveAttention",
    module="layers",
    summary="Attention by a one-layer perceptron over query and key.",
    formula=_ADDITIVE_FORMULA,
    source=BAHDANAU,
    options=(
        Option("query_size", "int", "features of a query"),
        Option("key_size", "int", "features of a key"),
        Option("hidden_size", "int", "features of the hidden layer in which query and key meet"),
        DROPOUT,
    ),
    parameters=(
        Parameter("W_q", ("hidden_size", "query_size"), "projects queries", "query_size"),
        Parameter("W_k", ("hidden_size", "key_size"), "projects keys", "key_size"),
        Parameter("w_v", ("hidden_size",), "weight of each hidden feature", "hidden_size"),
    ),
    methods=_attention_methods(
        "AdditiveAttention", _ADDITIVE_FORMULA, BAHDANAU, "query_size", "key_size", "hidden_size"
    ),
    sizes=lambda config: _ints(config, "query_size", "key_size", "hidden_size"),
    shapes=lambda sizes: {
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
    options=(
        Option("query_size", "int", "features of a query"),
        Option("key_size", "int", "features of a key"),
        DROPOUT,
    ),
    parameters=(Parameter("W", ("query_size", "key_size"), "projects keys to the size of queries", "key_size"),),
    methods=_attention_methods("GeneralAttention", _GENERAL_FORMULA, LUONG, "query_size", "key_size", "query_size"),
    sizes=lambda config: _ints(config, "query_size", "key_size"),
    shapes=lambda sizes: {"W": (sizes["query_size"], sizes["key_size"])},
)

_CONCAT_FORMULA = "context, weights = attention_pooling(vᵀ tanh(W [queries; keys]), values)"

CONCAT_ATTENTION = Layer(
    name="ConcatAttention",
    module="layers",
    summary="Attention by a one-layer perceptron over the concatenation of query and key.",
    formula=_CONCAT_FORMULA,
    source=LUONG,
    options=(
        Option("query_size", "int", "features of a query"),
        Option("key_size", "int", "features of a key"),
        Option("hidden_size", "int", "features of the hidden layer"),
        DROPOUT,
    ),
    parameters=(
        Parameter("W", ("hidden_size", "query_size + key_size"), "projects [query; key]", "query_size + key_size"),
        Parameter("v", ("hidden_size",), "weight of each hidden feature", "hidden_size"),
    ),
    methods=_attention_methods("ConcatAttention", _CONCAT_FORMULA, LUONG, "query_size", "key_size", "hidden_size"),
    sizes=lambda config: {
        **_ints(config, "query_size", "key_size", "hidden_size"),
        "query_size + key_size": int(config["query_size"] or 0) + int(config["key_size"] or 0),
    },
    shapes=lambda sizes: {
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
    options=(DROPOUT, COSINE_SCORE.options[0]),
    parameters=(),
    methods=_attention_methods("CosineAttention", _COSINE_FORMULA, GRAVES, "features", "features", "features"),
    sizes=lambda config: {},
    shapes=lambda sizes: {},
)

# ------------------------------------------------------------------------------------------------ recurrent layers

GRU_FORMULA = (
    "r = σ(W0 x + b0 + U0 h);  z = σ(W1 x + b1 + U1 h);  n = tanh(W2 x + b2 + r * (U2 h + b_hn));  "
    "h' = (1 - z) * n + z * h"
)
_VOCAB = Option("vocab_size", "int", "number of token ids")
_EMBED = Option("embed_size", "int", "features of an embedded token")
_HIDDEN = Option("hidden_size", "int", "features of the state of each recurrent layer")
_LAYERS = Option("num_layers", "int", "number of stacked recurrent layers", "1")
_BETWEEN = Option(
    "dropout",
    "float",
    "rate at which features are dropped between recurrent layers in training",
    "0.0",
    "rate",
    keyword_only=True,
)

_STATE = Tensor("state", ("num_layers", "batch", "hidden_size"), "state of each recurrent layer")
_STATE_OR_ZERO = Tensor(_STATE.name, _STATE.axes, "state before the first step; zeros unless given", optional=True)
_STEP_LENS = Tensor(
    "valid_lens", ("batch",), "steps of each sequence; later ones give 0 and leave the state alone", "integer", True
)
_OUTPUTS = Tensor("outputs", ("batch", "steps", "hidden_size"), "state of the top layer after each step")
_BETWEEN_MASK = Tensor(
    "dropout_mask",
    ("num_layers - 1", "batch", "steps", "hidden_size"),
    "0 or 1/(1 - rate), a factor of the outputs of every layer but the top one",
    optional=True,
)
_BETWEEN_STEP_MASK = Tensor(
    "dropout_mask", ("num_layers - 1", "batch", "hidden_size"), "the same for one step", optional=True
)
_EMBEDDING = Parameter("embedding", ("vocab_size", "embed_size"), "one row for each token id", "embed_size")


def _gru_parameters(prefix: str, input_size: str) -> tuple[Parameter, ...]:
    rows = "hidden_size"
    return (
        Parameter(f"{prefix}W", ("3", rows, input_size), "input weights of the gates r, z, n", rows),
        Parameter(f"{prefix}U", ("3", rows, rows), "hidden weights of the gates r, z, n", rows),
        Parameter(f"{prefix}b", ("3", rows), "biases of the gates r, z, n", rows),
        Parameter(f"{prefix}b_hn", (rows,), "bias of the hidden side of n, inside the reset gate", rows),
    )


def _gru_shapes(prefix: str, input_size: int, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    hidden = sizes["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(sizes["num_layers"]):
        shapes[f"{prefix}{layer}.W"] = (3, hidden, hidden if layer else input_size)
        shapes[f"{prefix}{layer}.U"] = (3, hidden, hidden)
        shapes[f"{prefix}{layer}.b"] = (3, hidden)
        shapes[f"{prefix}{layer}.b_hn"] = (hidden,)
    return shapes


def _ints(config: Mapping[str, int | float | None], *names: str) -> dict[str, int]:
    return {name: int(config[name] or 0) for name in names}


def _recurrent_sizes(config: Mapping[str, int | float | None], *names: str) -> dict[str, int]:
    sizes = _ints({"num_layers": 1, **config}, *names, "hidden_size", "num_layers")
    return {**sizes, "num_layers - 1": sizes["num_layers"] - 1}


GRU = Layer(
    name="GRU",
    module="recurrent",
    summary="Stacked gated recurrent units over padded sequences.",
    formula=GRU_FORMULA,
    source=CHO,
    options=(Option("input_size", "int", "features of an input"), _HIDDEN, _LAYERS, _BETWEEN),
    parameters=_gru_parameters("{layer}.", "input_size, then hidden_size"),
    methods=(
        Operator(
            name="GRU.call",
            module="recurrent",
            summary="Run over a batch of sequences.",
            formula="outputs[t], state[t] = step(inputs[t], state[t - 1]) where t < valid_len; else 0 and state[t - 1]",
            source=CHO,
            tensors=(
                Tensor("inputs", ("batch", "steps", "input_size"), "one vector for each step"),
                _STEP_LENS,
                _STATE_OR_ZERO,
            ),
            keyword_tensors=(_BETWEEN_MASK,),
            outputs=(_OUTPUTS, _STATE),
        ),
        Operator(
            name="GRU.step",
            module="recurrent",
            summary="Run one step.",
            formula=GRU_FORMULA,
            source=CHO,
            tensors=(Tensor("inputs", ("batch", "input_size"), "one vector"), _STATE),
            keyword_tensors=(_BETWEEN_STEP_MASK,),
            outputs=(Tensor("output", ("batch", "hidden_size"), "state of the top layer"), _STATE),
        ),
    ),
    sizes=lambda config: _recurrent_sizes(config, "input_size"),
    shapes=lambda sizes: _gru_shapes("", sizes["input_size"], sizes),
)

_TOKENS = Tensor("tokens", ("batch", "steps"), "token ids", "integer")

GRU_ENCODER = Layer(
    name="GRUEncoder",
    module="recurrent",
    summary="Embed tokens and run stacked gated recurrent units over them.",
    formula="outputs, state = GRU(embedding[tokens])",
    source=CHO,
    options=(_VOCAB, _EMBED, _HIDDEN, _LAYERS, _BETWEEN),
    parameters=(_EMBEDDING, *_gru_parameters("rnn.{layer}.", "embed_size, then hidden_size")),
    methods=(
        Operator(
            name="GRUEncoder.call",
            module="recurrent",
            summary="Encode a batch of token sequences.",
            formula="outputs, state = GRU(embedding[tokens])",
            source=CHO,
            tensors=(_TOKENS, _STEP_LENS, _STATE_OR_ZERO),
            keyword_tensors=(_BETWEEN_MASK,),
            outputs=(_OUTPUTS, _STATE),
        ),
    ),
    sizes=lambda config: _recurrent_sizes(config, "vocab_size", "embed_size"),
    shapes=lambda sizes: {
        "embedding": (sizes["vocab_size"], sizes["embed_size"]),
        **_gru_shapes("rnn.", sizes["embed_size"], sizes),
    },
)

# ------------------------------------------------------------------------------------------------ decoders

_DECODER_FORMULA = (
    "context, weights = AdditiveAttention(top state, encoder_outputs);  "
    "state' = GRU([context; embedding[token]], state);  logits = dense.W state'[top] + dense.b"
)
_ENCODER_OUTPUTS = Tensor("encoder_outputs", ("batch", "keys", "memory_size"), "keys and values of the attention")
_STEP_VALID_LENS = Tensor("valid_lens", ("batch", "steps?"), VALID_LENS.meaning, "integer", True)
_STEP_MASK = Tensor("mask", ("batch", "steps", "keys"), MASK.meaning, "boolean", True, True)
_ONE_MASK = Tensor("mask", ("batch", "one", "keys"), MASK.meaning, "boolean", True, True)
_ATTENTION_DROPOUT = Tensor(
    "attention_dropout_mask", ("batch", "steps", "keys"), "0 or 1/(1 - rate), a factor of each weight", optional=True
)


def _decoder_sizes(config: Mapping[str, int | float | None]) -> dict[str, int]:
    hidden = config["hidden_size"]
    defaults = {
        "memory_size": config.get("memory_size") or hidden,
        "attention_size": config.get("attention_size") or hidden,
    }
    sizes = _recurrent_sizes({**config, **defaults}, "vocab_size", "embed_size", "memory_size", "attention_size")
    return {**sizes, "one": 1}


BAHDANAU_DECODER = Layer(
    name="BahdanauDecoder",
    module="decoders",
    summary="Decode with additive attention whose query is the previous state of the top recurrent layer.",
    formula=_DECODER_FORMULA,
    source=BAHDANAU + "; with GRU layers and a dense readout",
    options=(
        _VOCAB,
        _EMBED,
        _HIDDEN,
        _LAYERS,
        Option(
            "memory_size",
            "int",
            "features of the encoder's outputs; hidden_size unless given",
            "None",
            keyword_only=True,
        ),
        Option(
            "attention_size",
            "int",
            "hidden features of the attention; hidden_size unless given",
            "None",
            keyword_only=True,
        ),
        Option(
            "dropout",
            "float",
            "rate at which attention weights, and features between recurrent layers, are dropped in training",
            "0.0",
            "rate",
            keyword_only=True,
        ),
    ),
    parameters=(
        _EMBEDDING,
        Parameter("attention.W_q", ("attention_size", "hidden_size"), "projects the state", "hidden_size"),
        Parameter("attention.W_k", ("attention_size", "memory_size"), "projects encoder outputs", "memory_size"),
        Parameter("attention.w_v", ("attention_size",), "weight of each hidden feature", "attention_size"),
        *_gru_parameters("rnn.{layer}.", "memory_size + embed_size, then hidden_size"),
        Parameter("dense.W", ("vocab_size", "hidden_size"), "weights of the readout", "hidden_size"),
        Parameter("dense.b", ("vocab_size",), "biases of the readout", "hidden_size"),
    ),
    methods=(
        Operator(
            name="BahdanauDecoder.prepare",
            module="decoders",
            summary="Project and clear the encoder's outputs, once for all steps.",
            formula="memory = AdditiveAttention.prepare(encoder_outputs, encoder_outputs)",
            source="this specification",
            tensors=(_ENCODER_OUTPUTS, _STEP_VALID_LENS, _STEP_MASK),
            outputs=(
                Tensor("memory.keys", ("batch", "keys", "attention_size"), "prepared keys"),
                Tensor("memory.values", ("batch", "keys", "memory_size"), "prepared values"),
                Tensor("memory.mask", _STEP_MASK.axes, MASK.meaning, "boolean", True, True),
            ),
        ),
        Operator(
            name="BahdanauDecoder.step",
            module="decoders",
            summary="Decode one token.",
            formula=_DECODER_FORMULA,
            source=BAHDANAU,
            tensors=(
                Tensor("tokens", ("batch",), "token ids", "integer"),
                _STATE,
                Tensor("memory.keys", ("batch", "keys", "attention_size"), "prepared keys"),
                Tensor("memory.values", ("batch", "keys", "memory_size"), "prepared values"),
                Tensor("memory.mask", _ONE_MASK.axes, MASK.meaning, "boolean", True, True),
            ),
            keyword_tensors=(
                _BETWEEN_STEP_MASK,
                Tensor("attention_dropout_mask", ("batch", "keys"), "a factor of each weight", optional=True),
            ),
            outputs=(
                Tensor("logits", ("batch", "vocab_size"), "scores of the next token (natural logarithm)"),
                _STATE,
                Tensor("weights", ("batch", "keys"), "probabilities over the keys"),
            ),
        ),
        Operator(
            name="BahdanauDecoder.call",
            module="decoders",
            summary="Decode given tokens, each step reading its own token (teacher forcing).",
            formula="logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)",
            source=BAHDANAU,
            tensors=(_TOKENS, _ENCODER_OUTPUTS, _STATE, _STEP_VALID_LENS, _STEP_MASK),
            keyword_tensors=(_BETWEEN_MASK, _ATTENTION_DROPOUT),
            outputs=(
                Tensor("logits", ("batch", "steps", "vocab_size"), "scores of each next token (natural logarithm)"),
                _STATE,
                Tensor("weights", ("batch", "steps", "keys"), "probabilities over the keys"),
            ),
        ),
        Operator(
            name="BahdanauDecoder.greedy",
            module="decoders",
            summary="Decode by feeding back the most probable token, up to an end token.",
            formula="token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos",
            source=BAHDANAU + ", with beam width 1",
            tensors=(
                _ENCODER_OUTPUTS,
                _STATE,
                Tensor("valid_lens", ("batch",), VALID_LENS.meaning, "integer", True),
                _ONE_MASK,
            ),
            options=(
                Option("bos", "int", "token that starts a sequence", domain="token", keyword_only=True),
                Option("eos", "int", "token that ends a sequence", domain="token", keyword_only=True),
                Option("max_steps", "int", "most tokens to decode", domain="count", keyword_only=True),
            ),
            outputs=(
                Tensor("tokens", ("batch", "max_steps"), "decoded ids; eos from the end on", "integer"),
                Tensor("lengths", ("batch",), "decoded tokens before eos", "integer"),
                Tensor("weights", ("batch", "max_steps", "keys"), "probabilities over the keys; 0 after the end"),
            ),
        ),
    ),
    sizes=_decoder_sizes,
    shapes=lambda sizes: {
        "embedding": (sizes["vocab_size"], sizes["embed_size"]),
        "attention.W_q": (sizes["attention_size"], sizes["hidden_size"]),
        "attention.W_k": (sizes["attention_size"], sizes["memory_size"]),
        "attention.w_v": (sizes["attention_size"],),
        **_gru_shapes("rnn.", sizes["memory_size"] + sizes["embed_size"], sizes),
        "dense.W": (sizes["vocab_size"], sizes["hidden_size"]),
        "dense.b": (sizes["vocab_size"],),
    },
)

LAYERS = (
    DOT_PRODUCT_ATTENTION,
    ADDITIVE_ATTENTION,
    GENERAL_ATTENTION,
    CONCAT_ATTENTION,
    COSINE_ATTENTION,
    GRU,
    GRU_ENCODER,
    BAHDANAU_DECODER,
)


def find(name: str) -> Operator | Layer:
    """The function or layer of that name."""
    for entry in (*OPERATORS, *LAYERS):
        if entry.name == name:
            return entry
    raise KeyError(f"no operator {name!r}; there are {', '.join(entry.name for entry in (*OPERATORS, *LAYERS))}")


# ------------------------------------------------------------------------------------------------ structure

FRAMEWORKS = ("torch", "tf", "jax", "mxnet")

FILES: dict[str, tuple[str, ...]] = {
    "masking": (
        "attention_mask",
        "causal_mask",
        "window_mask",
        "block_mask",
        "stride_mask",
        "global_mask",
        "mask_and",
        "mask_or",
        "masked_softmax",
    ),
    "scoring": ("dot_score", "scaled_dot_score", "additive_score", "cosine_score", "location_score", "gaussian_score"),
    "pooling": ("attention_pooling",),
    "layers": (
        "Memory",
        "DotProductAttention",
        "AdditiveAttention",
        "GeneralAttention",
        "ConcatAttention",
        "CosineAttention",
    ),
    "recurrent": ("GRU", "GRUEncoder"),
    "decoders": ("BahdanauDecoder",),
    "parameters": ("get_parameters", "set_parameters"),
    "runtime": ("configure", "describe", "from_numpy", "to_numpy", "build", "vjp"),
}
"""The files of every backend and the public names of each, in order."""

EXPORTED = ("masking", "scoring", "pooling", "layers", "recurrent", "decoders", "parameters")
"""The files whose names a backend's package exports; `runtime` is the court's doorway and is imported by name."""

FRAMEWORK_KEYWORDS: dict[str, tuple[str, ...]] = {
    "torch": ("dtype", "device"),
    "tf": ("dtype", "name", "training"),
    "jax": ("dtype", "rngs"),
    "mxnet": ("dtype", "ctx", "prefix", "params"),
}
"""Keywords that a framework's users expect; they follow the shared arguments of a constructor or a call."""
