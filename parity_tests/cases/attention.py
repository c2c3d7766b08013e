"""Cases of attention layers, of kernels and of kernel regression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators import OF_FILES, find
from attention_core.operators.attention import ALIKE_SCORES, HIDDEN_SCORES, KERNEL_ATTENTION, SCORE_NAMES
from attention_core.operators.regression import NADARAYA_WATSON
from attention_core.specification import Layer, Operator
from parity_tests.cases.covering import REFUSED
from parity_tests.cases.masking import (
    ATTENTION,
    BATCH_LENS,
    EMPTY,
    FULLY_MASKED,
    HIDDEN_KEYS,
    ROW_LENS,
    full_lens,
    fully_masked,
    hidden_variants,
    masked_variants,
    open_inputs,
    open_mask,
    some_mask,
)
from parity_tests.format.case import DTYPES, EXACT, FULL, SEED, Arrays, Case, Sizes, drawn_parameters, drawn_tensors
from parity_tests.format.families import Family

BRIEF = ("open", "lens_and_mask", "fully_masked", "heads_mask", "no_keys", "no_queries", "no_batch")
"""The cases of a layer whose score or mode other cases cover in full."""


LARGE = (
    "DotProductAttention",
    "AdditiveAttention",
    "GeneralAttention",
    "ConcatAttention",
    "LocationAttention",
    "KernelAttention",
    "LowRankAttention",
)
"""Layers with a case of large scores; those of a layer with a score of its own are by `large_layer_inputs`."""
WITHOUT_LARGE = (
    *("CosineAttention", "LocalAttention", "HardAttention"),
    *("MultiHeadAttention", "InducedAttention", "CompressedAttention", "SegmentAttention"),
)
"""Layers without a case of large scores: those of cosines are bounded; the others score as a layer that has one."""


def drawn_noise(shape: tuple[int, ...]) -> np.ndarray:
    """Uniform noise from 0 to 1."""
    return 0.5 * (draws.uniform("noise", shape, 1.0, SEED) + 1.0)


NEUTRAL: Mapping[str, Callable[[tuple[int, ...]], np.ndarray]] = {
    "dropout_mask": np.ones,
    "head_mask": np.ones,
    "offset": lambda shape: np.zeros(shape, np.int32),
}
"""Keyword arguments of layers that change nothing, by their shape."""
ACTING: Mapping[str, Callable[[tuple[int, ...]], np.ndarray]] = {
    "offset": lambda shape: np.array([2, 1], np.int32),
    "noise": drawn_noise,
    "head_mask": lambda shape: np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]]),
}
"""The same, acting."""


def attention_layer_cases(
    name: str, config: Mapping[str, Any], prefix: str = "", parameters: Arrays | None = None
) -> Iterator[Case]:
    """Cases of a layer that takes queries, keys and values; with a prefix, the brief list for a variant of it."""
    layer = find(name)
    assert isinstance(layer, Layer)
    given = {**drawn_parameters(layer, config), **(parameters or {})}
    call = layer.method("call")
    fixed, sizes = "offset" if config.get("mode") == "predictive" else "", ATTENTION

    def case(label: str, shows: str, inputs: Arrays, **changes: Any) -> Case:
        made = Case(name, prefix + label, shows, inputs, method="call", config=config, parameters=given)
        return replace(made, **changes)

    def base(sizes: Sizes, heads: bool) -> Arrays:
        return drawn_tensors(call, sizes, heads)

    def by_keyword(arrays: Mapping[str, Callable[[tuple[int, ...]], np.ndarray]], sizes: Sizes = sizes) -> Arrays:
        """Those of the arrays that this layer takes, in their shapes without heads."""
        shapes = {
            tensor.name: tuple(sizes[axis.removesuffix("?")] for axis in tensor.axes if not axis.endswith("heads?"))
            for tensor in call.keyword_tensors
            if tensor.name not in (fixed, *REFUSED.get(name, ()))
        }
        return {key: arrays[key](shape) for key, shape in shapes.items() if key in arrays}

    neutral = by_keyword(NEUTRAL)
    for label, shows, inputs, dtypes in masked_variants(base, neutral):
        if (prefix and label not in BRIEF) or (label == "heads" and "heads?" not in call.tensors[0].axes):
            continue
        yield case(label, shows, inputs, dtypes=dtypes)
    full = {**open_inputs(base(sizes, False), sizes), **neutral}
    for label, shows, inputs in hidden_variants(full):
        yield case(label, shows, inputs)
    if not prefix and name in LARGE:
        inputs, changed = large_layer_inputs(name, full, given)
        yield case("large", "Scores to ±2e6 with gaps of 1000 and more.", inputs, parameters=changed)
    for gap in (25, 80) if not prefix and name in SPREAD else ():
        yield wide(case(f"gap_{gap}", f"Scores up to {gap} apart.", full, gradients=False), gap)
    dropping = {"dropout_mask": lambda shape: draws.dropout_mask(name, shape, 0.3, SEED)}
    acting = by_keyword({**ACTING, **dropping})
    if "dropout_mask" in acting:
        shows = "Dropout acts on the weights; the returned ones are those before dropout."
        yield case("dropout", shows, {**full, "dropout_mask": acting["dropout_mask"]})
    swapped = {
        key: array.swapaxes(0, 1).copy() if key in ("queries", "keys", "values") else array
        for key, array in full.items()
    }
    masked = {**swapped, **FULLY_MASKED}
    shows = "Queries, keys, values and context as (steps, batch, features)."
    yield case("time_major", shows, masked, config={**config, "time_major": True}, dtypes=EXACT)
    if prefix:
        return
    masked = {**base(sizes, False), **FULLY_MASKED, **acting}
    if "bias" in {tensor.name for tensor in call.keyword_tensors}:
        shape = sizes["batch"], sizes["queries"], sizes["keys"]
        masked["bias"] = draws.uniform(f"{name}.bias", shape, 1.0, SEED)
    per_head = {"per_head": True} if name == "MultiHeadAttention" else {}
    yield case("prepared", "Prepare, then attend: the same as a call.", masked, method="attend", options=per_head)
    shows = "Prepare, then attend, with neither lengths nor mask."
    yield case("prepared_none", shows, base(sizes, False), method="attend", dtypes=EXACT)
    eight = {**sizes, "keys": 8}
    more = base(eight, False) | by_keyword({**ACTING, **dropping}, eight)
    yield from extended_cases(name, case, masked, more, {**config, "time_major": True})
    acting.pop("dropout_mask", None)
    yield from context_cases(name, case, base, acting, given)
    if "bias" in {tensor.name for tensor in call.keyword_tensors}:
        yield from bias_cases(name, case, base)
    if name == "DotProductAttention":
        yield from group_cases(case, base)
        yield extended_groups(case, base)
    if "scale" in {option.name for option in layer.options}:
        yield case("scale", "Another scale.", full, config={**config, "scale": 0.375})
    if "softcap" in {option.name for option in layer.options}:
        shows = "Bounded scores, and queries that may attend to nothing."
        yield case("softcap", shows, {**full, **FULLY_MASKED}, config={**config, "softcap": 0.25})


def extended_cases(
    name: str, case: Callable[..., Case], seven: Arrays, eight: Arrays, time_major: Mapping[str, Any]
) -> Iterator[Case]:
    """Cases of a memory to which steps are added, from the inputs of calls with seven and eight keys.

    The steps come behind five keys, or in the room of a memory with seven.
    """
    both, masks = ("keys", "values"), ("valid_lens", "mask")
    first = {key: array[:, :5].copy() if key in both else array for key, array in eight.items()}
    steps = {f"steps.{key}": eight[key][:, 5:].copy() for key in both}
    mask, lens = some_mask({**ATTENTION, "queries": 3, "keys": 5}), np.array([2, 2], np.int32)
    mask[0, :, 2] = False
    shown = np.array([[[True, False, True]], [[False, True, True]]])
    hidden = {key: array.copy() for key, array in {**first, **steps}.items()}
    hidden["keys"][0, 2], hidden["values"][0, 2] = np.nan, np.inf
    hidden["steps.keys"][0, 1], hidden["steps.values"][1, 0] = np.nan, np.inf
    masked = {**hidden, "mask": mask, "steps.valid_lens": lens, "steps.mask": shown}
    shows = "Keys that one of three earlier queries could attend to, and steps of which some are hidden."
    whole = name in ("DotProductAttention", "MultiHeadAttention")
    yield case("extended_masked", shows, masked, method="extend", dtypes=DTYPES if whole else FULL)
    room = {key: array.copy() for key, array in seven.items() if key not in masks}
    for key in both:
        room[key][0, 3:], room[key][1, 5:] = np.nan, np.inf
    free = np.array([3, 5], np.int32)
    given = {"mask": np.arange(7) < free[:, None, None], "steps.mask": np.arange(3) < np.array([[[2]], [[3]]])}
    shows = "Steps in the room of a memory, as many as it has; queries, keys and values as (steps, batch, features)."
    swapped = {
        key: array.swapaxes(0, 1).copy() if key.rpartition(".")[2] in ("queries", *both) else array
        for key, array in {**room, **steps, **given, "steps.position": free}.items()
    }
    yield case("extended_at", shows, swapped, method="extend", config=time_major, dtypes=EXACT)
    shows = "Steps of which one is before the first key, in one sequence, and two are beyond the last, in the other."
    outside = {**swapped, "steps.position": np.array([-1, 6], np.int32)}
    yield case("extended_outside", shows, outside, method="extend", config=time_major, dtypes=EXACT)
    if not whole:
        return
    yield case("extended", "Three steps behind five keys.", {**first, **steps}, method="extend", dtypes=EXACT)
    shows = "Open steps behind keys of which the mask hides some."
    yield case("extended_open", shows, {**first, **steps, "mask": mask}, method="extend", dtypes=EXACT)
    shows = "Steps, of which a mask hides some, in place of open keys, from the same one in all sequences."
    over = {key: array for key, array in seven.items() if key not in masks}
    over |= {**steps, "steps.mask": shown, "steps.position": np.array(1, np.int32)}
    yield case("extended_over", shows, over, method="extend", dtypes=EXACT)


def extended_groups(case: Callable[..., Case], base: Callable[[Sizes, bool], Arrays]) -> Case:
    """A case of steps whose keys have fewer heads than the queries."""
    sizes = {**ATTENTION, "heads": 9, "key_heads": 3}
    more = {**sizes, "keys": 8}
    steps = {f"steps.{name}": array for name, array in base(more, True).items() if name != "queries"}
    steps |= {"steps.mask": some_mask(more, heads=True), "steps.position": BATCH_LENS}
    shows = "More steps than a memory has room for, with a mask for each head of queries."
    inputs = {**base(sizes, True), "valid_lens": BATCH_LENS, **steps}
    return case("extended_groups", shows, inputs, method="extend", dtypes=EXACT)


def group_cases(case: Callable[..., Case], base: Callable[[Sizes, bool], Arrays]) -> Iterator[Case]:
    """Cases of inner products whose keys have fewer heads than the queries."""
    sizes = {**ATTENTION, "heads": 9, "key_heads": 3}
    plain, mask = base(sizes, True), some_mask(sizes, heads=True)
    mask[:, :3, :, 3] = False
    hidden = {key: array.copy() for key, array in plain.items()}
    hidden["keys"][:, 0, 3], hidden["values"][:, 0, 3] = np.nan, np.inf
    yield case("groups", "Three heads of queries for each of keys, and a mask for each.", {**plain, "mask": mask})
    shows = "NaN and inf in a key and value that the mask hides from all heads that share them."
    yield case("groups_hidden", shows, {**hidden, "mask": mask, "valid_lens": ROW_LENS})
    one = base({**sizes, "key_heads": 1}, True)
    yield case("groups_one", "One head of keys for all.", {**one, "valid_lens": BATCH_LENS}, dtypes=DTYPES)


def bias_cases(name: str, case: Callable[..., Case], base: Callable[[Sizes, bool], Arrays]) -> Iterator[Case]:
    """Cases of numbers that are added to the scores; of other scores than inner products in brief."""
    sizes, plain = ATTENTION, base(ATTENTION, False)

    def draw_bias(*axes: str) -> np.ndarray:
        return 2.0 * draws.uniform(f"{name}.bias", tuple(sizes.get(axis, 1) for axis in axes), 1.0, SEED)

    bias = draw_bias("batch", "queries", "keys")
    bias[0, 0, 2], bias[1, 1] = -np.inf, -np.inf
    bias[~fully_masked(sizes)] = np.nan
    shows = "A bias of -inf hides keys, and all keys of a query; one of NaN under the mask has no effect."
    yield case("bias", shows, {**plain, **FULLY_MASKED, "bias": bias})
    hidden = {key: array.copy() for key, array in plain.items()}
    hidden["keys"][:, 2], hidden["values"][:, 2] = np.nan, np.inf
    rows = draw_bias("queries", "keys")
    rows[:, 2] = -np.inf
    yield case("bias_hidden", "NaN and inf in a key and value that the bias hides from all.", {**hidden, "bias": rows})
    if name not in ("DotProductAttention", "MultiHeadAttention"):
        return
    of_keys = {"valid_lens": BATCH_LENS, "bias": draw_bias("", "", "keys")}
    yield case("bias_keys", "A bias of each key.", {**plain, **of_keys})
    heads = {**base(sizes, name == "DotProductAttention"), "valid_lens": BATCH_LENS}
    yield case(
        "bias_heads", "A bias for each head, the same for all.", {**heads, "bias": draw_bias("", "heads", "", "keys")}
    )
    every = draw_bias("batch", "heads", "queries", "keys")
    yield case("bias_all", "A bias for each sequence and head.", {**heads, "bias": every}, dtypes=DTYPES)
    if name == "DotProductAttention":
        shows = "A bias of bounded scores, which is not bounded."
        yield case("bias_softcap", shows, {**plain, "bias": 4.0 * rows}, config={"softcap": 0.25})


def context_cases(
    name: str, case: Callable[..., Case], base: Callable[[Sizes, bool], Arrays], acting: Arrays, parameters: Arrays
) -> Iterator[Case]:
    """Cases that need the context alone: in full for DotProductAttention, in brief for other inner products."""
    sizes = ATTENTION

    def alone(label: str, shows: str, inputs: Arrays, **changes: Any) -> Case:
        return case(
            f"context_{label}", f"The context alone. {shows}", inputs, options={"need_weights": False}, **changes
        )

    full = open_inputs(base(sizes, False), sizes)
    mixed = {**full, **FULLY_MASKED, **acting}
    yield alone("fully_masked", "Queries that may attend to nothing.", mixed)
    yield alone("prepared", "Prepare, then attend.", mixed, method="attend", dtypes=EXACT)
    if name not in ("DotProductAttention", "GeneralAttention", "MultiHeadAttention"):
        return
    for label, shows, inputs, dtypes in masked_variants(base):
        in_heads = label == "heads" and name == "MultiHeadAttention"
        if label != "fully_masked" and not in_heads and (label in BRIEF or name == "DotProductAttention"):
            yield alone(label, shows, inputs, dtypes=dtypes)
    for label, shows, inputs in hidden_variants(full):
        yield alone(label, shows, inputs)
    if name == "DotProductAttention":
        for other in (*bias_cases(name, case, base), *group_cases(case, base)):
            yield alone(other.name, other.shows, other.inputs, config=other.config)
        inputs, _ = large_layer_inputs(name, full, parameters)
        yield alone("large", "Scores to ±2e6 with gaps of 1000 and more.", inputs)
        ragged, with_heads = {**full, "valid_lens": HIDDEN_KEYS}, {**base(sizes, True), "valid_lens": BATCH_LENS}
        yield alone("inference", "No gradients.", ragged, gradients=False)
        yield alone("inference_heads", "No gradients, with heads.", with_heads, gradients=False, dtypes=EXACT)
        yield alone("scale", "Another scale.", full, config={"scale": 0.375})
        yield alone("softcap", "Bounded scores.", {**full, **FULLY_MASKED}, config={"softcap": 0.25})
        low = {"queries": np.abs(inputs["queries"]) + 4.0, "keys": -np.abs(inputs["keys"]) - 5000.0}
        yield alone("low", "Scores from -4e4 down, with gaps of 1000 and more.", {**inputs, **low})
        kernel = {**sizes, "queries": 3, "keys": 39, "features": 64}
        yield alone("block", "64 features, few queries, and keys that fill no block.", base(kernel, False))


def score_variants(query_size: int, default: str) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Every score but the default: its name, the constructor's arguments, and the key size that it needs."""
    for score in SCORE_NAMES:
        if score == default:
            continue
        extra = {**{name: {"hidden_size": 8} for name in HIDDEN_SCORES}, "location": {"num_positions": 8}}
        alike = score in ALIKE_SCORES
        yield score, {"score": score, **extra.get(score, {})}, query_size if alike else ATTENTION["key_size"]


