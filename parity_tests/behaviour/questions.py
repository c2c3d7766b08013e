"""What other people's attention is asked: cases made of ours."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from attention_core import draws
from parity_tests.cases.case import FULL, Case
from parity_tests.cases.suite import all_cases
from parity_tests.polarity import question

HALF = ("float16", "bfloat16")


WITH_CLOSED = np.array([[7, 0, 3, 5, 0], [2, 7, 0, 1, 3]], np.int32)


BEYOND = np.array([[7, 3, 9, 5, 6], [2, 12, 4, 1, 8]], np.int32)


BELOW = np.array([[7, 3, -2, 5, 6], [2, 7, 4, -1, 3]], np.int32)


@functools.cache
def cases_by_id() -> dict[str, Case]:
    """The cases of the specification."""
    return {case.id: case for case in all_cases()}


@dataclass(frozen=True)
class Asked:
    """A question to one operator: the case that is put, and how it comes from one of the specification."""

    case: Case
    source: str
    change: str = ""


ASKED = ("open", "mask", "ragged", "ragged_rows", "closed", "hidden_nan")


def asked(operator: str, takes: str) -> dict[str, Asked]:
    """The questions to a call of an operator that knows hidden keys by a mask, or by lengths."""
    own = {name: cases_by_id()[f"{operator}-{name}"] for name in ASKED}
    masked = takes == "mask"
    plain = own["mask"] if masked else own["ragged"]

    def lengths(lens: np.ndarray) -> Case:
        return replace(own["ragged_rows"], inputs={**own["ragged_rows"].inputs, "valid_lens": lens})

    def spoilt(name: str) -> Case:
        """NaN in the hidden keys alone, or in the hidden values alone."""
        inputs = {**own["hidden_nan"].inputs}
        inputs[name] = own["open"].inputs[name]
        return replace(own["hidden_nan"], inputs=inputs)

    asked = {
        "closed": Asked(own["closed"], own["closed"].id)
        if masked
        else Asked(lengths(WITH_CLOSED), own["ragged_rows"].id, "lengths of 0 among the others"),
        "hidden_value": Asked(spoilt("keys"), own["hidden_nan"].id, "the keys as they are without NaN"),
        "hidden_key": Asked(spoilt("values"), own["hidden_nan"].id, "the values as they are without NaN"),
        "large": (wide := large(operator, plain)),
        "huge": Asked(huge(wide.case), wide.source, "; ".join(filter(None, (wide.change, LARGER[operator])))),
        "half": Asked(replace(plain, dtypes=HALF), plain.id, "in half precision"),
        "gradients": Asked(plain, plain.id),
    }
    if masked:
        asked["polarity"] = polarity_case(own["open"])
    else:
        asked["beyond"] = Asked(lengths(BEYOND), own["ragged_rows"].id, "lengths of 8, 9 and 12 for 7 keys")
        asked["below"] = Asked(lengths(BELOW), own["ragged_rows"].id, "lengths of -1 and -2")
    return {
        name: replace(own, case=replace(own.case, name=name, dtypes=own.case.dtypes if name == "half" else FULL))
        for name, own in asked.items()
    }


def large(operator: str, plain: Case) -> Asked:
    """Scores to ±2e6 whose gaps are 0 or at least 1000."""
    source = "DotProductAttention-large" if operator == "MultiHeadAttention" else f"{operator}-large"
    given = cases_by_id()[source]
    if operator != "MultiHeadAttention":
        inputs = {**plain.inputs, **{name: given.inputs[name] for name in ("queries", "keys", "values")}}
        if "mask" not in plain.inputs:
            return Asked(replace(given, inputs=inputs), source, f"the lengths of {plain.name} instead of its mask")
        return Asked(given, source)
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
    return Asked(
        replace(plain, inputs=inputs, parameters=parameters), source, "in every head: W_q and W_k are identities"
    )


LARGER = {
    "DotProductAttention": "keys 8,192 times as large",
    "MultiHeadAttention": "keys 8,192 times as large",
    "AdditiveAttention": "w_v 8,192 times as large",
}


def huge(case: Case) -> Case:
    """Scores as much larger as leaves their digits as they are."""
    name = "w_v" if "w_v" in case.parameters else "keys"
    inputs = {own: array * 8192.0 if own == name else array for own, array in case.inputs.items()}
    parameters = {own: array * 8192.0 if own == name else array for own, array in case.parameters.items()}
    return replace(case, inputs=inputs, parameters=parameters)


def polarity_case(plain: Case) -> Asked:
    """The question of `parity_tests.polarity`, in the sizes of a case."""
    sizes = {f"{name}_size": plain.inputs[tensor].shape[-1] for name, tensor in NAMED.items()}
    inputs = question(**sizes, dtype="float64")
    return Asked(replace(plain, inputs=inputs, gradients=False), "", "parity_tests/polarity.py")


NAMED = {"query": "queries", "key": "keys", "value": "values"}
