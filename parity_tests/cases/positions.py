"""Cases of positions that are added to inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attention_core import draws
from attention_core.operators import find
from attention_core.specification import Layer
from parity_tests.cases.case import (
    DTYPES,
    EXACT,
    FULL,
    SEED,
    Arrays,
    Case,
    Sizes,
    drawn_parameters,
)


def position_cases() -> Iterator[Case]:
    """Positions that are added to inputs."""
    sizes = {"batch": 2, "steps": 5, "features": 8}

    def inputs(sizes: Sizes) -> Arrays:
        return {"inputs": draws.uniform("positions", (sizes["batch"], sizes["steps"], sizes["features"]), 1.0, SEED)}

    for name, config, far in (
        ("SinusoidalPositions", {"features": 8}, 9_998),
        ("LearnedPositions", {"num_positions": 7, "features": 8}, 2),
    ):
        layer = find(name)
        assert isinstance(layer, Layer)

        def case(
            label: str,
            shows: str,
            inputs: Arrays,
            dtypes: tuple[str, ...],
            changed: Mapping[str, Any] | None = None,
            options: Mapping[str, Any] | None = None,
            layer: Layer = layer,
            config: Mapping[str, Any] = config,
        ) -> Case:
            own = {**config, **(changed or {})}
            return Case(
                layer.name, label, shows, inputs, options or {}, "call", own, drawn_parameters(layer, own), dtypes
            )

        yield case("plain", "The first positions.", inputs(sizes), DTYPES)
        yield case(
            "offset",
            "Positions from an offset to the last, or to 10,002.",
            inputs(sizes),
            FULL,
            options={"offset": far},
        )
        if name == "SinusoidalPositions":
            concatenated = {"layout": "concatenated"}
            yield case("concatenated", "Sines first, then cosines.", inputs(sizes), FULL, concatenated)
        for axis, label, shows in (
            ("steps", "no_steps", "There are no steps."),
            ("batch", "no_batch", "There are no sequences."),
        ):
            yield case(label, shows, inputs({**sizes, axis: 0}), EXACT)
    for features in (8, 2):
        yield Case(
            "position_permutation",
            f"of_{features}",
            "Interleaved to concatenated.",
            {},
            {"features": features},
            dtypes=EXACT,
            gradients=False,
        )


def cases() -> Iterator[Case]:
    """Every case of positions."""
    yield from position_cases()
