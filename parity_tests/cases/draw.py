"""Draw cases by seed and number, in every dimension of the covering design, in options and in moderate scales."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from attention_core.errors import AttentionError
from attention_core.operators import FILE_OF, find
from attention_core.specification import INTEGER, Layer, Operator
from parity_tests.cases.conditions import conditions
from parity_tests.cases.covering import (
    BOUNDS,
    MAGNITUDES,
    MOST_WORK,
    SEARCHES,
    TRANSFORMERS,
    Call,
    broadcast,
    equal_sizes,
    fit_sizes,
    is_forward,
    scale_bounds,
    sharing,
    work,
)
from parity_tests.cases.options import OF_POSITIONS, Pick, values_of
from parity_tests.format import expected as reference
from parity_tests.format.case import FULL, Case
from parity_tests.format.drawn import (
    COUNTS,
    INFINITE,
    LENGTHS,
    MOST,
    NAMES,
    OF_ROWS,
    WHOLE,
    Drawn,
    is_size,
    methods_of,
    options_of,
)
from parity_tests.format.layouts import LAYOUTS

Setting = tuple[str, Any]
"""A setting in a dimension: a name, such as keys, and a value, such as 1025."""

FAMILY = 32
"""Number of consecutive cases that differ only in their numbers, and share one compiled function."""

SMALL = 4
"""The largest size of most families; the others take any size of the covering design."""
SCALES = (1.0, 1.0, 1.0, 2.0**-10, 2.0, 16.0)
HALF_SCALES = (1.0, 1.0, 1.0, 0.5, 2.0)
"""The widest saturate a tanh or a softmax; larger numbers are `whole`. Half precision would lose all of a gradient."""

PARAMETER_SCALES = (1.0, 1.0, 1.0, 0.25, 2.0, 8.0)
LARGE = {"scores": 16.0, "values": 1000.0, "additive_mask": 2e4}
"""Bounds of arrays that may be larger: scores whose softmax still has gradients, values, which are only averaged, and
masks that are compared with a threshold."""

HIDDEN = ("", "nan", "inf", "-inf", "1e30")
SEEDS = 2**16
ATTEMPTS = 1000

RARELY = (False,) * 7 + (True,)
NOW_AND_THEN = (False, False, True)
EITHER = (False, True)
"""Choices that are True once in eight, once in three, and once in two draws."""


class Picks:
    """Random choices that are the same on every machine, and prefer what a call has not had yet."""

    def __init__(self, name: str) -> None:
        self.random = Random(name)

    def one(self, choices: Sequence[Any]) -> Any:
        """One of the choices."""
        return choices[int(self.random.random() * len(choices))]

    def fresh(self, name: str, choices: Sequence[Any], had: set[Setting]) -> Any:
        """One of the choices, nine times out of ten one that is new."""
        new = [choice for choice in choices if (name, choice) not in had]
        return self.one(new if new and self.random.random() < 0.9 else choices)


def draw(seed: int, number: int, operators: Sequence[str] = NAMES, dtypes: Sequence[str] = FULL) -> Drawn:
    """Draw case `number` of a seed: a call of one of the operators, in one of the dtypes."""
    attempt = accepted_attempt(seed, number // FAMILY, tuple(operators), tuple(dtypes))
    return draw_attempt(seed, number, attempt, operators, dtypes)


@functools.lru_cache(maxsize=4096)
def accepted_attempt(seed: int, family: int, operators: tuple[str, ...], dtypes: tuple[str, ...]) -> int:
    """The first attempt at a family that the specification accepts: options depend on each other."""
    for attempt in range(ATTEMPTS):
        try:
            case = Case(**draw_attempt(seed, family * FAMILY, attempt, operators, dtypes).as_case())
            with np.errstate(all="ignore"):
                reference.computed_outputs(case, case.inputs, case.parameters)
        except AttentionError:
            continue
        return attempt
    raise RuntimeError(f"seed {seed}, family {family}: {ATTEMPTS} attempts were all refused")


def draw_attempt(seed: int, number: int, attempt: int, operators: Sequence[str], dtypes: Sequence[str]) -> Drawn:
    """Draw an attempt at a case, which the specification may refuse."""
    family = draw_family(seed, number // FAMILY, attempt, tuple(operators), tuple(dtypes))
    return draw_numbers(family, Picks(f"fuzz/{seed}/case/{number}").one)


@functools.lru_cache(maxsize=1024)
def draw_family(seed: int, family: int, attempt: int, operators: tuple[str, ...], dtypes: tuple[str, ...]) -> Drawn:
    """Draw the common part of a family's cases: everything that determines shapes, and whether there are gradients."""
    pick = Picks(f"fuzz/{seed}/family/{family}").one
    entry = find(pick(operators))
    call = Call(entry, pick(methods_of(entry)))
    if attempt:  # at the same call
        pick = Picks(f"fuzz/{seed}/family/{family}/{attempt}").one
    row = draw_call(call, pick, dtypes)
    further = conditions(call) if pick(NOW_AND_THEN) else []
    changed = pick(further).aim(row, pick) if further else row
    row = changed if work(call, changed.sizes) <= 4 * MOST_WORK[0] else row
    row = replace(row, types={name: kind for name, kind in row.types.items() if kind != "int32"})
    return replace(row, forward=is_forward(call, row) or (call.computes and pick(RARELY)))


