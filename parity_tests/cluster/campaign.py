"""A campaign of fuzzing on a cluster: which ranges each column still has to run, and the file that remembers them."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, BinaryIO

from backends.archives import ArchiveError
from backends.schema import SchemaError, build, clean
from parity_tests.cluster import worker
from parity_tests.cluster.client import Cluster, Key
from parity_tests.cluster.pieces import Failure
from parity_tests.cluster.ranges import RANGE, Counts, RangePiece, counts_in
from parity_tests.fuzz.campaign import Campaign, Finding
from parity_tests.workers.process import PATIENCE_SECONDS, Job, Progress, untold

Interval = tuple[int, int]
"""The first number of a range, and the one after its last."""


def pending(done: Iterable[Interval], first: int, last: int) -> Iterator[Interval]:
    """The ranges from first up to last that are not done; they begin at multiples of RANGE where they can."""
    number = first
    for start, end in [*sorted(done), (last, last)]:
        while number < min(start, last):
            stop = min(start, last, (number // RANGE + 1) * RANGE)
            yield number, stop
            number = stop
        number = max(number, end)


class LogError(ValueError):
    """A file is not that of this campaign."""


class Log:
    """The file of a campaign: a header, then a line for each range of a column that is done; nothing without a file.

    A line is written at once and is on the disk before the next range is counted; half a line, of a client that was
    killed meanwhile, is dropped, and its range run again. Raises: LogError if the file is of another campaign, or
    another client writes to it.
    """

    def __init__(self, path: Path | None, campaign: Campaign) -> None:
        self.path = path
        self.entries: list[tuple[Key, Counts]] = []
        self.seconds = 0.0
        """The seconds that the campaign has taken so far, over all calls."""
        self._file: BinaryIO | None = None
        if path is None:
            return
        header = {
            "kind": "campaign",
            "source": worker.source(),
            "seed": campaign.seed,
            "operators": list(campaign.operators),
            "dtypes": list(campaign.dtypes),
        }
        self._file = open(path, "a+b")  # noqa: SIM115  # closed with the context
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read(self._file, header)
        except OSError as error:
            self._file.close()
            raise LogError(f"{path} is in use by another campaign: wait for it, or name another file") from error
        except LogError:
            self._file.close()
            raise

    def _read(self, file: BinaryIO, header: dict[str, object]) -> None:
        file.seek(0)
        content = file.read()
        *lines, torn = content.split(b"\n")
        if torn:
            file.truncate(len(content) - len(torn))
        if not lines:
            self._write(header)
            return
        first, *rest = (self._parse(number, line) for number, line in enumerate(lines, 1))
        for name, value in header.items():
            if first.get(name) != value:
                raise LogError(
                    f"{self.path}: {name} is {clean(first.get(name))}, expected {clean(value)}: name another file, or "
                    "continue that campaign with its own options"
                )
        for number, entry in enumerate(rest, 2):
            try:
                column = build(tuple[str, str, str], entry.get("column"), "column")
                self.seconds = build(float, entry.get("seconds"), "seconds")
                self.entries.append((column, counts_in(entry.get("counts"), f"{self.path}, line {number}")))
            except (SchemaError, ArchiveError) as error:
                raise LogError(f"{self.path}, line {number}: {error}") from error

    def _parse(self, number: int, line: bytes) -> dict[str, Any]:
        try:
            entry: dict[str, Any] = build(dict[str, Any], json.loads(line))
            return entry
        except ValueError as error:
            raise LogError(f"{self.path}, line {number}: {error}; expected the file of a campaign") from error

    def _write(self, entry: dict[str, object]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def add(self, column: Key, counts: Counts, seconds: float) -> None:
        """Remember a range that is done."""
        self.entries.append((column, counts))
        self._write({"column": list(column), "seconds": round(seconds, 3), "counts": counts.as_json()})

    def intervals(self, column: Key) -> list[Interval]:
        """The ranges of a column that are done."""
        return [(counts.first, counts.first + counts.count) for key, counts in self.entries if key == column]

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            self._file.close()


ENDLESS = 2**62
"""The number after the last one of a campaign that time alone limits."""


class ClusterCampaign:
    """A campaign on every column of a cluster, and the ranges in a log that need not be run again.

    not_done describes the ranges that failed without being at fault; a later call runs them.
    """

    def __init__(self, cluster: Cluster, campaign: Campaign, log: Log) -> None:
        self.cluster = cluster
        self.campaign = campaign
        self.log = log
        self.not_done: list[str] = []
        self._columns = {column.job.name: key for key, column in cluster.columns.items()}
        self._results: SimpleQueue[tuple[Job, RangePiece, Counts | Failure]] = SimpleQueue()

    def run(
        self, seconds: float | None = None, examples: int | None = None, progress: Progress = untold
    ) -> Iterator[Finding]:
        """Run the ranges of the next examples, or until the time is over, and yield each finding of a new kind."""
        begun, before = time.monotonic(), self.log.seconds
        deadline = None if seconds is None else begun + seconds
        last = ENDLESS if examples is None else self.campaign.first + examples
        names = {key: name for name, key in self._columns.items()}
        for key, counts in self.log.entries:
            yield from counts.add_to(self.campaign, names.get(key, " ".join(key)), key[1])
        self._count(before)
        jobs = self.cluster.jobs
        with ThreadPoolExecutor(len(jobs)) as pool:
            futures = [pool.submit(self._column, job, last, deadline) for job in jobs]
            while not (all(future.done() for future in futures) and self._results.empty()):
                done = sum(self._finished_cases(key) for key in names)
                words = f"{len(self.campaign.findings)} findings"
                progress("fuzz", done, max(done + 1, 0 if examples is None else examples * len(jobs)), words)
                try:
                    job, piece, outcome = self._results.get(timeout=PATIENCE_SECONDS)
                except Empty:
                    continue
                elapsed = before + time.monotonic() - begun
                if isinstance(outcome, Failure) and outcome.deadly:
                    outcome = piece.with_failure(outcome)
                if isinstance(outcome, Failure):
                    numbers = f"{piece.first} to {piece.first + piece.count - 1}"
                    self.not_done.append(f"{job.name}, numbers {numbers}: {outcome.message}")
                    continue
                key = self._columns[job.name]
                self.log.add(key, outcome, elapsed)
                yield from outcome.add_to(self.campaign, job.name, job.version)
                self._count(elapsed)
            for future in futures:
                future.result()
        done = sum(self._finished_cases(key) for key in names)
        progress("fuzz", done, done)

    def _finished_cases(self, column: Key) -> int:
        return sum(end - start for start, end in self.log.intervals(column))

    def _count(self, seconds: float) -> None:
        self.campaign.seconds = seconds
        self.campaign.done = max((self._finished_cases(key) for key in self._columns.values()), default=0)

    def _column(self, job: Job, last: int, deadline: float | None) -> None:
        """Run the ranges of a column, and put each with its outcome into the results."""
        for piece, outcome in self.cluster.work(job, self._pieces(job, last, deadline)):
            assert isinstance(piece, RangePiece)
            self._results.put((job, piece, outcome))

    def _pieces(self, job: Job, last: int, deadline: float | None) -> Iterator[RangePiece]:
        campaign, order = self.campaign, self.cluster.order(job, every=False)
        for start, stop in pending(self.log.intervals(self._columns[job.name]), campaign.first, last):
            if deadline is not None and time.monotonic() >= deadline:
                return
            kinds = {(job.backend, *kind[1:]) for kind in list(campaign.findings) if kind[0] == job.name}
            where = order, start, stop - start, campaign.seed
            yield RangePiece(*where, campaign.operators, campaign.dtypes, frozenset(kinds))
