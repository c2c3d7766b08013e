"""The commands that print the specification, the cases and the source."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

import backends as registry
from attention_core.operators import ENTRIES, find
from attention_core.specification import Layer
from parity_tests.cases.suite import all_cases
from parity_tests.cli import options, paths
from parity_tests.cli.terminal import Refused, console
from parity_tests.format.call import TRAINING, read_by
from parity_tests.format.case import Case
from parity_tests.format.expected import expected_values
from parity_tests.judge import tolerances
from parity_tests.judge.reports import ReportError, measured_by, verdicts_of
from parity_tests.reports import operators_page, side_by_side
from parity_tests.workers.answers import harmless

MOST_SHOWN = 200
"""The maximum number of printed characters of a location in a report."""


@click.command(
    "backends",
    short_help="List the backends and whether they can run.",
    epilog=options.examples("backends", "backends | grep jax"),
)
def list_backends() -> None:
    """List the registered backends and whether they can run, with versions and device."""
    table = Table("backend", "module", "versions", "can run", header_style="bold")
    for backend in registry.available().values():
        versions = ", ".join(f"{name} {version}" for name, version in backend.versions.items())
        table.add_row(
            backend.name,
            backend.module,
            versions or "·",
            "[green]yes[/]" if backend.reason is None else f"[yellow]{escape(backend.reason)}[/]",
        )
    console.print(table)


@click.command(
    "list",
    short_help="List all operators with formula and source.",
    epilog=options.examples("list", "list --cases | grep GRU"),
)
@click.option("--cases", "with_cases", is_flag=True, help="Also list the cases of each operator.")
def list_operators(with_cases: bool) -> None:
    """List all operators and layers with formula, source and number of cases."""
    cases = all_cases(trained=True)
    for entry in ENTRIES:
        chosen = cases.select(operators=[entry.name])
        console.print(f"[bold]{entry.name}[/]({escape(entry.signature)})  [dim]{len(chosen)} cases[/]")
        print_indented(f"{escape(entry.summary)}\n[cyan]{escape(entry.formula)}[/]\n[dim]{entry.source}[/]")
        if with_cases:
            _print_cases(chosen)
    rest = cases.select(operators=[TRAINING])
    console.print(
        f"[bold]{TRAINING}[/]  [dim]{len(rest)} cases[/]\n    Training runs of translators, enabled by --training."
    )
    if with_cases:
        _print_cases(rest)


def print_indented(markup: str, by: int = 4) -> None:
    """Print lines with a margin, which wrapped lines keep."""
    console.print(Padding(markup, (0, 0, 0, by)), highlight=False)


def _print_cases(cases: list[Case]) -> None:
    for case in cases:
        console.print(f"        {case.id:<38} [dim]{escape(case.shows)}[/]", highlight=False)


@click.command(
    short_help="Write a side-by-side view of two backends as HTML.",
    epilog=options.examples("diff scoring torch jax", "diff decoders tf mxnet -o decoders.html"),
)
@click.argument("file", metavar="FILE")
@click.argument("left", metavar="BACKEND", shell_complete=options.complete_backend)
@click.argument("right", metavar="BACKEND", shell_complete=options.complete_backend)
@options.output_file(
    "-o",
    "--output",
    "target",
    metavar="PAGE",
    help="Output file (default: FILE-BACKEND-BACKEND.html).",
)
def diff(file: str, left: str, right: str, target: Path | None) -> None:
    """Write an HTML page that shows one file of two backends side by side.

    FILE is a file that both backends have, such as masking, scoring, attention, decoders or blocked/additive. The
    frameworks need not be installed.
    """
    target = target or Path(f"{file.replace('/', '-')}-{left}-{right}.html")
    try:
        sources = (side_by_side.source(left, file), side_by_side.source(right, file))
    except side_by_side.NoSource as error:
        raise Refused(str(error)) from error
    paths.check_output(target)
    paths.write(target, side_by_side.page(file, (left, right), sources))
    console.print(Text(f"written     {target}"), soft_wrap=True)


@click.command(
    "operators",
    short_help="Print the operator reference with porting pitfalls.",
    epilog=options.examples("operators", "operators > operators.md"),
)
def print_operators() -> None:
    """Print formula, shapes, parameters, calls and porting pitfalls of each operator, as Markdown."""
    click.echo(operators_page.page(), nl=False)


@click.command(
    short_help="Show a case and its expected outputs.",
    epilog=options.examples("show masked_softmax-fully_masked", "show GRU-ragged --values"),
)
@click.argument("case_id", metavar="CASE", shell_complete=options.complete_case)
@click.option("--values", is_flag=True, help="Also print the arrays.")
def show(case_id: str, values: bool) -> None:
    """Show a case: formula, source, shapes and expected outputs."""
    case = all_cases(trained=True).find(case_id)
    if case is None:
        raise Refused(f"no case {case_id!r}; `attention-parity list --cases` lists all cases")
    console.print(f"[bold]{case.id}[/]  {escape(case.shows)}", highlight=False)
    if case.operator != TRAINING:
        entry = find(case.operator)
        called = entry.method(read_by(case.method) if case.method else "call") if isinstance(entry, Layer) else entry
        print_indented(f"[cyan]{escape(called.formula)}[/]\n[dim]{entry.source}[/]")
    arguments = {**case.config, **case.options}
    if arguments:
        print_indented(escape(", ".join(f"{name}={value}" for name, value in arguments.items())))
    columns = ("what", "name", "shape", "dtype", "largest")
    table = Table(*(Column(name, overflow="fold") for name in columns), header_style="bold")
    answer = expected_values(case, case.dtypes[0])
    for kind, arrays in (("input", case.inputs), ("parameter", case.parameters), ("expected", answer)):
        for name, array in arrays.items():
            finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
            largest = f"{np.abs(finite.astype(float)).max():.4g}" if finite.size else "·"
            table.add_row(kind, name, str(array.shape), array.dtype.name, largest)
    console.print(table)
    if values:
        for name, array in {**case.inputs, **case.parameters, **answer}.items():
            console.print(f"[bold]{name}[/]\n{escape(str(array))}", highlight=False)


@click.command(
    short_help="Compare tolerances with measured errors.",
    epilog=options.examples("calibrate verdicts.json", "calibrate here.json elsewhere.json"),
)
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True, type=paths.InputFile())
def calibrate(reports: tuple[Path, ...]) -> None:
    """Show each tolerance with the largest measured error and the tolerance that follows from it.

    REPORT is a file written by `attention-parity run --all --json`; several reports, for example from different
    devices, are combined. A tolerance should be 2 to 10 times the largest error ever measured; if it is not, 3 times
    that error is proposed.
    """
    try:
        measured = [one for path in reports for verdict in verdicts_of(path) for one in measured_by(verdict)]
    except ReportError as error:
        raise Refused(str(error)) from error
    if not measured:
        raise Refused("the reports contain no measured errors")
    figures = (Column(name, justify="right", no_wrap=True) for name in ("measured", "seen", "tolerance", "would be"))
    table = Table("tolerance, and the largest measured error", *figures, header_style="bold", show_lines=True)
    for line in tolerances.calibrate(measured):
        tolerance, kept = line.tolerance, line.proposal == line.tolerance.eps
        names = (tolerance.operator, tolerance.case, tolerance.quantity)
        what = ", ".join([*tolerance.dtypes, *(part for part in names if part != "*")])
        what += ", by entry" if isinstance(tolerance, tolerances.EntryTolerance) else ""
        proposed = "[green]unchanged[/]" if kept else f"[yellow]{line.proposal:g}[/]"
        place = f"{what}\n[dim]{escape(harmless(line.where, MOST_SHOWN))}[/]"
        table.add_row(place, f"{line.measured:.3g}", f"{tolerance.worst:g}", f"{tolerance.eps:g}", proposed)
    console.print(table)
