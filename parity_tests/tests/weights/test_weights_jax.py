"""Weights of Flax's own cells and attention: the canonical arrays compute what they do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx, traverse_util

from attention_core.draws import uniform
from backends import jax as attention
from backends import weights
from parity_tests.tests.weights.arrays import same

INPUTS = uniform("inputs", (3, 6, 5))


def drawn(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Values for arrays that a framework has begun with zeros."""
    return {name: uniform(name, tuple(array.shape)) for name, array in arrays.items()}


def of_linen(module: linen.Module, *inputs: np.ndarray) -> tuple[dict[str, np.ndarray], Any]:
    """Drawn parameters under flat names, and what the module answers with them."""
    variables = module.init(jax.random.key(0), *inputs)
    arrays = drawn(traverse_util.flatten_dict(variables["params"], sep="/"))
    return arrays, module.apply({"params": traverse_util.unflatten_dict(arrays, sep="/")}, *inputs)


def of_nnx(module: nnx.Module) -> dict[str, np.ndarray]:
    """Drawn parameters under flat names, which the module now has."""
    state = nnx.to_flat_state(nnx.state(module, nnx.Param))
    arrays = drawn({".".join(map(str, path)): leaf[...] for path, leaf in state})
    for path, leaf in state:
        leaf[...] = jnp.array(arrays[".".join(map(str, path))])
    nnx.update(module, nnx.from_flat_state(state))
    return arrays


CELLS = ("GRUCell", "LSTMCell", "OptimizedLSTMCell")


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_a_linen_cell_and_its_canonical_arrays_compute_the_same(name: str, bidirectional: bool, answered):
    one, other = (linen.RNN(getattr(linen, name)(4, param_dtype=jnp.float64)) for _ in range(2))
    rnn = linen.Bidirectional(one, other) if bidirectional else one
    arrays, expected = of_linen(rnn, INPUTS)
    converted = weights.to_canonical(arrays)
    assert converted.source == f"flax.linen.{name.replace('Optimized', '')}"  # its arrays are the same
    np.testing.assert_allclose(answered(converted, INPUTS)[0], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_an_nnx_cell_and_its_canonical_arrays_compute_the_same(name: str, bidirectional: bool, answered):
    cells = (getattr(nnx, name)(5, 4, param_dtype=jnp.float64, rngs=nnx.Rngs(0)) for _ in range(2))
    one, other = map(nnx.RNN, cells)
    module = nnx.Bidirectional(one, other) if bidirectional else one
    arrays = of_nnx(module)
    converted = weights.to_canonical(arrays)
    assert converted.source == f"flax.nnx.{name}"
    expected = module(jnp.array(INPUTS), rngs=nnx.Rngs(0))
    np.testing.assert_allclose(answered(converted, INPUTS)[0], expected, rtol=0, atol=1e-14)
    back = weights.from_canonical(converted.layer, converted.arrays, converted.source)
    prefix = "" if bidirectional else "cell."
    assert all(np.array_equal(arrays[prefix + key], array) for key, array in back.items())


ATTENTION = {
    "linen": lambda bias: linen.MultiHeadDotProductAttention(
        3, qkv_features=6, out_features=5, use_bias=bias, param_dtype=jnp.float64, deterministic=True
    ),
    "nnx": lambda bias: nnx.MultiHeadAttention(
        3,
        5,
        6,
        5,
        in_kv_features=7,
        use_bias=bias,
        dtype=jnp.float64,
        param_dtype=jnp.float64,
        decode=False,
        rngs=nnx.Rngs(0),
    ),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ATTENTION)
def test_flax_attention_and_its_canonical_arrays_compute_the_same(kind: str, bias: bool, answered):
    module = ATTENTION[kind](bias)
    queries, keys, values = uniform("q", (2, 4, 5)), uniform("k", (2, 6, 7)), uniform("v", (2, 6, 7))
    if isinstance(module, nnx.Module):
        arrays = of_nnx(module)
        expected = module(jnp.array(queries), jnp.array(keys), jnp.array(values))
    else:
        arrays, expected = of_linen(module, queries, keys, values)
    source = {"nnx": "flax.nnx.MultiHeadAttention", "linen": "flax.linen.MultiHeadDotProductAttention"}[kind]
    converted = weights.to_canonical(arrays, source)
    assert converted.config["num_heads"] == 3
    # nnx calls jax.nn.dot_product_attention, which normalises scores of every dtype in float32.
    atol = 1e-6 if kind == "nnx" else 1e-14
    np.testing.assert_allclose(answered(converted, queries, keys, values)[0], expected, rtol=0, atol=atol)
    back = weights.from_canonical(converted.layer, converted.arrays, converted.source, **converted.config)
    assert all(np.array_equal(arrays[name], array) for name, array in back.items()) and len(back) == len(arrays)


@pytest.mark.parametrize("name", ["LayerNorm", "RMSNorm"])
def test_a_normalization_and_its_canonical_arrays_compute_the_same(name: str, answered):
    module = getattr(nnx, name)(5, epsilon=1e-3, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
    converted = weights.to_canonical(of_nnx(module), f"flax.nnx.{name}", epsilon=1e-3)
    expected = module(jnp.array(INPUTS))
    np.testing.assert_allclose(answered(converted, INPUTS), expected, rtol=0, atol=1e-14)


def test_a_normalisation_of_queries_and_keys_is_refused():
    module = nnx.MultiHeadAttention(3, 6, normalize_qk=True, decode=False, rngs=nnx.Rngs(0))
    with pytest.raises(weights.WeightError, match=r"query_ln.scale .*: normalize_qk normalises queries and keys"):
        weights.to_canonical(of_nnx(module), "flax.nnx.MultiHeadAttention")


def test_a_whole_decoder_converts_through_its_state():
    model = attention.LuongDecoder(11, 5, 4, 2, memory_size=6, rngs=nnx.Rngs(0))
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    arrays = {".".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in state}
    converted = weights.to_canonical(arrays, "attention_parity.jax")
    assert converted.layer == "LuongDecoder" and same(converted.arrays, attention.get_parameters(model))
    back = weights.from_canonical("LuongDecoder", converted.arrays, "attention_parity.jax", **converted.config)
    assert back.keys() == arrays.keys() and all(np.array_equal(back[name], arrays[name]) for name in arrays)
