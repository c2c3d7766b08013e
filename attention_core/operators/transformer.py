"""The Transformer: layers of self-attention and feed-forward networks, encoders and decoders of them, as data."""

from __future__ import annotations

from attention_core.errors import check_needed, check_unused
from attention_core.operators.attention import SCORE_NAMES
from attention_core.operators.common import (
    MASK,
    NEED_WEIGHTS,
    VALID_LENS,
    VASWANI_LAYERS,
    WU,
    XIONG,
)
from attention_core.operators.decoders import BEAM_OUTPUTS, BOS, EOS, GREEDY_OUTPUTS, MAX_STEPS, SEARCH
from attention_core.operators.encoders import EMBEDDING, TOKENS, VOCAB_SIZE
from attention_core.operators.feed_forward import ACTIVATION, FEED_FORWARD, GATED, HIDDEN_FEATURES
from attention_core.operators.multi_head import MULTI_HEAD_ATTENTION, PER_HEAD
from attention_core.operators.normalization import EPSILON, INPUTS, LAYER_NORM, RMS_NORM
from attention_core.operators.positions import LEARNED_POSITIONS, SINUSOIDAL_POSITIONS
from attention_core.rules import hypotheses, known_tokens, position_for_each_step, weights_per_head
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Part, Sizes, Tensor

# ------------------------------------------------------------------------------------------------ options by name

_FEATURES = Option("features", "int", "features of a step")
_NUM_HEADS = Option("num_heads", "int", "number of heads")
_MEMORY_SIZE = Option(
    "memory_size", "int", "features of the encoder's outputs; features if None", "None", keyword_only=True
)
_SUBLAYERS = (
    Option("num_key_heads", "int", "number of heads of keys and values; num_heads if None", "None", keyword_only=True),
    Option(
        "score",
        "str",
        "name of the score",
        "'scaled_dot'",
        keyword_only=True,
        choices=tuple(score for score in SCORE_NAMES if score != "location"),
    ),
    Option(
        "norm",
        "str",
        "whether sums are normalized, as in the paper, or what a sublayer reads",
        "'post'",
        keyword_only=True,
        choices=("post", "pre"),
    ),
    Option("rms", "bool", "whether RMSNorm takes the place of LayerNorm", "False", keyword_only=True),
    ACTIVATION,
    GATED,
    Option("bias", "bool", "whether projections, networks and LayerNorm have biases", "True", keyword_only=True),
    EPSILON,
    Option(
        "dropout",
        "float",
        "dropout rate of the weights, of hidden features and of what a sublayer adds, in training",
        "0.0",
        "rate",
        keyword_only=True,
    ),
)
_NUM_LAYERS = Option("num_layers", "int", "number of layers", "1")
_POSITIONS = (
    Option(
        "positions",
        "str",
        "what is added to the embedded tokens",
        "'sinusoidal'",
        keyword_only=True,
        choices=("sinusoidal", "learned", "none"),
    ),
    Option(
        "num_positions", "int", "positions that have a vector, for positions='learned' only", "None", keyword_only=True
    ),
)

# ------------------------------------------------------------------------------------------------ tensors by name

_STEP_LENS = Tensor(
    "valid_lens",
    ("batch",),
    "steps of each sequence; later ones have no effect, and output 0",
    "integer",
    True,
)
_SELF_MASK = Tensor(
    "mask",
    ("batch", "heads?", "steps", "steps"),
    "True where a step may attend to another; combined with valid_lens by logical and",
    "boolean",
    True,
    True,
)
_SELF_BIAS = Tensor(
    "bias",
    ("batch?", "heads?", "steps", "steps"),
    "numbers added to the scores of self-attention; -inf hides a step from another",
    optional=True,
    broadcast=True,
)
_FACTORS = "0 or 1/(1 - rate)"
_HIDDEN_DROPOUT = Tensor(
    "hidden_dropout_mask",
    ("batch", "steps", "hidden_size"),
    f"factor of each hidden feature: {_FACTORS}",
    optional=True,
)
_ADDED_DROPOUT = Tensor(
    "dropout_mask",
    ("sublayers", "batch", "steps", "features"),
    f"factor of what each sublayer adds, in order: {_FACTORS}",
    optional=True,
)
_SELF_DROPOUT = Tensor(
    "self_dropout_mask",
    ("batch", "heads", "steps", "steps"),
    f"factor of each weight of self-attention: {_FACTORS}",
    optional=True,
)
_OUTPUTS = Tensor("outputs", INPUTS.axes, "one vector for each step")
_SELF_WEIGHTS = Tensor("weights", ("batch", "heads", "steps", "steps"), "probabilities over the steps, of every head")
_ENCODER_OUTPUTS = Tensor("encoder_outputs", ("batch", "keys", "memory_size"), "keys and values of cross-attention")
_KEY_LENS = Tensor("valid_lens", ("batch", "steps?"), VALID_LENS.meaning, "integer", True)
_KEY_MASK = Tensor("mask", ("batch", "heads?", "steps", "keys"), MASK.meaning, "boolean", True, True)
_CROSS_DROPOUT = Tensor(
    "attention_dropout_mask",
    ("batch", "heads", "steps", "keys"),
    f"factor of each weight of cross-attention: {_FACTORS}",
    optional=True,
)
_CROSS_WEIGHTS = Tensor("weights", ("batch", "heads", "steps", "keys"), "probabilities over the keys, of every head")


