"""What test_jax_sharding.py asks of a process with four devices: run as a module, it prints its answers as JSON.

It takes places, part/name: a part of PARTS, and the layer, kernel or item of the bench that runs there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from attention_core.draws import uniform
from backends import jax as attention
from backends.jax.blocked import additive, blocks, dot_product
from backends.jax.kernels import set_path
from benchmarks import jax as bench
from benchmarks.items import ITEMS
from benchmarks.measure import validate
from benchmarks.problem import Problem

Function = Callable[..., jax.Array]

MESH, EXPLICIT = (
    jax.make_mesh((2, 2), ("data", "model"), axis_types=(kind,) * 2) for kind in (AxisType.Auto, AxisType.Explicit)
)
SHARDED = PartitionSpec("data", "model")
LENS = jnp.array([5, 0, 7, 3])


def drawn(name: str, *shape: int) -> jax.Array:
    return jnp.asarray(uniform(name, shape), jnp.float32)


def difference(actual: Any, expected: Any) -> float:
    """The largest difference of floating numbers, or 1 where others differ."""

    def one(first: jax.Array, second: jax.Array) -> float:
        if jnp.issubdtype(first.dtype, jnp.floating):
            return float(jnp.max(jnp.abs(first - second)))
        return float((first != second).any())

    return max(jax.tree.leaves(jax.tree.map(one, jax.tree.map(np.asarray, actual), jax.tree.map(np.asarray, expected))))


def kernels() -> dict[str, tuple[Function, list[jax.Array]]]:
    """Contexts in blocks as functions of queries, keys, values, a mask, and of weights that all devices share."""
    queries, keys, values = drawn("queries", 4, 2, 6, 8), drawn("keys", 4, 2, 7, 8), drawn("values", 4, 2, 7, 4)
    arrays = [queries, keys, values, (jnp.arange(7) < LENS[:, None])[:, None, None], drawn("w_v", 8)]

    def dot(queries: jax.Array, keys: jax.Array, values: jax.Array, mask: jax.Array, w_v: jax.Array) -> jax.Array:
        return dot_product.blocked_dot_attention(queries * w_v, keys, values, mask, scale=0.5)

    return {"dot": (dot, arrays), "additive": (additive.blocked_additive_attention, arrays)}


def under_jit(function: Function, arrays: list[jax.Array], mesh: Mesh = MESH) -> dict[str, Any]:
    """The compiled text of a program for the context and all gradients, whether these are sharded so, their error."""

    def squares(*given: jax.Array) -> tuple[jax.Array, jax.Array]:
        context = function(*given)
        return jnp.sum(context**2), context

    def program(*given: jax.Array) -> tuple[jax.Array, ...]:
        gradients, context = jax.grad(squares, argnums=(0, 1, 2, 4), has_aux=True)(*given)
        return context, *gradients

    *of_heads, _ = arrays
    specs = [
        PartitionSpec(*(axis if size > 1 else None for axis, size in zip(SHARDED, own.shape[:2], strict=True)))
        for own in of_heads
    ]
    placed = [
        jax.device_put(array, NamedSharding(mesh, spec))
        for array, spec in zip(arrays, [*specs, PartitionSpec()], strict=True)
    ]
    made = jax.jit(program).lower(*placed).compile()
    results = made(*placed)
    return {
        "program": made.as_text(),
        "sharded": [result.sharding.is_equivalent_to(placed[0].sharding, 4) for result in results[:4]],
        "error": difference(results, jax.jit(program)(*arrays)),
    }


def layers() -> dict[str, tuple[Any, Function, list[jax.Array]]]:
    """Layers, their calls, and arrays with the batch first."""
    rngs = nnx.Rngs(0)
    source, tokens = jnp.arange(28).reshape(4, 7) % 9, jnp.arange(12).reshape(4, 3) % 9
    outputs, queries = drawn("outputs", 4, 7, 6), drawn("rows", 4, 3, 6)

    def first(layer: Any, *given: jax.Array) -> jax.Array:
        return layer(*given)[0]

    def decoded(layer: Any, tokens: jax.Array, outputs: jax.Array, lens: jax.Array) -> jax.Array:
        return layer(tokens, outputs, None, lens)[0]

    def fed_back(layer: Any, outputs: jax.Array, lens: jax.Array) -> jax.Array:
        return layer.greedy(outputs, None, lens, bos=1, eos=2, max_steps=3)[2]

    def context(layer: Any, rows: jax.Array, keys: jax.Array, lens: jax.Array) -> jax.Array:
        return layer(rows, keys, keys, lens, need_weights=False)[0]

    def weights(layer: Any, rows: jax.Array, keys: jax.Array, lens: jax.Array) -> jax.Array:
        return layer(rows, keys, keys, lens)[1]

    decoder = attention.LuongDecoder(9, 4, 6, initial="zero", rngs=rngs)
    return {
        "encoder": (attention.GRUEncoder(9, 4, 6, bidirectional=True, rngs=rngs), first, [source, LENS]),
        "decoder": (decoder, decoded, [tokens, outputs, LENS]),
        "greedy": (decoder, fed_back, [outputs, LENS]),
        "translator": (
            attention.Translator(9, 9, 4, 6, cell="lstm", decoder="fixed", rngs=rngs),
            first,
            [source, tokens, LENS],
        ),
        "dot": (attention.DotProductAttention(), context, [queries, outputs, LENS]),
        "additive": (attention.AdditiveAttention(6, 6, 8, rngs=rngs), context, [queries, outputs, LENS]),
        "weights": (attention.AdditiveAttention(6, 6, 8, rngs=rngs), weights, [queries, outputs, LENS]),
        "multi-head": (attention.MultiHeadAttention(6, 2, hidden_size=8, rngs=rngs), context, [queries, outputs, LENS]),
        "bahdanau": (
            attention.BahdanauDecoder(9, 4, 6, initial="zero", rngs=rngs),
            decoded,
            [tokens, outputs, LENS],
        ),
    }


def batch_under_jit(layer: Any, call: Function, arrays: list[jax.Array]) -> dict[str, Any]:
    """The same as `under_jit` of a layer's output and its gradients by the parameters, for a sharded batch."""
    graphdef, state = nnx.split(layer)

    def program(state: Any, *given: jax.Array) -> Any:
        def squares(state: Any) -> tuple[jax.Array, jax.Array]:
            output = call(nnx.merge(graphdef, state), *given)
            return jnp.sum(output**2), output

        return jax.grad(squares, has_aux=True)(state)

    by_batch, whole = (NamedSharding(MESH, PartitionSpec(*axes)) for axes in (("data",), ()))
    placed = jax.device_put((state, *arrays), (whole, *[by_batch] * len(arrays)))
    made = jax.jit(program).lower(*placed).compile()
    gradients, output = made(*placed)
    return {
        "program": made.as_text(),
        "sharded": [output.sharding.is_equivalent_to(by_batch, output.ndim)],
        "error": difference((gradients, output), jax.jit(program)(state, *arrays)),
    }


