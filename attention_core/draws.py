"""Seeded uniform numbers that are the same on every machine: the only source of weights and inputs in the project."""

from __future__ import annotations

import hashlib
import math

import numpy as np


def uniform(name: str, shape: tuple[int, ...], bound: float = 1.0, seed: int = 0) -> np.ndarray:
    """Draw uniform numbers from -bound to bound, keyed by name and seed.

    u = (raw >> 11) · 2⁻⁵³ of the PCG64 stream;  result = bound · (2u - 1)

    Only integer arithmetic and exact or correctly rounded float64 operations are used, so the bits do not depend on the
    processor.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    raw = np.random.PCG64(int.from_bytes(digest[:16], "little")).random_raw(math.prod(shape))
    unit = (np.asarray(raw, np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return (bound * (2.0 * unit - 1.0)).reshape(shape)


def integers(name: str, shape: tuple[int, ...], high: int, seed: int = 0) -> np.ndarray:
    """Draw whole numbers from 0 to high - 1, as int32.

    result = floor(high · u), with u of `uniform`
    """
    unit = 0.5 * (uniform(name, shape, seed=seed) + 1.0)
    return np.minimum(np.floor(high * unit), high - 1).astype(np.int32)


def dropout_mask(name: str, shape: tuple[int, ...], rate: float, seed: int = 0) -> np.ndarray:
    """Draw 0 with probability rate, and 1/(1 - rate) otherwise."""
    unit = 0.5 * (uniform(name, shape, seed=seed) + 1.0)
    return np.where(unit < rate, 0.0, 1.0 / (1.0 - rate))
