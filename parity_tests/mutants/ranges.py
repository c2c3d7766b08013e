"""Implementations that are wrong in a tail, at exactly 0, or for the magnitude of an optional array."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attention_core.reference.arrays import promote
from parity_tests.mutants.mutant import Condition, mutant

OVERFLOW = math.log(np.finfo(np.float64).max)
"""The number beyond which an exponential is inf."""


def _activates(name: str, holds: Condition) -> Condition:
    """The condition that this activation is applied to numbers for which a condition holds."""
    return lambda self, x: self.sizes["activation"] == name and holds(x.real)


@mutant(
    "feed_forward.FeedForward._activate",
    cases="FeedForward-*",
    touches=_activates("relu", lambda x: (x == 0.0).any()),
)
def slope_of_a_half_at_zero(original: Any, x: Any) -> Any:
    """The slope of relu at 0 is a half, as that of jnp.maximum."""
    return original() + np.where(x.real == 0.0, 0.5 * (x - x.real), 0.0)


@mutant(
    "feed_forward.FeedForward._activate",
    cases="FeedForward-*",
    touches=_activates("silu", lambda x: (x > OVERFLOW).any()),
)
def silu_of_two_exponentials(x: Any) -> Any:
    """The activation silu is x exp(x) / (1 + exp(x)), which is NaN where the exponential is inf."""
    return x * np.exp(x) / (1.0 + np.exp(x))


@mutant(
    "feed_forward.FeedForward._activate",
    cases="FeedForward-*",
    touches=_activates("gelu_tanh", lambda x: (np.abs(x) ** 3 > 65504.0).any()),
    dtype="float16",
)
def cube_beyond_half_precision(original: Any, x: Any) -> Any:
    """The cube in gelu_tanh is inf in float16, and its gradient NaN, as in jax.nn.gelu."""
    return original() + np.where(np.abs(x.real) ** 3 > 65504.0, np.nan * (x - x.real), 0.0)


@mutant("sigmoid", cases="GRU-* LSTM-* LocalAttention-*", touches=lambda x: (x.real < -OVERFLOW).any())
def sigmoid_by_one_exponential(original: Any, x: Any) -> Any:
    """The gradient of 1 / (1 + exp(-x)) is inf/inf where the exponential is inf."""
    return original() + np.where(x.real < -OVERFLOW, np.nan * (x - x.real), 0.0)


@mutant(
    "scaled_dot_score",
    cases="scaled_dot_score-* DotProductAttention-*",
    touches=lambda queries, keys, softcap: (
        softcap is not None and (_dot_products(queries, keys) > 0.5 * OVERFLOW * softcap).any()
    ),
)
def cap_by_exponentials(original: Any, softcap: float) -> Any:
    """The tanh of a softcap is (exp(2x) - 1) / (exp(2x) + 1), which is NaN where the exponential is inf."""
    power = np.exp(2.0 * original(softcap=None) / softcap)
    return softcap * (power - 1.0) / (power + 1.0)


def _dot_products(queries: Any, keys: Any) -> Any:
    return (promote(queries).real @ promote(keys).real.swapaxes(-1, -2)) * queries.shape[-1] ** -0.5


@mutant("regression.NadarayaWatson.__call__", touches=lambda self, queries, keys: _are_far(self, queries, keys).any())
def far_queries_predict_zero(original: Any, self: Any, queries: Any, keys: Any) -> Any:
    """The kernels of a query are not divided by the highest, and all are 0 if it is far from all keys."""
    predictions, weights = original()
    is_far = _are_far(self, queries, keys)
    return np.where(is_far, 0.0, predictions), np.where(is_far[..., None], 0.0, weights)


def _are_far(layer: Any, queries: Any, keys: Any) -> Any:
    width = layer.sizes["width"]
    distance = (promote(queries).real[..., :, None] - promote(keys).real[..., None, :]) / width
    return (0.5 * distance**2).min(axis=-1, initial=np.inf) > -math.log(np.finfo(np.float64).smallest_subnormal)
