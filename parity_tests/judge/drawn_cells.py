"""Drawn cases as cells: which of them a target implements, how they are compared, and which ones a release draws."""

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
from parity_tests.cases.draw import FAMILY, draw
from parity_tests.format.case import FULL
from parity_tests.format.drawn import NAMES, Drawn, methods_of, parse_drawn
from parity_tests.judge.condition import Judged, judgeable
from parity_tests.judge.question import Question
from parity_tests.judge.tolerances import MOST
from parity_tests.workers.answers import Answer
from parity_tests.workers.environment import requirements_of
from parity_tests.workers.recordings import Recording, own_version
from parity_tests.workers.target import NOT_TAKEN, function_name

DRAWN = 4
"""The number of drawn cases of `check` for each operator and dtype."""

FAMILIES = 8
"""The largest factor by which more are drawn: some depend on rounding alone, and some on missing methods."""


@dataclass
class Abilities:
    """What a backend or target implements: its functions, and the arguments that these lack.

    functions: their names; None for a backend, which has all. untaken: the refused arguments of each function.
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
        """Read them from the header of a worker."""
        functions = set(str(about["implements"]).split(", ")) if "implements" in about else None
        return replace(self, functions=functions)

    def learn(self, answer: Answer) -> None:
        """Note the argument that a function refused, if any."""
        function, _, argument = answer.message.partition(NOT_TAKEN)
        if answer.status == "not-implemented" and argument:
            self.untaken[function].add(argument)

    def has(self, operator: str, method: str) -> bool:
        """Whether the function is implemented."""
        return self.functions is None or function_name(operator, method) in self.functions

    def drawable(self, operators: Collection[str]) -> list[str]:
        """Those of the operators that have drawn cases and at least one implemented function."""
        chosen = [name for name in NAMES if name in operators]
        return [name for name in chosen if any(self.has(name, method) for method in methods_of(find(name)))]

    @cached_property
    def absent(self) -> tuple[str, ...]:
        """The dtypes that the framework lacks, by pattern."""
        needed = requirements_of(self.backend)
        return () if needed is None else needed.absent_dtypes

    def knows(self, dtype: str) -> bool:
        """Whether the framework has that dtype."""
        return not any(fnmatchcase(dtype, pattern) for pattern in self.absent)

    def concerns(self, drawn: Drawn) -> bool:
        """Whether the function and the dtypes of a case are available, those of lengths and tokens included."""
        return self.has(drawn.operator, drawn.method) and all(map(self.knows, {drawn.dtype, *drawn.types.values()}))

    def refusal(self, drawn: Drawn) -> str:
        """The message about an argument of a case that its function lacks; empty if none is known."""
        function = function_name(drawn.operator, drawn.method)
        entry = find(drawn.operator)
        defaults = {option.name: option.value for option in entry.options if isinstance(entry, Layer)}
        given = {**drawn.sizes, **drawn.options}
        arguments = {name for name, value in given.items() if name not in defaults or value != defaults[name]}
        untaken = self.untaken.get(function, set()) & {*drawn.given, *arguments}
        return f"{function}{NOT_TAKEN}{min(untaken)}" if untaken else ""


# ------------------------------------------------------------------------------------------------ those of a release


def release_seed() -> int:
    """The seed of this version: its draws are the same everywhere, but unknown before the release."""
    return int.from_bytes(hashlib.sha256(own_version().encode()).digest()[:4], "big")


def release_cases(
    seed: int, dtypes: Sequence[str], operators: Sequence[str], known: Abilities, pattern: str | None = None
) -> dict[str, Judged]:
    """The drawn cases of `check`, by cell: a few of each selected operator in float64 and float32."""
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
    """Whether a name with this prefix may match a pattern, which its part before the first wildcard decides."""
    literal = re.split(r"[*?\[]", pattern or "*", maxsplit=1)[0]
    return literal.startswith(start) or start.startswith(literal)


class LineError(ValueError):
    """A line is not a drawn case, or not one that can be tested."""


def given_cases(lines: Sequence[str]) -> dict[str, Judged]:
    """The cases of lines, by cell.

    Raises: LineError if one is not a drawn case, or cannot be tested.
    """
    cases = {}
    for line in lines:
        try:
            drawn = parse_drawn(line)
        except ValueError as error:
            raise LineError(str(error)) from error
        try:
            if drawn.dtype not in MOST:
                raise ValueError(f"dtype is {drawn.dtype!r}, expected one of {', '.join(MOST)}")
            judged = judgeable(drawn)
            certain = judged is not None and Question(judged.cell).is_certain
        except (AttentionError, LookupError, TypeError, ValueError) as error:
            raise LineError(f"{line} is no case: {error}") from error
        if judged is None or not certain:
            raise LineError(f"{line} cannot be judged: rounding alone could change the answer")
        cases[judged.cell.key] = judged
    return cases
