"""The command line."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import click
import numpy as np
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

import backends as registry
from attention_core.operators import LAYERS, OPERATORS, UPDATES, find
from attention_core.specification import Layer
from backends import ArchiveError
from parity_tests import budgets, family, side_by_side, text
from parity_tests.behaviour_command import command as behaviour
from parity_tests.bench.command import bench
from parity_tests.cases import FULL, TIERS, Case, all_cases, covering
from parity_tests.check import check, verify
from parity_tests.command import (
    CommaList,
    Refused,
    cells_options,
    complete_backend,
    complete_case,
    console,
    corpus_option,
    examples,
    interpreters,
    json_option,
    options,
    pairs_in,
    progress,
    signals,
    tiers_option,
    worker_options,
    write_json,
)
from parity_tests.comparison import CELL_CHECKS, CHECKS
from parity_tests.convert import convert
from parity_tests.derived import Derived, survivors
from parity_tests.derived import derived as derived_mistakes
from parity_tests.divergences import apply, load_divergences
from parity_tests.drawn import NAMES as DRAWN
from parity_tests.expected import expected, held
from parity_tests.invocation import TRAINING
from parity_tests.launch import WAITING, Job, Server, WorkerFault, counted, record, record_cells
from parity_tests.library_bugs import KNOWN
from parity_tests.recordings import Cell, Mismatch, Recording, Selection, cells_of, common_cells, key, named, pack_cases
from parity_tests.report import MOST_RED, report, report_campaign, report_finding
from parity_tests.run import CacheError, Run, judge_all, recheck, suspects
from parity_tests.run import run as run_parity
from parity_tests.saboteurs import attempt, judged
from parity_tests.switches import XLA_LEVEL
from parity_tests.translate import translate

SENTENCES = 8


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="attention-parity")
def main() -> None:
    """Judge implementations of attention against one specification, down to rounding.

    Without a framework installed, `list` and `show` print the specification.
    """


main.add_command(behaviour)
main.add_command(bench)
main.add_command(check)
main.add_command(verify)
main.add_command(translate)
main.add_command(convert)

corpus_options = options(
    corpus_option,
    click.option(
        "--sentences",
        type=click.IntRange(min=2),
        default=SENTENCES,
        show_default=True,
        help="Sentence pairs to take, spread over the corpus.",
    ),
)


@main.command(
    short_help="Judge backends against reference and each other.",
    epilog=examples("run", "run --backend torch,jax --all --tier float64,bfloat16 --json verdicts.json"),
)
@click.option(
    "--backend",
    "names",
    type=CommaList(known=registry.available),
    metavar="NAMES",
    help="Backends to judge, with commas; all installed ones unless given.",
)
@cells_options
@worker_options
@corpus_options
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write the recordings and report.json there.",
)
@json_option
@click.option("--all", "everything", is_flag=True, help="Judge every cell; the core unless given, or cases are chosen.")
@click.option("--every", is_flag=True, help="Print a row for every operator, however many there are.")
@click.option("--require-all", is_flag=True, help="A registered backend that cannot run here is red.")
@click.option(
    "--jobs",
    "workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Workers that run at once, those of one backend included; as many as there are cores unless given.",
)
def run(
    names: list[str] | None,
    tiers: list[str],
    pattern: str | None,
    operators: list[str] | None,
    training: bool,
    device: str,
    pythons: tuple[str, ...],
    corpus: Path | None,
    sentences: int,
    output: Path | None,
    json_file: Path | None,
    everything: bool,
    every: bool,
    require_all: bool,
    workers: int | None,
) -> None:
    """Run the cases on every backend, and judge each against the reference and against each other.

    Unless cases are chosen, or --all is given, the core is judged: few cells that tell every known mistake.
    On another device than the CPU, each backend is run on the CPU, too, and held against itself.
    Exits with 0 only if nothing is red. Ctrl-C ends the workers and reports what was judged by then.
    """
    jobs, missing = _jobs(names, interpreters(pythons), device)
    everything = everything or training or bool(pattern or operators)
    selection = Selection(tiers, pattern, operators or (), training, core=not everything)
    with signals() as caught, progress() as told:
        for job in jobs:
            told(job.name, 0, 1, WAITING)
        cells = _selected(selection, corpus, sentences)
        try:
            outcome = run_parity(
                cells,
                jobs,
                workers=workers or 0,
                missing=missing,
                require_all=require_all or names is not None,
                divergences=load_divergences(),
                recorder=partial(record, stopped=lambda: bool(caught)),
                progress=told,
                stopped=lambda: bool(caught),
            )
        except CacheError as error:
            raise Refused(str(error)) from error
    if selection.core:
        outcome.of = len(_selected(replace(selection, core=False), corpus, sentences))
    report(outcome, console, every)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        for recording in outcome.recordings.values():
            file = f"{recording.backend}-{recording.device.replace(':', '-')}.safetensors"
            replace(recording, selection=selection).save(output / file)
    for path in filter(None, (json_file, output and output / "report.json")):
        write_json(outcome, path)
    if outcome.interrupted:
        sys.exit(128 + caught[0])
    sys.exit(1 if outcome.red else 0)


@main.command(
    "record",
    short_help="Write what a backend answers to a file.",
    epilog=examples(
        "record --backend torch -o torch.safetensors",
        "record --backend jax --device cuda --operator masked_softmax -o jax-cuda.safetensors",
    ),
)
@click.option(
    "--backend", "name", metavar="NAME", required=True, shell_complete=complete_backend, help="The backend to run."
)
@cells_options
@worker_options
@corpus_options
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    help="Write the recording there.",
)
def record_one(
    name: str,
    tiers: list[str],
    pattern: str | None,
    operators: list[str] | None,
    training: bool,
    device: str,
    pythons: tuple[str, ...],
    corpus: Path | None,
    sentences: int,
    file: Path,
) -> None:
    """Run the cases on one backend, and write what it answers to a file, for `compare` on any machine.

    Exits with 0 only if every cell was answered.
    """
    if not file.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {file.absolute().parent}", param_hint="--output")
    job = _jobs([name], interpreters(pythons), device)[0][0]
    selection = Selection(tiers, pattern, operators or (), training)
    cells = _selected(selection, corpus, sentences)
    with progress() as told:
        recording = replace(record_cells(job, cells, pack_cases(cells), told), selection=selection)
    recording.save(file)
    rest = recording.unanswered
    for cell, said in list(rest.items())[:MOST_RED]:
        console.print(Text(f"{said['status']:<11} {cell}  {said['message']}"), soft_wrap=True)
    kinds = Counter(said["status"] for said in rest.values())
    others = "".join(f", {count} {kind}" for kind, count in kinds.items())
    answered = f"{len(cells) - len(rest)} of {len(cells)} cells answered"
    console.print(Text(f"recorded    {name} on {device}: {answered}{others}; {file}"), soft_wrap=True)
    sys.exit(1 if rest else 0)


@main.command(
    short_help="Judge recordings, without a framework.",
    epilog=examples("compare torch.safetensors jax-cuda.safetensors", "compare *.safetensors --json verdicts.json"),
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False))
@corpus_options
@json_option
def compare(files: tuple[str, ...], corpus: Path | None, sentences: int, json_file: Path | None) -> None:
    """Judge recordings against the reference and against each other; no framework is needed.

    Exits with 0 only if nothing is red, and with 2 if a recording is damaged or of other cases: then nothing is judged.
    """
    start = time.perf_counter()
    try:
        recordings = {file: Recording.load(file) for file in files}
        cells = common_cells(recordings, all_cases(_pairs(corpus, sentences), trained=True))
        outcome = Run(cells, recordings=named(recordings), tiers=recordings[files[0]].selection.tiers)
    except (ArchiveError, Mismatch) as error:
        raise Refused(str(error)) from error
    with held(cells) as read, progress() as told:
        wanted = {key(cell): expected(*cell) for cell in counted("reference", cells, told)}
        outcome.seconds["reference"] = time.perf_counter() - start
        verdicts = judge_all(cells, wanted, outcome.recordings, told)
    try:
        recheck(read, suspects(cells, verdicts))
    except CacheError as error:
        raise Refused(str(error)) from error
    outcome.verdicts = apply(verdicts, load_divergences())
    outcome.seconds["total"] = time.perf_counter() - start
    report(outcome, console)
    if json_file is not None:
        write_json(outcome, json_file)
    sys.exit(1 if outcome.red else 0)


def _selected(selection: Selection, corpus: Path | None, sentences: int) -> list[Cell]:
    cells = selection.cells(all_cases(_pairs(corpus, sentences), trained=True))
    if not cells:
        raise Refused("no case matches; `attention-parity list --cases` names them all")
    return cells


def _jobs(names: list[str] | None, interpreters: dict[str, str], device: str) -> tuple[list[Job], dict[str, str]]:
    known = registry.available()
    for name in [*(names or []), *interpreters]:
        if name not in known:
            raise Refused(f"no backend {name!r}; there are {', '.join(known)}")
    jobs, missing = [], {}
    for name in names or known:
        backend = known[name]
        if name not in interpreters and backend.reason is not None:
            missing[name] = backend.reason
            continue
        # On another device, a backend is held against itself on the CPU, too.
        for where in dict.fromkeys([device, "cpu"]):
            jobs.append(Job(name, backend.module, interpreters.get(name, sys.executable), where))
    if not jobs:
        reasons = "; ".join(missing.values()) or "none is registered"
        raise click.ClickException(f"no backend can run here: {reasons}")
    return jobs, missing


def _pairs(corpus: Path | None, count: int) -> list[text.Pair]:
    if corpus is None:
        return text.dates(count)
    try:
        pairs = pairs_in(corpus)
    except text.CorpusError as error:
        raise Refused(str(error)) from error
    spread = np.linspace(0, len(pairs) - 1, min(count, len(pairs))).astype(int)
    return [pairs[position] for position in dict.fromkeys(spread.tolist())]


@main.command(
    "fuzz",
    short_help="Judge backends on cases drawn by the thousand.",
    epilog=examples(
        "fuzz --seconds 60", "fuzz --backend mxnet --operator masked_softmax --seed 7 --first 128 --examples 1"
    ),
)
@click.option("--seconds", type=click.FloatRange(min=0.0), help="Stop when this time is over.")
@click.option("--examples", type=click.IntRange(min=1), help="Stop after this many cases.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Draw the cases of this seed.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, help="Begin with this case.")
@click.option(
    "--backend",
    "names",
    type=CommaList(known=registry.available),
    metavar="NAMES",
    help="Backends to fuzz, with commas; all installed ones unless given.",
)
@click.option(
    "--operator",
    "operators",
    type=CommaList(DRAWN),
    metavar="NAMES",
    default=",".join(DRAWN),
    help="Only cases of these operators, with commas.",
)
@tiers_option
@worker_options
def fuzz_backends(
    seconds: float | None,
    examples: int | None,
    seed: int,
    first: int,
    names: list[str] | None,
    operators: list[str],
    tiers: list[str],
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
    os.environ.setdefault(XLA_LEVEL, "3")  # one compilation serves a whole family of cases
    jobs = [job for job in _jobs(names, interpreters(pythons), device)[0] if job.device == device]
    arguments = [f"--seed {seed}"]
    if operators != list(DRAWN):
        arguments.append(f"--operator {','.join(operators)}")
    if tiers != [*FULL]:
        arguments.append(f"--tier {','.join(tiers)}")
    if device != "cpu":
        arguments.append(f"--device {device}")
    try:
        with contextlib.ExitStack() as stack:
            told = stack.enter_context(progress())
            servers = [stack.enter_context(Server(job)) for job in jobs]
            for server in servers:
                told("fuzz", 0, 1, f"starting {server.job.name}")
                server.hello()
            campaign = fuzz.Campaign(servers, seed, first, operators=operators, tiers=tiers)
            for finding in campaign.run(seconds, examples, told):
                command = f"attention-parity fuzz --backend {finding.verdict.backend} {' '.join(arguments)}"
                report_finding(finding, f"{command} --first {finding.number} --examples 1", console)
    except WorkerFault as fault:
        raise click.ClickException(str(fault)) from fault
    report_campaign(campaign, console)
    sys.exit(1 if campaign.findings else 0)


@main.command(
    "backends",
    short_help="Name the backends, and why one cannot run.",
    epilog=examples("backends", "backends | grep jax"),
)
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


@main.command(
    "list",
    short_help="Name all operators, with formula and source.",
    epilog=examples("list", "list --cases | grep GRU"),
)
@click.option("--cases", "with_cases", is_flag=True, help="Name every case, too.")
def list_operators(with_cases: bool) -> None:
    """Name every operator and layer, with its formula and source."""
    cases = all_cases(trained=True)
    for entry in (*OPERATORS, *UPDATES, *LAYERS):
        own = [case for case in cases if case.operator == entry.name]
        console.print(f"[bold]{entry.name}[/]({escape(entry.signature)})  [dim]{len(own)} cases[/]")
        indented(f"{escape(entry.summary)}\n[cyan]{escape(entry.formula)}[/]\n[dim]{entry.source}[/]")
        if with_cases:
            _print_cases(own)
    rest = [case for case in cases if case.operator == TRAINING]
    console.print(
        f"[bold]{TRAINING}[/]  [dim]{len(rest)} cases[/]\n    Translators trained step by step, with --training."
    )
    if with_cases:
        _print_cases(rest)


def indented(markup: str, by: int = 4) -> None:
    """Print lines with a margin, which those that do not fit in the terminal keep."""
    console.print(Padding(markup, (0, 0, 0, by)), highlight=False)


def _print_cases(cases: list[Case]) -> None:
    for case in cases:
        console.print(f"        {case.id:<38} [dim]{escape(case.shows)}[/]", highlight=False)


@main.command(
    short_help="Write two backends side by side, as HTML.",
    epilog=examples("diff scoring torch jax", "diff decoders tf mxnet -o decoders.html"),
)
@click.argument("file", metavar="FILE")
@click.argument("left", metavar="BACKEND", shell_complete=complete_backend)
@click.argument("right", metavar="BACKEND", shell_complete=complete_backend)
@click.option(
    "-o",
    "--output",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PAGE",
    help="Where to write the page; FILE-BACKEND-BACKEND.html here unless given.",
)
def diff(file: str, left: str, right: str, target: Path | None) -> None:
    """Write the side-by-side page of two backends: `attention-parity diff scoring torch jax`.

    FILE is one that every backend has: masking, scoring, pooling, layers, recurrent, decoders, parameters or runtime.
    The frameworks need not be installed.
    """
    target = target or Path(f"{file}-{left}-{right}.html")
    try:
        text = side_by_side.page(
            file, (left, right), (side_by_side.source(left, file), side_by_side.source(right, file))
        )
    except side_by_side.NoSource as error:
        raise Refused(str(error)) from error
    target.write_text(text, encoding="utf-8")
    console.print(Text(f"written     {target}"), soft_wrap=True)


@main.command(
    "family",
    short_help="Print the porter's map of the whole family.",
    epilog=examples("family", "family > family.md"),
)
def print_family() -> None:
    """Print docs/family.md: every row with formula, shapes, parameters, other names, calls, and what bites."""
    click.echo(family.page(), nl=False)


@main.command(
    short_help="Show a case, and what the reference expects.",
    epilog=examples("show masked_softmax-closed", "show GRU-ragged --values"),
)
@click.argument("case_id", metavar="CASE", shell_complete=complete_case)
@click.option("--values", is_flag=True, help="Print the arrays, too.")
def show(case_id: str, values: bool) -> None:
    """Show a case: formula, source, shapes, and what the reference expects."""
    case = next((case for case in all_cases(trained=True) if case.id == case_id), None)
    if case is None:
        raise Refused(f"no case {case_id!r}; `attention-parity list --cases` names them all")
    console.print(f"[bold]{case.id}[/]  {escape(case.shows)}", highlight=False)
    if case.operator != TRAINING:
        entry = find(case.operator)
        called = entry.method(case.method if case.method else "call") if isinstance(entry, Layer) else entry
        indented(f"[cyan]{escape(called.formula)}[/]\n[dim]{entry.source}[/]")
    arguments = {**case.config, **case.options}
    if arguments:
        indented(escape(", ".join(f"{name}={value}" for name, value in arguments.items())))
    table = Table(header_style="bold")
    for column in ("what", "name", "shape", "dtype", "largest"):
        table.add_column(column, overflow="fold")
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


@main.command(
    short_help="Hold budgets against the errors of reports.",
    epilog=examples("calibrate verdicts.json", "calibrate here.json elsewhere.json"),
)
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def calibrate(reports: tuple[Path, ...]) -> None:
    """Show the worst error beside each budget, and what the budget would be by it.

    REPORT is a file that `attention-parity run --all --json` wrote; several, of other machines and devices, count
    together. A budget should be 2 to 10 times the worst error ever seen; where it is not, 3 times that is proposed.
    """
    measured = []
    for path in reports:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            named = [cell[name] for name in ("operator", "case", "tier", "quantity")]
            against = "" if cell["against"] == "reference" else f" against {cell['against']}"
            where = f"{cell['backend']}{against}, {cell['case']}, {cell['quantity']}, {cell['tier']}"
            budget, by_entry = budgets.budget_of(*named), budgets.entry_budget_of(*named)
            if cell["budget"] and cell["check"] != "entry" and cell["budget"] != budget.eps:
                continue  # a drawn case, whose budgets follow from its own conditioning
            if cell["error"] is not None and cell["budget"] and cell["check"] != "entry":
                measured.append((budget, cell["error"], where))
            if by_entry is not None and cell.get("entry_error") is not None:
                measured.append((by_entry, cell["entry_error"], where))
    table = Table(header_style="bold", show_lines=True)
    table.add_column("budget for, and the worst measured")
    for column in ("measured", "seen", "budget", "would be"):
        table.add_column(column, justify="right", no_wrap=True)
    for line in budgets.calibrate(measured):
        own, kept = line.budget, line.proposed == line.budget.eps
        what = ", ".join([*own.tiers, *(part for part in (own.operator, own.case, own.quantity) if part != "*")])
        what += ", by entry" if isinstance(own, budgets.EntryBudget) else ""
        proposed = "[green]as it is[/]" if kept else f"[yellow]{line.proposed:g}[/]"
        place = f"{what}\n[dim]{line.where}[/]"
        table.add_row(place, f"{line.measured:.3g}", f"{own.worst:g}", f"{own.eps:g}", proposed)
    console.print(table)


def _sabotage_derived(pattern: str) -> int:
    """Print the derived mistakes by dimension; the exit code is 0 if there are some, and all of them are caught."""
    cells = cells_of(all_cases(), TIERS)
    table = Table(header_style="bold")
    for column in ("dimension", "mistakes", "caught", "caught without its cases"):
        table.add_column(column, justify="left" if column == "dimension" else "right")
    total = 0
    alive: list[Derived] = []
    for dimension in covering.DIMENSIONS:
        mistakes = [one for one in derived_mistakes([dimension]) if fnmatchcase(f"{one.scope}-{one.name}", pattern)]
        left = survivors(cells, mistakes)
        without = survivors([cell for cell in cells if not covering.varies(cell[0], dimension)], mistakes)
        counts = (len(mistakes), len(mistakes) - len(left), len(mistakes) - len(without))
        table.add_row(dimension, *(f"{count:,}" for count in counts))
        total, alive = total + len(mistakes), alive + left
    console.print(table)
    for mistake in alive:
        console.print(f"[bold red]hole[/]  {mistake.scope}: {mistake.name}", highlight=False)
    caught = not alive and total > 0
    words = f"all {total:,} mistakes are caught" if caught else f"{len(alive):,} of {total:,} mistakes are not caught"
    console.print(f"[bold {'green' if caught else 'red'}]{words}[/]", highlight=False)
    return 0 if caught else 1


@main.command(
    short_help="Hold wrong implementations against the court.",
    epilog=examples("sabotage --sentences", "sabotage --derived --name 'GRU*'"),
)
@click.option(
    "--name", "pattern", metavar="PATTERN", default="*", help="Only saboteurs whose name matches, with * and ?."
)
@click.option("--sentences", is_flag=True, help="Print what each of them does, and its source.")
@click.option(
    "--derived", is_flag=True, help="Those derived from the specification instead, by dimension of the cases."
)
def sabotage(pattern: str, sentences: bool, derived: bool) -> None:
    """Hold deliberately wrong implementations against the court: saboteur by what caught it.

    The numbers count the answers that each check refused. A saboteur is marked as a hole unless exactly those answers
    are red that have to be. Exits with 0 only if there is no hole.

    With --derived: mistakes that show under one condition alone, as beyond 64 keys, for a transposed input or at a
    second call, how many of them the cases catch, and how many without the cases of their dimension.
    """
    if derived:
        sys.exit(_sabotage_derived(pattern))
    table = Table(box=None, collapse_padding=True, pad_edge=False, header_style="bold")
    table.add_column("saboteur", no_wrap=True)
    for name in (*CELL_CHECKS, *CHECKS):
        table.add_column(name, justify="right")
    chosen, holes = [one for one in KNOWN if fnmatchcase(one.name, pattern)], []
    for saboteur in chosen:
        caught = judged(saboteur, *attempt(saboteur))
        counts = [f"{caught.by[name]}" if name in caught.by else "[dim]·[/]" for name in (*CELL_CHECKS, *CHECKS)]
        table.add_row(saboteur.name if caught.as_stated else f"[bold red]{saboteur.name}[/]", *counts)
        if not caught.as_stated:
            holes.append(caught)
    console.print(table)
    for saboteur in chosen if sentences else ():
        console.print(f"[dim]{saboteur.name}: {escape(saboteur.told)}[/]", highlight=False)
    for caught in holes:
        console.print(f"[bold red]hole[/]  {caught.saboteur.name}: {escape(caught.saboteur.sentence)}", highlight=False)
        for what, places in (("let through", caught.let_through), ("accused for nothing", caught.accused)):
            if places:
                console.print(f"      {what}: {', '.join(places)}", highlight=False, markup=False)
    count = len(chosen)
    console.print(
        f"[bold red]{len(holes)} of {count} saboteurs are not caught as they should be[/]"
        if holes
        else f"[bold green]all {count} saboteurs are caught, each in exactly the answers that it spoils[/]"
    )
    sys.exit(1 if holes or not count else 0)
