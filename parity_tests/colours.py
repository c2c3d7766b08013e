"""Colours of frameworks in all pictures, from the palette of Okabe and Ito, which suits all kinds of colour vision."""

from __future__ import annotations

import re
from collections.abc import Iterable

from backends import FRAMEWORKS

FRAMEWORK_COLOURS = dict(zip(FRAMEWORKS, ("#D55E00", "#0072B2", "#009E73", "#56B4E9"), strict=True))
OTHER_COLOURS = ("#E69F00", "#CC79A7", "#000000", "#7F7F7F")
"""For what is of no framework, and for a second one of the same framework."""


def colours_of(names: Iterable[str]) -> dict[str, str]:
    """The colour of each name: that of the framework that is a word of it, for the first one; else another one."""
    colours: dict[str, str] = {}
    others = 0
    for name in names:
        words = re.split(r"[\W_]+", name)
        colour = next((FRAMEWORK_COLOURS[word] for word in words if word in FRAMEWORK_COLOURS), None)
        if colour is None or colour in colours.values():
            colour = OTHER_COLOURS[others % len(OTHER_COLOURS)]
            others += 1
        colours[name] = colour
    return colours
