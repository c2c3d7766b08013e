"""Runs on a cluster: the verdicts of a local run, whatever happens to the workers. All processes are real."""

from __future__ import annotations

import os
import signal

import pytest

from parity_tests.cases.selection import Cell, cells_of
from parity_tests.cases.suite import all_cases, select
from parity_tests.judge import run as running
from parity_tests.judge.run import Run, run
from parity_tests.tests.cluster.conftest import Local
from parity_tests.tests.cluster.faults import DAMAGED, DEADLY, KILLED
from parity_tests.workers.process import Job, Progress, untold

pytestmark = [pytest.mark.once, pytest.mark.xdist_group("cluster")]

BATCH = 8


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches for each worker."""
    monkeypatch.setattr(running, "BATCH", BATCH)


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return cells_of(select(all_cases(), operators=["masked_softmax", "scaled_dot_score"]), ["float64"])


@pytest.fixture(scope="module")
def alone(cells: list[Cell]) -> Run:
    """The same cells, on this machine alone."""
    return run(cells, [Job("fake", "numpy_backend")], workers=1)


def on_cluster(local: Local, cells: list[Cell], progress: Progress = untold) -> Run:
    with local.session() as cluster:
        return run(cells, cluster.jobs, workers=1, recorder=cluster.record, progress=progress)


def without_times(outcome: Run) -> dict:
    whole = outcome.as_json()
    return {**whole, "header": {name: entry for name, entry in whole["header"].items() if name != "times"}}


def of_cells(outcome: Run) -> dict[str, list[str]]:
    """The red statuses of each case."""
    red: dict[str, list[str]] = {}
    for verdict in outcome.red:
        red.setdefault(f"{verdict.case}/{verdict.dtype}", []).append(verdict.status)
    return red


def test_a_worker_is_killed_on_the_way_and_nothing_is_lost(local: Local, cells: list[Cell], alone: Run):
    killed: list[int] = []

    def kill_one(part: str, done: int, of: int, doing: str = "") -> None:
        if part == "fake" and 0 < done < of and not killed:
            killed.append(min(local.pids().values()))
            os.kill(killed[0], signal.SIGKILL)

    outcome = on_cluster(local, cells, kill_one)
    assert killed and not outcome.red
    assert without_times(outcome) == without_times(alone)


def test_what_kills_its_worker_twice_is_a_crash_of_its_cell_alone(local: Local, cells: list[Cell]):
    deadly = cells[5].key
    (local.folder / DEADLY).write_text(deadly)
    outcome = on_cluster(local, cells)
    assert of_cells(outcome) == {deadly: ["crash"]}
    assert "the Dask worker was lost 2 times while it ran this alone" in outcome.red[0].reason
    sizes = [int(line.split()[0]) for line in (local.folder / KILLED).read_text().splitlines()]
    assert len(sizes) == 4 and min(sizes[:2]) > 1 and sizes[2:] == [1, 1], "twice in its batch, and twice alone"


@pytest.mark.parametrize("times", [1, 1000])
def test_damaged_bytes_are_asked_for_again_and_are_no_wrong_values(
    local: Local, cells: list[Cell], alone: Run, times: int
):
    (local.folder / DAMAGED).write_text(str(times))
    outcome = on_cluster(local, cells[:BATCH])
    if times == 1:
        assert not outcome.red and (local.folder / DAMAGED).read_text() == "0"
    else:
        assert of_cells(outcome) == {cell.key: ["error"] for cell in cells[:BATCH]}
        assert "damaged on its way, twice, and so says nothing about values" in outcome.red[0].reason


def test_ctrl_c_interrupts_the_workers_and_judges_what_came_back(local: Local, cells: list[Cell]):
    caught: list[int] = []

    def interrupt(part: str, done: int, of: int, doing: str = "") -> None:
        if part == "fake" and done:
            caught.append(signal.SIGINT)

    with local.session(stopped=lambda: bool(caught)) as cluster:
        outcome = run(
            cells, cluster.jobs, workers=1, recorder=cluster.record, progress=interrupt, stopped=lambda: bool(caught)
        )
    answered = outcome.recordings["fake"].answers
    assert outcome.interrupted and 0 < len(answered) < len(cells)
    assert {verdict.case for verdict in outcome.verdicts} == {key.partition("/")[0] for key in answered}
    assert not outcome.red
