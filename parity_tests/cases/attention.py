"""Cases of masks, scores, pooling and attention layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators import find
from attention_core.operators.attention import ALIKE_SCORES, SCORE_NAMES
from attention_core.specification import Layer, Operator
from parity_tests.cases.case import (
    DTYPES,
    EXACT,
    FULL,
    SEED,
    SEEDS,
    Arrays,
    Case,
    Sizes,
    drawn_parameters,
    drawn_tensors,
)

ATTENTION = {
    "batch": 2,
    "heads": 3,
    "features": 4,
    "queries": 5,
    "value_features": 6,
    "keys": 7,
    "hidden_size": 8,
    "query_size": 9,
    "key_size": 10,
    "value_size": 11,
    "positions": 8,
    "key_features": 10,
}
SIZED = {"query_size": 9, "key_size": 10}
HIDDEN = {**SIZED, "hidden_size": 8}


ROW_LENS = np.array([[7, 3, 1, 5, 6], [2, 7, 4, 1, 3]], np.int32)
BATCH_LENS = np.array([3, 6], np.int32)
CLOSED_LENS = np.array([[7, 0, 3, -2, 9], [2, 7, 4, 1, 0]], np.int32)


def open_mask(sizes: Sizes, heads: bool = False) -> np.ndarray:
    """Everything may be attended to."""
    return np.ones((sizes["batch"], *([sizes["heads"]] if heads else []), sizes["queries"], sizes["keys"]), bool)


def some_mask(sizes: Sizes, heads: bool = False) -> np.ndarray:
    """A drawn mask in which every query may attend to something."""
    mask = draws.integers("mask", open_mask(sizes, heads).shape, 2, SEED) > 0
    for query in range(sizes["queries"]):
        mask[..., query, query % sizes["keys"]] = True
    return mask


def closed_mask(sizes: Sizes, heads: bool = False) -> np.ndarray:
    """A drawn mask with one row that is closed."""
    mask = some_mask(sizes, heads)
    mask[1, ..., 2, :] = False
    return mask


def full_lens(sizes: Sizes) -> np.ndarray:
    """Lengths that hide nothing, one for each query."""
    return np.full((sizes["batch"], sizes["queries"]), sizes["keys"], np.int32)


def hidden_keys(sizes: Sizes) -> np.ndarray:
    """Lengths that hide the same keys from every query of a sequence."""
    return np.repeat(BATCH_LENS[:, None], sizes["queries"], axis=1)


def attention_mask_cases() -> Iterator[Case]:
    """Lengths and masks alone, and together."""
    sizes, options = ATTENTION, {"num_keys": ATTENTION["keys"]}

    def case(name: str, shows: str, options: Mapping[str, Any] = options, **inputs: np.ndarray) -> Case:
        return Case("attention_mask", name, shows, inputs, options, dtypes=EXACT, gradients=False)

    yield case("lens", "One length for each sequence.", valid_lens=BATCH_LENS)
    yield case("lens_int64", "Lengths of another integer type.", valid_lens=BATCH_LENS.astype(np.int64))
    yield case("row_lens", "One length for each query.", valid_lens=ROW_LENS)
    yield case("closed", "Lengths of 0, below 0 and beyond the keys.", valid_lens=CLOSED_LENS)
    yield case("mask", "A mask alone comes back as it is.", mask=some_mask(sizes))
    yield case(
        "mask_column",
        "A mask whose axes of size 1 stand for all keys and queries.",
        mask=np.array([[[True]], [[False]]]),
    )
    yield case("lens_and_mask", "Lengths and a mask combine by and.", valid_lens=BATCH_LENS, mask=some_mask(sizes))
    yield case("row_lens_and_mask", "Lengths of rows and a mask.", valid_lens=ROW_LENS, mask=some_mask(sizes))
    yield case("heads", "Lengths apply to all heads of a mask.", valid_lens=ROW_LENS, mask=some_mask(sizes, True))
    yield case("no_keys", "There are no keys.", options={"num_keys": 0}, valid_lens=BATCH_LENS)


def open_inputs(plain: Arrays, sizes: Sizes, dropout: bool) -> Arrays:
    """The inputs with every optional argument given as a full array that changes nothing."""
    full = {**plain, "valid_lens": full_lens(sizes), "mask": open_mask(sizes)}
    if dropout:
        full["dropout_mask"] = np.ones((sizes["batch"], sizes["queries"], sizes["keys"]))
    return full


def rule_cases() -> Iterator[Case]:
    """The rules that make masks, and how masks combine."""
    sizes = {"num_queries": ATTENTION["queries"], "num_keys": ATTENTION["keys"]}

    def case(operator: str, name: str, shows: str, options: Mapping[str, Any], **inputs: np.ndarray) -> Case:
        return Case(operator, name, shows, inputs, options, dtypes=EXACT, gradients=False)

    rules: dict[str, dict[str, Any]] = {
        "causal_mask": {},
        "window_mask": {"left": 2, "right": 1},
        "block_mask": {"size": 3},
        "stride_mask": {"stride": 3},
    }
    for operator, own in rules.items():
        yield case(operator, "plain", "More keys than queries.", {**sizes, **own})
        yield case(operator, "offset", "Queries that stand behind keys of a cache.", {**sizes, **own, "offset": 2})
        yield case(operator, "short", "Fewer keys than queries.", {**own, "num_queries": 8, "num_keys": 6})
        yield case(operator, "no_keys", "There are no keys.", {**sizes, "num_keys": 0, **own})
        yield case(operator, "no_queries", "There are no queries.", {**sizes, "num_queries": 0, **own})
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
        yield case(
            operator,
            "heads",
            "A mask with heads, and one row for all of them.",
            {},
            first=with_heads,
            second=other[:, None, :1],
        )


FILLS = (-1e4, -65504.0, -1e9, -3.4028234663852886e38, -1.7976931348623157e308, -np.inf, 0.0)
"""What others add to the score of a hidden key, and what they add to that of an open one."""


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
    yield additive(
        "fills", "Fills of -1e4, of -1e9, and of each type's least number.", fills * np.ones((2, 1, 1)), DTYPES
    )
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

    def turned(name: str, shows: str, mask: np.ndarray, dtype: str = "float64", **options: Any) -> Case:
        return case("to_additive_mask", name, shows, {"mask": mask}, {"dtype": dtype, **options}, (dtype,))

    yield case("to_additive_mask", "default", "float32 and -inf.", {"mask": some}, dtypes=("float32",))
    for dtype in DTYPES:
        yield turned(dtype, f"-inf in {dtype}.", some, dtype)
        yield turned(f"finite_{dtype}", f"The least finite number of {dtype}.", some, dtype, finite=True)
    yield turned("closed", "A query that may attend to nothing.", closed_mask(sizes))
    yield turned("heads", "A mask for each head.", in_heads)
    yield turned("row", "One row for all heads and queries.", in_heads[:, :1, :1])
    for label, shows, mask in empty(some):
        yield turned(label, shows, mask)


EMPTY = (
    ("one_key", "A single key.", "keys", 1),
    ("no_keys", "There are no keys: every query is closed.", "keys", 0),
    ("no_queries", "There are no queries.", "queries", 0),
    ("no_batch", "There are no sequences.", "batch", 0),
)


def masked_variants(
    sizes: Sizes, base: Callable[[Sizes, bool], Arrays], dropout: bool = False
) -> Iterator[tuple[str, str, Arrays, Any]]:
    """Name, sentence, inputs and dtypes of what every operator with lengths and a mask is asked; base draws the rest.

    What differs in the shape of an argument alone asks for the formula, not for the arithmetic: float64 is enough.
    """
    plain = base(sizes, False)
    full = open_inputs(plain, sizes, dropout)
    yield "none", "Neither lengths nor mask.", plain, FULL
    yield "open", "Lengths and masks that change nothing.", full, DTYPES
    yield "ragged", "One length for each sequence.", {**plain, "valid_lens": BATCH_LENS}, EXACT
    yield "ragged_rows", "One length for each query.", {**full, "valid_lens": ROW_LENS}, FULL
    yield "mask", "A boolean mask.", {**full, "mask": some_mask(sizes)}, FULL
    yield (
        "mask_row",
        "A mask with one row for all queries, and no lengths.",
        {**plain, "mask": some_mask({**sizes, "queries": 1})},
        EXACT,
    )
    yield (
        "lens_and_mask",
        "Lengths and a mask combine by and; fully masked rows appear.",
        {**full, "valid_lens": ROW_LENS, "mask": some_mask(sizes)},
        DTYPES,
    )
    yield (
        "closed",
        "Queries that may attend to nothing, by length 0, below 0, and by the mask.",
        {**full, "valid_lens": CLOSED_LENS, "mask": closed_mask(sizes)},
        FULL,
    )
    with_heads = base(sizes, True)
    yield "heads", "Heads, with one length for each sequence.", {**with_heads, "valid_lens": BATCH_LENS}, EXACT
    yield (
        "heads_mask",
        "Heads, each with its own mask, and lengths of rows.",
        {**with_heads, "valid_lens": ROW_LENS, "mask": some_mask(sizes, True)},
        FULL,
    )
    for name, shows, axis, size in EMPTY:
        small = {**sizes, axis: size}
        yield name, shows, open_inputs(base(small, False), small, dropout=False), EXACT


def with_hidden(inputs: Arrays, value: float, keys: np.ndarray) -> Arrays:
    """The inputs with `value` in every key, value and score from each sequence's length on."""
    spoilt = {name: array.copy() for name, array in inputs.items()}
    for batch, length in enumerate(keys):
        for name in ("keys", "values", "encoder_outputs"):
            if name in spoilt:
                spoilt[name][batch, length:] = value
        if "scores" in spoilt:
            spoilt["scores"][batch, :, length:] = value
    return spoilt


