"""How an error lies in an array, whatever it comes from: a constant factor, one index of an axis, all zeros."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from parity_tests.models.formulas import Array

CLOSE = 1e-6
"""By which part of the largest entry an explanation may miss: it explains an error that is far larger."""


def is_close(one: Array, other: Array) -> bool:
    """Whether two arrays are the same for an explanation."""
    if one.shape != other.shape:
        return False
    finite = np.isfinite(other)
    if not np.array_equal(finite, np.isfinite(one)):
        return False
    size = float(np.abs(other[finite]).max(initial=0.0))
    return float(np.abs(one[finite] - other[finite]).max(initial=0.0)) <= CLOSE * size if size else not one.any()


def factor_between(one: Array, other: Array) -> float | None:
    """The constant factor between two arrays; None if there is none, or it is 1."""
    squares = float((other * other).sum())
    if not squares or not math.isfinite(squares):
        return None
    factor = float((one * other).sum()) / squares
    return factor if factor and abs(factor - 1.0) > CLOSE and is_close(one, factor * other) else None


def name_factor(factor: float, shape: Sequence[int]) -> str:
    """A factor, with its meaning if it is a root of a size."""
    near = sorted({size for size in shape if size > 1})
    others = [2**power for power in range(1, 13)]
    whole = abs(factor - round(factor)) < CLOSE
    for sizes, power, name in (
        (near, 0.5, "√{}"),
        (near, -0.5, "1/√{}"),
        (near, 1.0, "{}"),
        (near, -1.0, "1/{}"),
        (others, -1.0, "1/{}"),
        ([] if whole else others, 0.5, "√{}"),
        (others, -0.5, "1/√{}"),
    ):
        for size in sizes:
            if abs(factor / size**power - 1.0) < CLOSE:
                return f"{factor:.6g}" if name == "{}" else f"{factor:.6g} ({name.format(size)})"
    return f"{factor:.6g}"


def gradient_manners(one: Array, other: Array) -> Iterator[str]:
    """Yield what is wrong with a gradient as a whole: it is 0, or scaled."""
    if not one.any() and other.any():
        yield "the gradient is 0: a branch is detached"
    factor = factor_between(one, other)
    if factor is not None:
        yield f"the gradient is {name_factor(factor, other.shape)} times what is expected"


def manners(one: Array, other: Array) -> Iterator[str]:
    """Yield how an error without a name lies: a shift, one index of an axis, from an index on."""
    if not one.any() and other.any():
        yield "it is 0 everywhere"
        return
    factor = factor_between(one, other)
    if factor is not None:
        yield f"{name_factor(factor, other.shape)} times what is expected"
        return
    size = float(np.abs(np.where(np.isfinite(other), other, 0.0)).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        wrong = ~(np.abs(one - other) <= CLOSE * size) & ~((one == other) | (np.isnan(one) & np.isnan(other)))
    for axis in range(other.ndim):
        at = np.flatnonzero(wrong.any(axis=tuple(index for index in range(other.ndim) if index != axis)))
        if 0 < at.size < other.shape[axis]:
            behind = at.size > 1 and at[-1] == other.shape[axis] - 1 and at.size == at[-1] - at[0] + 1
            where = f"from index {at[0]} on" if behind else f"at {', '.join(map(str, at[:6]))}"
            yield f"it differs only {where} of axis {axis} ({other.shape[axis]} long)"
    if not np.isfinite(one).all() and np.isfinite(other).all():
        yield f"{100 * (~np.isfinite(one)).mean():.0f} % of its values are not finite"
