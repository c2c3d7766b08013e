"""Forward mode in JAX: what is computed in blocks has the tangents of the plain formula."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention_core.draws import uniform
from backends import jax as attention
from parity_tests.tests.backends.blocks import in_small_blocks, on_path

Function = Callable[..., jax.Array]

JAX = SimpleNamespace(name="jax")
SMALL = {"dot_product.ROWS": 2, "dot_product.COLUMNS": 2, "blocks.BLOCK": 16}
MASK = np.array([[True, False, True, True], [False] * 4, [True, False, True, False]])[None]
SHAPES = {"queries": (1, 3, 2), "keys": (1, 4, 2), "values": (1, 4, 2)}
SIDES = tuple(uniform(f"forward mode {name}", shape) for name, shape in SHAPES.items())


def context(layer: attention.AdditiveAttention | attention.DotProductAttention) -> Function:
    """The context alone as a function of queries, keys and values, where two keys and a query are masked."""
    return lambda queries, keys, values: layer(queries, keys, values, mask=MASK, need_weights=False)[0]


FUNCTIONS: dict[str, Callable[[], Function]] = {
    "dot": lambda: context(attention.DotProductAttention()),
    "additive": lambda: context(attention.AdditiveAttention(2, 2, 3, param_dtype=jnp.float64, rngs=nnx.Rngs(0))),
    "score": lambda: lambda queries, keys, values: attention.additive_score(queries, keys, values[0, 0]),
}


def squares(function: Function) -> Function:
    return lambda *given: jnp.sum(function(*given) ** 2)


TRANSFORMED: dict[str, Callable[[Function], Callable[..., Any]]] = {
    "jvp": lambda of: lambda *given: jax.jvp(of, given, tuple(jnp.cos(array) for array in given)),
    "jacfwd": lambda of: jax.jacfwd(of, argnums=(0, 1, 2)),
    "hessian": lambda of: jax.hessian(squares(of)),
}


@pytest.mark.parametrize("transformation", TRANSFORMED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_blocks_have_the_derivatives_of_the_plain_formula(name: str, transformation: str):
    found = []
    for path in (in_small_blocks(JAX, SMALL), on_path(JAX, "plain")):
        with path:
            # A new function, since JAX keeps what it has compiled for a path.
            found.append(jax.jit(TRANSFORMED[transformation](FUNCTIONS[name]()))(*SIDES))
    for actual, expected in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-13)
