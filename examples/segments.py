"""Attention to segments, with what lies before them: `python examples/segments.py torch`.

A stream of symbols comes in segments of four steps, and each step is to report the symbol of six steps before, which is
never in its segment. A SegmentAttention is trained on the segments in turn, with a memory of none, one or two segments
before: what it cannot see, it has to guess, with a loss of ln 16 at best. While the stream begins, the memory is not
yet full, and a mask hides its front. Prints the loss over the last segments, by the place of a step in its segment.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import numpy as np

import backends
from attention_core import draws, reference

SYMBOLS, DELAY, LENGTH = 16, 6, 4
"""As many features as symbols: an input is one of them as a unit vector, and the context its logits."""
CONFIG = {"query_size": SYMBOLS, "num_heads": 2, "hidden_size": 32}
BATCH, STEPS, LAST, MEMORIES = 32, 90, 10, (0, 1, 2)
RATE, DECAYS = 0.04, (0.9, 0.98)

Arrays = dict[str, np.ndarray]


def logits(layer: Any, **arrays: Any) -> tuple[Any]:
    """The context alone."""
    return (layer(**arrays, need_weights=False)[0],)


def segment(stream: np.ndarray, number: int, memory: int) -> Arrays:
    """The steps of a segment as unit vectors, and those of so many segments before it."""
    first, before = number * LENGTH, memory * LENGTH
    vectors = np.eye(SYMBOLS)[stream]
    arrays = {"inputs": vectors[:, first : first + LENGTH]}
    if memory:
        filled = vectors[:, max(first - before, 0) : first]
        empty = np.zeros((BATCH, before - filled.shape[1], SYMBOLS))
        arrays["previous"] = np.concatenate([empty, filled], axis=1)
        arrays["mask"] = (np.arange(before + LENGTH) >= empty.shape[1])[None, None]
    return arrays


def draw_parameters(attention: Any, layer: Any) -> Arrays:
    """First values of the parameters, uniform in ±1/√(their last axis)."""
    shapes = {name: array.shape for name, array in attention.get_parameters(layer).items()}
    return {name: draws.uniform(name, shape, shape[-1] ** -0.5) for name, shape in shapes.items()}


def train(name: str, memory: int) -> np.ndarray:
    """The loss of each place in a segment, averaged over the last segments of a training."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    layer = runtime.build(attention.SegmentAttention, CONFIG, "float64")
    stream = draws.integers("stream", (BATCH, STEPS * LENGTH), SYMBOLS)
    parameters, losses = draw_parameters(attention, layer), []
    optimizer = reference.adam(RATE, *DECAYS)
    state = {
        f"{moment}.{key}": np.zeros_like(array) for moment in optimizer.moments for key, array in parameters.items()
    }
    for step in range(1, STEPS):
        attention.set_parameters(layer, parameters)
        given = {key: runtime.from_numpy(array) for key, array in segment(stream, step, memory).items()}
        scores = runtime.to_numpy(logits(layer, **given)[0])
        first = step * LENGTH - DELAY
        known = np.arange(first, first + LENGTH) >= 0
        target = np.eye(SYMBOLS)[stream[:, np.maximum(np.arange(first, first + LENGTH), 0)]]
        probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probabilities /= probabilities.sum(axis=-1, keepdims=True)
        losses.append(-np.log((probabilities * target).sum(axis=-1)).mean(axis=0))
        slope = known[:, None] * (probabilities - target) / (BATCH * LENGTH)
        gradients = runtime.vjp(logits, given, {0: runtime.from_numpy(slope)}, layer)[2]
        state["step"] = np.array(step)
        parameters = optimizer.update(parameters, gradients, state)
    return np.mean(losses[-LAST:], axis=0)


def main(name: str = "torch") -> None:
    """Train with each memory."""
    importlib.import_module(f"backends.{name}.runtime").configure()
    print(f"{name}: {DELAY} steps back, in segments of {LENGTH}; a guess: {np.log(SYMBOLS):.3f}")
    print(f"{name}: loss of step      ", *(f"{place:>8}" for place in range(LENGTH)), "     all")
    for memory in MEMORIES:
        losses = train(name, memory)
        print(f"{name}: segments before: {memory}", *(f"{loss:>8.3f}" for loss in (*losses, losses.mean())))


if __name__ == "__main__":
    main(*sys.argv[1:2])
