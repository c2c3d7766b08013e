"""The ways to bring an array to another shape: axes that are split, ordered anew and joined."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from backends.weights.rearrange import parse, shape_of, solve
from parity_tests.models.sides import SideError


class Arrangement(NamedTuple):
    """How an array is brought to another shape: some axes are split, all are ordered anew, and some are joined."""

    start: tuple[int, ...]
    split: tuple[int, ...]
    axes: tuple[int, ...]
    end: tuple[int, ...]

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """The array, rearranged."""
        return array.reshape(self.split).transpose(self.axes).reshape(self.end)

    @property
    def inverse(self) -> Arrangement:
        """The way back."""
        order = tuple(int(place) for place in np.argsort(self.axes))
        return Arrangement(self.end, tuple(self.split[axis] for axis in self.axes), order, self.start)

    @property
    def is_identity(self) -> bool:
        """Whether the axes stay in order; the shape may be another one."""
        return self.axes == tuple(range(len(self.axes)))

    @property
    def keeps_parts(self) -> bool:
        """Whether the axes of each part of an array stay in order."""
        rest = [axis for axis in self.axes if axis != self.axes[0]]
        return rest == sorted(rest)


def arrangements(start: tuple[int, ...], end: tuple[int, ...]) -> Iterator[Arrangement]:
    """Yield the ways to bring an array from one shape to another: in order, reversed, as a convolution's, others.

    A shape of more axes is one of which some are split, such as the heads of a projection.
    """
    if math.prod(start) != math.prod(end):
        return
    rank = len(start)
    likely = [tuple(range(rank))]
    if rank == 3 != len(end):  # a matrix of which an axis is split: heads and their features stay in order
        likely += [(1, 2, 0), (2, 0, 1)]
    elif rank > 2:  # outputs, inputs, space, and space, inputs, outputs
        likely += [(*range(2, rank), 1, 0), (rank - 1, rank - 2, *range(rank - 2))]
    likely.append(tuple(reversed(range(rank))))
    every = itertools.permutations(range(rank)) if rank <= 4 else iter(())
    for axes in dict.fromkeys((*likely, *every)):
        moved = tuple(start[axis] for axis in axes)
        if moved == end or (len(end) != rank and _is_split(moved, end)):
            yield Arrangement(start, start, axes, end)


def joints(whole: tuple[int, ...], stack: tuple[int, ...]) -> Iterator[Arrangement]:
    """Yield the ways to cut an array along its first or last axis into equal parts, arranged as those of a stack."""
    count = stack[0]
    for axis in dict.fromkeys((0, len(whole) - 1)):
        if whole[axis] % count:
            continue
        part = (*whole[:axis], whole[axis] // count, *whole[axis + 1 :])
        split = (*whole[:axis], count, *part[axis:])
        rest = [place for place in range(len(split)) if place != axis]
        for one in arrangements(part, stack[1:]):
            yield Arrangement(whole, split, (axis, *(rest[place] for place in one.axes)), stack)


def arrangements_of(axes: str, start: tuple[int, ...], end: tuple[int, ...]) -> Iterator[Arrangement]:
    """Yield the arrangement that a text describes, such as "i (3 h) -> 3 i h"; none if it does not fit the shapes.

    Raises: SideError if it is no such text.
    """
    try:
        left, right = parse(axes)
    except ValueError as error:
        raise SideError(f"names: [parameters] {error}") from error
    sizes = solve([(left, start), (right, end)], {})
    names = [name for axis in left for name in axis]
    split = None if sizes is None else shape_of(tuple((name,) for name in names), sizes)
    if split is not None and sizes is not None and shape_of(right, sizes) == end:
        yield Arrangement(start, split, tuple(names.index(name) for axis in right for name in axis), end)


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