def layer_sizes(layer: Operator | Layer) -> dict[str, int]:
    """The sizes that a score layer is made with: those of the axes of that name, or sizes that no axis has."""
    needed = [option.name for option in layer.options if option.default is None]
    return {name: ATTENTION.get(name, max(ATTENTION.values()) + 1 + place) for place, name in enumerate(needed)}


def kernel_cases() -> Iterator[Case]:
    """A Gaussian kernel, whose inverse width is learned, given, or 1."""
    yield from attention_layer_cases("KernelAttention", {"learned": True}, parameters={"w": np.array(0.625)})
    full = open_inputs(drawn_tensors(KERNEL_ATTENTION.method("call"), ATTENTION), ATTENTION, dropout=True)
    for label, shows, config in (
        ("constant", "A kernel of width 1, which is not a parameter.", {}),
        ("width", "Another width, which is not a parameter.", {"width": 0.375}),
    ):
        yield Case("KernelAttention", label, shows, full, method="call", config=config)


def regression_cases() -> Iterator[Case]:
    """Kernel regression on points of a line."""
    operator, sizes = NADARAYA_WATSON.method("call"), ATTENTION
    points = {name: 2.0 * array for name, array in drawn_tensors(operator, sizes).items()}
    full = {**points, "valid_lens": full_lens(sizes), "mask": open_mask(sizes)}
    learned: dict[str, Any] = {"learned": True}
    width = {"kernel.w": np.array(1.625)}

    def case(
        label: str,
        shows: str,
        inputs: Arrays,
        dtypes: tuple[str, ...] = FULL,
        config: Mapping[str, Any] = learned,
        parameters: Arrays = width,
    ) -> Case:
        return Case("NadarayaWatson", label, shows, inputs, {}, "call", config, parameters, dtypes)

    yield case("none", "Neither lengths nor mask.", points, EXACT)
    yield case("open", "Lengths and a mask that change nothing.", full, DTYPES)
    yield case("ragged", "Samples of different sizes.", {**full, "valid_lens": HIDDEN_KEYS}, DTYPES)
    yield case("fully_masked", "Queries that may attend to nothing.", {**full, **FULLY_MASKED})
    for label, shows, inputs in hidden_variants(full):
        yield case(label, shows, inputs)
    yield case("constant", "A kernel of width 1.", full, FULL, {}, {})
    yield case("width", "Another width.", full, FULL, {"width": 0.375}, {})
    for label, shows, axis, size in EMPTY:
        small = {**sizes, axis: size}
        inputs = {**drawn_tensors(operator, small), "valid_lens": full_lens(small), "mask": open_mask(small)}
        yield case(label, shows, inputs, EXACT)


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
    """The case with scores up to `gap` apart."""
    name, apart = SPREAD[case.operator]
    factor = gap / apart
    if name in case.inputs:
        return replace(case, inputs={**case.inputs, name: factor * case.inputs[name]})
    if name in case.parameters:  # a width is squared
        factor = factor**0.5 if name == "w" else factor
        return replace(case, parameters={**case.parameters, name: factor * case.parameters[name]})
    return replace(case, config={**case.config, name: factor})


def score_layer_cases(layer: Layer) -> Iterator[Case]:
    """Cases of an attention layer with a score of its own."""
    if layer is KERNEL_ATTENTION:
        yield from kernel_cases()
        return
    yield from attention_layer_cases(layer.name, layer_sizes(layer))
    if layer.name == "ConcatAttention":
        yield from attention_layer_cases(layer.name, {**layer_sizes(layer), "bias": True}, "with_bias_")


FAMILIES = (
    *(
        Family((layer.name,), partial(score_layer_cases, layer))
        for layer in OF_FILES["attention"]
        if isinstance(layer, Layer)
    ),
    Family((NADARAYA_WATSON.name,), regression_cases),
)
