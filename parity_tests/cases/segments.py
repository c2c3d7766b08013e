"""Cases of attention to a segment and to those before it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from attention_core import draws
from parity_tests.cases.masking import some_mask
from parity_tests.format.case import DTYPES, EXACT, SEED, Arrays, Case, Sizes, layer_case
from parity_tests.format.families import Family

SEGMENT = {"query_size": 10, "num_heads": 3, "hidden_size": 18}
SIZES = {"batch": 2, "heads": 3, "previous_steps": 4, "queries": 5, "keys": 9, "query_size": 10}
FULL_AT = np.array([1, 4])
"""The first open step of previous in each sequence, whose memory is not yet full, or empty."""
WIDE = dict.fromkeys(("W_q", "W_k", "W_r", "u", "v"), 3.0)
"""Factors of parameters with which neither content nor distance decides alone."""


def steps(sizes: Sizes = SIZES) -> Arrays:
    """The steps of a segment, and of those before it."""
    return {
        name: draws.uniform(f"segments/{name}", (sizes["batch"], sizes[axis], sizes["query_size"]), 1.0, SEED)
        for name, axis in (("inputs", "queries"), ("previous", "previous_steps"))
    }


def with_sizes(**changed: int) -> Sizes:
    """The sizes with some of them changed, and as many keys as steps."""
    sizes = {**SIZES, **changed}
    return {**sizes, "keys": sizes["previous_steps"] + sizes["queries"]}


def filling(sizes: Sizes = SIZES) -> np.ndarray:
    """A mask that hides the front of a memory that is not yet full, the same for all steps."""
    return (np.arange(sizes["keys"]) >= FULL_AT[:, None])[:, None]


def full(sizes: Sizes = SIZES) -> Arrays:
    """The steps, with a mask and a dropout mask that change nothing."""
    rows = sizes["batch"], sizes["queries"], sizes["keys"]
    factors = np.ones((sizes["batch"], sizes["heads"], *rows[1:]))
    return {**steps(sizes), "mask": np.ones(rows, bool), "dropout_mask": factors}


def segment_cases() -> Iterator[Case]:
    """Attention to a segment and those before it."""
    case = partial(layer_case, "SegmentAttention", config=SEGMENT, wide=WIDE)
    plain, rows = steps(), some_mask(SIZES)
    yield case("none", "A segment and those before it.", plain, dtypes=DTYPES)
    yield case("open", "Masks that change nothing.", full(), dtypes=DTYPES)
    yield case("first_segment", "Nothing came before.", {"inputs": plain["inputs"]})
    yield case("mask", "A mask, which leaves only steps that are not later.", {**full(), "mask": rows}, dtypes=DTYPES)
    yield case("filling", "A memory that is not yet full is hidden at its front.", {**plain, "mask": filling()})
    hidden_rows = rows.copy()
    hidden_rows[0, 3] = hidden_rows[1, 0] = False
    hidden_rows[1, 2, :7] = False  # which leaves later steps alone
    yield case(
        "fully_masked", "Steps that may attend to nothing, or to later steps alone.", {**full(), "mask": hidden_rows}
    )
    for word, value in (("NaN", np.nan), ("inf", np.inf)):
        inputs = {name: array.copy() for name, array in {**full(), "mask": np.repeat(filling(), 5, axis=1)}.items()}
        for sequence, first in enumerate(FULL_AT):
            inputs["previous"][sequence, :first] = value
        yield case(f"hidden_{word.lower()}", f"{word} at the front of a memory that is not yet full.", inputs)
    heads = some_mask(SIZES, heads=True)
    yield case(
        "heads_mask", "A mask for each head, and its weights.", {**plain, "mask": heads}, options={"per_head": True}
    )
    dropout = draws.dropout_mask("SegmentAttention", (2, 3, 5, 9), 0.3, SEED)
    shows = "Dropout acts on the weights; the returned ones are those before dropout."
    yield case("dropout", shows, {**full(), "dropout_mask": dropout})
    yield case("context", "The context alone.", {**full(), "mask": rows}, options={"need_weights": False})
    yield case("no_bias", "Projections without biases.", plain, config={**SEGMENT, "bias": False})
    yield case(
        "one_size",
        "As many features in the heads as in an input, the default.",
        plain,
        config={"query_size": 10, "num_heads": 5},
    )
    for label, shows, sizes in (
        ("one_step", "A single step, behind a memory.", with_sizes(queries=1)),
        ("one_key", "A single step, and nothing before it.", with_sizes(queries=1, previous_steps=0)),
        ("no_previous", "A memory without steps.", with_sizes(previous_steps=0)),
        ("no_queries", "A segment without steps.", with_sizes(queries=0)),
        ("no_keys", "No steps at all.", with_sizes(queries=0, previous_steps=0)),
        ("no_batch", "There are no sequences.", with_sizes(batch=0)),
    ):
        yield case(label, shows, full(sizes), dtypes=EXACT)
    far = with_sizes(previous_steps=60)
    yield case("far", "Distances of up to 64 steps.", steps(far))


FAMILIES = (Family(("SegmentAttention",), segment_cases),)