def hidden_variants(full: Arrays, sizes: Sizes) -> Iterator[tuple[str, str, Arrays]]:
    """NaN and inf where no query may attend."""
    hidden = {**full, "valid_lens": hidden_keys(sizes)}
    yield (
        "hidden_nan",
        "NaN in keys, values and scores that no query may attend to.",
        with_hidden(hidden, np.nan, BATCH_LENS),
    )
    yield (
        "hidden_inf",
        "inf in keys, values and scores that no query may attend to.",
        with_hidden(hidden, np.inf, BATCH_LENS),
    )


GAPS = {25: DTYPES, 80: FULL, 700: FULL}
"""How far scores lie apart: weights down to 1e-11, near the least normal float32, and near the least normal float64."""


def gap_cases(name: str, full: Arrays) -> Iterator[Case]:
    """Scores so far apart that weights span many orders; without gradients, which are what cancelling leaves."""
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


def masked_softmax_cases() -> Iterator[Case]:
    """Weights over the keys."""
    sizes = ATTENTION
    operator = find("masked_softmax")
    assert isinstance(operator, Operator)

    def base(sizes: Sizes, heads: bool) -> Arrays:
        return drawn_tensors(operator, sizes, heads)

    for name, shows, inputs, dtypes in masked_variants(sizes, base):
        yield Case(operator.name, name, shows, inputs, dtypes=dtypes)
    full = open_inputs(base(sizes, False), sizes, dropout=False)
    for name, shows, inputs in hidden_variants(full, sizes):
        yield Case(operator.name, name, shows, inputs)
    scores, mask = large_scores(sizes)
    yield Case(
        operator.name,
        "large",
        "Scores to ±2e6; a finite fill would win over the first row.",
        {**full, "scores": scores, "mask": mask},
    )
    yield from gap_cases(operator.name, full)
    yield Case(
        operator.name,
        "infinite",
        "Scores of -inf count as hidden, a whole row of them as closed.",
        {**full, "scores": infinite_scores(full["scores"])},
    )


