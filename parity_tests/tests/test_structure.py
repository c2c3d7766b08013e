"""The house, read from source alone: the same files, names, arguments and words in every backend; who imports whom."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from attention_core.operators import EXPORTED, FILES, FRAMEWORK_KEYWORDS, FRAMEWORKS, LAYERS, OPERATORS, UPDATES

ROOT = Path(__file__).parents[2]
PACKAGES = ("attention_core", "backends", "parity_tests")

Definition = ast.FunctionDef | ast.ClassDef


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def backend_file(framework: str, file: str) -> ast.Module:
    return parsed(ROOT / "backends" / framework / f"{file}.py")


def definitions(module: ast.Module | ast.ClassDef) -> dict[str, Definition]:
    return {node.name: node for node in module.body if isinstance(node, Definition)}


def members(module: ast.Module, made: ast.ClassDef) -> dict[str, Definition]:
    """What a class defines, itself or by a class of the same file that it derives from."""
    bases = [definitions(module).get(ast.unparse(base)) for base in made.bases]
    inherited = [members(module, base) for base in bases if isinstance(base, ast.ClassDef)]
    return {name: node for defined in (*inherited, definitions(made)) for name, node in defined.items()}


def exported(module: ast.Module) -> list[str]:
    for node in module.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    raise AssertionError("the file has no __all__")


def arguments(function: ast.FunctionDef, framework: str, known: Collection[str] = ()) -> str:
    """The argument list with defaults, without self, annotations, and the framework's own keywords.

    A keyword that the specification knows is not the framework's own.
    """
    own = {keyword for keyword in FRAMEWORK_KEYWORDS[framework] if keyword not in known}
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


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_backend_has_the_same_files(framework: str):
    files = {path.stem for path in (ROOT / "backends" / framework).glob("*.py")}
    assert files == {"__init__", *FILES}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_fast_paths_are_chosen_by_the_same_words(framework: str):
    found, first = (definitions(backend_file(name, "blocked")) for name in (framework, FRAMEWORKS[0]))
    for name in FILES["blocked"]:
        assert isinstance(found[name], ast.FunctionDef)
        assert arguments(found[name], framework) == arguments(first[name], FRAMEWORKS[0]), name
        assert first_line(found[name]) == first_line(first[name]), name
        assert any(
            isinstance(own, ast.Call) and ast.unparse(own.func) == "check_path" for own in ast.walk(found["force"])
        )


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_file_has_the_same_public_names_in_the_same_order(framework: str, file: str):
    module = backend_file(framework, file)
    assert exported(module) == list(FILES[file])
    assert [name for name in definitions(module) if name in FILES[file]] == list(FILES[file])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_package_exports_every_public_name(framework: str):
    assert sorted(exported(backend_file(framework, "__init__"))) == sorted(n for file in EXPORTED for n in FILES[file])


@pytest.mark.parametrize("operator", (*OPERATORS, *UPDATES), ids=lambda operator: operator.name)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_function_has_the_arguments_and_words_of_the_specification(framework: str, operator):
    function = definitions(backend_file(framework, operator.module))[operator.name]
    assert isinstance(function, ast.FunctionDef)
    known = {option.name for option in operator.options}
    assert arguments(function, framework, known) == operator.signature
    assert first_line(function) == operator.summary
    assert operator.formula.split(";")[0] in (ast.get_docstring(function) or "")


CALL = {"torch": "forward", "tf": "__call__", "jax": "__call__", "mxnet": "__call__"}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_layer_has_the_arguments_and_words_of_the_specification(framework: str, layer):
    module = backend_file(framework, layer.module)
    made = definitions(module)[layer.name]
    assert isinstance(made, ast.ClassDef)
    assert first_line(made) == layer.summary
    assert layer.formula.split(";")[0] in (ast.get_docstring(made) or "")
    methods = members(module, made)
    init = methods["__init__"]
    assert isinstance(init, ast.FunctionDef) and arguments(init, framework) == layer.signature
    for method in layer.methods:
        name = method.name.partition(".")[2]
        function = methods[CALL[framework] if name == "call" else name]
        assert isinstance(function, ast.FunctionDef)
        memory = method.signature.replace("memory.keys, memory.values, memory.mask=None", "memory")
        state = memory.replace("state.rnn, state.attentional, state.position", "state")
        assert arguments(function, framework) == state
        assert first_line(function) == method.summary


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


# ------------------------------------------------------------------------------------------------ who imports whom


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, by its full name, wherever the import stands."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module or ""


def sources(folder: str) -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if "tests" not in path.parts]


THIRD_PARTY = {"torch": {"torch"}, "tf": {"tensorflow", "keras"}, "jax": {"jax", "flax", "optax"}, "mxnet": {"mxnet"}}
ALL_FRAMEWORKS = set().union(*THIRD_PARTY.values())


def top(name: str) -> str:
    return name.partition(".")[0]


def test_the_specification_imports_numpy_alone():
    for path in sources("attention_core"):
        assert {top(name) for name in imports(path)} <= {"numpy", "attention_core", *sys.stdlib_module_names}, path


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_backend_imports_its_framework_and_the_data_of_the_specification(framework: str):
    for path in sources(f"backends/{framework}"):
        names = set(imports(path))
        others = ALL_FRAMEWORKS - THIRD_PARTY[framework]
        assert not {top(name) for name in names} & {"parity_tests", *others}, path
        assert {name for name in names if top(name) == "attention_core"} <= {
            "attention_core.errors",
            "attention_core.operators",
            "attention_core.sinusoids",
            "attention_core.specification",
        }, path
        assert {name for name in names if top(name) == "backends"} <= {
            "backends",
            *(f"backends.{framework}.{file}" for file in FILES),
            f"backends.{framework}",
        }, path


IN_WORKERS = {"torch": "torch", "keras": "tf", "flax": "jax", "mxnet": "mxnet", "onnx": "onnx"}
"""The modules of parity_tests/sources that are imported in a worker alone, and the framework of each."""


def in_a_worker(path: Path) -> bool:
    return path.parent.name == "sources" and path.stem in IN_WORKERS


PEERS = ROOT / "parity_tests" / "peers"
PEER_IMPORTS = {
    "torch": {"torch", "backends.torch"},
    "keras": {"keras", "tensorflow", "backends.tf"},
    "jax": {"jax", "backends.jax"},
    "flax": {"flax", "jax", "backends.jax"},
    "mxnet": {"mxnet", "backends.mxnet"},
    "onnx": {"onnx", "onnxruntime", "numpy"},
}
"""What each module of peers may import beside the standard library; they are imported in workers alone."""


BENCHED = {framework: ROOT / "parity_tests" / "bench" / f"{framework}.py" for framework in FRAMEWORKS}
"""Where the bench writes what it measures in a framework; imported in its worker processes alone."""


def court() -> list[Path]:
    """The sources of the court but for the peers, for what is measured, and for the layers that weights come from."""
    listed = [path for path in sources("parity_tests") if path.parent != PEERS or path.stem not in PEER_IMPORTS]
    return [path for path in listed if not in_a_worker(path) and path not in BENCHED.values()]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_measured_imports_its_framework_and_our_backend_for_it(framework: str):
    names = set(imports(BENCHED[framework]))
    assert not {top(name) for name in names} & (ALL_FRAMEWORKS - THIRD_PARTY[framework])
    assert {own for own in names if top(own) == "backends"} == {
        f"backends.{framework}",
        f"backends.{framework}.runtime",
    }
    own = {name for name in names if top(name) == "parity_tests"}
    assert own == {"parity_tests.bench.items", "parity_tests.bench.measure"}


def test_nothing_imports_what_is_measured():
    for folder in (*PACKAGES, "examples"):
        for path in sources(folder):
            assert not set(imports(path)) & {f"parity_tests.bench.{framework}" for framework in BENCHED}, path


@pytest.mark.parametrize("name", PEER_IMPORTS)
def test_a_peer_imports_its_framework_alone(name: str):
    own = PEER_IMPORTS[name]
    for imported in imports(PEERS / f"{name}.py"):
        assert imported in own or top(imported) in {*own, *sys.stdlib_module_names}, imported


def test_nothing_imports_a_peer():
    for folder in (*PACKAGES, "examples"):
        for path in sources(folder):
            assert not {name for name in imports(path) if name.startswith("parity_tests.peers.")}, path


def test_every_module_of_peers_is_listed():
    assert {path.stem for path in PEERS.glob("*.py")} == {"__init__", *PEER_IMPORTS}


def test_the_weights_import_numpy_and_the_data_of_the_specification():
    """What reads a kind of file is imported where one is read, and a framework's own table where it is asked for."""
    for path in sources("backends/weights"):
        names = set(imports(path))
        third_party = {top(name) for name in names} - set(sys.stdlib_module_names) - {"attention_core", "backends"}
        assert third_party <= {"numpy", "ml_dtypes"}, path
        assert {name for name in names if top(name) == "attention_core"} <= {
            "attention_core.errors",
            "attention_core.operators",
            "attention_core.specification",
        }, path
        assert {name for name in names if top(name) == "backends"} <= {
            "backends",
            "backends.weights",
            *(name for name in names if name.startswith("backends.weights.")),
        }, path


