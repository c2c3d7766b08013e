"""The parity tests: whether implementations of attention agree, in outputs and gradients.

Cases are run in a process for each implementation, and the recordings are compared. `assert_parity` compares two arrays
in any test.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Give assert_parity, whose module is imported where it is used: a worker has no need of it."""
    if name == "assert_parity":
        return import_module("parity_tests.judge.assertion").assert_parity
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
