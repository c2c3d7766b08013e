"""Record the behaviour of the frameworks' own attention, and write its page: `python -m tools.behaviour`.

`parity_tests/behaviour/behaviour.json` keeps the findings of every version, and `docs/behaviour.md` shows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import click
from rich.text import Text

from parity_tests.behaviour import findings
from parity_tests.behaviour.findings import Findings, Records
from parity_tests.cli import options, paths
from parity_tests.cli.behaviour import print_findings, probe, probed
from parity_tests.cli.terminal import console
from parity_tests.third_party.attention import THIRD_PARTY
from tools.behaviour_page import page

PAGE = Path(__file__).parents[1] / "docs" / "behaviour.md"


@click.command(context_settings=options.SETTINGS)
@probed
def command(modules: list[str] | None, pythons: dict[str, str], scheduler: str | None) -> None:
    """Probe the calls of the installed frameworks on a CPU, record their behaviour, and write the page."""
    for file in (findings.DATA, PAGE):
        paths.check_output(file)
    records = findings.load()
    every = probe(modules, pythons, scheduler)
    print_findings(every, records)
    for answers in every:
        records = merge(records, answers)
    with paths.writing(findings.DATA):
        save(records, findings.DATA)
    paths.write(PAGE, page(records))
    console.print(Text(f"written     {findings.DATA}, {PAGE}"), soft_wrap=True)


def save(records: Records, path: Path) -> None:
    """Write the records, in the order of the targets."""
    ordered = {target.id: records[target.id] for target in THIRD_PARTY if target.id in records}
    path.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def merge(records: Records, answers: Mapping[str, tuple[str, Findings]]) -> Records:
    """Return the records with new findings, which replace those of the same versions."""
    result = {name: list(entries) for name, entries in records.items()}
    for name, (versions, found) in answers.items():
        entries = [entry for entry in result.get(name, []) if entry["versions"] != versions]
        entries.append({"versions": versions, "found": found})
        result[name] = sorted(entries, key=lambda entry: release(entry["versions"]))
    return result


def release(versions: str) -> list[tuple[int, ...]]:
    """Versions as numbers, to sort by."""
    return [tuple(map(int, re.findall(r"\d+", entry.rpartition(" ")[2]))) for entry in versions.split(", ")]


if __name__ == "__main__":
    command(prog_name="python -m tools.behaviour")
