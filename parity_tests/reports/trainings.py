"""Printed reports of translator trainings: one line per epoch, and comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from parity_tests.translation.corpus import normalise
from parity_tests.translation.model import MIXED, Model

SHOWN = 6
"""The maximum number of printed sentences."""


def score_line(scores: Mapping[str, float]) -> str:
    """The scores of translations in one line."""
    return f"BLEU {scores['bleu']:.1f}  k=2 {scores['third_party']:.3f}  exact {100 * scores['exact']:.1f}%"


def epoch_line(model: Model) -> str:
    """The last epoch of a training in one line."""
    epoch = model.history[-1]
    return (
        f"epoch {model.epoch:>3}/{model.settings.epochs}  loss {epoch['loss']:.4f}  "
        f"validation {epoch['validation_loss']:.4f}  {score_line(epoch)}  {epoch['tokens_per_second']:,.0f} tokens/s"
        f"{'  *' if model.best_epoch == model.epoch else ''}"
    )


def print_comparison(
    console: Console,
    models: Mapping[str, Model],
    report: Mapping[str, Any],
    translations: Mapping[str, Mapping[str, Any]],
    sentences: Sequence[str],
) -> None:
    """Print the trainings, some translations, and whether losses and translations agree."""
    figures = ("epochs", "last loss", "validation", "BLEU", "k=2", "exact", "tokens/s")
    table = Table("backend", *(Column(name, justify="right") for name in figures), header_style="bold")
    for name, training in report["trainings"].items():
        scores = (f"{training['bleu']:.1f}", f"{training['third_party']:.3f}", f"{100 * training['exact']:.1f}%")
        losses = (f"{training['loss']:.6f}", f"{training['validation_loss']:.6f}")
        table.add_row(name, str(training["epochs"]), *losses, *scores, f"{training['tokens_per_second']:,.0f}")
    console.print(table)

    settings = next(iter(models.values())).settings
    sources = next(iter(next(iter(translations.values())).values()))["sources"]

    def translation(backend: str, model: str, row: int) -> str:
        return settings.glue.join(translations[backend][model]["translations"][row])

    rows = {normalise(source): row for row, source in enumerate(sources)}
    chosen = [rows[key] for key in map(normalise, sentences) if key in rows] or list(range(len(sources)))
    side = Table("source", *models, header_style="bold", title="each model in its own framework", title_justify="left")
    for row in chosen[:SHOWN]:
        side.add_row(escape(sources[row]), *(escape(translation(name, name, row)) for name in models))
    console.print(side)

    moved = {name: differing for name, differing in report["moved"].items() if differing}
    differ = ", ".join(f"{len(differing)} of {name} differ" for name, differing in moved.items())
    count, judged = len(report["between_models"]), settings.dtype == "float64"
    near = "[green]near[/]" if report["near"] else "[bold red]apart[/]"
    some = f"{differ}, informational" if settings.dtype == MIXED else f"[bold red]{differ}[/]"
    each = some if moved else "[green]the same[/]"
    every = f"[bold red]{count} differ[/]" if judged else f"{count} differ, informational"
    for line in (
        f"losses        {near}: {report['distance_judged']:.1e} at most in the first {report['judged_steps']} steps "
        f"(allowed {report['bound']:g}), {report['distance_all']:.1e} in all {report['steps']}",
        f"each model    {each} in {len(translations)} backends: {report['sentences']} sentences",
        f"all models    {every if count else '[green]the same[/]'}: "
        f"{report['sentences']} sentences by {len(models)} models",
    ):
        console.print(line, highlight=False, soft_wrap=True)
    for name, differing in moved.items():
        for source in differing[:SHOWN]:
            by_backend = {backend: translation(backend, name, sources.index(source)) for backend in translations}
            console.print(Text(f"    {name}  {source}  {by_backend}"), soft_wrap=True)
