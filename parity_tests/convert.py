"""The command that moves weights: it says what it recognised, converts, proves, and writes."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import backends
from attention_core.errors import AttentionError, dtype_name
from attention_core.operators import FRAMEWORKS, LAYERS
from attention_core.specification import FLOATING, Layer
from backends import ArchiveError, weights
from backends.weights import SOURCES, Converted, WeightError
from backends.weights.configs import check_shapes, config_of, layer_named
from backends.weights.mapping import fits, plain
from parity_tests import sources
from parity_tests.cases import Arrays
from parity_tests.certificate import Certificate, certify
from parity_tests.command import (
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
from parity_tests.comparison import Verdict
from parity_tests.expected import programs_folder
from parity_tests.launch import Job
from parity_tests.proof import Side, prove
from parity_tests.report import times, titled
from parity_tests.run import Run
from parity_tests.switches import environment

CANONICAL = "canonical"
"""The name of canonical arrays as a source, as our own layers give and take them."""
OPTIONS = "In options of this command, source=... is --from, prefix=... is --prefix, and any other NAME=... is --set."
MOST_TOLD = 5


@dataclass(frozen=True)
class Move:
    """A file's arrays on their way: what they are, and what they are on the other side.

    raw and converted hold what the file holds, cast up to float64: that is what is proved, and rounding it to dtype
    gives what is written. prefixes stand before the names of the layers in the file.
    """

    raw: Arrays
    converted: Converted
    dtype: np.dtype
    prefixes: tuple[str, ...]

    @property
    def layer(self) -> Layer:
        """The layer of the specification that the arrays are of."""
        return layer_named(self.converted.layer)

    @property
    def own(self) -> Arrays:
        """The source's arrays that were used, by their names without a prefix; a stack's by number."""
        found: Arrays = {}
        source = SOURCES[self.converted.source]
        numbered = self.layer.name in ("GRU", "LSTM") and not source.stacked and not source.own
        for name in self.raw:
            for number, prefix in enumerate(self.prefixes):
                if plain(name).startswith(plain(prefix)):
                    bare = name[len(prefix) :]
                    found[f"{number}/{bare}" if numbered else bare] = self.raw[name]
        return found

    def rounded(self, arrays: Arrays) -> Arrays:
        """The arrays in the dtype of the file."""
        return {name: array.astype(self.dtype) for name, array in arrays.items()}


@dataclass(frozen=True)
class Conversion:
    """What is asked of `convert`: all that its proof depends on, but for files and environments."""

    file: str
    target: str
    output: str
    source: str | None = None
    prefixes: tuple[str, ...] = ()
    to_prefix: str = ""
    given: tuple[str, ...] = ()
    how: str = "full"
    pythons: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command that asks it."""
        options = [] if self.source is None else ["--from", self.source]
        options += [part for prefix in self.prefixes for part in ("--prefix", prefix)]
        options += ["--to-prefix", self.to_prefix] if self.to_prefix else []
        options += [part for entry in self.given for part in ("--set", entry)]
        options += [] if self.how == "full" else ["--prove", self.how]
        return shlex.join(["attention-parity", "convert", self.file, "--to", self.target, "-o", self.output, *options])

    def read(self) -> tuple[Move, Arrays, int]:
        """What the file holds, the arrays of the other side, and in which of its ways their names are written.

        Raises: Refused if it cannot be converted.
        """
        _check_places(Path(self.file), Path(self.output), self.target)
        options = _options(self.given)
        try:
            move = _read(Path(self.file), self.source, self.prefixes, options)
            return move, *_written(move, self.target, Path(self.output), self.to_prefix)
        except (WeightError, ArchiveError, AttentionError) as error:
            hint = f" {OPTIONS}" if "=..." in str(error) else ""
            raise Refused(f"{error}{hint}") from error

    def proved(self, move: Move, written: Arrays) -> Run:
        """The verdicts on both sides."""
        run = _proved(move, self.target, written, self.how == "full", interpreters(self.pythons))
        run.command = self.command
        return run

    def judge(self) -> Run:
        """Read and prove, and write nothing.

        Raises: Refused if it cannot be converted.
        """
        move, written, _ = self.read()
        return self.proved(move, written)

    def certificate(self, run: Run) -> Certificate:
        """The certificate of the proof, with the digests of both files."""
        asked = {**asdict(replace(self, pythons=())), "kind": "convert", "other_python": bool(self.pythons)}
        files = {name: Path(name) for name in (self.file, self.output) if Path(name).is_file()}
        return certify(run, {**asked, "command": self.command}, files)


# ------------------------------------------------------------------------------------------------ the command


