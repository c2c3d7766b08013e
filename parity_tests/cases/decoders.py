"""Cases of decoders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators.attention import ALIKE_SCORES, HIDDEN_SCORES, SCORE_NAMES
from parity_tests.cases.masking import full_lens, fully_masked, open_mask, some_mask, with_hidden
from parity_tests.cases.recurrent import CELLS, drawn_state
from parity_tests.format.call import EARLIER
from parity_tests.format.case import DTYPES, EXACT, FULL, SEED, Arrays, Case, Sizes, epsilon, layer_case
from parity_tests.format.families import Family

DECODER = {
    "batch": 3,
    "embed_size": 4,
    "hidden_size": 5,
    "memory_size": 6,
    "keys": 7,
    "attention_size": 8,
    "steps": 9,
    "vocab_size": 11,
}
KEY_LENS = np.array([7, 2, 4], np.int32)
SPECIAL = {"bos": 1, "eos": 2}


def decoder_case(
    name: str,
    label: str,
    shows: str,
    inputs: Arrays,
    dtypes: tuple[str, ...] = FULL,
    layers: int = 2,
    sizes: Sizes = DECODER,
    variant: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Case:
    """A call of a decoder; variant holds arguments of its constructor beside the sizes."""
    config: dict[str, Any] = {key: sizes[key] for key in ("vocab_size", "embed_size", "hidden_size", "memory_size")}
    if name == "BahdanauDecoder" and (variant or {}).get("score", "additive") in HIDDEN_SCORES:
        config["attention_size"] = sizes["attention_size"]
    config = {**config, "num_layers": layers, **(variant or {})}
    return layer_case(name, label, shows, inputs, config, dtypes, WIDE, **changes)


WIDE = dict.fromkeys(("attention.w_v", "attention.v", "attention.W", "attention.scored.W", "attention.v_p"), 4.0)
"""Factors of score weights: with ±1/√n all keys would weigh nearly the same, and a wrong mask would hardly show."""


def decoder_inputs(sizes: Sizes, layers: int) -> Arrays:
    """Tokens, the encoder's outputs and a state."""
    return {
        "tokens": draws.integers("tokens", (sizes["batch"], sizes["steps"]), sizes["vocab_size"], SEED),
        "encoder_outputs": draws.uniform("memory", (sizes["batch"], sizes["keys"], sizes["memory_size"]), 1.0, SEED),
        "state": drawn_state(sizes, layers),
    }


def full_decoder_inputs(sizes: Sizes) -> Arrays:
    """The decoder's inputs, and lengths and masks that change nothing."""
    rows = {**sizes, "queries": sizes["steps"]}
    return {
        **decoder_inputs(sizes, 2),
        "valid_lens": full_lens(rows),
        "mask": open_mask(rows),
        "dropout_mask": np.ones((1, sizes["batch"], sizes["steps"], sizes["hidden_size"])),
        "attention_dropout_mask": np.ones((sizes["batch"], sizes["steps"], sizes["keys"])),
    }


