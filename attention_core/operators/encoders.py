"""Encoders of tokens, and bridges from two directions to one."""

from __future__ import annotations

from attention_core.errors import check_unused
from attention_core.operators.common import BAHDANAU
from attention_core.operators.recurrent import (
    _BETWEEN,
    _OUTPUTS,
    _STATE_OR_ZERO,
    _STEP_LENS,
    BETWEEN_MASK,
    BIDIRECTIONAL,
    GRU,
    HIDDEN_SIZE,
    LSTM,
    NUM_LAYERS,
    PARTS,
    RECURRENT,
    STATE,
    recurrent_part,
    recurrent_sizes,
)
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Sizes, Tensor

VOCAB_SIZE = Option("vocab_size", "int", "number of token ids")

EMBED_SIZE = Option("embed_size", "int", "features of an embedded token")

CELL = Option("cell", "str", "the recurrent layer, by name", "'gru'", keyword_only=True, choices=("gru", "lstm"))

TOKENS = Tensor("tokens", ("batch", "steps"), "token ids", "integer")

EMBEDDING = Parameter("embedding", ("vocab_size", "embed_size"), "one row for each token id", "embed_size")


def _encoder(name: str, cell: str, summary: str, source: str) -> Layer:
    formula = f"outputs, state = {RECURRENT[cell].name}(embedding[tokens])"
    return Layer(
        name=name,
        summary=summary,
        formula=formula,
        source=source,
        options=(VOCAB_SIZE, EMBED_SIZE, HIDDEN_SIZE, NUM_LAYERS, _BETWEEN, BIDIRECTIONAL),
        parameters=(EMBEDDING,),
        methods=(
            Operator(
                name=f"{name}.call",
                summary="Encode a batch of token sequences.",
                formula=formula,
                source=source,
                tensors=(TOKENS, _STEP_LENS, _STATE_OR_ZERO),
                keyword_tensors=(BETWEEN_MASK,),
                outputs=(_OUTPUTS, STATE),
                notes="Tokens of padded steps must be in the vocabulary, and have no effect.",
            ),
        ),
        complete=lambda config: recurrent_sizes({**config, "cell": cell}),
        own_shapes=lambda sizes: {"embedding": (sizes["vocab_size"], sizes["embed_size"])},
        inside=lambda sizes: {"rnn": recurrent_part(cell, sizes["embed_size"], sizes)},
        parts={"rnn": f"the {RECURRENT[cell].name} that reads the embedded tokens"},
    )


GRU_ENCODER = _encoder("GRUEncoder", "gru", "Embed tokens and run stacked gated recurrent units over them.", GRU.source)

LSTM_ENCODER = _encoder(
    "LSTMEncoder", "lstm", "Embed tokens and run stacked long short-term memory over them.", LSTM.source
)

_BRIDGE_FORMULA = (
    "state' = [f; b] (concatenate), f + b (sum), tanh(W [f; b] + b_s) (project), tanh(W b + b_s) (backward), for the "
    "forward half f and the backward half b of the state, and of the outputs where they are summed"
)


def _bridge_sizes(config: Config) -> Sizes:
    hidden, method = config["hidden_size"], config["method"]
    if method in ("concatenate", "sum"):
        check_unused("Bridge", "output_size", config["output_size"], f"method={method!r} determines the size")
    merged = {"concatenate": 2 * hidden, "sum": hidden}.get(method) or config["output_size"] or hidden
    parts = PARTS[config["cell"]]
    return {
        **config,
        "parts": parts,
        "both_outputs": 2 * hidden,
        "both_states": parts * 2 * hidden,
        "memory_size": hidden if method == "sum" else 2 * hidden,
        "state_size": parts * merged,
        "merged_size": merged,
        "read_size": hidden if method == "backward" else 2 * hidden,
    }


def _bridge_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    if sizes["method"] in ("concatenate", "sum"):
        return {}
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(sizes["num_layers"]):
        shapes[f"{layer}.W"] = (sizes["parts"], sizes["merged_size"], sizes["read_size"])
        shapes[f"{layer}.b_s"] = (sizes["parts"], sizes["merged_size"])
    return shapes


BRIDGE = Layer(
    name="Bridge",
    summary="Merge the two directions of an encoder for a decoder that has one.",
    formula=_BRIDGE_FORMULA,
    source=BAHDANAU.replace("A.1.2", "A.2.2") + ", for backward; the others are common practice",
    options=(
        Option("hidden_size", "int", "features of each direction of the encoder"),
        NUM_LAYERS,
        Option(
            "method",
            "str",
            "how to merge the two directions",
            "'concatenate'",
            keyword_only=True,
            choices=("concatenate", "sum", "project", "backward"),
        ),
        Option(
            "output_size",
            "int",
            "hidden_size of the decoder, for 'project' and 'backward'; the encoder's if None",
            "None",
            keyword_only=True,
        ),
        CELL,
    ),
    parameters=(
        Parameter("{layer}.W", ("outputs and cells", "output_size", "both or backward"), "weights", "read_size"),
        Parameter("{layer}.b_s", ("outputs and cells", "output_size"), "biases", "read_size"),
    ),
    methods=(
        Operator(
            name="Bridge.call",
            summary="Merge the outputs and the state of both directions into those that a decoder takes.",
            formula=_BRIDGE_FORMULA,
            source=BAHDANAU.replace("A.1.2", "A.2.2"),
            tensors=(
                Tensor("outputs", ("batch", "steps", "both_outputs"), "forward outputs, then backward ones"),
                Tensor(
                    "state",
                    ("num_layers", "batch", "both_states"),
                    "forward states, then backward ones; of an LSTM, outputs first, then cells",
                ),
            ),
            outputs=(
                Tensor("encoder_outputs", ("batch", "steps", "memory_size"), "summed if method='sum', else unchanged"),
                STATE,
            ),
        ),
    ),
    complete=_bridge_sizes,
    own_shapes=_bridge_shapes,
    notes="Of an LSTM, outputs and cells have weights of their own.",
)

OPERATORS = (GRU_ENCODER, LSTM_ENCODER, BRIDGE)
