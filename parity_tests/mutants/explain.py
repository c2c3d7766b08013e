"""Explain red answers: where a mutant gives the same ones, its mistake is the likely one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from attention_core.operators import FILE_OF
from parity_tests.cases.covering import GROUPS
from parity_tests.format.call import TRAINING
from parity_tests.format.case import is_floating
from parity_tests.format.families import OPERATORS
from parity_tests.format.selection import Cell
from parity_tests.judge.compare import compare
from parity_tests.judge.pair import Quantity
from parity_tests.judge.question import Question
from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Explanation, Verdict
from parity_tests.mutants.families import MUTANTS
from parity_tests.mutants.mutant import Mutant, answer
from parity_tests.workers.answers import is_gradient
from parity_tests.workers.recordings import Recording

MOST_CELLS = 4
"""How many red cells of each operator are compared with mutants, the smallest ones."""

MOST_FIRST = 4
"""How many mutants that explain some red values are combined with all others."""

Red = Mapping[str, Sequence[Verdict]]
Candidates = list[tuple[Mutant, Explanation]]


def explanations_of(run: Run) -> list[Explanation]:
    """The explanations of the red verdicts of each recording in a run."""
    return [
        explanation
        for one in run.recordings.values()
        for explanation in explanations(
            run.cells, one, [verdict for verdict in run.verdicts if verdict.name == one.name]
        )
    ]


def explanations(cells: Sequence[Cell], recording: Recording, verdicts: Sequence[Verdict]) -> Iterator[Explanation]:
    """Find, for each operator with red values, the mutant that explains most of them, if one explains more than half.

    Where outputs are red, gradients follow from them and are left out; wrong numbers distinguish mutants better than
    NaN. Of mutants that explain equally many, the one that agrees with most outputs, right ones included, is chosen;
    for a training, which takes too long, the first.

    What no single mutant explains may be two mistakes at once: the one that was found, or each that explains some of
    the values, is then combined with every other one.
    """
    red, outputs = _by_operator(), _by_operator()
    for verdict in verdicts:
        if verdict.quantity == "*" or verdict.against != "reference":
            continue
        name = f"{verdict.case}/{verdict.dtype}"
        if verdict.status == "fail":
            red[verdict.operator][name].append(verdict)
        if _is_output(verdict) and name in recording.cells:
            outputs[verdict.operator][name].append(verdict)
    answers = recording.answers
    questions = {cell.key: Question(cell, answers[cell.key].withheld) for cell in cells if cell.key in recording.cells}
    for operator, cells_of_operator in red.items():
        chosen = _smallest(_first(cells_of_operator, _is_wrong_number, _is_output), recording)
        near = [mutant for mutant in MUTANTS if _near(mutant, operator)]

        def count(mutants: Iterable[Mutant], compared: Red, name: str = operator) -> Candidates:
            return [(one, _explanation(one, name, compared, questions, recording)) for one in mutants]

        candidates = count(near, chosen)
        best = _best(candidates)
        some = sorted((one for one in candidates if one[1].same), key=lambda one: -one[1].same)
        firsts = [mutant for mutant, _ in some[:MOST_FIRST]]
        if best:
            if len(best) > 1 and operator != TRAINING:
                best.sort(key=lambda one: -count([one[0]], outputs[operator])[0][1].same)
            yield best[0][1]
            firsts, chosen = [best[0][0]], _rest(best[0][0], cells_of_operator, count, recording)
        if chosen and operator != TRAINING:
            pairs = (both for first in firsts for both in pairs_with(first, near))
            yield from (explanation for _, explanation in _best(count(pairs, chosen))[:1])


def _rest(first: Mutant, red: Red, count: Callable[[Sequence[Mutant], Red], Candidates], recording: Recording) -> Red:
    """The smallest cells with red outputs that a mutant does not explain."""
    outputs = {name: list(filter(_is_output, verdicts)) for name, verdicts in red.items()}
    rest = {
        name: verdicts
        for name, verdicts in outputs.items()
        if verdicts and name in recording.cells and not count([first], {name: verdicts})[0][1].same
    }
    return _smallest(rest, recording)


def _smallest(red: Red, recording: Recording) -> Red:
    """The smallest cells that were answered."""
    answered = sorted((name for name in red if name in recording.cells), key=lambda name: _size(recording, name))
    return {name: red[name] for name in answered[:MOST_CELLS]}


def _best(candidates: Candidates) -> Candidates:
    """The candidates that explain most red values, if that is more than half of them."""
    most = max((explanation.same for _, explanation in candidates), default=0)
    return [one for one in candidates if one[1].same == most and 2 * most > one[1].red]


def pairs_with(first: Mutant, others: Iterable[Mutant]) -> Iterator[Mutant]:
    """Yield the mutant with both mistakes for each other one that replaces none of the same functions."""
    for second in others:
        if first.broken and second.broken and not {*first.broken} & {*second.broken}:
            names, words = f"{first.name} and {second.name}", f"{first.description} {second.description}"
            yield replace(first, name=names, sentence=words, source="", broken={**first.broken, **second.broken})


def _by_operator() -> dict[str, dict[str, list[Verdict]]]:
    return defaultdict(lambda: defaultdict(list))


def _near(mutant: Mutant, operator: str) -> bool:
    """Whether the mutant has a case of the operator's kind: to compare all mutants takes long."""
    alike = [name for name in OPERATORS if _kind(name) == _kind(operator)]
    return any(fnmatchcase(name, pattern.partition("-")[0]) for name in alike for pattern in mutant.cases)


