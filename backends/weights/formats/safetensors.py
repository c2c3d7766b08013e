"""Safetensors: our own, whose digest is checked, and anybody's."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import backends


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file by name."""
    data = path.read_bytes()
    return backends.unpack_arrays(data)[0] if backends.has_digest(data) else backends.foreign_arrays(data)


write = backends.save_arrays
