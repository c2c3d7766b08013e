"""What the tests share: which backends they are for, and how a backend is reached without naming its framework."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import backends
from attention_core import reference
from attention_core.operators import ENTRIES
from backends import FRAMEWORKS, weights
from parity_tests.format.expected import programs_folder
from parity_tests.tests.places import FAKES, ROOT
from parity_tests.tests.slow import slow
from parity_tests.tests.structure.source import unlisted
from parity_tests.third_party import layers
from parity_tests.workers.environment import collect_less, environment
from parity_tests.workers.process import Job

NEEDED = {
    "test_weights_onnx.py": "onnx",
    "test_weights_h5.py": "h5py",
    "test_torch_onnx.py": "onnxscript",
    "test_keras_hub_settings.py": "keras_hub",
    "test_library_models.py": "transformers",
    "test_transformers_folders.py": "transformers",
    "test_onnx_side.py": "onnxruntime",
    "test_html_report.py": "jinja2",
    "test_models_page.py": "jinja2",
    "test_bench_report.py": "jinja2",
    "test_browser.py": "selenium",
    "test_site.py": "selenium",
    "test_notebooks.py": "nbclient",
    "test_cluster.py": "distributed",
}
"""The files that need a library which is no framework."""

PLACES = ROOT / "parity_tests" / "tests" / "structure" / "test_places.py"

collect_ignore = ["fakes"]


def framework_of(path: Path) -> str | None:
    """The framework that a file of tests is about, which is a word of its name: test_jax.py, test_weights_jax.py."""
    return next((word for word in path.stem.split("_") if word in FRAMEWORKS), None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the backends to test; each of them has to be there."""
    parser.addoption(
        "--backends", metavar="NAMES", help="backends to test, with commas, or none; default: all installed"
    )
    parser.addoption("--slow", action="store_true", help="run the slow instances, too: tests/slow.txt")
    parser.addoption("--attack", metavar="N", type=int, default=60, help="damaged files of each kind to read")


@functools.cache  # every test is asked for it, and what is installed is read from many files
def selected(config: pytest.Config) -> list[str]:
    """The backends that this run is for."""
    chosen = config.getoption("--backends")
    known = backends.available()
    if chosen is None:
        return [name for name in FRAMEWORKS if known[name].reason is None]
    names = [] if chosen == "none" else chosen.split(",")
    for name in names:
        if known[name].reason is not None:
            raise pytest.UsageError(known[name].reason)
    return names


def pytest_configure(config: pytest.Config) -> None:
    """Make the settings that have to stand before a framework is imported."""
    for name in selected(config):
        for variable, value in environment(name, programs_folder(), "cpu").items():
            os.environ.setdefault(variable, value)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was imported."""
    collect_less()


@functools.cache
def _incomplete() -> bool:
    return bool(unlisted()) or any(not hasattr(reference, entry.name) for entry in ENTRIES)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A framework's own tests exist only where the framework is tested: they are left out, not skipped.

    While an entry is not listed, or its reference is not written, no answer is expected of it: test_places.py, which
    names the file, is all there is.
    """
    framework, library = framework_of(collection_path), NEEDED.get(collection_path.name)
    absent = framework is not None and framework not in selected(config)
    absent |= _incomplete() and not PLACES.is_relative_to(collection_path)
    return True if absent or (library is not None and importlib.util.find_spec(library) is None) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `backend`, or the `source_target` of sources of weights, once for each in this run."""
    names = selected(metafunc.config)
    if "backend" in metafunc.fixturenames:
        files = [mark.args[0] for mark in metafunc.definition.iter_markers("implements")]
        having = [name for name in names if all((ROOT / "backends" / name / file).is_file() for file in files)]
        metafunc.parametrize("backend", having or [None], indirect=True)
    if "source_target" in metafunc.fixturenames:
        known = [*names, *(["onnx"] if names and layers.absence("onnx") is None else [])]
        places = [place for name, place in layers.PLACES.items() if layers.framework_of(name) in known]
        metafunc.parametrize("source_target", list(dict.fromkeys(places)) or [None])


def _parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def needed_by(item: pytest.Item) -> set[str]:
    """The frameworks that a test computes with, in its own process."""
    parameters = _parameters(item)
    needed = {name for mark in item.iter_markers("frameworks") for name in mark.args}
    needed |= {framework_of(item.path), parameters.get("backend")}
    return needed & set(FRAMEWORKS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is for a backend, and for several together; where none is tested, leave it out: not skipped."""
    kept, left_out = [], []
    too_slow = frozenset() if config.getoption("--slow") or any("::" in name for name in config.args) else slow()
    for item in items:
        parameters = _parameters(item)
        together = isinstance(item, pytest.Function) and "all_backends" in item.fixturenames
        needed = {name for mark in item.iter_markers("frameworks") for name in mark.args}
        if {"backend", "source_target"} & set(parameters) or together or needed or framework_of(item.path):
            item.add_marker("backend")
        if "source_target" in parameters or together or len(needed) > 1 or item.path.name == "test_behaviour.py":
            item.add_marker("together")
        none = None in (parameters.get("backend", ""), parameters.get("source_target", ""))
        absent = none or (together and not selected(config)) or not needed <= set(selected(config))
        (left_out if absent or item.nodeid in too_slow else kept).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@functools.cache
