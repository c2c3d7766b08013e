"""The source as data: files, their syntax trees, and what they import."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attention_core import operators
from attention_core.operators import FILE_OF, OF_FILES
from attention_core.specification import Layer, Operator
from backends import FRAMEWORKS
from parity_tests.tests.places import ROOT

INSTALLED = ("attention_core", "backends", "parity_tests")
"""The packages of the wheel."""
PACKAGES = (*INSTALLED, "benchmarks", "tools")
THIRD_PARTY = {"torch": {"torch"}, "tf": {"tensorflow", "keras"}, "jax": {"jax", "flax", "optax"}, "mxnet": {"mxnet"}}
ALL_FRAMEWORKS = set().union(*THIRD_PARTY.values())
Definition = ast.FunctionDef | ast.ClassDef


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def sources(folder: str) -> tuple[Path, ...]:
    """The files in a folder, without the tests."""
    return tuple(path for path in sorted((ROOT / folder).rglob("*.py")) if "tests" not in path.relative_to(ROOT).parts)


def module_of(path: Path) -> str:
    """The full name of a file's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    """Whether that is a module or package of this repository."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, by its full name, wherever the import stands."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if top(full) in PACKAGES and is_module(full) else str(node.module)


def backend_file(framework: str, file: str) -> ast.Module:
    """A file of a backend; an empty one where the backend does without."""
    path = ROOT / "backends" / framework / f"{file}.py"
    return parsed(path) if path.exists() else ast.Module([], [])


def definitions(module: ast.Module | ast.ClassDef) -> dict[str, Definition]:
    """The functions and classes of a file, or the methods of a class, by name."""
    return {node.name: node for node in module.body if isinstance(node, Definition)}


def unlisted() -> dict[str, str]:
    """What files of the specification define and do not list in their OPERATORS, by name: the place that forgot it."""
    places = {}
    for file in OF_FILES:
        module = importlib.import_module(f"{operators.__name__}.{file}")
        assigned = [node for node in parsed(Path(str(module.__file__))).body if isinstance(node, ast.Assign)]
        for name in (ast.unparse(target) for node in assigned for target in node.targets):
            entry = getattr(module, name, None)
            if isinstance(entry, Operator | Layer) and "." not in entry.name and entry.name not in FILE_OF:
                places[entry.name] = f"OPERATORS of attention_core/operators/{file}.py does not list {name}"
    return places


def written(entries: Iterable[Operator | Layer]) -> list[Any]:
    """Parameters of a test: each backend with each entry that it defines; test_places.py reports the others."""
    return [
        pytest.param(framework, entry, id=f"{framework}-{entry.name}")
        for framework in FRAMEWORKS
        for entry in entries
        if entry.name in definitions(backend_file(framework, FILE_OF[entry.name]))
    ]


def public(framework: str, file: str) -> list[str]:
    """The public names of a file of a backend, in order: none where it does not say."""
    return exported(backend_file(framework, file))


def exported(module: ast.Module) -> list[str]:
    """The names in the `__all__` of a file, in order."""
    for node in module.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return []


def files_of(framework: str) -> list[str]:
    """The files of a backend by their names inside it: "attention", "blocked/additive"."""
    folder = ROOT / "backends" / framework
    found = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py") if path.stem != "__init__")
    return sorted(map(str, found))


FILES = files_of("torch")
"""The files that every backend has."""


def top(name: str) -> str:
    return name.partition(".")[0]
