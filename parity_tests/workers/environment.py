"""The environment of a worker: variables that have to stand before a framework is imported, and what it reads back."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import backends as registry

PATH = "ATTENTION_PARITY_PATH"
"""The variable that makes every backend take one path for all sizes: see backends/<x>/blocked/choice.py."""

COMMON = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NVIDIA_TF32_OVERRIDE": "0",
}
"""One thread gives repeatable bits; TensorFloat-32 keeps 10 bits of a float32 product."""


def requirements_of(backend: str) -> registry.Requirements | None:
    """What the backend of that name needs; None of somebody else's implementation."""
    known = registry.available()
    return registry.read_requirements(known[backend].module) if backend in known else None


def stated() -> Iterator[registry.Requirements]:
    """What each registered backend needs, as far as it says."""
    return filter(None, (registry.read_requirements(known.module) for known in registry.available().values()))


def determinism(backend: str) -> Mapping[str, Any]:
    """The settings that the backend's runtime must read back; none of a backend that states none."""
    needed = requirements_of(backend)
    return {} if needed is None else needed.determinism


def required_settings(backend: str, device: str) -> dict[str, Any]:
    """The settings that a backend has to run under, as its runtime reads them back."""
    return {**environment(backend, Path(), device), **determinism(backend)}


def violations(backend: str, device: str, in_force: Mapping[str, Any]) -> list[str]:
    """The determinism settings of a recording that are not as they should be, in words."""
    required = required_settings(backend, device)
    others = [
        f"{name} is {value!r}, expected {required[name]!r}"
        for name, value in in_force.items()
        if name in required and value != required[name]
    ]
    return others + [f"{name} was not read back" for name in determinism(backend) if name not in in_force]


def environment(backend: str, cache: Path, device: str) -> dict[str, str]:
    """The variables that a worker of the backend starts with."""
    requirements = requirements_of(backend)
    chosen = dict(COMMON)
    # Nobody knows what somebody else's implementation imports: it gets the variables of all backends.
    for group in [requirements] if requirements else stated():
        chosen |= group.variables(cache, device)
    if PATH in os.environ:
        chosen[PATH] = os.environ[PATH]
    if requirements is None and "KERAS_BACKEND" in os.environ:
        chosen["KERAS_BACKEND"] = os.environ["KERAS_BACKEND"]
    if device.partition(":")[0] == "cpu":
        chosen["CUDA_VISIBLE_DEVICES"] = ""
    return chosen


def collect_less() -> None:
    """Have the garbage collector pass over what is there now, and look at what is new less often.

    A trace makes many objects that live on, and JAX takes an eighth of its time less.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
