"""The command that asks the frameworks' own attention what it does."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from parity_tests.behaviour import findings
from parity_tests.behaviour.page import page
from parity_tests.cli.options import CommaList, console, device_option, examples, interpreters, progress
from parity_tests.third_party.attention import PEERS

MODULES = tuple(dict.fromkeys(peer.module for peer in PEERS))


@click.command(
    "behaviour",
    short_help="Ask the frameworks' own attention what it does.",
    epilog=examples("behaviour", "behaviour --framework torch,keras"),
)
@click.option(
    "--framework",
    "modules",
    type=CommaList(MODULES),
    metavar="NAMES",
    help=f"Frameworks to ask, with commas, of {', '.join(MODULES)}; all that are installed unless given.",
)
@click.option(
    "--python",
    "pythons",
    metavar="NAME=PATH",
    multiple=True,
    help="Ask with another interpreter, whose environment has NumPy, safetensors and the framework. May be repeated.",
)
@device_option
@click.option("--write", is_flag=True, help="Keep what is found, and write docs/behaviour.md.")
def command(modules: list[str] | None, pythons: tuple[str, ...], device: str, write: bool) -> None:
    """Ask the calls of the frameworks that are installed what they do, and hold it against what is kept.

    What is kept is what they do on a CPU. Exits with 1 if anything is different, unless it is written.
    """
    if write and device != "cpu":
        raise click.UsageError("--write keeps what calls do on a CPU: leave --device out")
    chosen = [peer for peer in PEERS if peer.module in (modules or MODULES)]
    given = interpreters(pythons)
    peers = [peer for peer in chosen if peer.module in given or findings.installed(peer)]
    if not peers:
        packages = ", ".join(dict.fromkeys(name for peer in chosen for name in peer.packages))
        raise click.ClickException(f"nothing to ask: none of {packages} is installed")
    kept = findings.load(findings.DATA)
    with progress() as moved:
        answers = findings.ask_all(peers, given, device=device, progress=moved)
    changes = list(findings.changes(kept, answers))
    for line in told(answers):
        console.print(line)
    for change in changes:
        console.print(Text(f"changed     {change}", style="yellow"), soft_wrap=True)
    if write:
        kept = findings.merged(kept, answers)
        findings.save(kept, findings.DATA)
        findings.PAGE.write_text(page(kept), encoding="utf-8")
        console.print(Text(f"written     {findings.DATA}, {findings.PAGE}"), soft_wrap=True)
        return
    if changes and device == "cpu":
        console.print("keep it with `attention-parity behaviour --write`")
    elif not changes:
        console.print(Text(f"the same    {len(answers)} calls do what is kept", style="green"))
    sys.exit(1 if changes else 0)


def told(answers: dict[str, tuple[str, findings.Findings]]) -> Iterator[RenderableType]:
    """For each call its name, and what it does in each question."""
    for name, (versions, found) in answers.items():
        yield Text.assemble((name, "bold"), (f"  {versions}", "dim"))
        own = [f"{title}: {found[column]}" for column, title in findings.COLUMNS.items() if column in found]
        yield Padding(Text("; ".join(own)), (0, 0, 0, 4))
