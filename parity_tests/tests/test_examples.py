"""The examples run as they stand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments]
    said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stderr
    return said.stdout


def test_pick_a_backend(backend: SimpleNamespace):
    said = run("examples/pick_a_backend.py", backend.name)
    assert said.startswith(f"{backend.name}: ") and "[[[2.0, 3.0, 4.0, 5.0]], [[10.0, 11.0, 12.0" in said


def test_move_weights(backend: SimpleNamespace):
    """From the backend to itself: two decoders, one file. Pairs of frameworks are judged by the parity run."""
    said = run("examples/move_weights.py", backend.name, backend.name)
    assert f"{backend.name} -> {backend.name}: 1800 logits" in said
