"""The source of all randomness: the same numbers on every machine, pinned by digest."""

from __future__ import annotations

import hashlib

import numpy as np

from attention_core import draws


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def test_the_numbers_are_pinned():
    assert digest(draws.uniform("pinned", (1000,))) == "260e6ecf9332a071"
    assert digest(draws.uniform("pinned", (1000,), 0.3, seed=7)) == "27c147b74fa3bd10"
    assert digest(draws.integers("pinned", (1000,), 10)) == "bd136ada459b0197"


def test_names_and_seeds_draw_different_numbers():
    drawn = [draws.uniform("a", (50,)), draws.uniform("b", (50,)), draws.uniform("a", (50,), seed=1)]
    assert len(np.unique(np.concatenate(drawn))) == 150


def test_uniform_numbers_fill_their_range_and_use_all_bits():
    numbers = draws.uniform("range", (100_000,), 0.25)
    assert -0.25 <= numbers.min() < -0.2499 and 0.2499 < numbers.max() < 0.25
    assert abs(numbers.mean()) < 0.001
    single = numbers.astype(np.float32).view(np.uint32)
    assert ((single & 1) == 1).mean() > 0.4, "the last bit of a float32 should be drawn, too"


def test_integers_and_dropout_masks():
    assert np.bincount(draws.integers("i", (10_000,), 5)).min() > 1800
    mask = draws.dropout_mask("d", (10_000,), 0.25)
    assert set(np.unique(mask)) == {0.0, 1 / 0.75}
    assert abs((mask == 0).mean() - 0.25) < 0.02
