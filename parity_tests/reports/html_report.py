"""A run as one HTML file: the matrix, what is red, every comparison, and the arrays of some, without any request.

The page is report.html, a template of Jinja2 that fills page.html, with report.css and report.js, and with heatmap.css
and heatmap.js. The comparisons and the arrays are packed into it (JSON, compressed, in base64) and read when a place of
the matrix is opened.
"""

from __future__ import annotations

import base64
import datetime
import gzip
import hashlib
import json
import platform
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from attention_core.operators import FILE_OF, SPECIFICATION_VERSION, find
from parity_tests.format.call import TRAINING
from parity_tests.format.selection import Cell
from parity_tests.judge.pair import Pair
from parity_tests.judge.run import Run
from parity_tests.judge.verdict import NOT_JUDGED, RED, Verdict
from parity_tests.reports import heatmap, matrix
from parity_tests.reports.certificate import OF_THIS_MACHINE
from parity_tests.reports.ci_summary import together
from parity_tests.reports.matrix import Place
from parity_tests.reports.table import MOST_RED, RedGroup, red_groups, repeat, summary
from parity_tests.workers.recordings import own_version

FOLDER = Path(__file__).parent
WIDEST = 32
"""The maximum number of rows and columns of an array in the page."""
MOST_NUMBERS = 500_000
"""The approximate maximum number of array elements in the page; a compressed one takes about three bytes."""
MOST_FIRST = 5
"""The number of red quantities that are shown at once; the others are folded."""
MOST_SLOW = 8
"""The number of cells in the list of those that took longest."""
PARTS = ("start", "compile", "cells")
"""What a worker's time consists of (`split_seconds`)."""


