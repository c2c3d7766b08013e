"""Sources of small targets, and how the tests of `check` change a certificate and run pytest on a target."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import Result

from backends.archives import unpack_arrays
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import Case
from parity_tests.format.selection import Cell, cells_of
from parity_tests.judge.check import apply_requirements
from parity_tests.judge.compare import judge_all
from parity_tests.judge.question import Questions
from parity_tests.judge.verdict import Verdict
from parity_tests.reports import certificate
from parity_tests.tests.places import ROOT
from parity_tests.workers.answers import Answer
from parity_tests.workers.recordings import Recording, batch_of
from parity_tests.workers.target import Target, load
from parity_tests.workers.worker import answer_cells, frames, group

EXAMPLE = ROOT / "examples" / "add_a_backend"

ENTRY = '[[divergence]]\ncase = "masked_softmax-*"\nquantity = "weights"\nreason = "Off by a half."\nlink = "https://a.b/1"\n'

SOFTMAX = """
import numpy as np

def masked_softmax(scores, mask=None):
    mask = (scores > -np.inf) & (True if mask is None else mask)
    shown = np.where(mask, scores, np.finfo(scores.dtype).min)
    raised = np.exp(shown - shown.max(-1, keepdims=True, initial=-1e30).astype(scores.dtype)) * mask
    total = raised.sum(-1, keepdims=True)
    return raised / np.where(total == 0, 1, total)
"""

WRONG = SOFTMAX.replace("raised / ", "1.5 * raised / ")

WRITTEN = "masked_softmax-[!c-f]*"
"""Cases written by hand, and the one that is repeated: what drawn ones would tell here, these do, too."""

Check = Callable[..., Result]


@contextmanager
def rewritten(path: Path) -> Iterator[dict[str, Any]]:
    """What a certificate says; changed within the context, it is written anew, with a digest that fits."""
    content = json.loads(path.read_text())
    yield content
    del content["digest"]
    for file, text in certificate.contents({**content, "digest": certificate._digest(content)}, path).items():
        file.write_text(text)


def pytest_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Pytest in a project of its own."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=variables, timeout=300)


def verdicts_of(target: Target, pattern: str, dtypes: Sequence[str] = ("float64",)) -> list[Verdict]:
    """What is found of a target in this process, as a worker asks it and as `check` judges it."""
    cells = cells_of(all_cases().select(pattern), dtypes)
    arrays, header = unpack_arrays(batch_of(cells).packed)
    stream = io.BytesIO()
    target.describe()
    answer_cells(stream, target, group(arrays), header["cells"])
    stream.seek(0)
    recording = Recording("mine", "cpu")
    for arrays, message in map(unpack_arrays, frames(stream)):
        recording.answers[message["key"]] = Answer.of(message)
        recording.cells[message["key"]] = arrays
    return list(apply_requirements(judge_all(cells, [recording], Questions()), require_all=False))


def target_of(source: str, tmp_path: Path) -> Target:
    """A target of that source."""
    path = tmp_path / "mine.py"
    path.write_text(source)
    return Target(*load(str(path)), str(path), "cpu")


def asked_of(case: Case) -> dict[str, Any]:
    """What a worker is asked for a case in float64."""
    cells: list[dict[str, Any]] = unpack_arrays(batch_of([Cell(case, "float64")]).packed)[1]["cells"]
    return cells[0]
