"""What only JAX does in blocks: second derivatives, jit, vmap, NaN that is hidden in a kernel, the memory of a step."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention_core.errors import PATHS
from backends import jax as attention
from backends.jax import kernels
from backends.jax.blocked import additive, blocks, dot_product


def assert_close(actual: Any, desired: Any):
    assert jax.tree.structure(actual) == jax.tree.structure(desired)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-14), actual, desired)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> Any:
    """Both paths in turn, and the choice by size again after them."""
    kernels.set_path(request.param)
    yield request.param
    kernels.set_path(None)


def projected(scale: float = 1.0) -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(scale * rng.normal(size=shape)) for shape in ((2, 3, 4), (2, 5, 4), (4,)))


def squares(queries: jax.Array, keys: jax.Array, w_v: jax.Array) -> jax.Array:
    return jnp.sum(attention.additive_score(queries, keys, w_v) ** 2)


def gradient_square(*arrays: jax.Array) -> jax.Array:
    return sum(jnp.sum(part**2) for part in jax.grad(squares, argnums=(0, 1, 2))(*arrays))


def test_a_path_set_after_the_first_call_of_a_decoder_is_used():
    """Its loops are compiled inside, and would keep the path of the first call."""
    decoder = attention.BahdanauDecoder(9, 4, 6, memory_size=5, attention_size=8, rngs=nnx.Rngs(0))
    tokens, memory, state = jnp.ones((2, 3), int), jnp.ones((2, 7, 5), "float32"), jnp.zeros((1, 2, 6), "float32")
    programs = {}
    for path in ("plain", "blocked", "plain"):
        kernels.set_path(path)
        program = jax.make_jaxpr(lambda tokens: decoder(tokens, memory, state)[0])(tokens)
        text = re.sub("0x[0-9a-f]+", "", str(program))
        assert programs.setdefault(path, text) == text
    kernels.set_path(None)
    assert programs["plain"] != programs["blocked"]


# Of saturated tanh, 1 - tanh² has lost digits in either formula.
@pytest.mark.parametrize(
    ("scale", "tolerance"), [(1.0, 1e-12), (35.0, 1e-12), (300.0, 1e-8)], ids=["narrow", "at the bound", "wide"]
)
def test_blocks_have_the_scores_and_two_derivatives_of_the_plain_formula(scale: float, tolerance: float):
    found = []
    for path in PATHS:
        kernels.set_path(path)
        arrays = projected(scale)
        found.append((attention.additive_score(*arrays), jax.grad(gradient_square, argnums=(0, 1, 2))(*arrays)))
    kernels.set_path(None)
    for actual, desired in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(actual, desired, rtol=0.0, atol=tolerance * float(jnp.max(jnp.abs(desired))))


def test_blocks_under_jit_and_vmap_are_equal(path: str):
    arrays = projected()
    one_by_one = jax.jit(jax.vmap(lambda q, k: attention.additive_score(q[None], k[None], arrays[2])[0]))
    assert_close(one_by_one(*arrays[:2]), attention.additive_score(*arrays))


@pytest.mark.parametrize("tanh", [additive.FACTORED, additive.PLAIN], ids=["factored", "plain"])
def test_gradients_side_by_side_are_products_with_an_axis_more(tanh: additive.Tanh):
    """A factor that jax.vmap gives no axis would have it transpose every block of the other."""
    query, key = jnp.ones((2, 1, 3, 5)), jnp.ones((2, 1, 3, 4))
    sides = [(side, side)[: 2 if tanh is additive.FACTORED else 1] for side in (query, key)]
    program = str(jax.make_jaxpr(jax.vmap(tanh.gradients))(*sides, jnp.ones((2, 1, 5, 4))))
    batch_axes = re.findall(r"dimension_numbers=\(\(\[.*?\], \[.*?\]\), \((\[.*?\]), \[.*?\]\)\)", program)
    assert batch_axes.count("[0, 1, 2]") == 3


def heads(queries: int = 5, keys: int = 7) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values of two heads, and a mask of rows that closes one row and hides one key from all."""
    rng = np.random.default_rng(1)
    arrays = (jnp.asarray(rng.normal(size=(2, 2, size, 4))) for size in (queries, keys, keys))
    mask = jnp.asarray(rng.random((2, 1, queries, keys)) < 0.7).at[0, 0, 1].set(False).at[1, :, :, 2].set(False)
    return *arrays, mask


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch):
    """Blocks that do not fill their axes."""
    for name, size in {"ROWS": 3, "COLUMNS": 2}.items():
        monkeypatch.setattr(dot_product, name, size)
    monkeypatch.setattr(blocks, "BLOCK", 16)


W_V = np.array([0.5, -1.0, 2.0, 0.25])

Context = Callable[..., jax.Array]


def plain(score: Callable[[jax.Array, jax.Array], jax.Array]) -> Context:
    """The context by the plain formula."""
    return lambda queries, keys, values, mask: attention.attention_pooling(score(queries, keys), values, mask=mask)[0]


@pytest.fixture(params=["dot", "additive"])
def pair(request: pytest.FixtureRequest) -> tuple[Context, Context]:
    """The context alone in blocks, and by the plain formula."""
    if request.param == "dot":
        in_blocks: Context = partial(dot_product.blocked_dot_attention, scale=0.5)
        return in_blocks, plain(partial(attention.scaled_dot_score, scale=0.5))
    in_blocks = partial(additive.blocked_additive_attention, w_v=W_V)
    return in_blocks, plain(lambda queries, keys: jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ W_V)


def contexts(pair: tuple[Context, Context], *arrays: jax.Array) -> list[jax.Array]:
    return [function(*arrays) for function in pair]


