"""Cases of the range of numbers: both tails of every nonlinearity and exact 0, and magnitudes of optional arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators import find
from attention_core.operators.pooling import ATTENTION_POOLING
from attention_core.operators.scoring import ADDITIVE_SCORE, SCALED_DOT_SCORE
from attention_core.specification import Layer, Operator
from parity_tests.cases.attention import layer_sizes
from parity_tests.cases.masking import ATTENTION, SIZED
from parity_tests.cases.multi_head import HEADS
from parity_tests.cases.recurrent import RECURRENT, full_inputs, recurrent_case, recurrent_sizes
from parity_tests.cases.transformer import FEED_FORWARD, NORMALIZATIONS, drawn_inputs
from parity_tests.format.case import DTYPES, SEED, Arrays, Case, Sizes, drawn_tensors, epsilon, layer_case
from parity_tests.format.families import Family

REACH = 1e4
"""A factor that brings arguments far into a tail, where exponentials overflow in every dtype. It is one of biases where
there are gradients: that of a matrix multiplies the rounding of a slope by the inputs."""
FACTORS = np.array([1.0, 1e4, 0.0, 30.0, -1e4])
"""Factors of queries: ordinary ones, far ones, zeros, and some between."""


def with_factors(case: Case, bias: str, factors: np.ndarray) -> Case:
    """The case with a factor of each feature in the biases of that name."""
    parts = {name: factors * array for name, array in case.parameters.items() if name.split(".")[-1] == bias}
    return replace(case, parameters={**case.parameters, **parts})


def activation_cases() -> Iterator[Case]:
    """Pre-activations far in both tails, and a step in which others are exactly 0."""
    inputs = {"inputs": 3.0 * drawn_inputs("FeedForward")["inputs"] * (np.arange(4) != 1)[:, None]}
    for activation in ("relu", "gelu", "gelu_tanh", "silu"):
        shows, config = f"{activation} far in both tails, and of 0.", {**FEED_FORWARD, "activation": activation}
        case = layer_case("FeedForward", f"{activation}_far", shows, inputs, config, DTYPES)
        yield with_factors(case, "b_1", REACH * np.array([0, 1, 0, 1, 1, 0, 1]))


CAPPED = {"softcap": 0.25}


def score_cases(operator: Operator, options: Mapping[str, float]) -> Iterator[Case]:
    """A score whose tanh is saturated for some queries, and has exact zeros for one."""
    case = Case(operator.name, "far", FAR, far(drawn_tensors(operator, ATTENTION)), options, dtypes=DTYPES)
    yield replace(case, gradients=operator is ADDITIVE_SCORE)


def layer_cases(name: str, options: Mapping[str, float]) -> Iterator[Case]:
    """A layer with such a score."""
    config = {**layer_sizes(find(name)), **options}
    yield layer_case(name, "far", FAR, far(drawn_call(name)), config, gradients=False)


FAR = "tanh far in both tails, and of 0."


def drawn_call(name: str, sizes: Sizes = ATTENTION) -> Arrays:
    """The required inputs of an attention layer's call."""
    layer = find(name)
    assert isinstance(layer, Layer)
    return drawn_tensors(layer.method("call"), sizes)


def far(plain: Arrays) -> Arrays:
    """The inputs with queries multiplied by FACTORS."""
    return {**plain, "queries": FACTORS[:, None] * plain["queries"]}


def window_cases() -> Iterator[Case]:
    """Windows predicted at the ends."""
    config, wide = {**SIZED, "window": 2, "mode": "predictive"}, {"v_p": 10.0 * REACH}
    shows = "Windows predicted far in both tails of the logistic function: at the first key, and behind the last."
    yield layer_case("LocalAttention", "predictive_far", shows, drawn_call("LocalAttention"), config, wide=wide)


def kernel_cases() -> Iterator[Case]:
    """Kernels that underflow for every key."""
    points = drawn_call("NadarayaWatson")
    whole = {
        "keys": np.rint(8.0 * points["keys"]),
        "queries": np.rint(points["queries"]) + np.array([0, 90, -90, 40, 0]),
    }
    yield layer_case("NadarayaWatson", "far", "Queries so far that every kernel is 0.", {**points, **whole}, {})


def gate_cases(name: str) -> Iterator[Case]:
    """Gates saturated for some features."""
    sizes = recurrent_sizes(RECURRENT, name)
    shape = sizes["batch"], sizes["steps"], sizes["input_size"]
    given = full_inputs(sizes, 2, {"inputs": draws.uniform("GRU/inputs", shape, 1.0, SEED)})
    case = recurrent_case(name, "far", "Gates far in both tails, among ordinary ones.", given, DTYPES)
    yield with_factors(case, "b", np.array([1.0, REACH, 1.0, -REACH, 1.0]))


LOW = (-1e4, -3e4, -65504.0, -3.4028234663852886e38, -1.7976931348623157e308)
"""Biases that others use to hide a key, which are numbers here: each dtype's least, and those that are far below 0."""


