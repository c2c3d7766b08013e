"""Certificates and summaries of comparisons of two models, and how they are verified."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from parity_tests.tests.commands import invoke, squeezed

SIDES = """
import numpy as np

from parity_tests.models.calls import Answer
from parity_tests.models.sides import Side


class Scaled(Side):
    framework = "numpy"

    def __init__(self, name):
        super().__init__()
        self.arrays, self.parameters = {name: np.arange(5.0)}, (name,)

    def answer(self, inputs, options):
        (array,) = self.arrays.values()
        return Answer({"output": inputs["x"] * array})


new, old = Scaled("a"), Scaled("c")
first = lambda x: (x * 3.0).argmax(-1)
last = lambda x: 4 - np.flip(x, -1).argmax(-1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two sides, whose single arrays have other names, and a batch of inputs."""
    monkeypatch.chdir(tmp_path)
    Path("sides.py").write_text(SIDES)
    np.savez("batch.npz", x=np.linspace(-1.0, 1.0, 15).reshape(3, 5))
    Path("names.toml").write_text('[parameters]\na = "c"\n')
    return tmp_path


NAMED = ("--weights", "copied", "--inputs", "batch.npz", "--names", "names.toml")


def compare(*arguments: str, certificate: str = "own.json"):
    return invoke("compare-models", "sides.py:new", "sides.py:old", *arguments, "--certificate", certificate)


def test_a_certificate_of_a_comparison_is_verified(folder: Path):
    result = compare(*NAMED)
    assert result.exit_code == 0 and "certified own.json, own.md" in squeezed(result), result.output
    content, page = json.loads(Path("own.json").read_text()), Path("own.md").read_text()
    assert set(content["files"]) == {"actual/sides.py", "expected/sides.py", "batch.npz", "names.toml"}
    assert content["judged"]["expected"]["versions"]["numpy"] == np.__version__
    assert "# sides.py:new, sides.py:old: green" in page and str(folder) not in page + Path("own.json").read_text()
    assert "attention-parity verify own.json sides.py:new sides.py:old" in page
    result = invoke("verify", "own.json", "sides.py:new", "sides.py:old")
    assert result.exit_code == 0 and "verified own.json: green, 3 verdicts as certified" in squeezed(result)
    result = invoke("verify", "own.json", "sides.py:new")
    assert result.exit_code == 2 and "`compare-models` needs actual and expected" in squeezed(result)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("sides.py", lambda file: file.write_text(SIDES + "# changed\n"), "actual/sides.py is not the file"),
        ("names.toml", lambda file: file.write_text('[parameters]\n"a" = "c"\n'), "names.toml is not the file"),
        ("batch.npz", lambda file: np.savez(file, x=np.ones((3, 5))), "evaluation/float64 has other inputs"),
    ],
)
def test_what_a_comparison_read_and_has_changed_is_reported(folder: Path, name: str, change, words: str):
    assert compare(*NAMED).exit_code == 0
    change(folder / name)
    result = invoke("verify", "own.json", "sides.py:new", "sides.py:old")
    assert result.exit_code == 1 and words in squeezed(result)


def test_files_that_moved_are_given_by_name(folder: Path):
    assert compare(*NAMED).exit_code == 0
    moved = folder / "data"
    moved.mkdir()
    (folder / "batch.npz").rename(moved / "batch.npz")
    targets = ("own.json", "sides.py:new", "sides.py:old")
    result = invoke("verify", *targets)
    assert result.exit_code == 2 and "it lists 'batch.npz', which is not in" in squeezed(result)
    assert invoke("verify", *targets, "--file", moved / "batch.npz").exit_code == 0


def test_a_guess_and_what_is_undecided_are_not_certified(folder: Path):
    result = compare("--weights", "copied", "--inputs", "batch.npz")
    assert result.exit_code == 2 and "not certified c: paired by a guess" in squeezed(result)
    x = np.full((2, 5), 1.0 / 3.0)
    x[:, 1] *= 1.0 + 2.0**-53
    np.savez("ties.npz", x=x)
    result = invoke(
        *("compare-models", "sides.py:first", "sides.py:last", "--inputs", "ties.npz", "--certificate", "own.json")
    )
    assert result.exit_code == 3 and "are undecided" in squeezed(result)
    assert not Path("own.json").exists()


def test_the_summary_has_the_outcome_and_the_text(folder: Path):
    text = "x: float (3, 5)"
    assert (
        invoke("compare-models", "sides.py:new", "sides.py:old", "--inputs", text, "--summary", "s.md").exit_code == 0
    )
    summary = Path("s.md").read_text()
    assert summary.startswith("## ✅ attention-parity: green\n\n    actual      sides.py:new\n")
