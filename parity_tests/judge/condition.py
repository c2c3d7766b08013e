"""Conditioning of drawn cases: tolerances that grow with the error amplification of a case."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from attention_core import draws
from parity_tests.cases.covering import LEAST
from parity_tests.format import expected as reference
from parity_tests.format.call import SECOND
from parity_tests.format.case import Arrays, Case, epsilon, is_floating
from parity_tests.format.drawn import Drawn
from parity_tests.format.selection import Cell
from parity_tests.judge.pair import Pair, Quantity
from parity_tests.judge.tolerances import EntryTolerance, Tolerance, entry_tolerance_of
from parity_tests.workers.answers import is_gradient


@dataclass(frozen=True)
class DrawnTolerance:
    """A bound on the effect of rounding alone on an answer in a dtype, in eps of its largest entry.

    eps: the tolerance of a well-conditioned tensor; `judgeable` multiplies it by the error amplification of the case.
    most: the largest product; beyond it, a case is skipped. worst: the largest measured error, in eps of a
    well-conditioned tensor.
    """

    eps: float
    most: float
    worst: float


GROWN = (
    "sums of a few products, and an exponential or a tanh, times how much a nudge of all inputs grows in the outputs, "
    "and how much smaller a gradient is than what it sums"
)

TOLERANCES: Mapping[str, DrawnTolerance] = {
    "float64": DrawnTolerance(15, 1e9, worst=6.6),
    "float32": DrawnTolerance(15, 1e6, worst=6.6),
    "float16": DrawnTolerance(5, 250, worst=1.8),
    "bfloat16": DrawnTolerance(5, 30, worst=1.8),
}
"""By dtype. float64: 1e9 eps are 2e-7, so a scale that is off by 1e-5 is always seen; in half precision a quarter."""

DTYPES = tuple(TOLERANCES)
"""The dtypes from which cases can be drawn: those that have a tolerance. Half precision is drawn on request."""

BESIDE = {"b_k": "W_k"}
"""The ends of quantities that are 0 up to rounding, and of those that scale their errors: see `judge.tolerances`."""

LOGARITHMS = {"beam": "scores", "log_prob": "log_prob"}
"""By method, what sums logarithms of probabilities: ln(1 + x) is off by eps of 1 + x, however small it is."""

NUDGE = 2.0**-12
NUDGES = 3


@dataclass(frozen=True)
class Judged:
    """A case with the reference's answer, the tolerance of every quantity, and of each entry of some."""

    drawn: Drawn
    case: Case
    expected: Arrays
    tolerances: Mapping[str, Tolerance]
    entry_tolerances: Mapping[str, EntryTolerance]

    @property
    def cell(self) -> Cell:
        """The case in its dtype."""
        return Cell(self.case, self.drawn.dtype)


def judgeable_as(case: Case, without: tuple[str, ...] = ()) -> Judged | None:
    """A drawn case under its name in the list, or under that of the case that it repeats."""
    assert case.drawn is not None
    return judgeable(case.drawn, without, (case.again or case.id).partition("-")[2])


@functools.lru_cache(maxsize=128)  # two batches of fuzzing
def judgeable(drawn: Drawn, without: tuple[str, ...] = (), name: str = "") -> Judged | None:
    """The case, under an optional name, with its expected answer; None if rounding alone could change it.

    Gradients are those of the outputs that are not omitted, and cotangents are drawn by the name.
    """
    least = LEAST.get("cosine_score" if drawn.options.get("score") == "cosine" else drawn.operator, {})
    if any(drawn.sizes.get(axis, 1) in range(1, size) for axis, size in least.items()):
        return None
    fields = drawn.as_case()
    case = Case(**{**fields, "name": name or fields["name"]})
    expected = reference.expected_values(case, drawn.dtype, without)
    grown, size = growth_of_answers(drawn, case, expected, without), answer_size(case, drawn.dtype, without)
    if grown is None:
        return None
    distance = distance_of_kernel(drawn, case)
    growth = grown.worst * distance
    allowed = TOLERANCES[drawn.dtype]
    tolerances: dict[str, Tolerance] = {}
    entry_tolerances: dict[str, EntryTolerance] = {}
    largest_of = {name: float(np.abs(array).max(initial=0.0)) for name, array in expected.items() if is_gradient(name)}
    for name in expected:
        eps = allowed.eps * growth
        if LOGARITHMS.get(drawn.method) == name and (largest := np.abs(expected[name]).max(initial=0.0)) > 0.0:
            eps *= max(1.0, float(1.0 / largest))
        beside = next((name.removesuffix(end) + scale for end, scale in BESIDE.items() if name.endswith(end)), "")
        if largest_of.get(name) == 0.0:
            # Where terms cancel, as those of a single key or of a bias that all keys share, their rounding may be left,
            # which grows by the root of their number: 39 eps of 1,025 keys were measured, with 15 for one.
            beside = max(largest_of, key=largest_of.__getitem__)
            eps *= max(1.0, max(map(np.size, expected.values())) / max(expected[name].size, 1)) ** 0.5
        elif is_gradient(name) and (largest := largest_of[beside or name]) > 0.0:
            # It sums terms as large as what flows back times all other factors, of which little may be left.
            argument = {**case.inputs, **case.parameters}[name.removeprefix("gradient_")]
            largest_entry = float(np.abs(argument[np.isfinite(argument)]).max(initial=0.0)) or 2.0**-20
            summed = size * max((1.0, *drawn.scales.values())) / min(1.0, largest_entry) / largest
            eps = max(eps * max(1.0, summed), allowed.eps * grown.by_gradient.get(name, 1.0))
        if not eps <= allowed.most:
            return None
        tolerances[name] = Tolerance(eps, allowed.worst, GROWN, (drawn.dtype,), beside=beside)
        by_entry = entry_tolerance_of(case.operator, case.id, drawn.dtype, name.removeprefix(SECOND))
        measured_eps = allowed.eps * grown.by_entry.get(name, 1.0) * distance
        if by_entry is not None and measured_eps <= allowed.most:
            entry_tolerances[name] = replace(by_entry, eps=measured_eps)
    return Judged(drawn, case, expected, tolerances, entry_tolerances)


