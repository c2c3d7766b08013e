"""Cases of positions that are added to inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attention_core import draws
from parity_tests.cases.case import DTYPES, EXACT, SEED, Arrays, Case, Sizes, layer_case


def cases() -> Iterator[Case]:
    """Every case of positions."""
    sizes = {"batch": 2, "steps": 5, "features": 8}

    def inputs(sizes: Sizes) -> Arrays:
        return {"inputs": draws.uniform("positions", (sizes["batch"], sizes["steps"], sizes["features"]), 1.0, SEED)}

    layers: tuple[tuple[str, dict[str, Any], int], ...] = (
        ("SinusoidalPositions", {"features": 8}, 9_998),
        ("LearnedPositions", {"num_positions": 7, "features": 8}, 2),
    )
    for name, config, far in layers:
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
    for features in (8, 2):
        name, options = f"of_{features}", {"features": features}
        shows = "Interleaved to concatenated."
        yield Case("position_permutation", name, shows, {}, options, dtypes=EXACT, gradients=False)
