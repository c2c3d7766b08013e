"""Workers: one process per backend, started, listened to, and restarted behind a cell that killed it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attention_core
import backends
import parity_tests
from backends import ArchiveError, unpack_arrays
from parity_tests.expected import cache_folder
from parity_tests.recordings import Cell, Recording, key
from parity_tests.switches import environment

START_SECONDS = 120.0
CELL_SECONDS = 120.0
MOST_RESTARTS = 5
LONGEST_FRAME = 2**31

Progress = Callable[[str, int], None]


@dataclass(frozen=True)
class Job:
    """A backend to run: its name, its module, the interpreter that has its framework, and the device."""

    backend: str
    module: str
    python: str = sys.executable
    device: str = "cpu"
    variables: Mapping[str, str] | None = None


class WorkerFault(Exception):
    """A worker died, hung, or said something that is no frame."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


def record(
    job: Job,
    case_file: Path,
    cells: Sequence[Cell],
    progress: Progress = lambda backend, done: None,
    *,
    start_seconds: float = START_SECONDS,
    cell_seconds: float = CELL_SECONDS,
) -> Recording:
    """Run every cell of the case file on a backend.

    A cell whose worker dies or hangs is recorded as that, and a new worker goes on behind it; a worker that cannot
    start, or has died MOST_RESTARTS times, takes all that is left with it.
    """
    recording = Recording(job.backend, job.device)
    done, deaths = 0, 0
    while done < len(cells):
        with tempfile.TemporaryFile() as log, Worker(job, case_file, done, log.fileno()) as worker:
            try:
                recording.about = worker.frame(start_seconds)[1]
                while done < len(cells):
                    arrays, header = worker.frame(cell_seconds)
                    if header.get("key") != key(cells[done]):
                        raise WorkerFault("error", f"the worker answered {header.get('key')} out of turn")
                    _keep(recording, arrays, header)
                    done += 1
                    progress(job.backend, done)
            except WorkerFault as fault:
                deaths += 1
                log.seek(0)
                tail = log.read()[-2000:].decode(errors="replace").strip()
                said = {"status": fault.status, "message": str(fault), "trace": tail}
                hopeless = not recording.about or deaths > MOST_RESTARTS
                for cell in cells[done:] if hopeless else cells[done : done + 1]:
                    recording.status[key(cell)] = said
                done = len(cells) if hopeless else done + 1
                progress(job.backend, done)
    return recording


def _keep(recording: Recording, arrays: dict[str, Any], header: Mapping[str, Any]) -> None:
    said = {name: header[name] for name in ("status", "message", "trace", "seconds") if name in header}
    recording.status[header["key"]] = said
    if said["status"] == "ok":
        recording.cells[header["key"]] = arrays


class Worker:
    """A running worker; leaving the context kills it. Without a case file, it answers what `send` gives it."""

    def __init__(self, job: Job, case_file: Path | None, first: int, log: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="attention-parity-")
        if job.python != sys.executable:
            _link_packages(Path(self.folder.name))
            path = self.folder.name
        else:
            given = os.environ.get("PYTHONPATH")
            path = os.pathsep.join([str(Path(parity_tests.__file__).parents[1]), *([given] if given else [])])
        variables = {
            **os.environ,
            **environment(job.backend, cache_folder(), job.device),
            "PYTHONPATH": path,
            "PYTHONSAFEPATH": "1",
            "PYTHONHASHSEED": "0",
            **(job.variables or {}),
        }
        arguments = [job.backend, job.module, job.device, str(case_file or "-"), str(first)]
        command = [job.python, "-m", "parity_tests.worker", *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if case_file else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=variables,
            cwd=self.folder.name,
            start_new_session=True,
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in filter(None, (self.process.stdin, self.process.stdout)):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self.folder.cleanup()

    def send(self, data: bytes) -> None:
        """Hand over a case file; a worker that is gone is told by the next `frame`."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(len(data).to_bytes(8, "big") + data)
            self.process.stdin.flush()

    def frame(self, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
        """The next frame's arrays and header.

        Raises: WorkerFault if the worker ends, stays silent for that many seconds, or sends something else.
        """
        deadline = time.monotonic() + seconds
        length = int.from_bytes(self._read(8, deadline), "big")
        if length > LONGEST_FRAME:
            raise WorkerFault("error", "the worker sent something that is no frame")
        try:
            return unpack_arrays(self._read(length, deadline))
        except ArchiveError as error:
            raise WorkerFault("error", f"the worker sent a damaged frame: {error}") from error

    def _read(self, count: int, deadline: float) -> bytes:
        assert self.process.stdout is not None
        read = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while len(read) < count:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise WorkerFault("timeout", "the worker stayed silent beyond its time limit, and was killed")
                piece = os.read(self.process.stdout.fileno(), min(count - len(read), 1 << 20))
                if not piece:
                    raise WorkerFault("crash", self._last_words())
                read += piece
        return bytes(read)

    def _last_words(self) -> str:
        code = self.process.wait()
        if code < 0:
            return f"the worker was killed by {signal.Signals(-code).name}"
        return f"the worker ended with exit code {code}"


def _link_packages(folder: Path) -> None:
    """Give another interpreter our packages alone, without the rest of this environment."""
    for package in (attention_core, backends, parity_tests):
        source = Path(str(package.__file__)).parent
        (folder / source.name).symlink_to(source, target_is_directory=True)
