"""Wrong positions."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.reference.arrays import promote
from parity_tests.cases.case import Arrays, Case
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import where_all


def _positions(case: Case, inputs: Arrays) -> bool:
    """Whether there is a position behind the first."""
    array = inputs["inputs"]
    return array.size > 0 and array.shape[-2] + case.options.get("offset", 0) > 1


RATED = "SinusoidalPositions-{plain,offset,concatenated}:outputs"


@mutant("SinusoidalPositions-*", of="rates", red=RATED, source="tensorflow/tensor2tensor#1423")
def rates_to_the_end(features: int) -> Any:
    """The last rate is 1/10000, as in tensor2tensor."""
    pairs = features // 2
    return 10000.0 ** (-np.arange(pairs) / max(pairs - 1, 1)), np.zeros(pairs)


@mutant("SinusoidalPositions-*", of="rates", red=RATED)
def angles_of_float32(original: Any) -> Any:
    """Angles are those of float32 rates."""
    high, low = original()
    return (high + low).astype(np.float32).astype(np.float64), np.zeros_like(low)


@mutant("position_permutation-*", of="position_permutation", red="position_permutation-of_8:permutation")
def permutation_inverted(original: Any) -> Any:
    """The permutation leads from concatenated to interleaved."""
    return np.argsort(original()).astype(np.int32)


@mutant(
    "SinusoidalPositions-*",
    of="positions.SinusoidalPositions.__call__",
    touches=where_all(_positions),
    source="SamLynnEvans/Transformer#25",
)
def frequency_twice(self: Any, inputs: Any, offset: int) -> Any:
    """The exponents of sinusoidal positions count pairs as features, and cosines have the next one.

    The exponent of a sine is doubled; that of a cosine is the doubled one of the next feature.
    """
    features, positions = self.sizes["features"], (np.arange(inputs.shape[-2]) + float(offset))[:, None]
    even = np.arange(0, features, 2)
    sine, cosine = (positions / 10000.0 ** (2 * exponents / features) for exponents in (even, even + 1))
    table = np.stack([np.sin(sine), np.cos(cosine)], axis=-1 if self.sizes["layout"] == "interleaved" else -2)
    return promote(inputs) + table.reshape(inputs.shape[-2:])
