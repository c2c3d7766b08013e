"""Adapters: the function of the specification that calls a class, a module or a function with another signature."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from attention_core.operators import LAYERS, find
from attention_core.specification import Layer
from backends import FRAMEWORKS
from parity_tests.format.drawn import inputs_of
from parity_tests.workers.environment import requirements_of

CALLED = ("forward", "call", "__call__")
"""The methods that run when a layer is called."""


def adapters(package: Any, where: str) -> Iterator[str]:
    """Yield an adapter for each class of a module with a layer's name, else for its first class; or for one object."""
    place, _, path = (where, "", "") if where.endswith(".py") else where.partition(":")
    if path:
        found = {path: package} if callable(package) else {}
    else:
        found = {name: one for name, one in vars(package).items() if inspect.isclass(one) and call_of(one)}
        found = {name: one for name, one in found.items() if one.__module__ == package.__name__}
        exact = {name: one for name, one in found.items() if any(name == layer.name for layer in LAYERS)}
        found = exact or dict(list(found.items())[:1])
    framework = _backend(sys.modules)
    for name, one in found.items():
        yield adapter(_operator(name), place, name, framework, one)


def adapter(
    operator: str, place: str = "mine.py", path: str = "", framework: str = FRAMEWORKS[0], made: Any = None
) -> str:
    """The source of a function that calls what is at a place, or a class of the operator's name.

    made is the class or callable itself, whose signature is then used.
    """
    entry = find(operator)
    method = "call" if isinstance(entry, Layer) else ""
    inputs = {tensor.name: tensor.optional for tensor in inputs_of(entry, method)}
    module = Path(place).stem if place.endswith(".py") else place
    called = f"{module}.{path or operator}"
    options = [option.name for option in entry.options if option.default is None] if method else []
    taken = [name for name in options if not name.endswith("_size")]
    if inspect.isclass(made) or (made is None and method):
        names = options if made is None else _required_arguments(made)
        called += f"({', '.join(f'{name}={name}' if name in taken else f'{name}=...' for name in names)})"
    given = _matching_inputs(call_of(made), inputs)
    first = ["parameters"] * bool(method) + [name for name, optional in inputs.items() if not optional]
    optional = [f"{name}=None" for name in given.values() if inputs.get(name)]
    positional = [value for name, value in given.items() if not inputs.get(value)]
    keywords = {name: value for name, value in given.items() if inputs.get(value)}
    lines = [f"import {module}"]
    lines += [f"from backends.{framework} import runtime"] if framework else []
    lines += ["", "", f"def {operator}({', '.join([*first, *optional, *['*'] * bool(taken), *taken])}):"]
    lines += ["    # mask: True where a query may attend to a key"] * ("mask" in given.values())
    names = [parameter.name for parameter in entry.parameters] if isinstance(entry, Layer) else []
    lines += [f"    # its weights are those of parameters: {', '.join(names)}"] * bool(names)
    arguments = ", ".join([*positional, *(f"{name}={value}" for name, value in keywords.items())])
    lines += [f"    return {called}({arguments})"]
    return "\n".join(lines) + "\n"


def class_in(place: str, operator: str) -> type | None:
    """The class of a file that is called, by the operator's name or else the first, as its source has it, without code.

    Nothing is imported: the class has the names and the arguments of the file's.
    """
    try:
        classes = [node for node in ast.parse(_source(place)).body if isinstance(node, ast.ClassDef)]
    except SyntaxError:
        return None
    made = [_outline(node) for node in classes]
    made = [one for one in made if call_of(one)]
    return next((one for one in made if one.__name__ == operator), next(iter(made), None))


def _outline(node: ast.ClassDef) -> type:
    """A class whose methods have the arguments of the source, and do nothing."""
    methods: dict[str, Any] = {}
    for one in node.body:
        if isinstance(one, ast.FunctionDef):
            methods[one.name] = types.FunctionType((lambda: None).__code__, {}, one.name)
            methods[one.name].__signature__ = inspect.Signature([*_arguments(one.args)])
    return type(node.name, (), methods)


def _arguments(given: ast.arguments) -> Iterator[inspect.Parameter]:
    """The named arguments of a function's source; a default is None."""
    positional = [*given.posonlyargs, *given.args]
    required = len(positional) - len(given.defaults)
    for place, one in enumerate(positional):
        default = inspect.Parameter.empty if place < required else None
        yield inspect.Parameter(one.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
    for one, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        default = inspect.Parameter.empty if value is None else None
        yield inspect.Parameter(one.arg, inspect.Parameter.KEYWORD_ONLY, default=default)


def framework_of(place: str) -> str:
    """The backend of the framework that a file imports; empty if it imports none."""
    text = _source(place)
    imported = re.findall(r"^\s*(?:import|from)\s+(\w+)", text, re.MULTILINE)
    return _backend(imported)


def _source(place: str) -> str:
    return Path(place).read_text(encoding="utf-8", errors="replace") if Path(place).is_file() else ""


def _backend(imported: Collection[str]) -> str:
    """The backend of the first framework among imported packages; empty if there is none."""
    for name in FRAMEWORKS:
        needed = requirements_of(name)
        if needed is not None and any(package in imported for package in needed.distributions):
            return name
    return ""


def _operator(name: str) -> str:
    """The layer of that name, or of the most similar one."""
    names = [layer.name for layer in LAYERS]
    return next(iter(difflib.get_close_matches(name.rpartition(".")[2], names, 1, 0.85)), "DotProductAttention")


def call_of(made: Any) -> Callable[..., Any] | None:
    """What runs when the class's instance, or the callable, is called."""
    for name in CALLED:
        method = getattr(made, name, None)
        if inspect.isfunction(method) or inspect.ismethod(method):
            return method
    return made if inspect.isfunction(made) else None


def _required_arguments(made: Callable[..., Any]) -> Iterator[str]:
    """The arguments of a constructor that have no default."""
    for name, one in inspect.signature(made).parameters.items():
        if one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            yield name


def _matching_inputs(call: Callable[..., Any] | None, inputs: Mapping[str, bool]) -> dict[str, str]:
    """The input for each argument of a call, by the names' first letters; `...` for a required one that fits none."""
    if call is None:
        return {name: name for name, optional in inputs.items() if not optional or name == "mask"}
    given: dict[str, str] = {}
    for name, one in inspect.signature(call).parameters.items():
        if name == "self" or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        required = one.default is one.empty
        fits = [key for key in inputs if key == name or (key == "mask" and "mask" in name)]
        fits += [key for key, optional in inputs.items() if not optional and key.startswith(name[0])] * required
        fit = next((key for key in fits if key not in given.values()), "..." if required else "")
        if fit:
            given[name] = fit
    return given
