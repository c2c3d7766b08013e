"""The judge: checks of a cell, then of each array; every answer is a verdict with its numbers.

The checks are a table, and a test takes each of them out in turn: without it, some mutant would pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from parity_tests.cases.case import Arrays, is_floating
from parity_tests.cases.selection import Cell
from parity_tests.judge.condition import tolerances_in
from parity_tests.judge.pair import Pair
from parity_tests.judge.tolerances import EntryTolerance, Tolerance
from parity_tests.judge.verdict import Status, Verdict
from parity_tests.workers.recordings import Recording, answered, withheld
from parity_tests.workers.target import same

# ------------------------------------------------------------------------------------------------ cells


def judge(
    cell: Cell,
    expected: Arrays,
    recording: Recording,
    against: Recording | None = None,
) -> Iterator[Verdict]:
    """Verdicts for every quantity of a cell: a recording against the reference, or against another recording.

    Between two recordings, errors are still measured in eps of the reference's entries, so that the numbers of both
    kinds compare; what either lacks is told by the verdicts against the reference.
    """
    case, dtype = cell
    blank = Verdict(
        case.operator,
        case.id,
        recording.backend,
        against.name if against else "reference",
        recording.device,
        dtype,
        "*",
        "missing",
    )
    said = answered(recording, cell)
    found = recording.cells[cell.key] if said["status"] == "ok" else {}
    if against is None:
        before = recording.cells.get(f"{case.again}/{dtype}", {}) if case.again else {}
        for name, check in CELL_CHECKS.items():
            yield from (replace(verdict, check=name) for verdict in check(blank, said, found, expected, before))
        wanted = expected
    else:
        wanted = against.cells[cell.key] if answered(against, cell)["status"] == "ok" else {}
    for quantity in expected:
        if quantity in found and quantity in wanted:
            tolerance, by_entry = tolerances_in(cell, quantity, withheld(said))
            verdict = replace(blank, quantity=quantity)
            arrays = found[quantity], wanted[quantity], expected[quantity]
            yield compare(verdict, *arrays, tolerance, expected.get(tolerance.beside), by_entry)


CellCheck = Callable[[Verdict, Any, Arrays, Arrays, Arrays], Iterator[Verdict]]
"""What is said of a cell, found, expected, and what was found when the same was asked before."""


def _answered(blank: Verdict, said: Any, found: Arrays, expected: Arrays, before: Arrays) -> Iterator[Verdict]:
    if said["status"] not in ("ok", "not-implemented"):
        yield replace(blank, status=said["status"], reason=said.get("message", ""))


def _complete(blank: Verdict, said: Any, found: Arrays, expected: Arrays, before: Arrays) -> Iterator[Verdict]:
    for quantity in expected if said["status"] == "ok" else ():
        if quantity not in found and quantity not in said.get("lacking", ()):
            yield replace(blank, quantity=quantity, reason="the backend did not answer this quantity")


def _implemented(blank: Verdict, said: Any, found: Arrays, expected: Arrays, before: Arrays) -> Iterator[Verdict]:
    if said["status"] == "not-implemented":
        yield replace(blank, reason=said.get("message", ""))
    for quantity in said.get("lacking", ()):
        if quantity in expected:
            yield replace(blank, quantity=quantity, reason="the target does not give this quantity")


def _asked(blank: Verdict, said: Any, found: Arrays, expected: Arrays, before: Arrays) -> Iterator[Verdict]:
    for quantity in found:
        if quantity not in expected:
            reason = "the specification has no such quantity"
            yield replace(blank, quantity=quantity, status="fail", reason=reason)


def _untouched(blank: Verdict, said: Any, found: Arrays, expected: Arrays, before: Arrays) -> Iterator[Verdict]:
    for name in said.get("changed", ()):
        reason = f"the call changed its argument {name}: the caller's array has other values than before"
        yield replace(blank, quantity=f"argument_{name}", status="fail", reason=reason)


def _again(blank: Verdict, said: Any, found: Arrays, expected: Arrays, before: Arrays) -> Iterator[Verdict]:
    for quantity in before:
        if quantity in found and not same(found[quantity], before[quantity]):
            reason = f"{quantity} has other bits than when the same was asked before, with other cells in between"
            yield replace(blank, quantity=quantity, status="fail", reason=reason)


CELL_CHECKS: dict[str, CellCheck] = {
    "answer": _answered,
    "has": _implemented,
    "whole": _complete,
    "asked": _asked,
    "input": _untouched,
    "again": _again,
}
"""What is asked of a cell as a whole: an answer, all of it, every quantity, no other, arguments left as they were, and
the same bits as before.
"""


def excused(verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """The verdicts where not all is required: what is not implemented is no longer red."""
    for verdict in verdicts:
        yield replace(verdict, status="not-implemented") if verdict.check == "has" else verdict


# ------------------------------------------------------------------------------------------------ arrays


def _shape(pair: Pair) -> str | None:
    if pair.found.shape == pair.wanted.shape:
        return None
    return f"{pair.name} has shape {pair.found.shape}, expected {pair.wanted.shape}"


def _dtype(pair: Pair) -> str | None:
    if pair.found.dtype.name == pair.expected_dtype:
        return None
    return f"{pair.name} is {pair.found.dtype.name}, expected {pair.expected_dtype}"


def _exact(pair: Pair) -> str | None:
    """Integers and booleans have no tolerance."""
    if is_floating(pair.reference):
        return None
    wrong = np.asarray(pair.found != pair.wanted)
    return f"{pair.worst(wrong)} ({_share(wrong)} of elements differ)" if wrong.any() else None


def _special(pair: Pair) -> str | None:
    """NaN and inf stand where they are expected, and nowhere else."""
    if not is_floating(pair.reference):
        return None
    wrong = ~pair.finite & ~pair.same
    return f"{pair.worst(wrong)} ({_share(wrong)} of elements)" if wrong.any() else None


def _zero(pair: Pair) -> str | None:
    """Where the reference is all zero there is nothing to measure in, and zero is demanded."""
    if not is_floating(pair.reference) or pair.scale > 0.0:
        return None
    wrong = pair.finite & ~pair.same
    return f"{pair.worst(wrong)}: all is zero here ({_share(wrong)} of elements are not)" if wrong.any() else None


def _value(pair: Pair) -> str | None:
    if not is_floating(pair.reference) or pair.scale == 0.0:
        return None
    wrong = ~(pair.errors <= pair.tolerance)
    if not wrong.any():
        return None
    measured = f"{pair.errors.max():.3g} eps, allowed {pair.tolerance:g} ({_share(wrong)} of elements too far)"
    return f"{pair.worst(wrong)}: {measured}"


def _entry(pair: Pair) -> str | None:
    """Small entries are as exact as large ones, where the formula lets them be."""
    if pair.by_entry is None or pair.by_entry.informational or not is_floating(pair.reference):
        return None
    errors = pair.entry_errors
    wrong = ~(errors <= pair.by_entry.eps)
    if not wrong.any():
        return None
    measured = f"{errors.max():.3g} eps, allowed {pair.by_entry.eps:g} ({_share(wrong)} of elements too far)"
    return f"{pair.worst(wrong, errors)}: measured by itself, {measured}"


CHECKS: dict[str, Callable[[Pair], str | None]] = {
    "shape": _shape,
    "dtype": _dtype,
    "exact": _exact,
    "nan": _special,
    "zero": _zero,
    "value": _value,
    "entry": _entry,
}
"""What is asked of an array, in this order; the first that says no decides."""


def compare(
    verdict: Verdict,
    found: np.ndarray,
    wanted: np.ndarray,
    reference: np.ndarray,
    tolerance: Tolerance,
    beside: np.ndarray | None = None,
    by_entry: EntryTolerance | None = None,
) -> Verdict:
    """Compare two arrays by every check; the verdict says which of them says no, and where."""
    eps = tolerance.eps if is_floating(reference) else 0.0
    pair = Pair(verdict.quantity, verdict.dtype, found, wanted, reference, eps, beside, by_entry)
    allowed = eps if pair.scale > 0.0 else 0.0
    for name, check in CHECKS.items():
        reason = None if tolerance.informational and name == "value" else check(pair)
        if reason is None:
            continue
        said = replace(verdict, status="fail", reason=reason, check=name)
        if name == "entry" and by_entry is not None:
            error = _measured_by_entry(pair)
            return replace(said, error=error, tolerance=by_entry.eps, entry_error=error)
        return replace(said, error=_measured(pair) if name in ("exact", "zero", "value") else None, tolerance=allowed)
    status: Status = "informational" if tolerance.informational else "pass"
    measured = _measured(pair)
    own = _measured_by_entry(pair)
    return replace(verdict, status=status, error=measured, tolerance=allowed, reason=tolerance.reason, entry_error=own)


def _measured(pair: Pair) -> float:
    """The largest error in eps, or the number of elements that differ where there are no eps."""
    if not is_floating(pair.reference):
        return float(np.sum(pair.found != pair.wanted))
    return float(pair.errors.max(initial=0.0))


def _measured_by_entry(pair: Pair) -> float | None:
    """The largest error of an entry in eps of itself, None where none is asked for."""
    return None if pair.by_entry is None else float(pair.entry_errors.max(initial=0.0))


def _share(wrong: np.ndarray) -> str:
    return f"{100 * wrong.mean():.0f}%"
