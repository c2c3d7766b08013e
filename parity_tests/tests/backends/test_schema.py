from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from backends.schema import DEEPEST, Range, SchemaError, build

Share = Annotated[float, Range(0, 1)]


@dataclass(frozen=True)
class Step:
    name: str
    share: Share = 0.0


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...]
    size: Annotated[int, Range(1, 100)]
    kind: Literal["a", "b"] = "a"
    further: Plan | None = None
    sizes: dict[str, int] | None = None

    def __post_init__(self) -> None:
        if self.size == 13:
            raise ValueError("13 is refused")


def nested(levels: int) -> list:
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (None, None, None),
        (bool, True, True),
        (int | None, None, None),
        (int | str, "x", "x"),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, str], [1, "a"], (1, "a")),
        (list[float], [1, 0.5], [1.0, 0.5]),
        (list, [1, {"a": None}], [1, {"a": None}]),
        (dict[str, int | None], {"a": 1, "b": None}, {"a": 1, "b": None}),
        (Literal["a", 1], 1, 1),
        (Annotated[str, Range(1, 3)], "abc", "abc"),
        (Any, nested(DEEPEST - 1), nested(DEEPEST - 1)),
        (Plan, {"steps": [{"name": "x", "share": 1}], "size": 100}, Plan((Step("x", 1.0),), 100)),
        (Plan, {"steps": [], "size": 1, "further": {"steps": [], "size": 2}}, Plan((), 1, further=Plan((), 2))),
    ],
)
def test_what_fits_is_made(kind: Any, value: object, expected: object):
    actual = build(kind, value)
    assert actual == expected and type(actual) is type(expected)


PLAN = {"steps": [{"name": "x"}], "size": 1}


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, True, "p: True, expected an integer"),
        (int, 1.0, "p: 1.0, expected an integer"),
        (bool, 1, "p: 1, expected true or false"),
        (float, math.nan, "p: nan, expected a finite number"),
        (float, 10**400, "p: an integer of 1329 bits, expected a finite number"),
        (float, True, "p: True, expected a finite number"),
        (Any, math.inf, "p: inf, expected plain data"),
        (Any, b"bytes", "p: b'bytes', expected plain data"),
        (str, None, "p: None, expected text"),
        (str, "\ud800", "p: '\\ud800' has a lone surrogate, which is no character"),
        (int, "\x1b[31m" + "x" * 999, f"p: '\\x1b[31m{'x' * 152}...', expected an integer"),
        (None, 0, "p: 0, expected null"),
        (int | None, "1", "p: '1', expected an integer or null"),
        (Literal["a", "b"], ["a"], "p: a list of 1, expected one of 'a', 'b'"),
        (Literal[1], True, "p: True, expected 1"),
        (Annotated[int, Range(1, 100)], 0, "p: 0, expected an integer from 1 to 100"),
        (Annotated[int, Range(1)] | None, 0, "p: 0, expected an integer at least 1 or null"),
        (Annotated[list[int], Range(0, 2)], [1] * 3, "p: a list of 3, expected a list of length from 0 to 2"),
        (tuple[int, int], [1], "p: a list of 1, expected a list of 2"),
        (list[int], [1, "a"], "p[1]: 'a', expected an integer"),
        (dict[str, int], {"a": {}}, "p.a: an object of 0, expected an integer"),
        (dict[str, int], {"\x1b": ""}, "p.'\\x1b': '', expected an integer"),
        (dict[str, int], {1: 1}, "p: 1, expected text"),
        (Plan, [], "p: a list of 0, expected an object"),
        (Plan, {}, "p.steps: missing"),
        (
            Plan,
            PLAN | {"__class__": 1},
            "p.__class__: there is no such entry, expected steps, size, kind, further, sizes",
        ),
        (
            Plan,
            PLAN | {"steps": [{"name": "x", "share": 2}]},
            "p.steps[0].share: 2, expected a finite number from 0 to 1",
        ),
        (Plan, PLAN | {"further": PLAN | {"size": 0}}, "p.further.size: 0, expected an integer from 1 to 100"),
        (Plan, PLAN | {"size": 13}, "p: 13 is refused"),
        (Plan, PLAN | {"sizes": {"a": 0.5}}, "p.sizes.a: 0.5, expected an integer"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(kind: Any, value: object, message: str):
    with pytest.raises(SchemaError) as refused:
        build(kind, value, "p")
    assert str(refused.value) == message


@pytest.mark.parametrize("kind", [Any, list, dict, Plan])
@pytest.mark.parametrize("levels", [DEEPEST + 2, 100_000])
def test_deep_data_are_refused(kind: Any, levels: int):
    value: Any = nested(levels)
    if kind in (dict, Plan):
        value = {}
        for _ in range(levels):
            value = PLAN | {"further": value}
    with pytest.raises(SchemaError, match="inside each other"):
        build(kind, value)


def test_json_becomes_a_dataclass():
    assert build(Plan, json.loads('{"steps": [{"name": "x"}], "size": 1, "kind": "b"}')) == Plan((Step("x"),), 1, "b")
