"""Explain red answers: where a mutant gives the same ones, and all the green ones, its mistake is the likely one."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from attention_core.operators import FILE_OF
from parity_tests.cases.covering import GROUPS
from parity_tests.format.call import TRAINING
from parity_tests.format.case import Case, is_floating
from parity_tests.format.families import OPERATORS
from parity_tests.format.selection import Cell
from parity_tests.judge.compare import compare
from parity_tests.judge.pair import Quantity
from parity_tests.judge.question import Questions
from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Explanation, Verdict
from parity_tests.mutants.families import MUTANTS
from parity_tests.mutants.mutant import Mutant, answer
from parity_tests.mutants.trace import is_empty
from parity_tests.workers.answers import is_gradient
from parity_tests.workers.recordings import Recording

SECONDS = 10.0
"""The processor time in which the mistakes of a run are named."""

MOST_RED, MOST_GREEN = 12, 48
"""The largest number of red and of green cells that are compared with a mutant: the smallest ones."""

LEAST_SHARE = 0.9
"""The share of the compared red values that an explanation explains."""

MOST_FIRST = 4
"""How many mutants that explain some red values are combined with all others."""

Clock = Callable[[], float]

Groups = dict[str, list[Verdict]]
"""Verdicts on an operator, by the name of their cell."""


def explanations_of(run: Run, seconds: float = SECONDS, clock: Clock = time.process_time) -> list[Explanation]:
    """The explanations of the red verdicts of each recording in a run that are found within the time."""
    end = clock() + seconds
    return [
        explanation
        for one in run.recordings.values()
        for explanation in explanations(
            run.cells,
            one,
            [verdict for verdict in run.verdicts if verdict.name == one.name],
            questions=run.questions,
            seconds=end - clock(),
            clock=clock,
        )
    ]


def explanations(
    cells: Iterable[Cell],
    recording: Recording,
    verdicts: Iterable[Verdict],
    *,
    questions: Questions | None = None,
    seconds: float = SECONDS,
    clock: Clock = time.process_time,
) -> Iterator[Explanation]:
    """Find, for each operator with red values, the mutant that gives nearly all of them and every green one.

    Where outputs are red, gradients follow from them and are left out. What no single mutant explains may be two
    mistakes at once: each that explains some of the values is then combined with every other one. After that many
    seconds nothing more is looked for.
    """
    end = clock() + seconds
    known, questions = {cell.key: cell for cell in cells}, questions or Questions()
    red, green = _by_operator(), _by_operator()
    for verdict in verdicts:
        name = f"{verdict.case}/{verdict.dtype}"
        groups = {"fail": red, "pass": green}.get(verdict.status)
        if groups is not None and verdict.against == "reference" and name in recording.cells and name in known:
            groups[verdict.operator][name].append(verdict)
    with suppress(TimeoutError):
        comparison = _Comparison(recording, questions, known, lambda: clock() >= end)
        for operator in red:
            wrong, right = red[operator], green[operator]
            if outputs := _outputs(wrong):
                wrong, right = outputs, _outputs(right)
            if plain := comparison.plain(wrong):  # what becomes of hidden NaN, once it is seen, depends on much else
                wrong, right = plain, comparison.plain(right)
            few = comparison.smallest(wrong, MOST_RED), comparison.smallest(right, MOST_GREEN)
            yield from filter(None, [comparison.explanation(operator, *few)])


@dataclass(frozen=True)
class _Comparison:
    """The comparison of a target's answers with those of mutants. Raises: TimeoutError once the time is over."""

    recording: Recording
    questions: Questions
    cells: Mapping[str, Cell]
    is_over: Callable[[], bool]

    def smallest(self, verdicts: Groups, most: int) -> Groups:
        """The verdicts on the smallest cells, those in float64 first."""

        def rank(name: str) -> tuple[bool, int]:
            return self.cells[name].dtype != "float64", sum(array.size for array in self.recording.cells[name].values())

        return {name: verdicts[name] for name in sorted(verdicts, key=rank)[:most]}

    def plain(self, verdicts: Groups) -> Groups:
        """The verdicts on cells without NaN, inf and empty axes in their inputs."""

        def is_plain(case: Case) -> bool:
            arrays = filter(is_floating, case.inputs.values())
            return not is_empty(case) and all(np.isfinite(array).all() for array in arrays)

        return {name: group for name, group in verdicts.items() if is_plain(self.cells[name].case)}

    def explanation(self, operator: str, wrong: Groups, right: Groups) -> Explanation | None:
        """The explanation by the mutant that explains most, or by two mutants; None if there is none."""
        count, total = (sum(map(len, verdicts.values())) for verdicts in (wrong, right))

        def attempt(mutant: Mutant) -> Explanation | None:
            same, missed = 0, 0
            for agrees in self._agreements(mutant, wrong):
                same, missed = same + agrees, missed + (not agrees)
                if missed > (1.0 - LEAST_SHARE) * count:
                    return None
            if not all(self._agreements(mutant, right)):
                return None
            return Explanation(operator, mutant.name, mutant.description, same, count, total, self.recording.name)

        def best(mutants: Iterable[Mutant]) -> Explanation | None:
            found: list[Explanation] = []
            for explanation in filter(None, map(attempt, mutants)):
                found.append(explanation)
                if explanation.same == count:
                    return explanation
            return max(found, key=lambda one: one.same, default=None)

        near = [mutant for mutant in MUTANTS if _near(mutant, operator)]
        if (single := best(near)) or operator == TRAINING:
            return single
        shares = {mutant.name: sum(self._agreements(mutant, wrong)) for mutant in near if mutant.broken}
        firsts = sorted((one for one in near if shares.get(one.name)), key=lambda one: -shares[one.name])
        return best(both for first in firsts[:MOST_FIRST] for both in pairs_with(first, near))

    def _agreements(self, mutant: Mutant, verdicts: Groups) -> Iterator[bool]:
        """Whether each of the target's answers is the mutant's, up to rounding."""
        for name, compared in verdicts.items():
            if self.is_over():
                raise TimeoutError
            cell = self.cells[name]
            case, dtype = cell
            if not mutant.broken and not any(fnmatchcase(case.id, pattern) for pattern in mutant.cases):
                # It changes finished answers of its cases alone; a broken formula breaks every case.
                yield from (verdict.status == "pass" for verdict in compared)
                continue
            question = self.questions.of(cell, self.recording.answers[name].withheld)
            whole = mutant.spoiled is not None or not all(map(_is_output, compared))
            answered, wrong = answer(mutant, case if whole else replace(case, gradients=False), dtype, question.without)
            quantities, actual = question.quantities, self.recording.cells[name]
            for verdict in compared:
                quantity = verdict.quantity
                known = answered.ok and all(quantity in arrays for arrays in (actual, wrong, quantities))
                yield known and _agree(verdict, quantities[quantity], actual[quantity], wrong[quantity])


