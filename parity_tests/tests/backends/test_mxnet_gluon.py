"""MXNet's layers as Gluon's users treat layers: initializers, devices, and parents that are hybridized."""

from __future__ import annotations

from collections.abc import Callable
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


def is_matrix(key: str, array: np.ndarray) -> bool:
    """Whether an initializer applies: the bias of a recurrent layer has a row for each gate, and is none."""
    return array.ndim > 1 and not key.endswith("_b")


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
    assert [key for key, array in after.items() if is_matrix(key, array)]
    for key, array in after.items():
        assert (array == 0.5).all() == is_matrix(key, array) and not (array == before[key]).all(), key


@pytest.mark.parametrize("name", LAYERS)
def test_an_initializer_of_a_parent_is_honoured_under_force_reinit(name: str):
    parent = mx.gluon.nn.Sequential()
    parent.add(LAYERS[name]())
    parent.initialize(mx.init.Xavier(), force_reinit=True)
    parent.initialize(mx.init.Constant(0.25), force_reinit=True)
    assert all((array == 0.25).all() == is_matrix(key, array) for key, array in values(parent).items())


@pytest.mark.parametrize("dictionary", [False, True])
def test_without_that_a_parent_leaves_the_values_and_warns(dictionary: bool):
    parent = mx.gluon.nn.Sequential()
    parent.add(attention.GRU(4, 5), mx.gluon.nn.Dense(3, in_units=5))
    before = values(parent[0])
    with pytest.warns(UserWarning, match="already initialized, ignoring. Set force_reinit=True to re-initialize"):
        (parent.collect_params() if dictionary else parent).initialize(mx.init.Constant(0.25))
    assert all((array == before[key]).all() for key, array in values(parent[0]).items())
    assert (parent[1].weight.data() == 0.25).all()


CALLS: dict[str, Callable[[Any], Any]] = {
    "AdditiveAttention: queries": lambda queries: attention.AdditiveAttention(4, 4, 6)(queries, queries, queries)[0],
    "GRU: inputs": lambda inputs: attention.GRU(4, 5)(inputs)[0],
    "dot_score: queries": lambda queries: attention.dot_score(queries, queries),
    "scaled_dot_score: keys": lambda keys: attention.scaled_dot_score(np.ones((2, 3, 4)), keys),
    "masked_softmax: scores": attention.masked_softmax,
    "attention_pooling: scores": lambda scores: attention.attention_pooling(scores, np.ones((2, 4, 5))),
    "to_additive_mask: mask": lambda scores: attention.to_additive_mask(scores > 0.5),
    "masked_cross_entropy: logits": lambda logits: attention.masked_cross_entropy(
        logits, np.ones((2, 3), dtype="int32")
    ),
}


@pytest.mark.parametrize("argument", CALLS)
def test_a_symbol_of_a_hybridized_parent_is_refused(argument: str):
    class Parent(mx.gluon.HybridBlock):
        def hybrid_forward(self, F: Any, array: Any) -> Any:
            return CALLS[argument](array)

    parent = Parent()
    parent(np.ones((2, 3, 4)))
    parent.hybridize()
    with pytest.raises(DtypeError) as raised:
        parent(np.ones((2, 3, 4)))
    assert str(raised.value) == (
        f"{argument} is a symbol, expected an array: layers and functions are imperative. Make the block that calls "
        "them a Block, or do not hybridize it."
    )


def test_gluon_itself_refuses_a_layer_as_the_child_of_a_hybrid_block():
    with pytest.raises(ValueError, match="Children of HybridBlock must also be HybridBlock"):
        mx.gluon.nn.HybridSequential().add(attention.GRU(4, 5))


@pytest.mark.parametrize("part", ["translator", "decoder"])
def test_a_trainer_calls_what_is_hooked(part: str):
    seen, model = [], attention.Translator(7, 8, 3, 4)
    layer = model if part == "translator" else model.decoder
    layer.register_forward_hook(lambda block, given, answer: seen.append(answer[0].shape))
    lens, tokens = np.array([2, 1], dtype="int32"), np.ones((2, 3), dtype="int32")
    attention.Trainer(model, attention.sgd(0.1)).loss(Batch(tokens, lens, tokens, tokens, lens))
    assert seen == [(2, 3, 8)]
