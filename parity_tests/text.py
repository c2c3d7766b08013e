"""Sentences: corpora, tokens, vocabularies and padded batches, the same for every framework."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from attention_core.draws import integers

PAD, BOS, EOS, UNK = "<pad>", "<bos>", "<eos>", "<unk>"
MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
LONGEST_LINE = 10_000

Pair = tuple[str, str]


class CorpusError(ValueError):
    """A corpus cannot be read."""


def dates(count: int, seed: int = 0) -> list[Pair]:
    """Dates written in many ways, each with its ISO form: the corpus that needs no download.

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


def read_pairs(path: str | Path, limit: int | None = None) -> list[Pair]:
    """Sentence pairs of a tab-separated file, one pair a line; further columns are left out.

    Raises: CorpusError, with the line, if the file is empty, not UTF-8, has a line without a tab or with an empty side,
    or a line of more than LONGEST_LINE characters.
    """
    pairs: list[Pair] = []
    try:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if len(line) > LONGEST_LINE:
                    raise CorpusError(f"{path}, line {number}: longer than {LONGEST_LINE} characters.")
                source, tab, rest = line.rstrip("\n").partition("\t")
                target = rest.partition("\t")[0]
                if not tab or not source.strip() or not target.strip():
                    raise CorpusError(f"{path}, line {number}: expected two sentences with a tab between them.")
                pairs.append((source, target))
                if limit is not None and len(pairs) == limit:
                    break
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path} is not UTF-8: {error}. Convert it first.") from error
    except OSError as error:
        raise CorpusError(f"{path} cannot be read: {error.strerror}.") from error
    if not pairs:
        raise CorpusError(f"{path} holds no sentence pairs.")
    return pairs


def normalise(sentence: str) -> str:
    """Lower case, composed Unicode, one plain space between words and before punctuation."""
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
        """The tokens that stand in the sentences at least min_frequency times."""
        counts = Counter(token for sentence in sentences for token in sentence)
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return cls((PAD, BOS, EOS, UNK, *(token for token, count in ranked if count >= min_frequency)))

    def __len__(self) -> int:
        return len(self.tokens)

    def ids(self, sentence: Sequence[str]) -> list[int]:
        """The ids of the tokens; those of no entry become UNK."""
        index = {token: position for position, token in enumerate(self.tokens)}
        return [index.get(token, index[UNK]) for token in sentence]

    def words(self, ids: Iterable[int]) -> list[str]:
        """The tokens of the ids."""
        return [self.tokens[position] for position in ids]


def padded(sentences: Sequence[Sequence[int]], pad: int) -> tuple[np.ndarray, np.ndarray]:
    """The sentences as one array (batch, longest), padded at the end, and their lengths (batch,), both int32."""
    lengths = np.array([len(sentence) for sentence in sentences], np.int32)
    tokens = np.full((len(sentences), int(lengths.max(initial=0))), pad, np.int32)
    for row, sentence in zip(tokens, sentences, strict=True):
        row[: len(sentence)] = sentence
    return tokens, lengths
