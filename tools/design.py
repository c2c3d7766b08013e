"""The covering design: the rows of `covering`, searched once and stored, since the search takes long.

Each function, attention layer and kin covers every setting that it has, one by one, and each group as many pairs of
settings as come with them. Rows are chosen greedily: of a few drawn candidates the one that covers most. The result is
the same on every machine.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attention_core.specification import INTEGER, Tensor
from parity_tests.cases.covering import (
    BOUNDS,
    EVERY_MASK,
    FULL_ALONE,
    MAGNITUDES,
    MOST_WORK,
    SEARCHES,
    TWICE,
    Call,
    broadcast,
    calls,
    equal_sizes,
    fit_sizes,
    is_forward,
    is_rounding,
    scale_bounds,
    sharing,
    work,
)
from parity_tests.cases.draw import Picks, Setting
from parity_tests.cases.transformer import LLAMA, PRE
from parity_tests.format.case import FULL
from parity_tests.format.drawn import LENGTHS, OF_ROWS, Drawn, steps_of_segments
from parity_tests.format.layouts import LAYOUTS

BASE = {
    "batch": 2,
    "heads": 3,
    "queries": 5,
    "keys": 7,
    "layers": 4,
    "num_layers": 2,
    "num_heads": 2,
    "num_best": 1,
    "steps": 5,
    "height": 4,
    "width": 8,
    "patch_size": 2,
}
BASE_WIDTHS = (4, 6, 8, 9, 10, 11)
"""The sizes of axes in rows that do not vary sizes, widths in turn: those of the cases written by hand."""

FLOATS = (*["float64"] * 4, *["float32"] * 3, "float16", "bfloat16")

CANDIDATES = 6
ROWS = 28
FEWER = {"attend": 1, "log_prob": 2, "extend": 2, "step": 2, "start": 1, "greedy": 2}
"""The maximum number of rows of a method; few where other methods cover the same."""
VARIANTS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "window_mask": ({"left": 2, "right": 1}, {"left": 0, "right": 40}),
    "block_mask": ({"size": 3}, {"size": 16}),
    "stride_mask": ({"stride": 2}, {"stride": 5}),
    "patches": ({"patch_size": 2}, {"patch_size": 1}, {"patch_size": 4}),
    "relative_buckets": ({"num_buckets": 8}, {"num_buckets": 33, "bidirectional": False, "max_distance": 40}),
    "relative_bias": ({}, {"bidirectional": False, "max_distance": 40}),
    "RotaryPositions": ({}, {"layout": "concatenated"}, {"base": 500.0}),
    "linear_attention": ({}, {"causal": True}),
    "DotProductAttention": ({}, {}, {"softcap": 0.5}),
    "LocalAttention": ({}, {"score": "additive", "hidden_size": 17}),
    "SegmentAttention": ({}, {"bias": False}),
    "MultiHeadAttention": ({}, {"score": "additive"}, {"bias": False}, {"softcap": 0.5}),
    "GRU": ({}, {"bidirectional": True}),
    "LSTM": ({}, {"bidirectional": True}),
    "GRUEncoder": ({}, {"bidirectional": True}),
    "LSTMEncoder": ({}, {"bidirectional": True}),
    "Bridge": ({}, {"method": "sum"}, {"method": "project"}, {"method": "backward", "cell": "lstm"}),
    "BahdanauDecoder": ({}, {"cell": "lstm"}, {"initial": "learned"}, {"initial": "zero"}),
    "LuongDecoder": ({}, {"cell": "lstm"}, {"initial": "learned"}, {"input_feeding": "none"}),
    "FixedContextDecoder": ({}, {"cell": "lstm"}, {"initial": "learned"}),
    "FeedForward": ({}, {"activation": "gelu"}, {"activation": "silu", "gated": True}, {"activation": "gelu_tanh"}),
    "TransformerEncoderLayer": ({}, PRE, LLAMA, {"causal": True}),
    "TransformerDecoderLayer": ({}, PRE, LLAMA),
    "TransformerDecoder": (PRE, LLAMA, {"positions": "none"}),
    "TransformerEncoder": (PRE, LLAMA, {"positions": "none"}, {"causal": True}),
    "TransformerTranslator": (PRE, LLAMA),
    "Translator": ({}, {"cell": "lstm"}, {"decoder": "luong"}, {"bidirectional": True, "bridge": "sum"}),
}
"""Options beside sizes, in turn."""


# ------------------------------------------------------------------------------------------------ settings of a row


def settings(call: Call, drawn: Drawn) -> Iterator[tuple[str, Setting]]:
    """Each setting that a row has, with its dimension."""
    sizes = {**call.axes, **dict.fromkeys(call.sizes, 0), **drawn.sizes}
    if "previous_steps" in sizes:
        sizes["keys"] = steps_of_segments(sizes, drawn.given)
    several = tuple(axis for axis in drawn.ones if sizes.get(axis, 1) > 1)
    sizes |= dict.fromkeys(call.broadcast_alone(drawn) & set(drawn.ones), 1)
    yield from (("sizes", (axis, sizes[axis])) for axis in call.sizes)
    yield from (("coincidences", pair) for pair in call.coincidences if sizes[pair[0]] == sizes[pair[1]] > 1)
    yield from (("masks", (f"{name} is given", name in drawn.given)) for name in call.masks)
    shared = [
        tensor for tensor in call.inputs if tensor.broadcast and (not tensor.optional or tensor.name in drawn.given)
    ]
    yield from (("masks", setting) for setting in of_one(shared) if setting[1] in several)
    if call.entry.name in EVERY_MASK:
        yield "masks", ("axes of size 1", (several, "heads" in drawn.sizes, "valid_lens" in drawn.given))
    if "valid_lens" in drawn.given:
        yield "masks", ("lengths", drawn.lens)
        yield "masks", ("lengths of rows", drawn.rows)
        yield "masks", ("type of lengths", drawn.types.get("valid_lens", "int32"))
    if "offset" in drawn.given:
        yield "masks", ("offset of sequences", drawn.rows)
    yield "masks", ("hidden", drawn.hidden)
    absent = {tensor.name for tensor in call.inputs if tensor.optional} - set(drawn.given)
    absent |= {tensor.name for tensor in call.inputs if () in tensor.layouts and not drawn.rows}
    yield "layout", ("layout", next((layout for name, layout in drawn.layouts.items() if name not in absent), ""))
    gradients = not is_rounding(call, drawn) and work(call, drawn.sizes) <= MOST_WORK[1]
    if gradients and sizes.get("keys") != 1 and drawn.lens != "one":  # the weight of a single key is constant
        yield "layout", ("shared", drawn.shared)
    yield "state", ("twice", drawn.twice)
    yield "magnitude", ("magnitude", magnitude_of(call, drawn))
    yield "magnitude", ("dtype", drawn.dtype)


def of_one(tensors: Iterable[Tensor]) -> list[tuple[str, str]]:
    """The axes in which each of the tensors may have size 1."""
    axes = [(f"{tensor.name} of one", axis.removesuffix("?")) for tensor in tensors for axis in tensor.axes]
    return [setting for setting in axes if setting[1] != "one"]


def required_settings(call: Call) -> set[Setting]:
    """The settings that the rows of a call must cover."""
    if call.covered_by_call:
        return set()
    if call.method == "extend":
        masks = [tensor for tensor in call.extension if tensor.broadcast]
        return {("steps", size) for size in call.sizes["steps"]} | set(of_one(masks))
    settings: set[Setting] = {(axis, size) for axis, sizes in call.sizes.items() for size in sizes}
    settings |= set(call.coincidences) | {(f"{name} is given", given) for name in call.masks for given in (False, True)}
    settings |= set(of_one([tensor for tensor in call.inputs if tensor.broadcast]))
    settings |= {("layout", layout) for layout in LAYOUTS if call.inputs and (layout != "expanded" or call.floating)}
    settings |= {("shared", names) for names in sharing(call)}
    if "valid_lens" in call.masks:
        settings |= {("lengths", lens) for lens in LENGTHS} | {("type of lengths", name) for name in INTEGER}
    if "offset" in call.masks:
        settings |= {("offset of sequences", rows) for rows in (False, True)}
    if call.floating:
        usable = [name for name in MAGNITUDES if name not in BOUNDS or scale_bounds(call, name, "float64")]
        settings |= {("magnitude", magnitude) for magnitude in usable}
        settings |= {("dtype", dtype) for dtype in FLOATS if dtype in FULL or call.entry.name not in FULL_ALONE}
    if call.entry.name in EVERY_MASK:
        axes = [("batch", "queries", "keys"), ("batch", "heads", "queries", "keys")]
        chosen = [
            (ones, len(names) == 4)
            for names in axes
            for size in range(len(names) + 1)
            for ones in itertools.combinations(sorted(names), size)
        ]
        settings |= {("axes of size 1", (*pair, lens)) for pair in chosen for lens in (False, True)}
    return settings


def magnitude_of(call: Call, drawn: Drawn) -> str:
    """The row's magnitude, of MAGNITUDES."""
    if drawn.pattern:
        return drawn.pattern
    bounded = {name: dict(scale_bounds(call, name, drawn.dtype)) for name in BOUNDS if drawn.dtype in FULL}
    return next((name for name, scales in bounded.items() if scales and scales == drawn.scales), "")


