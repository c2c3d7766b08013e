"""The house stays light: its figures are within their limits, and a function says what it returns or does."""

from __future__ import annotations

import pytest

from tools.house import FIGURES, Figure, is_participle, participles

pytestmark = pytest.mark.once


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_of_the_source_is_within_its_limit(figure: Figure):
    assert 0 <= figure.measure() <= figure.limit


def test_no_function_is_named_by_a_single_past_participle():
    assert not list(participles()), "use a noun for a value, a verb for an action, is_ or has_ for a flag"


@pytest.mark.parametrize(("name", "expected"), [("_shortened", True), ("drawn", True), ("drawn_mask", False)])
@pytest.mark.parametrize("suffix", ["", "_"])
def test_a_participle_is_told_from_other_words(name: str, expected: bool, suffix: str):
    assert is_participle(name + suffix) == expected
    assert not any(map(is_participle, ("embed", "seed", "prune", "is_shortened", "mask")))
