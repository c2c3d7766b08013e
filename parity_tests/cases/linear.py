"""Cases of linear attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attention_core.operators.linear import LINEAR_ATTENTION, LINEAR_ATTENTION_STEP
from parity_tests.cases.masking import ATTENTION, BATCH_LENS, EMPTY, hidden_variants
from parity_tests.format.case import DTYPES, EXACT, FULL, Arrays, Case, Sizes, drawn_tensors
from parity_tests.format.families import Family

MASK = np.array([[[True, False, True, True, False, True, True]], [[False, True, True, False, True, True, False]]])
"""Keys that are open to all queries."""

STEPS = {**ATTENTION, "queries": 7}
"""As many queries as keys."""

BLOCKS = {"batch": 1, "features": 2, "queries": 130, "keys": 130, "value_features": 3}
"""More steps than two blocks have, in any backend."""


def linear_cases() -> Iterator[Case]:
    """Whole sequences."""
    operator, sizes = LINEAR_ATTENTION, ATTENTION

    def case(label: str, shows: str, inputs: Arrays, dtypes: tuple[str, ...] = FULL, **options: Any) -> Case:
        return Case(operator.name, label, shows, inputs, options, dtypes=dtypes)

    def open_inputs(sizes: Sizes) -> Arrays:
        lens = np.full(sizes["batch"], sizes["keys"], np.int32)
        mask = np.ones((sizes["batch"], 1, sizes["keys"]), bool)
        return {**drawn_tensors(operator, sizes), "valid_lens": lens, "mask": mask}

    plain, full = drawn_tensors(operator, sizes), open_inputs(sizes)
    yield case("none", "Neither lengths nor mask.", plain)
    yield case("open", "Lengths and a mask that change nothing.", full, DTYPES)
    yield case("ragged", "One length for each sequence.", {**plain, "valid_lens": BATCH_LENS}, EXACT)
    yield case("mask", "A mask of keys.", {**full, "mask": MASK})
    yield case("mask_row", "A mask for all sequences, and no lengths.", {**plain, "mask": MASK[:1]}, EXACT)
    both = {"valid_lens": BATCH_LENS, "mask": MASK}
    yield case("lens_and_mask", "Lengths and a mask combine by and.", {**full, **both}, DTYPES)
    shows = "A sequence whose queries may attend to nothing, and a length beyond the keys."
    yield case("fully_masked", shows, {**full, "valid_lens": np.array([-2, 9], np.int32), "mask": MASK})
    with_heads = drawn_tensors(operator, sizes, heads=True)
    yield case("heads", "Heads, with lengths and a mask.", {**with_heads, **both, "mask": MASK[:, None]})
    for label, shows, inputs in hidden_variants(full):
        yield case(label, shows, {**inputs, "valid_lens": BATCH_LENS})
    yield case("large", "Features in the hundreds of either sign, and some that are 0.", {**full, **large(plain)})
    small = {name: plain[name] - 20.0 for name in ("queries", "keys")}
    shows = "Features of 2e-9: elu(x) + 1 as written rounds them to 0 in float32, and to 8 digits in float64."
    yield case("small", shows, {**full, **small})
    lost = plain["queries"].copy()
    lost[1, 2] = -1e4
    shows = "The features of a query underflow: its context and gradient are 0."
    yield case("underflow", shows, {**full, "queries": lost})
    for label, shows, axis, size in (*EMPTY, ("no_features", "There are no features.", "features", 0)):
        yield case(label, shows, open_inputs({**sizes, axis: size}), EXACT)

    steps = open_inputs(STEPS)
    yield case("causal", "Each query attends to the keys up to its own.", steps, DTYPES, causal=True)
    late = MASK & [[[False, False, True, True, True, True, True]], [[False] * 7]]
    shows = "The first queries of a sequence, and all of the other one, may attend to nothing."
    yield case("causal_mask", shows, {**steps, "mask": late}, causal=True)
    with_heads = drawn_tensors(operator, STEPS, heads=True)
    yield case("causal_heads", "Heads, and lengths.", {**with_heads, "valid_lens": BATCH_LENS}, EXACT, causal=True)
    shows = "More steps than two blocks have."
    yield case("causal_blocks", shows, drawn_tensors(operator, BLOCKS), causal=True)
    none = drawn_tensors(operator, {**sizes, "queries": 0, "keys": 0})
    yield case("no_steps", "There are no steps.", none, EXACT, causal=True)


def large(plain: Arrays) -> Arrays:
    """Queries and keys to ±300, each with a feature above 0, without which all would underflow in float32."""
    arrays = {name: 300.0 * plain[name] for name in ("queries", "keys")}
    for array in arrays.values():
        array[..., 0] = np.abs(array[..., 0])
        array[0, 1, 1:3] = 0.0
    return arrays


def step_cases() -> Iterator[Case]:
    """Single steps."""
    operator, sizes = LINEAR_ATTENTION_STEP, ATTENTION

    def case(label: str, shows: str, inputs: Arrays, dtypes: tuple[str, ...] = FULL) -> Case:
        return Case(operator.name, label, shows, inputs, dtypes=dtypes)

    def draw_inputs(sizes: Sizes, heads: bool = False) -> Arrays:
        inputs = drawn_tensors(operator, sizes, heads)
        return {**inputs, "norms": 2.0 + inputs["norms"]}

    plain = draw_inputs(sizes)
    first = {name: plain[name] * np.arange(2.0).reshape(2, *[1] * (plain[name].ndim - 1)) for name in ("sums", "norms")}
    yield case("plain", "A step behind others.", plain, DTYPES)
    yield case("heads", "Heads.", draw_inputs(sizes, heads=True))
    yield case("first", "The first step of a sequence, whose context is the value.", {**plain, **first})
    lost = {name: np.where(first["norms"] == 0.0, -1e4, plain[name]) for name in ("queries", "keys")}
    shows = (
        "The same, and the features of its query and key underflow: context and gradients are 0, where the formula as "
        "written divides 0 by 0."
    )
    yield case("underflow", shows, {**plain, **first, **lost})
    for label, shows, axis in (
        ("no_batch", "There are no sequences.", "batch"),
        ("no_features", "There are no features: the context is 0.", "features"),
    ):
        yield case(label, shows, draw_inputs({**sizes, axis: 0}), EXACT)


FAMILIES = (Family((LINEAR_ATTENTION.name,), linear_cases), Family((LINEAR_ATTENTION_STEP.name,), step_cases))
