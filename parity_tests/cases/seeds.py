"""The seeds of cases whose numbers decide a token, a choice or a window."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_core import draws, reference
from parity_tests.format.call import SECOND, output_names
from parity_tests.format.case import Arrays, Case, is_floating
from parity_tests.format.expected import reference_call

# Cases whose seed is not the first one: with it, rounding cannot change a token, a choice or a window (`first_steady`).
SEEDS = {
    "LocalAttention-predictive_open": 9,
    "BahdanauDecoder-greedy": 5,
    "BahdanauDecoder-greedy_long": 5,
    "LuongDecoder-greedy_long": 4,
    "LuongDecoder-greedy_predictive": 7,
    "FixedContextDecoder-greedy": 5,
    "FixedContextDecoder-beam": 10,
    "FixedContextDecoder-beam_penalty": 10,
    "TransformerDecoder-greedy": 4,
    "TransformerDecoder-beam": 4,
    "TransformerTranslator-greedy": 4,
    "TransformerTranslator-beam": 5,
    "Translator-greedy": 9,
    "Translator-beam": 5,
    "Translator-beam_penalty": 2,
    "Translator-sentences_greedy": 16,
    "Translator-sentences_paper": 18,
}


def discrete(case: Case, inputs: Arrays, parameters: Arrays) -> Arrays:
    """The discrete part of the outputs: whole numbers, and which weights are 0."""
    layer = getattr(reference, case.operator)(**case.config)
    reference.set_parameters(layer, parameters)
    names = output_names(case.operator, case.method, case.options, case.twice)
    outputs = dict(zip(names, map(np.asarray, reference_call(case)(layer, **inputs)), strict=True))
    whole = {name: array for name, array in outputs.items() if not is_floating(array)}
    return {
        **whole,
        **{name: array == 0.0 for name, array in outputs.items() if name.removeprefix(SECOND) == "weights"},
    }


def steady(case: Case, times: int = 4) -> bool:
    """Whether the discrete outputs stay the same when inputs and parameters change by more than rounding.

    Decoded sequences must also end at different steps.
    """
    size = 2.0**-5 if "bfloat16" in case.dtypes else 1e-3

    def perturb(name: str, array: np.ndarray, time: int) -> np.ndarray:
        factor = 1.0 + draws.uniform(f"moved/{name}", array.shape, size, time)
        return array * factor if is_floating(array) else array

    plain = discrete(case, case.inputs, case.parameters)
    if "lengths" in plain and len(np.unique(plain["lengths"])) == 1:
        return False
    for time in range(1, times + 1):
        arrays = ({k: perturb(k, v, time) for k, v in part.items()} for part in (case.inputs, case.parameters))
        if any(not np.array_equal(plain[name], other) for name, other in discrete(case, *arrays).items()):
            return False
    return True


def first_steady(made: Callable[[int], Case], most: int = 400) -> tuple[int, Case]:
    """The first seed that makes a steady case, and the case: the seed in SEEDS first, then 1, 2, ..."""
    for seed in (SEEDS.get(made(1).id, 1), *range(1, most + 1)):
        case = made(seed)
        if steady(case):
            return seed, case
    raise AssertionError(f"{case.id}: no seed up to {most} makes a case that rounding cannot change")
