"""Cases of the range of numbers: both tails of every nonlinearity and exact 0, and magnitudes of optional arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attention_core import draws
from attention_core.operators import find
from attention_core.operators.pooling import ATTENTION_POOLING
from attention_core.operators.scoring import ADDITIVE_SCORE, SCALED_DOT_SCORE
from attention_core.specification import Layer
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


def score_cases() -> Iterator[Case]:
    """Scores and layers whose tanh is saturated for some queries, and has exact zeros for one."""
    shows = "tanh far in both tails, and of 0."
    plain = far(drawn_tensors(ADDITIVE_SCORE, ATTENTION))
    yield Case(ADDITIVE_SCORE.name, "far", shows, plain, dtypes=DTYPES)
    plain, capped = far(drawn_tensors(SCALED_DOT_SCORE, ATTENTION)), {"softcap": 0.25}
    yield Case(SCALED_DOT_SCORE.name, "far", shows, plain, capped, dtypes=DTYPES, gradients=False)
    for name, options in (("AdditiveAttention", {}), ("ConcatAttention", {}), ("DotProductAttention", capped)):
        config = {**layer_sizes(find(name)), **options}
        yield layer_case(name, "far", shows, far(drawn_call(name)), config, gradients=False)


def drawn_call(name: str, sizes: Sizes = ATTENTION) -> Arrays:
    """The required inputs of an attention layer's call."""
    layer = find(name)
    assert isinstance(layer, Layer)
    return drawn_tensors(layer.method("call"), sizes)


def far(plain: Arrays) -> Arrays:
    """The inputs with queries multiplied by FACTORS."""
    return {**plain, "queries": FACTORS[:, None] * plain["queries"]}


def kernel_cases() -> Iterator[Case]:
    """A window predicted at the ends, and kernels that underflow for every key."""
    config, wide = {**SIZED, "window": 2, "mode": "predictive"}, {"v_p": 10.0 * REACH}
    shows = "Windows predicted far in both tails of the logistic function: at the first key, and behind the last."
    yield layer_case("LocalAttention", "predictive_far", shows, drawn_call("LocalAttention"), config, wide=wide)
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


def bias_cases() -> Iterator[Case]:
    """Biases down to where others hide keys; with queries of 0, all scores are the bias, and its rows exact."""
    for name, config in (("DotProductAttention", {}), ("MultiHeadAttention", {**HEADS, "bias": False})):
        plain = drawn_call(name)
        rows = np.repeat(np.array(LOW)[:, None], ATTENTION["keys"], axis=1)
        rows[1, 2:4], rows[0, ::2] = LOW[0], LOW[1]
        bias = np.stack([rows, draws.uniform("low.bias", rows.shape, 1.0, SEED)])
        bias[1, :, 1], bias[1, :, 4] = LOW[:2]
        zeros = {**plain, "queries": plain["queries"] * np.array([0.0, 1.0])[:, None, None], "bias": bias}
        yield layer_case(name, "bias_low", "Biases down to the least numbers hide nothing.", zeros, config, DTYPES)


def dropout_cases() -> Iterator[Case]:
    """Dropout at a rate near 1: one key in each row is kept, with a large factor."""
    places = draws.integers("kept", (ATTENTION["batch"], ATTENTION["queries"], 1), ATTENTION["keys"], SEED)
    mask = {"dropout_mask": np.where(np.arange(ATTENTION["keys"]) == places, 1000.0, 0.0)}
    shows = "Dropout at a rate of 0.999."
    plain = drawn_tensors(ATTENTION_POOLING, ATTENTION)
    yield Case(ATTENTION_POOLING.name, "dropout_high", shows, {**plain, **mask}, dtypes=DTYPES)
    yield layer_case("DotProductAttention", "dropout_high", shows, {**drawn_call("DotProductAttention"), **mask}, {})


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
    Family(("DotProductAttention", "MultiHeadAttention"), bias_cases),
    Family((ATTENTION_POOLING.name, "DotProductAttention"), dropout_cases),
    Family(NORMALIZATIONS, gain_cases),
    Family(("HardAttention",), choice_cases),
    Family(("FeedForward",), activation_cases),
    Family(
        ("additive_score", "scaled_dot_score", "AdditiveAttention", "ConcatAttention", "DotProductAttention"),
        score_cases,
    ),
    Family(("LocalAttention", "NadarayaWatson"), kernel_cases),
    *(Family((name,), partial(gate_cases, name)) for name in ("GRU", "LSTM")),
)
