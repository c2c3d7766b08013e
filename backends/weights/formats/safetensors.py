"""Safetensors files; the digest of those written by this package is checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import backends
from backends.archives import LONGEST_HEADER, ArchiveError
from backends.weights.formats.limits import Limits


def read(path: Path, limits: Limits) -> dict[str, np.ndarray]:
    """The arrays of a file by name."""
    with open(path, "rb") as file:
        data = file.read(9)  # what is none may be huge
        if int.from_bytes(data[:8], "little") > min(LONGEST_HEADER, limits.size) or data[8:] != b"{":
            raise ArchiveError("the header is wrong: a safetensors file begins with its length and a JSON object")
        data += file.read()
    arrays = backends.unpack_arrays(data)[0] if backends.has_digest(data) else backends.foreign_arrays(data)
    for name, array in arrays.items():
        limits.count(name, array.shape, array.itemsize)
    return arrays


write = backends.save_arrays
