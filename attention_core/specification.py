"""The types in which the specification is written: axes, tensors, options, operators and layers, all of them data."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

Kind = Literal["floating", "integer", "boolean"]
Config = Mapping[str, Any]
"""A constructor's arguments by name."""
Sizes = Mapping[str, Any]
"""A Config with every default filled in, and the sizes that follow from it."""
Rule = Callable[[str, Mapping[str, Any], Mapping[str, int]], None]
"""A further check of an operator: its title, its sizes and arguments by name, and the size of every axis."""

FLOATING = ("float64", "float32", "float16", "bfloat16")
INTEGER = ("int64", "int32", "int16", "int8", "uint8")
BOOLEAN = ("bool",)
DTYPES: dict[Kind, tuple[str, ...]] = {"floating": FLOATING, "integer": INTEGER, "boolean": BOOLEAN}


@dataclass(frozen=True)
class Tensor:
    """An array argument or result: its axes by name, and the kind of number it holds.

    An axis whose name ends in "?" may be left out, and so may all such axes behind it, but not alone. With `broadcast`,
    each axis has its size or 1. With `optional`, the argument may be None. `layouts` are the allowed lists of axes, the
    longest last; they are computed once, since every call reads them.
    """

    name: str
    axes: tuple[str, ...]
    meaning: str
    kind: Kind = "floating"
    optional: bool = False
    broadcast: bool = False
    layouts: tuple[tuple[str, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        left_out = [axis for axis in self.axes if axis.endswith("?")]
        layouts = [
            tuple(axis.removesuffix("?") for axis in self.axes if axis not in left_out[kept:])
            for kept in range(len(left_out) + 1)
        ]
        object.__setattr__(self, "layouts", tuple(layouts))

    @property
    def layout_text(self) -> str:
        """The allowed layouts as an error message or a page of documentation writes them, without a single number's."""
        layouts = self.layouts[() in self.layouts[:-1] :]
        return " or ".join(f"({', '.join(layout)}{',' if len(layout) == 1 else ''})" for layout in layouts)


@dataclass(frozen=True)
class Option:
    """An argument other than an array: its type, its default, and its domain.

    The type "indices" is a list of whole numbers of at least 0. `default` is the text of the default in the signature;
    None means that the argument is required. `choices` are the allowed strings.
    """

    name: str
    type: Literal["int", "float", "bool", "str", "function", "indices"]
    meaning: str
    default: str | None = None
    domain: Literal["size", "count", "rate", "number", "positive", "even", "token"] = "size"
    keyword_only: bool = False
    choices: tuple[str, ...] = ()

    @property
    def may_be_none(self) -> bool:
        """Whether None selects a default that depends on the other arguments."""
        return self.default == "None"

    @cached_property
    def value(self) -> Any:
        """The default as a value."""
        return None if self.default is None else ast.literal_eval(self.default)


@dataclass(frozen=True)
class Operator:
    """A function, or a method of a layer: its signature in order, its formula and its source.

    `notes` is what the formula does not show.
    """

    name: str
    summary: str
    formula: str
    source: str
    tensors: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    options: tuple[Option, ...] = ()
    keyword_tensors: tuple[Tensor, ...] = ()
    rules: tuple[Rule, ...] = ()
    notes: str = ""

    def __post_init__(self) -> None:
        _ = self.inputs  # computed now: a compiler that traces a call cannot take the lock of cached_property

    @property
    def title(self) -> str:
        """The name as a caller writes it: a layer's call has the layer's name."""
        return self.name.removesuffix(".call")

    @cached_property
    def inputs(self) -> tuple[Tensor, ...]:
        """All array arguments, positional ones first."""
        return self.tensors + self.keyword_tensors

    @cached_property
    def time_major(self) -> Operator:
        """The operator with queries, keys, values and context as (steps, batch, features), and no heads."""

        def swap_axes(tensor: Tensor) -> Tensor:
            if tensor.name not in ("queries", "keys", "values", "context"):
                return tensor
            batch, steps, features = (axis for axis in tensor.axes if not axis.endswith("heads?"))
            return replace(tensor, axes=(steps, batch, features))

        return replace(self, tensors=tuple(map(swap_axes, self.tensors)), outputs=tuple(map(swap_axes, self.outputs)))

    @property
    def signature(self) -> str:
        """The argument list as Python writes it, without self."""
        first = [_argument(option) for option in self.options if not option.keyword_only]
        tensors = [tensor.name + ("=None" if tensor.optional else "") for tensor in self.tensors]
        keywords = [_argument(option) for option in self.options if option.keyword_only]
        keywords += [tensor.name + ("=None" if tensor.optional else "") for tensor in self.keyword_tensors]
        return ", ".join(first + tensors + (["*", *keywords] if keywords else []))


@dataclass(frozen=True)
class Parameter:
    """A canonical array of a layer: its name, its axes as text, and the size n that bounds its first values by 1/√n.

    initial is the first value of every entry where that is a constant.
    """

    name: str
    axes: tuple[str, ...]
    meaning: str
    fan_in: str
    initial: float | None = None


@dataclass(frozen=True)
class Part:
    """A layer inside another one, and its constructor's arguments.

    `shared` are its canonical arrays that are those of another inner layer, with their names in the outer layer.
    """

    layer: Layer
    config: Config
    shared: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Layer:
    """A trainable layer: constructor, canonical parameters and methods.

    `complete` adds the sizes that follow from the constructor's arguments, which it gets with every default; from the
    completed sizes, `own_shapes` returns the shape of each canonical array that no inner layer has, in order, and
    `inside` the inner layers by name. `parts` describes each inner layer, and `notes` what the formula does not show.
    """

    name: str
    summary: str
    formula: str
    source: str
    options: tuple[Option, ...]
    parameters: tuple[Parameter, ...]
    methods: tuple[Operator, ...]
    complete: Callable[[Config], Sizes] = lambda config: config
    own_shapes: Callable[[Sizes], dict[str, tuple[int, ...]]] = lambda sizes: {}
    inside: Callable[[Sizes], dict[str, Part]] = lambda sizes: {}
    parts: Mapping[str, str] = field(default_factory=dict)
    notes: str = ""

    def __post_init__(self) -> None:
        if any(option.name == "time_major" for option in self.options):
            _ = [method.time_major for method in self.methods]  # as Operator.inputs

    def sizes(self, config: Config) -> dict[str, Any]:
        """The constructor's arguments with every default, and the sizes that follow from them.

        Raises: OptionError if arguments do not fit each other, here or in an inner layer.
        """
        defaults = {option.name: option.value for option in self.options if option.default is not None}
        sizes = dict(self.complete({**defaults, **config}))
        for part in self.inside(sizes).values():
            part.layer.sizes(part.config)
        return sizes

    def shapes(self, sizes: Sizes) -> dict[str, tuple[int, ...]]:
        """The shape of each canonical array: those of the layer itself, then those of its inner layers."""
        shapes = dict(self.own_shapes(sizes))
        for name, part in self.inside(sizes).items():
            inner = part.layer.shapes(part.layer.sizes(part.config))
            shapes |= {f"{name}.{array}": shape for array, shape in inner.items() if array not in part.shared}
        return shapes

    def fans(self, sizes: Sizes) -> dict[str, int]:
        """For each canonical array the number of summands n that bounds its initial values: ±1/√n."""
        return {name: inner[parameter.fan_in] for name, parameter, inner in self._describe(sizes)}

    def constants(self, sizes: Sizes) -> dict[str, float]:
        """For each canonical array whose entries are equal at first: their value."""
        described = self._describe(sizes)
        return {name: parameter.initial for name, parameter, _ in described if parameter.initial is not None}

    def _describe(self, sizes: Sizes) -> Iterator[tuple[str, Parameter, Sizes]]:
        """Each canonical array with its parameter, and the sizes of the layer that has it."""
        named = {parameter.name: parameter for parameter in self.parameters}
        for name in self.own_shapes(sizes):
            yield name, named[pattern(name)], sizes
        for prefix, part in self.inside(sizes).items():
            for name, parameter, inner in part.layer._describe(part.layer.sizes(part.config)):
                if name not in part.shared:
                    yield f"{prefix}.{name}", parameter, inner

    @property
    def trainable(self) -> bool:
        """Whether it may have parameters, and therefore has a dtype."""
        return bool(self.parameters or self.parts)

    @property
    def signature(self) -> str:
        """The constructor's argument list as Python writes it, without self."""
        first = [_argument(option) for option in self.options if not option.keyword_only]
        keywords = [_argument(option) for option in self.options if option.keyword_only]
        return ", ".join(first + (["*", *keywords] if keywords else []))

    def method(self, name: str) -> Operator:
        """The method of that name, without the layer's: "call", "prepare", "attend", "step", "greedy", "beam"."""
        full = f"{self.name}.{name}"
        for method in self.methods:
            if method.name == full:
                return method
        raise KeyError(f"{self.name} has no method {name!r}; it has {', '.join(m.name for m in self.methods)}")


def pattern(name: str) -> str:
    """The name of a canonical array as the specification writes it: {layer} for the number of a recurrent layer."""
    return ".".join("{layer}" if part.isdigit() else part for part in name.split("."))


def _argument(option: Option) -> str:
    return option.name if option.default is None else f"{option.name}={option.default}"
