"""Cases of a Transformer: normalization, feed-forward networks, its layers, and encoders of them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from parity_tests.format.call import EARLIER
from parity_tests.format.case import DTYPES, EXACT, FULL, SEED, Arrays, Case, Sizes, layer_case
from parity_tests.format.families import Family

STEPS = {"batch": 5, "steps": 4, "features": 12}
FEED_FORWARD = {"features": 12, "hidden_size": 7}
PRE = {"norm": "pre", "activation": "gelu"}
LLAMA = {"norm": "pre", "rms": True, "activation": "silu", "gated": True, "bias": False}
"""Sublayers as in Llama."""


def drawn_inputs(name: str, sizes: Sizes = STEPS) -> Arrays:
    """Vectors of each step."""
    shape = (sizes["batch"], sizes["steps"], sizes["features"])
    return {"inputs": draws.uniform(f"{name}.inputs", shape, 1.0, SEED)}


def empty_cases(name: str, config: Sizes) -> Iterator[Case]:
    """A call without steps, and one without sequences."""
    for axis, label, shows in (
        ("steps", "no_steps", "There are no steps."),
        ("batch", "no_batch", "There are no sequences."),
    ):
        yield layer_case(name, label, shows, drawn_inputs(name, {**STEPS, axis: 0}), config, EXACT)


NORMALIZATIONS = ("LayerNorm", "RMSNorm")


def normalization_cases() -> Iterator[Case]:
    """Normalization, with and without a mean."""
    for name in NORMALIZATIONS:
        config, inputs = {"features": 12}, drawn_inputs(name)
        yield layer_case(name, "plain", "Vectors around 0.", inputs, config, DTYPES)
        shows = "Vectors as small as the root of epsilon."
        yield layer_case(name, "epsilon", shows, inputs, {**config, "epsilon": 0.25}, DTYPES)
        shifted = {"inputs": inputs["inputs"] + np.array([3.0, -2.0, 1.0, 0.5, -1.5])[:, None, None]}
        yield layer_case(name, "shifted", "Vectors far from 0.", shifted, config)
        zero = {"inputs": inputs["inputs"] * (np.arange(4) != 2)[:, None]}
        yield layer_case(name, "zero", "A step of zeros.", zero, config)
        yield layer_case(name, "large", "Large numbers.", {"inputs": 1000.0 * inputs["inputs"]}, config, DTYPES)
        if name == "LayerNorm":
            yield layer_case(name, "no_bias", "A gain alone.", inputs, {**config, "bias": False})
        yield from empty_cases(name, config)


def feed_forward_cases() -> Iterator[Case]:
    """Feed-forward networks, with each activation, gated or not."""
    name, inputs = "FeedForward", drawn_inputs("FeedForward")
    far = {"inputs": 3.0 * inputs["inputs"]}
    yield layer_case(name, "plain", "A layer of rectified linear units.", inputs, FEED_FORWARD, DTYPES)
    for activation in ("gelu", "gelu_tanh", "silu"):
        config = {**FEED_FORWARD, "activation": activation}
        yield layer_case(name, activation, f"The activation {activation}.", far, config, DTYPES)
    gated = {**FEED_FORWARD, "gated": True}
    yield layer_case(name, "gated", "Hidden features multiplied by a second projection.", far, gated)
    shows = "The network of Llama."
    llama = {**gated, "activation": "silu", "bias": False}
    yield layer_case(name, "gated_silu", shows, far, llama, DTYPES)
    yield layer_case(name, "no_bias", "Projections without biases.", inputs, {**FEED_FORWARD, "bias": False})
    mask = draws.dropout_mask(name, (5, 4, 7), 0.3, SEED)
    yield layer_case(name, "dropout", "Hidden features that are dropped.", {**inputs, "dropout_mask": mask}, gated)
    yield from empty_cases(name, FEED_FORWARD)


LAYER = {"features": 12, "num_heads": 3, "hidden_size": 7}
MIXED = {
    "num_heads": 6,
    "num_key_heads": 3,
    "score": "additive",
    "epsilon": 0.25,
    "norm": "pre",
    "activation": "gelu_tanh",
}
VARIANTS: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
    ("plain", "The layer of the paper.", {}, DTYPES),
    ("pre", "Normalization of what a sublayer reads, and gelu.", PRE, DTYPES),
    ("llama", "RMSNorm, gated networks and no biases.", LLAMA, FULL),
    ("mixed", "Heads that share keys, additive scores, and another epsilon.", MIXED, EXACT),
)
"""Label, what it shows, options and dtypes of the cases that every layer has."""
ROTARY = {"rotary_layout": "concatenated", "rotary_base": 50.0}
POSITIONED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "rotary",
        "Queries and keys rotated by their positions.",
        {"positions": "rotary", "rotary_layout": "interleaved"},
    ),
    ("rotary_halves", "Rotated halves, and another base.", {**PRE, "positions": "rotary", **ROTARY}),
    ("alibi", "A bias that falls with the distance.", {"positions": "alibi"}),
    ("relative", "A learned bias of distances.", {"positions": "relative", "num_buckets": 5}),
    ("relative_near", "Few buckets.", {**PRE, "positions": "relative", "num_buckets": 4, "max_distance": 3}),
)
"""Label, what it shows, and options of the cases of positions in self-attention."""


def drawn_bias(name: str, steps: int, heads: int = 3) -> np.ndarray:
    """Numbers for each head, of which one hides a step from another."""
    bias = draws.uniform(f"{name}.bias", (1, heads, steps, steps), 1.0, SEED)
    bias[0, 1, 3, 2] = -np.inf
    return bias


def dropping(name: str, **shapes: tuple[int, ...]) -> Arrays:
    """Dropout masks of these shapes."""
    return {key: draws.dropout_mask(f"{name}.{key}", shape, 0.3, SEED) for key, shape in shapes.items()}


def open_steps(steps: int) -> np.ndarray:
    """A mask in which each step sees itself and some others."""
    seen = draws.integers("open_steps", (5, steps, steps), 3, SEED) > 0
    return seen | np.eye(steps, dtype=bool)


def hidden_steps(inputs: np.ndarray, lens: np.ndarray) -> np.ndarray:
    """The inputs with NaN and inf in padded steps."""
    padded = np.arange(inputs.shape[1]) >= lens[:, None]
    wrong = np.where(np.arange(inputs.shape[2]) % 2, np.nan, np.inf)
    return np.where(padded[..., None], wrong, inputs)


LENS = np.array([4, 2, 3, 1, 4], np.int32)


def encoder_layer_cases() -> Iterator[Case]:
    """Layers of self-attention."""
    name, inputs = "TransformerEncoderLayer", drawn_inputs("TransformerEncoderLayer")
    case = partial(layer_case, name)
    for label, shows, options, dtypes in VARIANTS:
        yield case(label, shows, {**inputs, "valid_lens": LENS}, {**LAYER, **options}, dtypes)
    yield case("open", "Neither lengths nor mask.", inputs, LAYER, EXACT)
    yield case("rotary", "Rotated queries and keys.", {**inputs, "valid_lens": LENS}, {**LAYER, **ROTARY})
    pairs = {**LAYER, "rotary_layout": "interleaved"}
    yield case("rotary_pairs", "Rotated as in the paper.", {**inputs, "valid_lens": LENS}, pairs, EXACT)
    hidden = {"inputs": hidden_steps(inputs["inputs"], LENS), "valid_lens": LENS}
    for norm in ("post", "pre"):
        shows = f"NaN and inf in padded steps, with norm={norm!r}."
        yield case(f"hidden_{norm}", shows, hidden, {**LAYER, "norm": norm})
    shows = "A mask, one sequence of padding alone, and a bias of each head."
    lens = np.array([0, 3, 4, 2, 1], np.int32)
    masked = {**inputs, "valid_lens": lens, "mask": open_steps(4), "bias": drawn_bias(name, 4)}
    yield case("masked", shows, masked, {**LAYER, **PRE})
    shows = "Steps that see no later ones, and some of the earlier ones."
    yield case("causal", shows, {**inputs, "mask": open_steps(4)}, {**LAYER, "causal": True})
    heads = np.repeat(open_steps(4)[:, None], 3, axis=1)
    heads[:, 1] = heads[::-1, 0]
    yield case("causal_heads", "A mask for each head.", {**inputs, "mask": heads}, {**LAYER, "causal": True}, EXACT)
    masks = dropping(
        name,
        self_dropout_mask=(5, 3, 4, 4),
        hidden_dropout_mask=(5, 4, 7),
        dropout_mask=(2, 5, 4, 12),
    )
    for norm in ("post", "pre"):
        config = {**LAYER, "norm": norm}
        yield case(f"dropout_{norm}", f"Dropout everywhere, with norm={norm!r}.", {**inputs, **masks}, config, EXACT)
    alone = {"need_weights": False}
    yield case("context", "The outputs alone.", {**inputs, "valid_lens": LENS}, LAYER, options=alone)
    yield from empty_cases(name, LAYER)


def decoder_layer_cases() -> Iterator[Case]:
    """Layers of self-attention and attention to an encoder's outputs."""
    name, config = "TransformerDecoderLayer", {**LAYER, "memory_size": 8}
    case = partial(layer_case, name)
    encoded = draws.uniform(f"{name}.encoder_outputs", (5, 9, 8), 1.0, SEED)
    lens = np.array([9, 2, 5, 7, 3], np.int32)
    inputs: Arrays = {**drawn_inputs(name), "encoder_outputs": encoded}
    for label, shows, options, dtypes in VARIANTS:
        kinds = FULL if label == "plain" else dtypes  # rounded to bfloat16, a hidden feature near 0 changes its sign
        yield case(label, shows, {**inputs, "valid_lens": lens}, {**config, **options}, kinds)
    yield case("open", "Neither lengths nor mask.", inputs, config, EXACT)
    yield case("rotary", "Rotated in self-attention alone.", {**inputs, "valid_lens": lens}, {**config, **ROTARY})
    pairs = {**config, "rotary_layout": "interleaved"}
    yield case("rotary_pairs", "Rotated as in the paper.", {**inputs, "valid_lens": lens}, pairs, EXACT)
    hidden = {**inputs, "encoder_outputs": hidden_steps(encoded, lens), "valid_lens": lens}
    yield case("hidden", "NaN and inf in hidden keys.", hidden, config)
    shows = "Lengths of each step, a mask, a step that sees no key, and a bias of self-attention."
    seen = draws.integers(f"{name}.mask", (5, 4, 9), 3, SEED) > 0
    seen[1, 2] = False
    of_steps = 1 + draws.integers(f"{name}.lens", (5, 4), 9, SEED).astype(np.int32)
    masked = {**inputs, "valid_lens": of_steps, "mask": seen, "bias": drawn_bias(name, 4)}
    yield case("masked", shows, masked, {**config, **PRE})
    same = {**inputs, "encoder_outputs": draws.uniform(f"{name}.same", (5, 9, 12), 1.0, SEED)}
    yield case("one_size", "As many features in keys as in steps, the default.", same, LAYER, EXACT)
    masks = dropping(
        name,
        self_dropout_mask=(5, 3, 4, 4),
        attention_dropout_mask=(5, 3, 4, 9),
        hidden_dropout_mask=(5, 4, 7),
        dropout_mask=(3, 5, 4, 12),
    )
    for norm in ("post", "pre"):
        changed = {**config, "norm": norm}
        yield case(f"dropout_{norm}", f"Dropout everywhere, with norm={norm!r}.", {**inputs, **masks}, changed, EXACT)
    yield case("context", "The outputs alone.", {**inputs, "valid_lens": lens}, config, options={"need_weights": False})
    for axis, label, shows in (("steps", "no_steps", "No steps."), ("batch", "no_batch", "No sequences.")):
        few = {**drawn_inputs(name, {**STEPS, axis: 0}), "encoder_outputs": encoded[: 0 if axis == "batch" else 5]}
        yield case(label, shows, few, config, EXACT)
    yield case("no_keys", "There are no keys.", {**inputs, "encoder_outputs": encoded[:, :0]}, config, EXACT)


