"""Docstrings are written from the specification, and their examples run."""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core import reference
from attention_core.operators import FILE_OF, LAYERS, OF_FILES, OPERATORS
from attention_core.specification import Layer, Operator, Rule
from backends import FRAMEWORKS
from parity_tests.reports.operators_page import call_of, example
from parity_tests.tests.places import ROOT
from tools import docstrings


def test_the_page_and_the_docstrings_are_those_of_the_specification():
    pages = docstrings.pages()
    old = [str(path.relative_to(ROOT)) for path, text in pages if path.read_text(encoding="utf-8") != text]
    assert not old, f"run python -m tools.docstrings, which rewrites {', '.join(old)}"


@pytest.mark.parametrize("room", docstrings.ROOMS)
def test_a_docstring_that_drifts_is_written_again_and_the_words_about_the_framework_stay(room: str):
    source = docstrings.path_of(room, "scoring").read_text(encoding="utf-8")
    texts, title = docstrings.docstrings(room, "scoring"), docstrings.idiom(room).title
    last = texts["dot_score"].rpartition("\n")[2]
    own = source.replace("Score each query", "Score every query").replace(
        f"    {last}\n", f"    {last}\n\n    In {title}: something of its own.\n", 1
    )
    assert own != source
    assert docstrings.rewrite(own, texts, title) == own.replace("Score every query", "Score each query")


MAX_LINES = 65
"""The lines of torch.nn.MultiheadAttention's docstring, which nobody needs to scroll twice; torch.nn.GRU has 127."""


@pytest.mark.parametrize("file", OF_FILES)
@pytest.mark.parametrize("room", docstrings.ROOMS)
def test_a_docstring_is_no_longer_than_that_of_a_layer_of_pytorch(room: str, file: str):
    source = docstrings.path_of(room, file).read_text(encoding="utf-8")
    lines = {name: text.count("\n") + 1 for name, text in docstrings.existing(source).items()}
    assert {*docstrings.docstrings(room, file)} <= {*lines}
    assert not {name: count for name, count in lines.items() if count > MAX_LINES}


SIZES = {
    "batch": 2,
    "heads": 2,
    "layers": 3,
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
    "num_buckets": 8,
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
    "rank": 3,
    "num_inducing": 3,
    "blocks": 3,
    "previous_steps": 2,
    "height": 4,
    "width": 6,
    "channels": 3,
    "patch_size": 2,
    "num_classes": 5,
}
"""What the examples of docstrings name, and the axes of their arrays."""
TYPES = {"floating": "float32", "integer": "int32", "boolean": "bool"}


ENTRIES = pytest.mark.parametrize("entry", [*OPERATORS, *LAYERS], ids=lambda entry: entry.name)


@ENTRIES
def test_the_examples_run(backend: SimpleNamespace, entry: Operator | Layer):
    run_examples(backend.name, backend.package, backend.runtime.from_numpy, entry)


@ENTRIES
def test_the_examples_of_the_reference_run(entry: Operator | Layer):
    run_examples(docstrings.REFERENCE, reference, np.asarray, entry)


def example_of(room: str, entry: Operator | Layer) -> str:
    """The example in the docstring of a function or layer; the reference's is that of the operators page."""
    if room != docstrings.REFERENCE:
        return docstrings.docstrings(room, FILE_OF[entry.name])[entry.name].partition("Example:\n")[2]
    lines = example(entry, room) if isinstance(entry, Layer) else [call_of(entry)]
    return "\n".join(lines)


def run_examples(room: str, package: ModuleType, from_numpy: Callable[[np.ndarray], Any], entry: Operator | Layer):
    """Run the example of a function or layer."""
    given = {option.name: SIZES[option.name] for option in entry.options if option.name in SIZES and not option.default}
    sizes, call = (entry.sizes(given), entry.method("call")) if isinstance(entry, Layer) else (given, entry)
    axes = {**SIZES, **{axis: size for axis, size in sizes.items() if size is not None}}
    names: dict[str, Any] = dict(given)
    for tensor in call.inputs:
        shape = [axes[axis] for axis in tensor.axes if not axis.endswith("?")]
        names[tensor.name] = from_numpy(np.ones(shape, TYPES[tensor.kind]))
    names |= {"attention": package, "losses": lambda factors: factors[:, 0]}
    if room == "jax":
        names["nnx"] = importlib.import_module("flax.nnx")
    text = example_of(room, entry)
    exec(textwrap.dedent(text), names)
    first = text.strip().splitlines()[-1].strip().partition(" = ")[0].partition(", ")[0]
    assert hasattr(names[first], "shape")


@pytest.mark.parametrize("room", FRAMEWORKS)
def test_each_function_and_layer_has_an_example_and_no_method_repeats_it(room: str):
    texts = {name: text for file in OF_FILES for name, text in docstrings.docstrings(room, file).items()}
    counts = {name: len(text.partition("Example:\n")[2].splitlines()) for name, text in texts.items()}
    functions = {operator.name for operator in OPERATORS}
    assert counts == {name: 0 if "." in name or name[:1] == "_" else 1 if name in functions else 2 for name in texts}


def test_the_reference_has_summary_formula_and_notes_alone():
    texts = [text for file in OF_FILES for text in docstrings.docstrings(docstrings.REFERENCE, file).values()]
    assert texts and not [text for text in texts if re.search(r"^(Args|Returns|Raises|Source|Example)\b", text, re.M)]


RULES = {
    rule for entry in (*OPERATORS, *LAYERS) for method in getattr(entry, "methods", [entry]) for rule in method.rules
}


@pytest.mark.parametrize("rule", sorted(RULES, key=lambda rule: rule.__name__), ids=lambda rule: rule.__name__)
def test_a_docstring_says_what_a_rule_refuses(rule: Rule):
    assert re.fullmatch(r"(Shape|Option|Token)Error: [a-z].*[^.]", docstrings.refusal(rule))
