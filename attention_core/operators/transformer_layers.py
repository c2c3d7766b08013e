"""The layers of the Transformer: self-attention, cross-attention and feed-forward networks, as data."""

from __future__ import annotations

from attention_core.operators.attention import SCORE_NAMES
from attention_core.operators.common import (
    MASK,
    NEED_WEIGHTS,
    VALID_LENS,
    VASWANI_LAYERS,
    XIONG,
)
from attention_core.operators.feed_forward import ACTIVATION, FEED_FORWARD, GATED, HIDDEN_FEATURES
from attention_core.operators.multi_head import MULTI_HEAD_ATTENTION, ROTARY_OPTIONS
from attention_core.operators.normalization import EPSILON, INPUTS, LAYER_NORM, RMS_NORM
from attention_core.specification import Config, Layer, Operator, Option, Part, Sizes, Tensor

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
    *ROTARY_OPTIONS,
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
    "True where a step may attend to another",
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
_HIDDEN_DROPOUT = Tensor(
    "hidden_dropout_mask",
    ("batch", "steps", "hidden_size"),
    "factor of each hidden feature",
    optional=True,
)
_ADDED_DROPOUT = Tensor(
    "dropout_mask",
    ("sublayers", "batch", "steps", "features"),
    "factor of what each sublayer adds, in order",
    optional=True,
)
_SELF_DROPOUT = Tensor(
    "self_dropout_mask",
    ("batch", "heads", "steps", "steps"),
    "factor of each weight of self-attention",
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
    "factor of each weight of cross-attention",
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
    attention = MULTI_HEAD_ATTENTION.sizes(_self_attention(config))
    names = ("heads", "head_size", "key_heads")
    memory = {"memory_size": config["memory_size"] or config["features"]} if "memory_size" in config else {}
    return {**config, **memory, **{name: attention[name] for name in names}, "sublayers": 3 if memory else 2}


def _attention(sizes: Sizes, **changed: object) -> dict[str, object]:
    names = ("num_heads", "num_key_heads", "score", "bias", "dropout")
    return {"query_size": sizes["features"], **{name: sizes[name] for name in names}, **changed}


def _self_attention(sizes: Sizes) -> dict[str, object]:
    return _attention(sizes, **{option.name: sizes[option.name] for option in ROTARY_OPTIONS})


def _norm(sizes: Sizes) -> Part:
    config = {name: sizes[name] for name in ("features", "epsilon")}
    return Part(RMS_NORM, config) if sizes["rms"] else Part(LAYER_NORM, {**config, "bias": sizes["bias"]})


def _layer_parts(sizes: Sizes) -> dict[str, Part]:
    names = ("features", "hidden_size", "activation", "gated", "bias", "dropout")
    parts = {"self_attention": Part(MULTI_HEAD_ATTENTION, _self_attention(sizes))}
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

OPERATORS = (TRANSFORMER_ENCODER_LAYER, TRANSFORMER_DECODER_LAYER)
