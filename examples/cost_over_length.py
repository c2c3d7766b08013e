"""Self-attention against a feed-forward network over the length: `python -m examples.cost_over_length torch 4096`.

Of n steps with d features, self-attention multiplies and adds 4 n d² times for its projections and 2 n² d times for
scores and context; a network of 4 d hidden features 8 n d² times. They are equal at n = 2 d. Prints the time of a
training step of each (outputs and all gradients), their ratio beside the one of these counts, 1/2 + n/4d, and the
memory by which the process grows, on Linux. No weights are asked for, so that nothing of size n² is kept.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import backends
from attention_core.draws import uniform
from benchmarks.measure import interleave, median, peak_growth, ratios

FEATURES, HEADS = 256, 4
LAYERS: dict[str, dict[str, int]] = {
    "MultiHeadAttention": {"query_size": FEATURES, "num_heads": HEADS},
    "FeedForward": {"features": FEATURES, "hidden_size": 4 * FEATURES},
}
SHORTEST, ROUNDS = 128, 7


def self_attention(layer: Any, inputs: Any) -> tuple[Any, ...]:
    """Self-attention, the context alone."""
    return (layer(inputs, inputs, inputs, need_weights=False)[0],)


def network(layer: Any, inputs: Any) -> tuple[Any, ...]:
    """The network."""
    return (layer(inputs),)


def step(name: str, layer: str, length: int) -> Callable[[], Any]:
    """A training step of a layer, for one sequence of that length; it returns once its gradients are there."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    built = runtime.build(getattr(attention, layer), LAYERS[layer], "float32")
    drawn = {key: uniform(key, array.shape, 0.1) for key, array in attention.get_parameters(built).items()}
    attention.set_parameters(built, {key: array.astype(np.float32) for key, array in drawn.items()})
    inputs, cotangent = (
        runtime.from_numpy(uniform(key, (1, length, FEATURES)).astype(np.float32)) for key in ("inputs", "cotangent")
    )
    function = self_attention if layer == "MultiHeadAttention" else network
    return lambda: runtime.to_numpy(runtime.vjp(function, {"inputs": inputs}, {0: cotangent}, built)[1]["inputs"])


def main(name: str = "torch", longest: int = 2048) -> None:
    """Print a row for each length."""
    print(f"{name}, {FEATURES} features, {HEADS} heads: milliseconds of a training step, and MiB")
    print("length  attention    network   ratio  by counts  attention MiB  network MiB")
    length = SHORTEST
    while length <= longest:
        calls = [step(name, layer, length) for layer in LAYERS]
        rounds = interleave(*calls, ROUNDS)
        attention, network = (1000.0 * median(times) for times in zip(*rounds, strict=True))
        ratio, counted = 1.0 / median(ratios(rounds)), 0.5 + length / (4 * FEATURES)
        memory = [peak_growth(call) / 2**20 for call in calls]
        print(
            f"{length:6d} {attention:10.1f} {network:10.1f} {ratio:7.2f} {counted:10.2f}"
            f" {memory[0]:14.1f} {memory[1]:12.1f}",
            flush=True,
        )
        length *= 2


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
