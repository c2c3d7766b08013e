"""The command that converts weights: recognises the source, converts, validates and writes the result."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from attention_core.errors import AttentionError
from backends import FRAMEWORKS
from backends.archives import ArchiveError
from backends.files import replaceable_file
from backends.weights import SOURCES, WeightError, read_arrays, read_settings
from backends.weights.matching import fits
from parity_tests.cli import options
from parity_tests.cli.terminal import Refused, console, progress, write_certificate, write_json, write_pages
from parity_tests.conversion.conversion import CANONICAL, Conversion, Move, next_lines, save
from parity_tests.conversion.inventory import parts_of
from parity_tests.folders import PREFIX, Folder
from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Verdict
from parity_tests.reports.certificate import certify
from parity_tests.reports.table import times, with_title

OPTIONS = (
    "In options of this command, source=... is --from, prefix=... is --prefix, prefix={'': A, 'PART': B} is --prefix A "
    "--prefix PART=B, max_bytes=... is --max-bytes, and any other NAME=... is --set."
)
MOST_SHOWN = 5
MOST_PARTS, LONGEST_REMARK = 24, 160
"""The rows of an inventory, and the characters of what is said of each."""


@click.command(
    short_help="Convert weights to another framework and validate the result.",
    epilog=options.examples(
        "convert gru.safetensors --to keras.GRU -o gru.h5",
        "convert model.safetensors --prefix encoder.attention. --set num_heads=8 --to jax -o heads.safetensors",
    ),
)
@click.argument("file", metavar="SOURCE", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    metavar="NAME",
    shell_complete=options.completing(lambda: (*FRAMEWORKS, *SOURCES)),
    help="A backend, or a layer of a framework.",
)
@options.output_file("-o", "--output", help="Output file; the suffix determines its format.")
@click.option(
    "--from",
    "source",
    metavar="NAME",
    shell_complete=options.completing(lambda: (*FRAMEWORKS, *SOURCES)),
    help="The layer in SOURCE, if its names and shapes fit several.",
)
@click.option(
    "--prefix",
    "prefixes",
    metavar="TEXT",
    multiple=True,
    help="Only arrays with this name prefix. May be repeated for the layers of a stack, from the input on; or as "
    "PART=TEXT for a part with another prefix, such as embedding=tokens.",
)
@click.option("--to-prefix", metavar="TEXT", default="", help="Prefix of the written names.")
@click.option(
    "--set",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    help="A layer option that cannot be inferred from shapes, such as num_heads=8; layer=NAME selects the layer.",
)
@click.option(
    "--validate",
    "how",
    type=click.Choice(["full", "own", "no"]),
    default="full",
    show_default=True,
    help="Validate the source's layer and the converted layer, the converted layer only, or nothing.",
)
@options.max_bytes
@options.python("Run a framework (torch, tf, jax, mxnet, onnx) with another interpreter.")
@options.json_file
@options.pages
@options.certificate
def convert(
    file: Path,
    target: str | None,
    output: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    summary_file: Path | None,
    badge_file: Path | None,
    certificate_file: Path | None,
    **chosen: Any,
) -> None:
    """Convert weights to another framework, and validate that the layer still computes the same function.

    SOURCE is a .safetensors, .pt, .pth, .bin, .weights.h5, .keras, .params or .onnx file, or a folder that transformers
    wrote. NAME is a backend, whose set_parameters accepts the written arrays, or a layer such as keras.GRU, whose own
    arrays are written.

    The source's layer is run in its framework with the arrays of the file. Its outputs and gradients, those of the
    converted layer and those of the reference are compared pairwise on the same inputs. FILE is written only if nothing
    is red. Exits with 0 if it is written, with 1 if something is red or missing, and with 2 if SOURCE cannot be
    converted.

    Without --to and -o, what is inside SOURCE is printed: the layers that are recognised, with the commands for each,
    and what is left.
    """
    if target is None and output is None:
        sys.exit(list_parts(file, chosen["max_bytes"]))
    if target is None or output is None:
        raise click.UsageError("-o requires --to" if target is None else "--to requires -o")
    request = Conversion(str(file), target, str(output), **chosen)
    if request.how == "no" and any((certificate_file, html_file, summary_file, badge_file)):
        named = "--certificate" if certificate_file else "--html, --summary and --badge"
        raise Refused(f"{named} cannot be combined with --validate=no.")
    with refusals():
        move, written, spelling = request.read()
    for line in (*recognition(move, file), *warnings(move.converted.source, request.target)):
        console.print(line, soft_wrap=True)
    outcome = None
    # Written before anything runs, since a kind of file may need a library, and moved to its place if all is green.
    place = replaceable_file(output)
    with refusals(), Folder(place.parent, f".{PREFIX}") as folder:
        partial = Path(folder) / output.name
        save(move, request.target, written, spelling, partial)
        if request.how != "no":
            with progress() as bars:
                outcome = request.validate(move, written, bars)
            for line in validation(outcome):
                console.print(line, soft_wrap=True)
            if json_file is not None:
                write_json(outcome, json_file)
            write_pages(outcome, html_file, summary_file, badge_file)
        if outcome is not None and outcome.red:
            console.print(Text(f"red         {output} is not written", style="bold red"), soft_wrap=True)
            sys.exit(1)
        partial.replace(place)
    console.print(verdict(move, request, outcome), soft_wrap=True)
    if outcome is not None and certificate_file is not None:
        write_certificate(certify(outcome, request.certificate_entries, request.files), certificate_file)
    if request.target in FRAMEWORKS:
        console.print(
            Text("\n".join(["", "To load it:", "", *next_lines(move, request.target, output)])), soft_wrap=True
        )


def list_parts(file: Path, max_bytes: int | None) -> int:
    """Print what is inside a file, and the commands that convert it; return the exit code."""
    with refusals():
        arrays = read_arrays(file, max_bytes)
        parts = parts_of(arrays, read_settings(file, max_bytes))
    grid = Table(
        *(Column(name, overflow="fold") for name in ("prefix", "layer", "arrays", "made with")), header_style="bold"
    )
    for part in parts[:MOST_PARTS]:
        remark = part.remark if len(part.remark) <= LONGEST_REMARK else f"{part.remark[:LONGEST_REMARK]}..."
        layer = Text(part.source or "-", style="green" if part.source else "dim")
        grid.add_row(Text(part.prefix), layer, str(len(part.names)), Text(remark, style="" if part.source else "dim"))
    console.print(with_title(f"{file}: {len(arrays):,} arrays", grid), soft_wrap=True)
    if parts[MOST_PARTS:]:
        console.print(f"... and {len(parts) - MOST_PARTS} more")
    lines = [
        shlex.join(
            [
                *("attention-parity", "convert", str(file), *(("--prefix", part.prefix) if part.prefix else ())),
                *("--from", part.source, "--to", "NAME", "-o", "FILE"),
            ]
        )
        for part in [part for part in parts if part.can_be_converted][:MOST_SHOWN]
    ]
    words = "\n".join(["", "To convert one:", "", *lines]) if lines else "No layer can be converted."
    console.print(Text(words), soft_wrap=True)
    return 0


@contextmanager
def refusals() -> Iterator[None]:
    """Report an invalid file or option in one line and exit with 2, or with 1 if a framework is missing."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    except (WeightError, ArchiveError, AttentionError) as error:
        hint = f" {OPTIONS}" if re.search(r"=\.\.\.|prefix=", str(error)) else ""
        raise Refused(f"{error}{hint}") from error


