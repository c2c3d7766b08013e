"""Positions of vectors in a sequence in NumPy."""

from __future__ import annotations

import numpy as np

from attention_core.operators.positions import (
    ALIBI_BIAS,
    LEARNED_POSITIONS,
    POSITION_PERMUTATION,
    RELATIVE_BIAS,
    RELATIVE_BUCKETS,
    ROTARY_POSITIONS,
    SINUSOIDAL_POSITIONS,
)
from attention_core.reference.arrays import Specified, align, check, promote
from attention_core.reference.masking import BINARY, distances, least_finite, query_positions
from attention_core.relative import bounds, slopes
from attention_core.sinusoids import rates
from attention_core.specification import Layer

__all__ = [
    "SinusoidalPositions",
    "LearnedPositions",
    "RotaryPositions",
    "position_permutation",
    "alibi_bias",
    "relative_buckets",
    "relative_bias",
]


class SinusoidalPositions(Specified):
    """Add the sines and cosines of its position to each input; it has no parameters.

    outputs[t] = inputs[t] + P[t + offset]
    P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(p/10000^(2i/features)); concatenated: all sines first,
    then all cosines

    Sines and cosines are interleaved in the paper; position_permutation returns the order that concatenates them.
    features is an even number.
    """

    specification: Layer = SINUSOIDAL_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved") -> None:
        super().__init__(locals())

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
        """Add the positions, starting at offset.

        outputs[t] = inputs[t] + P[t + offset]
        P[p, 2i] = sin(p/10000^(2i/features)), P[p, 2i + 1] = cos(p/10000^(2i/features)); concatenated: all sines first,
        then all cosines
        """
        self._check("call", offset=offset, inputs=inputs)
        positions = (np.arange(inputs.shape[-2]) + float(offset))[:, None]
        pair = sine_and_cosine(positions, *rates(self.sizes["features"]))
        table = np.stack(pair, axis=-1 if self.sizes["layout"] == "interleaved" else -2)
        return promote(inputs) + table.reshape(inputs.shape[-2:])


class LearnedPositions(Specified):
    """Add a learned vector for its position to each input.

    outputs[t] = inputs[t] + P[t + offset]
    """

    specification: Layer = LEARNED_POSITIONS

    def __init__(self, num_positions: int, features: int) -> None:
        super().__init__(locals())

    def __call__(self, inputs: np.ndarray, *, offset: int = 0) -> np.ndarray:
        """Add the positions, starting at offset.

        outputs[t] = inputs[t] + P[t + offset]
        """
        self._check("call", offset=offset, inputs=inputs)
        end = offset + inputs.shape[-2]
        rows = self.parameters["P"][..., offset:end, :]
        return promote(inputs) + align(rows, 2, inputs.ndim)


class RotaryPositions(Specified):
    """Rotate pairs of features by an angle proportional to the position; it has no parameters.

    outputs[t, 2i] = inputs[t, 2i] cos(a) - inputs[t, 2i + 1] sin(a), outputs[t, 2i + 1] = inputs[t, 2i] sin(a) +
    inputs[t, 2i + 1] cos(a)
    a = (t + offset[b]) base^(-2i/features)
    concatenated: features i and i + features/2 in place of 2i and 2i + 1

    The inner product of a rotated query and a rotated key depends on the difference of their positions alone.
    position_permutation converts between the layouts. features is an even number. Angles are exact for large positions,
    and float32 at least in half precision.
    """

    specification: Layer = ROTARY_POSITIONS

    def __init__(self, features: int, *, layout: str = "interleaved", base: float = 10000.0) -> None:
        super().__init__(locals())

    def __call__(self, inputs: np.ndarray, *, offset: np.ndarray | None = None) -> np.ndarray:
        """Rotate the inputs, whose first step is at position offset.

        outputs[t, 2i] = inputs[t, 2i] cos(a) - inputs[t, 2i + 1] sin(a), outputs[t, 2i + 1] = inputs[t, 2i] sin(a) +
        inputs[t, 2i + 1] cos(a)
        a = (t + offset[b]) base^(-2i/features)
        concatenated: features i and i + features/2 in place of 2i and 2i + 1
        """
        self._check("call", inputs=inputs, offset=offset)
        return self.rotate(promote(inputs), offset)

    def rotate(self, inputs: np.ndarray, offset: np.ndarray | None) -> np.ndarray:
        """The inputs, (batch, [heads], steps, features), rotated from position offset on."""
        high, low = rates(self.sizes["features"], self.sizes["base"])
        sine, cosine = sine_and_cosine(query_positions(inputs.shape[-2], offset).astype(np.float64), high, low)
        if inputs.ndim > 3:
            sine, cosine = sine[:, None], cosine[:, None]
        axis = -1 if self.sizes["layout"] == "interleaved" else -2
        parts = (len(high), 2) if axis == -1 else (2, len(high))
        pairs = inputs.reshape(*inputs.shape[:-1], *parts)
        first, second = pairs.take(0, axis), pairs.take(1, axis)
        rotated = first * cosine - second * sine, first * sine + second * cosine
        return np.stack(rotated, axis).reshape(inputs.shape)