def score_cases(name: str) -> Iterator[Case]:
    """A score function."""
    operator = find(name)
    assert isinstance(operator, Operator)
    sizes = ATTENTION

    def case(name: str, shows: str, inputs: Arrays, dtypes: tuple[str, ...] = FULL, **options: Any) -> Case:
        return Case(operator.name, name, shows, inputs, options, dtypes=dtypes)

    plain = drawn_tensors(operator, sizes)
    yield case("plain", "Queries and keys.", plain, DTYPES)
    yield case("heads", "Queries and keys with heads.", drawn_tensors(operator, sizes, heads=True))
    yield case(
        "large",
        "Features in the hundreds.",
        {key: array * (1.0 if key == "w_v" else 300.0) for key, array in plain.items()},
    )
    if name in ("scaled_dot_score", "cosine_score"):
        yield case("scale", "A scale of its own.", plain, scale=0.375)
    if name == "gaussian_score":
        yield case("width", "A width of its own.", {**plain, "w": np.array(0.625)})
    if name == "cosine_score":
        zeros = {key: array.copy() for key, array in plain.items()}
        zeros["queries"][0, 1], zeros["keys"][1, 2] = 0.0, 0.0
        yield case("zero", "A query and a key of zeros have no direction: score 0, gradient 0.", zeros)
        for label, size in (("tiny", 1e-30), ("huge", 1e30)):
            shows = f"Entries near {size:g}, whose squares float32 does not hold."
            yield case(label, shows, {key: size * array for key, array in plain.items()})
    features = "hidden_size" if name == "additive_score" else "features"
    for label, shows, axis, size in (
        ("one_key", "A single key.", "keys", 1),
        ("no_keys", "There are no keys.", "keys", 0),
        ("no_queries", "There are no queries.", "queries", 0),
        ("no_batch", "There are no sequences.", "batch", 0),
        ("no_features", "There are no features: every score is 0.", features, 0),
    ):
        yield case(label, shows, drawn_tensors(operator, {**sizes, axis: size}), EXACT)


def location_cases() -> Iterator[Case]:
    """Scores from the query alone."""
    operator = find("location_score")
    assert isinstance(operator, Operator)
    sizes = ATTENTION
    full = {"num_keys": sizes["keys"]}
    plain = drawn_tensors(operator, sizes)
    yield Case(operator.name, "plain", "Fewer keys than positions.", plain, full, dtypes=DTYPES)
    yield Case(
        operator.name, "heads", "Projected queries with heads.", drawn_tensors(operator, sizes, heads=True), full
    )
    yield Case(operator.name, "all", "A key for every position.", plain, {"num_keys": 8}, dtypes=EXACT)
    yield Case(operator.name, "no_keys", "There are no keys.", plain, {"num_keys": 0}, dtypes=EXACT)
    for name, shows, axis in (
        ("no_queries", "There are no queries.", "queries"),
        ("no_batch", "There are no sequences.", "batch"),
    ):
        yield Case(operator.name, name, shows, drawn_tensors(operator, {**sizes, axis: 0}), full, dtypes=EXACT)


