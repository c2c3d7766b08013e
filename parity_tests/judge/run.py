"""A parity run: send cases to workers, and compare their recordings."""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from attention_core.operators import SPECIFICATION_VERSION
from parity_tests.format.call import TRAINING
from parity_tests.format.case import SEED, Arrays, Case, computed_in, is_floating
from parity_tests.format.expected import CONDITION, files, freeze_cache, gradients, in_memory, outputs
from parity_tests.format.selection import Cell
from parity_tests.judge.compare import judge, judge_all, judge_settings
from parity_tests.judge.condition import measure
from parity_tests.judge.divergences import Divergence, apply
from parity_tests.judge.question import Question, Questions
from parity_tests.judge.verdict import Explanation, Verdict
from parity_tests.workers.answers import Answer
from parity_tests.workers.environment import requirements_of
from parity_tests.workers.process import (
    PATIENCE_SECONDS,
    WAITING,
    Batches,
    Job,
    Progress,
    Stopped,
    record,
    report_cells,
    untold,
)
from parity_tests.workers.recordings import Batch, Recording, batch_of, join, own_version

Result = TypeVar("Result")

BATCH = 32
"""The approximate number of cells in a batch."""

MOST_ON_GPU = 4
"""The number of workers of a backend that share a GPU."""

MOST_REPEATED = 8
"""The number of cached cells whose expected values are recomputed, and that of red ones."""

Forgive = Callable[[Iterable[Verdict]], Iterable[Verdict]]
"""Changes the status of verdicts that are not required."""

Recorder = Callable[[Job, Batches, Progress], Recording]


@dataclass
class Run:
    """The outcome of a run: verdicts, recordings, missing backends and times."""

    cells: list[Cell]
    verdicts: list[Verdict] = field(default_factory=list)
    recordings: dict[str, Recording] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    dtypes: Sequence[str] = ()
    interrupted: bool = False
    command: str = ""
    """The command that repeats the run, without options that select cells; empty for `run`, which adds backends
    itself."""
    selects_cells: bool = True
    """Whether that command has options that select cells: `convert` validates a whole layer."""
    explanations: Sequence[Explanation] = ()
    drawn: Mapping[str, str] = field(default_factory=dict)
    """The line of each drawn case, by its id."""
    seed: int | None = None
    """The seed of drawn cases; None if their lines were passed."""
    of: int = 0
    """The number of all cells, of which these are a part; 0 if these are all."""
    questions: Questions = field(default_factory=Questions, repr=False)
    """The expected answers that the recordings were compared with."""

    @property
    def files(self) -> dict[str, Path]:
        """The source files of targets, by their paths relative to the target's folder."""
        return {name: Path(file) for one in self.recordings.values() for name, file in one.files.items()}

    @property
    def is_judged(self) -> bool:
        """Whether anything was compared: all selected cells may be missing."""
        return any(verdict.is_judged for verdict in self.verdicts)

    @property
    def red(self) -> list[Verdict]:
        """The verdicts that make the run fail."""
        return [verdict for verdict in self.verdicts if verdict.red]

    def as_json(self) -> dict[str, Any]:
        """The run as an object: a header, then one entry for each verdict. Two runs differ only in `times`."""
        header: dict[str, Any] = {
            "attention_parity": own_version(),
            "specification": SPECIFICATION_VERSION,
            "seed": SEED,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
            "dtypes": list(self.dtypes),
            "cells_left_out": max(0, self.of - len(self.cells)),
            "backends": {name: recording.about for name, recording in self.recordings.items()},
            "not_installed": self.missing,
            "interrupted": self.interrupted,
            "times": {name: round(seconds, 3) for name, seconds in self.seconds.items()},
        }
        if self.drawn:
            header["drawn"] = {"seed": self.seed, "lines": dict(self.drawn)}
        if self.explanations:
            header["looks_like"] = [asdict(explanation) for explanation in self.explanations]
        return {"header": header, "cells": [verdict.as_json() for verdict in self.verdicts]}


