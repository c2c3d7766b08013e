"""How good translations are: BLEU by sacrebleu, the score that textbooks print, and how many are right to the word."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

Tokens = Sequence[str]


class Unscored(ImportError):
    """The library that computes BLEU is not installed."""


def bleu(translations: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float:
    """BLEU of a whole corpus against all references of each sentence, from 0 to 100, by sacrebleu.

    The tokens are those given: nothing is split or lowered again.
    Raises: Unscored if sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ModuleNotFoundError as error:
        raise Unscored("BLEU needs sacrebleu. Run: pip install sacrebleu") from error
    most = max(map(len, references))
    streams: Any = [
        [" ".join(own[number]) if number < len(own) else None for own in references] for number in range(most)
    ]
    lines = [" ".join(tokens) for tokens in translations]
    return float(BLEU(tokenize="none", force=True).corpus_score(lines, streams).score)


def textbook_score(translation: Tokens, references: Sequence[Tokens], most: int = 2) -> float:
    """The score that textbooks print for one sentence, from 0 to 1: the best against any of its references.

    score = exp(min(0, 1 - reference length / length)) · product over n = 1..most of p[n]^(1/2ⁿ), where p[n] is the
    share of the n-grams that stand in the reference, each as often as it stands there

    As in "Dive into Deep Learning", section 10.7, which takes n up to 2.
    """
    return max(_against(translation, reference, most) for reference in references)


def _against(translation: Tokens, reference: Tokens, most: int) -> float:
    if not translation:
        return 0.0
    score = math.exp(min(0.0, 1.0 - len(reference) / len(translation)))
    for n in range(1, min(most, len(translation)) + 1):
        found, wanted = _ngrams(translation, n), _ngrams(reference, n)
        score *= (sum((found & wanted).values()) / sum(found.values())) ** (0.5**n)
    return score


def _ngrams(tokens: Tokens, n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))


def exact(translations: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> float:
    """The share of translations that are one of their references, from 0 to 1."""
    right = [
        list(found) in [list(own) for own in wanted] for found, wanted in zip(translations, references, strict=True)
    ]
    return sum(right) / len(right)
