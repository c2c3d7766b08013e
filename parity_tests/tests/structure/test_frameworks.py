"""A framework is at home in its backend: the specification names none, and no table of the judge has a row for one."""

from __future__ import annotations

import ast
import re

import pytest

from backends import FRAMEWORKS, idiom_of
from parity_tests.tests.places import ROOT
from parity_tests.tests.structure.source import ALL_FRAMEWORKS, FILES, backend_file, parsed, sources

pytestmark = pytest.mark.once

NAMES = {*FRAMEWORKS, *ALL_FRAMEWORKS, *(idiom_of(framework).title.lower() for framework in FRAMEWORKS)}
WORD = re.compile(rf"\b({'|'.join(sorted(NAMES))})\b", re.IGNORECASE)
CITATION = re.compile(r'source=\(?(\s*"[^"]*")+|Source:.*?(?="""|\n\s*\n|\n\s*\w+:\n)', re.DOTALL)
"""The `source=` of an entry, and the `Source:` of a docstring up to its next paragraph: what is cited has its name."""


def test_the_specification_names_no_framework_but_in_a_citation():
    named = {
        f"{path.relative_to(ROOT)}: {found[0]}"
        for path in sources("attention_core")
        for found in WORD.finditer(CITATION.sub("", path.read_text(encoding="utf-8")))
    }
    assert not named


def test_the_judge_asks_a_backend_what_its_framework_needs():
    """A fifth backend edits no file here. What is about libraries, and not about backends, names them."""
    libraries = {"third_party", "behaviour", "models"}
    named = {
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path in sources("parity_tests")
        if not libraries & {*path.relative_to(ROOT).parts}
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and str(node.value).lower() in NAMES
    }
    assert not named


def test_mxnet_is_imperative_with_one_backward_by_hand():
    """No graph mode: a block that overrides forward ignores `hybridize` silently, so none is made for it."""
    classes = [
        node for file in FILES for node in ast.walk(backend_file("mxnet", file)) if isinstance(node, ast.ClassDef)
    ]
    bases = [ast.unparse(base) for made in classes for base in made.bases]
    methods = {node.name for made in classes for node in made.body if isinstance(node, ast.FunctionDef)}
    assert bases.count("autograd.Function") == 1
    assert not methods & {"hybrid_forward", "hybridize"} and not [base for base in bases if "Hybrid" in base]
