"""Attention for long inputs beside full attention: `python -m examples.long_inputs torch 16384`.

Prints milliseconds and MiB of a training step (outputs and all gradients) of self-attention in each form, over the
length: full attention, which compares every pair of steps; linear attention, which adds up features of the keys, causal
and not; attention to fewer keys: weighted sums over their positions, a convolution with a stride, or what inducing
points have gathered; and causal attention in segments, to each and to the one before it. No weights are asked for.
Memory is that by which the process grows, on Linux.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

import backends
from attention_core.draws import uniform
from benchmarks.measure import median, peak_growth, wall

HEADS, FEATURES, RANK, STRIDE, SEGMENT = 4, 64, 64, 4, 128
SHORTEST, ROUNDS = 256, 5
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("DotProductAttention", {}),
    "linear": ("linear_attention", {}),
    "linear, causal": ("linear_attention", {"causal": True}),
    "low rank": ("LowRankAttention", {"rank": RANK}),
    "compressed": ("CompressedAttention", {"query_size": FEATURES, "key_size": FEATURES, "stride": STRIDE}),
    "inducing points": ("InducedAttention", {"query_size": HEADS * FEATURES, "num_heads": HEADS, "num_inducing": RANK}),
    "segments": ("SegmentAttention", {"query_size": HEADS * FEATURES, "num_heads": HEADS}),
}
"""By name a function or a layer, and its options. The last two have projections and heads of their own."""


def step(name: str, form: str, length: int) -> Callable[[], Any]:
    """A training step for one sequence; it returns once its gradients are there."""
    attention, runtime = backends.load(name), importlib.import_module(f"backends.{name}.runtime")
    (called, options), layer = FORMS[form], None
    if called != "linear_attention":
        config = options | ({"num_positions": length} if form == "low rank" else {})
        layer = runtime.build(getattr(attention, called), config, "float32")
        drawn = {key: uniform(key, array.shape, 0.1) for key, array in attention.get_parameters(layer).items()}
        attention.set_parameters(layer, {key: array.astype(np.float32) for key, array in drawn.items()})
    projected = called in ("InducedAttention", "SegmentAttention")
    shape = (1, length, HEADS * FEATURES) if projected else (1, HEADS, length, FEATURES)
    queries, keys, values, cotangent = (
        runtime.from_numpy(uniform(key, shape).astype(np.float32)) for key in ("q", "k", "v", "cotangent")
    )

    def context(layer: Any, **given: Any) -> tuple[Any, ...]:
        if layer is None:
            return (attention.linear_attention(**given, **options),)
        return (layer(**given, need_weights=False)[0],)

    calls = [{"queries": queries, "keys": keys, "values": values}]
    if form == "segments":
        parts = [queries[:, start : start + SEGMENT] for start in range(0, length, SEGMENT)]
        calls = [{"inputs": parts[0]}]
        calls += [{"inputs": part, "previous": before} for before, part in pairwise(parts)]
        cotangent = cotangent[:, :SEGMENT]
    first = next(iter(calls[0]))

    def gradients() -> Any:
        """The gradients of each call, of which the first argument's are read: they are there then."""
        return [runtime.to_numpy(runtime.vjp(context, call, {0: cotangent}, layer)[1][first]) for call in calls]

    return gradients


def main(name: str = "torch", longest: int = 4096) -> None:
    """Print two rows for each length."""
    print(
        f"{name}, {HEADS} heads of {FEATURES} features: a training step\nlength      "
        + "".join(map("{:>17}".format, FORMS))
    )
    length = SHORTEST
    while length <= longest:
        calls = {form: step(name, form, length) for form in FORMS}
        for call in calls.values():
            call()  # compiles
        rounds = [[wall(call) for call in calls.values()] for _ in range(ROUNDS)]
        milliseconds = [1000.0 * median(times) for times in zip(*rounds, strict=True)]
        print(f"{length:6d}  ms  " + "".join(f"{time:17.1f}" for time in milliseconds))
        mebibytes = [peak_growth(call) / 2**20 for call in calls.values()]
        print("        MiB " + "".join(f"{memory:17.1f}" for memory in mebibytes), flush=True)
        length *= 2


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
