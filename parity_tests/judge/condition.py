"""The condition of a case: how far rounding alone moves its answer, measured by nudging the reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from parity_tests.cases.covering import LEAST
from parity_tests.format import expected as reference
from parity_tests.format.call import SECOND
from parity_tests.format.case import Arrays, Case, computed_in, epsilon, is_floating
from parity_tests.format.drawn import Drawn
from parity_tests.format.selection import Cell
from parity_tests.judge.nudges import Nudge, constant_normalizers, nudging
from parity_tests.judge.pair import Pair, Quantity, Spread
from parity_tests.judge.tolerances import entry_tolerance_of

TURNS = 12
NUDGE = 2.0**-20
"""How often the reference is nudged, and by which part of each number, at least two eps; spreads are divided by it."""

MARGIN = 2.0**-12
MARGIN_TURNS = 3
"""By how much more the reference is nudged, and how often, to see whether a token or a choice is near another one."""

JUMP = 64.0
"""How many times the median of all turns the largest change is if one takes another branch, such as that of a ReLU."""

SAMPLED = (4, 16, 256)
"""The least and the largest number of nudged entries of each gradient, half of them those of the largest terms, and of
all.
"""

LOGARITHMS = {"beam": "scores", "log_prob": "log_prob"}
"""By method, what sums logarithms of probabilities: ln(1 + x) is off by eps of 1 + x, however small it is."""

Entries = Mapping[str, np.ndarray]
"""The indices of the measured entries of each gradient."""


class Condition(NamedTuple):
    """What nudges by one eps change in a cell: each quantity by row, some by entry, in eps of the entry.

    A row is the last axis of an output; a gradient is one row. flips: a token, a choice or a branch differs, and no
    spread helps.
    """

    flips: bool
    rows: Arrays
    entries: Arrays

    def spread_of(self, name: str) -> Spread | None:
        """The spread of a quantity; None where nothing was nudged, or something flips."""
        return Spread(self.rows[name], self.entries.get(name)) if name in self.rows and not self.flips else None


def condition_of(
    case: Case,
    dtype: str,
    without: tuple[str, ...] = (),
    *,
    entries: Entries | None = None,
    factors: Mapping[int, np.ndarray] | None = None,
) -> Condition:
    """The condition of a cell, from the cache if it was measured before.

    Gradients are those of the outputs that are not omitted, against the drawn cotangents or against factors by the
    position of an output. entries are those that are expected, if not all.
    """
    dtype, part = computed_in(dtype), reference.part_without(reference.CONDITION, without)
    measured = partial(measure, case, dtype, without, entries=entries, factors=factors)
    arrays = reference.load_or_compute(case, dtype, part, measured)
    parts: dict[str, Arrays] = {"rows": {}, "entries": {}}
    for name, array in arrays.items():
        kind, _, quantity = name.partition("/")
        parts.setdefault(kind, {})[quantity] = array
    return Condition(bool(arrays["flips"]), parts["rows"], parts["entries"])


def measure(
    case: Case,
    dtype: str,
    without: tuple[str, ...] = (),
    *,
    entries: Entries | None = None,
    factors: Mapping[int, np.ndarray] | None = None,
) -> Arrays:
    """Measure a condition without the cache; `Condition` has the arrays whose names begin with its fields."""
    measurement = _Measurement(case, dtype)
    exact = case.drawn is not None and case.drawn.whole  # every product and sum
    with np.errstate(all="ignore"):
        if any(map(is_floating, {**case.inputs, **case.parameters}.values())) and not exact:
            measurement.nudge_outputs()
            factors = reference.cotangents(case, dtype, without) if factors is None else factors
            if factors and not measurement.flips:
                measurement.nudge_gradients(factors, entries)
    return measurement.arrays


class _Measurement:
    """The changes of a case in each turn by name, in nudges, and whether anything flips."""

    def __init__(self, case: Case, dtype: str) -> None:
        self.case, self.dtype, self.size = case, dtype, max(NUDGE, 2.0 * epsilon(dtype))
        self.changes: dict[str, list[np.ndarray]] = defaultdict(list)
        self.least: Arrays = {}
        self.flips = False

    @property
    def arrays(self) -> Arrays:
        """The largest changes, and whether anything flips."""
        largest = {name: np.max(changes, axis=0) for name, changes in self.changes.items()}
        jumps = any(
            float(np.max(turns)) > JUMP * float(np.median(turns)) > 0.0
            for turns in ([one.max(initial=0.0) for one in changes] for changes in self.changes.values())
        )
        spreads = {name: np.maximum(array, self.least.get(name, 0.0)) for name, array in largest.items()}
        return {**spreads, "flips": np.array(self.flips or jumps)}

    def nudged_case(self, turn: int, margin: float = 0.0) -> Case:
        """The case with nudged parameters, and with inputs within a margin; a nudged reference moves these itself."""
        arrays, parameters = self.case.at(self.dtype)
        nudge = Nudge(turn, margin or self.size)
        return replace(self.case, inputs=nudge.all(arrays) if margin else arrays, parameters=nudge.all(parameters))

    def nudge_outputs(self) -> None:
        """Compare the outputs with those of nudged cases; for logarithms, at least 1 is allowed."""
        before = reference.outputs(self.case, self.dtype)
        for turn in range(MARGIN_TURNS):
            moved = self.nudged_case(turn, max(MARGIN, self.size))
            after = reference.computed_outputs(moved, *moved.at("float64"))
            self.flips |= any(_is_flipped(array, after[name]) for name, array in before.items())
        for turn in range(TURNS):
            moved = self.nudged_case(turn)
            with nudging(turn, self.size):
                after = reference.computed_outputs(moved, *moved.at("float64"))
            for name, array in before.items():
                if not is_floating(array):
                    continue
                self.changes[f"rows/{name}"].append(_largest_by_row(np.abs(after[name] - array)) / self.size)
                by_entry = entry_tolerance_of(self.case.operator, self.case.id, self.dtype, name.removeprefix(SECOND))
                if by_entry is not None and by_entry.softmax:
                    errors = Pair(
                        Quantity(name, self.dtype, array, by_entry, by_entry), after[name], array
                    ).entry_errors
                    self.changes[f"entries/{name}"].append(_largest_by_row(errors) * epsilon(self.dtype) / self.size)
                if LOGARITHMS.get(self.case.method) == name:
                    self.least[f"rows/{name}"] = np.ones(())

    def nudge_gradients(self, factors: Mapping[int, np.ndarray], entries: Entries | None) -> None:
        """Compare the gradients with those of nudged cases; terms that cancel leave their own rounding.

        entries are those that are expected; if all are, the nudged ones are a sample.
        """
        at = self.case.at(self.dtype)
        terms = reference.computed_gradients(self.case, *at, factors, entries=entries, within=constant_normalizers)
        if entries is None:
            entries = _sample(terms)
        differentiate = partial(reference.computed_gradients, entries=entries)
        before = differentiate(self.case, *at, factors)
        for name, array in terms.items():
            self.least[f"rows/gradient_{name}"] = _largest(array)
        for turn in range(TURNS):
            nudge = Nudge(turn, self.size)
            moved = self.nudged_case(turn)
            nudged = {place: nudge("", array.astype(np.float64)) for place, array in factors.items()}
            after = differentiate(moved, *moved.at("float64"), nudged, within=partial(nudging, turn, self.size))
            for name, array in after.items():
                self.changes[f"rows/gradient_{name}"].append(_largest(array - before[name]) / self.size)


def _largest(array: np.ndarray) -> np.ndarray:
    """The largest finite number of an array, 0 if there is none."""
    return np.where(np.isfinite(array), np.abs(array), 0.0).max(initial=0.0)


def _largest_by_row(array: np.ndarray) -> np.ndarray:
    """The largest finite number in each row along the last axis, which stays."""
    finite = np.where(np.isfinite(array), array, 0.0)
    return finite.max(axis=-1, keepdims=True, initial=0.0) if array.ndim > 1 else _largest(finite)


def _is_flipped(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether whole numbers differ, or zeros change places with numbers that no small change makes."""
    if not is_floating(before):
        return not np.array_equal(before, after)
    far = np.abs(after - before) > MARGIN**0.5 * _largest(before)
    return bool((far & ((before == 0.0) != (after == 0.0))).any())


