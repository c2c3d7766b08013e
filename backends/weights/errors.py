"""The error of conversions, and the import of optional libraries."""

from __future__ import annotations

import importlib
from typing import Any


class WeightError(ValueError):
    """A file of weights cannot be read, or its arrays cannot be converted."""


def import_library(name: str) -> Any:
    """Import a library that is required by a file format.

    Raises: WeightError if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WeightError(f"this file format requires {name}. Run: pip install {name}") from error
