"""The backends: the specification, said in each framework.

    import backends

    attention = backends.load("torch")          # or: from backends import torch as attention
    backends.save_arrays("weights.safetensors", attention.get_parameters(layer))

A third party's backend is found through the entry-point group `attention_core.backends`, as our own four are.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

import numpy as np
import safetensors
import safetensors.numpy

__all__ = [
    "ENTRY_POINTS",
    "ArchiveError",
    "Availability",
    "available",
    "foreign_arrays",
    "has_digest",
    "load",
    "load_archive",
    "load_arrays",
    "pack_arrays",
    "save_arrays",
    "unpack_arrays",
]

ENTRY_POINTS = "attention_core.backends"

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "backends.torch": ("torch",),
    "backends.tf": ("tensorflow", "keras"),
    "backends.jax": ("jax", "flax", "optax"),
    "backends.mxnet": ("mxnet",),
}
"""The distributions that each of our backends imports."""

NEWEST_PYTHON: dict[str, tuple[int, int]] = {"backends.mxnet": (3, 12)}
"""The newest Python that can host a framework, where there is a limit."""


class ArchiveError(ValueError):
    """A file of arrays is damaged, or is none."""


@dataclass(frozen=True)
class Availability:
    """A backend by name, the module that holds it, the versions it would run on, and why it cannot run, if so."""

    name: str
    module: str
    versions: Mapping[str, str]
    reason: str | None = None


def available() -> dict[str, Availability]:
    """Every registered backend by name, whether it can run here or not; no framework is imported."""
    points = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)
    modules = {point.name: point.value for point in points}
    if not modules:  # a checkout that is not installed
        modules = {module.removeprefix("backends."): module for module in REQUIREMENTS}
    ours = [name for name in ("torch", "tf", "jax", "mxnet") if name in modules]
    return {name: _availability(name, modules[name]) for name in ours + [n for n in modules if n not in ours]}


def load(name: str) -> ModuleType:
    """Import a backend by its registered name, such as "torch".

    Raises: ImportError, saying what is missing; KeyError if there is no such backend.
    """
    known = available()
    if name not in known:
        raise KeyError(f"no backend {name!r}; there are {', '.join(known)}")
    if known[name].reason is not None:
        raise ImportError(known[name].reason)
    return importlib.import_module(known[name].module)


def _availability(name: str, module: str) -> Availability:
    limit = NEWEST_PYTHON.get(module)
    running = sys.version_info[:2]
    if limit is not None and running > limit:
        reason = f"{name} runs on Python {limit[0]}.{limit[1]} at the newest; this is Python {running[0]}.{running[1]}."
        return Availability(name, module, {}, reason)
    versions, missing = {}, []
    for distribution in REQUIREMENTS.get(module, ()):
        try:
            versions[distribution] = _version(distribution)
        except PackageNotFoundError:
            missing.append(distribution)
    if missing:
        reason = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed: pip install"
        return Availability(name, module, versions, f"{reason} 'attention-parity[{name}]'.")
    if module not in REQUIREMENTS and importlib.util.find_spec(module.partition(".")[0]) is None:
        return Availability(name, module, versions, f"the module {module} is not installed.")
    return Availability(name, module, versions)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        if distribution != "tensorflow":
            raise
        return version("tensorflow-cpu")


# ------------------------------------------------------------------------------------------------ files of arrays

LONGEST_HEADER = 2**24
LONGEST_NAME = 255

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
"""What an array may hold, by safetensors' names."""

_OPENING = b'{"__metadata__":{"attention_parity":"'
_DIGEST = slice(8 + len(_OPENING), 8 + len(_OPENING) + 64)
"""Where the digest stands in every file: in the header's first entry, behind the header's length and the opening."""


