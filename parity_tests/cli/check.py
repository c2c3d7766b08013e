"""The command `check`, which tests an implementation."""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.text import Text

from attention_core.errors import AttentionError
from backends.archives import ArchiveError, regular_file
from backends.requirements import XLA_LEVEL
from backends.weights import WeightError
from backends.weights.formats import CONFIG
from parity_tests.cli import options, paths
from parity_tests.cli.terminal import (
    Refused,
    cluster,
    console,
    errors,
    progress,
    report_mistakes,
    require_hypothesis,
    signals,
    write_certificate,
    write_json,
    write_pages,
)
from parity_tests.cluster.worker import offers_of
from parity_tests.conversion.conversion import Conversion
from parity_tests.format.drawn import NAMES, parse_drawn
from parity_tests.judge.check import file_of, known_divergences
from parity_tests.judge.divergences import DivergenceError
from parity_tests.judge.drawn_cells import Abilities, LineError, release_seed
from parity_tests.judge.request import Request
from parity_tests.judge.run import CacheError, Run
from parity_tests.models.request import ComparisonRequest
from parity_tests.models.sides import SideError
from parity_tests.reports.certificate import certify
from parity_tests.reports.junit import junit
from parity_tests.reports.table import report, report_campaign, report_finding, reproduce
from parity_tests.workers.adapter import adapter, class_in, framework_of
from parity_tests.workers.environment import PATH, registered_requirements
from parity_tests.workers.process import Server, WorkerFault
from parity_tests.workers.target import split_location


class Target(click.ParamType):
    """The location of an implementation; if it is a file, the command refuses to write to it."""

    name = "target"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The location, unchanged."""
        place, _ = split_location(value)
        package = os.path.isdir(place) and os.sep not in place and file_of(value) is None
        package |= os.path.isfile(os.path.join(place, CONFIG))  # or a model of transformers, which `convert` reads
        try:
            if os.path.lexists(place) and not package:
                regular_file(place)
        except ArchiveError as error:
            self.fail(str(error), param, ctx)
        if file_of(value) is not None:
            paths.claim(Path(place), "read", param, ctx)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Files."""
        return [CompletionItem(incomplete, type="file")]


