"""Kernel regression as attention: `python examples/kernel_regression.py jax fit.png 500`.

Queries are points at which to predict, keys the points that were observed, values what was observed there: noisy
samples of y = 2 sin x + x^0.8. A narrow kernel follows the noise, a wide one flattens the curve; the learned one is
trained to predict each sample from all the others. So is a pooling with more parameters, a width for each sample, that
no layer has: a score is what one writes, and `attention_pooling` does the rest. Plots the fits and their weights if a
file is named; the number of samples is 50 unless given.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import numpy as np

import backends
from attention_core import draws

POINTS = 101
WIDTHS = (0.1, 0.5, 2.0)
STEPS, RATE, RATE_EACH = 60, 2.0, 100.0


def truth(x: np.ndarray) -> np.ndarray:
    """The curve behind the samples."""
    return 2.0 * np.sin(x) + x**0.8


def observe(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Points between 0 and 5, and the curve there with noise of standard deviation 0.5."""
    x = np.sort(2.5 * (draws.uniform("x", (1, samples)) + 1.0), axis=-1)
    noise = sum(draws.uniform(f"noise {part}", (1, samples)) for part in range(12)) / 4.0
    return x, truth(x) + noise


def learn(attention: ModuleType, runtime: ModuleType, x: np.ndarray, y: np.ndarray) -> float:
    """The width at which each sample is best predicted from the others, by gradient descent on 1/width."""
    layer = runtime.build(attention.NadarayaWatson, {"learned": True}, "float64")
    w = {"kernel.w": np.array(1.0)}
    samples = x.shape[-1]
    arrays = of_framework(runtime, queries=x, keys=x, values=y, mask=~np.eye(samples, dtype=bool)[None])
    mean = runtime.from_numpy(np.full((1, samples), 1.0 / samples))

    def losses(layer, **arrays):
        return ((layer(**arrays)[0] - arrays["values"]) ** 2,)

    for _ in range(STEPS):
        attention.set_parameters(layer, w)
        _, _, gradients = runtime.vjp(losses, arrays, {0: mean}, layer)
        w = {name: array - RATE * gradients[name] for name, array in w.items()}
    return 1.0 / float(w["kernel.w"])


def pool(attention: ModuleType, queries: Any, keys: Any, values: Any, w: Any, mask: Any = None) -> tuple[Any, Any]:
    """Predictions and weights where sample j has the width 1/w[j]; of points as columns, of keys and w as rows."""
    return attention.attention_pooling(-0.5 * ((queries - keys) * w) ** 2, values, mask=mask)


def learn_each(attention: ModuleType, runtime: ModuleType, x: np.ndarray, y: np.ndarray, width: float) -> np.ndarray:
    """The width of each sample, likewise, from one that all have."""
    samples = x.shape[-1]
    mask, w = ~np.eye(samples, dtype=bool)[None], np.full((1, 1, samples), 1.0 / width)
    fixed = {"queries": x[..., None], "keys": x[:, None], "values": y[..., None], "mask": mask}
    mean = runtime.from_numpy(np.full((1, samples, 1), 1.0 / samples))

    def losses(layer, **arrays):
        return ((pool(attention, **arrays)[0] - arrays["values"]) ** 2,)

    for _ in range(STEPS):
        _, gradients, _ = runtime.vjp(losses, of_framework(runtime, w=w, **fixed), {0: mean}, None)
        w = w - RATE_EACH * runtime.to_numpy(gradients["w"])
    return 1.0 / w


def of_framework(runtime: ModuleType, **arrays: np.ndarray) -> dict[str, Any]:
    """The arrays in the framework."""
    return {name: runtime.from_numpy(array) for name, array in arrays.items()}


def main(name: str, file: str | None, samples: int) -> None:
    """Fit with each width, and print how far the fit is from the curve."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    x, y = observe(samples)
    points = np.linspace(0.0, 5.0, POINTS)[None]
    learned = learn(attention, runtime, x, y)
    fits = {}
    for title, width in [*((f"width {width}", width) for width in WIDTHS), (f"learned: {learned:.2f}", learned)]:
        layer = runtime.build(attention.NadarayaWatson, {"width": width}, "float64")
        given = map(runtime.from_numpy, (points, x, y))
        fits[title] = tuple(runtime.to_numpy(array)[0] for array in layer(*given))
    each = learn_each(attention, runtime, x, y, learned)
    points_and_samples = {"queries": points[..., None], "keys": x[:, None], "values": y[..., None], "w": 1.0 / each}
    predictions, weights = pool(attention, **of_framework(runtime, **points_and_samples))
    fits[f"each: {each.min():.2f} to {each.max():.2f}"] = (
        runtime.to_numpy(predictions)[0, :, 0],
        runtime.to_numpy(weights)[0],
    )
    for title, (predictions, _) in fits.items():
        error = float(np.sqrt(np.mean((predictions - truth(points[0])) ** 2)))
        print(f"{name}: {title:<18} root mean square error {error:.3f}")
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