ONE = {"mixed": {"num_layers": 1}}
"""The depth of a variant whose gradients are small differences behind a second layer."""
ENCODER = {"vocab_size": 11, **LAYER, "num_layers": 2}


def drawn_tokens(name: str, shape: tuple[int, ...], vocab_size: int) -> np.ndarray:
    """Token ids."""
    return draws.integers(f"{name}.tokens", shape, vocab_size, SEED).astype(np.int32)


def encoder_cases() -> Iterator[Case]:
    """Embedded tokens, with positions, through several layers."""
    name = "TransformerEncoder"
    case, tokens = partial(layer_case, name), {"tokens": drawn_tokens(name, (5, 4), 11)}
    ragged = {**tokens, "valid_lens": LENS}
    for label, shows, options, dtypes in VARIANTS:
        yield case(label, shows, ragged, {**ENCODER, **options, **ONE.get(label, {})}, dtypes)
    yield case("open", "Neither lengths nor mask.", tokens, ENCODER, EXACT)
    learned = {**ENCODER, "positions": "learned", "num_positions": 8}
    yield case("learned", "Positions that are learned.", ragged, learned)
    yield case("no_positions", "No positions.", ragged, {**ENCODER, "positions": "none"})
    masked = {**ragged, "mask": open_steps(4), "bias": drawn_bias(name, 4)}
    for label, shows, options in POSITIONED:
        yield case(label, shows, ragged, {**ENCODER, **options}, DTYPES if label == "rotary" else FULL)
    yield case("last_norm", "Outputs that are normalized once more.", ragged, {**ENCODER, "last_norm": True})
    yield case("no_last_norm", "None behind the last layer.", ragged, {**ENCODER, **PRE, "last_norm": False}, EXACT)
    relative = {**POSITIONED[-1][2], "causal": True}
    yield case("relative_causal", "Buckets of earlier steps, a mask and a bias.", masked, {**ENCODER, **relative})
    alibi = {**PRE, "positions": "alibi", "score": "additive"}
    yield case("alibi_additive", "The bias of another score, with a given one.", masked, {**ENCODER, **alibi}, EXACT)
    yield case("masked", "A mask, and a bias of each head.", masked, {**ENCODER, **PRE, "causal": True})
    masks = dropping(
        name,
        embedding_dropout_mask=(5, 4, 12),
        self_dropout_mask=(3, 5, 2, 4, 4),
        hidden_dropout_mask=(3, 5, 4, 7),
        dropout_mask=(3, 2, 5, 4, 12),
    )
    of_three = {**ENCODER, **PRE, "num_heads": 2, "num_layers": 3}
    yield case("dropout", "Dropout everywhere.", {**ragged, **masks}, of_three, EXACT)
    yield case("outputs", "The outputs alone.", ragged, ENCODER, options={"need_weights": False})
    for label, shape in (("no_steps", (5, 0)), ("no_batch", (0, 4))):
        shows = "There are no steps." if label == "no_steps" else "There are no sequences."
        yield case(label, shows, {"tokens": drawn_tokens(name, shape, 11)}, ENCODER, EXACT)


