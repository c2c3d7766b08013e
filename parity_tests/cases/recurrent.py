"""Cases of recurrent layers, encoders and bridges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from attention_core import draws
from parity_tests.cases.case import DTYPES, EXACT, FULL, SEED, Arrays, Case, Sizes, layer_case

RECURRENT = {"batch": 3, "steps": 7, "input_size": 8, "hidden_size": 5, "vocab_size": 11, "embed_size": 6}
CELLS = {"GRU": 1, "LSTM": 2}
"""The number of vectors in a state for each layer and direction."""
STEP_LENS = np.array([7, 2, 4], np.int32)
EMPTY_STEP_LENS = np.array([0, -3, 9], np.int32)


def recurrent_sizes(sizes: Sizes, cell: str, both: bool = False) -> dict[str, int]:
    """Add the sizes of outputs and state."""
    output_size = (2 if both else 1) * sizes["hidden_size"]
    return {**sizes, "output_size": output_size, "state_size": CELLS[cell] * output_size}


def full_inputs(sizes: Sizes, layers: int, base: Arrays) -> Arrays:
    """Add lengths and a dropout mask that change nothing, and a state."""
    between = (layers - 1, sizes["batch"], sizes["steps"], sizes["output_size"])
    lens = np.full(sizes["batch"], sizes["steps"], np.int32)
    return {**base, "valid_lens": lens, "state": drawn_state(sizes, layers), "dropout_mask": np.ones(between)}


def recurrent_variants(
    sizes: Sizes, base: Callable[[Sizes], Arrays]
) -> Iterator[tuple[str, str, int, Arrays, tuple[str, ...]]]:
    """Name, sentence, number of layers, inputs and dtypes of the cases of every recurrent layer."""
    two = full_inputs(sizes, 2, base(sizes))
    yield "none", "Neither lengths nor a state nor a dropout mask.", 2, base(sizes), EXACT
    yield "open", "Lengths and a dropout mask that change nothing, and a state.", 2, two, DTYPES
    yield "ragged", "Sequences of different lengths.", 2, {**two, "valid_lens": STEP_LENS}, DTYPES
    yield "closed", "Lengths of 0, below 0 and beyond the steps.", 2, {**two, "valid_lens": EMPTY_STEP_LENS}, FULL
    dropped = draws.dropout_mask("between", two["dropout_mask"].shape, 0.4, SEED)
    yield "dropout", "Dropout between the layers.", 2, {**two, "dropout_mask": dropped}, FULL
    six = {**sizes, "batch": 6}
    three = {**full_inputs(six, 3, base(six)), "valid_lens": np.array([6, 1, 7, 3, 5, 2], np.int32)}
    yield "three_layers", "Three layers.", 3, three, EXACT
    long = {**base({**sizes, "steps": 50}), "state": drawn_state(sizes, 1)}
    long["valid_lens"] = np.array([50, 1, 23], np.int32)
    yield "many_steps", "Fifty steps of a single layer, and lengths from 1 to 50.", 1, long, FULL
    for name, shows, axis, size in (
        ("one_step", "A single step.", "steps", 1),
        ("no_steps", "There are no steps.", "steps", 0),
        ("no_batch", "There are no sequences.", "batch", 0),
    ):
        small = {**sizes, axis: size}
        lens = np.full(small["batch"], small["steps"], np.int32)
        yield name, shows, 1, {**base(small), "valid_lens": lens, "state": drawn_state(small, 1)}, EXACT


def both_variants(
    sizes: Sizes, base: Callable[[Sizes], Arrays]
) -> Iterator[tuple[str, str, int, Arrays, tuple[str, ...]]]:
    """The same of the cases of a bidirectional layer."""
    two = full_inputs(sizes, 2, base(sizes))
    yield "both_none", "Both directions, with neither lengths nor a state.", 2, base(sizes), EXACT
    yield "both_open", "Both directions of whole sequences.", 2, two, DTYPES
    ragged = {**two, "valid_lens": STEP_LENS}
    yield "both_ragged", "Backward from the last valid step.", 2, ragged, FULL
    yield "both_closed", "Both directions, with lengths of 0.", 2, {**two, "valid_lens": EMPTY_STEP_LENS}, FULL
    dropped = draws.dropout_mask("between", two["dropout_mask"].shape, 0.4, SEED)
    yield "both_dropout", "Dropout between layers of both directions.", 2, {**ragged, "dropout_mask": dropped}, FULL
    none = {**sizes, "steps": 0}
    empty = {**base(none), "valid_lens": np.zeros(none["batch"], np.int32), "state": drawn_state(none, 1)}
    yield "both_no_steps", "Both directions of no steps.", 1, empty, EXACT


def drawn_state(sizes: Sizes, layers: int) -> np.ndarray:
    """A state before the first step."""
    shape = (layers, sizes["batch"], sizes.get("state_size", sizes["hidden_size"]))
    return draws.uniform("state", shape, 1.0, SEED)


def recurrent_cases(name: str) -> Iterator[Case]:
    """Stacked recurrent layers over vectors."""
    sizes = recurrent_sizes(RECURRENT, name)

    def case(
        label: str, shows: str, layers: int, inputs: Arrays, dtypes: tuple[str, ...], method: str = "call"
    ) -> Case:
        config = {"input_size": sizes["input_size"], "hidden_size": sizes["hidden_size"], "num_layers": layers}
        if label.startswith("both_"):
            config["bidirectional"] = True
        return layer_case(name, label, shows, inputs, config, dtypes, method=method)

    def base(sizes: Sizes) -> Arrays:
        shape = (sizes["batch"], sizes["steps"], sizes["input_size"])
        return {"inputs": draws.uniform("GRU/inputs", shape, 1.0, SEED)}

    for variant in recurrent_variants(sizes, base):
        yield case(*variant)
    both = recurrent_sizes(RECURRENT, name, both=True)
    for variant in both_variants(both, base):
        yield case(*variant)
    for prefix, padded in (("", sizes), ("both_", both)):
        inputs = {**full_inputs(padded, 2, base(padded)), "valid_lens": STEP_LENS}
        for label, value in (("hidden_nan", np.nan), ("hidden_inf", np.inf)):
            spoilt = inputs["inputs"].copy()
            for batch, length in enumerate(STEP_LENS):
                spoilt[batch, length:] = value
            yield case(prefix + label, f"{label[7:]} in the padded steps.", 2, {**inputs, "inputs": spoilt}, FULL)
    step = {"inputs": base(sizes)["inputs"][:, 0], "state": drawn_state(sizes, 2)}
    dropped = draws.dropout_mask("between", (1, sizes["batch"], sizes["hidden_size"]), 0.4, SEED)
    yield case("step", "One step.", 2, step, EXACT, "step")
    yield case(
        "step_dropout",
        "One step, with dropout between the layers.",
        2,
        {**step, "dropout_mask": dropped},
        FULL,
        "step",
    )


LSTM_ENCODER = ("none", "open", "ragged", "closed", "dropout", "many_steps", "no_steps")
"""The cases of an LSTMEncoder: others cover its embedding and its LSTM in full."""


def encoder_cases(name: str) -> Iterator[Case]:
    """Tokens through embedding and recurrent layers."""
    cell = name.removesuffix("Encoder")
    sizes, both = recurrent_sizes(RECURRENT, cell), recurrent_sizes(RECURRENT, cell, both=True)

    def base(sizes: Sizes) -> Arrays:
        return {"tokens": draws.integers("tokens", (sizes["batch"], sizes["steps"]), sizes["vocab_size"], SEED)}

    for variant in recurrent_variants(sizes, base):
        if name == "GRUEncoder" or variant[0] in LSTM_ENCODER:
            yield encoder_case(sizes, *variant, name=name)
    for variant in both_variants(both, base):
        if variant[0] in ("both_ragged", "both_closed"):
            yield encoder_case(both, *variant, name=name)
    ragged = {**full_inputs(sizes, 2, base(sizes)), "valid_lens": STEP_LENS}
    if name == "GRUEncoder":
        int64 = {**ragged, "tokens": ragged["tokens"].astype(np.int64)}
        yield encoder_case(sizes, "tokens_int64", "Tokens of another integer type.", 2, int64, EXACT)
    padding = np.arange(sizes["steps"]) >= STEP_LENS[:, None]
    tokens = np.where(padding, 0, np.maximum(ragged["tokens"], 1)).astype(np.int32)
    for label, value in (("hidden_nan", np.nan), ("hidden_inf", np.inf)):
        spoilt = encoder_case(
            sizes, label, f"The padding token is embedded as {label[7:]}.", 2, {**ragged, "tokens": tokens}, FULL, name
        )
        embedding = spoilt.parameters["embedding"].copy()
        embedding[0] = value
        yield replace(spoilt, parameters={**spoilt.parameters, "embedding": embedding})


def encoder_case(
    sizes: Sizes,
    label: str,
    shows: str,
    layers: int,
    inputs: Arrays,
    dtypes: tuple[str, ...],
    name: str = "GRUEncoder",
) -> Case:
    """A call of an encoder."""
    config: dict[str, Any] = {key: sizes[key] for key in ("vocab_size", "embed_size", "hidden_size")}
    config["num_layers"] = layers
    if label.startswith("both_"):
        config["bidirectional"] = True
    return layer_case(name, label, shows, inputs, config, dtypes)


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


def cases() -> Iterator[Case]:
    """Every case of recurrent layers, encoders and bridges."""
    for name in CELLS:
        yield from recurrent_cases(name)
    for name in ("GRUEncoder", "LSTMEncoder"):
        yield from encoder_cases(name)
    yield from bridge_cases()
