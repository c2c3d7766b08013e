"""Deliberately wrong implementations: each is the reference with one thing broken, and states what must be red.

They run in this process, on the cases that they name; only a backend that dies or hangs needs a process of its own
(`parity_tests.workers.process`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any
from unittest import mock

import numpy as np

from attention_core import reference
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import Arrays, Case, is_floating
from parity_tests.format.expected import computed_gradients, computed_outputs, cotangents
from parity_tests.format.layouts import arrange
from parity_tests.format.selection import Cell
from parity_tests.judge.compare import judge
from parity_tests.judge.question import Question
from parity_tests.judge.verdict import Verdict
from parity_tests.workers.answers import Answer
from parity_tests.workers.recordings import Recording

Wrong = Callable[..., Any]
"""A wrong function: it takes arguments of the right one by name, and may take the right one itself as `original`.

`original()` gives the right answer, and `original(mask=None)` the answer to the same call with another mask.
"""

ANSWER, INPUTS = "the whole answer", "the inputs"
"""What a mutant may change, beside functions of the reference."""

MAX_DRAWN = 3
"""How many drawn cases a mutant runs where it shows, and how many where it does not: each is differentiated anew."""


@dataclass(frozen=True)
class Mutant:
    """A wrong implementation: the reference with one thing broken; `mutant` makes them.

    broken maps names in `attention_core.reference` to wrong functions: a bare name replaces the function in every file
    that imports it, a path for the attribute of a file or class alone. spoiled changes the whole answer, misread the
    inputs; withheld quantities are reported as not implemented.
    """

    name: str
    sentence: str
    cases: tuple[str, ...]
    red: tuple[str, ...] = ()
    green: tuple[str, ...] = ()
    broken: Mapping[str, Wrong] = field(default_factory=dict)
    spoiled: Callable[[Case, Arrays], Arrays] | None = None
    misread: Callable[[Arrays], Arrays] | None = None
    withheld: tuple[str, ...] = ()
    dtype: str = "float64"
    touches: Callable[[Case], bool] | None = None
    source: str = ""

    @property
    def described(self) -> str:
        """The sentence, and in parentheses the issue or pull request of a library that made the mistake, if any."""
        return f"{self.sentence} ({self.source})" if self.source else self.sentence

    @property
    def reads_masks(self) -> bool:
        """Whether a function that it breaks takes a mask."""
        return any("mask" in inspect.signature(wrong).parameters for wrong in self.broken.values())

    def must_be_red(self, case: str, quantity: str) -> bool:
        """Whether that quantity of that case has to be red."""
        place = f"{case}:{quantity}"
        return _matches(place, self.red) and not _matches(place, self.green)


_mutants: list[Mutant] = []


def mutant(
    cases: str,
    *,
    of: str = "",
    via: Callable[[Wrong], Wrong] | None = None,
    red: str = "",
    green: str = "",
    touches: Callable[[Case], bool] | None = None,
    withheld: str = "",
    dtype: str = "float64",
    source: str = "",
    name: str = "",
    sentence: str = "",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a mutant of a wrong function; its name and the first line of its docstring are the mutant's unless given.

    The function replaces those of the reference that `of` names, or what `via` makes of it does (see `Wrong`). Of
    ANSWER, it takes the case and the right answer, and returns a wrong one; of INPUTS, it takes the inputs, and returns
    others. Without `of`, it returns several wrong functions by the names of those that they replace.

    cases are patterns of the cases that the mutant runs; red and green are patterns of case:quantity: what matches red
    and not green has to be red, and all else green. Several patterns or names are one string (`several`). A mistake
    that shows under a condition only has `touches` instead: some case for which it holds has to be red, and every other
    case green. source is the issue in which a library's mistake was reported, as owner/repository#number.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        words = sentence or (function.__doc__ or "").partition("\n")[0]
        made = Mutant(name or function.__name__, words, several(cases), several(red), several(green))
        made = replace(made, withheld=several(withheld), dtype=dtype, touches=touches, source=source)
        if of == ANSWER:
            made = replace(made, spoiled=function)
        elif of == INPUTS:
            made = replace(made, misread=function)
        else:
            wrong = function if via is None else via(function)
            made = replace(made, broken=dict.fromkeys(several(of), wrong) if of else function())
        _mutants.append(made)
        return function

    return register


def registered() -> tuple[Mutant, ...]:
    """Every mutant made so far, in order."""
    return tuple(_mutants)


def several(patterns: str) -> tuple[str, ...]:
    """Split patterns at spaces and expand braces as a shell does: GRU-{none,step} is GRU-none and GRU-step."""
    return tuple(dict.fromkeys(pattern for word in patterns.split() for pattern in _expanded(word)))


def _expanded(word: str) -> list[str]:
    innermost = re.search(r"{([^{}]*)}", word)
    if innermost is None:
        return [word]
    before, after = word[: innermost.start()], word[innermost.end() :]
    return [pattern for choice in innermost[1].split(",") for pattern in _expanded(before + choice + after)]


@dataclass(frozen=True)
class Outcome:
    """The judgement of a mutant: the red cells, how many verdicts of each check are red, and what is not as stated.

    survived holds the places that should be red and are not, unexpected those that are red and should not be.
    """

    mutant: Mutant
    red: frozenset[str]
    killed_by: Mapping[str, int]
    survived: Sequence[str]
    unexpected: Sequence[str]

    @property
    def as_stated(self) -> bool:
        """Whether exactly the stated places are red, and there are some."""
        return bool(self.killed_by) and not self.survived and not self.unexpected


def attempt(mutant: Mutant, cases: Sequence[Case] | None = None) -> tuple[list[Cell], Recording]:
    """The cells of the mutant's cases, and its answers to them, as a worker would record them."""
    chosen = [case for case in cases or all_cases(trained=True) if _matches(case.id, mutant.cases)]
    if cases is None:
        chosen = [*(case for case in chosen if case.drawn is None and not case.again), *_smallest(mutant, chosen)]
    # A drawn case has one dtype, whichever that is.
    dtypes = [(case, case.dtypes[0] if case.drawn is not None else mutant.dtype) for case in chosen]
    cells = [Cell(case, dtype) for case, dtype in dtypes if dtype in case.dtypes]
    recording = Recording(mutant.name, "cpu")
    for cell in cells:
        recording.answers[cell.key], recording.cells[cell.key] = answer(mutant, *cell)
    return cells, recording


