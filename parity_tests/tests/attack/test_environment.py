"""Faults of the environment: disks that are full or read-only, and targets whose messages are hostile."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from parity_tests.cli.main import main
from parity_tests.tests.judge.sources import SOFTMAX
from parity_tests.tests.places import ROOT

pytestmark = pytest.mark.once


def write_nothing() -> None:
    """Have every write to a file fail, as on a full disk; pipes are none."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize(
    ("variables", "full", "words"),
    [
        ({"ATTENTION_PARITY_CACHE": "/proc/none"}, False, ["expected values are not kept in /proc/none/expected"]),
        ({"HOME": "/proc", "ATTENTION_PARITY_CACHE": ""}, False, ["expected values are not kept in /proc/.cache"]),
        ({}, True, ["expected values are not kept in", "a temporary folder cannot be created"]),
    ],
    ids=["cache", "home", "every disk is full"],
)
def test_a_run_continues_without_unwritable_folders_and_warns_once(
    tmp_path: Path, variables: dict[str, str], full: bool, words: list[str]
):
    (tmp_path / "mine.py").write_text(SOFTMAX)
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONWARNINGS", "XDG_CACHE_HOME")}
    done = subprocess.run(
        [sys.executable, "-B", "-m", "parity_tests", "check", "mine.py", "--case", "masked_softmax-[mn]*"],
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": str(ROOT), "ATTENTION_PARITY_CACHE": str(tmp_path / "cache"), **variables},
        preexec_fn=write_nothing if full else None,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0 and "green" in done.stdout and "Traceback" not in done.stderr, done.stderr
    assert [done.stderr.count(sentence) for sentence in words] == [1] * len(words), done.stderr


HOSTILE = """
class Silent(Exception):
    def __str__(self):
        raise ValueError("no message")

def masked_softmax(scores, mask=None): raise ValueError("\\x1b[2J\\udcff[red]" + chr(7))
def dot_score(queries, keys): raise ValueError("x" * 50_000_000)
def scaled_dot_score(queries, keys, scale=None): raise Silent
def attention_mask(num_keys, valid_lens=None, mask=None): return {"\\x1b[2J": 1}
def location_score(queries, num_keys): return queries[..., :num_keys]
"""


def test_a_hostile_message_costs_its_cell_alone_and_reaches_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(HOSTILE)
    names = "masked_softmax,dot_score,scaled_dot_score,attention_mask,location_score"
    outputs = ["--json", "own.json", "--junit", "own.xml", "--certificate", "certificate.json"]
    words = [
        "check",
        "mine.py",
        "--operator",
        names,
        "--case",
        "*-[mp]*",
        "--dtype",
        "float64",
        "--seed",
        "1",
        *outputs,
    ]
    result = CliRunner().invoke(main, words, color=True)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.exception
    assert "\x1b[2J" not in result.output and "\a" not in result.output and len(result.output) < 100_000
    cells = json.loads((tmp_path / "own.json").read_text())["cells"]
    statuses = {(cell["operator"], cell["status"]) for cell in cells}
    assert statuses >= {("dot_score", "error"), ("scaled_dot_score", "error"), ("masked_softmax", "error")}
    assert "crash" not in {status for _, status in statuses} and ("location_score", "pass") in statuses
    reasons = {cell["operator"]: cell["reason"] for cell in cells}
    assert "characters ..." in reasons["dot_score"] and len(reasons["dot_score"]) < 5_000
    assert "its message cannot be formatted" in reasons["scaled_dot_score"]
