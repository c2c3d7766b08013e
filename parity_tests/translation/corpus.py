"""Corpora, tokens, vocabularies and padded batches, independent of the framework."""

from __future__ import annotations

import functools
import hashlib
import io
import re
import unicodedata
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attention_core.draws import integers, uniform
from attention_core.operators.training import Batch
from backends.archives import ArchiveError, regular_file
from backends.files import write_file

SPECIAL = PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
NAMES = "january february march april may june july august september october november december"
MONTHS = tuple(NAMES.split())
DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
LONGEST_LINE = 10_000
MOST_REPORTED = 3
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
"""Control characters, which are not allowed in a sentence."""

PAIRS_ADDRESS = "http://d2l-data.s3-accelerate.amazonaws.com/fra-eng.zip"
PAIRS_DIGEST = "94646ad1522d915e7b0f9296181140edcf86a4f5"
PAIRS_MEMBER = "fra-eng/fra.txt"
LARGEST_DOWNLOAD = 2**26
"""The pairs used by textbooks, with the SHA-1 that they state; only `download` fetches them."""

Pair = tuple[str, str]


class CorpusError(ValueError):
    """A corpus cannot be read."""


def dates(count: int, seed: int = 0) -> list[Pair]:
    """Generate dates in several written forms, each with its ISO form.

    Years run from 1900 to 2099; no date is 29 February.
    """
    columns = [
        integers(f"dates.{name}", (count,), high, seed)
        for name, high in (("year", 200), ("month", 12), ("day", 365), ("form", 6))
    ]
    rows = np.stack(columns, axis=1).tolist()
    return [_date(1900 + year, month, 1 + day % DAYS[month], form) for year, month, day, form in rows]


def _date(year: int, month: int, day: int, form: int) -> Pair:
    name = MONTHS[month]
    written = (
        f"{day} {name} {year}",
        f"{name} {day}, {year}",
        f"{day:02}.{month + 1:02}.{year}",
        f"{day} {name[:3]} {year}",
        f"the {day} of {name}, {year}",
        f"{month + 1}/{day}/{year}",
    )[form]
    return written, f"{year}-{month + 1:02}-{day:02}"


class Corpus(NamedTuple):
    """Sentence pairs, and the skipped lines of their file with reasons."""

    pairs: list[Pair]
    skipped: Sequence[tuple[int, str]] = ()

    @property
    def warning(self) -> str:
        """A message about skipped lines; empty if there are none."""
        if not self.skipped:
            return ""
        first = "; ".join(f"line {number}: {why}" for number, why in self.skipped[:MOST_REPORTED])
        more = "; ..." if len(self.skipped) > MOST_REPORTED else ""
        return f"{len(self.skipped):,} of {len(self.skipped) + len(self.pairs):,} lines skipped ({first}{more})"


def read_corpus(path: str | Path) -> Corpus:
    """Read sentence pairs from a tab-separated file, one per line; further columns are ignored.

    A line without a tab, with an empty side, or of more than LONGEST_LINE characters is skipped and counted.
    Raises: CorpusError if the file cannot be read, is not UTF-8 (with the line), or contains no pair.
    """
    pairs: list[Pair] = []
    skipped: list[tuple[int, str]] = []
    number = 0
    try:
        for number, raw in _lines(regular_file(path)):
            line = None if raw is None else raw.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
            if line is None or len(line) > LONGEST_LINE:
                skipped.append((number, f"longer than {LONGEST_LINE:,} characters"))
                continue
            source, tab, rest = line.partition("\t")
            target = rest.partition("\t")[0]
            if CONTROL.search(source + target):
                skipped.append((number, "a control character"))
            elif tab and normalise(source) and normalise(target):
                pairs.append((source, target))
            else:
                skipped.append((number, "an empty sentence" if tab else "no tab"))
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}, line {number}, is not UTF-8: {error.reason}. Convert the file first.") from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}.") from error
    except ArchiveError as error:
        raise CorpusError(f"{error}.") from error
    if not pairs:
        warning = Corpus(pairs, skipped).warning
        raise CorpusError(f"{path} holds no sentence pairs{': ' if warning else ''}{warning}.")
    return Corpus(pairs, skipped)


def _lines(path: str | Path) -> Iterator[tuple[int, bytes | None]]:
    """Yield the numbered lines of a file, None for lines that are too long."""
    most = 4 * LONGEST_LINE + 2
    with open(path, "rb") as file:
        number = 0
        while raw := file.readline(most):
            number += 1
            rest = raw
            while len(rest) == most and not rest.endswith(b"\n"):
                rest = file.readline(most)
            yield number, raw if rest is raw else None


def download(folder: Path) -> Path:
    """Download the English-French pairs of the textbooks, unless they exist, and return the file of pairs.

    Raises: CorpusError if they cannot be downloaded, or do not match the digest.
    """
    path = folder / PAIRS_MEMBER.rpartition("/")[2]
    if path.exists():
        return path
    try:
        with urllib.request.urlopen(PAIRS_ADDRESS, timeout=60) as answer:
            data = answer.read(LARGEST_DOWNLOAD + 1)
    except OSError as error:
        raise CorpusError(
            f"{PAIRS_ADDRESS} cannot be downloaded: {error}. Pass a file with --corpus instead."
        ) from error
    digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    if digest != PAIRS_DIGEST:
        raise CorpusError(
            f"{PAIRS_ADDRESS} has the SHA-1 {digest}, expected {PAIRS_DIGEST}. The download was discarded."
        )
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        content = archive.read(PAIRS_MEMBER)
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, content)
    return path


