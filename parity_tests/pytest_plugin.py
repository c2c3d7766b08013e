"""A pytest plugin that turns every cell of a target into a test.

    pytest --parity-target mypackage.attention -k masked_softmax

It is installed with attention-parity, and inactive without --parity-target. Each pytest-xdist process has its own
worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parity_tests.shadowing import shadowing_message

if TYPE_CHECKING:
    from parity_tests.format.selection import Cell
    from parity_tests.judge.divergences import Divergence
    from parity_tests.judge.verdict import Verdict
    from parity_tests.workers.recordings import Recording

MARK = "parity"
OPTIONS = tuple(f"--parity-{name}" for name in ("target", "dtype", "case", "python", "divergences"))
"""The options with a string value."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `attention-parity check`."""
    group = parser.getgroup("attention-parity", "test an implementation of attention against the specification")
    group.addoption("--parity-target", metavar="TARGET", help="module, module:object, file.py or file.py:object")
    group.addoption("--parity-dtype", metavar="DTYPES", default="float64,float32", help="comma-separated dtypes")
    group.addoption("--parity-case", metavar="PATTERN", help="only cases whose id matches this pattern (with * and ?)")
    group.addoption("--parity-python", metavar="PATH", help="run the target with another interpreter")
    group.addoption(
        "--parity-divergences",
        metavar="FILE",
        help="file of known divergences (strict: an entry that no longer diverges fails)",
    )
    group.addoption(
        "--parity-seed", metavar="S", type=int, help="seed of drawn cases (default: derived from the version)"
    )
    group.addoption("--parity-require-all", action="store_true", help="fail if the target lacks any function")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker: `-m parity` selects only cells."""
    config.addinivalue_line("markers", f"{MARK}: a cell of the target of --parity-target")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each cell that the target implements, and for each known divergence."""
    target = config.getoption("--parity-target")
    for name in OPTIONS:
        if config.getoption(name) == "":
            raise pytest.UsageError(f"the value of {name} is empty: omit it, or pass a value")
    if target is not None and (sentence := shadowing_message()):
        raise pytest.UsageError(sentence)
    if target is not None:
        items += Target.from_parent(session, name=target, nodeid=target).collect()


class Target(pytest.Collector):
    """The target, with a worker for the whole session."""

    def collect(self) -> list[pytest.Item]:
        """Collect a test for each cell of an implemented function, or for every cell if all are required."""
        from parity_tests.cases.suite import all_cases
        from parity_tests.format.case import DTYPES
        from parity_tests.format.expected import freeze_cache, in_memory
        from parity_tests.judge.check import job_of, known_divergences
        from parity_tests.judge.divergences import DivergenceError
        from parity_tests.judge.drawn_cells import Abilities, release_seed
        from parity_tests.judge.request import Request
        from parity_tests.judge.run import few
        from parity_tests.workers.process import Server, WorkerFault

        option = self.config.getoption
        dtypes = option("--parity-dtype").split(",")
        if not set(dtypes) <= set(DTYPES):
            raise pytest.UsageError(f"--parity-dtype: expected some of {', '.join(DTYPES)}")
        self.request = request = Request(
            self.name,
            dtypes,
            option("--parity-case"),
            python=option("--parity-python"),
            divergences=option("--parity-divergences"),
            require_all=option("--parity-require-all"),
            seed=release_seed() if option("--parity-seed") is None else option("--parity-seed"),
        )
        job = job_of(self.name, request.python, request.device, self.config.invocation_params.dir)
        cells = request.selection.cells(all_cases())
        cache = ExitStack()
        self.config.add_cleanup(cache.close)
        self.read = cache.enter_context(freeze_cache())  # before the target starts
        self.server = Server(job)
        self.config.add_cleanup(self.server.stop)
        try:
            self.divergences = known_divergences(self.name, job.backend, request.divergences)
            known = Abilities(job.backend).with_functions(self.server.hello())
        except (DivergenceError, WorkerFault) as error:
            trace = getattr(error, "trace", "")
            raise pytest.UsageError(f"{self.name} cannot be judged: {error}\n{trace}".strip()) from error
        requested = [cell for cell in cells if request.require_all or known.has(cell.case.operator, cell.case.method)]
        with in_memory():
            self.drawn = request.drawn_cases(known, self.divergences)
        requested += [judged.cell for judged in self.drawn.values()]
        if not requested:
            raise pytest.UsageError(f"{self.name} implements none of the selected operators")
        self.repeated = {cell.key for cell in few(requested)}
        tests: list[pytest.Item] = [CellTest.from_parent(self, cell=cell) for cell in requested]
        return tests + [DivergenceTest.from_parent(self, entry=entry, cells=requested) for entry in self.divergences]

    def verdicts(self, cell: Cell) -> list[Verdict]:
        """The verdicts on a cell."""

        from parity_tests.judge.check import apply_requirements, is_registered
        from parity_tests.judge.compare import judge_all
        from parity_tests.judge.question import Questions
        from parity_tests.judge.run import recheck
        from parity_tests.workers.recordings import batch_of

        recording: Recording = self.server.answers(batch_of([cell]))
        verdicts = judge_all([cell], [recording], Questions())
        verdicts = list(apply_requirements(verdicts, self.request.require_all, is_registered(self.server.job)))
        if cell.key in self.repeated or any(one.status == "fail" for one in verdicts):
            recheck(self.read, [cell])
        return verdicts


