"""The command that converts weights: it prints what it recognised, converts, validates, and writes."""

from __future__ import annotations

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
from backends.weights import SOURCES, WeightError
from backends.weights.matching import fits
from parity_tests.cli import options
from parity_tests.cli.terminal import Refused, console, progress, write_certificate, write_json
from parity_tests.conversion.conversion import CANONICAL, Conversion, Move, next_lines, save
from parity_tests.folders import PREFIX, Folder
from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Verdict
from parity_tests.reports.certificate import certify
from parity_tests.reports.table import times, titled

OPTIONS = (
    "In options of this command, source=... is --from, prefix=... is --prefix, max_bytes=... is --max-bytes, and any "
    "other NAME=... is --set."
)
MOST_SHOWN = 5


@click.command(
    short_help="Move weights to another framework, and validate it.",
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
    required=True,
    shell_complete=options.completing(lambda: (*FRAMEWORKS, *SOURCES)),
    help="A backend, or a layer of a framework.",
)
@options.output_file(
    "-o", "--output", required=True, help="Write the arrays there, as the kind of file that the suffix names."
)
@click.option(
    "--from",
    "source",
    metavar="NAME",
    shell_complete=options.completing(lambda: (*FRAMEWORKS, *SOURCES)),
    help="The layer in SOURCE, where its names and shapes fit several.",
)
@click.option(
    "--prefix",
    "prefixes",
    metavar="TEXT",
    multiple=True,
    help="Only the arrays with this name prefix. Several prefixes are the layers of a stack, from the input on.",
)
@click.option("--to-prefix", metavar="TEXT", default="", help="The prefix of every name that is written.")
@click.option(
    "--set",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    help="A layer option that no shape determines, such as num_heads=8; layer=NAME names the layer.",
)
@click.option(
    "--validate",
    "how",
    type=click.Choice(["full", "own", "no"]),
    default="full",
    show_default=True,
    help="Judge the source's layer and the converted one; the converted one alone; or nothing.",
)
@options.max_bytes
@options.python("Run a framework (torch, tf, jax, mxnet, onnx) with another interpreter.")
@options.json_file
@options.certificate
def convert(file: Path, output: Path, json_file: Path | None, certificate_file: Path | None, **chosen: Any) -> None:
    """Convert the weights in SOURCE to another framework, and validate that the layer stays the same function.

    SOURCE is a .safetensors, .pt, .pth, .bin, .weights.h5, .keras, .params or .onnx file. NAME is one of our backends,
    whose set_parameters takes the written arrays, or a layer such as keras.GRU, whose arrays are written.

    The source's layer runs in its framework with the arrays of the file. The outputs and gradients of this layer, of
    the converted layer and of the reference are compared on the same inputs, each with each. FILE is written only if
    nothing is red. Exits with 0 if it is written, with 1 if something is red or missing, and with 2 if SOURCE cannot be
    converted.
    """
    request = Conversion(str(file), output=str(output), **chosen)
    if certificate_file is not None and request.how == "no":
        raise Refused("a certificate states a validation: leave --validate=no out.")
    with refusals():
        move, written, spelling = request.read()
    for line in (*recognised(move, file), *warnings(move.converted.source, request.target)):
        console.print(line, soft_wrap=True)
    outcome = None
    # Written before anything runs, since a kind of file may need a library, and moved to its place if all is green.
    place = replaceable_file(output)
    with refusals(), Folder(place.parent, f".{PREFIX}") as folder:
        partial = Path(folder) / output.name
        save(move, request.target, written, spelling, partial)
        if request.how != "no":
            with progress() as bars:
                outcome = request.validated(move, written, bars)
            for line in validation(outcome):
                console.print(line, soft_wrap=True)
            if json_file is not None:
                write_json(outcome, json_file)
        if outcome is not None and outcome.red:
            console.print(Text(f"red         {output} is not written", style="bold red"), soft_wrap=True)
            sys.exit(1)
        partial.replace(place)
    console.print(verdict(move, request, outcome), soft_wrap=True)
    if outcome is not None and certificate_file is not None:
        write_certificate(certify(outcome, request.certified, request.files), certificate_file)
    if request.target in FRAMEWORKS:
        console.print(
            Text("\n".join(["", "To load it:", "", *next_lines(move, request.target, output)])), soft_wrap=True
        )


