"""MXNet's layers as Gluon's users treat layers: initializers, devices, and parents that are hybridized."""

from __future__ import annotations

from typing import Any

import pytest

from attention_core.errors import DtypeError
from attention_core.operators.training import Batch
from backends import mxnet as attention

# isort: split
# MXNet cannot be imported before the backend has given NumPy its old alias back.
import mxnet as mx
from mxnet import np

LAYERS = {
    "AdditiveAttention": lambda: attention.AdditiveAttention(4, 4, 6),
    "MultiHeadAttention": lambda: attention.MultiHeadAttention(4, 2),
    "GRU": lambda: attention.GRU(4, 5),
    "BahdanauDecoder": lambda: attention.BahdanauDecoder(7, 3, 5, memory_size=4),
}


def values(block: mx.gluon.Block) -> dict[str, np.ndarray]:
    return {name: parameter.data().copy() for name, parameter in block.collect_params().items()}


@pytest.mark.parametrize("name", LAYERS)
def test_an_initializer_is_honoured_for_matrices_and_vectors_are_drawn_by_their_own(name: str):
    layer = LAYERS[name]()
    before = values(layer)
    layer.initialize()
    layer.initialize(ctx=mx.cpu())
    assert all((array == before[key]).all() for key, array in values(layer).items()), "nothing was to be drawn anew"
    layer.initialize(mx.init.Constant(0.5))
    after = values(layer)
    assert [array for array in after.values() if array.ndim > 1]
    for key, array in after.items():
        assert (array == 0.5).all() == (array.ndim > 1) and not (array == before[key]).all(), key


@pytest.mark.parametrize("name", LAYERS)
def test_an_initializer_of_a_parent_is_honoured_under_force_reinit(name: str):
    parent = mx.gluon.nn.Sequential()
    parent.add(LAYERS[name]())
    parent.initialize(mx.init.Xavier(), force_reinit=True)
    parent.initialize(mx.init.Constant(0.25), force_reinit=True)
    assert all((array == 0.25).all() for array in values(parent).values() if array.ndim > 1)


def test_a_symbol_of_a_hybridized_parent_is_refused():
    layer = attention.AdditiveAttention(4, 4, 6)

    class Parent(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, queries: Any) -> Any:
            return layer(queries, queries, queries)[0]

    parent = Parent()
    assert parent(np.ones((2, 3, 4))).shape == (2, 3, 4)
    parent.hybridize()
    with pytest.raises(
        DtypeError, match=r"AdditiveAttention: queries is a symbol, expected an array: the layer is imp"
    ):
        parent(np.ones((2, 3, 4)))


@pytest.mark.parametrize("part", ["translator", "decoder"])
def test_a_trainer_calls_what_is_hooked(part: str):
    seen, model = [], attention.Translator(7, 8, 3, 4)
    layer = model if part == "translator" else model.decoder
    layer.register_forward_hook(lambda block, given, answer: seen.append(answer[0].shape))
    lens, tokens = np.array([2, 1], dtype="int32"), np.ones((2, 3), dtype="int32")
    attention.Trainer(model, attention.sgd(0.1)).loss(Batch(tokens, lens, tokens, tokens, lens))
    assert seen == [(2, 3, 8)]
