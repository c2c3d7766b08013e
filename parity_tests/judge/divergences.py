"""Known divergences: expected failures with a reason; one that no longer fails is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from backends.archives import regular_file
from backends.schema import Range, SchemaError, build
from parity_tests.format.call import SECOND
from parity_tests.judge.verdict import Verdict
from parity_tests.workers.recordings import backend_of

DIVERGING = ("fail", "error")
"""The statuses of a known divergence: a different answer, or an error."""


Name = Annotated[str, Range(1)]
"""A non-empty string."""


@dataclass(frozen=True)
class Divergence:
    """A known divergence of a backend, with a reason and a link.

    backend, case, quantity, dtype and operator are patterns with * and ?. A quantity includes that of a second call.
    """

    backend: Name
    case: Name
    quantity: Name
    reason: Name
    dtype: str = "*"
    operator: str = "*"
    link: str = ""

    def explains(self, verdict: Verdict) -> bool:
        """Whether the verdict fails in this quantity, against the reference or another backend."""
        quantities = verdict.quantity, verdict.quantity.replace(SECOND, "")
        named = self.names(verdict.operator, verdict.case, verdict.dtype) and any(
            fnmatchcase(quantity, self.quantity) for quantity in quantities
        )
        return verdict.status in DIVERGING and named and self._concerns(verdict)

    def names(self, operator: str, case: str, dtype: str) -> bool:
        """Whether the entry matches that cell."""
        pairs = (operator, self.operator), (case, self.case), (dtype, self.dtype)
        return all(fnmatchcase(name, pattern) for name, pattern in pairs)

    def asked_for(self, verdicts: Iterable[Verdict]) -> bool:
        """Whether one of its cells was compared."""
        return any(
            self._concerns(verdict) and self.names(verdict.operator, verdict.case, verdict.dtype)
            for verdict in verdicts
        )

    def stale(self, verdicts: Sequence[Verdict]) -> bool:
        """Whether one of its cells was compared, and none diverges any longer."""
        return self.asked_for(verdicts) and not any(map(self.explains, verdicts))

    def _concerns(self, verdict: Verdict) -> bool:
        return any(fnmatchcase(backend_of(name), self.backend) for name in (verdict.backend, verdict.against))


@dataclass(frozen=True)
class Entries:
    """The schema of a file of known divergences."""

    divergence: list[dict[str, Any]] = field(default_factory=list)


class DivergenceError(ValueError):
    """A file of known divergences is invalid."""


def load_divergences(path: Path | None = None, backend: str = "") -> list[Divergence]:
    """Read the entries of a file, by default the bundled one. Entries without a backend apply to the backend passed.

    Raises: DivergenceError if the file is invalid.
    """
    path = path or Path(__file__).with_name("divergences.toml")
    try:
        content = tomllib.loads(regular_file(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DivergenceError(f"{path}: {error}") from error
    try:
        entries = build(Entries, content).divergence
        return [
            build(Divergence, {"backend": backend, **entry}, f"divergence[{number}]")
            for number, entry in enumerate(entries)
        ]
    except SchemaError as error:
        names = ", ".join(entry.name for entry in fields(Divergence))
        raise DivergenceError(f"{path}: {error}; an entry has {names}") from error


def apply(verdicts: Iterable[Verdict], divergences: Sequence[Divergence], *, whole: bool = True) -> list[Verdict]:
    """Mark known failures among the verdicts, and add a failure for each stale entry.

    In an interrupted run no entry is stale: it may diverge in a cell that was not run.
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
                    reason="a known divergence no longer diverges: delete its entry",
                )
            )
    return result