def pooling_cases() -> Iterator[Case]:
    """From scores and values to context and weights."""
    sizes = ATTENTION
    operator = find("attention_pooling")
    assert isinstance(operator, Operator)

    def base(sizes: Sizes, heads: bool) -> Arrays:
        return drawn_tensors(operator, sizes, heads)

    for name, shows, inputs, dtypes in masked_variants(sizes, base, dropout=True):
        yield Case(operator.name, name, shows, inputs, dtypes=dtypes)
    full = open_inputs(base(sizes, False), sizes, dropout=True)
    for name, shows, inputs in hidden_variants(full, sizes):
        yield Case(operator.name, name, shows, inputs)
    scores, mask = large_scores(sizes)
    yield Case(
        operator.name,
        "large",
        "Scores to ±2e6; a finite fill would win over the first row.",
        {**full, "scores": scores, "mask": mask},
    )
    yield from gap_cases(operator.name, full)
    values = full["values"].copy()
    values[1, 2] = np.nan
    yield Case(
        operator.name,
        "infinite",
        "Scores of -inf count as hidden; NaN in a value that all of them hide.",
        {**full, "scores": infinite_scores(full["scores"]), "values": values},
    )
    dropped = draws.dropout_mask(operator.name, full["scores"].shape, 0.3, SEED)
    yield Case(
        operator.name,
        "dropout",
        "Dropout acts on the weights; those returned are from before it.",
        {**full, "dropout_mask": dropped},
    )


BRIEF = ("open", "lens_and_mask", "closed", "heads_mask", "no_keys", "no_queries", "no_batch")
"""What a layer is asked whose score, or whose mode, another entry is asked in full."""


def attention_layer_cases(
    name: str, config: Mapping[str, Any], prefix: str = "", parameters: Arrays | None = None, sizes: Sizes = ATTENTION
) -> Iterator[Case]:
    """A layer that takes queries, keys and values; with a prefix, the brief list of a variant of it."""
    layer = find(name)
    assert isinstance(layer, Layer)
    given = {**drawn_parameters(layer, config), **(parameters or {})}
    call = layer.method("call")
    own = {tensor.name: tensor for tensor in call.keyword_tensors}
    in_heads = "heads" in own["dropout_mask"].axes if "dropout_mask" in own else False

    def case(label: str, shows: str, inputs: Arrays, **changes: Any) -> Case:
        made = Case(name, prefix + label, shows, inputs, method="call", config=config, parameters=given)
        return replace(made, **changes)

    def base(sizes: Sizes, heads: bool) -> Arrays:
        return drawn_tensors(call, sizes, heads)

    def whole(inputs: Arrays, sizes: Sizes) -> Arrays:
        """The inputs, where they hold every optional argument, with the layer's own ones."""
        if "dropout_mask" not in inputs:
            return inputs
        rest = {key: array for key, array in inputs.items() if key != "dropout_mask"}
        neutral: dict[str, Callable[[tuple[int, ...]], np.ndarray]] = {
            "dropout_mask": np.ones,
            "head_mask": np.ones,
            "offset": lambda shape: np.zeros(shape, np.int32),
        }
        for key, tensor in own.items():
            if key in neutral and not (key == "offset" and config.get("mode") == "predictive"):
                rest[key] = neutral[key](
                    tuple(sizes[axis.removesuffix("?")] for axis in tensor.axes if axis != "heads?")
                )
        return rest

    for label, shows, inputs, dtypes in masked_variants(sizes, base, dropout=True):
        if (prefix and label not in BRIEF) or (label == "heads" and "heads?" not in call.tensors[0].axes):
            continue
        yield case(label, shows, whole(inputs, sizes), dtypes=dtypes)
    full = whole(open_inputs(base(sizes, False), sizes, dropout=True), sizes)
    for label, shows, inputs in hidden_variants(full, sizes):
        yield case(label, shows, inputs)
    if not prefix and name not in UNBOUNDED:
        inputs, changed = large_layer_inputs(name, full, given)
        yield case("large", "Scores to ±2e6 with gaps of 1000 and more.", inputs, parameters=changed)
    for gap in (25, 80) if not prefix and name in SPREAD else ():
        yield wide(case(f"gap_{gap}", f"Scores up to {gap} apart.", full, gradients=False), gap)
    if "dropout_mask" in own:
        shape = tuple(sizes[axis] for axis in ("batch", *(["heads"] if in_heads else []), "queries", "keys"))
        dropped = draws.dropout_mask(name, shape, 0.3, SEED)
        yield case(
            "dropout",
            "Dropout acts on the weights; those returned are from before it.",
            {**full, "dropout_mask": dropped},
        )
    turned = {
        key: array.swapaxes(0, 1).copy() if key in ("queries", "keys", "values") else array
        for key, array in full.items()
    }
    yield case(
        "time_major",
        "Queries, keys, values and context as (steps, batch, features).",
        {**turned, "valid_lens": CLOSED_LENS, "mask": closed_mask(sizes)},
        config={**config, "time_major": True},
        dtypes=EXACT,
    )
    if prefix:
        return
    acting = {
        name: array
        for name, array in {
            "dropout_mask": dropped if "dropout_mask" in own else None,
            "offset": np.array([2, 1], np.int32),
            "noise": 0.5 * (draws.uniform("noise", (sizes["batch"], sizes["queries"], sizes["keys"]), 1.0, SEED) + 1.0),
            "head_mask": np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]]),
        }.items()
        if name in own and array is not None
    }
    yield case(
        "prepared",
        "Prepare, then attend: the same as a call.",
        {**base(sizes, False), "valid_lens": CLOSED_LENS, "mask": closed_mask(sizes), **acting},
        method="attend",
        options={"per_head": True} if name == "MultiHeadAttention" else {},
    )
    yield case(
        "prepared_none",
        "Prepare, then attend, with neither lengths nor mask.",
        base(sizes, False),
        method="attend",
        dtypes=EXACT,
    )
    wanted = {key: array for key, array in acting.items() if key != "dropout_mask"}
    yield from context_cases(name, case, base, wanted, given)
    if "scale" in {option.name for option in layer.options}:
        yield case("scale", "A scale of its own.", full, config={**config, "scale": 0.375})


