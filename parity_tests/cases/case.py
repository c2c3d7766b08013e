"""What a case is, and how its arrays are drawn."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from attention_core import draws, reference
from attention_core.errors import dtype_name
from attention_core.specification import FLOATING, Layer, Operator, Tensor
from parity_tests.cases.call import bind, output_names
from parity_tests.cases.drawn import Drawn

Arrays = dict[str, np.ndarray]
Sizes = Mapping[str, int]

EXACT = ("float64",)
FULL = ("float64", "float32")
DTYPES = (*FULL, "float16", "bfloat16")
"""Whether the formula is the same (float64), and whether the arithmetic is good; few cases run in half precision."""
SEED = 0


@dataclass(frozen=True, eq=False)  # a case is itself alone: to compare arrays would take long
class Case:
    """One call: what it shows, the layer's constructor arguments and method, the options, the arrays, and the dtypes.

    layouts: how arguments lie in memory (`parity_tests.cases.layouts`), in C order where not named.
    shared: arguments that are the same array as another one, by its name; they are not among the inputs.
    twice: whether there are two calls, both before either is differentiated: of the inputs, and of those of them that
    are named second.* instead.
    again: the id of a case that asks the same, to which the answer has to be the same bits.
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
        """The name by which the command line knows the case."""
        return f"{self.operator}-{self.name}"

    def at(self, dtype: str) -> tuple[Arrays, Arrays]:
        """Inputs and parameters, rounded to the dtype's dtype."""
        return _rounded(self.inputs, dtype), _rounded(self.parameters, dtype)


def _rounded(arrays: Arrays, dtype: str) -> Arrays:
    with np.errstate(over="ignore"):  # what stands hidden may be beyond the dtype: it becomes inf
        return {name: array.astype(dtype) if is_floating(array) else array for name, array in arrays.items()}


def is_floating(array: np.ndarray) -> bool:
    """Whether the array holds floating numbers; NumPy itself does not count bfloat16 among them."""
    return _named(array.dtype) in FLOATING


_named = functools.cache(dtype_name)  # NumPy composes a name anew each time


@functools.cache
def epsilon(dtype: str) -> float:
    """The distance from 1 to the next number of the dtype."""
    return float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]


@functools.cache
def least_normal(dtype: str) -> float:
    """The smallest positive number of the dtype that has all its digits; smaller ones may be flushed to 0."""
    return float(ml_dtypes.finfo(dtype).smallest_normal)  # type: ignore[no-untyped-call]


# Where not the first seed makes a case in which rounding cannot change a token, a choice or a window: `first_steady`.
SEEDS = {
    "LocalAttention-predictive_open": 9,
    "BahdanauDecoder-greedy": 5,
    "BahdanauDecoder-greedy_long": 5,
    "LuongDecoder-greedy_long": 4,
    "LuongDecoder-greedy_predictive": 7,
    "FixedContextDecoder-greedy": 5,
    "FixedContextDecoder-beam": 10,
    "FixedContextDecoder-beam_penalty": 10,
    "Translator-greedy": 9,
    "Translator-beam": 5,
    "Translator-beam_penalty": 2,
    "Translator-sentences_greedy": 16,
    "Translator-sentences_paper": 18,
}


def discrete(case: Case, inputs: Arrays, parameters: Arrays) -> Arrays:
    """What is decided in an answer: whole numbers, and which weights are 0."""
    layer = getattr(reference, case.operator)(**case.config)
    reference.set_parameters(layer, parameters)
    found = bind(reference, case.operator, case.method, case.options)(layer, **inputs)
    answer = dict(zip(output_names(case.operator, case.method, case.options), map(np.asarray, found), strict=True))
    whole = {name: array for name, array in answer.items() if not is_floating(array)}
    return {**whole, **{name: array == 0.0 for name, array in answer.items() if name == "weights"}}


def steady(case: Case, times: int = 4) -> bool:
    """Whether nothing that is decided changes when inputs and parameters do, by more than rounding.

    Where tokens are decoded, their sequences have to end at different steps, too.
    """
    size = 2.0**-5 if "bfloat16" in case.dtypes else 1e-3

    def moved(arrays: Arrays, time: int) -> Arrays:
        factors = {
            name: 1.0 + draws.uniform(f"moved/{name}", array.shape, size, time) for name, array in arrays.items()
        }
        return {name: array * factors[name] if is_floating(array) else array for name, array in arrays.items()}

    plain = discrete(case, case.inputs, case.parameters)
    if "lengths" in plain and len(np.unique(plain["lengths"])) == 1:
        return False
    return all(
        np.array_equal(plain[name], other)
        for time in range(1, times + 1)
        for name, other in discrete(case, moved(case.inputs, time), moved(case.parameters, time)).items()
    )


def first_steady(made: Callable[[int], Case], most: int = 400) -> tuple[int, Case]:
    """The first seed that makes a steady case, and the case: that of SEEDS, or from 1 on."""
    for seed in (SEEDS.get(made(1).id, 1), *range(1, most + 1)):
        case = made(seed)
        if steady(case):
            return seed, case
    raise AssertionError(f"{case.id}: no seed up to {most} makes a case that rounding cannot change")


def drawn(tensor: Tensor, sizes: Sizes, label: str, heads: bool = False, bound: float = 1.0) -> np.ndarray:
    """Uniform numbers from -bound to bound in the tensor's shape."""
    axes = [axis.removesuffix("?") for axis in tensor.axes if heads or axis != "heads?"]
    return draws.uniform(f"{label}/{tensor.name}", tuple(sizes[axis] for axis in axes), bound, SEED)


def drawn_tensors(operator: Operator, sizes: Sizes, heads: bool = False) -> Arrays:
    """Every required floating argument of the operator, drawn."""
    return {
        tensor.name: drawn(tensor, sizes, operator.title, heads)
        for tensor in operator.tensors
        if tensor.kind == "floating" and not tensor.optional
    }


def drawn_parameters(layer: Layer, config: Mapping[str, Any]) -> Arrays:
    """Every canonical array of a layer, drawn from -1/√n to 1/√n, n being the size that the specification names."""
    sizes = layer.sizes(config)
    fans = layer.fans(sizes)
    return {
        name: draws.uniform(f"{layer.name}/{name}", shape, fans[name] ** -0.5, SEED)
        for name, shape in layer.shapes(sizes).items()
    }
