"""A drawn case: a line of plain data from which every array of a case follows."""

from __future__ import annotations

import ast
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from attention_core import draws, reference
from attention_core.operators import LAYERS, OPERATORS, find
from attention_core.specification import Layer, Operator, Option, Tensor
from parity_tests.format.call import STEPS, first_of, read_by

Arrays = dict[str, np.ndarray]

_ALONE: tuple[Operator | Layer, ...] = (*OPERATORS, *LAYERS)
NAMES = tuple(entry.name for entry in _ALONE if "function" not in {option.type for option in entry.options})
"""The operators that cases are drawn for: all but those that take a function."""

IDS = {
    "tokens": "vocab_size",
    "targets": "vocab_size",
    "source": "source_vocab_size",
    "inputs": "target_vocab_size",
    "offset": "keys",
    "steps.position": "keys",
}
"""The axis over which the indices in an integer array range, by the array's name; steps if a call has no such axis."""

OF_ROWS = {"valid_lens", "offset", "steps.valid_lens", "steps.position"}
"""The optional arrays that may have one more axis: lengths for each query, and numbers for each sequence."""

COUNTS = {"num_keys": "keys", "num_queries": "queries", "num_heads": "heads"}
"""The axis whose size an option is, where the two have different names."""

MOST = {"keys": "positions", "steps": "num_positions"}
"""Axes that must not be longer than another one."""

WHOLE = {"scores": (1000.0, 2000), "queries": (4.0, 5), "keys": (500.0, 100)}
"""Step and maximum number of steps of numbers with exact products: scores to ±2e6, with gaps of 0 or large ones."""

INFINITE = ("scores", "additive_mask", "bias")
"""Arrays that may contain -inf."""

DROPOUT_RATE = 0.5


def _positive(name: str, array: np.ndarray, seed: int) -> np.ndarray:
    return np.abs(array)


def _cancelling(name: str, array: np.ndarray, seed: int) -> np.ndarray:
    """Near a vector that all arguments share, negated in some of them: sums and products cancel."""
    shared = draws.uniform("cancelling", array.shape[-1:], 1.0, seed)
    return (-1.0 if name in ("keys", "encoder_outputs", "state") else 1.0) * shared + 2.0**-10 * array


def _grade(name: str, array: np.ndarray, seed: int) -> np.ndarray:
    """Magnitudes from 1 down to 2⁻²⁴, mixed."""
    return array * 2.0 ** -draws.integers(f"graded/{name}", array.shape, 25, seed).astype(np.float64)


PATTERNS: Mapping[str, Callable[[str, np.ndarray, int], np.ndarray]] = {
    "positive": _positive,
    "cancelling": _cancelling,
    "graded": _grade,
}
"""Functions of independent numbers from -1 to 1."""

