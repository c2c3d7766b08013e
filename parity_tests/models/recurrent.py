"""Recurrent layers of two frameworks: their gates and biases are paired by the tables of `convert`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from backends.weights import SOURCES, WeightError, from_canonical, to_canonical
from parity_tests.models.calls import Arrays
from parity_tests.models.sides import SideError

RECURRENT = re.compile(r"recurrent_kernel|weight_hh_l0|h2h_weight|\bdense_h\b|\bh[nrzifgo]\b")
"""What a name of an array of a recurrent layer has."""

PACKAGES = {"torch": "torch.", "keras": "keras.", "flax": "flax.", "mxnet": "gluon."}
"""How the names of the sources of each framework begin."""


@dataclass(frozen=True)
class RecurrentLayer:
    """A layer of one side: its source, the prefix of its names, its arrays, and the canonical ones."""

    layer: str
    source: str
    prefix: str
    arrays: Arrays = field(repr=False)
    canonical: Arrays = field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its arrays."""
        return tuple(self.arrays)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the canonical arrays."""
        return {name: array.shape for name, array in self.canonical.items()}


def recurrent_layers(framework: str, arrays: Mapping[str, np.ndarray], left: Iterable[str]) -> Iterator[RecurrentLayer]:
    """Yield the recurrent layers of a side, in the order of its arrays; of nested prefixes, the shortest that fits."""
    sources = [name for name in SOURCES if name.startswith(PACKAGES.get(framework, "?"))]
    known = [name for name in sources if SOURCES[name].layer in ("GRU", "LSTM")]
    rest = dict.fromkeys(left)
    for name in filter(RECURRENT.search, list(rest)):
        if name not in rest:
            continue
        for end in (*(match.end() for match in re.finditer(r"[./]", name)), 0):
            inside = {one: arrays[one] for one in rest if one.startswith(name[:end])}
            found = next(_fitting_sources(inside, name[:end], known), None)
            if found is not None:
                yield found
                for one in found.names:
                    del rest[one]
                break


def _fitting_sources(arrays: Arrays, prefix: str, sources: Iterable[str]) -> Iterator[RecurrentLayer]:
    for source in sources:
        try:
            converted = to_canonical(arrays, source, prefix=prefix)
            layer = SOURCES[source].layer
            back = from_canonical(layer, converted.arrays, source, prefix=prefix)
        except WeightError:
            continue
        if back.keys() == arrays.keys():
            yield RecurrentLayer(layer, source, prefix, dict(arrays), converted.arrays)


@dataclass(frozen=True)
class RecurrentPair:
    """A recurrent layer of the expected side and the one of the actual side that has the same canonical arrays."""

    expected: tuple[str, ...]
    actual: tuple[str, ...]
    expected_layer: RecurrentLayer
    actual_layer: RecurrentLayer
    how: ClassVar[str] = "tables"
    scale: ClassVar[float] = 1.0
    is_guess: ClassVar[bool] = False
    has_other_axes: ClassVar[bool] = True

    @property
    def remarks(self) -> list[str]:
        """What is paired."""
        return [f"{self.expected_layer.source} as {self.actual_layer.source}"]

    def __str__(self) -> str:
        return f"{' + '.join(self.actual)} = {' + '.join(self.expected)}, {self.remarks[0]}"

    def to_actual(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """The arrays of the actual side, of those of the expected one: gates in its order, biases summed or apart.

        Raises: SideError if the actual side has no place for them.
        """
        one, other = self.expected_layer, self.actual_layer
        given = {name: arrays[name] for name in one.names}
        try:
            canonical = to_canonical(given, one.source, prefix=one.prefix).arrays
            return from_canonical(other.layer, canonical, other.source, prefix=other.prefix)
        except WeightError as error:
            raise SideError(f"{' + '.join(self.actual)}: {error}") from error

    def to_expected(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Nothing: of two biases only the sum may be known."""
        return {}

    def gradients_to_expected(self, gradients: Mapping[str, np.ndarray]) -> Arrays:
        """The gradients of the expected side's arrays: each entry has those of the entries that it is copied to."""
        if any(name not in gradients for name in self.actual):
            return {}
        found = {}
        for name, copies in self.copies.items():
            gradient = np.zeros(self.expected_layer.arrays[name].shape)
            for other, places in copies:
                copied = places >= 0
                np.add.at(gradient.reshape(-1), places[copied], gradients[other].reshape(-1)[copied])
            found[name] = gradient
        return found

    @cached_property
    def copies(self) -> dict[str, list[tuple[str, np.ndarray]]]:
        """For each array of the expected side, where the entries of arrays of the actual side come from; -1: not of it.

        This is seen from numbers in place of the entries, row by row where two biases that add up are one array. An
        array that the actual side has no place for is left out.
        """
        blank = {name: np.zeros(array.shape) for name, array in self.expected_layer.arrays.items()}
        found: dict[str, list[tuple[str, np.ndarray]]] = {}
        for name, zeros in blank.items():
            numbers = 1.0 + np.arange(zeros.size).reshape(zeros.shape)
            rows = np.eye(2)[:, :, None] if zeros.ndim == len(zeros) == 2 else np.ones(1)
            copies: list[tuple[str, np.ndarray]] = []
            try:
                for row in rows:
                    copies += self.to_actual({**blank, name: row * numbers}).items()
            except SideError:
                continue
            found[name] = [(other, np.rint(array.reshape(-1)).astype(int) - 1) for other, array in copies]
        return found
