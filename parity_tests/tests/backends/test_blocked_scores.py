"""Additive scores in blocks: the numbers of the formula, at every magnitude, for blocks that do not fill their axes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from attention_core.draws import uniform
from attention_core.errors import OptionError
from parity_tests.tests.backends import magnitudes
from parity_tests.tests.backends.blocks import Ways, assert_close, by_blocks, kernels_of, on_path, plainly
from parity_tests.tests.backends.magnitudes import HIDDEN

SMALL: dict[str, Ways] = {
    "torch": {
        "by features": {"additive.BY_FEATURES": 2 * 7, "additive.KEYS": 3},
        "by rows": {
            "additive.BY_ROWS": 2 * 7 * HIDDEN,
            "additive.KEYS": 3,
            "additive.takes_exponentials": lambda *_: False,
        },
    },
    "tf": {
        "": {"additive.BLOCK": 4 * 3 * HIDDEN, "additive.PART": 3 * HIDDEN}
    },  # in the backward, which has two arrays, two rows
    "jax": {"": {"blocks.BLOCK": 3 * HIDDEN}},
    "mxnet": {"": {"additive.BLOCK": 300, "additive.FEATURES": 4}},  # two sequences of three
}
"""Blocks of some rows of five, or some features of 41, the last ones smaller, for each way in which a backend goes."""


def drawn(
    *lead: int, queries: int = 5, keys: int = 7, hidden: int = HIDDEN
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Queries, keys and w_v, and a cotangent of the scores."""
    shapes = {"queries": (*lead, queries, hidden), "keys": (*lead, keys, hidden), "w_v": (hidden,)}
    return {name: uniform(name, shape) for name, shape in shapes.items()}, uniform("g", (*lead, queries, keys))


@pytest.mark.parametrize(
    ("lead", "queries"), [((3,), 5), ((2, 3), 5), ((3,), 1)], ids=["without heads", "with heads", "one query"]
)
def test_blocks_that_do_not_fill_their_axes_agree_with_the_formula(
    backend: SimpleNamespace, lead: tuple[int, ...], queries: int
):
    arrays, cotangent = drawn(*lead, queries=queries)
    actual = by_blocks(backend, "score", SMALL, arrays, cotangent, graph=True)
    assert_close(actual, magnitudes.exact(*arrays.values(), cotangent))


@pytest.mark.parametrize("scale", [60.0, 700.0])
@pytest.mark.parametrize("queries", [1, 5])
def test_wide_numbers_are_those_of_the_plain_formula(backend: SimpleNamespace, queries: int, scale: float):
    arrays, cotangent = drawn(3, queries=queries)
    arrays = {name: scale * array for name, array in arrays.items()}
    actual = by_blocks(backend, "score", SMALL, arrays, cotangent)
    assert_close(actual, plainly(backend, "score", arrays, cotangent), size=scale)


@pytest.mark.parametrize("large", [353.0, 355.0, 1e300])
def test_single_numbers_on_both_sides_of_a_bound_are_those_of_the_plain_formula(backend: SimpleNamespace, large: float):
    arrays, cotangent = drawn(3)
    queries, keys, _ = arrays.values()
    queries[0, 0, 0], queries[0, 1, 1], keys[0, 2, 0], keys[1, 3, 2] = large, -large, -large, large
    actual = by_blocks(backend, "score", SMALL, arrays, cotangent)
    assert_close(actual, plainly(backend, "score", arrays, cotangent))


@pytest.mark.parametrize("number", [np.nan, np.inf, -1e308], ids=str)
def test_a_key_that_is_not_finite_reaches_its_own_scores_alone(backend: SimpleNamespace, number: float):
    arrays, cotangent = drawn(3)
    arrays["keys"][1, 3, 2] = number
    expected = plainly(backend, "score", arrays, cotangent)
    assert_close(by_blocks(backend, "score", SMALL, arrays, cotangent), expected)
    reached = [[1, row, 3] for row in range(5)] if np.isnan(number) else []
    assert np.argwhere(np.isnan(expected[0])).tolist() == reached


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("size", [1e-9, 1.0, 30.0])
def test_a_weight_that_is_not_finite_agrees_with_the_plain_formula(
    backend: SimpleNamespace, size: float, number: float
):
    arrays, cotangent = drawn(3)
    for name in ("queries", "keys"):
        arrays[name] = size * np.abs(arrays[name])
        arrays[name][1] *= -1  # one infinity of either sign
    arrays["w_v"][1] = number
    # Of PyTorch and JAX the scores alone: they multiply a sum by the weight, and infinity by 0 is NaN.
    count = 1 if backend.name in ("torch", "jax") else 4
    actual = by_blocks(backend, "score", SMALL, arrays, cotangent)
    expected = plainly(backend, "score", arrays, cotangent)
    assert_close({way: results[:count] for way, results in actual.items()}, expected[:count])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", magnitudes.CASES)
def test_blocks_are_accurate_at_every_magnitude(backend: SimpleNamespace, name: str, dtype: str):
    *given, cotangent = (array.astype(dtype) for array in (*magnitudes.CASES[name], magnitudes.cotangent()))
    expected = magnitudes.exact(*given, cotangent)
    arrays = dict(zip(magnitudes.SIZES, given, strict=True))
    for way, actual in by_blocks(backend, "score", SMALL, arrays, cotangent).items():
        assert max(magnitudes.errors(name, actual, expected, arrays["w_v"])) < 1.0, way
        if name == "zeros":
            assert not actual[0].any() and not actual[3].any(), way


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", magnitudes.OF_ONE_SIGN)
def test_numbers_of_one_sign_are_accurate_one_by_one(backend: SimpleNamespace, name: str, dtype: str):
    *given, cotangent = (array.astype(dtype) for array in (*magnitudes.CASES[name], np.ones((3, 5, 7))))
    expected = magnitudes.exact(*given, cotangent)
    arrays = dict(zip(magnitudes.SIZES, given, strict=True))
    for way, actual in by_blocks(backend, "score", SMALL, arrays, cotangent).items():
        for one, other in zip(actual, expected, strict=True):
            assert magnitudes.own_error(one, other) < magnitudes.OWN, way


@pytest.mark.parametrize("axis", ["lead", "queries", "keys", "hidden"])
def test_blocks_accept_empty_axes(backend: SimpleNamespace, axis: str):
    sizes = {"lead": 2, "queries": 5, "keys": 7, "hidden": 4, axis: 0}
    arrays, cotangent = drawn(sizes.pop("lead"), **sizes)
    expected = plainly(backend, "score", arrays, cotangent)
    assert_close(by_blocks(backend, "score", SMALL, arrays, cotangent), expected, 0.0)


def test_the_number_of_elements_chooses_the_path_unless_one_is_forced(backend: SimpleNamespace):
    queries, keys = (backend.runtime.from_numpy(np.zeros((3, count, 5), np.float32)) for count in (4, 7))
    use_blocks, elements = kernels_of(backend).use_blocks, 3 * 4 * 7 * 5
    for path, expected in ((None, [True, False]), ("blocked", [True, True]), ("plain", [False, False])):
        with on_path(backend, path):
            assert [use_blocks(queries, keys, elements + more) for more in (0, 1)] == expected


def test_an_unknown_path_is_refused(backend: SimpleNamespace):
    with pytest.raises(OptionError, match="path is 'fast', expected 'blocked' or 'plain', or None"):
        kernels_of(backend).set_path("fast")
