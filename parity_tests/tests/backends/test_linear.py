"""Linear attention in every backend: two identities, and what half precision must not lose."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from parity_tests.cases.suite import all_cases
from parity_tests.tests.attention_core.linear import by_weights


@pytest.mark.parametrize("name", ["heads", "causal_mask", "causal_blocks"])
def test_it_is_a_sum_of_all_values_by_quadratically_many_weights(backend: SimpleNamespace, name: str):
    (case,) = all_cases().select(f"linear_attention-{name}")
    given = {key: backend.runtime.from_numpy(array) for key, array in case.inputs.items()}
    context = backend.runtime.to_numpy(backend.package.linear_attention(**given, **case.options))
    np.testing.assert_allclose(context, by_weights(case.inputs, case.options), rtol=1e-12, atol=1e-14)


def test_steps_give_what_a_causal_call_gives(backend: SimpleNamespace):
    """Over the end of a block of 64 steps."""
    (case,) = all_cases().select("linear_attention-causal_blocks")
    arrays = [backend.runtime.from_numpy(case.inputs[name][:, :66]) for name in ("queries", "keys", "values")]
    expected = backend.runtime.to_numpy(backend.package.linear_attention(*arrays, causal=True))
    sums, norms = (backend.runtime.from_numpy(np.zeros(shape)) for shape in ((1, 2, 3), (1, 2)))
    for step in range(66):
        row = (array[:, step] for array in arrays)
        context, sums, norms = backend.package.linear_attention_step(*row, sums, norms)
        np.testing.assert_allclose(backend.runtime.to_numpy(context), expected[:, step], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
def test_float16_is_summed_in_float32(backend: SimpleNamespace, causal: bool):
    """A thousand values of 100 add up to more than float16 holds."""
    zeros = backend.runtime.from_numpy(np.zeros((1, 1000, 1), np.float16))
    values = backend.runtime.from_numpy(np.full((1, 1000, 1), 100.0, np.float16))
    context = backend.runtime.to_numpy(backend.package.linear_attention(zeros, zeros, values, causal=causal))
    assert context.dtype == np.float16 and (context == 100.0).all()
