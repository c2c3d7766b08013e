"""Which array of one side is which array of the other, and how one is arranged as the other."""

from __future__ import annotations

import difflib
import functools
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from parity_tests.models.calls import Arrays
from parity_tests.models.names import Names
from parity_tests.models.sides import Side

How = Literal["names file", "name", "order"]

LEAVES = {
    "weight": ("kernel", "gamma", "scale", "embedding", "embeddings", "table", "w"),
    "bias": ("beta", "b"),
    "running_mean": ("moving_mean", "mean"),
    "running_var": ("moving_variance", "running_variance", "var"),
}
"""The last words of names, with those that mean the same in other frameworks."""

PARTS = {
    "query": ("q", "q_proj", "q_lin", "wq", "to_q", "query_proj", "query_dense"),
    "key": ("k", "k_proj", "k_lin", "wk", "to_k", "key_proj", "key_dense"),
    "value": ("v", "v_proj", "v_lin", "wv", "to_v", "value_proj", "value_dense"),
    "out": ("o", "out_proj", "o_proj", "out_lin", "wo", "to_out", "attention_output", "output_dense"),
    "attention": ("attn", "self_attn", "self_attention", "selfattention", "mha", "multi_head_attention"),
    "cross": ("cross_attn", "cross_attention", "encoder_attn", "encdec_attention", "multihead_attn"),
    "norm": ("layernorm", "layer_norm", "ln", "layer_normalization", "rms_norm"),
    "embed": ("embedding", "embeddings", "embed_tokens", "wte"),
    "layers": ("layer", "blocks", "block", "h"),
}
"""The other words of names, with others for the same."""

LEAF = {word: name for name, words in LEAVES.items() for word in words}
PART = {word: name for name, words in PARTS.items() for word in words}

OF_ATTENTION = ("query", "key", "value")
"""The order in which projections are joined to one."""

OUTPUT_FIRST = ("torch", "mxnet")
"""The frameworks whose matrices have the outputs on their first axis, where others have them on the last."""

JOINED = (2, 3, 4)
"""How many arrays may be joined to one."""