def _smallest(mutant: Mutant, cases: Sequence[Case]) -> list[Case]:
    """Of the cases that were not written by hand, a few small ones that the mistake touches and a few others."""
    touches = mutant.touches
    if touches is None:
        return []
    rest = [case for case in cases if case.drawn is not None or case.again]
    rest.sort(key=lambda case: sum(array.size for array in (*case.inputs.values(), *case.parameters.values())))
    touched, others = [case for case in rest if touches(case)], [case for case in rest if not touches(case)]
    return touched[:MAX_DRAWN] + others[:MAX_DRAWN]


def answer(mutant: Mutant, case: Case, dtype: str, without: tuple[str, ...] = ()) -> tuple[Answer, Arrays]:
    """The status and the arrays that the mutant answers to a cell; the gradients are those of the outputs computed."""
    inputs, parameters = case.at(dtype)
    inputs = {name: arrange(array, case.layouts.get(name, "")) for name, array in inputs.items()}
    inputs = mutant.misread(inputs) if mutant.misread else inputs
    before = {name: array.copy() for name, array in inputs.items()}
    factors = cotangents(case, dtype, without)
    try:
        with in_place_of_the_reference(mutant), np.errstate(all="ignore"):
            answer = computed_outputs(case, inputs, parameters)
            masks: Arrays | None = {} if mutant.reads_masks else None  # a mask made for the gradients is not the case's
            gradients = computed_gradients(case, before, parameters, factors, masks) if case.gradients else {}
    except Exception as error:  # as in a worker, whatever an implementation raises costs its own cell
        return Answer("error", f"{type(error).__name__}: {error}"), {}
    changed = [name for name in before if not np.array_equal(inputs[name], before[name], equal_nan=True)]
    answer |= {f"gradient_{name}": array for name, array in gradients.items()}
    with np.errstate(over="ignore"):  # what is beyond the dtype becomes inf
        answer = {name: array.astype(dtype) if is_floating(array) else array for name, array in answer.items()}
    answer = mutant.spoiled(case, answer) if mutant.spoiled else answer
    given = {name: array for name, array in answer.items() if name not in mutant.withheld}
    return Answer(changed=tuple(changed), missing=mutant.withheld), given


