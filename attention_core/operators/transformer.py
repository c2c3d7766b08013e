"""The Transformer: encoders and decoders of several layers, as data."""

from __future__ import annotations

import itertools

from attention_core.errors import check_needed, check_unused
from attention_core.operators.common import (
    MASK,
    NEED_WEIGHTS,
    PRESS_AND_WOLF,
    VALID_LENS,
    VASWANI_LAYERS,
    WU,
)
from attention_core.operators.decoders import BEAM_OUTPUTS, BOS, EOS, GREEDY_OUTPUTS, MAX_STEPS, SEARCH
from attention_core.operators.encoders import EMBEDDING, TOKENS, VOCAB_SIZE
from attention_core.operators.feed_forward import HIDDEN_FEATURES
from attention_core.operators.multi_head import PER_HEAD
from attention_core.operators.normalization import INPUTS
from attention_core.operators.positions import LEARNED_POSITIONS, ROTARY_LAYOUT, SINUSOIDAL_POSITIONS
from attention_core.operators.transformer_layers import (
    _ADDED_DROPOUT,
    _CROSS_DROPOUT,
    _ENCODER_OUTPUTS,
    _FEATURES,
    _HIDDEN_DROPOUT,
    _KEY_LENS,
    _MEMORY_SIZE,
    _NUM_HEADS,
    _OUTPUTS,
    _SELF_BIAS,
    _SELF_DROPOUT,
    _SELF_MASK,
    _SELF_WEIGHTS,
    _STEP_LENS,
    _SUBLAYERS,
    TRANSFORMER_DECODER_LAYER,
    TRANSFORMER_ENCODER_LAYER,
    _layer_sizes,
    _norm,
    _of_layers,
)
from attention_core.rules import (
    distances_for_buckets,
    hypotheses,
    known_tokens,
    position_for_each_step,
    weights_per_head,
)
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Part, Sizes, Tensor

_NUM_LAYERS = Option("num_layers", "int", "number of layers", "1")
_POSITIONS = (
    Option(
        "positions",
        "str",
        "where positions enter: added to embedded tokens, by rotated queries and keys of self-attention, by a bias of "
        "its scores, learned for each distance or falling with it, or not at all",
        "'sinusoidal'",
        keyword_only=True,
        choices=("sinusoidal", "learned", "rotary", "relative", "alibi", "none"),
    ),
    Option(
        "num_positions", "int", "positions that have a vector, for positions='learned' only", "None", keyword_only=True
    ),
    Option("num_buckets", "int", "buckets of distances, for positions='relative' only", "None", keyword_only=True),
    Option(
        "max_distance",
        "int",
        "distance from which on all share the last bucket; 128 if None; for positions='relative' only",
        "None",
        keyword_only=True,
    ),
)

LAST_NORM = Option(
    "last_norm",
    "bool",
    "whether the outputs of the last layer are normalized; with norm='pre' only if None",
    "None",
    keyword_only=True,
)

# ------------------------------------------------------------------------------------------------ stacks


def _stack_sizes(title: str, config: Config) -> Sizes:
    positions, resolved = config["positions"], dict(config)
    used = {"learned": ["num_positions"], "rotary": ["rotary_layout", "rotary_base"]}
    used["relative"] = ["num_buckets", "max_distance"]
    for name in itertools.chain(*(names for kind, names in used.items() if kind != positions)):
        check_unused(title, name, config[name], f"positions={positions!r} does not use it")
    if positions == "learned":
        check_needed(title, "num_positions", config["num_positions"], "positions='learned' has a vector for each")
    elif positions == "rotary":
        resolved["rotary_layout"] = config["rotary_layout"] or ROTARY_LAYOUT.value
    elif positions == "relative":
        check_needed(title, "num_buckets", config["num_buckets"], "positions='relative' has a number for each")
        resolved["max_distance"] = config["max_distance"] or 128
        # A decoder, and a causal encoder, see no later steps.
        resolved["bidirectional"] = not config.get("causal", True)
        distances_for_buckets(title, resolved, {})
    return _layer_sizes(resolved)


def _stack_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embedding": (sizes["vocab_size"], sizes["features"])}
    if sizes["positions"] == "relative":
        shapes["bias_table"] = (sizes["num_buckets"], sizes["num_heads"])
    return shapes


def _stack_parts(layer: Layer, sizes: Sizes) -> dict[str, Part]:
    parts = {}
    if sizes["positions"] == "sinusoidal":
        parts["positions"] = Part(SINUSOIDAL_POSITIONS, {"features": sizes["features"]})
    elif sizes["positions"] == "learned":
        config = {name: sizes[name] for name in ("num_positions", "features")}
        parts["positions"] = Part(LEARNED_POSITIONS, config)
    config = {option.name: sizes[option.name] for option in layer.options}
    parts |= {f"layers.{number}": Part(layer, config) for number in range(sizes["num_layers"])}
    last_norm = sizes["norm"] == "pre" if sizes["last_norm"] is None else sizes["last_norm"]
    return parts | ({"norm": _norm(sizes)} if last_norm else {})


_EMBEDDED_DROPOUT = Tensor(
    "embedding_dropout_mask",
    INPUTS.axes,
    "factor of the embedded tokens with their positions",
    optional=True,
)
_EMBEDDED = "x = √features embedding[tokens] + positions, then each of the layers, then the last norm"
_PARAMETERS = (
    Parameter(EMBEDDING.name, ("vocab_size", "features"), EMBEDDING.meaning, "features"),
    Parameter(
        "bias_table",
        ("num_buckets", "num_heads"),
        "the table of relative_bias for the self-attention of all layers, if positions='relative'",
        "features",
    ),
)
_STACKED = {
    "positions": "the LearnedPositions, if positions='learned'",
    "layers.{layer}": "the layers",
    "norm": "the last LayerNorm or RMSNorm, with last_norm",
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
        LAST_NORM,
    ),
    parameters=_PARAMETERS,
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
    own_shapes=_stack_shapes,
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
TIED = Option(
    "tied",
    "bool",
    f"whether logits are inner products with the embedding, in place of dense.W x + dense.b: {PRESS_AND_WOLF}",
    "False",
    keyword_only=True,
)
_DECODER_FORMULA = (
    "logits = dense.W x + dense.b, or embedding x if tied;  "
    f"{_EMBEDDED};  step t attends to the steps up to t, and to the encoder's outputs"
)


def _decoder_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    vocab_size, features = sizes["vocab_size"], sizes["features"]
    dense = {} if sizes["tied"] else {"dense.W": (vocab_size, features), "dense.b": (vocab_size,)}
    return {**_stack_shapes(sizes), **dense}


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
        LAST_NORM,
        TIED,
    ),
    parameters=(
        *_PARAMETERS,
        Parameter("dense.W", ("vocab_size", "features"), "weights of the logits, unless tied", "features"),
        Parameter("dense.b", ("vocab_size",), "biases of the logits, unless tied", "features"),
    ),
    methods=_decoder_methods(),
    complete=lambda config: _stack_sizes("TransformerDecoder", config),
    own_shapes=_decoder_shapes,
    inside=lambda sizes: _stack_parts(TRANSFORMER_DECODER_LAYER, sizes),
    parts=_STACKED,
)

OPERATORS = (TRANSFORMER_ENCODER, TRANSFORMER_DECODER)
