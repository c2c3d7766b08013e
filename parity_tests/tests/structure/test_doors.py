"""One call, one check: public functions and methods check, and nothing behind them does, or is public."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from attention_core.operators import FILE_OF, LAYERS, OF_FILES, OPERATORS
from backends import FRAMEWORKS, idiom_of
from parity_tests.tests.structure.source import FILES, backend_file, definitions, written
from parity_tests.tests.structure.test_mirror import members

DOORS = {operator.name for operator in OPERATORS}
METHODS = {method.name.partition(".")[2] for layer in LAYERS for method in layer.methods} - {"call"}
ATTRIBUTES = {"specification", *(name for layer in LAYERS for name in layer.parts)}


def called(node: ast.AST) -> Iterator[str]:
    """What is called in a function: names, and attributes with what they are taken from."""
    for own in ast.walk(node):
        if isinstance(own, ast.Call):
            yield ast.unparse(own.func)


def checks(node: ast.AST) -> list[str]:
    """The checks of a call, as they are written."""
    return [name for name in called(node) if name in ("check", "self._check")]


@pytest.mark.parametrize(("framework", "operator"), written(OPERATORS))
def test_a_function_checks_once(framework: str, operator):
    function = definitions(backend_file(framework, FILE_OF[operator.name]))[operator.name]
    assert len([name for name in called(function) if name in ("check", "check_options")]) == 1
    assert not set(called(function)) & DOORS, "call the formula with an underscore: this one checks again"


@pytest.mark.parametrize(("framework", "layer"), written(LAYERS))
def test_a_public_method_checks_once(framework: str, layer):
    module = backend_file(framework, FILE_OF[layer.name])
    made = definitions(module)[layer.name]
    assert isinstance(made, ast.ClassDef)
    own = members(module, made)
    for method in layer.methods:
        name = method.name.partition(".")[2]
        function = own[idiom_of(framework).call if name == "call" else name]
        assert len(checks(function)) == 1, name
        again = {f"self.{other}" for other in METHODS} | {f"self.attention.{other}" for other in METHODS}
        assert not set(called(function)) & again, f"{name} calls what checks again"


@pytest.mark.parametrize("file", [file for file in FILES if file != "training"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_behind_a_door_checks_nothing(framework: str, file: str):
    """A Trainer alone is made of doors, as a loop of its users would be."""
    module = backend_file(framework, file)
    functions = dict(definitions(module))
    for made in definitions(module).values():
        functions |= {f"{made.name}.{name}": node for name, node in definitions(made).items()}
    doors = DOORS | {f"{owner}.{name}" for owner in ("self", "super()", "self.attention") for name in METHODS}
    for name, node in functions.items():
        owner, _, own = name.rpartition(".")
        door = own in DOORS or own == "_check" or (owner and own in {*METHODS, idiom_of(framework).call})
        if isinstance(node, ast.FunctionDef) and not door:
            assert not set(called(node)) & doors, f"{name} calls what checks again"
            assert not checks(node), f"{name} checks"


@pytest.mark.parametrize("file", [file for file in OF_FILES if file != "training"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_not_specified_begins_with_an_underscore(framework: str, file: str):
    for name, made in definitions(backend_file(framework, file)).items():
        if isinstance(made, ast.ClassDef) and "NamedTuple" not in map(ast.unparse, made.bases):
            stated = [
                node.targets[0] if isinstance(node, ast.Assign) else node.target
                for node in made.body
                if isinstance(node, ast.Assign | ast.AnnAssign)
            ]
            public = {own for own in map(ast.unparse, stated) if not own.startswith("_")}
            assert public <= ATTRIBUTES, f"{name}: {public - ATTRIBUTES}"
