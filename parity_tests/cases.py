"""The cases: what is asked of every implementation, as data.

A case is one call of one operator: its options, its inputs, its parameters. Arrays are drawn in float64 and rounded to
the dtype of the tier in which the case runs. All axes have different sizes, so that a swapped axis cannot pass; lengths
and masks are full arrays of one shape wherever the case allows it, so that a compiled function serves many cases.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import ml_dtypes
import numpy as np

from attention_core import draws, reference
from attention_core.errors import dtype_name
from attention_core.operators import LAYERS, OPERATORS, find
from attention_core.specification import FLOATING, Layer, Operator, Tensor
from parity_tests import text
from parity_tests.found import FOUND

Arrays = dict[str, np.ndarray]
Sizes = Mapping[str, int]

EXACT = ("float64",)
FULL = ("float64", "float32")
TIERS = (*FULL, "float16", "bfloat16")
"""Whether the formula is the same (float64), and whether the arithmetic is good: half tiers ask a few cases alone."""
SEED = 0
NAMES = (*(operator.name for operator in OPERATORS), *(layer.name for layer in LAYERS), "sentences")


@dataclass(frozen=True)
class Case:
    """One call: what it shows, the layer's constructor arguments and method, the options, the arrays, and the tiers."""

    operator: str
    name: str
    shows: str
    inputs: Arrays
    options: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    parameters: Arrays = field(default_factory=dict)
    tiers: tuple[str, ...] = FULL
    gradients: bool = True

    @property
    def id(self) -> str:
        """The name by which the command line knows the case."""
        return f"{self.operator}-{self.name}"

    def at(self, tier: str) -> tuple[Arrays, Arrays]:
        """Inputs and parameters, rounded to the tier's dtype."""
        return _rounded(self.inputs, tier), _rounded(self.parameters, tier)


def _rounded(arrays: Arrays, tier: str) -> Arrays:
    with np.errstate(over="ignore"):  # what stands hidden may be beyond the tier: it becomes inf
        return {name: array.astype(tier) if is_floating(array) else array for name, array in arrays.items()}


def is_floating(array: np.ndarray) -> bool:
    """Whether the array holds floating numbers; NumPy itself does not count bfloat16 among them."""
    return dtype_name(array.dtype) in FLOATING


def epsilon(tier: str) -> float:
    """The distance from 1 to the next number of the tier."""
    return float(ml_dtypes.finfo(tier).eps)  # type: ignore[no-untyped-call]


def all_cases(pairs: Sequence[text.Pair] | None = None) -> list[Case]:
    """Every case, in the order of the specification, with the sentences of `pairs` or of the generated dates."""
    return list(_made(tuple(pairs or text.dates(8))))


@functools.cache
def _made(pairs: tuple[text.Pair, ...]) -> tuple[Case, ...]:
    made = [
        *attention_mask_cases(),
        *rule_cases(),
        *masked_softmax_cases(),
        *score_cases("dot_score"),
        *score_cases("scaled_dot_score"),
        *score_cases("additive_score"),
        *score_cases("cosine_score"),
        *location_cases(),
        *score_cases("gaussian_score"),
        *pooling_cases(),
        *attention_layer_cases("DotProductAttention", {}),
        *attention_layer_cases("AdditiveAttention", {"query_size": 9, "key_size": 10, "hidden_size": 8}),
        *attention_layer_cases("GeneralAttention", {"query_size": 9, "key_size": 10}),
        *attention_layer_cases("ConcatAttention", {"query_size": 9, "key_size": 10, "hidden_size": 8}),
        *attention_layer_cases("CosineAttention", {}),
        *gru_cases(),
        *encoder_cases(),
        *decoder_cases(),
        *sentence_cases(pairs),
        *found_cases(),
    ]
    order = {name: position for position, name in enumerate(NAMES)}
    return tuple(sorted(made, key=lambda case: order[case.operator]))


def select(cases: Sequence[Case], pattern: str | None = None, operators: Sequence[str] | None = None) -> list[Case]:
    """The cases whose id matches the pattern (with * and ?) and whose operator is among those given."""
    return [
        case
        for case in cases
        if (pattern is None or fnmatchcase(case.id, pattern)) and (not operators or case.operator in operators)
    ]


# ------------------------------------------------------------------------------------------------ attention

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
}