def _of_layers(tensor: Tensor) -> Tensor:
    """The tensor with one more axis, for each layer."""
    axes = ("num_layers", *tensor.axes)
    return Tensor(tensor.name, axes, tensor.meaning, tensor.kind, tensor.optional, tensor.broadcast)


# ------------------------------------------------------------------------------------------------ sizes and parts


def _layer_sizes(config: Config) -> Sizes:
    """The sizes of a layer, with those of the attention inside it."""
    attention = MULTI_HEAD_ATTENTION.sizes(_attention(config))
    names = ("heads", "head_size", "key_heads")
    memory = {"memory_size": config["memory_size"] or config["features"]} if "memory_size" in config else {}
    return {**config, **memory, **{name: attention[name] for name in names}, "sublayers": 3 if memory else 2}


def _attention(sizes: Sizes, **changed: int) -> dict[str, object]:
    names = ("num_heads", "num_key_heads", "score", "bias", "dropout")
    return {"query_size": sizes["features"], **{name: sizes[name] for name in names}, **changed}


def _norm(sizes: Sizes) -> Part:
    config = {name: sizes[name] for name in ("features", "epsilon")}
    return Part(RMS_NORM, config) if sizes["rms"] else Part(LAYER_NORM, {**config, "bias": sizes["bias"]})


def _layer_parts(sizes: Sizes) -> dict[str, Part]:
    names = ("features", "hidden_size", "activation", "gated", "bias", "dropout")
    parts = {"self_attention": Part(MULTI_HEAD_ATTENTION, _attention(sizes))}
    if "memory_size" in sizes:
        memory = sizes["memory_size"]
        parts["cross_attention"] = Part(MULTI_HEAD_ATTENTION, _attention(sizes, key_size=memory, value_size=memory))
    parts["feed_forward"] = Part(FEED_FORWARD, {name: sizes[name] for name in names})
    return parts | {f"norm_{number}": _norm(sizes) for number in range(1, sizes["sublayers"] + 1)}


_PARTS = {
    "self_attention": "the MultiHeadAttention of each step to the steps",
    "cross_attention": "the MultiHeadAttention of each step to the encoder's outputs",
    "feed_forward": "the FeedForward",
    "norm_1": "the LayerNorm or RMSNorm of the first sublayer",
    "norm_2": "that of the second",
    "norm_3": "that of the third",
}

# ------------------------------------------------------------------------------------------------ layers

_SUBLAYER_FORMULA = "x' = norm(x + f(x)) (post), x + f(norm(x)) (pre), for each sublayer f in order"
_ENCODER_LAYER_FORMULA = f"{_SUBLAYER_FORMULA};  f = self_attention(x, x, x), feed_forward(x)"
_DECODER_LAYER_FORMULA = (
    f"{_SUBLAYER_FORMULA};  f = self_attention(x, x, x), cross_attention(x, encoder_outputs, encoder_outputs), "
    "feed_forward(x);  step t attends to the steps up to t"
)

