"""Workers: one process per backend, started, listened to, and restarted behind a cell that killed it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import attention_core
import backends
import parity_tests
from backends.archives import ArchiveError, load_archive, unpack_arrays
from parity_tests.cases.expected import CACHE, programs_folder
from parity_tests.cases.selection import Cell
from parity_tests.workers.answers import Answer, AnswerStatus
from parity_tests.workers.environment import environment
from parity_tests.workers.recordings import Recording, labelled, pack_cases
from parity_tests.workers.worker import CASE_FILE, LIFELINE

START_SECONDS = 120.0
CELL_SECONDS = 120.0
MOST_RESTARTS = 5
LONGEST_FRAME = 2**31
KEPT_BYTES = 4000
"""How many bytes of a worker's standard error are kept, from its end."""
PATIENCE_SECONDS = 0.2
"""How long the judge listens before it looks whether the worker lives, and whether it shall stop."""
GRACE_SECONDS = 5.0
"""How long a worker that has closed its stream may take to end."""

Stopped = Callable[[], bool]


class Progress(Protocol):
    """A callback that reports how far a part of the work has come."""

    def __call__(self, part: str, done: int, of: int, doing: str = "") -> None:
        """Report how many are done of how many, and what is being done now."""


WAITING = "waiting"
"""What a part that has not begun is doing."""


def untold(part: str, done: int, of: int, doing: str = "") -> None:
    """Report nothing."""


def called(part: str, progress: Progress) -> Progress:
    """Report the same under another name."""
    return lambda _, *values: progress(part, *values)


def counted(part: str, cells: Sequence[Cell], progress: Progress) -> Iterator[Cell]:
    """Yield the cells of a part, and report each."""
    for done, cell in enumerate(cells):
        progress(part, done, len(cells), cell.case.id)
        yield cell
    progress(part, len(cells), len(cells))


@dataclass(frozen=True)
class Job:
    """A backend or target to run: its name, its place, the interpreter that has its framework, and the device.

    variables come last into the worker's environment; paths are searched for modules after those of this package.
    """

    backend: str
    module: str
    python: str = sys.executable
    device: str = "cpu"
    variables: Mapping[str, str] | None = None
    paths: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The backend, with its device unless that is the CPU."""
        return labelled(self.backend, self.device)


class WorkerFault(Exception):
    """A worker died, hung, or sent something that is no frame; trace is the end of what it printed."""

    def __init__(self, status: AnswerStatus, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.trace = trace


class Interrupted(Exception):
    """The judge shall stop."""


def record(
    job: Job,
    case_file: Path,
    cells: Sequence[Cell],
    progress: Progress = untold,
    *,
    start_seconds: float = START_SECONDS,
    cell_seconds: float = CELL_SECONDS,
    stopped: Stopped = lambda: False,
) -> Recording:
    """Run every cell of the case file on a backend.

    A cell whose worker dies or hangs is recorded as that, and a new worker goes on behind it; a worker that cannot
    start, or has died more than MOST_RESTARTS times, takes all that is left with it. Once stopped answers True, the
    worker is killed, and the recording holds the cells that were answered by then.
    """
    described = load_archive(case_file, CASE_FILE)[1]["cells"]
    recording = Recording(
        job.backend,
        job.device,
        asked=environment(job.backend, programs_folder(), job.device),
        inputs={cell["key"]: cell["digest"] for cell in described},
    )
    done, deaths = 0, 0
    while done < len(cells):
        progress(job.name, done, len(cells), "starting")
        started, begun = False, time.perf_counter()
        try:
            with Worker(job, case_file, done, stopped) as worker:
                recording.about = worker.hello(start_seconds)
                recording.start_seconds += time.perf_counter() - begun
                started = True
                while done < len(cells):
                    progress(job.name, done, len(cells), cells[done].case.id)
                    arrays, header = worker.frame(cell_seconds)
                    if done and header.get("key") == cells[done - 1].key:
                        done -= 1  # the fault of the cell before, whose answer is not to be trusted
                        recording.cells.pop(cells[done].key, None)
                        raise worker.fault("error", "the worker answered this cell twice")
                    if header.get("key") != cells[done].key:
                        raise worker.fault("error", f"the worker answered {header.get('key')} out of turn")
                    _keep(recording, arrays, header)
                    done += 1
        except Interrupted:
            break
        except WorkerFault as fault:
            answer = Answer(fault.status, str(fault), fault.trace)
            if started:
                recording.answers[cells[done].key] = answer
                done, deaths = done + 1, deaths + 1
                answer = Answer("crash", f"not tried: the worker died {deaths} times before")
            if not started or deaths > MOST_RESTARTS:
                recording.answers |= dict.fromkeys((cell.key for cell in cells[done:]), answer)
                done = len(cells)
    progress(job.name, done, len(cells))
    return recording


def record_cells(
    job: Job,
    cells: Sequence[Cell],
    packed: bytes,
    progress: Progress = untold,
    *,
    stopped: Stopped = lambda: False,
) -> Recording:
    """Run every cell on a backend, with a case file that is written for this alone."""
    with tempfile.TemporaryDirectory(prefix="attention-parity-") as folder:
        case_file = Path(folder) / "cases.safetensors"
        case_file.write_bytes(packed)
        return record(job, case_file, cells, progress, stopped=stopped)


def _keep(recording: Recording, arrays: dict[str, Any], header: Mapping[str, Any]) -> None:
    answer = recording.answers[header["key"]] = Answer.of(header)
    if answer.ok:
        recording.cells[header["key"]] = arrays


class Worker:
    """A running worker; leaving the context kills it and its children. Without a case file, it answers what it is sent.

    Raises: WorkerFault if its interpreter cannot be started.
    """

    def __init__(self, job: Job, case_file: Path | None, first: int, stopped: Stopped = lambda: False) -> None:
        self.stopped = stopped
        self.printed = b""
        self.folder = tempfile.TemporaryDirectory(prefix="attention-parity-")
        if job.python != sys.executable:
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
            **(job.variables or {}),
            LIFELINE: str(lifeline),
        }
        arguments = [job.backend, job.module, job.device, str(case_file or "-"), str(first)]
        command = [job.python, "-m", "parity_tests.workers.worker", *arguments]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if case_file else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=variables,
                cwd=self.folder.name,
                start_new_session=True,
                pass_fds=(lifeline,),
            )
        except OSError as error:
            os.close(self.lifeline)
            self.folder.cleanup()
            raise WorkerFault("crash", f"{job.python} cannot be started: {error.strerror}") from error
        finally:
            os.close(lifeline)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.stream, self.errors = self.process.stdout, self.process.stderr
        os.set_blocking(self.errors.fileno(), False)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(ProcessLookupError):  # the group outlives its first process as long as that has children
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in filter(None, (self.process.stdin, self.stream, self.errors)):
            stream.close()
        os.close(self.lifeline)
        self.folder.cleanup()

    def send(self, data: bytes) -> None:
        """Hand over a case file; if the worker is gone, the next `frame` reports it."""
        assert self.process.stdin is not None
        rest = memoryview(len(data).to_bytes(8, "big") + data)
        with suppress(BrokenPipeError):
            while rest:  # a pipe takes what it has room for
                rest = rest[os.write(self.process.stdin.fileno(), rest) :]

    def hello(self, seconds: float) -> dict[str, Any]:
        """The header with which the worker describes itself once its framework is imported.

        Raises: WorkerFault, as frame does.
        """
        header = self.frame(seconds)[1]
        kind = header.pop("kind", None)
        if kind != "hello":
            raise self.fault("error", f"the worker began with a frame of {kind}, expected hello")
        return header

    def frame(self, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next frame's arrays and header.

        Raises: WorkerFault if the worker ends, is not done after that many seconds, or sends something else;
        Interrupted if the judge shall stop.
        """
        deadline = time.monotonic() + seconds
        length = int.from_bytes(self._read(8, deadline), "big")
        if length > LONGEST_FRAME:
            raise self.fault("error", f"the worker sent something that is no frame: its length would be {length:,}")
        try:
            return unpack_arrays(self._read(length, deadline))
        except ArchiveError as error:
            raise self.fault("error", f"the worker sent a damaged frame: {error}") from error

    def fault(self, status: AnswerStatus, message: str) -> WorkerFault:
        """A fault of this worker, with the end of what it printed."""
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
                    message = f"the worker stayed silent beyond its time limit{within}, and was killed"
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
        """Take what the worker has printed and keep the end of it; False if there will be no more."""
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
            why = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
            return self.fault("crash", f"the worker was killed by {names.get(-code, f'signal {-code}')}{within}{why}")
        last = self._last_words().splitlines()[-1:]
        why = f"; the last that it printed: {last[0]}" if code and last else ""
        return self.fault("crash", f"the worker ended with exit code {code}{within}{why}")

    def _last_words(self) -> str:
        self._listen()
        return self.printed.decode(errors="replace").strip()


