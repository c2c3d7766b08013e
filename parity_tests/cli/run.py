"""The commands that test the registered backends: run, record and compare."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.text import Text

import backends as registry
from backends.archives import ArchiveError
from parity_tests.cases.suite import all_cases
from parity_tests.cli import options, paths
from parity_tests.cli.terminal import (
    Refused,
    cluster,
    console,
    pairs_in,
    progress,
    report_mistakes,
    signals,
    write_json,
    write_pages,
)
from parity_tests.cluster.client import missing_of
from parity_tests.cluster.worker import offers
from parity_tests.format.case import DTYPES, MIXED
from parity_tests.format.expected import freeze_cache
from parity_tests.format.selection import Cell, Selection
from parity_tests.judge.compare import excuse_missing
from parity_tests.judge.divergences import load_divergences
from parity_tests.judge.question import Questions
from parity_tests.judge.run import CacheError, Recorder, Run, conclude
from parity_tests.judge.run import run as run_parity
from parity_tests.reports.table import MOST_RED, report
from parity_tests.translation.corpus import CorpusError, Pair, dates
from parity_tests.vectors.answers import Vectors
from parity_tests.workers.process import WAITING, Job, record
from parity_tests.workers.recordings import Mismatch, Recording, batch_of, by_name, common_cells

SENTENCES = 8
REPORT = "report.json"
"""The file of verdicts in the output folder of a run."""


corpus_options = options.combine(
    options.corpus,
    click.option(
        "--sentences",
        type=click.IntRange(min=2),
        default=SENTENCES,
        show_default=True,
        help="Number of sentence pairs, spread over the corpus.",
    ),
)


@click.command(
    short_help="Compare backends with the reference and each other.",
    epilog=options.examples("run", "run --backend torch,jax --all --dtype float64,bfloat16 --json verdicts.json"),
)
@options.backends
@options.cells_of_backends
@options.worker
@options.scheduler
@corpus_options
@click.option(
    "--output",
    type=paths.OutputFolder(),
    metavar="DIR",
    help="Folder for the recordings and report.json.",
)
@options.json_file
@options.pages
@click.option("--all", "everything", is_flag=True, help="Run all cells, not only the core.")
@click.option("--once", is_flag=True, help="Run every case in the first of its dtypes, and the core in the others.")
@options.every
@click.option("--require-all", is_flag=True, help="Fail if a registered backend cannot run.")
@click.option(
    "--jobs",
    "workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of concurrent workers (default: number of cores).",
)
def run(
    names: list[str] | None,
    device: str,
    pythons: dict[str, str],
    scheduler: str | None,
    corpus: Path | None,
    sentences: int,
    output: Path | None,
    json_file: Path | None,
    html_file: Path | None,
    summary_file: Path | None,
    badge_file: Path | None,
    everything: bool,
    once: bool,
    every: bool,
    require_all: bool,
    workers: int | None,
    **selected: Any,
) -> None:
    """Run the cases on every backend, and compare each backend with the reference and with each other backend.

    By default, only the core is run: a small set of cells that kills every known mutant. Options that select cases
    search all cells. On a device other than the CPU, each backend also runs on the CPU and is compared with itself.

    With --scheduler, the workers of a Dask cluster run the cells, and each version of a framework that they have is
    compared with the others.

    Exits with 0 only if nothing is red. Ctrl-C ends the workers and reports the verdicts so far.
    """
    if everything and once:
        raise click.UsageError("--all cannot be combined with --once")
    if scheduler is not None and (pythons or workers):
        raise click.UsageError("--scheduler cannot be combined with --python or --jobs")
    everything = everything or any(selected[name] for name in ("pattern", "operators", "training"))
    selection = Selection(**selected, core=not (everything or once), once=once)
    with ExitStack() as stack:
        caught, report_progress = stack.enter_context(signals()), stack.enter_context(progress())
        stopped = lambda: bool(caught)  # noqa: E731
        if scheduler is None:
            jobs, missing = jobs_of(names, pythons, device)
            recorder: Recorder = partial(record, stopped=stopped)
        else:
            devices = list(dict.fromkeys([device, "cpu"]))
            made = stack.enter_context(cluster(scheduler, offers, names, devices, False, stopped=stopped))
            jobs, missing = made.jobs, missing_of(made, names or registry.available())
            recorder, workers = made.record, len(jobs)  # a thread for each column, which waits for its workers
        if output is not None:
            with paths.writing(output):
                output.mkdir(parents=True, exist_ok=True)
            for name in (REPORT, *map(recording_file, jobs)):
                paths.check_output(output / name)
        for job in jobs:
            report_progress(job.name, 0, 1, WAITING)
        cells = _cells_of(selection, corpus, sentences)
        try:
            outcome = run_parity(
                cells,
                jobs,
                workers=workers or 0,
                missing=missing,
                require_all=require_all or names is not None,
                divergences=load_divergences(),
                recorder=recorder,
                progress=report_progress,
                stopped=stopped,
            )
        except CacheError as error:
            raise Refused(str(error)) from error
    if scheduler is not None:
        outcome.command = f"attention-parity run --scheduler {shlex.quote(scheduler)}"
    if selection.core:
        outcome.of = len(_cells_of(replace(selection, core=False), corpus, sentences))
    report(outcome, console, every)
    if html_file is not None and not outcome.interrupted:
        report_mistakes(outcome)
    if output is not None:
        for recording in outcome.recordings.values():
            file = output / recording_file(recording)
            with paths.writing(file):
                replace(recording, selection=selection).save(file)
    for path in filter(None, (json_file, output and output / REPORT)):
        write_json(outcome, path)
    write_pages(outcome, html_file, summary_file, badge_file)
    if outcome.interrupted:
        sys.exit(128 + caught[0])
    sys.exit(1 if outcome.red else 0)


def recording_file(made: Job | Recording) -> str:
    """The file name of a recording in the output folder of a run."""
    parts = filter(None, (made.backend, made.version, made.device.replace(":", "-")))
    return f"{'-'.join(parts)}.safetensors"


@click.command(
    "record",
    short_help="Record a backend's outputs to a file.",
    epilog=options.examples(
        "record --backend torch -o torch.safetensors",
        "record --backend jax --device cuda --operator masked_softmax -o jax-cuda.safetensors",
    ),
)
@click.option(
    "--backend",
    "name",
    metavar="NAME",
    required=True,
    shell_complete=options.complete_backend,
    help="The backend to run.",
)
@options.cells_of_backends
@options.worker
@corpus_options
@options.output_file("-o", "--output", "file", required=True, help="File of the recording.")
def record_one(
    name: str,
    device: str,
    pythons: dict[str, str],
    corpus: Path | None,
    sentences: int,
    file: Path,
    **selected: Any,
) -> None:
    """Run the cases on one backend and record its outputs and gradients to a file, for `compare` on any machine.

    Exits with 0 only if every cell was answered.
    """
    job = jobs_of([name], pythons, device)[0][0]
    selection = Selection(**selected)
    cells = _cells_of(selection, corpus, sentences)
    with progress() as report_progress:
        recording = replace(record(job, [batch_of(cells)], report_progress), selection=selection)
    with paths.writing(file):
        recording.save(file)
    rest = recording.unanswered_cells
    for cell, answer in list(rest.items())[:MOST_RED]:
        console.print(Text(f"{answer.status:<11} {cell}  {answer.message}"), soft_wrap=True)
    kinds = Counter(answer.status for answer in rest.values())
    others = "".join(f", {count} {kind}" for kind, count in kinds.items())
    answered = f"{len(cells) - len(rest)} of {len(cells)} cells answered"
    console.print(Text(f"recorded    {name} on {device}: {answered}{others}; {file}"), soft_wrap=True)
    sys.exit(1 if rest else 0)


@click.command(
    short_help="Compare recordings, or answers to test vectors.",
    epilog=options.examples(
        "compare torch.safetensors jax-cuda.safetensors --json verdicts.json",
        "compare answers.safetensors --vectors vectors",
    ),
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=paths.InputFile())
@click.option(
    "--vectors",
    "folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="Each FILE has the answers to the test vectors in this folder, which `export` has written.",
)
@options.case
@click.option(
    "--dtype",
    "dtypes",
    type=options.CommaList((*DTYPES, *MIXED)),
    metavar="DTYPES",
    help="Only these dtypes, comma-separated (default: all in the files).",
)
@corpus_options
@options.json_file
@options.pages
def compare(
    files: tuple[Path, ...],
    folder: Path | None,
    pattern: str | None,
    dtypes: list[str] | None,
    corpus: Path | None,
    sentences: int,
    json_file: Path | None,
    html_file: Path | None,
    summary_file: Path | None,
    badge_file: Path | None,
) -> None:
    """Compare recordings with the reference and with each other. No framework is needed.

    With --vectors, FILE is a safetensors file with answers to test vectors, from a program in any language. An answer
    that is missing is red, and one that no vector needs is refused.

    Exits with 0 if nothing is red, with 1 if something is, and with 2 if a file is damaged or contains other cases;
    then nothing is compared.
    """
    start = time.perf_counter()
    cases = all_cases(_pairs(corpus, sentences), trained=True)
    try:
        if folder is None:
            recordings = {str(file): Recording.load(file) for file in files}
            cells = common_cells(recordings, cases)
        else:
            vectors = Vectors.load(folder)
            cells = vectors.cells(cases)
            recordings = {str(file): vectors.answers(file, cells) for file in files}
        cells = [cell for cell in cells if pattern is None or fnmatchcase(cell.case.id, pattern)]
        cells = [cell for cell in cells if dtypes is None or cell.dtype in dtypes]
        outcome = Run(cells, recordings=by_name(recordings), dtypes=list(dict.fromkeys(cell.dtype for cell in cells)))
    except (ArchiveError, Mismatch) as error:
        plain = folder is None and "has no digest" in str(error)
        hint = ". If it has the answers to test vectors, pass --vectors DIR" if plain else ""
        raise Refused(f"{error}{hint}") from error
    if not cells:
        raise Refused("no case matches --case and --dtype")
    if folder is not None:
        outcome.command = shlex.join(["attention-parity", "compare", *map(str, files), "--vectors", str(folder)])
    with freeze_cache() as read, progress() as report_progress:
        try:
            conclude(
                outcome,
                cells,
                Questions(),
                read,
                forgive=list if folder is None else excuse_missing,
                divergences=load_divergences() if folder is None else (),
                progress=report_progress,
            )
        except CacheError as error:
            raise Refused(str(error)) from error
    outcome.seconds["total"] = time.perf_counter() - start
    report(outcome, console)
    if folder is not None:
        report_mistakes(outcome)
    if json_file is not None:
        write_json(outcome, json_file)
    write_pages(outcome, html_file, summary_file, badge_file)
    sys.exit(1 if outcome.red else 0)


def _cells_of(selection: Selection, corpus: Path | None, sentences: int) -> list[Cell]:
    cells = selection.cells(all_cases(_pairs(corpus, sentences), trained=True))
    if not cells:
        raise Refused("no case matches; `attention-parity list --cases` lists all cases")
    return cells


def jobs_of(names: list[str] | None, pythons: dict[str, str], device: str) -> tuple[list[Job], dict[str, str]]:
    """The jobs of these backends, and by name the reasons why the others cannot run."""
    known = registry.available()
    for name in [*(names or []), *pythons]:
        if name not in known:
            raise Refused(f"no backend {name!r}; there are {', '.join(known)}")
    jobs, missing = [], {}
    for name in names or known:
        backend = known[name]
        if name not in pythons and backend.reason is not None:
            missing[name] = backend.reason
            continue
        # On another device, a backend is compared with itself on the CPU, too.
        for where in dict.fromkeys([device, "cpu"]):
            jobs.append(Job(name, backend.module, pythons.get(name, sys.executable), where))
    if not jobs:
        reasons = "; ".join(missing.values()) or "none is registered"
        raise click.ClickException(f"no backend can run here: {reasons}")
    return jobs, missing


def _pairs(corpus: Path | None, count: int) -> list[Pair]:
    if corpus is None:
        return dates(count)
    try:
        pairs = pairs_in(corpus)
    except CorpusError as error:
        raise Refused(str(error)) from error
    spread = np.linspace(0, len(pairs) - 1, min(count, len(pairs))).astype(int)
    return [pairs[position] for position in dict.fromkeys(spread.tolist())]
