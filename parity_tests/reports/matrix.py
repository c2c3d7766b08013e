"""The matrix of operators and backends in pages: the largest error of each as a share of its tolerance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from parity_tests.judge.run import Run
from parity_tests.judge.verdict import Verdict

PAIRS = "pairs"
"""The column of the comparisons between any two backends."""
STEPS = (0.1, 0.25, 0.5, 1.0)
"""The upper limits of the shares of a tolerance that have a colour of their own."""
WHOLE = "*"
"""The row of verdicts on a backend as a whole, such as a determinism setting that is not in force."""


class Entry(NamedTuple):
    """What stands in a place of the matrix: its style, and its text."""

    style: str
    text: str


class Place(NamedTuple):
    """An operator and a column."""

    operator: str
    column: str


def place(verdict: Verdict) -> Place:
    """The place of a verdict in the matrix."""
    return Place(verdict.operator, verdict.name if verdict.against == "reference" else PAIRS)


def columns(run: Run) -> list[str]:
    """The backends that were compared with the reference, and the pairs, if there are any."""
    alone = [verdict.name for verdict in run.verdicts if verdict.against == "reference"]
    recorded = list(run.recordings) if alone or len(run.recordings) < 2 else []
    pairs = any(verdict.against != "reference" for verdict in run.verdicts)
    return [*dict.fromkeys([*recorded, *alone]), *([PAIRS] if pairs else [])]


def operators(run: Run) -> list[str]:
    """The operators of a run, in the order of the specification; first the backends as a whole, if they are red."""
    whole = [WHOLE] if any(verdict.operator == WHOLE for verdict in run.verdicts) else []
    verdicts = (verdict.operator for verdict in run.verdicts if verdict.operator != WHOLE)
    return [*whole, *dict.fromkeys([*(cell.case.operator for cell in run.cells), *verdicts])]


def by_place(run: Run) -> dict[Place, list[Verdict]]:
    """The verdicts of each place."""
    places: dict[Place, list[Verdict]] = defaultdict(list)
    for verdict in run.verdicts:
        places[place(verdict)].append(verdict)
    return places


def share(verdict: Verdict) -> float | None:
    """The error as a share of its tolerance; None if nothing was measured, or nothing is tolerated."""
    if verdict.error is None or verdict.tolerance is None or verdict.status == "informational":
        return None
    if verdict.tolerance == 0.0:
        return 0.0 if verdict.error == 0.0 else None
    return verdict.error / verdict.tolerance


def entry(verdicts: Sequence[Verdict], required: bool = True) -> Entry:
    """Summarise the verdicts of a place; report.js does the same for those that its filters select.

    required: whether a place without verdicts is red.
    """
    red = sum(verdict.red for verdict in verdicts)
    if red:
        return Entry("red", f"✕ {red:,}")
    if not verdicts:
        return Entry("red", "blank") if required else Entry("none", "–")
    statuses = {verdict.status for verdict in verdicts}
    known = " †" if "known-divergence" in statuses else ""
    shares = [part for verdict in verdicts if verdict.status == "pass" and (part := share(verdict)) is not None]
    if shares:
        worst = max(shares)
        return Entry(style(worst), percent(worst) + known)
    if known:
        return Entry("none", "known †")
    if statuses == {"not-applicable"}:
        return Entry("none", "n/a")
    return Entry("none", "measured" if "informational" in statuses else "missing")


def style(worst: float) -> str:
    """The name of a share's colour."""
    return "exact" if worst == 0.0 else f"step{1 + sum(worst > limit for limit in STEPS[:-1])}"


def percent(worst: float) -> str:
    """A share of a tolerance in words."""
    return "exact" if worst == 0.0 else "<1%" if worst < 0.01 else f"{100 * worst:.0f}%"
