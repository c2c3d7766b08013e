"""Implementations that are wrong in a tail, at exactly 0, or for the magnitude of an optional array."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.arrays import promote
from parity_tests.mutants.mutant import Condition, mutant
from parity_tests.mutants.shared import with_parameters
from parity_tests.mutants.weights import round_to

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


@mutant(
    "attention.DotProductAttention.attend",
    touches=lambda bias: bias is not None and ((bias.real <= -1e4) & np.isfinite(bias.real)).any(),
)
def low_bias_hides(original: Any, bias: Any) -> Any:
    """A bias of -1e4 and less hides a key, though it is a number."""
    return original(bias=np.where(bias.real <= -1e4, -np.inf, bias))


@mutant(
    "attention_pooling",
    touches=lambda dropout_mask: dropout_mask is not None and (dropout_mask.real > 100.0).any(),
)
def factor_of_dropout_bounded(original: Any, dropout_mask: Any) -> Any:
    """Dropout divides by a share of at least 0.01."""
    return original(dropout_mask=np.where(dropout_mask.real > 100.0, 100.0, dropout_mask))


@mutant(
    "normalization.Norm._scale",
    cases="LayerNorm-* RMSNorm-*",
    touches=lambda self: (self.parameters["g"].real < 0.0).any(),
)
def gain_without_sign(original: Any, self: Any) -> Any:
    """The gain is taken without its sign, as where its logarithm or its square is kept."""
    gain = self.parameters["g"]
    with with_parameters(self, g=np.where(gain.real < 0.0, -gain, gain)):
        return original()


@mutant("hard.HardAttention.attend", cases="HardAttention-near_tie_float64")
def chosen_in_float32(original: Any, self: Any) -> Any:
    """The key is chosen by scores in float32."""
    score = self._score
    with mock.patch.object(self, "_score", lambda queries, keys: round_to(score(queries, keys), "float32")):
        return original()


@mutant("decoders.Decoder.greedy", cases="BahdanauDecoder-near_tie_float64")
def token_chosen_in_float32(original: Any, self: Any) -> Any:
    """The token is chosen by logits in float32."""
    with with_parameters(self, **{"dense.b": round_to(self.parameters["dense.b"], "float32")}):
        return original()


@mutant("hard.HardAttention.attend", touches=lambda noise: noise is not None and bool((noise.real < 1e-6).any()))
def noise_clamped(original: Any, noise: Any) -> Any:
    """Noise is clamped to 1e-6 and 1 - 1e-6, so that its term has bounds."""
    return original(noise=np.clip(noise.real, 1e-6, 1.0 - 1e-6))
