"""Read the measured errors of JSON reports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.archives import regular_file
from backends.schema import build
from parity_tests.format.case import DTYPES
from parity_tests.judge.tolerances import Tolerance, entry_tolerance_of, tolerance_of
from parity_tests.judge.verdict import Verdict


class ReportError(ValueError):
    """A file is not a report."""


@dataclass(frozen=True)
class Report:
    """The schema of a report file."""

    header: dict[str, Any]
    cells: list[Verdict]


def verdicts_of(path: Path) -> list[Verdict]:
    """The verdicts of a report.

    Raises: ReportError if the file is not a report.
    """
    try:
        report: Report = build(Report, json.loads(regular_file(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        what = "expected a JSON file written by `run --json`"
        raise ReportError(f"{path} is not a report: {error}; {what}") from error
    return report.cells


def measured_by(verdict: Verdict) -> Iterator[tuple[Tolerance, float, str]]:
    """Yield each error with the tolerance that applied, and its location."""
    if verdict.dtype not in DTYPES:
        return  # of a backend that is missing
    named = verdict.operator, verdict.case, verdict.dtype, verdict.quantity
    against = "" if verdict.against == "reference" else f" against {verdict.against}"
    where = f"{verdict.backend}{against}, {verdict.case}, {verdict.quantity}, {verdict.dtype}"
    tolerance, by_entry = tolerance_of(*named), entry_tolerance_of(*named)
    whole = verdict.check != "entry"
    if verdict.tolerance and whole and verdict.tolerance != tolerance.eps:
        return  # of a drawn case, whose tolerances follow from its conditioning
    if verdict.error is not None and verdict.tolerance and whole:
        yield tolerance, verdict.error, where
    if by_entry is not None and verdict.entry_error is not None:
        yield by_entry, verdict.entry_error, where