@click.command(
    short_help="Test an implementation against the specification.",
    epilog=options.examples("check mine.py", "check package.module:attention --operator masked_softmax --fuzz 60"),
)
@click.argument("target", metavar="TARGET", type=Target(), required=False)
@click.option(
    "--init",
    "initial",
    type=click.Choice(NAMES),
    metavar="NAME",
    help="Print a function NAME that calls a class or function of TARGET, as a beginning, and check nothing.",
)
@options.output_file("-o", "--output", "output", help="Write the function of --init to a file.")
@options.cells
@options.device
@options.scheduler
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False),
    metavar="PATH",
    help="Run the target with another interpreter, which needs NumPy, safetensors and the target's dependencies.",
)
@click.option(
    "--divergences",
    type=paths.InputFile(),
    metavar="FILE",
    help="File of known divergences (strict: an entry that no longer diverges fails). Bundled targets have their own.",
)
@click.option(
    "--against",
    type=Target(),
    metavar="TARGET",
    help="Compare with another target instead of the reference, in the cases that both implement.",
)
@click.option("--require-all", is_flag=True, help="Fail if the target lacks any function.")
@options.json_file
@options.pages
@options.junit
@options.certificate
@options.every
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="S",
    help="Seed of the drawn cases; derived from the version by default, and random for --fuzz.",
)
@click.option(
    "--drawn",
    "lines",
    multiple=True,
    metavar="LINE",
    help="Run only this drawn case, as printed for a failure. May be repeated.",
)
@click.option(
    "--fuzz",
    "seconds",
    type=options.SECONDS,
    metavar="SECONDS",
    help="Afterwards, fuzz for SECONDS and minimise each failure to one line.",
)
@click.option("--examples", type=click.IntRange(min=1), metavar="N", help="Stop fuzzing after this many cases.")
def check(
    target: str | None,
    initial: str | None,
    output: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    summary_file: Path | None,
    badge_file: Path | None,
    junit_file: Path | None,
    certificate_file: Path | None,
    every: bool,
    seed: int | None,
    lines: tuple[str, ...],
    seconds: float | None,
    examples: int | None,
    divergences: Path | None,
    against: str | None,
    scheduler: str | None,
    **chosen: Any,
) -> None:
    """Test the outputs and gradients of an implementation against the specification, case by case.

    TARGET is the name of an installed backend, a module, a file.py, or an object in one (module:object or
    file.py:object). It defines functions under the specification's names (`attention-parity list`), which take and
    return NumPy arrays, or arrays of its framework if it has a runtime. It may define any subset of them; the others
    are listed as missing.

    With --scheduler, the workers of a Dask cluster that can import TARGET run it, with each version of its framework.

    Some cases are redrawn in each release, so that an implementation cannot be fitted to them. Exits with 0 if at least
    one case was tested and nothing failed, with 2 if the target cannot be tested, and with 1 otherwise.
    """
    if initial is not None:
        sys.exit(write_adapter(initial, target, output))
    if target is None or output is not None:
        raise click.UsageError("missing argument TARGET" if target is None else "-o requires --init")
    fuzzing = seconds is not None or examples is not None
    if lines and (fuzzing or chosen["pattern"] or chosen["operators"] or chosen["training"] or seed is not None):
        raise click.UsageError("--drawn cannot be combined with --case, --operator, --training, --seed or --fuzz")
    if fuzzing and certificate_file is not None:
        raise click.UsageError("--certificate cannot be combined with --fuzz")
    if against is not None and (fuzzing or lines or divergences or certificate_file or chosen["require_all"]):
        others = "--fuzz, --drawn, --divergences, --certificate or --require-all"
        raise click.UsageError(f"--against cannot be combined with {others}")
    if scheduler is not None and (fuzzing or against or certificate_file or chosen["python"]):
        raise click.UsageError("--scheduler cannot be combined with --fuzz, --against, --certificate or --python")
    if fuzzing:
        require_hypothesis()
    known = None if divergences is None else str(divergences)
    path = os.environ.get(PATH) or None  # of --path, or as the environment says
    try:
        request = Request(target, **chosen, divergences=known, path=path)
        if lines:
            request = replace(request, dtypes=dtypes_of(lines), drawn=lines)
        else:
            request = replace(request, seed=release_seed() if seed is None else seed)
    except ValueError as error:
        raise Refused(str(error)) from error
    run = judge(request, against, scheduler)
    report(run, console, every)
    report_mistakes(run)
    if json_file is not None:
        write_json(run, json_file)
    write_pages(run, html_file, summary_file, badge_file)
    if junit_file is not None:
        paths.write(junit_file, junit(run))
    if certificate_file is not None:
        write_certificate(certify(run, request.certificate_entries, {**request.files, **run.files}), certificate_file)
    differing = fuzzing and fuzz(request, secrets.randbits(32) if seed is None else seed, seconds, examples)
    sys.exit(1 if run.red or differing or not run.is_judged else 0)


def write_adapter(operator: str, target: str | None, output: Path | None) -> int:
    """Print a function of the specification that calls the target, or write it to a file; return the exit code."""
    if target is None:
        source = adapter(operator)
    else:
        place, path = split_location(target)
        made = None if path else class_in(place, operator)
        source = adapter(operator, place, made.__name__ if made else path, framework_of(place), made)
    if output is None:
        click.echo(source, nl=False)
    else:
        paths.write(output, source)
    return 0


Repeatable = Request | Conversion | ComparisonRequest
"""The requests that a certificate may state."""

REFUSED = DivergenceError, LineError, CacheError, ArchiveError, AttentionError, WeightError, SideError, ImportError
"""What is wrong with a request or a target, in words."""


