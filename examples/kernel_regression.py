"""Kernel regression as attention: `python examples/kernel_regression.py jax fit.png 500`.

Queries are points at which to predict, keys the points that were observed, values what was observed there: noisy
samples of y = 2 sin x + x^0.8. A narrow kernel follows the noise, a wide one flattens the curve; the learned one is
trained to predict each sample from all the others. Plots the fits and their weights if a file is named; the number of
samples is 50 unless given.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import numpy as np

import backends
from attention_core import draws

POINTS = 101
WIDTHS = (0.1, 0.5, 2.0)
STEPS, RATE = 60, 2.0


def truth(x: np.ndarray) -> np.ndarray:
    """The curve behind the samples."""
    return 2.0 * np.sin(x) + x**0.8


def observed(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Points between 0 and 5, and the curve there with noise of standard deviation 0.5."""
    x = np.sort(2.5 * (draws.uniform("x", (1, samples)) + 1.0), axis=-1)
    noise = sum(draws.uniform(f"noise {part}", (1, samples)) for part in range(12)) / 4.0
    return x, truth(x) + noise


def learn(attention: ModuleType, runtime: ModuleType, x: np.ndarray, y: np.ndarray) -> float:
    """The width at which each sample is best predicted from the others, by gradient descent on 1/width."""
    layer = runtime.build(attention.NadarayaWatson, {"learned": True}, "float64")
    w = {"kernel.w": np.array(1.0)}
    samples = x.shape[-1]
    others = ~np.eye(samples, dtype=bool)[None]
    arrays = {
        name: runtime.from_numpy(array)
        for name, array in (("queries", x), ("keys", x), ("values", y), ("mask", others))
    }

    mean = runtime.from_numpy(np.full((1, samples), 1.0 / samples))

    def losses(layer, **arrays):
        return ((layer(**arrays)[0] - arrays["values"]) ** 2,)

    for _ in range(STEPS):
        attention.set_parameters(layer, w)
        _, _, gradients = runtime.vjp(losses, arrays, {0: mean}, layer)
        w = {name: array - RATE * gradients[name] for name, array in w.items()}
    return 1.0 / float(w["kernel.w"])


def main(name: str, file: str | None, samples: int) -> None:
    """Fit with each width, and print how far the fit is from the curve."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    x, y = observed(samples)
    points = np.linspace(0.0, 5.0, POINTS)[None]
    learned = learn(attention, runtime, x, y)
    fits = {}
    for title, width in [*((f"width {width}", width) for width in WIDTHS), (f"learned: {learned:.2f}", learned)]:
        layer = runtime.build(attention.NadarayaWatson, {"width": width}, "float64")
        given = map(runtime.from_numpy, (points, x, y))
        fits[title] = tuple(runtime.to_numpy(array)[0] for array in layer(*given))
        error = float(np.sqrt(np.mean((fits[title][0] - truth(points[0])) ** 2)))
        print(f"{name}: {title:<14} root mean square error {error:.3f}")
    if file is not None:
        picture(points[0], x[0], y[0], fits, file)


def picture(
    points: np.ndarray, x: np.ndarray, y: np.ndarray, fits: dict[str, tuple[np.ndarray, np.ndarray]], file: str
) -> None:
    """The fits above, and below each the weight of every sample at every point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(fits), 5.6), layout="constrained")
    axes = figure.subplots(2, len(fits), sharex=True, height_ratios=(3, 2))
    for column, (title, (predictions, weights)) in enumerate(fits.items()):
        above, below = axes[0, column], axes[1, column]
        above.plot(points, truth(points), color="0.6", linewidth=1.0, label="2 sin x + x$^{0.8}$")
        above.scatter(x, y, s=10, color="tab:orange", label="samples")
        above.plot(points, predictions, color="tab:blue", linewidth=2.0, label="fit")
        above.set_title(title)
        above.set_ylim(-1.5, 6.0)
        image = below.imshow(
            weights.T, aspect="auto", origin="lower", cmap="magma_r", extent=(0.0, 5.0, 0.0, len(x)), vmin=0.0
        )
        figure.colorbar(image, ax=below, orientation="horizontal", shrink=0.8)
        below.set_xlabel("point")
    axes[0, 0].legend(frameon=False, fontsize=8, loc="lower right")
    axes[0, 0].set_ylabel("y")
    axes[1, 0].set_ylabel("sample, by x")
    figure.savefig(file, dpi=150)
    print(f"drawn in {file}")


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    main(arguments.get(1, "torch"), arguments.get(2), int(arguments.get(3, 50)))
