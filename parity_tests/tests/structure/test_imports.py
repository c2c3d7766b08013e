"""Who imports whom, read from source alone."""

from __future__ import annotations

import ast
import graphlib
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from attention_core.operators import ENTRIES
from backends import FRAMEWORKS
from benchmarks.items import TOOLKITS
from parity_tests.tests.places import ROOT
from parity_tests.tests.structure.source import (
    ALL_FRAMEWORKS,
    FILES,
    INSTALLED,
    PACKAGES,
    THIRD_PARTY,
    imports,
    module_of,
    parsed,
    sources,
    top,
)

pytestmark = pytest.mark.once

ATTENTION = ROOT / "parity_tests" / "third_party" / "attention"
SIGNATURES = "parity_tests.third_party.signatures"
KERAS = "parity_tests.third_party.keras_heads"
IMPORTED_BY_ATTENTION = {
    "torch": {"torch", "backends.torch", "backends.torch.runtime"},
    "keras": {"keras", "tensorflow", "backends.tf", "backends.tf.runtime", KERAS},
    "keras_torch": {"keras", "backends.torch", "backends.torch.runtime", KERAS},
    "keras_jax": {"keras", "backends.jax", "backends.jax.runtime", KERAS},
    "jax": {"jax", "backends.jax", "backends.jax.runtime"},
    "flax": {"flax", "jax", "backends.jax", "backends.jax.runtime"},
    "mxnet": {"mxnet", "backends.mxnet", "backends.mxnet.runtime"},
    "onnx": {"onnx", "onnxruntime", "numpy"},
    "mlx": {"mlx", "ml_dtypes", "numpy"},
}
"""What other people's attention may import beside the standard library."""

LAYERS = ROOT / "parity_tests" / "third_party" / "layers"
FRAMEWORK_OF_LAYERS = {
    "torch": "torch",
    "transformers": "torch",
    "keras": "tf",
    "flax": "jax",
    "mxnet": "mxnet",
    "onnx": "onnx",
}
"""The framework of each module of other people's layers."""

SIDES = ("torch", "keras", "flax", "mxnet", "onnx")
"""The adapters of models of each framework."""

BENCH = {name: ROOT / "benchmarks" / f"{name}.py" for name in (*FRAMEWORKS, *TOOLKITS.values())}
TEXTBOOK = {name: ROOT / "benchmarks" / "textbook" / f"{name}.py" for name in FRAMEWORKS}

IN_WORKERS = (
    *(ATTENTION / f"{name}.py" for name in IMPORTED_BY_ATTENTION),
    *(LAYERS / f"{name}.py" for name in FRAMEWORK_OF_LAYERS),
    ROOT.joinpath(*KERAS.split(".")).with_suffix(".py"),
    *(ROOT / "parity_tests" / "models" / f"{name}.py" for name in SIDES),
    *BENCH.values(),
    *TEXTBOOK.values(),
)
"""The files beside the backends that import a framework; a worker imports them, by name, and nothing else does."""


def in_order(graph: Mapping[str, set[str]]) -> bool:
    """Whether no way leads from a node back to it.

    Raises: CycleError with the circle, if one does.
    """
    return bool(list(graphlib.TopologicalSorter(graph).static_order()))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_leads_back(package: str):
    assert in_order({module_of(path): {*imports(path)} - {module_of(path)} for path in sources(package)})


def test_no_way_leads_back_to_a_room():
    rooms: dict[str, set[str]] = defaultdict(set)
    for path in sources("parity_tests"):
        _, *own = module_of(path).split(".")
        others = {name.split(".")[1] for name in imports(path) if name.startswith("parity_tests.")}
        rooms["".join(own[:1])] |= others - {*own[:1]}
    assert in_order(rooms)


@pytest.mark.parametrize("package", INSTALLED)
def test_nothing_that_is_installed_imports_what_is_not(package: str):
    own = {*PACKAGES, "examples", "docs"} - {*INSTALLED}
    for path in (ROOT / package).rglob("*.py"):
        if ROOT / "parity_tests" / "tests" not in path.parents:
            assert not own & {top(name) for name in imports(path)}, path


