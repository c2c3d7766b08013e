"""What stands in the way of an import: a folder of the user's own, or a framework that is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import backends
from parity_tests.tests.judge.sources import SOFTMAX, pytest_run
from parity_tests.tests.places import ROOT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a target, and a package with the same name as a package of this repository."""
    (tmp_path / "mine.py").write_text(SOFTMAX)
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "__init__.py").write_text("")
    return tmp_path


@pytest.mark.parametrize("line", ["check mine.py", "convert a.pt --to jax -o b.h5", "--help"])
def test_a_command_names_both_folders_where_one_shadows_the_other(project: Path, line: str):
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}  # `python -m` searches the folder that it is called in first
    command = [sys.executable, "-m", "parity_tests", *line.split()]
    done = subprocess.run(command, cwd=project, env=variables, capture_output=True, text=True)
    sentence = f"{project / 'backends'} is imported as 'backends', in place of {ROOT / 'backends'}"
    assert done.returncode == 2 and done.stderr.startswith(f"Error: {sentence}"), done.stderr


def test_pytest_names_both_folders_where_one_shadows_the_other(project: Path):
    done = pytest_run(project, "--parity-target", "mine.py")
    said = done.stdout + done.stderr
    assert done.returncode == 4 and "INTERNALERROR" not in said
    assert f"{project / 'backends'} is imported as 'backends', in place of {ROOT / 'backends'}" in said


WAYS = """
import importlib, sys
for name, absent in {names!r}.items():
    for one in absent:
        sys.modules[one] = None  # as if it were not installed
    for way in ("import backends.{{}}", "from backends import {{}}", "import backends.{{}}.attention", "load"):
        try:
            if way == "load":
                import backends
                backends.load(name)
            elif way.startswith("from"):
                __import__("backends", fromlist=[name])
            else:
                importlib.import_module(way.removeprefix("import ").format(name))
        except ImportError as error:
            print(name, way, error, sep="|")
"""


def test_a_missing_framework_gets_the_same_hint_by_every_way_of_importing():
    needed = {name: backends.read_requirements(f"backends.{name}").distributions for name in backends.FRAMEWORKS}
    program = WAYS.format(names=needed)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    lines = [line.split("|") for line in done.stdout.splitlines()]
    assert len(lines) == 4 * len(needed), done.stderr
    for name, _, hint in lines:
        words = f"not installed: {', '.join(needed[name])}. Run: pip install {' '.join(needed[name])}"
        assert hint.startswith((words, "mxnet runs on", "MXNet 1.9.1")), hint