# ------------------------------------------------------------------------------------------------ drawing rows


def candidate(call: Call, index: int, had: set[Setting], picks: Picks) -> Drawn:
    """A row for a call."""
    plain = index == TWICE and call.computes  # so that only the numbers of its calls differ
    dtypes = tuple(dtype for dtype in FLOATS if dtype in FULL or call.entry.name not in FULL_ALONE)
    dtype = picks.one(dtypes if call.computes and not plain else FLOATS[:1])
    sizes = drawn_sizes(call, MOST_WORK[0 if plain else index % 2], had, picks, plain)
    shared = drawn_sharing(call, sizes, had, picks) if not plain else ()
    options = drawn_options(call, index, sizes)
    if options.get("causal") and "queries" in sizes:
        sizes["queries"] = sizes["keys"]
    given = [tensor.name for tensor in call.inputs if tensor.optional and not plain and picks.one((False, True))]
    if not given:
        given = call.one_of
    if call.method == "extend":  # with a position, there are as many keys as before
        masked = () if plain else ("steps.mask",)
        given = [*dict.fromkeys([*given, "steps.position", *masked])]
    if call.has("initial"):  # the first state is the encoder's, or none is given
        given = [*(name for name in given if name != "state"), *(() if "initial" in options else ("state",))]
    lens = "valid_lens" in given
    types = picks.fresh("type of lengths", ("int32", *INTEGER), had)
    row: dict[str, Any] = {
        "ones": tuple(axis for axis in broadcast(call, given) if picks.one((False, True)) or call.method == "extend"),
        "lens": picks.fresh("lengths", ("", *LENGTHS), had) if lens else "",
        "rows": bool(OF_ROWS & set(given)) and call.method not in SEARCHES and picks.one((False, True)),
        "types": {"valid_lens": types} if lens and types != "int32" else {},
        "hidden": picks.fresh("hidden", ("", "nan", "inf"), had) if lens or "mask" in given else "",
    }
    layout = picks.fresh("layout", ("", *LAYOUTS), had)
    numbers = {tensor.name for tensor in call.inputs if () in tensor.layouts and not row["rows"]}
    several = [tensor.name for tensor in call.inputs if tensor.name not in {*numbers, *shared}]
    named = [name for name in several if name in call.floating][:1] if layout == "expanded" else several
    row |= {"shared": shared, "layouts": dict.fromkeys(named, layout) if layout else {}}
    if "queries" in shared or layout == "expanded":  # a hidden key would be a query, too, or differ along the axis
        row["hidden"] = ""
    if call.floating and dtype in FULL and not plain:
        magnitude = picks.fresh("magnitude", MAGNITUDES, had)
        dtype = "float32" if magnitude == "small" else dtype  # in which an error of 1e-6 is relatively large
        scales = scale_bounds(call, magnitude, dtype, shared)
        row |= {"scales": scales} if magnitude in BOUNDS else {"pattern": magnitude}
        if scales:  # so that something is open
            row |= {"ones": (), "lens": "longest" if lens else ""}
    row["twice"] = plain and call.repeats
    row["infinite"] = call.entry.name == "from_additive_mask"  # else nothing is hidden
    if "bias" in given:
        row["infinite"] = picks.one((False, True))
    sizes = {axis: size for axis, size in sizes.items() if size}
    return Drawn(call.entry.name, call.method, dtype, index, sizes, options, tuple(given), **row)


