"""Cases of training: a translator learns to reverse a sequence, step by step from the same parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators.translation import TRANSLATORS
from attention_core.specification import Layer
from parity_tests.format.call import LISTED, OPTIMISERS, TRAINING, layer_of
from parity_tests.format.case import EXACT, FULL, SEED, Arrays, Case, drawn_parameters
from parity_tests.format.families import Family
from parity_tests.translation.corpus import permutation

SENTENCES, BATCH, KEYS, STEPS = 24, 6, 5, 7
VOCABULARIES = {"source_vocab_size": 8, "target_vocab_size": 9}
SIZES = {"embed_size": 3, "hidden_size": 5}
TRANSFORMER: dict[str, Any] = {"features": 4, "num_heads": 2, "hidden_size": 6}
EOS, BOS = 2, 1
LONG, MIDDLE, SHORT = 104, 26, 8
MANY = 30
"""The number of steps of an optimiser alone, beyond those after which its corrections are near 1."""
LONG_TRAININGS = ("gru_additive_adam", "gru_dot_sgd", "lstm_additive_sgd", "lstm_dot_adam")
"""Any two of recurrent layer, score and optimiser meet in one of these; the other combinations take MIDDLE steps."""
SHAPES = dict(zip(LISTED, ((5, 3), (4,), (2, 1, 6)), strict=True))
"""The shapes of the arrays in a list of gradients, for clipping and optimisers."""

RATES: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "learning_rate": 0.02, "max_norm": 0.3},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.5, "max_norm": 0.3},
}


def reversals() -> Arrays:
    """Sequences of two to five tokens, and the reversed ones with an end token; token ids start at 3."""
    lens = 2 + draws.integers("training/lens", (SENTENCES,), KEYS - 1, SEED)
    words = VOCABULARIES["source_vocab_size"] - 3
    tokens = 3 + draws.integers("training/tokens", (SENTENCES, KEYS), words, SEED)
    source = np.where(np.arange(KEYS) < lens[:, None], tokens, 0)
    targets = np.zeros((SENTENCES, STEPS), np.int64)
    for row, length in enumerate(lens):
        targets[row, : length + 1] = [*source[row, :length][::-1], EOS]
    inputs = np.roll(targets, 1, axis=1)
    inputs[:, 0] = BOS
    arrays = {"source": source, "source_lens": lens, "inputs": inputs, "targets": targets, "target_lens": lens + 1}
    return {name: array.astype(np.int32) for name, array in arrays.items()}


def order(steps: int) -> np.ndarray:
    """The rows of each step's batch: every sequence once an epoch, in an order drawn for the epoch."""
    epochs = -(-steps * BATCH // SENTENCES)
    rows = np.concatenate([permutation(f"training/{epoch}", SENTENCES, SEED) for epoch in range(epochs)])
    return rows[: steps * BATCH].reshape(steps, BATCH).astype(np.int32)


def training_case(
    label: str, shows: str, steps: int, options: dict[str, Any], dtypes: tuple[str, ...] = FULL, **variant: Any
) -> Case:
    """A training; variant holds arguments of the translator beside its vocabularies."""
    config = {**VOCABULARIES, **(variant if "num_heads" in variant else {**SIZES, **variant})}
    layer = TRANSLATORS[layer_of("training", config)]
    arrays = {**reversals(), "batches": order(steps)}
    if label.endswith("dropout"):
        arrays |= masks(layer, steps, config)
    # Numbers that float32 holds: both dtypes start alike, and the reference trains once for both.
    drawn = drawn_parameters(layer, config)
    parameters = {name: array.astype(np.float32).astype(np.float64) for name, array in drawn.items()}
    return Case("training", label, shows, arrays, options, "train", config, parameters, dtypes, gradients=False)


def masks(layer: Layer, steps: int, config: dict[str, Any]) -> Arrays:
    """Dropout masks for every step."""
    sizes = {**layer.sizes(config), "batch": BATCH, "keys": KEYS, "steps": STEPS}
    drawn = {}
    for tensor in layer.method("call").keyword_tensors:
        shape = (steps, *(sizes[axis] for axis in tensor.axes))
        drawn[tensor.name] = draws.dropout_mask(f"training/{tensor.name}", shape, 0.2, SEED)
    return drawn


def clipping_cases() -> Iterator[Case]:
    """Clipping alone, of a list of three gradients."""
    drawn = {f"gradients.{name}": draws.uniform(f"clipping/{name}", shape, 2.0, SEED) for name, shape in SHAPES.items()}
    met = {name: np.zeros(array.shape) for name, array in drawn.items()}
    met["gradients.W"][2, 1], met["gradients.v"][0, 0, 3] = 3.0, -4.0

    def case(label: str, shows: str, inputs: Arrays, **options: float) -> Case:
        return Case("clip_by_global_norm", label, shows, inputs, options, dtypes=FULL, gradients=False)

    yield case("plain", "A norm above the bound.", drawn, max_norm=1.5)
    yield case("below", "A norm below the bound: nothing changes.", drawn, max_norm=60.0)
    yield case("met", "A norm of 5, which is the bound: nothing changes, to the bit.", met, max_norm=5.0)
    yield case("none", "No bound.", drawn)
    for label, size in (("tiny", 1e-30), ("huge", 1e30)):
        shows = f"Entries near {size:g}, whose squares float32 does not hold."
        yield case(label, shows, {name: size * array for name, array in drawn.items()}, max_norm=1.5 * size)
    yield case("zero", "Gradients of 0.", {name: np.zeros(array.shape) for name, array in drawn.items()}, max_norm=1.0)


def optimiser_cases() -> Iterator[Case]:
    """Steps of the optimisers alone, with drawn gradients."""
    moved, moves, many = {}, {}, {}
    for name, shape in SHAPES.items():
        moved[f"parameters.{name}"] = draws.uniform(f"optimiser/{name}", shape, 1.0, SEED)
        moves[f"gradients.{name}"] = draws.uniform(f"descent/{name}", (STEPS, *shape), 1.0, SEED)
        many[f"gradients.{name}"] = draws.uniform(f"descent/{name}", (MANY, *shape), 1.0, SEED)
    rare = {name: array * (np.arange(array.size).reshape(array.shape) % 4 == 0) for name, array in moves.items()}

    def case(
        operator: str, label: str, shows: str, size: float = 1.0, gradients: Arrays = moves, **options: float
    ) -> Case:
        inputs = {**moved, **{name: size * array for name, array in gradients.items()}}
        return Case(operator, label, shows, inputs, {"learning_rate": 0.05, **options}, dtypes=FULL, gradients=False)

    first = {name: array[:1] for name, array in moves.items()}
    for operator in OPTIMISERS:
        yield case(operator, "plain", f"{STEPS} steps.")
        yield case(operator, "many", f"{MANY} steps.", gradients=many)
        yield case(operator, "first", "The first step, which Adam's corrections change most.", gradients=first)
        yield case(operator, "rate", "Another learning rate.", learning_rate=0.5)
        yield case(operator, "rare", "Gradients that are 0 in most steps: the moments still move.", gradients=rare)
        yield case(operator, "zero", "Gradients of 0: nothing moves.", 0.0)
        yield case(operator, "huge", "Gradients near 1e12.", 1e12)
        yield case(operator, "warmup", "A rate that rises for three steps, and falls from then on.", warmup=3)
    yield case("adam", "small", "Gradients near epsilon, which is outside the root.", 1e-8)
    yield case("adam", "decays", "Other decays.", beta1=0.5, beta2=0.9)
    yield case("adam", "epsilon", "Another epsilon.", epsilon=0.1)


def training_cases() -> Iterator[Case]:
    """Whole trainings."""
    for optimizer, rates in RATES.items():
        for cell in ("gru", "lstm"):
            for score in ("additive", "dot"):
                label = f"{cell}_{score}_{optimizer}"
                steps = LONG if label in LONG_TRAININGS else MIDDLE
                shows = f"{cell.upper()}, the score {score}, and {optimizer}, for {steps} steps."
                yield training_case(label, shows, steps, rates, cell=cell, score=score)
        shows = f"A Transformer, and {optimizer} with warmup, for {MIDDLE} steps."
        yield training_case(f"transformer_{optimizer}", shows, MIDDLE, {**rates, "warmup": 10}, **TRANSFORMER)
    for label, shows, options, variant in VARIANTS:
        yield training_case(label, shows, SHORT, options, EXACT, **variant)


VARIANTS: tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...] = (
    ("short", "A few steps, for the mutants.", RATES["adam"], {}),
    ("short_sgd", "A few steps of SGD.", RATES["sgd"], {}),
    ("unclipped", "No clipping.", {**RATES["sgd"], "max_norm": None}, {}),
    (
        "adam_options",
        "Other decays and another epsilon.",
        {**RATES["adam"], "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3},
        {},
    ),
    ("dropout", "Dropout masks as inputs, between layers and of the weights.", RATES["adam"], {"num_layers": 2}),
    ("luong", "Luong's decoder.", RATES["adam"], {"decoder": "luong"}),
    ("fixed", "The decoder without attention.", RATES["adam"], {"decoder": "fixed"}),
    ("context_alone", "A decoder that reads the context alone.", RATES["adam"], {"reads": "context"}),
    (
        "paper",
        "The form of the paper.",
        RATES["adam"],
        {"bidirectional": True, "bridge": "backward", "readout": "maxout"},
    ),
    (
        "transformer_dropout",
        "A Transformer with dropout masks everywhere.",
        RATES["adam"],
        {**TRANSFORMER, "norm": "pre"},
    ),
    (
        "transformer_tied",
        "A Transformer with rotated heads, one embedding for sources and translations, and logits from it.",
        RATES["sgd"],
        {**TRANSFORMER, "source_vocab_size": 9, "positions": "rotary", "tied": True, "shared": True},
    ),
    (
        "transformer_additive",
        "A Transformer with additive scores and learned positions.",
        RATES["sgd"],
        {**TRANSFORMER, "score": "additive", "positions": "learned", "num_positions": STEPS},
    ),
)

FAMILIES = (Family(("clip_by_global_norm",), clipping_cases), Family(OPTIMISERS, optimiser_cases))
TRAININGS = Family((TRAINING,), training_cases)
