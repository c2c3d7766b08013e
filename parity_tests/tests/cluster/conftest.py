"""A cluster of four Dask workers on this machine, which have the backend made of the reference."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parity_tests.cluster import worker
from parity_tests.cluster.client import Cluster
from parity_tests.tests.places import FAKES, ROOT
from parity_tests.workers.process import Stopped

WORKERS = 4


@dataclass
class Local:
    """A cluster, a client to look into it, and the folder with the files of its faults."""

    made: Any
    client: Any
    folder: Path

    @property
    def address(self) -> str:
        """The address of its scheduler."""
        return self.made.scheduler_address

    def session(self, name: str = "fake", stopped: Stopped = lambda: False, fuzzing: bool = False) -> Cluster:
        """A session of a fake backend."""
        return Cluster(self.address, (worker.offers, ([name], ["cpu"], fuzzing)), stopped)

    def pids(self) -> dict[str, int]:
        """The process of each worker, by its address."""
        return self.client.run(os.getpid)


def register(folder: Path, name: str, module: str) -> None:
    """Make a folder in a path of Python register a backend, as installing it would."""
    information = folder / f"{name}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[attention_core.backends]\n{name} = {module}\n")


@pytest.fixture(scope="module")
def cluster_of_four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Local]:
    """The cluster, which the tests of a file share: a nanny restarts workers that were killed."""
    import distributed  # where it is not installed, there is no test, but this file is still read

    from parity_tests.tests.cluster.faults import Faults

    registered, folder = tmp_path_factory.mktemp("registered"), tmp_path_factory.mktemp("faults")
    register(registered, "fake", "numpy_backend")
    register(registered, "planted", "planted_backend")
    before = filter(None, [os.environ.get("PYTHONPATH")])
    path = os.pathsep.join(map(str, (registered, ROOT, FAKES, *before)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("PLANTED", "scale_off")
        for part in (FAKES, ROOT, registered):
            patch.syspath_prepend(str(part))
        with (
            distributed.LocalCluster(
                n_workers=WORKERS, threads_per_worker=1, dashboard_address=None, silence_logs="CRITICAL"
            ) as made,
            # By its address: one that is passed the cluster itself replaces what it knows while news come in.
            distributed.Client(made.scheduler_address, set_as_default=False) as client,
        ):
            client.register_plugin(Faults(str(folder)))
            yield Local(made, client, folder)


@pytest.fixture
def local(cluster_of_four: Local) -> Iterator[Local]:
    """The cluster with all of its workers, and without the faults of another test."""
    # A nanny gives up a worker that is killed before its start is through, and is replaced itself, once it is missed.
    for _ in range(12):
        cluster_of_four.made.scale(WORKERS)
        with contextlib.suppress(TimeoutError):
            cluster_of_four.client.wait_for_workers(WORKERS, timeout=10)
            break
    assert len(cluster_of_four.pids()) == WORKERS
    yield cluster_of_four
    for file in cluster_of_four.folder.iterdir():
        file.unlink()
