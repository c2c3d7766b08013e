"""The language of the tables in `backends.weights.tables`.

A table has the name, the axes and the canonical arrays or gates of each array of a source:

    Row("weight_ih_l{layer}{direction}", "(3 h) i -> 3 h i", gates("W", "rzn"))

In words: weight_ih_l0 has two axes, of which the first joins 3 gates and h features; its three blocks are the gates r,
z and n of the canonical "0.W". The same text read from right to left writes the array.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from backends.weights.rearrange import Side, parse

GATES = {"r": 0, "z": 1, "n": 2, "i": 0, "f": 1, "g": 2, "o": 3}
"""The index of each gate in a canonical array."""

STACKED = "{layer}.{backward}"
"""The prefix of the canonical names of a recurrent layer."""


@dataclass(frozen=True)
class Row:
    """An array of a source: its name, its axes, and the canonical arrays of its blocks.

    name may contain {layer} and {direction}, and several spellings separated by " | ", equally many in every row of a
    table, or one for all. axes is a rearrangement into the canonical axes, with the blocks first if there are several.
    In `holds`, "name" is a canonical array, "name:r" its gate r, "+name:r" is added to that gate (and 0 in the reverse
    direction), "*name" is an array of the enclosing model. Rows with the same word in `optional` are all present or all
    absent. With `scaled_by`, the array is multiplied by that one, after division by its norm if it is `normalised`.
    With `per_root`, it is divided by the root of that axis' size; one that is the `same_as` another is left out.
    `refusal` is the reason why an array of that name (with `rank` axes, if set) is not supported; with `zero` it is
    accepted if it is 0.
    """

    name: str
    axes: str = ""
    holds: tuple[str, ...] = ()
    optional: str = ""
    scaled_by: str = ""
    normalised: bool = False
    refusal: str = ""
    rank: int | None = None
    zero: bool = False
    per_root: str = ""
    same_as: str = ""

    @classmethod
    def absent(cls, name: str, refusal: str, rank: int | None = None) -> Row:
        """An array that the specification does not have."""
        return cls(name, refusal=refusal, rank=rank)

    @classmethod
    def zeros(cls, name: str, axes: str, refusal: str, optional: str = "") -> Row:
        """An array that the specification does not have unless it is 0."""
        return cls(name, f"{axes} -> {axes}", optional=optional, refusal=refusal, zero=True)

    def under(self, start: str) -> Row:
        """The row of a model that stands alone, or under a prefix in a larger one."""
        return replace(self, name=f"{start}{self.name} | {self.name}")

    @property
    def spellings(self) -> tuple[str, ...]:
        """The spellings of the name."""
        return tuple(part.strip() for part in self.name.split(" | "))

    def name_in(self, spelling: int) -> str:
        """The name in one spelling of the table."""
        return self.spellings[spelling if len(self.spellings) > 1 else 0]

    @property
    def sides(self) -> tuple[Side, Side]:
        """The axes here, and the canonical ones."""
        return parse(self.axes)


def gates(names: str, order: str, path: str = STACKED) -> tuple[str, ...]:
    """The gates of a canonical array in that order, "W" and "rzn"; or of one array for each: "+b +b b_hn"."""
    listed = names.split()
    held = []
    for name, gate in zip(listed * len(order) if len(listed) == 1 else listed, order, strict=True):
        sign = "+" if name.startswith("+") else ""
        bare = name.removeprefix("+")
        held.append(f"{sign}{path}{bare}" + ("" if bare == "b_hn" else f":{gate}"))
    return tuple(held)


READS_PADDING = (
    "Without lengths, it reads padding, too: its state is that after the padding, where its backward direction starts. "
    "With valid_lens, the specification's layer reads only the tokens."
)
REPEATS = (
    "Under a mask its padded steps repeat the last output, unless zero_output_for_mask=True; the specification's are 0."
)
COMPUTES_PADDING = "Its padded steps have outputs like any other step; the specification's are 0."
GOES_ON = "seq_lengths affects only its state: its outputs continue in padded steps; the specification's are 0."
UNIFORM = (
    "It fills hidden scores with a finite number: a query that may attend to nothing attends to every key alike, also "
    "to padding; the specification's weights and context are 0."
)
NAN = "A query that may attend to nothing gets NaN; the specification's weights and context are 0."
SCALES = (
    "Embedded tokens are multiplied by √features, as in the paper. If those of the model are not, divide its embedding "
    "by √features first."
)
LOSES = "It fills hidden scores with -1e6: lower scores lose to the padding, and float16 cannot represent it."


def sinusoid_halves(num_positions: int, features: int) -> np.ndarray:
    """The sines of each position at all rates, then the cosines, in float32 as libraries keep them."""
    rates = 10000.0 ** (-np.arange(0, features, 2) / features)
    angles = np.arange(num_positions)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :features].astype(np.float32)


@dataclass(frozen=True)
class Fixed:
    """An array that a source lacks, its implicit value, and advice.

    It is 0; a matrix `like` a vector is the identity of its size, and a vector like a matrix has a 0 for each row.
    """

    advice: str
    like: str = ""
    is_zero: bool = True

    @property
    def value(self) -> str:
        """The only value that the array may have."""
        return "zeros" if self.is_zero else "the identity"

    def build(self, like: np.ndarray, dtype: Any) -> np.ndarray:
        """The array, for the one that it is like."""
        return np.zeros(len(like), dtype) if self.is_zero else np.eye(like.size, dtype=dtype)

    def holds(self, array: np.ndarray) -> bool:
        """Whether the array has it."""
        return np.array_equal(array, np.zeros_like(array) if self.is_zero else np.eye(len(array)))


OF_EVERY_LAYER = (
    *("name", "trainable", "dtype", "seed", "*dropout", "*_initializer", "*_regularizer", "*_constraint"),
    *("lora_*", "quantization_*"),
)
"""The settings of Keras that change no output of an evaluation, as patterns of names."""


@dataclass(frozen=True)
class Settings:
    """What the settings of a layer mean, whose file may hold them.

    kinds are the names of its class in a file. `needed` are settings with the only value that the specification has:
    where a file does not hold them, they are assumed. `options` are the constructor arguments here that others are,
    with ours for each of `values`, if not all are the same; `fixed` those that its class has in any file. `free` are
    the patterns of settings that change no output.
    """

    kinds: tuple[str, ...] = ()
    needed: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    free: tuple[str, ...] = OF_EVERY_LAYER


@dataclass(frozen=True)
class Source:
    """A source of weights: its name, the specification's layer, and the table.

    `directions` has, for each spelling, the text of {direction}: in a layer with one direction and, if two are
    supported, in the forward and backward one; "*" in it is any word. `fixed` lists the canonical arrays (the end of
    their names) that the source lacks. `config` are constructor arguments that the source fixes. `notes` are printed
    for every conversion, `warnings` for padding and hidden keys, where the layers differ whatever the weights, and
    `without` if the rows of an optional group are absent. `also` are other tables of the same name, for other arrays.
    `sinusoids` are canonical arrays that the source computes: sines, then cosines, of each position.
    `prefix_ends` are the characters that a prefix may end with. `framework` is that of a source without a table: the
    layers of a backend, which has the table.
    """

    name: str
    layer: str
    rows: tuple[Row, ...]
    directions: tuple[tuple[str, ...], ...] = (("",),)
    fixed: Mapping[str, Fixed] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)
    also: tuple[Source, ...] = ()
    settings: Settings | None = None
    sinusoids: tuple[str, ...] = ()
    prefix_ends: str = "."
    framework: str = ""

    @property
    def forms(self) -> tuple[Source, ...]:
        """Every table of this name."""
        return (self, *self.also)

    @property
    def spellings(self) -> int:
        """How many ways there are to write the names."""
        return max((len(row.spellings) for row in self.rows), default=2 if self.framework == "tf" else 1)

    def fixed_value(self, name: str) -> Fixed | None:
        """What the source has in place of a canonical array, which is listed by its name or the end of it."""
        return self.fixed.get(name, self.fixed.get(name.rpartition(".")[2]))

    def words(self, spelling: int) -> tuple[str, ...]:
        """The text of {direction} in that spelling."""
        return self.directions[spelling] if len(self.directions) > spelling else self.directions[0]

    @property
    def is_stacked(self) -> bool:
        """Whether a table has several layers, by number."""
        return any("{layer}" in row.name for row in self.rows)


def inside(part: str, *tables: Sequence[Row], canonical: str = "", separator: str = ".") -> tuple[Row, ...]:
    """The rows of a layer inside another one, under the name of the part in both, or its canonical name if given.

    The part may have a name for each spelling, like a row. Several tables are the spellings of one: their rows differ
    in their names alone, of which the first is taken.
    """
    made = []
    owner = Row(part)
    for rows in zip(*tables, strict=True):
        spellings = rows[0].spellings if len(rows) == 1 else [row.spellings[0] for row in rows]
        count = max(len(spellings), len(owner.spellings))
        names = " | ".join(
            f"{owner.name_in(number)}{separator}{spellings[number % len(spellings)]}" for number in range(count)
        )
        holds = tuple(re.sub(r"^([+*]?)", rf"\1{canonical or part}.", hold) for hold in rows[0].holds)
        made.append(replace(rows[0], name=names, holds=holds))
    return tuple(made)


def with_dots(source: Source, name: str) -> Source:
    """The table of another source, whose arrays have the same names with dots for slashes."""
    rows = tuple(replace(row, name=row.name.replace("/", ".")) for row in source.rows)
    directions = tuple(tuple(word.replace("/", ".") for word in words) for words in source.directions)
    return replace(source, name=name, rows=rows, directions=directions)


def plain(name: str) -> str:
    """A name as it is compared: with dots for slashes, and without TensorFlow's ":0"."""
    return name.replace("/", ".").removesuffix(":0")