def decoder_cases(name: str) -> Iterator[Case]:
    """Teacher-forced passes, single steps, greedy decoding and beam search."""
    sizes = DECODER
    plain = decoder_inputs(sizes, 2)
    rows = {**sizes, "queries": sizes["steps"]}
    full = full_decoder_inputs(sizes)
    row_lens = draws.integers("row_lens", (sizes["batch"], sizes["steps"]), sizes["keys"], SEED) + np.int32(1)
    fully_masked_lens = row_lens.copy()
    fully_masked_lens[0, :3], fully_masked_lens[1] = (0, -2, 9), 0
    case = partial(decoder_case, name)

    yield case("none", "Neither lengths nor any mask.", plain, EXACT)
    yield case("open", "Lengths and masks that change nothing.", full, DTYPES)
    yield case("ragged", "One length for each sequence.", {**plain, "valid_lens": KEY_LENS}, EXACT)
    yield case("ragged_rows", "One length for each step.", {**full, "valid_lens": row_lens})
    yield case("mask", "A boolean mask for each step.", {**full, "mask": some_mask(rows)}, DTYPES)
    one_row = some_mask({**rows, "queries": 1})
    yield case("mask_row", "A mask with one row for all steps.", {**plain, "mask": one_row}, EXACT)
    nothing_open = {**full, "valid_lens": fully_masked_lens, "mask": fully_masked(rows)}
    yield case("fully_masked", "Steps, and a whole sequence, that may attend to nothing.", nothing_open)
    hidden = {**full, "valid_lens": np.repeat(KEY_LENS[:, None], sizes["steps"], axis=1)}
    for value in (np.nan, np.inf):
        shows = f"{value} in encoder outputs that no step may attend to."
        yield case(f"hidden_{value}", shows, with_hidden(hidden, value, KEY_LENS))
    if name == "FixedContextDecoder":
        others = {**plain, "encoder_outputs": plain["encoder_outputs"].copy(), "valid_lens": KEY_LENS}
        for batch, length in enumerate(KEY_LENS):
            others["encoder_outputs"][batch, : length - 1] = np.nan
        yield case("others_nan", "NaN in every open encoder output but the last.", others, EXACT)
    if name == "BahdanauDecoder":
        yield large_decoder_case(full, some_mask(rows))
    between = draws.dropout_mask("between", (1, sizes["batch"], sizes["steps"], sizes["hidden_size"]), 0.4, SEED)
    weights = draws.dropout_mask("weights", (sizes["batch"], sizes["steps"], sizes["keys"]), 0.3, SEED)
    dropped = {**full, "dropout_mask": between, "attention_dropout_mask": weights}
    yield case("dropout", "Dropout between the layers, and of the weights; those returned are from before it.", dropped)
    four = {**sizes, "batch": 4, "vocab_size": 12}
    four_lens = {**decoder_inputs(four, 3), "valid_lens": np.array([7, 1, 4, 6], np.int32)}
    yield case("three_layers", "Three layers.", four_lens, EXACT, 3, four)
    long = {**sizes, "steps": 50}
    long_inputs = {**decoder_inputs(long, 1), "valid_lens": np.array([7, 1, 4], np.int32)}
    shows = "Fifty steps of a single layer, and sequences of very different lengths."
    yield case("many_steps", shows, long_inputs, FULL, 1, long)
    for label, shows, axis, size in (
        ("one_key", "A single key.", "keys", 1),
        ("no_keys", "There are no keys: every step is fully masked.", "keys", 0),
        ("one_step", "A single step.", "steps", 1),
        ("no_steps", "There are no steps.", "steps", 0),
        ("no_batch", "There are no sequences.", "batch", 0),
    ):
        small = {**sizes, axis: size}
        steps = {**small, "queries": small["steps"]}
        inputs = {**decoder_inputs(small, 1), "valid_lens": full_lens(steps), "mask": open_mask(steps)}
        yield case(label, shows, inputs, EXACT, 1, small)
    step = {**plain, "tokens": plain["tokens"][:, 0], "valid_lens": KEY_LENS}
    yield case("step", "Prepare, then one step.", step, EXACT, method="step")
    later = {**step, "tokens": plain["tokens"][:, 4], EARLIER: plain["tokens"][:, :4]}
    yield case("step_later", "Prepare, then five steps.", later, EXACT, method="step")
    dropped = {**step, "dropout_mask": between[:, :, 0], "attention_dropout_mask": weights[:, 0]}
    yield case("step_dropout", "One step, with both dropouts.", dropped, method="step")
    start = {key: plain[key] for key in ("encoder_outputs", "state")}
    yield case("start", "The state before the first step.", start, EXACT, method="start")
    for label, shows, options in VARIANTS[name]:
        alike = {**sizes, "memory_size": sizes["hidden_size"]} if options.get("score") in ALIKE_SCORES else sizes
        state = {"state_size": CELLS[options.get("cell", "gru").upper()] * sizes["hidden_size"]}
        inputs = {**decoder_inputs({**alike, **state}, 2), "valid_lens": KEY_LENS}
        if "initial" in options:
            del inputs["state"]
        dtypes = FULL if label in ARITHMETIC else EXACT
        yield case(label, shows, inputs, dtypes, sizes=alike, variant=options)
    yield search_case("greedy", "Free-running, each sequence up to its end token.", name, 9)
    yield search_case("beam", "The best two of three hypotheses.", name, 9, FULL, {"width": 3, "num_best": 2})
    if name != "FixedContextDecoder":
        yield search_case("greedy_long", "Free-running over fifty steps.", name, 50, EXACT)
    penalty = {"width": 4, "num_best": 4, "length_penalty": 1.5}
    penalty_dtypes = EXACT if name == "FixedContextDecoder" else FULL
    yield search_case("beam_penalty", "Hypotheses ranked with a length penalty.", name, 9, penalty_dtypes, penalty)
    tie_dtypes = FULL if name == "BahdanauDecoder" else EXACT
    for label, shows, tokens, search in TIES:
        yield with_tied_tokens(search_case(label, shows, name, 5, tie_dtypes, search), tokens)
    for dtype in FULL if name == "BahdanauDecoder" else ():
        near = search_case(f"near_tie_{dtype}", f"A token is ahead by a few units of {dtype}.", name, 5, (dtype,))
        yield with_tied_tokens(near, (4, 7), (1.0, 1.0 + 4.0 * epsilon(dtype)))
    if name == "LuongDecoder":
        for mode in ("monotonic", "predictive"):
            local = {"alignment": mode, "window": 2}
            yield search_case(f"greedy_{mode}", "Free-running, with a window.", name, 9, EXACT, {}, local)
            yield search_case(f"beam_{mode}", "Hypotheses with a window.", name, 9, EXACT, {"width": 2}, local)