class ParityTest(pytest.Item):
    """A test of the target."""

    parent: Target

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.add_marker(MARK)

    def reportinfo(self) -> tuple[Path, None, str]:
        """The location of the test: the target's name, without a file."""
        return Path(self.parent.name), None, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """The verdicts only: a traceback of the parity tests is not about the target."""
        from parity_tests.judge.run import CacheError

        plain = isinstance(excinfo.value, (Red, CacheError))
        return str(excinfo.value) if plain else str(super().repr_failure(excinfo))


class Red(AssertionError):
    """A cell is red."""


class CellTest(ParityTest):
    """A cell: fails if any verdict is red, and is skipped only if nothing can be compared."""

    def __init__(self, cell: Cell, **given: Any) -> None:
        super().__init__(name=f"{cell.case.id}[{cell.dtype}]", **given)
        self.cell = cell
        self.keywords.update({cell.case.operator: True, cell.dtype: True})

    def runtest(self) -> None:
        """Judge the cell."""
        from parity_tests.reports.table import reproduce

        verdicts = self.parent.verdicts(self.cell)
        known = self.parent.divergences
        red = [one for one in verdicts if one.red and not any(entry.explains(one) for entry in known)]
        if red:
            lines = {one.case.id: repr(one.drawn) for one in self.parent.drawn.values()}
            again = reproduce(red[0], self.parent.request.command, lines)
            raise Red("\n".join([*(f"{one.quantity}: {one.reason}" for one in red), again]))
        if not any(one.is_judged for one in verdicts):
            pytest.skip(verdicts[0].reason)


class DivergenceTest(ParityTest):
    """A known divergence: fails if it no longer diverges, and is skipped if none of its cells is selected."""

    def __init__(self, entry: Divergence, cells: Sequence[Cell], **given: Any) -> None:
        super().__init__(name=f"divergence-{entry.case}-{entry.quantity}[{entry.dtype}]", **given)
        self.entry, self.cells = entry, cells

    def runtest(self) -> None:
        """Look for a verdict that diverges."""
        named = [cell for cell in self.cells if self.entry.names(cell.case.operator, cell.case.id, cell.dtype)]
        verdicts = [verdict for cell in named for verdict in self.parent.verdicts(cell)]
        if not self.entry.asked_for(verdicts):
            pytest.skip("none of its cells is selected")
        if self.entry.stale(verdicts):
            raise Red(f"a known divergence no longer diverges: delete its entry ({self.entry.reason})")
