"""Comparison of answers: checks of each cell, then of each array, with numeric verdicts.

The checks are a table; a test removes each in turn, and a mutant then survives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from parity_tests.format.case import Arrays, epsilon
from parity_tests.format.selection import Cell
from parity_tests.judge.pair import Pair, Quantity
from parity_tests.judge.question import Question, Questions
from parity_tests.judge.verdict import Status, Verdict
from parity_tests.workers.answers import Answer
from parity_tests.workers.environment import violations
from parity_tests.workers.package import same
from parity_tests.workers.process import Progress, report_cells, untold
from parity_tests.workers.recordings import Recording

# ------------------------------------------------------------------------------------------------ recordings


def judge_all(
    cells: Sequence[Cell],
    recordings: Sequence[Recording],
    questions: Questions,
    progress: Progress = untold,
    *,
    partial: bool = False,
) -> list[Verdict]:
    """Compare every cell of each recording with the reference, then with each other recording.

    A cell without an answer is missing, which is red; under partial (an interrupted run), it is skipped.
    """
    verdicts: list[Verdict] = []
    for cell in report_cells("comparison", cells, progress):
        answers = [
            (recording, questions.of(cell, recording.answer(cell).withheld))
            for recording in recordings
            if not partial or cell.key in recording.answers
        ]
        for recording, question in answers:
            verdicts += judge(question, recording)
        for (first, question), (second, _) in combinations(answers, 2):
            verdicts += judge(question, first, second)
    return verdicts


def judge_settings(recording: Recording, framework: str = "") -> list[Verdict]:
    """Return a red verdict for each determinism setting that is not in force, since it changes the arithmetic.

    framework determines the required settings; by default, the backend of that name.
    """
    blank = replace(blank_of(recording, "*", "*", "*"), quantity="determinism", status="fail")
    reasons = violations(framework or recording.backend, recording.device, recording.about.get("determinism", {}))
    return [replace(blank, reason=reason, check="determinism") for reason in reasons if recording.about]


def blank_of(recording: Recording, operator: str, case: str, dtype: str, against: str = "reference") -> Verdict:
    """A verdict on a recording's answer, to be filled in."""
    where = recording.backend, against, recording.device
    return Verdict(operator, case, *where, dtype, "*", "missing", version=recording.version)


# ------------------------------------------------------------------------------------------------ cells


def judge(question: Question, recording: Recording, against: Recording | None = None) -> list[Verdict]:
    """Return the verdicts on a recording's answer, compared with the reference or with another recording.

    Between two recordings, errors are also measured in eps of the reference's entries, so that both kinds of numbers
    are comparable; missing quantities are reported only by the comparison with the reference. There are none if the
    answer is wrong in its numbers alone, and rounding could change these.
    """
    verdicts = list(_judge(question, recording, against))
    checks = {verdict.check for verdict in verdicts if verdict.red}
    in_doubt = checks and checks <= {*OF_NUMBERS} and not (question.is_listed or question.is_certain)
    return [] if in_doubt else verdicts


def _judge(question: Question, recording: Recording, against: Recording | None) -> Iterator[Verdict]:
    case, dtype = cell = question.cell
    given = recording.answer(cell)
    quantities = question.quantities if given.ok else {}
    actual = recording.cells[cell.key] if given.ok else {}
    name = "reference" if against is None else against.name
    blank = blank_of(recording, case.operator, case.id, dtype, name)
    if against is None:
        before = recording.cells.get(f"{case.again}/{dtype}", {}) if case.again else {}
        answer = CellAnswer(blank, given, actual, quantities, before)
        for kind, check in CELL_CHECKS.items():
            yield from (replace(verdict, check=kind) for verdict in check(answer))
        expected = {name: quantity.reference for name, quantity in quantities.items()}
    else:
        expected = against.cells[cell.key] if against.answer(cell).ok else {}
    for name, quantity in quantities.items():
        if name in actual and name in expected:
            yield compare(blank, quantity, actual[name], expected[name])


@dataclass(frozen=True)
class CellAnswer:
    """A recording's answer to a cell: its status, its arrays, and those of the first run of the same case."""

    blank: Verdict
    given: Answer
    actual: Arrays
    quantities: Mapping[str, Quantity]
    before: Arrays

    def verdict(self, reason: str, quantity: str = "*", status: Status = "missing") -> Verdict:
        """Make a red verdict on the cell, or on one of its quantities."""
        return replace(self.blank, reason=reason, quantity=quantity, status=status)


def _check_answer(answer: CellAnswer) -> Iterator[Verdict]:
    status = answer.given.status
    if status != "ok" and status != "not-implemented":
        yield answer.verdict(answer.given.message, status=status)


def _check_whole(answer: CellAnswer) -> Iterator[Verdict]:
    if answer.given.status == "not-implemented":
        yield answer.verdict(answer.given.message)
    for quantity in answer.given.missing:
        if quantity in answer.quantities:
            yield answer.verdict("the target does not return this quantity", quantity)


def _complete(answer: CellAnswer) -> Iterator[Verdict]:
    for quantity in answer.quantities:
        if quantity not in answer.actual and quantity not in answer.given.missing:
            yield answer.verdict("the backend did not return this quantity", quantity)


def _check_names(answer: CellAnswer) -> Iterator[Verdict]:
    for quantity in answer.actual:
        if quantity not in answer.quantities:
            yield answer.verdict("the specification does not have this quantity", quantity, "fail")


