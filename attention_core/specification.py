"""The words in which the specification is written: axes, tensors, options, operators and layers, all of them data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["floating", "integer", "boolean"]
Sizes = Mapping[str, int]

FLOATING = ("float64", "float32", "float16", "bfloat16")
INTEGER = ("int64", "int32", "int16", "int8", "uint8")
BOOLEAN = ("bool",)
DTYPES: dict[Kind, tuple[str, ...]] = {"floating": FLOATING, "integer": INTEGER, "boolean": BOOLEAN}


@dataclass(frozen=True)
class Tensor:
    """An array argument or result: its axes by name, and the kind of number it holds.

    An axis whose name ends in "?" may be left out. With `broadcast`, each axis has its size or 1. With `optional`, the
    argument may be None.
    """

    name: str
    axes: tuple[str, ...]
    meaning: str
    kind: Kind = "floating"
    optional: bool = False
    broadcast: bool = False

    @property
    def layouts(self) -> tuple[tuple[str, ...], ...]:
        """Every allowed list of axes: with and without those that may be left out, the fullest last."""
        layouts: list[tuple[str, ...]] = [()]
        for axis in self.axes:
            name = axis.removesuffix("?")
            longer = [(*layout, name) for layout in layouts]
            layouts = [*layouts, *longer] if axis.endswith("?") else longer
        return tuple(layouts)

    @property
    def layout_text(self) -> str:
        """The allowed layouts as an error message or a page of documentation writes them."""
        return " or ".join(f"({', '.join(layout)}{',' if len(layout) == 1 else ''})" for layout in self.layouts)


@dataclass(frozen=True)
class Option:
    """An argument that is no array: its type, its default, and what it must satisfy.

    `default` is the text of the default in the signature; None means that the argument has to be given.
    """

    name: str
    type: Literal["int", "float"]
    meaning: str
    default: str | None = None
    domain: Literal["size", "count", "rate", "number", "token"] = "size"
    keyword_only: bool = False

    @property
    def may_be_none(self) -> bool:
        """Whether None stands for a default that depends on the other arguments."""
        return self.default == "None"


@dataclass(frozen=True)
class Operator:
    """A function, or a method of a layer: its signature in order, its formula and its source."""

    name: str
    module: str
    summary: str
    formula: str
    source: str
    tensors: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    options: tuple[Option, ...] = ()
    keyword_tensors: tuple[Tensor, ...] = ()

    @property
    def title(self) -> str:
        """The name as a caller writes it: a layer's call has the layer's own name."""
        return self.name.removesuffix(".call")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """All array arguments, positional ones first."""
        return self.tensors + self.keyword_tensors

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
    """A canonical array of a layer: its name, its axes as text, and the size that bounds its drawn values by 1/√."""

    name: str
    axes: tuple[str, ...]
    meaning: str
    fan_in: str


@dataclass(frozen=True)
class Layer:
    """A trainable layer: constructor, canonical parameters and methods.

    `sizes` completes the constructor's arguments with the sizes that follow from them; `shapes` gives the shape of each
    canonical array, in order, from the completed sizes.
    """

    name: str
    module: str
    summary: str
    formula: str
    source: str
    options: tuple[Option, ...]
    parameters: tuple[Parameter, ...]
    methods: tuple[Operator, ...]
    sizes: Callable[[Mapping[str, int | float | None]], dict[str, int]]
    shapes: Callable[[Sizes], dict[str, tuple[int, ...]]]

    @property
    def signature(self) -> str:
        """The constructor's argument list as Python writes it, without self."""
        first = [_argument(option) for option in self.options if not option.keyword_only]
        keywords = [_argument(option) for option in self.options if option.keyword_only]
        return ", ".join(first + (["*", *keywords] if keywords else []))

    def method(self, name: str) -> Operator:
        """The method of that name, without the layer's: "call", "prepare", "attend", "step", "greedy"."""
        full = f"{self.name}.{name}"
        for method in self.methods:
            if method.name == full:
                return method
        raise KeyError(f"{self.name} has no method {name!r}; it has {', '.join(m.name for m in self.methods)}")


def _argument(option: Option) -> str:
    return option.name if option.default is None else f"{option.name}={option.default}"
