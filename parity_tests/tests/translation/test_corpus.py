"""Sentences: the generated corpus, files of pairs, vocabularies and padding."""

from __future__ import annotations

import datetime
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from attention_core.operators.training import Batch
from parity_tests.translation import corpus
from parity_tests.translation.corpus import CorpusError, Vocabulary


def test_dates_are_the_same_everywhere_and_real():
    pairs = corpus.dates(500)
    assert pairs[:3] == corpus.dates(3)
    assert corpus.dates(3, seed=1) != corpus.dates(3)
    for written, iso in pairs:
        day = datetime.date.fromisoformat(iso)
        assert str(day.year) in written
    assert len({written.translate(str.maketrans("0123456789", "9" * 10)) for written, _ in pairs}) > 20


def test_dates_are_pinned():
    assert corpus.dates(3) == [("3/17/1948", "1948-03-17"), ("1 jan 2074", "2074-01-01"), ("16.12.2025", "2025-12-16")]


def test_pairs_come_from_a_file(tmp_path: Path):
    path = tmp_path / "pairs.txt"
    path.write_text("Go.\tVa !\tCC-BY\nRun!\tCours\u202f!\n", encoding="utf-8")
    assert corpus.read_corpus(path) == ([("Go.", "Va !"), ("Run!", "Cours\u202f!")], [])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "holds no sentence pairs"),
        (b"no tab here\n", r"holds no sentence pairs: 1 of 1 lines skipped \(line 1: no tab\)"),
        (b"one\ttwo\ncaf\xe9\ttwo\n", "line 2, is not UTF-8: invalid continuation byte"),
        ("one\ttwo\n".encode("utf-16"), "is not UTF-8"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes, words: str):
    path = tmp_path / "pairs.txt"
    path.write_bytes(content)
    with pytest.raises(CorpusError, match=words):
        corpus.read_corpus(path)


def test_bad_lines_are_skipped_with_a_count_and_their_numbers(tmp_path: Path):
    path = tmp_path / "pairs.txt"
    long, just = "x" * 100_000, "y" * (corpus.LONGEST_LINE - 2)
    lines = ["\ufeffone\ttwo", "no tab", "one\t \u202f", f"{long}\tz", "", "three\tfour\r", f"{just}\tz", f"{just}\tzz"]
    path.write_text("\n".join(lines), encoding="utf-8", newline="")
    content = corpus.read_corpus(path)
    assert content.pairs == [("one", "two"), ("three", "four"), (just, "z")]
    assert [number for number, _ in content.skipped] == [2, 3, 4, 5, 8]
    assert content.warning == (
        "5 of 8 lines skipped (line 2: no tab; line 3: an empty sentence; line 4: longer than 10,000 characters; ...)"
    )
    assert corpus.Corpus([("a", "b")]).warning == ""


def test_a_line_that_would_steer_a_terminal_is_skipped(tmp_path: Path):
    (tmp_path / "pairs.txt").write_text("go .\tva !\nred\x1b[31m\trouge\n", encoding="utf-8")
    content = corpus.read_corpus(tmp_path / "pairs.txt")
    assert content.pairs == [("go .", "va !")] and content.skipped == [(2, "a control character")]


def test_a_missing_file_is_reported(tmp_path: Path):
    with pytest.raises(CorpusError, match=r"nothing.txt: there is no such file"):
        corpus.read_corpus(tmp_path / "nothing.txt")


def test_sentences_are_normalised_and_split():
    assert corpus.words("Cours\u202f!  Vite, MAINTENANT.") == ["cours", "!", "vite", ",", "maintenant", "."]
    assert corpus.characters("3 may") == ["3", " ", "m", "a", "y"]


def test_a_vocabulary_orders_by_frequency_then_by_the_alphabet():
    vocabulary = Vocabulary.of([["b", "a", "c"], ["c", "b", "c"]])
    assert vocabulary.tokens == ("<pad>", "<bos>", "<eos>", "<unk>", "c", "b", "a")
    assert vocabulary.ids(["a", "z", "<eos>"]) == [6, 3, 2]
    assert vocabulary.words([4, 5]) == ["c", "b"]
    assert Vocabulary.of([["b", "a", "c"], ["c", "b", "c"]], min_frequency=2).tokens[4:] == ("c", "b")


def test_sentences_are_padded_at_the_end():
    tokens, lengths = corpus.pad_sentences([[5, 6, 7], [8]], 0)
    assert tokens.tolist() == [[5, 6, 7], [8, 0, 0]] and lengths.tolist() == [3, 1]
    assert tokens.dtype == lengths.dtype == np.int32


