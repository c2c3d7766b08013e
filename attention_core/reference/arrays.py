"""Shared by the reference's files: promotion, checks that let a perturbed pass through, alignment, nonlinearities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_core import errors
from attention_core.specification import FLOATING, Layer, Operator, Sizes


def promote(array: Any) -> np.ndarray:
    """Convert to float64; a perturbed (complex) array stays as it is."""
    array = np.asarray(array)
    return array if np.iscomplexobj(array) else array.astype(np.float64, copy=False)


class Specified:
    """Base class of the layers: checked options, canonical parameters, and the check of a call.

    A constructor hands over its arguments, `locals()`, of which the specification's options are taken.
    """

    specification: Layer
    parameters: dict[str, np.ndarray]

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        options = {option.name: arguments[option.name] for option in self.specification.options}
        self.sizes = errors.check_options(self.specification, **options)
        self.parameters = {name: np.zeros(shape) for name, shape in self.specification.shapes(self.sizes).items()}

    def _check(self, method: str, **arguments: Any) -> None:
        """Refuse arguments that do not fit the layer or each other."""
        operator = self.specification.method(method)
        check(operator.time_major if self.sizes.get("time_major") else operator, self.sizes, **arguments)


def check(operator: Operator, sizes: Sizes | None = None, /, **arguments: Any) -> None:
    """Refuse arguments that do not fit; a perturbed pass is not checked: its arrays were, before they were stacked.

    A memory is always float64, and fits queries of any floating type.
    """
    if "memory" in arguments:
        arguments = {name: _floats_promoted(array) for name, array in arguments.items()}
    if not any(_is_perturbed(array) for array in arguments.values()):
        errors.check(operator, sizes, **arguments)


def align(parameter: np.ndarray, core: int, rank: int) -> np.ndarray:
    """The parameter with its leading axes first, its last `core` axes last, and axes of size 1 between, up to rank."""
    lead = parameter.ndim - core
    return parameter.reshape(parameter.shape[:lead] + (1,) * (rank - parameter.ndim) + parameter.shape[lead:])


def linear(inputs: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """outputs[o] = sum over i of weight[o, i] inputs[i] + bias[o], along the last axis."""
    outputs = inputs @ align(weight, 2, inputs.ndim).swapaxes(-1, -2)
    return outputs if bias is None else outputs + align(bias, 1, outputs.ndim)


def tanh(x: np.ndarray) -> np.ndarray:
    """The hyperbolic tangent."""
    return np.tanh(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), by an exponential of at most 1: no tail is a difference."""
    positive = x.real >= 0.0
    small = np.exp(np.where(positive, -x, x))
    return np.where(positive, 1.0, small) / (1.0 + small)


def inner(parameters: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """The parameters whose names begin with the prefix, named without it."""
    return {name.removeprefix(prefix): array for name, array in parameters.items() if name.startswith(prefix)}


def optional(array: Any) -> np.ndarray | None:
    """The array promoted, or None."""
    return None if array is None else promote(array)


def _floats_promoted(array: Any) -> Any:
    floating = hasattr(array, "dtype") and errors.dtype_name(array.dtype) in FLOATING
    return promote(array) if floating else array


def _is_perturbed(array: Any) -> bool:
    fields = array if isinstance(array, tuple) else (array,)
    return any(np.iscomplexobj(field) for field in fields if field is not None)