TIES: tuple[tuple[str, str, tuple[int, ...], dict[str, int | float]], ...] = (
    ("tie_greedy", "Four tokens are equally probable: the first is taken.", (4, 6, 7, 9), {}),
    ("tie_beam", "Four tokens are equally probable, again and again.", (4, 6, 7, 9), {"width": 4, "num_best": 4}),
    ("tie_end", "The end is as probable as three tokens.", (SPECIAL["eos"], 4, 7, 9), {"width": 3, "num_best": 2}),
)
"""Searches among tokens that tie: name, sentence, tokens, and options of the search."""


def with_tied_tokens(case: Case, tokens: tuple[int, ...], logits: tuple[float, ...] = (0.0,)) -> Case:
    """The case with a readout that gives these tokens exactly the same probability, or logits, and the others none.

    Only the bias is not 0. Four times e⁰ is 4, whose logarithm is exact everywhere: no rounding decides.
    """
    parameters = dict(case.parameters)
    for name, array in parameters.items():
        if name.endswith("dense.W"):
            parameters[name] = np.zeros_like(array)
        elif name.endswith("dense.b"):
            parameters[name] = np.full(array.size, -1000.0)
            parameters[name][[*tokens]] = logits
    return replace(case, parameters=parameters)


def score_variants(default: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    """A decoder with every score but its default."""
    for score in SCORE_NAMES:
        if score != default:
            options: dict[str, Any] = {"score": score}
            if score == "location":
                options["num_positions"] = 8
            yield f"score_{score}", f"The score {score}.", options


SHARED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("lstm", "Long short-term memory in place of gated recurrent units.", {"cell": "lstm"}),
    ("initial_zero", "A first state of zeros.", {"initial": "zero"}),
    ("initial_learned", "A first state that is a parameter.", {"initial": "learned"}),
)
VARIANTS: dict[str, tuple[tuple[str, str, dict[str, Any]], ...]] = {
    "BahdanauDecoder": (
        *score_variants("additive"),
        *SHARED,
        ("maxout", "The readout of the paper.", {"readout": "maxout"}),
        ("context_alone", "The recurrent layer reads the context alone.", {"reads": "context"}),
        (
            "context_alone_maxout",
            "Only the readout reads the token.",
            {"reads": "context", "readout": "maxout"},
        ),
        ("maxout_size", "The readout of the paper with another size.", {"readout": "maxout", "maxout_size": 7}),
    ),
    "LuongDecoder": (
        *score_variants("general"),
        *SHARED,
        ("monotonic", "A window around the step.", {"alignment": "monotonic", "window": 2}),
        ("predictive", "A window around a predicted position.", {"alignment": "predictive", "window": 2}),
        ("not_fed", "No input feeding.", {"input_feeding": "none"}),
        ("context_fed", "The context is fed to the next step.", {"input_feeding": "context"}),
        ("attention_size", "A hidden layer of another size.", {"score": "additive", "attention_size": 8}),
    ),
    "FixedContextDecoder": SHARED,
}
ARITHMETIC = ("lstm", "maxout", "monotonic", "predictive", "not_fed", "context_fed", "context_alone")
"""Variants with different arithmetic, which run in float32, too."""


