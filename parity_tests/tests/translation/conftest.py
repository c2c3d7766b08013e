"""What the tests of translation start from."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest

from backends.requirements import XLA_LEVEL
from parity_tests.tests.translation.translators import EPOCH, PAIRS, small
from parity_tests.translation.model import Model, new_model, read_data


@pytest.fixture(autouse=True)
def _compiled_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX compiles in a command, which takes its time for what runs for hours, as it does here."""
    monkeypatch.setenv(XLA_LEVEL, "0")


@pytest.fixture
def model() -> Model:
    settings = small()
    made = new_model(settings, read_data(settings, PAIRS), "torch")
    made.losses, made.norms = [2.5, 0.1 + 0.2], [1.0, 2.0]
    made.history = [asdict(EPOCH)]
    made.state = {"step": np.array(2, np.int64)}
    return made
