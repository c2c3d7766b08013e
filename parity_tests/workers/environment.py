"""The environment of a worker: variables that must be set before a framework is imported, and the required settings."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import backends as registry

PATH = "ATTENTION_PARITY_PATH"
"""The variable that forces one path at all sizes: see backends/<x>/kernels.py."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""The variables with the number of threads."""

COMMON = {**dict.fromkeys(THREADS, "1"), "NVIDIA_TF32_OVERRIDE": "0"}
"""One thread gives repeatable bits; TensorFloat-32 keeps 10 bits of a float32 product."""


def requirements_of(backend: str) -> registry.Requirements | None:
    """The requirements of the backend of that name; None for a third-party implementation."""
    if backend in registry.FRAMEWORKS:  # which no package can replace: the installed ones need not be searched
        return registry.read_requirements(f"{registry.__name__}.{backend}")
    known = registry.available()
    return registry.read_requirements(known[backend].module) if backend in known else None


def registered_requirements() -> Iterator[registry.Requirements]:
    """What each registered backend needs, as far as it says."""
    return filter(None, (registry.read_requirements(known.module) for known in registry.available().values()))


def determinism(backend: str) -> Mapping[str, Any]:
    """The settings that the backend's runtime must read back; empty if the backend requires none."""
    needed = requirements_of(backend)
    return {} if needed is None else needed.determinism


def required_settings(backend: str, device: str) -> dict[str, Any]:
    """The settings required of a backend, as its runtime reads them back."""
    return {**environment(backend, Path(), device), **determinism(backend)}


def violations(backend: str, device: str, in_force: Mapping[str, Any]) -> list[str]:
    """Messages about the determinism settings of a recording that differ from the required ones."""
    required = required_settings(backend, device)
    others = [
        f"{name} is {value!r}, expected {required[name]!r}"
        for name, value in in_force.items()
        if name in required and value != required[name]
    ]
    return others + [f"{name} was not read back" for name in determinism(backend) if name not in in_force]


def environment(backend: str, cache: Path, device: str) -> dict[str, str]:
    """The environment variables of the backend's workers."""
    requirements = requirements_of(backend)
    chosen = dict(COMMON)
    # Nobody knows what somebody else's implementation imports: it gets the variables of all backends.
    for group in [requirements] if requirements else registered_requirements():
        chosen |= group.variables(cache, device)
    if PATH in os.environ:
        chosen[PATH] = os.environ[PATH]
    if requirements is None and "KERAS_BACKEND" in os.environ:
        chosen["KERAS_BACKEND"] = os.environ["KERAS_BACKEND"]
    if device.partition(":")[0] == "cpu":
        chosen["CUDA_VISIBLE_DEVICES"] = ""
    return chosen


def collect_less() -> None:
    """Exempt existing objects from garbage collection, and collect new ones less often.

    Tracing creates many long-lived objects; this reduces the time of JAX by an eighth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