def workers_of(job: Job, workers: int) -> int:
    """The number of workers for a job's cells, given how many run at once; workers on a GPU share its memory."""
    needed = requirements_of(job.backend)
    count = max(1, workers // (needed.share or workers)) if needed else 1
    return count if job.device.startswith("cpu") else min(count, MOST_ON_GPU)


def batches_of(cells: Sequence[Cell]) -> Iterator[Batch]:
    """Yield the cells in batches; cells that share a program, in any dtype, or repeat each other stay together.

    The dtypes of the first program and of every other one come in reverse order, and repetitions behind all other cells
    of their batch: an answer may not depend on the dtype of the calls before.
    """
    programs: dict[str, list[Cell]] = {}
    for cell in cells:
        case = cell.case
        shapes = [(name, array.shape, array.dtype.name) for name, array in case.inputs.items()]
        program = repr((case.operator, case.method, case.config, case.options, shapes))
        programs.setdefault(program, []).append(cell)
    dtypes = list(dict.fromkeys(cell.dtype for cell in cells))
    batches: list[list[Cell]] = [[]]
    for number, alike in enumerate(programs.values()):
        if len(batches[-1]) >= BATCH:
            batches.append([])
        order = dtypes if number % 2 else dtypes[::-1]
        batches[-1] += sorted(alike, key=lambda cell: order.index(cell.dtype))
    for batch in filter(None, batches):
        yield batch_of(sorted(batch, key=lambda cell: bool(cell.case.again)))


def deal(batches: Sequence[Batch], count: int) -> list[Iterable[Batch]]:
    """Distribute the batches: each worker takes the next one when it is free."""
    queue: SimpleQueue[Batch | None] = SimpleQueue()
    for batch in [*batches, *[None] * count]:
        queue.put(batch)
    return [iter(queue.get, None) for _ in range(count)]


def run(
    cells: Sequence[Cell],
    jobs: Sequence[Job],
    *,
    workers: int = 0,
    missing: Mapping[str, str] | None = None,
    require_all: bool = False,
    divergences: Sequence[Divergence] = (),
    progress: Progress = untold,
    recorder: Recorder = record,
    stopped: Stopped = lambda: False,
) -> Run:
    """Compare every backend with the reference and with each other backend.

    workers is the number of concurrent workers (default: number of cores); only times depend on it. missing has
    unavailable backends with the reason; they are red under require_all. Once stopped() returns True, the cells
    recorded so far are compared; the recorder must check it, too. Raises: CacheError if the cache contained wrong
    expected values.
    """
    start = time.perf_counter()
    dtypes = list(dict.fromkeys(dtype for _, dtype in cells))
    outcome = Run(list(cells), missing=dict(missing or {}), dtypes=dtypes)
    workers = workers or os.cpu_count() or 1
    with freeze_cache() as read:
        batches = list(batches_of(cells))
        outcome.seconds["cases"] = time.perf_counter() - start
        with ThreadPoolExecutor(max_workers=workers) as pool:
            futures: dict[str, list[Future[tuple[Recording, float]]]] = {}
            # What has most workers comes last: as they share its cells, all are done at about the same time.
            ordered = sorted(jobs, key=lambda job: workers_of(job, workers))
            for job in ordered:
                progress(job.name, 0, len(cells), WAITING)
            for job in ordered:
                count = min(workers_of(job, workers), len(batches))
                reports = _sum_progress(progress, count, len(cells))
                futures[job.name] = [
                    pool.submit(record_timed, recorder, job, taken, reports[index])
                    for index, taken in enumerate(deal(batches, count))
                ]
            begun = time.perf_counter()
            questions, prepared = Questions(), list[Cell]()
            for cell in report_cells("reference", cells, progress):
                if stopped():
                    break
                questions.prepare(cell)
                prepared.append(cell)
            outcome.seconds["reference"] = time.perf_counter() - begun
            for job in jobs:
                recordings, seconds = zip(*(wait_for(future) for future in futures[job.name]), strict=True)
                outcome.recordings[job.name] = join(*recordings)
                outcome.seconds.update(split_seconds(outcome.recordings[job.name], job.name, sum(seconds)))
        outcome.interrupted = stopped()
        conclude(outcome, prepared, questions, read, divergences=divergences, progress=progress)
    if require_all:
        outcome.verdicts += [missing_verdict(name, reason) for name, reason in outcome.missing.items()]
    outcome.seconds["total"] = time.perf_counter() - start
    return outcome


def conclude(
    outcome: Run,
    cells: Sequence[Cell],
    questions: Questions,
    read: Mapping[Path, Arrays],
    *,
    frameworks: Mapping[str, str] | None = None,
    forgive: Forgive = list,
    divergences: Sequence[Divergence] = (),
    progress: Progress = untold,
) -> None:
    """Compare the recordings of a run: settings, every cell, and the cache; then apply known divergences.

    read has the cells read from the cache; frameworks the framework of each recording, which determines its settings;
    forgive changes verdicts that are not required. Raises: CacheError if the cache contained wrong expected values.
    """
    begun = time.perf_counter()
    outcome.questions = questions
    recordings, frameworks = list(outcome.recordings.values()), frameworks or {}
    verdicts = [verdict for one in recordings for verdict in judge_settings(one, frameworks.get(one.name, ""))]
    verdicts += judge_all(cells, recordings, questions, progress, partial=outcome.interrupted)
    if not outcome.interrupted:
        recheck(read, suspects(implemented_cells(cells, recordings), verdicts))
    outcome.verdicts = apply(forgive(verdicts), divergences, whole=not outcome.interrupted)
    outcome.seconds["comparison"] = time.perf_counter() - begun


def implemented_cells(cells: Iterable[Cell], recordings: Sequence[Recording]) -> list[Cell]:
    """The cells that at least one of the recordings implements."""
    return [
        cell for cell in cells if any(recording.answer(cell).status != "not-implemented" for recording in recordings)
    ]


def wait_for(future: Future[Result]) -> Result:
    """Wait for the result in short intervals, since a signal may arrive just before the main thread blocks."""
    while not wait([future], PATIENCE_SECONDS).done:
        pass
    return future.result()


def _sum_progress(progress: Progress, workers: int, of: int) -> list[Progress]:
    """Make a callback for each worker of a backend; they report the sum of the progress."""
    done = [0] * workers

    def report(index: int, backend: str, count: int, _: int, doing: str = "") -> None:
        done[index] = count
        progress(backend, sum(done), of, doing)

    return [partial(report, index) for index in range(workers)]


class CacheError(ValueError):
    """The cache contains values that differ from the reference."""


def suspects(cells: Sequence[Cell], verdicts: Iterable[Verdict]) -> list[Cell]:
    """Choose a few random cells, a few red ones, and a few that a condition made green.

    So no verdict is red or green because of the cache alone.
    """
    decided = {True: set[str](), False: set[str]()}
    for verdict in verdicts:
        if verdict.status == "fail" or verdict.condition is not None:
            decided[verdict.status == "fail"].add(f"{verdict.case}/{verdict.dtype}")
    return [cell for keys in decided.values() for cell in few([one for one in cells if one.key in keys])] + few(cells)


def few(cells: Sequence[Cell]) -> list[Cell]:
    """Choose a few cells by the system's random source, with at most one training, which is slow."""
    drawn = random.SystemRandom().sample(cells, len(cells))
    trained = [cell.key for cell in drawn if cell.case.operator == TRAINING]
    return [cell for cell in drawn if cell.key not in trained[1:]][:MOST_REPEATED]


def recheck(read: Mapping[Path, Arrays], cells: Iterable[Cell]) -> None:
    """Recompute the cached expected values of these cells.

    A target could write to the cache, and would then be compared with its own values. Raises: CacheError if they differ
    by more than the tolerance of float64.
    """
    with in_memory():
        for case, dtype in cells:
            for part, path in files(case, dtype).items():
                reason = _difference(case, dtype, part, read[path]) if path in read else ""
                if reason:
                    raise CacheError(
                        f"{path} differs from the reference for {case.id} in {dtype} ({reason}). Delete {path.parent} "
                        "and run again; other programs may have modified the cache."
                    )


def _difference(case: Case, dtype: str, part: str, cached: Arrays) -> str:
    """The first difference of a cached part of a cell from the reference; empty if there is none."""
    if part == CONDITION:
        measured = measure(case, computed_in(dtype))
        wrong = [name for name in {**measured, **cached} if not _agrees(measured.get(name), cached.get(name))]
        return f"condition {wrong[0]}" if wrong else ""
    compute = {"outputs": outputs, "gradients": gradients}[part]
    cached, computed = (
        {f"gradient_{name}": array for name, array in arrays.items()} if part == "gradients" else arrays
        for arrays in (cached, compute(case, dtype))
    )
    double, floating = Cell(case, "float64"), case.answer_dtype("float64")
    given = {name: array.astype(floating) if is_floating(array) else array for name, array in cached.items()}
    recording = Recording("cache", "cpu", cells={double.key: given}, answers={double.key: Answer()})
    return next((one.reason for one in judge(Question(double, given=computed), recording) if one.red), "")


def _agrees(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """Whether two measured arrays agree; their last digits depend on the machine."""
    return first is not None and second is not None and np.allclose(first, second, rtol=1e-3)


def missing_verdict(name: str, reason: str, operator: str = "*") -> Verdict:
    """Make a red verdict on a backend that was required and did not run."""
    return Verdict(operator, "*", name, "reference", "", "*", "*", "missing", reason=reason)


def record_timed(recorder: Recorder, job: Job, batches: Batches, progress: Progress) -> tuple[Recording, float]:
    """The recording of a job, and its seconds."""
    start = time.perf_counter()
    return recorder(job, batches, progress), time.perf_counter() - start


def split_seconds(recording: Recording, backend: str, seconds: float) -> dict[str, float]:
    """The time of a backend's workers: cold start, compilation, and computation."""
    compiled = sum(answer.compile_seconds for answer in recording.answers.values())
    parts = {"start": recording.start_seconds, "compile": compiled}
    parts["cells"] = (recording.busy_seconds or seconds) - sum(parts.values())
    return {f"{backend} {name}": part for name, part in parts.items() if part or name == "cells"}
