"""The mirror, read from source alone: the same files, names, arguments and words in every backend."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection

import pytest

from attention_core.errors import DtypeError, MaskError, OptionError, ShapeError, TokenError
from attention_core.operators import EXPORTED, FILE_OF, LAYERS, OF_FILES, OPERATORS, exports
from attention_core.operators.training import UPDATES
from backends import FRAMEWORKS, idiom_of, read_requirements
from parity_tests.tests.places import ROOT
from parity_tests.tests.structure.source import (
    FILES,
    Definition,
    backend_file,
    definitions,
    files_of,
    parsed,
    public,
    top,
    written,
)
from tools.docstrings import bases_of


def imported(module: ast.Module) -> list[str]:
    """What a file takes from the ground floor of its backend, to hand it on."""
    found = [node for node in module.body if isinstance(node, ast.ImportFrom) and str(node.module).endswith(".arrays")]
    return [alias.name for node in found for alias in node.names]


def located(module: ast.Module, name: str) -> tuple[ast.Module, ast.ClassDef] | None:
    """The class of that name, in a file or in the file of its backend that it is imported from."""
    found = definitions(module).get(name)
    if isinstance(found, ast.ClassDef):
        return module, found
    for node in module.body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            package, _, file = str(node.module).rpartition(".")
            return located(backend_file(package.partition(".")[2], file), name) if top(package) == "backends" else None
    return None


def members(module: ast.Module, made: ast.ClassDef) -> dict[str, Definition]:
    """What a class defines, itself or by a class of its backend that it derives from."""
    inherited = [members(*found) for base in bases_of(made) if (found := located(module, base))]
    return {name: node for defined in (*inherited, definitions(made)) for name, node in defined.items()}


def keywords(framework: str) -> tuple[str, ...]:
    """The keywords that the framework's users expect behind the shared arguments."""
    found = read_requirements(f"backends.{framework}")
    assert found is not None
    return found.keywords


def arguments(function: ast.FunctionDef, framework: str, known: Collection[str] = ()) -> str:
    """The argument list with defaults, without self, annotations, and the framework's own keywords.

    A keyword that the specification knows is not the framework's own.
    """
    own = {keyword for keyword in keywords(framework) if keyword not in known}
    given = function.args
    assert given.vararg is None and given.kwarg is None, f"{function.name} swallows arguments that it does not name"
    names = [argument.arg for argument in given.posonlyargs + given.args]
    defaults = [None] * (len(names) - len(given.defaults)) + [ast.unparse(default) for default in given.defaults]
    listed = [name if default is None else f"{name}={default}" for name, default in zip(names, defaults, strict=True)]
    shared, later = [], []
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        text = argument.arg if default is None else f"{argument.arg}={ast.unparse(default)}"
        (later if argument.arg in own else shared).append(text)
        assert argument.arg in own or not later, f"{argument.arg} of {function.name} follows a keyword of {framework}"
    listed = [text for text in listed if text not in ("self",)]
    return ", ".join(listed + (["*", *shared] if shared else []))


def first_line(node: Definition) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


ABSENT = {
    ("mxnet", "blocked/additive"): {"blocked_additive_attention"},
    **{("mxnet", f"blocked/{file}"): {"*"} for file in ("blocks", "dot_product", "decoder_steps")},
    ("jax", "blocked/decoder_steps"): {"*"},
    **{(framework, "graphs"): {"*"} for framework in ("tf", "mxnet")},
}
"""What a backend does without: MXNet is there to be left, and has the fast path of additive scores alone; XLA compiles
the steps of JAX's decoders as one; Keras and Gluon ask no layer for what PyTorch's and JAX's transformations do."""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_backend_has_the_same_files(framework: str):
    assert files_of(framework) == [file for file in FILES if ABSENT.get((framework, file)) != {"*"}]
    assert {*OF_FILES} <= {*FILES}


