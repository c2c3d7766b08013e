"""The judgement of a mutant in the cases that touch it.

Each of these has to be red, but for the unseen ones, which must not be; there has to be a red one; and no quantity that
is far off may pass. Which other quantities are red is not demanded, nor that a certain case touches a mutant: where it
matters, the core does, in which each cell is the only one that kills some mutant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from parity_tests.cases.suite import all_cases
from parity_tests.format.case import Case, epsilon
from parity_tests.format.selection import Cell
from parity_tests.judge.compare import judge
from parity_tests.judge.question import Question
from parity_tests.judge.verdict import Verdict
from parity_tests.mutants.mutant import Mutant, answer
from parity_tests.mutants.trace import cells_touched, has_match
from parity_tests.workers.recordings import Recording


@dataclass(frozen=True)
class Outcome:
    """The judgement of a mutant: the red cells, how many verdicts of each check are red, and what is not as demanded.

    survived holds the cases that touch it and are not red, the quantities that are far off and not red, and the
    patterns of unseen cases that match none; unexpected holds the unseen cases that are red.
    """

    mutant: Mutant
    red: frozenset[str]
    killed_by: Mapping[str, int]
    survived: Sequence[str]
    unexpected: Sequence[str]

    @property
    def as_demanded(self) -> bool:
        """Whether exactly the cases that touch it are red, but for the unseen ones, and there are some."""
        return bool(self.killed_by) and not self.survived and not self.unexpected


def attempt(mutant: Mutant, *, brief: bool = False) -> tuple[list[Cell], Recording]:
    """The cells that touch the mutant, and its answers to them, as a worker would record them.

    If brief, a cell whose outputs are red is asked for no gradients, which take most of the time.
    """
    recording = Recording(mutant.name, "cpu")

    def answer_to(case: Case, dtype: str) -> Cell:
        before = all_cases().find(case.again) if case.again else None
        for one in [replace(before, gradients=case.gradients), case] if before else [case]:
            cell = Cell(one, dtype)
            recording.answers[cell.key], recording.cells[cell.key] = answer(mutant, *cell)
        return Cell(case, dtype)

    cells = []
    for case, dtype in cells_touched(mutant):
        cell = answer_to(replace(case, gradients=case.gradients and not brief), dtype)
        is_whole = cell.case.gradients == case.gradients
        is_red = is_whole or any(verdict.red for verdict in judge(Question(cell), recording))
        cells.append(cell if is_red else answer_to(case, dtype))
    return cells, recording


def outcome_of(mutant: Mutant, cells: Sequence[Cell], recording: Recording) -> Outcome:
    """Compare the mutant's answers with the reference, and the red cells with those that have to be."""
    verdicts = [verdict for cell in cells for verdict in judge(Question(cell), recording)]
    red = [verdict for verdict in verdicts if verdict.red]
    red_cases, cases = {verdict.case for verdict in red}, [case.id for case, _ in cells]
    unseen = {case for case in cases if has_match(case, mutant.unseen)}
    survived = [case for case in cases if case not in unseen | red_cases]
    survived += [pattern for pattern in mutant.unseen if not any(fnmatchcase(case, pattern) for case in cases)]
    survived += [
        f"{verdict.case}:{verdict.quantity}" for verdict in verdicts if not verdict.red and _is_far_off(verdict)
    ]
    return Outcome(
        mutant,
        frozenset(f"{verdict.case}/{verdict.dtype}" for verdict in red),
        Counter(verdict.check for verdict in red),
        survived,
        sorted(unseen & red_cases),
    )


def _is_far_off(verdict: Verdict) -> bool:
    """Whether half of the digits of an answer are wrong, whatever the tolerance."""
    return verdict.error is not None and verdict.error > epsilon(verdict.dtype) ** -0.5
