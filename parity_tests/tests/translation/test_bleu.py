"""Scores of translations, against numbers made by hand and by papers."""

from __future__ import annotations

import builtins

import pytest

from parity_tests.translation import bleu


def test_bleu_of_whole_corpora():
    right = ["the", "cat", "sat", "on", "the", "mat"]
    assert bleu.bleu([right], [[right]]) == pytest.approx(100.0)
    # Four of six words, three of five pairs, two of four triples, one of three fours; no penalty: (4·3·2·1/360)^(1/4).
    near = ["the", "cat", "sat", "on", "a", "hat"]
    assert bleu.bleu([near], [[right]]) == pytest.approx(100 * (24 / 360) ** 0.25)


def test_bleu_accepts_any_number_of_references():
    one, two = ["va", "tout", "de", "suite", "!"], ["vas", "y", "maintenant", "donc", "!"]
    assert bleu.bleu([two, one], [[one, two], [one]]) == pytest.approx(100.0)
    assert bleu.bleu([two, one], [[one], [one]]) < 60


def test_bleu_splits_and_lowers_nothing_again():
    assert bleu.bleu([["C'est", "ça", ".", "Oui"]], [[["c'est", "ça", ".", "oui"]]]) < 50


def test_without_sacrebleu_the_message_names_what_to_install(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def without(name: str, *rest):
        if name.startswith("sacrebleu"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(bleu.Unscored, match=r"Run: pip install sacrebleu"):
        bleu.bleu([["a"]], [[["a"]]])


def test_the_third_party_score_by_hand():
    # "A B B C D" against "A B C D E F" has p1 = 4/5 and p2 = 3/4, and one word too few: exp(1 - 6/5).
    actual, expected = ["A", "B", "B", "C", "D"], ["A", "B", "C", "D", "E", "F"]
    by_hand = 2.718281828459045 ** (1 - 6 / 5) * (4 / 5) ** 0.5 * (3 / 4) ** 0.25
    assert bleu.third_party_score(actual, [expected]) == pytest.approx(by_hand)
    assert bleu.third_party_score(expected, [actual, expected]) == 1.0, "the best reference counts"
    assert bleu.third_party_score([], [expected]) == 0.0
    assert bleu.third_party_score(["A"], [["A"]]) == 1.0, "a single word has no pairs"
    assert bleu.third_party_score(["B", "B"], [["A"]]) == 0.0


def test_a_translation_is_right_if_it_is_one_of_its_references():
    assert bleu.exact([["a", "b"], ["c"], []], [[["x"], ["a", "b"]], [["c", "d"]], [["e"]]]) == pytest.approx(1 / 3)
