"""Additive scores of the smallest to the largest numbers, in extended precision: what blocks are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attention_core.draws import uniform

HIDDEN = 41
"""The number of features: odd, and more than a group of them in any backend."""

SIZES = {"queries": (3, 5, HIDDEN), "keys": (3, 7, HIDDEN), "w_v": (HIDDEN,)}
"""Of 3 sequences, 5 queries and 7 keys."""

SCALES = {f"{scale:g}": scale for scale in (1e-30, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 3.0, 10.0, 100.0, 1e30)}

ALLOWED, OWN = 15.0, 50.0
"""In eps of the largest entry, as parity_tests/judge/tolerances.py has it, and in eps of each entry."""

SATURATED = {"100": 100.0, "1e+30": 100.0}
"""More for gradients where every tanh is near 1: 29 in JAX, whose tanh is exp's there, and 22 as it compiles itself."""

FLOORS = {"1e+30": 1.0}
"""Where the gradient of every tanh is 0, and that of a tanh of 1 - eps is not."""


def drawn() -> list[np.ndarray]:
    return [uniform(name, shape) for name, shape in SIZES.items()]


def cases() -> dict[str, list[np.ndarray]]:
    """Queries, keys and w_v in float64, by name."""
    named = {name: [scale * own for own in drawn()[:2]] + drawn()[2:] for name, scale in SCALES.items()}
    queries, keys, w_v = drawn()
    spread = 10.0 ** np.linspace(-6, 0, HIDDEN)
    center = uniform("center", (3, 1, HIDDEN))
    third = np.arange(HIDDEN) == 3
    named["features of all sizes"] = [spread * queries, spread * keys, w_v]
    named["one tiny feature"] = [np.where(third, 1e-30, 1.0) * own for own in (queries, keys)] + [w_v]
    small, heavy = np.where(third, 1e-6, 3.0), np.where(third, 1e6, 1e-3)
    named["one tiny"] = [small * queries, small * keys, w_v]
    named["one tiny of large weight"] = [small * queries, small * keys, heavy]
    named["tiny keys"], named["tiny queries"] = [3 * queries, 1e-6 * keys, w_v], [1e-6 * queries, 3 * keys, w_v]
    for name, size, near in (
        ("cancelling", 3.0, 1e-3),
        ("cancelling, large", 9.0, 1e-2),
        ("cancelling, tiny", 1e-3, 1e-6),
    ):
        named[name] = [size * center + near * queries, near * keys - size * center, w_v]
    for size in (1e-3, 0.5, 5.0, 15.0):
        named[f"cancelling {size:g}"] = [1e-4 * size * queries + size, 1e-4 * size * keys - size, w_v]
    named["cancelling by one"] = [0 * queries + 3, 0 * keys - 3 * (1 + 2**-20), w_v]
    named["cancelling in pairs"] = [3 * queries, -3 * queries[:, [0, 1, 2, 3, 4, 0, 1]] + 1e-3 * keys, w_v]
    named["one query far from all"] = [1e-3 * queries + 9.0 * center * (np.arange(5) == 2)[:, None], 1e-3 * keys, w_v]
    named["one key far from all"] = [1e-3 * queries, 1e-3 * keys - 9.0 * center * (np.arange(7) == 2)[:, None], w_v]
    named["weights of 1e30"] = [queries, keys, 1e30 * w_v]
    named["large weights"] = [1e-3 * queries, 1e-3 * keys, 1e30 * w_v]
    named["weights of all sizes"] = [queries, keys, 10.0 ** np.linspace(-30, 30, HIDDEN) * w_v]
    named["weights near overflow"] = [queries, keys, 3e37 * w_v]
    named["zeros"] = [0 * queries, 0 * keys, w_v]
    named["sums of zero"] = [0 * queries + center, 0 * keys - center, w_v]
    named["positive"] = [10.0 ** (3 * own - 3) for own in drawn()]  # from 1e-6 to 1
    named["negative"] = [sign * own for sign, own in zip((-1, -1, 1), named["positive"], strict=True)]
    return named


CASES = cases()
OF_ONE_SIGN = ("positive", "negative")


def cotangent() -> np.ndarray:
    return uniform("g", (3, 5, 7))


def exact(queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray, cotangents: np.ndarray) -> list[np.ndarray]:
    """The scores and the gradients of queries, keys and w_v, in extended precision; 1 - tanh² is 1/cosh²."""
    q, k, w, g = (own.astype(np.longdouble) for own in (queries, keys, w_v, cotangents))
    sums = q[..., :, None, :] + k[..., None, :, :]
    tanh, slopes = np.tanh(sums), w / np.cosh(np.minimum(np.abs(sums), 5000)) ** 2
    of_queries, of_keys = (np.einsum(f"...ij,...ijh->...{axis}h", g, slopes) for axis in "ij")
    return [tanh @ w, of_queries, of_keys, (g[..., None] * tanh).reshape(-1, len(w)).sum(axis=0)]


def errors(name: str, actual: Sequence[np.ndarray], expected: Sequence[np.ndarray], weights: np.ndarray) -> list[float]:
    """Of each, max|a - b| / (eps · max|b|) over what is allowed, so that 1 is too much; of zeros anything but 0 is.

    Gradients of queries and keys are sums of weights: where these are smaller, an error is measured by them.
    """
    eps, floor = np.finfo(actual[0].dtype).eps, FLOORS.get(name, float(np.finfo(actual[0].dtype).tiny))
    scores, *slopes, sums = (np.abs(own).max().clip(floor) for own in expected)
    sizes = scores, *(np.minimum(own, np.abs(weights).max()) for own in slopes), sums
    allowed = [ALLOWED, *2 * [SATURATED.get(name, ALLOWED)], ALLOWED]
    parts = zip(actual, expected, sizes, allowed, strict=True)
    return [float(np.abs(a - b).max() / (eps * size) / most) for a, b, size, most in parts]


def own_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest |a - b| / (eps · |b|), each entry against itself."""
    return float(np.max(np.abs(actual - expected) / (np.finfo(actual.dtype).eps * np.abs(expected))))
