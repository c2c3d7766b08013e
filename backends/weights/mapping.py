"""The engine that reads the tables of `backends.weights.sources`, in both directions.

A table says of each of the source's arrays its name, its axes and the canonical arrays, or their gates, that it holds:

    Row("weight_ih_l{layer}{direction}", "(3 h) i -> 3 h i", gates("W", "rzn"))

In words: weight_ih_l0 has two axes, of which the first joins 3 gates and h features; taken apart, its three blocks are
the gates r, z and n of the canonical "0.W". The same text read from right to left writes the array.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from attention_core.errors import dtype_name
from attention_core.specification import FLOATING, Layer
from backends.weights.configs import check_shapes, config_of
from backends.weights.errors import WeightError
from backends.weights.rearrange import Side, parsed, rearranged, shape_of, solve

GATES = {"r": 0, "z": 1, "n": 2, "i": 0, "f": 1, "g": 2, "o": 3}
"""Where each gate stands in a canonical array."""

STACKED = "{layer}.{backward}"
"""How the canonical names of a recurrent layer begin."""


@dataclass(frozen=True)
class Row:
    """An array of a source: its name, its axes, and the canonical arrays that its blocks are.

    name may hold {layer} and {direction}, and several spellings with " | " between them, as many in every row of a
    table, or one for all. axes is a rearrangement into the canonical axes, with the blocks first if there are several.
    Of what a row holds, "name" is a canonical array, "name:r" its gate r, "+name:r" is added to that gate (and 0 on
    the way back), "*name" is an array that stands beside the layer. Rows with the same word in `optional` are there
    together, or not at all. With `scaled_by`, the array is multiplied by that one, after it is divided by its norm if
    it is `normalised`. `refusal` says why an array of that name (with `rank` axes, if given) cannot be held; with
    `zero` it may be if it is 0.
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

    @classmethod
    def refused(cls, name: str, refusal: str, rank: int | None = None) -> Row:
        """An array that the specification has no place for."""
        return cls(name, refusal=refusal, rank=rank)

    @classmethod
    def zeros(cls, name: str, axes: str, refusal: str, optional: str = "") -> Row:
        """An array that the specification has no place for unless it is 0."""
        return cls(name, f"{axes} -> {axes}", optional=optional, refusal=refusal, zero=True)

    @property
    def spellings(self) -> tuple[str, ...]:
        """The ways in which the name is written."""
        return tuple(part.strip() for part in self.name.split(" | "))

    def spelled(self, spelling: int) -> str:
        """The name in one of the ways of the table."""
        return self.spellings[spelling if len(self.spellings) > 1 else 0]

    @property
    def sides(self) -> tuple[Side, Side]:
        """The axes here, and the canonical ones."""
        return parsed(self.axes)


def gates(names: str, order: str, path: str = STACKED) -> tuple[str, ...]:
    """The gates of a canonical array in that order, "W" and "rzn"; or of one array for each: "+b +b b_hn"."""
    listed = names.split()
    held = []
    for name, gate in zip(listed * len(order) if len(listed) == 1 else listed, order, strict=True):
        sign = "+" if name.startswith("+") else ""
        bare = name.removeprefix("+")
        held.append(f"{sign}{path}{bare}" + ("" if bare == "b_hn" else f":{gate}"))
    return tuple(held)


@dataclass(frozen=True)
class Fixed:
    """What a source has no place for: zeros, or the identity of the size of the vector `like`, or else what to do."""

    advice: str
    like: str = ""

    @property
    def value(self) -> str:
        """The only value that the array may have."""
        return "the identity" if self.like else "zeros"

    def holds(self, array: np.ndarray) -> bool:
        """Whether the array has it."""
        wanted = np.eye(len(array)) if self.like else np.zeros_like(array)
        return np.array_equal(array, wanted)


@dataclass(frozen=True)
class Source:
    """Where weights come from: a name, the layer of the specification that they are of, and the table.

    directions says for each spelling what {direction} stands for: in a layer with one direction, and, where there may
    be two, in the forward and in the backward one; "*" in it is any word. `fixed` names the canonical arrays (the end
    of their names) that the source cannot hold. `config` are constructor arguments that the source has always. `notes`
    are said of every conversion, `without` where the rows of an optional group are absent. `also` are other tables of
    the same name, for other arrays. `prefix_ends` are the characters that a prefix may end with. `own` is the framework
    of a source without a table: our own layers, whose tables the backends have.
    """

    name: str
    layer: str
    rows: tuple[Row, ...]
    directions: tuple[tuple[str, ...], ...] = (("",),)
    fixed: Mapping[str, Fixed] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    without: Mapping[str, str] = field(default_factory=dict)
    also: tuple[Source, ...] = ()
    prefix_ends: str = "."
    own: str = ""

    @property
    def forms(self) -> tuple[Source, ...]:
        """Every table of this name."""
        return (self, *self.also)

    @property
    def spellings(self) -> int:
        """How many ways there are to write the names."""
        return max((len(row.spellings) for row in self.rows), default=2 if self.own == "tf" else 1)

    def words(self, spelling: int) -> tuple[str, ...]:
        """What {direction} stands for in that spelling."""
        return self.directions[spelling] if len(self.directions) > spelling else self.directions[0]

    @property
    def stacked(self) -> bool:
        """Whether several layers stand in one table, by number."""
        return any("{layer}" in row.name for row in self.rows)


