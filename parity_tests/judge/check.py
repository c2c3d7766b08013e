"""Test a target against the specification: compare what it implements, and report what is missing."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from operator import add
from pathlib import Path

import backends as registry
from parity_tests.format.case import Case
from parity_tests.format.expected import freeze_cache, in_memory
from parity_tests.format.families import OPERATORS
from parity_tests.format.selection import Cell, cells_of
from parity_tests.judge.compare import excuse_missing
from parity_tests.judge.condition import Judged
from parity_tests.judge.divergences import Divergence, load_divergences
from parity_tests.judge.question import Questions
from parity_tests.judge.run import Recorder, Run, batches_of, conclude, implemented_cells, record_timed, split_seconds
from parity_tests.judge.verdict import Verdict
from parity_tests.workers.answers import Answer
from parity_tests.workers.process import (
    Batches,
    Job,
    Progress,
    Stopped,
    WorkerFault,
    implemented_by,
    record,
    rename_progress,
    untold,
)
from parity_tests.workers.recordings import Batch, Recording, join
from parity_tests.workers.target import function_name, split_location

OURS = "parity_tests.third_party.attention"
KNOWN = Path(__file__).parents[1] / "third_party" / "attention"
"""The package of bundled targets, and the folder of their known divergences."""


def job_of(target: str, python: str | None, device: str, folder: Path) -> Job:
    """Make the job of a target: the name of an installed backend, module, module:object, file.py or file.py:object.

    Modules are also searched for in the folder, as by `python -m`.
    """
    known = registry.available()
    if target in known:
        return Job(target, known[target].module, python or sys.executable, device)
    place, path = split_location(target)
    if place.endswith(".py"):
        place = str((folder / place).resolve())
    where = f"{place}:{path}" if path else place
    return Job(name_of(target), where, python or sys.executable, device, paths=(str(folder),))


def file_of(target: str) -> str | None:
    """The file of a target, if it is one."""
    place, _ = split_location(target)
    return place if place.endswith(".py") else None


def name_of(target: str) -> str:
    """A short name for tables: the name of the object, file or module."""
    place, path = split_location(target)
    last = path or (Path(place).stem if place.endswith(".py") else place)
    return re.sub(r"[^\w.-]", "_", last)[-40:].lstrip(".-") or "target"


def known_divergences(target: str, backend: str, file: str | None) -> list[Divergence]:
    """The known divergences of a target: those in a file, or those of a bundled target.

    backend is the name of the target in verdicts. Raises: DivergenceError if the file is invalid.
    """
    package, _, module = split_location(target)[0].rpartition(".")
    kept = KNOWN / f"{module}.toml"
    if file is None and package == OURS and kept.is_file():
        file = str(kept)
    return load_divergences(Path(file), backend) if file else []


def check(
    cases: Sequence[Case],
    dtypes: Sequence[str],
    jobs: Sequence[Job],
    *,
    drawn: Callable[[Recording], Mapping[str, Judged]] = lambda recording: {},
    require_all: bool = False,
    divergences: Sequence[Divergence] = (),
    progress: Progress = untold,
    recorder: Recorder = record,
    stopped: Stopped = lambda: False,
) -> Run:
    """Compare what a target implements with the reference; missing functions are red only under require_all.

    jobs are those of one target, several if it runs with several versions of its framework. drawn returns the drawn
    cases by cell that a recording's target implements, after the others have been answered. Without cells there is no
    recording. Files of the cache that changed since the target started are not read. Once stopped() returns True, the
    cells recorded so far are compared; the recorder must check it, too. Raises: WorkerFault if it cannot be started;
    CacheError if the cache contained wrong expected values.
    """
    start = time.perf_counter()
    cells = cells_of(cases, dtypes)
    outcome = Run(cells, dtypes=dtypes)
    with freeze_cache() as read:
        outcome.seconds["cases"] = time.perf_counter() - start
        recordings, seconds = _record(jobs, recorder, partial(_batches_with, cells), progress)
        for recording in recordings:
            _answer_rest(recording, cells)
        more: dict[str, Judged] = {}
        if (all(recording.about for recording in recordings) or not cells) and not stopped():
            begun = time.perf_counter()
            with in_memory():
                for recording in recordings:
                    more |= drawn(recording)
                batches = list(batches_of([judged.cell for judged in more.values()]))
            outcome.seconds["cases"] += time.perf_counter() - begun
            outcome.drawn = {judged.case.id: repr(judged.drawn) for judged in more.values()}
        if more:
            others, more_seconds = _record(jobs, recorder, batches, rename_progress("drawn", progress))
            recordings = list(map(join, recordings, others))
            seconds = list(map(add, seconds, more_seconds))
            cells = sorted(
                [*cells, *(judged.cell for judged in more.values())],
                key=lambda cell: (dtypes.index(cell.dtype), OPERATORS.index(cell.case.operator)),
            )
        if not cells:
            return outcome
        outcome.interrupted = stopped()
        for job, recording, taken in zip(jobs, recordings, seconds, strict=True):
            outcome.seconds.update(split_seconds(recording, job.name, taken))
            outcome.recordings[job.name] = recording
            if not recording.about and not outcome.interrupted:
                fault = next(iter(recording.answers.values()))
                raise WorkerFault(fault.status, fault.message, fault.trace)
        conclude(
            outcome,
            cells,
            Questions(),
            read,
            forgive=partial(apply_requirements, require_all=require_all, registered=is_registered(jobs[0])),
            divergences=divergences,
            progress=progress,
        )
        outcome.cells = implemented_cells(cells, recordings)
    outcome.seconds["total"] = time.perf_counter() - start
    return outcome


def _batches_with(cells: Sequence[Cell], implemented: Collection[str] | None) -> Iterator[Batch]:
    """Yield the cells in batches, without those whose functions a target lacks."""
    return batches_of([cell for cell in cells if implemented is None or function_of(cell) in implemented])


def _answer_rest(recording: Recording, cells: Sequence[Cell]) -> None:
    """Add the answers to the cells that were not sent, since the target has no function for them."""
    implemented = implemented_by(recording.about)
    for cell in cells:
        if implemented is not None and function_of(cell) not in implemented:
            recording.answers[cell.key] = Answer("not-implemented", f"there is no {function_of(cell)}")


def function_of(cell: Cell) -> str:
    """The name of the function for a cell."""
    return function_name(cell.case.operator, cell.case.method)


def _record(
    jobs: Sequence[Job], recorder: Recorder, batches: Batches, progress: Progress
) -> tuple[list[Recording], list[float]]:
    """The recording of each job, and its seconds; several jobs run at once."""

    def one(job: Job) -> tuple[Recording, float]:
        return record_timed(recorder, job, batches, progress)

    with ThreadPoolExecutor(len(jobs)) as pool:
        # One job stays in this thread, which an exception in it, such as that of Ctrl-C, then ends.
        answers = list(map(one, jobs) if len(jobs) == 1 else pool.map(one, jobs))
    return [recording for recording, _ in answers], [seconds for _, seconds in answers]


def is_registered(job: Job) -> bool:
    """Whether a job runs a registered backend, which may declare what its framework does not support."""
    known = registry.available().get(job.backend)
    return known is not None and known.module == job.module


def apply_requirements(verdicts: Iterable[Verdict], require_all: bool, registered: bool = False) -> Iterator[Verdict]:
    """Yield the verdicts, with missing functions as not implemented unless all are required.

    If all are required, cells that an unregistered implementation declares unsupported are missing, too.
    """
    if not require_all:
        yield from excuse_missing(verdicts)
    elif registered:
        yield from verdicts
    else:
        yield from (replace(one, status="missing") if one.status == "not-applicable" else one for one in verdicts)
