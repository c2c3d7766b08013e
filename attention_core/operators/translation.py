"""Translators: an encoder and a decoder as one layer, recurrent or a Transformer, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from attention_core.errors import OptionError, check_unused
from attention_core.operators.attention import SCORE_NAMES
from attention_core.operators.common import BAHDANAU, VASWANI_LAYERS, WU
from attention_core.operators.decoders import (
    BAHDANAU_DECODER,
    BEAM_OUTPUTS,
    BOS,
    DECODER_DROPOUT,
    EOS,
    FIXED_CONTEXT_DECODER,
    GREEDY_OUTPUTS,
    LUONG_DECODER,
    MAX_STEPS,
    SEARCH,
)
from attention_core.operators.encoders import BRIDGE, CELL, EMBED_SIZE, GRU_ENCODER, LSTM_ENCODER
from attention_core.operators.feed_forward import HIDDEN_FEATURES
from attention_core.operators.local import NUM_POSITIONS
from attention_core.operators.recurrent import BIDIRECTIONAL, HIDDEN_SIZE, NUM_LAYERS
from attention_core.operators.transformer import (
    _NUM_LAYERS,
    _POSITIONS,
    LAST_NORM,
    TIED,
    TRANSFORMER_DECODER,
    TRANSFORMER_ENCODER,
    _stack_sizes,
)
from attention_core.operators.transformer_layers import _FEATURES, _NUM_HEADS, _SUBLAYERS
from attention_core.rules import hypotheses, known_tokens, position_for_each_key, position_for_each_token
from attention_core.specification import Config, Layer, Operator, Option, Part, Sizes, Tensor

# ------------------------------------------------------------------------------------------------ both translators

_SOURCE_VOCAB_SIZE = Option("source_vocab_size", "int", "number of token ids of the sources")
_TARGET_VOCAB_SIZE = Option("target_vocab_size", "int", "number of token ids of the translations")

_SOURCE = Tensor("source", ("batch", "keys"), "token ids of the sentences to translate", "integer")
_INPUTS = Tensor("inputs", ("batch", "steps"), "input tokens of the decoder: bos, then the translation", "integer")
_SOURCE_LENS = Tensor("valid_lens", ("batch",), "tokens of each source; the rest is padding", "integer", True)

_OUTPUTS = (
    Tensor(
        "logits",
        ("batch", "steps", "target_vocab_size"),
        "scores of the token that follows each input (natural logarithm)",
    ),
    Tensor("weights", ("batch", "steps", "keys"), "probabilities over the source tokens"),
)


def _searches(title: str, rule: Callable[..., None]) -> tuple[Operator, Operator]:
    """Greedy decoding and beam search; the rule says how many tokens the layer takes."""
    tensors = (_SOURCE, _SOURCE_LENS)
    return (
        Operator(
            name=f"{title}.greedy",
            summary="Translate by feeding back the most probable token until the end token.",
            formula="tokens, lengths, weights = decoder.greedy(*encode(source, valid_lens), valid_lens)",
            source="common practice",
            tensors=tensors,
            options=(BOS, EOS, MAX_STEPS),
            outputs=GREEDY_OUTPUTS,
            rules=(rule, known_tokens),
        ),
        Operator(
            name=f"{title}.beam",
            summary="Translate by keeping the best hypotheses at every step (beam search).",
            formula="tokens, lengths, scores, weights = decoder.beam(*encode(source, valid_lens), valid_lens)",
            source=WU,
            tensors=tensors,
            options=(BOS, EOS, MAX_STEPS, *SEARCH),
            outputs=BEAM_OUTPUTS,
            rules=(rule, known_tokens, hypotheses),
        ),
    )


# ------------------------------------------------------------------------------------------------ recurrent

_FORMULA = (
    "outputs, state = encoder(source, valid_lens), then the bridge, if bidirectional;  "
    "logits, _, weights = decoder(inputs, outputs, state, valid_lens)"
)

DECODERS = {"bahdanau": BAHDANAU_DECODER, "luong": LUONG_DECODER, "fixed": FIXED_CONTEXT_DECODER}
"""The choices of the option `decoder`."""
_OF_DECODER = ("score", "num_positions", "reads", "readout", "input_feeding")
"""The options that go to the decoder, unless they are None."""


def _sizes(config: Config) -> Sizes:
    if config["decoder"] == "fixed":
        for name in ("score", "num_positions"):
            check_unused("Translator", name, config[name], "decoder='fixed' has no attention")
    if config["decoder"] != "bahdanau":
        check_unused("Translator", "readout", config["readout"], f"decoder={config['decoder']!r} has only one readout")
        check_unused("Translator", "reads", config["reads"], f"decoder={config['decoder']!r} reads the token, too")
    if config["decoder"] != "luong":
        unfed = f"decoder={config['decoder']!r} has no input feeding"
        check_unused("Translator", "input_feeding", config["input_feeding"], unfed)
    if not config["bidirectional"]:
        check_unused("Translator", "bridge", config["bridge"], "an encoder of one direction needs none")
    directions = 2 if config["bidirectional"] else 1
    hidden, method = config["hidden_size"], config["bridge"] or "project"
    return {
        **config,
        "encoder_cell": config["encoder_cell"] or config["cell"],
        "encoder_size": directions * hidden,
        "memory_size": hidden if method == "sum" else directions * hidden,
        "decoder_size": 2 * hidden if config["bidirectional"] and method == "concatenate" else hidden,
        "num_layers - 1": config["num_layers"] - 1,
    }


def _inside(sizes: Sizes) -> dict[str, Part]:
    shared = {name: sizes[name] for name in ("embed_size", "num_layers", "dropout")}
    encoder = {
        **shared,
        "vocab_size": sizes["source_vocab_size"],
        "hidden_size": sizes["hidden_size"],
        "bidirectional": sizes["bidirectional"],
    }
    decoder = {
        **shared,
        "vocab_size": sizes["target_vocab_size"],
        "hidden_size": sizes["decoder_size"],
        "memory_size": sizes["memory_size"],
        "cell": sizes["cell"],
        # An option that is None takes the decoder's default, or is not an argument of that decoder.
        **{name: sizes[name] for name in _OF_DECODER if sizes[name] is not None},
    }
    cells = {sizes["encoder_cell"], sizes["cell"]}
    parts = {"encoder": Part(LSTM_ENCODER if sizes["encoder_cell"] == "lstm" else GRU_ENCODER, encoder)}
    if sizes["bidirectional"]:
        bridge = {name: sizes[name] for name in ("hidden_size", "num_layers")}
        bridge |= {"method": sizes["bridge"] or "project", "cell": "lstm" if cells == {"lstm"} else "gru"}
        parts["bridge"] = Part(BRIDGE, bridge)
    return {**parts, "decoder": Part(DECODERS[sizes["decoder"]], decoder)}


TRANSLATOR = Layer(
    name="Translator",
    summary="Encode a sentence, and decode its translation with attention to it.",
    formula=_FORMULA,
    source=BAHDANAU,
    options=(
        _SOURCE_VOCAB_SIZE,
        _TARGET_VOCAB_SIZE,
        EMBED_SIZE,
        HIDDEN_SIZE,
        NUM_LAYERS,
        CELL,
        Option(
            "encoder_cell",
            "str",
            "the encoder's recurrent layer, by name; cell if None",
            "None",
            keyword_only=True,
            choices=CELL.choices,
        ),
        Option(
            "decoder",
            "str",
            "Bahdanau's decoder, Luong's, or the one without attention",
            "'bahdanau'",
            keyword_only=True,
            choices=tuple(DECODERS),
        ),
        Option(
            "score",
            "str",
            "name of the score; the decoder's default if None",
            "None",
            keyword_only=True,
            choices=SCORE_NAMES,
        ),
        NUM_POSITIONS,
        BIDIRECTIONAL,
        Option(
            "bridge",
            "str",
            "how to merge the two directions; 'project' if None",
            "None",
            keyword_only=True,
            choices=("concatenate", "sum", "project", "backward"),
        ),
        Option(
            "reads",
            "str",
            "what the recurrent layer of Bahdanau's decoder reads; 'both' if None",
            "None",
            keyword_only=True,
            choices=("both", "context"),
        ),
        Option(
            "readout",
            "str",
            "the readout of Bahdanau's decoder; 'dense' if None",
            "None",
            keyword_only=True,
            choices=("dense", "maxout"),
        ),
        Option(
            "input_feeding",
            "str",
            "what a step of Luong's decoder feeds to the next; 'attentional' if None",
            "None",
            keyword_only=True,
            choices=("attentional", "context", "none"),
        ),
        DECODER_DROPOUT,
    ),
    parameters=(),
    methods=(
        Operator(
            name="Translator.call",
            summary="Encode the sources, and decode given translations (teacher forcing).",
            formula=_FORMULA,
            source=BAHDANAU,
            tensors=(_SOURCE, _INPUTS, _SOURCE_LENS),
            keyword_tensors=(
                Tensor(
                    "encoder_dropout_mask",
                    ("num_layers - 1", "batch", "keys", "encoder_size"),
                    "factor of the outputs of every encoder layer but the top one",
                    optional=True,
                ),
                Tensor(
                    "decoder_dropout_mask",
                    ("num_layers - 1", "batch", "steps", "decoder_size"),
                    "factor of the outputs of every decoder layer but the top one",
                    optional=True,
                ),
                Tensor(
                    "attention_dropout_mask",
                    ("batch", "steps", "keys"),
                    "factor of each weight",
                    optional=True,
                ),
            ),
            outputs=_OUTPUTS,
            rules=(position_for_each_key,),
        ),
        *_searches("Translator", position_for_each_key),
    ),
    complete=_sizes,
    inside=_inside,
    parts={
        "encoder": "the GRUEncoder or LSTMEncoder",
        "bridge": "the Bridge, if bidirectional",
        "decoder": "the decoder",
    },
    notes=(
        "With bridge='concatenate', the decoder's hidden size is twice the encoder's. Between a GRU and an LSTM, only "
        "the outputs in the state are handed on and bridged: a decoder's memory cells begin at 0, an encoder's are not "
        "used."
    ),
)

# ------------------------------------------------------------------------------------------------ the Transformer

_TRANSFORMER_FORMULA = (
    "outputs, _ = encoder(source, valid_lens);  logits, weights = decoder(inputs, outputs, valid_lens)"
)


def _transformer_sizes(config: Config) -> Sizes:
    source, target = config["source_vocab_size"], config["target_vocab_size"]
    if config["shared"] and source != target:
        raise OptionError(
            f"TransformerTranslator: source_vocab_size is {source}, expected target_vocab_size, which is {target}: "
            "with shared=True, both have one embedding. Give them one vocabulary."
        )
    sublayers = {"encoder_sublayers": 2, "decoder_sublayers": 3}
    return {**_stack_sizes("TransformerTranslator", config), **sublayers}


def _stacks(sizes: Sizes) -> dict[str, Part]:
    config = {option.name: sizes[option.name] for option in (*_STACK, *_POSITIONS, *_SUBLAYERS, LAST_NORM)}
    embedding = {"embedding": "decoder.embedding"} if sizes["shared"] else {}
    decoder = {"vocab_size": sizes["target_vocab_size"], **config, "tied": sizes["tied"]}
    return {
        "encoder": Part(TRANSFORMER_ENCODER, {"vocab_size": sizes["source_vocab_size"], **config}, embedding),
        "decoder": Part(TRANSFORMER_DECODER, decoder),
    }


def _stack_masks(stack: str, layer: Layer) -> tuple[Tensor, ...]:
    """The dropout masks of a stack, under names of their own."""
    axes = {"sublayers": f"{stack}_sublayers", **({"steps": "keys"} if stack == "encoder" else {})}
    return tuple(
        replace(tensor, name=f"{stack}_{tensor.name}", axes=tuple(axes.get(axis, axis) for axis in tensor.axes))
        for tensor in layer.method("call").keyword_tensors
        if tensor.name.endswith("dropout_mask")
    )


def masks_of(stack: str, masks: Mapping[str, Any]) -> dict[str, Any]:
    """The dropout masks of the encoder or of the decoder, under the names that it has for them."""
    start = f"{stack}_"
    return {name.removeprefix(start): mask for name, mask in masks.items() if name.startswith(start)}


_STACK = (_FEATURES, _NUM_HEADS, HIDDEN_FEATURES, _NUM_LAYERS)

TRANSFORMER_TRANSLATOR = Layer(
    name="TransformerTranslator",
    summary="Encode a sentence, and decode its translation, by self-attention and attention to the encoded sentence.",
    formula=_TRANSFORMER_FORMULA,
    source=VASWANI_LAYERS,
    options=(
        *(_SOURCE_VOCAB_SIZE, _TARGET_VOCAB_SIZE, *_STACK, *_POSITIONS, *_SUBLAYERS),
        LAST_NORM,
        TIED,
        Option("shared", "bool", "whether encoder and decoder have one embedding", "False", keyword_only=True),
    ),
    parameters=(),
    methods=(
        Operator(
            name="TransformerTranslator.call",
            summary="Encode the sources, and decode given translations (teacher forcing).",
            formula=_TRANSFORMER_FORMULA,
            source=VASWANI_LAYERS,
            tensors=(_SOURCE, _INPUTS, _SOURCE_LENS),
            keyword_tensors=(
                *_stack_masks("encoder", TRANSFORMER_ENCODER),
                *_stack_masks("decoder", TRANSFORMER_DECODER),
            ),
            outputs=_OUTPUTS,
            rules=(position_for_each_token,),
            notes="The weights are the mean over the heads of the decoder's last layer.",
        ),
        *_searches("TransformerTranslator", position_for_each_token),
    ),
    complete=_transformer_sizes,
    inside=_stacks,
    parts={"encoder": "the TransformerEncoder", "decoder": "the TransformerDecoder"},
)

OPERATORS = (TRANSLATOR, TRANSFORMER_TRANSLATOR)

TRANSLATORS = {layer.name: layer for layer in OPERATORS}
"""What a Trainer takes, by name."""
