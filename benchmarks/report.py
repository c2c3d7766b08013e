"""A benchmark as one HTML file: a table for each item, with bars, without any request or script."""

from __future__ import annotations

import math
from itertools import chain
from pathlib import Path

from benchmarks.items import size_line
from benchmarks.page import direction, length_figures, numbers, place
from benchmarks.runner import Bench, Row
from parity_tests.reports.html_report import render
from parity_tests.workers.recordings import own_version

TEMPLATE = Path(__file__).with_name("bench.html")


def page(bench: Bench) -> str:
    """The page of a benchmark."""
    measured = [row for row in bench.rows if row.spread is not None]
    reached = [row.is_reached for row in measured if row.goal is not None]
    values = [1.0, *chain.from_iterable((*(row.spread or ()), row.goal or 1.0) for row in measured)]
    low, high = min(values) / 1.1, max(values) * 1.1
    items: dict[str, list[Row]] = {}
    for row in bench.rows:
        items.setdefault(row.item, []).append(row)

    def at(value: float) -> float:
        return round(100.0 * math.log(value / low) / math.log(high / low), 2)

    return render(
        TEMPLATE,
        place=place(bench),
        facts={
            "ratios": len(measured),
            "goals reached": f"{sum(map(bool, reached))} of {len(reached)}",
            "not measured": len(bench.refused_rows) + len(bench.missing),
            "rounds": bench.rounds,
            "seconds": f"{bench.seconds:,.0f}",
        },
        items=items,
        sizes={item: dict.fromkeys(size_line(row.sizes) for row in rows) for item, rows in items.items()},
        bars=bool(measured),
        low=low,
        high=high,
        at=at,
        numbers=numbers,
        direction=direction,
        length_figures=length_figures,
        lengths=bench.lengths,
        missing=bench.missing,
        version=own_version(),
    )
