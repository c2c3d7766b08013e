"""The command that trains a translator in every framework and compares the training runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

import backends as registry
from parity_tests.cli import options, paths
from parity_tests.cli.terminal import console, pairs_in, progress
from parity_tests.cli.translate import (
    beam_option,
    check_backends,
    chosen_settings,
    corpus_file,
    draw_curves,
    refusals,
    training_options,
)
from parity_tests.format.call import JUDGED_STEPS
from parity_tests.reports.trainings import print_comparison
from parity_tests.translation import processes
from parity_tests.translation.comparison import compare
from parity_tests.translation.model import Model, read_data
from parity_tests.translation.preparation import new_settings


@click.command(
    "compare",
    epilog=options.examples(
        "translate compare --output compared", "translate compare --backend torch,jax --epochs 4 --output compared"
    ),
)
@options.backends
@options.python("Train a backend with another interpreter, which needs this package and the framework.")
@options.device
@training_options
@click.option(
    "--output",
    "folder",
    type=paths.OutputFolder(),
    metavar="DIR",
    default=Path("translators"),
    show_default=True,
    help="Folder for the models, curves.png and report.json; existing models are resumed.",
)
@beam_option
@click.option(
    "--in-turn",
    is_flag=True,
    help="Train one backend at a time, for timing.",
)
@click.option(
    "--sentence",
    "sentences",
    metavar="SENTENCE",
    multiple=True,
    help="Print the translations of this sentence, if it is a validation sentence.",
)
def compare_trainings(
    names: list[str] | None,
    pythons: dict[str, str],
    device: str,
    corpus: Path | None,
    download: bool,
    folder: Path,
    beam: dict[str, int],
    in_turn: bool,
    sentences: tuple[str, ...],
    **given: Any,
) -> None:
    """Train in every backend from the same parameters on the same batches, and compare the runs.

    Prints the distance between the losses, whether each model translates the validation sentences to the same tokens in
    every backend, and whether all models do. Exits with 0 if the losses agree within the tolerance of their dtype, each
    model gives the same translations in every backend and, in float64, all models do; training runs in float32
    eventually diverge.
    """
    if given["framework_dropout"]:
        raise click.UsageError("trainings with framework dropout are not comparable")
    known = registry.available()
    names = names or [name for name, backend in known.items() if backend.reason is None or name in pythons]
    check_backends(*names, elsewhere=pythons)
    if not names:
        raise click.ClickException("no backend can run here; `attention-parity backends` lists the reasons")
    files = {name: folder / f"{name}.safetensors" for name in names}
    picture, page = folder / "curves.png", folder / "report.json"
    with paths.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for file in (*files.values(), picture, page):
        paths.check_output(file)
    with refusals():
        settings, pairs = new_settings(corpus_file(corpus, download), chosen_settings(given), pairs_in)
        data = read_data(settings, pairs)
        with progress() as report_progress:
            processes.train(files, settings, data, pythons, device, in_turn, report_progress)
        models = {name: Model.load(file) for name, file in files.items()}
        with progress() as report_progress:
            translations = processes.translate(files, pythons, device, beam.get("width"), report_progress)
        draw_curves(models, picture)
    report = compare(models, translations, JUDGED_STEPS)
    paths.write(page, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    print_comparison(console, models, report, translations, sentences)
    sys.exit(0 if report["near"] and report["same"] else 1)
