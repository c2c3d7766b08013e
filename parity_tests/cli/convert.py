"""The command that moves weights: it says what it recognised, converts, validates, and writes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import numpy as np
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from attention_core.errors import AttentionError
from backends import FRAMEWORKS
from backends.archives import ArchiveError
from backends.weights import SOURCES, WeightError
from backends.weights.mapping import fits
from parity_tests.cli.options import (
    Refused,
    certificate_option,
    completing,
    console,
    examples,
    interpreters,
    json_option,
    progress,
    write_certificate,
    write_json,
)
from parity_tests.conversion.conversion import CANONICAL, Conversion, Move, save
from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Verdict
from parity_tests.reports.certificate import certify
from parity_tests.reports.table import times, titled

OPTIONS = "In options of this command, source=... is --from, prefix=... is --prefix, and any other NAME=... is --set."


MOST_TOLD = 5


@click.command(
    short_help="Move weights to another framework, and validate it.",
    epilog=examples(
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
    shell_complete=completing(lambda: (*FRAMEWORKS, *SOURCES)),
    help="A backend, or a layer of a framework.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    help="Write the arrays there; the suffix says the kind of file.",
)
@click.option(
    "--from",
    "source",
    metavar="NAME",
    shell_complete=completing(lambda: (*FRAMEWORKS, *SOURCES)),
    help="What SOURCE holds, where its names and shapes do not tell.",
)
@click.option(
    "--prefix",
    "prefixes",
    metavar="TEXT",
    multiple=True,
    help="Take the arrays whose names begin so. Several are the layers of a stack, from the input on.",
)
@click.option("--to-prefix", metavar="TEXT", default="", help="Set this before every name that is written.")
@click.option(
    "--set",
    "given",
    metavar="NAME=VALUE",
    multiple=True,
    help="An argument of the layer that no shape shows, such as num_heads=8; layer=NAME says which layer it is.",
)
@click.option(
    "--validate",
    "how",
    type=click.Choice(["full", "own", "no"]),
    default="full",
    show_default=True,
    help="Judge the source's layer and the converted one; the converted one alone; or nothing.",
)
@click.option(
    "--python",
    "pythons",
    metavar="NAME=PATH",
    multiple=True,
    help="Run a framework (torch, tf, jax, mxnet, onnx) with another interpreter.",
)
@json_option
@certificate_option
def convert(
    file: Path,
    target: str,
    output: Path,
    source: str | None,
    prefixes: tuple[str, ...],
    to_prefix: str,
    given: tuple[str, ...],
    how: str,
    pythons: tuple[str, ...],
    json_file: Path | None,
    certificate_file: Path | None,
) -> None:
    """Move the weights in SOURCE to another framework, and validate that the layer stays the same function.

    SOURCE is a .safetensors, .pt, .pth, .bin, .weights.h5, .params or .onnx file. NAME is one of our backends, whose
    set_parameters takes what is written, or a layer such as keras.GRU, whose own arrays are written.

    The source's own layer, run in its framework with the arrays of the file, the converted layer, and the reference
    are given the same inputs, and each is judged against each, in outputs and gradients. FILE is written only if
    nothing is red. Exits with 0 if it is written, with 1 if something is red, and with 2 if SOURCE cannot be converted.
    """
    request = Conversion(str(file), target, str(output), source, prefixes, to_prefix, given, how, interpreters(pythons))
    if certificate_file is not None and how == "no":
        raise Refused("a certificate states a validation: leave --validate=no out.")
    with refusals():
        move, written, spelling = request.read()
    for line in told(move, file):
        console.print(line, soft_wrap=True)
    outcome = None
    if how != "no":
        with progress() as bars:
            outcome = request.validated(move, written, bars)
        for line in validation(outcome):
            console.print(line, soft_wrap=True)
        if json_file is not None:
            write_json(outcome, json_file)
    if outcome is not None and outcome.red:
        console.print(Text(f"red         {output} is not written", style="bold red"), soft_wrap=True)
        sys.exit(1)
    with refusals():
        save(move, target, written, spelling, output)
    console.print(verdict(move, target, outcome, how, output), soft_wrap=True)
    if outcome is not None and certificate_file is not None:
        write_certificate(certify(outcome, request.asked, request.files), certificate_file)


@contextmanager
def refusals() -> Iterator[None]:
    """Say what is wrong with a file or an option in one line, and exit with 2."""
    try:
        yield
    except (WeightError, ArchiveError, AttentionError) as error:
        hint = f" {OPTIONS}" if "=..." in str(error) else ""
        raise Refused(f"{error}{hint}") from error


def told(move: Move, file: Path) -> list[RenderableType]:
    """What was recognised, and what becomes of each array."""
    own = move.converted
    config = ", ".join(f"{name}={value!r}" for name, value in own.config.items())
    grid = Table(header_style="bold")
    for column in ("canonical", "from", "axes, and gates as they stand there"):
        grid.add_column(column, overflow="fold")
    for name, array in own.arrays.items():
        names = own.used.get(name, ())
        given = "\n".join(f"{escape(one)} {shape(move.raw[one])}" for one in names)
        grid.add_row(
            f"{escape(name)} {shape(array)}", given or "[dim]none[/]", "\n".join(map(escape, done(move, name)))
        )
    for name, array in own.beside.items():
        grid.add_row(f"{escape(name)} {shape(array)}", "", "[dim]stands beside the layer[/]")
    return [
        titled(f"{file}: {own.source}, {own.layer}({config})", grid),
        *(Text(f"note        {note}") for note in own.notes),
    ]


def shape(array: np.ndarray) -> str:
    """The shape of an array, as a cell of a table."""
    return "×".join(map(str, array.shape)) or "scalar"


def done(move: Move, name: str) -> list[str]:
    """What becomes of each array that a canonical one is made of: its axes, and which of its blocks are which gates."""
    source = SOURCES.get(move.converted.source)
    names = move.converted.used.get(name, ())
    if source is None or source.own:
        return ["" for _ in names]
    found: dict[str, str] = {}
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
                found.setdefault(one, "; ".join([cell.row.axes, *filter(None, [" ".join(gates), *blocks])]))
    return [found.get(one, "") for one in names]


def validation(run: Run) -> list[RenderableType]:
    """A table of each dtype, what was not judged, and what is red."""
    lines: list[RenderableType] = [table(run, dtype) for dtype in run.dtypes]
    told: dict[tuple[str, str], list[str]] = {}
    for own in run.verdicts:
        if not own.judged:
            what = own.dtype if own.quantity == "*" else own.quantity
            told.setdefault((own.name, own.reason), []).append(f"{own.case} {what}")
    for (name, reason), cells in told.items():
        lines.append(Text(f"not judged  {name}  {', '.join(dict.fromkeys(cells))}: {reason}", style="dim"))
    for own in run.red[:MOST_TOLD]:
        against = "" if own.against == "reference" else f" against {own.against}"
        where = "" if own.case == "*" else f"  {own.case}  {own.dtype}  {own.quantity}"
        lines.append(
            Text.assemble(
                (f"{own.status:<11} ", "bold red"),
                (f"{own.name}{against}{where}", "bold"),
                f"\n            {own.reason}",
            )
        )
    if len(run.red) > MOST_TOLD:
        lines.append(Text(f"            ... and {len(run.red) - MOST_TOLD} more; --json FILE holds them all"))
    lines.append(Text(f"time        {times(run)}", style="dim"))
    return lines


def table(run: Run, dtype: str) -> RenderableType:
    """One row for each quantity, one column for each side and each pair: the worst error in eps, or what is wrong."""
    pairs = dict.fromkeys((own.name, own.against) for own in run.verdicts if own.case != "*")
    quantities = dict.fromkeys(own.quantity for own in run.verdicts if own.quantity not in ("*", "switches"))
    grid = Table(header_style="bold")
    grid.add_column("quantity")
    for name, against in pairs:
        grid.add_column(name if against == "reference" else "pair", justify="right", overflow="fold")
    for quantity in quantities:
        cells = []
        for name, against in pairs:
            here = [
                own
                for own in run.verdicts
                if (own.name, own.against, own.dtype, own.quantity) == (name, against, dtype, quantity)
            ]
            cells.append(worst(here))
        grid.add_row(quantity, *cells)
    return titled(f"{dtype}: worst error, in eps of the largest entry", grid)


def worst(verdicts: Sequence[Verdict]) -> str:
    """The worst error of the verdicts, or what is wrong with them."""
    red = [own for own in verdicts if own.red]
    if red:
        return f"[bold red]{red[0].status} {red[0].error or 0:.3g}[/]"
    errors = [own.error for own in verdicts if own.error is not None]
    return f"[green]{'exact' if max(errors) == 0 else format(max(errors), '.2g')}[/]" if errors else "[dim]-[/]"


def verdict(move: Move, target: str, run: Run | None, how: str, output: Path) -> Text:
    """What was found, in one line."""
    if run is None:
        return Text(f"unvalidated {output} is written, and nothing was run", style="bold yellow")
    count = f"{len(run.verdicts):,} comparisons"
    if how == "own":
        said = f"{target} agrees with the reference ({count}), and {move.converted.source} was not run"
        return Text(f"unvalidated {output} is written: {said}", style="bold yellow")
    passed = [own for own in run.verdicts if own.status == "pass"]
    if move.converted.source != CANONICAL:
        passed = [own for own in passed if move.converted.source in (own.name, own.against)]
    dtypes = " and ".join(dtype for dtype in run.dtypes if any(own.dtype == dtype for own in passed))
    same = "the reference" if move.converted.source == CANONICAL else move.converted.source
    text = f"green       {target} is the same function as {same} in {dtypes}: {count}, all within tolerance"
    return Text(f"{text}; {output} is written", style="bold green")