def save_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None) -> None:
    """Write arrays to a safetensors file with a digest of all its bytes; replace the file in one step."""
    path = Path(path)
    data = pack_arrays(arrays, header)
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")  # its own name: others may write the same file
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file, after checking its digest.

    Raises: ArchiveError if the file is damaged or carries no digest.
    """
    return load_archive(path)[0]


def load_archive(path: str | Path, kind: str | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays and the header of a safetensors file, after checking its digest.

    kind is what the header has to say that the file is, under the name "kind".
    Raises: ArchiveError if the file is damaged, carries no digest, or is of another kind.
    """
    with open(path, "rb") as file:
        data = file.read(_DIGEST.stop)
        if data.startswith(_OPENING, 8):  # a file of others may be huge, or have no end
            data += file.read()
    try:
        arrays, header = unpack_arrays(data)
    except ArchiveError as error:
        raise ArchiveError(f"{path}: {error}") from error
    found = header.get("kind", "file of arrays")
    if kind not in (None, found):
        raise ArchiveError(f"{path}: this is a {_shown(found)}, expected a {kind!r}")
    return arrays, header


def pack_arrays(arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None) -> bytes:
    """Arrays and a JSON header as the bytes of a safetensors file that carries a digest of all its other bytes.

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

    Whoever writes a file can write its digest, too: what stands behind it is checked as well.
    Raises: ArchiveError if the bytes are damaged, carry no digest, or say what no file of ours says.
    """
    if not data.startswith(_OPENING, 8):
        raise ArchiveError("the file carries no digest: write it with backends.save_arrays")
    if _digest(data) != data[_DIGEST]:
        raise ArchiveError("the file does not match its digest: it is damaged, or not all of it is there")
    length = int.from_bytes(data[:8], "little")
    if length > LONGEST_HEADER:
        raise ArchiveError(f"the header claims {length:,} bytes, expected at most {LONGEST_HEADER:,}")
    try:
        entries = _parsed(data[8 : 8 + length].decode())
        content = _parsed(entries.pop("__metadata__")["attention_parity"][64:])
        for name in entries:
            _check_name(name)
        arrays = {name: _array(name, stored) for name, stored in _deserialize(data)}
    except ArchiveError:
        raise
    except (ValueError, RecursionError, safetensors.SafetensorError) as error:
        raise ArchiveError(f"the header is wrong: {_shown(error)}") from error
    header, names = content.get("header"), content.get("names")
    if not isinstance(header, dict) or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ArchiveError("the header is wrong: expected an object 'header' and a list 'names'")
    if sorted(names) != sorted(arrays):
        raise ArchiveError("the header is wrong: it names other arrays than the file holds")
    return {name: arrays[name] for name in names}, header


def has_digest(data: bytes) -> bool:
    """Whether these are the bytes of a file that we wrote."""
    return data.startswith(_OPENING, 8)


def foreign_arrays(data: bytes) -> dict[str, np.ndarray]:
    """The arrays of anybody's safetensors bytes, which carry no digest.

    Raises: ArchiveError if the bytes are no safetensors, or a name or a dtype is none that we write.
    """
    try:
        stored = _deserialize(data)
    except (ValueError, safetensors.SafetensorError) as error:
        raise ArchiveError(f"the header is wrong: {_shown(error)}") from error
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
            f"an array is called {_shown(name)}: expected 1 to {LONGEST_NAME} printable characters, "
            "without '.' or '..' or nothing between slashes"
        )


def _array(name: str, stored: Mapping[str, Any]) -> np.ndarray:
    code = stored["dtype"]
    if code not in DTYPES:
        raise ArchiveError(f"{name} is {_shown(code)}, expected one of {', '.join(DTYPES)}")
    if code == "BF16":
        import ml_dtypes  # noqa: F401  # teaches NumPy the name
    return np.frombuffer(stored["data"], np.dtype(DTYPES[code])).reshape(stored["shape"])


def _parsed(text: str) -> dict[str, Any]:
    """The object of a JSON text, in which no name stands twice and every number is finite."""
    parsed = json.loads(text, object_pairs_hook=_once, parse_float=_finite, parse_constant=_finite)
    if not isinstance(parsed, dict):
        raise ValueError("expected an object")
    return parsed


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is not finite")
    return number


def _shown(value: object) -> str:
    """A value out of a file, short enough and harmless to print."""
    text = str(value)
    return ascii(text if len(text) <= 160 else text[:157] + "...")
