"""The rates of sinusoidal and rotary positions, with more digits than float64 has.

At position 10,000 an angle may be 10,000 radians, and half an ulp of its rate moves the sine by 1e-12. So a rate is the
sum of two float64: `high` has 26 bits, so that its product with a position below 2²⁷ is exact, and `low` is the rest.
"""

from __future__ import annotations

import functools
import math
from decimal import Context, Decimal

import numpy as np

BASE = 10000.0
BITS = 26
PI = Decimal("3.14159265358979323846264338327950288419716939937510582")

_decimal = Context(prec=50)


def _exact(features: int, base: float) -> list[Decimal]:
    powers = (_decimal.divide(Decimal(-2 * i), Decimal(features)) for i in range(features // 2))
    return [_decimal.power(Decimal(float(base)), power) for power in powers]


@functools.cache
def rates(features: int, base: float = BASE) -> tuple[np.ndarray, np.ndarray]:
    """High and low parts of base^(-2i/features), for i from 0 to features/2 - 1, in radians per position.

    sin(p rate) = sin(p high) cos(p low) + cos(p high) sin(p low)
    """
    exact = _exact(features, base)
    high = [math.ldexp(round(math.ldexp(m, BITS)), e - BITS) for m, e in (math.frexp(float(rate)) for rate in exact)]
    low = [float(_decimal.subtract(rate, Decimal(part))) for rate, part in zip(exact, high, strict=True)]
    return _constant(np.array(high, np.float64)), _constant(np.array(low, np.float64))


@functools.cache
def turns(features: int, base: float = BASE) -> tuple[np.ndarray, np.ndarray]:
    """Upper and lower 32 bits of base^(-2i/features) in 2⁻⁶⁴ turns per position, without whole turns.

    For arithmetic without float64: a product with a position overflows by whole turns, and thus is exact.
    """
    whole = [int(_decimal.multiply(_decimal.divide(rate, 2 * PI), 2**64)) for rate in _exact(features, base)]
    upper, lower = ([(bits >> shift) % 2**32 for bits in whole] for shift in (32, 0))
    return _constant(np.array(upper, np.uint32)), _constant(np.array(lower, np.uint32))


def _constant(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