def test_the_court_imports_no_framework_and_no_backend():
    for path in court():
        names = set(imports(path))
        assert not {top(name) for name in names} & ALL_FRAMEWORKS, path
        assert not {name for name in names if name.startswith("backends.") and name.split(".")[1] != "weights"}, path
        assert not {name for name in names if name.startswith("parity_tests.sources.") and name.split(".")[2] != "own"}


@pytest.mark.parametrize(("module", "framework"), IN_WORKERS.items())
def test_a_source_runs_in_its_own_framework_alone(module: str, framework: str):
    names = set(imports(ROOT / "parity_tests" / "sources" / f"{module}.py"))
    assert {top(name) for name in names} & ALL_FRAMEWORKS <= THIRD_PARTY.get(framework, set())
    assert {name for name in names if name.startswith("backends.")} <= {f"backends.{framework}"}
    own = {name for name in names if top(name) == "parity_tests"}
    assert own <= {"parity_tests.sources", "parity_tests.sources.own", "parity_tests.target"}


def test_a_worker_needs_numpy_and_safetensors_alone():
    """Another environment has no click and no rich: what a worker imports must not ask for them."""
    seen: set[str] = set()
    waiting = ["parity_tests.worker"]
    while waiting:
        name = waiting.pop()
        if name in seen or top(name) not in PACKAGES:
            seen.add(name)
            continue
        seen.add(name)
        base = ROOT.joinpath(*name.split("."))
        waiting += imports(base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py")
    third_party = {top(name) for name in seen} - set(PACKAGES) - set(sys.stdlib_module_names)
    assert third_party == {"numpy", "safetensors", "ml_dtypes"}  # the last one only where there is a bfloat16


@pytest.mark.parametrize("folder", PACKAGES)
def test_nothing_is_evaluated_or_unpickled(folder: str):
    for path in sources(folder):
        assert not set(imports(path)) & {"pickle", "marshal", "shelve", "dill"}, path
        called = {ast.unparse(node.func) for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)}
        assert not called & {"eval", "exec", "compile"}, path


def test_examples_use_public_names_alone():
    for path in (ROOT / "examples").rglob("*.py"):
        for name in imports(path):
            parts = name.split(".")
            assert not any(part.startswith("_") and part != "__future__" for part in parts), path
            if parts[0] == "backends":
                assert len(parts) <= 2, f"{path} imports {name}: take it from the backend's package"
