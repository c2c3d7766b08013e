"""MXNet's binary files of arrays (.params), read and written without MXNet.

A file is: the number 0x112, 8 reserved bytes, how many arrays, the arrays, how many names, the names. An array is: a
number that says its version, the kind of its storage, its shape, a device, its dtype, and its values, little-endian.
The third version is the one of NumPy-style arrays, in which a shape may be () or have an axis of size 0.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from backends.weights.errors import WeightError
from backends.weights.formats.limits import Limits

LIST = 0x112
FIRST, SECOND, THIRD = 0xF993FAC8, 0xF993FAC9, 0xF993FACA
DTYPES = (
    "float32",
    "float64",
    "float16",
    "uint8",
    "int32",
    "int8",
    "int64",
    "bool",
    "int16",
    "uint16",
    "uint32",
    "uint64",
    "bfloat16",
)
"""Dtypes by their number in the file."""
MOST_AXES = 32


class Bytes:
    """A reader of bytes that checks their end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.place = data, 0

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if count < 0 or self.place + count > len(self.data):
            raise WeightError(
                f"the file ends at byte {len(self.data)}, where {count} more are expected: it is truncated"
            )
        self.place += count
        return self.data[self.place - count : self.place]

    def numbers(self, code: str) -> tuple[int, ...]:
        """The next whole numbers, by their codes in `struct`."""
        return struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))


def read(path: Path, limits: Limits) -> dict[str, np.ndarray]:
    """The arrays of a file by name; the prefixes "arg:" and "aux:" of a symbol's file are removed.

    Raises: WeightError if the bytes are not such a file, are truncated, or contain sparse arrays.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _read(Bytes(data), limits)


def _read(source: Bytes, limits: Limits) -> dict[str, np.ndarray]:
    if limits.size < 24 or source.numbers("QQ")[0] != LIST:
        raise WeightError("the file does not have the header of an MXNet array file")
    (count,) = source.numbers("Q")
    arrays = [_array(source, limits) for _ in range(_plausible(count, source))]
    (named,) = source.numbers("Q")
    if named != count:
        raise WeightError(f"the file names {named} of its {count} arrays: save them by name, as save_parameters does")
    names = [_name(source) for _ in range(named)]
    for name in names:
        limits.count(name)
    if len(set(names)) < len(names):
        raise WeightError("the file names two arrays alike")
    if source.place != limits.size:
        raise WeightError(f"{limits.size - source.place} bytes follow the last name: the file is damaged")
    return dict(zip(names, arrays, strict=True))


def _plausible(count: int, source: Bytes) -> int:
    if count > len(source.data) // 4:
        raise WeightError(f"the file claims {count} arrays, more than it has room for: it is damaged")
    return count


def _name(source: Bytes) -> str:
    (length,) = source.numbers("Q")
    try:
        return source.take(length).decode().removeprefix("arg:").removeprefix("aux:")
    except UnicodeDecodeError as error:
        raise WeightError("the name of an array is not text: the file is damaged") from error


def _array(source: Bytes, limits: Limits) -> np.ndarray:
    (version,) = source.numbers("I")
    if version in (SECOND, THIRD):
        (storage,) = source.numbers("i")
        if storage != 0:
            raise WeightError("the file holds a sparse array: make it dense first, with tostype('default')")
        (axes,) = source.numbers("i")
        shape = source.numbers(f"{_axes(axes)}q")
    elif version == FIRST:
        (axes,) = source.numbers("I")
        shape = source.numbers(f"{_axes(axes)}q")
    else:  # the oldest files have no version: it is the number of axes
        shape = source.numbers(f"{_axes(version)}I")
    if not shape and version != THIRD:
        raise WeightError("the file holds an array without a shape: initialise every parameter before it is saved")
    _, _, code = source.numbers("iii")
    if not 0 <= code < len(DTYPES):
        raise WeightError(
            f"the dtype of an array is number {code}, expected 0 to {len(DTYPES) - 1}: the file is damaged"
        )
    if DTYPES[code] == "bfloat16":
        import ml_dtypes  # noqa: F401  # teaches NumPy the name
    dtype = np.dtype(DTYPES[code])
    limits.count("an array", shape, dtype.itemsize)
    return np.frombuffer(source.take(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)


def _axes(count: int) -> int:
    if not 0 <= count <= MOST_AXES:
        raise WeightError(f"an array has {count} axes, expected 0 to {MOST_AXES}: the file is damaged")
    return count


def write(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write a NumPy-style file, which MXNet loads after `npx.set_np()`, or within `mx.util.np_shape(True)`."""
    pieces = [struct.pack("<QQQ", LIST, 0, len(arrays))]
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise WeightError(f"{name} is {array.dtype.name}, expected one of {', '.join(DTYPES)}")
        pieces.append(struct.pack(f"<Iii{array.ndim}q", THIRD, 0, array.ndim, *array.shape))
        pieces.append(struct.pack("<iii", 1, 0, DTYPES.index(array.dtype.name)))
        pieces.append(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    pieces.append(struct.pack("<Q", len(arrays)))
    for name in arrays:
        text = name.encode()
        pieces.append(struct.pack("<Q", len(text)) + text)
    path.write_bytes(b"".join(pieces))
