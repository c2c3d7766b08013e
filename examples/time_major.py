"""Attention in code that is time-major: `python examples/time_major.py mxnet`.

Recurrent layers of PyTorch and Gluon have steps first by default, (steps, batch, features), and old models have been
written around that. With `time_major`, an attention layer takes and returns such arrays; masks, lengths and weights
still have the batch first. Prints the shapes, and that nothing else changes.
"""

from __future__ import annotations

import importlib
import sys

import numpy as np

import backends
from attention_core import draws

CONFIG = {"query_size": 8, "key_size": 6, "hidden_size": 5}


def main(name: str) -> None:
    """Attend to the same arrays in both layouts."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    runtime.configure()
    queries, states = draws.uniform("queries", (3, 2, 8)), draws.uniform("states", (7, 2, 6))  # steps first
    lens = runtime.from_numpy(np.array([7, 4], np.int32))
    results = []
    for time_major in (True, False):
        layer = runtime.build(attention.AdditiveAttention, {**CONFIG, "time_major": time_major}, "float64")
        drawn = attention.get_parameters(layer).items()
        attention.set_parameters(layer, {key: draws.uniform(key, array.shape) for key, array in drawn})
        arrays = (array if time_major else array.swapaxes(0, 1) for array in (queries, states, states))
        context, weights = layer(*map(runtime.from_numpy, arrays), valid_lens=lens)
        results.append([runtime.to_numpy(context), runtime.to_numpy(weights)])
        print(f"{name}: time_major={time_major}: context {results[-1][0].shape}, weights {results[-1][1].shape}")
    (first, weights), (second, same) = results
    difference = max(np.abs(first.swapaxes(0, 1) - second).max(), np.abs(weights - same).max())
    print(f"{name}: largest difference {difference:.1e}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch")
