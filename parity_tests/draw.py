"""Cases drawn by seed and number: operators, sizes, masks, lengths, options, magnitudes and dtypes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.errors import AttentionError
from attention_core.operators import find
from attention_core.specification import INTEGER, Layer, Operator
from parity_tests import expected as reference
from parity_tests.cases import FULL, Case
from parity_tests.drawn import COUNTS, INFINITE, MOST, NAMES, WHOLE, Drawn, axes_of, called_of, inputs_of, is_size

FAMILY = 32
"""So many cases in a row differ in their numbers alone: what compiles does it once for all of them."""

SIZES = (1, 2, 3, 4)
MOST_LAYERS = 3
SCALES = (1.0, 1.0, 1.0, 2.0**-10, 2.0)
HALF_SCALES = (1.0, 1.0, 1.0, 0.5, 2.0)
"""Wider ones saturate a tanh, whose gradient is then rounding alone; what is larger than that is `whole`."""

PARAMETER_SCALES = (1.0, 1.0, 1.0, 0.25, 2.0)
LARGE = {"scores": 16.0, "values": 1000.0, "additive_mask": 2e4}
"""Bounds of what may be larger: scores whose softmax still has gradients, values, which are only averaged, and masks
that are compared with a threshold."""

NUMBERS = (0.375, 1.0, -2.0, 0.0)
RATES = (0.0, 0.5)
POSITIVE = (0.375, 1.0, 2.0)
EVEN = (2, 4)
COUNTED = (0, 1, 2, 3)
HIDDEN = ("", "nan", "inf", "-inf", "1e30")
SEEDS = 2**16
ATTEMPTS = 1000
CHOICES = 128
"""More choices than a case takes."""

Pick = Callable[[Sequence[Any]], Any]


def draw(seed: int, number: int, operators: Sequence[str] = NAMES, tiers: Sequence[str] = FULL) -> Drawn:
    """Case `number` of a seed: a call of one of the operators, in one of the tiers."""
    attempt = accepted(seed, number // FAMILY, tuple(operators), tuple(tiers))
    return attempted(seed, number, attempt, operators, tiers)


@functools.lru_cache(maxsize=4096)
def accepted(seed: int, family: int, operators: tuple[str, ...], tiers: tuple[str, ...]) -> int:
    """The first attempt at a family that the specification does not refuse: options depend on each other."""
    for attempt in range(ATTEMPTS):
        try:
            case = Case(**attempted(seed, family * FAMILY, attempt, operators, tiers).as_case())
            with np.errstate(all="ignore"):
                reference.computed_outputs(case, case.inputs, case.parameters)
        except AttentionError:
            continue
        return attempt
    raise RuntimeError(f"seed {seed}, family {family}: {ATTEMPTS} attempts were all refused")


def attempted(seed: int, number: int, attempt: int, operators: Sequence[str], tiers: Sequence[str]) -> Drawn:
    """An attempt at a case, which the specification may refuse."""
    family = f"family/{number // FAMILY}"
    pick, pick_number = picking(family, seed), picking(f"case/{number}", seed)
    entry = find(pick(operators))
    method = pick(methods_of(entry))
    if attempt:  # at the same call
        pick = picking(f"{family}/{attempt}", seed)
    inputs = inputs_of(entry, method)
    sizes = drawn_sizes(entry, method, pick)
    optional = [tensor.name for tensor in inputs if tensor.optional]
    present = [name for name in optional if pick((False, True))]
    if not present and len(optional) == len(inputs):
        present = optional[:1]
    masks = [tensor for tensor in inputs if tensor.broadcast and tensor.name in present]
    lens = "valid_lens" in present
    floating = [tensor.name for tensor in inputs if tensor.kind == "floating" and not tensor.optional]
    # Not for layers, whose gradients are then differences of large numbers, nor for a tanh of large numbers.
    exact = isinstance(entry, Operator) and set(floating) & set(WHOLE) and "w_v" not in floating
    tier = pick(tiers)
    # Half tiers round whole numbers, and lose the products of small ones.
    scales_of_tier = SCALES if tier in FULL else HALF_SCALES
    whole = bool(exact) and tier in FULL and pick_number((False,) * 7 + (True,))
    scales = {
        name: pick_number((*scales_of_tier, LARGE.get(name, 1.0))) for name in floating if not (whole and name in WHOLE)
    }
    if isinstance(entry, Layer) and entry.trainable:
        scales["parameters"] = pick_number(PARAMETER_SCALES)
    numbered = [tensor for tensor in inputs if tensor.kind == "integer"]
    integers = [tensor.name for tensor in numbered if not tensor.optional or tensor.name in present]
    types = {name: pick(("int32", *INTEGER)) for name in integers}
    return Drawn(
        operator=entry.name,
        method=method,
        tier=tier,
        seed=pick_number(range(SEEDS)),
        sizes=sizes,
        options=drawn_options(entry, method, sizes, pick),
        given=tuple(present),
        rows=lens and pick((False, True)),
        ones=tuple(axis.removesuffix("?") for tensor in masks for axis in tensor.axes if pick((False, False, True))),
        types={name: kind for name, kind in types.items() if kind != "int32"},
        wild=lens and pick_number((False, False, True)),
        scales={name: scale for name, scale in scales.items() if scale != 1.0},
        whole=whole,
        infinite=bool(set(INFINITE) & set(floating)) and not whole and pick_number((False, False, True)),
        hidden=pick_number(HIDDEN) if lens or masks or "scores" in floating else "",
    )


def picking(name: str, seed: int) -> Pick:
    """A function that chooses one of a sequence, differently at each call, by name and seed."""
    units = iter(0.5 * (draws.uniform(f"fuzz/{name}", (CHOICES,), seed=seed) + 1.0))
    return lambda choices: choices[int(next(units) * len(choices))]


def drawn_sizes(entry: Operator | Layer, method: str, pick: Pick) -> dict[str, int]:
    """Sizes of axes and of the constructor; now and then, an axis is empty."""
    fixed = [option for option in entry.options if is_size(option)] if isinstance(entry, Layer) else []
    free = sorted(own_axes(entry, method) - {option.name for option in fixed})
    chosen = [option.name for option in fixed if option.default is None or pick((False, True))]
    sizes = {axis: pick(SIZES) for axis in (*free, *chosen)}
    if "num_layers" in sizes:
        sizes["num_layers"] = min(sizes["num_layers"], MOST_LAYERS)
    if "heads" in sizes and pick((True, True, False)):
        del sizes["heads"]
    if free and pick((False,) * 5 + (True,)):
        axis = pick(free)
        sizes |= {axis: 0} if axis in sizes else {}
    return {axis: min(size, sizes.get(MOST.get(axis, axis), size)) for axis, size in sizes.items()}


def own_axes(entry: Operator | Layer, method: str) -> set[str]:
    """The axes whose sizes a call is free to choose.

    An axis that belongs to the preparation alone has size 1: a step takes a memory whose mask has one row.
    """
    called = called_of(entry, method)
    own = {axis.removesuffix("?") for tensor in (*called.inputs, *called.outputs) for axis in tensor.axes}
    return {axis for axis in own & set(axes_of(entry, method)) if " " not in axis and axis != "one"}


def methods_of(entry: Operator | Layer) -> list[str]:
    """The methods of a layer that return arrays: all but `prepare`, whose memory the others read."""
    if isinstance(entry, Operator):
        return [""]
    return [name for method in entry.methods if (name := method.name.rpartition(".")[2]) != "prepare"]


def drawn_options(entry: Operator | Layer, method: str, sizes: Mapping[str, int], pick: Pick) -> dict[str, Any]:
    """Values of the options that state no size of an axis: all that have to be given, and some of the others."""
    called = called_of(entry, method)
    choices = {
        "number": NUMBERS,
        "rate": RATES,
        "token": range(sizes.get("vocab_size", sizes.get("target_vocab_size", 1))),
        "count": COUNTED,
        "size": SIZES,
        "positive": POSITIVE,
        "even": EVEN,
    }
    stated = {COUNTS.get(option.name, option.name) for option in called.options} & {*axes_of(entry, method)}
    own = [option for option in called.options if COUNTS.get(option.name, option.name) not in {*stated, "dtype"}]
    fixed = [option for option in entry.options if not is_size(option)] if isinstance(entry, Layer) else []
    return {
        option.name: pick({"bool": (False, True), "str": option.choices}.get(option.type) or choices[option.domain])
        for option in (*fixed, *own)
        if option.default is None or pick((False, True))
    }
