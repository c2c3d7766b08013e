"""`check` on a source in a folder of its own, and a project whose tests judge a target."""

from pathlib import Path

import pytest
from click.testing import Result

from parity_tests.tests.commands import invoke
from parity_tests.tests.judge.sources import WRONG, Check


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """`attention-parity check` on a file of that source, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(source: str, *arguments: str, target: str = "mine.py", dtype: str = "float64") -> Result:
        (tmp_path / "mine.py").write_text(source)
        return invoke("check", target, *(["--dtype", dtype] if dtype else []), *arguments)

    return run


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a target and a test of its own."""
    (tmp_path / "mine.py").write_text(WRONG + "def dot_score(queries, keys): return queries @ keys.swapaxes(-1, -2)\n")
    (tmp_path / "test_own.py").write_text("def test_own(): pass\n")
    return tmp_path
