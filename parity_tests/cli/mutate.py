"""The command that runs known-wrong implementations, and prints which check kills each."""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase

import click
from rich.markup import escape
from rich.table import Column, Table

from parity_tests.cases import covering
from parity_tests.cases.conditions import FURTHER
from parity_tests.cases.suite import all_cases
from parity_tests.cli import options
from parity_tests.cli.terminal import console
from parity_tests.format.case import DTYPES
from parity_tests.format.selection import cells_of
from parity_tests.judge.compare import CELL_CHECKS, CHECKS
from parity_tests.mutants.derived import derived_mutants, killers
from parity_tests.mutants.families import MUTANTS
from parity_tests.mutants.outcome import attempt, outcome_of


def _print_derived(pattern: str) -> int:
    """Print the derived mutants by dimension; the exit code is 0 if there are some, and all of them are killed."""
    cells = cells_of(all_cases(), DTYPES)
    dimensions = (*covering.DIMENSIONS, *FURTHER)
    derived = derived_mutants(dimensions)
    mutants = killers(cells, (one for one in derived if fnmatchcase(f"{one.scope}-{one.name}", pattern)))
    counted = (Column(name, justify="right") for name in ("mutants", "killed", "killed without its cases"))
    table = Table("dimension", *counted, header_style="bold")
    for dimension in dimensions:
        killed_by = [names for mutant, names in mutants.items() if mutant.dimension == dimension]
        varied = {cell.key for cell in cells if covering.varies(cell.case, dimension)}
        counts = (len(killed_by), sum(map(bool, killed_by)), sum(bool(names - varied) for names in killed_by))
        table.add_row(dimension, *(f"{count:,}" for count in counts))
    console.print(table)
    alive = [mutant for mutant, names in mutants.items() if not names]
    for mutant in alive:
        console.print(f"[bold red]survived[/]  {mutant.scope}: {mutant.name}", highlight=False)
    killed = bool(mutants) and not alive
    words = (
        f"all {len(mutants):,} mutants are killed" if killed else f"{len(alive):,} of {len(mutants):,} mutants survive"
    )
    console.print(f"[bold {'green' if killed else 'red'}]{words}[/]", highlight=False)
    return 0 if killed else 1


@click.command(
    short_help="Run known-wrong implementations and report which check detects each.",
    epilog=options.examples("mutate --sentences", "mutate --derived --name 'GRU*'"),
)
@click.option(
    "--name",
    "pattern",
    metavar="PATTERN",
    default="*",
    help="Only mutants whose name matches this pattern (with * and ?).",
)
@click.option("--sentences", is_flag=True, help="Print the mistake of each mutant and its source.")
@click.option("--derived", is_flag=True, help="Run the mutants derived from the specification, grouped by dimension.")
def mutate(pattern: str, sentences: bool, derived: bool) -> None:
    """Test the parity tests themselves: run known-wrong implementations and report which check detects each.

    The table has the number of comparisons that each check failed. A mutant is killed only if exactly the cases that it
    touches fail; otherwise it survives. Exits with 0 only if no mutant survives.

    With --derived: run mutants that are wrong under one condition only, such as more than 64 keys, a transposed input
    or a second call, and print how many are killed with and without the cases of their dimension.
    """
    if derived:
        sys.exit(_print_derived(pattern))
    checks = (*CELL_CHECKS, *CHECKS)
    columns = (Column("mutant", no_wrap=True), *(Column(name, justify="right") for name in checks))
    table = Table(*columns, box=None, collapse_padding=True, pad_edge=False, header_style="bold")
    chosen, survived = [one for one in MUTANTS if fnmatchcase(one.name, pattern)], []
    for mutant in chosen:
        outcome = outcome_of(mutant, *attempt(mutant))
        counts = [f"{outcome.killed_by[name]}" if name in outcome.killed_by else "[dim]·[/]" for name in checks]
        table.add_row(mutant.name if outcome.as_demanded else f"[bold red]{mutant.name}[/]", *counts)
        if not outcome.as_demanded:
            survived.append(outcome)
    console.print(table)
    for mutant in chosen if sentences else ():
        console.print(f"[dim]{mutant.name}: {escape(mutant.description)}[/]", highlight=False)
    for outcome in survived:
        sentence = escape(outcome.mutant.sentence)
        console.print(f"[bold red]survived[/]  {outcome.mutant.name}: {sentence}", highlight=False)
        for what, places in (("should be red", outcome.survived), ("should not be red", outcome.unexpected)):
            if places:
                console.print(f"      {what}: {', '.join(places)}", highlight=False, markup=False)
    count = len(chosen)
    console.print(
        f"[bold red]{len(survived)} of {count} mutants survive[/]"
        if survived
        else f"[bold green]all {count} mutants are killed, each in exactly the cases that should fail[/]"
    )
    sys.exit(1 if survived or not count else 0)