def large_decoder_case(full: Arrays, mask: np.ndarray) -> Case:
    """Saturated scores to ±2e6 in every step, exact in float32."""
    signs = draws.integers("large.memory", full["encoder_outputs"].shape, 2, SEED)
    inputs = {**full, "encoder_outputs": 100.0 * (2 * signs - 1), "mask": mask}
    case = decoder_case("BahdanauDecoder", "large", "Scores to ±2e6 with gaps of 1000 and more.", inputs)
    memory, attention = DECODER["memory_size"], DECODER["attention_size"]
    changed = {
        "attention.W_k": np.eye(attention, memory) + np.eye(attention, memory, -memory),
        "attention.w_v": 8000.0 * 2.0 ** np.arange(attention),
        # The context is ±100: small input weights keep the gates from saturating.
        "rnn.0.W": case.parameters["rnn.0.W"] * 2.0**-6,
    }
    return replace(case, parameters={**case.parameters, **changed})


def search_case(
    label: str,
    shows: str,
    name: str,
    max_steps: int,
    dtypes: tuple[str, ...] = FULL,
    search: Mapping[str, int | float] | None = None,
    variant: Mapping[str, Any] | None = None,
) -> Case:
    """Greedy decoding of three sequences, or beam search if `search` has its width."""
    inputs = {**decoder_inputs(DECODER, 2), "valid_lens": KEY_LENS}
    del inputs["tokens"]
    method, options = "beam" if search else "greedy", {**SPECIAL, "max_steps": max_steps, **(search or {})}
    changes: dict[str, Any] = {"method": method, "options": options, "gradients": False}
    case = decoder_case(name, label, shows, inputs, dtypes, variant=variant, **changes)
    if label not in ("greedy", "beam", "beam_penalty"):
        return case
    one = {"batch": 1} if label == "beam_penalty" else {}  # a mask for all sequences
    mask = some_mask({**DECODER, **one, "queries": 1})
    # The last key of the longest sequence is hidden; no row is empty.
    mask[:, :, 1], mask[0, :, -1] = True, False
    return replace(case, inputs={**case.inputs, "mask": mask})


def decides(case: Case) -> bool:
    """Whether a token or a window depends on the numbers of a case; ties are intended."""
    drawn = case.method in ("greedy", "beam") and not case.name.startswith(("tie_", "near_tie_"))
    return case.operator in (*VARIANTS, "TransformerDecoder") and (drawn or "attention.v_p" in case.parameters)


def with_seed(case: Case, seed: int) -> Case:
    """Return the case with weights of that seed, which decide its tokens or its windows."""
    return with_readout(case, seed) if case.method in ("greedy", "beam") else with_windows(case, seed)


def with_readout(case: Case, seed: int) -> Case:
    """Return the case with a wide readout of that seed."""
    (name,) = (name for name in case.parameters if name.endswith("dense.W"))
    dense = draws.uniform("greedy/dense", case.parameters[name].shape, 4.0, seed)
    return replace(case, parameters={**case.parameters, name: dense})


def with_windows(case: Case, seed: int) -> Case:
    """Return the case with weights of that seed for the predicted windows."""
    weights = draws.uniform("predicted", case.parameters["attention.v_p"].shape, 4.0, seed)
    return replace(case, parameters={**case.parameters, "attention.v_p": weights})


FAMILIES = tuple(Family((name,), partial(decoder_cases, name)) for name in VARIANTS)
