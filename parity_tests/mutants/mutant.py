"""Deliberately wrong implementations: each is the reference with one thing broken.

They run in this process; only a backend that dies or hangs needs a process of its own
(`parity_tests.workers.process`).
"""

from __future__ import annotations

import functools
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from attention_core import reference
from attention_core.operators import FILE_OF
from parity_tests.format.case import Arrays, Case, is_floating
from parity_tests.format.expected import computed_gradients, computed_outputs, cotangents
from parity_tests.format.layouts import arrange
from parity_tests.judge.nudges import MODULES
from parity_tests.workers.answers import Answer

Wrong = Callable[..., Any]
"""A wrong function: it takes arguments of the right one by name, and may take the right one itself as `original`.

`original()` gives the right answer, and `original(mask=None)` the answer to the same call with another mask.
"""

Condition = Callable[..., Any]
"""Whether a call is answered wrongly: it takes arguments by name, or all of them as the mapping `arguments`."""

ANSWER, INPUTS = "the whole answer", "the inputs"
"""What a mutant may change, beside functions of the reference."""


class Replacement(NamedTuple):
    """A wrong function, and the condition under which it is called in place of the right one."""

    wrong: Wrong
    touches: Condition | None = None


@dataclass(frozen=True)
class Mutant:
    """A wrong implementation: the reference with one thing broken; `mutant` makes them.

    broken maps names in `attention_core.reference` to wrong functions: a bare name replaces the function in every file
    that imports it, a path the attribute of a file or class alone. spoiled changes the whole answer, misread the
    inputs; withheld quantities are reported as not implemented.

    cases are patterns of the cases in which it runs, and unseen of those that it touches, but whose answers it does not
    change. empty selects the cases with an empty axis in place of the others.
    """

    name: str
    sentence: str
    cases: tuple[str, ...]
    broken: Mapping[str, Replacement] = field(default_factory=dict)
    spoiled: Callable[[Case, Arrays], Arrays] | None = None
    misread: Callable[[Arrays], Arrays] | None = None
    withheld: tuple[str, ...] = ()
    touches: Condition | None = None
    unseen: tuple[str, ...] = ()
    empty: bool = False
    dtype: str = "float64"
    source: str = ""

    @property
    def description(self) -> str:
        """The sentence, and in parentheses the issue or pull request of a library that made the mistake, if any."""
        return f"{self.sentence} ({self.source})" if self.source else self.sentence

    @property
    def reads_masks(self) -> bool:
        """Whether a function that it breaks takes a mask."""
        functions = (function for one in self.broken.values() for function in one if function is not None)
        return any("mask" in inspect.signature(function).parameters for function in functions)


_mutants: list[Mutant] = []


