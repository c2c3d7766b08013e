"""Scores of translations: BLEU by sacrebleu, a textbook's score, and the share of exact matches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

Tokens = Sequence[str]


class Unscored(ImportError):
    """The library that computes BLEU is not installed."""


def bleu(translations: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float:
    """BLEU of a whole corpus against all references of each sentence, from 0 to 100, by sacrebleu.

    The tokens are used as passed, without further tokenisation or lower-casing. Raises: Unscored if sacrebleu is not
    installed.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ModuleNotFoundError as error:
        raise Unscored("BLEU needs sacrebleu. Run: pip install sacrebleu") from error
    joined = [[" ".join(tokens) for tokens in each] for each in references]
    streams: Any = list(zip_longest(*joined))  # sacrebleu's: the first reference of each sentence, the second, ...
    lines = [" ".join(tokens) for tokens in translations]
    return float(BLEU(tokenize="none", force=True).corpus_score(lines, streams).score)


def third_party_score(translation: Tokens, references: Sequence[Tokens], most: int = 2) -> float:
    """The sentence score of "Dive into Deep Learning", from 0 to 1: the maximum over all references.

    score = exp(min(0, 1 - reference length / length)) · product over n = 1..most of p[n]^(1/2ⁿ), where p[n] is the
    share of the n-grams that occur in the reference, each as often as it occurs there

    Source: section 10.7, which takes n up to 2.
    """
    return max(_against(translation, reference, most) for reference in references)


def _against(translation: Tokens, reference: Tokens, most: int) -> float:
    if not translation:
        return 0.0
    score = math.exp(min(0.0, 1.0 - len(reference) / len(translation)))
    for n in range(1, min(most, len(translation)) + 1):
        actual, expected = _ngrams(translation, n), _ngrams(reference, n)
        score *= (sum((actual & expected).values()) / sum(actual.values())) ** (0.5**n)
    return score


def _ngrams(tokens: Tokens, n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))


def exact(translations: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float:
    """The share of translations that are one of their references, from 0 to 1."""
    pairs = zip(translations, references, strict=True)
    return sum(list(translation) in map(list, expected) for translation, expected in pairs) / len(translations)


def scores(translations: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> dict[str, float]:
    """All scores of translations."""
    pairs = zip(translations, references, strict=True)
    return {
        "bleu": bleu(translations, references),
        "third_party": sum(third_party_score(*pair) for pair in pairs) / len(translations),
        "exact": exact(translations, references),
    }
