"""An inverted mask is recognised."""

from __future__ import annotations

import numpy as np
import pytest

from attention_core import reference
from parity_tests.polarity import HIDDEN, IGNORED, MAY_ATTEND, NEITHER, OPEN, polarity


def attention(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    return reference.DotProductAttention()(queries, keys, values, mask=mask)[0]


READINGS = {
    MAY_ATTEND: lambda mask: mask,
    HIDDEN: np.logical_not,
    IGNORED: lambda mask: None,
    NEITHER: lambda mask: mask[..., ::-1],
}


@pytest.mark.parametrize("wanted", READINGS)
def test_what_true_means_is_recognised(wanted: str):
    assert polarity(lambda q, k, v, mask: attention(q, k, v, READINGS[wanted](mask))) == wanted


@pytest.mark.parametrize("wanted", [MAY_ATTEND, HIDDEN])
def test_what_true_means_is_recognised_whatever_the_layer(wanted: str):
    layer = reference.MultiHeadAttention(6, 2, key_size=5, value_size=7, hidden_size=4)
    shapes = {"W_q": (4, 6), "W_k": (4, 5), "W_v": (4, 7), "W_o": (6, 4), "b_q": 4, "b_k": 4, "b_v": 4, "b_o": 6}
    drawn = np.random.default_rng(0)
    reference.set_parameters(layer, {name: drawn.normal(size=shape) for name, shape in shapes.items()})
    sizes = {"query_size": 6, "key_size": 5, "value_size": 7}
    assert polarity(lambda q, k, v, mask: layer(q, k, v, mask=READINGS[wanted](mask))[0], **sizes) == wanted


@pytest.mark.parametrize("wanted", [MAY_ATTEND, HIDDEN])
def test_a_finite_fill_hides_as_well(wanted: str):
    def filled(queries: np.ndarray, keys: np.ndarray, values: np.ndarray, mask: np.ndarray) -> np.ndarray:
        scores = np.where(READINGS[wanted](mask), queries @ keys.swapaxes(1, 2), np.float32(-1e9))
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ values

    assert polarity(filled) == wanted


def test_nan_is_no_influence():
    assert polarity(lambda q, k, v, mask: np.full((*q.shape[:2], v.shape[2]), np.nan)) == NEITHER


def test_the_mask_of_the_question_is_none_of_its_own_misreadings():
    misreadings = [~OPEN, OPEN[::-1], ~OPEN[::-1], np.ones_like(OPEN)]
    assert not any(np.array_equal(OPEN, other) for other in misreadings)


def test_a_padding_mask_is_the_first_row_of_the_mask():
    assert polarity(lambda q, k, v, mask: attention(q, k, v, ~mask[:, :1])) == HIDDEN
