"""The plugin for pytest: every cell is a test."""

import re
from pathlib import Path

import pytest

from parity_tests.cases.suite import all_cases
from parity_tests.format.selection import cells_of
from parity_tests.tests.judge.sources import ENTRY, pytest_run

pytestmark = pytest.mark.once


def test_every_cell_is_a_test_of_pytest(project: Path):
    done = pytest_run(project, "--parity-target", "mine.py", "--parity-dtype", "float32", "-v", "-n", "2")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED mine.py::masked_softmax-mask[float32]" in done.stdout
    assert "PASSED mine.py::dot_score-plain[float32]" in done.stdout and "test_own.py::test_own" in done.stdout
    assert "attention-parity check mine.py --case 'masked_softmax-mask' --dtype float32" in done.stdout
    assert "Traceback" not in done.stdout and "additive_score" not in done.stdout


def test_cells_are_chosen_as_other_tests_are(project: Path):
    done = pytest_run(project, "--parity-target", "mine.py", "-m", "parity", "-k", "dot_score and float64", "-v")
    listed = cells_of(all_cases().select(operators=["dot_score"]), ["float64"])
    passed = re.findall(r"PASSED mine.py::dot_score-(\S*)\[float64\]|dot_score-(\S*)\[float64\] PASSED", done.stdout)
    names = ["".join(name) for name in passed]
    assert done.returncode == 0 and f"{len(names)} passed" in done.stdout, done.stdout
    assert len([name for name in names if not name.startswith("drawn_")]) == len(listed) < len(names)


def test_known_divergences_are_tests_too(project: Path):
    (project / "known.toml").write_text(ENTRY)
    arguments = ("--parity-target", "mine.py", "--parity-dtype", "float64", "-m", "parity", "-q")
    done = pytest_run(project, *arguments, "--parity-divergences", "known.toml")
    assert done.returncode == 0, done.stdout
    (project / "known.toml").write_text(ENTRY.replace("masked_softmax", "dot_score").replace("weights", "scores"))
    done = pytest_run(project, *arguments, "--parity-divergences", "known.toml", "-k", "dot_score")
    assert done.returncode == 1 and "a known divergence no longer diverges" in done.stdout


@pytest.mark.frameworks("torch")
def test_a_bundled_target_has_its_known_divergences_in_pytest(project: Path):
    target = "parity_tests.third_party.attention.torch:scaled_dot_product_attention"
    arguments = ("--parity-case", "DotProductAttention-hidden_*", "--parity-dtype", "float64", "-m", "parity", "-q")
    done = pytest_run(project, "--parity-target", target, *arguments)
    assert done.returncode == 0 and "4 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--parity-target", "nowhere.py"), "nowhere.py cannot be judged"),
        (("--parity-target", "mine.py", "--parity-divergences", ""), "the value of --parity-divergences is empty"),
        (("--parity-target", "mine.py", "--parity-dtype", "float8"), "expected some of float64, float32"),
        (("--parity-target", "mine.py", "--parity-case", "GRU-*"), "implements none of the selected operators"),
    ],
)
def test_pytest_reports_what_cannot_be_judged(project: Path, arguments: tuple[str, ...], told: str):
    done = pytest_run(project, *arguments)
    assert done.returncode == 4 and told in done.stdout + done.stderr


def test_without_a_target_the_plugin_does_nothing(project: Path):
    done = pytest_run(project, "-q")
    assert done.returncode == 0 and "1 passed" in done.stdout
