"""The recurrent layers, as data."""

from __future__ import annotations

from attention_core.operators.common import CHO, HOCHREITER, SCHUSTER
from attention_core.rules import one_direction
from attention_core.specification import Config, Layer, Operator, Option, Parameter, Part, Sizes, Tensor

GRU_FORMULA = (
    "r = σ(W0 x + b0 + U0 h);  z = σ(W1 x + b1 + U1 h);  n = tanh(W2 x + b2 + r * (U2 h + b_hn));  "
    "h' = (1 - z) * n + z * h"
)
LSTM_FORMULA = (
    "i = σ(W0 x + b0 + U0 h);  f = σ(W1 x + b1 + U1 h);  g = tanh(W2 x + b2 + U2 h);  o = σ(W3 x + b3 + U3 h);  "
    "c' = f * c + i * g;  h' = o * tanh(c')"
)

# ------------------------------------------------------------------------------------------------ options by name

HIDDEN_SIZE = Option("hidden_size", "int", "features of the output of each recurrent layer and direction")
NUM_LAYERS = Option("num_layers", "int", "number of stacked recurrent layers", "1")
_BETWEEN = Option(
    "dropout",
    "float",
    "dropout rate between recurrent layers in training",
    "0.0",
    "rate",
    keyword_only=True,
)
BIDIRECTIONAL = Option(
    "bidirectional",
    "bool",
    "whether other weights read the valid steps in reverse, too",
    "False",
    keyword_only=True,
)

# ------------------------------------------------------------------------------------------------ tensors by name

STATE = Tensor(
    "state", ("num_layers", "batch", "state_size"), "state of each recurrent layer: outputs, then the cells of an LSTM"
)
_STATE_OR_ZERO = Tensor(STATE.name, STATE.axes, "state before the first step; zeros if None", optional=True)
_STEP_LENS = Tensor(
    "valid_lens",
    ("batch",),
    "steps of each sequence; later ones output 0 and keep the state",
    "integer",
    True,
)
_OUTPUTS = Tensor(
    "outputs", ("batch", "steps", "output_size"), "output of the top layer at each step: forward, then backward"
)
BETWEEN_MASK = Tensor(
    "dropout_mask",
    ("num_layers - 1", "batch", "steps", "output_size"),
    "factor of the outputs of every layer but the top one",
    optional=True,
)
BETWEEN_STEP_MASK = Tensor(
    "dropout_mask", ("num_layers - 1", "batch", "output_size"), BETWEEN_MASK.meaning, optional=True
)

# ------------------------------------------------------------------------------------------------ recurrent layers

GATES = {"gru": 3, "lstm": 4}
PARTS = {"gru": 1, "lstm": 2}
"""The number of vectors in a state for each layer and direction: an LSTM's are its output and its cells."""


def recurrent_sizes(config: Config) -> Sizes:
    """Complete the sizes of a recurrent layer, or of a layer that contains one."""
    directions = 2 if config.get("bidirectional") else 1
    return {
        **config,
        "num_layers - 1": config["num_layers"] - 1,
        "output_size": directions * config["hidden_size"],
        "state_size": PARTS[config["cell"]] * directions * config["hidden_size"],
    }


def recurrent_part(cell: str, input_size: int, sizes: Sizes) -> Part:
    """Return the recurrent layer of that cell inside another layer."""
    names = ("hidden_size", "num_layers", "dropout")
    config = {"input_size": input_size, **{name: sizes[name] for name in names}}
    return Part(RECURRENT[cell], {**config, "bidirectional": bool(sizes.get("bidirectional", False))})


def _parameters(cell: str) -> tuple[Parameter, ...]:
    gates, names = GATES[cell], {"gru": "r, z, n", "lstm": "i, f, g, o"}[cell]
    rows, inputs = "hidden_size", "input_size, then output_size"
    listed = []
    for prefix, which in (("{layer}.", ""), ("{layer}.backward.", ", of the backward direction")):
        listed += [
            Parameter(f"{prefix}W", (f"{gates}", rows, inputs), f"input weights of the gates {names}{which}", rows),
            Parameter(f"{prefix}U", (f"{gates}", rows, rows), f"hidden weights of the gates {names}{which}", rows),
            Parameter(f"{prefix}b", (f"{gates}", rows), f"biases of the gates {names}{which}", rows),
        ]
        if cell == "gru":
            listed.append(Parameter(f"{prefix}b_hn", (rows,), f"bias of U2 h, inside the reset gate{which}", rows))
    return tuple(listed)


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    hidden, gates = sizes["hidden_size"], GATES[sizes["cell"]]
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(sizes["num_layers"]):
        for prefix in (f"{layer}.", f"{layer}.backward.")[: 2 if sizes["bidirectional"] else 1]:
            shapes[f"{prefix}W"] = (gates, hidden, sizes["output_size"] if layer else sizes["input_size"])
            shapes[f"{prefix}U"] = (gates, hidden, hidden)
            shapes[f"{prefix}b"] = (gates, hidden)
            if sizes["cell"] == "gru":
                shapes[f"{prefix}b_hn"] = (hidden,)
    return shapes


def _recurrent(name: str, cell: str, summary: str, formula: str, source: str, notes: str = "") -> Layer:
    return Layer(
        name=name,
        summary=summary,
        formula=formula,
        source=source,
        options=(
            Option("input_size", "int", "features of an input"),
            HIDDEN_SIZE,
            NUM_LAYERS,
            _BETWEEN,
            BIDIRECTIONAL,
        ),
        parameters=_parameters(cell),
        methods=(
            Operator(
                name=f"{name}.call",
                summary="Run over a batch of sequences.",
                formula=(
                    "outputs[t], state[t] = step(inputs[t], state[t - 1]) where t < valid_len; else 0 and state[t - 1]"
                ),
                source=source,
                tensors=(
                    Tensor("inputs", ("batch", "steps", "input_size"), "one vector for each step"),
                    _STEP_LENS,
                    _STATE_OR_ZERO,
                ),
                keyword_tensors=(BETWEEN_MASK,),
                outputs=(_OUTPUTS, STATE),
                notes=(
                    "The backward direction runs from the last valid step to the first, and each layer reads both "
                    "directions of the one below. What padded steps hold, NaN and inf included, has no effect and gets "
                    "gradient 0."
                ),
            ),
            Operator(
                name=f"{name}.step",
                summary="Run one step.",
                formula=formula,
                source=source,
                tensors=(Tensor("inputs", ("batch", "input_size"), "one vector"), STATE),
                keyword_tensors=(BETWEEN_STEP_MASK,),
                outputs=(Tensor("output", ("batch", "output_size"), "output of the top layer"), STATE),
                rules=(one_direction,),
            ),
        ),
        complete=lambda config: recurrent_sizes({**config, "cell": cell}),
        own_shapes=_shapes,
        notes=notes,
    )


_BOTH = f"; both directions: {SCHUSTER}"
GRU = _recurrent("GRU", "gru", "Stacked gated recurrent units over padded sequences.", GRU_FORMULA, CHO + _BOTH)
LSTM = _recurrent(
    "LSTM",
    "lstm",
    "Stacked long short-term memory over padded sequences.",
    LSTM_FORMULA,
    HOCHREITER + _BOTH,
    "Nothing is added to the bias of the forget gate.",
)
RECURRENT = {"gru": GRU, "lstm": LSTM}

OPERATORS = (GRU, LSTM)
