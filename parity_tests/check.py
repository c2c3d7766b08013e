"""The commands that judge a stranger's implementation, and that repeat a certificate."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from parity_tests.cases import all_cases
from parity_tests.certificate import Certificate, CertificateError, certify, differences, environment_changes, load
from parity_tests.command import (
    Refused,
    cells_options,
    certificate_option,
    console,
    device_option,
    errors,
    json_option,
    junit_option,
    progress,
    signals,
    write_certificate,
    write_json,
)
from parity_tests.convert import Conversion
from parity_tests.divergences import DivergenceError
from parity_tests.junit import write_junit
from parity_tests.launch import WorkerFault
from parity_tests.recordings import Selection
from parity_tests.report import MOST_RED, report
from parity_tests.run import CacheError, Run
from parity_tests.stranger import check as judged
from parity_tests.stranger import file_of, job_of, known_divergences
from parity_tests.switches import PATH


@dataclass(frozen=True)
class Request:
    """What is asked of a target: all that a run of `check` depends on, but for files and environment."""

    target: str
    tiers: list[str]
    pattern: str | None = None
    operators: tuple[str, ...] = ()
    training: bool = False
    device: str = "cpu"
    python: str | None = None
    divergences: str | None = None
    require_all: bool = False
    path: str | None = None

    @property
    def selection(self) -> Selection:
        """The cells that are asked for."""
        return Selection(self.tiers, self.pattern, self.operators, self.training)

    @property
    def command(self) -> str:
        """The command that asks it, without the options that choose cells."""
        given = [] if self.python is None else ["--python", self.python]
        given += [] if self.divergences is None else ["--divergences", self.divergences]
        given += ["--require-all"] * self.require_all
        return shlex.join(["attention-parity", "check", self.target, *given])

    @property
    def whole_command(self) -> str:
        """The command that asks all of it."""
        given = ["--tier", ",".join(self.tiers)]
        given += [] if self.pattern is None else ["--case", self.pattern]
        given += ["--operator", ",".join(self.operators)] if self.operators else []
        given += ["--training"] * self.training
        given += [] if self.device == "cpu" else ["--device", self.device]
        given += [] if self.path is None else ["--path", self.path]
        return f"{self.command} {shlex.join(given)}"

    @property
    def files(self) -> dict[str, Path]:
        """The files that it names: the target's own, and the known divergences."""
        target = file_of(self.target)
        named = {} if target is None else {target: Path(target)}
        return named if self.divergences is None else {**named, self.divergences: Path(self.divergences)}

    def judge(self) -> Run:
        """Judge the target.

        Raises: Refused if it cannot be.
        """
        cases = self.selection.cases(all_cases(trained=True))
        if not cases:
            raise Refused("no case matches; `attention-parity list --cases` names them all")
        if self.path is not None:
            os.environ[PATH] = self.path
        job = job_of(self.target, self.python, self.device, Path.cwd())
        try:
            divergences = known_divergences(self.target, job.backend, self.divergences)
            with signals() as caught, progress([job.name], len(self.selection.cells(cases))) as moved:
                run = judged(
                    cases,
                    self.tiers,
                    job,
                    require_all=self.require_all,
                    divergences=divergences,
                    progress=moved,
                    stopped=lambda: bool(caught),
                )
        except (DivergenceError, CacheError) as error:
            raise Refused(str(error)) from error
        except WorkerFault as fault:
            errors.print(Text(fault.trace, style="dim"), soft_wrap=True)
            raise Refused(f"{self.target} cannot be judged: {fault}") from fault
        run.command = self.command
        if run.interrupted:
            report(run, console)
            sys.exit(128 + caught[0])
        return run

    def certificate(self, run: Run) -> Certificate:
        """The certificate of the run. It does not say where the interpreter was, which is this machine's affair."""
        asked = {**asdict(replace(self, python=None)), "kind": "check", "other_python": self.python is not None}
        return certify(run, {**asked, "command": replace(self, python=None).whole_command}, self.files)


