"""The command that probes the frameworks' own attention."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from parity_tests.behaviour import findings
from parity_tests.cli import options
from parity_tests.cli.terminal import cluster, console, progress
from parity_tests.cluster.behaviour import ask_cluster, offers_of_modules
from parity_tests.third_party.attention import BACKENDS, THIRD_PARTY

MODULES = tuple(BACKENDS)
Answers = dict[str, tuple[str, findings.Findings]]
"""By the id of a call, the versions and the findings."""

probed = options.combine(
    click.option(
        "--framework",
        "modules",
        type=options.CommaList(MODULES),
        metavar="NAMES",
        help=f"Comma-separated frameworks to probe: {', '.join(MODULES)} (default: all installed).",
    ),
    options.python("Use another interpreter, which needs NumPy, safetensors and the framework. May be repeated."),
    options.scheduler,
)
"""The options that say what is probed, and where."""


@click.command(
    "behaviour",
    short_help="Probe the frameworks' own attention.",
    epilog=options.examples("behaviour", "behaviour --framework torch,keras"),
)
@probed
@options.device
def command(modules: list[str] | None, pythons: dict[str, str], scheduler: str | None, device: str) -> None:
    """Probe the calls of the installed frameworks, and compare their behaviour with the recorded findings.

    Findings are those on a CPU. With --scheduler, every version that a Dask cluster has is probed. Exits with 1 if any
    finding differs.
    """
    every = probe(modules, pythons, scheduler, device)
    changes = print_findings(every, findings.load())
    if changes and device == "cpu":
        console.print("record it with `python -m tools.behaviour`, in a checkout")
    elif not changes:
        count = sum(map(len, every))
        console.print(Text(f"the same    {count} calls behave as recorded", style="green"))
    sys.exit(1 if changes else 0)


def probe(
    modules: list[str] | None, pythons: dict[str, str], scheduler: str | None, device: str = "cpu"
) -> list[Answers]:
    """Return versions and findings of the calls, on this machine or in each column of a cluster.

    Raises: ClickException if there are none.
    """
    if scheduler is None:
        return [ask_here(modules, pythons, device)]
    if pythons or device != "cpu":
        raise click.UsageError("--scheduler cannot be combined with --python or --device")
    with cluster(scheduler, offers_of_modules, modules or MODULES) as made, progress() as moved:
        return ask_cluster(made, moved)


def ask_here(modules: list[str] | None, pythons: dict[str, str], device: str) -> Answers:
    """Return versions and findings of the calls that are installed on this machine.

    Raises: ClickException if there are none.
    """
    chosen = [target for target in THIRD_PARTY if target.module in (modules or MODULES)]
    targets = [target for target in chosen if target.module in pythons or findings.is_installed(target)]
    if not targets:
        packages = ", ".join(dict.fromkeys(name for target in chosen for name in target.packages))
        raise click.ClickException(f"nothing to probe: none of {packages} is installed")
    with progress() as moved:
        return findings.ask_all(targets, pythons, device=device, progress=moved)


def print_findings(every: Sequence[Answers], records: findings.Records) -> list[str]:
    """Print the findings, and what differs from the records; return the latter."""
    changes = [change for answers in every for change in findings.changes(records, answers)]
    for answers in every:
        for line in lines(answers):
            console.print(line)
    for change in changes:
        console.print(Text(f"changed     {change}", style="yellow"), soft_wrap=True)
    return changes


def lines(answers: Answers) -> Iterator[RenderableType]:
    """Print the name, versions and findings of each call."""
    for name, (versions, found) in answers.items():
        yield Text.assemble((name, "bold"), (f"  {versions}", "dim"))
        words = [f"{title}: {found[column]}" for column, title in findings.COLUMNS.items() if column in found]
        yield Padding(Text("; ".join(words)), (0, 0, 0, 4))
