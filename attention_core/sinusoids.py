"""The rates of sinusoidal positions, with more digits than float64 has.

At position 10,000 an angle may be 10,000 radians, and half an ulp of its rate moves the sine by 1e-12. So a rate is the
sum of two float64: `high` has 26 bits, so that its product with a position below 2²⁷ is exact, and `low` is the rest.
"""

from __future__ import annotations

import functools
import math
from decimal import Context, Decimal

import numpy as np

BASE = 10000
BITS = 26


@functools.cache
def rates(features: int) -> tuple[np.ndarray, np.ndarray]:
    """High and low parts of 10000^(-2i/features), for i from 0 to features/2 - 1, in radians per position.

    sin(p rate) = sin(p high) cos(p low) + cos(p high) sin(p low)
    """
    decimal = Context(prec=50)
    exact = [decimal.power(BASE, decimal.divide(Decimal(-2 * i), Decimal(features))) for i in range(features // 2)]
    high = [math.ldexp(round(math.ldexp(m, BITS)), e - BITS) for m, e in (math.frexp(float(rate)) for rate in exact)]
    low = [float(decimal.subtract(rate, Decimal(part))) for rate, part in zip(exact, high, strict=True)]
    both = np.array(high, np.float64), np.array(low, np.float64)
    for array in both:
        array.flags.writeable = False
    return both
