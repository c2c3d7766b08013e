"""What makes a room self-evident: files that fit on a few screens, and packages that say what they are for."""

from __future__ import annotations

import ast
import re

import pytest

from parity_tests.tests.places import ROOT
from parity_tests.tests.structure.source import PACKAGES, parsed, sources

pytestmark = pytest.mark.once

LONGEST = 525
"""The most lines of a file without its docstrings. A file of more than 400 holds two things, or is a table, or a
backend's decoders: three classes around the steps that they have in common, which nobody would look for elsewhere."""

FLOW = re.compile(r"\b(go|goes) in[;,] .+ (come|comes) out\b")
"""What a first line does not say: a package has a purpose, of which inputs and outputs are the smaller part."""


def lines_of_code(module: ast.Module, source: str) -> int:
    """The lines of a file without its docstrings, which say the same in every backend."""
    documented = [node for node in ast.walk(module) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    docstrings = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    return len(source.splitlines()) - sum((node.end_lineno or 0) - node.lineno + 1 for node in docstrings)


@pytest.mark.parametrize("package", [*PACKAGES, "examples"])
def test_a_file_fits_on_a_few_screens(package: str):
    lengths = {
        str(path.relative_to(ROOT)): lines_of_code(parsed(path), path.read_text(encoding="utf-8"))
        for path in (ROOT / package).rglob("*.py")
    }
    assert lengths and not {path: length for path, length in lengths.items() if length > LONGEST}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_what_it_is_for(package: str):
    first = {
        str(path.relative_to(ROOT)): (ast.get_docstring(parsed(path)) or "").partition("\n")[0]
        for path in sources(package)
        if path.name == "__init__.py"
    }
    assert first and all(re.fullmatch(r"[A-Z].{10,118}[.:]", line) for line in first.values()), first
    assert not {path: line for path, line in first.items() if FLOW.search(line)}
    assert len({*first.values()}) == len(first)
