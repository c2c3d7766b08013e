"""Cases of masks and of the masked softmax, and the sizes, lengths and masks that all cases of attention share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators.masking import MASKED_SOFTMAX
from attention_core.specification import Operator
from parity_tests.format.case import DTYPES, EXACT, FULL, SEED, Arrays, Case, Sizes, drawn_tensors, dtypes_naming
from parity_tests.format.families import Family

ATTENTION = {
    "batch": 2,
    "heads": 3,
    "key_heads": 3,
    "features": 4,
    "queries": 5,
    "value_features": 6,
    "keys": 7,
    "hidden_size": 8,
    "query_size": 9,
    "key_size": 10,
    "value_size": 11,
    "positions": 8,
    "num_positions": 8,
    "key_features": 10,
}

SIZED = {"query_size": 9, "key_size": 10}

HIDDEN = {**SIZED, "hidden_size": 8}

ROW_LENS = np.array([[7, 3, 1, 5, 6], [2, 7, 4, 1, 3]], np.int32)

BATCH_LENS = np.array([3, 6], np.int32)

FULLY_MASKED_LENS = np.array([[7, 0, 3, -2, 9], [2, 7, 4, 1, 0]], np.int32)


def open_mask(sizes: Sizes, heads: bool = False) -> np.ndarray:
    """Everything may be attended to."""
    return np.ones((sizes["batch"], *([sizes["heads"]] if heads else []), sizes["queries"], sizes["keys"]), bool)


def some_mask(sizes: Sizes, heads: bool = False) -> np.ndarray:
    """A drawn mask in which every query may attend to something."""
    mask = draws.integers("mask", open_mask(sizes, heads).shape, 2, SEED) > 0
    for query in range(sizes["queries"]):
        mask[..., query, query % sizes["keys"]] = True
    return mask


def fully_masked(sizes: Sizes, heads: bool = False) -> np.ndarray:
    """A drawn mask with one fully masked row."""
    mask = some_mask(sizes, heads)
    mask[1, ..., 2, :] = False
    return mask


def full_lens(sizes: Sizes) -> np.ndarray:
    """Lengths that hide nothing, one for each query."""
    return np.full((sizes["batch"], sizes["queries"]), sizes["keys"], np.int32)


FULLY_MASKED: Arrays = {"valid_lens": FULLY_MASKED_LENS, "mask": fully_masked(ATTENTION)}
"""Lengths and a mask that hide every key from some queries."""
HIDDEN_KEYS = np.repeat(BATCH_LENS[:, None], ATTENTION["queries"], axis=1)
"""Lengths that hide the same keys from every query of a sequence."""


def attention_mask_cases() -> Iterator[Case]:
    """Lengths and masks alone, and together."""
    sizes, options = ATTENTION, {"num_keys": ATTENTION["keys"]}

    def case(name: str, shows: str, options: Mapping[str, Any] = options, **inputs: np.ndarray) -> Case:
        return Case("attention_mask", name, shows, inputs, options, dtypes=EXACT, gradients=False)

    yield case("lens", "One length for each sequence.", valid_lens=BATCH_LENS)
    yield case("lens_int64", "Lengths of another integer type.", valid_lens=BATCH_LENS.astype(np.int64))
    yield case("row_lens", "One length for each query.", valid_lens=ROW_LENS)
    yield case("fully_masked", "Lengths of 0, below 0 and beyond the keys.", valid_lens=FULLY_MASKED_LENS)
    yield case("mask", "A mask alone comes back as it is.", mask=some_mask(sizes))
    column = np.array([[[True]], [[False]]])
    yield case("mask_column", "A mask whose axes of size 1 stand for all keys and queries.", mask=column)
    yield case("lens_and_mask", "Lengths and a mask combine by and.", valid_lens=BATCH_LENS, mask=some_mask(sizes))
    yield case("row_lens_and_mask", "Lengths of rows and a mask.", valid_lens=ROW_LENS, mask=some_mask(sizes))
    yield case("heads", "Lengths apply to all heads of a mask.", valid_lens=ROW_LENS, mask=some_mask(sizes, True))
    yield case("no_keys", "There are no keys.", options={"num_keys": 0}, valid_lens=BATCH_LENS)


def open_inputs(plain: Arrays, sizes: Sizes, dropout: bool = False) -> Arrays:
    """The inputs with every optional argument given as a full array that changes nothing."""
    full = {**plain, "valid_lens": full_lens(sizes), "mask": open_mask(sizes)}
    if dropout:
        full["dropout_mask"] = np.ones((sizes["batch"], sizes["queries"], sizes["keys"]))
    return full


RULES: dict[str, dict[str, Any]] = {
    "causal_mask": {},
    "window_mask": {"left": 2, "right": 1},
    "block_mask": {"size": 3},
    "stride_mask": {"stride": 3},
}
"""The functions that make a mask by a rule, with options."""


def rule_cases() -> Iterator[Case]:
    """The rules that make masks, and how masks combine."""
    sizes = {"num_queries": ATTENTION["queries"], "num_keys": ATTENTION["keys"]}

    def case(operator: str, name: str, shows: str, options: Mapping[str, Any], **inputs: np.ndarray) -> Case:
        return Case(operator, name, shows, inputs, options, dtypes=EXACT, gradients=False)

    for operator, rule in RULES.items():
        yield case(operator, "plain", "More keys than queries.", {**sizes, **rule})
        shows = "Queries behind the keys of a cache."
        yield case(operator, "offset", shows, {**sizes, **rule}, offset=np.array(2, np.int32))
        shows = "An offset for each sequence; before the first key, too."
        yield case(operator, "offsets", shows, {**sizes, **rule}, offset=np.array([4, -3, 0], np.int32))
        yield case(operator, "short", "Fewer keys than queries.", {**rule, "num_queries": 8, "num_keys": 6})
        yield case(operator, "no_keys", "There are no keys.", {**sizes, "num_keys": 0, **rule})
        yield case(operator, "no_queries", "There are no queries.", {**sizes, "num_queries": 0, **rule})
    yield case("window_mask", "left", "A window that ends at the query.", {**sizes, "left": 3, "right": 0})
    yield case("window_mask", "right", "A window that begins at the query.", {**sizes, "left": 0, "right": 3})
    yield case("block_mask", "ones", "Blocks of one position.", {**sizes, "size": 1})
    yield case("stride_mask", "one", "A stride of 1 hides nothing.", {**sizes, "stride": 1})
    queries = draws.integers("global_queries", (ATTENTION["batch"], ATTENTION["queries"]), 3, SEED) == 0
    keys = draws.integers("global_keys", (ATTENTION["batch"], ATTENTION["keys"]), 3, SEED) == 0
    yield case("global_mask", "plain", "Some queries and some keys.", {}, global_queries=queries, global_keys=keys)
    yield case("global_mask", "no_keys", "There are no keys.", {}, global_queries=queries, global_keys=keys[:, :0])
    first, other = some_mask(ATTENTION), ~some_mask({**ATTENTION, "batch": 1})
    with_heads = some_mask(ATTENTION, heads=True)
    for operator in ("mask_and", "mask_or"):
        yield case(operator, "plain", "Two masks, one of them for all sequences.", {}, first=first, second=other)
        row = other[:, None, :1]
        yield case(
            operator, "heads", "A mask with heads, and one row for all of them.", {}, first=with_heads, second=row
        )


CONVERSIONS = ("from_key_padding_mask", "to_key_padding_mask", "from_additive_mask", "to_additive_mask")
FILLS = (-1e4, -65504.0, -1e9, -3.4028234663852886e38, -1.7976931348623157e308, -np.inf, 0.0)
"""Numbers that other libraries add to the score of a hidden key, and last to that of an open one."""


def converted_mask_cases() -> Iterator[Case]:
    """Masks of other conventions: True for hidden, or numbers that are added to the scores."""
    sizes = ATTENTION
    some, in_heads = some_mask(sizes), some_mask(sizes, heads=True)
    row = some_mask({**sizes, "queries": 1})

    def case(
        operator: str,
        name: str,
        shows: str,
        inputs: Arrays,
        options: Mapping[str, Any] | None = None,
        dtypes: tuple[str, ...] = EXACT,
    ) -> Case:
        return Case(operator, name, shows, inputs, options or {}, dtypes=dtypes, gradients=False)

    def second_sequence(mask: np.ndarray) -> np.ndarray:
        return np.arange(2).reshape((2,) + (1,) * (mask.ndim - 1)) > 0

    def empty(mask: np.ndarray) -> Iterator[tuple[str, str, np.ndarray]]:
        yield "one_key", "A single key, hidden in one sequence.", np.zeros_like(mask[..., :1]) | second_sequence(mask)
        yield "no_keys", "There are no keys.", mask[..., :0]
        if mask.shape[-2] > 2:
            yield "no_queries", "There are no queries.", mask[..., :0, :]
        yield "no_batch", "There are no sequences.", mask[:0]

    for operator, name, plain in (
        ("from_key_padding_mask", "key_padding_mask", ~row[:, 0]),
        ("to_key_padding_mask", "mask", row),
    ):
        yield case(operator, "plain", "Some keys are hidden.", {name: plain})
        full = plain | second_sequence(plain)
        yield case(operator, "full", "One sequence whose keys are all alike.", {name: full})
        yield case(operator, "one_sequence", "A batch of one.", {name: plain[:1]})
        for label, shows, mask in empty(plain):
            yield case(operator, label, shows, {name: mask})

    def additive(name: str, shows: str, array: np.ndarray, dtypes: Any = EXACT, **options: float) -> Case:
        return case("from_additive_mask", name, shows, {"additive_mask": array}, options, dtypes)

    bias = draws.uniform("bias", some.shape, 9000.0, SEED)
    fills = np.array(FILLS)[(np.arange(sizes["queries"])[:, None] + np.arange(sizes["keys"])) % len(FILLS)]
    levels = draws.uniform("levels", some.shape, 1.0, SEED)
    levels[:, :, 3] = -2 / 3
    special = np.where(some, np.inf, np.nan)
    special[1] = np.where(in_heads[1, 0], 0.0, np.nan)
    zero_or_inf = {axes: np.where(mask, 0.0, -np.inf) for axes, mask in (("plain", some), ("heads", in_heads))}
    yield additive("plain", "0 for an open key, -inf for a hidden one.", zero_or_inf["plain"], DTYPES)
    fills = fills * np.ones((2, 1, 1))
    yield additive("fills", "Fills of -1e4, of -1e9, and of each type's least number.", fills, DTYPES)
    yield additive("bias", "A bias of open keys, down to -9000.", np.where(some, bias, -np.inf), DTYPES)
    yield additive("threshold", "Another threshold, which some numbers meet.", levels, DTYPES, threshold=-2 / 3)
    low = np.where(some, -1e7, -1e9)
    low[..., 0] = 0.0
    yield additive("low_threshold", "A threshold that float16 does not reach.", low, DTYPES, threshold=-1e8)
    yield additive("not_finite", "inf is open and NaN hidden.", special)
    yield additive("heads", "A mask for each head.", zero_or_inf["heads"])
    yield additive("row", "One row for all heads and queries.", zero_or_inf["heads"][:, :1, :1])
    yield additive("one_sequence", "One mask for all sequences.", zero_or_inf["plain"][:1])
    for label, shows, mask in empty(some):
        yield additive(label, shows, np.where(mask, 0.0, -np.inf))

    def to_additive(name: str, shows: str, mask: np.ndarray, dtype: str = "float64", **options: Any) -> Case:
        return case("to_additive_mask", name, shows, {"mask": mask}, {"dtype": dtype, **options}, dtypes_naming(dtype))

    yield case("to_additive_mask", "default", "float32 and -inf.", {"mask": some}, dtypes=("float32",))
    for dtype in DTYPES:
        yield to_additive(dtype, f"-inf in {dtype}.", some, dtype)
        yield to_additive(f"finite_{dtype}", f"The least finite number of {dtype}.", some, dtype, finite=True)
    yield to_additive("fully_masked", "A query that may attend to nothing.", fully_masked(sizes))
    yield to_additive("heads", "A mask for each head.", in_heads)
    yield to_additive("row", "One row for all heads and queries.", in_heads[:, :1, :1])
    for label, shows, mask in empty(some):
        yield to_additive(label, shows, mask)


EMPTY = (
    ("one_key", "A single key.", "keys", 1),
    ("no_keys", "There are no keys: every row is fully masked.", "keys", 0),
    ("no_queries", "There are no queries.", "queries", 0),
    ("no_batch", "There are no sequences.", "batch", 0),
)


def masked_variants(
    base: Callable[[Sizes, bool], Arrays], neutral: Mapping[str, np.ndarray] | None = None
) -> Iterator[tuple[str, str, Arrays, Any]]:
    """Name, sentence, inputs and dtypes of the cases of every operator with lengths and a mask; base draws the rest.

    neutral holds other arguments, which change nothing; cases that leave lengths or the mask out leave out these, too.
    A case that varies only the shape of an argument checks the formula, not the arithmetic: float64 is enough.
    """
    sizes = ATTENTION
    plain = base(sizes, False)
    full = {**open_inputs(plain, sizes), **(neutral or {})}
    yield "none", "Neither lengths nor mask.", plain, FULL
    yield "open", "Lengths and masks that change nothing.", full, DTYPES
    yield "ragged", "One length for each sequence.", {**plain, "valid_lens": BATCH_LENS}, EXACT
    yield "ragged_rows", "One length for each query.", {**full, "valid_lens": ROW_LENS}, FULL
    yield "mask", "A boolean mask.", {**full, "mask": some_mask(sizes)}, FULL
    one_row = some_mask({**sizes, "queries": 1})
    yield "mask_row", "A mask with one row for all queries, and no lengths.", {**plain, "mask": one_row}, EXACT
    both = {"valid_lens": ROW_LENS, "mask": some_mask(sizes)}
    yield "lens_and_mask", "Lengths and a mask combine by and; fully masked rows appear.", {**full, **both}, DTYPES
    shows = "Queries that may attend to nothing, by length 0, below 0, and by the mask."
    yield "fully_masked", shows, {**full, **FULLY_MASKED}, FULL
    with_heads = base(sizes, True)
    yield "heads", "Heads, with one length for each sequence.", {**with_heads, "valid_lens": BATCH_LENS}, EXACT
    both = {"valid_lens": ROW_LENS, "mask": some_mask(sizes, True)}
    yield "heads_mask", "Heads, each with its own mask, and lengths of rows.", {**with_heads, **both}, FULL
    for name, shows, axis, size in EMPTY:
        small = {**sizes, axis: size}
        yield name, shows, open_inputs(base(small, False), small), EXACT


def with_hidden(inputs: Arrays, value: float, keys: np.ndarray) -> Arrays:
    """The inputs with `value` in every key, value and score from each sequence's length on."""
    changed = {name: array.copy() for name, array in inputs.items()}
    for batch, length in enumerate(keys):
        for name in {"keys", "values", "encoder_outputs"} & set(changed):
            changed[name][batch, length:] = value
        if "scores" in changed:
            changed["scores"][batch, :, length:] = value
    return changed


