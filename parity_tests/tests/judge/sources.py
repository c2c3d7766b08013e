"""Sources of small targets, and how the tests of `check` change a certificate and run pytest on a target."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import Result

from parity_tests.reports import certificate
from parity_tests.tests.places import ROOT

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
