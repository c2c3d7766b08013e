"""A comparison of two models as one HTML page: the first difference in pictures, sublayers side by side, every verdict.

The page is comparison.html, a template of Jinja2 that fills page.html. It has no script.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from parity_tests.format.case import epsilon
from parity_tests.judge.verdict import Verdict
from parity_tests.models.text import summary
from parity_tests.reports.html_report import render, window

if TYPE_CHECKING:
    from parity_tests.models.result import Result

DECADES = 17
"""The number of powers of ten on the axis of errors, which ends at 1."""
TICKS = {16: "1e-16", 12: "1e-12", 8: "1e-8", 4: "1e-4", 0: "1"}
"""The labels of the axis, by the negated exponent."""
NUMBERS = 8
"""The maximum number of columns of a heatmap with numbers in it."""
OF_PARAMETER = "gradient.parameter."


class Row(NamedTuple):
    """A sublayer of the expected side, its partner, and the relative errors of its output and its own gradients."""

    expected: str
    actual: str
    error: float
    gradient: float | None
    is_first: bool
    kinds: tuple[str, str]

    @property
    def bars(self) -> list[tuple[str, float]]:
        """The kind and the length of each bar."""
        every = (("output", self.error), ("gradient", self.gradient))
        return [(kind, length(error)) for kind, error in every if error is not None]

    @property
    def depth(self) -> int:
        """The number of sublayers around it."""
        return 0 if self.expected.startswith("the model") else 1 + path_of(self.expected).count(".")


class Cell(NamedTuple):
    """An element of a heatmap: its number, what it is called, its part of the largest one, and classes."""

    text: str
    title: str
    part: float
    style: str


class Picture(NamedTuple):
    """A heatmap of a part of an array; scale is the number with the full colour."""

    name: str
    about: str
    scale: float
    rows: list[tuple[bool, list[Cell]]]
    """The cells of each row, and whether the row is the first one of the last two axes."""

    @property
    def has_numbers(self) -> bool:
        """Whether the numbers fit into the cells."""
        return max((len(cells) for _, cells in self.rows), default=0) <= NUMBERS


def page(comparison: Result) -> str:
    """The page of a comparison."""
    outcome, words = summary(comparison)
    pairing = comparison.pairing
    rows = list(sublayers(comparison))
    return render(
        Path(__file__).with_name("comparison.html"),
        comparison=comparison,
        outcome=outcome,
        summary=words,
        facts={
            "comparisons": f"{len(comparison.verdicts):,}",
            "red": f"{len(comparison.red):,}",
            "undecided": f"{len(comparison.undecided_verdicts):,}",
            "pairs of weights": f"{len(pairing.pairs):,}",
            "decided in": comparison.decided_in,
        },
        pictures=pictures(comparison.pictures),
        largest=largest_error(comparison.pictures),
        rows=rows,
        has_gradients=any(row.gradient is not None for row in rows),
        ticks=[(100 * (1 - exponent / DECADES), text) for exponent, text in TICKS.items()],
        rounding=100 * length(epsilon(comparison.decided_in)),
        verdicts=sorted(comparison.verdicts, key=lambda one: (not one.red, one.status != "undecided")),
        three_digits=three_digits,
        breakable_path=breakable_path,
    )


def three_digits(error: float | None) -> str:
    """An error in three digits."""
    return "–" if error is None else f"{error:.3g}"


def breakable_path(name: str) -> Markup:
    """A path that may be broken after each dot, slash and underscore."""
    return Markup("<wbr>").join(re.findall(r"[^._/]*[._/]|[^._/]+$", name))


def length(error: float) -> float:
    """The part of the axis that the bar of an error fills."""
    if not math.isfinite(error):
        return 1.0
    return 0.0 if error <= 0.0 else min(1.0, max(0.0, 1 + math.log10(error) / DECADES))


def path_of(name: str) -> str:
    """The path of a sublayer, without the number of the call."""
    return name.partition(" (call ")[0]


def sublayers(comparison: Result) -> Iterator[Row]:
    """Yield the sublayers in the order in which the expected side finishes them."""
    difference = comparison.first_difference
    first = "" if difference is None else difference.expected.name
    gradients: dict[str, float] = {}
    for verdict in comparison.verdicts:
        error = relative(verdict)
        if error is not None and verdict.quantity.startswith(OF_PARAMETER) and verdict.case == "evaluation":
            owner = verdict.quantity.removeprefix(OF_PARAMETER).rpartition(".")[0] or "the model"
            gradients[owner] = max(gradients.get(owner, 0.0), error)
    for name, (partner, error) in comparison.errors.items():
        yield Row(
            name, partner, error, gradients.get(path_of(name)), name == first, comparison.kinds.get(name, ("", ""))
        )


def relative(verdict: Verdict) -> float | None:
    """The error beside the largest entry."""
    if verdict.error is None or verdict.check == "entry":
        return None
    return verdict.error * epsilon(verdict.dtype)


# ------------------------------------------------------------------------------------------------ the arrays


def as_matrix(array: np.ndarray) -> np.ndarray:
    """An array in float64 with the rows of all leading axes below each other."""
    columns = array.shape[-1] if array.ndim and array.size else array.size
    return array.astype(np.float64).reshape(-1, max(columns, 1))


def distances(arrays: dict[str, np.ndarray]) -> np.ndarray | None:
    """The distance of each element, in the shape of the expected array; None if the two have other rows or columns."""
    if not arrays or arrays["expected"].size == 0:
        return None
    actual, expected = as_matrix(arrays["actual"]), as_matrix(arrays["expected"])
    if actual.shape != expected.shape:
        return None
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        return np.where(same, 0.0, np.abs(actual - expected)).reshape(arrays["expected"].shape)


def worst(distance: np.ndarray) -> int:
    """The number of the element with the largest distance, or with one that is no number."""
    return int(np.where(np.isnan(distance), np.inf, distance).argmax())


def largest_error(arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """The largest error in figures, if the two arrays can be subtracted."""
    distance = distances(arrays)
    if distance is None:
        return {}
    place = worst(distance)
    error = float(distance.flat[place])
    largest = float(np.abs(np.nan_to_num(arrays["expected"].astype(np.float64), posinf=0.0, neginf=0.0)).max()) or 1.0
    return {
        "largest error at": f"[{index(distance.shape, place)}]",
        "actual": f"{arrays['actual'].flat[place]:.10g}",
        "expected": f"{arrays['expected'].flat[place]:.10g}",
        "error / largest entry": three_digits(error / largest),
    }


def pictures(arrays: dict[str, np.ndarray]) -> list[Picture]:
    """The actual and the expected array and their distance, around the largest one."""
    distance = distances(arrays)
    center = None if distance is None else worst(distance)
    windows = {name: window(arrays[name], center) for name in ("actual", "expected") if name in arrays}
    scale = max((size for part in windows.values() for size in magnitudes(part)), default=0.0)
    found = [picture(name, part, scale) for name, part in windows.items()]
    if distance is not None:
        part = window(distance, center)
        found.append(picture("|difference|", part, max(magnitudes(part), default=0.0)))
    return found


def magnitudes(part: dict[str, Any]) -> list[float]:
    """The magnitudes of the finite numbers of a window."""
    return [abs(number) for row in part["rows"] for number in row if not isinstance(number, str)]


def picture(name: str, part: dict[str, Any], scale: float) -> Picture:
    """A window of an array with a colour for each element."""
    shape, rows, columns = part["shape"], part["rows"], part["shape"][-1] if part["shape"] else 1
    block = shape[-2] if len(shape) > 1 else 1
    lines = []
    for down, row in enumerate(rows, part["top"]):
        cells = []
        for across, number in enumerate(row, part["left"]):
            title = f"[{index(shape, down * columns + across)}] = {number}"
            is_worst = part.get("worst") == [down - part["top"], across - part["left"]]
            if isinstance(number, str):
                cells.append(Cell(number, title, 0.0, "strange worst" if is_worst else "strange"))
            else:
                style = "less" if number < 0 else ""
                text = f"{number:.3g}"
                cells.append(Cell(text, title, abs(number) / (scale or 1.0), f"{style} worst" if is_worst else style))
        lines.append((len(shape) > 2 and down > part["top"] and down % block == 0, cells))
    size = "×".join(map(str, shape)) or "scalar"
    shown = f"{len(rows)}×{len(rows[0]) if rows else 0}"
    cut = f", {shown} around the largest error" if "worst" in part else f", the first {shown}"
    return Picture(name, size + (cut if math.prod(shape) > sum(map(len, rows)) else ""), scale, lines)


def index(shape: tuple[int, ...], number: int) -> str:
    """The index of an element that has a number in its array."""
    return ", ".join(str(place) for place in np.unravel_index(number, shape)) if shape else ""
