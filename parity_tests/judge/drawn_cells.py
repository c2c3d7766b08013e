"""Drawn cases as cells: which of them a backend or target has, how they are judged, and which ones a release draws."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from attention_core.errors import AttentionError
from attention_core.operators import find
from attention_core.specification import Layer
from parity_tests.cases.case import FULL
from parity_tests.cases.draw import FAMILY, draw
from parity_tests.cases.drawn import NAMES, Drawn, methods_of, parsed
from parity_tests.judge.condition import DTYPES, Judged, judgeable
from parity_tests.workers.answers import Answer
from parity_tests.workers.environment import requirements_of
from parity_tests.workers.recordings import Recording, own_version
from parity_tests.workers.target import NOT_TAKEN, function_name

DRAWN = 4
"""How many drawn cases `check` asks of each operator in each dtype."""

FAMILIES = 8
"""How many times as many are drawn at most: rounding alone could change some, and some are of methods not there."""


@dataclass
class Abilities:
    """What a backend or target can be asked: the functions that it has, and the arguments that these do not take.

    functions: their names; None for a backend, which has all.
    untaken: by function, the arguments that it refused.
    """

    backend: str
    functions: Collection[str] | None = None
    untaken: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    @classmethod
    def of(cls, recording: Recording) -> Abilities:
        """Read them from a recording."""
        known = cls(recording.backend).with_functions(recording.about)
        for answer in recording.answers.values():
            known.learn(answer)
        return known

    def with_functions(self, about: Mapping[str, Any]) -> Abilities:
        """The same with the functions that a worker lists."""
        functions = set(str(about["implements"]).split(", ")) if "implements" in about else None
        return replace(self, functions=functions)

    def learn(self, answer: Answer) -> None:
        """Note the argument that a function refused, if it did."""
        function, _, argument = answer.message.partition(NOT_TAKEN)
        if answer.status == "not-implemented" and argument:
            self.untaken[function].add(argument)

    def has(self, operator: str, method: str) -> bool:
        """Whether there is such a function."""
        return self.functions is None or function_name(operator, method) in self.functions

    def drawable(self, operators: Collection[str]) -> list[str]:
        """The operators among those given for which cases can be drawn, and of which any function is there."""
        chosen = [name for name in NAMES if name in operators]
        return [name for name in chosen if any(self.has(name, method) for method in methods_of(find(name)))]

    @cached_property
    def absent(self) -> tuple[str, ...]:
        """The dtypes that the framework does not have, by pattern."""
        needed = requirements_of(self.backend)
        return () if needed is None else needed.absent_dtypes

    def knows(self, dtype: str) -> bool:
        """Whether the framework has that dtype."""
        return not any(fnmatchcase(dtype, pattern) for pattern in self.absent)

    def concerns(self, drawn: Drawn) -> bool:
        """Whether there is the function of a case, and there are its dtypes, also those of lengths and tokens."""
        return self.has(drawn.operator, drawn.method) and all(map(self.knows, {drawn.dtype, *drawn.types.values()}))

    def refusal(self, drawn: Drawn) -> str:
        """The message on an argument of a case that its function does not take; empty if none is known."""
        function = function_name(drawn.operator, drawn.method)
        entry = find(drawn.operator)
        defaults = {option.name: option.value for option in entry.options if isinstance(entry, Layer)}
        given = {**drawn.sizes, **drawn.options}
        arguments = {name for name, value in given.items() if name not in defaults or value != defaults[name]}
        untaken = self.untaken.get(function, set()) & {*drawn.given, *arguments}
        return f"{function}{NOT_TAKEN}{min(untaken)}" if untaken else ""


# ------------------------------------------------------------------------------------------------ those of a release


def release_seed() -> int:
    """The seed of this version: what is drawn by it is the same everywhere, and not known before the release."""
    return int.from_bytes(hashlib.sha256(own_version().encode()).digest()[:4], "big")


def release_cases(
    seed: int, dtypes: Sequence[str], operators: Sequence[str], known: Abilities, pattern: str | None = None
) -> dict[str, Judged]:
    """The drawn part of `check`, by cell: a few cases of each operator in float64 and float32, as far as they match."""
    chosen: dict[str, Judged] = {}
    for name in operators:
        for position, dtype in enumerate(FULL):
            if dtype not in dtypes or not may_match(pattern, f"{name}-drawn_"):
                continue
            cases: dict[str, Judged] = {}
            for turn in range(DRAWN * FAMILIES):
                drawn = draw(seed, FAMILY * (len(FULL) * turn + position), (name,), (dtype,))
                possible = known.concerns(drawn) and not known.refusal(drawn)
                judged = judgeable(drawn) if possible else None
                if judged is not None:
                    cases[judged.cell.key] = judged
                if len(cases) == DRAWN:
                    break
            chosen |= cases
    return {cell: judged for cell, judged in chosen.items() if fnmatchcase(judged.case.id, pattern or "*")}


def may_match(pattern: str | None, start: str) -> bool:
    """Whether a name that begins so may match: of a pattern, what stands before the first wildcard decides."""
    literal = re.split(r"[*?\[]", pattern or "*", maxsplit=1)[0]
    return literal.startswith(start) or start.startswith(literal)


class LineError(ValueError):
    """A line says no case that can be judged."""


def given_cases(lines: Sequence[str]) -> dict[str, Judged]:
    """The cases of lines, by cell.

    Raises: LineError if one is no line of a drawn case, or cannot be judged.
    """
    cases = {}
    for line in lines:
        try:
            drawn = parsed(line)
        except ValueError as error:
            raise LineError(str(error)) from error
        try:
            if drawn.dtype not in DTYPES:
                raise ValueError(f"dtype is {drawn.dtype!r}, expected one of {', '.join(DTYPES)}")
            judged = judgeable(drawn)
        except (AttentionError, LookupError, TypeError, ValueError) as error:
            raise LineError(f"{line} is no case: {error}") from error
        if judged is None:
            raise LineError(f"{line} cannot be judged: rounding alone could change the answer")
        cases[judged.cell.key] = judged
    return cases
