"""Where things are that tests read or run."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
FAKES = Path(__file__).with_name("fakes")