def test_the_tests_beside_the_wheel_import_what_is_installed():
    """Those of the folders that .ci/dist copies, and what these import of other tests."""
    tests = ROOT / "parity_tests" / "tests"
    (folders,) = re.findall(r'"\$packages"/tests/\{([\w,]+)\}', (ROOT / ".ci" / "dist").read_text(encoding="utf-8"))
    waiting = [
        *tests.glob("conftest.py"),
        *(path for name in folders.split(",") for path in (tests / name).rglob("*.py")),
    ]
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in seen:
            seen.add(path)
            assert not {top(name) for name in imports(path)} & ({*PACKAGES} - {*INSTALLED}), path
            names = (name.split(".") for name in imports(path) if name.startswith("parity_tests.tests."))
            files = (ROOT.joinpath(*parts).with_suffix(".py") for parts in names)
            waiting += filter(Path.is_file, files)
    assert tests / "commands.py" in seen


def test_the_specification_imports_numpy_alone():
    for path in sources("attention_core"):
        assert {top(name) for name in imports(path)} <= {"numpy", "attention_core", *sys.stdlib_module_names}, path


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_backend_imports_its_framework_and_the_data_of_the_specification(framework: str):
    for path in sources(f"backends/{framework}"):
        names = set(imports(path))
        others = ALL_FRAMEWORKS - THIRD_PARTY[framework]
        assert not {top(name) for name in names} & {"parity_tests", *others}, path
        data = (
            "attention_core.errors",
            "attention_core.operators",
            "attention_core.relative",
            "attention_core.sinusoids",
        )
        for name in names:
            if top(name) == "attention_core":
                assert name.startswith((*data, "attention_core.specification")), f"{path} imports {name}"
            if top(name) == "backends":
                own = {
                    "backends",
                    "backends.requirements",
                    f"backends.{framework}",
                    f"backends.{framework}.blocked",
                    *(f"backends.{framework}.{file.replace('/', '.')}" for file in FILES),
                }
                assert name in own, f"{path} imports {name}"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_formula_imports_no_kernel(framework: str):
    """It asks `kernels`, which imports none either; kernels import formulas, and register when they are imported."""
    package = f"backends.{framework}"
    kernels = [path for path in sources(package.replace(".", "/")) if path.parent.name == "blocked"]
    formulas = [path for path in sources(package.replace(".", "/")) if path not in kernels and path.stem != "__init__"]
    assert kernels and formulas
    for path in formulas:
        assert not [name for name in imports(path) if name.startswith(f"{package}.blocked")], path
    assert not [name for name in imports(ROOT / "backends" / framework / "kernels.py") if name.startswith(package)]
    assert f"{package}.blocked" in imports(ROOT / "backends" / framework / "__init__.py")


def test_the_weights_import_numpy_and_the_data_of_the_specification():
    """What reads a kind of file is imported where one is read, and a framework's own table where it is asked for."""
    data = ("attention_core.errors", "attention_core.operators", "attention_core.specification")
    for path in sources("backends/weights"):
        for name in imports(path):
            known = {"numpy", "ml_dtypes", "backends", *sys.stdlib_module_names}
            assert top(name) in known or name.startswith(data), f"{path} imports {name}"
            assert top(name) != "backends" or name.split(".")[1:2] in ([], ["archives"], ["schema"], ["weights"]), path


def test_the_format_of_cases_knows_no_operator():
    names = {entry.name for entry in ENTRIES}
    for path in sources("parity_tests/format"):
        for name in imports(path):
            assert not name.startswith("attention_core.operators."), f"{path} imports {name}"
            own = top(name) != "parity_tests" or name.startswith("parity_tests.format.")
            assert own, f"{path} imports {name}"
        texts = {node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant)}
        assert not names & texts, path