class Server:
    """A backend's worker that answers batches; it is started anew behind a case that killed it.

    deadly holds the operators and methods that have ended a worker: the rest of a batch goes on without them.
    """

    def __init__(self, job: Job, cell_seconds: float = CELL_SECONDS) -> None:
        self.job = job
        self.cell_seconds = cell_seconds
        self.about: dict[str, Any] = {}
        self.deadly: set[tuple[str, str]] = set()
        self._worker: Worker | None = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def answers(self, cells: Sequence[Cell], packed: bytes) -> Recording:
        """What the backend answers to the cells of a case file; behind one that ends the worker, to those unlike it.

        Raises: WorkerFault if the worker cannot start.
        """
        recording = Recording(self.job.backend, self.job.device, self.about)
        waiting = list(cells)
        while waiting:
            worker = self._started()
            worker.send(packed if len(waiting) == len(cells) else pack_cases(waiting))
            try:
                while waiting:
                    arrays, header = worker.frame(self.cell_seconds)
                    if header.get("key") != waiting[0].key:
                        raise worker.fault("error", f"the worker answered {header.get('key')} out of turn")
                    _keep(recording, arrays, header)
                    waiting.pop(0)
            except WorkerFault as fault:
                fatal = waiting.pop(0)
                recording.answers[fatal.key] = Answer(fault.status, str(fault))
                self.deadly.add((fatal[0].operator, fatal[0].method))
                waiting = [cell for cell in waiting if (cell.case.operator, cell.case.method) not in self.deadly]
                self.stop()
        return recording

    def hello(self) -> dict[str, Any]:
        """The header with which the worker describes itself.

        Raises: WorkerFault if it cannot start.
        """
        self._started()
        return self.about

    def _started(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self.job, None, 0)
            try:
                self.about = self._worker.hello(START_SECONDS)
            except WorkerFault as fault:
                self.stop()
                words = f"{self.job.backend} cannot start: {fault}\n{fault.trace}"
                raise WorkerFault(fault.status, words, fault.trace) from fault
        return self._worker

    def stop(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.__exit__()
            self._worker = None


def _link_packages(folder: Path) -> None:
    """Give another interpreter our packages alone, without the rest of this environment."""
    for package in (attention_core, backends, parity_tests):
        source = Path(str(package.__file__)).parent
        (folder / source.name).symlink_to(source, target_is_directory=True)
