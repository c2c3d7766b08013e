"""The list of what `--slow` alone runs."""

from __future__ import annotations

from pathlib import Path

LIST = Path(__file__).with_name("slow.txt")
"""The names of the slow tests, a line each; `python -m tools.slow_tests REPORT...` writes them."""


def slow() -> frozenset[str]:
    """The names of the slow tests: path::function[parameters], from the root of the project."""
    return frozenset(LIST.read_text(encoding="utf-8").splitlines())