ROW_LENS = np.array([[7, 3, 1, 5, 6], [2, 7, 4, 1, 3]], np.int32)
BATCH_LENS = np.array([3, 6], np.int32)
CLOSED_LENS = np.array([[7, 0, 3, -2, 9], [2, 7, 4, 1, 0]], np.int32)


def drawn(tensor: Tensor, sizes: Sizes, label: str, heads: bool = False, bound: float = 1.0) -> np.ndarray:
    """Uniform numbers from -bound to bound in the tensor's shape."""
    axes = [axis.removesuffix("?") for axis in tensor.axes if heads or axis != "heads?"]
    return draws.uniform(f"{label}/{tensor.name}", tuple(sizes[axis] for axis in axes), bound, SEED)


def drawn_tensors(operator: Operator, sizes: Sizes, heads: bool = False) -> Arrays:
    """Every required floating argument of the operator, drawn."""
    return {
        tensor.name: drawn(tensor, sizes, operator.title, heads)
        for tensor in operator.tensors
        if tensor.kind == "floating" and not tensor.optional
    }


def drawn_parameters(layer: Layer, config: Mapping[str, Any]) -> Arrays:
    """Every canonical array of a layer, drawn from -1/√n to 1/√n, n being the size that the specification names."""
    sizes = layer.sizes(config)
    fans = {parameter.name: sizes[parameter.fan_in] for parameter in layer.parameters}
    arrays = {}
    for name, shape in layer.shapes(sizes).items():
        pattern = ".".join("{layer}" if part.isdigit() else part for part in name.split("."))
        arrays[name] = draws.uniform(f"{layer.name}/{name}", shape, fans[pattern] ** -0.5, SEED)
    return arrays


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
        return Case("attention_mask", name, shows, inputs, options, tiers=EXACT, gradients=False)

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
        return Case(operator, name, shows, inputs, options, tiers=EXACT, gradients=False)

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


def masked_variants(
    sizes: Sizes, base: Callable[[Sizes, bool], Arrays], dropout: bool = False
) -> Iterator[tuple[str, str, Arrays, Any]]:
    """Name, sentence, inputs and tiers of what every operator with lengths and a mask is asked; base draws the rest.

    What differs in the shape of an argument alone asks for the formula, not for the arithmetic: float64 is enough.
    """
    plain = base(sizes, False)
    full = open_inputs(plain, sizes, dropout)
    yield "none", "Neither lengths nor mask.", plain, FULL
    yield "open", "Lengths and masks that change nothing.", full, TIERS
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
        "Lengths and a mask combine by and; closed rows appear.",
        {**full, "valid_lens": ROW_LENS, "mask": some_mask(sizes)},
        TIERS,
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
    for name, shows, axis, size in (
        ("one_key", "A single key.", "keys", 1),
        ("no_keys", "There are no keys: every query is closed.", "keys", 0),
        ("no_queries", "There are no queries.", "queries", 0),
        ("no_batch", "There are no sequences.", "batch", 0),
    ):
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

    for name, shows, inputs, tiers in masked_variants(sizes, base):
        yield Case(operator.name, name, shows, inputs, tiers=tiers)
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

    def case(name: str, shows: str, inputs: Arrays, tiers: tuple[str, ...] = FULL, **options: Any) -> Case:
        return Case(operator.name, name, shows, inputs, options, tiers=tiers)

    plain = drawn_tensors(operator, sizes)
    yield case("plain", "Queries and keys.", plain, TIERS)
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
    sizes = {**ATTENTION, "positions": 8}
    full = {"num_keys": sizes["keys"]}
    plain = drawn_tensors(operator, sizes)
    yield Case(operator.name, "plain", "Fewer keys than positions.", plain, full, tiers=TIERS)
    yield Case(
        operator.name, "heads", "Projected queries with heads.", drawn_tensors(operator, sizes, heads=True), full
    )
    yield Case(operator.name, "all", "A key for every position.", plain, {"num_keys": 8}, tiers=EXACT)
    yield Case(operator.name, "no_keys", "There are no keys.", plain, {"num_keys": 0}, tiers=EXACT)
    for name, shows, axis in (
        ("no_queries", "There are no queries.", "queries"),
        ("no_batch", "There are no sequences.", "batch"),
    ):
        yield Case(operator.name, name, shows, drawn_tensors(operator, {**sizes, axis: 0}), full, tiers=EXACT)


