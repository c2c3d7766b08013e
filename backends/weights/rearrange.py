"""Rearrangements of axes as text, read in both directions: "i (3 h) -> 3 h i" splits, turns and joins axes.

A side lists axes by name; parentheses join several into one axis, the first varying slowest; a number is an axis of
that size; h' is another axis of the size of h. Both sides name the same axes. So every text is invertible.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

Side = tuple[tuple[str, ...], ...]
"""The axes of an array, each as the names that it joins."""


def _base(name: str) -> str:
    return name.rstrip("'")


@cache
def parse(axes: str) -> tuple[Side, Side]:
    """Both sides of a text."""
    left, right = (_side(text) for text in axes.split("->"))
    named = [sorted(name for axis in side for name in axis) for side in (left, right)]
    if named[0] != named[1] or len(set(named[0])) < len(named[0]):
        raise ValueError(f"{axes!r}: both sides have to name the same axes, each once")
    return left, right


def _side(text: str) -> Side:
    counts: dict[str, int] = {}
    side = []
    for group in re.findall(r"\([^()]*\)|\S+", text):
        names = []
        for name in group.strip("()").split():
            if name.isdigit():  # the second axis of size 2 is another one than the first
                counts[name] = counts.get(name, 0) + 1
                name = f"{name}#{counts[name]}"
            names.append(name)
        side.append(tuple(names))
    return tuple(side)


def solve(constraints: Sequence[tuple[Side, Sequence[int]]], sizes: Mapping[str, int]) -> dict[str, int] | None:
    """The size of every axis that follows from shapes and from what is known; None if they contradict each other."""
    known = dict(sizes)
    waiting = []
    for side, shape in constraints:
        if len(side) != len(shape):
            return None
        for axis, size in zip(side, shape, strict=True):
            known |= {name: int(name.partition("#")[0]) for name in axis if "#" in name}
            waiting.append((tuple(_base(name) for name in axis), size))
    while waiting:
        later = []
        for axis, size in waiting:
            unknown = [name for name in axis if name not in known]
            if len(unknown) > 1:
                later.append((axis, size))
                continue
            others = math.prod(known[name] for name in axis if name in known)
            if not unknown:
                if others != size:
                    return None
            elif others == 0 or size % others:
                return None
            else:
                known[unknown[0]] = size // others
        if len(later) == len(waiting):
            return known
        waiting = later
    return known


def shape_of(side: Side, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The shape of a side; None where a size is not known."""
    numbers = {name: int(name.partition("#")[0]) for axis in side for name in axis if "#" in name}
    sizes = {**sizes, **numbers}
    if any(_base(name) not in sizes for axis in side for name in axis):
        return None
    return tuple(math.prod(sizes[_base(name)] for name in axis) for axis in side)


def rearrange_sides(array: np.ndarray, start: Side, end: Side, sizes: Mapping[str, int]) -> np.ndarray:
    """The array with the axes of start, as an array with those of end."""
    names = [name for axis in start for name in axis]
    order = [name for axis in end for name in axis]
    split = shape_of(tuple((name,) for name in names), sizes)
    joined = shape_of(end, sizes)
    assert split is not None and joined is not None
    permuted = array.reshape(split).transpose([names.index(name) for name in order])
    return np.ascontiguousarray(permuted).reshape(joined)  # a scalar stays one
