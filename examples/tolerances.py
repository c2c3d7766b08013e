"""Absolute tolerances and assert_parity on right and on wrong results: `python examples/tolerances.py`.

Each line is a result of attention, or of its scores: whether it is right, its largest absolute error, and what three
assertions say. The reference and NumPy suffice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from attention_core import draws, reference
from parity_tests import assert_parity

ABSOLUTE = {"bfloat16": 0.05, "float32": 1e-5}
"""Absolute tolerances as tests of attention have them."""


@dataclass(frozen=True)
class Result:
    """An array and what it should be, with a sentence about it."""

    sentence: str
    right: bool
    actual: np.ndarray
    expected: np.ndarray
    operator: str = "DotProductAttention"
    quantity: str = "context"


def results() -> Iterator[Result]:
    """Right results that an absolute tolerance refuses, and wrong ones that it accepts."""
    queries, keys = draws.uniform("queries", (2, 5, 64)), draws.uniform("keys", (2, 7, 64))
    values, layer, lens = draws.uniform("values", (2, 7, 8)), reference.DotProductAttention(), np.array([7, 0])
    context, _ = layer(queries, keys, 28.0 + 4.0 * values, np.array([7, 4]))
    yield Result("values near 28, rounded once to bfloat16", True, context.astype(ml_dtypes.bfloat16), context)

    products = reference.dot_score(300.0 * queries, 300.0 * keys)
    shows = "scores of features to 300, rounded once to float32"
    yield Result(shows, True, products.astype(np.float32), products, "dot_score", "scores")

    small = 0.04 * values
    context, _ = layer(queries, keys, small, lens)
    filled = context.copy()
    filled[1] = small[1].mean(axis=0)
    shows = "a fully masked sentence gets the mean of its padding"
    yield Result(shows, False, filled.astype(ml_dtypes.bfloat16), context)

    context, _ = layer(queries, keys, small)
    unscaled, _ = reference.DotProductAttention(scale=1.0)(queries, keys, small)
    yield Result("scores are not scaled", False, unscaled.astype(ml_dtypes.bfloat16), context)

    tiny = 1e-5 * values
    context, _ = layer(queries, keys, tiny, np.array([7, 4]))
    whole, _ = layer(queries, keys, tiny)
    yield Result("padding is attended to, values near 1e-5", False, whole.astype(np.float32), context)


def passes(result: Result) -> bool:
    """What assert_parity says."""
    try:
        assert_parity(result.actual, result.expected, operator=result.operator, quantity=result.quantity)
    except AssertionError:
        return False
    return True


def main() -> None:
    """Print a table, as Markdown."""
    print("| result | is | largest error | absolute tolerance | assert_parity |")
    print("|---|---|---|---|---|")
    for result in results():
        name = result.actual.dtype.name
        error = float(np.abs(result.actual.astype(np.float64) - result.expected).max())
        absolute = "passes" if error <= ABSOLUTE[name] else "fails"
        verdict = "passes" if passes(result) else "fails"
        is_right = "right" if result.right else "wrong"
        print(f"| {result.sentence} | {is_right} | {error:.2g} | {absolute} at {ABSOLUTE[name]:g} | {verdict} |")


if __name__ == "__main__":
    main()
