"""The parity tests: whether implementations of attention agree, in outputs and gradients.

Cases are run in a process for each implementation, and the recordings are compared. In any test, `assert_parity`
compares two arrays, and `assert_models_agree` two models.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PLACES = {
    "assert_parity": "parity_tests.judge.assertion",
    "assert_models_agree": "parity_tests.models.comparison",
    "compare_models": "parity_tests.models.comparison",
}
"""The modules of what this package gives."""


def __getattr__(name: str) -> Any:
    """Give an assertion, whose module is imported where it is used: a worker has no need of it."""
    if name in PLACES:
        return getattr(import_module(PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