def recognition(move: Move, file: Path) -> list[RenderableType]:
    """Print the layer in the file, and the source arrays of each canonical array."""
    converted = move.converted
    config = ", ".join(f"{name}={value!r}" for name, value in converted.config.items())
    columns = ("canonical", "from", "axes, and order of the gates")
    grid = Table(*(Column(name, overflow="fold") for name in columns), header_style="bold")
    for name, array in converted.arrays.items():
        sources = "\n".join(f"{escape(one)} {shape(move.raw[one])}" for one in converted.used.get(name, ()))
        axes = "\n".join(map(escape, axes_of(move, name)))
        grid.add_row(f"{escape(name)} {shape(array)}", sources or "[dim]none[/]", axes)
    for name, array in converted.beside.items():
        grid.add_row(f"{escape(name)} {shape(array)}", "", "[dim]beside the layer[/]")
    return [
        with_title(f"{file}: {converted.source}, {converted.layer}({config})", grid),
        *(Text(f"note        {note}") for note in converted.notes),
    ]


def warnings(*names: str) -> list[RenderableType]:
    """Print how the source treats padding and masked keys differently from the specification."""
    sources = [SOURCES[name] for name in names if name in SOURCES]
    return [Text(f"warning     {one.name}: {text}", style="yellow") for one in sources for text in one.warnings]


def shape(array: np.ndarray) -> str:
    """The shape of an array, as a cell of a table."""
    return "×".join(map(str, array.shape)) or "scalar"


