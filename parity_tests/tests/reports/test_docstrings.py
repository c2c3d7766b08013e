"""Docstrings are written from the specification, and their examples run."""

from __future__ import annotations

import importlib
import textwrap
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core.operators import FILE_OF, LAYERS, OPERATORS
from attention_core.specification import Layer
from backends import FRAMEWORKS, idiom_of
from parity_tests.reports import docstrings
from parity_tests.tests.places import ROOT


def test_the_page_and_the_docstrings_are_those_of_the_specification():
    pages = docstrings.pages()
    old = [str(path.relative_to(ROOT)) for path, text in pages if path.read_text(encoding="utf-8") != text]
    assert not old, f"run attention-parity operators --write, which rewrites {', '.join(old)}"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_docstring_that_drifts_is_written_again_and_the_words_about_the_framework_stay(framework: str):
    source = docstrings.path_of(framework, "scoring").read_text(encoding="utf-8")
    texts, title = docstrings.docstrings(framework, "scoring"), idiom_of(framework).title
    own = source.replace("Score each query", "Score every query").replace(
        "    scores = attention.dot_score(queries, keys)\n",
        f"    scores = attention.dot_score(queries, keys)\n\n    In {title}: something of its own.\n",
    )
    assert own != source
    assert docstrings.written(own, texts, title) == own.replace("Score every query", "Score each query")


SIZES = {
    "batch": 2,
    "heads": 2,
    "queries": 3,
    "keys": 5,
    "steps": 4,
    "features": 8,
    "value_features": 6,
    "one": 1,
    "query_size": 8,
    "key_size": 10,
    "hidden_size": 12,
    "embed_size": 7,
    "input_size": 7,
    "key_features": 8,
    "num_queries": 3,
    "num_keys": 5,
    "num_heads": 2,
    "num_positions": 9,
    "positions": 9,
    "num_layers": 1,
    "vocab_size": 11,
    "source_vocab_size": 11,
    "target_vocab_size": 13,
    "window": 2,
    "left": 1,
    "right": 2,
    "size": 2,
    "stride": 2,
}
"""What the examples of docstrings name, and the axes of their arrays."""
TYPES = {"floating": "float32", "integer": "int32", "boolean": "bool"}


@pytest.mark.parametrize("entry", [*OPERATORS, *LAYERS], ids=lambda entry: entry.name)
def test_the_example_runs(backend: SimpleNamespace, entry):
    example = docstrings.docstrings(backend.name, FILE_OF[entry.name])[entry.name].partition("Example:\n")[2]
    given = {option.name: SIZES[option.name] for option in entry.options if option.name in SIZES and not option.default}
    sizes, call = (entry.sizes(given), entry.method("call")) if isinstance(entry, Layer) else (given, entry)
    axes = {**SIZES, **{axis: size for axis, size in sizes.items() if size is not None}}
    names: dict[str, Any] = dict(given)
    for tensor in call.inputs:
        shape = [axes[axis] for axis in tensor.axes if not axis.endswith("?")]
        names[tensor.name] = backend.runtime.from_numpy(np.ones(shape, TYPES[tensor.kind]))
    names |= {"attention": backend.package, "losses": lambda factors: factors[:, 0]}
    if backend.name == "jax":
        names["nnx"] = importlib.import_module("flax.nnx")
    exec(textwrap.dedent(example), names)
    first = example.strip().splitlines()[-1].strip().partition(" = ")[0].partition(", ")[0]
    assert hasattr(names[first], "shape")
