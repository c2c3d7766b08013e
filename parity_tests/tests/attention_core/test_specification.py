"""The specification agrees with itself and with the reference."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from attention_core import reference
from attention_core.errors import OptionError, check_options
from attention_core.operators import ENTRIES, EXPORTED, FILE_OF, LAYERS, OPERATORS, find
from attention_core.operators.training import UPDATES
from attention_core.specification import Layer, Operator, pattern
from parity_tests.tests.structure.source import public

METHODS = [(layer, method) for layer in LAYERS for method in layer.methods]


def python_signature(function: object) -> str:
    """A signature as the specification writes it: names, defaults, the star; no self, no annotations."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))[1:-1]


def tuples_named(signature: str) -> str:
    """The signature as Python has it: the fields of a memory and of a state are one argument."""
    memory = re.sub(r"memory\.keys, memory\.values, memory\.mask(=None)?", "memory", signature)
    return re.sub(r"state\.\w+, state\.\w+, state\.\w+", "state", memory)


def configurations(layer: Layer) -> Iterator[dict[str, Any]]:
    """Constructor's arguments: the least there are, and each choice of words and flags on its own."""
    least = {option.name: 4 for option in layer.options if option.default is None}
    stacked = any(option.name == "positions" for option in layer.options)
    yield least
    for option in layer.options:
        for value in option.choices or ((True, False) if option.type == "bool" else ()):
            config = {**least, option.name: value}
            if option.name == "alignment" and value != "global":
                config["window"] = 2
            if value == "location":
                config["num_positions"] = 5
            if value == "learned" and option.name == "positions":
                config["num_positions"] = 5
            if value == "relative":
                config["num_buckets"] = 4
            if option.name == "rotary_layout" or value == "rotary":
                config |= {"num_heads": 2, **({"positions": "rotary"} if stacked else {})}
            if option.name == "input_feeding" and layer.name == "Translator":
                config["decoder"] = "luong"
            if option.name == "bridge":
                config["bidirectional"] = True
            yield config


def test_names_are_unique():
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names)
    assert find("GRU").name == "GRU"
    with pytest.raises(KeyError, match="no operator 'grue'; there are attention_mask, causal_mask"):
        find("grue")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_entry_has_a_summary_and_a_source(entry: Operator | Layer):
    assert entry.summary.endswith(".") and len(entry.summary) < 120
    assert "=" in entry.formula
    assert re.search(r"\d{4}, (section|algorithm|doi:)|this specification", entry.source)


@pytest.mark.parametrize("operator", (*OPERATORS, *UPDATES), ids=lambda operator: operator.name)
def test_the_reference_of_a_function_has_its_signature_and_words(operator: Operator):
    function = getattr(reference, operator.name)
    assert python_signature(function) == operator.signature
    assert inspect.getdoc(function).splitlines()[0] == operator.summary
    assert operator.formula.split(";")[0] in inspect.getdoc(function)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_the_reference_of_a_layer_has_its_signature_and_words(layer: Layer):
    made = getattr(reference, layer.name)
    assert python_signature(made.__init__) == layer.signature
    assert inspect.getdoc(made).splitlines()[0] == layer.summary


@pytest.mark.parametrize(("layer", "method"), METHODS, ids=lambda entry: entry.name)
def test_the_reference_of_a_method_has_its_signature_and_words(layer: Layer, method: Operator):
    name = method.name.partition(".")[2]
    function = getattr(getattr(reference, layer.name), "__call__" if name == "call" else name)
    assert python_signature(function) == tuples_named(method.signature)
    assert inspect.getdoc(function).splitlines()[0] == method.summary


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_every_canonical_array_and_every_part_is_described(layer: Layer):
    arrays, parts = set(), set()
    for config in configurations(layer):
        sizes = layer.sizes(
            {**config, **({"num_layers": 2} if "num_layers" in {o.name for o in layer.options} else {})}
        )
        arrays |= {pattern(name) for name in layer.own_shapes(sizes)}
        parts |= {pattern(name) for name in layer.inside(sizes)}
        assert set(layer.shapes(sizes)) == set(layer.fans(sizes))
        assert all(fan > 0 for fan in layer.fans(sizes).values())
        made = getattr(reference, layer.name)(**config)
        assert {name: array.shape for name, array in made.parameters.items()} == layer.shapes(made.sizes)
    assert arrays == {parameter.name for parameter in layer.parameters}
    assert parts == set(layer.parts)