def context_cases(
    name: str,
    case: Callable[..., Case],
    base: Callable[[Sizes, bool], Arrays],
    acting: Arrays,
    parameters: Arrays,
) -> Iterator[Case]:
    """The context alone: in full of DotProductAttention, in brief where the score is another inner product."""
    sizes = ATTENTION

    def alone(label: str, shows: str, inputs: Arrays, **changes: Any) -> Case:
        return case(
            f"context_{label}", f"The context alone. {shows}", inputs, options={"need_weights": False}, **changes
        )

    full = open_inputs(base(sizes, False), sizes, dropout=False)
    mixed = {**full, "valid_lens": CLOSED_LENS, "mask": closed_mask(sizes), **acting}
    yield alone("closed", "Queries that may attend to nothing.", mixed)
    yield alone("prepared", "Prepare, then attend.", mixed, method="attend", dtypes=EXACT)
    if name not in ("DotProductAttention", "GeneralAttention", "MultiHeadAttention"):
        return
    for label, shows, inputs, dtypes in masked_variants(sizes, base):
        in_heads = label == "heads" and name == "MultiHeadAttention"
        if label != "closed" and not in_heads and (label in BRIEF or name == "DotProductAttention"):
            yield alone(label, shows, inputs, dtypes=dtypes)
    for label, shows, inputs in hidden_variants(full, sizes):
        yield alone(label, shows, inputs)
    if name == "DotProductAttention":
        inputs, _ = large_layer_inputs(name, full, parameters)
        yield alone("large", "Scores to ±2e6 with gaps of 1000 and more.", inputs)
        ragged, with_heads = {**full, "valid_lens": hidden_keys(sizes)}, {**base(sizes, True), "valid_lens": BATCH_LENS}
        yield alone("inference", "No gradient is asked for.", ragged, gradients=False)
        yield alone("inference_heads", "Nor one of heads.", with_heads, gradients=False, dtypes=EXACT)
        yield alone("scale", "A scale of its own.", full, config={"scale": 0.375})
        low = {"queries": np.abs(inputs["queries"]) + 4.0, "keys": -np.abs(inputs["keys"]) - 5000.0}
        yield alone("low", "Scores from -4e4 down, with gaps of 1000 and more.", {**inputs, **low})
        kernel = {**sizes, "queries": 3, "keys": 39, "features": 64}
        yield alone("block", "64 features, few queries, and keys that fill no block.", base(kernel, False))


UNBOUNDED = ("CosineAttention", "LocalAttention", "HardAttention", "MultiHeadAttention")
"""Layers without a case of large scores: those of cosines are bounded; the others score as a layer that has one."""


def score_variants(query_size: int, default: str) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Every score but the default: its name, its constructor's arguments, and the key size it asks for."""
    for score in SCORE_NAMES:
        if score == default:
            continue
        extra = {"additive": {"hidden_size": 8}, "concat": {"hidden_size": 8}, "location": {"num_positions": 8}}
        alike = score in ALIKE_SCORES
        yield score, {"score": score, **extra.get(score, {})}, query_size if alike else ATTENTION["key_size"]


def seeded(case: Case, seed: int) -> Case:
    """The case with queries of that seed."""
    queries = draws.uniform(f"{case.operator}/queries", case.inputs["queries"].shape, 1.0, seed)
    return replace(case, inputs={**case.inputs, "queries": queries})


def decides(case: Case) -> bool:
    """Whether a choice or a window depends on the numbers of a case."""
    predicted = case.config.get("mode") == "predictive"
    return case.operator == "HardAttention" or (case.operator == "LocalAttention" and predicted)


def decided(cases: Iterator[Case]) -> Iterator[Case]:
    """The cases with queries that rounding cannot turn to another choice or window."""
    return (seeded(case, SEEDS.get(case.id, 1)) if decides(case) else case for case in cases)


def kernel_cases() -> Iterator[Case]:
    """A Gaussian kernel, whose inverse width is learned, given, or 1."""
    layer = find("KernelAttention")
    assert isinstance(layer, Layer)
    yield from attention_layer_cases("KernelAttention", {"learned": True}, parameters={"w": np.array(0.625)})
    full = open_inputs(drawn_tensors(layer.method("call"), ATTENTION), ATTENTION, dropout=True)
    for label, shows, config in (
        ("constant", "A kernel of width 1, which is no parameter.", {}),
        ("width", "A width of its own, which is no parameter.", {"width": 0.375}),
    ):
        yield Case("KernelAttention", label, shows, full, method="call", config=config)


