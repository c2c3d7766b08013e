"""The settings of the covering design, which the rows of `covering` meet.

Each function, attention layer and kin covers every setting that it has, one by one; `tools.covering` adds rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from attention_core.specification import INTEGER, Tensor
from parity_tests.cases.covering import (
    BOUNDS,
    EVERY_MASK,
    FULL_ALONE,
    MAGNITUDES,
    MOST_WORK,
    Call,
    is_rounding,
    scale_bounds,
    sharing,
    work,
)
from parity_tests.cases.draw import Setting
from parity_tests.format.case import FULL
from parity_tests.format.drawn import LENGTHS, Drawn, steps_of_segments
from parity_tests.format.layouts import LAYOUTS

FLOATS = (*["float64"] * 4, *["float32"] * 3, "float16", "bfloat16")


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
    settings: set[Setting] = {("twice", True)} if call.repeats else set()
    settings |= {(axis, size) for axis, sizes in call.sizes.items() for size in sizes}
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