def _kind(operator: str) -> str:
    """The file of an operator; those of attention itself count as one."""
    module = operator if operator == TRAINING else GROUPS[FILE_OF[operator]]
    return "attention" if module in ("masking", "scoring", "pooling", "layers") else module


def _first(red: Red, *kinds: Callable[[Verdict], bool]) -> Red:
    """The verdicts of the first kind that there is, all if there is none."""
    for is_kind in kinds:
        kept = {name: list(filter(is_kind, verdicts)) for name, verdicts in red.items()}
        if any(kept.values()):
            return {name: verdicts for name, verdicts in kept.items() if verdicts}
    return red


def _is_output(verdict: Verdict) -> bool:
    return not is_gradient(verdict.quantity)


def _is_wrong_number(verdict: Verdict) -> bool:
    return _is_output(verdict) and verdict.check in ("value", "entry")


def _size(recording: Recording, name: str) -> int:
    return sum(array.size for array in recording.cells[name].values())


def _explanation(
    mutant: Mutant, operator: str, red: Red, questions: Mapping[str, Question], recording: Recording
) -> Explanation:
    """Count the red answers that are the mutant's."""
    same = 0
    for name, verdicts in red.items():
        question = questions[name]
        case, dtype = question.cell
        # A mutant that changes a finished answer is made for its cases; a broken formula breaks every case.
        if not mutant.broken and not any(fnmatchcase(case.id, pattern) for pattern in mutant.cases):
            continue
        whole = mutant.spoiled is not None or not all(map(_is_output, verdicts))
        answered, wrong = answer(mutant, case if whole else replace(case, gradients=False), dtype, question.without)
        quantities = question.quantities or {}
        actual = recording.cells[name]
        for verdict in verdicts:
            quantity = verdict.quantity
            if answered.ok and all(quantity in arrays for arrays in (actual, wrong, quantities)):
                same += _agree(verdict, quantities[quantity], actual[quantity], wrong[quantity])
    count = sum(map(len, red.values()))
    return Explanation(operator, mutant.name, mutant.description, same, count, recording.name)


def _agree(blank: Verdict, quantity: Quantity, actual: np.ndarray, wrong: np.ndarray) -> bool:
    """Whether an answer is the mutant's, up to rounding, relative to the mutant's entries."""
    mistaken = replace(quantity, reference=wrong.astype(np.float64) if is_floating(wrong) else wrong)
    return compare(blank, mistaken, actual, wrong).status == "pass"
