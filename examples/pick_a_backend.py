"""Attention in the framework of the day: `python examples/pick_a_backend.py jax`."""

from __future__ import annotations

import importlib
import sys

import numpy as np

import backends


def main(name: str) -> None:
    """Attend to two sequences of different lengths."""
    attention = backends.load(name)
    runtime = importlib.import_module(f"backends.{name}.runtime")
    queries, keys = np.zeros((2, 1, 4), np.float32), np.ones((2, 10, 4), np.float32)
    values = np.tile(np.arange(40, dtype=np.float32).reshape(1, 10, 4), (2, 1, 1))
    layer = attention.DotProductAttention()
    context, weights = layer(
        *map(runtime.from_numpy, (queries, keys, values)), valid_lens=runtime.from_numpy(np.array([2, 6], np.int32))
    )
    print(f"{name}: {type(context).__module__}.{type(context).__name__}")
    print("context", runtime.to_numpy(context).tolist())
    print("weights", runtime.to_numpy(weights)[0].round(2).tolist())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "torch")