def pooling_cases() -> Iterator[Case]:
    """From scores and values to context and weights."""
    sizes = ATTENTION
    operator = find("attention_pooling")
    assert isinstance(operator, Operator)

    def base(sizes: Sizes, heads: bool) -> Arrays:
        return drawn_tensors(operator, sizes, heads)

    for name, shows, inputs, tiers in masked_variants(sizes, base, dropout=True):
        yield Case(operator.name, name, shows, inputs, tiers=tiers)
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


def attention_layer_cases(name: str, config: Mapping[str, Any]) -> Iterator[Case]:
    """A layer that takes queries, keys and values."""
    layer = find(name)
    assert isinstance(layer, Layer)
    sizes = ATTENTION
    parameters = drawn_parameters(layer, config)
    call = layer.method("call")

    def case(label: str, shows: str, inputs: Arrays, **changes: Any) -> Case:
        made = Case(name, label, shows, inputs, method="call", config=config, parameters=parameters)
        return replace(made, **changes)

    def base(sizes: Sizes, heads: bool) -> Arrays:
        return drawn_tensors(call, sizes, heads)

    for label, shows, inputs, tiers in masked_variants(sizes, base, dropout=True):
        yield case(label, shows, inputs, tiers=tiers)
    full = open_inputs(base(sizes, False), sizes, dropout=True)
    for label, shows, inputs in hidden_variants(full, sizes):
        yield case(label, shows, inputs)
    if name != "CosineAttention":  # whose scores no input makes large
        inputs, changed = large_layer_inputs(name, full, parameters)
        yield case("large", "Scores to ±2e6 with gaps of 1000 and more.", inputs, parameters=changed)
    dropped = draws.dropout_mask(name, (sizes["batch"], sizes["queries"], sizes["keys"]), 0.3, SEED)
    yield case(
        "dropout", "Dropout acts on the weights; those returned are from before it.", {**full, "dropout_mask": dropped}
    )
    yield case(
        "prepared",
        "Prepare, then attend: the same as a call.",
        {**base(sizes, False), "valid_lens": CLOSED_LENS, "mask": closed_mask(sizes)},
        method="attend",
    )
    yield case(
        "prepared_none",
        "Prepare, then attend, with neither lengths nor mask.",
        base(sizes, False),
        method="attend",
        tiers=EXACT,
    )
    if "scale" in {option.name for option in layer.options}:
        yield case("scale", "A scale of its own.", full, config={**config, "scale": 0.375})


def large_layer_inputs(name: str, full: Arrays, parameters: Arrays) -> tuple[Arrays, Arrays]:
    """Inputs and parameters that give scores to ±2e6, exact in float32: rounding cannot move a saturated softmax."""
    given: Arrays = {**full, "mask": some_mask(ATTENTION)}
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


# ------------------------------------------------------------------------------------------------ recurrent layers

RECURRENT = {"batch": 3, "steps": 7, "input_size": 4, "hidden_size": 5, "vocab_size": 11, "embed_size": 6}
STEP_LENS = np.array([7, 2, 4], np.int32)
CLOSED_STEPS = np.array([0, -3, 9], np.int32)


def recurrent_variants(
    sizes: Sizes, base: Callable[[Sizes], Arrays], state: Callable[[Sizes, int], np.ndarray]
) -> Iterator[tuple[str, str, int, Arrays, Any]]:
    """Name, sentence, number of layers, inputs and tiers of what every recurrent layer is asked."""

    def full(sizes: Sizes, layers: int) -> Arrays:
        between = (layers - 1, sizes["batch"], sizes["steps"], sizes["hidden_size"])
        lens = np.full(sizes["batch"], sizes["steps"], np.int32)
        return {**base(sizes), "valid_lens": lens, "state": state(sizes, layers), "dropout_mask": np.ones(between)}

    two = full(sizes, 2)
    yield "none", "Neither lengths nor a state nor a dropout mask.", 2, base(sizes), EXACT
    yield "open", "Lengths and a dropout mask that change nothing, and a state.", 2, two, TIERS
    yield "ragged", "Sequences of different lengths.", 2, {**two, "valid_lens": STEP_LENS}, TIERS
    yield "closed", "Lengths of 0, below 0 and beyond the steps.", 2, {**two, "valid_lens": CLOSED_STEPS}, FULL
    dropped = draws.dropout_mask("between", two["dropout_mask"].shape, 0.4, SEED)
    yield "dropout", "Dropout between the layers.", 2, {**two, "dropout_mask": dropped}, FULL
    six = {**sizes, "batch": 6}
    yield (
        "three_layers",
        "Three layers.",
        3,
        {**full(six, 3), "valid_lens": np.array([6, 1, 7, 3, 5, 2], np.int32)},
        EXACT,
    )
    long = {**base({**sizes, "steps": 50}), "state": state(sizes, 1)}
    yield (
        "many_steps",
        "Fifty steps of a single layer, and lengths from 1 to 50.",
        1,
        {**long, "valid_lens": np.array([50, 1, 23], np.int32)},
        FULL,
    )
    for name, shows, axis, size in (
        ("one_step", "A single step.", "steps", 1),
        ("no_steps", "There are no steps.", "steps", 0),
        ("no_batch", "There are no sequences.", "batch", 0),
    ):
        small = {**sizes, axis: size}
        lens = np.full(small["batch"], small["steps"], np.int32)
        yield name, shows, 1, {**base(small), "valid_lens": lens, "state": state(small, 1)}, EXACT