def judged(mutant: Mutant, cells: Sequence[Cell], recording: Recording) -> Outcome:
    """Compare the mutant's answers with the reference, and the verdicts with what it states."""
    verdicts: list[Verdict] = [verdict for cell in cells for verdict in judge(Question(cell), recording)]
    red = [f"{verdict.case}:{verdict.quantity}" for verdict in verdicts if verdict.red]
    red_cells = frozenset(f"{verdict.case}/{verdict.dtype}" for verdict in verdicts if verdict.red)
    by = Counter(verdict.check for verdict in verdicts if verdict.red)
    if mutant.touches is not None:
        touched = {case.id for case, _ in cells if mutant.touches(case)}
        unexpected = [place for place in red if place.split(":")[0] not in touched]
        return Outcome(mutant, red_cells, by, [] if red else sorted(touched) or ["no case"], unexpected)
    survived = [
        f"{verdict.case}:{verdict.quantity}"
        for verdict in verdicts
        if not verdict.red and mutant.must_be_red(verdict.case, verdict.quantity)
    ]
    # A pattern that no red verdict matches has survived, too, even if there is no verdict at that place.
    survived += [pattern for pattern in mutant.red if not any(fnmatchcase(place, pattern) for place in red)]
    unexpected = [place for place in red if not mutant.must_be_red(*place.split(":"))]
    return Outcome(mutant, red_cells, by, survived, unexpected)


@contextmanager
def in_place_of_the_reference(mutant: Mutant) -> Iterator[None]:
    """Apply the mutant to the reference within the context."""
    with ExitStack() as stack:
        for name, wrong in mutant.broken.items():
            *path, attribute = name.split(".")
            owners: list[Any] = [functools.reduce(getattr, path, reference)]
            if not path:
                owners += [module for module in MODULES if hasattr(module, name)]
            original = next(getattr(owner, attribute) for owner in owners if hasattr(owner, attribute))
            replacement = _called_by_name(wrong, original)
            for owner in owners:
                stack.enter_context(mock.patch.object(owner, attribute, replacement, create=not path))
        yield


MODULES = [
    importlib.import_module(f"{reference.__name__}.{file.name}") for file in pkgutil.iter_modules(reference.__path__)
]


def _called_by_name(wrong: Wrong, original: Callable[..., Any]) -> Callable[..., Any]:
    """The wrong function with the signature of the original: of a call's arguments, it gets those that it names.

    Raises: TypeError if it names one that the original does not have.
    """
    signature, needed = inspect.signature(original), inspect.signature(wrong).parameters
    if unknown := {*needed} - {*signature.parameters, "original"}:
        raise TypeError(f"{original.__qualname__} has no argument {', '.join(sorted(unknown))}")

    @functools.wraps(original)
    def call(*positional: Any, **keywords: Any) -> Any:
        bound = signature.bind(*positional, **keywords)
        bound.apply_defaults()

        def answered(**changed: Any) -> Any:
            arguments = inspect.BoundArguments(signature, OrderedDict(bound.arguments | changed))
            return original(*arguments.args, **arguments.kwargs)

        known = {**bound.arguments, "original": answered}
        return wrong(**{name: known[name] for name in needed})

    return call


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
