"""Nudge the reference: every number that one of its functions reads moves by about a unit in the last place."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from attention_core import reference
from attention_core.reference.arrays import sigmoid, tanh
from attention_core.reference.feed_forward import erf
from attention_core.reference.linear import read_sums
from attention_core.reference.masking import log_softmax_over, softmax_over
from parity_tests.format.case import Arrays

KEPT = ("noise", "dropout_mask", "head_mask")
"""The ends of the names of arrays that are not nudged: factors that are exact, and noise, which has to stay below 1."""

ARITHMETIC = ("linear", "tanh", "sigmoid")
"""The functions of `reference.arrays` that compute; the others check, convert and align."""

SATURATING: Mapping[Callable[..., Any], Callable[[np.ndarray], np.ndarray] | None] = {
    tanh: lambda result: 1.0 - result * result,
    sigmoid: lambda result: result * (1.0 - result),
    erf: None,
}
"""The functions whose result is nudged, since near 1 its distance from 1 is rounded, and what frameworks make its
derivative of: None if not of the result.
"""

NORMALIZING = ("direction",)
"""The functions that normalize rows, whose rounding has the size of a row."""

SIDE = ("arrays", "memory", "parameters")
"""The files of the reference without arithmetic."""


class Nudge:
    """Moves arrays by 0.5 to 1.5 `size` of each entry, with signs and sizes that are the same in each run of a turn."""

    def __init__(self, turn: int, size: float) -> None:
        self.random, self.size = np.random.Generator(np.random.PCG64(turn)), size
        self.results: dict[int, np.ndarray] = {}  # kept, so that no other array gets the address of one

    def __call__(self, name: str, value: Any, *, by_row: bool = False) -> Any:
        """Move the array, or arrays, unless they are kept or not floating; a stack of perturbed arrays moves alike.

        by_row moves entries by so much of the largest in their row; zeros stay.
        """
        if type(value) in (list, tuple):
            return type(value)(self(name, one) for one in value)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fc" or name.endswith(KEPT):
            return value
        if id(value) in self.results:  # handed on as it was read
            return value
        noise = 2.0 * self.random.random((1, *value.shape[1:]) if value.dtype.kind == "c" else value.shape) - 1.0
        with np.errstate(invalid="ignore", over="ignore"):
            moves = self.size * (noise + 0.5 * np.sign(noise))
            moved = np.asarray(value + moves * _largest_in_row(value) if by_row else value * (1.0 + moves))
        self.results[id(moved)] = moved
        return moved

    def all(self, arrays: Arrays) -> Arrays:
        """Each of the arrays moved."""
        return {name: self(name, array) for name, array in arrays.items()}


def _largest_in_row(array: np.ndarray) -> np.ndarray:
    """The largest finite entry of each row, at every entry that is finite and not 0."""
    known = np.isfinite(array) & (array != 0.0)
    size = np.where(known, np.abs(array), 0.0)
    return np.where(known, size.max(axis=-1, keepdims=True, initial=0.0) if array.ndim else size, 0.0)


@contextmanager
def nudging(turn: int, size: float) -> Iterator[None]:
    """Nudge the arguments of every function and layer of the reference within the context, and results near 1.

    So a score, a gate or a hidden state moves by as much as its rounding, beside the inputs that it comes from.
    """
    with _replacing(_readers(), functools.partial(_nudge_arguments, nudge=Nudge(turn, size))):
        yield


@contextmanager
def constant_normalizers() -> Iterator[None]:
    """Differentiate within the context as if the sum that normalizes each row of weights were constant.

    Gradients are then sums of the same terms without those that cancel them: with the weights w and what flows back to
    them, dw, those of the scores are w dw, of w (dw - Σ w dw).
    """
    with _replacing(_places(*_CONSTANT), lambda function: _CONSTANT[function]):
        yield


def _nudge_arguments(function: Callable[..., Any], nudge: Nudge) -> Callable[..., Any]:
    if function in SATURATING:
        return functools.partial(_nudge_result, function, nudge)
    names = _argument_names(function)

    @functools.wraps(function)
    def call(*positional: Any, **keywords: Any) -> Any:
        by_row = function.__name__ in NORMALIZING
        moved = [nudge(name, array, by_row=by_row) for name, array in zip(names, positional, strict=False)]
        return function(*moved, *positional[len(names) :], **nudge.all(keywords))

    return call


def _nudge_result(function: Callable[..., Any], nudge: Nudge, x: np.ndarray) -> np.ndarray:
    if not np.iscomplexobj(x):
        return np.asarray(nudge("", function(x)))
    whole, derivative = function(x), SATURATING[function]
    result = nudge("", whole.real.astype(complex)).real  # a stack moves alike
    return np.asarray(result + 1j * (whole.imag if derivative is None else x.imag * derivative(result)))


@functools.cache
def _argument_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's arguments: each turn of a measurement wraps all functions anew."""
    return tuple(inspect.signature(function).parameters)


def _softmax_of_constant_sum(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    weights = softmax_over(scores.real, allowed)
    return weights * (1.0 + 1j * np.where(allowed, scores.imag, 0.0))


def _sums_of_constant_norm(features: np.ndarray, sums: np.ndarray, norms: np.ndarray) -> np.ndarray:
    norm = (features * norms).sum(axis=-1, keepdims=True)
    return read_sums(features, sums, norms) * (norm / np.where(norm.real == 0.0, 1.0, norm.real))


def _logs_of_constant_sum(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    return log_softmax_over(scores.real, allowed) + 1j * np.where(allowed, scores.imag, 0.0)


_CONSTANT: Mapping[Callable[..., Any], Callable[..., Any]] = {
    softmax_over: _softmax_of_constant_sum,
    log_softmax_over: _logs_of_constant_sum,
    read_sums: _sums_of_constant_norm,
}

Place = tuple[Any, str, Callable[..., Any]]
"""A module or class, a name in it, and the function of that name."""

MODULES = [
    importlib.import_module(f"{reference.__name__}.{file.name}") for file in pkgutil.iter_modules(reference.__path__)
]
"""The files of the reference."""


@functools.cache
def _places(*functions: Callable[..., Any]) -> list[Place]:
    """Where in the reference the functions are found, under which names."""
    return [
        (module, name, entry)
        for module in (reference, *MODULES)
        for name, entry in vars(module).items()
        if any(entry is function for function in functions)
    ]


@functools.cache
def _readers() -> list[Place]:
    """The functions that compute, and the calls of layers."""
    functions, calls = list[Callable[..., Any]](), list[Place]()
    for module in MODULES:
        side = module.__name__.rpartition(".")[2] in SIDE
        for name, entry in vars(module).items():
            if getattr(entry, "__module__", "") != module.__name__:
                continue
            if inspect.isfunction(entry) and (not side or name in ARITHMETIC):
                functions.append(entry)
            elif inspect.isclass(entry) and "__call__" in vars(entry):
                calls.append((entry, "__call__", vars(entry)["__call__"]))
    return [*_places(*functions), *calls]


@contextmanager
def _replacing(places: list[Place], change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace the functions at these places by what `change` makes of them."""
    changed: Mapping[Callable[..., Any], Callable[..., Any]] = {one: change(one) for one in {one for *_, one in places}}
    try:
        for owner, name, function in places:
            setattr(owner, name, changed[function])
        yield
    finally:
        for owner, name, function in places:
            setattr(owner, name, function)
