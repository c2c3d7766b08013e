"""Hard attention that learns: `python examples/hard_attention.py torch learning.png`.

A query names one of eight keys, and the digit behind it is to be reported: the loss is 1 for the right digit, and 2 for
another. Which key is read is drawn, so no gradient of the loss reaches the scores. The score-function estimator
multiplies the loss by the gradient of the log-probability of that key (Williams 1992; Xu et al. 2015, section 4.1). A
baseline, here a moving average of earlier losses, is subtracted from the loss: the mean of the estimate stays, and its
variance falls. Prints how far estimates are from the exact gradient, which needs the losses of all keys, and trains by
all three. Draws the expected losses if a file is named.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

import backends
from attention_core import draws

BATCH, KEYS, DIGITS = 8, 8, 10
STEPS, RATE, DECAY = 200, 6.0, 0.9
SAMPLES, SHOWN = 50, 40
WITHOUT, WITH, EXACT = KINDS = ("without a baseline", "with a baseline", "the exact gradient")

Arrays = dict[str, np.ndarray]


def batch(step: int) -> Arrays:
    """Names as queries and, in another order each time, as keys; and the loss of reading each key."""
    names, order = np.eye(KEYS), draws.uniform(f"order {step}", (BATCH, KEYS)).argsort(axis=-1)
    named = draws.integers(f"named {step}", (BATCH, 1), KEYS)
    digits = draws.integers(f"digits {step}", (BATCH, KEYS), DIGITS)
    wrong = digits != digits[order == named][:, None]
    return {"queries": names[named], "keys": names[order], "losses": 1.0 + wrong[..., None]}


def expected_losses(layer: Any, queries: Any, keys: Any, losses: Any) -> tuple[Any]:
    """The losses, averaged by the probabilities of the keys."""
    return (layer.scored(queries, keys, losses)[0][..., 0],)


def log_probs(layer: Any, queries: Any, keys: Any, losses: Any, weights: Any) -> tuple[Any]:
    """The log-probabilities of the keys that were read."""
    return (layer.log_prob(queries, layer.prepare(keys, losses), weights),)


def main(name: str, file: str | None) -> None:
    """Compare the estimates with the exact gradient, and train by each."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    config = {"query_size": KEYS, "key_size": KEYS, "score": "general"}
    layer = runtime.build(attention.HardAttention, config, "float64")

    def differentiate(function: Any, arrays: Arrays, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The function's outputs, and the gradient of the mean of factors · outputs."""
        given = {key: runtime.from_numpy(array) for key, array in arrays.items()}
        outputs, _, gradients = runtime.vjp(function, given, {0: runtime.from_numpy(factors / BATCH)}, layer)
        return runtime.to_numpy(outputs[0]), gradients["scored.W"]

    def exact(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """The expected losses, and their gradient."""
        return differentiate(expected_losses, arrays, np.ones((BATCH, 1)))

    def estimate(arrays: Arrays, number: int, baseline: float) -> tuple[np.ndarray, np.ndarray]:
        """The losses of keys that are drawn, and the estimate of the gradient."""
        noise = runtime.from_numpy(0.5 * (draws.uniform(f"noise {number}", (BATCH, 1, KEYS)) + 1.0))
        losses, weights = map(runtime.to_numpy, layer(*map(runtime.from_numpy, arrays.values()), noise=noise))
        return losses, differentiate(log_probs, {**arrays, "weights": weights}, losses[..., 0] - baseline)[1]

    def distance(errors: np.ndarray) -> float:
        """The root mean square of errors of the gradient, as a multiple of it."""
        return float(np.sqrt((errors**2).sum(axis=(-2, -1)).mean() / (gradient**2).sum()))

    attention.set_parameters(layer, {"scored.W": np.zeros((KEYS, KEYS))})
    arrays = batch(0)
    losses, gradient = exact(arrays)
    for kind, baseline in ((WITHOUT, 0.0), (WITH, losses.mean())):
        errors = np.stack([estimate(arrays, number, baseline)[1] - gradient for number in range(SAMPLES)])
        print(f"{name}: {kind}: an estimate is off by {distance(errors):.1f} times the gradient,")
        print(f"{name}:     and the mean of {SAMPLES} by {distance(errors.mean(axis=0)):.1f}")

    def train(kind: str) -> np.ndarray:
        """The expected loss before each step."""
        matrix, baseline, curve = np.zeros((KEYS, KEYS)), 0.0, []
        for step in range(STEPS):
            attention.set_parameters(layer, {"scored.W": matrix})
            arrays = batch(step)
            losses, gradient = exact(arrays)
            curve.append(losses.mean())
            if kind != EXACT:
                losses, gradient = estimate(arrays, step, baseline)
            if kind == WITH:
                baseline = DECAY * baseline + (1.0 - DECAY) * losses.mean()
            matrix = matrix - RATE * gradient
        return np.array(curve)

    curves = {kind: train(kind) for kind in KINDS}
    print(f"{name}: expected loss      ", *(f"{step:>5}-{step + SHOWN - 1}" for step in range(1, STEPS, SHOWN)))
    for kind, curve in curves.items():
        means = curve.reshape(-1, SHOWN).mean(axis=-1)
        print(f"{name}: {kind:<18}", *(f"{loss:>8.3f}" for loss in means))
    if file is not None:
        picture(curves, file)


def picture(curves: dict[str, np.ndarray], file: str) -> None:
    """The expected loss before each step, of each training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.subplots()
    for kind, curve in curves.items():
        axes.plot(np.arange(1, STEPS + 1), curve, linewidth=1.0, label=kind)
    axes.set_xlabel("step")
    axes.set_ylabel("expected loss")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150)
    print(f"drawn in {file}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch", sys.argv[2] if len(sys.argv) > 2 else None)
