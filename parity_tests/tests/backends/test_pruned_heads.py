"""A layer without some of its heads computes what the whole one does with those switched off, and has its options."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core import draws
from attention_core.operators.multi_head import MULTI_HEAD_ATTENTION
from parity_tests.cases.attention import score_variants

SIZES = {"query_size": 9, "num_heads": 6, "key_size": 10, "value_size": 11, "hidden_size": 12}
SCORES = [
    {name: value for name, value in config.items() if name != "hidden_size"}
    for _, config, _ in score_variants(2, "scaled_dot")
]
HEADS = ([3], [5, 0], [0, 1, 2], [4, 1, 0], [1, 2, 3, 4, 5], np.array([2, 4]), ())


def made(backend: SimpleNamespace, **config: Any) -> Any:
    """A layer with drawn parameters."""
    layer = backend.runtime.build(backend.package.MultiHeadAttention, {**SIZES, **config}, "float64")
    arrays = backend.package.get_parameters(layer)
    drawn = {name: draws.uniform(f"pruned/{name}", array.shape, 0.7) for name, array in arrays.items()}
    backend.package.set_parameters(layer, drawn)
    return layer


def answers(backend: SimpleNamespace, layer: Any, factors: np.ndarray) -> list[np.ndarray]:
    """Context and weights of every head, with heads switched off by factors."""
    shapes = {"queries": (2, 5, 9), "keys": (2, 7, 10), "values": (2, 7, 11)}
    given = {name: backend.runtime.from_numpy(draws.uniform(name, shape)) for name, shape in shapes.items()}
    given["valid_lens"] = backend.runtime.from_numpy(np.array([7, 4], np.int32))
    outputs = layer(**given, head_mask=backend.runtime.from_numpy(factors), per_head=True)
    return [backend.runtime.to_numpy(output) for output in outputs]


@pytest.mark.parametrize("num_key_heads", [None, 3, 2, 1])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_pruned_layer_is_the_whole_one_with_these_heads_off(backend: SimpleNamespace, heads: Any, num_key_heads: Any):
    layer = made(backend, num_key_heads=num_key_heads)
    kept = np.setdiff1d(np.arange(6), np.array(heads, int))
    context, weights = answers(backend, layer, np.isin(np.arange(6), kept).astype(float))
    small = layer.pruned(heads)
    assert small.sizes["num_heads"] == len(kept) and small.sizes["head_size"] == 2
    own_context, own_weights = answers(backend, small, np.ones(len(kept)))
    np.testing.assert_allclose(own_context, context, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(own_weights, weights[:, kept], rtol=1e-12)


@pytest.mark.parametrize("config", [*SCORES, {"bias": False}, {"softcap": 0.5}], ids=str)
def test_every_score_is_pruned(backend: SimpleNamespace, config: dict[str, Any]):
    layer = made(backend, num_key_heads=2, **config)
    context, _ = answers(backend, layer, np.array([1.0, 0.0, 1.0, 1.0, 1.0, 0.0]))
    small, _ = answers(backend, layer.pruned([1, 5]), np.ones(4))
    np.testing.assert_allclose(small, context, rtol=1e-12, atol=1e-14)


def test_heads_can_be_pruned_one_after_another(backend: SimpleNamespace):
    layer = made(backend, num_key_heads=2)
    context, _ = answers(backend, layer, np.array([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]))
    small = layer.pruned([0]).pruned([2]).pruned([3])
    np.testing.assert_allclose(answers(backend, small, np.ones(3))[0], context, rtol=1e-12, atol=1e-14)


def test_the_options_of_the_whole_layer_are_kept(backend: SimpleNamespace):
    config = {"time_major": True, "dropout": 0.5, "softcap": 3.0, "bias": False, "score": "dot"}
    layer = backend.runtime.build(backend.package.MultiHeadAttention, {**SIZES, **config}, "float32")
    small = layer.pruned([1])
    smaller = {"num_heads", "hidden_size", "num_key_heads"}
    for option in MULTI_HEAD_ATTENTION.options:
        assert option.name in smaller or small.sizes[option.name] == layer.sizes[option.name]
    assert {array.dtype.name for array in backend.package.get_parameters(small).values()} == {"float32"}


def test_the_parameters_are_copies(backend: SimpleNamespace):
    layer = made(backend, score="additive")
    small = layer.pruned([])
    before = backend.package.get_parameters(small)
    zeros = {name: np.zeros_like(array) for name, array in before.items()}
    backend.package.set_parameters(layer, zeros)
    for name, array in backend.package.get_parameters(small).items():
        np.testing.assert_array_equal(array, before[name])
        assert array.any()
