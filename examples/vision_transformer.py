"""A Vision Transformer reads digits: `python examples/vision_transformer.py torch digits.png jax`.

The images are scikit-learn's, 8 · 8 pixels in grey, each cut into 16 patches of 2 · 2 (Dosovitskiy et al. 2021,
arXiv:2010.11929). The weights, the batches and Adam are the same in every framework. Prints how many of the test images
are right. Draws how much the class token attends to each patch, over all layers, if a file is named. In further
frameworks that are named, the trained weights have to give the same classes.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any

import numpy as np

import backends
from attention_core import draws, reference

CLASSES, PIXELS, PATCH = 10, 8, 2
CONFIG = {
    "height": PIXELS,
    "width": PIXELS,
    "channels": 1,
    "patch_size": PATCH,
    "num_classes": CLASSES,
    "features": 32,
    "num_heads": 4,
    "hidden_size": 64,
    "num_layers": 2,
}
EVERY, BATCH = 5, 64
STEPS, RATE, SHOWN = 600, 0.005, 200


def digits() -> tuple[np.ndarray, np.ndarray]:
    """All images, from 0 to 1 and with an axis for their channel, and their classes."""
    if importlib.util.find_spec("sklearn") is None:
        sys.exit("the images need scikit-learn, the extra [digits]. Run: pip install scikit-learn")
    from sklearn.datasets import load_digits

    loaded = load_digits()
    return (loaded.images[..., None] / 16.0).astype(np.float32), loaded.target.astype(np.int32)


def open_layer(name: str) -> tuple[ModuleType, Any, Any]:
    """The backend, its runtime, and a layer."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    return attention, runtime, runtime.build(attention.VisionTransformer, CONFIG, "float32")


def main(name: str, file: str | None, others: list[str]) -> None:
    """Train a layer, see what its class token attends to, and move its weights."""
    images, classes = digits()
    held = np.arange(len(images)) % EVERY == 0
    tested, expected, shown, known = images[held], classes[held], images[~held], classes[~held]
    attention, runtime, layer = open_layer(name)
    shapes = {key: array.shape for key, array in attention.get_parameters(layer).items()}
    fans = layer.specification.fans(layer.sizes)
    parameters = {key: draws.uniform(key, shape, fans[key] ** -0.5).astype(np.float32) for key, shape in shapes.items()}
    parameters |= {key: np.ones_like(array) for key, array in parameters.items() if key.endswith(".g")}
    moments = reference.adam(RATE).moments
    state = {f"{moment}.{key}": np.zeros_like(array) for moment in moments for key, array in parameters.items()}

    def losses(layer: Any, images: Any, targets: Any) -> tuple[Any]:
        """The cross-entropy of the classes."""
        return (attention.masked_cross_entropy(layer(images, need_weights=False)[0][:, None], targets),)

    for step in range(1, STEPS + 1):
        attention.set_parameters(layer, parameters)
        chosen = draws.integers(f"step {step}", (BATCH,), len(shown))
        given = {"images": shown[chosen], "targets": known[chosen, None]}
        given = {key: runtime.from_numpy(array) for key, array in given.items()}
        _, _, gradients = runtime.vjp(losses, given, {0: runtime.from_numpy(np.ones((), np.float32))}, layer)
        state["step"] = np.array(step)
        optimizer = reference.adam(RATE * (1.0 - (step - 1) / STEPS))
        parameters = optimizer.update(parameters, gradients, state)
        if step % SHOWN == 0:
            attention.set_parameters(layer, parameters)
            logits, weights = layer(runtime.from_numpy(tested))
            logits = runtime.to_numpy(logits)
            right = (logits.argmax(axis=-1) == expected).mean()
            print(f"{name}: {step} steps: {100.0 * right:.1f} % of {len(tested)} test images are right")

    for other in others:
        _, new_runtime, new = open_layer(other)
        backends.load(other).set_parameters(new, parameters)
        moved = new_runtime.to_numpy(new(new_runtime.from_numpy(tested))[0])
        same = (moved.argmax(axis=-1) == logits.argmax(axis=-1)).sum()
        error = np.abs(moved - logits).max() / np.abs(logits).max()
        print(f"{name} -> {other}: same classes of {same} of {len(tested)} images; logits differ by up to {error:.0e}")

    if file is not None:
        rollout = runtime.to_numpy(attention.attention_rollout(weights))
        first = [int(np.argmax(expected == digit)) for digit in range(CLASSES)]
        picture(tested[first, :, :, 0], logits[first].argmax(axis=-1), rollout[first, 0, 1:], file)


def picture(images: np.ndarray, answers: np.ndarray, weights: np.ndarray, file: str) -> None:
    """Each image with its answer, and below it what the class token attends to."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.1 * CLASSES, 2.6), layout="constrained")
    above, below = figure.subplots(2, CLASSES)
    grid = PIXELS // PATCH
    for axes, image, answer in zip(above, images, answers, strict=True):
        axes.imshow(image, cmap="Greys")
        axes.set(title=str(answer), xticks=[], yticks=[])
    for axes, row in zip(below, weights, strict=True):
        axes.imshow(row.reshape(grid, grid), cmap="Blues", vmin=0.0)
        axes.set(xticks=[], yticks=[])
    figure.savefig(file, dpi=150)
    print(f"drawn in {file}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch", sys.argv[2] if len(sys.argv) > 2 else None, sys.argv[3:])
