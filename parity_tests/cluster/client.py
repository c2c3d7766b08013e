"""The client of a Dask scheduler: what its workers can run, as columns, and work for them (`Crew`)."""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from backends import FRAMEWORKS
from backends.requirements import XLA_LEVEL
from parity_tests.cluster import worker
from parity_tests.cluster.crew import Column, Crew
from parity_tests.cluster.pieces import BatchPiece, Failure, Piece, Result
from parity_tests.cluster.worker import Offers, Order
from parity_tests.workers.environment import PATH
from parity_tests.workers.process import PATIENCE_SECONDS, Batches, Job, Progress, Stopped, untold
from parity_tests.workers.recordings import Recording, join

CONNECT_SECONDS = 20
ASK_SECONDS = 180.0
"""Seconds within which a worker says what it can run: a target is imported for that."""
REFRESH_SECONDS = 1.0
"""Seconds between two looks at which workers there are."""
WITHOUT_SCHEDULER = (OSError, TimeoutError, AttributeError)
"""What a client of Dask raises once its scheduler is gone."""

Key = tuple[str, str, str]
"""A column: backend, version and device."""


class ClusterError(Exception):
    """The cluster cannot be reached, or none of its workers can do what is needed."""


class Cluster:
    """The workers of a scheduler for one session; leaving the context ends what the session runs there.

    ask is the function that each worker is asked once, with its arguments; it returns Offers. Once stopped() returns
    True, workers are interrupted, and return what they have. Raises: ClusterError if there is no scheduler, or if no
    worker offers anything.
    """

    def __init__(
        self, address: str, ask: tuple[Callable[..., Offers], tuple[Any, ...]], stopped: Stopped = lambda: False
    ) -> None:
        self.address = address
        self.stopped = stopped
        self.session = uuid.uuid4().hex
        self.columns: dict[Key, Column] = {}
        self.reasons: dict[str, str] = {}
        """Why something is not offered, by its name, or by the address of a worker of which nothing can be used."""
        self._ask = ask
        self._client = connect(address)
        self._lock = threading.RLock()
        self._known: set[str] = set()
        self._asked: dict[str, Any] = {}
        self._alive: set[str] = set()
        self._looked = -REFRESH_SECONDS
        self._owners: dict[str, object] = {}
        self._opened = False
        self._interrupted = False
        try:
            self._open()
        except BaseException:
            self._client.close()
            raise

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()
        self._client.close()

    # -------------------------------------------------------------------------------------------- columns

    def _open(self) -> None:
        """Ask all workers, and give the columns their names."""
        deadline = time.monotonic() + ASK_SECONDS
        self._refresh()
        while self._asked and time.monotonic() < deadline and not self.stopped():
            time.sleep(PATIENCE_SECONDS / 10)
            self._collect()
        for address in self._asked:
            self.reasons[address] = f"no answer within {ASK_SECONDS:.0f} s"
        if not self.columns:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.reasons.items())
            reasons = reasons or "it has none; start one with dask worker"
            raise ClusterError(f"no worker of {self.address} can run this: {reasons}")
        versions: dict[str, set[str]] = {}
        for backend, version, _ in self.columns:
            versions.setdefault(backend, set()).add(version)
        for (backend, version, _), column in self.columns.items():
            column.job = replace(column.job, version=version if len(versions[backend]) > 1 else "")
        order = {name: position for position, name in enumerate(FRAMEWORKS)}
        ranked = sorted(self.columns, key=lambda key: (order.get(key[0], len(order)), *_rank(key)))
        self.columns = {key: self.columns[key] for key in ranked}
        self._opened = True

    @property
    def jobs(self) -> list[Job]:
        """A job for each column, whose version is set if there are several of its backend."""
        return [column.job for column in self.columns.values()]

    def addresses(self, job: Job) -> set[str]:
        """The workers of a column that are there now."""
        self._refresh()
        with self._lock:
            column = self.column(job)
            return (column.addresses & self._alive) - column.unable.keys()

    def column(self, job: Job) -> Column:
        """The column that a job fills."""
        return next(column for column in self.columns.values() if column.job.name == job.name)

    def _refresh(self) -> None:
        """Look which workers there are, and ask new ones: a worker that was restarted has a new address."""
        with self._lock:
            if time.monotonic() < self._looked + REFRESH_SECONDS:
                return
            try:
                self._alive = set(self._client.nthreads())
            except WITHOUT_SCHEDULER:  # Dask goes on trying to reach it
                self._alive = set()
            self._looked = time.monotonic()
            call, arguments = self._ask
            for address in self._alive - self._known:
                self._known.add(address)
                self._asked[address] = self.submit(address, call, arguments)
            self._collect()

    def _collect(self) -> None:
        """Read what workers have answered."""
        with self._lock:
            for address, future in list(self._asked.items()):
                if address in self._alive and not future.done():
                    continue
                del self._asked[address]
                if future.status == "finished":
                    self._join(address, future.result())
                elif future.status == "error":
                    error = future.exception()
                    advice = "; start it with attention-parity in its path" if isinstance(error, ImportError) else ""
                    self.reasons[address] = f"{type(error).__name__}: {error}{advice}"

    def _join(self, address: str, offers: Offers) -> None:
        if offers.source != worker.source():
            there, here = (digest[:12] for digest in (offers.source, worker.source()))
            self.reasons[address] = (
                f"its source of attention-parity has the digest {there}, expected {here}: install the same there"
            )
            return
        self.reasons |= {name: reason for name, reason in offers.reasons.items() if name not in self.reasons}
        for offer in offers.offers:
            key = offer.job.backend, offer.job.version, offer.job.device
            if not self._opened:
                self.columns.setdefault(key, Column(offer.job, offer.about))
            if key in self.columns:  # a column that comes later is not part of the run
                self.columns[key].addresses.add(address)

    # -------------------------------------------------------------------------------------------- work

    def submit(self, address: str, call: Callable, arguments: tuple[Any, ...]) -> Any:
        """The future of a call on one worker."""
        return self._client.submit(call, *arguments, workers=[address], allow_other_workers=False, pure=False)

    def order(self, job: Job, every: bool = True) -> Order:
        """The order of a job in this session, with the variables that change its arithmetic."""
        chosen = {name: os.environ[name] for name in (PATH, XLA_LEVEL) if name in os.environ}
        return Order(self.session, job, chosen, every)

    def record(self, job: Job, batches: Batches, progress: Progress = untold) -> Recording:
        """Run every cell of the batches on the workers of a column, as `workers.process.record` does on one.

        A batch whose worker is lost goes to another one. If it is lost again, each of its cells is sent alone, and what
        loses its worker twice is a crash. What arrives damaged twice is an error.
        """
        order = self.order(job)
        whole = Recording(job.backend, job.device, version=job.version)
        every = batches(None) if callable(batches) else batches
        for piece, outcome in self.work(job, (BatchPiece(order, batch) for batch in every)):
            assert isinstance(piece, BatchPiece)
            recording = piece.with_failure(outcome) if isinstance(outcome, Failure) else outcome
            whole = replace(join(whole, recording), environment=whole.environment or recording.environment)
            progress(job.name, len(whole.inputs), len(whole.inputs), f"{len(self.addresses(job))} workers")
        whole.about = whole.about or dict(self.column(job).about)
        progress(job.name, len(whole.inputs), len(whole.inputs))
        return whole

    def work(self, job: Job, pieces: Iterator[Piece[Result]]) -> Iterator[tuple[Piece[Result], Result | Failure]]:
        """Run the pieces on the workers of a column, one at a time on each, and yield each with its result.

        Once stopped() returns True, workers are interrupted, and the rest is cancelled.
        """
        crew = Crew(self, self.column(job), pieces)
        try:
            while crew.busy and not self.stopped():
                yield from crew.turn()
            if self.stopped():
                self.interrupt()
                yield from crew.remains()
        finally:
            crew.release()

    def interrupt(self) -> None:
        """Interrupt what this session runs; workers return the cells that were answered so far."""
        with self._lock:
            if not self._interrupted:
                self._interrupted = True
                self._end()

    def _end(self) -> None:
        with suppress(*WITHOUT_SCHEDULER, RuntimeError):
            self._client.run(worker.end, self.session, workers=sorted(self._joined_workers()), on_error="ignore")

    def _joined_workers(self) -> set[str]:
        """The workers that are in a column and there."""
        return self._alive & {address for column in self.columns.values() for address in column.addresses}

    def claim(self, address: str, owner: object) -> bool:
        """Whether the owner has the worker to itself; a worker that is in several columns fills one after the other."""
        with self._lock:
            return self._owners.setdefault(address, owner) is owner

    def release(self, owner: object) -> None:
        """Leave all workers of the owner to other columns."""
        with self._lock:
            self._owners = {address: other for address, other in self._owners.items() if other is not owner}


def _rank(key: Key) -> tuple[Any, ...]:
    """The order of a column among those of its backend: by version, and the CPU last, as `run --device` has it."""
    backend, version, device = key
    return backend, [int(number) for number in re.findall(r"\d+", version)], version, device == "cpu", device


def connect(address: str) -> Any:
    """A client of the scheduler at that address.

    Raises: ClusterError if `distributed` is not installed, or nothing answers.
    """
    if find_spec("distributed") is None:
        raise ClusterError("a cluster needs the extra 'cluster'. Run: pip install distributed")
    import distributed
    from distributed.versions import VersionMismatchWarning

    # Columns of several versions are the point: what they must share is compared as `source`.
    warnings.filterwarnings("ignore", category=VersionMismatchWarning)
    try:
        return distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False, name="attention-parity")
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise ClusterError(f"no scheduler answers at {address}: {error}") from error


def missing_of(cluster: Cluster, names: Iterable[str]) -> dict[str, str]:
    """Why the cluster has no column of these backends, by name."""
    offered = {backend for backend, _, _ in cluster.columns}
    return {name: cluster.reasons.get(name, "no worker of the cluster has it") for name in names if name not in offered}
