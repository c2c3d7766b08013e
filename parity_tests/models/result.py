"""The outcome of a comparison of two models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from parity_tests.judge.verdict import Verdict
from parity_tests.models.difference import Difference
from parity_tests.models.parameters import Pairing

Weights = Literal["stored", "copied", "seeded"]


@dataclass
class Result:
    """The verdicts on two models, and where the first difference is, if there is one.

    decided_in is the dtype that decided whether both are the same function. notes are sentences on what was assumed,
    could not be compared, or did not vary. errors has, for each sublayer of the expected side, its partner and the
    error of its output, where a difference was looked for.
    """

    actual: str
    expected: str
    weights: Weights
    seed: int
    verdicts: list[Verdict] = field(default_factory=list)
    pairing: Pairing = field(default_factory=Pairing)
    notes: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    decided_in: str = "float64"
    first_difference: Difference | None = None
    looks_like: list[str] = field(default_factory=list)
    has_mistakes: bool = False
    """Whether that is a known mistake, not the manner of the error alone."""
    errors: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    kinds: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The classes of each such sublayer and of its partner."""
    pictures: dict[str, np.ndarray] = field(default_factory=dict)
    """The arrays at the first difference, actual and expected."""

    @property
    def red(self) -> list[Verdict]:
        """The verdicts that fail."""
        return [verdict for verdict in self.verdicts if verdict.red]

    @property
    def undecided_verdicts(self) -> list[Verdict]:
        """The verdicts on what is so ill-conditioned that rounding alone could explain any difference."""
        return [verdict for verdict in self.verdicts if verdict.status == "undecided"]

    @property
    def agree(self) -> bool:
        """Whether everything that was compared agrees, and something was."""
        return bool(self.verdicts) and not self.red and not self.undecided_verdicts

    @property
    def reason_against_certificate(self) -> str:
        """Why nothing of it can be certified; empty if it can be."""
        if self.undecided_verdicts:
            return f"{len(self.undecided_verdicts)} comparisons are undecided"
        if self.pairing.has_guesses:
            guessed = ", ".join(self.pairing.guesses)
            return f"{guessed}: paired by a guess. State the pairs in a names file, under [parameters]"
        return ""

    def as_json(self) -> dict[str, Any]:
        """The comparison as an object: a header, and an entry for each verdict."""
        header = {
            "actual": self.actual,
            "expected": self.expected,
            "weights": self.weights,
            "seed": self.seed,
            "inputs": self.inputs,
            "decided_in": self.decided_in,
            "pairs": [str(pair) for pair in self.pairing.pairs],
            "only_actual": self.pairing.only_actual,
            "only_expected": self.pairing.only_expected,
            "first_difference": None if self.first_difference is None else self.first_difference.sentence,
            "looks_like": self.looks_like,
            "notes": self.notes,
        }
        return {"header": header, "verdicts": [verdict.as_json() for verdict in self.verdicts]}