LENGTHS: Mapping[str, Callable[[tuple[int, ...], int], np.ndarray]] = {
    "one": lambda shape, end: np.ones(shape, np.int64),
    "equal": lambda shape, end: np.full(shape, max(end - 1, min(end, 1)), np.int64),
    "longest": lambda shape, end: np.where(np.arange(math.prod(shape)).reshape(shape) == 0, end, (end + 1) // 2),
}
"""Lengths of 1; all equal, and below the end if there is more than one position; and the first one at the end."""


@dataclass(frozen=True, repr=False)
class Drawn:
    """One call of one operator, as plain data; a field that is left out has the simplest value.

    sizes: of axes, and of a layer's constructor; 1 if left out. There are heads only if their number is given.
    options: arguments that are neither arrays nor sizes; a dtype is the dtype.
    given: the optional arrays that are passed.
    rows: whether lengths are given for each query rather than for each sequence, and an offset for each sequence.
    ones: the axes in which the mask has size 1.
    types: integer types by argument; int32 if left out.
    wild: whether lengths below 0 and beyond the end are the extreme values of the type.
    scales: bounds of the floating arguments, and of the "parameters" as multiples of 1/√fan_in; 1 if left out.
    whole: whether floating arguments are large whole numbers, so that the softmax is saturated or tied.
    infinite: whether some scores, or entries of an additive mask, are -inf.
    hidden: the number, as text, in hidden keys, values, scores and steps.
    pattern: the pattern of floating numbers, of PATTERNS; if left out, independent and around 0.
    lens: the pattern of lengths, of LENGTHS; if left out, arbitrary, some below 0 and beyond the end.
    layouts: memory layouts by argument, of `parity_tests.format.layouts`.
    shared: arguments that are the same array as the keys.
    twice: whether to make two calls, with different numbers, before differentiating either.
    changed: the argument that alone differs in the second call; if left out, all floating ones do.
    forward: whether to compute outputs only, and no gradients.
    """

    operator: str
    method: str = ""
    dtype: str = "float64"
    seed: int = 0
    sizes: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    rows: bool = False
    ones: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    wild: bool = False
    scales: Mapping[str, float] = field(default_factory=dict)
    whole: bool = False
    infinite: bool = False
    hidden: str = ""
    pattern: str = ""
    lens: str = ""
    layouts: Mapping[str, str] = field(default_factory=dict)
    shared: tuple[str, ...] = ()
    twice: bool = False
    changed: str = ""
    forward: bool = False

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        first = [repr(self.operator)]
        rest = [f"{name.name}={getattr(self, name.name)!r}" for name in fields(self)[1:] if getattr(self, name.name)]
        rest = [text for text in rest if text != "dtype='float64'"]
        return f"Drawn({', '.join(first + rest)})".replace("'", '"')

    @property
    def name(self) -> str:
        """A name for the case, from the digest of its line."""
        return f"drawn_{hashlib.sha256(repr(self).encode()).hexdigest()[:10]}"

    @property
    def all_sizes(self) -> dict[str, Any]:
        """The sizes of all axes, those that follow from others included."""
        entry = find(self.operator)
        sizes = {**axes_of(entry, self.method), **self.sizes}
        if isinstance(entry, Layer):
            sizes |= entry.sizes(self._config(entry))
        if "blocks" in sizes:
            sizes["blocks"] = -(-sizes["keys"] // sizes["stride"])
        if "previous_steps" in sizes:
            sizes["keys"] = steps_of_segments(sizes, self.given)
        return sizes

    def as_case(self) -> dict[str, Any]:
        """The fields of the case."""
        entry = find(self.operator)
        called = called_of(entry, self.method)
        config = self._config(entry) if isinstance(entry, Layer) else {}
        sizes = self.all_sizes
        inputs = {
            tensor.name: self._array(tensor, sizes)
            for tensor in inputs_of(entry, self.method)
            if not tensor.optional or tensor.name in self.given
        }
        self._hide(inputs, sizes)
        if config.get("time_major"):
            for name in {"queries", "keys", "values", "steps.keys", "steps.values"} & set(inputs):
                inputs[name] = np.ascontiguousarray(inputs[name].swapaxes(0, 1))
        inputs = {
            name: np.repeat(array[:1], len(array), axis=0) if self._layout(name, array) == "expanded" else array
            for name, array in inputs.items()
            if name not in self.shared
        }
        return {
            "operator": self.operator,
            "name": self.name,
            "shows": "Found by fuzzing.",
            "inputs": inputs | self._second(inputs),
            "options": self._options(sizes),
            "method": self.method,
            "config": config,
            "parameters": self._parameters(entry, sizes) if isinstance(entry, Layer) else {},
            "dtypes": (self.dtype,),
            "gradients": not self.forward
            and all(tensor.kind == "floating" for tensor in called.outputs)
            and (isinstance(entry, Layer) or any(array.dtype.kind == "f" for array in inputs.values())),
            "layouts": {name: layout for name, array in inputs.items() if (layout := self._layout(name, array))},
            "shared": dict.fromkeys(self.shared, "keys"),
            "twice": self.twice,
            "drawn": self,
        }

    def _layout(self, name: str, array: np.ndarray) -> str:
        """The memory layout of an argument; a number has none."""
        return self.layouts.get(name, "") if array.ndim else ""

    def _second(self, inputs: Arrays) -> Arrays:
        """The arrays of the second call, if there are two: those of the next seed, with nothing hidden."""
        if not self.twice:
            return {}
        other = replace(self, seed=self.seed + 1, twice=False, hidden="").as_case()["inputs"]
        names = [name for name, array in inputs.items() if array.dtype.kind == "f" or name in IDS]
        if self.changed:
            names = [name for name in inputs if name == self.changed]
        return {f"second.{name}": other[name] for name in names}

    def _config(self, layer: Layer) -> dict[str, Any]:
        config: dict[str, Any] = {}
        for option in layer.options:
            if is_size(option) and (option.default is None or option.name in self.sizes):
                config[option.name] = self.sizes.get(option.name, 1)
            elif option.name in self.options:
                config[option.name] = self.options[option.name]
        return config

    def _options(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        entry = find(self.operator)
        stated = {option.name: COUNTS.get(option.name, option.name) for option in options_of(entry, self.method)}
        counts = {name: sizes[axis] for name, axis in stated.items() if axis in sizes}
        types = {"dtype": self.dtype} if "dtype" in stated else {}
        names = [option.name for option in options_of(entry, self.method) if option.name in self.options]
        return {**counts, **types, **{name: self.options[name] for name in names}}

    def _parameters(self, layer: Layer, sizes: Mapping[str, int]) -> Arrays:
        fans = layer.fans(sizes)
        scale = self.scales.get("parameters", 1.0)
        return {
            name: center_of(name) + draws.uniform(name, shape, scale * fans[name] ** -0.5, self.seed)
            for name, shape in layer.shapes(sizes).items()
        }

    def _array(self, tensor: Tensor, sizes: Mapping[str, int]) -> np.ndarray:
        name = tensor.name
        left_out = {"heads?", "key_heads?"} if "heads" not in self.sizes else set()
        in_heads = "heads?" in tensor.axes and not left_out
        if not (self.rows or in_heads):
            left_out |= {axis for axis in tensor.axes if axis.endswith("?") and not axis.endswith("heads?")}
        axes = [axis.removesuffix("?") for axis in tensor.axes if axis not in left_out]
        shape = tuple(1 if tensor.broadcast and axis in self.ones else sizes[axis] for axis in axes)
        if tensor.kind == "boolean":
            return draws.integers(name, shape, 2, self.seed) > 0
        if tensor.kind == "integer":
            return self._whole_numbers(name, shape, sizes)
        if name.endswith("dropout_mask"):
            return draws.dropout_mask(name, shape, DROPOUT_RATE, self.seed)
        if self.whole and name in WHOLE:
            step, most = WHOLE[name]
            return step * (draws.integers(name, shape, 2 * most + 1, self.seed) - most)
        if name in ("noise", "norms"):
            return 0.5 * (draws.uniform(name, shape, 1.0, self.seed) + 1.0)
        array = draws.uniform(name, shape, 1.0, self.seed)
        if self.pattern:
            array = PATTERNS[self.pattern](name, array, self.seed)
        array = self.scales.get(name, 1.0) * array
        if self.infinite and name in INFINITE:
            array[draws.integers("infinite", shape, 3, self.seed) == 0] = -np.inf
        return array

    def _whole_numbers(self, name: str, shape: tuple[int, ...], sizes: Mapping[str, int]) -> np.ndarray:
        dtype = np.dtype(self.types.get(name, "int32"))
        if not name.endswith("valid_lens"):
            if name not in IDS:
                raise KeyError(f"{self.operator}: the range of {name} is unknown; name its axis in drawn.IDS")
            end = sizes[IDS[name] if IDS[name] in sizes else "steps"]
            drawn = draws.integers(name, shape, min(end, np.iinfo(dtype).max), self.seed)
            return np.asarray(drawn, dtype)
        end = sizes["steps" if name.startswith(STEPS) else self._padded_axis]
        if self.lens:
            return np.minimum(LENGTHS[self.lens](shape, end), np.iinfo(dtype).max).astype(dtype)
        lens = draws.integers(name, shape, end + 5, self.seed).astype(np.int64) - 2
        limits = np.iinfo(dtype)
        if self.wild:
            lens = np.where(lens > end, limits.max, np.where(lens < 0, limits.min, lens))
        return np.clip(lens, limits.min, limits.max).astype(dtype)

    @property
    def _padded_axis(self) -> str:
        axes = {axis for tensor in inputs_of(find(self.operator), self.method) for axis in tensor.axes}
        return "keys" if "keys" in axes else "steps"

    def _hide(self, inputs: Arrays, sizes: Mapping[str, int]) -> None:
        """Write `hidden` to every key, value, score and step that has no influence."""
        if not self.hidden:
            return
        tensors = {tensor.name: tensor for tensor in inputs_of(find(self.operator), self.method)}
        lens, mask, end = inputs.get("valid_lens"), inputs.get("mask"), sizes[self._padded_axis]
        if "mask" in tensors and tensors["mask"].axes.count(self._padded_axis) == 2:
            mask = None  # of self-attention, in which a step that none sees has outputs
        allowed = reference.attention_mask(end, lens, mask)
        if allowed is None:
            allowed = np.ones((1, 1, end), bool)
        if mask is None and "heads" in self.sizes:
            allowed = allowed[:, None]
        seen = allowed
        if "scores" in inputs:
            seen = allowed & (inputs["scores"] != -np.inf)
        groups = np.arange(seen.shape[1]) * sizes.get("key_heads", 1) // seen.shape[1] if seen.ndim == 4 else None
        for name, array in inputs.items():
            axes = [axis.removesuffix("?") for axis in tensors[name].axes]
            padded = "previous_steps" if "previous_steps" in axes else self._padded_axis
            if array.dtype.kind != "f" or array.size == 0 or axes.count(padded) != 1:
                continue
            if name == "scores":
                array[np.broadcast_to(~allowed, array.shape)] = float(self.hidden)
            elif "queries" not in axes and not name.endswith("dropout_mask"):
                unseen = np.asarray(~seen.any(axis=-2))[..., : sizes[padded]]  # previous has the first keys
                if unseen.ndim == 3 and "key_heads" in axes and groups is not None:
                    heads = range(sizes["key_heads"] if unseen.shape[1] > 1 else 1)
                    unseen = np.stack([unseen[:, groups == head].all(axis=1) for head in heads], axis=1)
                elif unseen.ndim == 3 and "heads" not in axes:
                    unseen = np.asarray(unseen.all(axis=1))
                shape = array.shape if axes[-1] == padded else array.shape[:-1]
                array[np.broadcast_to(unseen, shape)] = float(self.hidden)


def steps_of_segments(sizes: Mapping[str, int], given: Sequence[str]) -> int:
    """The keys of attention to segments: the steps of the segment, and those before it where they are given."""
    return sizes["queries"] + ("previous" in given) * sizes["previous_steps"]


def parse_drawn(line: str) -> Drawn:
    """Parse the line of a drawn case; nothing in it is executed.

    Raises: ValueError if it is not one.
    """
    try:
        call = ast.parse(line.strip().removesuffix(","), mode="eval").body
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "Drawn" or len(call.args) != 1:
            raise ValueError("it is no call of Drawn with an operator")
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        given = {"operator": ast.literal_eval(call.args[0]), **given}
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        example = 'Drawn("dot_score", sizes={"keys": 2})'
        raise ValueError(f"{line} is no drawn case: {error}; expected a line as {example}") from error
    known = {entry.name: type(getattr(Drawn(""), entry.name)) for entry in fields(Drawn)}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{line} is no drawn case: there is no {name}, only {', '.join(known)}")
        if type(value) is not known[name]:
            raise ValueError(f"{line} is no drawn case: {name} is {value!r}, expected {known[name].__name__}")
    if given["operator"] not in NAMES:
        raise ValueError(f"{line} is no drawn case: none are drawn of an operator {given['operator']!r}")
    return Drawn(**given)


def center_of(parameter: str) -> float:
    """The number around which a parameter is drawn: 1 for the gain of a normalization."""
    return 1.0 if parameter.rpartition(".")[2] == "g" else 0.0


def is_size(option: Option) -> bool:
    """Whether an option of a constructor is a size, which cases draw with those of the axes."""
    return option.type == "int" and option.domain == "size"


def methods_of(entry: Operator | Layer) -> list[str]:
    """The methods of a layer that cases are drawn for: not `prepare`, whose memory others read, and not `pruned`."""
    if isinstance(entry, Operator):
        return [""]
    methods = (method.name.rpartition(".")[2] for method in entry.methods)
    return [method for method in methods if method not in ("prepare", "pruned")]


def called_of(entry: Operator | Layer, method: str) -> Operator:
    """The function itself, or a layer's method that returns the outputs."""
    return entry.method(read_by(method)) if isinstance(entry, Layer) else entry


def inputs_of(entry: Operator | Layer, method: str) -> tuple[Tensor, ...]:
    """The arrays that a call takes; those of `prepare`, `extend` and `start` replace a memory and a state."""
    tensors = called_of(entry, method).inputs
    if not isinstance(entry, Layer) or not any(tensor.name.startswith("memory.") for tensor in tensors):
        return tensors
    rest = [tensor for tensor in tensors if not tensor.name.startswith("memory.")]
    if method == "step":
        given = [tensor for tensor in entry.method("start").inputs if tensor.name == "state"]
        rest = [*given, *(tensor for tensor in rest if not tensor.name.startswith("state"))]
    added = entry.method(method).inputs if method == "extend" else ()
    steps = [replace(one, name=STEPS + one.name) for one in added if not one.name.startswith("memory.")]
    return (*entry.method("prepare").inputs, *steps, *rest)


def options_of(entry: Operator | Layer, method: str) -> tuple[Option, ...]:
    """The options of a call, and of the method that makes a step's first state."""
    start = first_of(entry, method) if isinstance(entry, Layer) else None
    return (*called_of(entry, method).options, *(() if start is None else start.options))


def axes_of(entry: Operator | Layer, method: str) -> dict[str, int]:
    """Every axis of a call and its options, each of size 1."""
    tensors = (*inputs_of(entry, method), *called_of(entry, method).outputs)
    return {axis.removesuffix("?"): 1 for tensor in tensors for axis in tensor.axes}