def axes_of(move: Move, name: str) -> list[str]:
    """The axes of each source array of a canonical one, and the gates of its blocks."""
    source = SOURCES.get(move.converted.source)
    names = move.converted.used.get(name, ())
    if source is None or source.framework:
        return ["" for _ in names]
    axes: dict[str, str] = {}
    for number, prefix in enumerate(move.prefixes):
        for fit in fits(source, move.raw, prefix, move.converted.config):
            for one, cell in fit.found.items():
                holds = list(enumerate(cell.row.holds, start=1))
                layer = cell._replace(layer=cell.layer + number)
                here = [(place, hold) for place, hold in holds if layer.canonical(hold)[0] == name]
                gates = [f"{'+' if hold[0] == '+' else ''}{hold.rpartition(':')[2]}" for _, hold in here if ":" in hold]
                blocks = [
                    f"block {place} of {len(holds)}" for place, hold in here if ":" not in hold and len(holds) > 1
                ]
                axes.setdefault(one, "; ".join([cell.row.axes, *filter(None, [" ".join(gates), *blocks])]))
    return [axes.get(one, "") for one in names]


def validation(run: Run) -> list[RenderableType]:
    """Print a table for each dtype, the cells that were not compared, and the red verdicts."""
    lines: list[RenderableType] = [table(run, dtype) for dtype in run.dtypes]
    unjudged: dict[tuple[str, str], list[str]] = {}
    for one in run.verdicts:
        if not one.is_judged:
            what = one.dtype if one.quantity == "*" else one.quantity
            unjudged.setdefault((one.name, one.reason), []).append(f"{one.case} {what}")
    for (name, reason), cells in unjudged.items():
        lines.append(Text(f"not judged  {name}  {', '.join(dict.fromkeys(cells))}: {reason}", style="dim"))
    for one in run.red[:MOST_SHOWN]:
        against = "" if one.against == "reference" else f" against {one.against}"
        where = "" if one.case == "*" else f"  {one.case}  {one.dtype}  {one.quantity}"
        status, title = (f"{one.status:<11} ", "bold red"), (f"{one.name}{against}{where}", "bold")
        lines.append(Text.assemble(status, title, f"\n            {one.reason}"))
    if len(run.red) > MOST_SHOWN:
        lines.append(Text(f"            ... and {len(run.red) - MOST_SHOWN} more; --json FILE has all of them"))
    lines.append(Text(f"time        {times(run)}", style="dim"))
    return lines


def table(run: Run, dtype: str) -> RenderableType:
    """A row for each quantity and a column for each side and pair: the largest error in eps, or the failure."""
    pairs = dict.fromkeys((one.name, one.against) for one in run.verdicts if one.case != "*")
    quantities = dict.fromkeys(one.quantity for one in run.verdicts if one.quantity not in ("*", "determinism"))
    grid = Table(header_style="bold")
    grid.add_column("quantity")
    for name, against in pairs:
        grid.add_column(name if against == "reference" else "pair", justify="right", overflow="fold")
    cells: dict[tuple[str, ...], list[Verdict]] = {}
    for one in run.verdicts:
        cells.setdefault((one.quantity, one.name, one.against, one.dtype), []).append(one)
    for quantity in quantities:
        grid.add_row(quantity, *(worst(cells.get((quantity, *pair, dtype), [])) for pair in pairs))
    return with_title(f"{dtype}: worst error, in eps of the largest entry", grid)


def worst(verdicts: Sequence[Verdict]) -> str:
    """The largest error of the verdicts, or the failure."""
    red = [one for one in verdicts if one.red]
    if red:
        return f"[bold red]{red[0].status} {red[0].error or 0:.3g}[/]"
    errors = [one.error for one in verdicts if one.error is not None]
    return f"[green]{'exact' if max(errors) == 0 else format(max(errors), '.2g')}[/]" if errors else "[dim]-[/]"


def verdict(move: Move, request: Conversion, run: Run | None) -> Text:
    """The outcome, in one line."""
    target, output = request.target, request.output
    if run is None:
        return Text(f"unvalidated {output} is written without validation", style="bold yellow")
    count, source = f"{len(run.verdicts):,} comparisons", move.converted.source
    if request.how == "own":
        what = f"{target} agrees with the reference ({count}), and {source} was not run"
        return Text(f"unvalidated {output} is written: {what}", style="bold yellow")
    same, passed = "the reference", [one for one in run.verdicts if one.status == "pass"]
    if source != CANONICAL:
        same, passed = source, [one for one in passed if source in (one.name, one.against)]
    dtypes = " and ".join(dtype for dtype in run.dtypes if any(one.dtype == dtype for one in passed))
    text = f"green       {target} is the same function as {same} in {dtypes}: {count}, all within tolerance"
    assumed = ", ".join(f"{name}={value!r}" for name, value in move.converted.assumed.items())
    text += f"; assumed: {assumed}" if assumed else ""
    return Text(f"{text}; {output} is written", style="bold green")
