"""Worker management: start one process per backend, read its answers, and restart it after a fatal cell."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attention_core
import backends
import parity_tests
from backends.archives import ArchiveError, unpack_arrays
from backends.schema import SchemaError, build, clean
from parity_tests.folders import Folder
from parity_tests.format.expected import CACHE, programs_folder
from parity_tests.format.selection import Cell
from parity_tests.workers.answers import Answer, AnswerStatus, harmless
from parity_tests.workers.environment import environment
from parity_tests.workers.keeper import LIFELINE
from parity_tests.workers.recordings import Batch, Recording, join, label

START_SECONDS = 120.0
CELL_SECONDS = 120.0
MOST_RESTARTS = 5
LONGEST_FRAME = 2**31
KEPT_BYTES = 4000
"""The number of bytes kept from the end of a worker's standard error."""
PATIENCE_SECONDS = 0.2
"""Seconds between two checks of whether the worker is alive and whether to stop."""
GRACE_SECONDS = 5.0
"""Seconds that a worker may take to end after closing its stream."""

Stopped = Callable[[], bool]


class Progress(Protocol):
    """A callback that reports the progress of a part of the work."""

    def __call__(self, part: str, done: int, of: int, doing: str = "") -> None:
        """Report the completed and total counts, and the current item."""


WAITING = "waiting"
"""The current item of a part that has not started."""


def untold(part: str, done: int, of: int, doing: str = "") -> None:
    """Ignore progress."""


def rename_progress(part: str, progress: Progress) -> Progress:
    """Report progress under another name."""
    return lambda _, *values: progress(part, *values)


def report_cells(part: str, cells: Sequence[Cell], progress: Progress) -> Iterator[Cell]:
    """Yield the cells of a part, and report the progress."""
    for done, cell in enumerate(cells):
        progress(part, done, len(cells), cell.case.id)
        yield cell
    progress(part, len(cells), len(cells))


@dataclass(frozen=True)
class Job:
    """A backend or target to run: its name, location, interpreter and device.

    variables are set last in the worker's environment; paths are searched for modules after those of this package.
    version is that of the framework, if a run has several.
    """

    backend: str
    module: str
    python: str = sys.executable
    device: str = "cpu"
    variables: Mapping[str, str] | None = None
    paths: tuple[str, ...] = ()
    version: str = ""

    @property
    def name(self) -> str:
        """The name of the backend in tables and pairs."""
        return label(self.backend, self.device, self.version)


@dataclass(frozen=True)
class Hello:
    """The header that a worker sends once the import has succeeded."""

    backend: str
    framework: str
    device: str
    versions: dict[str, Any]
    determinism: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)
    implements: str = ""
    classes: str = ""
    gradients: str = ""


