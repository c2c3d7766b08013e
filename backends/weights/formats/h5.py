"""HDF5 files, which Keras' .weights.h5 are, and whole models of the Keras before: arrays, and settings of layers."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from backends.weights.errors import WeightError, import_library
from backends.weights.formats.limits import Limits
from backends.weights.settings import SavedLayer, saved_layers

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
"""The filters of HDF5 that are read, by their numbers."""


def read(path: Path | BytesIO, limits: Limits) -> dict[str, np.ndarray]:
    """The datasets of a file by their paths in it."""
    h5py = import_library("h5py")
    arrays: dict[str, np.ndarray] = {}

    def keep(name: str, item: Any) -> None:
        limits.enter(name, name.count("/"))
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise WeightError(f"{name} is stored in another file, which is not read")
            if item.shape is None:
                raise WeightError(f"{name} has no values")
            if item.dtype.kind not in "fiub":
                raise WeightError(f"{name} is {item.dtype}, expected numbers")
            limits.count(name, item.shape, item.dtype.itemsize)
            if item.chunks:
                _check_chunks(name, item, limits)
            arrays[name] = item[()]

    with _open(path) as file:
        file.visititems(keep)  # which follows no link out of the file
    return arrays


def read_names(path: BytesIO, limits: Limits) -> dict[str, str]:
    """The names of layers by the paths of their arrays, as the weight file of Keras 3 has them."""
    names: dict[str, str] = {}

    def keep(place: str, item: Any) -> None:
        limits.enter(place, place.count("/"))
        owner, _, last = place.rpartition("/")
        name = item.attrs.get("name") if last == "vars" else None
        if isinstance(name, str):
            names[owner] = name

    with _open(path) as file:
        file.visititems(keep)
    return names


def read_layers(path: Path, limits: Limits) -> list[SavedLayer]:
    """The layers of a whole model as Keras 2 saved it; none if the file has arrays alone."""
    with _open(path) as file:
        text = file.attrs.get("model_config")
    if not isinstance(text, (str, bytes)):
        return []
    limits.count("model_config", (len(text),))
    whole = parse_json("model_config", text)
    return list(saved_layers(whole, "model_weights", lambda model, name: f"{model}/{name}"))


def parse_json(name: str, text: str | bytes) -> Any:
    """The content of a JSON text in a file."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightError(f"{name} is no JSON: {error}") from error


@contextmanager
def _open(path: Path | BytesIO) -> Iterator[Any]:
    """An HDF5 file; whatever its library raises is a WeightError."""
    h5py = import_library("h5py")
    try:
        with h5py.File(path, "r") as file:
            yield file
    except (
        OSError,
        RuntimeError,
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        MemoryError,
        zlib.error,
    ) as error:
        if isinstance(error, WeightError):
            raise
        raise WeightError("not an HDF5 file, or truncated") from error


def _check_chunks(name: str, item: Any, limits: Limits) -> None:
    """Check that every chunk of a dataset has as many bytes as it should: HDF5 reads beyond the end of a short one."""
    properties = item.id.get_create_plist()
    filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
    if not set(filters) <= {DEFLATE, SHUFFLE, FLETCHER32}:
        raise WeightError(f"{name} has an unsupported compression: write it with gzip, or uncompressed")
    limits.count(name, item.chunks, item.dtype.itemsize)
    size = math.prod(item.chunks) * item.id.get_type().get_size()
    for number in range(item.id.get_num_chunks()):
        stored = item.id.get_chunk_info(number)
        limits.count(name, (stored.size,))
        skipped, data = item.id.read_direct_chunk(stored.chunk_offset)
        for place, kind in reversed(list(enumerate(filters))):
            if kind == DEFLATE and not skipped & 1 << place:
                data = zlib.decompressobj().decompress(data, size + 5)  # not all of what may have no end
            elif kind == FLETCHER32 and not skipped & 1 << place:
                data = data[:-4]
        if len(data) != size:
            raise WeightError(f"a chunk of {name} has {len(data)} bytes, expected {size}: the file is damaged")


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a file of these arrays, under the numbers by which Keras finds them."""
    h5py = import_library("h5py")
    if not all("vars/" in name for name in arrays):
        raise WeightError(
            "Keras finds a layer's variables by number: name them as it does, layers/gru/cell/vars/0 "
            "(from_canonical(..., spelling=1, prefix='layers/gru/'))"
        )
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