def draw_call(call: Call, pick: Pick, dtypes: Sequence[str]) -> Drawn:
    """Draw everything of a call that determines shapes; options may not fit each other."""
    entry = call.entry
    shared = pick(((),) * 4 + tuple(sharing(call)))
    sizes = drawn_sizes(call, shared, pick)
    optional = [tensor.name for tensor in call.inputs if tensor.optional]
    given = [name for name in optional if pick(EITHER)]
    if not given:
        given = call.one_of
    passed = [tensor for tensor in call.inputs if not tensor.optional or tensor.name in given]
    types = {tensor.name: pick(("int32", *INTEGER)) for tensor in passed if tensor.kind == "integer"}
    dtype, options = pick(dtypes), drawn_options(call, sizes, pick)
    twice = call.repeats and pick(RARELY)
    if entry.name in TRANSFORMERS and call.has("positions"):
        if pick(EITHER):
            options["positions"] = pick(("rotary", "relative"))  # which have options of their own
        kind = options.get("positions", "sinusoidal")
        sizes, options = (
            {name: value for name, value in drawn.items() if OF_POSITIONS.get(name, kind) == kind}
            for drawn in (sizes, options)
        )
        needed = {"learned": "num_positions", "relative": "num_buckets"}.get(kind)
        if needed and needed not in sizes:
            sizes[needed] = pick(call.choices[needed])
        if "max_distance" in sizes:  # shorter distances have a bucket each
            sizes["max_distance"] = max(sizes["max_distance"], sizes["num_buckets"])
    return Drawn(
        operator=entry.name,
        method=call.method,
        dtype=dtype,
        sizes=sizes,
        options=options,
        given=tuple(given),
        rows=bool(OF_ROWS & set(given)) and pick(EITHER),
        ones=tuple(axis for axis in broadcast(call, given) if pick(NOW_AND_THEN)),
        types={name: kind for name, kind in types.items() if kind != "int32"},
        shared=shared,
        twice=twice,
        changed=pick(("", *(one.name for one in passed if one.axes and one.name not in shared))) if twice else "",
    )


def draw_numbers(family: Drawn, pick: Pick) -> Drawn:
    """Draw the numbers of a case of a family, their memory layout, and the numbers at hidden places."""
    call = Call(find(family.operator), family.method)
    passed = [tensor for tensor in call.inputs if not tensor.optional or tensor.name in family.given]
    floating = [name for name in call.floating if name not in family.shared]
    lens = "valid_lens" in family.given
    row = replace(family, seed=pick(range(SEEDS)), lens=pick(("", "", *LENGTHS)) if lens else "")
    # Not for layers, whose gradients are then differences of large numbers, nor for a tanh or an exponential of large
    # numbers. Half precision rounds whole numbers.
    exact = isinstance(call.entry, Operator) and {*floating} & {*WHOLE} and "w_v" not in floating
    exact = exact and FILE_OF[call.entry.name] != "linear" and "softcap" not in family.options
    whole = bool(exact) and row.dtype in FULL and pick(RARELY)
    row = replace(row, whole=whole) if whole else with_magnitude(call, row, floating, pick)
    layouts = {one.name: pick(("", *LAYOUTS)) for one in passed if one.axes and one.name not in family.shared}
    layouts = {name: layout for name, layout in layouts.items() if layout} if pick(NOW_AND_THEN) else {}
    # A hidden key would be a query, too, and hidden places differ along the axis that an expanded array repeats.
    # A second call that changes the mask would show them.
    hides = "queries" not in row.shared and "expanded" not in layouts.values() and not row.changed
    hidden = pick(HIDDEN) if lens or "scores" in floating or any(tensor.broadcast for tensor in passed) else ""
    return replace(
        row,
        wild=lens and not row.lens and pick(NOW_AND_THEN),
        infinite=bool(set(INFINITE) & {*floating, *row.given}) and not whole and pick(NOW_AND_THEN),
        layouts=layouts,
        hidden=hidden if hides else "",
    )


