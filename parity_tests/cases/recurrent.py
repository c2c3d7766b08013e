"""Cases of recurrent layers, encoders and bridges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators import find
from parity_tests.format.case import DTYPES, EXACT, FULL, SEED, Arrays, Case, Sizes, layer_case
from parity_tests.format.families import Family

RECURRENT = {"batch": 3, "steps": 7, "input_size": 8, "hidden_size": 5, "vocab_size": 11, "embed_size": 6}
CELLS = {"GRU": 1, "LSTM": 2}
"""The number of vectors in a state for each layer and direction."""
STEP_LENS = np.array([7, 2, 4], np.int32)
EMPTY_STEP_LENS = np.array([0, -3, 9], np.int32)
PADDING = np.arange(RECURRENT["steps"]) >= STEP_LENS[:, None]


def recurrent_sizes(sizes: Sizes, cell: str, both: bool = False) -> dict[str, int]:
    """Add the sizes of outputs and state."""
    output_size = (2 if both else 1) * sizes["hidden_size"]
    return {**sizes, "output_size": output_size, "state_size": CELLS[cell] * output_size}


def full_inputs(sizes: Sizes, layers: int, base: Arrays) -> Arrays:
    """Add lengths and a dropout mask that change nothing, and a state."""
    between = (layers - 1, sizes["batch"], sizes["steps"], sizes["output_size"])
    lens = np.full(sizes["batch"], sizes["steps"], np.int32)
    return {**base, "valid_lens": lens, "state": drawn_state(sizes, layers), "dropout_mask": np.ones(between)}


def recurrent_case(
    name: str, label: str, shows: str, inputs: Arrays, dtypes: tuple[str, ...] = FULL, layers: int = 2, **changes: Any
) -> Case:
    """A call of a recurrent layer or an encoder, of both directions if the label begins so."""
    config: dict[str, Any] = {
        option.name: RECURRENT[option.name] for option in find(name).options if option.default is None
    }
    config |= {"num_layers": layers, **({"bidirectional": True} if label.startswith("both_") else {})}
    return layer_case(name, label, shows, inputs, config, dtypes, **changes)


def recurrent_variants(case: Callable[..., Case], sizes: Sizes, base: Callable[[Sizes], Arrays]) -> Iterator[Case]:
    """The cases of every recurrent layer and encoder; base draws the inputs without lengths and state."""
    two = full_inputs(sizes, 2, base(sizes))
    yield case("none", "Neither lengths nor a state nor a dropout mask.", base(sizes), EXACT)
    yield case("open", "Lengths and a dropout mask that change nothing, and a state.", two, DTYPES)
    yield case("ragged", "Sequences of different lengths.", {**two, "valid_lens": STEP_LENS}, DTYPES)
    yield case("fully_masked", "Lengths of 0, below 0 and beyond the steps.", {**two, "valid_lens": EMPTY_STEP_LENS})
    dropped = draws.dropout_mask("between", two["dropout_mask"].shape, 0.4, SEED)
    yield case("dropout", "Dropout between the layers.", {**two, "dropout_mask": dropped})
    six = {**sizes, "batch": 6}
    three = {**full_inputs(six, 3, base(six)), "valid_lens": np.array([6, 1, 7, 3, 5, 2], np.int32)}
    yield case("three_layers", "Three layers.", three, EXACT, 3)
    long = {**base({**sizes, "steps": 50}), "state": drawn_state(sizes, 1)}
    long["valid_lens"] = np.array([50, 1, 23], np.int32)
    yield case("many_steps", "Fifty steps of a single layer, and lengths from 1 to 50.", long, FULL, 1)
    for label, shows, axis, size in (
        ("one_step", "A single step.", "steps", 1),
        ("no_steps", "There are no steps.", "steps", 0),
        ("no_batch", "There are no sequences.", "batch", 0),
    ):
        small = {**sizes, axis: size}
        lens = np.full(small["batch"], small["steps"], np.int32)
        yield case(label, shows, {**base(small), "valid_lens": lens, "state": drawn_state(small, 1)}, EXACT, 1)


def both_variants(case: Callable[..., Case], sizes: Sizes, base: Callable[[Sizes], Arrays]) -> Iterator[Case]:
    """The same of a bidirectional layer."""
    two = full_inputs(sizes, 2, base(sizes))
    yield case("both_none", "Both directions, with neither lengths nor a state.", base(sizes), EXACT)
    yield case("both_open", "Both directions of whole sequences.", two, DTYPES)
    ragged = {**two, "valid_lens": STEP_LENS}
    yield case("both_ragged", "Backward from the last valid step.", ragged)
    yield case("both_fully_masked", "Both directions, with lengths of 0.", {**two, "valid_lens": EMPTY_STEP_LENS})
    dropped = draws.dropout_mask("between", two["dropout_mask"].shape, 0.4, SEED)
    yield case("both_dropout", "Dropout between layers of both directions.", {**ragged, "dropout_mask": dropped})
    none = {**sizes, "steps": 0}
    empty = {**base(none), "valid_lens": np.zeros(none["batch"], np.int32), "state": drawn_state(none, 1)}
    yield case("both_no_steps", "Both directions of no steps.", empty, EXACT, 1)


def drawn_state(sizes: Sizes, layers: int) -> np.ndarray:
    """A state before the first step."""
    shape = (layers, sizes["batch"], sizes.get("state_size", sizes["hidden_size"]))
    return draws.uniform("state", shape, 1.0, SEED)


def recurrent_cases(name: str) -> Iterator[Case]:
    """Stacked recurrent layers over vectors."""
    sizes, both = recurrent_sizes(RECURRENT, name), recurrent_sizes(RECURRENT, name, both=True)
    case = partial(recurrent_case, name)

    def base(sizes: Sizes) -> Arrays:
        shape = (sizes["batch"], sizes["steps"], sizes["input_size"])
        return {"inputs": draws.uniform("GRU/inputs", shape, 1.0, SEED)}

    yield from recurrent_variants(case, sizes, base)
    yield from both_variants(case, both, base)
    for prefix, padded in (("", sizes), ("both_", both)):
        inputs = {**full_inputs(padded, 2, base(padded)), "valid_lens": STEP_LENS}
        for value in (np.nan, np.inf):
            hidden = np.where(PADDING[..., None], value, inputs["inputs"])
            yield case(f"{prefix}hidden_{value}", f"{value} in the padded steps.", {**inputs, "inputs": hidden})
    step = {"inputs": base(sizes)["inputs"][:, 0], "state": drawn_state(sizes, 2)}
    dropped = draws.dropout_mask("between", (1, sizes["batch"], sizes["hidden_size"]), 0.4, SEED)
    yield case("step", "One step.", step, EXACT, method="step")
    shows = "One step, with dropout between the layers."
    yield case("step_dropout", shows, {**step, "dropout_mask": dropped}, method="step")


LSTM_ENCODER = ("none", "open", "ragged", "fully_masked", "dropout", "many_steps", "no_steps")
"""The cases of an LSTMEncoder: others cover its embedding and its LSTM in full."""


def encoder_cases(name: str) -> Iterator[Case]:
    """Tokens through embedding and recurrent layers."""
    cell = name.removesuffix("Encoder")
    sizes, both = recurrent_sizes(RECURRENT, cell), recurrent_sizes(RECURRENT, cell, both=True)
    case = partial(recurrent_case, name)

    def base(sizes: Sizes) -> Arrays:
        return {"tokens": draws.integers("tokens", (sizes["batch"], sizes["steps"]), sizes["vocab_size"], SEED)}

    made = recurrent_variants(case, sizes, base)
    yield from (one for one in made if name == "GRUEncoder" or one.name in LSTM_ENCODER)
    yield from (one for one in both_variants(case, both, base) if one.name in ("both_ragged", "both_fully_masked"))
    ragged = {**full_inputs(sizes, 2, base(sizes)), "valid_lens": STEP_LENS}
    if name == "GRUEncoder":
        int64 = {**ragged, "tokens": ragged["tokens"].astype(np.int64)}
        yield case("tokens_int64", "Tokens of another integer type.", int64, EXACT)
    tokens = np.where(PADDING, 0, np.maximum(ragged["tokens"], 1)).astype(np.int32)
    for value in (np.nan, np.inf):
        shows = f"The padding token is embedded as {value}."
        yield padding_embedded(case(f"hidden_{value}", shows, {**ragged, "tokens": tokens}), "embedding", value)


def padding_embedded(case: Case, name: str, value: float) -> Case:
    """The case with `value` in the first row of a table of embedded tokens."""
    embedding = case.parameters[name].copy()
    embedding[0] = value
    return replace(case, parameters={**case.parameters, name: embedding})


def bridge_cases() -> Iterator[Case]:
    """Both directions merged."""
    for cell, dtypes in (("gru", DTYPES), ("lstm", FULL)):
        sizes = recurrent_sizes(RECURRENT, cell.upper(), both=True)
        outputs = draws.uniform("Bridge/outputs", (sizes["batch"], sizes["steps"], sizes["output_size"]), 1.0, SEED)
        arrays = {"outputs": outputs, "state": drawn_state(sizes, 2)}
        for method, shows in (
            ("concatenate", "Both directions side by side."),
            ("sum", "The sum of both directions."),
            ("project", "Both directions, projected."),
            ("backward", "The backward direction, projected."),
        ):
            config = {"hidden_size": sizes["hidden_size"], "num_layers": 2, "method": method, "cell": cell}
            config |= {"output_size": 6} if method == "backward" else {}
            yield layer_case("Bridge", f"{method}_{cell}", shows, arrays, config, dtypes)
        empty = {"outputs": outputs[:0], "state": arrays["state"][:, :0]}
        yield layer_case("Bridge", f"no_batch_{cell}", "There are no sequences.", empty, config, EXACT)


FAMILIES = (
    *(Family((name,), partial(recurrent_cases, name)) for name in CELLS),
    *(Family((f"{cell}Encoder",), partial(encoder_cases, f"{cell}Encoder")) for cell in CELLS),
    Family(("Bridge",), bridge_cases),
)