def position_permutation(features: int) -> np.ndarray:
    """Return the order that turns interleaved sines and cosines into concatenated ones.

    permutation[i] = 2i for i < features/2, else 2i + 1 - features
    concatenated = interleaved[permutation]
    """
    check(POSITION_PERMUTATION, features=features)
    return np.arange(features, dtype=np.int32).reshape(-1, 2).T.reshape(-1)


def alibi_bias(
    num_heads: int,
    num_queries: int,
    num_keys: int,
    *,
    dtype: str = "float32",
    offset: np.ndarray | None = None,
) -> np.ndarray:
    """Return a bias that falls with the distance of a key from the query, at another rate in each head.

    bias[b, h, i, j] = -slope[h] |j - (i + offset[b])|
    slope[h] = 2^(-8(h + 1)/num_heads) if num_heads is a power of two
    otherwise the slopes of p heads, p being the next lower power of two, and then slopes 0, 2, 4, ... of 2p heads

    dtype is that of the scores. The paper's attention is causal: with causal_mask, given the same offset, the bias is
    the paper's. Keys after the query fall alike.

    In NumPy: the result is float64, and holds the numbers of dtype.
    """
    given = {"num_heads": num_heads, "num_queries": num_queries, "num_keys": num_keys, "dtype": dtype}
    check(ALIBI_BIAS, **given, offset=offset)
    distance = -np.abs(distances(num_queries, num_keys, offset))
    return round_to(np.reshape(slopes(num_heads), (-1, 1, 1)) * distance[:, None], dtype)


def relative_buckets(
    num_queries: int,
    num_keys: int,
    *,
    num_buckets: int,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: np.ndarray | None = None,
) -> np.ndarray:
    """Return the bucket of each pair of query and key by the difference of their positions.

    buckets[b, i, j] = n(|r|) + (m if r > 0), r = j - (i + offset[b])
    if not bidirectional: n(max(-r, 0))
    n(d) = d if d < e, else e + floor((m - e) ln(d/e)/ln(max_distance/e)), at most m - 1
    m = floor(num_buckets/2) if bidirectional, else num_buckets
    e = floor(m/2)

    The logarithms are compared in whole numbers, since n(d) >= e + k where d^(m - e) e^k >= max_distance^k e^(m - e):
    all frameworks return the same buckets. If bidirectional, an odd number of buckets leaves the last one unused.
    """
    sizes = {"num_queries": num_queries, "num_keys": num_keys, "num_buckets": num_buckets}
    check(RELATIVE_BUCKETS, **sizes, bidirectional=bidirectional, max_distance=max_distance, offset=offset)
    return buckets_of(distances(num_queries, num_keys, offset), num_buckets, bidirectional, max_distance)


def relative_bias(
    num_queries: int,
    num_keys: int,
    table: np.ndarray,
    *,
    bidirectional: bool = True,
    max_distance: int = 128,
    offset: np.ndarray | None = None,
) -> np.ndarray:
    """Return a bias that is looked up by the difference of the positions of query and key.

    bias[b, h, i, j] = table[buckets[b, i, j], h], buckets as relative_buckets returns them

    The gradient of an entry of the table is the sum over all pairs in its bucket.
    """
    options = {"bidirectional": bidirectional, "max_distance": max_distance, "offset": offset}
    check(RELATIVE_BIAS, num_queries=num_queries, num_keys=num_keys, table=table, **options)
    distance = distances(num_queries, num_keys, offset)
    buckets = buckets_of(distance, table.shape[-2], bidirectional, max_distance)
    return np.moveaxis(promote(table).take(buckets, axis=-2), -1, -3)


def sine_and_cosine(positions: np.ndarray, high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sine and cosine of positions (high + low), exact for large positions."""
    sine, cosine = np.sin(positions * high), np.cos(positions * high)
    small_sine, small_cosine = np.sin(positions * low), np.cos(positions * low)
    return sine * small_cosine + cosine * small_sine, cosine * small_cosine - sine * small_sine


def buckets_of(distance: np.ndarray, num_buckets: int, bidirectional: bool, max_distance: int) -> np.ndarray:
    """The bucket of each distance from query to key."""
    if not bidirectional:
        return np.searchsorted(bounds(num_buckets, max_distance), -distance, side="right").astype(np.int32)
    after = num_buckets // 2
    buckets = np.searchsorted(bounds(after, max_distance), np.abs(distance), side="right")
    return (buckets + after * (distance > 0)).astype(np.int32)


def round_to(array: np.ndarray, dtype: str) -> np.ndarray:
    """The nearest numbers of a floating type to normal ones."""
    bits, _ = BINARY[dtype]
    fraction, power = np.frexp(array)
    nearest = np.ldexp(np.rint(np.ldexp(fraction, bits)), power - bits)
    return np.where(np.abs(nearest) <= -least_finite(dtype), nearest, np.copysign(np.inf, nearest))
