"""Array files: safetensors with a digest of the whole file."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from backends.files import FileError, check_regular, write_file
from backends.schema import clean


class ArchiveError(ValueError):
    """A file is damaged, or not an array file."""


LONGEST_HEADER = 2**24
"""The maximum length of a header in bytes."""

LONGEST_NAME = 255
"""The maximum length of an array's name."""

DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
"""Supported dtypes, by safetensors' names."""

_OPENING = b'{"__metadata__":{"attention_parity":"'
_DIGEST = slice(8 + len(_OPENING), 8 + len(_OPENING) + 64)
"""The position of the digest: in the first entry of the header, after its length and the opening bytes."""


def regular_file(path: str | Path) -> Path:
    """Check that the path is a regular file, since reading anything else may block or never end.

    Raises: ArchiveError if it does not exist, or is a folder, a FIFO, a device or a socket.
    """
    try:
        check_regular(Path(path), path)
    except FileNotFoundError as error:
        raise ArchiveError(f"{path}: there is no such file") from error
    except FileError as error:
        raise ArchiveError(str(error)) from error
    return Path(path)


def save_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None) -> None:
    """Write arrays to a safetensors file with a digest of all its bytes; replace the file atomically.

    Raises: OSError if the path is not a regular file, or cannot be written.
    """
    write_file(path, pack_arrays(arrays, header))


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file, after checking its digest.

    Raises: ArchiveError if the file is damaged or has no digest.
    """
    return load_archive(path)[0]


def load_archive(path: str | Path, kind: str | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays and the header of a safetensors file, after checking its digest.

    kind is the required entry "kind" of the header. Raises: ArchiveError if the file is damaged, has no digest, or is
    of another kind.
    """
    with open(regular_file(path), "rb") as file:
        data = file.read(_DIGEST.stop)
        if data.startswith(_OPENING, 8):  # a third-party file may be huge, or endless
            data += file.read()
    try:
        arrays, header = unpack_arrays(data)
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from error
    actual = header.get("kind", "file of arrays")
    if kind not in (None, actual):
        raise ArchiveError(f"{path}: this is a {clean(actual)}, expected a {kind!r}")
    return arrays, header


def pack_arrays(arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None) -> bytes:
    """Pack arrays and a JSON header into the bytes of a safetensors file with a digest of all other bytes.

    Raises: ArchiveError if a name or a dtype could not be read back.
    """
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    for name, array in arrays.items():
        _check_name(name)
        if array.dtype.name not in DTYPES.values():
            raise ArchiveError(f"{name} is {array.dtype.name}, expected one of {', '.join(DTYPES.values())}")
    # The names are listed, since safetensors orders arrays in its own way.
    text = json.dumps({"header": dict(header or {}), "names": list(arrays)}, sort_keys=True, allow_nan=False)
    # One entry alone: safetensors writes several in an order that differs from call to call.
    data = safetensors.numpy.save(arrays, {"attention_parity": f"{'0' * 64} {text}"})
    if int.from_bytes(data[:8], "little") > LONGEST_HEADER:
        raise ArchiveError(f"the header is longer than {LONGEST_HEADER:,} bytes: store less beside the arrays")
    if not data.startswith(_OPENING, 8):
        raise ArchiveError(f"safetensors {safetensors.__version__} does not open its header with the metadata")
    return data[: _DIGEST.start] + _digest(data) + data[_DIGEST.stop :]


def unpack_arrays(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and header of a safetensors file's bytes, after checking the digest.

    The content is checked as well, since a forged file can have a valid digest. Raises: ArchiveError if the bytes are
    damaged, have no digest, or have invalid content.
    """
    if not data.startswith(_OPENING, 8):
        raise ArchiveError("the file has no digest: write it with backends.save_arrays")
    if _digest(data) != data[_DIGEST]:
        raise ArchiveError("the file does not match its digest: it is damaged or truncated")
    length = int.from_bytes(data[:8], "little")
    if length > LONGEST_HEADER:
        raise ArchiveError(f"the header claims {length:,} bytes, expected at most {LONGEST_HEADER:,}")
    try:
        entries = _parse(data[8 : 8 + length].decode())
        content = _parse(entries.pop("__metadata__")["attention_parity"][64:])
        for name in entries:
            _check_name(name)
        arrays = {name: _array(name, stored) for name, stored in _deserialize(data)}
    except ArchiveError:
        raise
    except (ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise ArchiveError(f"the header is wrong: {clean(error)}") from error
    header, names = content.get("header"), content.get("names")
    if not isinstance(header, dict) or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArchiveError("the header is wrong: expected an object 'header' and a list 'names'")
    if sorted(names) != sorted(arrays):
        raise ArchiveError("the header is wrong: its names differ from the arrays in the file")
    return {name: arrays[name] for name in names}, header


def has_digest(data: bytes) -> bool:
    """Whether these are the bytes of a file written by this module."""
    return data.startswith(_OPENING, 8)


def foreign_arrays(data: bytes) -> dict[str, np.ndarray]:
    """Read arrays from third-party safetensors bytes, which have no digest.

    Raises: ArchiveError if the bytes are not safetensors, or a name or dtype is unsupported.
    """
    try:
        stored = _deserialize(data)
    except (ValueError, safetensors.SafetensorError) as error:
        raise ArchiveError(f"the header is wrong: {clean(error)}") from error
    for name, _ in stored:
        _check_name(name)
    return {name: _array(name, entry) for name, entry in stored}


def _deserialize(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    return safetensors.deserialize(data)  # type: ignore[no-untyped-call]


def _digest(data: bytes) -> bytes:
    digest = hashlib.sha256(data[: _DIGEST.start])
    digest.update(memoryview(data)[_DIGEST.stop :])
    return digest.hexdigest().encode()


def _check_name(name: str) -> None:
    parts = re.split(r"[/\\]", name)
    if (
        len(name) > LONGEST_NAME
        or not name.isprintable()
        or name == "__metadata__"
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise ArchiveError(
            f"an array is called {clean(name)}: expected 1 to {LONGEST_NAME} printable characters, "
            "without '.' or '..' or nothing between slashes"
        )


def _array(name: str, stored: Mapping[str, Any]) -> np.ndarray:
    code = stored["dtype"]
    if code not in DTYPES:
        raise ArchiveError(f"{name} is {clean(code)}, expected one of {', '.join(DTYPES)}")
    if code == "BF16":
        import ml_dtypes  # noqa: F401  # teaches NumPy the name
    return np.frombuffer(stored["data"], np.dtype(DTYPES[code])).reshape(stored["shape"])


def _parse(text: str) -> dict[str, Any]:
    """Parse a JSON object without duplicate names and with finite numbers only."""
    parsed = json.loads(text, object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite)
    if not isinstance(parsed, dict):
        raise ValueError("expected an object")
    return parsed


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("an object has a duplicate name")
    return entries


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number