TRANSFORMER_ENCODER_LAYER = Layer(
    name="TransformerEncoderLayer",
    summary="Let each step attend to all steps, then transform it on its own.",
    formula=_ENCODER_LAYER_FORMULA,
    source=f"{VASWANI_LAYERS}; norm='pre': {XIONG}",
    options=(
        _FEATURES,
        _NUM_HEADS,
        HIDDEN_FEATURES,
        *_SUBLAYERS,
        Option("causal", "bool", "whether a step attends only to itself and earlier ones", "False", keyword_only=True),
    ),
    parameters=(),
    methods=(
        Operator(
            name="TransformerEncoderLayer.call",
            summary="Transform the steps of a batch of sequences.",
            formula=_ENCODER_LAYER_FORMULA,
            source=VASWANI_LAYERS,
            tensors=(INPUTS, _STEP_LENS, _SELF_MASK),
            options=(NEED_WEIGHTS,),
            keyword_tensors=(_SELF_BIAS, _SELF_DROPOUT, _HIDDEN_DROPOUT, _ADDED_DROPOUT),
            outputs=(_OUTPUTS, _SELF_WEIGHTS),
        ),
    ),
    complete=_layer_sizes,
    inside=_layer_parts,
    parts={name: what for name, what in _PARTS.items() if name not in ("cross_attention", "norm_3")},
    notes="What stands in a step from valid_lens on, NaN and inf included, has no effect and gets gradient 0.",
)

TRANSFORMER_DECODER_LAYER = Layer(
    name="TransformerDecoderLayer",
    summary="Let each step attend to the steps so far and to an encoder's outputs, then transform it on its own.",
    formula=_DECODER_LAYER_FORMULA,
    source=f"{VASWANI_LAYERS}; norm='pre': {XIONG}",
    options=(_FEATURES, _NUM_HEADS, HIDDEN_FEATURES, _MEMORY_SIZE, *_SUBLAYERS),
    parameters=(),
    methods=(
        Operator(
            name="TransformerDecoderLayer.call",
            summary="Transform the steps of a batch of sequences.",
            formula=_DECODER_LAYER_FORMULA,
            source=VASWANI_LAYERS,
            tensors=(INPUTS, _ENCODER_OUTPUTS, _KEY_LENS, _KEY_MASK),
            options=(NEED_WEIGHTS,),
            keyword_tensors=(_SELF_BIAS, _SELF_DROPOUT, _CROSS_DROPOUT, _HIDDEN_DROPOUT, _ADDED_DROPOUT),
            outputs=(
                _OUTPUTS,
                _CROSS_WEIGHTS,
                Tensor("self_weights", _SELF_WEIGHTS.axes, _SELF_WEIGHTS.meaning),
            ),
        ),
    ),
    complete=_layer_sizes,
    inside=_layer_parts,
    parts=_PARTS,
    notes="valid_lens and mask are of cross-attention. A key that no step may attend to has no effect.",
)

# ------------------------------------------------------------------------------------------------ stacks


def _stack_sizes(title: str, config: Config) -> Sizes:
    positions, num_positions = config["positions"], config["num_positions"]
    if positions == "learned":
        check_needed(title, "num_positions", num_positions, "positions='learned' has a vector for each")
    else:
        check_unused(title, "num_positions", num_positions, f"positions={positions!r} has no parameters")
    return _layer_sizes(config)


def _stack_parts(layer: Layer, sizes: Sizes) -> dict[str, Part]:
    parts = {}
    if sizes["positions"] == "sinusoidal":
        parts["positions"] = Part(SINUSOIDAL_POSITIONS, {"features": sizes["features"]})
    elif sizes["positions"] == "learned":
        config = {name: sizes[name] for name in ("num_positions", "features")}
        parts["positions"] = Part(LEARNED_POSITIONS, config)
    config = {option.name: sizes[option.name] for option in layer.options}
    parts |= {f"layers.{number}": Part(layer, config) for number in range(sizes["num_layers"])}
    return parts | ({"norm": _norm(sizes)} if sizes["norm"] == "pre" else {})


_EMBEDDED_DROPOUT = Tensor(
    "embedding_dropout_mask",
    INPUTS.axes,
    f"factor of the embedded tokens with their positions: {_FACTORS}",
    optional=True,
)
_EMBEDDED = "x = √features embedding[tokens] + positions, then each of the layers, then the norm of norm='pre'"
_EMBEDDING = Parameter(EMBEDDING.name, ("vocab_size", "features"), EMBEDDING.meaning, "features")
_STACKED = {
    "positions": "the LearnedPositions, if positions='learned'",
    "layers.{layer}": "the layers",
    "norm": "the last LayerNorm or RMSNorm, if norm='pre'",
}