def drawn_state(sizes: Sizes, layers: int) -> np.ndarray:
    """A state before the first step."""
    return draws.uniform("state", (layers, sizes["batch"], sizes["hidden_size"]), 1.0, SEED)


def gru_cases() -> Iterator[Case]:
    """Stacked gated recurrent units over vectors."""
    sizes, layer = RECURRENT, find("GRU")
    assert isinstance(layer, Layer)

    def case(name: str, shows: str, layers: int, inputs: Arrays, tiers: tuple[str, ...], method: str = "call") -> Case:
        config = {"input_size": sizes["input_size"], "hidden_size": sizes["hidden_size"], "num_layers": layers}
        return Case("GRU", name, shows, inputs, {}, method, config, drawn_parameters(layer, config), tiers)

    def base(sizes: Sizes) -> Arrays:
        return {"inputs": draws.uniform("GRU/inputs", (sizes["batch"], sizes["steps"], sizes["input_size"]), 1.0, SEED)}

    for variant in recurrent_variants(sizes, base, drawn_state):
        yield case(*variant)
    between = (1, sizes["batch"], sizes["steps"], sizes["hidden_size"])
    inputs = {**base(sizes), "valid_lens": STEP_LENS, "state": drawn_state(sizes, 2), "dropout_mask": np.ones(between)}
    for name, value in (("hidden_nan", np.nan), ("hidden_inf", np.inf)):
        spoilt = inputs["inputs"].copy()
        for batch, length in enumerate(STEP_LENS):
            spoilt[batch, length:] = value
        yield case(name, f"{name[7:]} in the padded steps.", 2, {**inputs, "inputs": spoilt}, FULL)
    step = {"inputs": inputs["inputs"][:, 0], "state": inputs["state"]}
    dropped = draws.dropout_mask("between", (1, sizes["batch"], sizes["hidden_size"]), 0.4, SEED)
    yield case("step", "One step.", 2, step, EXACT, "step")
    yield case(
        "step_dropout",
        "One step, with dropout between the layers.",
        2,
        {**step, "dropout_mask": dropped},
        FULL,
        "step",
    )


def encoder_cases() -> Iterator[Case]:
    """Tokens through embedding and recurrent layers."""
    sizes = RECURRENT

    def base(sizes: Sizes) -> Arrays:
        return {"tokens": draws.integers("tokens", (sizes["batch"], sizes["steps"]), sizes["vocab_size"], SEED)}

    for variant in recurrent_variants(sizes, base, drawn_state):
        yield encoder_case(sizes, *variant)
    between = (1, sizes["batch"], sizes["steps"], sizes["hidden_size"])
    ragged = {**base(sizes), "valid_lens": STEP_LENS, "state": drawn_state(sizes, 2), "dropout_mask": np.ones(between)}
    yield encoder_case(
        sizes,
        "tokens_int64",
        "Tokens of another integer type.",
        2,
        {**ragged, "tokens": ragged["tokens"].astype(np.int64)},
        EXACT,
    )
    padding = np.arange(sizes["steps"]) >= STEP_LENS[:, None]
    tokens = np.where(padding, 0, np.maximum(ragged["tokens"], 1)).astype(np.int32)
    for name, value in (("hidden_nan", np.nan), ("hidden_inf", np.inf)):
        spoilt = encoder_case(
            sizes, name, f"The padding token is embedded as {name[7:]}.", 2, {**ragged, "tokens": tokens}, FULL
        )
        embedding = spoilt.parameters["embedding"].copy()
        embedding[0] = value
        yield replace(spoilt, parameters={**spoilt.parameters, "embedding": embedding})


