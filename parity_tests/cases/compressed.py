"""Cases of attention to a memory that is shorter than the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators.compressed import LOW_RANK_ATTENTION
from attention_core.specification import Layer
from parity_tests.cases.case import DTYPES, EXACT, SEED, Arrays, Case, Sizes, drawn_tensors, layer_case
from parity_tests.cases.masking import ATTENTION, BATCH_LENS, EMPTY, some_mask, with_hidden

SIZES = {**ATTENTION, "rank": 3, "heads": 9}
LOW_RANK = {"num_positions": 8, "rank": 3}
NONE_OPEN = np.array([5, -1], np.int32)
"""Lengths that leave the second sequence without an open key."""


def row_mask(sizes: Sizes, heads: bool = False) -> np.ndarray:
    """A drawn mask that is the same for all queries, with an open key in every row."""
    return some_mask({**sizes, "queries": 1}, heads)


def open_inputs(plain: Arrays, sizes: Sizes) -> Arrays:
    """The inputs with lengths and a mask that change nothing."""
    lens, mask = np.full(sizes["batch"], sizes["keys"], np.int32), np.ones((sizes["batch"], 1, sizes["keys"]), bool)
    return {**plain, "valid_lens": lens, "mask": mask}


def shortened_cases(layer: Layer, config: Mapping[str, Any]) -> Iterator[Case]:
    """What the layers that shorten keys and values have in common."""
    base, case = partial(drawn_tensors, layer.method("call")), partial(layer_case, layer.name, config=config)
    sizes = SIZES
    plain, with_heads = base(sizes), base(sizes, heads=True)
    full = open_inputs(plain, sizes)
    masked = {**full, "mask": row_mask(sizes)}
    yield case("none", "Neither lengths nor mask.", plain)
    yield case("open", "Lengths and a mask that change nothing.", full, dtypes=DTYPES)
    yield case("ragged", "One length for each sequence.", {**plain, "valid_lens": BATCH_LENS}, dtypes=EXACT)
    yield case("mask", "A boolean mask.", {**plain, "mask": row_mask(sizes)}, dtypes=EXACT)
    both = {**masked, "valid_lens": BATCH_LENS}
    yield case("lens_and_mask", "Lengths and a mask combine by and.", both, dtypes=DTYPES)
    yield case("fully_masked", "A sequence without an open key.", {**masked, "valid_lens": NONE_OPEN})
    yield case("heads", "Heads, with one length for each sequence.", {**with_heads, "valid_lens": BATCH_LENS})
    of_heads = row_mask(sizes, heads=True)
    of_heads[1, 4] = False
    shows = "Heads, each with its own mask, and one without an open key."
    yield case("heads_mask", shows, {**with_heads, "valid_lens": BATCH_LENS, "mask": of_heads})
    for word, value in (("NaN", np.nan), ("inf", np.inf)):
        hidden = with_hidden({**full, "valid_lens": BATCH_LENS}, value, BATCH_LENS)
        yield case(f"hidden_{word.lower()}", f"{word} in keys and values that are hidden.", hidden)
    yield case("scale", "Another scale.", full, config={**config, "scale": 0.375})
    for label, shows, axis, size in EMPTY:
        small = {**sizes, axis: size}
        yield case(label, shows, open_inputs(base(small), small), dtypes=EXACT)
    context = {"need_weights": False}
    yield case("context", "The context alone.", both, options=context)


def low_rank_cases() -> Iterator[Case]:
    """Sums of the keys over their positions."""
    layer, sizes = LOW_RANK_ATTENTION, SIZES
    yield from shortened_cases(layer, LOW_RANK)
    base, case = partial(drawn_tensors, layer.method("call")), partial(layer_case, layer.name, config=LOW_RANK)
    full = open_inputs(base(sizes), sizes)
    dropout = draws.dropout_mask(layer.name, (sizes["batch"], sizes["queries"], sizes["rank"]), 0.3, SEED)
    shows = "Dropout acts on the weights; the returned ones are those before dropout."
    yield case("dropout", shows, {**full, "dropout_mask": dropout})
    every = {**sizes, "keys": sizes["num_positions"]}
    yield case("every_position", "As many keys as positions.", open_inputs(base(every), every), dtypes=EXACT)
    large = {**full, "valid_lens": BATCH_LENS}
    large["queries"] = 4.0 * (draws.integers("large.queries", full["queries"].shape, 11, SEED) - 5)
    large["keys"] = 500.0 * (draws.integers("large.keys", full["keys"].shape, 201, SEED) - 100)
    some = {name: np.eye(3, 8) + np.eye(3, 8, 4) for name in "EF"}
    yield case("large", "Scores to ±2e6 with gaps of 1000 and more.", large, parameters=some)


def cases() -> Iterator[Case]:
    """Every case of a memory that is shorter than the input."""
    yield from low_rank_cases()