def local_cases() -> Iterator[Case]:
    """A window around the query's position, and around one that it predicts."""
    layer = find("LocalAttention")
    assert isinstance(layer, Layer)
    monotonic = {**SIZED, "window": 1}
    yield from attention_layer_cases("LocalAttention", monotonic)
    call, sizes = layer.method("call"), ATTENTION
    plain = drawn_tensors(call, sizes)
    full: Arrays = {
        **open_inputs(plain, sizes, dropout=True),
        "offset": np.array([2, 1], np.int32),
        "valid_lens": ROW_LENS,
    }

    def case(label: str, shows: str, config: Mapping[str, Any], inputs: Arrays = full, **changes: Any) -> Case:
        parameters = drawn_parameters(layer, config)
        if "v_p" in parameters:  # wide, so that the predicted positions differ
            parameters["v_p"] = 8.0 * parameters["v_p"]
        made = Case("LocalAttention", label, shows, inputs, method="call", config=config, parameters=parameters)
        return replace(made, **changes)

    yield case("offset", "Queries that stand behind others.", monotonic)
    yield case("wide", "A wider window.", {**monotonic, "window": 2})
    predictive = {**SIZED, "window": 2, "mode": "predictive"}
    own = case("", "", predictive).parameters
    yield from attention_layer_cases("LocalAttention", predictive, "predictive_", own)
    without = {key: array for key, array in full.items() if key != "offset"}
    yield case("predictive_none", "Neither lengths nor mask.", predictive, plain, dtypes=EXACT)
    yield case("predictive_hidden_size", "Another hidden size.", {**predictive, "hidden_size": 8}, without)
    yield case("predictive_wide", "A wider window, and Gaussian.", {**predictive, "window": 3}, without)
    for score, config, key_size in score_variants(9, "general"):
        inputs = {**full, "keys": draws.uniform(f"local/{score}", (*plain["keys"].shape[:2], key_size), 1.0, SEED)}
        options = {**monotonic, "key_size": key_size, **config}
        yield case(f"score_{score}", f"The score {score} inside.", options, inputs, dtypes=EXACT)


def hard_cases() -> Iterator[Case]:
    """One key for each query."""
    layer = find("HardAttention")
    assert isinstance(layer, Layer)

    def wide(config: Mapping[str, Any], factor: float = 3.0) -> Arrays:
        """Wide scores, whose best two lie apart."""
        parameters = drawn_parameters(layer, config)
        return {
            name: array * (factor if name in ("scored.w_v", "scored.v", "scored.W") else 1.0)
            for name, array in parameters.items()
        }

    yield from attention_layer_cases("HardAttention", HIDDEN, parameters=wide(HIDDEN))
    call, sizes = layer.method("call"), ATTENTION
    plain = drawn_tensors(call, sizes)
    full = open_inputs(plain, sizes, dropout=False)
    noise = 0.5 * (draws.uniform("noise", (sizes["batch"], sizes["queries"], sizes["keys"]), 1.0, SEED) + 1.0)

    def case(label: str, shows: str, config: Mapping[str, Any], inputs: Arrays, dtypes: tuple[str, ...] = FULL) -> Case:
        return Case("HardAttention", label, shows, inputs, {}, "call", config, wide(config), dtypes)

    drawn_key = case("noise", "A key drawn by given noise.", HIDDEN, {**full, "noise": noise})
    drawn_key = replace(drawn_key, parameters=wide(HIDDEN, 1.0))
    yield drawn_key
    masked = {**full, "noise": noise, "valid_lens": CLOSED_LENS, "mask": closed_mask(sizes)}
    yield replace(drawn_key, name="noise_closed", shows="The same under lengths and a mask.", inputs=masked)
    for score, config, key_size in score_variants(9, "additive"):
        keys = draws.uniform(f"hard/{score}", (*plain["keys"].shape[:2], key_size), 1.0, SEED)
        options = {"query_size": 9, "key_size": key_size, **config}
        yield case(f"score_{score}", f"The score {score} inside.", options, {**full, "keys": keys}, EXACT)