def encoder_case(sizes: Sizes, name: str, shows: str, layers: int, inputs: Arrays, tiers: tuple[str, ...]) -> Case:
    """A call of the encoder."""
    layer = find("GRUEncoder")
    assert isinstance(layer, Layer)
    config = {key: sizes[key] for key in ("vocab_size", "embed_size", "hidden_size")} | {"num_layers": layers}
    return Case("GRUEncoder", name, shows, inputs, {}, "call", config, drawn_parameters(layer, config), tiers)


# ------------------------------------------------------------------------------------------------ decoders

DECODER = {
    "batch": 3,
    "embed_size": 4,
    "hidden_size": 5,
    "memory_size": 6,
    "keys": 7,
    "attention_size": 8,
    "steps": 9,
    "vocab_size": 11,
}
KEY_LENS = np.array([7, 2, 4], np.int32)
SPECIAL = {"bos": 1, "eos": 2}


def decoder_case(
    sizes: Sizes, name: str, shows: str, layers: int, inputs: Arrays, tiers: tuple[str, ...] = FULL, **changes: Any
) -> Case:
    """A call of the decoder."""
    layer = find("BahdanauDecoder")
    assert isinstance(layer, Layer)
    names = ("vocab_size", "embed_size", "hidden_size", "memory_size", "attention_size")
    config = {key: sizes[key] for key in names} | {"num_layers": layers}
    parameters = drawn_parameters(layer, config)
    # Wide score weights: with ±1/√n alone all keys would weigh nearly the same, and a wrong mask would hardly show.
    parameters["attention.w_v"] = 4.0 * parameters["attention.w_v"]
    made = Case("BahdanauDecoder", name, shows, inputs, {}, "call", config, parameters, tiers)
    return replace(made, **changes)


def decoder_inputs(sizes: Sizes, layers: int) -> Arrays:
    """Tokens, the encoder's outputs and a state."""
    return {
        "tokens": draws.integers("tokens", (sizes["batch"], sizes["steps"]), sizes["vocab_size"], SEED),
        "encoder_outputs": draws.uniform("memory", (sizes["batch"], sizes["keys"], sizes["memory_size"]), 1.0, SEED),
        "state": drawn_state(sizes, layers),
    }


def full_decoder_inputs(sizes: Sizes) -> Arrays:
    """The same with lengths and masks that change nothing."""
    rows = {**sizes, "queries": sizes["steps"]}
    return {
        **decoder_inputs(sizes, 2),
        "valid_lens": full_lens(rows),
        "mask": open_mask(rows),
        "dropout_mask": np.ones((1, sizes["batch"], sizes["steps"], sizes["hidden_size"])),
        "attention_dropout_mask": np.ones((sizes["batch"], sizes["steps"], sizes["keys"])),
    }


