"""Compare two targets with each other: tolerances are those of the specification, expected values are the second's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from parity_tests.format.case import Case, is_floating
from parity_tests.format.expected import freeze_cache
from parity_tests.format.selection import Cell, cells_of
from parity_tests.judge.compare import compare
from parity_tests.judge.question import Question
from parity_tests.judge.run import Run, split_seconds
from parity_tests.judge.verdict import Verdict
from parity_tests.workers.answers import is_gradient
from parity_tests.workers.process import Job, Progress, Stopped, WorkerFault, record, untold
from parity_tests.workers.recordings import Recording, batch_of


def check_against(
    cases: Sequence[Case],
    dtypes: Sequence[str],
    jobs: tuple[Job, Job],
    *,
    progress: Progress = untold,
    stopped: Stopped = lambda: False,
) -> Run:
    """Compare the answers of two targets, wherever both implement the case.

    Errors are in eps of the second one's largest entry. Raises: WorkerFault if one cannot be started.
    """
    start = time.perf_counter()
    cells = cells_of(cases, dtypes)
    outcome = Run(cells, dtypes=dtypes)
    if not cells:
        return outcome
    with freeze_cache():
        batch = batch_of(cells)
    first, second = jobs
    second = replace(second, backend=f"{second.backend}_2") if second.name == first.name else second
    for job in (first, second):
        begun = time.perf_counter()
        recording = record(job, [batch], progress, stopped=stopped)
        outcome.recordings[job.name] = recording
        outcome.seconds.update(split_seconds(recording, job.name, time.perf_counter() - begun))
        outcome.interrupted = stopped()
        if not recording.about and not outcome.interrupted:
            fault = next(iter(recording.answers.values()))
            raise WorkerFault(fault.status, fault.message, fault.trace)
    if not outcome.interrupted:
        pair = outcome.recordings[first.name], outcome.recordings[second.name]
        outcome.verdicts = [verdict for cell in cells for verdict in _differences(cell, *pair)]
        judged = {f"{verdict.case}/{verdict.dtype}" for verdict in outcome.verdicts if verdict.is_judged}
        outcome.cells = [cell for cell in cells if cell.key in judged]
    outcome.seconds["total"] = time.perf_counter() - start
    return outcome


def _differences(cell: Cell, first: Recording, second: Recording) -> Iterator[Verdict]:
    """Yield a verdict for each quantity that both return, one for each target that lacks the case, or else fails."""
    case, dtype = cell
    blank = Verdict(case.operator, case.id, first.backend, second.name, first.device, dtype, "*", "error")
    answers = first.answer(cell), second.answer(cell)
    absent = any(answer.status == "not-implemented" for answer in answers)
    for answer, one, other in zip(answers, (first, second), (second, first), strict=True):
        if answer.status != "ok" and (answer.status == "not-implemented" or not absent):
            place = replace(blank, backend=one.backend, device=one.device, against=other.name)
            yield replace(place, status=answer.status, reason=answer.message)
    if not all(answer.ok for answer in answers):
        return
    # Gradients are those of the outputs that a target returns.
    alike = answers[0].withheld == answers[1].withheld
    actual, expected = first.cells[cell.key], second.cells[cell.key]
    for name, quantity in Question(cell, answers[1].withheld).quantities.items():
        if name in actual and name in expected and (alike or not is_gradient(name)):
            beside = None if quantity.beside is None else expected.get(quantity.tolerance.beside_of(name))
            given = replace(quantity, reference=_wide(expected[name]), beside=None if beside is None else _wide(beside))
            yield compare(blank, replace(given, stored=(expected[name].dtype.name,)), actual[name], expected[name])


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if is_floating(array) else array
