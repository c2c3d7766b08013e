"""Readers and writers of weight files. Nothing in a file is executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

import backends
from attention_core.errors import dtype_name
from backends.schema import clean
from backends.weights.errors import WeightError
from backends.weights.formats import h5, keras, onnx, params, pytorch, safetensors
from backends.weights.formats.limits import Limits
from backends.weights.settings import SavedLayer, transformers_model

CONFIG = "config.json"
"""The file of transformers with the settings of a model."""
LONGEST_CONFIG = 2**20
"""The bytes that are read of a config.json."""
IN_FOLDERS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""The files of a folder of transformers that hold its arrays, or list those that do."""


def main_file(path: str | Path) -> Path:
    """The file of weights in a folder that transformers wrote; a file itself.

    Raises: WeightError if a folder has none.
    """
    path = Path(path)
    if not path.is_dir():
        return path
    found = next((path / name for name in IN_FOLDERS if (path / name).is_file()), None)
    if found is None:
        raise WeightError(f"{path}: the folder has none of {', '.join(IN_FOLDERS)}.")
    return found


def read_arrays(path: str | Path, max_bytes: int | None = None) -> dict[str, np.ndarray]:
    """Read the arrays of a file by name; the suffix determines the format. A folder is one that transformers wrote.

    .safetensors; .pt, .pth and .bin (a state_dict, read with weights_only=True); .h5 (.weights.h5 of Keras); .keras
    (its file of weights); .params of MXNet; .onnx (initialisers; those of a GRU or LSTM node under "<node>.W", ".R",
    ".B").

    max_bytes: the memory limit for all arrays (default: 8 times the file's size plus 16 MiB).

    Raises: WeightError if the file does not exist, is empty or truncated, has an unknown suffix or does not match it,
    or if its arrays exceed max_bytes.
    """
    path = main_file(path)
    if path.name.endswith(".index.json"):
        return _read_shards(path, max_bytes)
    reader = _choose(path, READERS, "read")
    try:
        limits = Limits(backends.regular_file(path), max_bytes)
    except backends.ArchiveError as error:
        raise WeightError(f"{error}.") from error
    with _reading(path):
        if limits.size == 0:
            raise WeightError("the file is empty")
        arrays = reader(path, limits)
        for name, array in arrays.items():
            if array.dtype.kind not in "biufc" and dtype_name(array.dtype) != "bfloat16":
                raise WeightError(f"{name} is {dtype_name(array.dtype)}, expected a numeric dtype of NumPy")
    if not arrays:
        raise WeightError(f"{path}: the file holds no arrays.")
    return arrays


def _read_shards(path: Path, max_bytes: int | None) -> dict[str, np.ndarray]:
    """The arrays of all files that an index lists, each beside it and of a name without folders."""
    with _reading(path):
        content = _read_json(path, 64 * LONGEST_CONFIG)
        listed = content.get("weight_map") if isinstance(content, dict) else None
        files = listed if isinstance(listed, dict) else {}
        if not files or not all(isinstance(one, str) and Path(one).name == one for one in files.values()):
            raise WeightError("expected a weight_map with names of files beside it")
    arrays: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(files.values()):
        arrays |= read_arrays(path.parent / name, max_bytes)
    if absent := next((one for one in files if one not in arrays), None):
        raise WeightError(f"{path}: {clean(absent)} is in none of its files.")
    return arrays


def _read_json(path: Path, most: int) -> Any:
    """The content of a JSON file; what is longer than that many bytes is cut, and no JSON."""
    with open(backends.regular_file(path), "rb") as file:
        return h5.parse_json(path.name, file.read(most))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file in whatever is raised."""
    try:
        yield
    except (WeightError, backends.ArchiveError) as error:
        raise WeightError(f"{path}: {error}.") from error
    except OSError as error:
        raise WeightError(f"{path} cannot be read: {error.strerror or error}.") from error
    except MemoryError as error:
        raise WeightError(f"{path}: its arrays do not fit into memory.") from error


def read_settings(path: str | Path, max_bytes: int | None = None) -> list[SavedLayer]:
    """Read what a file says of its layers beside the arrays, for `to_canonical`: the classes and settings of a .keras
    archive, or of a whole model in an .h5 file; and the config.json of transformers beside another file. Other files
    say nothing. No class is imported.

    Raises: WeightError as `read_arrays` does.
    """
    path = main_file(path)
    reader = next((function for suffix, function in LAYERS.items() if path.name.endswith(suffix)), None)
    config = path.parent / CONFIG
    if reader is None and not config.is_file():
        return []
    with _reading(config if reader is None else path):
        if reader is None:
            return transformers_model(_read_json(config, LONGEST_CONFIG))
        return reader(path, Limits(backends.regular_file(path), max_bytes))


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
LAYERS: dict[str, Callable[[Path, Limits], list[SavedLayer]]] = {".h5": h5.read_layers, ".keras": keras.read_layers}
WRITERS: dict[str, Callable[[Path, Mapping[str, np.ndarray]], None]] = {
    ".safetensors": safetensors.write,
    **dict.fromkeys((".pt", ".pth", ".bin"), pytorch.write),
    ".h5": h5.write,
    ".params": params.write,
}
