"""The command line: run, fuzz, backends, list, show."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import backends as registry
from attention_core.operators import LAYERS, OPERATORS, find
from attention_core.specification import Layer
from parity_tests import text
from parity_tests.cases import NAMES, TIERS, Case, all_cases, select
from parity_tests.divergences import load_divergences
from parity_tests.expected import expected
from parity_tests.launch import Job, WorkerFault, record
from parity_tests.recordings import cells_of
from parity_tests.report import report
from parity_tests.run import run as run_parity

if TYPE_CHECKING:
    from parity_tests.fuzz import Campaign, Finding

SENTENCES = 8
console = Console()


class CommaList(click.ParamType):
    """Names with commas between them, each one of the choices where there are any."""

    name = "names"

    def __init__(self, choices: tuple[str, ...] = ()) -> None:
        self.choices = choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """The names as a list without repetitions."""
        names = list(dict.fromkeys(filter(None, value.split(",")))) if isinstance(value, str) else list(value)
        for name in names:
            if self.choices and name not in self.choices:
                self.fail(f"{name!r}: expected some of {', '.join(self.choices)}.", param, ctx)
        return names


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="attention-parity")
def main() -> None:
    """Judge implementations of attention against one specification, down to rounding.

    Without a framework installed, `list` and `show` print the specification.
    """


@main.command()
@click.option(
    "--backend",
    "names",
    type=CommaList(),
    metavar="NAMES",
    help="Backends to judge, with commas; all installed ones unless given.",
)
@click.option(
    "--tier",
    "tiers",
    type=CommaList(TIERS),
    metavar="TIERS",
    default=",".join(TIERS),
    show_default=True,
    help="Tiers to judge in, with commas.",
)
@click.option("--case", "pattern", metavar="PATTERN", help="Only cases whose id matches, with * and ?.")
@click.option(
    "--operator",
    "operators",
    type=CommaList(NAMES),
    metavar="NAMES",
    help="Only cases of these operators, with commas.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to run.")
@click.option(
    "--python",
    "pythons",
    metavar="NAME=PATH",
    multiple=True,
    help="Run a backend with another interpreter, "
    "whose environment has NumPy, safetensors and the framework. May be given for each backend.",
)
@click.option(
    "--corpus",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Sentence pairs, one pair a line with a tab between; generated dates unless given.",
)
@click.option(
    "--sentences",
    type=click.IntRange(min=2),
    default=SENTENCES,
    show_default=True,
    help="Sentence pairs to take, spread over the corpus.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the recordings and report.json there.",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write every verdict to a file.",
)
@click.option("--require-all", is_flag=True, help="A registered backend that cannot run here is red.")
def run(
    names: list[str] | None,
    tiers: list[str],
    pattern: str | None,
    operators: list[str] | None,
    device: str,
    pythons: tuple[str, ...],
    corpus: Path | None,
    sentences: int,
    output: Path | None,
    json_file: Path | None,
    require_all: bool,
) -> None:
    """Run the cases on every backend, and judge each against the reference and against each other.

    Exits with 0 only if nothing is red.
    """
    interpreters = _interpreters(pythons)
    jobs, missing = _jobs(names, interpreters, device)
    if not jobs:
        reasons = "; ".join(missing.values()) or "none is registered"
        raise click.ClickException(f"no backend can run here: {reasons}")
    cases = select(all_cases(_pairs(corpus, sentences)), pattern, operators)
    cells = cells_of(cases, tiers)
    if not cells:
        raise click.ClickException("no case matches; `attention-parity list` names them all")
    columns = (TextColumn("{task.description:>7}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {job.backend: bars.add_task(job.backend, total=len(cells)) for job in jobs}
        outcome = run_parity(
            cases,
            tiers,
            jobs,
            missing=missing,
            require_all=require_all or names is not None,
            divergences=load_divergences(),
            recorder=record,
            progress=lambda backend, done: bars.update(tasks[backend], completed=done),
        )
    report(outcome, console)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        for name, recording in outcome.recordings.items():
            recording.save(output / f"{name}-{device}.safetensors")
    for path in filter(None, (json_file, output and output / "report.json")):
        path.write_text(json.dumps(outcome.as_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    sys.exit(1 if outcome.red else 0)


def _interpreters(pythons: tuple[str, ...]) -> dict[str, str]:
    chosen = {}
    for entry in pythons:
        name, equals, path = entry.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{entry!r}: expected NAME=PATH, as mxnet=venv/bin/python", param_hint="--python")
        if not Path(path).is_file():
            raise click.BadParameter(f"{path} does not exist", param_hint="--python")
        chosen[name] = str(Path(path).absolute())
    return chosen


def _jobs(names: list[str] | None, interpreters: dict[str, str], device: str) -> tuple[list[Job], dict[str, str]]:
    known = registry.available()
    for name in [*(names or []), *interpreters]:
        if name not in known:
            raise click.ClickException(f"no backend {name!r}; there are {', '.join(known)}")
    jobs, missing = [], {}
    for name in names or known:
        backend = known[name]
        if name in interpreters:
            jobs.append(Job(name, backend.module, interpreters[name], device))
        elif backend.reason is None:
            jobs.append(Job(name, backend.module, device=device))
        else:
            missing[name] = backend.reason
    return jobs, missing


def _pairs(corpus: Path | None, count: int) -> list[text.Pair]:
    if corpus is None:
        return text.dates(count)
    try:
        pairs = text.read_pairs(corpus)
    except text.CorpusError as error:
        raise click.ClickException(str(error)) from error
    spread = np.linspace(0, len(pairs) - 1, min(count, len(pairs))).astype(int)
    return [pairs[position] for position in dict.fromkeys(spread.tolist())]


@main.command("fuzz")
@click.option("--seconds", type=click.FloatRange(min=0.0), help="Stop when this time is over.")
@click.option("--examples", type=click.IntRange(min=1), help="Stop after this many cases.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Draw the cases of this seed.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Begin with this case.")
@click.option(
    "--backend",
    "names",
    type=CommaList(),
    metavar="NAMES",
    help="Backends to fuzz, with commas; all installed ones unless given.",
)
@click.option(
    "--operator",
    "operators",
    type=CommaList(NAMES[:-1]),
    metavar="NAMES",
    default=",".join(NAMES[:-1]),
    help="Only cases of these operators, with commas.",
)
@click.option(
    "--tier",
    "tiers",
    type=CommaList(),
    metavar="TIERS",
    help="Tiers to draw from, with commas; all that fuzzing has budgets for unless given.",
)
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where to run.")
@click.option(
    "--python",
    "pythons",
    metavar="NAME=PATH",
    multiple=True,
    help="Run a backend with another interpreter. May be given for each backend.",
)
def fuzz_backends(
    seconds: float | None,
    examples: int | None,
    seed: int,
    first: int,
    names: list[str] | None,
    operators: list[str],
    tiers: list[str] | None,
    device: str,
    pythons: tuple[str, ...],
) -> None:
    """Put drawn cases to every backend, and shrink what differs from the reference to one line.

    The same seed draws the same cases. Exits with 0 only if nothing differs.
    """
    try:
        from parity_tests import fuzz
    except ModuleNotFoundError as error:
        raise click.ClickException("fuzzing needs hypothesis: pip install 'attention-parity[fuzz]'") from error
    if seconds is None and examples is None:
        raise click.UsageError("say when to stop: --seconds, --examples, or both")
    for tier in tiers or ():
        if tier not in fuzz.TIERS:
            raise click.BadParameter(f"{tier!r}: expected some of {', '.join(fuzz.TIERS)}", param_hint="--tier")
    jobs, missing = _jobs(names, _interpreters(pythons), device)
    if not jobs:
        raise click.ClickException(f"no backend can run here: {'; '.join(missing.values()) or 'none is registered'}")
    arguments = [f"--seed {seed}"]
    if operators != list(NAMES[:-1]):
        arguments.append(f"--operator {','.join(operators)}")
    if tiers:
        arguments.append(f"--tier {','.join(tiers)}")
    if device != "cpu":
        arguments.append(f"--device {device}")
    try:
        with contextlib.ExitStack() as stack, console.status("starting") as status:
            servers = [stack.enter_context(fuzz.Server(job)) for job in jobs]
            campaign = fuzz.Campaign(servers, seed, first, operators=operators, tiers=tiers or fuzz.TIERS)
            for finding in campaign.run(seconds, examples):
                status.update(f"{campaign.done} cases, {len(campaign.findings)} findings")
                if finding is not None:
                    _print_finding(finding, " ".join(arguments))
    except WorkerFault as fault:
        raise click.ClickException(str(fault)) from fault
    _print_campaign(campaign)
    sys.exit(1 if campaign.findings else 0)


def _print_finding(finding: Finding, arguments: str) -> None:
    verdict = finding.verdict
    again = f"attention-parity fuzz --backend {verdict.backend} {arguments} --first {finding.number} --examples 1"
    for line in (
        f"[red]{verdict.backend} {verdict.operator} {verdict.quantity}: {verdict.status}[/] {escape(verdict.reason)}",
        f"    {escape(repr(finding.drawn))},",
        f"    [dim]{again}[/]",
    ):
        console.print(line, highlight=False, soft_wrap=True)


def _print_campaign(campaign: Campaign) -> None:
    backends = [server.job.backend for server in campaign.servers]
    table = Table(header_style="bold", caption="cases, and the largest share of its budget that an error took")
    table.add_column("operator")
    for name in backends:
        table.add_column(name, justify="right")
    for operator in campaign.operators:
        cells = [(campaign.cases[name, operator], campaign.worst.get((name, operator), 0.0)) for name in backends]
        table.add_row(operator, *(f"{count} [dim]{100 * share:.0f}%[/]" for count, share in cells))
    table.add_row("all", *(str(sum(n for (b, _), n in campaign.cases.items() if b == name)) for name in backends))
    console.print(table)
    total, last = sum(campaign.cases.values()), campaign.first + campaign.done - 1
    console.print(
        f"{total} cases judged: seed {campaign.seed}, numbers {campaign.first} to {last}, of which {campaign.left_out} "
        f"left out, since rounding alone could change them; {campaign.seconds:.0f} s, "
        f"{total / max(campaign.seconds, 1e-9):.1f} cases/s",
        highlight=False,
    )
    for kind, finding in campaign.findings.items():
        console.print(
            f"[red]{' '.join(filter(None, kind))}[/]: {campaign.repeated[kind]} cases, first {finding.number}"
        )


@main.command("backends")
def list_backends() -> None:
    """Name the registered backends: versions, device, and why one cannot run."""
    table = Table(header_style="bold")
    for column in ("backend", "module", "versions", "can run"):
        table.add_column(column)
    for backend in registry.available().values():
        versions = ", ".join(f"{name} {version}" for name, version in backend.versions.items())
        table.add_row(
            backend.name,
            backend.module,
            versions or "·",
            "[green]yes[/]" if backend.reason is None else f"[yellow]{escape(backend.reason)}[/]",
        )
    console.print(table)


@main.command("list")
@click.option("--cases", "with_cases", is_flag=True, help="Name every case, too.")
def list_operators(with_cases: bool) -> None:
    """Name every operator and layer, with its formula and source."""
    cases = all_cases()
    for entry in (*OPERATORS, *LAYERS):
        own = [case for case in cases if case.operator == entry.name]
        console.print(f"[bold]{entry.name}[/]({escape(entry.signature)})  [dim]{len(own)} cases[/]")
        console.print(
            f"    {escape(entry.summary)}\n    [cyan]{escape(entry.formula)}[/]\n    [dim]{entry.source}[/]",
            highlight=False,
        )
        if with_cases:
            _print_cases(own)
    rest = [case for case in cases if case.operator == "sentences"]
    console.print(f"[bold]sentences[/]  [dim]{len(rest)} case[/]\n    Encoder and decoder together, on real sentences.")
    if with_cases:
        _print_cases(rest)


def _print_cases(cases: list[Case]) -> None:
    for case in cases:
        console.print(f"        {case.id:<38} [dim]{escape(case.shows)}[/]", highlight=False)


@main.command()
@click.argument("case_id", metavar="CASE")
@click.option("--values", is_flag=True, help="Print the arrays, too.")
def show(case_id: str, values: bool) -> None:
    """Show a case: formula, source, shapes, and what the reference expects."""
    case = next((case for case in all_cases() if case.id == case_id), None)
    if case is None:
        raise click.ClickException(f"no case {case_id!r}; `attention-parity list --cases` names them all")
    console.print(f"[bold]{case.id}[/]  {escape(case.shows)}", highlight=False)
    if case.operator != "sentences":
        entry = find(case.operator)
        called = entry.method(case.method if case.method else "call") if isinstance(entry, Layer) else entry
        console.print(f"    [cyan]{escape(called.formula)}[/]\n    [dim]{entry.source}[/]", highlight=False)
    arguments = {**case.config, **case.options}
    if arguments:
        console.print("    " + ", ".join(f"{name}={value}" for name, value in arguments.items()), highlight=False)
    table = Table(header_style="bold")
    for column in ("what", "name", "shape", "dtype", "largest"):
        table.add_column(column)
    found = expected(case, case.tiers[0])
    for kind, arrays in (("input", case.inputs), ("parameter", case.parameters), ("expected", found)):
        for name, array in arrays.items():
            finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
            largest = f"{np.abs(finite.astype(float)).max():.4g}" if finite.size else "·"
            table.add_row(kind, name, str(array.shape), array.dtype.name, largest)
    console.print(table)
    if values:
        for name, array in {**case.inputs, **case.parameters, **found}.items():
            console.print(f"[bold]{name}[/]\n{escape(str(array))}", highlight=False)