def regression_cases() -> Iterator[Case]:
    """Kernel regression on points of a line."""
    layer = find("NadarayaWatson")
    assert isinstance(layer, Layer)
    operator, sizes = layer.method("call"), ATTENTION
    points = {name: 2.0 * array for name, array in drawn_tensors(operator, sizes).items()}
    full = {**points, "valid_lens": full_lens(sizes), "mask": open_mask(sizes)}
    learned: dict[str, Any] = {"learned": True}
    own = {"kernel.w": np.array(1.625)}

    def case(
        label: str,
        shows: str,
        inputs: Arrays,
        dtypes: tuple[str, ...] = FULL,
        config: Mapping[str, Any] = learned,
        parameters: Arrays = own,
    ) -> Case:
        return Case(layer.name, label, shows, inputs, {}, "call", config, parameters, dtypes)

    yield case("none", "Neither lengths nor mask.", points, EXACT)
    yield case("open", "Lengths and a mask that change nothing.", full, DTYPES)
    yield case("ragged", "Samples of different sizes.", {**full, "valid_lens": hidden_keys(sizes)}, DTYPES)
    yield case(
        "closed",
        "Queries that may look at nothing.",
        {**full, "valid_lens": CLOSED_LENS, "mask": closed_mask(sizes)},
    )
    for label, shows, inputs in hidden_variants(full, sizes):
        yield case(label, shows, inputs)
    yield case("constant", "A kernel of width 1.", full, FULL, {}, {})
    yield case("width", "A width of its own.", full, FULL, {"width": 0.375}, {})
    for label, shows, axis, size in EMPTY:
        small = {**sizes, axis: size}
        inputs = {**drawn_tensors(operator, small), "valid_lens": full_lens(small), "mask": open_mask(small)}
        yield case(label, shows, inputs, EXACT)


HEADS = {"query_size": 9, "num_heads": 3, "key_size": 10, "value_size": 11, "hidden_size": 12}


def heads_cases() -> Iterator[Case]:
    """Several heads, each with its own projections."""
    layer = find("MultiHeadAttention")
    assert isinstance(layer, Layer)
    yield from attention_layer_cases("MultiHeadAttention", HEADS)
    sizes = ATTENTION
    shape = (sizes["batch"], sizes["heads"])
    full: Arrays = {
        **open_inputs(drawn_tensors(layer.method("call"), sizes), sizes, dropout=False),
        "valid_lens": ROW_LENS,
        "head_mask": np.ones(shape),
        "dropout_mask": np.ones((*shape, sizes["queries"], sizes["keys"])),
    }

    def case(label: str, shows: str, config: Mapping[str, Any], inputs: Arrays = full, **changes: Any) -> Case:
        parameters = drawn_parameters(layer, config)
        made = Case("MultiHeadAttention", label, shows, inputs, {}, "call", config, parameters)
        return replace(made, **changes)

    per_head = {"per_head": True}
    yield case("per_head", "The weights of every head.", HEADS, options=per_head)
    own_masks = {**full, "mask": some_mask(sizes, heads=True)}
    yield case("per_head_mask", "A mask for each head, and its weights.", HEADS, own_masks, options=per_head)
    factors = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]])
    yield case("head_mask", "Heads that are off for a sequence.", HEADS, {**full, "head_mask": factors})
    yield case("head_mask_row", "Heads that are off for all.", HEADS, {**full, "head_mask": factors[0]}, dtypes=EXACT)
    yield case("no_bias", "Projections without biases.", {**HEADS, "bias": False})
    same = {"query_size": 9, "num_heads": 3}
    keys, values = (draws.uniform(f"heads/{name}", (2, 7, 9), 1.0, SEED) for name in ("keys", "values"))
    yield case(
        "one_size", "All of one size, as when nothing else is said.", same, {**full, "keys": keys, "values": values}
    )
    for score, config, _ in score_variants(4, "scaled_dot"):
        options = {**HEADS, **{name: value for name, value in config.items() if name != "hidden_size"}}
        yield case(f"score_{score}", f"The score {score} in every head.", options, dtypes=EXACT)


def importance_cases() -> Iterator[Case]:
    """How much a head matters, for squared errors of outputs that the heads add up to."""
    batch, heads, outputs = 4, 3, 5
    arrays = {
        "head_mask": np.ones((batch, heads)),
        "losses.heads": draws.uniform("losses.heads", (heads, outputs), 1.0, SEED),
        "losses.targets": draws.uniform("losses.targets", (batch, outputs), 1.0, SEED),
        "losses.weights": 0.5 * (draws.uniform("losses.weights", (outputs,), 1.0, SEED) + 1.5),
    }
    cut = {**arrays, "head_mask": np.array([[1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 1.0, 0.5], [1.0, 1.0, 0.0]])}
    for operator in ("ablation_importance", "taylor_importance"):
        yield Case(operator, "plain", "All heads are on.", arrays, dtypes=DTYPES, gradients=False)
        yield Case(operator, "cut", "Some heads are off already.", cut, gradients=False)


