"""Faults of workers: which cells fail, and how they are reported. Each test starts real processes."""

from __future__ import annotations

import re
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from parity_tests.cases.suite import all_cases
from parity_tests.format.selection import cells_of
from parity_tests.judge.compare import judge
from parity_tests.judge.question import Question
from parity_tests.workers.process import KEPT_BYTES, MOST_RESTARTS, Job, record
from parity_tests.workers.recordings import Recording, batch_of

pytestmark = pytest.mark.once

CASES = ("dot_score-plain", "masked_softmax-ragged", "dot_score-heads", "scaled_dot_score-scale")
FAULTY = 1
"""The position of the only case that has an argument named valid_lens, where the fault is."""

KILLED = "the worker was killed by "
SILENT = "the worker exceeded its time limit"
HALF = r"after [\d,]+ of [\d,]+ bytes"


@dataclass(frozen=True)
class Fault:
    """A fault of a backend in one cell, and the expected report of that cell.

    message and trace are patterns of what the recording says; verdicts are the judge's, by quantity, each with a
    pattern of its reason. None stands for an answer that is judged green.
    """

    name: str
    status: str
    message: str = ""
    trace: str = ""
    verdicts: dict[str, tuple[str, str]] | None = None
    limits: dict[str, float] = field(default_factory=dict)


QUICK = {"cell_seconds": 1.5}

FAULTS = (
    Fault("SIGSEGV", "crash", KILLED + "SIGSEGV", "Fatal Python error: Segmentation fault.*faults.py"),
    Fault("SIGKILL", "crash", KILLED + "SIGKILL, possibly because it ran out of memory"),
    Fault("SIGABRT", "crash", KILLED + "SIGABRT", "Fatal Python error: Aborted"),
    Fault("SIGBUS", "crash", KILLED + "SIGBUS", "Fatal Python error: Bus error"),
    Fault("SIGTERM", "crash", KILLED + "SIGTERM"),
    Fault("SIGRTMIN+3", "crash", KILLED + f"signal {signal.SIGRTMIN + 3}"),
    Fault("leave-a-child", "crash", KILLED + "SIGSEGV"),
    Fault("exit-0", "crash", "the worker ended with exit code 0"),
    Fault("exit", "crash", "the worker ended with exit code 3"),
    Fault(
        "print-without-end",
        "crash",
        "the worker ended with exit code 3; its last line of output: the last words",
        "x{3900}.*the last words",
    ),
    Fault("raise", "error", "ValueError: this backend was told to raise", "Traceback.*in vjp"),
    Fault("SystemExit", "error", "SystemExit: 0", "Traceback"),
    Fault("KeyboardInterrupt", "error", "KeyboardInterrupt: ", "Traceback"),
    Fault("recursion", "error", "RecursionError: maximum recursion depth exceeded.*", "in recurse"),
    Fault("memory", "error", r"\w*MemoryError: Unable to allocate 32.0 GiB.*", "in exhaust_memory"),
    Fault("hang", "timeout", SILENT + ", and was killed", limits=QUICK),
    Fault("compute-forever", "timeout", SILENT + ", and was killed", limits=QUICK),
    Fault("hang-with-child", "timeout", SILENT + ", and was killed", limits=QUICK),
    Fault("in-a-session", "timeout", SILENT + ", and was killed", limits=QUICK),
    Fault("half-and-hang", "timeout", f"{SILENT}, {HALF}, and was killed", limits=QUICK),
    Fault("half-and-end", "crash", f"the worker ended with exit code 3, {HALF}"),
    Fault("rubbish", "error", "the worker sent an invalid frame of length 18,446,744,073.*"),
    Fault("giant", "error", "the worker sent an invalid frame of length 1,099,511,627,776"),
    Fault("damaged", "error", "the worker sent a damaged frame: .* does not match its digest.*"),
    Fault("other-cell", "error", "the worker answered 'dot_score-large/float64' out of order"),
    Fault("twice", "error", "the worker answered this cell twice"),
    Fault("close", "error", "the worker closed its stream, and was killed"),
    Fault("no-array", "error", r"TypeError: weights is <U\d+, expected an array of numbers"),
    Fault("nothing", "error", "TypeError: weights is object, expected an array of numbers"),
    Fault("print", "ok"),
    Fault("wrong-shape", "ok", verdicts={"weights": ("fail", r"weights has shape .*, expected .*")}),
    Fault("one-number", "ok", verdicts={"weights": ("fail", r"weights has shape \(\), expected .*")}),
    Fault("wrong-dtype", "ok", verdicts={"weights": ("fail", "weights is float32, expected float64")}),
    Fault("integers", "ok", verdicts={"weights": ("fail", "weights is int64, expected float64")}),
    Fault("nan", "ok", verdicts={"weights": ("fail", r"weights\[0, 0, 0\] is nan, expected .*")}),
    Fault("no-outputs", "ok", verdicts={"weights": ("missing", "the backend did not return this quantity")}),
    Fault("no-gradients", "ok", verdicts={"gradient_scores": ("missing", "the backend did not return this quantity")}),
    Fault("too-many-outputs", "ok", verdicts={"output_1": ("fail", "the specification does not have this quantity")}),
    Fault(
        "too-many-gradients",
        "ok",
        verdicts={"gradient_valid_lens": ("fail", "the specification does not have this quantity")},
    ),
)


