"""How much the arrays of a file may take: a few bytes of a hostile one can claim terabytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from backends.schema import shown
from backends.weights.errors import WeightError

EXPANSION, FLOOR = 8, 2**24
"""The arrays of a file take at most so many times its size, and any file's may take so many bytes."""
ENTRY = 64
"""The bytes that an array's name counts for: no array is free, one without entries neither."""
DEEPEST = 64
"""How many groups or dicts may stand inside each other."""
LONGEST_NAME = 1024
"""The characters of an array's name, at most."""


class Budget:
    """The bytes that the arrays of a file may take: they follow from its size unless max_bytes says otherwise."""

    def __init__(self, path: Path, max_bytes: int | None = None) -> None:
        self.size = path.stat().st_size
        self.most = EXPANSION * self.size + FLOOR if max_bytes is None else max_bytes
        self.taken = 0

    def take(self, name: str, shape: Sequence[int] = (), itemsize: int = 1) -> None:
        """Count an array before it is made; an axis of size 0 counts as 1, since the other axes are sizes of layers.

        Raises: WeightError if there is no room for it, or its name could not be printed.
        """
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise WeightError(f"an array is called {shown(name)}: expected at most {LONGEST_NAME} printable characters")
        if any(size < 0 for size in shape):
            raise WeightError(f"{name} has the shape {tuple(shape)}: the file is damaged")
        self.taken += ENTRY + itemsize * math.prod(max(size, 1) for size in shape)
        if self.taken > self.most:
            raise WeightError(
                f"with {name} {tuple(shape)} its arrays take {self.taken:,} bytes, and a file of "
                f"{self.size:,} bytes may hold {self.most:,}: give max_bytes=... if you trust it"
            )

    def enter(self, name: str, depth: int) -> None:
        """Count a group of arrays, which stands inside `depth` others.

        Raises: WeightError if it stands too deep, or there is no room.
        """
        if depth > DEEPEST:
            raise WeightError(
                f"{shown(name)} stands in more than {DEEPEST} others, or in itself: save the arrays by name"
            )
        self.take(name)
