"""Sentences: the generated corpus, files of pairs, vocabularies and padding."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pytest

from parity_tests import text
from parity_tests.text import CorpusError, Vocabulary


def test_dates_are_the_same_everywhere_and_real():
    pairs = text.dates(500)
    assert pairs[:3] == text.dates(3)
    assert text.dates(3, seed=1) != text.dates(3)
    for written, iso in pairs:
        day = datetime.date.fromisoformat(iso)
        assert str(day.year) in written
    assert len({written.translate(str.maketrans("0123456789", "9" * 10)) for written, _ in pairs}) > 20


def test_dates_are_pinned():
    assert text.dates(3) == [
        ("3/17/1948", "1948-03-17"),
        ("1 jan 2074", "2074-01-01"),
        ("16.12.2025", "2025-12-16"),
    ]


def test_pairs_come_from_a_file(tmp_path: Path):
    path = tmp_path / "pairs.txt"
    path.write_text("Go.\tVa !\tCC-BY\nRun!\tCours\u202f!\n", encoding="utf-8")
    assert text.read_pairs(path) == [("Go.", "Va !"), ("Run!", "Cours\u202f!")]
    assert text.read_pairs(path, limit=1) == [("Go.", "Va !")]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no sentence pairs"),
        (b"one\ttwo\nno tab here\n", "line 2: expected two sentences with a tab between them"),
        (b"one\t \n", "line 1: expected two sentences"),
        (b"caf\xe9\ttwo\n", "is not UTF-8"),
        (b"x" * 100_000 + b"\ty\n", "line 1: longer than 10000 characters"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, content: bytes, words: str):
    path = tmp_path / "pairs.txt"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=words):
        text.read_pairs(path)


def test_a_missing_file_is_told(tmp_path: Path):
    with pytest.raises(CorpusError, match=r"nothing.txt cannot be read: No such file"):
        text.read_pairs(tmp_path / "nothing.txt")


def test_sentences_are_normalised_and_split():
    assert text.words("Cours\u202f!  Vite, MAINTENANT.") == ["cours", "!", "vite", ",", "maintenant", "."]
    assert text.characters("3 may") == ["3", " ", "m", "a", "y"]


def test_a_vocabulary_orders_by_frequency_then_by_the_alphabet():
    vocabulary = Vocabulary.of([["b", "a", "c"], ["c", "b", "c"]])
    assert vocabulary.tokens == ("<pad>", "<bos>", "<eos>", "<unk>", "c", "b", "a")
    assert vocabulary.ids(["a", "z", "<eos>"]) == [6, 3, 2]
    assert vocabulary.words([4, 5]) == ["c", "b"]
    assert Vocabulary.of([["b", "a", "c"], ["c", "b", "c"]], min_frequency=2).tokens[4:] == ("c", "b")


def test_sentences_are_padded_at_the_end():
    tokens, lengths = text.padded([[5, 6, 7], [8]], 0)
    assert tokens.tolist() == [[5, 6, 7], [8, 0, 0]] and lengths.tolist() == [3, 1]
    assert tokens.dtype == lengths.dtype == np.int32
