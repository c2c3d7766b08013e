"""Cases with trained weights, which saturate what drawn ones never do, and inputs that they were trained with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import backends
from attention_core.operators.translation import TRANSLATORS
from parity_tests.cases.translation import searching
from parity_tests.format.case import Arrays, Case
from parity_tests.format.families import Family

FOLDER = Path(__file__).with_suffix("")
"""The files of a layer each, which `python -m tools.trained_layers` writes."""

LAYERS = {"additive": "AdditiveAttention", "translator": "Translator", "transformer": "TransformerTranslator"}
"""The layer of each file."""


def trained_cases(name: str) -> Iterator[Case]:
    """The call of a file's layer; translators also decode."""
    arrays, header = backends.load_archive(FOLDER / f"{name}.safetensors")
    groups: dict[str, Arrays] = {"parameter": {}, "input": {}}
    for key, array in arrays.items():
        group, _, member = key.partition("/")
        groups[group][member] = array
    inputs, translates = groups["input"], LAYERS[name] in TRANSLATORS
    case = Case(LAYERS[name], "trained", "Trained weights.", inputs, {}, "call", header["config"], groups["parameter"])
    # The reference differentiates one entry at a time.
    yield replace(case, gradients=not translates)
    if translates:
        sentences = {name: inputs[name] for name in ("source", "valid_lens")}
        decoding = replace(case, name="trained_sentences", shows="Dates, translated.", inputs=sentences)
        yield searching(decoding, inputs["inputs"].shape[1], {})


FAMILIES = tuple(Family((layer,), partial(trained_cases, name)) for name, layer in LAYERS.items())