def inside(part: str, *tables: Sequence[Row]) -> tuple[Row, ...]:
    """The rows of a layer that stands inside another one, under the part's name here and there.

    Several tables are the spellings of one: their rows differ in their names alone, of which the first is taken.
    """
    made = []
    for rows in zip(*tables, strict=True):
        names = " | ".join(f"{part}.{row.spellings[0]}" for row in rows)
        holds = tuple(re.sub(r"^([+*]?)", rf"\1{part}.", hold) for hold in rows[0].holds)
        made.append(replace(rows[0], name=names, holds=holds))
    return tuple(made)


def plain(name: str) -> str:
    """A name as it is compared: with dots for slashes, and without TensorFlow's ":0"."""
    return name.replace("/", ".").removesuffix(":0")


# ------------------------------------------------------------------------------------------------ which rows are there


class Cell(NamedTuple):
    """One row for one recurrent layer and direction."""

    row: Row
    layer: int
    backward: bool
    name: str  # as the table writes it, behind the prefix

    def canonical(self, hold: str) -> tuple[str, int | None]:
        """The canonical array, and its gate, that a hold of this row is."""
        name, _, gate = hold.lstrip("+*").partition(":")
        full = name.format(layer=self.layer, backward="backward." if self.backward else "")
        return full, GATES[gate] if gate else None

    @property
    def group(self) -> tuple[int, bool]:
        """The rows that share the sizes of their axes."""
        return self.layer, self.backward


def cells(form: Source, spelling: int, num_layers: int, bidirectional: bool) -> list[Cell]:
    """Every row of a table for that many layers."""
    words = form.words(spelling)
    bidirectional = bidirectional and len(words) > 1
    listed = []
    for row in form.rows:
        template = row.spelled(spelling)
        for layer in range(num_layers if "{layer}" in template else 1):
            for backward in (False, True) if bidirectional and "{direction}" in template else (False,):
                word = (words[1 + backward] if bidirectional else words[0]).replace("*", form.layer.lower())
                listed.append(Cell(row, layer, backward, template.format(layer=layer, direction=word)))
    return listed


def _regex(form: Source, spelling: int, row: Row) -> re.Pattern[str]:
    """Matches the names of a row, with the prefix, the number of the layer and the direction as groups."""
    words = [re.escape(plain(word)).replace(r"\*", "[^.]*") for word in form.words(spelling)]
    groups = ("backward", "forward", "single") if len(words) > 1 else ("single",)
    text = re.escape(plain(row.spelled(spelling))).replace(re.escape("{layer}"), r"(?P<layer>\d{1,4})")
    choices = "|".join(f"(?P<{group}>{word})" for group, word in zip(groups, reversed(words), strict=True))
    text = text.replace(re.escape("{direction}"), f"(?:{choices})")
    return re.compile(rf"(?P<prefix>|.*?[{re.escape(form.prefix_ends)}]){text}")


