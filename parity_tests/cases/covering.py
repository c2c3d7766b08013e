"""Cases that vary every dimension at once: sizes, coincidences, masks, memory layout, state and magnitude.

Here is what each function and method may vary; `tools.covering` adds rows until every setting of `tools.design` is met.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from attention_core.operators import FILE_OF, OF_FILES, find
from attention_core.specification import Layer, Operator, Option, Tensor
from parity_tests.format.call import STEPS
from parity_tests.format.case import FULL, Case
from parity_tests.format.drawn import (
    MOST,
    NAMES,
    Drawn,
    axes_of,
    called_of,
    inputs_of,
    is_size,
    methods_of,
    parse_drawn,
)
from parity_tests.format.families import Family

DIMENSIONS = ("sizes", "coincidences", "masks", "layout", "state", "magnitude")

LEAST: Mapping[str, Mapping[str, int]] = {
    **{name: {"features": 2} for name in ("cosine_score", "CosineAttention")},
    **{
        name: {"features": 3}
        for name in (
            *("LayerNorm", "TransformerEncoderLayer", "TransformerDecoderLayer"),
            *("TransformerEncoder", "TransformerDecoder", "TransformerTranslator"),
        )
    },
    "relative_bias": {"num_buckets": 4},
    "patches": {"height": 4, "width": 4},
    "VisionTransformer": {"features": 3, "height": 4, "width": 4},
}
"""Sizes below which an operator refuses, or is degenerate, and its gradients only rounding: in one dimension a cosine
is 1 or -1, and so are two normalized features.
"""

REFUSED = {"MultiHeadAttention": ("offset",)}
"""Optional arrays that an operator refuses without an option that is not drawn: heads are rotated in other cases."""

COUNT, LENGTH, WIDTH = (1, 2, 3, 4, 8, 9), (1, 2, 3, 4, 8, 17, 64, 1025), (1, 2, 3, 4, 8, 17, 65)
SEQUENCE = (1, 2, 3, 4, 8, 17, 33)
SIZES: Mapping[str, tuple[int, ...]] = {
    "batch": COUNT,
    "heads": (0, *COUNT[:5]),
    "key_heads": COUNT[:5],
    "num_heads": COUNT[:5],
    "num_key_heads": COUNT[:5],
    "layers": COUNT[:4],
    "num_layers": COUNT[:4],
    "num_best": COUNT[:4],
    "queries": LENGTH,
    "keys": LENGTH,
    "steps": SEQUENCE,
    "previous_steps": SEQUENCE,
    "max_steps": SEQUENCE[:5],
    "window": (1, 2, 3, 4),
    "height": (4, 8, 12),  # of which every patch_size is a part
    "width": (4, 8, 16),
    "channels": COUNT[:4],
    "patch_size": (1, 2, 4),
}
"""The sizes of an axis; all other axes are widths. 0 heads means no axis for them."""

DECODERS, SHORT, THIN = (1, 2, 3, 8), (1, 2, 3, 4, 8, 17), (1, 2, 4, 8, 17, 33)
"""Shorter lists for decoders and translators, where steps and sizes cost more."""

COINCIDENCES = (
    ("queries", "keys"),
    ("batch", "heads"),
    ("batch", "queries"),
    ("value_features", "keys"),
    ("value_features", "features"),
    ("value_features", "key_size"),
    ("query_size", "key_size"),
    ("hidden_size", "features"),
    ("hidden_size", "input_size"),
    ("hidden_size", "embed_size"),
    ("steps", "num_layers"),
    ("steps", "keys"),
    ("batch", "steps"),
    ("num_heads", "batch"),
    ("height", "width"),
)
"""Axes that are equal in some cases only."""

MAGNITUDES = ("", "tiny", "small", "huge", "wide", "positive", "cancelling", "graded")
"""Patterns of `drawn.PATTERNS`, and bounds: tiny and huge are near the ends of a dtype, wide ones are of scores whose
weights go down to its smallest number.
"""

BOUNDS: Mapping[str, Mapping[str, float]] = {
    "tiny": {"float64": 1e-30, "float32": 1e-30},
    "small": {"float64": 1e-4, "float32": 1e-4},
    "huge": {"float64": 1e30, "float32": 1e30},
    "wide": {"float64": 350.0, "float32": 40.0},
}

SCALED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "tiny": dict.fromkeys(("dot_score", "scaled_dot_score", "NadarayaWatson"), ("queries",)),
    "huge": {
        "additive_score": ("w_v",),
        "dot_score": ("keys",),
        "scaled_dot_score": ("keys",),
        "cosine_score": ("queries",),
        "location_score": ("queries",),
        "attention_pooling": ("values",),
        **dict.fromkeys(("linear_attention", "linear_attention_step"), ("values",)),
        "layers": ("values",),
        "GRU": ("inputs",),
        "LSTM": ("inputs",),
        "Bridge": ("outputs",),
    },
    "wide": {
        "masked_softmax": ("scores",),
        "attention_pooling": ("scores",),
        "masked_cross_entropy": ("logits",),
        "DotProductAttention": ("queries",),
    },
}
"""The scaled arguments, by function, layer or file. For the rest, tiny and small scale all floating arguments, huge and
wide none.
"""

MOST_WORK = (2**18, 2**11)
"""The maximum number of products of a case, in turn: the largest sizes meet only small ones, and every other row has
gradients."""
MOST_GRADIENTS = 2**23
"""The maximum number of products times gradient entries for which gradients are computed."""

SEARCHES = ("greedy", "beam")
NORMALISED = ("masked_softmax", "masked_cross_entropy", "attention_pooling")
"""Functions whose gradients cancel nearly to 0 when the scores are small, by the softmax."""
CANCELLING = ("KernelAttention", "LocalAttention")
"""Layers whose gradients are only rounding where queries and keys cancel; those of decoders are, too."""
PARALLEL = ("CosineAttention",)
"""Layers whose gradients are small differences where one entry of a vector is far larger than the others: all are then
nearly parallel to an axis."""
TRANSFORMERS = (
    *("TransformerEncoderLayer", "TransformerDecoderLayer"),
    *("TransformerEncoder", "TransformerDecoder", "TransformerTranslator", "VisionTransformer"),
)
KIN: Mapping[str, str] = {
    "GRU": "recurrent layers",
    "LSTM": "recurrent layers",
    "GRUEncoder": "encoders",
    "LSTMEncoder": "encoders",
    "BahdanauDecoder": "decoders",
    "LuongDecoder": "decoders",
    "FixedContextDecoder": "decoders",
    **dict.fromkeys(TRANSFORMERS[:-1], "transformers"),
}
"""Layers that differ only in a cell or a score: one of them covers each setting."""
FULL_ALONE = ("KernelAttention", "HardAttention", "NadarayaWatson")
"""Layers whose large cases run only in float64 and float32: half precision rounds distances and choices too much."""
TWICE = 1
"""The index of the row with two calls."""
EVERY_MASK = ("attention_mask", "masked_softmax")
"""Functions that take every broadcast of a mask: each axis its size or 1, 3 and 4 axes, with and without lengths."""


GROUPS = {
    **{file: file for file in OF_FILES},
    **dict.fromkeys(
        ("attention", "local", "hard", "multi_head", "compressed", "segments", "regression", "positions"), "layers"
    ),
    **dict.fromkeys(("normalization", "feed_forward", "transformer_layers", "images"), "transformer"),
    "encoders": "recurrent",
}
"""The group of a layer in the design, by file of the specification."""


@dataclass(frozen=True)
class Call:
    """A function, or a method of a layer, with the settings that its cases may vary."""

    entry: Operator | Layer
    method: str

    @property
    def name(self) -> str:
        """The name of function and method."""
        return f"{self.entry.name}.{self.method}"

    @property
    def group(self) -> str:
        """The kind of layer; all functions are one."""
        return "functions" if isinstance(self.entry, Operator) else GROUPS[FILE_OF[self.entry.name]]

    @property
    def kin(self) -> str:
        """The group that covers every setting together: a function, an attention layer, or similar layers."""
        if self.method in SEARCHES:
            return "searches"
        if self.method == "extend":
            return "extended memories"
        return KIN.get(self.entry.name, self.entry.name)

    @property
    def function(self) -> Operator:
        """The function itself, or the layer's method."""
        return called_of(self.entry, self.method)

    @functools.cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """The arrays that it takes."""
        refused = REFUSED.get(self.entry.name, ())
        return tuple(one for one in inputs_of(self.entry, self.method) if one.name not in refused)

    @functools.cached_property
    def axes(self) -> dict[str, int]:
        """Every axis, of size 1."""
        return axes_of(self.entry, self.method)

    @functools.cached_property
    def masks(self) -> list[str]:
        """The optional arguments that hide something."""
        return [tensor.name for tensor in self.inputs if tensor.optional and tensor.kind != "floating"]

    @property
    def one_of(self) -> list[str]:
        """The argument to give where none is needed, if without any there is no result."""
        first = self.function.tensors
        return [first[0].name] if first and all(tensor.optional for tensor in self.inputs) else []

    @functools.cached_property
    def floating(self) -> list[str]:
        """The required floating arguments."""
        return [tensor.name for tensor in self.inputs if tensor.kind == "floating" and not tensor.optional]

    def broadcast_alone(self, row: Drawn) -> set[str]:
        """The axes that occur only in arguments of the row whose axes may have size 1."""
        axes: dict[bool, set[str]] = {True: set(), False: set()}
        for tensor in self.inputs:
            if not tensor.optional or tensor.name in row.given:
                whole = tensor.name != "valid_lens" or row.rows  # lengths have one axis, or two
                axes[tensor.broadcast] |= {axis.removesuffix("?") for axis in tensor.axes if whole or "?" not in axis}
        return axes[True] - axes[False]

    @property
    def covered_by_call(self) -> bool:
        """Whether the other methods of its layer cover its settings: a Transformer's steps are those of its call."""
        return self.entry.name in TRANSFORMERS and self.method in ("start", "step")

    @functools.cached_property
    def extension(self) -> list[Tensor]:
        """The arrays that extend a memory, which `extend` alone takes; `attend` covers the rest."""
        return [tensor for tensor in self.inputs if tensor.name.startswith(STEPS)]

    @functools.cached_property
    def outputs(self) -> list[str]:
        """The floating results."""
        return [tensor.name for tensor in self.function.outputs if tensor.kind == "floating"]

    @functools.cached_property
    def computes(self) -> bool:
        """Whether there are floating numbers in it."""
        return isinstance(self.entry, Layer) or any(tensor.kind == "floating" for tensor in self.inputs)

    @property
    def repeats(self) -> bool:
        """Whether it has a case of two calls whose gradients are computed together."""
        return self.computes and self.method not in (*SEARCHES, "start")

    def has(self, option: str) -> bool:
        """Whether it, or its layer, has an option of that name."""
        return any(other.name == option for other in self.entry.options)

    @functools.cached_property
    def coincidences(self) -> list[tuple[str, str]]:
        """The pairs of axes that may be equal."""
        return [pair for pair in COINCIDENCES if set(pair) <= set(self.sizes)]

    @functools.cached_property
    def size_options(self) -> list[Option]:
        """The options of the constructor that are sizes."""
        return [option for option in self.entry.options if isinstance(self.entry, Layer) and is_size(option)]

    @functools.cached_property
    def free(self) -> list[str]:
        """The axes whose sizes are free.

        An axis that belongs to the preparation alone has size 1: a step takes a memory whose mask has one row.
        """
        tensors = (*self.function.inputs, *self.function.outputs, *(self.inputs if self.method == "extend" else ()))
        axes = {axis.removesuffix("?") for tensor in tensors for axis in tensor.axes}
        axes &= {axis for axis in self.axes if " " not in axis and axis != "one"}
        return sorted(axes - DERIVED - {option.name for option in self.size_options})

    @functools.cached_property
    def choices(self) -> dict[str, tuple[int, ...]]:
        """The sizes that every free axis can have, and every size of the constructor."""
        axes = sorted([*self.free, *(option.name for option in self.size_options)])
        chosen = {axis: SIZES.get(axis, WIDTH) for axis in axes}
        if self.group in ("decoders", "transformer", "translation"):
            chosen = {axis: THIN if sizes is WIDTH else sizes for axis, sizes in chosen.items()}
            chosen |= {axis: SHORT for axis in ("keys",) if axis in chosen}
            chosen |= {axis: DECODERS for axis in ("steps", "max_steps") if axis in chosen}
        if self.method == "extend":
            chosen["steps"] = SEQUENCE[:5]
        if self.entry.name in TRANSFORMERS:
            chosen["features"] = (4, 8, 16, 32)  # which heads may share, and sinusoidal positions need even numbers of
        even = [option.name for option in self.entry.options if option.domain == "even"]
        chosen |= {axis: tuple(2 * size for size in chosen[axis]) for axis in even}
        least = LEAST.get(self.entry.name, {})
        if self.method in SEARCHES:  # a first step needs at least as many tokens as hypotheses
            least = {axis: 2 for axis in ("vocab_size", "target_vocab_size") if axis in chosen}
        return chosen | {axis: tuple(size for size in chosen[axis] if size >= most) for axis, most in least.items()}

    @functools.cached_property
    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The choices without the sizes that the design leaves to their defaults."""
        return {axis: sizes for axis, sizes in self.choices.items() if axis not in UNSIZED.get(self.entry.name, ())}


DERIVED = {
    *("state_size", "output_size", "both_outputs", "both_states", "decoder_size", "encoder_size"),
    *("sublayers", "encoder_sublayers", "decoder_sublayers", "head_size", "memory_features", "fed_size", "blocks"),
    *("patches", "patch_features"),
}
"""Axes whose sizes follow from those of the constructor."""

UNSIZED: Mapping[str, tuple[str, ...]] = {
    "MultiHeadAttention": ("heads", "key_heads", "num_positions"),
    "LocalAttention": ("num_positions", "hidden_size"),
    "HardAttention": ("num_positions",),
    "InducedAttention": ("heads",),
    "SegmentAttention": ("heads", "keys"),
    "BahdanauDecoder": ("num_positions", "attention_size", "maxout_size", "memory_size"),
    "LuongDecoder": ("num_positions", "attention_size", "window", "memory_size"),
    "FixedContextDecoder": ("memory_size",),
    "Translator": ("num_positions",),
    **dict.fromkeys(TRANSFORMERS, ("heads", "key_heads", "num_positions", "num_buckets", "max_distance")),
    "Bridge": ("memory_size", "output_size"),
}
"""Sizes that have their defaults, come with options, or follow from others."""


def calls() -> Iterator[Call]:
    """Every function and method that has cases: all but those that take a function, and `prepare`."""
    for entry in map(find, NAMES):
        yield from (Call(entry, method) for method in methods_of(entry))


def scale_bounds(call: Call, magnitude: str, dtype: str, shared: Sequence[str] = ()) -> Mapping[str, float]:
    """The bounds of floating arguments; none where the call has no such magnitude.

    Arguments that share the keys' array have its bound; if the queries do, nothing is huge in float32, whose range the
    product would exceed.
    """
    if magnitude == "huge" and dtype == "float32" and "queries" in shared:
        return {}
    scales = SCALED.get(magnitude, {})
    names = scales.get(call.entry.name, scales.get(GROUPS[FILE_OF[call.entry.name]]))
    if names is None:
        all_of_them = magnitude in ("tiny", "small") and call.entry.name != "from_additive_mask"
        names = tuple(call.floating) if all_of_them else ()
    return {name: BOUNDS[magnitude][dtype] for name in names if name in call.floating and name not in shared}


def broadcast(call: Call, given: Sequence[str]) -> list[str]:
    """The axes that may have size 1 in the arguments that are passed."""
    masks = [tensor for tensor in call.inputs if tensor.broadcast and (not tensor.optional or tensor.name in given)]
    return sorted({axis.removesuffix("?") for tensor in masks for axis in tensor.axes})


def fit_sizes(
    call: Call,
    sizes: dict[str, int],
    choices: Mapping[str, Sequence[int]],
    kept: str,
    most_work: int,
    pick: Callable[[Sequence[int]], int],
) -> dict[str, int]:
    """Reduce all sizes but `kept` until the case costs no more than most_work, and make them fit each other."""
    while work(call, sizes) > most_work:
        axis = max((axis for axis in sizes if axis != kept), key=lambda axis: (sizes[axis], axis), default=kept)
        smaller = [size for size in choices[axis] if size < sizes[axis]]
        sizes[axis] = pick([size for size in smaller if size] or [1])
    sizes |= {axis: max(least, sizes[axis]) for axis, least in LEAST.get(call.entry.name, {}).items()}
    for axis, most in (*MOST.items(), ("keys", "num_positions")):
        if axis in sizes and most in sizes:
            sizes[most] = max(sizes[axis], sizes[most])
    for axis in {"vocab_size", "target_vocab_size"} & set(sizes) if "num_best" in sizes else ():
        sizes[axis] = max(sizes[axis], sizes["num_best"] + 1)  # a first step has no more hypotheses
    for heads, key_heads in (("heads", "key_heads"), ("num_heads", "num_key_heads")):
        if key_heads in sizes:
            sizes[key_heads] = math.gcd(sizes.get(heads, 1) or 1, sizes[key_heads])
    if "num_heads" in sizes:
        # The heads share these features; sinusoidal positions need an even number of them.
        width, least = ("features", 2) if call.entry.name in TRANSFORMERS else ("hidden_size", 1)
        if width in sizes:
            shared = least * sizes["num_heads"]
            sizes[width] = shared * max(1, -(-sizes[width] // shared))
    return sizes


def equal_sizes(call: Call, sizes: Mapping[str, int], shared: Sequence[str]) -> dict[str, int]:
    """The sizes of axes that must be equal because arguments are the same array as the keys."""
    axes = {tensor.name: [axis.removesuffix("?") for axis in tensor.axes] for tensor in call.inputs}
    equal: dict[str, int] = {}
    for same in zip(*(axes[name] for name in (*shared, "keys")), strict=True) if shared else ():
        chosen = set(same) & set(call.choices)
        least = max((LEAST.get(call.entry.name, {}).get(axis, 0) for axis in chosen), default=0)
        if len(chosen) > 1:
            smallest = min((sizes[axis] for axis in chosen if axis in sizes), default=1)
            equal |= dict.fromkeys(chosen, max(least, smallest))
    return equal


def sharing(call: Call) -> list[tuple[str, ...]]:
    """The arguments that may be the same array as the keys."""
    names = {tensor.name for tensor in call.inputs}
    ways = [("values",), ("queries", "values")] if "values" in names else [("queries",)]
    if "osine" in call.entry.name:  # the cosine of a vector with itself is constant
        ways = [shared for shared in ways if "queries" not in shared]
    return [shared for shared in ways if {*shared, "keys"} <= names]


def work(call: Call, sizes: Mapping[str, int]) -> int:
    """The approximate number of products of a call."""
    counts = [max(size, 1) for axis, size in sizes.items() if axis in SIZES and axis != "num_best"]
    widths = sorted((max(size, 1) for axis, size in sizes.items() if axis not in SIZES), reverse=True)
    return math.prod(counts) * math.prod(widths[: 1 if isinstance(call.entry, Operator) else 2])


def of_squares(call: Call, sizes: Mapping[str, int]) -> int:
    """The further products for each of `work` where square matrices are multiplied: n³ for n."""
    needed = [tensor.axes for tensor in call.inputs if not tensor.optional]
    twice = {axis for axes in needed for axis in axes if axes.count(axis) > 1}
    return math.prod(max(sizes.get(axis, 1), 1) ** 2 for axis in twice)


def is_forward(call: Call, row: Drawn) -> bool:
    """Whether a row has no gradients, since they cost too much to compute or compile, or are only rounding."""
    slow = call.group in ("recurrent", "decoders", "transformer", "translation") and row.seed % 3 != TWICE
    products = work(call, row.sizes) * of_squares(call, row.sizes)
    return is_rounding(call, row) or slow or products * numbers(row) > MOST_GRADIENTS


def is_rounding(call: Call, row: Drawn) -> bool:
    """Whether the gradients of a row are only rounding: a tiny query shifts all scores, which the softmax undoes."""
    normalised = isinstance(call.entry, Layer) or call.entry.name in NORMALISED
    bounded = max(row.scales.values(), default=0.0) > (0.0 if normalised else BOUNDS["wide"]["float64"])
    cancels = row.pattern == "cancelling" and (call.group == "decoders" or call.entry.name in CANCELLING)
    cancels |= row.pattern == "graded" and call.entry.name in PARALLEL
    return row.dtype not in FULL or bounded or cancels


def numbers(row: Drawn) -> int:
    """The number of entries that gradients are computed for."""
    case = row.as_case()
    return sum(array.size for array in (*case["inputs"].values(), *case["parameters"].values()))


LINES = Path(__file__).with_suffix(".txt")
"""The first rows of each operator, a line each."""
MORE = LINES.with_name("conditions.txt")
"""The rows for `conditions`, and for new operators, whose indices go on; `python -m tools.covering` adds them."""


def name_of(row: Drawn, index: int) -> str:
    """The name of a row by its index in its function or method, with a word for a mask and for hidden values.

    As every case in which a memory is extended, such a row begins with that word: `--case '*-[!e]*'` leaves it out.
    """
    extends = row.method == "extend"
    method = () if row.method == "call" or extends else (row.method,)
    hidden = ("hidden", row.hidden) if row.hidden else ()
    masked = ("mask",) if "mask" in row.given else ()
    words = ("extended" if extends else "", "cover", *method, str(index), *masked, *hidden)
    return "_".join(filter(None, words))


@functools.cache
def _lines() -> dict[str, list[str]]:
    """The lines of both files by operator: to parse one takes long."""
    lines: dict[str, list[str]] = {name: [] for name in NAMES}
    for file in (LINES, MORE):
        for line in file.read_text(encoding="utf-8").splitlines():
            lines[line.split('"', 2)[1]].append(line)
    return lines


def named_rows(operator: str) -> Iterator[tuple[str, Drawn]]:
    """The rows of an operator, with their names."""
    count: Counter[str] = Counter()
    for row in map(parse_drawn, _lines()[operator]):
        yield name_of(row, count[row.method]), row
        count[row.method] += 1


def covering_cases(operator: str) -> Iterator[Case]:
    """The rows of an operator as cases."""
    for name, row in named_rows(operator):
        yield Case(**{**row.as_case(), "name": name, "shows": "Sizes, masks, layout, state and magnitude at once."})


FAMILIES = tuple(Family((name,), partial(covering_cases, name)) for name in NAMES)


VARIED: Mapping[str, Callable[[Drawn], Any]] = {
    "sizes": lambda row: row.sizes,
    "coincidences": lambda row: row.sizes,
    "masks": lambda row: row.ones or row.lens or row.types,
    "layout": lambda row: row.layouts or row.shared,
    "state": lambda row: row.twice,
    "magnitude": lambda row: row.scales or row.pattern,
}


@functools.cache
def _further() -> frozenset[str]:
    return frozenset(MORE.read_text(encoding="utf-8").splitlines())


def varies(case: Case, dimension: str) -> bool:
    """Whether a case varies that dimension, among others; one written by hand has no other than the state."""
    if dimension not in VARIED:
        return repr(case.drawn) in _further()
    return bool(
        (dimension == "state" and (case.again or case.twice))
        or (case.drawn is not None and VARIED[dimension](case.drawn))
    )
