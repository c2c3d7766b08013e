"""Recurrent layers and bridges of the reference against arithmetic by hand, and identities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from attention_core import reference
from attention_core.draws import uniform
from attention_core.reference.arrays import sigmoid
from parity_tests.tests.attention_core.layers import filled


def single(kind: type, **arrays: list[float]) -> Any:
    """A layer of one feature, one unit and these numbers."""
    layer = kind(1, 1)
    shapes = layer.specification.shapes(layer.sizes)
    reference.set_parameters(layer, {name: np.reshape(arrays[name[2:]], shape) for name, shape in shapes.items()})
    return layer


def test_a_step_of_a_gated_recurrent_unit_by_hand():
    layer = single(reference.GRU, W=[0.1, 0.2, 0.3], U=[0.4, 0.5, 0.6], b=[0.7, 0.8, 0.9], b_hn=[-1.0])
    x, h = 2.0, 0.5
    r = 1 / (1 + math.exp(-(0.1 * x + 0.7 + 0.4 * h)))
    z = 1 / (1 + math.exp(-(0.2 * x + 0.8 + 0.5 * h)))
    n = math.tanh(0.3 * x + 0.9 + r * (0.6 * h - 1.0))
    output, state = layer.step(np.array([[x]]), np.array([[[h]]]))
    assert_allclose(output, [[(1 - z) * n + z * h]], rtol=1e-15)
    assert_array_equal(state[0], output)


def test_an_update_gate_of_one_keeps_the_state_and_of_zero_forgets_it():
    for bias, expected in ((40.0, 0.5), (-40.0, math.tanh(2.0))):
        layer = single(reference.GRU, W=[0.0, 0.0, 1.0], U=[0.0] * 3, b=[0.0, bias, 0.0], b_hn=[0.0])
        output, _ = layer.step(np.array([[2.0]]), np.array([[[0.5]]]))
        assert_allclose(output, [[expected]], rtol=1e-15)


def test_a_step_of_long_short_term_memory_by_hand():
    W, U, b = [0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.7, 0.8], [0.9, -1.0, 1.1, 1.2]
    layer = single(reference.LSTM, W=W, U=U, b=b)
    x, h, c = 2.0, 0.5, -0.25
    i, f, o = (1 / (1 + math.exp(-(W[gate] * x + U[gate] * h + b[gate]))) for gate in (0, 1, 3))
    g = math.tanh(0.3 * x + 0.7 * h + 1.1)
    output, state = layer.step(np.array([[x]]), np.array([[[h, c]]]))
    assert_allclose(state[0, 0], [o * math.tanh(f * c + i * g), f * c + i * g], rtol=1e-15)
    assert_array_equal(output[0], state[0, 0, :1])


def test_padded_steps_are_zero_and_leave_the_state_unchanged():
    layer = filled(reference.GRU(4, 5, 2))
    inputs, state = uniform("x", (3, 6, 4)), uniform("h", (2, 3, 5))
    outputs, last = layer(inputs, np.array([2, 0, 6]), state)
    assert (outputs[0, 2:] == 0).all() and (outputs[1] == 0).all()
    assert_array_equal(last[:, 1], state[:, 1])
    assert_array_equal(last[:, 0], layer(inputs[:, :2], None, state)[1][:, 0])


@pytest.mark.parametrize("kind", [reference.GRU, reference.LSTM])
def test_the_backward_direction_is_the_forward_one_of_the_reversed_sequence(kind):
    both, inputs = filled(kind(4, 5, bidirectional=True)), uniform("x", (2, 6, 4))
    outputs, state = both(inputs, np.array([4, 6]))
    one = kind(4, 5)
    for direction, prefix in enumerate(("0.", "0.backward.")):
        reference.set_parameters(one, {name: both.parameters[prefix + name[2:]] for name in one.parameters})
        for sequence, length in enumerate((4, 6)):
            read = inputs[sequence : sequence + 1, :length]
            expected, last = one(read[:, ::-1] if direction else read)
            actual = outputs[sequence, :length, 5 * direction : 5 * direction + 5]
            assert_allclose(actual, expected[0, ::-1] if direction else expected[0], atol=1e-15)
            parts = state[0, sequence].reshape(-1, 2, 5)[:, direction]
            assert_allclose(parts.ravel(), last[0, 0], atol=1e-15)


def test_bridges_by_hand():
    outputs, state = np.array([[[1.0, 2.0, 10.0, 20.0]]]), np.array([[[1.0, 2.0, 10.0, 20.0]]])
    same, kept = reference.Bridge(2)(outputs, state)
    assert_array_equal(same, outputs)
    assert_array_equal(kept, state)
    summed, added = reference.Bridge(2, method="sum")(outputs, state)
    assert summed.tolist() == [[[11.0, 22.0]]] and added.tolist() == [[[11.0, 22.0]]]
    backward = reference.Bridge(2, method="backward", output_size=1)
    reference.set_parameters(backward, {"0.W": np.array([[[0.01, 0.02]]]), "0.b_s": np.array([[0.5]])})
    assert_allclose(backward(outputs, state)[1], [[[math.tanh(0.1 + 0.4 + 0.5)]]])
    cells = np.array([[[1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0]]])
    assert reference.Bridge(2, method="sum", cell="lstm")(outputs, cells)[1].tolist() == [[[11.0, 22.0, 33.0, 44.0]]]


@pytest.mark.parametrize("x", [-800.0, -40.0, -3.0, 0.0, 0.5, 40.0])
def test_the_sigmoid_is_right_in_both_tails(x: float):
    expected = 1 / (1 + math.exp(-x)) if x > -700 else 0.0
    assert abs(float(sigmoid(np.array(x))) - expected) <= 4e-16 * min(expected, 0.25)
