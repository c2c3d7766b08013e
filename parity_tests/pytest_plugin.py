"""A plugin for pytest: every cell of a target is a test.

    pytest --parity-target mypackage.attention -k masked_softmax

It is there once attention-parity is installed, and does nothing unless a target is given. Each process of pytest-xdist
has a worker of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from parity_tests.shadowing import shadowed

if TYPE_CHECKING:
    from parity_tests.cases.selection import Cell
    from parity_tests.judge.divergences import Divergence
    from parity_tests.judge.verdict import Verdict
    from parity_tests.workers.recordings import Recording

MARK = "parity"
OPTIONS = tuple(f"--parity-{name}" for name in ("target", "dtype", "case", "python", "divergences"))
"""The options that take a text."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the options of `attention-parity check`."""
    group = parser.getgroup("attention-parity", "judge an implementation of attention against the specification")
    group.addoption("--parity-target", metavar="TARGET", help="module, module:object, file.py or file.py:object")
    group.addoption("--parity-dtype", metavar="DTYPES", default="float64,float32", help="dtypes, with commas")
    group.addoption("--parity-case", metavar="PATTERN", help="only cases whose id matches, with * and ?")
    group.addoption("--parity-python", metavar="PATH", help="run the target with another interpreter")
    group.addoption("--parity-divergences", metavar="FILE", help="known divergences; each has to diverge")
    group.addoption("--parity-seed", metavar="S", type=int, help="draw cases by this seed, not by the version")
    group.addoption("--parity-require-all", action="store_true", help="what the target lacks fails")


def pytest_configure(config: pytest.Config) -> None:
    """Name the mark: `-m parity` chooses cells alone."""
    config.addinivalue_line("markers", f"{MARK}: a cell of the target that --parity-target names")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add a test for each cell that the target implements, and for each known divergence."""
    target = config.getoption("--parity-target")
    for name in OPTIONS:
        if config.getoption(name) == "":
            raise pytest.UsageError(f"the value of {name} is empty: leave it out, or give a value")
    if target is not None and (sentence := shadowed()):
        raise pytest.UsageError(sentence)
    if target is not None:
        items += Target.from_parent(session, name=target, nodeid=target).collect()


class Target(pytest.Collector):
    """The target, with a worker that answers as long as the session lasts."""

    def collect(self) -> list[pytest.Item]:
        """A test for each cell of a function that is there, or for every cell where all is required."""
        from parity_tests.cases.case import DTYPES
        from parity_tests.cases.expected import held, in_memory
        from parity_tests.cases.suite import all_cases
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
        self.read = cache.enter_context(held(cells))  # before the target starts
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
            raise pytest.UsageError(f"{self.name} implements nothing that was asked for")
        self.repeated = {cell.key for cell in few(requested)}
        tests: list[pytest.Item] = [CellTest.from_parent(self, cell=cell) for cell in requested]
        return tests + [DivergenceTest.from_parent(self, entry=entry, cells=requested) for entry in self.divergences]

    def verdicts(self, cell: Cell) -> list[Verdict]:
        """What is found for a cell."""

        from parity_tests.judge.check import is_registered, required
        from parity_tests.judge.compare import judge_all
        from parity_tests.judge.question import Questions
        from parity_tests.judge.run import recheck
        from parity_tests.workers.recordings import batch_of

        recording: Recording = self.server.answers(batch_of([cell]))
        verdicts = judge_all([cell], [recording], Questions())
        verdicts = list(required(verdicts, self.request.require_all, is_registered(self.server.job)))
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
        """Where the test is, for pytest: nowhere but under the target's name."""
        return Path(self.parent.name), None, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """The verdicts alone: a trace of the judge says nothing about the target."""
        from parity_tests.judge.run import CacheError

        plain = isinstance(excinfo.value, (Red, CacheError))
        return str(excinfo.value) if plain else str(super().repr_failure(excinfo))


class Red(AssertionError):
    """A cell is red."""


class CellTest(ParityTest):
    """A cell: it fails if anything of it is red, and is skipped only if nothing of it can be judged."""

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
        if not any(one.judged for one in verdicts):
            pytest.skip(verdicts[0].reason)


class DivergenceTest(ParityTest):
    """A known divergence: it fails once it does not diverge any longer; it is skipped if no cell of it is requested."""

    def __init__(self, entry: Divergence, cells: Sequence[Cell], **given: Any) -> None:
        super().__init__(name=f"divergence-{entry.case}-{entry.quantity}[{entry.dtype}]", **given)
        self.entry, self.cells = entry, cells

    def runtest(self) -> None:
        """Look for one verdict that diverges."""
        named = [cell for cell in self.cells if self.entry.names(cell.case.operator, cell.case.id, cell.dtype)]
        verdicts = [verdict for cell in named for verdict in self.parent.verdicts(cell)]
        if not self.entry.asked_for(verdicts):
            pytest.skip("none of its cells is requested")
        if self.entry.stale(verdicts):
            raise Red(f"a known divergence that does not diverge: delete its entry ({self.entry.reason})")