def with_magnitude(call: Call, row: Drawn, floating: Sequence[str], pick: Pick) -> Drawn:
    """The case with a pattern or scales: sometimes those of the covering design, else moderate scales.

    Half precision loses the products of small numbers. Scales are moderate where gradients would be only rounding.
    """
    magnitude = pick(("",) * len(MAGNITUDES) + MAGNITUDES) if floating and row.dtype in FULL else ""
    scales = scale_bounds(call, magnitude, row.dtype, row.shared) if magnitude in BOUNDS else {}
    pattern = magnitude if magnitude not in BOUNDS else ""
    far = replace(row, pattern=pattern, scales=scales)
    if far != row and (row.forward or not is_forward(call, far)):
        return far
    # Saturated states are equal at each step, and hypotheses of the same tokens in another order then tie in a search.
    most = 2.0 if call.method in SEARCHES else math.inf
    usual = [scale for scale in (SCALES if row.dtype in FULL else HALF_SCALES) if scale <= most]
    scales = {name: pick((*usual, LARGE.get(name, 1.0))) for name in floating}
    if isinstance(call.entry, Layer) and call.entry.trainable:
        scales["parameters"] = pick([scale for scale in PARAMETER_SCALES if scale <= most])
    return replace(row, scales={name: scale for name, scale in scales.items() if scale != 1.0})


def drawn_sizes(call: Call, shared: Sequence[str], pick: Pick) -> dict[str, int]:
    """Draw sizes of axes and of the constructor: most are small, some large or equal; sometimes an axis is empty."""
    left_out = [option.name for option in call.size_options if option.default is not None and pick(EITHER)]
    if "heads" in call.choices and pick((True, True, False)):
        left_out.append("heads")
    most = pick((SMALL,) * 6 + (max(map(max, call.choices.values())),))
    choices = {
        axis: [size for size in choice if 0 < size <= most]
        for axis, choice in call.choices.items()
        if axis not in left_out
    }
    sizes = {axis: pick(choice) for axis, choice in choices.items()}
    pairs = [pair for pair in call.coincidences if set(pair) <= set(sizes)]
    if pairs and pick(NOW_AND_THEN):
        first, second = pick(pairs)
        sizes[first] = sizes[second]
    sizes = fit_sizes(call, sizes, choices, pick(sorted(sizes)), pick(MOST_WORK), pick)
    equal = equal_sizes(call, sizes, shared)
    sizes |= equal
    even = {option.name for option in call.entry.options if option.domain == "even"}  # which is at least 2
    empty = [axis for axis in call.free if axis in sizes and axis not in equal and axis not in even]
    if empty and pick((False,) * 5 + (True,)):
        sizes[pick(empty)] = 0
    return {axis: min(size, sizes.get(MOST.get(axis, axis), size)) for axis, size in sizes.items()}


def drawn_options(call: Call, sizes: Mapping[str, int], pick: Pick) -> dict[str, Any]:
    """Draw the options that are not the size of an axis: all required ones, and some of the others."""
    offered = options_of(call.entry, call.method)
    stated = {COUNTS.get(option.name, option.name) for option in offered} & {*call.axes}
    drawn = [option for option in offered if COUNTS.get(option.name, option.name) not in {*stated, "dtype"}]
    fixed = [option for option in call.entry.options if not is_size(option)] if isinstance(call.entry, Layer) else []
    return {
        option.name: sizes[option.name] if option.domain == "even" else pick(values_of(option, sizes))
        for option in (*fixed, *drawn)
        if option.default is None or pick(EITHER)
    }
