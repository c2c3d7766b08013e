"""What an answer says of a layer, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_core import reference
from parity_tests.behaviour.questions import HALF
from parity_tests.cases.case import Arrays, Case, epsilon
from parity_tests.cases.expected import computed_outputs, expected
from parity_tests.cases.selection import Cell
from parity_tests.judge.compare import compare
from parity_tests.judge.pair import Quantity
from parity_tests.judge.tolerances import tolerance_of
from parity_tests.judge.verdict import Verdict
from parity_tests.polarity import answer
from parity_tests.workers.recordings import Recording, answered, is_gradient, withheld

LIKE = 1e-3
"""How near two answers of a kind are, beside the largest entry: kinds differ by more, and roundings by less."""


@dataclass(frozen=True)
class Answer:
    """What a call answered to a question in one dtype: what became of it, what it gave, and what was expected."""

    cell: Cell
    said: Mapping[str, Any]
    found: Arrays
    wanted: Arrays

    @classmethod
    def of(cls, recording: Recording, cell: Cell) -> Answer:
        """The answer in a recording."""
        said = answered(recording, cell)
        wanted = expected(*cell, withheld(said)) if said["status"] == "ok" and cell.case.gradients else {}
        return cls(cell, said, recording.cells.get(cell.key, {}), wanted)

    @property
    def refused(self) -> str:
        """Why there is no answer, in a word; empty if there is one."""
        words = {"ok": "", "not-implemented": "not taken", "not-applicable": "none", "timeout": "hangs"}
        status = str(self.said["status"])
        return words.get(status, status)

    @property
    def gradients(self) -> list[str]:
        """The gradients that are there."""
        return [name for name in self.wanted if is_gradient(name) and name in self.found]

    def like(self, name: str) -> bool:
        """Whether a quantity is what is expected, but for rounding."""
        case, dtype = self.cell
        beside = self.wanted.get(tolerance_of(case.operator, case.id, dtype, name).beside)
        return alike(self.found[name], self.wanted[name], beside)

    def spoilt(self, names: Iterable[str]) -> bool:
        """Whether NaN or inf stands where a finite number is expected."""
        return any(not np.isfinite(double(self.found[name])[np.isfinite(self.wanted[name])]).all() for name in names)


def double(array: np.ndarray) -> np.ndarray:
    """The numbers as float64."""
    return np.asarray(array, np.float64)


def alike(found: np.ndarray, wanted: np.ndarray, beside: np.ndarray | None = None) -> bool:
    """Whether two arrays differ by rounding at most, be it that of float32, beside the largest entry."""
    found, wanted = double(found), double(wanted)
    if found.shape != wanted.shape:
        return False
    measures = (wanted, double(wanted if beside is None else beside))
    scale = max(np.abs(own[np.isfinite(own)]).max(initial=0.0) for own in measures)
    with np.errstate(invalid="ignore"):
        near = np.abs(found - wanted) <= LIKE * scale
    return bool((near | (found == wanted) | (np.isnan(found) & np.isnan(wanted))).all())


def closed_rows(given: Answer) -> str:
    """What a query gets that may attend to nothing, and what its gradients are."""
    case, dtype = given.cell
    inputs, _ = case.at(dtype)
    mask = reference.attention_mask(inputs["keys"].shape[1], inputs.get("valid_lens"), inputs.get("mask"))
    assert mask is not None
    rows = ~np.broadcast_to(mask, (*inputs["queries"].shape[:2], inputs["keys"].shape[1])).any(axis=-1)
    found = double(given.found["context"])[rows]
    kinds = {
        "0": given.wanted["context"],
        "uniform": without_scores(case, dtype),
        "as without a mask": opened(case, dtype),
        "NaN": np.full(given.wanted["context"].shape, np.nan),
    }
    kind = next((name for name, wanted in kinds.items() if alike(found, wanted[rows])), "something else")
    if not given.gradients:
        return kind
    if given.spoilt(given.gradients):
        return f"{kind}; ∇ NaN"
    return f"{kind}; ∇ 0" if all(map(given.like, given.gradients)) else f"{kind}; ∇ flows"


def opened(case: Case, dtype: str) -> np.ndarray:
    """The context if nothing were hidden."""
    inputs, parameters = case.at(dtype)
    rest = {name: array for name, array in inputs.items() if name not in ("mask", "valid_lens")}
    return computed_outputs(case, rest, parameters)["context"]


def without_scores(case: Case, dtype: str) -> np.ndarray:
    """The context if nothing were hidden, and every key had the same score."""
    inputs, parameters = case.at(dtype)
    zero = {"MultiHeadAttention": ("W_q", "b_q"), "AdditiveAttention": ("w_v",)}.get(case.operator, ())
    inputs = {name: array for name, array in inputs.items() if name not in ("mask", "valid_lens")}
    if not zero:
        inputs["queries"] = np.zeros_like(inputs["queries"])
    parameters = {name: np.zeros_like(array) if name in zero else array for name, array in parameters.items()}
    return computed_outputs(case, inputs, parameters)["context"]


def hidden(given: Answer) -> str:
    """What NaN does that no query may attend to."""
    kind = "NaN" if given.spoilt(["context"]) else "ignored" if given.like("context") else "wrong"
    return f"{kind}; ∇ NaN" if given.spoilt(given.gradients) else kind


def right_rows(given: Answer) -> str:
    """How many rows of the context are right."""
    found, wanted = double(given.found["context"]), double(given.wanted["context"])
    width = wanted.shape[-1]
    pairs = zip(found.reshape(-1, width), wanted.reshape(-1, width), strict=True)
    rows = [alike(one, other) for one, other in pairs]
    spoilt = "; ∇ NaN" if given.gradients and given.spoilt(given.gradients) else ""
    if all(rows):
        return f"right{spoilt}"
    kind = "wrong" if np.isfinite(found).all() else "NaN"
    return f"{kind} in {len(rows) - sum(rows)} of {len(rows)} rows{spoilt}"


MOST_SINGLE = 100.0
"""So many eps of float32 are an error of float32's arithmetic."""


