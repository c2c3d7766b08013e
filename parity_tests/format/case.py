"""A case, and how its arrays are drawn."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np

from attention_core import draws
from attention_core.errors import dtype_name
from attention_core.operators import find
from attention_core.specification import FLOATING, Layer, Operator, Tensor
from parity_tests.format.drawn import Drawn, center_of

Arrays = dict[str, np.ndarray]
Sizes = Mapping[str, int]

EXACT = ("float64",)
FULL = ("float64", "float32")
DTYPES = (*FULL, "float16", "bfloat16")
"""float64 shows whether the formula is the same, the others whether the arithmetic is good."""
MIXED = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}
"""Mixed precision as Keras names it, and the dtype of the arithmetic, which the framework casts to: inputs, parameters
and their gradients are float32."""
SEED = 0


@dataclass(frozen=True, eq=False)  # compared by identity: comparing arrays would take long
class Case:
    """One call: what it shows, the layer's constructor arguments and method, the options, the arrays, and the dtypes.

    layouts: memory layout of arguments by name (`parity_tests.format.layouts`); C order if not named.
    shared: arguments that are the same array as another one, by its name; they are not among the inputs.
    twice: whether to make two calls before differentiating either; the second takes the inputs named second.* instead.
    again: the id of a case with the same inputs, whose outputs must be the same bits.
    drawn: the line of plain data that the case was made from, if any.
    """

    operator: str
    name: str
    shows: str
    inputs: Arrays
    options: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    parameters: Arrays = field(default_factory=dict)
    dtypes: tuple[str, ...] = FULL
    gradients: bool = True
    layouts: Mapping[str, str] = field(default_factory=dict)
    shared: Mapping[str, str] = field(default_factory=dict)
    twice: bool = False
    again: str = ""
    drawn: Drawn | None = None

    @property
    def id(self) -> str:
        """The case's name on the command line."""
        return f"{self.operator}-{self.name}"

    def at(self, dtype: str) -> tuple[Arrays, Arrays]:
        """Inputs and parameters, rounded to the dtype of the arithmetic, in the dtype that the framework is given."""
        inputs, parameters = (_round(arrays, computed_in(dtype)) for arrays in (self.inputs, self.parameters))
        if dtype not in MIXED:
            return inputs, parameters
        return _round(inputs, "float32"), _round(parameters, "float32")

    def answer_dtype(self, dtype: str) -> str:
        """The floating dtype of the answer: the one that an option names, or that of the arithmetic."""
        return str(self.options.get("dtype", computed_in(dtype)))

    def has(self, dtype: str) -> bool:
        """Whether it is judged in that dtype; a call of a layer has mixed precision where it has half precision."""
        mixed = dtype in MIXED and self.method not in ("", "train")
        return computed_in(dtype) in self.dtypes if mixed else dtype in self.dtypes


def dtypes_naming(dtype: str) -> tuple[str, ...]:
    """The dtypes of a case that names that dtype for its answer: float16 is asked by default, too."""
    return FULL if dtype == "float16" else (dtype,)


def computed_in(dtype: str) -> str:
    """The dtype of the arithmetic."""
    return MIXED.get(dtype, dtype)


def _round(arrays: Arrays, dtype: str) -> Arrays:
    with np.errstate(over="ignore"):  # hidden values may be beyond the dtype: they become inf
        return {name: array.astype(dtype) if is_floating(array) else array for name, array in arrays.items()}


def is_floating(array: np.ndarray) -> bool:
    """Whether the array holds floating numbers; NumPy itself does not count bfloat16 among them."""
    return _name_of(array.dtype) in FLOATING


_name_of = functools.cache(dtype_name)  # NumPy composes a name anew each time


@functools.cache
def epsilon(dtype: str) -> float:
    """The distance from 1 to the next number of the dtype."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


@functools.cache
def least_normal(dtype: str) -> float:
    """The smallest normal number of the dtype; smaller ones may be flushed to 0."""
    return float(ml_dtypes.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]


def drawn_tensor(tensor: Tensor, sizes: Sizes, label: str, heads: bool = False, bound: float = 1.0) -> np.ndarray:
    """Draw uniform numbers from -bound to bound in the tensor's shape."""
    axes = [axis.removesuffix("?") for axis in tensor.axes if heads or not axis.endswith("heads?")]
    return draws.uniform(f"{label}/{tensor.name}", tuple(sizes[axis] for axis in axes), bound, SEED)


def drawn_tensors(operator: Operator, sizes: Sizes, heads: bool = False) -> Arrays:
    """Draw every required floating argument of the operator."""
    return {
        tensor.name: drawn_tensor(tensor, sizes, operator.title, heads)
        for tensor in operator.tensors
        if tensor.kind == "floating" and not tensor.optional
    }


def layer_case(
    name: str,
    label: str,
    shows: str,
    inputs: Arrays,
    config: Mapping[str, Any],
    dtypes: tuple[str, ...] = FULL,
    wide: Mapping[str, float] | None = None,
    **changes: Any,
) -> Case:
    """A call of a layer with drawn parameters; wide multiplies some of them, changes replaces fields of the case."""
    layer = find(name)
    assert isinstance(layer, Layer)
    factors = wide or {}
    parameters = {key: factors.get(key, 1.0) * array for key, array in drawn_parameters(layer, config).items()}
    return replace(Case(name, label, shows, inputs, {}, "call", config, parameters, dtypes), **changes)


def drawn_parameters(layer: Layer, config: Mapping[str, Any]) -> Arrays:
    """Draw every canonical array of a layer from -1/√n to 1/√n, with n from the specification; gains around 1."""
    sizes = layer.sizes(config)
    fans = layer.fans(sizes)
    return {
        name: center_of(name) + draws.uniform(f"{layer.name}/{name}", shape, fans[name] ** -0.5, SEED)
        for name, shape in layer.shapes(sizes).items()
    }
