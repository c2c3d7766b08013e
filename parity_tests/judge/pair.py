"""Quantities of the expected answer, and the distance between an actual and an expected array."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from parity_tests.format.case import FULL, epsilon, is_floating, least_normal
from parity_tests.judge.tolerances import MOST, MULTIPLE, ORDINARY, EntryTolerance, Tolerance


class Spread(NamedTuple):
    """How far a nudge of one eps moves each row of a quantity, and its entries, in eps of themselves, if compared."""

    rows: np.ndarray
    entries: np.ndarray | None = None


@dataclass(frozen=True)
class Quantity:
    """An array of the reference in a dtype, with its tolerance and, if there is one, the tolerance of each entry.

    dtype is the dtype of the arithmetic, and stored the allowed dtypes of an answer (default: dtype only). The largest
    entry of beside is used as the scale if it is larger (see `Tolerance.beside`). measured gives the spread of an
    ill-conditioned quantity, which is asked for where an error exceeds the tolerance.
    """

    name: str
    dtype: str
    reference: np.ndarray
    tolerance: Tolerance
    by_entry: EntryTolerance | None = None
    beside: np.ndarray | None = None
    stored: tuple[str, ...] = ()
    measured: Callable[[], Spread | None] = lambda: None

    @functools.cached_property
    def floating(self) -> bool:
        """Whether the dtype is floating; others have no tolerance."""
        return is_floating(self.reference)

    @functools.cached_property
    def dtypes(self) -> tuple[str, ...]:
        """The allowed dtypes of an answer."""
        return self.stored or (self.dtype,) if self.floating else (self.reference.dtype.name,)

    @functools.cached_property
    def scale(self) -> float:
        """The largest finite entry of the reference, and of the tensor beside."""
        arrays = [self.reference] if self.beside is None else [self.reference, self.beside]
        finite = (np.where(np.isfinite(array), array, 0.0) for array in arrays)
        largest = max(float(np.abs(array).max(initial=0.0)) for array in finite)
        return max(largest, smallest_scale(self.dtype)) if largest else 0.0

    @functools.cached_property
    def unit(self) -> float:
        """One eps of the largest entry, or of 1 if all entries are 0."""
        return epsilon(self.dtype) * (self.scale or 1.0)

    @property
    def allowance(self) -> float:
        """The accepted error in eps of a well-conditioned quantity: 0 for integers, and if all entries are zero."""
        return self.tolerance.eps if self.floating and self.scale > 0.0 else 0.0

    @functools.cached_property
    def condition(self) -> np.ndarray:
        """How far a nudge of one eps moves each row, in eps of the largest entry; 0 if nothing was measured."""
        spread = self.measured() if self.floating and self.tolerance.eps else None
        return np.zeros(()) if spread is None else spread.rows * (epsilon(self.dtype) / self.unit)

    @functools.cached_property
    def entry_condition(self) -> np.ndarray:
        """How far a nudge of one eps moves the entries of each row, in eps of themselves; 0 if nothing was measured."""
        spread = self.measured() if self.by_entry is not None and self.by_entry.softmax else None
        return np.zeros(()) if spread is None or spread.entries is None else spread.entries

    @property
    def largest_allowance(self) -> float:
        """The largest accepted error of a row, in eps; 0 if all entries are zero."""
        return float(self.row_allowances.max(initial=0.0)) if self.scale > 0.0 else 0.0

    @property
    def row_allowances(self) -> np.ndarray:
        """The accepted error of each row, in eps, as far as the condition was measured."""
        return widen(self.dtype, self.allowance, self.condition, self.tolerance.ordinary)


@dataclass(frozen=True)
class Pair:
    """An actual and an expected array, the latter from the reference or another backend.

    Errors are measured in eps of the dtype and of the reference's largest entry, so that both kinds are comparable, and
    also in eps of each entry if there is a tolerance for it.
    """

    quantity: Quantity
    actual: np.ndarray
    expected: np.ndarray

    @functools.cached_property
    def doubles(self) -> tuple[np.ndarray, np.ndarray]:
        """Both arrays as float64, which represents every dtype exactly."""
        return self.actual.astype(np.float64), self.expected.astype(np.float64)

    @functools.cached_property
    def finite(self) -> np.ndarray:
        """Where both are finite."""
        actual, expected = self.doubles
        return np.isfinite(actual) & np.isfinite(expected)

    @functools.cached_property
    def same(self) -> np.ndarray:
        """Where both are equal, or both NaN."""
        actual, expected = self.doubles
        return (actual == expected) | (np.isnan(actual) & np.isnan(expected))

    @functools.cached_property
    def errors(self) -> np.ndarray:
        """The distance of finite entries, in eps of the largest entry."""
        actual, expected = self.doubles
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.where(self.finite, np.abs(actual - expected), 0.0)
        return distance / self.quantity.unit

    @functools.cached_property
    def entry_errors(self) -> np.ndarray:
        """The distance of finite entries, in eps of each; smaller ones count as `smallest_entry`."""
        quantity = self.quantity
        least, reference = smallest_entry(quantity.dtype), quantity.reference.astype(np.float64)

        def normal(array: np.ndarray) -> np.ndarray:
            return np.where(np.abs(array) < least, np.copysign(least, reference), array)

        actual, expected = self.doubles
        size = np.abs(normal(reference))
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            distance = np.where(self.finite, np.abs(normal(actual) - normal(expected)), 0.0)
            if quantity.by_entry is not None and quantity.by_entry.softmax:
                apart = np.where(reference > 0.0, -np.log(reference), 0.0)
                size = size * (1.0 + apart.max(axis=-1, keepdims=True, initial=0.0))
            return np.where(distance > 0.0, distance / (epsilon(quantity.dtype) * size), 0.0)

    @functools.cached_property
    def error(self) -> float:
        """The largest error in eps, or the number of differing elements if the dtype has no eps."""
        if not self.quantity.floating:
            return float(np.sum(self.actual != self.expected))
        return float(self.errors.max(initial=0.0))

    @functools.cached_property
    def entry_error(self) -> float | None:
        """The largest error of an entry in eps of itself; None without a tolerance by entry."""
        return None if self.quantity.by_entry is None else float(self.entry_errors.max(initial=0.0))

    @functools.cached_property
    def is_measured(self) -> bool:
        """Whether the condition counts: an error exceeds the tolerance, and not so far that none could explain it."""
        quantity = self.quantity
        explicable = self.error <= MOST[quantity.dtype] or quantity.scale == 0.0
        return quantity.floating and self.error > quantity.allowance and explicable

    @functools.cached_property
    def allowances(self) -> np.ndarray:
        """The accepted error of each entry, in eps: that of its row, if the condition counts."""
        quantity = self.quantity
        allowed = np.array(quantity.allowance)
        if self.is_measured:
            allowed = quantity.row_allowances
        return np.broadcast_to(allowed, self.errors.shape)

    @functools.cached_property
    def entry_allowances(self) -> np.ndarray:
        """The accepted error of each entry, in eps of itself: as `allowances`."""
        tolerance = self.quantity.by_entry
        eps, largest = (0.0 if tolerance is None else tolerance.eps), float(self.entry_errors.max(initial=0.0))
        measured = eps < largest <= MOST[self.quantity.dtype]
        allowed = widen(self.quantity.dtype, eps, self.quantity.entry_condition) if measured else np.array(eps)
        return np.broadcast_to(allowed, self.entry_errors.shape)

    @functools.cached_property
    def decisive(self) -> tuple[float, float]:
        """The error that is largest beside the accepted one, and that one, in eps."""
        if not self.quantity.floating:
            return self.error, 0.0
        return _decisive(self.errors, self.allowances)

    @functools.cached_property
    def decisive_entry(self) -> tuple[float, float]:
        """The same, in eps of each entry."""
        return _decisive(self.entry_errors, self.entry_allowances)

    @property
    def condition(self) -> float | None:
        """The largest condition of a row, in eps of the largest entry, if it counts."""
        return float(self.quantity.condition.max(initial=0.0)) or None if self.is_measured else None

    def worst(self, wrong: np.ndarray, errors: np.ndarray | None = None) -> str:
        """Describe the first of the worst elements among the wrong ones."""
        rank = np.where(wrong, self.errors if errors is None else errors, -1.0) if self.quantity.floating else wrong
        where = np.unravel_index(int(rank.argmax()), wrong.shape)
        place = f"{self.quantity.name}[{', '.join(map(str, where))}]"
        return f"{place} is {self.actual[where]}, expected {self.expected[where]}"


def _decisive(errors: np.ndarray, allowed: np.ndarray) -> tuple[float, float]:
    """The error that is largest beside the accepted one, and that one."""
    if not errors.size:
        return 0.0, float(allowed.max(initial=0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        place = int(np.argmax(np.where(errors > 0.0, errors / allowed, 0.0)))
    return float(errors.reshape(-1)[place]), float(allowed.reshape(-1)[place])


def widen(dtype: str, tolerance: float, condition: np.ndarray, ordinary: float = ORDINARY) -> np.ndarray:
    """The tolerance of each row: that of well-conditioned ones, plus a multiple of what the condition exceeds."""
    return tolerance + MULTIPLE[dtype] * np.maximum(condition - ordinary * tolerance, 0.0)


def smallest_entry(dtype: str) -> float:
    """Twice the smallest normal number: nearer to it, some exponentials are 0 already."""
    return 2.0 * least_normal(dtype)


def smallest_scale(dtype: str) -> float:
    """The largest entry whose errors are ignored, since they are below the smallest normal number of the dtype.

    Frameworks may flush subnormal numbers. float16 is excluded: its range is too small, and no framework flushes it.
    """
    return least_normal(dtype) / (epsilon(dtype) if dtype in FULL else 1.0)