class Arrangement(NamedTuple):
    """How an array is brought to another shape: the order of its axes, then the shape."""

    axes: tuple[int, ...]
    shape: tuple[int, ...]

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """The array, rearranged."""
        return array.transpose(self.axes).reshape(self.shape)

    def back(self, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The array of the other side in the arrangement, and the shape, of this one."""
        return array.reshape([shape[axis] for axis in self.axes]).transpose(np.argsort(self.axes))

    @property
    def is_identity(self) -> bool:
        """Whether the axes stay in order; the shape may be another one."""
        return self.axes == tuple(range(len(self.axes)))


class Pair(NamedTuple):
    """An array of the expected side, the one or several of the actual side that it is, and how it was found."""

    expected: str
    actual: tuple[str, ...]
    arrangement: Arrangement
    how: How

    def __str__(self) -> str:
        axes = "" if self.arrangement.is_identity else f", axes {self.arrangement.axes}"
        parts = f", {len(self.actual)} parts" if len(self.actual) > 1 else ""
        guess = ", by order: a guess" if self.how == "order" else ""
        return f"{' + '.join(self.actual)} = {self.expected}{axes}{parts}{guess}"

    def split(self, array: np.ndarray) -> dict[str, np.ndarray]:
        """The arrays of the actual side, of the expected one."""
        parts = [array] if len(self.actual) == 1 else np.split(array, len(self.actual), axis=0)
        return {name: self.arrangement(part) for name, part in zip(self.actual, parts, strict=True)}

    def join(self, arrays: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray | None:
        """The array as the expected side has it, of those of the actual side; None if one is missing."""
        if any(name not in arrays for name in self.actual):
            return None
        part = (shape[0] // len(self.actual), *shape[1:]) if shape else shape
        return np.concatenate(
            [np.atleast_1d(self.arrangement.back(arrays[name], part)) for name in self.actual]
        ).reshape(shape)


@dataclass
class Pairing:
    """The pairs, and the names on each side that have no partner."""

    pairs: list[Pair] = field(default_factory=list)
    only_actual: list[str] = field(default_factory=list)
    only_expected: list[str] = field(default_factory=list)

    @property
    def has_guesses(self) -> bool:
        """Whether a pair was found by its order alone."""
        return any(pair.how == "order" for pair in self.pairs)

    def copy(self, expected: Mapping[str, np.ndarray]) -> Arrays:
        """The arrays of the expected side under the names, and in the shapes, of the actual one."""
        return {name: part for pair in self.pairs for name, part in pair.split(expected[pair.expected]).items()}


def pair_parameters(actual: Side, expected: Side, names: Names) -> Pairing:
    """Pair the arrays of two sides by the names file, by name, and by order.

    Names are equal once words of frameworks are translated (kernel, weight). What is left over is paired in order where
    the sizes follow each other, which is a guess. A square matrix is transposed only if the others of such names are,
    or if the two frameworks store matrices so.
    """
    pairing = _Pairing(actual, expected)
    pairing.by_file(names)
    pairing.by_name()
    pairing.by_parts()
    pairing.by_order()
    return pairing.finish()


class _Pairing:
    def __init__(self, actual: Side, expected: Side) -> None:
        self.actual, self.expected = actual, expected
        self.left_actual = dict.fromkeys((*actual.parameters, *actual.state))
        self.left_expected = dict.fromkeys((*expected.parameters, *expected.state))
        self.found: list[tuple[str, tuple[str, ...], How]] = []

    def take(self, expected: str, actual: Sequence[str], how: How) -> None:
        self.found.append((expected, tuple(actual), how))
        self.left_expected.pop(expected)
        for name in actual:
            self.left_actual.pop(name)

    def by_file(self, names: Names) -> None:
        for name in list(self.left_actual):
            other = names.parameter(name)
            other = self.expected.tied.get(other, other) if other is not None else None
            if other in self.left_expected and self.fits(name, other):
                self.take(other, [name], "names file")

    def by_name(self) -> None:
        for words in (
            lambda name: (name,),
            words_of,
            lambda name: words_of(name)[-3:],
            lambda name: words_of(name)[-2:],
        ):
            both: dict[tuple[str, ...], tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
            for side, left in enumerate((self.left_actual, self.left_expected)):
                for name in left:
                    both[words(name)][side].append(name)
            for of_actual, of_expected in both.values():
                if len(of_actual) == len(of_expected) == 1 and self.fits(of_actual[0], of_expected[0]):
                    self.take(of_expected[0], of_actual, "name")

    def by_order(self) -> None:
        of_actual, of_expected = list(self.left_actual), list(self.left_expected)
        kinds = [self.kind(self.actual, name) for name in of_actual], [self.kind(self.expected, n) for n in of_expected]
        for block in difflib.SequenceMatcher(None, *kinds, autojunk=False).get_matching_blocks():
            for offset in range(block.size):
                name, other = of_actual[block.a + offset], of_expected[block.b + offset]
                if self.fits(name, other):
                    self.take(other, [name], "order")

    def by_parts(self) -> None:
        """Pair an array with several that it is made of: of equal size, and of one layer of the same name."""
        for other, count in itertools.product(list(self.left_expected), JOINED):
            shape = self.expected.arrays[other].shape
            if other not in self.left_expected or not shape or shape[0] % count:
                continue
            last, size = words_of(other)[-1].removeprefix("in_proj_"), self.expected.arrays[other].size // count
            for parent in dict.fromkeys(tuple(words_of(name)[:-2]) for name in self.left_actual):
                alike = {
                    words_of(name)[-2]: name
                    for name in self.left_actual
                    if tuple(words_of(name)[:-2]) == parent
                    and words_of(name)[-1] == last
                    and self.actual.arrays[name].size == size
                }
                if count == len(OF_ATTENTION) <= len(alike) and {*OF_ATTENTION} <= {*alike}:
                    alike = {name: alike[name] for name in OF_ATTENTION}
                if len(alike) == count and parent[-1:] == tuple(words_of(other)[:-1])[-1:]:
                    self.take(other, list(alike.values()), "name")
                    break

    def kind(self, side: Side, name: str) -> tuple[str, tuple[int, ...]]:
        return ("state" if name in side.state else "parameter"), (math.prod(side.arrays[name].shape),)

    def fits(self, actual: str, expected: str) -> bool:
        """Whether the sizes of the axes are the same, in any order, or are the same as a matrix."""
        one, other = self.actual.arrays[actual], self.expected.arrays[expected]
        same_role = (actual in self.actual.state) == (expected in self.expected.state)
        return same_role and one.size == other.size and next(arrangements(other.shape, one.shape), None) is not None

    def finish(self) -> Pairing:
        """Choose the arrangement of each pair: the one of all that are possible that others of such names have."""
        votes: dict[tuple[str, str], list[bool]] = defaultdict(list)
        choices = {}
        for expected, actual, _ in self.found:
            shape = self.expected.arrays[expected].shape
            part = (shape[0] // len(actual), *shape[1:]) if shape else shape
            possible = list(arrangements(part, self.actual.arrays[actual[0]].shape))
            choices[expected] = possible
            if len({one.is_identity for one in possible}) == 1:
                votes[leaf(expected), leaf(actual[0])].append(possible[0].is_identity)
        pairs = []
        for expected, actual, how in self.found:
            seen = votes.get((leaf(expected), leaf(actual[0])), [])
            stays = all(seen) if seen else self.has_same_orientation(actual[0], expected)
            possible = choices[expected]
            best = next((one for one in possible if one.is_identity == stays), possible[0])
            pairs.append(Pair(expected, actual, best, how))
        return Pairing(pairs, list(self.left_actual), list(self.left_expected))

    def has_same_orientation(self, actual: str, expected: str) -> bool:
        tables = {"embedding", "embeddings", "table"} & {leaf(actual), leaf(expected)}
        if tables or self.expected.arrays[expected].ndim < 2:
            return True
        return (self.actual.framework in OUTPUT_FIRST) == (self.expected.framework in OUTPUT_FIRST)


@functools.cache
def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, in those of one framework, with numbers apart."""
    words = [word for word in re.split(r"[./:]|_(?=\d)|(?<=[a-z])(?=\d)", name.lower()) if word]
    parts = [PART.get(word, word) for word in words[:-1] if word not in ("params", "model", "module")]
    return (*parts, LEAF.get(words[-1], words[-1])) if words else ()


def leaf(name: str) -> str:
    """The last word of a name, as its framework has it."""
    return re.split(r"[./]", name)[-1]


def arrangements(start: tuple[int, ...], end: tuple[int, ...]) -> Iterator[Arrangement]:
    """Yield the ways to bring an array from one shape to another: in order, reversed, as a convolution's, others.

    A shape of more axes is one of which some are split, such as the heads of a projection.
    """
    if math.prod(start) != math.prod(end):
        return
    rank = len(start)
    likely = [tuple(range(rank))]
    if rank > 2:  # outputs, inputs, space, and space, inputs, outputs
        likely += [(*range(2, rank), 1, 0), (rank - 1, rank - 2, *range(rank - 2))]
    likely.append(tuple(reversed(range(rank))))
    every = itertools.permutations(range(rank)) if rank <= 4 else iter(())
    for axes in dict.fromkeys((*likely, *every)):
        moved = tuple(start[axis] for axis in axes)
        if moved == end or (len(end) != rank and _is_split(moved, end)):
            yield Arrangement(axes, end)


def _is_split(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether the longer shape has each axis of the shorter one, as it is or as several."""
    short, long = sorted((one, other), key=len)
    place = 0
    for size in short:
        product = 1
        while place < len(long) and (product < size or (product == size == 1 and long[place] == 1)):
            product *= long[place]
            place += 1
        if product != size:
            return False
    return all(size == 1 for size in long[place:])