@dataclass
class Fit:
    """How the arrays fit one table, in one spelling, under one prefix."""

    source: Source
    form: Source
    spelling: int
    prefix: str
    num_layers: int = 1
    bidirectional: bool = False
    found: dict[str, Cell] = field(default_factory=dict)
    """The arrays by their own names."""
    missing: list[str] = field(default_factory=list)
    left_over: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    sizes: dict[tuple[int, bool], dict[str, int]] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether every array that the table needs is there, in its shape."""
        return not self.missing and not self.problems

    @property
    def complete(self) -> bool:
        """Whether no other array is there."""
        return self.fits and not self.left_over


def fits(source: Source, arrays: Mapping[str, np.ndarray], prefix: str | None, options: Mapping[str, Any]) -> list[Fit]:
    """Every way in which some of the arrays are of this source, the best first."""
    names = {plain(name): name for name in arrays}
    found: dict[tuple[str, frozenset[str]], Fit] = {}
    for form in source.forms:
        for spelling in range(form.spellings):
            patterns = [(row, _regex(form, spelling, row)) for row in form.rows]
            prefixes: dict[str, dict[tuple[Row, int, bool], str]] = {}
            for name in names:
                for row, pattern in patterns:
                    match = pattern.fullmatch(name)
                    if match is None:
                        continue
                    known = match.groupdict()
                    place = (row, int(known.get("layer") or 0), known.get("backward") is not None)
                    prefixes.setdefault(match["prefix"], {}).setdefault(place, names[name])
            for start, places in prefixes.items():
                if prefix is not None and start != plain(prefix):
                    continue
                fit = _fit(Fit(source, form, spelling, start), places, arrays)
                fit.left_over = [
                    own
                    for name, own in names.items()
                    if own not in fit.found and (prefix is None or name.startswith(start))
                ]
                if not fit.problems:  # a refusal says more than the shapes
                    _solve(fit, arrays, options)
                key = (start, frozenset(fit.found))
                if key not in found or len(found[key].missing) > len(fit.missing) or (fit.fits and not found[key].fits):
                    found[key] = fit
    return sorted(found.values(), key=lambda fit: (len(fit.missing) + len(fit.problems), len(fit.left_over)))


def _fit(fit: Fit, places: Mapping[tuple[Row, int, bool], str], arrays: Mapping[str, np.ndarray]) -> Fit:
    """Find the array of each row, layer and direction; note those that are missing, and those that are refused."""
    fit.num_layers = 1 + max(layer for _, layer, _ in places)
    fit.bidirectional = any(backward for _, _, backward in places)
    present = {row.optional for row, _, _ in places if row.optional}
    for cell in cells(fit.form, fit.spelling, fit.num_layers, fit.bidirectional):
        name = places.get((cell.row, cell.layer, cell.backward))
        if name is None:
            if not cell.row.refusal and (not cell.row.optional or cell.row.optional in present):
                fit.missing.append(fit.prefix + cell.name)
        elif cell.row.refusal and not cell.row.zero:
            if cell.row.rank in (None, arrays[name].ndim):
                fit.problems.append(f"{name} {arrays[name].shape}: {cell.row.refusal}.")
        elif name not in fit.found:
            fit.found[name] = cell
    return fit


def _solve(fit: Fit, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> None:
    """Find the sizes of all axes, or say which arrays do not fit the others."""
    given = {name: value for name, value in options.items() if isinstance(value, int)}
    for group in sorted({cell.group for cell in fit.found.values()}):
        rows = {name: cell.row for name, cell in fit.found.items() if cell.group == group and cell.row.axes}
        sizes = solve([(row.sides[0], arrays[name].shape) for name, row in rows.items()], given)
        if sizes is not None:
            fit.sizes[group] = sizes
        else:
            fit.problems += _misfits(rows, arrays, given)


def _misfits(rows: Mapping[str, Row], arrays: Mapping[str, np.ndarray], given: Mapping[str, int]) -> list[str]:
    """Which array is in the way of the others: with both shapes, and the transpose if it would fit."""
    said, turned = [], []
    for name, row in rows.items():
        others = [(other.sides[0], arrays[key].shape) for key, other in rows.items() if key != name]
        sizes = solve(others, given)
        if sizes is None:
            continue
        shape = arrays[name].shape
        axes = row.axes.partition("->")[0].strip()
        text = f"{name} has shape {shape}, expected {_expected(row, sizes)} by the other arrays (axes {axes!r})."
        if len(shape) > 1 and solve([*others, (row.sides[0], shape[::-1])], given) is not None:
            turned.append(f"{text} Its transpose would fit.")
        else:
            said.append(text)
    return turned or said or _contradictions(rows, arrays, given)


def _contradictions(rows: Mapping[str, Row], arrays: Mapping[str, np.ndarray], given: Mapping[str, int]) -> list[str]:
    """Where no array alone is in the way: those that do not fit the ones before them."""
    fitting: list[tuple[Side, Sequence[int]]] = []
    said = []
    for name, row in rows.items():
        longer = [*fitting, (row.sides[0], arrays[name].shape)]
        if solve(longer, given) is not None:
            fitting = longer
            continue
        axes, expected = row.axes.partition("->")[0].strip(), _expected(row, solve(fitting, given) or {})
        said.append(
            f"{name} has shape {arrays[name].shape}, expected {expected} by the arrays before it (axes {axes!r})."
        )
    return said


def _expected(row: Row, sizes: Mapping[str, int]) -> str:
    """The shape as far as it is known, with the names of the axes that are not."""
    listed = []
    for axis in row.sides[0]:
        size = shape_of((axis,), sizes)
        listed.append(str(size[0]) if size else " * ".join(name.partition("#")[0] for name in axis))
    return f"({', '.join(listed)}{',' if len(listed) == 1 else ''})"


# ------------------------------------------------------------------------------------------------ to canonical


class Parts(NamedTuple):
    """What the arrays of one fit are."""

    arrays: dict[str, np.ndarray]
    beside: dict[str, np.ndarray]
    used: dict[str, tuple[str, ...]]
    notes: list[str]


def assemble(fit: Fit, arrays: Mapping[str, np.ndarray]) -> Parts:
    """The canonical arrays of a fit, with the names of what each is made of."""
    dtypes = {name: dtype_name(arrays[name].dtype) for name in fit.found}
    if len(set(dtypes.values())) > 1 or not set(dtypes.values()) <= set(FLOATING):
        listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise WeightError(f"{fit.source.name}: the arrays are not of one floating dtype ({listed}): cast them first.")
    first: dict[tuple[str, int | None], np.ndarray] = {}
    added: dict[tuple[str, int | None], list[np.ndarray]] = {}
    beside: dict[str, np.ndarray] = {}
    used: dict[str, list[str]] = {}
    optional = {cell.row.optional for cell in fit.found.values()}
    notes = [*fit.form.notes, *(note for group, note in fit.form.without.items() if group not in optional)]
    by_name = {plain(cell.name): name for name, cell in fit.found.items()}
    for name, cell in fit.found.items():
        row, array, names = cell.row, arrays[name], [name]
        if row.zero:
            if np.any(array):
                raise WeightError(f"{fit.source.name}: {name} is not 0: {row.refusal}.")
            notes.append(f"{name} is 0 and left out.")
            continue
        if row.scaled_by and plain(row.scaled_by) in by_name:
            factor = by_name[plain(row.scaled_by)]
            array, names = _scaled(array, arrays[factor], row.normalised), [name, factor]
            notes.append(f"{factor} is multiplied into {name}.")
        if not row.holds:
            continue
        start, end = row.sides
        blocks = rearranged(array, start, end, fit.sizes[cell.group])
        for hold, block in zip(row.holds, blocks if len(row.holds) > 1 else [blocks], strict=True):
            slot = cell.canonical(hold)
            if hold[0] == "*":
                beside[slot[0]] = block
            elif hold[0] == "+":
                added.setdefault(slot, []).append(block)
            else:
                first[slot] = block
            if hold[0] != "*":
                used.setdefault(slot[0], []).extend(names)
    if added:
        notes.append(
            "Two biases add up where only their sum acts: the sum is kept. On the way back it stands in one of the "
            "two, and the other is 0: the same function, other arrays."
        )
    for slot, blocks_added in added.items():
        for block in blocks_added:
            first[slot] = first[slot] + block
    made: dict[str, np.ndarray] = {}
    for canonical, gate in first:
        if gate is None:
            made[canonical] = np.ascontiguousarray(first[canonical, None]).reshape(first[canonical, None].shape)
        elif canonical not in made:
            places = sorted(place for key, place in first if key == canonical and place is not None)
            made[canonical] = np.stack([first[canonical, place] for place in places])
    return Parts(made, beside, {key: tuple(dict.fromkeys(names)) for key, names in used.items()}, notes)


def _scaled(array: np.ndarray, factor: np.ndarray, normalised: bool) -> np.ndarray:
    wide = array.astype(np.float64)
    if normalised:
        wide = wide / np.sqrt(np.sum(wide * wide))
    return (wide * factor.astype(np.float64)).astype(array.dtype)


def completed(
    layer: Layer, form: Source, parts: Parts, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The constructor's arguments and all canonical arrays: those that the source fixes or leaves out included."""
    made = dict(parts.arrays)
    dtype = next(iter(made.values())).dtype if made else np.dtype("float32")
    made |= {name: np.eye(made[like].size, dtype=dtype) for name, like in identities(form).items()}
    if layer.name in ("GRU", "LSTM") or form.stacked:
        for name in list(made):
            if name.endswith("U"):
                gate, hidden = made[name].shape[0], made[name].shape[-1]
                base = name.removesuffix("U")
                wanted = {f"{base}b": (gate, hidden)} | ({f"{base}b_hn": (hidden,)} if gate == 3 else {})
                for key, shape in wanted.items():
                    if key not in made:
                        made[key] = np.zeros(shape, dtype)
                        parts.notes.append(f"{key} is 0: the source has none.")
    config = config_of(layer, {name: array.shape for name, array in made.items()}, given(form, options))
    wanted_shapes = check_shapes(layer, config, {name: array.shape for name, array in made.items()})
    missing = [name for name in wanted_shapes if name not in made]
    if missing:
        raise WeightError(f"{form.name}: {missing[0]} {wanted_shapes[missing[0]]} of {layer.name} is missing.")
    return config, {name: made[name] for name in wanted_shapes}


