"""Limits on the arrays of a file, since a few bytes of a hostile file can claim terabytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from backends.schema import clean
from backends.weights.errors import WeightError

EXPANSION, FLOOR = 8, 2**24
"""The default limit in bytes is EXPANSION times the size of the file, plus FLOOR."""
ENTRY = 64
"""The bytes counted for an array's name, so that even empty arrays count."""
DEEPEST = 64
"""The maximum nesting depth of groups or dicts."""
LONGEST_NAME = 1024
"""The maximum length of an array's name."""


class Limits:
    """The memory limit for the arrays of a file: max_bytes, or a default derived from the size of the file."""

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.size = path.stat().st_size
        self.most = EXPANSION * self.size + FLOOR if max_bytes is None else max_bytes
        self.counted = 0

    def count(self, name: str, shape: Sequence[int] = (), itemsize: int = 1) -> None:
        """Count an array before it is allocated; an axis of size 0 counts as 1, since the other axes are sizes of
        layers.

        Raises: WeightError if the limit is exceeded, or its name is not printable.
        """
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise WeightError(f"an array is called {clean(name)}: expected at most {LONGEST_NAME} printable characters")
        if any(size < 0 for size in shape):
            raise WeightError(f"{name} has the shape {tuple(shape)}: the file is damaged")
        self.counted += ENTRY + itemsize * math.prod(max(size, 1) for size in shape)
        if self.counted > self.most:
            raise WeightError(
                f"with {name} {tuple(shape)} its arrays take {self.counted:,} bytes; the limit for a file of "
                f"{self.size:,} bytes is {self.most:,}. Pass max_bytes=... if you trust the file"
            )

    def enter(self, name: str, depth: int) -> None:
        """Count a group of arrays, nested `depth` levels deep.

        Raises: WeightError if it is nested too deep, or the limit is exceeded.
        """
        if depth > DEEPEST:
            raise WeightError(
                f"{clean(name)} is nested more than {DEEPEST} levels deep, or refers to itself: save the arrays by name"
            )
        self.count(name)
