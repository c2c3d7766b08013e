"""Runs for the tests of reports: the reference's own answers, and those of a mutant."""

from __future__ import annotations

import functools
from dataclasses import replace

from parity_tests.cases.suite import all_cases
from parity_tests.format.case import is_floating
from parity_tests.format.expected import expected_values
from parity_tests.format.selection import Cell, Selection
from parity_tests.judge.question import Questions
from parity_tests.judge.run import Run, conclude
from parity_tests.mutants.explain import explanations_of
from parity_tests.mutants.families import MUTANTS
from parity_tests.mutants.mutant import answer
from parity_tests.workers.answers import Answer
from parity_tests.workers.recordings import Recording, digests

DTYPES = ("float64", "float32")
WRONG = "masked_softmax"
"""The operator of the mutant's red answers."""
CODE = "<img src=x onerror=\"document.title = 'run'\">"
"""The message of a crash, which a page must not interpret."""
ABOUT = {"framework": "None", "device": "x86_64", "versions": {"numpy": "2"}, "determinism": {"threads": 1}}


SELECTION = Selection(DTYPES, "*-[!c]*", (WRONG, "dot_score", "causal_mask", "GeneralAttention"))
"""Some cells of functions and of a layer, in both dtypes."""


@functools.cache
def cells() -> list[Cell]:
    """The selected cells."""
    return SELECTION.cells(all_cases())


def recording(name: str) -> Recording:
    """The reference's answers, rounded."""
    made = Recording(name, "cpu", about=ABOUT, inputs=digests(cells()), selection=SELECTION)
    for cell in cells():
        arrays = expected_values(*cell)
        made.answers[cell.key] = Answer(seconds=0.25)
        made.cells[cell.key] = {
            quantity: array.astype(cell.dtype) if is_floating(array) else array for quantity, array in arrays.items()
        }
    return made


def mutated(name: str) -> Recording:
    """The same, with fully masked rows that are NaN, and a cell that crashed with a message like a tag."""
    made, mutant = recording(name), next(one for one in MUTANTS if one.name == "fully_masked_nan")
    for cell in cells():
        if cell.case.operator == WRONG:
            made.answers[cell.key], made.cells[cell.key] = answer(mutant, *cell)
    crashed = "dot_score-plain/float64"
    made.answers[crashed], _ = Answer("crash", CODE), made.cells.pop(crashed)
    return made


@functools.cache
def judged(red: bool = False) -> Run:
    """Two backends, the first of which is the mutant in a red run."""
    recordings = [mutated("torch") if red else recording("torch"), recording("jax")]
    run = Run(cells(), recordings={one.name: one for one in recordings}, dtypes=DTYPES)
    conclude(run, run.cells, Questions(), {})
    # The bare recordings have no settings of their frameworks in force.
    run.verdicts = [verdict for verdict in run.verdicts if verdict.quantity != "determinism"]
    run.explanations = explanations_of(run)
    run.seconds = {"torch start": 1.0, "torch cells": 2.0, "jax start": 1.0, "jax cells": 4.0, "total": 5.0}
    return run


def large(count: int) -> Run:
    """The green run, repeated up to a number of verdicts with different errors."""
    run = judged()
    repeated = (run.verdicts[number % len(run.verdicts)] for number in range(count))
    verdicts = [
        verdict
        if verdict.error is None
        else replace(verdict, error=(verdict.tolerance or 0.0) * (number % 9973) / 9973)
        for number, verdict in enumerate(repeated)
    ]
    return replace(run, verdicts=verdicts)