@pytest.fixture
def run(fake_job):
    """Run four short cells, the second of which is the one whose inputs hold lengths."""
    cases = [next(iter(all_cases().select(name))) for name in CASES]
    cells = cells_of(cases, ["float64"])
    batch = batch_of(cells)

    def record_with(fault: str = "", **limits) -> tuple[list[str], Recording]:
        recording = record(fake_job(fault), [batch], **limits)
        return [recording.answers[cell.key].status for cell in cells], recording

    record_with.cells = cells
    record_with.batch = batch
    return record_with


def test_a_healthy_worker_answers_every_cell(run):
    statuses, recording = run()
    assert statuses == ["ok"] * 4
    assert recording.about["framework"] == "NumPy" and recording.about["versions"]["numpy"]
    assert set(recording.cells) == {cell.key for cell in run.cells}
    assert all(answer.changed == () for answer in recording.answers.values())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_reported_as_its_kind_in_its_own_cell_only(
    run, running, monkeypatch: pytest.MonkeyPatch, fault: Fault
):
    monkeypatch.setattr("parity_tests.workers.process.GRACE_SECONDS", 1.0)
    statuses, recording = run(f"{fault.name}@valid_lens", **fault.limits)
    assert statuses == ["ok", fault.status, "ok", "ok"]
    faulty = run.cells[FAULTY]
    answer = recording.answers[faulty.key]
    assert re.fullmatch(fault.message, answer.message)
    assert re.search(fault.trace, answer.trace, re.DOTALL) and len(answer.trace) <= KEPT_BYTES
    for cell in run.cells:
        verdicts = list(judge(Question(cell), recording))
        wanted = dict.fromkeys((verdict.quantity for verdict in verdicts), ("pass", ""))
        if cell is faulty:
            wanted |= {"*": (fault.status, fault.message)} if fault.status != "ok" else fault.verdicts or {}
        assert {verdict.quantity: verdict.status for verdict in verdicts} == {
            quantity: status for quantity, (status, _) in wanted.items()
        }
        for verdict in verdicts:
            assert verdict.status == "pass" or re.fullmatch(wanted[verdict.quantity][1], verdict.reason)
    assert running(0) == []


def test_a_changed_argument_is_named(run):
    statuses, recording = run("change-argument@valid_lens")
    assert statuses == ["ok"] * 4
    changed = [recording.answers[cell.key].changed for cell in run.cells]
    assert changed == [(), ("scores",), (), ()]


@pytest.mark.parametrize(
    ("fault", "device", "status", "message"),
    [
        ("import", "cpu", "crash", "exit code 1; its last line of output: ImportError: this backend was told not to"),
        ("", "cuda", "crash", "RuntimeError: NumPy has no device 'cuda' here; available: cpu"),
        ("hang", "cpu", "timeout", SILENT),
        ("no-hello", "cpu", "error", "the worker's first frame is 'end', expected hello"),
    ],
)
def test_all_cells_of_a_worker_that_cannot_start_fail(
    run, fake_job, fault: str, device: str, status: str, message: str
):
    job = fake_job(fault)
    job = Job(job.backend, job.module, device=device, variables=job.variables)
    recording = record(job, [run.batch], start_seconds=1.5 if fault == "hang" else 60.0)
    for cell in run.cells:
        assert recording.answers[cell.key].status == status
        assert message in recording.answers[cell.key].message


def test_an_invalid_interpreter_is_reported(run, tmp_path: Path):
    nothing = tmp_path / "python"
    nothing.write_text("no program")
    recording = record(Job("fake", "numpy_backend", str(nothing)), [run.batch])
    assert {answer.message for answer in recording.answers.values()} == {
        f"fake cannot start: {nothing} cannot be started: Permission denied"
    }


def test_a_worker_that_always_dies_is_abandoned(fake_job):
    cells = cells_of(all_cases().select(operators=["dot_score"]), ["float64"])
    recording = record(fake_job("exit@queries"), [batch_of(cells[:3]), batch_of(cells[3:])])
    answers = [recording.answers[cell.key] for cell in cells]
    assert {answer.status for answer in answers} == {"crash"}
    tried = MOST_RESTARTS + 1
    assert len(cells) > tried
    assert {answer.message for answer in answers[:tried]} == {"the worker ended with exit code 3"}
    assert {answer.message for answer in answers[tried:]} == {f"not run: the worker had died {tried} times"}


def test_another_interpreter_gets_our_packages_alone(run, tmp_path: Path):
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    recording = record(Job("nothing", "backends.no_such_backend", str(other)), [run.batch])
    answer = recording.answers[run.cells[0].key]
    assert answer.status == "crash" and "No module named 'backends.no_such_backend'" in answer.trace


def test_a_recording_survives_its_file(run, tmp_path: Path):
    _, recording = run("raise@valid_lens")
    path = tmp_path / "fake.safetensors"
    recording.save(path)
    again = Recording.load(path)
    assert again.answers == recording.answers and again.about == recording.about and again.backend == "fake"
    for cell, arrays in recording.cells.items():
        assert {name: array.tobytes() for name, array in again.cells[cell].items()} == {
            name: array.tobytes() for name, array in arrays.items()
        }
