"""Workers: what a fault costs, and what is said of it. Each test starts real processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from parity_tests.cases import all_cases, select
from parity_tests.launch import Job, record
from parity_tests.recordings import Recording, cells_of, key, pack_cases


@pytest.fixture
def run(tmp_path: Path, fake_job):
    """Run four short cells, the second of which is the one whose inputs hold lengths."""
    chosen = {"dot_score-plain", "attention_mask-lens", "dot_score-heads", "scaled_dot_score-scale"}
    cases = sorted(
        (case for case in select(all_cases()) if case.id in chosen), key=lambda case: case.operator[0] == "a"
    )
    cases.insert(1, cases.pop())
    cells = cells_of(cases, ["float64"])
    assert [case.id for case, _ in cells][1] == "attention_mask-lens"
    file = tmp_path / "cases.safetensors"
    file.write_bytes(pack_cases(cells))

    def record_with(fault: str = "", **limits: float) -> tuple[list[str], Recording]:
        recording = record(fake_job(fault), file, cells, **limits)
        return [recording.status[key(cell)]["status"] for cell in cells], recording

    record_with.cells = cells
    return record_with


def test_a_healthy_worker_answers_every_cell(run):
    statuses, recording = run()
    assert statuses == ["ok"] * 4
    assert recording.about["framework"] == "NumPy" and recording.about["versions"]["numpy"]
    assert set(recording.cells) == {key(cell) for cell in run.cells}


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGKILL", "SIGABRT"])
def test_a_worker_that_is_killed_costs_its_own_cell(run, name: str):
    statuses, recording = run(f"{name}@valid_lens")
    assert statuses == ["ok", "crash", "ok", "ok"]
    assert recording.status[key(run.cells[1])]["message"] == f"the worker was killed by {name}"


def test_a_worker_that_ends_costs_its_own_cell(run):
    statuses, recording = run("exit@valid_lens")
    assert statuses == ["ok", "crash", "ok", "ok"]
    assert recording.status[key(run.cells[1])]["message"] == "the worker ended with exit code 3"


def test_a_worker_that_hangs_costs_its_own_cell(run):
    statuses, recording = run("hang@valid_lens", cell_seconds=3.0)
    assert statuses == ["ok", "timeout", "ok", "ok"]
    assert "stayed silent" in recording.status[key(run.cells[1])]["message"]


def test_an_implementation_that_raises_costs_its_own_cell(run):
    statuses, recording = run("raise@valid_lens")
    assert statuses == ["ok", "error", "ok", "ok"]
    said = recording.status[key(run.cells[1])]
    assert said["message"] == "ValueError: this backend was told to raise" and "Traceback" in said["trace"]


def test_rubbish_in_the_stream_costs_its_own_cell(run):
    statuses, _ = run("rubbish@valid_lens")
    assert statuses == ["ok", "error", "ok", "ok"]


def test_printing_costs_nothing(run):
    assert run("print@valid_lens")[0] == ["ok"] * 4


def test_a_worker_that_cannot_start_is_told_with_its_last_words(run):
    statuses, recording = run("import")
    assert statuses == ["crash"] * 4
    assert "this backend was told not to start" in recording.status[key(run.cells[0])]["trace"]


def test_a_worker_that_always_dies_is_given_up(fake_job, tmp_path: Path):
    cells = cells_of(select(all_cases(), operators=["dot_score"]), ["float64"])
    file = tmp_path / "more.safetensors"
    file.write_bytes(pack_cases(cells))
    recording = record(fake_job("exit@queries"), file, cells)
    assert {recording.status[key(cell)]["status"] for cell in cells} == {"crash"}


def test_another_interpreter_gets_our_packages_alone(run, tmp_path: Path):
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    cells = run.cells[:1]
    file = tmp_path / "one.safetensors"
    file.write_bytes(pack_cases(cells))
    recording = record(Job("nothing", "backends.no_such_backend", str(other)), file, cells)
    said = recording.status[key(cells[0])]
    assert said["status"] == "crash" and "No module named 'backends.no_such_backend'" in said["trace"]


def test_a_recording_survives_its_file(run, tmp_path: Path):
    _, recording = run("raise@valid_lens")
    path = tmp_path / "fake.safetensors"
    recording.save(path)
    again = Recording.load(path)
    assert again.status == recording.status and again.about == recording.about and again.backend == "fake"
    for cell, arrays in recording.cells.items():
        assert {name: array.tobytes() for name, array in again.cells[cell].items()} == {
            name: array.tobytes() for name, array in arrays.items()
        }
