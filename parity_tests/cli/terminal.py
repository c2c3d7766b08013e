"""Output of the commands: the console, progress bars, refusals, exit codes and result files."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from parity_tests.cli import paths
from parity_tests.cluster.client import Cluster, ClusterError
from parity_tests.cluster.worker import Offers
from parity_tests.judge.run import Run
from parity_tests.mutants.explain import explanations_of
from parity_tests.reports.certificate import Certificate, contents
from parity_tests.reports.ci_summary import badge, markdown
from parity_tests.translation.corpus import Pair, read_corpus
from parity_tests.workers.process import WAITING, Progress, Stopped

console = Console()
errors = Console(stderr=True)


class Refused(click.ClickException):
    """The input cannot be judged."""

    exit_code = 2


def require_hypothesis() -> None:
    """Refuse to fuzz without hypothesis, which shrinks what differs.

    Raises: ClickException if it is not installed.
    """
    if find_spec("hypothesis") is None:
        raise click.ClickException("fuzzing needs hypothesis. Run: pip install hypothesis")


@contextmanager
def cluster(
    scheduler: str, ask: Callable[..., Offers], *arguments: Any, stopped: Stopped = lambda: False
) -> Iterator[Cluster]:
    """The workers of a scheduler that are asked for this (`cluster.worker`); print those that cannot be used.

    Raises: Refused if there are none.
    """
    try:
        with Cluster(scheduler, (ask, arguments), stopped) as made:
            for name, reason in made.reasons.items():
                if "://" in name:
                    errors.print(Text(f"not used    {name}: {reason}", style="yellow"), soft_wrap=True)
            yield made
    except ClusterError as error:
        raise Refused(str(error)) from error


def pairs_in(corpus: Path) -> list[Pair]:
    """Read the sentence pairs of a file; report skipped lines on standard error.

    Raises: CorpusError.
    """
    content = read_corpus(corpus)
    if content.warning:
        click.echo(f"{corpus}: {content.warning}", err=True)
    return content.pairs


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying of them, so that workers are ended and folders deleted in order."""
    caught: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: caught.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def bars() -> Bars:
    """Progress bars on standard error, removed when done; print nothing if standard error is not a terminal."""
    bar = min(40, errors.width // 8)
    rest = max(8, errors.width - bar - 50)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=bar),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}", justify="right"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        TextColumn("{task.fields[doing]}", table_column=Column(no_wrap=True, overflow="ellipsis", max_width=rest)),
    )
    # What is printed meanwhile goes above the bars, or to the file that standard output is.
    seen, above = errors.is_terminal, console.is_terminal
    return Bars(*columns, console=errors, transient=True, disable=not seen, redirect_stdout=above)


@contextmanager
def progress(lines: bool = True) -> Iterator[Progress]:
    """Show the progress of each part on standard error until the context ends.

    Each part has a bar with the completed and total counts, the elapsed and remaining time, and the current item. If
    standard error is not a terminal, print one line for each finished part, unless the command does so itself.
    """
    with bars() as shown:
        tasks: dict[str, TaskID] = {}

        def report(part: str, done: int, of: int, doing: str = "") -> None:
            if part not in tasks:
                tasks[part] = shown.add_task(part, start=False, total=of, doing=doing)
            if doing != WAITING:
                shown.start_task(tasks[part])
            shown.update(tasks[part], completed=done, total=of, doing=doing)
            if lines and done >= of and not doing and shown.disable:
                line = f"finished    {part}: {done:,} of {of:,} in {shown.tasks[tasks[part]].elapsed or 0.0:.0f} s"
                errors.print(Text(line), soft_wrap=True)

        yield report


def write_certificate(certificate: Certificate, path: Path) -> None:
    """Write a certificate and print its path."""
    for file, content in contents(certificate, path).items():
        paths.write(file, content)
    console.print(Text(f"certified   {path}, {path.with_suffix('.md')}"), soft_wrap=True)


def report_mistakes(run: Run) -> None:
    """Name the known mistakes that the wrong answers of a run look like, behind its verdict, and print them."""
    run.explanations = explanations_of(run)
    for known in run.explanations:
        console.print(Text(f"looks like  {known.operator}: {known.sentence}", style="bold"), soft_wrap=True)
        console.print(Text(f"            {known.counts}", style="dim"), soft_wrap=True)


def write_json(outcome: Run, path: Path) -> None:
    """Write every verdict to a file."""
    paths.write(path, json.dumps(outcome.as_json(), indent=1, allow_nan=False) + "\n")


def write_pages(outcome: Run, html_file: Path | None, summary_file: Path | None, badge_file: Path | None) -> None:
    """Write the report, the summary and the badge that were requested."""
    if html_file is not None:
        from parity_tests.reports.html_report import page  # needs Jinja2

        paths.write(html_file, page(outcome))
        console.print(Text(f"written     {html_file}"), soft_wrap=True)
    if summary_file is not None:
        paths.write(summary_file, markdown(outcome))
    if badge_file is not None:
        paths.write(badge_file, badge(outcome))
