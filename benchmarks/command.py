"""The command `python -m benchmarks`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import groupby
from pathlib import Path

import click
from rich.table import Column, Table
from rich.text import Text

from backends import FRAMEWORKS
from backends.requirements import XLA_LEVEL
from benchmarks import charts, runner
from benchmarks import page as pages
from benchmarks.items import ITEMS, LENGTH
from parity_tests.cli import options, paths
from parity_tests.cli.terminal import console, progress
from parity_tests.folders import Folder

COLOURS = {True: "green", False: "yellow", None: ""}


@click.command(
    context_settings=options.SETTINGS,
    epilog=options.examples(
        "--quick", "--item additive,dot --framework torch --json ratios.json", program="python -m benchmarks"
    ),
)
@click.option(
    "--item",
    "names",
    type=options.CommaList((*ITEMS, LENGTH)),
    metavar="NAMES",
    default=",".join(ITEMS),
    help=f"Comma-separated items, of {', '.join(ITEMS)}, {LENGTH} (default: all but the last).",
)
@click.option(
    "--framework",
    "frameworks",
    type=options.CommaList(FRAMEWORKS),
    metavar="NAMES",
    help="Comma-separated frameworks (default: all installed).",
)
@click.option("--quick", is_flag=True, help="Use small sizes and few rounds; the ratios have no target.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    help=f"Rounds of each ratio (default: {runner.ROUNDS}, or {runner.QUICK_ROUNDS} with --quick).",
)
@click.option(
    "--against",
    "checkout",
    type=Path,
    metavar="FOLDER",
    help="Another checkout of this project to measure against, instead of third-party code.",
)
@click.option(
    "--threads",
    type=click.IntRange(min=2),
    help="Measure this library with so many threads against one, on as many cores, instead of third-party code.",
)
@options.device
@options.output_file("--json", "json_file", help="Write every ratio to a file.")
@options.output_file(
    "--chart", type=paths.Picture(), help="Plot the ratios, or time and memory over the length, to a file."
)
@options.html_file
@options.output_file("--page", help="Write the table into a Markdown page.")
def bench(
    names: list[str],
    frameworks: list[str] | None,
    quick: bool,
    rounds: int | None,
    checkout: Path | None,
    threads: int | None,
    device: str,
    json_file: Path | None,
    chart: Path | None,
    html_file: Path | None,
    page: Path | None,
) -> None:
    """Benchmark this library's layers against textbook implementations, the frameworks' own layers, and toolkits.

    Both implementations have the same parameters and inputs, and are timed only if their outputs and gradients agree;
    they are then timed alternately in one process on one core. A ratio is theirs / ours, the median of the rounds.
    With --against, two versions of this library are timed alternately in fresh processes, and their outputs are not
    compared; with --threads, two numbers of threads. Exits with 0 only if every ratio of the selected frameworks was
    measured; a missed target is reported but is not an error, and a toolkit that is not installed is reported and left
    out. Ctrl-C ends the benchmark; the ratios measured so far are printed and written.
    """
    if checkout is not None and threads is not None:
        raise click.UsageError("--against cannot be combined with --threads")
    if LENGTH in names and (checkout is not None or threads is not None):
        raise click.UsageError(f"--against and --threads compare the other items: leave {LENGTH} out")
    if threads is not None and threads > (cores := len(os.sched_getaffinity(0))):
        raise click.BadParameter(f"this process may run on {cores} cores", param_hint="--threads")
    os.environ.setdefault(XLA_LEVEL, "3")  # what JAX takes by itself
    items = [ITEMS[name] for name in names if name != LENGTH]
    with progress() as report, ExitStack() as stack:
        packages = None
        if checkout is not None:
            packages = stack.enter_context(other_packages(checkout))
            items = [item.against(str(checkout)) for item in items]
        elif threads is not None:
            items = [item.against_one_thread(threads) for item in items]
        measured = runner.bench(
            items,
            frameworks or FRAMEWORKS,
            rounds=rounds,
            quick=quick,
            lengths=LENGTH in names,
            device=device,
            packages=packages,
            threads=threads or 1,
            progress=report,
        )
    print_bench(measured)
    if json_file is not None:
        paths.write(json_file, json.dumps(measured.as_json(), indent=1) + "\n")
    if html_file is not None:
        from benchmarks import report as reports  # needs Jinja2

        paths.write(html_file, reports.page(measured))
    if page is not None:
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        paths.write(page, pages.with_table(text, measured))
    if chart is not None:
        paths.draw(charts.chart(measured), chart)
    missing = set(measured.missing) & set(frameworks) if frameworks else set(FRAMEWORKS) <= set(measured.missing)
    sys.exit(128 + signal.SIGINT if measured.interrupted else 1 if measured.refused_rows or missing else 0)


@contextmanager
def other_packages(checkout: Path) -> Iterator[str]:
    """A folder with the packages of a checkout that are measured, and not those that measure."""
    with Folder() as folder:
        for name in ("attention_core", "backends"):
            if not (checkout / name).is_dir():
                raise click.BadParameter(f"there is no folder {checkout / name}", param_hint="--against")
            (Path(folder) / name).symlink_to((checkout / name).absolute())
        yield folder


def print_ratios(rows: Sequence[runner.Row]) -> None:
    """Print the ratios against one implementation, with the same column widths for all of them."""
    widths = {"ratio": 5, "quartiles": 13, "10⁹/s": 5}
    figures = (Column(name, justify="right", no_wrap=True, min_width=width) for name, width in widths.items())
    table = Table(Column(min_width=18), *figures, "goal", box=None, header_style="dim", pad_edge=False)
    for row in (row for row in rows if not row.refused):
        ratio, spread, rate, goal, reached = pages.numbers(row)
        goal += {"yes": " ✓", "no": " ✗", "": ""}[reached]
        table.add_row(*map(Text, (pages.direction(row), ratio, spread, rate, goal)), style=COLOURS[row.is_reached])
    if table.row_count:
        console.print(table)
    for row in rows:
        if row.tokens_per_second is not None:
            console.print("tokens/s: {:,.0f}, theirs {:,.0f}".format(*row.tokens_per_second), highlight=False)
    for row in (row for row in rows if row.refused):
        console.print(Text(f"{pages.direction(row)}: {row.refused}", style="red"), soft_wrap=True)


def print_bench(measured: runner.Bench) -> None:
    """Print a table of ratios for each implementation, a table of lengths, the missing ratios and the machine."""
    for (item, framework, against), rows in groupby(measured.rows, lambda row: (row.item, row.framework, row.against)):
        name = against.removeprefix(f"{framework} ")
        console.print(Text(f"{item} in {framework}, against {name}", style="bold"), soft_wrap=True)
        print_ratios(list(rows))
    if measured.rows:
        console.print("theirs / ours: median of the rounds, and their quartiles")
    if measured.lengths:
        figures = (Column(name, justify="right") for name in ("length", "seconds", "growth", "MiB"))
        caption = "a training step of additive attention, 1 × length × length × 256"
        table = Table("framework", "form", *figures, header_style="bold", caption=caption)
        for at in measured.lengths:
            table.add_row(at.framework, at.form, str(at.length), *map(Text, pages.length_figures(at)))
        console.print(table)
    for name, reason in measured.missing.items():
        console.print(Text(f"not measured: {name}: {reason}"), soft_wrap=True)
    console.print(Text(pages.place(measured)), soft_wrap=True)