def context_gradients(pair: tuple[Context, Context], *arrays: jax.Array) -> list[tuple[jax.Array, ...]]:
    return [jax.grad(lambda *own, at=at: jnp.sum(at(*own) ** 2), argnums=(0, 1, 2))(*arrays) for at in pair]


def test_second_derivatives_of_a_context_alone_are_right(pair, small_blocks: None):
    *sides, mask = heads()
    found = []
    for function in pair:
        gradient = jax.grad(lambda *own, at=function: jnp.sum(at(*own, mask) ** 2), argnums=(0, 1, 2))
        square = lambda *own, of=gradient: sum(jnp.sum(part**2) for part in of(*own))  # noqa: E731
        found.append(jax.grad(square, argnums=(0, 1, 2))(*sides))
    for actual, desired in zip(*found, strict=True):
        assert_close(actual, desired)


def test_a_value_hidden_from_all_by_mask_or_by_score_changes_nothing(small_blocks: None):
    queries, keys, values, mask = heads()
    inner = partial(dot_product.blocked_dot_attention, scale=0.5), plain(partial(attention.scaled_dot_score, scale=0.5))
    keys = keys.at[0, 0, 4].set(-jnp.inf)
    clean = contexts(inner, jnp.abs(queries), keys, values, mask)
    values = values.at[0, 0, 4].set(jnp.nan).at[1, :, 2].set(jnp.nan)
    for own, actual in zip(clean, contexts(inner, jnp.abs(queries), keys, values, mask), strict=True):
        np.testing.assert_array_equal(actual, own)
    assert_close(*clean)


def test_a_value_hidden_from_all_by_an_infinite_w_v_changes_nothing(small_blocks: None):
    queries, keys, values, mask = heads()
    w_v = jnp.asarray(W_V).at[0].set(jnp.inf)
    queries = queries.at[..., 0].set(0.0)
    keys = jnp.abs(keys).at[0, 0, 4, 0].set(-1.0).at[1, :, 2].set(jnp.nan)  # hidden by its score, and by the mask
    values = values.at[0, 0, 4].set(jnp.nan).at[1, :, 2].set(jnp.nan)
    mask = mask.at[0, :, 0].set(jnp.arange(7) == 4).at[1, :, :, 2].set(False)
    scores = jnp.where(mask, jnp.tanh(queries[..., :, None, :] + keys[..., None, :, :]) @ w_v, 0.0)
    desired = attention.attention_pooling(scores, values, mask=mask)[0]
    np.testing.assert_allclose(additive.blocked_additive_attention(queries, keys, values, mask, w_v), desired)
    assert jnp.isfinite(desired[0, 0, 0]).all() and jnp.isnan(desired).any()


def test_a_key_hidden_from_all_changes_no_gradient(pair, small_blocks: None):
    queries, keys, values, mask = heads()
    gradients = jax.grad(lambda *own: jnp.sum(pair[0](*own, mask) ** 2), argnums=(0, 1, 2))
    clean, spoilt = (gradients(queries, own, values) for own in (keys, keys.at[1, :, 2].set(jnp.nan)))
    for actual, desired in zip(spoilt, clean, strict=True):
        np.testing.assert_array_equal(actual, desired)


def test_a_nan_in_a_value_reaches_what_it_reaches_in_the_plain_formula(pair):
    *sides, mask = heads()
    sides[2] = sides[2].at[0, 1, 3, 2].set(jnp.nan)
    for actual, desired in [contexts(pair, *sides, mask), *zip(*context_gradients(pair, *sides, mask), strict=True)]:
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(desired))


def test_a_context_alone_under_jit_and_vmap_is_the_same(pair, small_blocks: None):
    *sides, mask = heads()
    one_by_one = jax.jit(jax.vmap(lambda *own: pair[0](*(array[None] for array in own))[0]))
    assert_close(one_by_one(*sides, mask), contexts(pair, *sides, mask)[0])


def test_a_context_alone_keeps_nothing_of_queries_by_keys():
    """As XLA plans it, a step takes less than one array of scores."""
    rng = np.random.default_rng(0)
    arrays = tuple(jnp.asarray(rng.normal(size=(1, size, 4)), "float32") for size in (4096, 4096, 4096))

    def loss(*sides: jax.Array) -> jax.Array:
        return jnp.sum(additive.blocked_additive_attention(*sides, None, W_V.astype("float32")))

    step = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*arrays).compile()
    assert step.memory_analysis().temp_size_in_bytes < 4096 * 4096 * 4 / 8


def test_other_devices_than_a_cpu_use_blocks_from_a_size_of_their_own_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    queries, keys = jnp.zeros((3, 4, 5)), jnp.zeros((3, 7, 5))
    assert not kernels.use_blocks(queries, keys, 1)
    assert [kernels.use_blocks(queries, keys, 1, 3 * 4 * 7 * 5 + more) for more in (0, 1)] == [True, False]


def test_the_size_of_a_head_chooses_the_path_of_inner_products(monkeypatch: pytest.MonkeyPatch):
    heads, layer = jnp.ones((3, 2, 4, 5)), attention.DotProductAttention()
    for more, blocks_of_heads in ((0, True), (1, False)):
        monkeypatch.setattr(dot_product, "DOT_MIN_ELEMENTS", 4 * 4 * 5 + more)
        memory = attention.Memory(heads, heads, None)
        for need_weights in (False, True):
            kernel = kernels.of("attention", layer._form(5), heads, memory, need_weights, None)
            prepare = kernels.of("memory", layer, heads, heads, heads, None, None, need_weights)
            taken = blocks_of_heads and not need_weights
            assert kernel is (dot_product.attend if taken else None)
            assert prepare is (dot_product.prepare if taken else None)
