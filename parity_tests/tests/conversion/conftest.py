"""What the tests of conversions start from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from backends import weights


@pytest.fixture
def file(tmp_path: Path) -> Callable[..., Path]:
    """A file of arrays."""

    def write(arrays: dict[str, np.ndarray], name: str = "given.safetensors") -> Path:
        weights.write_arrays(tmp_path / name, arrays)
        return tmp_path / name

    return write
