"""The command that judges a stranger's implementation."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click
from rich.text import Text

from parity_tests.cases import all_cases
from parity_tests.command import (
    Refused,
    cells_options,
    console,
    device_option,
    errors,
    json_option,
    junit_option,
    progress,
    signals,
    write_json,
)
from parity_tests.divergences import DivergenceError, load_divergences
from parity_tests.invocation import TRAINING
from parity_tests.junit import write_junit
from parity_tests.launch import WorkerFault
from parity_tests.recordings import Selection
from parity_tests.report import report
from parity_tests.stranger import check as judged
from parity_tests.stranger import job_of


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
    "divergences_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Known divergences, each with a reason; one that does not diverge is red.",
)
@click.option("--require-all", is_flag=True, help="What the target lacks is red.")
@json_option
@junit_option
@click.option("--every", is_flag=True, help="Print a row for every operator, however many there are.")
def check(
    target: str,
    tiers: list[str],
    pattern: str | None,
    operators: list[str] | None,
    training: bool,
    device: str,
    python: str | None,
    divergences_file: Path | None,
    require_all: bool,
    json_file: Path | None,
    junit_file: Path | None,
    every: bool,
) -> None:
    """Hold an implementation against the specification: its outputs and gradients, case by case.

    TARGET is an installed backend's name, a module, a file.py, or an object in one, as module:object or file.py:object.
    It has functions under the specification's names (`attention-parity list`), which take and return NumPy arrays, or
    arrays of its framework if it has a runtime. It may have any of them: what it lacks is listed as missing.

    Exits with 0 only if something was judged and nothing is red.
    """
    selection = Selection(tiers, pattern, operators or (), training or TRAINING in (operators or ()))
    cases = selection.cases(all_cases(trained=True))
    if not cases:
        raise click.ClickException("no case matches; `attention-parity list --cases` names them all")
    job = job_of(target, python, device, Path.cwd())
    try:
        divergences = load_divergences(divergences_file, job.backend) if divergences_file else []
        with signals() as caught, progress([job.name], len(selection.cells(cases))) as moved:
            outcome = judged(
                cases,
                tiers,
                job,
                require_all=require_all,
                divergences=divergences,
                progress=moved,
                stopped=lambda: bool(caught),
            )
    except DivergenceError as error:
        raise Refused(str(error)) from error
    except WorkerFault as fault:
        errors.print(Text(fault.trace, style="dim"), soft_wrap=True)
        raise Refused(f"{target} cannot be judged: {fault}") from fault
    given = [] if python is None else ["--python", python]
    given += [] if divergences_file is None else ["--divergences", str(divergences_file)]
    outcome.command = shlex.join(["attention-parity", "check", target, *given])
    report(outcome, console, every)
    if json_file is not None:
        write_json(outcome, json_file)
    if junit_file is not None:
        write_junit(outcome, junit_file)
    if outcome.interrupted:
        sys.exit(128 + caught[0])
    sys.exit(1 if outcome.red or not outcome.judged else 0)
