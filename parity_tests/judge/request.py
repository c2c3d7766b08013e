"""A run of `check` as data: equal requests give equal verdicts."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from attention_core.errors import PATHS
from backends.schema import clean
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import DTYPES
from parity_tests.format.drawn import NAMES
from parity_tests.format.expected import in_memory
from parity_tests.format.families import OPERATORS
from parity_tests.format.selection import Selection
from parity_tests.judge.against import check_against
from parity_tests.judge.check import check as judged
from parity_tests.judge.check import job_of, known_divergences
from parity_tests.judge.condition import Judged
from parity_tests.judge.divergences import Divergence
from parity_tests.judge.drawn_cells import Abilities, given_cases, release_cases
from parity_tests.judge.run import Recorder, Run
from parity_tests.workers.environment import PATH
from parity_tests.workers.process import Job, Progress, Server, Stopped, record, untold
from parity_tests.workers.recordings import Recording
from parity_tests.workers.target import function_name

DEVICE = r"(cpu|cuda)(:[1-9][0-9]*)?"
"""The pattern of device names."""


@dataclass(frozen=True)
class Request:
    """The parameters of a run of `check`, except for files and environment."""

    target: str
    dtypes: list[str]
    pattern: str | None = None
    operators: tuple[str, ...] = ()
    training: bool = False
    device: str = "cpu"
    python: str | None = None
    divergences: str | None = None
    require_all: bool = False
    path: str | None = None
    seed: int | None = None
    """The seed of drawn cases; None for no drawn cases."""
    drawn: tuple[str, ...] = ()
    """The lines of drawn cases; if there are any, only these are run."""

    def __post_init__(self) -> None:
        for name, given, known in (("dtypes", self.dtypes, DTYPES), ("operators", self.operators, OPERATORS)):
            if unknown := [one for one in given if one not in known]:
                raise ValueError(f"{name}: {clean(unknown[0])}, expected some of {', '.join(known)}")
        if not self.dtypes:
            raise ValueError(f"dtypes: none, expected some of {', '.join(DTYPES)}")
        if re.fullmatch(DEVICE, self.device) is None:
            raise ValueError(f"device: {clean(self.device)}, expected cpu, cuda, or an index such as cuda:1")
        if self.path not in (*PATHS, None):
            raise ValueError(f"path: {clean(self.path)}, expected one of {', '.join(PATHS)}")
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"seed: {clean(self.seed)}, expected 0 or more")

    @property
    def selection(self) -> Selection:
        """The selected cells."""
        return Selection(self.dtypes, self.pattern, self.operators, self.training)

    @property
    def command(self) -> str:
        """The command of this request, without the options that select cells."""
        given = [] if self.python is None else ["--python", self.python]
        given += [] if self.divergences is None else ["--divergences", self.divergences]
        given += ["--require-all"] * self.require_all
        return shlex.join(["attention-parity", "check", self.target, *given])

    @property
    def whole_command(self) -> str:
        """The full command of this request."""
        given = [] if self.drawn else ["--dtype", ",".join(self.dtypes)]
        given += [word for line in self.drawn for word in ("--drawn", line)]
        given += [] if self.seed is None else ["--seed", str(self.seed)]
        given += [] if self.pattern is None else ["--case", self.pattern]
        given += ["--operator", ",".join(self.operators)] if self.operators else []
        given += ["--training"] * self.training
        given += [] if self.device == "cpu" else ["--device", self.device]
        given += [] if self.path is None else ["--path", self.path]
        return f"{self.command} {shlex.join(given)}"

    @property
    def listed_files(self) -> dict[str, str]:
        """The files that are read beside the target, by argument."""
        return {} if self.divergences is None else {"divergences": self.divergences}

    @property
    def files(self) -> dict[str, Path]:
        """The file of known divergences, if there is one; a run has the files of the target (`Run.files`)."""
        return {path: Path(path) for path in self.listed_files.values()}

    def judge(
        self,
        progress: Progress = untold,
        stopped: Stopped = lambda: False,
        *,
        jobs: Sequence[Job] = (),
        recorder: Recorder | None = None,
    ) -> Run:
        """Test the target until `stopped` returns True.

        jobs are the target's on a cluster, and recorder runs them; by default, it runs here.

        Raises: DivergenceError, LineError, CacheError, WorkerFault.
        """
        cases = [] if self.drawn else self.selection.cases(all_cases(trained=True))
        if self.path is not None:
            os.environ[PATH] = self.path
        divergences = known_divergences(self.target, self.job.backend, self.divergences)
        chosen = () if self.require_all else cases
        functions = dict.fromkeys(function_name(case.operator, case.method) for case in chosen)
        with in_memory():
            given = given_cases(self.drawn)
        run = judged(
            cases,
            self.dtypes,
            jobs or [self.job],
            drawn=lambda recording: given or self.drawn_cases(self.abilities(recording), divergences),
            require_all=self.require_all,
            divergences=divergences,
            progress=progress,
            recorder=recorder or partial(record, stopped=stopped, functions=functions),
            stopped=stopped,
        )
        run.command, run.seed = self.command, self.seed
        return run

    def compare(self, other: str, progress: Progress = untold, stopped: Stopped = lambda: False) -> Run:
        """Compare the target with another one on the selected cells.

        Raises: WorkerFault.
        """
        jobs = self.job, job_of(other, self.python, self.device, Path.cwd())
        cases = self.selection.cases(all_cases(trained=True))
        run = check_against(cases, self.dtypes, jobs, progress=progress, stopped=stopped)
        run.command = shlex.join([*shlex.split(self.command), "--against", other])
        return run

    @property
    def job(self) -> Job:
        """The job that runs the target."""
        return job_of(self.target, self.python, self.device, Path.cwd())

    def abilities(self, recording: Recording) -> Abilities:
        """What the target implements, from its recording, or from its worker if the recording is empty."""
        known = Abilities.of(recording)
        if recording.about:
            return known
        with Server(self.job) as server:
            return known.with_functions(server.hello())

    def drawn_cases(self, known: Abilities, divergences: Sequence[Divergence]) -> dict[str, Judged]:
        """The drawn cases, by cell, that the target implements."""
        if self.seed is None:
            return {}
        return release_cases(self.seed, self.dtypes, self.drawable(known, divergences), known, self.pattern)

    def drawable(self, known: Abilities, divergences: Sequence[Divergence]) -> list[str]:
        """The operators of drawn cases: selected, implemented by the target, and without a known divergence.

        It cannot be decided whether a drawn case shows a known divergence.
        """
        entries = [entry for entry in divergences if fnmatchcase(known.backend, entry.backend)]
        diverging = {
            case.operator
            for case in (all_cases().select(operators=self.operators) if entries else ())
            if any(entry.names(case.operator, case.id, dtype) for entry in entries for dtype in case.dtypes)
        }
        return known.drawable([name for name in self.operators or NAMES if name not in diverging])

    @property
    def certificate_entries(self) -> dict[str, Any]:
        """The entries of a certificate: all fields except the path of the interpreter, which is local to a machine."""
        portable = replace(self, python=None)
        kind = {"kind": "check", "other_python": self.python is not None}
        return {**asdict(portable), **kind, "command": portable.whole_command}