def _sample(terms: Arrays) -> Entries:
    """The entries of each gradient that have the largest terms, and as many spread over the others."""
    entries = {}
    least, most, of_all = SAMPLED
    for name, array in terms.items():
        half = min(max(of_all // len(terms), least), most) // 2
        order = np.argsort(-np.abs(array.reshape(-1)), kind="stable")
        spread = order[np.linspace(0, order.size - 1, half).astype(int)] if order.size else order
        entries[name] = np.unique([*order[:half], *spread]).astype(int)
    return entries


# ------------------------------------------------------------------------------------------------ drawn cases


@dataclass(frozen=True)
class Judged:
    """A drawn case that can be judged."""

    drawn: Drawn
    case: Case

    @property
    def cell(self) -> Cell:
        """The case in its dtype."""
        return Cell(self.case, self.drawn.dtype)


def judgeable(drawn: Drawn, name: str = "") -> Judged | None:
    """The case, under an optional name, by which cotangents are drawn; None if its sizes leave only rounding."""
    least = LEAST.get("cosine_score" if drawn.options.get("score") == "cosine" else drawn.operator, {})
    if any(drawn.sizes.get(axis, 1) in range(1, size) for axis, size in least.items()):
        return None
    fields = drawn.as_case()
    return Judged(drawn, Case(**{**fields, "name": name or fields["name"]}))
