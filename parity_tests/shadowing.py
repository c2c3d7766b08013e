"""Detection of user folders that shadow these packages: `backends` is a common name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def shadowing_message() -> str | None:
    """A message with both folders if a package is shadowed; nothing of it is imported."""
    root = Path(__file__).resolve().parents[1]
    for name in ("attention_core", "backends"):
        module = sys.modules.get(name)
        spec = importlib.util.find_spec(name) if module is None else None
        file: str | None = getattr(module, "__file__", None) or (spec.origin if spec else None)
        if file is not None and Path(file).resolve() != root / name / "__init__.py":
            theirs = Path(file).parent if Path(file).name == "__init__.py" else Path(file)
            return f"{theirs} is imported as {name!r}, in place of {root / name}: run from another folder, or rename it"
    return None
