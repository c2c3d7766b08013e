"""HDF5 files, which Keras' .weights.h5 are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from backends.weights.errors import WeightError, needed
from backends.weights.formats.budget import Budget


def read(path: Path, budget: Budget) -> dict[str, np.ndarray]:
    """The datasets of a file by their paths in it."""
    h5py = needed("h5py")
    arrays: dict[str, np.ndarray] = {}

    def keep(name: str, item: Any) -> None:
        budget.enter(name, name.count("/"))
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise WeightError(f"{name} lies in another file, which is not read")
            if item.shape is None:
                raise WeightError(f"{name} has no values")
            if item.dtype.kind not in "fiub":
                raise WeightError(f"{name} is {item.dtype}, expected numbers")
            budget.take(name, item.shape, item.dtype.itemsize)
            budget.take(name, item.chunks or (), item.dtype.itemsize)  # a chunk is read as a whole
            arrays[name] = item[()]

    try:
        with h5py.File(path, "r") as file:
            file.visititems(keep)  # which follows no link out of the file
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, ArithmeticError, MemoryError) as error:
        if isinstance(error, WeightError):
            raise
        raise WeightError("not an HDF5 file, or not all of it is there") from error
    return arrays


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file of these arrays, under the numbers by which Keras finds them."""
    h5py = needed("h5py")
    if not all("vars/" in name for name in arrays):
        raise WeightError(
            "Keras finds a layer's variables by number: name them as it does, layers/gru/cell/vars/0 "
            "(from_canonical(..., spelling=1, prefix='layers/gru/'))"
        )
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
