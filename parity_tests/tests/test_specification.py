"""The specification agrees with itself and with the reference."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

from attention_core import reference
from attention_core.operators import EXPORTED, FILES, LAYERS, OPERATORS, find
from attention_core.specification import Layer, Operator

METHODS = [(layer, method) for layer in LAYERS for method in layer.methods]


def python_signature(function: object) -> str:
    """A signature as the specification writes it: names, defaults, the star; no self, no annotations."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))[1:-1]


def test_names_are_unique():
    names = [entry.name for entry in (*OPERATORS, *LAYERS)]
    assert len(set(names)) == len(names)
    assert find("GRU").name == "GRU"
    with pytest.raises(KeyError, match="no operator 'grue'; there are attention_mask, causal_mask"):
        find("grue")


@pytest.mark.parametrize("entry", (*OPERATORS, *LAYERS), ids=lambda entry: entry.name)
def test_every_entry_says_what_it_is_and_where_it_is_from(entry: Operator | Layer):
    assert entry.summary.endswith(".") and len(entry.summary) < 120
    assert "=" in entry.formula
    assert re.search(r"\d{4}, (section|doi:)|this specification", entry.source)
    assert entry.name in FILES[entry.module]


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
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
    memory = re.sub(r"memory\.keys, memory\.values, memory\.mask(=None)?", "memory", method.signature)
    assert python_signature(function) == memory
    assert inspect.getdoc(function).splitlines()[0] == method.summary


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_every_canonical_array_is_described(layer: Layer):
    config = {option.name: 3 for option in layer.options if option.default is None} | {"num_layers": 2}
    described = {parameter.name for parameter in layer.parameters}
    named = {
        ".".join("{layer}" if part.isdigit() else part for part in name.split("."))
        for name in layer.shapes(layer.sizes(config))
    }
    assert described == named


def test_the_package_exports_what_the_files_hold():
    assert sorted(reference.__all__) == sorted(name for file in EXPORTED for name in FILES[file])


def test_importing_the_specification_brings_numpy_alone():
    loaded = "import sys, attention_core; print(*{name.partition('.')[0] for name in sys.modules})"
    names = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout.split()
    third_party = set(names) - set(sys.stdlib_module_names) - {"attention_core", "__main__"}
    assert {name for name in third_party if not name.startswith(("_", "sitecustomize"))} <= {"numpy"} | {
        name for name in third_party if name.startswith("__editable__")
    }
