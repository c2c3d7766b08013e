"""Faults of Dask workers that no framework has, as a plugin of Dask: files in a shared folder say what goes wrong."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from distributed import WorkerPlugin, get_worker

from parity_tests.cluster import worker
from parity_tests.workers.process import Job
from parity_tests.workers.recordings import Batch

DAMAGED = "damaged"
"""The file with the number of recordings that are still to be damaged on their way."""
DEADLY = "deadly"
"""The file with the name of a cell that kills the Dask worker itself."""
KILLED = "killed"
"""The file with a line for each Dask worker that was killed so."""


class Faults(WorkerPlugin):
    """Has every worker of a cluster, restarted ones included, obey the files in a folder."""

    name = "faults"

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    def setup(self, worker: object) -> None:
        install(self.folder)


def install(folder: Path) -> None:
    """Put the faults in front of what runs an order."""
    whole = worker.answers

    def answers(order: worker.Order, packed: bytes) -> tuple[bytes, float, float]:
        keys = [cell.key for cell in Batch.unpack(packed).cells]
        if (folder / DEADLY).exists() and (folder / DEADLY).read_text() in keys:
            with open(folder / KILLED, "a") as file:
                file.write(f"{len(keys)} {os.getpid()}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        data, *seconds = whole(order, packed)
        left = int((folder / DAMAGED).read_text()) if (folder / DAMAGED).exists() else 0
        if left:
            (folder / DAMAGED).write_text(str(left - 1))
            data = data[:-1] + bytes([data[-1] ^ 1])
        return data, *seconds

    worker.answers = answers


def two_versions() -> worker.Offers:
    """An offer of the fake backend in version 9.0 by half of the workers, and in version 10.0 by the others."""
    version = ("9.0", "10.0")[int(get_worker().name) % 2]
    return worker.Offers(worker.source(), [worker.Offer(Job("fake", "numpy_backend", version=version))])


def set_fault(fault: str) -> None:
    """Have the fake backend of this worker fail so from its next start on."""
    os.environ["FAKE_FAULT"] = fault