@contextmanager
def refusals() -> Iterator[None]:
    """Report what is wrong with a file or an option in one line, and exit with 2; with 1 if a framework is missing."""
    try:
        yield
    except ImportError as error:
        raise click.ClickException(str(error)) from error
    except (WeightError, ArchiveError, AttentionError) as error:
        hint = f" {OPTIONS}" if "=..." in str(error) else ""
        raise Refused(f"{error}{hint}") from error


def recognised(move: Move, file: Path) -> list[RenderableType]:
    """The layer in the file, and the arrays that each canonical one is made of."""
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
        titled(f"{file}: {converted.source}, {converted.layer}({config})", grid),
        *(Text(f"note        {note}") for note in converted.notes),
    ]


def warnings(*names: str) -> list[RenderableType]:
    """What a source does with padding and hidden keys that the specification does otherwise."""
    sources = [SOURCES[name] for name in names if name in SOURCES]
    return [Text(f"warning     {one.name}: {text}", style="yellow") for one in sources for text in one.warnings]


def shape(array: np.ndarray) -> str:
    """The shape of an array, as a cell of a table."""
    return "×".join(map(str, array.shape)) or "scalar"


def axes_of(move: Move, name: str) -> list[str]:
    """The axes of each array that a canonical one is made of, and which of its blocks are which gates."""
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
    """A table of each dtype, what was not judged, and what is red."""
    lines: list[RenderableType] = [table(run, dtype) for dtype in run.dtypes]
    unjudged: dict[tuple[str, str], list[str]] = {}
    for one in run.verdicts:
        if not one.judged:
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
        lines.append(Text(f"            ... and {len(run.red) - MOST_SHOWN} more; --json FILE has them all"))
    lines.append(Text(f"time        {times(run)}", style="dim"))
    return lines


def table(run: Run, dtype: str) -> RenderableType:
    """One row for each quantity, one column for each side and each pair: the worst error in eps, or what is wrong."""
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
    return titled(f"{dtype}: worst error, in eps of the largest entry", grid)


def worst(verdicts: Sequence[Verdict]) -> str:
    """The worst error of the verdicts, or what is wrong with them."""
    red = [one for one in verdicts if one.red]
    if red:
        return f"[bold red]{red[0].status} {red[0].error or 0:.3g}[/]"
    errors = [one.error for one in verdicts if one.error is not None]
    return f"[green]{'exact' if max(errors) == 0 else format(max(errors), '.2g')}[/]" if errors else "[dim]-[/]"


def verdict(move: Move, request: Conversion, run: Run | None) -> Text:
    """The outcome, in one line."""
    target, output = request.target, request.output
    if run is None:
        return Text(f"unvalidated {output} is written, and nothing was run", style="bold yellow")
    count, source = f"{len(run.verdicts):,} comparisons", move.converted.source
    if request.how == "own":
        what = f"{target} agrees with the reference ({count}), and {source} was not run"
        return Text(f"unvalidated {output} is written: {what}", style="bold yellow")
    same, passed = "the reference", [one for one in run.verdicts if one.status == "pass"]
    if source != CANONICAL:
        same, passed = source, [one for one in passed if source in (one.name, one.against)]
    dtypes = " and ".join(dtype for dtype in run.dtypes if any(one.dtype == dtype for one in passed))
    text = f"green       {target} is the same function as {same} in {dtypes}: {count}, all within tolerance"
    return Text(f"{text}; {output} is written", style="bold green")
