"""Wrong positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.reference.arrays import promote
from parity_tests.cases.case import Arrays, Case
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import called_with, constructed, where_all


def _positions(case: Case, inputs: Arrays) -> bool:
    """Whether there is a position behind the first."""
    array = inputs["inputs"]
    return array.size > 0 and array.shape[-2] + case.options.get("offset", 0) > 1


@mutant(
    ("SinusoidalPositions-*", "LearnedPositions-*"),
    of=("positions.SinusoidalPositions.__call__", "positions.LearnedPositions.__call__"),
    red=(
        "SinusoidalPositions-offset:outputs",
        "LearnedPositions-offset:outputs",
        "LearnedPositions-offset:gradient_P",
    ),
)
def position_offset_ignored(original: Any) -> Any:
    """Positions are counted from 0."""
    return called_with(offset=0)(original)


@mutant(
    "SinusoidalPositions-*", of="positions.SinusoidalPositions.__init__", red="SinusoidalPositions-concatenated:outputs"
)
def layout_ignored(original: Any) -> Any:
    """Sines and cosines always take turns."""
    return constructed(layout="interleaved")(original)


@mutant(
    "SinusoidalPositions-*",
    of="rates",
    red=tuple(f"SinusoidalPositions-{name}:outputs" for name in ("plain", "offset", "concatenated")),
    source="tensorflow/tensor2tensor#1423",
)
def rates_to_the_end(original: Any) -> Any:
    """The last rate is 1/10000, as in tensor2tensor."""

    def rates(features: int) -> Any:
        pairs = features // 2
        high = 10000.0 ** (-np.arange(pairs) / max(pairs - 1, 1))
        return high, np.zeros(pairs)

    return rates


@mutant(
    "SinusoidalPositions-*",
    of="rates",
    red=tuple(f"SinusoidalPositions-{name}:outputs" for name in ("plain", "offset", "concatenated")),
)
def angles_of_float32(original: Any) -> Any:
    """Angles are those of float32 rates."""

    def rates(features: int) -> Any:
        high, low = original(features)
        return (high + low).astype(np.float32).astype(np.float64), np.zeros_like(low)

    return rates


@mutant("position_permutation-*", of="position_permutation", red="position_permutation-of_8:permutation")
def permutation_inverted(original: Any) -> Any:
    """The permutation leads from concatenated to interleaved."""
    return lambda features: np.argsort(original(features)).astype(np.int32)


@mutant(
    "SinusoidalPositions-*",
    of="positions.SinusoidalPositions.__call__",
    touches=where_all(_positions),
    source="SamLynnEvans/Transformer#25",
)
def frequency_twice(original: Any) -> Any:
    """The exponents of sinusoidal positions count pairs as features, and cosines have the next one.

    Rates whose exponent is doubled, that of the cosine that of the next feature.
    """

    def call(self: Any, inputs: Any, *, offset: int = 0) -> Any:
        features, positions = self.sizes["features"], (np.arange(inputs.shape[-2]) + float(offset))[:, None]
        even = np.arange(0, features, 2)
        pair = [
            np.sin(positions / 10000.0 ** (2 * even / features)),
            np.cos(positions / 10000.0 ** (2 * (even + 1) / features)),
        ]
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return promote(inputs) + table.reshape(inputs.shape[-2:])

    return call


@mutant(
    "SinusoidalPositions-*",
    of="positions.SinusoidalPositions.__init__",
    touches=lambda case: case.inputs["inputs"].size > 0 and case.config.get("layout") != "concatenated",
    source="tensorflow/text#1122",
)
def sines_first(original: Any) -> Any:
    """All sines come first, then all cosines, whatever the layout."""
    return constructed(layout="concatenated")(original)
