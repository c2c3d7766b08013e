"""Which array of one side is which array of the other, and how one is arranged as the other."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from parity_tests.models.arrangements import Arrangement, arrangements, arrangements_of, joints
from parity_tests.models.calls import Arrays
from parity_tests.models.names import Names
from parity_tests.models.recurrent import RecurrentPair, recurrent_layers
from parity_tests.models.sides import Side, SideError
from parity_tests.models.words import group_of, layer_of, leaf, role_of, words_of

How = Literal["names file", "values", "name", "shape", "order"]

GUESSES = ("shape", "order")
"""Ways to find a pair that names do not show."""

OF_ATTENTION = ("query", "key", "value")
"""The order in which projections are joined to one."""

OUTPUT_FIRST = ("torch", "mxnet")
"""The frameworks whose matrices have the outputs on their first axis, where others have them on the last."""

WHOLE = ("c_attn", "qkv", "qkv_proj", "query_key_value", "in_proj", "to_qkv", "wqkv")
"""The names of a projection that is several in one."""

JOINED = (2, 3, 4)
"""How many arrays may be joined to one."""


class Pair(NamedTuple):
    """Arrays of the expected side and those of the actual side that are the same, and how that was found.

    On one side there is one array; on the other one there may be several, which are stacked.
    """

    expected: tuple[str, ...]
    actual: tuple[str, ...]
    arrangement: Arrangement
    how: How
    scale: float = 1.0
    """What the expected array is multiplied by."""

    def __str__(self) -> str:
        return f"{' + '.join(self.actual)} = {' + '.join(self.expected)}{''.join(f', {one}' for one in self.remarks)}"

    @property
    def remarks(self) -> list[str]:
        """How the arrays differ in axes, parts and scale, and whether the pair is a guess."""
        parts = max(len(self.actual), len(self.expected))
        phrases = {
            f"axes {self.arrangement.axes}": self.has_other_axes,
            f"{parts} parts": parts > 1,
            f"times {self.scale:g}": self.scale != 1.0,
            f"by {self.how}: a guess": self.is_guess,
        }
        return [words for words, holds in phrases.items() if holds]

    @property
    def is_guess(self) -> bool:
        """Whether names do not show that the arrays are the same."""
        return self.how in GUESSES

    @property
    def has_other_axes(self) -> bool:
        """Whether axes are in another order."""
        return not self.arrangement.is_identity

    def to_actual(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """The arrays of the actual side, of those of the expected one, times the scale."""
        return _move(arrays, self.expected, self.actual, self.arrangement, self.scale)

    def to_expected(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """The arrays of the expected side, of those of the actual one; none if one is missing."""
        return _move(arrays, self.actual, self.expected, self.arrangement.inverse, 1.0 / self.scale)

    def gradients_to_expected(self, gradients: Mapping[str, np.ndarray]) -> Arrays:
        """The gradients of the expected side's arrays, of those of the actual side's; none if one is missing."""
        return _move(gradients, self.actual, self.expected, self.arrangement.inverse, self.scale)


def _move(
    arrays: Mapping[str, np.ndarray],
    names: tuple[str, ...],
    others: tuple[str, ...],
    arrangement: Arrangement,
    factor: float,
) -> Arrays:
    if any(name not in arrays for name in names):
        return {}
    moved = arrangement(arrays[names[0]] if len(names) == 1 else np.stack([arrays[name] for name in names]))
    moved = moved if factor == 1.0 else moved * factor
    return {others[0]: moved} if len(others) == 1 else dict(zip(others, moved, strict=True))


@dataclass
class Pairing:
    """The pairs, and the names on each side that have no partner."""

    pairs: list[Pair | RecurrentPair] = field(default_factory=list)
    only_actual: list[str] = field(default_factory=list)
    only_expected: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What of the names file matches nothing."""

    @property
    def guesses(self) -> list[str]:
        """The expected names of the pairs that were found by shapes or order alone."""
        return [" + ".join(pair.expected) for pair in self.pairs if pair.is_guess]

    @property
    def has_guesses(self) -> bool:
        """Whether there are any."""
        return bool(self.guesses)

    @property
    def num_with_other_axes(self) -> int:
        """The number of pairs with other axes."""
        return sum(pair.has_other_axes for pair in self.pairs)

    def copy(self, expected: Mapping[str, np.ndarray]) -> Arrays:
        """The arrays of the expected side under the names, and in the shapes, of the actual one."""
        return {name: array for pair in self.pairs for name, array in pair.to_actual(expected).items()}


