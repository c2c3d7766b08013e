"""Cases of attention to a memory that is shorter than the input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators.compressed import COMPRESSED_ATTENTION, INDUCED_ATTENTION, LOW_RANK_ATTENTION
from attention_core.specification import Layer
from parity_tests.cases.masking import ATTENTION, BATCH_LENS, EMPTY, some_mask, with_hidden
from parity_tests.format.case import DTYPES, EXACT, SEED, Arrays, Case, Sizes, drawn_tensors, layer_case
from parity_tests.format.families import Family

SIZES = {**ATTENTION, "rank": 3, "heads": 13, "num_inducing": 4}
LOW_RANK = {"num_positions": 8, "rank": 3}
COMPRESSED = {"query_size": 9, "key_size": 10, "stride": 2, "value_size": 11}
INDUCED = {"query_size": 9, "num_heads": 3, "num_inducing": 4, "key_size": 10, "value_size": 11, "hidden_size": 12}
_WIDE = ("gather.W_q", "gather.W_k", "gather.W_v", "gather.W_o", "spread.W_q", "spread.W_k")
APART = {"inducing": 6.0, **dict.fromkeys(_WIDE, 3.0)}
"""Factors of parameters with which inducing points differ in what they gather, and in their weights."""
NONE_OPEN = np.array([5, -1], np.int32)
"""Lengths that leave the second sequence without an open key."""


def row_mask(sizes: Sizes, heads: bool = False) -> np.ndarray:
    """A drawn mask that is the same for all queries, with an open key in every row."""
    return some_mask({**sizes, "queries": 1}, heads)


def open_inputs(plain: Arrays, sizes: Sizes) -> Arrays:
    """The inputs with lengths and a mask that change nothing."""
    lens, mask = np.full(sizes["batch"], sizes["keys"], np.int32), np.ones((sizes["batch"], 1, sizes["keys"]), bool)
    return {**plain, "valid_lens": lens, "mask": mask}


def shortened_cases(layer: Layer, config: Mapping[str, Any], wide: Mapping[str, float] | None = None) -> Iterator[Case]:
    """What the layers that shorten keys and values have in common."""
    base, sizes = partial(drawn_tensors, layer.method("call")), SIZES
    case = partial(layer_case, layer.name, config=config, wide=wide)
    plain = base(sizes)
    full = open_inputs(plain, sizes)
    masked = {**full, "mask": row_mask(sizes)}
    yield case("none", "Neither lengths nor mask.", plain)
    yield case("open", "Lengths and a mask that change nothing.", full, dtypes=DTYPES)
    yield case("ragged", "One length for each sequence.", {**plain, "valid_lens": BATCH_LENS}, dtypes=EXACT)
    yield case("mask", "A boolean mask.", {**plain, "mask": row_mask(sizes)}, dtypes=EXACT)
    both = {**masked, "valid_lens": BATCH_LENS}
    yield case("lens_and_mask", "Lengths and a mask combine by and.", both, dtypes=DTYPES)
    yield case("fully_masked", "A sequence without an open key.", {**masked, "valid_lens": NONE_OPEN})
    for word, value in (("NaN", np.nan), ("inf", np.inf)):
        hidden = with_hidden({**full, "valid_lens": BATCH_LENS}, value, BATCH_LENS)
        yield case(f"hidden_{word.lower()}", f"{word} in keys and values that are hidden.", hidden)
    for label, shows, axis, size in EMPTY:
        small = {**sizes, axis: size}
        yield case(label, shows, open_inputs(base(small), small), dtypes=EXACT)
    context = {"need_weights": False}
    yield case("context", "The context alone.", both, options=context)


def heads_cases(layer: Layer, config: Mapping[str, Any]) -> Iterator[Case]:
    """What the layers that have a scale, and take keys and values with heads, have in common."""
    base, case = partial(drawn_tensors, layer.method("call")), partial(layer_case, layer.name, config=config)
    plain, mask = {**base(SIZES, heads=True), "valid_lens": BATCH_LENS}, row_mask(SIZES, heads=True)
    mask[1, 4] = False
    yield case("heads", "Heads, with one length for each sequence.", plain, dtypes=EXACT)
    yield case("heads_mask", "Heads, each with its own mask, and one without an open key.", {**plain, "mask": mask})
    yield case("scale", "Another scale.", open_inputs(base(SIZES), SIZES), config={**config, "scale": 0.375})


def low_rank_cases() -> Iterator[Case]:
    """Sums of the keys over their positions."""
    layer, sizes = LOW_RANK_ATTENTION, SIZES
    yield from shortened_cases(layer, LOW_RANK)
    yield from heads_cases(layer, LOW_RANK)
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


def induced_cases() -> Iterator[Case]:
    """Inducing points between queries and keys."""
    layer, sizes = INDUCED_ATTENTION, SIZES
    yield from shortened_cases(layer, INDUCED, APART)
    case = partial(layer_case, layer.name, config=INDUCED, wide=APART)
    full = open_inputs(drawn_tensors(layer.method("call"), sizes), sizes)
    axes = {"gather_dropout_mask": ("num_inducing", "keys"), "dropout_mask": ("queries", "num_inducing")}
    for name, steps in axes.items():
        shape = sizes["batch"], 3, *(sizes[axis] for axis in steps)
        dropout = draws.dropout_mask(f"{layer.name}/{name}", shape, 0.3, SEED)
        shows = "Dropout of what the inducing points gather." if "gather" in name else "Dropout of what queries get."
        yield case(name.removesuffix("_mask"), shows, {**full, name: dropout})
    same = {"query_size": 9, "num_heads": 3, "num_inducing": 4}
    alike = {name: draws.uniform(f"induced/{name}", (2, 7, 9), 1.0, SEED) for name in ("keys", "values")}
    yield case("one_size", "All of one size, the default.", {**full, **alike}, config=same)


def compressed_cases() -> Iterator[Case]:
    """Blocks of two keys, of which the last is not full."""
    layer, sizes = COMPRESSED_ATTENTION, SIZES
    yield from shortened_cases(layer, COMPRESSED)
    yield from heads_cases(layer, COMPRESSED)
    base, case = partial(drawn_tensors, layer.method("call")), partial(layer_case, layer.name, config=COMPRESSED)
    full = open_inputs(base(sizes), sizes)
    dropout = draws.dropout_mask(layer.name, (sizes["batch"], sizes["queries"], 4), 0.3, SEED)
    shows = "Dropout acts on the weights; the returned ones are those before dropout."
    yield case("dropout", shows, {**full, "dropout_mask": dropout})
    mask = np.stack([np.arange(7) % 2 == 0, np.arange(7) // 2 != 1])[:, None]
    yield case("block_masked", "Blocks of which one key is open, or none.", {**full, "mask": mask})
    yield case("no_bias", "Convolutions without biases.", full, config={**COMPRESSED, "bias": False})
    one = {**COMPRESSED, "stride": 1}
    yield case("stride_of_one", "A block for each key.", {**full, "valid_lens": BATCH_LENS}, config=one, dtypes=EXACT)
    whole = {**sizes, "keys": 6}
    yield case("whole_blocks", "Keys that fill their blocks.", open_inputs(base(whole), whole), dtypes=EXACT)
    same = {name: size for name, size in COMPRESSED.items() if name != "value_size"}
    values = draws.uniform("compressed/values", (2, 7, 10), 1.0, SEED)
    yield case("one_size", "Values of the size of keys, the default.", {**full, "values": values}, config=same)


FAMILIES = (
    Family((LOW_RANK_ATTENTION.name,), low_rank_cases),
    Family((INDUCED_ATTENTION.name,), induced_cases),
    Family((COMPRESSED_ATTENTION.name,), compressed_cases),
)