@dataclass
class Growth:
    """The amplification of a relative change of all inputs and parameters: in the outputs, by entry, by gradient."""

    worst: float = 1.0
    by_entry: dict[str, float] = field(default_factory=dict)
    by_gradient: dict[str, float] = field(default_factory=dict)


def growth_of_answers(drawn: Drawn, case: Case, expected: Arrays, without: tuple[str, ...]) -> Growth | None:
    """The amplification of a relative change of all inputs and parameters in the expected answers, at least 1.

    None if it changes an output that is not floating, such as the best token of greedy decoding. Gradients are computed
    once more, for the first change.
    """
    growth, nudge = Growth(), max(NUDGE, 2.0 * epsilon(drawn.dtype))
    if drawn.whole or not any(map(is_floating, {**case.inputs, **case.parameters}.values())):
        return growth  # every product and sum is exact, or there is none
    before = reference.outputs(case, drawn.dtype)
    for turn in range(NUDGES):
        moved = nudge_case(case, turn, nudge)
        after = reference.computed_outputs(moved, *moved.at("float64"))
        for name, array in before.items():
            if array.dtype.kind != "f":
                if not np.array_equal(array, after[name]):
                    return None
            elif np.abs(array).max(initial=0.0) > 0.0:
                growth.worst = max(growth.worst, growth_of(array, after[name], nudge))
                by_entry = entry_tolerance_of(case.operator, case.id, drawn.dtype, name.removeprefix(SECOND))
                if by_entry is not None:
                    pair = Pair(Quantity(name, "float64", array, by_entry, by_entry), after[name], array)
                    moved_by = float(pair.entry_errors.max() * epsilon("float64") / nudge)
                    growth.by_entry[name] = max(growth.by_entry.get(name, 1.0), moved_by)
    moved = nudge_case(case, 0, nudge, as_rows=True)
    factors = reference.cotangents(case, drawn.dtype, without)
    gradients = reference.computed_gradients(moved, *moved.at("float64"), factors) if case.gradients else {}
    for name, array in gradients.items():
        right = expected[f"gradient_{name}"]
        if np.abs(right).max(initial=0.0) > 0.0:
            growth.by_gradient[f"gradient_{name}"] = growth_of(right, array, nudge)
    return growth


def growth_of(before: np.ndarray, after: np.ndarray, nudge: float) -> float:
    """How far an array has moved, in nudges of its largest entry; NaN if that is infinite, which `max` passes over."""
    with np.errstate(invalid="ignore"):
        return float(np.abs(after - before).max() / (nudge * np.abs(before).max()))


def distance_of_kernel(drawn: Drawn, case: Case) -> float:
    """The largest distance of a Gaussian kernel's scores from 0, in eighths, at least 1.

    If all keys are far from a query and near each other, a nudge shifts all scores; softmax is invariant to this, but
    not to the rounding of each of these large scores.
    """
    if case.operator not in ("KernelAttention", "NadarayaWatson"):
        return 1.0
    apart = sum(drawn.scales.get(name, 1.0) for name in ("queries", "keys"))
    w = max([1.0 / case.config.get("width", 1.0), *(float(abs(array)) for array in case.parameters.values())])
    features = case.inputs["keys"].shape[-1] if case.operator == "KernelAttention" else 1
    return max(1.0, 0.5 * features * (w * apart) ** 2 / 8.0)


def nudge_case(case: Case, turn: int, nudge: float, *, as_rows: bool = False) -> Case:
    """The case with every floating number but a dropout mask's changed by 0.5 to 1.5 nudge of itself.

    With as_rows, a number moves by as much of the largest in its row, as rounding does where rows are normalised. Moves
    of one size would leave two terms that cancel as they are, where all their factors move alike. Noise stays below 1.
    """

    def change(name: str, array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f" or name.endswith("dropout_mask"):
            return array
        noise = draws.uniform(f"nudge/{turn}/{name}", array.shape)
        moves = nudge * (noise + 0.5 * np.sign(noise))
        if not as_rows or array.ndim == 0:
            return array * (1.0 + moves)
        known = np.isfinite(array) & (array != 0.0)
        largest = np.abs(array).max(axis=-1, keepdims=True, initial=0.0, where=known)
        return np.where(known, array + moves * largest, array)

    def move(arrays: Arrays) -> Arrays:
        result = {name: change(name, array) for name, array in arrays.items()}
        if "noise" in result:
            result["noise"] = np.minimum(result["noise"], 1.0 - epsilon("float64"))
        return result

    return replace(case, inputs=move(case.inputs), parameters=move(case.parameters))


def answer_size(case: Case, dtype: str, without: tuple[str, ...] = ()) -> float:
    """The sum of |cotangent · output|, the scale of the backward pass."""
    outputs = list(reference.outputs(case, dtype).values())
    factors = reference.cotangents(case, dtype, without)
    return float(sum(np.abs(factor * outputs[index]).sum() for index, factor in factors.items()))
