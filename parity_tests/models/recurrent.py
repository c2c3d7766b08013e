"""Recurrent layers of two frameworks: their gates and biases are paired by the tables of `convert`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

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
    """A layer of one side: its source, the prefix of its names, and its canonical arrays."""

    layer: str
    source: str
    prefix: str
    names: tuple[str, ...]
    canonical: Arrays = field(repr=False)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the canonical arrays."""
        return {name: array.shape for name, array in self.canonical.items()}


def recurrent_layers(framework: str, arrays: Mapping[str, np.ndarray], left: Iterable[str]) -> Iterator[RecurrentLayer]:
    """Yield the recurrent layers of a side, in the order of its arrays; each is as large as a table says."""
    sources = [name for name in SOURCES if name.startswith(PACKAGES.get(framework, "?"))]
    known = [name for name in sources if SOURCES[name].layer in ("GRU", "LSTM")]
    left = dict.fromkeys(left)
    for name in [name for name in left if RECURRENT.search(name)]:
        found = None
        for end in [match.end() for match in re.finditer(r"[./]", name)] + [0]:
            prefix = name[:end]
            inside = {one: arrays[one] for one in left if one.startswith(prefix)}
            found = found or next(_fitting_sources(inside, prefix, known), None) if name in left else None
        if found is not None:
            yield found
            for one in found.names:
                left.pop(one)


def _fitting_sources(arrays: Arrays, prefix: str, sources: Iterable[str]) -> Iterator[RecurrentLayer]:
    for source in sources:
        try:
            converted = to_canonical(arrays, source, prefix=prefix)
            layer = SOURCES[source].layer
            back = from_canonical(layer, converted.arrays, source, prefix=prefix)
        except WeightError:
            continue
        if back.keys() == arrays.keys():
            yield RecurrentLayer(layer, source, prefix, tuple(arrays), converted.arrays)


@dataclass(frozen=True)
class RecurrentPair:
    """A recurrent layer of the expected side and the one of the actual side that has the same canonical arrays."""

    expected: tuple[str, ...]
    actual: tuple[str, ...]
    expected_layer: RecurrentLayer
    actual_layer: RecurrentLayer
    how: str = "tables"
    scale: float = 1.0
    is_guess: bool = False
    has_other_axes: bool = True

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
        """The gradients of the expected side's arrays: each entry has those of the entries that it is copied to.

        Which these are is seen from numbers in place of an array's entries, row by row where two biases are one array.
        """
        if any(name not in gradients for name in self.actual):
            return {}
        found = {}
        for name, blank in self.blank().items():
            rows = blank if blank.ndim == 2 == len(blank) else blank[None]
            gradient = np.zeros(rows.shape)
            for row, given in enumerate(gradient):
                numbers = np.zeros(rows.shape)
                numbers[row] = 1.0 + np.arange(given.size).reshape(given.shape)
                try:
                    copies = self.to_actual({**self.blank(), name: numbers.reshape(blank.shape)})
                except SideError:  # the actual side has no place for it
                    break
                for other, copied in copies.items():
                    places = np.rint(copied.reshape(-1)).astype(int)
                    np.add.at(given.reshape(-1), places[places > 0] - 1, gradients[other].reshape(-1)[places > 0])
            else:
                found[name] = gradient.reshape(blank.shape)
        return found

    def blank(self) -> Arrays:
        """Zeros in place of the expected side's arrays."""
        return {name: np.zeros(shape) for name, shape in self.expected_shapes.items()}

    @property
    def expected_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the expected side's arrays."""
        layer = self.expected_layer
        back = from_canonical(layer.layer, layer.canonical, layer.source, prefix=layer.prefix)
        return {name: back[name].shape for name in layer.names}