def normalise(sentence: str) -> str:
    """Lower case, composed Unicode, one plain space between words and around punctuation."""
    plain = unicodedata.normalize("NFKC", sentence).lower()
    spaced = re.sub(r"([,.!?;:])", r" \1 ", plain)
    return " ".join(spaced.split())


def words(sentence: str) -> list[str]:
    """The words and punctuation of a sentence."""
    return normalise(sentence).split(" ")


def characters(sentence: str) -> list[str]:
    """The characters of a sentence."""
    return list(sentence)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens and their ids: the four special ones first, then by frequency, then by the alphabet."""

    tokens: tuple[str, ...]

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], min_frequency: int = 1) -> Vocabulary:
        """The tokens that occur in the sentences at least min_frequency times."""
        counts = Counter(token for sentence in sentences for token in sentence)
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls((*SPECIAL, *(token for token, count in ranked if count >= min_frequency)))

    def __len__(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """Map each token to its id."""
        return {token: position for position, token in enumerate(self.tokens)}

    def ids(self, sentence: Sequence[str]) -> list[int]:
        """The ids of the tokens; unknown tokens become UNK."""
        return [self.index.get(token, self.index[UNK]) for token in sentence]

    def words(self, ids: Iterable[int]) -> list[str]:
        """The tokens of the ids."""
        return [self.tokens[position] for position in ids]


def pad_sentences(sentences: Sequence[Sequence[int]], pad: int, least: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The sentences as one array (batch, longest), padded at the end, and their lengths (batch,), both int32.

    The array has at least `least` columns.
    """
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    tokens = np.full((len(sentences), int(lengths.max(initial=least))), pad, np.int32)
    for row, sentence in zip(tokens, sentences, strict=True):
        row[: len(sentence)] = sentence
    return tokens, lengths


# ------------------------------------------------------------------------------------------------ for training

SPLITTERS = {"words": words, "characters": characters}
"""The tokenisations of a sentence."""


def split(pairs: Sequence[Pair], counts: Sequence[int], seed: int | None = None, by: int = 0) -> list[list[Pair]]:
    """Split pairs into disjoint lists of these sizes, so that no sentence occurs in two of them.

    Pairs with the same source (by=0) or target (by=1) stay together, in the order of the file or of the seed. Pairs
    that do not fit into a list are omitted. If there are too few pairs, the first lists are filled first.
    """
    groups: dict[str, list[Pair]] = {}
    for pair in dict.fromkeys(pairs):
        groups.setdefault(normalise(pair[by]), []).append(pair)
    ordered = list(groups.values())
    if seed is not None:
        ordered = [ordered[position] for position in permutation("split", len(ordered), seed)]
    remaining = iter(ordered)
    lists: list[list[Pair]] = []
    for count in counts:
        chosen: list[Pair] = []
        while len(chosen) < count and (group := next(remaining, None)):
            chosen += group
        lists.append(chosen[:count])
    return lists


def permutation(name: str, count: int, seed: int) -> np.ndarray:
    """A permutation of the numbers below count, drawn by name and seed, the same on every machine."""
    return np.argsort(uniform(f"order/{name}", (count,), seed=seed), kind="stable")


def encode(pairs: Sequence[Sequence[Sequence[str]]], source: Vocabulary, target: Vocabulary, max_tokens: int) -> Batch:
    """Tokenised pairs as the arrays of one batch.

    Sentences are truncated to max_tokens - 1 tokens, ended by eos, and padded to max_tokens.
    """
    ids = [
        [vocabulary.ids([*pair[side][: max_tokens - 1], EOS]) for pair in pairs]
        for side, vocabulary in enumerate((source, target))
    ]
    (sources, source_lens), (targets, target_lens) = (pad_sentences(side, 0, max_tokens) for side in ids)
    inputs = np.roll(targets, 1, axis=1)
    inputs[:, 0] = target.index[BOS]
    return Batch(sources, source_lens, inputs, targets, target_lens)


def rows_of(batch: Batch, rows: np.ndarray, count: int) -> Batch:
    """Select rows of a batch, and pad them with empty rows up to count, which keeps the shape.

    A smaller last batch of an epoch would be compiled again.
    """
    missing = count - len(rows)
    return batch.map_arrays(lambda array: np.pad(array[rows], ((0, missing),) + ((0, 0),) * (array.ndim - 1)))


def trim(batch: Batch, most: int) -> Batch:
    """Remove the columns after the longest sentence of a batch.

    Widths are multiples of an eighth of the maximum, since each width is compiled separately.
    """
    step = -(-most // 8)
    longest = (int(lens.max(initial=1)) for lens in (batch.source_lens, batch.target_lens))
    keys, steps = (min(most, -(-length // step) * step) for length in longest)
    cut = batch._replace(
        source=batch.source[:, :keys], inputs=batch.inputs[:, :steps], targets=batch.targets[:, :steps]
    )
    return cut.map_arrays(np.ascontiguousarray)


def epoch_rows(pairs: Batch, batch_size: int, epoch: int, seed: int, by_length: bool) -> list[np.ndarray]:
    """The rows of each batch of an epoch, in an order drawn for the epoch.

    by_length batches sentences of similar length, and draws the order of the batches.
    """
    order = permutation(f"epoch/{epoch}", len(pairs.source), seed)
    if by_length:
        order = order[np.lexsort((pairs.source_lens[order], pairs.target_lens[order]))]
    parts = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    return [parts[place] for place in permutation(f"batches/{epoch}", len(parts), seed)] if by_length else parts