def pair_parameters(actual: Side, expected: Side, names: Names, by_values: bool = False) -> Pairing:
    """Pair the arrays of two sides: by the names file, tables, values if that is asked for, names, shapes and order.

    Names are equal once words of frameworks are translated (kernel, weight). By shape are paired those that fit no
    other one of the layers of that number, and the others of a layer of which one is paired; in order, layers whose
    arrays all follow each other in the same sizes: both are guesses. A square matrix is transposed only if the others
    of such names are, or if the two frameworks store matrices so.

    Raises: SideError if the names file pairs arrays that do not fit.
    """
    pairing = _Pairing(actual, expected)
    pairing.by_file(names)
    pairing.by_tables()
    if by_values:
        pairing.by_values()
    pairing.by_name()
    pairing.by_parts()
    pairing.by_shape()
    pairing.by_order()
    return pairing.finish()


class _Pairing:
    def __init__(self, actual: Side, expected: Side) -> None:
        self.actual, self.expected = actual, expected
        self.left_actual = dict.fromkeys((*actual.parameters, *actual.state))
        self.left_expected = dict.fromkeys((*expected.parameters, *expected.state))
        self.found: dict[tuple[tuple[str, ...], tuple[str, ...]], How] = {}
        self.listed: list[Pair | RecurrentPair] = []
        self.notes: list[str] = []
        self.words = {side: _words_behind_the_root(left) for side, left in self.sides}

    @property
    def sides(self) -> tuple[tuple[Side, dict[str, None]], tuple[Side, dict[str, None]]]:
        """Both sides, with the arrays that have no partner yet."""
        return (self.actual, self.left_actual), (self.expected, self.left_expected)

    def take(self, expected: Sequence[str], actual: Sequence[str], how: How) -> None:
        self.found[tuple(expected), tuple(actual)] = how
        self.remove(expected, actual)

    def remove(self, expected: Sequence[str], actual: Sequence[str]) -> None:
        for name in expected:
            self.left_expected.pop(name)
        for name in actual:
            self.left_actual.pop(name)

    def by_file(self, names: Names) -> None:
        groups: dict[tuple[tuple[str, ...], str, float], dict[int, str]] = defaultdict(dict)
        for name in self.left_actual:
            entry = names.parameter(name)
            others = () if entry is None else tuple(self.expected.tied.get(one, one) for one in entry.names)
            unknown = [one for one in others if one not in self.left_expected]
            if unknown:
                self.notes.append(
                    f"names: [parameters] {name} = {unknown[0]!r}: {self.expected.label} has no such array"
                )
            elif entry is not None:
                parts = groups[others, entry.axes, entry.scale]
                if parts.setdefault(entry.part, name) != name:
                    self.notes.append(
                        f"names: [parameters] {name} and {parts[entry.part]} are both {' + '.join(others)}: {name} was "
                        f"left out; state the part of each"
                    )
        self.notes += [
            f"names: [parameters] {pattern!r} matches no array of {self.actual.label}"
            for pattern in names.without_partner((*self.left_actual, *self.actual.tied))
        ]
        for (others, axes, scale), parts in groups.items():
            actual = tuple(parts[index] for index in sorted(parts))
            start, end = self.shape(self.expected, others), self.shape(self.actual, actual)
            possible = arrangements(start, end) if not axes else arrangements_of(axes, start, end)
            fitting = list(possible)
            if not fitting:
                raise SideError(
                    f"names: [parameters] {' + '.join(actual)} {end} does not fit {' + '.join(others)} {start}"
                    + (f" with the axes {axes!r}" if axes else ": state its axes, such as axes = 'i (3 h) -> 3 i h'")
                )
            if axes or scale != 1.0:
                self.listed.append(Pair(others, actual, fitting[0], "names file", scale))
                self.remove(others, actual)
            else:
                self.take(others, actual, "names file")

    def by_tables(self) -> None:
        """Pair recurrent layers of two frameworks, which join gates and biases in other ways."""
        if self.actual.framework == self.expected.framework:
            return
        layers = [[*recurrent_layers(side.framework, side.arrays, left)] for side, left in self.sides]
        for expected in layers[1]:
            actual = next(
                (one for one in layers[0] if (one.layer, one.shapes) == (expected.layer, expected.shapes)), None
            )
            if actual is None:
                continue
            layers[0].remove(actual)
            pair = RecurrentPair(expected.names, actual.names, expected, actual)
            try:
                pair.to_actual(self.expected.arrays)
            except SideError as error:
                self.notes.append(str(error))
                continue
            self.listed.append(pair)
            self.remove(expected.names, actual.names)

    def by_values(self) -> None:
        """Pair arrays of the same values, in any order, that no third one has."""
        both: dict[object, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for index, (side, left) in enumerate(self.sides):
            for name in left:
                array = side.arrays[name]
                if array.size > 1 and array.min() < array.max():
                    both[array.size, np.sort(array, axis=None).astype(np.float32).tobytes()][index].append(name)
        for of_actual, of_expected in both.values():
            if len(of_actual) == len(of_expected) == 1 and self.fits(of_actual[0], of_expected[0]):
                self.take(of_expected, of_actual, "values")

    def by_name(self) -> None:
        for words in (
            lambda name, _: (name,),
            lambda _, words: words,
            lambda _, words: (*group_of(words), *words[-3:]),
            lambda _, words: (*group_of(words), *words[-2:]),
            lambda _, words: words[-3:],
            lambda _, words: words[-2:],
        ):
            for of_actual, of_expected in self.groups(words).values():
                if len(of_actual) == len(of_expected) == 1 and self.fits(of_actual[0], of_expected[0]):
                    self.take(of_expected, of_actual, "name")

    def groups(self, key: Callable[[str, tuple[str, ...]], Hashable]) -> dict[Hashable, tuple[list[str], list[str]]]:
        """The names of both sides that have no partner yet, by a key of a name and its words."""
        both: dict[Hashable, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for index, (side, left) in enumerate(self.sides):
            for name in left:
                both[key(name, self.words[side][name])][index].append(name)
        return both

    def by_parts(self) -> None:
        """Pair an array with several that it is made of: of equal size, and of one layer of the same name."""
        for (whole, left_whole), (parts, left_parts) in (self.sides, self.sides[::-1]):
            for name, count in itertools.product(list(left_whole), JOINED):
                alike = self.parts_of(whole, name, parts, left_parts, count) if name in left_whole else []
                if alike:
                    self.take(*(([name], alike) if whole is self.expected else (alike, [name])), "name")

    def parts_of(self, whole: Side, name: str, parts: Side, left: Iterable[str], count: int) -> list[str]:
        """The arrays that one is made of, in order; none if there are not that many."""
        shape, known = whole.arrays[name].shape, self.words[parts]
        *path, last = self.words[whole][name]
        words, last = [word for word in path if word not in WHOLE], last.removeprefix("in_proj_")
        for parent in dict.fromkeys(known[one][:-2] for one in left):
            alike = {
                known[one][-2]: one
                for one in left
                if known[one][:-2] == parent
                and known[one][-1] == last
                and len(known[one]) > 1
                and parts.arrays[one].size * count == math.prod(shape)
            }
            if count == len(OF_ATTENTION) <= len(alike) and {*OF_ATTENTION} <= {*alike}:
                alike = {one: alike[one] for one in OF_ATTENTION}
            same = parent[-1:] == tuple(words[-1:]) and group_of(parent) == group_of(words)
            if len(alike) == count and same and len({parts.arrays[one].shape for one in alike.values()}) == 1:
                end = (count, *parts.arrays[next(iter(alike.values()))].shape)
                if next(joints(shape, end), None) is not None:
                    return list(alike.values())
        return []

    def by_shape(self) -> None:
        """Pair what fits nothing else in a block of layers, or in a layer of which another array is paired."""
        before = -1
        while before != len(self.found):
            before = len(self.found)
            layers = {
                (layer_of(actual[0]), layer_of(expected[0])) for expected, actual in self.found if len(actual) == 1
            }
            every = {
                other: [
                    (name, (layer_of(name), layer_of(other)) in layers) for name in block[0] if self.may_be(name, other)
                ]
                for block in self.groups(lambda _, words: group_of(words)).values()
                for other in block[1]
            }
            for is_beside in (True, False):
                candidates = {
                    other: [name for name, beside in given if beside or not is_beside] for other, given in every.items()
                }
                counts = Counter(name for names in candidates.values() for name in names)
                alone = {other: names for other, names in candidates.items() if len(names) == 1}
                for other, names in alone.items():
                    if counts[names[0]] == 1:
                        self.take([other], names, "shape")
                if before != len(self.found):
                    break

    def by_order(self) -> None:
        """Pair what is left in order, size by size, where both sides have as many: in blocks, in stacks, in all."""
        for depth, start in itertools.product((2, 1, 0), (0, 1, 2)):
            for of_actual, of_expected in self.groups(functools.partial(_group_to, depth)).values():
                for kind in dict.fromkeys(self.kind(self.expected, name)[start:] for name in of_expected):
                    some = [name for name in of_actual if self.kind(self.actual, name)[start:] == kind]
                    others = [name for name in of_expected if self.kind(self.expected, name)[start:] == kind]
                    if len(some) == len(others) and all(map(self.may_be, some, others)):
                        for name, other in zip(some, others, strict=True):
                            self.take([other], [name], "order")

    def may_be(self, actual: str, expected: str) -> bool:
        """Whether two arrays fit, and are not called a weight here and a bias there."""
        return len({role_of(actual), role_of(expected)} - {""}) < 2 and self.fits(actual, expected)

    def kind(self, side: Side, name: str) -> tuple[bool, str, bool, int]:
        """Whether an array is of a norm, what it is by its last word, whether it is state, and its size."""
        return "norm" in layer_of(name).lower(), role_of(name), name in side.state, side.arrays[name].size

    def shape(self, side: Side, names: Sequence[str]) -> tuple[int, ...]:
        """The shape of an array, or of several that are stacked."""
        shapes = [side.arrays[name].shape for name in names]
        return shapes[0] if len(names) == 1 else (len(names), *shapes[0])

    def fits(self, actual: str, expected: str) -> bool:
        """Whether the sizes of the axes are the same, in any order, or are the same as a matrix."""
        one, other = self.actual.arrays[actual], self.expected.arrays[expected]
        same_role = (actual in self.actual.state) == (expected in self.expected.state)
        return same_role and one.size == other.size and next(arrangements(other.shape, one.shape), None) is not None

    def finish(self) -> Pairing:
        """Choose the arrangement of each pair: the one of all that are possible that others of such names have."""
        votes: dict[tuple[str, str], list[bool]] = defaultdict(list)
        choices = {}
        for expected, actual in self.found:
            start, end = self.shape(self.expected, expected), self.shape(self.actual, actual)
            joins = len(expected) > len(actual)
            if len(expected) == len(actual):
                possible = [(one, one.is_identity) for one in arrangements(start, end)]
            else:
                found = joints(*((end, start) if joins else (start, end)))
                possible = [(one.inverse if joins else one, one.keeps_parts) for one in found]
            choices[expected] = possible
            if len({stays for _, stays in possible}) == 1:
                votes[leaf(expected[0]), leaf(actual[0])].append(possible[0][1])
        pairs: list[Pair | RecurrentPair] = []
        for (expected, actual), how in self.found.items():
            seen = votes.get((leaf(expected[0]), leaf(actual[0])), [])
            stays = all(seen) if seen else self.has_same_orientation(actual[0], expected[0])
            possible = choices[expected]
            best = next((one for one, is_same in possible if is_same == stays), possible[0][0])
            pairs.append(Pair(expected, actual, best, how))
        return Pairing(self.listed + pairs, list(self.left_actual), list(self.left_expected), self.notes)

    def has_same_orientation(self, actual: str, expected: str) -> bool:
        tables = {"embedding", "embeddings", "table"} & {leaf(actual), leaf(expected)}
        if tables or self.expected.arrays[expected].ndim < 2:
            return True
        return (self.actual.framework in OUTPUT_FIRST) == (self.expected.framework in OUTPUT_FIRST)


def _words_behind_the_root(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The words of names, without those that all begin with, such as the number of a model."""
    words = {name: words_of(name) for name in names}
    rows = list(words.values())
    first = itertools.takewhile(lambda column: len({*column}) == 1, zip(*(row[:-1] for row in rows), strict=False))
    same = len(list(first)) if len(rows) > 1 else 0
    return {name: row[same:] for name, row in words.items()}


def _group_to(depth: int, _: str, words: Sequence[str]) -> tuple[str, ...]:
    return group_of(words)[:depth]
