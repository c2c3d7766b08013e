"""What users install: a wheel that works from an empty folder, and a README whose names exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from parity_tests.cli.main import main
from parity_tests.tests.places import ROOT
from parity_tests.tests.structure.source import INSTALLED

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel installs, and nothing else."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    target = folder / "installed"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target"]
    subprocess.run([*command, str(target), str(copy)], check=True, capture_output=True)
    return target


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(installed), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_works_from_an_empty_folder(installed: Path, tmp_path: Path):
    said = run(installed, tmp_path, "-c", "import backends, parity_tests; print(parity_tests.__file__)")
    assert said.stdout.strip().startswith(str(installed)), said.stderr
    listing = run(installed, tmp_path, "-m", "parity_tests", "list")
    assert listing.returncode == 0 and "masked_softmax(scores" in listing.stdout, listing.stderr
    assert run(installed, tmp_path, "-m", "parity_tests", "backends").returncode == 0


def test_the_wheel_holds_types_data_and_no_tests(installed: Path):
    files = {str(path.relative_to(installed)) for path in installed.rglob("*") if path.is_file()}
    for package in INSTALLED:
        assert f"{package}/py.typed" in files
    assert {"parity_tests/judge/divergences.toml", "parity_tests/reports/porting.toml"} <= files
    assert {f"parity_tests/reports/report.{suffix}" for suffix in ("html", "css", "js")} <= files
    assert {f"parity_tests/reports/{name}" for name in ("page.html", "heatmap.css", "heatmap.js")} <= files
    assert {name.partition("/")[0] for name in files if name.endswith(".py")} == {*INSTALLED}
    assert not [name for name in files if "/tests/" in name]


def options_of(command: click.Command) -> set[str]:
    """Every option of a command, and of those below it."""
    own = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return own.union(*map(options_of, below), {"--help"})


def test_the_commands_of_the_readme_name_what_exists():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    assert "tox run -e parity" in readme and "[testenv:{parity,together}]" in tox


@pytest.mark.parametrize(
    "page", ["README.md", "docs/testing.md", "docs/translation.md", "examples/translate/README.md"]
)
def test_the_pages_name_options_and_files_that_exist(page: str):
    written = (ROOT / page).read_text(encoding="utf-8")
    options = set(re.findall(r"(?<![-\w])(--[a-z][a-z-]*)", written))
    script = (ROOT / "examples" / "translate" / "textbooks.py").read_text(encoding="utf-8")
    plugins = [ROOT / "parity_tests" / "pytest_plugin.py", ROOT / "parity_tests" / "tests" / "conftest.py"]
    source = "".join([script, *(path.read_text(encoding="utf-8") for path in plugins)])
    known = options_of(main) | set(re.findall(r'(?:add_argument|addoption)\("(--[a-z-]+)"', source))
    links = re.findall(r"\]\(([^)#:]+)\)", written)
    assert (options or links) and options <= known
    for link in links:
        assert ((ROOT / page).parent / link).exists(), link


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_nothing_is_installed_by_a_name_that_no_index_has():
    """What the page, workflow or hint says works today: from a clone, or from git."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    pages = [ROOT / name for name in listed.split("\0") if name.endswith((".md", ".yml", ".toml", ".ini", ".py"))]
    commands = {
        f"{path.relative_to(ROOT)}: {command}"
        for path in pages
        if path.is_file()
        for command in re.findall(r"pip install [^\n`]*", path.read_text(encoding="utf-8"))
        if re.search(r"(?<!/)attention.parity(?!\S* @ )", command)
    }
    assert pages and not commands


def test_constraints_pin_every_environment():
    tox = (ROOT / "tox.ini").read_text(encoding="utf-8")
    names = {"parity", "torch", "tf", "jax", "mxnet", "core-oldest", "core-newest", "gpu", "docs"}
    assert {path.stem for path in (ROOT / "constraints").glob("*.txt")} == names
    assert "UV_CONSTRAINT" in tox
    for name in names:
        lines = (ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8").split()
        assert lines and all("==" in line for line in lines), name


def test_citation_and_package_have_one_version():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert version and f"version: {version[1]}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
