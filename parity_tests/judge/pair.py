"""Two arrays beside each other, and how far apart they are."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from parity_tests.cases.case import FULL, epsilon, is_floating, least_normal
from parity_tests.judge.tolerances import EntryTolerance


@dataclass(frozen=True)
class Pair:
    """An answer beside what is wanted; errors are measured in eps of the dtype and the reference's largest entry.

    Where there is a tensor beside, its largest entry counts if it is the larger one. Where there is a tolerance by
    entry, errors are measured in eps of each entry, too.
    """

    name: str
    dtype: str
    found: np.ndarray
    wanted: np.ndarray
    reference: np.ndarray
    tolerance: float
    beside: np.ndarray | None = None
    by_entry: EntryTolerance | None = None

    @functools.cached_property
    def expected_dtype(self) -> str:
        """The dtype that the answer has to have."""
        return self.dtype if is_floating(self.reference) else self.reference.dtype.name

    @functools.cached_property
    def scale(self) -> float:
        """The largest finite entry of the reference, and of the tensor beside."""
        arrays = [self.reference] if self.beside is None else [self.reference, self.beside]
        finite = (np.where(np.isfinite(array), array, 0.0) for array in arrays)
        largest = max(float(np.abs(array).max(initial=0.0)) for array in finite)
        return max(largest, smallest_scale(self.dtype)) if largest else 0.0

    @functools.cached_property
    def doubles(self) -> tuple[np.ndarray, np.ndarray]:
        """Both as float64, in which every dtype is exact."""
        return self.found.astype(np.float64), self.wanted.astype(np.float64)

    @functools.cached_property
    def finite(self) -> np.ndarray:
        """Where both are finite."""
        found, wanted = self.doubles
        return np.isfinite(found) & np.isfinite(wanted)

    @functools.cached_property
    def same(self) -> np.ndarray:
        """Where both are equal, or both NaN."""
        found, wanted = self.doubles
        return (found == wanted) | (np.isnan(found) & np.isnan(wanted))

    @functools.cached_property
    def errors(self) -> np.ndarray:
        """The distance of finite entries, in eps of the largest entry."""
        found, wanted = self.doubles
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.where(self.finite, np.abs(found - wanted), 0.0)
        return distance / (epsilon(self.dtype) * (self.scale or 1.0))

    @functools.cached_property
    def entry_errors(self) -> np.ndarray:
        """The distance of finite entries, in eps of each; what lies below the least normal number counts as that."""
        least, reference = least_normal(self.dtype), self.reference.astype(np.float64)

        def normal(array: np.ndarray) -> np.ndarray:
            return np.where(np.abs(array) < least, np.copysign(least, reference), array)

        found, wanted = self.doubles
        size = np.abs(normal(reference))
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            distance = np.where(self.finite, np.abs(normal(found) - normal(wanted)), 0.0)
            if self.by_entry is not None and self.by_entry.softmax:
                apart = np.where(reference > 0.0, -np.log(reference), 0.0)
                size = size * (1.0 + apart.max(axis=-1, keepdims=True, initial=0.0))
            return np.where(distance > 0.0, distance / (epsilon(self.dtype) * size), 0.0)

    def worst(self, wrong: np.ndarray, errors: np.ndarray | None = None) -> str:
        """The first of the worst elements among the wrong ones, in words."""
        rank = np.where(wrong, self.errors if errors is None else errors, -1.0)
        rank = rank if is_floating(self.reference) else wrong
        where = np.unravel_index(int(rank.argmax()), wrong.shape)
        place = f"{self.name}[{', '.join(map(str, where))}]"
        return f"{place} is {self.found[where]}, expected {self.wanted[where]}"


def smallest_scale(dtype: str) -> float:
    """The largest entry below which errors count no more: those of its size are below the dtype's least normal number.

    Frameworks may flush what lies below that. float16 has no room for it, and nobody flushes it there.
    """
    return least_normal(dtype) / (epsilon(dtype) if dtype in FULL else 1.0)
