"""Two backends made of the reference, and what one of them answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

import backends
from parity_tests.cases.suite import all_cases
from parity_tests.format.selection import Selection
from parity_tests.workers.process import Job, Progress, record
from parity_tests.workers.recordings import Batch, Recording, batch_of


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, fake_job: Callable[..., Job]) -> Callable[[str], None]:
    """Two backends, both made of the reference, and one that cannot run; a fault may be ordered for them."""
    known = {name: backends.Availability(name, "numpy_backend", {}) for name in ("one", "two")}
    known["gone"] = backends.Availability("gone", "backends.gone", {}, "gone is not installed: pip install it.")
    monkeypatch.setattr(backends, "available", lambda: known)

    def with_fault(fault: str) -> None:
        def recorder(job: Job, batches: Iterable[Batch], progress: Progress, **limits: Any) -> Recording:
            return record(replace(fake_job(fault), backend=job.backend), batches, progress, **limits)

        for module in ("cli.run", "workers.process"):
            monkeypatch.setattr(f"parity_tests.{module}.record", recorder)

    with_fault("")
    return with_fault


@pytest.fixture(scope="session")
def made(fake_job: Callable[..., Job]) -> Recording:
    """What the fake backend answers to the plain cases of two score functions; the tests change copies of it."""
    selection = Selection(["float64"], "*-plain", ["dot_score", "scaled_dot_score"])
    cells = selection.cells(all_cases())
    return replace(record(fake_job(), [batch_of(cells)]), selection=selection)