def hidden_variants(full: Arrays) -> Iterator[tuple[str, str, Arrays]]:
    """NaN and inf where no query may attend."""
    hidden = {**full, "valid_lens": HIDDEN_KEYS}
    for word, value in (("NaN", np.nan), ("inf", np.inf)):
        shows = f"{word} in keys, values and scores that no query may attend to."
        yield f"hidden_{word.lower()}", shows, with_hidden(hidden, value, BATCH_LENS)


GAPS = {25: DTYPES, 80: FULL, 700: FULL}
"""Distances of scores: weights go down to 1e-11, near the least normal float32, and near the least normal float64."""


def gap_cases(name: str, full: Arrays) -> Iterator[Case]:
    """Scores so far apart that weights span many orders of magnitude; no gradients, which would be rounding."""
    for gap, dtypes in GAPS.items():
        inputs = {**full, "scores": 0.5 * gap * full["scores"]}
        yield Case(name, f"gap_{gap}", f"Scores up to {gap} apart.", inputs, dtypes=dtypes, gradients=False)


def large_scores(sizes: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Scores to ±2e6 whose gaps are 0 or at least 1000, and a mask: the first row's open scores all lie near -2e6."""
    shape = (sizes["batch"], sizes["queries"], sizes["keys"])
    scores = 1000.0 * (draws.integers("large", shape, 4001, SEED) - 2000)
    mask = some_mask(sizes)
    scores[..., 3] = scores[..., 1]
    scores[0, 0] = np.where(mask[0, 0], -2e6, 2e6)
    return scores, mask


def infinite_scores(scores: np.ndarray) -> np.ndarray:
    """Scores with -inf here and there, in one whole row, and for one key in every row of a sequence."""
    scores = scores.copy()
    scores[0, 1, :] = -np.inf
    scores[1, :, 2] = -np.inf
    scores[:, 4, 3:6] = -np.inf
    return scores


def normalised_cases(operator: Operator, dropout: bool = False) -> Iterator[Case]:
    """The cases of every operator that normalises input scores: masks, hidden entries, large scores and wide gaps."""

    def base(sizes: Sizes, heads: bool) -> Arrays:
        return drawn_tensors(operator, sizes, heads)

    sizes = ATTENTION
    full = open_inputs(base(sizes, False), sizes, dropout)
    neutral = {name: array for name, array in full.items() if name == "dropout_mask"}
    for name, shows, inputs, dtypes in masked_variants(base, neutral):
        yield Case(operator.name, name, shows, inputs, dtypes=dtypes)
    for name, shows, inputs in hidden_variants(full):
        yield Case(operator.name, name, shows, inputs)
    scores, mask = large_scores(sizes)
    shows = "Scores to ±2e6; a finite fill would win over the first row."
    yield Case(operator.name, "large", shows, {**full, "scores": scores, "mask": mask})
    yield from gap_cases(operator.name, full)


def masked_softmax_cases() -> Iterator[Case]:
    """Weights over the keys."""
    operator, sizes = MASKED_SOFTMAX, ATTENTION
    yield from normalised_cases(operator)
    full = open_inputs(drawn_tensors(operator, sizes), sizes)
    shows = "Scores of -inf count as hidden, a whole row of them as fully masked."
    yield Case(operator.name, "infinite", shows, {**full, "scores": infinite_scores(full["scores"])})


FAMILIES = (
    Family(("attention_mask",), attention_mask_cases),
    Family((*RULES, "global_mask", "mask_and", "mask_or"), rule_cases),
    Family(CONVERSIONS, converted_mask_cases),
    Family((MASKED_SOFTMAX.name,), masked_softmax_cases),
)