class WorkerFault(Exception):
    """A worker died, hung, or sent an invalid frame; trace is the end of its standard error."""

    def __init__(self, status: AnswerStatus, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.trace = trace


class Refusal(WorkerFault):
    """There is nothing in the target that can be tested."""


class Interrupted(Exception):
    """The run was interrupted."""


Batches = Iterable[Batch] | Callable[[Collection[str] | None], Iterable[Batch]]
"""Batches, or a function that makes them of the names of what a target implements; None for a backend."""


def implemented_by(about: Mapping[str, Any]) -> set[str] | None:
    """The names of a target's functions and of its classes, which it could have meant; None for a backend."""
    names = about.get("implements")
    return None if names is None else {*names.split(", "), *about.get("classes", "").split(", ")}


def record(
    job: Job,
    batches: Batches,
    progress: Progress = untold,
    *,
    start_seconds: float = START_SECONDS,
    cell_seconds: float = CELL_SECONDS,
    stopped: Stopped = lambda: False,
    functions: Collection[str] = (),
) -> Recording:
    """Run every cell of the batches on a backend; several workers may share one iterator.

    If the worker dies or hangs in a cell, this is recorded as its answer, and a new worker continues with the next one.
    If a worker cannot start, or has died more than MOST_RESTARTS times, all remaining cells fail. Once stopped()
    returns True, the worker is killed, and the recording contains the cells answered so far.

    Raises: Refusal if a target implements none of these functions, if there are any.
    """
    whole = Recording(job.backend, job.device, environment=environment(job.backend, programs_folder(), job.device))
    with Server(job, True, start_seconds, cell_seconds, stopped) as server:
        implemented = implemented_by(server.hello()) if functions or callable(batches) else None
        if functions and implemented is not None and not implemented & {*functions}:
            raise Refusal("error", f"it implements none of the selected functions: {', '.join(functions)}")
        for batch in batches(implemented) if callable(batches) else batches:
            before = len(whole.inputs)
            report = partial(_shift, progress, before, before + len(batch.cells))
            whole = join(whole, replace(server.answers(batch, report), inputs=batch.digests))
            if stopped():
                break
        whole.start_seconds = server.started_in
        whole.about = whole.about or dict(server.about)  # of a target that has none of the functions, too
    progress(job.name, len(whole.inputs), len(whole.inputs))
    return whole


def _shift(progress: Progress, before: int, of: int, part: str, done: int, _: int, doing: str = "") -> None:
    """Report the progress of a batch, added to that of previous batches."""
    progress(part, before + done, of, doing)


class Worker:
    """A running worker; leaving the context kills it and its descendants.

    Raises: WorkerFault if its interpreter cannot be started.
    """

    def __init__(
        self, job: Job, stopped: Stopped = lambda: False, program: str = "parity_tests.workers.worker"
    ) -> None:
        self.stopped = stopped
        self.printed = b""
        try:
            self.folder: Folder | None = Folder()
        except OSError as error:  # a full or read-only disk; a worker can do without
            self.folder = None
            if job.python != sys.executable:
                raise WorkerFault("error", f"a temporary folder for its packages cannot be created: {error}") from error
            warnings.warn(f"a temporary folder cannot be created ({error}): workers run without one", stacklevel=1)
        if self.folder is not None and job.python != sys.executable:
            _link_packages(Path(self.folder.name))
            path = self.folder.name
        else:
            given = os.environ.get("PYTHONPATH")
            path = os.pathsep.join([str(Path(parity_tests.__file__).parents[1]), *([given] if given else [])])
        path = os.pathsep.join([path, *job.paths])
        lifeline, self.lifeline = os.pipe()
        variables = {
            **{name: value for name, value in os.environ.items() if name != CACHE},
            **environment(job.backend, programs_folder(), job.device),
            "PYTHONPATH": path,
            "PYTHONSAFEPATH": "1",
            "PYTHONHASHSEED": "0",
            **({} if self.folder is None else {"TMPDIR": self.folder.name}),
            **(job.variables or {}),
            LIFELINE: str(lifeline),
        }
        try:
            self.process = subprocess.Popen(
                [job.python, "-m", program, job.backend, job.module, job.device],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=variables,
                cwd=os.sep if self.folder is None else self.folder.name,
                start_new_session=True,
                pass_fds=(lifeline,),
            )
        except OSError as error:
            os.close(self.lifeline)
            self._remove_folder()
            raise WorkerFault("crash", f"{job.python} cannot be started: {error.strerror}") from error
        finally:
            os.close(lifeline)
        assert self.process.stdin is not None
        assert self.process.stdout is not None and self.process.stderr is not None
        self.batches, self.stream, self.errors = self.process.stdin, self.process.stdout, self.process.stderr
        os.set_blocking(self.errors.fileno(), False)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.lifeline)  # the keeper ends all
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.batches, self.stream, self.errors):
            stream.close()
        self._remove_folder()

    def _remove_folder(self) -> None:
        if self.folder is not None:
            self.folder.cleanup()

    def send(self, data: bytes) -> None:
        """Send a packed batch; if the worker has died, the next `frame` reports it."""
        rest = memoryview(len(data).to_bytes(8, "big") + data)
        with suppress(BrokenPipeError):
            while rest:  # a pipe takes what it has room for
                rest = rest[os.write(self.batches.fileno(), rest) :]

    def hello(self, seconds: float) -> dict[str, Any]:
        """The header that the worker sends once its framework is imported.

        Raises: Refusal if nothing can be tested; WorkerFault, as frame does.
        """
        header = self.frame(seconds)[1]
        kind = header.pop("kind", None)
        if kind == "refusal":
            raise Refusal("error", harmless(str(header.get("reason")), KEPT_BYTES))
        if kind != "hello":
            raise self.fault("error", f"the worker's first frame is {clean(kind)}, expected hello")
        try:
            build(Hello, header)
        except SchemaError as error:
            raise self.fault("error", f"the worker's header is invalid: {error}") from error
        return header

    def frame(self, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next frame's arrays and header.

        Raises: WorkerFault if the worker ends, exceeds that many seconds, or sends an invalid frame; Interrupted if the
        run was interrupted.
        """
        deadline = time.monotonic() + seconds
        length = int.from_bytes(self._read(8, deadline), "big")
        if length > LONGEST_FRAME:
            raise self.fault("error", f"the worker sent an invalid frame of length {length:,}")
        try:
            return unpack_arrays(self._read(length, deadline))
        except ArchiveError as error:
            raise self.fault("error", f"the worker sent a damaged frame: {error}") from error

    def fault(self, status: AnswerStatus, message: str) -> WorkerFault:
        """Make a fault of this worker, with the end of its standard error."""
        return WorkerFault(status, message, self._last_words())

    def _read(self, count: int, deadline: float) -> bytes:
        read = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self.stream, selectors.EVENT_READ)
            selector.register(self.errors, selectors.EVENT_READ)
            while len(read) < count:
                if self.stopped():
                    raise Interrupted
                within = f", after {len(read):,} of {count:,} bytes" if read else ""
                left = deadline - time.monotonic()
                if left <= 0:
                    message = f"the worker exceeded its time limit{within}, and was killed"
                    raise self.fault("timeout", message)
                # Asked before listening, so that what the worker wrote before it ended is still heard.
                ended = self.process.poll() is not None
                ready = {chosen.fileobj for chosen, _ in selector.select(min(left, PATIENCE_SECONDS))}
                if self.errors in ready and not self._listen():
                    selector.unregister(self.errors)
                if self.stream in ready:
                    piece = os.read(self.stream.fileno(), min(count - len(read), 1 << 20))
                    if not piece:
                        raise self._end(within)
                    read += piece
                elif ended:  # and a child of it holds the stream open
                    raise self._end(within)
        return bytes(read)

    def _listen(self) -> bool:
        """Read the worker's standard error and keep its end; return False at the end of the stream."""
        try:
            piece = os.read(self.errors.fileno(), 1 << 20)
        except BlockingIOError:
            return True
        self.printed = (self.printed + piece)[-KEPT_BYTES:]
        return bool(piece)

    def _end(self, within: str) -> WorkerFault:
        try:
            code = self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return self.fault("error", f"the worker closed its stream{within}, and was killed")
        if code < 0:
            names = {number.value: number.name for number in signal.Signals}
            why = ", possibly because it ran out of memory" if -code == signal.SIGKILL else ""
            return self.fault("crash", f"the worker was killed by {names.get(-code, f'signal {-code}')}{within}{why}")
        last = self._last_words().splitlines()[-1:]
        why = f"; its last line of output: {last[0]}" if code and last else ""
        return self.fault("crash", f"the worker ended with exit code {code}{within}{why}")

    def _last_words(self) -> str:
        self._listen()
        return harmless(self.printed.decode(errors="replace").strip(), KEPT_BYTES)


class Server:
    """A backend's worker that answers batches; it is restarted after a cell that ended it.

    deadly contains the operators and methods that have ended a worker: the rest of a batch is run without them. If
    every cell is to be tried, they are run too, until a worker cannot start or MOST_RESTARTS is reached: lost is then
    the answer of all remaining cells.
    """

    def __init__(
        self,
        job: Job,
        every: bool = False,
        start_seconds: float = START_SECONDS,
        cell_seconds: float = CELL_SECONDS,
        stopped: Stopped = lambda: False,
    ) -> None:
        self.job = job
        self.every = every
        self.start_seconds = start_seconds
        self.cell_seconds = cell_seconds
        self.stopped = stopped
        self.about: dict[str, Any] = {}
        self.files: dict[str, str] = {}
        self.started_in = 0.0
        self.deaths = 0
        self.deadly: set[tuple[str, str]] = set()
        self.lost: Answer | None = None
        self._worker: Worker | None = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def answers(self, batch: Batch, progress: Progress = untold) -> Recording:
        """Run the cells of a batch; if interrupted, return the answers so far.

        Raises: WorkerFault if the worker cannot start, and not every cell is to be tried.
        """
        recording = Recording(self.job.backend, self.job.device)
        waiting = list(batch.cells)
        with suppress(Interrupted):
            while waiting and self.lost is None:
                doing = "starting" if self._worker is None else ""
                progress(self.job.name, len(recording.answers), len(batch.cells), doing)
                try:
                    worker = self._ready_worker()
                except WorkerFault as fault:
                    if not self.every:
                        raise
                    self.lost = Answer(fault.status, str(fault), fault.trace)
                    break
                worker.send(batch.packed if len(waiting) == len(batch.cells) else batch.only(waiting).packed)
                try:
                    for cell in self._receive(worker, waiting, recording):
                        progress(self.job.name, len(recording.answers), len(batch.cells), cell.case.id)
                except WorkerFault as fault:
                    fatal = waiting.pop(0)
                    recording.answers[fatal.key] = Answer(fault.status, str(fault), fault.trace)
                    waiting = self._remaining(fatal, waiting)
        if self.lost is not None:
            recording.answers |= dict.fromkeys((cell.key for cell in waiting), self.lost)
        recording.about, recording.files = self.about, {**self.files, **recording.files}
        return recording

    def _receive(self, worker: Worker, waiting: list[Cell], recording: Recording) -> Iterator[Cell]:
        """Yield each waiting cell, then record its answer and remove it from the waiting cells.

        Raises: WorkerFault, caused by the first waiting cell.
        """
        before: Cell | None = None
        while waiting:
            yield waiting[0]
            arrays, header = worker.frame(self.cell_seconds)
            if before and header.get("key") == before.key:  # its first answer is not to be trusted, either
                recording.cells.pop(before.key, None)
                waiting.insert(0, before)
                raise worker.fault("error", "the worker answered this cell twice")
            if header.get("key") != waiting[0].key:
                raise worker.fault("error", f"the worker answered {clean(header.get('key'))} out of order")
            try:
                answer = Answer.of(header)
                recording.files |= build(dict[str, str], header.get("files", {}), "files")
            except SchemaError as error:
                raise worker.fault("error", f"the worker sent a damaged frame: {error}") from error
            before = waiting.pop(0)
            recording.answers[before.key] = answer
            if answer.ok:
                recording.cells[before.key] = arrays

    def _remaining(self, fatal: Cell, waiting: Sequence[Cell]) -> list[Cell]:
        """The waiting cells for the next worker, after the one that ended the last worker."""
        self.stop()
        self.deaths += 1
        self.deadly.add((fatal.case.operator, fatal.case.method))
        if not self.every:
            return [cell for cell in waiting if (cell.case.operator, cell.case.method) not in self.deadly]
        if self.deaths > MOST_RESTARTS:
            self.lost = Answer("crash", f"not run: the worker had died {self.deaths} times")
        return list(waiting)

    def hello(self) -> dict[str, Any]:
        """The header of the worker, which is started if necessary.

        Raises: WorkerFault if it cannot start.
        """
        self._ready_worker()
        return self.about

    def _ready_worker(self) -> Worker:
        if self._worker is None:
            begun = time.perf_counter()
            try:
                self._worker = Worker(self.job, self.stopped)
                self.about = self._worker.hello(self.start_seconds)
                self.files = self.about.pop("files", {})
            except WorkerFault as fault:
                self.stop()
                if isinstance(fault, Refusal):
                    raise
                raise WorkerFault(fault.status, f"{self.job.backend} cannot start: {fault}", fault.trace) from fault
            self.started_in += time.perf_counter() - begun
        return self._worker

    def stop(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.__exit__()
            self._worker = None


def _link_packages(folder: Path) -> None:
    """Make a path with these packages only, without the rest of this environment, for another interpreter."""
    for package in (attention_core, backends, parity_tests):
        source = Path(str(package.__file__)).parent
        (folder / source.name).symlink_to(source, target_is_directory=True)
