"""The requirements of a backend, as data that can be read without its framework."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

XLA_LEVEL = "ATTENTION_PARITY_XLA_LEVEL"
"""The variable with LLVM's optimisation level for JAX on a CPU (default: 0; JAX's own default is 3)."""


@dataclass(frozen=True)
class Idiom:
    """How a framework is written: what docstrings, pages and commands print of it.

    title is the framework's name, call the method that a call of a layer enters, and namespace what its users call the
    module of its array functions. dtype gives a constructor its floating type, required is the keyword without which no
    layer with parameters is made, and example has both. imports are the lines of Python that these take, and wide
    those that float64 takes beside.
    """

    title: str = ""
    call: str = "__call__"
    namespace: str = "np"
    dtype: str = 'dtype="{}"'
    required: str = ""
    example: str = ""
    imports: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()


@dataclass(frozen=True)
class Requirements:
    """The content of a backend's `requirements.py`.

    distributions are the imported packages, and newest_python the newest supported Python, if there is a limit.
    keywords are the framework's own arguments of constructors and calls, after the shared ones; idiom has the rest of a
    line of code. variables returns the environment variables for comparable arithmetic, given a cache folder and a
    device; determinism has the settings that the configured runtime must read back. compiles states whether each shape
    has a program, which costs more than its cells; share is the number of concurrent workers per worker of the backend:
    a second one pays off only if cells take longer than its start. gaps are unsupported operators, by pattern, in a
    dtype on a device, and unsupported dtypes of inputs, each with a reason.
    """

    distributions: tuple[str, ...]
    keywords: tuple[str, ...] = ()
    idiom: Idiom = Idiom()
    newest_python: tuple[int, int] | None = None
    variables: Callable[[Path, str], Mapping[str, str]] = lambda cache, device: {}
    determinism: Mapping[str, Any] = field(default_factory=dict)
    compiles: bool = False
    share: int | None = None
    gaps: Sequence[Mapping[str, str]] = ()

    @property
    def absent_dtypes(self) -> tuple[str, ...]:
        """The dtypes, by pattern, that no array of the framework has: the gaps of all operators on all devices."""
        whole = [gap for gap in self.gaps if gap["device"] == gap.get("operator", "*") == "*"]
        return tuple(gap.get("dtype") or gap["input"] for gap in whole if ("dtype" in gap) != ("input" in gap))


@functools.cache
def read_requirements(module: str) -> Requirements | None:
    """The requirements of the backend in that module; None if it has none. Only that file is imported."""
    first, *rest = module.split(".")
    spec = importlib.util.find_spec(first) if first else None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, *rest, "requirements.py")
        if path.is_file():
            spec = importlib.util.spec_from_file_location(f"{module}.requirements", path)
            assert spec is not None and spec.loader is not None
            made = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(made)
            return made.REQUIREMENTS if isinstance(made.REQUIREMENTS, Requirements) else None
    return None
