"""Files of arrays: reading and writing each kind by its own rules. Nothing out of a file is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

import backends
from backends.weights.errors import WeightError


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """The arrays of a file by the names that they have there: the suffix says the kind.

    .safetensors (anybody's); .pt, .pth and .bin (a state_dict, read with weights_only=True); .weights.h5 of Keras;
    .params of MXNet; .onnx (initialisers).

    Raises: WeightError if there is no such file or kind, or it is empty, truncated, or not what its suffix says.
    """
    path = Path(path)
    reader = _chosen(path, READERS, "read")
    if not path.is_file():
        raise WeightError(f"{path}: there is no such file.")
    if path.stat().st_size == 0:
        raise WeightError(f"{path}: the file is empty.")
    arrays = reader(path)
    if not arrays:
        raise WeightError(f"{path}: the file holds no arrays.")
    return arrays


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file of the kind that its suffix says.

    Raises: WeightError if the kind cannot be written, or not with these names.
    """
    path = Path(path)
    _chosen(path, WRITERS, "written")(path, arrays)


def _chosen(path: Path, kinds: Mapping[str, Callable], done: str) -> Callable:
    for suffix, function in kinds.items():
        if path.name.endswith(suffix):
            return function
    raise WeightError(f"{path}: a file of this kind cannot be {done}, expected one of {', '.join(kinds)}.")


# ------------------------------------------------------------------------------------------------ safetensors


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    data = path.read_bytes()
    try:
        return backends.unpack_arrays(data)[0] if backends.has_digest(data) else backends.foreign_arrays(data)
    except backends.ArchiveError as error:
        raise WeightError(f"{path}: {error}.") from error


def _write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    try:
        backends.save_arrays(path, arrays)
    except backends.ArchiveError as error:
        raise WeightError(f"{path}: {error}.") from error


READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {".safetensors": _read_safetensors}
WRITERS: dict[str, Callable[[Path, Mapping[str, np.ndarray]], None]] = {".safetensors": _write_safetensors}
