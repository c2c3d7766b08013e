"""Certificates: what they state, and how they are verified."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from parity_tests.tests.commands import invoke, squeezed
from parity_tests.tests.judge.sources import ENTRY, SOFTMAX, WRITTEN, WRONG, Check, rewritten
from parity_tests.workers.environment import PATH

pytestmark = pytest.mark.once


@pytest.fixture
def certified(check: Check, tmp_path: Path) -> Path:
    """A certificate of the softmax."""
    result = check(SOFTMAX, "--operator", "masked_softmax", "--case", WRITTEN, "--certificate", "own.json")
    assert result.exit_code == 0 and "certified" in result.output
    return tmp_path / "own.json"


def verify(path: Path, *arguments: str, target: str = "mine.py") -> Result:
    return invoke("verify", path, target, *arguments)


def test_a_certificate_is_verified(certified: Path):
    result = verify(certified)
    assert result.exit_code == 0 and "verified" in result.output and "differs" not in result.output
    assert "not covered who wrote it, when and where: the digest is not a signature" in squeezed(result)
    assert "not a signature" in certified.with_suffix(".md").read_text()


def test_a_certificate_has_the_verdicts_versions_and_settings(certified: Path):
    content = json.loads(certified.read_text())
    page = certified.with_suffix(".md").read_text()
    assert content["outcome"] == "green" and content["request"]["operators"] == ["masked_softmax"]
    command = content["request"]["command"]
    assert command.startswith("attention-parity check mine.py --dtype float64 --seed ")
    assert command.endswith(f" --case '{WRITTEN}' --operator masked_softmax")
    assert content["judged"]["mine"]["versions"]["numpy"] == np.__version__
    assert content["judged"]["mine"]["environment"]["OMP_NUM_THREADS"] == "1"
    assert len(content["inputs"]) == 24 and set(content["files"]) == {"mine.py"}
    for words in (
        "mine: green",
        "| masked_softmax | float64 | 24 |",
        "attention-parity verify own.json mine.py",
        "OMP_NUM_THREADS=1",
    ):
        assert words in page
    assert str(certified.parent) not in page + certified.read_text()  # nothing of the machine's folders


def test_a_changed_target_is_reported(certified: Path):
    path = certified.with_name("mine.py")
    path.write_text(SOFTMAX + "# a comment\n")
    result = verify(certified)
    assert result.exit_code == 1 and "mine.py is not the file that was tested" in squeezed(result)
    path.write_text(WRONG)
    result = verify(certified)
    assert "mine masked_softmax-mask float64 weights was pass, and is fail" in squeezed(result)
    assert "the outcome is red here, and was green" in squeezed(result)


def test_the_path_of_a_certificate_is_used_again(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(PATH, "blocked")
    arguments = ("--case", "masked_softmax-mask", "--path", "plain", "--certificate", "own.json")
    assert check(SOFTMAX, *arguments).exit_code == 0
    content = json.loads((tmp_path / "own.json").read_text())
    assert content["request"]["command"].endswith(" --path plain")
    assert content["judged"]["mine"]["environment"][PATH] == "plain"
    monkeypatch.delenv(PATH)
    result = verify(tmp_path / "own.json")
    assert result.exit_code == 0 and PATH not in result.output


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (
            lambda content: content["judged"]["mine"]["versions"].update(numpy="0.9"),
            0,
            f"versions.numpy: 0.9 -> {np.__version__}",
        ),
        (
            lambda content: content["inputs"].update({"masked_softmax-mask/float64": "0" * 64}),
            1,
            "masked_softmax-mask/float64 has other inputs",
        ),
        (lambda content: content["request"].update(shell="true"), 2, "invalid request in the certificate"),
        (lambda content: content["request"].update(other_python=True), 2, "with another interpreter: pass --python"),
    ],
    ids=["version", "inputs", "something else", "interpreter"],
)
def test_differences_from_a_certificate_are_reported(
    certified: Path, change: Callable[[dict[str, Any]], None], code: int, message: str
):
    with rewritten(certified) as content:
        change(content)
    result = verify(certified)
    assert result.exit_code == code and message in squeezed(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"green"', '"red"'), "does not match its digest"),
        (lambda text: text.replace("attention-parity certificate", "something"), "is not a certificate"),
        (lambda text: text.replace('"format": 2', '"format": 7'), "has the format 7, expected 2"),
        (lambda text: text[:100], "is not a certificate"),
        (lambda text: "[" * 100_000, "is not a certificate"),
    ],
)
def test_a_file_that_is_no_certificate_is_refused(certified: Path, change: Callable[[str], str], message: str):
    certified.write_text(change(certified.read_text()))
    result = verify(certified)
    assert result.exit_code == 2 and message in squeezed(result)


def test_a_certificate_of_another_interpreter_is_verified_with_one(certified: Path):
    with rewritten(certified) as content:
        content["request"]["other_python"] = True
    assert verify(certified, "--python", sys.executable).exit_code == 0


def test_all_that_can_be_computed_again_is_compared(certified: Path):
    with rewritten(certified) as content:
        content["files"].clear()
        content["missing"].append("dot_score")
        content["inputs"].popitem()
        first, second, *_ = content["verdicts"]
        measured = first["error"]  # not always 0: the cached answer may be another NumPy's
        first["error"], second["tolerance"] = 0.125, 1e9
    result = verify(certified)
    assert result.exit_code == 1
    for words in (
        "mine.py is tested here, but not listed in the certificate",
        "has other inputs",
        "the tolerance was 1000000000.0, and is ",
        f"the error was 0.125, and is {measured}",
        "dot_score was missing",
        ": 5 differences",
    ):
        assert words in squeezed(result)


def test_errors_on_another_machine_are_reported_as_not_reproduced(certified: Path):
    with rewritten(certified) as content:
        content["machine"] = "a computer"
        content["verdicts"][0]["error"] = 0.125
    result = verify(certified)
    assert result.exit_code == 0 and "not reproduced 1 errors, which differ here" in squeezed(result)


def test_nothing_runs_but_the_target_on_the_command_line(certified: Path):
    evil, moved = certified.with_name("evil.py"), certified.with_name("src") / "mine.py"
    evil.write_text("open('executed', 'w')")
    moved.parent.mkdir()
    certified.with_name("mine.py").rename(moved)
    with rewritten(certified) as content:
        content["request"]["target"] = str(evil)
    result = verify(certified, target="src/mine.py")
    assert result.exit_code == 0 and not certified.with_name("executed").exists()
    assert f"certified {evil} judging src/mine.py" in squeezed(result)
    assert invoke("verify", certified).exit_code == 2


def test_what_a_target_imports_is_among_its_files_whenever_it_does(check: Check, tmp_path: Path):
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers" / "__init__.py").touch()
    (tmp_path / "helpers" / "early.py").write_text("half = 0.5")
    (tmp_path / "late.py").write_text("one = 1.0")
    source = "from helpers import early\nimport json\n" + SOFTMAX.replace(
        "    return raised", "    import late\n    total = total * late.one\n    return raised"
    )
    arguments = ("--case", "masked_softmax-mask", "--certificate", "own.json")
    assert check(source, *arguments).exit_code == 0
    files = json.loads((tmp_path / "own.json").read_text())["files"]
    assert set(files) == {"mine.py", "helpers/__init__.py", "helpers/early.py", "late.py"}
    (tmp_path / "late.py").write_text("one = 1.0  # changed")
    result = verify(tmp_path / "own.json")
    assert result.exit_code == 1 and "late.py is not the file that was tested" in squeezed(result)


def test_a_red_certificate_is_red_unless_that_is_allowed(check: Check, tmp_path: Path):
    assert check(WRONG, "--case", "masked_softmax-mask", "--certificate", "own.json").exit_code == 1
    result = verify(tmp_path / "own.json")
    assert result.exit_code == 1 and "red, " in result.output and "differs" not in result.output
    assert verify(tmp_path / "own.json", "--allow-red").exit_code == 0


def test_known_divergences_are_those_beside_what_the_command_line_names(check: Check, tmp_path: Path):
    own, known, elsewhere = (tmp_path / name for name in ("own.json", "known.toml", "elsewhere"))
    known.write_text(ENTRY)
    arguments = ("--case", "masked_softmax-mask", "--divergences", "known.toml", "--certificate", "own.json")
    assert check(WRONG, *arguments).exit_code == 0
    elsewhere.mkdir()
    with rewritten(own) as content:
        for holder, name in ((content["request"], "divergences"), (content["files"], "known.toml")):
            value = holder.pop(name)
            holder |= {name: str(elsewhere / value)} if name == "divergences" else {str(elsewhere / name): value}
    assert verify(own).exit_code == 0
    known.rename(elsewhere / "known.toml")
    result = verify(own)
    assert result.exit_code == 2 and "name the file with --file" in squeezed(result)
    assert verify(own, "--file", str(elsewhere / "known.toml")).exit_code == 0
