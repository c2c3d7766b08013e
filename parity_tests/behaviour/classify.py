"""What an answer shows of a call, in words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attention_core import reference
from parity_tests.behaviour.questions import HALF
from parity_tests.format.case import Arrays, Case, epsilon
from parity_tests.format.expected import computed_outputs, expected_values
from parity_tests.format.selection import Cell
from parity_tests.judge.compare import compare
from parity_tests.judge.pair import Quantity
from parity_tests.judge.question import Question
from parity_tests.judge.verdict import Verdict
from parity_tests.polarity import answer as polarity
from parity_tests.workers.answers import AnswerStatus, is_gradient
from parity_tests.workers.recordings import Recording

LIKE = 1e-3
"""The largest difference between two answers of a kind, relative to the largest entry: kinds differ by more."""


@dataclass(frozen=True)
class Answer:
    """A call's answer to a question in one dtype: its status, and the actual and the expected quantities."""

    cell: Cell
    status: AnswerStatus
    actual: Arrays
    expected: Arrays

    @classmethod
    def of(cls, recording: Recording, cell: Cell) -> Answer:
        """The answer in a recording."""
        answer = recording.answer(cell)
        judged = answer.ok and cell.case.gradients
        arrays = expected_values(*cell, answer.withheld) if judged else {}
        return cls(cell, answer.status, recording.cells.get(cell.key, {}), arrays)

    @property
    def refusal(self) -> str:
        """Why there is no answer, in a word; empty if there is one."""
        words = {"ok": "", "not-implemented": "no such argument", "not-applicable": "none", "timeout": "hangs"}
        return words.get(self.status, self.status)

    @cached_property
    def quantities(self) -> dict[str, Quantity]:
        """The expected quantities with their tolerances, as the judge has them."""
        return Question(self.cell, given=self.expected).quantities

    @property
    def gradients(self) -> list[str]:
        """The gradients that the answer has."""
        return [name for name in self.expected if is_gradient(name) and name in self.actual]

    def like(self, name: str) -> bool:
        """Whether a quantity is as expected, but for rounding."""
        return alike(self.actual[name], self.expected[name], self.quantities[name].beside)

    def spoilt(self, names: Iterable[str]) -> bool:
        """Whether any entry is NaN or inf where a finite number is expected."""
        return any(not np.isfinite(double(self.actual[name])[np.isfinite(self.expected[name])]).all() for name in names)

    def with_gradients(self, words: str) -> str:
        """The words for the outputs, and for gradients that are NaN."""
        return f"{words}; gradients NaN" if self.spoilt(self.gradients) else words


def double(array: np.ndarray) -> np.ndarray:
    """The numbers as float64."""
    return np.asarray(array, np.float64)


def alike(actual: np.ndarray, expected: np.ndarray, beside: np.ndarray | None = None) -> bool:
    """Whether two arrays differ by rounding at most, be it that of float32, relative to the largest entry."""
    actual, expected = double(actual), double(expected)
    if actual.shape != expected.shape:
        return False
    measures = (expected, double(expected if beside is None else beside))
    scale = max(np.abs(array[np.isfinite(array)]).max(initial=0.0) for array in measures)
    with np.errstate(invalid="ignore"):
        near = np.abs(actual - expected) <= LIKE * scale
    return bool((near | (actual == expected) | (np.isnan(actual) & np.isnan(expected))).all())


def fully_masked_rows(answer: Answer) -> str:
    """The context of a query that may attend to nothing, and its gradients."""
    kind = masked_rows(answer)[1]
    words = answer.with_gradients(kind)
    if words != kind or not answer.gradients:
        return words
    return f"{kind}; gradients 0" if all(map(answer.like, answer.gradients)) else f"{kind}; gradients flow"


def masked_rows(answer: Answer) -> tuple[np.ndarray, str]:
    """The queries that may attend to nothing, as booleans, and what their context is, in a word or two."""
    case, dtype = answer.cell
    inputs, _ = case.at(dtype)
    mask = reference.attention_mask(inputs["keys"].shape[1], inputs.get("valid_lens"), inputs.get("mask"))
    assert mask is not None
    shape = (*inputs["queries"].shape[:2], inputs["keys"].shape[1])
    rows = ~np.asarray(np.broadcast_to(mask, shape).any(axis=-1))
    context = double(answer.actual["context"])[rows]
    kinds = {
        "0": answer.expected["context"],
        "uniform": without_scores(case, dtype),
        "as without a mask": without_mask(case, dtype),
        "NaN": np.full(answer.expected["context"].shape, np.nan),
    }
    return rows, next((name for name, array in kinds.items() if alike(context, array[rows])), "something else")


def left_padding(answer: Answer) -> str:
    """What queries get that keys hidden on the left leave without any, and whether those keys change the others."""
    rows, kind = masked_rows(answer)
    same = alike(answer.actual["context"][~rows], answer.expected["context"][~rows])
    return answer.with_gradients(f"the padding gets {kind}; the rest {'' if same else 'not '}as if padded on the right")