@click.command(short_help="Judge anybody's implementation.")
@click.argument("target", metavar="TARGET")
@cells_options
@device_option
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False),
    metavar="PATH",
    help="Run the target with another interpreter, whose environment has NumPy, safetensors and what the target needs.",
)
@click.option(
    "--divergences",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Known divergences, each with a reason; one that does not diverge is red. Targets of ours have theirs.",
)
@click.option("--require-all", is_flag=True, help="What the target lacks is red.")
@json_option
@junit_option
@certificate_option
@click.option("--every", is_flag=True, help="Print a row for every operator, however many there are.")
def check(
    target: str,
    tiers: list[str],
    pattern: str | None,
    operators: list[str] | None,
    training: bool,
    device: str,
    python: str | None,
    divergences: str | None,
    require_all: bool,
    json_file: Path | None,
    junit_file: Path | None,
    certificate_file: Path | None,
    every: bool,
) -> None:
    """Hold an implementation against the specification: its outputs and gradients, case by case.

    TARGET is an installed backend's name, a module, a file.py, or an object in one, as module:object or file.py:object.
    It has functions under the specification's names (`attention-parity list`), which take and return NumPy arrays, or
    arrays of its framework if it has a runtime. It may have any of them: what it lacks is listed as missing.

    Exits with 0 only if something was judged and nothing is red, and with 2 if the target cannot be judged.
    """
    chosen = tuple(operators or ())
    path = os.environ.get(PATH) or None  # of --path, or as the environment says
    request = Request(target, tiers, pattern, chosen, training, device, python, divergences, require_all, path)
    run = request.judge()
    report(run, console, every)
    if json_file is not None:
        write_json(run, json_file)
    if junit_file is not None:
        write_junit(run, junit_file)
    if certificate_file is not None:
        write_certificate(request.certificate(run), certificate_file)
    sys.exit(1 if run.red or not run.judged else 0)


@click.command(short_help="Repeat what a certificate states.")
@click.argument("certificate", metavar="CERTIFICATE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--python",
    "pythons",
    metavar="[NAME=]PATH",
    multiple=True,
    help="Run a target, or a framework by name, with another interpreter, as when it was certified.",
)
def verify(certificate: Path, pythons: tuple[str, ...]) -> None:
    """Run what a certificate states again, from the same folder, and compare: inputs, files, and every verdict.

    It may be one of `check` or of `convert`, which proves again and writes nothing. Other versions are told, and are no
    fault; neither is another rounding within the budgets.
    Exits with 0 only if all is as certified, and with 2 if the file is no certificate or cannot be repeated.
    """
    try:
        before = load(certificate)
        request = request_of(before["request"], pythons)
    except CertificateError as error:
        raise Refused(str(error)) from error
    after = request.certificate(request.judge())
    for line in environment_changes(before, after):
        console.print(Text(f"other       {line}", style="yellow"), soft_wrap=True)
    told = differences(before, after)
    for line in told[:MOST_RED]:
        console.print(Text(f"differs     {line}", style="bold red"), soft_wrap=True)
    if told[MOST_RED:]:
        console.print(f"            ... and {len(told) - MOST_RED} more")
    count, outcome = len(before["verdicts"]), before["outcome"]
    if told:
        console.print(Text(f"not verified {certificate}: {len(told)} differences", style="bold red"), soft_wrap=True)
        sys.exit(1)
    words = f"verified    {certificate}: {outcome}, {count:,} verdicts as certified {before['made']}"
    console.print(Text(words, style="bold green"), soft_wrap=True)


KINDS: dict[str, type[Request | Conversion]] = {"check": Request, "convert": Conversion}
"""What a certificate may be of."""


def request_of(asked: Mapping[str, Any], pythons: tuple[str, ...]) -> Request | Conversion:
    """The request that a certificate holds.

    Raises: CertificateError if it holds none.
    """
    kind = KINDS.get(asked.get("kind", ""))
    if kind is None:
        raise CertificateError(f"the certificate is of {asked.get('kind')!r}, which `verify` cannot repeat")
    if asked.get("other_python") and not pythons:
        raise CertificateError("it was certified with another interpreter: give one with --python")
    own = {name: value for name, value in asked.items() if name not in ("kind", "command", "other_python")}
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
    try:
        if kind is Conversion:
            return Conversion(**{**own, "pythons": pythons})
        return Request(**{**own, "tiers": list(own.get("tiers", ())), "python": pythons[0] if pythons else None})
    except TypeError as error:
        raise CertificateError(f"the certificate asks for something else: {error}") from error
