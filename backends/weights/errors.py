"""What every refusal of a conversion is, and a library that a kind of file needs."""

from __future__ import annotations

import importlib
from typing import Any


class WeightError(ValueError):
    """A file of weights cannot be read, or its arrays cannot be converted."""


def needed(name: str) -> Any:
    """A library, imported where a file of its kind is read or written.

    Raises: WeightError if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise WeightError(f"this kind of file needs {name}. Run: pip install {name}") from error
