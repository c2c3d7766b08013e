"""Known divergences: entries with a reason, each of which has to diverge still."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from backends.archives import regular_file
from backends.schema import Range, SchemaError, typed
from parity_tests.cases.call import SECOND
from parity_tests.judge.verdict import Verdict

DIVERGING = ("fail", "error")
"""What a known divergence may be: another answer, or a refusal."""


Name = Annotated[str, Range(1)]
"""A text that is not empty."""


@dataclass(frozen=True)
class Divergence:
    """A known difference of a backend, with the reason and a link.

    backend, case, quantity, dtype and operator are patterns with * and ?. A quantity is that of a second call, too.
    """

    backend: Name
    case: Name
    quantity: Name
    reason: Name
    dtype: str = "*"
    operator: str = "*"
    link: str = ""

    def explains(self, verdict: Verdict) -> bool:
        """Whether the verdict diverges in this quantity, from the reference or another backend."""
        quantities = verdict.quantity, verdict.quantity.replace(SECOND, "")
        named = self.names(verdict.operator, verdict.case, verdict.dtype) and any(
            fnmatchcase(quantity, self.quantity) for quantity in quantities
        )
        return verdict.status in DIVERGING and named and self._concerns(verdict)

    def names(self, operator: str, case: str, dtype: str) -> bool:
        """Whether it is about that cell."""
        pairs = (operator, self.operator), (case, self.case), (dtype, self.dtype)
        return all(fnmatchcase(name, pattern) for name, pattern in pairs)

    def asked_for(self, verdicts: Iterable[Verdict]) -> bool:
        """Whether one of its cells was judged."""
        return any(
            self._concerns(verdict) and self.names(verdict.operator, verdict.case, verdict.dtype)
            for verdict in verdicts
        )

    def stale(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether one of its cells was judged, and none diverges any longer."""
        return self.asked_for(verdicts) and not any(map(self.explains, verdicts))

    def _concerns(self, verdict: Verdict) -> bool:
        return any(fnmatchcase(_framework(name), self.backend) for name in (verdict.backend, verdict.against))


def _framework(backend: str) -> str:
    """The backend's name alone: a recording is called name:device beside another of the same backend."""
    return backend.partition(":")[0]


@dataclass(frozen=True)
class Entries:
    """What a file of known divergences holds."""

    divergence: list[dict[str, Any]] = field(default_factory=list)


class DivergenceError(ValueError):
    """A file of known divergences says something else."""


def load_divergences(path: Path | None = None, backend: str = "") -> list[Divergence]:
    """The entries of a file, ours unless given. Those that name no backend are about the one given.

    Raises: DivergenceError if the file holds something else.
    """
    path = path or Path(__file__).with_name("divergences.toml")
    try:
        content = tomllib.loads(regular_file(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DivergenceError(f"{path}: {error}") from error
    try:
        entries = typed(Entries, content).divergence
        return [
            typed(Divergence, {"backend": backend, **entry}, f"divergence[{number}]")
            for number, entry in enumerate(entries)
        ]
    except SchemaError as error:
        names = ", ".join(entry.name for entry in fields(Divergence))
        raise DivergenceError(f"{path}: {error}; an entry has {names}") from error


def apply(verdicts: Iterable[Verdict], divergences: Sequence[Divergence], *, whole: bool = True) -> list[Verdict]:
    """The verdicts with known failures marked, and one more failure for each entry that is stale.

    Of a run that was interrupted, and is not whole, no entry is called so: it may diverge in what was not judged.
    """
    verdicts = list(verdicts)
    result = []
    for verdict in verdicts:
        known = next((entry for entry in divergences if entry.explains(verdict)), None)
        if known is not None:
            reason = f"{known.reason} {known.link}".strip()
            verdict = replace(verdict, status="known-divergence", reason=reason)
        result.append(verdict)
    for entry in divergences:
        if whole and entry.stale(verdicts):
            result.append(
                Verdict(
                    entry.case.partition("-")[0],
                    entry.case,
                    entry.backend,
                    "reference",
                    "",
                    entry.dtype,
                    entry.quantity,
                    "fail",
                    reason="a known divergence that does not diverge: delete its entry",
                )
            )
    return result
