"""What XLA allows on one core, in JAX: `taskset -c 0 python examples/xla_rates.py`; times are CPU times.

Prints 10⁹ elements of float32 per second in a cache, of an operation and of tanh sums from exponentials, in which two
or four features share a division; the seconds of additive scores, as tutorials write them and ours, and of the rest
of the layer; and those of tracing, lowering and compiling a decoder, and one GRU layer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from backends import jax as attention

SIZE, CHAIN, ROUNDS, HIDDEN, STEPS = 2**12, 2, 5, 256, 50


def fraction(values: jax.Array, features: range) -> tuple[Any, Any]:
    """The sum of v r / (c + r) over the features, as numerator and denominator."""
    if len(features) == 1:
        rise = values + 0.25 * features[0]
        return 0.7 * rise, rise + (1.5 + features[0])
    half = len(features) // 2
    (first, by_first), (second, by_second) = (fraction(values, part) for part in (features[:half], features[half:]))
    return first * by_second + second * by_first, by_first * by_second


def divide(values: jax.Array, count: int) -> jax.Array:
    """The same of so many features, by one division."""
    numerator, denominator = fraction(values, range(count))
    return numerator / denominator


OPERATIONS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "multiply-add": (lambda values: values * 0.99 + 0.01, 1),
    "division": (lambda values: 1.0 / (values + 0.5), 1),
    "exp": (lambda values: jnp.exp(-0.5 * values), 1),
    "tanh": (lambda values: jnp.tanh(values + 0.5), 1),
    **{f"tanh sum, {count} to a division": (partial(divide, count=count), count) for count in (1, 2, 4)},
}


def rate(operation: Callable[[Any], Any], count: int, repeats: int) -> float:
    """The elements per second of an operation, repeated on its results."""

    def body(_: Any, values: jax.Array) -> jax.Array:
        for _ in range(CHAIN):
            values = operation(values)
        return values

    run = jax.jit(lambda values: jax.lax.fori_loop(0, repeats, body, values))
    values = jnp.linspace(0.5, 1.5, SIZE, dtype=jnp.float32)
    return SIZE * CHAIN * count * repeats / best(run, values)


def best(run: Callable[..., Any], *arguments: Any) -> float:
    """The least CPU time of a call, after a first one."""
    jax.block_until_ready(run(*arguments))
    return min(seconds(lambda: jax.block_until_ready(run(*arguments))) for _ in range(ROUNDS))


def seconds(call: Callable[[], Any]) -> float:
    """The CPU time of a call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def stages(function: Any, *arguments: Any) -> str:
    """The seconds of tracing, lowering and compiling a function."""
    made: list[Any] = [function]
    steps = (lambda: made[-1].trace(*arguments), lambda: made[-1].lower(), lambda: made[-1].compile())
    taken = [seconds(lambda step=step: made.append(step())) for step in steps]
    return "traced in {:.2f}, lowered in {:.2f}, compiled in {:.2f} s".format(*taken)


def plain_score(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    """Additive scores, as tutorials write them."""
    return jnp.tanh(queries[:, :, None] + keys[:, None]) @ w_v


def attend(scores: jax.Array, values: jax.Array, weights: jax.Array) -> tuple[jax.Array, ...]:
    """What a layer computes beside its scores: both projections, the softmax and the contexts."""
    return values @ weights, (values + 1.0) @ weights, jax.nn.softmax(scores) @ values


def main(repeats: int = 2000, batch: int = 128, length: int = 512) -> None:
    """Print the rates, then the scores and the stages."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    for name, (operation, count) in OPERATIONS.items():
        print(f"{name:26} {rate(operation, count, repeats) / 1e9:6.2f}", flush=True)
    ones = partial(jnp.ones, dtype=jnp.float32)
    sides, w_v = ones((8, length, HIDDEN)), ones(HIDDEN)
    for name, score in (("plain formula", plain_score), ("additive_score", attention.additive_score)):
        print(f"{name}: {best(jax.jit(score), sides, sides, w_v):.3f} s")
    rest = best(jax.jit(attend), ones((8, length, length)), sides, ones((HIDDEN, HIDDEN)))
    print(f"the rest of the layer: {rest:.3f} s")
    inputs = ones((batch, STEPS, HIDDEN))
    gru = attention.GRU(HIDDEN, HIDDEN, rngs=nnx.Rngs(0))
    decoder = attention.BahdanauDecoder(200, HIDDEN, HIDDEN, 2, rngs=nnx.Rngs(0))
    arguments = jnp.ones((batch, STEPS), jnp.int32), inputs, 0.0 * ones((2, batch, HIDDEN)), jnp.full(batch, STEPS)
    for name, layer, given in (("GRU", gru, (inputs,)), ("BahdanauDecoder", decoder, arguments)):
        graph, state = nnx.split(layer)
        print(
            f"{name}:",
            stages(jax.jit(lambda state, *given, graph=graph: nnx.merge(graph, state)(*given)), state, *given),
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
