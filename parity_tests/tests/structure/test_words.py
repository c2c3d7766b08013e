"""Words: names say what they name, and no text has a retired word or a retired phrase.

Texts are what a reader sees: docstrings, help texts, messages of errors, and the pages of the documentation.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from parity_tests.tests.places import ROOT
from parity_tests.tests.structure import source
from parity_tests.tests.structure.source import parsed

pytestmark = pytest.mark.once

PACKAGES = (*source.PACKAGES, "examples")
VAGUE = {"own", "told", "said", "asked", "wanted", "lacking", "unmet"}
RETIRED = {"saboteur", "sabotage", "tier", "stranger", "peers", "budget", "unmet", "proof", "unproved"}
"""Words that have been replaced, as whole words of names and texts; a plural counts, too."""
IN_NAMES = {"perceptron", "court"}
"""Words that are retired in names alone: a score is a perceptron, and a translation has a court."""
PHRASES = (
    "closed row",
    "half tier",
    "let through",
    "said in",
    "said of",
    "of others",
    "of ours",
    "of yours",
    "anybody",
    "somebody",
    "whoever",
    "proved?",
    "proven",
    "(is|are) said",
    "as it was given",
    "costs its own",
    "from a size on",
    "so manieth",
    "moves as it is",
    "(is|are|be|being) told",
    "(is|are|be|being) held (against|to)",
    "(hold|holding|holds) (it |them |each )?against",
    "what it is asked",
    "asked for what",
    "by the thousand",
    "no weights (make up for|turn into)",
    "softmax takes back",
    "a court",
)
"""Phrases that read as everyday speech where the field has a word, as regular expressions between word boundaries."""
WORDS = re.compile(rf"\b({'|'.join([rf'{word}s?' for word in sorted(RETIRED)] + list(PHRASES))})\b", re.IGNORECASE)
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"))
HELPS = {"help", "short_help", "epilog"}
PRINTS = {"print", "echo", "Text", "fail", "skip", "warn"}


def names(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a file defines, with its line."""
    for node in ast.walk(module):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name


def strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The literal text in an expression, with its line; the values in an f-string are left out."""
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, " ".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from strings(child)


def docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of modules, classes, functions and constants: of a command, the docstring is its help text."""
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield from strings(node)


def helps(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The help texts of commands and options."""
    for node in ast.walk(module):
        if isinstance(node, ast.keyword) and node.arg in HELPS:
            yield from strings(node.value)


def messages(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The texts of raised exceptions, and those that are printed."""
    for node in ast.walk(module):
        if isinstance(node, ast.Raise) and node.exc is not None:
            yield from strings(node.exc)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in PRINTS:
            yield from (text for argument in node.args for text in strings(argument))


def files_of(package: str) -> Iterator[Path]:
    return (path for path in (ROOT / package).rglob("*.py") if path != Path(__file__))


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT).as_posix()}:{line}"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_says_what_it_names(package: str):
    """Tests may still be vague: their names are sentences."""
    files = [path for path in files_of(package) if "tests" not in path.relative_to(ROOT).parts]
    defined = [(path, line, name) for path in files for line, name in names(parsed(path))]
    vague = [f"{place(path, line)}: {name}" for path, line, name in defined if name.strip("_").lower() in VAGUE]
    assert files and not vague, "\n".join(vague)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_has_a_retired_word(package: str):
    files = list(files_of(package))
    retired = {word + plural for word in RETIRED | IN_NAMES for plural in ("", "s")}
    defined = [(path, line, name) for path in files for line, name in names(parsed(path))]
    found = [f"{place(path, line)}: {name}" for path, line, name in defined if retired & {*name.lower().split("_")}]
    found += [f"{place(path, 1)}: the file's name" for path in files if retired & {*path.stem.split("_")}]
    assert files and not found, "\n".join(found)


@pytest.mark.parametrize("kind", [docstrings, helps, messages], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("package", PACKAGES)
def test_no_text_has_a_retired_word(package: str, kind: Callable[[ast.Module], Iterator[tuple[int, str]]]):
    texts = [(path, line, text) for path in files_of(package) for line, text in kind(parsed(path))]
    found = [f"{place(path, line)}: {words[0]!r}" for path, line, text in texts if (words := search(text))]
    assert not found, "\n".join(found)
    assert texts or package != "parity_tests", f"no {kind.__name__}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_page_has_a_retired_word(page: Path):
    text = page.read_text(encoding="utf-8")
    found = [
        f"{place(page, text.count(chr(10), 0, match.start()) + 1)}: {match[0]!r}" for match in WORDS.finditer(text)
    ]
    assert not found, "\n".join(found)


def search(text: str) -> re.Match[str] | None:
    return WORDS.search(" ".join(text.split()))
