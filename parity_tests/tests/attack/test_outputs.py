"""Outputs and inputs of every command: only regular files are read and replaced, which is found out before the work."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import backends
from parity_tests.cli import paths
from parity_tests.cli.check import Target
from parity_tests.tests.attack.mutations import KINDS
from parity_tests.tests.attack.odd import ODD
from parity_tests.tests.checkout import COMMANDS, invoke
from parity_tests.tests.commands import squeezed


def options_of(kind: type[click.ParamType]) -> Iterator[tuple[tuple[str, ...], click.Parameter]]:
    """Every option and argument of that kind, with the names of its command."""
    for names, command in COMMANDS.items():
        for option in command.params:
            if isinstance(option.type, kind):
                yield names, option


def words(given: tuple[tuple[str, ...], click.Parameter], path: Path) -> list[str]:
    """A command line that gives the path for an option, and nothing else."""
    names, option = given
    return [*names, *([option.opts[0]] if isinstance(option, click.Option) else []), str(path)]


def label(given: tuple[tuple[str, ...], click.Parameter]) -> str:
    return " ".join([*given[0], given[1].opts[0]])


FILES = [*options_of(paths.InputFile), *options_of(Target)]
OUTPUTS = list(options_of(paths.OutputFile))
FOLDERS = list(options_of(paths.OutputFolder))


def test_every_option_that_names_a_file_is_of_these_kinds():
    """What is left are the interpreter of a target, and what `convert`, `compare` and `translate` read themselves."""
    others = {
        label((names, option))
        for names, command in COMMANDS.items()
        for option in command.params
        if isinstance(option.type, (click.Path, click.File)) and option.name not in ("python", "corpus")
    }
    assert others <= {"convert file", "compare --vectors"}
    assert {label(given) for given in OUTPUTS} >= {
        *(f"{name} --json" for name in ("run", "check", "compare", "convert", "benchmarks", "translate test")),
        *(f"{name} --certificate" for name in ("check", "convert")),
        *(f"benchmarks --{name}" for name in ("chart", "page")),
        *(f"{name} -o" for name in ("record", "convert", "diff", "translate train", "translate curves")),
        "check --junit",
        "translate run --heatmap",
    }


@pytest.mark.parametrize("given", FILES, ids=label)
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_regular_file_is_refused_at_once(
    given: tuple[tuple[str, ...], click.Parameter], kind: str, tmp_path: Path
):
    make, message = ODD[kind]
    path = tmp_path / "odd.png"
    make(path)
    before = os.lstat(path)
    result = invoke(*words(given, path))
    assert result.exit_code == 2 and message in squeezed(result), result.output
    after = os.lstat(path)
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)


@pytest.mark.parametrize("given", OUTPUTS, ids=label)
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere/out.png", "there is no folder"),
        ("file/out.png", "Not a directory|there is no folder"),
        ("/proc/out.png", "cannot be written"),
        (f"{'x' * 300}.png", "File name too long"),
    ],
    ids=["no folder", "a file for a folder", "read-only", "name"],
)
def test_that_an_output_cannot_be_written_is_found_out_before_the_work(
    given: tuple[tuple[str, ...], click.Parameter], place: str, message: str, tmp_path: Path
):
    (tmp_path / "file").write_text("")
    result = invoke(*words(given, tmp_path / place))
    assert result.exit_code == 2 and re.search(message, squeezed(result)), result.output
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("given", FOLDERS, ids=label)
@pytest.mark.parametrize("place", ["file", "file/below", "/proc/below", "FIFO"])
def test_a_folder_that_cannot_be_written_to_is_found_out_before_the_work(
    given: tuple[tuple[str, ...], click.Parameter], place: str, tmp_path: Path
):
    (tmp_path / "file").write_text("")
    os.mkfifo(tmp_path / "FIFO")
    result = invoke(*words(given, tmp_path / place))
    assert result.exit_code == 2 and re.search("is no folder|cannot be written", squeezed(result)), result.output


def test_the_output_folder_of_a_run_is_checked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = backends.Availability("fake", "numpy_backend", {})
    monkeypatch.setattr(backends, "available", lambda: {"fake": fake})
    (tmp_path / "fake-cpu.safetensors").symlink_to("/dev/full")
    result = invoke("run", "--output", tmp_path)
    assert result.exit_code == 2 and "fake-cpu.safetensors: this is a device" in squeezed(result), result.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("check mine.py --json out --junit out", "is also the file of '--json'"),
        ("check mine.py --certificate out.json --json out.md", "is also the file of '--certificate'"),
        ("check mine.py --certificate out.md", "is the path of its page: name the JSON file, such as out.json"),
        ("check mine.py --json mine.py", "is also the file of '--json'"),
        ("check mine.py:softmax --junit mine.py", "is also the file of '--junit'"),
        ("check mine.py --divergences known.toml --junit known.toml", "is also the file of '--divergences'"),
        ("compare mine.py --json mine.py", "is also the file of '--json'"),
        ("translate curves mine.py link.png -o link.png", "is also the file of '-o' / '--output'"),
        ("check mine.py --certificate /", "/: this is a folder"),
        ("benchmarks --json out --page out", "is also the file of '--json'"),
        ("benchmarks --chart picture.doc", "picture.doc: expected a suffix among ."),
    ],
)
def test_no_file_is_written_twice_or_over_what_is_read(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py", "known.toml"):
        Path(name).write_text("as it was")
    Path("link.png").symlink_to("known.toml")
    result = invoke(*line.split())
    assert result.exit_code == 2 and message in squeezed(result), result.output
    assert {Path(name).read_text() for name in ("mine.py", "known.toml")} == {"as it was"}
    assert len(list(tmp_path.iterdir())) == 3


def test_convert_replaces_the_file_that_a_link_names(tmp_path: Path):
    KINDS["safetensors"].write(tmp_path / "x.safetensors")
    link, file = tmp_path / "out.safetensors", tmp_path / "folder" / "file"
    file.parent.mkdir()
    link.symlink_to(file)
    done = invoke("convert", tmp_path / "x.safetensors", "--to", "jax", "--validate", "no", "-o", link)
    assert done.exit_code == 0 and link.is_symlink() and file.is_file(), done.output