def archive(content: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as made:
        made.writestr(corpus.PAIRS_MEMBER, content)
    return data.getvalue()


def test_a_download_is_checked_and_kept(tmp_path: Path, monkeypatch):
    addresses = []

    def answer(address: str, timeout: float) -> io.BytesIO:
        addresses.append(address)
        return io.BytesIO(archive("Go.\tVa !\n"))

    monkeypatch.setattr(corpus.urllib.request, "urlopen", answer)
    with pytest.raises(CorpusError, match=r"has the SHA-1 [0-9a-f]{40}, expected 94646ad.*The download was discarded"):
        corpus.download(tmp_path / "corpora")
    assert not (tmp_path / "corpora").exists()
    digest = hashlib.sha1(archive("Go.\tVa !\n")).hexdigest()
    monkeypatch.setattr(corpus, "PAIRS_DIGEST", digest)
    path = corpus.download(tmp_path / "corpora")
    assert corpus.read_corpus(path).pairs == [("Go.", "Va !")]
    assert [entry.name for entry in path.parent.iterdir()] == ["fra.txt"]
    assert corpus.download(tmp_path / "corpora") == path and addresses == [corpus.PAIRS_ADDRESS] * 2


def test_a_failed_download_names_the_alternative(tmp_path: Path, monkeypatch):
    def refuse(address: str, timeout: float) -> io.BytesIO:
        raise OSError("no route to host")

    monkeypatch.setattr(corpus.urllib.request, "urlopen", refuse)
    with pytest.raises(CorpusError, match=r"no route to host\. Pass a file with --corpus instead"):
        corpus.download(tmp_path)


PAIRS = [
    ("Go.", "Va !"),
    ("Run!", "Cours !"),
    ("go .", "Bouge !"),
    ("Run!", "Courez !"),
    ("Hi.", "Salut !"),
    ("Hi.", "Salut !"),
]


def test_no_sentence_occurs_in_two_lists():
    first, second = corpus.split(PAIRS, (2, 9))
    assert first == [PAIRS[0], PAIRS[2]] and second == [PAIRS[1], PAIRS[3], PAIRS[4]]
    assert corpus.split(PAIRS, (1, 2)) == [[PAIRS[0]], [PAIRS[1], PAIRS[3]]]  # the rest of a group is left out
    assert [len(pairs) for pairs in corpus.split(PAIRS, (5, 1))] == [5, 0]
    drawn = {tuple(corpus.split(PAIRS, (2, 9), seed)[0]) for seed in range(20)}
    assert len(drawn) > 2 and corpus.split(PAIRS, (2, 9), 3) == corpus.split(PAIRS, (2, 9), 3)
    by_target = corpus.split(
        [("1/2/1950", "1950-01-02"), ("2 jan 1950", "1950-01-02"), ("3", "1950-01-03")], (2, 1), by=1
    )
    assert [len(own) for own in by_target] == [2, 1]


def test_an_order_is_a_permutation_that_depends_on_name_and_seed():
    orders = [tuple(corpus.permutation(name, 9, seed)) for name, seed in (("1", 0), ("2", 0), ("1", 1), ("1", 0))]
    assert all(sorted(order) == list(range(9)) for order in orders)
    assert orders[0] == orders[3] and len(set(orders)) == 3
    assert orders[0] == (4, 3, 7, 6, 8, 5, 2, 1, 0)  # pinned: it is data


def test_pairs_become_arrays_that_end_with_eos():
    pairs = [(["a", "b", "c"], ["x"]), (["a"], ["x", "y", "x", "z"])]
    source, target = (Vocabulary.of([pair[side] for pair in pairs]) for side in (0, 1))
    batch = corpus.encode(pairs, source, target, 3)
    assert batch.source.tolist() == [[4, 5, 2], [4, 2, 0]] and batch.source_lens.tolist() == [3, 2]
    assert batch.inputs.tolist() == [[1, 4, 2], [1, 4, 5]]
    assert batch.targets.tolist() == [[4, 2, 0], [4, 5, 2]] and batch.target_lens.tolist() == [2, 3]
    some = corpus.rows_of(batch, np.array([1]), 3)
    assert some.source.tolist() == [[4, 2, 0], [0, 0, 0], [0, 0, 0]] and some.target_lens.tolist() == [3, 0, 0]
    assert {array.dtype.name for array in some[:5]} == {"int32"} and not some.masks


def test_a_batch_loses_the_columns_that_no_sentence_of_it_reaches():
    """In steps of an eighth of the longest that there may be: of 20 tokens, three by three."""
    whole = np.arange(2 * 20, dtype=np.int32).reshape(2, 20)
    batch = Batch(whole, np.array([4, 2]), whole + 1, whole + 2, np.array([7, 0]))
    less = corpus.trim(batch, 20)
    assert [array.shape for array in less[:5]] == [(2, 6), (2,), (2, 9), (2, 9), (2,)]
    assert np.array_equal(less.source, whole[:, :6]) and np.array_equal(less.targets, whole[:, :9] + 2)
    for lens, width in (((20, 19), 20), ((19, 1), 20), ((18, 1), 18), ((0, 0), 3)):
        assert corpus.trim(batch._replace(source_lens=np.array(lens)), 20).source.shape == (2, width)


@pytest.mark.parametrize("by_length", [False, True])
def test_an_epoch_has_every_row_once_and_by_length_those_of_like_length_together(by_length: bool):
    lens = np.arange(50) * 7 % 13 + 1
    pairs = Batch(np.zeros((50, 13)), lens, None, None, lens)
    parts = corpus.epoch_rows(pairs, 8, 3, 0, by_length)
    assert sorted(np.concatenate(parts)) == list(range(50)) and sorted(map(len, parts)) == [2, *(8,) * 6]
    spread = max(np.ptp(lens[rows]) for rows in parts)
    assert spread <= 3 if by_length else spread > 6
    first = [lens[rows].min() for rows in parts]
    assert first != sorted(first), "the order of the batches is drawn, too"
    other = corpus.epoch_rows(pairs, 8, 4, 0, by_length)
    assert [rows.tolist() for rows in parts] != [rows.tolist() for rows in other]
