"""Match arrays with the rows of a table: spelling, prefix and axis sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from backends.weights.rearrange import Side, shape_of, solve
from backends.weights.table import GATES, Row, Source, plain


class Cell(NamedTuple):
    """One row for one recurrent layer and direction."""

    row: Row
    layer: int
    backward: bool
    name: str  # as the table writes it, behind the prefix

    def canonical(self, hold: str) -> tuple[str, int | None]:
        """The canonical array and gate of an entry in the row's `holds`."""
        name, _, gate = hold.lstrip("+*").partition(":")
        full = name.format(layer=self.layer, backward="backward." if self.backward else "")
        return full, GATES[gate] if gate else None

    @property
    def group(self) -> tuple[int, bool]:
        """The rows that share the sizes of their axes."""
        return self.layer, self.backward


def cells(form: Source, spelling: int, num_layers: int, bidirectional: bool) -> list[Cell]:
    """Every row of a table for that many layers."""
    words = form.words(spelling)
    bidirectional = bidirectional and len(words) > 1
    listed = []
    for row in form.rows:
        template = row.name_in(spelling)
        for layer in range(num_layers if "{layer}" in template else 1):
            for backward in (False, True) if bidirectional and "{direction}" in template else (False,):
                word = (words[1 + backward] if bidirectional else words[0]).replace("*", form.layer.lower())
                listed.append(Cell(row, layer, backward, template.format(layer=layer, direction=word)))
    return listed


def _regex(form: Source, spelling: int, row: Row) -> re.Pattern[str]:
    """Matches the names of a row, with the prefix, the number of the layer and the direction as groups."""
    words = [re.escape(plain(word)).replace(r"\*", "[^.]*") for word in form.words(spelling)]
    groups = ("backward", "forward", "single") if len(words) > 1 else ("single",)
    text = re.escape(plain(row.name_in(spelling))).replace(re.escape("{layer}"), r"(?P<layer>\d{1,4})")
    choices = "|".join(f"(?P<{group}>{word})" for group, word in zip(groups, reversed(words), strict=True))
    text = text.replace(re.escape("{direction}"), f"(?:{choices})")
    return re.compile(rf"(?P<prefix>|.*?[{re.escape(form.prefix_ends)}]){text}")


