"""Rotary positions, and biases by distance, against the papers and their authors' code."""

from __future__ import annotations

import decimal
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from attention_core import reference, sinusoids
from attention_core.draws import uniform
from attention_core.relative import bounds, slopes

LAYOUTS = ("interleaved", "concatenated")
POSITIONS = (1, 257, 10_000, 1_000_003, -131_071)


def test_one_pair_is_rotated_as_a_complex_number():
    inputs, angles = uniform("x", (1, 4, 2)), np.arange(4.0) + 3.0
    rotated = reference.RotaryPositions(2)(inputs, offset=3)
    turned = (inputs[..., 0] + 1j * inputs[..., 1]) * np.exp(1j * angles)
    assert_allclose(rotated, np.stack([turned.real, turned.imag], axis=-1), atol=1e-15)


@pytest.mark.parametrize("base", [10_000.0, 500.0])
@pytest.mark.parametrize("position", POSITIONS)
def test_angles_are_exact_at_large_positions(position: int, base: float):
    """Angles as decimals of 60 digits, taken off by whole turns before the sine."""
    features = 16
    ones = np.tile([1.0, 0.0], features // 2)[None, None]
    rotated = reference.RotaryPositions(features, base=base)(ones, offset=position)[0, 0]
    with decimal.localcontext(prec=60):
        for pair in range(features // 2):
            rate = decimal.Decimal(base) ** (decimal.Decimal(-2 * pair) / features)
            angle = float(position * rate % (2 * sinusoids.PI))
            assert_allclose(rotated[2 * pair : 2 * pair + 2], [math.cos(angle), math.sin(angle)], atol=2e-15)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_product_of_a_query_and_a_key_depends_on_the_difference_of_their_positions(layout: str):
    layer, (query, key) = reference.RotaryPositions(8, layout=layout), uniform("x", (2, 1, 1, 8))
    products = [(layer(query, offset=5 + shift) * layer(key, offset=2 + shift)).sum() for shift in (0, 1, 10_000, -40)]
    assert_allclose(products, products[0], rtol=1e-13)
    assert not math.isclose(products[0], float((query * key).sum()), rel_tol=1e-3)


def test_the_permutation_leads_from_one_layout_to_the_other():
    inputs, order = uniform("x", (2, 3, 8)), reference.position_permutation(8)
    one, other = (reference.RotaryPositions(8, layout=layout) for layout in LAYOUTS)
    assert_array_equal(other(inputs[..., order], offset=[7, -2]), one(inputs, offset=[7, -2])[..., order])


def test_turns_are_the_rates_in_whole_numbers():
    upper, lower = sinusoids.turns(12, 500.0)
    high, low = sinusoids.rates(12, 500.0)
    whole = [(int(one) << 32) + int(other) for one, other in zip(upper, lower, strict=True)]
    assert_allclose(np.array(whole, np.float64) * 2.0**-64, (high + low) / (2 * np.pi) % 1.0, rtol=1e-15)
    assert upper.dtype == lower.dtype == np.uint32


# ------------------------------------------------------------------------------------------------ ALiBi


def slopes_of_the_authors(n: int) -> list[float]:
    """get_slopes of github.com/ofirpress/attention_with_linear_biases, as it is printed there."""

    def get_slopes_power_of_2(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        ratio = start
        return [start * ratio**i for i in range(n)]

    if math.log2(n).is_integer():
        return get_slopes_power_of_2(n)
    closest_power_of_2 = 2 ** math.floor(math.log2(n))
    more = slopes_of_the_authors(2 * closest_power_of_2)[0::2][: n - closest_power_of_2]
    return get_slopes_power_of_2(closest_power_of_2) + more


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 12, 16, 20, 40])
def test_slopes_are_those_of_the_authors(num_heads: int):
    assert_allclose(slopes(num_heads), slopes_of_the_authors(num_heads), rtol=1e-14)


def test_the_bias_is_that_of_the_paper_under_a_causal_mask():
    assert slopes(8) == tuple(2.0**-h for h in range(1, 9))
    bias = np.where(reference.causal_mask(2, 3, offset=1)[:, None], reference.alibi_bias(8, 2, 3, offset=1), -np.inf)
    rows = np.array([[-1.0, 0.0, -np.inf], [-2.0, -1.0, 0.0]])
    assert_array_equal(bias[0], np.reshape(slopes(8), (-1, 1, 1)) * rows)


def test_the_bias_has_the_nearest_numbers_of_a_dtype():
    exact = np.reshape(slopes(12), (-1, 1, 1)) * -np.abs(np.arange(70.0) - 3)
    for dtype in ("float32", "float16"):
        assert_array_equal(reference.alibi_bias(12, 1, 70, dtype=dtype, offset=3)[0], exact.astype(dtype))
    assert reference.alibi_bias(1, 1, 1, dtype="float16", offset=2**25).item() == -np.inf


# ------------------------------------------------------------------------------------------------ T5


def buckets_of_t5(relative: np.ndarray, bidirectional: bool, num_buckets: int, max_distance: int) -> np.ndarray:
    """_relative_position_bucket of T5, whose relative position is memory - query, with its float32."""
    buckets, n = np.zeros_like(relative), -relative
    if bidirectional:
        num_buckets //= 2
        buckets, n = buckets + (n < 0) * num_buckets, np.abs(n)
    else:
        n = np.maximum(n, 0)
    max_exact = num_buckets // 2
    share = np.log(np.maximum(n, 1).astype(np.float32) / np.float32(max_exact))
    share = share / np.float32(math.log(max_distance / max_exact)) * np.float32(num_buckets - max_exact)
    large = np.minimum(max_exact + share.astype(np.int32), num_buckets - 1)
    return buckets + np.where(n < max_exact, n, large)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (32, 20), (64, 256), (8, 20), (128, 1000)])
def test_buckets_are_those_of_t5(num_buckets: int, max_distance: int, bidirectional: bool):
    options = {"bidirectional": bidirectional, "num_buckets": num_buckets, "max_distance": max_distance}
    if max_distance > num_buckets // (4 if bidirectional else 2):
        buckets = reference.relative_buckets(1, 2401, offset=1200, **options)
        assert_array_equal(buckets[0, 0], buckets_of_t5(np.arange(2401) - 1200, **options))
        assert buckets.dtype == np.int32 and buckets.max() == num_buckets - 1


@pytest.mark.parametrize("max_distance", [9, 20, 27, 128])
@pytest.mark.parametrize("num_buckets", [2, 3, 8, 16, 17])
def test_a_bucket_begins_where_the_power_of_the_distance_reaches_it(num_buckets: int, max_distance: int):
    half = num_buckets // 2
    rest = num_buckets - half

    def bucket(distance: int) -> int:
        if distance < half:
            return distance
        power, ratio = Fraction(distance, half) ** rest, Fraction(max_distance, half)
        return half + max(k for k in range(rest) if power >= ratio**k)

    found = np.searchsorted(bounds(num_buckets, max_distance), np.arange(200), side="right")
    assert found.tolist() == [bucket(distance) for distance in range(200)]


def test_a_bias_is_looked_up_by_the_key_minus_the_query():
    table = np.arange(8.0)[:, None] + np.array([0.0, 100.0])
    bias = reference.relative_bias(2, 3, table, max_distance=5)
    assert_array_equal(bias[0, :, :, :], [[[0, 5, 6], [1, 0, 5]], [[100, 105, 106], [101, 100, 105]]])
    assert_array_equal(reference.relative_bias(1, 3, table, bidirectional=False, offset=1)[0, 0], [[1, 0, 0]])
