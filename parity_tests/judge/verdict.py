"""The result of a comparison: a verdict with its numbers and, if red, the reason."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from parity_tests.workers.recordings import label

Status = Literal[
    "pass",
    "fail",
    "crash",
    "timeout",
    "error",
    "missing",
    "not-applicable",
    "not-implemented",
    "known-divergence",
    "informational",
    "undecided",
]
"""The statuses of a comparison: not-implemented is missing but not required, informational is measured only."""

RED: tuple[Status, ...] = ("fail", "crash", "timeout", "error", "missing")

NOT_JUDGED: tuple[Status, ...] = ("not-applicable", "not-implemented")


@dataclass(frozen=True)
class Verdict:
    """The result of comparing one quantity of a case in one backend with the reference or another backend.

    error and tolerance are in eps of the dtype and of the largest entry, or of the entry itself if that check failed;
    None if there is nothing to measure. check is the failed check. entry_error is the largest error of an entry in eps
    of itself, None if small entries are not compared. condition is how far a nudge of all numbers by one eps moves the
    quantity, in the same eps, None if no error needed it.
    """

    operator: str
    case: str
    backend: str
    against: str
    device: str
    dtype: str
    quantity: str
    status: Status
    error: float | None = None
    tolerance: float | None = None
    reason: str = ""
    check: str = ""
    entry_error: float | None = None
    version: str = ""
    """The version of the backend, if the run has several."""
    condition: float | None = None

    @property
    def name(self) -> str:
        """The name of the backend in tables and pairs."""
        return label(self.backend, self.device, self.version)

    @property
    def red(self) -> bool:
        """Whether the run fails because of it."""
        return self.status in RED

    @property
    def is_judged(self) -> bool:
        """Whether anything was compared."""
        return self.status not in NOT_JUDGED

    def as_json(self) -> dict[str, Any]:
        """The verdict as an object; an error that is not finite is null, and described in reason."""
        entries = {**asdict(self), "error": _round(self.error), "entry_error": _round(self.entry_error)}
        entries["condition"] = _round(self.condition)
        return {name: entry for name, entry in entries.items() if entry or name not in ("version", "condition")}


@dataclass(frozen=True)
class Explanation:
    """A known mistake with the same wrong answers for an operator.

    It explains `same` of the red verdicts that were compared, and agrees with `right` green ones. name is that of the
    recording.
    """

    operator: str
    mutant: str
    sentence: str
    same: int
    red: int
    right: int
    name: str = ""

    @property
    def counts(self) -> str:
        """How many of the answers that were compared are those of the mutant, in words."""
        answers = f"{self.same} of {self.red} wrong answers and {self.right} of {self.right} right ones"
        return f"{answers} that were compared are those of {self.mutant}"


def _round(error: float | None) -> float | None:
    # Four digits: the reference's own last bits depend on where NumPy's arrays lie in memory.
    return None if error is None or not np.isfinite(error) else float(f"{error:.4g}")
