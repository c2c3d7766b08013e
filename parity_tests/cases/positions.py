"""Cases of positions that are added to inputs, by which inputs are rotated, and that make a bias."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attention_core import draws
from parity_tests.format.case import DTYPES, EXACT, FULL, SEED, Arrays, Case, Sizes, dtypes_naming, layer_case
from parity_tests.format.families import Family

ADDED: dict[str, tuple[dict[str, Any], int]] = {
    "SinusoidalPositions": ({"features": 8}, 9_998),
    "LearnedPositions": ({"num_positions": 7, "features": 8}, 2),
}
"""The layers that add positions: their options, and a far offset."""


def layer_cases() -> Iterator[Case]:
    """Positions that are added, from a formula and from a table."""
    sizes = {"batch": 2, "steps": 5, "features": 8}

    def inputs(sizes: Sizes) -> Arrays:
        return {"inputs": draws.uniform("positions", (sizes["batch"], sizes["steps"], sizes["features"]), 1.0, SEED)}

    for name, (config, far) in ADDED.items():
        yield layer_case(name, "plain", "The first positions.", inputs(sizes), config, DTYPES)
        shows = "Positions from an offset to the last, or to 10,002."
        yield layer_case(name, "offset", shows, inputs(sizes), config, options={"offset": far})
        if name == "SinusoidalPositions":
            concatenated = {**config, "layout": "concatenated"}
            yield layer_case(name, "concatenated", "Sines first, then cosines.", inputs(sizes), concatenated)
        for axis, label, shows in (
            ("steps", "no_steps", "There are no steps."),
            ("batch", "no_batch", "There are no sequences."),
        ):
            yield layer_case(name, label, shows, inputs({**sizes, axis: 0}), config, EXACT)


def permutation_cases() -> Iterator[Case]:
    """The order of features in one layout by that in the other."""
    for features in (8, 2):
        name, options = f"of_{features}", {"features": features}
        shows = "Interleaved to concatenated."
        yield Case("position_permutation", name, shows, {}, options, dtypes=EXACT, gradients=False)


NEAR = np.array([4, -3], np.int32)
FAR = np.array([9_998, -131_070], np.int32)


def rotary_cases() -> Iterator[Case]:
    """Rotated inputs, in both layouts, from near and far offsets."""
    axes = {"batch": 2, "heads": 3, "steps": 5, "features": 8}

    def case(name: str, shows: str, dtypes: tuple[str, ...] = FULL, heads: bool = False, **given: Any) -> Case:
        sizes = {**axes, **{axis: 0 for axis in axes if name == f"no_{axis}"}}
        shape = tuple(size for axis, size in sizes.items() if heads or axis != "heads")
        inputs = {"inputs": draws.uniform("rotary", shape, 1.0, SEED)}
        inputs |= {"offset": given.pop("offset")} if "offset" in given else {}
        return layer_case("RotaryPositions", name, shows, inputs, {"features": 8, **given}, dtypes)

    yield case("plain", "Neighbours are rotated, from position 0 on.", DTYPES)
    yield case("offset", "All sequences begin at one position.", offset=np.array(9_998, np.int32))
    yield case("offsets", "Each sequence begins at a position of its own, which may be negative.", offset=NEAR)
    yield case("far", "Positions of many turns.", DTYPES, offset=FAR)
    yield case("concatenated", "A pair has a feature of each half.", DTYPES, layout="concatenated", offset=NEAR)
    yield case("base", "Another base.", base=500.0, offset=NEAR)
    yield case("heads", "Heads, whose positions are alike.", heads=True, offset=NEAR)
    yield case("heads_concatenated", "Heads, and one position for all.", heads=True, layout="concatenated")
    yield case("no_steps", "There are no steps.", EXACT)
    yield case("no_batch", "There are no sequences.", EXACT)


def bias_cases() -> Iterator[Case]:
    """The bias of ALiBi and that of T5, and the buckets of the latter."""
    sizes = {"num_queries": 5, "num_keys": 7}
    one, two = np.array(2, np.int32), NEAR

    def alibi(name: str, shows: str, dtype: str = "float64", heads: int = 4, **given: Any) -> Case:
        inputs = {"offset": given.pop("offset")} if "offset" in given else {}
        options = {"num_heads": heads, **sizes, "dtype": dtype, **given}
        return Case("alibi_bias", name, shows, inputs, options, dtypes=dtypes_naming(dtype), gradients=False)

    yield Case("alibi_bias", "default", "float32.", {}, {"num_heads": 3, **sizes}, dtypes=("float32",), gradients=False)
    for dtype in DTYPES:
        yield alibi(dtype, f"Slopes that have to be rounded, in {dtype}.", dtype, 12, offset=two)
    yield alibi("offset", "Queries behind the keys of a cache.", offset=one)
    yield alibi("six_heads", "Heads whose number is no power of two.", heads=6)
    yield alibi("one_head", "A single head.", heads=1)
    yield alibi("short", "Fewer keys than queries.", num_queries=8, num_keys=6)
    yield alibi("no_keys", "There are no keys.", num_keys=0)
    yield alibi("no_queries", "There are no queries.", num_queries=0)

    long: dict[str, Any] = {"num_queries": 5, "num_keys": 301}
    middle = np.array(150, np.int32)

    def buckets(name: str, shows: str, **given: Any) -> Case:
        inputs = {"offset": given.pop("offset")} if "offset" in given else {}
        options = {**sizes, "num_buckets": 8, **given}
        return Case("relative_buckets", name, shows, inputs, options, dtypes=EXACT, gradients=False)

    def bias(name: str, shows: str, num_buckets: int = 8, dtypes: tuple[str, ...] = FULL, **given: Any) -> Case:
        inputs = {"table": draws.uniform("relative", (num_buckets, 3), 1.0, SEED)}
        inputs |= {"offset": given.pop("offset")} if "offset" in given else {}
        return Case("relative_bias", name, shows, inputs, {**sizes, **given}, dtypes=dtypes)

    near: dict[str, Any] = {"max_distance": 5}
    yield buckets("plain", "Distances in both directions.", **near)
    yield buckets("one_direction", "Keys after the query share a bucket.", bidirectional=False, **near, offset=two)
    yield buckets("offset", "Queries behind the keys of a cache.", **near, offset=one)
    yield buckets("offsets", "An offset for each sequence; before the first key, too.", **near, offset=two)
    yield buckets("odd", "An odd number of buckets.", **near, num_buckets=9, offset=two)
    yield buckets("few", "As few buckets as there may be.", **near, num_buckets=4)
    power: dict[str, Any] = {"num_keys": 19, "num_buckets": 17, "bidirectional": False, "max_distance": 27}
    shows = "A distance of 12, which is at a power: (12/8)^9 = (27/8)^3."
    yield buckets("power", shows, **power, offset=np.array(14, np.int32))
    shows = "Distances up to 150, in the buckets of T5."
    yield buckets("long", shows, **long, num_buckets=32, offset=middle)
    yield buckets("long_one_direction", shows, **long, num_buckets=32, bidirectional=False, offset=middle)
    yield buckets("no_keys", "There are no keys.", num_keys=0)
    yield buckets("no_queries", "There are no queries.", num_queries=0)

    yield bias("plain", "Distances in both directions.", dtypes=DTYPES, **near)
    yield bias("one_direction", "Keys after the query share a bucket.", bidirectional=False, **near, offset=two)
    yield bias("offset", "Queries behind the keys of a cache.", **near, offset=one)
    yield bias("offsets", "An offset for each sequence; before the first key, too.", **near, offset=two)
    yield bias("long", "Distances up to 150, in the buckets of T5.", 32, DTYPES, **long, offset=middle)
    yield bias("no_keys", "There are no keys.", dtypes=EXACT, num_keys=0)
    yield bias("no_queries", "There are no queries.", dtypes=EXACT, num_queries=0)


FAMILIES = (
    Family(tuple(ADDED), layer_cases),
    Family(("RotaryPositions",), rotary_cases),
    Family(("alibi_bias", "relative_buckets", "relative_bias"), bias_cases),
    Family(("position_permutation",), permutation_cases),
)
