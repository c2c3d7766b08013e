"""dtype beside param_dtype, as Flax has them: parameters in float32, and the computation in half precision."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from attention_core.draws import uniform
from attention_core.errors import DtypeError
from attention_core.operators.training import Batch
from backends import jax as attention


def given(*shape: int, dtype: str = "float32") -> jax.Array:
    return jnp.asarray(uniform("dtypes", shape), dtype)


@pytest.mark.parametrize("inputs", ["bfloat16", "float32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_multi_head_attention_is_that_of_flax(dtype: str, inputs: str):
    """In outputs and gradients, and in the dtype of each."""
    theirs = nnx.MultiHeadAttention(
        2, 8, dtype=jnp.dtype(dtype), deterministic=True, decode=False, use_bias=False, rngs=nnx.Rngs(0)
    )
    ours = attention.MultiHeadAttention(8, 2, bias=False, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))
    for name, projection in {"W_q": theirs.query, "W_k": theirs.key, "W_v": theirs.value, "W_o": theirs.out}.items():
        getattr(ours, name).kernel[...] = projection.kernel[...].reshape(8, 8)
    queries, keys = given(2, 3, 8, dtype=inputs), given(2, 5, 8, dtype=inputs)

    def of_flax(queries: jax.Array) -> jax.Array:
        return theirs(queries, keys).sum()

    def of_ours(queries: jax.Array) -> jax.Array:
        return ours(queries, keys, keys, need_weights=False)[0].sum()

    actual, expected = (jax.jit(jax.value_and_grad(of))(queries) for of in (of_ours, of_flax))
    eps = float(jnp.finfo(dtype).eps)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(np.float64(one), np.float64(other), rtol=0.0, atol=32 * eps)


def test_parameters_and_their_gradients_have_the_param_dtype():
    layer = attention.Translator(11, 13, 4, 6, bidirectional=True, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    batch = Batch(
        jnp.arange(10).reshape(2, 5), jnp.array([5, 3]), *[jnp.arange(6).reshape(2, 3)] * 2, jnp.array([3, 2])
    )
    trainer = attention.Trainer(layer, attention.adam(0.01))
    losses = [trainer.step(batch)[0] for _ in range(9)]
    assert losses[-1] < losses[0] and losses[0].dtype == jnp.bfloat16
    slopes = nnx.jit(nnx.grad(lambda layer: layer(batch.source, batch.inputs)[0].mean()))(layer)
    for tree in (nnx.state(layer, nnx.Param), slopes):
        assert {leaf.dtype for leaf in jax.tree.leaves(tree)} == {jnp.dtype("float32")}


def test_searches_compute_in_the_dtype():
    layer = attention.Translator(11, 13, 4, 6, decoder="luong", dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    source = jnp.arange(10).reshape(2, 5)
    options = {"bos": 1, "eos": 2, "max_steps": 3}
    assert layer.greedy(source, **options)[2].dtype == jnp.bfloat16
    assert {array.dtype for array in layer.beam(source, **options, width=2)[2:]} == {jnp.dtype("bfloat16")}


def test_half_precision_normalises_in_float32():
    """A sum of 4096 ones would end at 256 in bfloat16."""
    layer = attention.AdditiveAttention(4, 4, 8, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    _, weights = layer(given(1, 1, 4), jnp.ones((1, 4096, 4)), jnp.ones((1, 4096, 2)))
    assert weights.dtype == jnp.bfloat16 and (weights == 1 / 4096).all()


def test_noise_is_not_rounded_to_one():
    layer = attention.HardAttention(4, 4, score="scaled_dot", dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    keys, noise = jnp.zeros((1, 3, 4)), jnp.array([[[0.999, 0.9999, 0.5]]])
    assert (layer(keys[:, :1], keys, keys, noise=noise)[1] == jnp.array([0.0, 1.0, 0.0])).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_without_a_dtype_another_one_is_refused_as_in_every_backend(dtype: str):
    layer, queries = attention.AdditiveAttention(4, 4, 8, rngs=nnx.Rngs(0)), given(1, 2, 4, dtype=dtype)
    with pytest.raises(DtypeError, match=f"queries is {dtype} but the layer is float32"):
        layer(queries, queries, queries)


def test_a_dtype_of_the_computation_is_one_of_floating_numbers():
    layer, queries = attention.AdditiveAttention(4, 4, 8, dtype=jnp.int32, rngs=nnx.Rngs(0)), given(1, 2, 4)
    with pytest.raises(DtypeError, match="queries is int32, expected a floating type"):
        layer(queries, queries, queries)