@dataclass
class Fit:
    """How the arrays fit one table, in one spelling, under one prefix."""

    source: Source
    form: Source
    spelling: int
    prefix: str
    num_layers: int = 1
    bidirectional: bool = False
    found: dict[str, Cell] = field(default_factory=dict)
    """The arrays by their own names."""
    missing: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    sizes: dict[tuple[int, bool], dict[str, int]] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether every array that the table needs is there, in its shape."""
        return not self.missing and not self.problems

    @property
    def complete(self) -> bool:
        """Whether no other array is there."""
        return self.fits and not self.left_over


def fits(source: Source, arrays: Mapping[str, np.ndarray], prefix: str | None, options: Mapping[str, Any]) -> list[Fit]:
    """All matches of the arrays with this source, the best first."""
    names = {plain(name): name for name in arrays}
    found: dict[tuple[str, frozenset[str]], Fit] = {}
    chosen = [form for form in source.forms if all(options.get(name, one) == one for name, one in form.config.items())]
    for form in chosen or source.forms:
        for spelling in range(form.spellings):
            patterns = [(row, _regex(form, spelling, row)) for row in form.rows]
            prefixes: dict[str, dict[tuple[Row, int, bool], str]] = {}
            for name in names:
                for row, pattern in patterns:
                    match = pattern.fullmatch(name)
                    if match is None:
                        continue
                    known = match.groupdict()
                    place = (row, int(known.get("layer") or 0), known.get("backward") is not None)
                    prefixes.setdefault(match["prefix"], {}).setdefault(place, names[name])
            for start, places in prefixes.items():
                if prefix is not None and start != plain(prefix):
                    continue
                fit = _fit(Fit(source, form, spelling, start), places, arrays)
                fit.left_over = [
                    original
                    for name, original in names.items()
                    if original not in fit.found and (prefix is None or name.startswith(start))
                ]
                if not fit.problems:  # a refusal says more than the shapes
                    _solve(fit, arrays, options)
                key = (start, frozenset(fit.found))
                if key not in found or len(found[key].missing) > len(fit.missing) or (fit.fits and not found[key].fits):
                    found[key] = fit
    return sorted(found.values(), key=lambda fit: (len(fit.missing) + len(fit.problems), len(fit.left_over)))


def _fit(fit: Fit, places: Mapping[tuple[Row, int, bool], str], arrays: Mapping[str, np.ndarray]) -> Fit:
    """Find the array of each row, layer and direction; note those that are missing, and those that are refused."""
    fit.num_layers = 1 + max(layer for _, layer, _ in places)
    fit.bidirectional = any(backward for _, _, backward in places)
    present = {row.optional for row, _, _ in places if row.optional}
    for cell in cells(fit.form, fit.spelling, fit.num_layers, fit.bidirectional):
        name = places.get((cell.row, cell.layer, cell.backward))
        if name is None:
            if not cell.row.refusal and (not cell.row.optional or cell.row.optional in present):
                fit.missing.append(fit.prefix + cell.name)
        elif cell.row.refusal and not cell.row.zero:
            if cell.row.rank in (None, arrays[name].ndim):
                fit.problems.append(f"{name} {arrays[name].shape}: {cell.row.refusal}.")
        elif name not in fit.found:
            fit.found[name] = cell
    return fit


def _solve(fit: Fit, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> None:
    """Infer the sizes of all axes, or report the arrays that contradict the others."""
    given = {name: value for name, value in options.items() if isinstance(value, int)}
    for group in sorted({cell.group for cell in fit.found.values()}):
        rows = {name: cell.row for name, cell in fit.found.items() if cell.group == group and cell.row.axes}
        sizes = solve([(row.sides[0], arrays[name].shape) for name, row in rows.items()], given)
        if sizes is not None:
            fit.sizes[group] = sizes
        else:
            fit.problems += _misfits(rows, arrays, given)


def _misfits(rows: Mapping[str, Row], arrays: Mapping[str, np.ndarray], given: Mapping[str, int]) -> list[str]:
    """Find the array that contradicts the others; report both shapes, and whether the transpose would fit."""
    messages, transposed = [], []
    for name, row in rows.items():
        others = [(other.sides[0], arrays[key].shape) for key, other in rows.items() if key != name]
        sizes = solve(others, given)
        if sizes is None:
            continue
        shape = arrays[name].shape
        axes = row.axes.partition("->")[0].strip()
        text = f"{name} has shape {shape}, expected {_expected_shape(row, sizes)} by the other arrays (axes {axes!r})."
        if len(shape) > 1 and solve([*others, (row.sides[0], shape[::-1])], given) is not None:
            transposed.append(f"{text} Its transpose would fit.")
        else:
            messages.append(text)
    return transposed or messages or _contradictions(rows, arrays, given)


def _contradictions(rows: Mapping[str, Row], arrays: Mapping[str, np.ndarray], given: Mapping[str, int]) -> list[str]:
    """If no single array is the cause, report those that contradict previous ones."""
    fitting: list[tuple[Side, Sequence[int]]] = []
    messages = []
    for name, row in rows.items():
        longer = [*fitting, (row.sides[0], arrays[name].shape)]
        if solve(longer, given) is not None:
            fitting = longer
            continue
        axes, expected = row.axes.partition("->")[0].strip(), _expected_shape(row, solve(fitting, given) or {})
        messages.append(
            f"{name} has shape {arrays[name].shape}, expected {expected} by the arrays before it (axes {axes!r})."
        )
    return messages


def _expected_shape(row: Row, sizes: Mapping[str, int]) -> str:
    """The shape as far as it is known, with the names of the axes that are not."""
    listed = []
    for axis in row.sides[0]:
        size = shape_of((axis,), sizes)
        listed.append(str(size[0]) if size else " * ".join(name.partition("#")[0] for name in axis))
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"
