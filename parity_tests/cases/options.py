"""The values of options that cases are drawn with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attention_core.specification import Option

Pick = Callable[[Sequence[Any]], Any]
"""Chooses one of several."""

NUMBERS = (0.375, 1.0, -2.0, 0.0)
RATES = (0.0, 0.5)
POSITIVE = (0.375, 1.0, 2.0)
COUNTED = (0, 1, 2, 3, 40)
WIDTHS = (1, 2, 3, 4, 16)
"""Options that are sizes but not of axes: those of blocks, strides and beams."""
OF_POSITIONS = {
    "num_positions": "learned",
    **dict.fromkeys(("num_buckets", "max_distance"), "relative"),
    **dict.fromkeys(("rotary_layout", "rotary_base"), "rotary"),
}
"""The kind of positions of a Transformer that alone has an option."""


def values_of(option: Option, sizes: Mapping[str, int]) -> Sequence[Any]:
    """The values of an option that are drawn."""
    choices = {
        "number": NUMBERS,
        "rate": RATES,
        "token": range(sizes.get("vocab_size", sizes.get("target_vocab_size", 1))),
        "count": COUNTED,
        "size": WIDTHS,
        "positive": POSITIVE,
    }
    return {"bool": (False, True), "str": option.choices}.get(option.type) or choices[option.domain]