def render(template: Path, **context: Any) -> str:
    """Return a page from a template, with the style sheet and the date. It may extend a template of this folder."""
    environment = Environment(
        loader=FileSystemLoader((FOLDER, template.parent)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = breakable
    styles = Markup((FOLDER / "report.css").read_text(encoding="utf-8"))
    made = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template(template.name).render(styles=styles, made=made, **context)


def page(run: Run) -> str:
    """The page of a run."""
    # In this order: the report makes elements of the heatmap.
    script = "".join(file.read_text(encoding="utf-8") for file in (heatmap.SCRIPT, FOLDER / "report.js"))
    comparisons = Comparisons(run)
    groups = red_groups(run)
    first = [group for group in groups[:MOST_RED] if group.verdicts[0].against == "reference"][:MOST_FIRST]
    return render(
        FOLDER / "report.html",
        outcome=summary(run).plain.partition(" ")[0].rstrip(":"),
        summary=summary(run).plain.partition(" ")[2].strip(),
        facts=facts(run),
        first=[(group, link(group)) for group in first],
        rest=[(group, link(group)) for group in groups[:MOST_RED] if group not in first],
        more=max(0, len(groups) - MOST_RED),
        explanations=together(run.explanations),
        columns=comparisons.columns,
        rooms=rooms(run, comparisons),
        dtypes=[dtype for dtype in comparisons.dtypes.values if dtype != matrix.WHOLE],
        quantities=sorted({name for name in comparisons.quantities.values if name != matrix.WHOLE}),
        environments=environments(run),
        missing=run.missing,
        workers=workers(run),
        longest=max((sum(parts.values()) for parts in workers(run).values()), default=0.0),
        others={name: seconds for name, seconds in run.seconds.items() if " " not in name},
        slowest=slowest(run),
        heatmap_styles=Markup(heatmap.STYLES.read_text(encoding="utf-8")),
        script=Markup(script),
        # Scripts other than this one do not run, whatever a message contains, and nothing can be requested.
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        comparisons=pack(comparisons.as_json()),
        arrays=pack(arrays(run)),
    )


def pack(content: Any) -> str:
    """JSON, compressed, in base64."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def breakable(name: str) -> Markup:
    """A name that may be broken after each underscore, and before each capitalised word."""
    return Markup("<wbr>").join(filter(None, re.findall(r"[A-Z]+(?![a-z])_?|[A-Z]?[^A-Z_]*_?", name)))


# ------------------------------------------------------------------------------------------------ static parts


def link(group: RedGroup) -> str:
    """The fragment of the address that opens the place of red verdicts."""
    return f"#{quote('/'.join(matrix.place(group.verdicts[0])))}"


def facts(run: Run) -> dict[str, str]:
    """The figures under the title."""
    judged = [verdict for verdict in run.verdicts if verdict.is_judged]
    shares = [part for one in judged if one.status == "pass" and (part := matrix.share(one)) is not None]
    return {
        "comparisons": f"{len(judged):,}",
        "red": f"{len(run.red):,}",
        "operators": f"{len({cell.case.operator for cell in run.cells}):,}",
        "cases": f"{len({cell.case.id for cell in run.cells}):,}",
        "largest green share": matrix.percent(max(shares)) if shares else "–",
        "seconds": f"{run.seconds.get('total', 0.0):,.0f}",
    }


def rooms(run: Run, comparisons: Comparisons) -> dict[str, list[dict[str, Any]]]:
    """The rows of the matrix by the file of their operators, each with a place for each column."""
    places = matrix.by_place(run)
    rows: dict[str, list[dict[str, Any]]] = {}
    for operator in matrix.operators(run):
        file = "whole backends" if operator == matrix.WHOLE else FILE_OF.get(operator, operator)
        entries = []
        for column in comparisons.columns:
            verdicts = places.get(Place(operator, column), [])
            required = operator != matrix.WHOLE and column in (*run.recordings, matrix.PAIRS) and not run.interrupted
            entries.append((matrix.entry(verdicts, required), len(verdicts)))
        rows.setdefault(file, []).append(
            {"name": operator, "number": comparisons.operators.number(operator), "entries": entries}
        )
    return rows


def environments(run: Run) -> dict[str, dict[str, dict[str, Any]]]:
    """Versions and settings of each recording, and of what compared them."""
    here = {"attention-parity": own_version(), "specification": SPECIFICATION_VERSION}
    here |= {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine()}
    tables: dict[str, dict[str, dict[str, Any]]] = {"comparison": {"versions": here}}
    for name, recording in run.recordings.items():
        about, environment = recording.about, recording.environment
        tables[name] = {
            "versions": about.get("versions", {}),
            "backend": {key: value for key, value in about.items() if not isinstance(value, dict)},
            "determinism": about.get("determinism", {}),
            "environment": {key: value for key, value in environment.items() if key not in OF_THIS_MACHINE},
        }
    return tables


def workers(run: Run) -> dict[str, dict[str, float]]:
    """The seconds of each part of a worker's time, by recording."""
    return {name: {part: run.seconds.get(f"{name} {part}", 0.0) for part in PARTS} for name in run.recordings}


def slowest(run: Run) -> list[tuple[str, str, float]]:
    """The cells that took longest: recording, cell and seconds, compilation included."""
    cells = [
        (name, key, answer.seconds + answer.compile_seconds)
        for name, recording in run.recordings.items()
        for key, answer in recording.answers.items()
    ]
    return sorted(cells, key=lambda cell: -cell[2])[:MOST_SLOW]


# ------------------------------------------------------------------------------------------------ comparisons


class Names:
    """Numbers for values, in the order of their first use."""

    def __init__(self, values: Iterable[Hashable] = ()) -> None:
        self._numbers: dict[Any, int] = {value: number for number, value in enumerate(values)}

    def number(self, value: Hashable) -> int:
        """The number of a value, a new one if it has none."""
        return self._numbers.setdefault(value, len(self._numbers))

    @property
    def values(self) -> list[Any]:
        """The values by number."""
        return list(self._numbers)


ROW = (
    *("operator", "column", "case", "name", "against", "dtype", "quantity", "status", "error", "tolerance"),
    *("reason", "sentence", "command"),
)
"""What a comparison consists of: numbers, and the positions of texts in lists."""


class Comparisons:
    """Every verdict as a row of numbers, most of which stand for a text in a list."""

    def __init__(self, run: Run) -> None:
        self.columns = matrix.columns(run)
        self.operators, self.dtypes, self.quantities = Names(matrix.operators(run)), Names(), Names()
        self.cases, self.names, self.statuses, self.texts = Names(), Names(), Names(), Names([""])
        self.cells = {cell.key: cell for cell in run.cells}
        self.run = run
        self.rows = [self._row(verdict) for verdict in run.verdicts]

    def _row(self, verdict: Verdict) -> list[Any]:
        tolerance, error, column = verdict.tolerance, verdict.error, matrix.place(verdict).column
        return [
            self.operators.number(verdict.operator),
            self.columns.index(column),
            self.cases.number(verdict.case),
            self.names.number(verdict.name),
            self.names.number(verdict.against),
            self.dtypes.number(verdict.dtype),
            self.quantities.number(verdict.quantity),
            self.statuses.number(verdict.status),
            None if error is None or not np.isfinite(error) else float(f"{error:.3g}"),
            tolerance,
            self.texts.number(verdict.reason),
            self.texts.number(tolerance_of(self.run, self.cells, verdict) if verdict.red else verdict.reason),
            self.texts.number(repeat(self.run, verdict)),
        ]

    def as_json(self) -> dict[str, Any]:
        """The rows as columns, with the lists of texts."""
        shown = {cell.case.id: cell.case for cell in self.run.cells}
        return {
            "rows": {name: [row[place] for row in self.rows] for place, name in enumerate(ROW)},
            "columns": self.columns,
            "operators": [description(name) for name in self.operators.values],
            "cases": [
                {"id": name, "shows": shown[name].shows, "call": call({**shown[name].config, **shown[name].options})}
                if name in shown
                else {"id": name, "shows": "", "call": ""}
                for name in self.cases.values
            ],
            "names": self.names.values,
            "dtypes": self.dtypes.values,
            "quantities": self.quantities.values,
            "statuses": [
                {"name": name, "red": name in RED, "judged": name not in NOT_JUDGED} for name in self.statuses.values
            ],
            "texts": self.texts.values,
            "looks_like": [
                [known.name, known.operator, f"{known.sentence} ({known.counts})"] for known in self.run.explanations
            ],
            "steps": matrix.STEPS,
        }


def description(operator: str) -> dict[str, str]:
    """An operator's name, with its summary, formula and source."""
    if operator in (matrix.WHOLE, TRAINING):
        return {"name": operator, "summary": "", "formula": "", "source": ""}
    known = find(operator)
    return {"name": operator, "summary": known.summary, "formula": known.formula, "source": known.source}


def call(arguments: Mapping[str, Any]) -> str:
    """The arguments of a case that are no arrays."""
    return ", ".join(f"{name}={value}" for name, value in arguments.items())


def tolerance_of(run: Run, cells: Mapping[str, Cell], verdict: Verdict) -> str:
    """The reason for the tolerance of a red verdict, whose own reason is why it is red."""
    if verdict.tolerance is None or f"{verdict.case}/{verdict.dtype}" not in cells:
        return ""
    cell = cells[f"{verdict.case}/{verdict.dtype}"]
    quantity = run.questions.of(cell, run.recordings[verdict.name].answer(cell).withheld).quantities.get(
        verdict.quantity
    )
    if quantity is None:
        return ""
    by_entry = quantity.by_entry if verdict.check == "entry" else None
    return (by_entry or quantity.tolerance).reason


# ------------------------------------------------------------------------------------------------ arrays


def arrays(run: Run) -> dict[str, Any]:
    """The arrays of some comparisons by the number of the verdict, and the inputs and parameters of their cells."""
    cells = {cell.key: cell for cell in run.cells}
    values: dict[int, Any] = {}
    inputs: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    numbers = 0
    for number in verdicts_with_arrays(run):
        verdict = run.verdicts[number]
        cell = cells.get(f"{verdict.case}/{verdict.dtype}")
        pair = None if cell is None else pair_of(run, cell, verdict)
        if cell is None or pair is None or number in values:
            continue
        values[number] = dict(heatmaps(pair, verdict.check == "entry"))
        numbers += sum(map(count, values[number].values()))
        if cell.key not in inputs:
            for kept, group in zip((inputs, parameters), cell.case.at(cell.dtype), strict=True):
                kept[cell.key] = {name: window(array) for name, array in group.items()}
                numbers += sum(map(count, kept[cell.key].values()))
        if numbers > MOST_NUMBERS:
            break
    return {"values": values, "inputs": inputs, "parameters": parameters}


def verdicts_with_arrays(run: Run) -> Iterator[int]:
    """The numbers of verdicts: the first of each group of red ones, the largest error of each place, the other red."""
    numbers = {id(verdict): number for number, verdict in enumerate(run.verdicts)}
    yield from (numbers[id(verdict)] for group in red_groups(run) for verdict in group.first)
    for verdicts in matrix.by_place(run).values():
        measured = [verdict for verdict in verdicts if matrix.share(verdict) is not None and not verdict.red]
        if measured:
            yield numbers[id(max(measured, key=lambda verdict: matrix.share(verdict) or 0.0))]
    yield from (numbers[id(verdict)] for verdict in run.red)


def pair_of(run: Run, cell: Cell, verdict: Verdict) -> Pair | None:
    """The arrays of a comparison, if there are two."""
    answer = run.recordings[verdict.name].answer(cell)
    quantity = run.questions.of(cell, answer.withheld).quantities.get(verdict.quantity)
    actual = run.recordings[verdict.name].cells.get(cell.key, {}).get(verdict.quantity)
    if quantity is None or actual is None:
        return None
    if verdict.against == "reference":
        return Pair(quantity, actual, quantity.reference)
    other = run.recordings[verdict.against].cells.get(cell.key, {}).get(verdict.quantity)
    return None if other is None else Pair(quantity, actual, other)


def heatmaps(pair: Pair, by_entry: bool = False) -> Iterator[tuple[str, Any]]:
    """The actual and the expected array around the largest error, and their difference if they have one shape."""
    actual, expected = pair.actual, pair.expected
    if actual.shape != expected.shape:
        yield from (("actual", window(actual)), ("expected", window(expected)))
        return
    first, second = pair.doubles
    with np.errstate(invalid="ignore"):
        difference = np.where(pair.same, 0.0, first - second)
    errors = pair.entry_errors if by_entry else pair.errors
    errors = np.where(pair.finite, errors, np.where(pair.same, 0.0, np.inf))
    worst = int(errors.argmax()) if errors.size else 0
    for name, array in (("actual", actual), ("expected", expected), ("difference", difference)):
        yield name, window(array, worst)


def window(array: np.ndarray, center: int | None = None) -> dict[str, Any]:
    """The part of an array around an element, with the rows of all leading axes below each other."""
    rows = array.reshape(-1, array.shape[-1]) if array.ndim and array.size else array.reshape(1, -1)
    row, column = divmod(center or 0, max(rows.shape[1], 1))
    top, left = (
        int(np.clip(at - WIDEST // 2, 0, max(0, size - WIDEST)))
        for at, size in zip((row, column), rows.shape, strict=True)
    )
    part = rows[top : top + WIDEST, left : left + WIDEST]
    found = {"shape": array.shape, "dtype": array.dtype.name, "top": top, "left": left, "rows": heatmap.plain(part)}
    return found if center is None else {**found, "worst": [row - top, column - left]}


def count(part: Mapping[str, Any]) -> int:
    """The number of elements of a window."""
    rows: Sequence[Sequence[Any]] = part["rows"]
    return sum(map(len, rows))
