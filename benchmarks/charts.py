"""What the bench draws: ratios of time and memory by item, and both over the length. It needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from benchmarks.items import THIRD_PARTY
from benchmarks.page import direction
from benchmarks.runner import Bench, Length, Row
from parity_tests.colours import colours_of
from parity_tests.plots import empty_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAR, ITEM, LEGEND = 0.17, 0.5, 1.0
"""The height of a bar, of what is around those of an item, and of the legend and the axis below, in inches."""
MISSED = "////"
"""The hatch of a bar that does not reach its goal."""
KINDS = {"seconds": "Time", "bytes": "Memory"}
"""The titles of the columns, by the unit of their rows."""
GUIDES = {1: ("linear growth", ":"), 2: ("quadratic growth", "-.")}
"""The names and styles of the guides of the pictures over the length, by their exponents."""


def chart(bench: Bench) -> Figure:
    """Draw all that was measured: the ratios where there are any, the lengths where there are any."""
    rows = [row for row in bench.rows if row.ratio is not None]
    above = LEGEND + sum(heights(rows)) if rows else 0.0
    below = 4.2 if bench.lengths else 0.0
    figure = empty_figure(10.0, max(above + below, 2.0))
    parts: Any = figure.subfigures(2, 1, height_ratios=(above, below)) if rows and bench.lengths else [figure]
    if rows:
        by_item(parts[0], rows)
    if bench.lengths:
        over_length(parts[-1], bench.lengths)
    return figure


def items_of(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """The rows by item and by unit."""
    return {
        item: {unit: [row for row in those if row.unit == unit] for unit in KINDS}
        for item, those in ((item, list(group)) for item, group in groupby(rows, lambda row: row.item))
    }


def heights(rows: Sequence[Row]) -> list[float]:
    """The height of each item in inches."""
    return [ITEM + BAR * max(map(len, kinds.values())) for kinds in items_of(rows).values()]


def by_item(figure: Any, rows: Sequence[Row]) -> None:
    """A panel with the ratios of time and one with those of memory for each item, and a legend above."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    items = items_of(rows)
    units = [unit for unit in KINDS if any(kinds[unit] for kinds in items.values())]
    size = {"height_ratios": heights(rows), "width_ratios": (3, 2)[: len(units)]}
    panels = figure.subplots(len(items), len(units), sharex="col", squeeze=False, **size)
    colours = colours_of(dict.fromkeys(row.framework for row in rows))
    for column, unit in zip(panels.T, units, strict=True):
        filled = []
        for axes, (item, kinds) in zip(column, items.items(), strict=True):
            if not kinds[unit]:
                axes.axis("off")
                continue
            bars(axes, kinds[unit], colours, most=max(map(len, kinds.values())))
            axes.set_title(f"{item}: {KINDS[unit].lower()}", fontsize=8, loc="left")
            filled.append(axes)
        logarithmic(filled[-1])
        filled[-1].tick_params(labelbottom=True)
        filled[-1].set_xlabel(f"{KINDS[unit].lower()}, theirs / ours", fontsize=8)
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    handles += [
        Patch(facecolor="white", edgecolor="0.3", hatch=MISSED, label="misses its goal"),
        Line2D([], [], color="black", marker="|", linestyle="none", markersize=9, markeredgewidth=2.0, label="goal"),
        Line2D([], [], color="0.3", linewidth=1.2, label="quartiles of the rounds"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), fontsize=8, frameon=False)


def bars(axes: Axes, rows: Sequence[Row], colours: dict[str, str], most: int) -> None:
    """A bar from 1 for each ratio with its quartiles, and a mark where its goal is, of at most so many."""
    for place, row in enumerate(rows):
        ratio, colour = row.ratio or 1.0, colours[row.framework]
        missed = row.is_reached is False
        look = {"facecolor": "white" if missed else colour, "edgecolor": colour, "hatch": MISSED if missed else None}
        axes.barh(place, ratio - 1.0, left=1.0, height=0.7, **look)
        if row.spread is not None:
            axes.plot(row.spread, (place, place), color="0.3", linewidth=1.2)
        if row.goal is not None:
            axes.plot((row.goal, row.goal), (place - 0.4, place + 0.4), color="black", linewidth=2.0)
    axes.set_yticks(range(len(rows)), map(label, rows), fontsize=6)
    axes.set_ylim(most - 0.4, -0.6)
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.grid(axis="x", alpha=0.3)
    axes.tick_params(axis="x", labelsize=7)


def label(row: Row) -> str:
    """The framework, what was measured, and what it is compared with, unless that is plain third-party code."""
    measured = row.part if row.unit == "bytes" else direction(row)
    against = row.against.removeprefix(THIRD_PARTY).removeprefix(", ")
    return ", ".join(filter(None, [f"{row.framework} {measured}", against]))


def logarithmic(axes: Axes) -> None:
    """A logarithmic axis of ratios, with marks at 1, 2 and 5."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    steps = [step * 10**power for power in range(-3, 4) for step in (1, 2, 5)]
    axes.set_xticks([step for step in steps if low <= step <= high], minor=False)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:g}")


def over_length(figure: Any, lengths: Sequence[Length]) -> None:
    """Seconds and memory of each form in each framework over the length, on logarithmic scales, with slopes."""
    from matplotlib.lines import Line2D

    panels = figure.subplots(1, 2)
    colours = colours_of(dict.fromkeys(at.framework for at in lengths))
    for axes, name, unit in zip(panels, KINDS.values(), ("seconds", "MiB"), strict=True):
        drawn = []
        for framework, form in dict.fromkeys((at.framework, at.form) for at in lengths):
            points = [
                (at.length, at.seconds if unit == "seconds" else (at.bytes or 0) / 2**20)
                for at in lengths
                if (at.framework, at.form) == (framework, form) and at.seconds is not None
            ]
            if points:
                x, y = zip(*points, strict=True)
                axes.plot(x, y, "-o" if form == "ours" else "--s", color=colours[framework], markersize=4)
                drawn += points
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        guides(axes, drawn)
        axes.set_title(f"{name} of a training step", fontsize=10)
        axes.set_ylabel(unit)
        axes.set_xlabel("length: queries, and keys")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.grid(alpha=0.3)
    handles = [Line2D([], [], color=colour, linewidth=3.0, label=name) for name, colour in colours.items()]
    handles += [
        Line2D([], [], color="black", linestyle="-", marker="o", markersize=4, label="ours"),
        Line2D([], [], color="black", linestyle="--", marker="s", markersize=4, label="third party"),
        *(Line2D([], [], color="0.5", linestyle=style, label=name) for name, style in GUIDES.values()),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8, frameon=False)


def guides(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Grey lines from below the first points to the last length, as steep as linear and quadratic growth."""
    positive = [(x, y) for x, y in points if y > 0]
    if not positive:
        return
    start, end = min(x for x, _ in positive), max(x for x, _ in positive)
    lowest = min(y for x, y in positive if x == start) / 2.0
    for exponent, (_, style) in GUIDES.items():
        axes.plot((start, end), (lowest, lowest * (end / start) ** exponent), style, color="0.5", linewidth=1.5)
