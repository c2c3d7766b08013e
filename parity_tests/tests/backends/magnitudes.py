"""Additive scores of the smallest to the largest numbers, in extended precision: what blocks are compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attention_core.draws import uniform

SIZES = {"queries": (3, 5, 40), "keys": (3, 7, 40), "w_v": (40,)}
"""Of 3 sequences, 5 queries, 7 keys and 40 features."""

SCALES = {f"{scale:g}": scale for scale in (1e-30, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e30)}

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
    found = {name: [scale * own for own in drawn()[:2]] + drawn()[2:] for name, scale in SCALES.items()}
    queries, keys, w_v = drawn()
    spread = 10.0 ** np.linspace(-6, 0, 40)
    center = uniform("center", (3, 1, 40))
    found["features of all sizes"] = [spread * queries, spread * keys, w_v]
    found["one tiny feature"] = [np.where(np.arange(40) == 3, 1e-30, 1.0) * own for own in (queries, keys)] + [w_v]
    for name, size, near in (
        ("cancelling", 3.0, 1e-3),
        ("cancelling, large", 9.0, 1e-2),
        ("cancelling, tiny", 1e-3, 1e-6),
    ):
        found[name] = [size * center + near * queries, near * keys - size * center, w_v]
    found["cancelling in pairs"] = [3 * queries, -3 * queries[:, [0, 1, 2, 3, 4, 0, 1]] + 1e-3 * keys, w_v]
    found["one query far from all"] = [1e-3 * queries + 9.0 * center * (np.arange(5) == 2)[:, None], 1e-3 * keys, w_v]
    found["one key far from all"] = [1e-3 * queries, 1e-3 * keys - 9.0 * center * (np.arange(7) == 2)[:, None], w_v]
    found["weights of 1e30"] = [queries, keys, 1e30 * w_v]
    found["weights of all sizes"] = [queries, keys, 10.0 ** np.linspace(-30, 30, 40) * w_v]
    found["weights near overflow"] = [queries, keys, 3e37 * w_v]
    found["zeros"] = [0 * queries, 0 * keys, w_v]
    found["sums of zero"] = [0 * queries + center, 0 * keys - center, w_v]
    found["positive"] = [10.0 ** (3 * own - 3) for own in drawn()]  # from 1e-6 to 1
    found["negative"] = [sign * own for sign, own in zip((-1, -1, 1), found["positive"], strict=True)]
    return found


CASES = cases()
OF_ONE_SIGN = ("positive",)


def cotangent() -> np.ndarray:
    return uniform("g", (3, 5, 7))


def exact(queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray, cotangents: np.ndarray) -> list[np.ndarray]:
    """The scores and the gradients of queries, keys and w_v, in extended precision; 1 - tanh² is 1/cosh²."""
    q, k, w, g = (own.astype(np.longdouble) for own in (queries, keys, w_v, cotangents))
    sums = q[:, :, None] + k[:, None]
    tanh, slopes = np.tanh(sums), w / np.cosh(np.minimum(np.abs(sums), 5000)) ** 2
    of_queries, of_keys = (np.einsum(f"bij,bijh->b{axis}h", g, slopes) for axis in "ij")
    return [tanh @ w, of_queries, of_keys, np.einsum("bij,bijh->h", g, tanh)]


def errors(name: str, found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> list[float]:
    """Of each, max|a - b| / (eps · max|b|) over what is allowed, so that 1 is too much; of zeros anything but 0 is."""
    eps, floor = np.finfo(found[0].dtype).eps, FLOORS.get(name, float(np.finfo(found[0].dtype).tiny))
    allowed = [ALLOWED, *2 * [SATURATED.get(name, ALLOWED)], ALLOWED]
    triples = zip(found, expected, allowed, strict=True)
    return [float(np.abs(a - b).max() / (eps * np.abs(b).max().clip(floor)) / most) for a, b, most in triples]


def own_error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest |a - b| / (eps · |b|), each entry against itself."""
    return float(np.max(np.abs(found - expected) / (np.finfo(found.dtype).eps * np.abs(expected))))
