"""What a target writes to the cache of expected values is not believed."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parity_tests.cases.suite import all_cases
from parity_tests.format.selection import cells_of
from parity_tests.judge.run import CacheError, run
from parity_tests.tests.commands import squeezed
from parity_tests.tests.judge.sources import SOFTMAX, WRITTEN, WRONG, Check, pytest_run
from parity_tests.tests.places import ROOT
from parity_tests.workers.process import Job, record
from parity_tests.workers.recordings import Recording

pytestmark = pytest.mark.once


FORGING = """
import os
from backends import save_arrays
from backends import unpack_arrays
from parity_tests.cases.suite import all_cases
from parity_tests.judge.verdict import Verdict
from parity_tests.format.expected import computed_outputs, files

os.environ["ATTENTION_PARITY_CACHE"] = {cache!r}
for case in all_cases().select({pattern!r}):
    path = files(case, "float64")["outputs"]
    path.parent.mkdir(parents=True, exist_ok=True)
    save_arrays(path, {{name: 1.5 * array for name, array in computed_outputs(case, *case.at("float64")).items()}})
"""


def forge(source: str) -> None:
    """Write forged values to the cache, as another program."""
    subprocess.run([sys.executable, "-c", source], check=True, cwd=ROOT)


@pytest.fixture
def forging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A cache of this test's own, and the source that writes the values of WRONG to it."""
    monkeypatch.setenv("ATTENTION_PARITY_CACHE", str(tmp_path / "cache"))
    return lambda pattern=WRITTEN: FORGING.format(cache=str(tmp_path / "cache"), pattern=pattern)


@pytest.mark.parametrize("warm", [False, True])
def test_what_a_target_writes_to_the_cache_is_not_believed(check: Check, forging: Callable[..., str], warm: bool):
    if warm:
        assert check(SOFTMAX, "--case", WRITTEN).exit_code == 0
    result = check(WRONG + forging(), "--case", WRITTEN)
    assert result.exit_code == 1 and "24 of 27 comparisons" in result.output


@pytest.mark.parametrize("pattern", [WRITTEN, "masked_softmax-mask"])
@pytest.mark.parametrize("target", [SOFTMAX, WRONG], ids=["right", "wrong"])
def test_a_forged_cache_is_refused_without_red_verdicts(
    check: Check, forging: Callable[..., str], tmp_path: Path, target: str, pattern: str
):
    forge(forging(pattern))
    asked = pattern if target is WRONG else WRITTEN  # a single forged value that none is red for may slip by
    result = check(target, "--case", asked)
    assert result.exit_code == 2, result.output
    assert f"Delete {tmp_path / 'cache' / 'expected'} and run again" in squeezed(result)
    shutil.rmtree(tmp_path / "cache" / "expected")
    assert check(target, "--case", asked).exit_code == (1 if target is WRONG else 0)


def test_a_forged_cache_is_refused_in_pytest_too(project: Path, forging: Callable[..., str], check: Check):
    forge(forging("masked_softmax-mask"))
    (project / "mine.py").write_text(SOFTMAX)
    arguments = ("--parity-target", "mine.py", "--parity-dtype", "float64", "-k", "masked_softmax-mask", "-q")
    done = pytest_run(project, *arguments)
    assert done.returncode == 1 and "differs from the reference for masked_softmax-mask" in done.stdout


def test_a_forged_cache_is_refused_in_a_run_and_not_read_while_workers_run(
    forging: Callable[..., str], fake_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
):
    cases = list(all_cases().select(WRITTEN))

    def recorder(*given: Any) -> Recording:
        forge(forging())
        return record(*given)

    assert not run(cells_of(cases, ["float64"]), [fake_job()], recorder=recorder).red
    with pytest.raises(CacheError, match="differs from the reference"):
        run(cells_of(cases, ["float64"]), [fake_job()])


def test_a_worker_does_not_know_the_path_of_expected_values(check: Check, forging: Callable[..., str], tmp_path: Path):
    source = """
import json, os
from pathlib import Path
Path(__file__).with_name("environment.json").write_text(json.dumps(dict(os.environ)))
"""
    forging()
    assert check(SOFTMAX + source, "--case", "masked_softmax-mask").exit_code == 0
    told = json.loads((tmp_path / "environment.json").read_text())
    named = {name: value for name, value in told.items() if value.startswith(str(tmp_path / "cache"))}
    assert named == {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache" / "programs" / "jax")}