def drawn_options(call: Call, index: int, sizes: dict[str, int]) -> dict[str, Any]:
    """The options of a row; sizes among them go to the other sizes."""
    variants = VARIANTS.get(call.entry.name, ({},))
    options = dict(variants[index % len(variants)]) if call.method != "step" else {}
    options |= {option.name: sizes[option.name] for option in call.entry.options if option.domain == "even"}
    sizes |= {axis: options.pop(axis) for axis in ("hidden_size",) if axis in options}
    if call.method in SEARCHES:
        vocabulary = sizes.get("vocab_size", sizes.get("target_vocab_size", 1))
        options |= {"bos": 0, "eos": vocabulary - 1}
        options |= {"width": sizes["num_best"] + 1} if call.method == "beam" else {}
    return options


def drawn_sizes(call: Call, most_work: int, had: set[Setting], picks: Picks, plain: bool) -> dict[str, int]:
    """Draw the size of every axis, and reduce the largest ones until the case costs no more than most_work."""
    choices = call.sizes
    if call.method == "extend":  # a mask of the steps is the same along axes that have several entries
        several = {axis: tuple(size for size in sizes if size > 1) for axis, sizes in choices.items()}
        choices = {**several, "steps": choices["steps"]}
    if plain:
        widths = itertools.cycle(BASE_WIDTHS)
        choices = {axis: (BASE[axis] if axis in BASE else next(widths),) for axis in choices}
    sizes = {axis: picks.fresh(axis, choice, had) for axis, choice in choices.items()}
    if call.coincidences and not plain and picks.one((False, True)):
        first, second = picks.one(call.coincidences)
        sizes[first] = sizes[second] or 1
        sizes[second] = sizes[first]
    kept = max(sizes, key=lambda axis: ((axis, sizes[axis]) not in had, sizes[axis], axis), default="")
    sizes = fit_sizes(call, sizes, choices, kept, most_work, picks.one)
    without = () if call.method == "extend" else (0,)
    return sizes | ({"heads": picks.one((*without, sizes["num_heads"]))} if "num_heads" in sizes else {})


