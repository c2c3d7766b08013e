"""Kills at random moments: no process stays, and the next start removes what the killed one left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from parity_tests.folders import PREFIX, Folder
from parity_tests.tests.attack.mutations import KINDS
from parity_tests.tests.commands import invoke
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
        abandoned = temporary / f"{PREFIX}{'0' * 32}"
        (abandoned / "inside").mkdir(parents=True)
        link, kept, results = temporary / f"{PREFIX}{'1' * 32}", temporary / "kept", temporary / f"{PREFIX}results"
        kept.mkdir()
        results.mkdir()  # a user's own
        link.symlink_to(kept)
        with Folder() as other:
            assert {*temporary.iterdir()} == {Path(mine), Path(other), link, kept, results}
    assert {*temporary.iterdir()} == {link, kept, results}


KILLED = """
import os, signal, sys
from pathlib import Path
from parity_tests.cli.main import main
Path.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    "line",
    ["convert x.safetensors --to keras.GRU --validate no -o out.safetensors", "diff scoring torch jax -o out.html"],
)
def test_the_next_write_of_an_output_removes_what_a_killed_one_left(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    KINDS["safetensors"].write(Path("x.safetensors"))
    command = [sys.executable, "-c", KILLED, *line.split()]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL and len([*Path().iterdir()]) == 2
    assert invoke(*line.split()).exit_code == 0
    assert {str(path) for path in Path().iterdir()} == {"x.safetensors", line.rpartition(" ")[2]}


def test_nothing_is_left_of_what_is_killed_at_any_moment(
    running: Callable[[int], list[str]],
    temporary: Path,
    tmp_path: Path,
    pytestconfig: pytest.Config,
    counted: Callable[..., None],
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
    counted("kills of a run", tries, tries, f"left no process, and {folders} folders to the next start")
