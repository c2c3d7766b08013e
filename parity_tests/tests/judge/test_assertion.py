"""assert_parity: what it accepts, what it refuses, and the page about it."""

from __future__ import annotations

import re
import runpy
import sys

import ml_dtypes
import numpy as np
import pytest

from attention_core import reference
from attention_core.draws import uniform
from parity_tests import assert_parity
from parity_tests.tests.places import ROOT

DOT = {"operator": "DotProductAttention"}
QUERIES, KEYS, VALUES = uniform("q", (2, 5, 4)), uniform("k", (2, 7, 4)), uniform("v", (2, 7, 6))
CONTEXT, WEIGHTS = reference.DotProductAttention()(QUERIES, KEYS, VALUES, np.array([7, 0]))
PAGE = (ROOT / "docs" / "tolerances.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_result_that_is_rounded_once_passes(dtype: type):
    assert_parity(CONTEXT.astype(dtype), CONTEXT, quantity="context", **DOT)
    assert_parity(WEIGHTS.astype(dtype), WEIGHTS, quantity="weights", **DOT)


def moved(array: np.ndarray, eps: float) -> np.ndarray:
    """The array in float32, its first entry off by so many eps of the largest one."""
    changed = array.copy()
    changed.flat[0] += eps * 2.0**-23 * np.abs(array).max()
    return changed.astype(np.float32)


def test_the_tolerance_is_that_of_the_parity_run():
    assert_parity(moved(CONTEXT, 14.0), CONTEXT, quantity="context", **DOT)
    words = r"DotProductAttention: context\[0, 0, 0\] is .*: 1\d(\.\d)? eps \(relative error .*\), allowed 15 "
    reason = r"\(2% of elements too far\); "
    reason += r"one eps of float32 is .* here\. Tolerance: a few sums of at most ten products"
    with pytest.raises(AssertionError, match=words + reason):
        assert_parity(moved(CONTEXT, 16.0), CONTEXT, quantity="context", **DOT)
    with pytest.raises(AssertionError, match="context is float32, expected float64"):
        assert_parity(moved(CONTEXT, 14.0), CONTEXT, quantity="context", dtype="float64", **DOT)
    assert_parity(moved(CONTEXT, 16.0), CONTEXT, quantity="context", dtype="bfloat16", **DOT)


@pytest.mark.parametrize(
    ("actual", "words"),
    [
        (CONTEXT[:1], r"context has shape \(1, 5, 6\), expected \(2, 5, 6\)"),
        (np.round(CONTEXT).astype(int), "context is int64, expected float64"),
        (np.where(CONTEXT == 0.0, 1e-12, CONTEXT), r"context\[1, 0, 0\] is 1e-12, expected 0.0"),
        (np.where(CONTEXT == 0.0, np.nan, CONTEXT), r"context\[1, 0, 0\] is nan, expected 0.0 \(50% of elements\)"),
    ],
)
def test_shape_dtype_nan_and_zeros(actual: np.ndarray, words: str):
    with pytest.raises(AssertionError, match=words):
        assert_parity(actual, CONTEXT, quantity="context", **DOT)


def test_all_zero_is_exactly_zero():
    with pytest.raises(AssertionError, match="all is zero here"):
        assert_parity(np.full((2, 3), 1e-30), np.zeros((2, 3)), quantity="context", **DOT)


def test_small_weights_are_compared_by_themselves():
    weights = np.array([[1.0 - 1e-9, 1e-9]])
    with pytest.raises(AssertionError, match="relative to this entry"):
        assert_parity(weights * [[1.0, 1.0 + 1e-6]], weights, quantity="weights", **DOT)


def test_what_is_zero_up_to_rounding_is_compared_beside_another_quantity():
    given = {"operator": "MultiHeadAttention", "quantity": "gradient_b_k"}
    with pytest.raises(ValueError, match=r"gradient_b_k is 0 up to rounding, .* size of gradient_W_k: pass"):
        assert_parity(np.full(3, 1e-16), np.full(3, 2e-17), **given)
    assert_parity(np.full(3, 1e-16), np.full(3, 2e-17), **given, beside=np.ones((3, 3)))


@pytest.mark.parametrize(
    ("operator", "quantity", "error", "words"),
    [
        ("DotAttention", "context", KeyError, "no operator 'DotAttention'; there are"),
        ("DotProductAttention", "contxt", ValueError, "has no quantity 'contxt'; it has .*context, weights"),
        ("masked_softmax", "gradient_W", ValueError, "no quantity 'gradient_W'; it has weights, gradient_scores"),
        ("GRU", "gradient_0.W", None, ""),
        ("AdditiveAttention", "gradient_w_v", None, ""),
    ],
)
def test_operators_and_quantities_are_those_of_the_specification(
    operator: str, quantity: str, error: type[Exception] | None, words: str
):
    if error is None:
        assert_parity(np.ones(3), np.ones(3), operator=operator, quantity=quantity)
        return
    with pytest.raises(error, match=words):
        assert_parity(np.ones(3), np.ones(3), operator=operator, quantity=quantity)


def test_an_array_that_numpy_cannot_read_is_named():
    class Attached:
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise RuntimeError("it requires grad")

    with pytest.raises(
        TypeError, match=r"actual is a Attached that NumPy cannot read: detach it, .* \(it requires grad"
    ):
        assert_parity(Attached(), CONTEXT, quantity="context", **DOT)


def test_the_page_has_what_the_example_prints(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["tolerances.py"])
    example = runpy.run_path(str(ROOT / "examples" / "tolerances.py"), run_name="__main__")
    table = capsys.readouterr().out
    assert table in PAGE
    filled = next(result for result in example["results"]() if not result.right)
    with pytest.raises(AssertionError) as error:
        assert_parity(filled.actual, filled.expected, operator=filled.operator, quantity=filled.quantity)
    # Versions of ml_dtypes print a bfloat16 with more or fewer digits.
    place, _, rest = str(error.value).partition(", expected ")
    assert rest in " ".join(PAGE.split()) and place.startswith("DotProductAttention: context[1, 0, 0] is 0.01647")
    rows = re.findall(r"\| (right|wrong) \| [^|]* \| (passes|fails) at [^|]* \| (passes|fails) \|", table)
    assert sorted(rows) == [("right", "fails", "passes")] * 2 + [("wrong", "passes", "fails")] * 3


def test_right_results_of_every_score_pass_with_inputs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["conditions.py"])
    runpy.run_path(str(ROOT / "examples" / "conditions.py"), run_name="__main__")
    header, line, *rows = capsys.readouterr().out.splitlines()
    assert f"{header}\n{line}\n" in PAGE
    assert len(rows) == 5 and all(row.endswith("| 8 of 8 pass | 0 of 8 pass |") for row in rows)
    assert not all("| 8 of 8 pass | 8 of 8 pass |" in row for row in rows)
