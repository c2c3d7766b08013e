"""Right results whose scores are large, and what assert_parity says of them: `python examples/conditions.py [PICTURE]`.

A softmax turns the rounding of a score into as much of a weight, so the error of a right float32 result grows with its
scores. With `inputs`, that growth is measured and allowed; a row that is off by a thousandth is not.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from attention_core import draws, reference
from parity_tests import assert_parity

SCORES = (1, 4, 20, 100, 500)
SEEDS = range(8)
DOT = {"operator": "DotProductAttention", "quantity": "context"}


def arguments(largest: float, seed: int) -> dict[str, np.ndarray]:
    """Queries, keys and values in float32, of which the largest score is about that."""
    shapes = {"queries": (1, 8, 128), "keys": (1, 240, 128), "values": (1, 240, 128)}
    arrays = {name: draws.uniform(name, shape, 3.0**0.5, seed) for name, shape in shapes.items()}
    arrays["queries"] *= largest / 4.0
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def attend(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The textbook's attention, in the dtype of its arguments."""
    scores = queries @ keys.swapaxes(-1, -2) / queries.dtype.type(np.sqrt(queries.shape[-1]))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    context: np.ndarray = (weights / weights.sum(axis=-1, keepdims=True)) @ values
    return context


def passes(actual: np.ndarray, expected: np.ndarray, inputs: Mapping[str, np.ndarray] | None = None) -> bool:
    """Whether assert_parity accepts the result."""
    try:
        assert_parity(actual, expected, inputs=inputs, **DOT)
    except AssertionError:
        return False
    return True


def main(picture: str = "") -> None:
    """Print how many results pass, by the largest score, and draw their errors if there is a file for it."""
    errors: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    print("| scores to | right, without inputs | right, with inputs | a row off by 1e-3, with inputs |")
    print("|---|---|---|---|")
    for largest in SCORES:
        without = given = wrong = 0
        for seed in SEEDS:
            arrays = arguments(largest, seed)
            expected, _ = reference.DotProductAttention()(
                **{name: array.astype(float) for name, array in arrays.items()}
            )
            actual = attend(**arrays)
            off = actual.copy()
            off[:, seed] *= 1.001
            plain = passes(actual, expected)
            without, given, wrong = (
                without + plain,
                given + passes(actual, expected, arrays),
                wrong + passes(off, expected, arrays),
            )
            errors[plain].append((largest, float(np.abs(actual - expected).max() / np.abs(expected).max() * 2.0**23)))
        print(f"| {largest} | {' | '.join(f'{count} of {len(SEEDS)} pass' for count in (without, given, wrong))} |")
    if picture:
        draw(errors, picture)


def draw(errors: Mapping[bool, list[tuple[float, float]]], picture: str) -> None:
    """Draw the error of each result by its largest score."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.add_subplot(
        xscale="log", yscale="log", xlabel="largest score", ylabel="error of a right result [eps]"
    )
    for plain, colour, label in ((True, "tab:blue", "passes without inputs"), (False, "tab:red", "needs inputs")):
        axes.scatter(*zip(*errors[plain], strict=True), s=18, color=colour, label=label)
    axes.axhline(15.0, color="grey", linewidth=1.0)
    axes.annotate("tolerance of well-conditioned arrays", (1.0, 15.0), (0, 4), textcoords="offset points", fontsize=8)
    axes.legend(frameon=False)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:])