def decoder_cases() -> Iterator[Case]:
    """Teacher-forced passes, single steps and greedy decoding."""
    sizes = DECODER
    plain = decoder_inputs(sizes, 2)
    rows = {**sizes, "queries": sizes["steps"]}
    full = full_decoder_inputs(sizes)
    row_lens = draws.integers("row_lens", (sizes["batch"], sizes["steps"]), sizes["keys"], SEED) + np.int32(1)
    closed_lens = row_lens.copy()
    closed_lens[0, :3], closed_lens[1] = (0, -2, 9), 0

    def case(name: str, shows: str, layers: int, inputs: Arrays, tiers: tuple[str, ...] = FULL, **changes: Any) -> Case:
        return decoder_case(sizes, name, shows, layers, inputs, tiers, **changes)

    yield case("none", "Neither lengths nor any mask.", 2, plain, EXACT)
    yield case("open", "Lengths and masks that change nothing.", 2, full, TIERS)
    yield case("ragged", "One length for each sequence.", 2, {**plain, "valid_lens": KEY_LENS}, EXACT)
    yield case("ragged_rows", "One length for each step.", 2, {**full, "valid_lens": row_lens})
    yield case("mask", "A boolean mask for each step.", 2, {**full, "mask": some_mask(rows)}, TIERS)
    yield case(
        "mask_row", "A mask with one row for all steps.", 2, {**plain, "mask": some_mask({**rows, "queries": 1})}, EXACT
    )
    yield case(
        "closed",
        "Steps, and a whole sequence, that may attend to nothing.",
        2,
        {**full, "valid_lens": closed_lens, "mask": closed_mask(rows)},
    )
    hidden = {**full, "valid_lens": np.repeat(KEY_LENS[:, None], sizes["steps"], axis=1)}
    for name, value in (("hidden_nan", np.nan), ("hidden_inf", np.inf)):
        yield case(
            name, f"{name[7:]} in encoder outputs that no step may attend to.", 2, with_hidden(hidden, value, KEY_LENS)
        )
    yield large_decoder_case(sizes, full, some_mask(rows))
    between = draws.dropout_mask("between", (1, sizes["batch"], sizes["steps"], sizes["hidden_size"]), 0.4, SEED)
    weights = draws.dropout_mask("weights", (sizes["batch"], sizes["steps"], sizes["keys"]), 0.3, SEED)
    yield case(
        "dropout",
        "Dropout between the layers, and of the weights; those returned are from before it.",
        2,
        {**full, "dropout_mask": between, "attention_dropout_mask": weights},
    )
    four = {**sizes, "batch": 4, "vocab_size": 12}
    yield decoder_case(
        four,
        "three_layers",
        "Three layers.",
        3,
        {**decoder_inputs(four, 3), "valid_lens": np.array([7, 1, 4, 6], np.int32)},
        EXACT,
    )
    long = {**sizes, "steps": 50}
    yield decoder_case(
        long,
        "many_steps",
        "Fifty steps of a single layer, and sequences of very different lengths.",
        1,
        {**decoder_inputs(long, 1), "valid_lens": np.array([7, 1, 4], np.int32)},
    )
    for name, shows, axis, size in (
        ("one_key", "A single key.", "keys", 1),
        ("no_keys", "There are no keys: every step is closed.", "keys", 0),
        ("one_step", "A single step.", "steps", 1),
        ("no_steps", "There are no steps.", "steps", 0),
        ("no_batch", "There are no sequences.", "batch", 0),
    ):
        small = {**sizes, axis: size}
        rows = {**small, "queries": small["steps"]}
        inputs = {**decoder_inputs(small, 1), "valid_lens": full_lens(rows), "mask": open_mask(rows)}
        yield decoder_case(small, name, shows, 1, inputs, EXACT)
    step = {**plain, "tokens": plain["tokens"][:, 0], "valid_lens": KEY_LENS}
    yield case("step", "Prepare, then one step.", 2, step, EXACT, method="step")
    yield case(
        "step_dropout",
        "One step, with both dropouts.",
        2,
        {**step, "dropout_mask": between[:, :, 0], "attention_dropout_mask": weights[:, 0]},
        method="step",
    )
    yield greedy_case(sizes, "greedy", "Free-running, each sequence up to its end token.", plain, KEY_LENS, 9)
    long_greedy = greedy_case(sizes, "greedy_long", "Free-running over fifty steps.", plain, KEY_LENS, 50)
    yield replace(long_greedy, tiers=EXACT)


def large_decoder_case(sizes: Sizes, full: Arrays, mask: np.ndarray) -> Case:
    """Saturated scores to ±2e6 in every step, exact in float32."""
    signs = draws.integers("large.memory", full["encoder_outputs"].shape, 2, SEED)
    case = decoder_case(
        sizes,
        "large",
        "Scores to ±2e6 with gaps of 1000 and more.",
        2,
        {**full, "encoder_outputs": 100.0 * (2 * signs - 1), "mask": mask},
    )
    memory, attention = sizes["memory_size"], sizes["attention_size"]
    changed = {
        "attention.W_k": np.eye(attention, memory) + np.eye(attention, memory, -memory),
        "attention.w_v": 8000.0 * 2.0 ** np.arange(attention),
        # The context is ±100: small input weights keep the gates from saturating.
        "rnn.0.W": case.parameters["rnn.0.W"] * 2.0**-6,
    }
    return replace(case, parameters={**case.parameters, **changed})


GAP = 1e-3
MOST_READOUTS = 200


