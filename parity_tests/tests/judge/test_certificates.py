"""Certificates: what they state, and how they are verified."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from parity_tests.cli.main import main
from parity_tests.reports import certificate
from parity_tests.tests.judge.sources import SOFTMAX, WRITTEN, WRONG, Check, squeezed
from parity_tests.workers.environment import PATH

pytestmark = pytest.mark.once


@pytest.fixture
def certified(check: Check, tmp_path: Path) -> Path:
    """A certificate of the softmax."""
    result = check(SOFTMAX, "--operator", "masked_softmax", "--case", WRITTEN, "--certificate", "own.json")
    assert result.exit_code == 0 and "certified" in result.output
    return tmp_path / "own.json"


def verify(path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", str(path), *arguments])


def test_a_certificate_is_verified(certified: Path):
    result = verify(certified)
    assert result.exit_code == 0 and "verified" in result.output and "differs" not in result.output


def test_a_certificate_says_what_was_judged_and_how(certified: Path):
    told = json.loads(certified.read_text())
    page = certified.with_suffix(".md").read_text()
    assert told["outcome"] == "green" and told["request"]["operators"] == ["masked_softmax"]
    command = told["request"]["command"]
    assert command.startswith("attention-parity check mine.py --dtype float64 --seed ")
    assert command.endswith(f" --case '{WRITTEN}' --operator masked_softmax")
    assert told["judged"]["mine"]["versions"]["numpy"] == np.__version__
    assert told["judged"]["mine"]["asked"]["OMP_NUM_THREADS"] == "1"
    assert len(told["inputs"]) == 21 and set(told["files"]) == {"mine.py"}
    for words in (
        "mine: green",
        "| masked_softmax | float64 | 21 |",
        "attention-parity verify own.json",
        "OMP_NUM_THREADS=1",
    ):
        assert words in page
    assert str(certified.parent) not in page + certified.read_text()  # nothing of the machine's folders


def test_a_target_that_was_changed_is_told(certified: Path):
    path = certified.with_name("mine.py")
    path.write_text(SOFTMAX + "# a comment\n")
    result = verify(certified)
    assert result.exit_code == 1 and "mine.py is not the file that was judged" in squeezed(result)
    path.write_text(WRONG)
    result = verify(certified)
    assert "mine masked_softmax-mask float64 weights was pass, and is fail" in squeezed(result)
    assert "the outcome is red here, and was green" in squeezed(result)


def test_another_version_is_told_and_is_no_fault(certified: Path):
    told = json.loads(certified.read_text())
    told["judged"]["mine"]["versions"]["numpy"] = "0.9"
    rewritten(certified, told)
    result = verify(certified)
    assert result.exit_code == 0 and f"versions.numpy: 0.9 -> {np.__version__}" in squeezed(result)


def test_the_path_of_a_certificate_is_taken_again(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PATH, "blocked")
    arguments = ("--case", "masked_softmax-mask", "--path", "plain", "--certificate", "own.json")
    assert check(SOFTMAX, *arguments).exit_code == 0
    told = json.loads((tmp_path / "own.json").read_text())
    assert told["request"]["command"].endswith(" --path plain") and told["judged"]["mine"]["asked"][PATH] == "plain"
    monkeypatch.delenv(PATH)
    result = verify(tmp_path / "own.json")
    assert result.exit_code == 0 and PATH not in result.output


def test_other_inputs_are_a_difference(certified: Path):
    told = json.loads(certified.read_text())
    told["inputs"]["masked_softmax-mask/float64"] = "0" * 64
    rewritten(certified, told)
    result = verify(certified)
    assert result.exit_code == 1 and "masked_softmax-mask/float64 has other inputs" in squeezed(result)


def rewritten(path: Path, told: dict) -> None:
    """Write a certificate anew, with a digest that fits."""
    told.pop("digest")
    certificate.save({**told, "digest": certificate._digest(told)}, path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text.replace('"green"', '"red"'), "does not match its digest"),
        (lambda text: text.replace("attention-parity certificate", "something"), "is no certificate"),
        (lambda text: text.replace('"format": 1', '"format": 7'), "has the format 7, expected 1"),
        (lambda text: text[:100], "is no certificate"),
        (lambda text: "[" * 100_000, "is no certificate"),
    ],
)
def test_a_file_that_is_no_certificate_is_refused(certified: Path, change: Callable[[str], str], told: str):
    certified.write_text(change(certified.read_text()))
    result = verify(certified)
    assert result.exit_code == 2 and told in squeezed(result)


def test_a_certificate_of_another_interpreter_asks_for_it(certified: Path):
    told = json.loads(certified.read_text())
    told["request"]["other_python"] = True
    rewritten(certified, told)
    result = verify(certified)
    assert result.exit_code == 2 and "give one with --python" in squeezed(result)
    assert verify(certified, "--python", sys.executable).exit_code == 0


def test_a_certificate_that_asks_for_something_else_is_refused(certified: Path):
    told = json.loads(certified.read_text())
    told["request"]["shell"] = "true"
    rewritten(certified, told)
    result = verify(certified)
    assert result.exit_code == 2 and "the certificate asks for something else" in squeezed(result)