def drawn_sharing(call: Call, sizes: dict[str, int], had: set[Setting], picks: Picks) -> tuple[str, ...]:
    """Draw the arguments that are the same array as the keys; their sizes become those of the keys."""
    ways = sharing(call)
    shared: tuple[str, ...] = picks.fresh("shared", ((), *ways), had) if ways else ()
    sizes |= equal_sizes(call, sizes, shared)
    return shared


# ------------------------------------------------------------------------------------------------ the design


def most_rows(call: Call) -> int:
    """The maximum number of rows of a function or method."""
    return 300 if call.entry.name in EVERY_MASK else FEWER.get(call.method, ROWS)


@dataclass
class Design:
    """The rows by call, and their coverage: settings by kin, and pairs of settings by group."""

    rows: dict[str, list[Drawn]] = field(default_factory=dict)
    single: dict[str, set[Setting]] = field(default_factory=dict)
    pairs: dict[str, set[tuple[Setting, Setting]]] = field(default_factory=dict)

    def add(self, call: Call, row: Drawn) -> None:
        """Add a row."""
        covered = [setting for _, setting in settings(call, row)]
        self.rows.setdefault(call.name, []).append(row)
        self.single.setdefault(call.kin, set()).update(covered)
        self.pairs.setdefault(call.group, set()).update(itertools.combinations(covered, 2))

    def gain(self, call: Call, row: Drawn, missing: set[Setting]) -> int:
        """The gain by a row: 1 for a new pair, 20 for a missing setting, about the number of its pairs in a row."""
        covered = [setting for _, setting in settings(call, row)]
        pairs = set(itertools.combinations(covered, 2)) - self.pairs.get(call.group, set())
        return len(pairs) + 20 * len(missing & set(covered))


@functools.cache
def design() -> Design:
    """The rows of every call."""
    made = Design()
    kin: dict[str, list[Call]] = {}
    for call in calls():
        kin.setdefault(call.kin, []).append(call)
    for alike in kin.values():
        picks = Picks(f"covering/{alike[0].kin}")
        most = max(map(most_rows, alike))
        fill(made, [(index, call) for index in range(most) for call in alike if index < most_rows(call)], picks)
    return made


def fill(made: Design, places: Sequence[tuple[int, Call]], picks: Picks) -> None:
    """Add rows at these places until no required setting is missing."""
    alike = {call.name: call for _, call in places}
    missing: set[Setting] = set().union(*map(required_settings, alike.values()))
    for index, call in places:
        had = made.single.setdefault(call.kin, set())
        missing -= had
        if index > TWICE and not missing:
            break
        drawn = [candidate(call, index, had, picks) for _ in range(CANDIDATES)]
        best = max(drawn, key=lambda row: made.gain(call, row, missing))
        if index <= TWICE or missing & {setting for _, setting in settings(call, best)}:
            made.add(call, replace(best, forward=not best.twice and is_forward(call, best)))