def judge(request: Repeatable, against: str | None = None, scheduler: str | None = None) -> Run:
    """Run a request, here or on a cluster, or compare its target with another; Ctrl-C reports the verdicts so far.

    Raises: Refused if it cannot be judged.
    """
    try:
        with signals() as caught, progress() as report_progress:
            if isinstance(request, Conversion):
                return request.judge(report_progress)
            if isinstance(request, ComparisonRequest):
                return request.compare()[1]
            if against is not None:
                run = request.compare(against, report_progress, lambda: bool(caught))
            elif scheduler is not None:
                with cluster(scheduler, offers_of, request.job, stopped=lambda: bool(caught)) as made:
                    stopped = made.stopped
                    run = request.judge(report_progress, stopped, jobs=made.jobs, recorder=made.record)
                run.command = f"{run.command} --scheduler {shlex.quote(scheduler)}"
            else:
                run = request.judge(report_progress, lambda: bool(caught))
    except REFUSED as error:
        hint = " In options of this command, max_bytes=... is --max-bytes." if "max_bytes=..." in str(error) else ""
        raise Refused(f"{error}{hint}") from error
    except WorkerFault as fault:
        if fault.trace:
            errors.print(Text(fault.trace, style="dim"), soft_wrap=True)
        target = " or ".join(request.sides.values()) if isinstance(request, ComparisonRequest) else request.target
        raise Refused(f"{target} cannot be judged: {fault}") from fault
    if not run.recordings:
        raise Refused("no case matches; `attention-parity list --cases` lists all cases")
    if run.interrupted:
        report(run, console)
        sys.exit(128 + caught[0])
    return run


def dtypes_of(lines: Sequence[str]) -> list[str]:
    """The dtypes of drawn cases.

    Raises: Refused if a line is not a drawn case.
    """
    try:
        return list(dict.fromkeys(parse_drawn(line).dtype for line in lines))
    except ValueError as error:
        raise Refused(str(error)) from error


def fuzz(request: Request, seed: int, seconds: float | None, examples: int | None) -> bool:
    """Run drawn cases on the target until the time or the number of cases is reached; return whether any failed.

    Raises: Refused if its worker cannot start again.
    """
    from parity_tests.fuzz.campaign import Campaign

    job = request.job
    divergences = known_divergences(request.target, job.backend, request.divergences)
    try:
        with default_optimisation(), progress() as report_progress, Server(job) as server:
            report_progress("fuzz", 0, 1, f"starting {job.name}")
            about = server.hello()
            operators = request.drawable(Abilities(job.backend).with_functions(about), divergences)
            # Cases of one shape differ in their numbers alone: they are compiled once.
            compiled = {needed.idiom.title.lower() for needed in registered_requirements() if needed.compiles}
            step = 1 if str(about.get("framework")).lower() in compiled else STEP
            campaign = Campaign([server], seed, step=step, operators=operators, dtypes=request.dtypes)
            for finding in campaign.run(seconds, examples, report_progress) if operators else ():
                again = reproduce(finding.verdict, request.command, {finding.verdict.case: repr(finding.drawn)})
                report_finding(finding, f"{again}  # number {finding.number} of seed {seed}", console)
    except WorkerFault as fault:
        raise Refused(f"{fault}\n{fault.trace}") from fault
    report_campaign(campaign, console)
    return bool(campaign.findings)


STEP = 7
"""Stride between cases: a few of each family (`parity_tests.cases.draw.FAMILY`), since a family shares its shapes."""


@contextmanager
def default_optimisation() -> Iterator[None]:
    """Compile JAX at its default optimisation level: without it, some gradients are 5e-9 instead of 0."""
    before = os.environ.get(XLA_LEVEL)
    os.environ.setdefault(XLA_LEVEL, "3")
    try:
        yield
    finally:
        if before is None:
            del os.environ[XLA_LEVEL]
