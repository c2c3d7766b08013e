"""Interruption: nothing is left behind, and the verdicts so far are reported. Each test starts real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from parity_tests.cases.suite import all_cases
from parity_tests.cli.terminal import signals
from parity_tests.format.selection import cells_of
from parity_tests.judge.divergences import Divergence
from parity_tests.judge.run import run
from parity_tests.tests.places import FAKES, ROOT
from parity_tests.workers.process import Job, Progress, record
from parity_tests.workers.recordings import Batch, Recording

pytestmark = pytest.mark.once

COMMAND = """
import signal
import backends
from parity_tests.cli.main import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
backends.available = lambda: {"fake": backends.Availability("fake", "numpy_backend", {})}
main()
"""
HANGING = "hang-with-child@valid_lens"
"""The second cell hangs, where no thread of Python comes to its turn; so does a child of the worker."""


@pytest.fixture
def start(running: Callable[[int], list[str]], tmp_path: Path):
    """Start `attention-parity run` on the fake backend, and wait until that many processes run."""
    (tmp_path / "temporary").mkdir()

    def start_with(fault: str, count: int) -> subprocess.Popen:
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(FAKES)]),
            "TMPDIR": str(tmp_path / "temporary"),
            "FAKE_FAULT": fault,
        }
        arguments = [
            "run",
            "--operator",
            "masked_softmax",
            "--dtype",
            "float64",
            "--json",
            str(tmp_path / "found.json"),
        ]
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *arguments],
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert len(running(count)) == count
        return process

    return start_with


@pytest.mark.parametrize(
    ("number", "send", "code"),
    [
        pytest.param(signal.SIGINT, os.kill, 130, id="SIGINT"),
        pytest.param(signal.SIGINT, os.killpg, 130, id="SIGINT to the group"),
        pytest.param(signal.SIGTERM, os.kill, 143, id="SIGTERM"),
    ],
)
@pytest.mark.parametrize(("fault", "count", "answered"), [(HANGING, 4, 1), ("hang", 3, 0)], ids=["cell", "start"])
def test_an_interrupted_run_reports_the_verdicts_so_far_and_leaves_nothing_behind(
    start, running, tmp_path: Path, fault: str, count: int, answered: int, number: int, send: Callable, code: int
):
    process = start(fault, count)
    send(process.pid, number)
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == code, printed
    assert running(0) == []
    assert list((tmp_path / "temporary").iterdir()) == []
    total = len(cells_of(all_cases().select(operators=["masked_softmax"]), ["float64"]))
    assert f"interrupted: {answered} of {total} cells answered; 0 of {2 * answered} comparisons red" in printed
    assert "masked_softmax" in printed and "green" not in printed
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["header"]["interrupted"] is True
    assert {(cell["case"], cell["status"]) for cell in found["cells"]} == (
        {("masked_softmax-none", "pass")} if answered else set()
    )


@pytest.mark.parametrize(
    ("fault", "count"), [(HANGING, 4), ("in-a-session@valid_lens", 4), ("hang", 3)], ids=["cell", "session", "start"]
)
def test_workers_end_with_a_judge_that_is_killed(start, running, fault: str, count: int):
    process = start(fault, count)
    process.kill()
    process.communicate(timeout=60)
    assert running(0) == []


def test_the_reference_is_not_computed_for_a_run_that_shall_stop(fake_job, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr("parity_tests.format.expected.expected_values")
    recorder = partial(record, stopped=lambda: True)
    cells = cells_of(all_cases().select("dot_score-*"), ["float64"])
    outcome = run(cells, [fake_job()], recorder=recorder, stopped=lambda: True)
    assert outcome.interrupted and outcome.verdicts == [] and outcome.recordings["fake"].answers == {}


def test_a_signal_that_does_not_wake_the_judge_is_heard_all_the_same(fake_job):
    """It reaches another thread, or the judge as it falls asleep: Python tells it once the main thread wakes up."""
    heard: list[int] = []

    def recorder(job: Job, batches: Iterable[Batch], progress: Progress) -> Recording:
        time.sleep(0.2)  # the judge is waiting by then
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        deadline = time.monotonic() + 5
        while not caught and time.monotonic() < deadline:
            time.sleep(0.02)
        heard.extend(caught)
        return record(fake_job(), batches, progress)

    cells = cells_of(all_cases().select("dot_score-plain"), ["float64"])
    with signals() as caught:
        outcome = run(cells, [fake_job()], recorder=recorder, stopped=lambda: bool(caught))
    assert heard == [signal.SIGTERM] and outcome.interrupted


def test_a_divergence_that_was_not_met_by_then_is_not_called_stale(fake_job):
    cases = all_cases().select("masked_softmax-none")
    entries = [Divergence("fake", "masked_softmax-none", "weights", "for this test", dtype="float32")]
    finished = []

    def recorder(job: Job, batches: Iterable[Batch], progress: Progress) -> Recording:
        finished.append(record(fake_job(), batches, progress, stopped=lambda: False))
        del finished[0].answers["masked_softmax-none/float32"]
        return finished[0]

    outcome = run(
        cells_of(cases, ["float64", "float32"]),
        [fake_job()],
        divergences=entries,
        recorder=recorder,
        stopped=lambda: bool(finished),
    )
    assert outcome.interrupted and {verdict.dtype for verdict in outcome.verdicts} == {"float64"}
    assert outcome.red == []
