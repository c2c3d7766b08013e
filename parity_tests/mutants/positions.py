"""Wrong positions."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from attention_core.reference.arrays import promote
from attention_core.reference.masking import distances
from attention_core.reference.positions import buckets_of
from parity_tests.mutants.mutant import mutant


@mutant("rates", cases="SinusoidalPositions-* RotaryPositions-*", source="tensorflow/tensor2tensor#1423")
def rates_to_the_end(features: int) -> Any:
    """The last rate is 1/10000, as in tensor2tensor."""
    pairs = features // 2
    return 10000.0 ** (-np.arange(pairs) / max(pairs - 1, 1)), np.zeros(pairs)


@mutant("rates", cases="SinusoidalPositions-* RotaryPositions-*")
def angles_of_float32(original: Any) -> Any:
    """Angles are those of float32 rates."""
    high, low = original()
    return (high + low).astype(np.float32).astype(np.float64), np.zeros_like(low)


@mutant("position_permutation", touches=lambda features: features > 2)
def permutation_inverted(original: Any) -> Any:
    """The permutation leads from concatenated to interleaved."""
    return np.argsort(original()).astype(np.int32)


@mutant("positions.SinusoidalPositions.__call__", source="SamLynnEvans/Transformer#25")
def frequency_twice(self: Any, inputs: Any, offset: int) -> Any:
    """The exponents of sinusoidal positions count pairs as features, and cosines have the next one.

    The exponent of a sine is doubled; that of a cosine is the doubled one of the next feature.
    """
    features, positions = self.sizes["features"], (np.arange(inputs.shape[-2]) + float(offset))[:, None]
    even = np.arange(0, features, 2)
    sine, cosine = (positions / 10000.0 ** (2 * exponents / features) for exponents in (even, even + 1))
    table = np.stack([np.sin(sine), np.cos(cosine)], axis=-1 if self.sizes["layout"] == "interleaved" else -2)
    return promote(inputs) + table.reshape(inputs.shape[-2:])


@mutant("rates", cases="RotaryPositions-*")
def rates_of_all_features(features: int, base: float) -> Any:
    """The exponents of rotary positions count pairs as features: the lowest rate is about base^(-1/2)."""
    pairs = np.arange(features // 2)
    return base ** (-pairs / features), np.zeros(len(pairs))


@mutant("positions.sine_and_cosine", cases="RotaryPositions-*")
def angles_negated(original: Any) -> Any:
    """Pairs are rotated the other way round."""
    sine, cosine = original()
    return -sine, cosine


@mutant("positions.RotaryPositions.rotate", touches=lambda offset: np.unique(offset).size > 1)
def offset_of_another_sequence(original: Any, offset: Any) -> Any:
    """A sequence begins at the offset of the one before."""
    return original(offset=np.roll(offset, 1))


@mutant("positions.query_positions", cases="RotaryPositions-far", dtype="bfloat16", source="EleutherAI/gpt-neox#1003")
def positions_of_bfloat16(original: Any) -> Any:
    """Positions have the dtype of the inputs: bfloat16 has no whole numbers between 256 and 258."""
    return original().astype(ml_dtypes.bfloat16).astype(np.int64)


@mutant("slopes", cases="alibi_bias-*", source="paiml/aprender#2143")
def slopes_from_one(num_heads: int) -> Any:
    """The slope of the first head is 1, and that of each other head that of the one before."""
    return tuple(2.0 ** (-8.0 * head / num_heads) for head in range(num_heads))


@mutant(
    "slopes", cases="alibi_bias-*", touches=lambda num_heads: num_heads & (num_heads - 1), source="ml-explore/mlx#3071"
)
def slopes_of_any_number(num_heads: int) -> Any:
    """Slopes are one geometric sequence also where the number of heads is no power of two."""
    return tuple(2.0 ** (-8.0 * (head + 1) / num_heads) for head in range(num_heads))


@mutant("alibi_bias")
def bias_that_rises(original: Any, num_queries: int, num_keys: int, offset: Any) -> Any:
    """The bias of ALiBi rises with the distance of a key after the query, as a product with the signed one."""
    after = distances(num_queries, num_keys, offset) > 0
    return np.where(after[:, None], -original(), original())


@mutant("alibi_bias", unseen="*-offset")
def bias_from_the_last_key(original: Any, num_queries: int, num_keys: int) -> Any:
    """The last query is at the position of the last key, whatever the offset."""
    return original(offset=num_keys - num_queries)


@mutant("positions.distances", cases="relative_*")
def distance_negated(original: Any) -> Any:
    """The relative position is that of the query from the key."""
    return -original()


@mutant("relative_bias")
def gradient_of_one_pair(
    original: Any, num_queries: int, num_keys: int, table: Any, bidirectional: bool, max_distance: int, offset: Any
) -> Any:
    """The gradient of an entry of the table is that of one pair in its bucket."""
    distance, bias = distances(num_queries, num_keys, offset), original()
    buckets = buckets_of(distance, table.shape[-2], bidirectional, max_distance)
    first = np.isin(np.arange(buckets.size), np.unique(buckets, return_index=True)[1]).reshape(buckets.shape)
    return np.where(first[:, None], bias, bias.real)


@mutant("bounds", cases="relative_buckets-power")
def buckets_of_float32(num_buckets: int, max_distance: int) -> Any:
    """Buckets are those of the logarithm in float32, which may fall short of a whole number."""
    half = num_buckets // 2
    whole = np.float32(math.log(max_distance / half))

    def bucket(distance: int) -> int:
        share = np.float32(math.log(distance / half)) / whole
        return half + int(share * np.float32(num_buckets - half))

    return (
        *range(1, half),
        *(next(d for d in range(half, max_distance + 2) if bucket(d) >= least) for least in range(half, num_buckets)),
    )
