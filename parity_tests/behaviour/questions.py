"""The questions to third-party attention: cases of the specification, most with one thing changed."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from attention_core import draws
from parity_tests.cases.case import FULL, Case
from parity_tests.cases.suite import all_cases
from parity_tests.polarity import question

HALF = ("float16", "bfloat16")

WITH_FULLY_MASKED = np.array([[7, 0, 3, 5, 0], [2, 7, 0, 1, 3]], np.int32)
BEYOND = np.array([[7, 3, 9, 5, 6], [2, 12, 4, 1, 8]], np.int32)
BELOW = np.array([[7, 3, -2, 5, 6], [2, 7, 4, -1, 3]], np.int32)


@functools.cache
def cases_by_id() -> dict[str, Case]:
    """The cases of the specification."""
    return {case.id: case for case in all_cases()}


@dataclass(frozen=True)
class Question:
    """A question to one operator: its case, the case of the specification that it is made of, and the change."""

    case: Case
    source: str
    change: str = ""


SOURCES = ("open", "mask", "ragged", "ragged_rows", "fully_masked", "hidden_nan")


def questions_for(operator: str, takes: str, raw: bool = False) -> dict[str, Question]:
    """The questions to a call of an operator that hides keys by "mask" or by "lengths".

    With raw, the target inverts masks unless it is called with raw=True.
    """
    cases = {name: cases_by_id()[f"{operator}-{name}"] for name in SOURCES}
    masked = takes == "mask"
    plain = cases["mask"] if masked else cases["ragged"]
    rows = cases["ragged_rows"]

    def lengths(lens: np.ndarray) -> Case:
        return replace(rows, inputs={**rows.inputs, "valid_lens": lens})

    def hidden_nan(name: str) -> Case:
        """NaN in the hidden keys alone, or in the hidden values alone: the other array has none."""
        inputs = {**cases["hidden_nan"].inputs, name: cases["open"].inputs[name]}
        return replace(cases["hidden_nan"], inputs=inputs)

    large = large_scores(operator, plain)
    questions = {
        "fully_masked": Question(cases["fully_masked"], cases["fully_masked"].id)
        if masked
        else Question(lengths(WITH_FULLY_MASKED), rows.id, "lengths of 0 among the others"),
        "hidden_value": Question(hidden_nan("keys"), cases["hidden_nan"].id, "the keys as they are without NaN"),
        "hidden_key": Question(hidden_nan("values"), cases["hidden_nan"].id, "the values as they are without NaN"),
        "large": large,
        "huge": Question(
            huge_scores(large.case), large.source, "; ".join(filter(None, (large.change, LARGER[operator])))
        ),
        "half": Question(replace(plain, dtypes=HALF), plain.id, "in half precision"),
        "gradients": Question(plain, plain.id),
    }
    if masked:
        questions["polarity"] = polarity_question(cases["open"], raw)
    else:
        questions["beyond"] = Question(lengths(BEYOND), rows.id, "lengths of 8, 9 and 12 for 7 keys")
        questions["below"] = Question(lengths(BELOW), rows.id, "lengths of -1 and -2")
    return {name: replace(question, case=named(name, question.case, masked)) for name, question in questions.items()}


def named(name: str, case: Case, masked: bool) -> Case:
    """The case under the name of its question, in half precision for "half" alone.

    By lengths, some questions have the name of a case of the specification, and are others.
    """
    taken = not masked and f"{case.operator}-{name}" in cases_by_id()
    return replace(case, name=f"{name}_lengths" if taken else name, dtypes=HALF if name == "half" else FULL)


def large_scores(operator: str, plain: Case) -> Question:
    """Scores to ±2e6 whose gaps are 0 or at least 1000."""
    source = "DotProductAttention-large" if operator == "MultiHeadAttention" else f"{operator}-large"
    case = cases_by_id()[source]
    if operator != "MultiHeadAttention":
        if "mask" in plain.inputs:
            return Question(case, source)
        inputs = {**plain.inputs, **{name: case.inputs[name] for name in ("queries", "keys", "values")}}
        return Question(replace(case, inputs=inputs), source, f"the lengths of {plain.name} instead of its mask")
    hidden = plain.parameters["W_q"].shape[0]
    shapes = {name: plain.inputs[name].shape for name in ("queries", "keys")}
    inputs = {
        **plain.inputs,
        "queries": 4.0 * (draws.integers("large.queries", shapes["queries"], 11) - 5),
        "keys": 500.0 * (draws.integers("large.keys", shapes["keys"], 201) - 100),
    }
    parameters = {**plain.parameters, "b_q": np.zeros(hidden), "b_k": np.zeros(hidden)}
    for name, array in (("W_q", inputs["queries"]), ("W_k", inputs["keys"])):
        parameters[name] = np.eye(hidden, array.shape[-1])
    changed = replace(plain, inputs=inputs, parameters=parameters)
    return Question(changed, source, "in every head: W_q and W_k are identities")


LARGER = {
    "DotProductAttention": "keys 8,192 times as large",
    "MultiHeadAttention": "keys 8,192 times as large",
    "AdditiveAttention": "w_v 8,192 times as large",
}


def huge_scores(case: Case) -> Case:
    """Scores 8,192 times as large: a power of 2 keeps their digits."""
    larger = "w_v" if "w_v" in case.parameters else "keys"
    inputs = {name: array * 8192.0 if name == larger else array for name, array in case.inputs.items()}
    parameters = {name: array * 8192.0 if name == larger else array for name, array in case.parameters.items()}
    return replace(case, inputs=inputs, parameters=parameters)


def polarity_question(plain: Case, raw: bool) -> Question:
    """The question of `parity_tests.polarity`, in the sizes of a case."""
    inputs = question(
        query_size=plain.inputs["queries"].shape[-1],
        key_size=plain.inputs["keys"].shape[-1],
        value_size=plain.inputs["values"].shape[-1],
        dtype="float64",
    )
    options = {**plain.options, "raw": True} if raw else plain.options
    case = replace(plain, inputs=inputs, options=options, gradients=False)
    return Question(case, "", "parity_tests/polarity.py")
