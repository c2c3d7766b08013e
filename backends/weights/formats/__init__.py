"""Readers and writers of weight files. Nothing in a file is executed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import uuid4

import numpy as np

import backends
from attention_core.errors import dtype_name
from backends.weights.errors import WeightError
from backends.weights.formats import h5, keras, onnx, params, pytorch, safetensors
from backends.weights.formats.limits import Limits


def read_arrays(path: str | Path, max_bytes: int | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of a file by name; the suffix determines the format.

    .safetensors; .pt, .pth and .bin (a state_dict, read with weights_only=True); .h5 (.weights.h5 of Keras); .keras
    (its file of weights); .params of MXNet; .onnx (initialisers; those of a GRU or LSTM node under "<node>.W", ".R",
    ".B").

    max_bytes: the memory limit for all arrays (default: 8 times the file's size plus 16 MiB).

    Raises: WeightError if the file does not exist, is empty or truncated, has an unknown suffix or does not match it,
    or if its arrays exceed max_bytes.
    """
    path = Path(path)
    reader = _choose(path, READERS, "read")
    try:
        limits = Limits(backends.regular_file(path), max_bytes)
    except backends.ArchiveError as error:
        raise WeightError(f"{error}.") from error
    try:
        if limits.size == 0:
            raise WeightError("the file is empty")
        arrays = reader(path, limits)
        for name, array in arrays.items():
            if array.dtype.kind not in "biufc" and dtype_name(array.dtype) != "bfloat16":
                raise WeightError(f"{name} is {dtype_name(array.dtype)}, expected a numeric dtype of NumPy")
    except (WeightError, backends.ArchiveError) as error:
        raise WeightError(f"{path}: {error}.") from error
    except OSError as error:
        raise WeightError(f"{path} cannot be read: {error.strerror or error}.") from error
    except MemoryError as error:
        raise WeightError(f"{path}: its arrays do not fit into memory.") from error
    if not arrays:
        raise WeightError(f"{path}: the file holds no arrays.")
    return arrays


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to a file in the format of its suffix: .safetensors, .pt, .pth, .bin, .h5 or .params.

    Raises: WeightError if the format cannot be written, or not with these names.
    """
    path = Path(path)
    writer = _choose(path, WRITERS, "written")
    partial = path.with_name(f"{uuid4().hex}.{path.name}")  # a file is there in full, or not at all
    try:
        writer(partial, {name: np.asarray(array) for name, array in arrays.items()})
        partial.replace(path)
    except (WeightError, backends.ArchiveError) as error:
        raise WeightError(f"{path}: {error}.") from error
    finally:
        partial.unlink(missing_ok=True)


def _choose(path: Path, kinds: Mapping[str, Callable], done: str) -> Callable:
    for suffix, function in kinds.items():
        if path.name.endswith(suffix):
            return function
    raise WeightError(f"{path}: a file of this kind cannot be {done}; one can be: {', '.join(kinds)}.")


READERS: dict[str, Callable[[Path, Limits], dict[str, np.ndarray]]] = {
    ".safetensors": safetensors.read,
    **dict.fromkeys((".pt", ".pth", ".bin"), pytorch.read),
    ".h5": h5.read,
    ".keras": keras.read,
    ".params": params.read,
    ".onnx": onnx.read,
}
WRITERS: dict[str, Callable[[Path, Mapping[str, np.ndarray]], None]] = {
    ".safetensors": safetensors.write,
    **dict.fromkeys((".pt", ".pth", ".bin"), pytorch.write),
    ".h5": h5.write,
    ".params": params.write,
}
