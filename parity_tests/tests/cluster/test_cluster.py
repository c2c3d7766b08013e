"""Runs and campaigns on a cluster: those of one machine, whatever happens to the workers. All processes are real."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from parity_tests.behaviour import findings
from parity_tests.cases.suite import all_cases
from parity_tests.cluster import campaign as campaigns
from parity_tests.cluster import crew, worker
from parity_tests.cluster.behaviour import targets_of
from parity_tests.cluster.campaign import ClusterCampaign, Log, LogError, pending
from parity_tests.cluster.client import Cluster
from parity_tests.format.case import FULL
from parity_tests.format.selection import Cell, cells_of
from parity_tests.fuzz.campaign import Campaign
from parity_tests.judge import run as running
from parity_tests.judge.run import Run, run
from parity_tests.tests.cluster.conftest import Local
from parity_tests.tests.cluster.faults import DAMAGED, DEADLY, KILLED, set_fault, two_versions
from parity_tests.tests.commands import invoke, squeezed
from parity_tests.workers.process import Job, Progress, Server, untold
from tools import behaviour
from tools.behaviour_page import page

pytestmark = pytest.mark.once

BATCH = 8
RANGE, EXAMPLES = 32, 128
OPERATORS = ["scaled_dot_score"]
COMMAND = f"""
from parity_tests.cli.main import main
from parity_tests.cluster import campaign

campaign.RANGE = {RANGE}
main()
"""


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches and ranges for each worker."""
    monkeypatch.setattr(running, "BATCH", BATCH)
    monkeypatch.setattr(campaigns, "RANGE", RANGE)


# ------------------------------------------------------------------------------------------------ runs


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return cells_of(all_cases().select(operators=["masked_softmax", "scaled_dot_score"]), ["float64"])


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
    caught, referred = list[int](), [0]

    def interrupt(part: str, done: int, of: int, doing: str = "") -> None:
        if part == "fake" and done:
            caught.append(signal.SIGINT)
        if part == "reference":
            referred.append(done)

    with local.session(stopped=lambda: bool(caught)) as cluster:
        outcome = run(
            cells, cluster.jobs, workers=1, recorder=cluster.record, progress=interrupt, stopped=lambda: bool(caught)
        )
    answered = outcome.recordings["fake"].answers
    assert outcome.interrupted and 0 < len(answered) < len(cells)
    # What came back sooner than its reference was computed is not judged.
    assert {verdict.case for verdict in outcome.verdicts} == {
        cell.case.id for cell in cells[: referred[-1]] if cell.key in answered
    }
    assert not outcome.red


