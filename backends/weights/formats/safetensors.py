"""Safetensors: our own, whose digest is checked, and anybody's."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import backends
from backends.archives import LONGEST_HEADER, ArchiveError
from backends.weights.formats.budget import Budget


def read(path: Path, budget: Budget) -> dict[str, np.ndarray]:
    """The arrays of a file by name."""
    with open(path, "rb") as file:
        data = file.read(9)  # what is none may be huge
        if int.from_bytes(data[:8], "little") > min(LONGEST_HEADER, budget.size) or data[8:] != b"{":
            raise ArchiveError(
                "the header is wrong: a file of safetensors begins with its length and an object of JSON"
            )
        data += file.read()
    arrays = backends.unpack_arrays(data)[0] if backends.has_digest(data) else backends.foreign_arrays(data)
    for name, array in arrays.items():
        budget.take(name, array.shape, array.itemsize)
    return arrays


write = backends.save_arrays
