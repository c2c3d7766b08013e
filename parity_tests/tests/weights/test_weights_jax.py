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


LINEN = {
    "flax.linen.GRUCell": linen.GRUCell,
    "flax.linen.LSTMCell": linen.LSTMCell,
    "flax.linen.OptimizedLSTMCell": linen.OptimizedLSTMCell,
}


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", LINEN)
def test_a_linen_cell_and_its_canonical_arrays_compute_the_same(name: str, bidirectional: bool, answered):
    rnn = linen.RNN(LINEN[name](4, param_dtype=jnp.float64))
    if bidirectional:
        rnn = linen.Bidirectional(rnn, linen.RNN(LINEN[name](4, param_dtype=jnp.float64)))
    arrays, wanted = of_linen(rnn, INPUTS)
    converted = weights.to_canonical(arrays)
    assert converted.source == name.replace("Optimized", "")  # its arrays are the same
    np.testing.assert_allclose(answered(converted, INPUTS)[0], wanted, rtol=0, atol=1e-14)


NNX = {
    "flax.nnx.GRUCell": nnx.GRUCell,
    "flax.nnx.LSTMCell": nnx.LSTMCell,
    "flax.nnx.OptimizedLSTMCell": nnx.OptimizedLSTMCell,
}


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("name", NNX)
def test_an_nnx_cell_and_its_canonical_arrays_compute_the_same(name: str, bidirectional: bool, answered):
    def rnn() -> nnx.RNN:
        return nnx.RNN(NNX[name](5, 4, param_dtype=jnp.float64, rngs=nnx.Rngs(0)))

    module = nnx.Bidirectional(rnn(), rnn()) if bidirectional else rnn()
    arrays = of_nnx(module)
    converted = weights.to_canonical(arrays)
    assert converted.source == name
    wanted = module(jnp.array(INPUTS), rngs=nnx.Rngs(0))
    np.testing.assert_allclose(answered(converted, INPUTS)[0], wanted, rtol=0, atol=1e-14)
    back = weights.from_canonical(converted.layer, converted.arrays, name)
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
        wanted = module(jnp.array(queries), jnp.array(keys), jnp.array(values))
    else:
        arrays, wanted = of_linen(module, queries, keys, values)
    source = {"nnx": "flax.nnx.MultiHeadAttention", "linen": "flax.linen.MultiHeadDotProductAttention"}[kind]
    converted = weights.to_canonical(arrays, source)
    assert converted.config["num_heads"] == 3
    # nnx calls jax.nn.dot_product_attention, which normalises scores of every dtype in float32.
    atol = 1e-6 if kind == "nnx" else 1e-14
    np.testing.assert_allclose(answered(converted, queries, keys, values)[0], wanted, rtol=0, atol=atol)
    back = weights.from_canonical(converted.layer, converted.arrays, converted.source, **converted.config)
    assert all(np.array_equal(arrays[name], array) for name, array in back.items()) and len(back) == len(arrays)


def test_a_normalisation_of_queries_and_keys_is_refused():
    module = nnx.MultiHeadAttention(3, 6, normalize_qk=True, decode=False, rngs=nnx.Rngs(0))
    with pytest.raises(weights.WeightError, match=r"query_ln.scale .*: normalize_qk normalises queries and keys"):
        weights.to_canonical(of_nnx(module), "flax.nnx.MultiHeadAttention")


def test_a_whole_decoder_of_ours_goes_through_its_state():
    model = attention.LuongDecoder(11, 5, 4, 2, memory_size=6, rngs=nnx.Rngs(0))
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    arrays = {".".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in state}
    converted = weights.to_canonical(arrays, "attention_parity.jax")
    wanted = attention.get_parameters(model)
    assert converted.layer == "LuongDecoder" and list(converted.arrays) == list(wanted)
    assert all(np.array_equal(converted.arrays[name], wanted[name]) for name in wanted)
    back = weights.from_canonical("LuongDecoder", converted.arrays, "attention_parity.jax", **converted.config)
    assert back.keys() == arrays.keys() and all(np.array_equal(back[name], arrays[name]) for name in arrays)