def greedy_case(sizes: Sizes, name: str, shows: str, inputs: Arrays, lens: np.ndarray, max_steps: int) -> Case:
    """Greedy decoding of sequences that end at different steps.

    The best two tokens lie more than GAP apart at every step, so that rounding cannot change a token.
    """
    arrays = {"encoder_outputs": inputs["encoder_outputs"], "state": inputs["state"], "valid_lens": lens}
    case = decoder_case(
        sizes,
        name,
        shows,
        inputs["state"].shape[0],
        arrays,
        method="greedy",
        options={**SPECIAL, "max_steps": max_steps},
        gradients=False,
    )
    for seed in range(1, MOST_READOUTS + 1):
        dense = draws.uniform("greedy/dense", case.parameters["dense.W"].shape, 4.0, seed)
        drawn_case = replace(case, parameters={**case.parameters, "dense.W": dense})
        gap, lengths = greedy_gap(drawn_case)
        if gap > GAP and len(set(lengths)) > 1:
            return drawn_case
    raise AssertionError(f"{case.id}: no readout of {MOST_READOUTS} keeps the best two tokens apart")


def greedy_gap(case: Case) -> tuple[float, list[int]]:
    """The least distance between the logits of the best two tokens, up to the end tokens; and the decoded lengths."""
    decoder = reference.BahdanauDecoder(**case.config)
    reference.set_parameters(decoder, case.parameters)
    inputs: Mapping[str, Any] = case.inputs
    tokens, lengths, _ = decoder.greedy(**inputs, **case.options)
    fed = np.concatenate([np.full((len(tokens), 1), case.options["bos"], np.int32), tokens[:, :-1]], axis=1)
    logits, _, _ = decoder(fed, case.inputs["encoder_outputs"], case.inputs["state"], case.inputs["valid_lens"])
    best = np.sort(logits, axis=-1)[..., -2:]
    running = np.arange(tokens.shape[1]) <= lengths[:, None]
    return float(np.where(running, best[..., 1] - best[..., 0], np.inf).min()), lengths.tolist()


# ------------------------------------------------------------------------------------------------ sentences


def sentence_cases(pairs: Sequence[text.Pair]) -> Iterator[Case]:
    """Sentence pairs through the encoder, through the decoder, and through both."""
    split = text.characters if all(" " not in target for _, target in pairs) else text.words
    sources, targets = ([split(sentence) for sentence in side] for side in zip(*pairs, strict=True))
    source_words, target_words = text.Vocabulary.of(sources), text.Vocabulary.of(targets)
    tokens, lens = text.padded([source_words.ids([*s, text.EOS]) for s in sources], 0)
    forced, _ = text.padded([target_words.ids([text.BOS, *t]) for t in targets], 0)
    batch, keys = tokens.shape
    sizes = {
        "batch": batch,
        "keys": keys,
        "steps": forced.shape[1],
        "embed_size": 4,
        "hidden_size": 5,
        "memory_size": 5,
        "attention_size": 6,
    }
    encoding = {**sizes, "vocab_size": len(source_words)}
    decoding = {**sizes, "vocab_size": len(target_words)}
    arrays = {"tokens": tokens, "valid_lens": lens}
    encoder = encoder_case(encoding, "sentences", f"{batch} sentences.", 2, arrays, FULL)
    yield encoder
    # Drawn, not encoded: the bits of inputs may not depend on the processor, as those of tanh do.
    inputs = {**decoder_inputs(decoding, 2), "tokens": forced, "valid_lens": lens}
    decoder = decoder_case(decoding, "sentences", f"{batch} sentences, given their translations.", 2, inputs)
    yield decoder
    layer = reference.GRUEncoder(**encoder.config)
    reference.set_parameters(layer, encoder.parameters)
    outputs, state = layer(tokens, lens)
    greedy = greedy_case(decoding, "greedy", "", {**inputs, "encoder_outputs": outputs, "state": state}, lens, 12)
    yield Case(
        "sentences",
        "greedy",
        f"{batch} sentences through encoder and decoder: logits of the given translations, and greedy decoding.",
        {"tokens": tokens, "valid_lens": lens, "targets": forced},
        greedy.options,
        "translate",
        {"encoder": encoder.config, "decoder": greedy.config},
        {f"encoder.{k}": v for k, v in encoder.parameters.items()}
        | {f"decoder.{k}": v for k, v in greedy.parameters.items()},
        gradients=False,
    )


# ------------------------------------------------------------------------------------------------ found by fuzzing


def found_cases() -> Iterator[Case]:
    """What fuzzing found, as cases like any other."""
    return (Case(**drawn.as_case()) for drawn in FOUND)