@click.command(
    short_help="Move weights to another framework, and prove it.",
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
    "--prove",
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
    """Move the weights in SOURCE to another framework, and prove that the layer stays the same function.

    SOURCE is a .safetensors, .pt, .pth, .bin, .weights.h5, .params or .onnx file. NAME is one of our backends, whose
    set_parameters takes what is written, or a layer such as keras.GRU, whose own arrays are written.

    The source's own layer, run in its framework with the arrays of the file, the converted layer, and the reference
    are given the same inputs, and each is judged against each, in outputs and gradients. FILE is written only if
    nothing is red. Exits with 0 if it is written, with 1 if something is red, and with 2 if SOURCE cannot be converted.
    """
    request = Conversion(str(file), target, str(output), source, prefixes, to_prefix, given, how, pythons)
    if certificate_file is not None and how == "no":
        raise Refused("a certificate states a proof: leave --prove=no out.")
    move, written, spelling = request.read()
    for line in told(move, file):
        console.print(line, soft_wrap=True)
    outcome = None
    if how != "no":
        outcome = request.proved(move, written)
        for line in proof(outcome):
            console.print(line, soft_wrap=True)
        if json_file is not None:
            write_json(outcome, json_file)
    if outcome is not None and outcome.red:
        console.print(Text(f"red         {output} is not written", style="bold red"), soft_wrap=True)
        sys.exit(1)
    try:
        _save(move, target, written, spelling, output)
    except (WeightError, ArchiveError) as error:
        raise Refused(str(error)) from error
    console.print(verdict(move, target, outcome, how, output), soft_wrap=True)
    if outcome is not None and certificate_file is not None:
        write_certificate(request.certificate(outcome), certificate_file)


def _options(given: Sequence[str]) -> dict[str, Any]:
    """The arguments given as NAME=VALUE: numbers, true, false and null as JSON writes them, anything else as text."""
    options = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{entry!r}: expected NAME=VALUE, as num_heads=8", param_hint="--set")
        try:
            options[name] = json.loads(value)
        except json.JSONDecodeError:
            options[name] = value
    return options


def _check_places(file: Path, output: Path, target: str) -> None:
    if not file.is_file():
        raise Refused(f"{file}: there is no such file.")
    if target not in SOURCES and target not in FRAMEWORKS:
        raise Refused(f"--to {target}: expected one of {', '.join(FRAMEWORKS)}, or of {', '.join(SOURCES)}.")
    if not output.absolute().parent.is_dir():
        raise Refused(f"{output}: there is no folder {output.absolute().parent}.")
    if output.exists() and output.samefile(file):
        raise Refused(f"{output} is SOURCE itself: write to another file.")
    if target in FRAMEWORKS and output.suffix != ".safetensors":
        raise Refused(f"{output}: canonical arrays are written as .safetensors.")


# ------------------------------------------------------------------------------------------------ there


def _read(file: Path, source: str | None, prefixes: tuple[str, ...], options: dict[str, Any]) -> Move:
    """The arrays of the file, converted.

    Raises: WeightError if they cannot be; ArchiveError if the file is damaged.
    """
    arrays = weights.read_arrays(file)
    held = _canonical_header(file)
    if source == CANONICAL or (source is None and held):
        return _canonical(arrays, {**held, **options})
    dtypes = {dtype_name(array.dtype) for array in arrays.values()}
    wide = {
        name: array.astype(np.float64) if dtype_name(array.dtype) in FLOATING else array
        for name, array in arrays.items()
    }
    chosen: str | list[str] | None = None if not prefixes else prefixes[0] if len(prefixes) == 1 else list(prefixes)
    converted = weights.to_canonical(wide, source, prefix=chosen, **options)
    used = {name for names in converted.used.values() for name in names}
    used_dtypes = {dtype_name(arrays[name].dtype) for name in used} or dtypes
    if len(used_dtypes) > 1:
        raise WeightError(f"the arrays are of several dtypes, {', '.join(sorted(used_dtypes))}: cast them first.")
    (dtype,) = {arrays[name].dtype for name in used} or {np.dtype(np.float32)}
    return Move(wide, converted, dtype, prefixes or (_prefix(converted, wide, options),))


def _prefix(converted: Converted, arrays: Arrays, options: Mapping[str, Any]) -> str:
    """What stands before all names, as the file writes it."""
    used = {name for names in converted.used.values() for name in names}
    source = SOURCES[converted.source]
    for fit in () if source.own else fits(source, arrays, None, options):
        if fit.fits and used <= set(fit.found):
            return next(iter(used))[: len(fit.prefix)]
    return ""


def _canonical_header(file: Path) -> dict[str, Any]:
    """What a file that this command wrote says of itself: the layer and its constructor's arguments."""
    if file.suffix != ".safetensors" or not backends.has_digest(file.read_bytes()):
        return {}
    header = backends.load_archive(file)[1]
    return {"layer": header["layer"], **header["config"]} if "layer" in header and "config" in header else {}


def _canonical(arrays: Arrays, options: dict[str, Any]) -> Move:
    """Canonical arrays as they are."""
    if "layer" not in options:
        raise WeightError(
            f"canonical arrays of which layer? Give layer=... , one of {', '.join(own.name for own in LAYERS)}."
        )
    layer = layer_named(options.pop("layer"))
    shapes = {name: array.shape for name, array in arrays.items()}
    config = config_of(layer, shapes, options)
    wanted = check_shapes(layer, config, shapes)
    missing = [name for name in wanted if name not in arrays]
    if missing:
        raise WeightError(f"{layer.name}: {missing[0]} {wanted[missing[0]]} is missing.")
    wide = {name: arrays[name].astype(np.float64) for name in wanted}
    dtype = next((array.dtype for array in arrays.values()), np.dtype(np.float32))
    return Move(wide, Converted(CANONICAL, layer.name, config, wide, {name: (name,) for name in wide}), dtype, ("",))


def _written(move: Move, target: str, output: Path, prefix: str) -> tuple[Arrays, int]:
    """The arrays of the other side, in float64, and in which of its ways their names are written."""
    if target in FRAMEWORKS:
        return move.converted.arrays, 0
    if target == move.converted.source:
        raise WeightError(f"the arrays are {target}'s already.")
    numbered = output.name.endswith(".h5") and (target.startswith("keras.") or target == "attention_parity.tf")
    spelling = 1 if numbered else 0
    config = move.converted.config
    unseen = {name: config[name] for name in ("num_heads",) if name in config}
    arrays = {**move.converted.arrays, **move.converted.beside}
    try:
        made = weights.from_canonical(move.layer.name, arrays, target, prefix=prefix, spelling=spelling, **unseen)
    except WeightError:
        if not move.converted.beside:
            raise
        made = weights.from_canonical(
            move.layer.name, move.converted.arrays, target, prefix=prefix, spelling=spelling, **unseen
        )
    return made, spelling


def _save(move: Move, target: str, written: Arrays, spelling: int, output: Path) -> None:
    if target not in FRAMEWORKS:
        weights.write_arrays(output, move.rounded(written))
        return
    own = move.converted
    header = {"layer": own.layer, "config": own.config, "source": own.source}
    backends.save_arrays(output, move.rounded(written), header)


# ------------------------------------------------------------------------------------------------ the proof


def _proved(move: Move, target: str, written: Arrays, both: bool, chosen: Mapping[str, str]) -> Run:
    sides, missing = [], {}
    asked = {target: written}
    if move.converted.source != CANONICAL and both:
        asked = {move.converted.source: move.own, **asked}
    for name, parameters in asked.items():
        entry = sources.spoken(name, parameters)
        framework = sources.framework_of(entry)
        reason = None if framework in chosen else sources.absence(framework)
        if reason is not None:
            missing[name] = reason
            continue
        variables = environment(framework, programs_folder(), "cpu")
        job = Job(name, sources.place_of(entry), chosen.get(framework, sys.executable), variables=variables)
        sides.append(Side(job, parameters, framework))
    own = move.converted
    with progress() as told:
        return prove(move.layer, own.config, own.arrays, sides, missing=missing, progress=told)


# ------------------------------------------------------------------------------------------------ what is told


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


def proof(run: Run) -> list[RenderableType]:
    """A table of each tier, what was not judged, and what is red."""
    lines: list[RenderableType] = [table(run, tier) for tier in run.tiers]
    told: dict[tuple[str, str], list[str]] = {}
    for own in run.verdicts:
        if not own.judged:
            what = own.tier if own.quantity == "*" else own.quantity
            told.setdefault((own.name, own.reason), []).append(f"{own.case} {what}")
    for (name, reason), cells in told.items():
        lines.append(Text(f"not judged  {name}  {', '.join(dict.fromkeys(cells))}: {reason}", style="dim"))
    for own in run.red[:MOST_TOLD]:
        against = "" if own.against == "reference" else f" against {own.against}"
        where = "" if own.case == "*" else f"  {own.case}  {own.tier}  {own.quantity}"
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


def table(run: Run, tier: str) -> RenderableType:
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
                if (own.name, own.against, own.tier, own.quantity) == (name, against, tier, quantity)
            ]
            cells.append(worst(here))
        grid.add_row(quantity, *cells)
    return titled(f"{tier}: worst error, in eps of the largest entry", grid)


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
        return Text(f"unproved    {output} is written, and nothing was run", style="bold yellow")
    count = f"{len(run.verdicts):,} comparisons"
    if how == "own":
        said = f"{target} agrees with the reference ({count}), and {move.converted.source} was not run"
        return Text(f"unproved    {output} is written: {said}", style="bold yellow")
    passed = [own for own in run.verdicts if own.status == "pass"]
    if move.converted.source != CANONICAL:
        passed = [own for own in passed if move.converted.source in (own.name, own.against)]
    tiers = " and ".join(tier for tier in run.tiers if any(own.tier == tier for own in passed))
    same = "the reference" if move.converted.source == CANONICAL else move.converted.source
    text = f"green       {target} is the same function as {same} in {tiers}: {count}, all within budget"
    return Text(f"{text}; {output} is written", style="bold green")
