"""Masks of the reference, drawn by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from attention_core import reference
from attention_core.specification import FLOATING


def drawn_mask(mask: np.ndarray) -> list[str]:
    return ["".join("#" if is_open else "." for is_open in row) for row in mask[0]]


def test_rules_by_hand():
    assert drawn_mask(reference.causal_mask(3, 5)) == ["#....", "##...", "###.."]
    assert drawn_mask(reference.causal_mask(2, 5, offset=3)) == ["####.", "#####"]
    assert drawn_mask(reference.window_mask(4, 5, left=1, right=2)) == ["###..", "####.", ".####", "..###"]
    assert drawn_mask(reference.block_mask(5, 5, size=2)) == ["##...", "##...", "..##.", "..##.", "....#"]
    assert drawn_mask(reference.block_mask(2, 5, size=2, offset=3)) == ["..##.", "....#"]
    assert drawn_mask(reference.stride_mask(3, 7, stride=3)) == ["#..#..#", ".#..#..", "..#..#."]
    some = reference.global_mask(np.array([[False, True]]), np.array([[True, False, False]]))
    assert drawn_mask(some) == ["#..", "###"]


def test_a_step_with_a_cache_has_the_mask_row_of_a_full_pass():
    for rule, options in (
        (reference.causal_mask, {}),
        (reference.window_mask, {"left": 2, "right": 0}),
        (reference.block_mask, {"size": 3}),
        (reference.stride_mask, {"stride": 2}),
    ):
        full = rule(7, 7, **options)
        for position in range(7):
            assert_array_equal(rule(1, 7, **options, offset=position)[0, 0], full[0, position])


def test_rules_combine():
    window, stride = reference.window_mask(6, 6, left=4, right=0), reference.stride_mask(6, 6, stride=2)
    dilated = reference.mask_and(window, stride)
    assert drawn_mask(dilated)[5] == ".#.#.#" and drawn_mask(dilated)[0] == "#....."
    either = reference.mask_or(dilated, reference.global_mask(np.zeros((1, 6), bool), np.arange(6)[None] == 0))
    assert drawn_mask(either)[5] == "##.#.#"
    padded = reference.attention_mask(6, np.array([4]), either)
    assert drawn_mask(padded)[5] == "##.#.."


def test_lengths_become_a_mask():
    mask = reference.attention_mask(4, np.array([2, 0, 9, -1]))
    assert mask.shape == (4, 1, 4) and mask.dtype == bool
    assert mask[:, 0].tolist() == [[True, True, False, False], [False] * 4, [True] * 4, [False] * 4]
    assert reference.attention_mask(4) is None
    both = reference.attention_mask(3, np.array([[1, 3]]), np.array([[[True, True, True], [False, True, True]]]))
    assert both.tolist() == [[[True, False, False], [False, True, True]]]


def test_lengths_apply_to_all_heads():
    mask = np.ones((2, 3, 5, 7), bool)
    combined = reference.attention_mask(7, np.array([2, 4]), mask)
    assert combined.shape == (2, 3, 5, 7)
    assert (combined.sum(axis=-1) == np.array([2, 4])[:, None, None]).all()


def test_masks_of_other_conventions_by_hand():
    padding = np.array([[False, False, True], [True, True, True]])
    mask = reference.from_key_padding_mask(padding)
    assert mask.tolist() == [[[True, True, False]], [[False, False, False]]]
    assert reference.to_key_padding_mask(mask).tolist() == padding.tolist()
    assert reference.from_key_padding_mask(padding[:1]).tolist() == reference.attention_mask(3, np.array([2])).tolist()

    added = np.array([[[0.0, -1e4, -9999.0, -np.inf, -1e9, -0.5]]])
    assert drawn_mask(reference.from_additive_mask(added)) == ["#.#..#"]
    assert drawn_mask(reference.from_additive_mask(added, threshold=-0.5)) == ["#....."]
    assert drawn_mask(reference.from_additive_mask(added.astype("float32"), threshold=-0.1)) == ["#....."]

    assert reference.to_additive_mask(mask).tolist() == [[[0.0, 0.0, -np.inf]], [[-np.inf] * 3]]
    assert drawn_mask(reference.from_additive_mask(reference.to_additive_mask(mask))) == ["##."]


@pytest.mark.parametrize("dtype", FLOATING)
def test_the_least_finite_number_is_that_of_the_type(dtype: str):
    least = reference.to_additive_mask(np.array([[[True, False]]]), dtype=dtype, finite=True)[0, 0, 1]
    assert least == float(ml_dtypes.finfo(dtype).min)
    assert least.astype(dtype) == least


@pytest.mark.parametrize("dtype", FLOATING)
def test_a_fill_that_was_rounded_is_hidden_by_the_same_number(dtype: str):
    fill = np.full((1, 1, 1), -1e4).astype(dtype)
    assert not reference.from_additive_mask(fill).any()
    assert fill.astype(np.float64) > -1e4 or dtype != "bfloat16", "the test is to see a fill that rounding raised"


def test_an_additive_mask_under_a_plain_softmax_treats_fully_masked_rows_as_documented():
    mask, scores = np.array([[[True, False], [False, False]]]), np.array([[[1.0, 2.0], [-3.0, 5.0]]])

    def plain_softmax(logits: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
            return exponentials / exponentials.sum(axis=-1, keepdims=True)

    assert np.isnan(plain_softmax(scores + reference.to_additive_mask(mask))[0, 1]).all()
    finite = reference.to_additive_mask(mask, dtype="float64", finite=True)
    assert plain_softmax(scores + finite)[0].tolist() == [[1.0, 0.0], [0.5, 0.5]]
    assert reference.masked_softmax(scores, mask=mask)[0].tolist() == [[1.0, 0.0], [0.0, 0.0]]