TRANSFORMER_ENCODER = Layer(
    name="TransformerEncoder",
    summary="Embed tokens and run layers of self-attention over them.",
    formula=f"outputs = x;  {_EMBEDDED}",
    source=VASWANI_LAYERS,
    options=(
        VOCAB_SIZE,
        _FEATURES,
        _NUM_HEADS,
        HIDDEN_FEATURES,
        _NUM_LAYERS,
        *_POSITIONS,
        *TRANSFORMER_ENCODER_LAYER.options[3:],
    ),
    parameters=(_EMBEDDING,),
    methods=(
        Operator(
            name="TransformerEncoder.call",
            summary="Encode a batch of token sequences.",
            formula=f"outputs = x;  {_EMBEDDED}",
            source=VASWANI_LAYERS,
            tensors=(TOKENS, _STEP_LENS, _SELF_MASK),
            options=(NEED_WEIGHTS,),
            keyword_tensors=(
                _SELF_BIAS,
                _EMBEDDED_DROPOUT,
                *map(_of_layers, (_SELF_DROPOUT, _HIDDEN_DROPOUT, _ADDED_DROPOUT)),
            ),
            outputs=(_OUTPUTS, _of_layers(_SELF_WEIGHTS)),
            rules=(position_for_each_step,),
            notes="Tokens of padded steps must be in the vocabulary, and have no effect.",
        ),
    ),
    complete=lambda config: _stack_sizes("TransformerEncoder", config),
    own_shapes=lambda sizes: {"embedding": (sizes["vocab_size"], sizes["features"])},
    inside=lambda sizes: _stack_parts(TRANSFORMER_ENCODER_LAYER, sizes),
    parts=_STACKED,
)

# ------------------------------------------------------------------------------------------------ the decoder

_STEP_MASK = Tensor("mask", ("batch", "steps", "keys"), MASK.meaning, "boolean", True, True)
_ONE_LENS = Tensor("valid_lens", ("batch",), VALID_LENS.meaning, "integer", True)
_ONE_MASK = Tensor("mask", ("batch", "one", "keys"), MASK.meaning, "boolean", True, True)
_MEMORY = (
    Tensor(
        "memory.keys",
        ("batch", "num_layers", "key_heads", "keys", "memory_features"),
        "prepared keys of each layer and head",
    ),
    Tensor(
        "memory.values",
        ("batch", "num_layers", "key_heads", "keys", "head_size"),
        "prepared values of each layer and head",
    ),
)
_STATE = (
    Tensor(
        "state.keys",
        ("batch", "num_layers", "key_heads", "max_steps", "memory_features"),
        "prepared keys of the steps so far, with room for the others",
    ),
    Tensor(
        "state.values", ("batch", "num_layers", "key_heads", "max_steps", "head_size"), "prepared values, as the keys"
    ),
    Tensor("state.position", ("batch",), "tokens decoded so far", "integer"),
)
_DECODER_FORMULA = (
    f"logits = dense.W x + dense.b;  {_EMBEDDED};  step t attends to the steps up to t, and to the encoder's outputs"
)