def _configured(name: str) -> SimpleNamespace:
    package: ModuleType = backends.load(name)
    runtime = importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    return SimpleNamespace(name=name, package=package, runtime=runtime)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Make the settings of a framework before its first tensor, whichever test makes it: some can't be set later."""
    for name in needed_by(item):
        _configured(name)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> SimpleNamespace:
    """A backend: its name, its package and its runtime, with the judge's settings made."""
    return _configured(request.param)


@pytest.fixture
def all_backends(request: pytest.FixtureRequest) -> list[str]:
    """The names of all backends that this run is for."""
    return selected(request.config)


@pytest.fixture
def answered() -> Callable[..., tuple[np.ndarray, ...]]:
    """The reference's answer with converted weights: the layer they are of, made as they say."""

    def answer(converted: weights.Converted, *inputs: np.ndarray, **options: object) -> tuple[np.ndarray, ...]:
        layer = getattr(reference, converted.layer)(**converted.config)
        reference.set_parameters(layer, converted.arrays)
        return layer(*inputs, **options)

    return answer


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The backend made of the reference, imported into this process."""
    monkeypatch.syspath_prepend(str(FAKES))
    for name in [name for name in sys.modules if name.startswith("numpy_backend")]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("numpy_backend")


@pytest.fixture(scope="session")
def fake_job() -> Callable[..., Job]:
    """The same backend as a job of its own process, with a fault or without."""

    def job(fault: str = "") -> Job:
        path = os.pathsep.join([str(ROOT), str(FAKES)])
        return Job("fake", "numpy_backend", variables={"PYTHONPATH": path, "FAKE_FAULT": fault})

    return job


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[str]]:
    """The commands of the processes that this test has started, waited for until there are as many as expected."""
    mark = f"ATTENTION_PARITY_TEST={uuid.uuid4().hex}"
    monkeypatch.setenv(*mark.split("="))

    def commands() -> list[str]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                zombie = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "Z"
                if not zombie and mark.encode() in process.joinpath("environ").read_bytes():
                    found.append(process.joinpath("cmdline").read_text().replace("\0", " "))
            except OSError:  # it has ended meanwhile, or belongs to somebody else
                continue
        return found

    def wait(count: int) -> list[str]:
        deadline = time.monotonic() + 60
        while len(found := commands()) != count and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    return wait


@pytest.fixture
def counted(capsys: pytest.CaptureFixture) -> Callable[..., None]:
    """Print how many attacks there were, and how many of them were refused, or came to what is due instead."""

    def count(what: str, tries: int, failed: int, outcome: str = "refused") -> None:
        assert 0 < failed <= tries
        with capsys.disabled():
            print(f"\n{tries:,} {what}, {failed:,} {outcome}")

    return count