def precision(given: Answer, names: Sequence[str]) -> str:
    """How far off the worst number is: within its tolerance, or by how much."""
    case, dtype = given.cell
    blank = Verdict(case.operator, case.id, "", "reference", "", dtype, "", "missing")
    worst, failed = 0.0, False
    for name in names:
        tolerance = tolerance_of(case.operator, case.id, dtype, name)
        wanted = given.wanted[name]
        quantity = Quantity(name, dtype, wanted, tolerance, beside=given.wanted.get(tolerance.beside))
        verdict = compare(blank, quantity, given.found[name], wanted)
        failed |= verdict.status == "fail"
        if verdict.check == "nan":
            return "NaN"
        if verdict.check in ("dtype", "shape"):
            return f"another {verdict.check}"
        worst = max(worst, verdict.error or 0.0)
    if not failed:
        return f"≤ {rounded(worst)}" if dtype in HALF else "right"
    single = dtype == "float64" and worst * epsilon(dtype) <= MOST_SINGLE * epsilon("float32")
    return "as float32" if single else f"off by {rounded(worst)} eps"


def rounded(eps: float) -> str:
    """The next larger of 1, 3, 10, 30 and so on: figures that another processor does not change."""
    power = 10.0 ** math.floor(math.log10(max(eps, 1.0)))
    return f"{next(step * power for step in (1, 3, 10) if step * power >= eps * (1 - 1e-9)):g}"


def gradients(given: Answer) -> str:
    """Whether gradients are right where no row is closed."""
    outputs = [name for name in given.wanted if name in given.found and name not in given.gradients]
    if not given.gradients:
        told = precision(given, outputs)
        return "none" if told == "right" else f"none; outputs {told}"
    return precision(given, given.gradients)


def lengths_beyond(given: Answer) -> str:
    """Whether a length beyond the keys means all of them. If not, what comes out is whatever lies behind the array."""
    return "clipped" if right_rows(given) == "right" else UNDEFINED


def lengths_below(given: Answer) -> str:
    """Whether a length below 0 means no key."""
    told = right_rows(given)
    return "clipped" if told == "right" else told


UNDEFINED = "undefined"
"""What is wrong rows at one time and a crash at another."""


CLASSIFIERS: dict[str, Callable[[Answer], str]] = {
    "closed": closed_rows,
    "hidden_value": hidden,
    "hidden_key": hidden,
    "large": right_rows,
    "huge": right_rows,
    "half": lambda given: precision(given, [name for name in given.wanted if name in given.found]),
    "beyond": lengths_beyond,
    "below": lengths_below,
    "polarity": lambda given: answer(given.found["context"]),
    "gradients": gradients,
}
"""What each question's answer is called."""


def classified(name: str, given: Answer) -> str:
    """The finding of an answer, in a word or two."""
    if (name, given.refused) == ("beyond", "crash"):
        return UNDEFINED
    return given.refused or CLASSIFIERS[name](given)