def test_the_reference_has_the_files_of_the_backends():
    files = {path.stem for path in (ROOT / "attention_core" / "reference").glob("*.py")} - {"__init__"}
    assert {*OF_FILES, "search"} <= files <= {*FILES}


def mirrored(framework: str, file: str) -> list[str]:
    """The public names that a file has to have beside those specified, in order: those of the first backend."""
    absent = ABSENT.get((framework, file), set())
    return [name for name in public(FRAMEWORKS[0], file) if name not in FILE_OF and not absent & {name, "*"}]


@pytest.mark.parametrize("file", ["kernels", *(file for file in FILES if file.startswith("blocked/"))])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_fast_paths_are_chosen_by_the_same_words(framework: str, file: str):
    found, first = (definitions(backend_file(name, file)) for name in (framework, FRAMEWORKS[0]))
    for name in mirrored(framework, file):
        function, model = found[name], first[name]
        assert isinstance(function, ast.FunctionDef) and isinstance(model, ast.FunctionDef)
        assert arguments(function, framework) == arguments(model, FRAMEWORKS[0]), name
        assert first_line(function) == first_line(model), name
        called = {ast.unparse(own.func) for own in ast.walk(function) if isinstance(own, ast.Call)}
        assert name != "set_path" or "check_path" in called


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_file_has_the_same_public_names_in_the_same_order(framework: str, file: str):
    module, names = backend_file(framework, file), public(framework, file)
    assert [name for name in names if name not in FILE_OF] == mirrored(framework, file)
    assert [name for name in (*imported(module), *definitions(module)) if name in names] == names
    specified = [entry.name for entry in (*OF_FILES.get(file, ()), *UPDATES) if FILE_OF[entry.name] == file]
    assert [name for name in names if name in FILE_OF] == [name for name in specified if name in names]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_package_exports_every_public_name(framework: str):
    package = backend_file(framework, "__init__")
    stars = [node.module for node in package.body if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"]
    assert sorted(map(str, stars)) == sorted(f"backends.{framework}.{file}" for file in EXPORTED)
    (listed,) = (ast.unparse(node.value) for node in package.body if isinstance(node, ast.Assign))
    assert listed == "exports(__name__)"
    assert len({*exports("attention_core.reference")}) == sum(len(public(framework, file)) for file in EXPORTED)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_package_states_the_errors_of_every_function(framework: str):
    """Once, and no docstring repeats them."""
    package = backend_file(framework, "__init__")
    text = ast.get_docstring(package) or ""
    general = {error.__name__ for error in (ShapeError, DtypeError, MaskError, OptionError, TokenError)}
    assert {*re.findall(r"\b\w+Error\b(?=.*: )", text)} == general
    sentences = re.findall(r"^    .*Error: (.+)$", text, re.MULTILINE)
    assert len(sentences) == 4
    for file in OF_FILES:
        source = (ROOT / "backends" / framework / f"{file}.py").read_text(encoding="utf-8")
        assert not [sentence for sentence in sentences if sentence in source], file


@pytest.mark.parametrize(("framework", "operator"), written((*OPERATORS, *UPDATES)))
def test_a_function_has_the_arguments_of_the_specification(framework: str, operator):
    function = definitions(backend_file(framework, FILE_OF[operator.name]))[operator.name]
    assert isinstance(function, ast.FunctionDef)
    known = {option.name for option in operator.options}
    assert arguments(function, framework, known) == operator.signature


@pytest.mark.parametrize(("framework", "layer"), written(LAYERS))
def test_a_layer_has_the_arguments_of_the_specification(framework: str, layer):
    module = backend_file(framework, FILE_OF[layer.name])
    made = definitions(module)[layer.name]
    assert isinstance(made, ast.ClassDef)
    methods = members(module, made)
    init = methods["__init__"]
    assert isinstance(init, ast.FunctionDef) and arguments(init, framework) == layer.signature
    for method in layer.methods:
        name = method.name.partition(".")[2]
        function = methods[idiom_of(framework).call if name == "call" else name]
        assert isinstance(function, ast.FunctionDef)
        memory = method.signature.replace("memory.keys, memory.values, memory.mask=None", "memory")
        state = re.sub(r"state\.\w+, state\.\w+, state\.\w+", "state", memory)
        assert arguments(function, framework) == state


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_trainer_has_the_arguments_and_words_of_the_reference(framework: str):
    """It is no layer: the reference is its specification, but for the random numbers, which a framework has alone."""
    wanted = definitions(parsed(ROOT / "attention_core" / "reference" / "training.py"))["Trainer"]
    made = definitions(backend_file(framework, "training"))["Trainer"]
    assert isinstance(wanted, ast.ClassDef) and isinstance(made, ast.ClassDef)
    assert first_line(made) == first_line(wanted)
    own, theirs = definitions(made), definitions(wanted)
    for name in ("__init__", "step", "evaluate", "get_state", "set_state"):
        found, function = own[name], theirs[name]
        assert isinstance(found, ast.FunctionDef) and isinstance(function, ast.FunctionDef)
        assert arguments(found, framework) == arguments(function, framework)
    seed = own["seed"]
    assert isinstance(seed, ast.FunctionDef) and arguments(seed, framework) == "number"


@pytest.mark.parametrize("file", FILES)
def test_what_a_file_defines_beside_is_called_the_same_in_torch_and_jax(file: str):
    """The two that people compare most: their helpers have the same names in the same order."""
    names = [list(definitions(backend_file(framework, file))) for framework in ("torch", "jax")]
    shared = [[name for name in own if name in names[0] and name in names[1]] for own in names]
    assert shared[0] == shared[1]


MIRRORED = [file for file in FILES if not file.startswith("blocked/") and file not in ("graphs", "requirements")]
"""The files whose definitions are compared: a fast path has no formula to mirror, what a transformation needs is the
framework's, and requirements are data."""
CALLS = ("forward", "__call__", "call")
"""What a call of a layer enters, in any framework."""


def methods(framework: str, file: str) -> dict[str, list[str]]:
    """The methods of each class of a file, in order."""
    made = definitions(backend_file(framework, file))
    return {name: list(definitions(node)) for name, node in made.items() if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("file", MIRRORED)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_one_backend_alone_has_is_marked_as_particular(framework: str, file: str):
    """Functions and classes stand under a heading at the end of their file, methods behind a mark in their class."""
    source = (ROOT / "backends" / framework / f"{file}.py").read_text(encoding="utf-8").splitlines()
    headings = [number for number, line in enumerate(source, 1) if re.fullmatch(r"# -+ particular to \w+", line)]
    marks = [number for number, line in enumerate(source, 1) if re.fullmatch(r" +# particular to \w+", line)]
    others = [other for other in FRAMEWORKS if other != framework]
    defined = {name for other in others for name in definitions(backend_file(other, file))}
    unmarked = []
    for name, node in definitions(backend_file(framework, file)).items():
        if name not in defined:
            unmarked += [name] if not headings or node.lineno < headings[0] else []
        elif isinstance(node, ast.ClassDef):
            known = {method for other in others for method in methods(other, file).get(name, ())} | {*CALLS}
            mark = next((number for number in marks if node.lineno < number < (node.end_lineno or 0)), len(source))
            unmarked += [
                f"{name}.{own}" for own, at in definitions(node).items() if own not in known and at.lineno < mark
            ]
    assert not unmarked


@pytest.mark.parametrize("file", MIRRORED)
@pytest.mark.parametrize(("framework", "other"), [*itertools.combinations(FRAMEWORKS, 2)])
def test_classes_have_their_methods_in_the_same_order(framework: str, other: str, file: str):
    own, theirs = methods(framework, file), methods(other, file)
    for name in own.keys() & theirs.keys():
        common = {*own[name]} & {*theirs[name]} - {*CALLS}
        assert [one for one in own[name] if one in common] == [one for one in theirs[name] if one in common], name