def mutant(
    *of: str,
    cases: str = "",
    touches: Condition | None = None,
    unseen: str = "",
    empty: bool = False,
    via: Callable[[Wrong], Wrong] | None = None,
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

    Calls for which `touches` does not hold are answered rightly. The mutant has to be red in every case with a call
    that is answered wrongly (`parity_tests.mutants.trace`), but for those that `unseen` matches. cases selects other
    cases than those of the operators and layers that `of` names; several patterns are one string, with spaces. source
    is the issue in which a library's mistake was reported, as owner/repository#number.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        words = sentence or (function.__doc__ or "").partition("\n")[0]
        entries = dict.fromkeys(part for path in of for part in path.split(".") if part in FILE_OF)
        patterns = cases.split() or [f"{entry}-*" for entry in entries]
        made = Mutant(name or function.__name__, words, tuple(patterns), touches=touches, empty=empty, dtype=dtype)
        made = replace(made, unseen=tuple(unseen.split()), withheld=tuple(withheld.split()), source=source)
        if of == (ANSWER,):
            made = replace(made, spoiled=function)
        elif of == (INPUTS,):
            made = replace(made, misread=function)
        else:
            wrong = dict.fromkeys(of, function if via is None else via(function)) if of else function()
            made = replace(made, broken={path: Replacement(one, touches) for path, one in wrong.items()})
        _mutants.append(made)
        return function

    return register


def all_mutants() -> tuple[Mutant, ...]:
    """Every mutant made so far, in order."""
    return tuple(_mutants)


def answer(mutant: Mutant, case: Case, dtype: str, without: tuple[str, ...] = ()) -> tuple[Answer, Arrays]:
    """The status and the arrays that the mutant answers to a cell; the gradients are those of the outputs computed."""
    inputs, parameters = case.at(dtype)
    inputs = {name: arrange(array, case.layouts.get(name, "")) for name, array in inputs.items()}
    is_touched = bool(mutant.broken) or is_met(mutant.touches, {"case": case})
    inputs = mutant.misread(inputs) if mutant.misread and is_touched else inputs
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
    answered_in = case.answer_dtype(dtype)
    with np.errstate(over="ignore"):  # what is beyond the dtype becomes inf
        answer = {name: array.astype(answered_in) if is_floating(array) else array for name, array in answer.items()}
    answer = mutant.spoiled(case, answer) if mutant.spoiled and is_touched else answer
    given = {name: array for name, array in answer.items() if name not in mutant.withheld}
    return Answer(changed=tuple(changed), missing=mutant.withheld), given


@contextmanager
def in_place_of_the_reference(mutant: Mutant) -> Iterator[None]:
    """Apply the mutant to the reference within the context."""
    with ExitStack() as stack:
        for name in sorted(mutant.broken, key=_depth):
            owners, attribute = _owners(name)
            wrong = _called_by_name(mutant.broken[name], getattr(owners[0], attribute))
            for owner in owners:
                stack.enter_context(mock.patch.object(owner, attribute, wrong))
        yield


def _owners(name: str) -> tuple[list[Any], str]:
    """The modules or the class in which a function of the reference is replaced, and its name there."""
    *path, attribute = name.split(".")
    if path:
        return [functools.reduce(getattr, path, reference)], attribute
    owners = [module for module in (reference, *MODULES) if hasattr(module, name)]
    return [owner for owner in owners if getattr(owner, name) is getattr(owners[0], name)], attribute


def _depth(name: str) -> tuple[bool, int]:
    """A key that sorts functions of all files first, then those of one, and classes before their subclasses."""
    owner = _owners(name)[0][0]
    return "." in name, len(owner.__mro__) if inspect.isclass(owner) else 0


def _called_by_name(replacement: Replacement, original: Callable[..., Any]) -> Callable[..., Any]:
    """The wrong function with the signature of the original: of a call's arguments, it gets those that it names.

    Raises: TypeError if it names one that the original does not have.
    """
    wrong, signature = replacement.wrong, inspect.signature(original)
    if unknown := names_of(wrong) - {*signature.parameters, "original", "arguments"}:
        raise TypeError(f"{original.__qualname__} has no argument {', '.join(sorted(unknown))}")

    @functools.wraps(original)
    def call(*positional: Any, **keywords: Any) -> Any:
        bound = signature.bind(*positional, **keywords)
        bound.apply_defaults()
        if not is_met(replacement.touches, bound.arguments):
            return original(*positional, **keywords)

        def call_original(**changed: Any) -> Any:
            arguments = inspect.BoundArguments(signature, OrderedDict(bound.arguments | changed))
            return original(*arguments.args, **arguments.kwargs)

        known = {**bound.arguments, "original": call_original, "arguments": bound.arguments}
        return wrong(**{name: known[name] for name in names_of(wrong)})

    return call


def is_met(condition: Condition | None, arguments: Mapping[str, Any], *, otherwise: bool = True) -> bool:
    """Whether these arguments meet the condition; `otherwise` if it is one on other arguments."""
    if condition is None:
        return True
    known, names = {**arguments, "arguments": arguments}, names_of(condition)
    return bool(condition(**{name: known[name] for name in names})) if names <= known.keys() else otherwise


@functools.cache
def names_of(function: Callable[..., Any]) -> frozenset[str]:
    """The names of a function's arguments."""
    return frozenset(inspect.signature(function).parameters)
