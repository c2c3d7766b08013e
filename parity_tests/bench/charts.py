"""What the bench draws: bars of ratios, and time and memory over the length. It needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parity_tests.bench.page import direction
from parity_tests.bench.runner import Bench, Length, Row
from parity_tests.plots import empty_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REACHED, MISSED, FREE = "tab:green", "tab:orange", "0.6"
"""The colours of a ratio that reaches its goal, of one that does not, and of one that has none."""


def chart(bench: Bench) -> Figure:
    """Draw all that was measured: the ratios where there are any, the lengths where there are any."""
    rows = [row for row in bench.rows if row.ratio is not None]
    height = 1.4 + 0.22 * len(rows) if rows else 0.0
    below = 3.6 if bench.lengths else 0.0
    figure = empty_figure(9.0, max(height + below, 2.0))
    parts: Any = figure.subfigures(2, 1, height_ratios=(height, below)) if rows and bench.lengths else [figure]
    if rows:
        bars(parts[0].subplots(), rows)
    if bench.lengths:
        over_length(parts[-1].subplots(1, 2), bench.lengths)
    return figure


def bars(axes: Axes, rows: Sequence[Row]) -> None:
    """A bar for each ratio with its quartiles, and a mark where its goal is; logarithmic, from 1 on."""
    places = range(len(rows))
    colours = [{True: REACHED, False: MISSED, None: FREE}[row.reached] for row in rows]
    values = [row.ratio or 1.0 for row in rows]
    axes.barh(places, [value - 1.0 for value in values], left=1.0, color=colours, height=0.7)
    for place, row in zip(places, rows, strict=True):
        if row.spread is not None:
            axes.plot(row.spread, (place, place), color="black", linewidth=1.0)
        if row.goal is not None:
            axes.plot((row.goal, row.goal), (place - 0.4, place + 0.4), color="tab:red", linewidth=1.5)
    names = [f"{row.item}, {row.framework}, {direction(row)}\nagainst {row.against}" for row in rows]
    axes.set_yticks(places, names, fontsize=5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    steps = [step * 10**power for power in range(-3, 4) for step in (1, 2, 5)]
    axes.set_xticks([step for step in steps if low <= step <= high], minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("theirs / ours; black: quartiles, red: goal")
    axes.grid(axis="x", alpha=0.3)


def over_length(axes: Sequence[Axes], lengths: Sequence[Length]) -> None:
    """Seconds and memory of each form in each framework over the length, on logarithmic scales."""
    for framework, form in dict.fromkeys((at.framework, at.form) for at in lengths):
        points = [
            (at.length, at.seconds, (at.bytes or 0) / 2**20)
            for at in lengths
            if (at.framework, at.form) == (framework, form) and at.seconds is not None
        ]
        style = "-o" if form == "ours" else "--s"
        for number, each in enumerate(axes, start=1):
            x, y = [point[0] for point in points], [point[number] for point in points]
            each.plot(x, y, style, markersize=4, label=f"{framework} {form}")
    axes[0].set_ylabel("a training step, seconds")
    axes[1].set_ylabel("a training step, MiB")
    for each in axes:
        each.set_xscale("log", base=2)
        each.set_yscale("log")
        each.set_xlabel("queries and keys")
        each.grid(alpha=0.3)
    axes[0].legend(fontsize=7)