def position_cases() -> Iterator[Case]:
    """Positions that are added to inputs."""
    sizes = {"batch": 2, "steps": 5, "features": 8}

    def inputs(sizes: Sizes) -> Arrays:
        return {"inputs": draws.uniform("positions", (sizes["batch"], sizes["steps"], sizes["features"]), 1.0, SEED)}

    for name, config, far in (
        ("SinusoidalPositions", {"features": 8}, 9_998),
        ("LearnedPositions", {"num_positions": 7, "features": 8}, 2),
    ):
        layer = find(name)
        assert isinstance(layer, Layer)

        def case(
            label: str,
            shows: str,
            inputs: Arrays,
            dtypes: tuple[str, ...],
            changed: Mapping[str, Any] | None = None,
            options: Mapping[str, Any] | None = None,
            layer: Layer = layer,
            config: Mapping[str, Any] = config,
        ) -> Case:
            own = {**config, **(changed or {})}
            return Case(
                layer.name, label, shows, inputs, options or {}, "call", own, drawn_parameters(layer, own), dtypes
            )

        yield case("plain", "The first positions.", inputs(sizes), DTYPES)
        yield case(
            "offset",
            "Positions from an offset to the last, or to 10,002.",
            inputs(sizes),
            FULL,
            options={"offset": far},
        )
        if name == "SinusoidalPositions":
            concatenated = {"layout": "concatenated"}
            yield case("concatenated", "Sines first, then cosines.", inputs(sizes), FULL, concatenated)
        for axis, label, shows in (
            ("steps", "no_steps", "There are no steps."),
            ("batch", "no_batch", "There are no sequences."),
        ):
            yield case(label, shows, inputs({**sizes, axis: 0}), EXACT)
    for features in (8, 2):
        yield Case(
            "position_permutation",
            f"of_{features}",
            "Interleaved to concatenated.",
            {},
            {"features": features},
            dtypes=EXACT,
            gradients=False,
        )


def large_layer_inputs(name: str, full: Arrays, parameters: Arrays) -> tuple[Arrays, Arrays]:
    """Inputs and parameters that give scores to ±2e6, exact in float32: rounding cannot move a saturated softmax."""
    given: Arrays = {**full, "mask": some_mask(ATTENTION)}
    if name == "LocationAttention":
        given["queries"] = 1000.0 * (draws.integers("large.queries", full["queries"].shape, 4001, SEED) - 2000)
        return given, {"W": np.eye(8, 9)}
    if name == "KernelAttention":  # the distances of whole numbers
        given["queries"] = 16.0 * (draws.integers("large.queries", full["queries"].shape, 3, SEED) - 1)
        given["keys"] = 256.0 * (draws.integers("large.keys", full["keys"].shape, 7, SEED) - 3)
        return given, {"w": np.array(1.0)}
    if name in ("DotProductAttention", "GeneralAttention"):
        given["queries"] = 4.0 * (draws.integers("large.queries", full["queries"].shape, 11, SEED) - 5)
        given["keys"] = 500.0 * (draws.integers("large.keys", full["keys"].shape, 201, SEED) - 100)
        return given, {key: np.eye(len(matrix), matrix.shape[-1]) for key, matrix in parameters.items()}
    given["keys"] = 100.0 * (2 * draws.integers("large.keys", full["keys"].shape, 2, SEED) - 1)
    hidden, key_size = ATTENTION["hidden_size"], ATTENTION["key_size"]
    changed: Arrays = {"w_v" if name == "AdditiveAttention" else "v": 8000.0 * 2.0 ** np.arange(hidden)}
    if name == "AdditiveAttention":
        changed |= {"W_q": parameters["W_q"], "W_k": np.eye(hidden, key_size)}
    else:
        changed["W"] = np.concatenate([parameters["W"][:, :-key_size], np.eye(hidden, key_size)], axis=1)
    return given, {key: changed[key] for key in parameters}


SPREAD = {
    "DotProductAttention": ("queries", 1.25),
    "AdditiveAttention": ("w_v", 0.55),
    "GeneralAttention": ("W", 1.6),
    "ConcatAttention": ("v", 0.3),
    "CosineAttention": ("scale", 1.85),
    "LocationAttention": ("W", 1.6),
    "KernelAttention": ("w", 1.1),
}
"""The input, parameter or option by which the scores of a layer grow, and how far they lie apart in its open case."""


def wide(case: Case, gap: float) -> Case:
    """The case with scores that lie so far apart."""
    name, apart = SPREAD[case.operator]
    factor = gap / apart
    if name in case.inputs:
        return replace(case, inputs={**case.inputs, name: factor * case.inputs[name]})
    if name in case.parameters:  # a width is squared
        factor = factor**0.5 if name == "w" else factor
        return replace(case, parameters={**case.parameters, name: factor * case.parameters[name]})
    return replace(case, config={**case.config, name: factor})


def cases() -> Iterator[Case]:
    """Every case of masks, scores, pooling, attention layers and positions."""
    yield from attention_mask_cases()
    yield from rule_cases()
    yield from converted_mask_cases()
    yield from masked_softmax_cases()
    for name in ("dot_score", "scaled_dot_score", "additive_score", "cosine_score", "gaussian_score"):
        yield from score_cases(name)
    yield from location_cases()
    yield from pooling_cases()
    yield from attention_layer_cases("DotProductAttention", {})
    yield from attention_layer_cases("AdditiveAttention", HIDDEN)
    yield from attention_layer_cases("GeneralAttention", SIZED)
    yield from attention_layer_cases("ConcatAttention", HIDDEN)
    yield from attention_layer_cases("CosineAttention", {})
    yield from attention_layer_cases("LocationAttention", {"query_size": 9, "num_positions": 8})
    yield from kernel_cases()
    yield from decided(local_cases())
    yield from decided(hard_cases())
    yield from regression_cases()
    yield from heads_cases()
    yield from importance_cases()
    yield from position_cases()