def under_shard_map(layer: Any, call: Function, arrays: list[jax.Array]) -> dict[str, Any]:
    """The compiled text of a program for a loss and its gradients by the parameters, and their error."""
    graphdef, state = nnx.split(layer)

    def loss(state: Any, *given: jax.Array) -> jax.Array:
        return jnp.sum(call(nnx.merge(graphdef, state), *given) ** 2)

    def summed(state: Any, *given: jax.Array) -> jax.Array:
        return jax.lax.psum(loss(state, *given), "data")

    specs = (PartitionSpec(), *[PartitionSpec("data")] * len(arrays))
    mapped = jax.shard_map(summed, mesh=MESH, in_specs=specs, out_specs=PartitionSpec())
    made = jax.jit(jax.value_and_grad(mapped)).lower(state, *arrays).compile()
    expected = jax.jit(jax.value_and_grad(loss))(state, *arrays)
    return {"program": made.as_text(), "error": difference(made(state, *arrays), expected)}


TYPED = {"encoder": True, "translator": True, "weights": False, "multi-head": False}
"""Layers under explicit axes, and whether they loop over steps: the caller then makes the axes automatic."""


def under_explicit_axes(name: str) -> tuple[float, bool]:
    """The error of a layer's output and gradients, by parameters and inputs, and whether the output is sharded."""
    layer, call, arrays = layers()[name]
    graphdef, state = nnx.split(layer)
    floating = [at for at, array in enumerate(arrays, 1) if jnp.issubdtype(array.dtype, jnp.floating)]
    batch = NamedSharding(EXPLICIT, PartitionSpec("data"))

    def output(state: Any, *given: jax.Array) -> jax.Array:
        return call(nnx.merge(graphdef, state), *given)

    def gradients(output: Function) -> Function:
        def loss(*given: Any) -> tuple[jax.Array, jax.Array]:
            result = output(*given)
            return jnp.sum(result**2), result

        return jax.jit(jax.grad(loss, argnums=(0, *floating), has_aux=True))

    inside = jax.sharding.auto_axes(output, out_sharding=batch) if TYPED[name] else output
    placed = [jax.device_put(array, batch) for array in arrays]
    with jax.set_mesh(EXPLICIT):
        actual = gradients(inside)(jax.device_put(state, NamedSharding(EXPLICIT, PartitionSpec())), *placed)
    return difference(actual, gradients(output)(state, *arrays)), actual[1].sharding.is_equivalent_to(batch, 3)


SIZES = {"batch": 8, "hidden": 6, "layers": 2, "vocabulary": 11, "steps": 3, "queries": 3, "keys": 5}
"""Those of an item of the bench; four devices divide its batch."""


def in_the_bench(name: str) -> float:
    """The distance, in eps, of outputs and gradients of an item whose batch is divided from those of one device."""
    problem = Problem(ITEMS[name], SIZES)
    divided, whole = (bench.form(problem, None, device) for device in ("cpu", "cpu:0"))
    assert all(len(array.sharding.device_set) == 4 for array in divided.inputs.values())
    return max(validate(divided, whole, True).values())


PARTS: dict[str, Callable[[str], Any]] = {
    "jit": lambda name: under_jit(*kernels()[name]),
    "explicit": lambda name: under_jit(*kernels()[name], EXPLICIT),
    "batch": lambda name: batch_under_jit(*layers()[name]),
    "shard_map": lambda name: under_shard_map(*layers()[name]),
    "typed": under_explicit_axes,
    "bench": in_the_bench,
}

if __name__ == "__main__":
    set_path("blocked")
    blocks.BLOCK, dot_product.ROWS, dot_product.COLUMNS = 32, 3, 4
    places = [place.split("/") for place in sys.argv[1:]]
    print(json.dumps({f"{part}/{name}": PARTS[part](name) for part, name in places}))
