"""Known divergences: entries with a reason, each of which has to diverge still."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from parity_tests.comparison import Verdict


@dataclass(frozen=True)
class Divergence:
    """A quantity of a case that a backend is known to answer differently, in one tier or in all ("*")."""

    backend: str
    case: str
    quantity: str
    reason: str
    tier: str = "*"

    def covers(self, verdict: Verdict) -> bool:
        """Whether the verdict is about this quantity, against the reference or another backend."""
        return (
            verdict.case == self.case
            and verdict.quantity == self.quantity
            and self.backend in (_framework(verdict.backend), _framework(verdict.against))
            and self.tier in ("*", verdict.tier)
        )


def _framework(backend: str) -> str:
    """The backend's name alone: a recording is called name:device beside another of the same backend."""
    return backend.partition(":")[0]


def load_divergences(path: Path | None = None) -> list[Divergence]:
    """The entries of a file, ours unless given."""
    path = path or Path(__file__).with_name("divergences.toml")
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("divergence", [])
    return [Divergence(**entry) for entry in entries]


def apply(verdicts: Iterable[Verdict], divergences: Sequence[Divergence]) -> list[Verdict]:
    """The verdicts with known failures marked, and one more failure for each entry that does not diverge any longer."""
    verdicts = list(verdicts)
    result = []
    for verdict in verdicts:
        known = next((entry for entry in divergences if entry.covers(verdict)), None)
        if known is not None and verdict.status == "fail":
            verdict = replace(verdict, status="known-divergence", reason=known.reason)
        result.append(verdict)
    judged = {(_framework(verdict.backend), verdict.case) for verdict in verdicts}
    for entry in divergences:
        stale = (entry.backend, entry.case) in judged and not any(
            entry.covers(verdict) for verdict in result if verdict.status == "known-divergence"
        )
        if stale:
            operator = entry.case.partition("-")[0]
            result.append(
                Verdict(
                    operator,
                    entry.case,
                    entry.backend,
                    "reference",
                    "",
                    entry.tier,
                    entry.quantity,
                    "fail",
                    reason="a known divergence that does not diverge: delete its entry in divergences.toml",
                )
            )
    return result
