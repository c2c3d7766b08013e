"""Every option has an example or a document: what nobody can see in use has no place in a signature."""

from __future__ import annotations

import importlib
import re
from functools import partial
from types import SimpleNamespace

import click
import numpy as np
import pytest

from attention_core.operators import ENTRIES
from attention_core.specification import Layer
from parity_tests.tests.checkout import COMMANDS
from parity_tests.tests.places import ROOT

pytestmark = pytest.mark.once

PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tutorials").glob("*.md")]
EXAMPLES = [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".md", ".py", ".c")]
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in [*PAGES, *EXAMPLES])
FLAGS = sorted(
    {
        tuple(sorted(dict.fromkeys([*option.opts, *option.secondary_opts]), key=len))
        for command in COMMANDS.values()
        for option in command.params
        if isinstance(option, click.Option)
    }
)
METHODS = [method for entry in ENTRIES for method in (entry.methods if isinstance(entry, Layer) else ())]
OPTIONS = sorted({option.name for entry in (*ENTRIES, *METHODS) for option in entry.options})


@pytest.mark.parametrize("flags", FLAGS, ids=" ".join)
def test_an_option_of_a_command_has_an_example_or_a_document(flags: tuple[str, ...]):
    assert any(re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", TEXT) for flag in flags)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_the_specification_has_an_example_or_a_document(name: str):
    """As an argument of a call, or in code within a sentence."""
    assert re.search(rf'(?<!\w){name} ?=(?!=)|"{name}":|`[^`\n]*(?<!\w){name}(?!\w)[^`\n]*`', TEXT)


PORTING = (ROOT / "docs" / "porting.md").read_text(encoding="utf-8")
MODELS = PORTING.partition("## Models as options")[2].partition("\n## ")[0]
LINES = re.findall(r"^\|.*\| `(.*)` \|$", MODELS, re.MULTILINE)
LAYERS = {entry.name for entry in ENTRIES if isinstance(entry, Layer)}


@pytest.mark.parametrize("line", LINES)
def test_a_model_as_options_is_made(line: str, backend: SimpleNamespace):
    """The lines of docs/porting.md, in each framework."""
    package, name = backend.package, line.partition("(")[0]
    made = getattr(package, name)
    if backend.name == "jax" and name in LAYERS:
        made = partial(made, rngs=importlib.import_module("flax.nnx").Rngs(0))
    arrays = {
        "mask": backend.runtime.from_numpy(np.tri(3, dtype=bool)[None]),
        "additive_mask": backend.runtime.from_numpy(np.zeros((1, 3, 3), np.float32)),
    }
    assert eval(line, {**arrays, name: made}) is not None