def _check_inputs(answer: CellAnswer) -> Iterator[Verdict]:
    for name in answer.given.changed:
        reason = f"the call modified its argument {name} in place"
        yield answer.verdict(reason, f"argument_{name}", "fail")


def _repeatable(answer: CellAnswer) -> Iterator[Verdict]:
    for quantity, array in answer.before.items():
        if quantity in answer.actual and not same(answer.actual[quantity], array):
            reason = f"{quantity} is not bitwise equal to the first run of this case, with other cells in between"
            yield answer.verdict(reason, quantity, "fail")


CELL_CHECKS: dict[str, Callable[[CellAnswer], Iterator[Verdict]]] = {
    "answer": _check_answer,
    "has": _check_whole,
    "whole": _complete,
    "specified": _check_names,
    "input": _check_inputs,
    "again": _repeatable,
}
"""The checks of a whole cell: it has an answer, with all quantities and no others; the arguments are unchanged; and a
repeated case is bitwise equal.
"""


def excuse_missing(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """Yield the verdicts with missing functions as not implemented, which is not red."""
    for verdict in verdicts:
        yield replace(verdict, status="not-implemented") if verdict.check == "has" else verdict


# ------------------------------------------------------------------------------------------------ arrays


def _shape(pair: Pair) -> str | None:
    if pair.actual.shape == pair.expected.shape:
        return None
    return f"{pair.quantity.name} has shape {pair.actual.shape}, expected {pair.expected.shape}"


def _dtype(pair: Pair) -> str | None:
    actual, expected = pair.actual.dtype.name, pair.quantity.dtypes
    return None if actual in expected else f"{pair.quantity.name} is {actual}, expected {' or '.join(expected)}"


def _exact(pair: Pair) -> str | None:
    """Integers and booleans have no tolerance."""
    if pair.quantity.floating:
        return None
    wrong = np.asarray(pair.actual != pair.expected)
    return f"{pair.worst(wrong)} ({_share(wrong)} of elements differ)" if wrong.any() else None


def _special(pair: Pair) -> str | None:
    """NaN and inf are where they are expected, and nowhere else."""
    if not pair.quantity.floating or pair.finite.all():
        return None
    wrong = ~pair.finite & ~pair.same
    return f"{pair.worst(wrong)} ({_share(wrong)} of elements)" if wrong.any() else None


def _zero(pair: Pair) -> str | None:
    """If the reference is all zero, there is no scale for the error, and zero is required, unless terms cancel."""
    if not pair.quantity.floating or pair.quantity.scale > 0.0:
        return None
    wrong = pair.finite & ~pair.same
    wrong &= (pair.errors > pair.allowances) if wrong.any() else False
    return f"{pair.worst(wrong)}: all is zero here ({_share(wrong)} of elements are not)" if wrong.any() else None


def _value(pair: Pair) -> str | None:
    quantity = pair.quantity
    if not quantity.floating or quantity.scale == 0.0 or quantity.tolerance.informational:
        return None
    wrong = ~(pair.errors <= pair.allowances)
    if not wrong.any():
        return None
    error, allowed = pair.decisive
    return f"{pair.worst(wrong)}: {_describe_error(pair, error, allowed, wrong)}"


def _entry(pair: Pair) -> str | None:
    """Small entries are as accurate as large ones, if the formula permits."""
    tolerance = pair.quantity.by_entry
    if tolerance is None or tolerance.informational or not pair.quantity.floating:
        return None
    errors = pair.entry_errors
    wrong = ~(errors <= pair.entry_allowances)
    if not wrong.any():
        return None
    measured = _describe_error(pair, *pair.decisive_entry, wrong)
    return f"{pair.worst(wrong, errors)}: relative to this entry, {measured}"


CHECKS: dict[str, Callable[[Pair], str | None]] = {
    "shape": _shape,
    "dtype": _dtype,
    "exact": _exact,
    "nan": _special,
    "zero": _zero,
    "value": _value,
    "entry": _entry,
}
"""The checks of an array, in this order; the first failure determines the verdict."""

OF_NUMBERS = ("exact", "zero", "value", "entry")
"""The checks that rounding could fail."""


def compare(blank: Verdict, quantity: Quantity, actual: np.ndarray, expected: np.ndarray) -> Verdict:
    """Compare two arrays by every check; the verdict names the failed check and the position."""
    pair = Pair(quantity, actual, expected)
    failures = ((name, reason) for name, check in CHECKS.items() if (reason := check(pair)) is not None)
    name, reason = next(failures, ("", quantity.tolerance.reason))
    status: Status = "fail" if name else "informational" if quantity.tolerance.informational else "pass"
    error, allowed, entry_error = None, quantity.allowance, None
    if name in ("", "exact", "zero", "value"):
        error, allowed = pair.decisive
    if name in ("", "entry"):
        entry_error = pair.entry_error
    if name == "entry":
        error, allowed = pair.decisive_entry
    return replace(
        blank,
        quantity=quantity.name,
        status=status,
        error=error,
        tolerance=allowed,
        reason=reason,
        check=name,
        entry_error=entry_error,
        condition=pair.condition if name in ("", "zero", "value") else None,
    )


def _describe_error(pair: Pair, error: float, allowed: float, wrong: np.ndarray) -> str:
    """An error in eps and as a share of what it is relative to, what is allowed, and how many elements exceed it."""
    relative = error * epsilon(pair.quantity.dtype)
    return f"{error:.3g} eps (relative error {relative:.2g}), allowed {allowed:g} ({_share(wrong)} of elements too far)"


def _share(wrong: np.ndarray) -> str:
    return f"{100 * wrong.mean():.0f}%"
