"""Validation of plain data from JSON and TOML against annotations: a schema is a dataclass."""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

DEEPEST = 64
"""The maximum nesting depth of objects and lists."""

LONGEST_SHOWN = 160
"""The maximum number of characters of a value in a message."""

_WORDS = {bool: "true or false", int: "an integer", float: "a finite number", str: "text", type(None): "null"}
_SURROGATE = re.compile("[\ud800-\udfff]")


class SchemaError(ValueError):
    """Data do not match their schema; the message has the path of the invalid entry."""

    def __init__(self, path: str, what: str):
        super().__init__(f"{path}: {what}" if path else what)
        self.path = path


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of an annotated number, Annotated[int, Range(1, 100)], or of the length of another value."""

    low: float
    high: float = math.inf


def build(kind: Any, value: Any, path: str = "") -> Any:
    """Check plain data against an annotation, and build its dataclasses.

    kind: a dataclass, int (no bool), float (finite; an integer becomes one), str, bool, None, a union, tuple, list,
    dict[str, X], Literal, Annotated[X, Range(low, high)], or Any. An object for a dataclass has every field that has no
    default, and no other names. path: the path of the value, for messages.

    Raises: SchemaError with the path of the invalid entry, also if a dataclass raises ValueError.
    """
    return _build(kind, value, path, 0)


def clean(value: object) -> str:
    """An untrusted value, shortened and safe to print."""
    if isinstance(value, (Mapping, list, tuple)):
        return f"{'an object' if isinstance(value, Mapping) else 'a list'} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > LONGEST_SHOWN:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to write one of more than 4,300 digits
    text = str(value)
    text = text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."
    return ascii(text) if isinstance(value, str) or not (text.isascii() and text.isprintable()) else text


def _build(kind: Any, value: Any, path: str, depth: int) -> Any:
    if depth > DEEPEST:
        raise SchemaError(path, f"more than {DEEPEST} objects and lists inside each other")
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        made = _build(arguments[0], value, path, depth)
        size = made if isinstance(made, (int, float)) else len(made)
        if not all(bound.low <= size <= bound.high for bound in arguments[1:]):
            raise _type_error(kind, value, path)
        return made
    if origin in (Union, types.UnionType):
        return _one_of(kind, value, path, depth)
    if is_dataclass(kind):
        return _build_dataclass(kind, value, path, depth)
    base = origin or kind
    if isinstance(value, dict) and base in (Any, dict, Mapping):
        inner = arguments[1] if arguments else Any
        return {name: _build(inner, one, _below(path, name), depth + 1) for name, one in _names(value, path)}
    if isinstance(value, (list, tuple)) and base in (Any, list, tuple, Sequence):
        fixed = base is tuple and arguments and ... not in arguments
        kinds = arguments if fixed else (arguments[0] if arguments else Any,) * len(value)
        if len(kinds) != len(value):
            raise _type_error(kind, value, path)
        pairs = enumerate(zip(kinds, value, strict=True))
        entries = [_build(one, entry, f"{path}[{at}]", depth + 1) for at, (one, entry) in pairs]
        return tuple(entries) if base is tuple else entries
    return _scalar(kind, value, path)


def _scalar(kind: Any, value: Any, path: str) -> Any:
    if kind is Any:
        fits = type(value) in _WORDS and (type(value) is not float or math.isfinite(value))
    elif get_origin(kind) is Literal:
        fits = any(type(value) is type(one) and value == one for one in get_args(kind))
    elif kind is float:
        fits = type(value) in (int, float) and abs(value) <= sys.float_info.max
    else:
        fits = type(value) is (type(None) if kind is None else kind)
    if not fits:
        raise _type_error(kind, value, path)
    if isinstance(value, str) and _SURROGATE.search(value):
        raise SchemaError(path, f"{clean(value)} has a lone surrogate, which is no character")
    return float(value) if kind is float else value


def _one_of(kind: Any, value: Any, path: str, depth: int) -> Any:
    """The value as the first matching member of a union; otherwise, raise the error from the deepest path."""
    worst = _type_error(kind, value, path)
    for one in get_args(kind):
        try:
            return _build(one, value, path, depth)
        except SchemaError as error:
            worst = error if len(error.path) > len(worst.path) else worst
    raise worst


def _build_dataclass(kind: Any, value: Any, path: str, depth: int) -> Any:
    if not isinstance(value, dict):
        raise _type_error(kind, value, path)
    hints, known = _hints(kind), [field for field in fields(kind) if field.init]
    for name, _ in _names(value, path):
        if name not in {field.name for field in known}:
            names = ", ".join(field.name for field in known)
            raise SchemaError(_below(path, name), f"there is no such entry, expected {names}")
    for field in known:
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise SchemaError(_below(path, field.name), "missing")
    made = {name: _build(hints[name], one, _below(path, name), depth + 1) for name, one in value.items()}
    try:
        return kind(**made)
    except SchemaError:
        raise
    except ValueError as error:
        raise SchemaError(path, str(error)) from error


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _names(value: dict[Any, Any], path: str) -> Iterable[tuple[str, Any]]:
    for name in value:
        _scalar(str, name, path)
    return value.items()


def _below(path: str, name: str) -> str:
    """The path of an entry, safe to print."""
    name = name if name.isidentifier() and name.isascii() and len(name) <= LONGEST_SHOWN else clean(name)
    return f"{path}.{name}" if path else name


def _type_error(kind: Any, value: Any, path: str) -> SchemaError:
    return SchemaError(path, f"{clean(value)}, expected {_words(kind)}")


def _words(kind: Any) -> str:
    """Describe an annotation."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = ", ".join(
            f"at least {bound.low}" if bound.high == math.inf else f"from {bound.low} to {bound.high}"
            for bound in arguments[1:]
        )
        of_length = "" if arguments[0] in (int, float) else " of length"
        return f"{_words(arguments[0])}{of_length} {bounds}"
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, arguments))
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(map(repr, arguments))
    if origin is tuple and ... not in arguments:
        return f"a list of {len(arguments)}"
    base = origin or kind
    default = "a list" if base in (list, tuple, Sequence) else "plain data" if base is Any else "an object"
    return _WORDS.get(type(None) if base is None else base, default)
