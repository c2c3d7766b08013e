"""The implementations of the specification: a package for each framework, and the files of their weights.

    import backends

    attention = backends.load("torch")          # or: from backends import torch as attention
    backends.save_arrays("weights.safetensors", attention.get_parameters(layer))

Third-party backends are found through the entry-point group `attention_core.backends`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from types import ModuleType

from backends.archives import (
    ArchiveError,
    foreign_arrays,
    has_digest,
    load_archive,
    load_arrays,
    pack_arrays,
    regular_file,
    save_arrays,
    unpack_arrays,
)
from backends.requirements import Idiom, Requirements, read_requirements

__all__ = [
    "ENTRY_POINTS",
    "FRAMEWORKS",
    "ArchiveError",
    "Availability",
    "Idiom",
    "Requirements",
    "absence",
    "available",
    "foreign_arrays",
    "has_digest",
    "idiom_of",
    "load",
    "load_archive",
    "load_arrays",
    "pack_arrays",
    "read_requirements",
    "regular_file",
    "save_arrays",
    "unpack_arrays",
]

ENTRY_POINTS = "attention_core.backends"
FRAMEWORKS = ("torch", "tf", "jax", "mxnet")
"""The bundled backends; third-party ones come after them."""


@dataclass(frozen=True)
class Availability:
    """A registered backend: its name, module, versions, and the reason why it cannot run, if any."""

    name: str
    module: str
    versions: Mapping[str, str]
    reason: str | None = None


def available() -> dict[str, Availability]:
    """All registered backends by name, including those that cannot run here; no framework is imported."""
    modules = {name: f"{__name__}.{name}" for name in FRAMEWORKS}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        modules.setdefault(point.name, point.value)
    return {name: _availability(name, module) for name, module in modules.items()}


def load(name: str) -> ModuleType:
    """Import a backend by its registered name, such as "torch".

    Raises: ImportError, naming missing packages; KeyError if there is no such backend.
    """
    known = available()
    if name not in known:
        raise KeyError(f"no backend {name!r}; there are {', '.join(known)}")
    if known[name].reason is not None:
        raise ImportError(known[name].reason)
    return importlib.import_module(known[name].module)


def idiom_of(framework: str) -> Idiom:
    """How code in the framework of one of our backends is written."""
    needed = read_requirements(f"{__name__}.{framework}")
    return needed.idiom if needed else Idiom()


def absence(framework: str) -> str:
    """The missing packages of a framework, with the command to install them; empty if there are none."""
    needed = read_requirements(f"{__name__}.{framework}")
    return _advice([name for name in needed.distributions if importlib.util.find_spec(name) is None] if needed else [])


def _advice(missing: list[str]) -> str:
    return f"not installed: {', '.join(missing)}. Run: pip install {' '.join(missing)}" if missing else ""


def _availability(name: str, module: str) -> Availability:
    needed = read_requirements(module)
    if needed is None:
        absent = importlib.util.find_spec(module.partition(".")[0]) is None
        return Availability(name, module, {}, f"the module {module} is not installed." if absent else None)
    limit, running = needed.newest_python, sys.version_info[:2]
    if limit is not None and running > limit:
        reason = f"{name} runs on Python {limit[0]}.{limit[1]} at the newest; this is Python {running[0]}.{running[1]}."
        return Availability(name, module, {}, reason)
    versions, missing = {}, []
    for distribution in needed.distributions:
        try:
            versions[distribution] = _version(distribution)
        except PackageNotFoundError:
            missing.append(distribution)
    if missing:
        return Availability(name, module, versions, _advice(missing))
    return Availability(name, module, versions)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        if distribution != "tensorflow":
            raise
        return version("tensorflow-cpu")
