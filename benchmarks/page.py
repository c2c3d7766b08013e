"""The rows of the bench in words, as a table in Markdown, and as JSON."""

from __future__ import annotations

from benchmarks.items import size_line
from benchmarks.runner import Bench, Length, Row

MARKS = ("<!-- bench -->", "<!-- end of bench -->")
"""What the table is written between."""
THREAD_MARKS = ("<!-- threads -->", "<!-- end of threads -->")
"""What the table of more threads is written between."""


def markdown(bench: Bench) -> str:
    """The table of the rows, their sizes, tokens per second, the lengths, and what they were measured on."""
    if bench.threads > 1:
        return "\n".join([*scaling(bench), "", f"Measured on {place(bench)}.", ""])
    lines = [
        "| item | framework | direction | against | ratio | quartiles | 10⁹/s | goal | reached |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    sizes: dict[str, dict[str, list[str]]] = {}
    for row in bench.rows:
        cells = (row.item, row.framework, direction(row), row.against, *numbers(row))
        lines.append(f"| {' | '.join(cells)} |")
        frameworks = sizes.setdefault(row.item, {}).setdefault(size_line(row.sizes), [])
        frameworks += [] if row.framework in frameworks else [row.framework]
    lines += ["", "Sizes:", ""]
    for item, lists in sizes.items():
        each = [text if len(lists) == 1 else f"{text} ({', '.join(names)})" for text, names in lists.items()]
        lines.append(f"- {item}: {'; '.join(each)}")
    if speeds := [(row, row.tokens_per_second) for row in bench.rows if row.tokens_per_second is not None]:
        lines += [
            "",
            "Tokens of the translations per second:",
            "",
            "| item | framework | against | ours | theirs |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {row.item} | {row.framework} | {row.against} | {ours:,.0f} | {theirs:,.0f} |"
            for row, (ours, theirs) in speeds
        ]
    if bench.lengths:
        lines += [
            "",
            "A training step of additive attention over the length of queries and keys:",
            "",
            "| framework | form | length | seconds | growth | MiB |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {at.framework} | {at.form} | {at.length} | {' | '.join(length_figures(at))} |" for at in bench.lengths
        ]
    return "\n".join([*lines, "", f"Measured on {place(bench)}.", ""])


def scaling(bench: Bench) -> list[str]:
    """The table of the seconds with one thread and with more."""
    lines = [
        f"| item | framework | direction | 1 thread, s | {bench.threads} threads, s | ratio | quartiles | reached |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in bench.rows:
        ratio, spread, _, _, reached = numbers(row)
        seconds = ("" if taken is None else f"{taken:.3g}" for taken in (row.theirs, row.ours))
        lines.append(f"| {' | '.join((row.item, row.framework, direction(row), *seconds, ratio, spread, reached))} |")
    return lines


def direction(row: Row) -> str:
    """The direction of a row, with the part if that is another."""
    return row.direction if row.direction == row.part else f"{row.direction} ({row.part})"


def numbers(row: Row) -> tuple[str, str, str, str, str]:
    """The printed form of the ratio, its quartiles, the throughput, the goal, and whether it was reached."""
    goal = "" if row.goal is None else f"{row.goal:g}"
    if row.aim is not None and row.aim != row.goal:
        goal += f" → {row.aim:g}"
    if row.ratio is None or row.spread is None:
        return row.refused or "none", "", "", goal, ""
    reached = {None: "", True: "yes", False: "no"}[row.is_reached]
    rate = "" if row.rate is None else f"{row.rate:.2g}"
    return f"{row.ratio:.2f}", f"{row.spread[0]:.2f} to {row.spread[1]:.2f}", rate, goal, reached


def length_figures(length: Length) -> tuple[str, str, str]:
    """The seconds of a length, by those of half of it, and MiB, as they are printed, or why there are none."""
    if length.seconds is None or length.bytes is None:
        return length.refused, "", ""
    growth = "" if length.growth is None else f"{length.growth:.2f}"
    return f"{length.seconds:.3g}", growth, f"{length.bytes / 2**20:,.1f}"


def place(bench: Bench) -> str:
    """The machine and its speed in NumPy, the versions and the rounds, in one line."""
    machine = bench.machine
    versions = ", ".join(f"{name} {number}" for each in machine["versions"].values() for name, number in each.items())
    threads = "one thread" if bench.threads == 1 else f"{bench.threads} threads"
    where = threads if machine["device"] == "cpu" else machine["device"]
    rates = ", ".join(f"{rate:.2g} {what}" for what, rate in machine.get("rates", {}).items())
    speed = f" (NumPy, 10⁹/s: {rates})" if rates else ""
    length = f"{bench.rounds} rounds, {bench.seconds:.0f} s"
    return f"{machine['cpu']}, {machine['cores']} cores, {where}{speed}; {versions}; {length}"


def with_table(text: str, bench: Bench) -> str:
    """A page with the table between its marks, or at the end if it has none."""
    first, last = MARKS if bench.threads == 1 else THREAD_MARKS
    before, opening, rest = text.partition(first)
    after = rest.partition(last)[2] if opening else ""
    before = before if opening or not before else before.rstrip("\n") + "\n\n"
    return f"{before}{first}\n{markdown(bench)}{last}{after or chr(10)}"