def test_the_parity_tests_import_no_framework_and_no_backend():
    for path in (*sources("parity_tests"), *sources("benchmarks")):
        if path not in IN_WORKERS:
            names = set(imports(path))
            assert not {top(name) for name in names} & ALL_FRAMEWORKS, path
            backends = {name.split(".")[1] for name in names if name.startswith("backends.")}
            assert not backends & {*FRAMEWORKS}, path


def test_what_imports_a_framework_is_imported_by_name_alone():
    hidden = {module_of(path) for path in IN_WORKERS}
    parts = {KERAS, *map(module_of, TEXTBOOK.values())}  # which others import, in a worker
    for folder in (*PACKAGES, "examples"):
        for path in sources(folder):
            assert not (hidden - parts if path in IN_WORKERS else hidden) & {*imports(path)}, path


def test_the_terminal_is_for_the_command_line_alone():
    for path in (*sources("parity_tests"), *sources("benchmarks")):
        if path.parent.name not in ("cli", "reports") and path != ROOT / "benchmarks" / "command.py":
            assert not {top(name) for name in imports(path)} & {"click", "rich"}, path


@pytest.mark.parametrize("name", IMPORTED_BY_ATTENTION)
def test_third_party_attention_imports_its_framework(name: str):
    own = IMPORTED_BY_ATTENTION[name]
    for imported in imports(ATTENTION / f"{name}.py"):
        assert imported in {*own, SIGNATURES} or top(imported) in {*own, *sys.stdlib_module_names}, imported


@pytest.mark.parametrize(("module", "framework"), FRAMEWORK_OF_LAYERS.items())
def test_third_party_layers_import_their_framework(module: str, framework: str):
    names = set(imports(LAYERS / f"{module}.py"))
    assert {top(name) for name in names} & ALL_FRAMEWORKS <= THIRD_PARTY.get(framework, set())
    backend = f"backends.{framework}"
    assert {name for name in names if name.startswith("backends.")} <= {backend, f"{backend}.runtime"}
    own = {name for name in names if top(name) == "parity_tests"}
    assert own <= {"parity_tests.third_party.layers.shared", SIGNATURES, "parity_tests.workers.target"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_measured_imports_its_framework_and_our_backend_for_it(framework: str):
    names, textbook = set(imports(BENCH[framework])), set(imports(TEXTBOOK[framework]))
    assert not {top(name) for name in names | textbook} & (ALL_FRAMEWORKS - THIRD_PARTY[framework])
    backend = f"backends.{framework}"
    ours = {name for name in names if top(name) == "backends"} - {"backends.weights"}  # it loads a framework's layers
    assert ours == {backend, f"{backend}.arrays", f"{backend}.runtime"}
    own = {name for name in names if top(name) in ("benchmarks", "parity_tests")}
    theirs = f"benchmarks.textbook.{framework}"
    assert own - {"benchmarks.items"} == {"benchmarks.measure", "benchmarks.problem", theirs}
    used = {name for name in textbook if top(name) in ("backends", "benchmarks", "parity_tests")}
    assert used <= {"backends.weights", f"{backend}.arrays", "benchmarks.problem"}


def test_every_module_that_imports_a_framework_is_listed():
    assert {path.stem for path in ATTENTION.glob("*.py")} == {"__init__", *IMPORTED_BY_ATTENTION}
    assert {path.stem for path in LAYERS.glob("*.py")} == {"__init__", "shared", *FRAMEWORK_OF_LAYERS}


def test_a_worker_needs_numpy_and_safetensors_alone():
    """Another environment has no click and no rich: what a worker imports must not ask for them.

    Nor does a worker build cases: it gets its cells as arrays.
    """
    seen: set[str] = set()
    waiting = ["parity_tests.workers.worker"]
    while waiting:
        name = waiting.pop()
        if name in seen or top(name) not in PACKAGES:
            seen.add(name)
            continue
        seen.add(name)
        base = ROOT.joinpath(*name.split("."))
        waiting += imports(base.with_suffix(".py") if base.with_suffix(".py").exists() else base / "__init__.py")
        waiting += [name.rpartition(".")[0]] if "." in name else []
    assert not [name for name in seen if name.startswith("parity_tests.cases")]
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
