"""The names file: which input, output, parameter and sublayer of the actual side is which of the expected one."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from backends.schema import SchemaError, build
from parity_tests.models.sides import SideError

PARTS = ("inputs", "outputs", "parameters", "sublayers")


@dataclass(frozen=True)
class ParameterEntry:
    """The arrays of the expected side that a parameter is, or is a part of, and how."""

    names: tuple[str, ...]
    axes: str = ""
    part: int = 0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.scale == 0.0:
            raise ValueError("scale is 0: leave the parameter out instead")


@dataclass(frozen=True)
class Names:
    """Names of the actual side, each with its name on the expected side.

    In names of parameters and sublayers, `{}` stands for a number, the same in both. An input or output may be a table:
    {name = "images", axes = [0, 3, 1, 2]} for the order of the expected array's axes on the actual side, {name =
    "mask", inverted = true} for a mask of the other polarity, and {value = 0} for an input that the other side lacks. A
    parameter may be one as well: {name = "c_attn.weight", axes = "i (3 h) -> 3 i h", part = 0} for the first of three
    that are one array on the expected side, {names = ["q", "k", "v"], axes = "3 i h -> i (3 h)"} for one that is three
    there, and scale = 0.5 for what the expected array is multiplied by.
    """

    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    parameters: Mapping[str, ParameterEntry] = field(default_factory=dict)
    sublayers: Mapping[str, str] = field(default_factory=dict)

    def parameter(self, actual: str) -> ParameterEntry | None:
        """What a parameter is on the expected side, if it is listed."""
        pattern, numbers = _find(self.parameters, actual)
        if pattern is None:
            return None
        entry = self.parameters[pattern]
        return replace(entry, names=tuple(_fill(name, numbers) for name in entry.names))

    def without_partner(self, parameters: Iterable[str]) -> list[str]:
        """The entries for parameters that none of these names matches."""
        matching = {_find(self.parameters, name)[0] for name in parameters}
        return [pattern for pattern in self.parameters if pattern not in matching]

    def sublayer(self, actual: str) -> str | None:
        """The path of a sublayer on the expected side, if it is listed."""
        pattern, numbers = _find(self.sublayers, actual)
        return None if pattern is None else _fill(self.sublayers[pattern], numbers)

    def actual_inputs(self, expected: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inputs as the actual side takes them."""
        listed = {_name_in(entry) for entry in self.inputs.values()}
        given = {name: array for name, array in expected.items() if name not in listed}
        for name, entry in self.inputs.items():
            if isinstance(entry, Mapping) and "value" in entry:
                like = expected.get(str(entry.get("like")), next(iter(expected.values())))
                given[name] = np.full(like.shape, entry["value"], np.asarray(entry["value"]).dtype)
            else:
                given[name] = _arrange(expected[_name_in(entry)], entry)
        return given

    def expected_gradient(self, actual: str, array: np.ndarray) -> tuple[str, np.ndarray]:
        """The name and arrangement on the expected side of an input's gradient."""
        entry = self.inputs.get(actual, actual)
        return _name_in(entry), _arrange_back(array, entry)

    def expected_output(self, actual: str, array: np.ndarray) -> tuple[str, np.ndarray]:
        """The name and arrangement on the expected side of an output."""
        entry = self.outputs.get(actual, actual)
        return _name_in(entry), _arrange_back(array, entry)

    def actual_output(self, actual: str, array: np.ndarray) -> np.ndarray:
        """An array of the expected output, such as a cotangent, as the actual side has it."""
        return _arrange(array, self.outputs.get(actual, actual))

    def check(self, given: Mapping[str, np.ndarray]) -> None:
        """Refuse names of inputs that there are not.

        Raises: SideError.
        """
        for name, entry in self.inputs.items():
            other = _name_in(entry)
            if other and other not in given:
                raise SideError(
                    f"names: [inputs] {name} = {other!r}, but there is no input {other!r}, only {', '.join(given)}"
                )


def read_names(given: str | Path | Mapping[str, Any] | Names | None) -> Names:
    """The names of a file, or of a mapping with its parts.

    Raises: SideError if it is no such file.
    """
    if given is None or isinstance(given, Names):
        return given or Names()
    if not isinstance(given, Mapping):
        try:
            given = tomllib.loads(Path(given).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise SideError(f"{given}: it cannot be read as TOML: {error}") from error
    if unknown := [part for part in given if part not in PARTS]:
        raise SideError(f"names: there is no part [{unknown[0]}], only {', '.join(PARTS)}")
    parameters = {name: _parameter_entry(name, entry) for name, entry in given.get("parameters", {}).items()}
    return Names(**{**given, "parameters": parameters})


def _name_in(entry: Any) -> str:
    return str(entry.get("name", "")) if isinstance(entry, Mapping) else str(entry)


def _arrange(array: np.ndarray, entry: Any) -> np.ndarray:
    if not isinstance(entry, Mapping):
        return array
    array = array.transpose(entry["axes"]) if "axes" in entry else array
    if entry.get("inverted"):
        array = ~array if array.dtype == bool else 1 - array
    return array


def _arrange_back(array: np.ndarray, entry: Any) -> np.ndarray:
    return array.transpose(np.argsort(entry["axes"])) if isinstance(entry, Mapping) and "axes" in entry else array


def _find(patterns: Iterable[str], name: str) -> tuple[str | None, Sequence[str]]:
    """The first pattern that a name matches, and the numbers in place of its `{}`."""
    for pattern in patterns:
        if match := re.fullmatch(re.escape(pattern).replace(r"\{\}", r"(\d+)"), name):
            return pattern, match.groups()
    return None, ()


def _fill(name: str, numbers: Sequence[str]) -> str:
    for number in numbers:
        name = name.replace("{}", number, 1)
    return name


def _parameter_entry(name: str, entry: Any) -> ParameterEntry:
    """The entry of a parameter: the name on the expected side, or a table.

    Raises: SideError if it is neither.
    """
    table = {"name": entry} if isinstance(entry, str) else entry
    if isinstance(table, Mapping) and ("name" in table) != ("names" in table):
        table = {**table, "names": [table["name"]] if "name" in table else table["names"]}
        table.pop("name", None)
    try:
        made: ParameterEntry = build(ParameterEntry, table, f"[parameters] {name}")
    except SchemaError as error:
        raise SideError(f"names: {error}") from error
    return made
