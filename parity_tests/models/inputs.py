"""The inputs of a comparison: arrays, files of arrays, or drawn from a line that declares them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attention_core import draws
from parity_tests.models.calls import Arrays
from parity_tests.models.sides import SideError

DECLARED = re.compile(
    r"\s*(?P<name>[\w.]+)\s*:\s*(?P<kind>float|int|bool|mask|lengths)\s*"
    r"\(\s*(?P<sizes>[\d\s,]*)\)\s*(?:(?P<sign><=?)\s*(?P<end>\d+))?\s*"
)
EXAMPLE = "tokens: int (2, 7) < 100; lens: lengths (2,) <= 7; mask: mask (2, 7); x: float (2, 7, 16)"


def read_inputs(given: Mapping[str, Any] | str | Path | Sequence[Any], seed: int = 0) -> Arrays:
    """The inputs as NumPy arrays: a mapping of arrays, a .npz file, or lines of declarations (`draw_inputs`).

    Raises: SideError if they are none of these.
    """
    if isinstance(given, Mapping):
        return {name: as_numpy(name, value) for name, value in given.items()}
    if isinstance(given, Path) or (isinstance(given, str) and not is_declaration(given)):
        try:
            with np.load(given, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (OSError, ValueError) as error:
            raise SideError(f"{given}: it is no .npz file of plain arrays: {error}") from error
    if isinstance(given, str):
        return draw_inputs(given, seed)
    return {str(index): as_numpy(str(index), value) for index, value in enumerate(given)}


def is_declaration(text: str) -> bool:
    """Whether a text declares inputs, and is no path of a file."""
    return ":" in Path(text).name


def as_numpy(name: str, value: Any) -> np.ndarray:
    """An array of any framework in NumPy.

    Raises: SideError if NumPy cannot read it.
    """
    value = value.detach().cpu() if hasattr(value, "detach") else value
    try:
        array = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)
    except Exception as error:  # whatever a framework raises
        raise SideError(f"input {name}: NumPy cannot read a {type(value).__name__}: {error}") from error
    if array.dtype == object:
        raise SideError(f"input {name}: it is no array of numbers, but {type(value).__name__}")
    return array


def draw_inputs(lines: str, seed: int = 0) -> Arrays:
    """Draw inputs from declarations, separated by line ends or semicolons.

        tokens: int (2, 7) < 100; lens: lengths (2,) <= 7; mask: mask (2, 7); x: float (2, 7, 16)

    Lengths differ, one is 1 and one is the largest. A mask (True where it is open) has padding at its end and inside,
    and one row that is closed except for its first position; floats are uniform from -1 to 1.

    Raises: SideError if a line is no declaration.
    """
    arrays = {}
    for line in filter(str.strip, re.split(r"[;\n]", lines)):
        match = DECLARED.fullmatch(line)
        if match is None:
            raise SideError(f"inputs: {line.strip()!r} declares nothing; expected lines as {EXAMPLE!r}")
        name, kind = match["name"], match["kind"]
        shape = tuple(int(size) for size in re.findall(r"\d+", match["sizes"]))
        end = None if match["end"] is None else int(match["end"]) + (match["sign"] == "<=")
        if kind in ("int", "lengths") and not end:
            raise SideError(f"inputs: {name} needs an end: {name}: {kind} {shape} < 100")
        arrays[name] = _draw(name, kind, shape, end or 2, seed)
    return arrays


def _draw(name: str, kind: str, shape: tuple[int, ...], end: int, seed: int) -> np.ndarray:
    if kind == "float":
        return draws.uniform(name, shape, 1.0, seed)
    if kind == "int":
        return draws.integers(name, shape, end, seed)
    if kind == "bool":
        return draws.integers(name, shape, 2, seed) > 0
    if kind == "lengths":
        lens = 1 + draws.integers(name, shape, end - 1, seed).reshape(-1)
        lens[:1], lens[-1:] = end - 1, 1 if lens.size > 1 else end - 1
        return lens.reshape(shape)
    mask = np.ones(shape, bool)
    if mask.ndim and shape[-1] > 1:
        rows = mask.reshape(-1, shape[-1])
        for index, row in enumerate(rows):
            row[max(1, shape[-1] - 1 - index % 3) :] = index % 3 == 0
            row[1] &= index % 2 == 1 or shape[-1] < 4
        rows[-1, 1:] = len(rows) < 2
    return mask


def constants_of(inputs: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield what inputs do not show: what never varies, and axes of equal sizes, which could be mistaken."""
    for name, array in inputs.items():
        if array.size > 1 and not np.issubdtype(array.dtype, np.floating) and (array == array.flat[0]).all():
            yield f"{name} is {array.flat[0]} everywhere"
        elif array.ndim and array.shape[0] == 1:
            yield f"{name} has a batch of 1"
    sizes: dict[tuple[int, ...], list[str]] = {}
    for name, array in inputs.items():
        if len({size for size in array.shape if size > 1}) < sum(size > 1 for size in array.shape):
            sizes.setdefault(array.shape, []).append(name)
    for shape, names in sizes.items():
        yield f"axes of {', '.join(names)} have equal sizes: {shape}"
    lens = [name for name, array in inputs.items() if array.dtype.kind == "b" or "len" in name or "mask" in name]
    if not lens and any(math.prod(array.shape[:2]) > 1 for array in inputs.values()):
        yield "nothing is masked"
