"""How far rounding moves a side's answer, and whether a difference of two is rounding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from parity_tests.format.case import epsilon
from parity_tests.judge.nudges import Nudge
from parity_tests.judge.pair import Spread, widen
from parity_tests.judge.tolerances import Tolerance
from parity_tests.models.calls import Answer, Arrays
from parity_tests.models.sides import Side

TURNS = 8
"""How often inputs and parameters are nudged."""

SIZES: Mapping[str, float] = {"float64": 2.0**-20, "float32": 2.0**-12, "float16": 2.0**-6, "bfloat16": 2.0**-4}
"""By which part of each number, in the dtype that it is computed in; spreads are divided by it."""

FEW = 4.0
"""The size, in eps, of a nudge that a whole number has to stand."""

PERSISTENT = 0.3
MOVES = 4
"""By which part of itself a difference of two sides changes, in one of so many nudges of both, if it is rounding to
fewer bits than were asked for: that is drawn anew, and what two functions differ by stays.
"""

TOLERANCE = Tolerance(
    16, 3.2, "sums of a few products; beyond that, what rounding does to these inputs was measured", ("*",)
)
"""The tolerance of a well-conditioned quantity, in eps; the largest error is that of the tests' right pairs."""

Nudged = Callable[[Mapping[str, np.ndarray]], Answer]


@contextmanager
def nudged_arrays(side: Side, nudge: Nudge) -> Iterator[None]:
    """Nudge the arrays of a side within the context."""
    before = side.arrays
    side.arrays = nudge.all(before)
    try:
        yield
    finally:
        side.arrays = before


class Spreads:
    """How far nudges of one eps of all inputs and parameters move each quantity of a side, by row, measured once.

    run gives the answer to inputs.
    """

    def __init__(self, side: Side, inputs: Mapping[str, np.ndarray], dtype: str, run: Nudged) -> None:
        self.side, self.inputs, self.dtype, self.run = side, inputs, dtype, run

    @functools.cached_property
    def answer(self) -> Answer:
        """The answer to the inputs as they are."""
        return self.run(self.inputs)

    def of(self, name: str) -> Spread | None:
        """The spread of a quantity; None if nothing was nudged."""
        change = self.changes.get(name)
        return None if change is None else Spread(change)

    @functools.cached_property
    def changes(self) -> dict[str, np.ndarray]:
        """The largest change of each row of each quantity, divided by the size of the nudge."""
        largest: dict[str, np.ndarray] = {}
        for turn in range(0 if self.side.is_fixed else TURNS):
            for name, change in self._turn(turn).items():
                largest[name] = np.maximum(largest.get(name, 0.0), change)
        return largest

    def flips(self, name: str, dtype: str) -> bool:
        """Whether nudges of a few eps of a dtype change a quantity of whole numbers."""
        before = quantities(self.answer)[name]
        for turn in range(0 if self.side.is_fixed else TURNS):
            after = self._nudge(turn, FEW * epsilon(dtype)).get(name)
            if after is None or not np.array_equal(before, after):
                return True
        return False

    def _nudge(self, turn: int, size: float) -> Arrays:
        nudge = Nudge(turn, size)
        with nudged_arrays(self.side, nudge), np.errstate(all="ignore"):
            return quantities(self.run(nudge.all(dict(self.inputs))))

    def _turn(self, turn: int) -> Arrays:
        size = SIZES[self.dtype]
        after, changes = self._nudge(turn, size), {}
        for name, array in quantities(self.answer).items():
            if array.dtype.kind in "fc" and name in after and after[name].shape == array.shape:
                moved = np.abs(after[name].astype(np.float64) - array.astype(np.float64))
                moved = np.where(np.isfinite(moved), moved, 0.0)
                rows = name.startswith("output.") and array.ndim > 1
                changes[name] = (
                    moved.max(axis=-1, keepdims=True, initial=0.0) if rows else moved.max(initial=0.0)
                ) / size
        return changes


def quantities(answer: Answer) -> Arrays:
    """The arrays of an answer by kind and name."""
    return {
        **{f"output.{name}": array for name, array in answer.outputs.items()},
        **{f"gradient.{name}": array for name, array in answer.gradients.items()},
        **{f"state.{name}": array for name, array in answer.state.items()},
    }


def changes_by(before: np.ndarray, after: np.ndarray) -> float:
    """By which part of itself a difference changes."""
    finite = np.isfinite(before) & np.isfinite(after)
    size = float(np.linalg.norm(before[finite]))
    return float(np.linalg.norm((after - before)[finite])) / size if size else 0.0


def allowed_change(seen: float, scale: float, dtype: str) -> float:
    """The distance that is allowed between two recorded arrays, of the spread of one and its largest entry."""
    return epsilon(dtype) * float(widen(dtype, TOLERANCE.eps * scale, np.array(seen), TOLERANCE.ordinary))
