"""Explain red answers: where a mutant gives the same ones, its mistake is the likely one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from attention_core.operators import FILE_OF
from parity_tests.cases.call import TRAINING
from parity_tests.cases.case import is_floating
from parity_tests.cases.covering import FAMILIES
from parity_tests.cases.selection import Cell
from parity_tests.cases.suite import NAMES
from parity_tests.judge.compare import compare
from parity_tests.judge.pair import Quantity
from parity_tests.judge.question import Question
from parity_tests.judge.verdict import Explanation, Verdict
from parity_tests.mutants.families import MUTANTS
from parity_tests.mutants.mutant import Mutant, answer
from parity_tests.workers.answers import is_gradient
from parity_tests.workers.recordings import Recording

MOST_CELLS = 4
"""How many red cells of each operator are compared with mutants, the smallest ones."""

Red = Mapping[str, Sequence[Verdict]]


def explanations(cells: Sequence[Cell], recording: Recording, verdicts: Sequence[Verdict]) -> Iterator[Explanation]:
    """Find, for each operator with red values, the mutant that explains most of them, if one explains more than half.

    Where outputs are red, gradients follow from them and are left out; wrong numbers distinguish mutants better than
    NaN. Of mutants that explain equally many, the one that agrees with most outputs, right ones included, is chosen;
    for a training, which takes too long, the first.
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
        telling = _first(cells_of_operator, _is_wrong_number, _is_output)
        answered = [name for name in telling if name in recording.cells]
        smallest = sorted(answered, key=lambda name: _size(recording, name))
        chosen = {name: telling[name] for name in smallest[:MOST_CELLS]}
        near = [mutant for mutant in MUTANTS if _near(mutant, operator)]
        candidates = [(mutant, _explained(mutant, operator, chosen, questions, recording)) for mutant in near]
        most = max(explanation.same for _, explanation in candidates)
        best = [candidate for candidate in candidates if candidate[1].same == most]
        if 2 * most <= best[0][1].red:
            continue
        if len(best) > 1 and operator != TRAINING:
            best.sort(key=lambda one: -_explained(one[0], operator, outputs[operator], questions, recording).same)
        yield best[0][1]


def _by_operator() -> dict[str, dict[str, list[Verdict]]]:
    return defaultdict(lambda: defaultdict(list))


def _near(mutant: Mutant, operator: str) -> bool:
    """Whether the mutant has a case of the operator's kind: to compare all mutants takes long."""
    alike = [name for name in NAMES if _kind(name) == _kind(operator)]
    return any(fnmatchcase(name, pattern.partition("-")[0]) for name in alike for pattern in mutant.cases)


def _kind(operator: str) -> str:
    """The file of an operator; those of attention itself count as one."""
    module = operator if operator == TRAINING else FAMILIES[FILE_OF[operator]]
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


def _explained(
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
    return Explanation(operator, mutant.name, mutant.described, same, sum(map(len, red.values())))


def _agree(blank: Verdict, quantity: Quantity, actual: np.ndarray, wrong: np.ndarray) -> bool:
    """Whether an answer is the mutant's, up to rounding, relative to the mutant's entries."""
    mistaken = replace(quantity, reference=wrong.astype(np.float64) if is_floating(wrong) else wrong)
    return compare(blank, mistaken, actual, wrong).status == "pass"
