"""The numbers by which biases depend on the distance between query and key, computed once for all frameworks."""

from __future__ import annotations

import functools
from bisect import bisect_left


@functools.cache
def slopes(num_heads: int) -> tuple[float, ...]:
    """The slope of each head: 2^(-8(h + 1)/num_heads), or interpolated if num_heads is no power of two."""
    lower = 1 << (num_heads.bit_length() - 1)
    if lower == num_heads:
        return tuple(2.0 ** (-8.0 * (head + 1) / num_heads) for head in range(num_heads))
    return (*slopes(lower), *slopes(2 * lower)[: 2 * (num_heads - lower) : 2])


@functools.cache
def bounds(num_buckets: int, max_distance: int) -> tuple[int, ...]:
    """The least distance of each bucket of one direction but the first, whose distance is 0.

    The bucket of a distance is the number of bounds up to it. After the first half, bucket half + k begins where
    (d/half)^(num_buckets - half) reaches (max_distance/half)^k, compared in whole numbers.
    """
    half = num_buckets // 2
    rest, distances = num_buckets - half, range(half, max_distance + 1)

    def first(k: int) -> int:
        least = max_distance**k * half**rest
        return distances[bisect_left(distances, True, key=lambda d: d**rest * half**k >= least)]

    return (*range(1, half), *map(first, range(rest)))
