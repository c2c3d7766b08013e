"""What runs in a Dask worker: offers of columns, and orders of the client, answered by a worker process.

A Dask worker keeps one `Server` from order to order. The framework runs in the server's process, so that a crash of it
costs one cell, as locally, and not the Dask worker.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attention_core
import backends
import parity_tests
from attention_core.operators import SPECIFICATION_VERSION
from parity_tests.format.expected import programs_folder
from parity_tests.workers.environment import environment
from parity_tests.workers.process import Job, Server, WorkerFault
from parity_tests.workers.recordings import Batch


@dataclass(frozen=True)
class Offer:
    """A column that a Dask worker can fill: the job of a backend or target, whose version is that of its framework.

    about is the header of its worker process, if that was started.
    """

    job: Job
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Offers:
    """What a Dask worker can run: its source, what it offers, and why it does not offer the rest."""

    source: str
    offers: Sequence[Offer] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Order:
    """A job of a client's session, with variables of the client, and whether cells go on after one ends a worker."""

    session: str
    job: Job
    variables: Mapping[str, str] = field(default_factory=dict)
    every: bool = True


@functools.cache
def source() -> str:
    """A digest of the source of these packages, without tests: all workers must run the same, and the client, too."""
    digest = hashlib.sha256(SPECIFICATION_VERSION.encode())
    for package in (attention_core, backends, parity_tests):
        folder = Path(str(package.__file__)).parent
        for path in sorted(folder.rglob("*.py")):
            if path.relative_to(folder).parts[0] != "tests":
                digest.update(path.read_bytes())
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------ offers


def offers(names: Sequence[str] | None, devices: Sequence[str], fuzzing: bool) -> Offers:
    """The registered backends of these names that can run here, on each of the devices that they have."""
    made, reasons = list[Offer](), dict[str, str]()
    for name, known in backends.available().items():
        if names is not None and name not in names:
            continue
        reason = known.reason
        if fuzzing and find_spec("hypothesis") is None:
            reason = "fuzzing needs hypothesis. Run: pip install hypothesis"
        if reason is not None:
            reasons[name] = reason
            continue
        version = next(iter(known.versions.values()), "")  # of the framework itself, which comes first
        for device in devices:
            job = Job(name, known.module, device=device, version=version)
            # What is installed and fails to start on the CPU is red, as locally; a GPU may just not be there.
            about, reason = ({}, "") if device == "cpu" else _start(job)
            if reason:
                reasons[job.name] = reason
            else:
                made.append(Offer(job, about))
    return Offers(source(), made, reasons)


def offers_of(job: Job) -> Offers:
    """A target, if it can be imported here, with the version of its framework."""
    about, reason = _start(job)
    if reason:
        return Offers(source(), (), {job.backend: reason})
    versions = {name: str(version) for name, version in about["versions"].items()}
    first = next((name for name in versions if name not in ("python", "numpy")), "numpy")
    return Offers(source(), [Offer(replace(job, version=versions[first]), about)])


def _start(job: Job) -> tuple[Mapping[str, Any], str]:
    """The header of the job's worker process, or why it cannot start here."""
    try:
        with Server(here(job)) as server:
            return server.hello(), ""
    except WorkerFault as fault:
        return {}, str(fault)


def here(job: Job) -> Job:
    """The job with this process's interpreter."""
    return replace(job, python=sys.executable)


# ------------------------------------------------------------------------------------------------ orders


@dataclass
class _Serving:
    order: Order
    server: Server


_lock = threading.Lock()
"""One order at a time, whatever the number of Dask's threads: a second framework would share cores and memory."""
_serving: _Serving | None = None
_ended: set[str] = set()
"""The sessions whose clients want nothing more."""


@contextmanager
def serving(order: Order) -> Iterator[Server]:
    """The server of an order: the one of the order before, if that was the same."""
    global _serving
    with _lock, _variables(order.variables):
        if _serving is not None and _serving.order != order:
            _serving.server.stop()
            _serving = None
        if _serving is None:
            server = Server(here(order.job), order.every, stopped=lambda: order.session in _ended)
            _serving = _Serving(order, server)
        yield _serving.server


@contextmanager
def _variables(chosen: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def answers(order: Order, packed: bytes) -> tuple[bytes, float, float]:
    """Run a packed batch: the packed recording with a digest of each cell that arrived, and its seconds.

    The seconds are those of cold starts, and all. Raises: ArchiveError if the batch is damaged.
    """
    batch = Batch.unpack(packed)
    with serving(order) as server:
        begun, before = time.perf_counter(), server.started_in
        recording = server.answers(batch)
        recording.inputs = batch.digests
        recording.environment = environment(order.job.backend, programs_folder(), order.job.device)
        return recording.pack(), server.started_in - before, time.perf_counter() - begun


def end(session: str) -> None:
    """Interrupt what a session runs here, and end its server; cells that were answered so far are returned."""
    _ended.add(session)
    threading.Thread(target=_stop, args=(session,), daemon=True).start()  # Dask's own loop must not wait


def _stop(session: str) -> None:
    global _serving
    with _lock:
        if _serving is not None and _serving.order.session == session:
            _serving.server.stop()
            _serving = None