def test_without_its_scheduler_a_run_ends_with_what_came_back(
    local: Local, cells: list[Cell], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(crew, "LOST_SECONDS", 1.0)
    with processes(tmp_path / "scheduler.json") as (address, scheduler):

        def kill_it(part: str, done: int, of: int, doing: str = "") -> None:
            if part == "fake" and 0 < done < of:
                scheduler.kill()

        with Cluster(address, (worker.offers, (["fake"], ["cpu"], False))) as cluster:
            outcome = run(cells, cluster.jobs, workers=1, recorder=cluster.record, progress=kill_it)
    red = of_cells(outcome)
    assert 0 < len(red) < len(cells) and {status for statuses in red.values() for status in statuses} == {"crash"}
    assert "no worker of fake is left" in outcome.red[0].reason


@contextmanager
def processes(file: Path) -> Iterator[tuple[str, subprocess.Popen]]:
    """A scheduler with one worker: its address and its process."""
    import distributed

    command, quiet = [sys.executable, "-m"], ["--no-dashboard", "--scheduler-file", str(file)]
    scheduler = [*command, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", *quiet]
    its_worker = [*command, "distributed.cli.dask_worker", "--nthreads", "1", *quiet]
    made = [subprocess.Popen(each, stderr=subprocess.DEVNULL) for each in (scheduler, its_worker)]
    try:
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with distributed.Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(1, timeout=60)
            address = client.scheduler.address
        yield address, made[0]
    finally:
        for process in reversed(made):
            process.terminate()
            process.wait()


def test_workers_of_two_versions_are_two_columns(local: Local, cells: list[Cell], tmp_path: Path):
    some = cells[:BATCH]
    with Cluster(local.address, (two_versions, ())) as cluster:
        assert [job.name for job in cluster.jobs] == ["fake 9.0", "fake 10.0"]
        outcome = run(some, cluster.jobs, workers=2, recorder=cluster.record)
    assert not outcome.red and list(outcome.recordings) == ["fake 9.0", "fake 10.0"]
    pairs = {(verdict.name, verdict.against) for verdict in outcome.verdicts}
    assert pairs == {("fake 9.0", "reference"), ("fake 10.0", "reference"), ("fake 9.0", "fake 10.0")}
    entries = outcome.as_json()["cells"]
    assert {(entry["backend"], entry["version"]) for entry in entries} == {("fake", "9.0"), ("fake", "10.0")}


def test_a_worker_whose_framework_does_not_start_leaves_its_cells_to_others(
    local: Local, cells: list[Cell], alone: Run
):
    first = min(local.pids())
    local.client.run(set_fault, "import", workers=[first])
    try:
        assert without_times(on_cluster(local, cells)) == without_times(alone)
        local.client.run(set_fault, "import")
        outcome = on_cluster(local, cells[:BATCH])
    finally:
        local.client.run(set_fault, "")
    assert of_cells(outcome) == {cell.key: ["crash"] for cell in cells[:BATCH]}
    assert "fake cannot start" in outcome.red[0].reason, "the worker's own words, as locally"


def test_the_command_gives_the_file_of_a_local_run(local: Local, tmp_path: Path):
    files = tmp_path / "local.json", tmp_path / "cluster.json"
    chosen = ["run", "--backend", "fake", "--operator", "masked_softmax", "--dtype", "float64"]
    assert invoke(*chosen, "--json", files[0]).exit_code == 0
    result = invoke(*chosen, "--json", files[1], "--scheduler", local.address)
    assert result.exit_code == 0, result.output
    first, second = (json.loads(file.read_text()) for file in files)
    assert first["header"].pop("times") and second["header"].pop("times")
    assert first == second


def test_check_needs_the_target_on_the_workers(local: Local, tmp_path: Path):
    target = tmp_path / "mine.py"
    target.write_text(
        "from attention_core import reference\n\n\n"
        "def causal_mask(*, num_queries, num_keys, offset=None):\n"
        "    return reference.causal_mask(num_queries, num_keys, offset=offset)\n"
    )
    chosen = ["--operator", "causal_mask", "--scheduler", local.address]
    result = invoke("check", target, *chosen)
    assert result.exit_code == 0 and "green" in result.output, result.output
    result = invoke("check", "no_such_module", *chosen)
    words = f"no worker of {local.address} can run this: no_such_module:"
    assert result.exit_code == 2 and words in squeezed(result) and "No module named" in squeezed(result)


def test_behaviour_records_what_the_workers_answer(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    records = findings.load()
    monkeypatch.setattr(findings, "DATA", tmp_path / "findings.json")
    monkeypatch.setattr(behaviour, "PAGE", tmp_path / "behaviour.md")
    behaviour.save({}, findings.DATA)
    chosen = ["--framework", "onnx", "--scheduler", local.address]
    result = invoke("behaviour", *chosen)
    assert result.exit_code == 1 and "changed" in result.output and not behaviour.PAGE.exists(), result.output
    assert CliRunner().invoke(behaviour.command, chosen).exit_code == 0
    written = findings.load()
    assert written.keys() == {target.id for target in targets_of("onnx")}
    for name, (entry,) in written.items():
        assert entry["found"] == records[name][-1]["found"], name
    assert behaviour.PAGE.read_text(encoding="utf-8") == page(written)
    assert invoke("behaviour", *chosen).exit_code == 0
    result = invoke("behaviour", "--framework", "mlx", "--scheduler", local.address)
    assert result.exit_code == 2 and "can run this: mlx: not all installed: mlx" in squeezed(result)


def test_without_a_scheduler_or_the_backend_it_is_said(local: Local):
    result = invoke("run", "--backend", "torch", "--scheduler", local.address)
    assert result.exit_code == 2 and "can run this: torch: not installed: torch" in squeezed(result)
    result = invoke("run", "--scheduler", "fax://127.0.0.1:9")
    assert result.exit_code == 2 and "no scheduler answers at fax://127.0.0.1:9" in squeezed(result)


# ------------------------------------------------------------------------------------------------ campaigns


def empty(seed: int = 0) -> Campaign:
    return Campaign([], seed, operators=OPERATORS, dtypes=FULL)


@pytest.fixture(scope="module")
def campaign_alone(cluster_of_four: Local) -> Campaign:
    """The campaign on this machine alone, on the backend with a bug in it, which is there with the cluster."""
    with Server(Job("planted", "planted_backend")) as server:
        campaign = Campaign([server], 0, operators=OPERATORS, dtypes=FULL)
        list(campaign.run(examples=EXAMPLES))
    return campaign


def counts(campaign: Campaign) -> tuple:
    return campaign.done, campaign.left_out, campaign.cases, campaign.worst, campaign.repeated, campaign.missing


def test_the_rest_of_a_campaign_is_what_is_not_done():
    assert list(pending([], 5, 70)) == [(5, 32), (32, 64), (64, 70)]
    assert list(pending([(64, 96), (5, 20)], 0, 100)) == [(0, 5), (20, 32), (32, 64), (96, 100)]
    assert list(pending([(0, 200)], 0, 100)) == []


def test_a_campaign_is_the_same_cases_as_on_one_machine(local: Local, campaign_alone: Campaign, tmp_path: Path):
    campaign = empty()
    with local.session("planted", fuzzing=True) as cluster, Log(tmp_path / "campaign.jsonl", campaign) as log:
        found = list(ClusterCampaign(cluster, campaign, log).run(examples=EXAMPLES))
    assert counts(campaign) == counts(campaign_alone)
    assert campaign_alone.findings and campaign.findings.keys() == campaign_alone.findings.keys()
    assert found == list(campaign.findings.values())
    again = empty()
    with local.session("planted", fuzzing=True) as cluster, Log(tmp_path / "campaign.jsonl", again) as log:
        assert list(ClusterCampaign(cluster, again, log).run(examples=EXAMPLES)) == found, "from the file alone"
    assert counts(again) == counts(campaign_alone)


def started(local: Local, file: Path, *more: str) -> subprocess.Popen:
    command = ["fuzz", "--scheduler", local.address, "--backend", "planted", "--operator", *OPERATORS]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *command, "--examples", str(EXAMPLES), "--output", str(file), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_campaign_goes_on_after_kill_9_without_a_case_lost_or_counted_twice(
    local: Local, campaign_alone: Campaign, tmp_path: Path
):
    file = tmp_path / "campaign.jsonl"
    client = started(local, file)
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_bytes().count(b"\n") > 1) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(client.pid, signal.SIGKILL)
    client.communicate()
    before = file.read_bytes()
    assert 1 < before.count(b"\n") <= EXAMPLES // RANGE
    file.write_bytes(before + before.splitlines()[-1][:40])  # and it was writing
    client = started(local, file)
    output, _ = client.communicate(timeout=120)
    assert client.returncode == 1 and "planted scaled_dot_score" in output, output
    assert file.read_bytes().startswith(before)
    lines = [json.loads(line)["counts"] for line in file.read_text().splitlines()[1:]]
    assert sorted(line["first"] for line in lines) == list(range(0, EXAMPLES, RANGE))
    assert {line["count"] for line in lines} == {RANGE}
    assert sum(sum(line["cases"].values()) for line in lines) == sum(campaign_alone.cases.values())


def test_a_file_is_of_one_campaign_and_of_one_client(tmp_path: Path):
    file = tmp_path / "campaign.jsonl"
    with Log(file, empty()), pytest.raises(LogError, match="in use by another campaign"):
        Log(file, empty())
    with pytest.raises(LogError, match="seed is 0, expected 1: name another file, or continue"):
        Log(file, empty(seed=1))
    file.write_bytes(file.read_bytes() + b'{"column": ["planted", "", "cpu"]}\n')
    with pytest.raises(LogError, match="line 2: seconds: None, expected"):
        Log(file, empty())