def pairs_with(first: Mutant, others: Iterable[Mutant]) -> Iterator[Mutant]:
    """Yield the mutant with both mistakes for each other one that replaces none of the same functions."""
    for second in others:
        if first.broken and second.broken and not {*first.broken} & {*second.broken}:
            names, words = f"{first.name} and {second.name}", f"{first.description} {second.description}"
            yield replace(first, name=names, sentence=words, source="", broken={**first.broken, **second.broken})


def _by_operator() -> dict[str, Groups]:
    return defaultdict(lambda: defaultdict(list))


def _near(mutant: Mutant, operator: str) -> bool:
    """Whether the mutant has a case of the operator's kind: to compare all mutants takes long."""
    alike = [name for name in OPERATORS if _kind(name) == _kind(operator)]
    return any(fnmatchcase(name, pattern.partition("-")[0]) for name in alike for pattern in mutant.cases)


def _kind(operator: str) -> str:
    """The file of an operator; those of attention itself count as one."""
    module = operator if operator == TRAINING else GROUPS[FILE_OF[operator]]
    return "attention" if module in ("masking", "scoring", "pooling", "layers") else module


def _outputs(verdicts: Groups) -> Groups:
    """The verdicts on outputs."""
    kept = {name: list(filter(_is_output, group)) for name, group in verdicts.items()}
    return {name: group for name, group in kept.items() if group}


def _is_output(verdict: Verdict) -> bool:
    return not is_gradient(verdict.quantity)


def _agree(blank: Verdict, quantity: Quantity, actual: np.ndarray, wrong: np.ndarray) -> bool:
    """Whether an answer is the mutant's, up to rounding, relative to the mutant's entries."""
    mistaken = replace(quantity, reference=wrong.astype(np.float64) if is_floating(wrong) else wrong)
    return compare(blank, mistaken, actual, wrong).status == "pass"