def _decoder_methods() -> tuple[Operator, ...]:
    of_steps, of_one = (
        Tensor("memory.mask", mask.axes, MASK.meaning, "boolean", True, True) for mask in (_STEP_MASK, _ONE_MASK)
    )
    return (
        Operator(
            name="TransformerDecoder.prepare",
            summary="Project the encoder's outputs for every layer and zero the hidden ones, once for all steps.",
            formula="memory = cross_attention.prepare(encoder_outputs, encoder_outputs) of each layer",
            source="this specification",
            tensors=(_ENCODER_OUTPUTS, _KEY_LENS, _STEP_MASK),
            outputs=(*_MEMORY, of_steps),
        ),
        Operator(
            name="TransformerDecoder.start",
            summary="Return the decoder's state before its first step, with room for max_steps.",
            formula="state = (0, 0, 0)",
            source="this specification",
            tensors=(*_MEMORY, of_steps),
            options=(MAX_STEPS,),
            outputs=_STATE,
            rules=(position_for_each_step,),
        ),
        Operator(
            name="TransformerDecoder.step",
            summary="Decode one token.",
            formula=_DECODER_FORMULA,
            source=VASWANI_LAYERS,
            tensors=(Tensor("tokens", ("batch",), "token ids", "integer"), *_STATE, *_MEMORY, of_one),
            outputs=(
                Tensor("logits", ("batch", "vocab_size"), "scores of the next token (natural logarithm)"),
                *_STATE,
                Tensor("weights", ("batch", "keys"), "probabilities over the keys, mean over the last layer's heads"),
            ),
            notes=(
                "The keys and values of earlier steps are those of the state: nothing is computed twice. The mask of "
                "the memory has one row, that of this step. Sequences may be at different positions; a step behind the "
                "last place of the state is not kept."
            ),
        ),
        Operator(
            name="TransformerDecoder.call",
            summary="Decode given tokens: each step reads the given token, not the predicted one (teacher forcing).",
            formula=_DECODER_FORMULA,
            source=VASWANI_LAYERS,
            tensors=(TOKENS, _ENCODER_OUTPUTS, _KEY_LENS, _STEP_MASK),
            options=(PER_HEAD, NEED_WEIGHTS),
            keyword_tensors=(
                _SELF_BIAS,
                _EMBEDDED_DROPOUT,
                *map(_of_layers, (_SELF_DROPOUT, _CROSS_DROPOUT, _HIDDEN_DROPOUT, _ADDED_DROPOUT)),
            ),
            outputs=(
                Tensor("logits", ("batch", "steps", "vocab_size"), "scores of each next token (natural logarithm)"),
                Tensor(
                    "weights",
                    ("num_layers?", "batch", "heads?", "steps", "keys"),
                    "probabilities over the keys: the mean over the last layer's heads, or all with per_head",
                ),
            ),
            rules=(position_for_each_step, weights_per_head),
        ),
        Operator(
            name="TransformerDecoder.greedy",
            summary="Decode by feeding back the most probable token until the end token.",
            formula="token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos",
            source=f"{VASWANI_LAYERS}, with beam width 1",
            tensors=(_ENCODER_OUTPUTS, _ONE_LENS, _ONE_MASK),
            options=(BOS, EOS, MAX_STEPS),
            outputs=GREEDY_OUTPUTS,
            rules=(position_for_each_step, known_tokens),
        ),
        Operator(
            name="TransformerDecoder.beam",
            summary="Decode by keeping the best hypotheses at every step (beam search).",
            formula=(
                "score = sum of ln p(token[t]) / ((5 + n)/6)^length_penalty, n counting the tokens up to eos;  "
                "keep the width best continuations; a finished hypothesis continues unchanged"
            ),
            source=WU,
            tensors=(_ENCODER_OUTPUTS, _ONE_LENS, _ONE_MASK),
            options=(BOS, EOS, MAX_STEPS, *SEARCH),
            outputs=BEAM_OUTPUTS,
            rules=(position_for_each_step, known_tokens, hypotheses),
        ),
    )


TRANSFORMER_DECODER = Layer(
    name="TransformerDecoder",
    summary="Embed tokens and run layers of causal self-attention and attention to an encoder's outputs over them.",
    formula=_DECODER_FORMULA,
    source=VASWANI_LAYERS,
    options=(
        VOCAB_SIZE,
        _FEATURES,
        _NUM_HEADS,
        HIDDEN_FEATURES,
        _NUM_LAYERS,
        _MEMORY_SIZE,
        *_POSITIONS,
        *_SUBLAYERS,
    ),
    parameters=(
        _EMBEDDING,
        Parameter("dense.W", ("vocab_size", "features"), "weights of the logits", "features"),
        Parameter("dense.b", ("vocab_size",), "biases of the logits", "features"),
    ),
    methods=_decoder_methods(),
    complete=lambda config: _stack_sizes("TransformerDecoder", config),
    own_shapes=lambda sizes: {
        "embedding": (sizes["vocab_size"], sizes["features"]),
        "dense.W": (sizes["vocab_size"], sizes["features"]),
        "dense.b": (sizes["vocab_size"],),
    },
    inside=lambda sizes: _stack_parts(TRANSFORMER_DECODER_LAYER, sizes),
    parts=_STACKED,
)

OPERATORS = (TRANSFORMER_ENCODER_LAYER, TRANSFORMER_DECODER_LAYER, TRANSFORMER_ENCODER, TRANSFORMER_DECODER)
