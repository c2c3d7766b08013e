"""Kills at random moments: no process stays, and the next start removes what the killed one left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from parity_tests.folders import PREFIX, Folder
from parity_tests.tests.judge.sources import SOFTMAX
from parity_tests.tests.places import ROOT

pytestmark = pytest.mark.once

DAEMON = """
import os, time

def masked_softmax(scores, mask=None):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        time.sleep(600)
    time.sleep(0.05)
    return softmax(scores, mask)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files alone."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def test_a_folder_of_an_owner_who_lives_stays_and_an_abandoned_one_goes(temporary: Path):
    with Folder() as mine:
        abandoned = temporary / f"{PREFIX}abandoned"
        (abandoned / "inside").mkdir(parents=True)
        link, kept = temporary / f"{PREFIX}link", temporary / "kept"
        kept.mkdir()
        link.symlink_to(kept)
        with Folder() as other:
            assert sorted(map(str, temporary.iterdir())) == sorted(map(str, (Path(mine), Path(other), link, kept)))
    assert sorted(temporary.iterdir()) == sorted((link, kept))


def test_nothing_is_left_of_what_is_killed_at_any_moment(
    running: Callable[[int], list[str]], temporary: Path, tmp_path: Path, pytestconfig: pytest.Config
):
    (tmp_path / "mine.py").write_text(SOFTMAX.replace("masked_softmax", "softmax") + DAEMON)
    random, tries, folders = Random(18), max(1, pytestconfig.getoption("--attack") // 30), 0
    for _ in range(tries):
        process = subprocess.Popen(
            [sys.executable, "-m", "parity_tests", "check", "mine.py", "--case", "masked_softmax-[a-z]*e*"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not [*temporary.iterdir()] and time.monotonic() < deadline:  # before that, nothing has started
            time.sleep(0.01)
        time.sleep(random.uniform(0.0, 1.5))
        process.kill()
        process.wait()
        assert running(0) == []
        folders += len([*temporary.iterdir()])
        Folder().cleanup()
        assert [*temporary.iterdir()] == []
    print(f"{tries} kills, which left {folders} folders")