def test_what_would_be_ignored_or_is_missing_is_refused():
    for name, config, words in (
        (
            "LocalAttention",
            {"hidden_size": 3},
            "LocalAttention: hidden_size is 3, expected None: mode='monotonic' with",
        ),
        ("LocalAttention", {"score": "dot", "key_size": 5}, "a key has 5 features but a query 4, and score='dot'"),
        ("HardAttention", {"num_positions": 3}, "num_positions is 3, expected None: score='additive' scores keys"),
        ("HardAttention", {"score": "location"}, "num_positions is None, expected a value: score='location'"),
        ("MultiHeadAttention", {"num_heads": 3}, "hidden_size is 4, expected a multiple of num_heads, which is 3"),
        ("Bridge", {"output_size": 3}, "output_size is 3, expected None: method='concatenate'"),
        ("BahdanauDecoder", {"maxout_size": 3}, "maxout_size is 3, expected None: readout='dense'"),
        ("BahdanauDecoder", {"score": "general", "attention_size": 3}, "hidden size is 3, expected None"),
        ("LuongDecoder", {"window": 3}, "window is 3, expected None: alignment='global'"),
        ("LuongDecoder", {"alignment": "monotonic"}, "window is None, expected a value: alignment='monotonic'"),
        ("SinusoidalPositions", {"features": 3}, "features is 3, expected an even number of at least 2"),
        (
            "SinusoidalPositions",
            {"layout": "mixed"},
            "layout is 'mixed', expected one of 'interleaved', 'concatenated'",
        ),
        ("RotaryPositions", {"base": -1.0}, "base is -1.0, expected a finite number above 0"),
        ("GRU", {"bidirectional": 1}, "bidirectional is 1, expected True or False"),
        ("Translator", {"decoder": "fixed", "score": "dot"}, "score is 'dot', expected None: decoder='fixed' has no"),
        ("Translator", {"decoder": "luong", "readout": "dense"}, "readout is 'dense', expected None: decoder='luong'"),
        ("Translator", {"input_feeding": "none"}, "is 'none', expected None: decoder='bahdanau' has no input feeding"),
        ("Translator", {"decoder": "luong", "reads": "both"}, "reads is 'both', expected None: decoder='luong' reads"),
        ("Translator", {"bridge": "sum"}, "bridge is 'sum', expected None: an encoder of one direction needs none"),
        ("Translator", {"bidirectional": True, "score": "dot"}, "a key has 8 features but a query 4, and score='dot'"),
        ("KernelAttention", {"width": 0.0}, "width is 0.0, expected a finite number above 0"),
    ):
        layer = find(name)
        assert isinstance(layer, Layer)
        needed = {option.name: 4 for option in layer.options if option.default is None}
        for refusing in (getattr(reference, name), partial(check_options, layer)):
            with pytest.raises(OptionError, match=re.escape(words)):
                refusing(**{**needed, **config})


def test_the_package_exports_beside_what_is_specified_what_a_backend_does():
    beside = [name for file in EXPORTED for name in public("torch", file) if name not in FILE_OF]
    assert sorted(name for name in reference.__all__ if name not in FILE_OF) == sorted(beside)


def test_importing_the_specification_brings_numpy_alone():
    loaded = "import sys, attention_core; print(*{name.partition('.')[0] for name in sys.modules})"
    names = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    third_party = set(names) - set(sys.stdlib_module_names) - {"attention_core", "__main__"}
    assert {name for name in third_party if not name.startswith(("_", "sitecustomize"))} <= {"numpy"} | {
        name for name in third_party if name.startswith("__editable__")
    }