def given(form: Source, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with those that the source has always.

    Raises: WeightError if they contradict each other.
    """
    for name, value in form.config.items():
        if options.get(name, value) != value:
            raise WeightError(f"{form.name} has {name}={value!r} alone, given {options[name]!r}.")
    return {**form.config, **options}


def identities(form: Source) -> dict[str, str]:
    """The matrices that are the identity in a source, each with the vector that has their size."""
    return {name: fixed.like for name, fixed in form.fixed.items() if fixed.like}


# ------------------------------------------------------------------------------------------------ from canonical


def written(
    form: Source,
    arrays: Mapping[str, np.ndarray],
    prefix: str,
    spelling: int,
    num_layers: int,
    bidirectional: bool,
    sizes: Mapping[str, int],
) -> dict[str, np.ndarray]:
    """The arrays under the source's own names. sizes are those of axes that no canonical shape shows.

    Raises: WeightError if they do not fit the table.
    """
    every = [cell for cell in cells(form, spelling, num_layers, bidirectional) if cell.row.axes]
    _check_places(form, every, arrays)
    made: dict[str, np.ndarray] = {}
    for group in dict.fromkeys(cell.group for cell in every):
        own = [cell for cell in every if cell.group == group]
        joined = {cell.name: _joined(form, cell, arrays) for cell in own if cell.row.holds}
        held = {name: array for name, array in joined.items() if array is not None}
        rows = {cell.name: cell.row for cell in own}
        solved = solve([(rows[name].sides[1], array.shape) for name, array in held.items()], sizes)
        if solved is None:
            shapes = ", ".join(f"{name} from {array.shape}" for name, array in held.items())
            raise WeightError(f"{form.name} cannot hold arrays of these shapes: {shapes}.")
        for name, row in rows.items():
            start, end = row.sides
            shape = shape_of(start, solved)
            if name in held:
                if shape is None:
                    unknown = next(part for axis in start for part in axis if "#" not in part and part not in solved)
                    raise WeightError(f"{form.name}: {unknown} is not seen in the arrays: give {unknown}=... .")
                made[prefix + name] = rearranged(held[name], end, start, solved)
            elif row.zero and shape is not None:
                made[prefix + name] = np.zeros(shape, next(iter(held.values())).dtype)
    return made


def _check_places(form: Source, every: Sequence[Cell], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse an array that the source has no place for, unless it is what the source has without saying so."""
    places = {cell.canonical(hold)[0] for cell in every for hold in cell.row.holds}
    for name, array in arrays.items():
        fixed = form.fixed.get(name.rpartition(".")[2])
        if name in places or (fixed and fixed.holds(array)):
            continue
        if fixed:
            raise WeightError(f"{form.name} can only have {name} as {fixed.value}: {fixed.advice}.")
        raise WeightError(f"{form.name} has no place for {name} {array.shape}.")


def _joined(form: Source, cell: Cell, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """What an array of the source holds, with its blocks first; None if it may be left out, and is."""
    blocks = list(_blocks(cell, arrays))
    absent = [cell.canonical(hold)[0] for hold, block in zip(cell.row.holds, blocks, strict=True) if block is None]
    if absent and (cell.row.optional or absent[0] in beside(form)):
        return None
    if absent:
        raise WeightError(f"{form.name}: {absent[0]} is missing, which {cell.name} is made of.")
    present = [block for block in blocks if block is not None]
    if len({block.shape for block in present}) > 1:
        shapes = ", ".join(
            f"{cell.canonical(hold)[0]} {block.shape}" for hold, block in zip(cell.row.holds, present, strict=True)
        )
        raise WeightError(f"{form.name} holds {shapes} in one array: they have to have the same shape.")
    return np.stack(present) if len(present) > 1 else present[0]


def beside(form: Source) -> set[str]:
    """The arrays of a source that stand beside the layer."""
    return {hold[1:] for row in form.rows for hold in row.holds if hold[0] == "*"}


def _blocks(cell: Cell, arrays: Mapping[str, np.ndarray]) -> Iterator[np.ndarray | None]:
    for hold in cell.row.holds:
        name, gate = cell.canonical(hold)
        if name not in arrays:
            yield None
            continue
        block = arrays[name] if gate is None else arrays[name][gate]
        yield np.zeros_like(block) if hold[0] == "+" else block
