"""Cases of the range of numbers: both tails of every nonlinearity and exact 0, and magnitudes of optional arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attention_core import draws
from attention_core.operators import find
from attention_core.operators.scoring import ADDITIVE_SCORE, SCALED_DOT_SCORE
from attention_core.specification import Layer
from parity_tests.cases.attention import layer_sizes
from parity_tests.cases.masking import ATTENTION, SIZED
from parity_tests.cases.recurrent import RECURRENT, full_inputs, recurrent_case, recurrent_sizes
from parity_tests.cases.transformer import FEED_FORWARD, drawn_inputs
from parity_tests.format.case import DTYPES, SEED, Arrays, Case, Sizes, drawn_tensors, layer_case
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


FAMILIES = (
    Family(("FeedForward",), activation_cases),
    Family(
        ("additive_score", "scaled_dot_score", "AdditiveAttention", "ConcatAttention", "DotProductAttention"),
        score_cases,
    ),
    Family(("LocalAttention", "NadarayaWatson"), kernel_cases),
    *(Family((name,), partial(gate_cases, name)) for name in ("GRU", "LSTM")),
)
