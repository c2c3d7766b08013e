"""The judge: count, shape, dtype, then values; every answer is a verdict with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from parity_tests.budgets import Budget, budget_of
from parity_tests.cases import Arrays
from parity_tests.recordings import Cell, Recording, answered, key

RED = ("fail", "crash", "timeout", "error", "missing")


@dataclass(frozen=True)
class Verdict:
    """What was found for one quantity of one case of one backend, against the reference or another backend.

    status: pass, fail, crash, timeout, error, missing, not-applicable, known-divergence. error and budget are in eps of
    the tier, None where there is nothing to measure.
    """

    operator: str
    case: str
    backend: str
    against: str
    device: str
    tier: str
    quantity: str
    status: str
    error: float | None = None
    budget: float | None = None
    reason: str = ""

    @property
    def red(self) -> bool:
        """Whether the run fails for it."""
        return self.status in RED

    def as_json(self) -> dict[str, Any]:
        """The verdict as an object; an error without measure, as of NaN, is null and told in reason."""
        # Four digits: the reference's own last bits depend on where NumPy's arrays lie in memory.
        error = None if self.error is None or not np.isfinite(self.error) else float(f"{self.error:.4g}")
        return {**asdict(self), "error": error}


def judge(
    cell: Cell,
    expected: Arrays,
    recording: Recording,
    against: Recording | None = None,
    *,
    budget_for: Callable[[str, str, str, str], Budget] = budget_of,
) -> Iterator[Verdict]:
    """Verdicts for every quantity of a cell: a recording against the reference, or against another recording.

    Between two recordings, errors are still measured in eps of the reference's largest entry, so that the numbers of
    both kinds compare; cells that either has not answered are told by the verdicts against the reference.
    """
    case, tier = cell
    blank = Verdict(
        case.operator,
        case.id,
        recording.backend,
        against.backend if against else "reference",
        recording.device,
        tier,
        "",
        "missing",
    )
    said = answered(recording, cell)
    if against is not None and "ok" not in {said["status"]} & {answered(against, cell)["status"]}:
        return
    if said["status"] != "ok":
        yield replace(blank, quantity="*", status=said["status"], reason=said.get("message", ""))
        return
    found = recording.cells[key(cell)]
    wanted = expected if against is None else against.cells[key(cell)]
    for quantity in [*expected, *(name for name in found if name not in expected)]:
        verdict = replace(blank, quantity=quantity)
        if quantity not in found:
            if against is None:
                yield replace(verdict, reason="the backend did not answer this quantity")
        elif quantity not in expected:
            if against is None:
                yield replace(verdict, status="fail", reason="the specification has no such quantity")
        elif quantity in wanted:
            budget = budget_for(case.operator, case.id, tier, quantity)
            yield compare(verdict, found[quantity], wanted[quantity], expected[quantity], budget)


def compare(verdict: Verdict, found: np.ndarray, wanted: np.ndarray, reference: np.ndarray, budget: Budget) -> Verdict:
    """Compare two arrays by shape, dtype and values; the verdict says which of them differs, and where."""
    name = verdict.quantity
    if found.shape != wanted.shape:
        return replace(verdict, status="fail", reason=f"{name} has shape {found.shape}, expected {wanted.shape}")
    dtype = verdict.tier if reference.dtype.kind == "f" else reference.dtype.name
    if found.dtype.name != dtype:
        return replace(verdict, status="fail", reason=f"{name} is {found.dtype.name}, expected {dtype}")
    if reference.dtype.kind != "f":
        wrong = found != wanted
        error, allowed, far = float(wrong.sum()), 0.0, wrong
    else:
        error, far, allowed = _distance(found, wanted, reference, budget, float(np.finfo(verdict.tier).eps))
    if not far.any():
        return replace(verdict, status="pass", error=error, budget=allowed, reason=budget.reason)
    worst = np.unravel_index(_worst(found, wanted, far), found.shape)
    place = f"{name}[{', '.join(map(str, worst))}]"
    reason = (
        f"{place} is {found[worst]}, expected {wanted[worst]}: {error:.3g} eps, allowed {allowed:g} "
        f"({100 * far.mean():.0f}% of elements too far)"
    )
    return replace(verdict, status="fail", error=error, budget=allowed, reason=reason)


def _distance(
    found: np.ndarray, wanted: np.ndarray, reference: np.ndarray, budget: Budget, eps: float
) -> tuple[float, np.ndarray, float]:
    """The error in eps of the largest entry, the elements beyond the budget, and the budget.

    Where the reference is all zero, zero is demanded: the budget is 0.
    """
    if found.size == 0:
        return 0.0, np.zeros(found.shape, bool), budget.eps
    finite = np.isfinite(found) & np.isfinite(wanted)
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.where(same, 0.0, np.abs(found.astype(np.float64) - wanted.astype(np.float64)))
    distance = np.where(same | finite, distance, np.inf)
    scale = np.abs(np.where(np.isfinite(reference), reference, 0.0)).max()
    if scale == 0.0:
        return (0.0 if same.all() else np.inf), ~same, 0.0
    errors = distance / (eps * scale)
    return float(errors.max()), ~(errors <= budget.eps), budget.eps


def _worst(found: np.ndarray, wanted: np.ndarray, far: np.ndarray) -> int:
    if found.dtype.kind != "f":
        return int(far.argmax())
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(found.astype(np.float64) - wanted.astype(np.float64))
    return int(np.where(far, np.where(np.isnan(distance), np.inf, distance), -1.0).argmax())
