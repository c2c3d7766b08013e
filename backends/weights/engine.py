"""The conversion engine, which applies a table in both directions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attention_core.errors import dtype_name
from attention_core.specification import FLOATING, Layer
from backends.weights.configs import whole_config
from backends.weights.errors import WeightError
from backends.weights.matching import Cell, Fit, cells
from backends.weights.rearrange import rearrange_sides, shape_of, solve
from backends.weights.table import Source, plain, sinusoid_halves

# ------------------------------------------------------------------------------------------------ to canonical


class Parts(NamedTuple):
    """The canonical arrays of one fit."""

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
            array, names = _scale(array, arrays[factor], row.normalised), [name, factor]
            notes.append(f"{factor} is multiplied into {name}.")
        if row.same_as and not np.array_equal(array, arrays[by_name[plain(row.same_as)]]):
            raise WeightError(f"{fit.source.name}: {name} is another array than {row.same_as}, which it is tied to.")
        if not row.holds:
            continue
        start, end = row.sides
        blocks = rearrange_sides(array, start, end, fit.sizes[cell.group])
        if row.per_root:
            blocks = blocks / np.sqrt(fit.sizes[cell.group][row.per_root], dtype=blocks.dtype)
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
            "Two biases add up where only their sum acts: the sum is kept. The reverse conversion writes it to one of "
            "the two and sets the other to 0: the same function with different arrays."
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


def _scale(array: np.ndarray, factor: np.ndarray, normalised: bool) -> np.ndarray:
    wide = array.astype(np.float64)
    if normalised:
        wide = wide / np.sqrt(np.sum(wide * wide))
    return (wide * factor.astype(np.float64)).astype(array.dtype)


def complete(
    layer: Layer, form: Source, parts: Parts, options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The constructor's arguments and all canonical arrays: those that the source fixes or leaves out included."""
    made = dict(parts.arrays)
    dtype = next(iter(made.values())).dtype if made else np.dtype("float32")
    made |= {name: one.build(made[one.like], dtype) for name, one in form.fixed.items() if one.like}
    for name in form.sinusoids:
        if "num_positions" not in options:
            raise WeightError(f"{form.name}: its positions are in no file: pass num_positions=... .")
        features = next(array.shape[1] for key, array in made.items() if key.endswith("embedding"))
        made[name] = sinusoid_halves(options["num_positions"], features).astype(dtype)
        parts.notes.append(f"{name} is computed: sines, then cosines, of each position.")
    if layer.name in ("GRU", "LSTM") or form.is_stacked:
        for name in list(made):
            if name.endswith("U"):
                gate, hidden = made[name].shape[0], made[name].shape[-1]
                base = name.removesuffix("U")
                zeros = {f"{base}b": (gate, hidden)} | ({f"{base}b_hn": (hidden,)} if gate == 3 else {})
                for key, shape in zeros.items():
                    if key not in made:
                        made[key] = np.zeros(shape, dtype)
                        parts.notes.append(f"{key} is 0: the source has none.")
    shapes = {name: array.shape for name, array in made.items()}
    config, expected = whole_config(layer, shapes, with_fixed_options(form, options), f"{form.name}: ")
    return config, {name: made[name] for name in expected}


def with_fixed_options(form: Source, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with those that the source fixes.

    Raises: WeightError if they contradict each other.
    """
    for name, value in form.config.items():
        if options.get(name, value) != value:
            raise WeightError(f"{form.name} has {name}={value!r} only, but {options[name]!r} was passed.")
    return {**form.config, **options}


# ------------------------------------------------------------------------------------------------ from canonical


def to_source(
    form: Source,
    arrays: Mapping[str, np.ndarray],
    prefix: str,
    spelling: int,
    num_layers: int,
    bidirectional: bool,
    sizes: Mapping[str, int],
) -> dict[str, np.ndarray]:
    """The arrays under the source's names. sizes are those of axes that no canonical shape determines.

    Raises: WeightError if they do not fit the table.
    """
    every = [cell for cell in cells(form, spelling, num_layers, bidirectional) if cell.row.axes]
    _check_places(form, every, arrays)
    made: dict[str, np.ndarray] = {}
    for group in dict.fromkeys(cell.group for cell in every):
        group_cells = [cell for cell in every if cell.group == group]
        joined = {cell.name: _join(form, cell, arrays) for cell in group_cells if cell.row.holds}
        present = {name: array for name, array in joined.items() if array is not None}
        rows = {cell.name: cell.row for cell in group_cells}
        solved = solve([(rows[name].sides[1], array.shape) for name, array in present.items()], sizes)
        if solved is None:
            shapes = ", ".join(f"{name} from {array.shape}" for name, array in present.items())
            raise WeightError(f"{form.name} cannot have arrays of these shapes: {shapes}.")
        for name, row in rows.items():
            start, end = row.sides
            shape = shape_of(start, solved)
            if name in present:
                if shape is None:
                    unknown = next(part for axis in start for part in axis if "#" not in part and part not in solved)
                    raise WeightError(
                        f"{form.name}: {unknown} cannot be inferred from the arrays: pass {unknown}=... ."
                    )
                array = rearrange_sides(present[name], end, start, solved)
                factor = np.sqrt(solved[row.per_root], dtype=array.dtype) if row.per_root else None
                made[prefix + name] = array if factor is None else array * factor
            elif row.zero and shape is not None:
                made[prefix + name] = np.zeros(shape, next(iter(present.values())).dtype)
    return made


def _check_places(form: Source, every: Sequence[Cell], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse an array that the source lacks, unless it has the source's implicit value."""
    places = {cell.canonical(hold)[0] for cell in every for hold in cell.row.holds}
    for name, array in arrays.items():
        fixed = form.fixed_value(name)
        if name in form.sinusoids and np.allclose(array, sinusoid_halves(*array.shape), rtol=0.0, atol=1e-6):
            continue
        if name in places or (fixed and fixed.holds(array)):
            continue
        if fixed:
            raise WeightError(f"{form.name} requires {name} to be {fixed.value}: {fixed.advice}.")
        raise WeightError(f"{form.name} has no place for {name} {array.shape}.")


def _join(form: Source, cell: Cell, arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The content of an array of the source, with its blocks first; None if it is optional and absent."""
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
        raise WeightError(f"{form.name} holds {shapes} in one array; their shapes must be equal.")
    return np.stack(present) if len(present) > 1 else present[0]


def beside(form: Source) -> set[str]:
    """The arrays of a source that belong to the enclosing model."""
    return {hold[1:] for row in form.rows for hold in row.holds if hold[0] == "*"}


def _blocks(cell: Cell, arrays: Mapping[str, np.ndarray]) -> Iterator[np.ndarray | None]:
    for hold in cell.row.holds:
        name, gate = cell.canonical(hold)
        if name not in arrays:
            yield None
            continue
        block = arrays[name] if gate is None else arrays[name][gate]
        yield np.zeros_like(block) if hold[0] == "+" else block