DECODER = {**ENCODER, "memory_size": 8}


def decoder_cases() -> Iterator[Case]:
    """Decoders of several layers: given tokens at once and step by step, and searches."""
    name = "TransformerDecoder"
    case, tokens = partial(layer_case, name), drawn_tokens(name, (5, 4), 11)
    encoded = draws.uniform(f"{name}.encoder_outputs", (5, 9, 8), 1.0, SEED)
    lens = np.array([9, 2, 5, 7, 3], np.int32)
    memory: Arrays = {"encoder_outputs": encoded, "valid_lens": lens}
    given = {"tokens": tokens, **memory}
    for label, shows, options, dtypes in VARIANTS:
        yield case(label, shows, given, {**DECODER, **options, **ONE.get(label, {})}, dtypes)
    yield case("open", "Neither lengths nor mask.", {"tokens": tokens, "encoder_outputs": encoded}, DECODER, EXACT)
    learned = {"positions": "learned", "num_positions": 8}
    yield case("learned", "Positions that are learned.", given, {**DECODER, **learned})
    yield case("no_positions", "No positions.", given, {**DECODER, "positions": "none"}, EXACT)
    for label, shows, options in POSITIONED:
        yield case(label, shows, given, {**DECODER, **options})
    yield case("tied", "The embedding gives the logits.", given, {**DECODER, "tied": True}, DTYPES)
    yield case("last_norm", "The features are normalized once more.", given, {**DECODER, "last_norm": True}, EXACT)
    yield case("no_last_norm", "None behind the last layer.", given, {**DECODER, **PRE, "last_norm": False}, EXACT)
    hidden = {**given, "encoder_outputs": hidden_steps(encoded, lens)}
    yield case("hidden", "NaN and inf in hidden keys.", hidden, DECODER)
    seen = draws.integers(f"{name}.mask", (5, 4, 9), 3, SEED) > 0
    seen[1, 2] = False
    masked = {**given, "mask": seen, "bias": drawn_bias(name, 4)}
    shows = "A mask, a step that sees no key, a bias of self-attention, and the weights of every layer and head."
    yield case("masked", shows, masked, {**DECODER, **PRE}, options={"per_head": True})
    masks = dropping(
        name,
        embedding_dropout_mask=(5, 4, 12),
        self_dropout_mask=(2, 5, 3, 4, 4),
        attention_dropout_mask=(2, 5, 3, 4, 9),
        hidden_dropout_mask=(2, 5, 4, 7),
        dropout_mask=(2, 3, 5, 4, 12),
    )
    yield case("dropout", "Dropout everywhere.", {**given, **masks}, {**DECODER, **PRE}, EXACT)
    yield case("logits", "The logits alone.", given, DECODER, options={"need_weights": False})
    positioned = [(label, {**options, "num_layers": 1}) for label, _, options in POSITIONED]
    for label, options in (
        ("plain", {}),
        ("llama", LLAMA),
        ("learned", learned),
        *positioned,
        ("tied", {"tied": True}),
    ):
        step = {"tokens": tokens[:, 3], EARLIER: tokens[:, :3], **memory}
        shows = f"The fourth step, with the state of those before it: {label}."
        config, room = {**DECODER, **options}, {"max_steps": 6}
        yield case(f"step_{label}", shows, step, config, method="step", options=room)
    groups = {**DECODER, "num_layers": 1, "num_heads": 6, "num_key_heads": 3, **PRE}
    shows = "A step at the last place of the state, with a mask."
    step = {"tokens": tokens[:, 0], EARLIER: tokens, **memory, "mask": seen[:, :1]}
    yield case("step_last", shows, step, groups, EXACT, method="step", options={"max_steps": 6})
    few = {
        "encoder_outputs": draws.uniform(f"{name}.few", (5, 9, 8), 1.0, SEED),
        "valid_lens": np.array([9, 4, 6, 2, 7]),
    }
    few["mask"] = np.arange(9) != np.array([[[1]], [[0]], [[3]], [[1]], [[2]]])
    special = {"bos": 1, "eos": 2, "max_steps": 8}
    shows = "Free-running, each sequence up to its end token."
    yield case("greedy", shows, few, DECODER, gradients=False, method="greedy", options=special)
    shows, config = "The best two of three hypotheses, with a length penalty.", {**DECODER, **PRE, **learned}
    penalized = {**special, "width": 3, "num_best": 2, "length_penalty": 0.75}
    yield case("beam", shows, few, config, gradients=False, method="beam", options=penalized)
    yield case("start", "An empty state.", memory, DECODER, EXACT, method="start", options={"max_steps": 6})
    for label, shape in (("no_steps", (5, 0)), ("no_batch", (0, 4))):
        shows = "There are no steps." if label == "no_steps" else "There are no sequences."
        few = {"tokens": drawn_tokens(name, shape, 11), "encoder_outputs": encoded[: shape[0]]}
        yield case(label, shows, few, DECODER, EXACT)


FAMILIES = (
    Family(NORMALIZATIONS, normalization_cases),
    Family(("FeedForward",), feed_forward_cases),
    Family(("TransformerEncoderLayer",), encoder_layer_cases),
    Family(("TransformerDecoderLayer",), decoder_layer_cases),
    Family(("TransformerEncoder",), encoder_cases),
    Family(("TransformerDecoder",), decoder_cases),
)