def without_mask(case: Case, dtype: str) -> np.ndarray:
    """The context if nothing were hidden."""
    inputs, parameters = case.at(dtype)
    rest = {name: array for name, array in inputs.items() if name not in ("mask", "valid_lens")}
    return computed_outputs(case, rest, parameters)["context"]


def without_scores(case: Case, dtype: str) -> np.ndarray:
    """The context if nothing were hidden, and every key had the same score."""
    zero = {"MultiHeadAttention": ("W_q", "b_q"), "AdditiveAttention": ("w_v",)}.get(case.operator, ("queries",))
    inputs, parameters = (
        {name: np.zeros_like(array) if name in zero else array for name, array in arrays.items()}
        for arrays in (case.inputs, case.parameters)
    )
    return without_mask(replace(case, inputs=inputs, parameters=parameters), dtype)


def hidden_nan(answer: Answer) -> str:
    """The effect of NaN that no query may attend to."""
    kind = "NaN" if answer.spoilt(["context"]) else "ignored" if answer.like("context") else "wrong"
    return answer.with_gradients(kind)


def right_rows(answer: Answer) -> str:
    """How many rows of the context are right."""
    actual, expected = double(answer.actual["context"]), double(answer.expected["context"])
    width = expected.shape[-1]
    rows = [alike(*pair) for pair in zip(actual.reshape(-1, width), expected.reshape(-1, width), strict=True)]
    if all(rows):
        return answer.with_gradients("right")
    kind = "wrong" if np.isfinite(actual).all() else "NaN"
    return answer.with_gradients(f"{kind} in {len(rows) - sum(rows)} of {len(rows)} rows")


MOST_SINGLE = 100.0
"""The largest error of float32's arithmetic, in eps of float32."""


def precision(answer: Answer, names: Sequence[str]) -> str:
    """The worst error: within its tolerance, or how large it is."""
    case, dtype = answer.cell
    blank = Verdict(case.operator, case.id, "", "reference", "", dtype, "", "missing")
    worst, failed = 0.0, False
    for name in names:
        verdict = compare(blank, answer.quantities[name], answer.actual[name], answer.expected[name])
        failed |= verdict.status == "fail"
        if verdict.check == "nan":
            return "NaN"
        if verdict.check in ("dtype", "shape"):
            return f"another {verdict.check}"
        worst = max(worst, verdict.error or 0.0)
    if not failed:
        return f"≤ {round_up(worst)}" if dtype in HALF else "right"
    single = dtype == "float64" and worst * epsilon(dtype) <= MOST_SINGLE * epsilon("float32")
    return "as float32" if single else f"off by {round_up(worst)} eps"


def round_up(eps: float) -> str:
    """The next larger of 1, 3, 10, 30 and so on: figures that another processor does not change."""
    power = 10.0 ** math.floor(math.log10(max(eps, 1.0)))
    return f"{next(step * power for step in (1, 3, 10) if step * power >= eps * (1 - 1e-9)):g}"


def gradients(answer: Answer) -> str:
    """Whether gradients are right where no row is fully masked."""
    outputs = [name for name in answer.expected if name in answer.actual and name not in answer.gradients]
    if answer.gradients:
        return precision(answer, answer.gradients)
    words = precision(answer, outputs)
    return "none" if words == "right" else f"none; outputs {words}"


def lengths_out_of_range(answer: Answer) -> str:
    """Whether a length beyond the keys means all of them, and one below 0 none."""
    words = right_rows(answer)
    return "clipped" if words == "right" else words


CLASSIFIERS: dict[str, Callable[[Answer], str]] = {
    "fully_masked": fully_masked_rows,
    "hidden_value": hidden_nan,
    "hidden_key": hidden_nan,
    "large": right_rows,
    "huge": right_rows,
    "half": lambda answer: precision(answer, [name for name in answer.expected if name in answer.actual]),
    "beyond": lengths_out_of_range,
    "below": lengths_out_of_range,
    "polarity": lambda answer: polarity(answer.actual["context"]),
    "gradients": gradients,
    "left_padding": left_padding,
}
"""The classifier of each question's answer."""


def name_context(answer: Answer, alternatives: Mapping[str, Case]) -> str:
    """The words of the case whose context the answer is."""
    context, dtype = answer.actual["context"], answer.cell.dtype
    for words, case in alternatives.items():
        if alike(context, context_of(case, dtype)):
            return words
    return "something else" if np.isfinite(double(context)).all() else "NaN"


def context_of(case: Case, dtype: str) -> np.ndarray:
    """The reference's context in a case that is not one of the specification's."""
    return computed_outputs(case, *case.at(dtype))["context"]


def classify(name: str, answer: Answer, alternatives: Mapping[str, Case] | None = None) -> str:
    """The finding of an answer, in a word or two: by a question's alternatives, or else by its classifier."""
    if answer.refusal:
        return answer.refusal
    return name_context(answer, alternatives) if alternatives else CLASSIFIERS[name](answer)
