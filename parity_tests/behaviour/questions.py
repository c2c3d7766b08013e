"""The questions to third-party attention: cases of the specification, most with one thing changed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attention_core import draws, reference
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import FULL, Case
from parity_tests.polarity import question

HALF = ("float16", "bfloat16")
SINGLE = ("float32",)

WITH_FULLY_MASKED = np.array([[7, 0, 3, 5, 0], [2, 7, 0, 1, 3]], np.int32)
BEYOND = np.array([[7, 3, 9, 5, 6], [2, 12, 4, 1, 8]], np.int32)
BELOW = np.array([[7, 3, -2, 5, 6], [2, 7, 4, -1, 3]], np.int32)


@functools.cache
def cases_of(operator: str) -> dict[str, Case]:
    """The cases of an operator, by name."""
    return {case.name: case for case in all_cases().select(operators=[operator])}


@dataclass(frozen=True)
class Question:
    """A question to one operator: its case, the case of the specification that it is made of, and the change.

    alternatives has a case for each answer that is expected of some call, by the answer's words: the call's context is
    compared with the reference's context in each of them.
    """

    case: Case
    source: str
    change: str = ""
    alternatives: Mapping[str, Case] = field(default_factory=dict)


def questions_for(operator: str, takes: str, raw: bool = False) -> dict[str, Question]:
    """The questions to a call of an operator that hides keys by "mask" or by "lengths".

    With raw, the target inverts masks unless it is called with raw=True.
    """
    cases = cases_of(operator)
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
        "half": Question(replace(plain, dtypes=HALF), plain.id, "half precision"),
        "gradients": Question(plain, plain.id),
    }
    if masked:
        questions["polarity"] = polarity_question(cases["open"], raw)
        questions |= masked_conventions(operator, raw)
    else:
        questions["lengths_and_causal"] = lengths_and_causal(cases["open"])
        questions["beyond"] = Question(lengths(BEYOND), rows.id, "lengths of 8, 9 and 12 for 7 keys")
        questions["below"] = Question(lengths(BELOW), rows.id, "lengths of -1 and -2")
    return {
        name: replace(question, case=as_question(name, question.case, masked)) for name, question in questions.items()
    }


def as_question(name: str, case: Case, masked: bool) -> Case:
    """The case under the name of its question, in half precision for "half" alone.

    By lengths, some questions have the name of a case of the specification, and are others.
    """
    taken = not masked and name in cases_of(case.operator)
    dtypes = HALF if name == "half" else SINGLE if name in CONVENTIONS else FULL
    return replace(case, name=f"{name}_lengths" if taken else name, dtypes=dtypes)


def large_scores(operator: str, plain: Case) -> Question:
    """Scores to ±2e6 whose gaps are 0 or at least 1000."""
    case = cases_of("DotProductAttention" if operator == "MultiHeadAttention" else operator)["large"]
    if operator != "MultiHeadAttention":
        if "mask" in plain.inputs:
            return Question(case, case.id)
        inputs = {**plain.inputs, **{name: case.inputs[name] for name in ("queries", "keys", "values")}}
        return Question(replace(case, inputs=inputs), case.id, f"the lengths of {plain.name} instead of its mask")
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
    return Question(changed, case.id, "identities as W_q and W_k of every head")


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


# ------------------------------------------------------------------------------------------------ conventions

CONVENTIONS = (
    "causal",
    "causal_one",
    "key_head",
    "float_mask",
    "mask_and_causal",
    "padding_and_causal",
    "lengths_and_causal",
    "softcap_and_mask",
    "left_padding",
    "steps",
    "steps_causal",
)
"""The questions about the meaning of an argument, in float32."""


def bare(case: Case, num_queries: int | None = None, num_keys: int | None = None, **inputs: np.ndarray) -> Case:
    """The case without its optional inputs, cut to a number of queries and keys, with other inputs."""
    counts = {"queries": num_queries, "keys": num_keys, "values": num_keys}
    arrays = {name: case.inputs[name][..., :count, :] for name, count in counts.items()}
    return replace(case, inputs={**arrays, **inputs}, options={}, gradients=False)


def with_options(case: Case, **options: Any) -> Case:
    """The case with options of third-party calls, which the reference does not have."""
    return replace(case, options=options)


def masked_conventions(operator: str, raw: bool) -> dict[str, Question]:
    """The questions to a call that takes a mask: what its other arguments mean, and what they mean together."""
    cases = cases_of(operator)
    opened, masked = cases["open"], cases["mask"]
    causal = functools.partial(reference.causal_mask, 5, 7)
    one, square = bare(opened, num_queries=1), bare(opened, num_keys=5)
    early, late = causal(), causal(offset=np.array(2))
    diagonal = reference.causal_mask(5, 5)
    mask = masked.inputs["mask"][..., :5] | np.eye(5, dtype=bool)
    short = np.arange(5) < np.array([3, 4])[:, None, None]
    amounts = np.where(masked.inputs["mask"], draws.uniform("float_mask", (2, 5, 7), 3.0), 0.0)
    full_pass = {
        "equal to the full pass": replace(square, inputs={**square.inputs, "mask": diagonal}),
        "attends to the first key alone": replace(
            square, inputs={**square.inputs, "mask": np.broadcast_to(np.arange(5) == 0, (1, 5, 5))}
        ),
    }
    padding = np.arange(7) >= np.array([4, 1])[:, None, None]
    padded = replace(bare(opened, mask=late & padding), gradients=True)
    questions = {
        "causal": Question(
            with_options(bare(opened), causal=True),
            opened.id,
            "5 queries, 7 keys",
            {
                "top left": bare(opened, mask=early),
                "bottom right": bare(opened, mask=late),
                "no key is hidden": bare(opened),
            },
        ),
        "causal_one": Question(
            with_options(one, causal=True),
            opened.id,
            "1 query, 7 keys",
            {
                "attends to the first key alone": replace(one, inputs={**one.inputs, "mask": early[:, :1]}),
                "attends to every key": one,
            },
        ),
        "float_mask": Question(
            with_options(bare(opened, mask=amounts), **({"raw": True} if raw else {})),
            opened.id,
            "a mask of numbers from -3 to 3, some of them 0",
            {
                "added to the scores": bare(opened, bias=amounts),
                "may attend where it is not 0": bare(opened, mask=amounts != 0.0),
                "hidden where it is not 0": bare(opened, mask=amounts == 0.0),
                "ignored": bare(opened),
            },
        ),
        "mask_and_causal": mask_and_causal(opened, mask, "a mask whose diagonal is open"),
        "padding_and_causal": mask_and_causal(opened, short, "a mask of lengths 3 and 4"),
        "left_padding": Question(padded, opened.id, "a mask, causal from the bottom right, without the first keys"),
        "steps": Question(with_options(square, steps=True), opened.id, "5 queries, 5 keys, one at a time", full_pass),
        "steps_causal": Question(
            with_options(square, steps=True, causal=True),
            opened.id,
            "5 queries, 5 keys, one at a time, causal",
            full_pass,
        ),
    }
    if "groups" in cases:
        questions["key_head"] = key_head(cases["groups"])
    if operator == "DotProductAttention":
        questions["softcap_and_mask"] = softcap_and_mask(cases["softcap"], masked.inputs["mask"])
    return questions


def mask_and_causal(opened: Case, mask: np.ndarray, change: str) -> Question:
    """A mask together with causal masking, where there are as many queries as keys."""
    diagonal, made = reference.causal_mask(5, 5), functools.partial(bare, opened, num_keys=5)
    return Question(
        with_options(made(mask=mask), causal=True),
        opened.id,
        f"5 queries, 5 keys, and {change}",
        {
            "both are applied": made(mask=mask & diagonal),
            "the mask is ignored": made(mask=diagonal),
            "causal is ignored": made(mask=mask & np.ones_like(diagonal)),
            "every query attends to the first key alone": made(mask=np.broadcast_to(np.arange(5) == 0, (1, 5, 5))),
        },
    )


def lengths_and_causal(opened: Case) -> Question:
    """Lengths together with causal masking, where queries are fewer than keys."""
    lengths = np.array([7, 4], np.int32)
    within = np.arange(7) < lengths[:, None, None]

    def both(*offsets: int) -> Case:
        last = np.arange(5)[:, None] + np.array(offsets)[:, None, None]  # reference.causal_mask has no offset below 0
        return bare(opened, mask=within & (np.arange(7) <= last))

    return Question(
        with_options(bare(opened, valid_lens=lengths), causal=True),
        opened.id,
        "5 queries, 7 keys, and lengths of 7 and 4",
        {
            "both are applied, causal from the top left": both(0, 0),
            "both are applied, causal from the bottom right": both(2, 2),
            "both are applied, causal from the last key of each length": both(2, -1),
            "the lengths are ignored": bare(opened, mask=reference.causal_mask(5, 7)),
            "causal is ignored": bare(opened, mask=within & np.ones((1, 5, 1), bool)),
        },
    )


def key_head(case: Case) -> Question:
    """Fewer heads of keys than of queries."""
    plain = bare(case)
    if "W_k" in case.parameters:
        times = case.config["num_heads"] // case.config["num_key_heads"]
        config = {name: value for name, value in case.config.items() if name != "num_key_heads"}
        parameters = {
            name: np.tile(array, (times,) + (1,) * (array.ndim - 1)) if name[2:] in ("k", "v") else array
            for name, array in case.parameters.items()
        }
        tiled = replace(plain, config=config, parameters=parameters)
    else:
        times = case.inputs["queries"].shape[1] // case.inputs["keys"].shape[1]
        inputs = {name: np.tile(plain.inputs[name], (1, times, 1, 1)) for name in ("keys", "values")}
        tiled = replace(plain, inputs={**plain.inputs, **inputs})
    return Question(plain, case.id, "nothing hidden", {"repeated": plain, "tiled": tiled})


def softcap_and_mask(case: Case, mask: np.ndarray) -> Question:
    """A soft cap together with a mask: a cap behind the mask makes -softcap of -inf."""
    softcap, plain = case.config["softcap"], bare(case)
    scores = reference.scaled_dot_score(plain.inputs["queries"], plain.inputs["keys"], softcap=softcap)
    leaked = bare(case, bias=np.where(mask, 0.0, -softcap - scores))
    uncapped = replace(bare(case, mask=mask), config={})
    return Question(
        bare(case, mask=mask),
        case.id,
        "a mask",
        {
            "before the mask": bare(case, mask=mask),
            "behind the mask: hidden keys get weight": leaked,
            "the cap is ignored": uncapped,
        },
    )
