"""The words of the house: names that say less than the thing they name, or that nobody outside uses, are not taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from parity_tests.tests.places import ROOT

pytestmark = pytest.mark.once

PACKAGES = ("attention_core", "backends", "parity_tests", "examples")
VAGUE = {"own", "told", "said", "asked", "wanted", "lacking", "unmet"}
PRIVATE = {"saboteur", "sabotage", "tier", "tiers", "stranger", "strangers", "peers", "court", "perceptron"}


def names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a file gives, with its line."""
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name


def files_of(package: str) -> Iterator[tuple[str, ast.Module]]:
    for path in (ROOT / package).rglob("*.py"):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_says_what_it_names(package: str):
    """Tests may still be vague: their names are sentences."""
    files = [(place, module) for place, module in files_of(package) if not place.startswith("parity_tests/tests/")]
    vague = [f"{place}:{at}: {name}" for place, file in files for at, name in names(file) if name.strip("_") in VAGUE]
    assert files and not vague, "\n".join(vague)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_has_a_word_of_our_own(package: str):
    files = list(files_of(package))
    private = [f"{place}:{at}: {n}" for place, file in files for at, n in names(file) if PRIVATE & {*n.split("_")}]
    assert files and not private, "\n".join(private)