def bias_cases(name: str, config: Mapping[str, Any]) -> Iterator[Case]:
    """Biases down to where others hide keys; with queries of 0, all scores are the bias, and its rows exact."""
    plain = drawn_call(name)
    rows = np.repeat(np.array(LOW)[:, None], ATTENTION["keys"], axis=1)
    rows[1, 2:4], rows[0, ::2] = LOW[0], LOW[1]
    bias = np.stack([rows, draws.uniform("low.bias", rows.shape, 1.0, SEED)])
    bias[1, :, 1], bias[1, :, 4] = LOW[:2]
    zeros = {**plain, "queries": plain["queries"] * np.array([0.0, 1.0])[:, None, None], "bias": bias}
    yield layer_case(name, "bias_low", "Biases down to the least numbers hide nothing.", zeros, config, DTYPES)


def kept_keys() -> np.ndarray:
    """A dropout mask at a rate near 1: one key in each row is kept, with a large factor."""
    places = draws.integers("kept", (ATTENTION["batch"], ATTENTION["queries"], 1), ATTENTION["keys"], SEED)
    return np.where(np.arange(ATTENTION["keys"]) == places, 1000.0, 0.0)


def pooling_cases() -> Iterator[Case]:
    """Dropout at a rate near 1."""
    inputs = {**drawn_tensors(ATTENTION_POOLING, ATTENTION), "dropout_mask": kept_keys()}
    yield Case(ATTENTION_POOLING.name, "dropout_high", "Dropout at a rate of 0.999.", inputs, dtypes=DTYPES)


def dot_product_cases() -> Iterator[Case]:
    """A capped score far beyond its cap, low biases, and dropout at a rate near 1."""
    yield from layer_cases("DotProductAttention", CAPPED)
    yield from bias_cases("DotProductAttention", {})
    inputs = {**drawn_call("DotProductAttention"), "dropout_mask": kept_keys()}
    yield layer_case("DotProductAttention", "dropout_high", "Dropout at a rate of 0.999.", inputs, {})


def gain_cases() -> Iterator[Case]:
    """Gains and biases of either sign, of 0, and far from 1."""
    gains = np.linspace(-2.0, 1.0, 12) * np.array([1.0, 30.0, 0.0] * 4)
    for name in NORMALIZATIONS:
        shows = "Gains and biases of either sign, of 0, and far from 1."
        case = layer_case(name, "gains", shows, drawn_inputs(name), {"features": 12}, DTYPES)
        given = {"g": gains, "b": gains[::-1]}
        yield replace(case, parameters={key: given[key] for key in case.parameters})


def choice_cases() -> Iterator[Case]:
    """Scores a few units in the last place apart, and noise near its ends; the scores are features of the keys."""
    sizes = {**ATTENTION, "query_size": 9, "key_size": 9}
    values = draws.uniform("choices.values", (2, 7, 6), 1.0, SEED)
    queries = np.broadcast_to(np.eye(5, 9), (2, 5, 9)).copy()
    config = {"query_size": sizes["query_size"], "key_size": sizes["key_size"], "score": "dot"}
    low = np.rint(8.0 * draws.uniform("choices.keys", (2, 7, 9), 1.0, SEED)) / 16.0
    best = 1 + draws.integers("choices.best", (2, 9), 6, SEED)
    place = np.arange(7)[:, None]
    for *dtypes, dtype in (["float64"], ["float32"], ["float16", "bfloat16"]):
        near = np.where(place == best[:, None] - 1, 0.75, low)  # which comes first, and would be taken of equal ones
        near = np.where(place == best[:, None], 0.75 + 2.0 * epsilon(dtype), near)
        inputs = {"queries": queries, "keys": near, "values": values}
        shows = f"The highest score is a few units of {dtype} above one before it."
        yield layer_case("HardAttention", f"near_tie_{dtype}", shows, inputs, config, (*dtypes, dtype))
    keys, noise = np.zeros((2, 7, 9)), np.tile(np.linspace(0.5, 0.2, 7), (2, 5, 1))
    keys[0, 2, 0], noise[0, 0, 2], noise[0, 0, 5] = 15.0, 0.5, 1.0 - 2.0**-24  # whose term is 16.6
    keys[0, 3, 1], noise[0, 1, 3] = 100.0, 0.0  # whose term is -inf
    keys[1, 4, 2], noise[1, 2, 4], noise[1, 2, 6] = 3.5, 2.0**-100, 0.75  # whose term is -4.2
    inputs = {"queries": queries, "keys": keys, "values": values, "noise": noise}
    shows = "Noise of 0, near 0 and near 1 decides against higher scores."
    yield layer_case("HardAttention", "noise_ends", shows, inputs, config)


FAMILIES = (
    Family((ADDITIVE_SCORE.name,), partial(score_cases, ADDITIVE_SCORE, {})),
    Family((SCALED_DOT_SCORE.name,), partial(score_cases, SCALED_DOT_SCORE, CAPPED)),
    Family((ATTENTION_POOLING.name,), pooling_cases),
    Family(("DotProductAttention",), dot_product_cases),
    *(Family((name,), partial(layer_cases, name, {})) for name in ("AdditiveAttention", "ConcatAttention")),
    Family(("MultiHeadAttention",), partial(bias_cases, "MultiHeadAttention", {**HEADS, "bias": False})),
    Family(("LocalAttention",), window_cases),
    Family(("HardAttention",), choice_cases),
    Family(("NadarayaWatson",), kernel_cases),
    Family(NORMALIZATIONS, gain_cases),
    Family(("FeedForward",), activation_cases),
    *(Family((name,), partial(gate_cases, name)) for name in ("GRU", "LSTM")),
)
