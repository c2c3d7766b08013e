"""What is computed in blocks, in mixed precision: the cells of the plain formulas, on the blocked path."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from backends.archives import unpack_arrays
from parity_tests.cases.suite import all_cases
from parity_tests.format.case import MIXED
from parity_tests.format.selection import Cell
from parity_tests.judge.compare import judge
from parity_tests.judge.question import Question
from parity_tests.tests.backends.blocks import on_path
from parity_tests.workers.answers import Answer
from parity_tests.workers.package import Backend
from parity_tests.workers.recordings import Recording, batch_of
from parity_tests.workers.worker import group


@pytest.mark.implements("blocked/dot_product.py")
@pytest.mark.parametrize("dtype", MIXED)
@pytest.mark.parametrize("layer", ["AdditiveAttention", "DotProductAttention", "MultiHeadAttention", "BahdanauDecoder"])
def test_blocks_are_within_the_tolerance_of_the_dtype_of_the_arithmetic(
    backend: SimpleNamespace, layer: str, dtype: str
):
    cells = [Cell(case, dtype) for case in all_cases() if case.operator == layer and case.has(dtype)]
    packed, header = unpack_arrays(batch_of(cells).packed)
    package, parts = Backend(backend.package, backend.runtime, "cpu"), group(packed)
    for cell, described in zip(cells, header["cells"], strict=True):
        given = parts[cell.key]
        with on_path(backend, "blocked"):
            answer = package.run(described, given["input"], given["parameter"], given["cotangent"])
        recording = Recording(backend.name, "cpu", cells={cell.key: answer.arrays}, answers={cell.key: Answer()})
        verdicts = list(judge(Question(cell), recording))
        assert verdicts and not [verdict.reason for verdict in verdicts if verdict.red]
