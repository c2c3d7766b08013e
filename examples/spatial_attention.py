"""Attention over an image, as captions are written: `python examples/spatial_attention.py torch words.png`.

An image is a grid of cells with a digit in each, of which one is red, one green and one blue. A Bahdanau decoder reads
out these three in that order; its encoder outputs are the image's feature map, (batch, height · width, channels), as a
convolutional network makes it of a photograph (Xu et al. 2015, arXiv:1502.03044). Prints how many digits of new images
are right, and how much of each word's weight is on its cell. Draws the weights over an image if a file is named.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

import backends
from attention_core import draws, reference

HEIGHT, WIDTH, DIGITS = 4, 5, 10
COLOURS = ("red", "green", "blue")
CELLS, WORDS, BOS = HEIGHT * WIDTH, len(COLOURS), DIGITS
CONFIG = {
    "vocab_size": DIGITS + 1,
    "embed_size": 8,
    "hidden_size": 32,
    "memory_size": DIGITS + WORDS,
    "initial": "learned",
}
BATCH, TESTED = 64, 256
STEPS, RATE, SHOWN = 60, 0.02, 20


def images(name: str, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Feature maps with the digit of each cell and its colour, if any; the digits to read out, and their cells."""
    digits = draws.integers(f"{name}: digits", (count, CELLS), DIGITS)
    cells = draws.uniform(f"{name}: cells", (count, CELLS)).argsort(axis=-1)[:, :WORDS]
    colours = np.arange(CELLS)[:, None] == cells[:, None]
    features = np.concatenate([np.eye(DIGITS)[digits], colours], axis=-1).astype(np.float32)
    return features, np.take_along_axis(digits, cells, axis=-1).astype(np.int32), cells


def main(name: str, file: str | None) -> None:
    """Train a decoder, and see where it looks for each word."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    decoder = runtime.build(attention.BahdanauDecoder, CONFIG, "float32")
    shapes = attention.get_parameters(decoder).items()
    parameters = {key: draws.uniform(key, array.shape, 0.3).astype(np.float32) for key, array in shapes}
    attention.set_parameters(decoder, parameters)
    optimizer, state = reference.adam(RATE), {}
    for moment in optimizer.moments:
        state |= {f"{moment}.{key}": np.zeros_like(array) for key, array in parameters.items()}
    tested, words, cells = images("tested", TESTED)

    def weights_after(steps: int) -> np.ndarray:
        """The weights of each word, over the cells of each image."""
        given = runtime.from_numpy(tested)
        found = decoder.greedy(given, bos=BOS, eos=BOS, max_steps=WORDS)
        tokens, _, weights = map(runtime.to_numpy, found)
        right = 100.0 * (tokens == words).mean()
        shares = 100.0 * np.take_along_axis(weights, cells[..., None], axis=-1)[..., 0].mean(axis=0)
        on_cells = ", ".join(f"{share:.0f} % on the {colour}" for share, colour in zip(shares, COLOURS, strict=True))
        print(f"{name}: {steps:>3} steps: {right:.0f} % of the digits are right; weights: {on_cells}")
        return weights

    def losses(decoder: Any, features: Any, inputs: Any, targets: Any) -> tuple[Any]:
        """The cross-entropy of the words."""
        return (attention.masked_cross_entropy(decoder(inputs, features)[0], targets),)

    weights_after(0)
    for step in range(1, STEPS + 1):
        features, targets, _ = images(f"step {step}", BATCH)
        arrays = {"features": features, "inputs": np.insert(targets[:, :-1], 0, BOS, axis=1), "targets": targets}
        given = {key: runtime.from_numpy(array) for key, array in arrays.items()}
        _, _, gradients = runtime.vjp(losses, given, {0: runtime.from_numpy(np.ones((), np.float32))}, decoder)
        state["step"] = np.array(step)
        parameters = optimizer.update(parameters, gradients, state)
        attention.set_parameters(decoder, parameters)
        if step % SHOWN == 0:
            weights = weights_after(step)

    if file is not None:
        picture(tested[0], words[0], cells[0], weights[0], file)


def picture(features: np.ndarray, words: np.ndarray, cells: np.ndarray, weights: np.ndarray, file: str) -> None:
    """The image once for each word, on a ground that is the darker, the more weight a cell has."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.6 * WORDS, 2.4), layout="constrained")
    colour_of = dict(zip(cells, COLOURS, strict=True))
    for axes, colour, word, row in zip(figure.subplots(1, WORDS), COLOURS, words, weights, strict=True):
        axes.imshow(row.reshape(HEIGHT, WIDTH), cmap="Greys", vmin=0.0, vmax=3.0)
        for cell, digit in enumerate(features[:, :DIGITS].argmax(axis=-1)):
            place, style = (cell % WIDTH, cell // WIDTH), {"ha": "center", "va": "center", "weight": "bold"}
            axes.text(*place, str(digit), color=colour_of.get(cell, "0.6"), **style)
        axes.set(title=f"{colour}: {word}", xticks=[], yticks=[])
    figure.savefig(file, dpi=150)
    print(f"drawn in {file}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch", sys.argv[2] if len(sys.argv) > 2 else None)
