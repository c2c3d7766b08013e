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
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

__all__ = [
    "ENTRY_POINTS",
    "ArchiveError",
    "Availability",
    "available",
    "load",
    "load_arrays",
    "pack_arrays",
    "save_arrays",
    "unpack_arrays",
]

ENTRY_POINTS = "attention_core.backends"

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "backends.torch": ("torch",),
    "backends.tf": ("tensorflow", "keras"),
    "backends.jax": ("jax", "flax"),
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


def save_arrays(path: str | Path, arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None) -> None:
    """Write arrays to a safetensors file with a digest for each; replace the file in one step."""
    path = Path(path)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(pack_arrays(arrays, header))
    partial.replace(path)


def load_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file, after checking every digest.

    Raises: ArchiveError if the file is damaged or carries no digests.
    """
    return unpack_arrays(Path(path).read_bytes())[0]


def pack_arrays(arrays: Mapping[str, np.ndarray], header: Mapping[str, Any] | None = None) -> bytes:
    """Arrays and a JSON header as the bytes of a safetensors file with digests."""
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    content = {"header": dict(header or {}), "digests": [[name, _digest(array)] for name, array in arrays.items()]}
    text = json.dumps(content, sort_keys=True)
    # One entry alone: safetensors writes several in an order that differs from call to call.
    return safetensors.numpy.save(arrays, {"attention_parity": f"{hashlib.sha256(text.encode()).hexdigest()} {text}"})


def unpack_arrays(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and header of a safetensors file's bytes, after checking every digest.

    Raises: ArchiveError if the bytes are damaged or carry no digests.
    """
    try:
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        arrays = dict(_decoded(data))
    except (ValueError, AttributeError, RecursionError, MemoryError, safetensors.SafetensorError) as error:
        raise ArchiveError(f"no safetensors file, or a damaged one: {error}") from error
    entry = metadata.get("attention_parity")
    if entry is None:
        raise ArchiveError("the file carries no digests: write it with backends.save_arrays")
    digest, _, text = entry.partition(" ")
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise ArchiveError("the header does not match its digest: the file is damaged")
    content = json.loads(text)
    digests = dict(content["digests"])  # a list in the file, since safetensors orders arrays in its own way
    if sorted(digests) != sorted(arrays):
        raise ArchiveError("the arrays are not those that the header names: the file is damaged")
    for name, array in arrays.items():
        if _digest(array) != digests[name]:
            raise ArchiveError(f"{name} does not match its digest: the file is damaged")
    return {name: arrays[name] for name in digests}, content["header"]


DTYPES = {
    "BOOL": "bool",
    "BF16": "bfloat16",
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}
"""The names of dtypes in safetensors files; safetensors.numpy does not know bfloat16."""


def _decoded(data: bytes) -> Iterator[tuple[str, np.ndarray]]:
    for name, view in safetensors.deserialize(data):  # type: ignore[no-untyped-call]
        if view["dtype"] == "BF16":
            importlib.import_module("ml_dtypes")  # which gives NumPy its bfloat16
        array = np.frombuffer(view["data"], DTYPES[view["dtype"]])
        yield name, array.reshape(view["shape"]).copy()


def _digest(array: np.ndarray) -> str:
    described = f"{array.dtype.name} {array.shape} ".encode()
    return hashlib.sha256(described + np.ascontiguousarray(array).tobytes()).hexdigest()
