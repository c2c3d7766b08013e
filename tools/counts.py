"""Write the numbers of the documents that count the code: `python -m tools.counts`."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from attention_core.operators import ENTRIES
from parity_tests.cases import draw, training
from parity_tests.cases.conditions import FURTHER
from parity_tests.cases.suite import all_cases
from parity_tests.cluster.ranges import RANGE
from parity_tests.format.case import DTYPES, FULL
from parity_tests.format.selection import Cell, cells_of
from parity_tests.judge.compare import CELL_CHECKS, CHECKS
from parity_tests.judge.drawn_cells import DRAWN
from parity_tests.judge.run import BATCH, batches_of
from parity_tests.mutants.derived import derived_mutants
from parity_tests.mutants.families import MUTANTS
from parity_tests.reports import table

ROOT = Path(__file__).parents[1]
FAULTS = "parity_tests.tests.workers.test_process"
"""The module with the faults of workers."""
RELIABILITY, CLUSTER, TRANSLATION, README = "docs/reliability.md", "docs/cluster.md", "docs/translation.md", "README.md"


@dataclass(frozen=True)
class Statement:
    """Words of a page with {} in place of each number, and these numbers."""

    page: str
    words: str
    numbers: Callable[[], tuple[int, ...]]

    def rewrite(self, text: str) -> str:
        """Return the page with the numbers of the code; of numbers in a column, the last digits stay below each other.

        Raises: ValueError unless the words occur exactly once.
        """
        pattern = r"\s+".join(map(re.escape, self.words.split())).replace(r"\{\}", r"([\d,]+)")
        matches = [*re.finditer(pattern, text)]
        if len(matches) != 1:
            raise ValueError(f"{self.page} has these words {len(matches)} times: {self.words}")
        (match,) = matches
        for group, number in [*enumerate(self.numbers(), 1)][::-1]:
            start, end = match.span(group)
            before = text[:start].rstrip(" ")
            width = end - len(before) if start - len(before) > 1 else 0
            text = (before if width else text[:start]) + f"{number:,}".rjust(width) + text[end:]
        return text


@cache
def cells() -> tuple[Cell, ...]:
    """Return all cells but those of trainings."""
    return tuple(cells_of(all_cases(), DTYPES))


@cache
def cells_of_core() -> tuple[Cell, ...]:
    """Return the cells of the core."""
    return tuple(cell for cell in cells() if cell.key in all_cases().core)


def in_full(chosen: tuple[Cell, ...]) -> int:
    """Return how many of the cells are in full precision."""
    return sum(cell.dtype in FULL for cell in chosen)


@cache
def further() -> int:
    """Return the number of conditions of several arguments."""
    return len([*derived_mutants(FURTHER)])


@cache
def batches() -> int:
    """Return the number of batches of all cells."""
    return len([*batches_of(cells())])


def cases_in_table(operators: Sequence[str]) -> tuple[int]:
    """Return the number of cases of these operators in the table of float64 that the README shows."""
    count = Counter(cell.case.operator for cell in cells_of_core() if cell.dtype == "float64")
    return (sum(count[name] for name in operators),)


def combinations() -> int:
    """Return how many trainings of recurrent layers there are, one for each layer, score and optimiser."""
    others = {f"training-{label}" for label, *_ in training.VARIANTS}
    return sum("transformer" not in case.id and case.id not in others for case in training.training_cases())


STATEMENTS = (
    Statement(RELIABILITY, "| {} mutants | `attention-parity mutate --sentences` |", lambda: (len(MUTANTS),)),
    Statement(RELIABILITY, "| {} mutants, derived from the specification;", lambda: (len([*derived_mutants()]),)),
    Statement(RELIABILITY, "| {} mutants, derived from the specification as conditions", lambda: (further(),)),
    Statement(RELIABILITY, "several arguments meet. {} conditions of that kind", lambda: (further(),)),
    Statement(RELIABILITY, "| {} mutants, each with the issue", lambda: (sum(bool(one.source) for one in MUTANTS),)),
    Statement(
        RELIABILITY,
        "| {} of {} cells, of which {} are in full precision",
        lambda: (len(cells_of_core()), len(cells()), in_full(cells_of_core())),
    ),
    Statement(RELIABILITY, "| {} checks |", lambda: (len(CELL_CHECKS) + len(CHECKS),)),
    Statement(RELIABILITY, "| {} faults in a cell", lambda: (len(importlib.import_module(FAULTS).FAULTS),)),
    Statement(RELIABILITY, "A cell has {} checks:", lambda: (len(CELL_CHECKS),)),
    Statement(RELIABILITY, "An array has {}:", lambda: (len(CHECKS),)),
    Statement(RELIABILITY, "Cases come in families of {} with", lambda: (draw.FAMILY,)),
    Statement(RELIABILITY, "`check` also has drawn cases: {} of each", lambda: (DRAWN,)),
    Statement(
        CLUSTER, "({} cells in {} batches, 39 MB", lambda: (len(cells_of_core()), len([*batches_of(cells_of_core())]))
    ),
    Statement(CLUSTER, "({} cells in {} batches, 60 MB", lambda: (len(cells()), batches())),
    Statement(CLUSTER, "All cells are {} batches: more than {} workers", lambda: (batches(), batches())),
    Statement(CLUSTER, "A batch is {} cells", lambda: (BATCH,)),
    Statement(CLUSTER, "Workers take ranges of {} numbers", lambda: (RANGE,)),
    Statement(
        TRANSLATION,
        "{} of the {} combinations, in which any two of these settings meet, train for {} steps, the others for {}.",
        lambda: (len(training.LONG_TRAININGS), combinations(), training.LONG, training.MIDDLE),
    ),
    Statement(TRANSLATION, "{} shorter trainings cover", lambda: (len(training.VARIANTS),)),
    Statement(README, "the core, {} of {} cells", lambda: (in_full(cells_of_core()), in_full(cells()))),
    *(
        Statement(README, f"│ {label} │ {{}} │", partial(cases_in_table, group))
        for label, group in table.rows([entry.name for entry in ENTRIES], set(), every=False)
    ),
)


def rewrite(page: str) -> str:
    """Return a page with the numbers of the code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for statement in STATEMENTS:
        if statement.page == page:
            text = statement.rewrite(text)
    return text


if __name__ == "__main__":
    for page in dict.fromkeys(statement.page for statement in STATEMENTS):
        (ROOT / page).write_text(rewrite(page), encoding="utf-8")
