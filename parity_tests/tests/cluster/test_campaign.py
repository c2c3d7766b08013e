"""Campaigns on a cluster: the same cases for any number of workers, and a file that outlives its client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parity_tests.cases.case import FULL
from parity_tests.cluster import campaign as campaigns
from parity_tests.cluster.campaign import ClusterCampaign, Log, LogError, pending
from parity_tests.fuzz.campaign import Campaign
from parity_tests.tests.cluster.conftest import Local
from parity_tests.workers.process import Job, Server

pytestmark = [pytest.mark.once, pytest.mark.xdist_group("cluster")]

RANGE, EXAMPLES = 32, 160
OPERATORS = ["scaled_dot_score"]
COMMAND = f"""
from parity_tests.cli.main import main
from parity_tests.cluster import campaign

campaign.RANGE = {RANGE}
main()
"""


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaigns, "RANGE", RANGE)


def empty(seed: int = 0) -> Campaign:
    return Campaign([], seed, operators=OPERATORS, dtypes=FULL)


@pytest.fixture(scope="module")
def alone(cluster_of_four: Local) -> Campaign:
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


def test_a_campaign_is_the_same_cases_as_on_one_machine(local: Local, alone: Campaign, tmp_path: Path):
    campaign = empty()
    with local.session("planted", fuzzing=True) as cluster, Log(tmp_path / "campaign.jsonl", campaign) as log:
        found = list(ClusterCampaign(cluster, campaign, log).run(examples=EXAMPLES))
    assert counts(campaign) == counts(alone)
    assert alone.findings and campaign.findings.keys() == alone.findings.keys()
    assert found == list(campaign.findings.values())
    again = empty()
    with local.session("planted", fuzzing=True) as cluster, Log(tmp_path / "campaign.jsonl", again) as log:
        assert list(ClusterCampaign(cluster, again, log).run(examples=EXAMPLES)) == found, "from the file alone"
    assert counts(again) == counts(alone)


def started(local: Local, file: Path, *more: str) -> subprocess.Popen:
    command = ["fuzz", "--scheduler", local.address, "--backend", "planted", "--operator", *OPERATORS]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *command, "--examples", str(EXAMPLES), "--output", str(file), *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_campaign_goes_on_after_kill_9_without_a_case_lost_or_counted_twice(
    local: Local, alone: Campaign, tmp_path: Path
):
    file = tmp_path / "campaign.jsonl"
    client = started(local, file)
    deadline = time.monotonic() + 60
    while not (file.exists() and file.read_bytes().count(b"\n") > 2) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(client.pid, signal.SIGKILL)
    client.communicate()
    before = file.read_bytes()
    assert 2 < before.count(b"\n") <= EXAMPLES // RANGE
    file.write_bytes(before + before.splitlines()[-1][:40])  # and it was writing
    client = started(local, file)
    output, _ = client.communicate(timeout=120)
    assert client.returncode == 1 and "planted scaled_dot_score" in output, output
    assert file.read_bytes().startswith(before)
    lines = [json.loads(line)["counts"] for line in file.read_text().splitlines()[1:]]
    assert sorted(line["first"] for line in lines) == list(range(0, EXAMPLES, RANGE))
    assert {line["count"] for line in lines} == {RANGE}
    assert sum(sum(line["cases"].values()) for line in lines) == sum(alone.cases.values())


def test_a_file_is_of_one_campaign_and_of_one_client(tmp_path: Path):
    file = tmp_path / "campaign.jsonl"
    with Log(file, empty()), pytest.raises(LogError, match="in use by another campaign"):
        Log(file, empty())
    with pytest.raises(LogError, match="seed is 0, expected 1: name another file, or continue"):
        Log(file, empty(seed=1))
    file.write_bytes(file.read_bytes() + b'{"column": ["planted", "", "cpu"]}\n')
    with pytest.raises(LogError, match="line 2: seconds: None, expected"):
        Log(file, empty())
