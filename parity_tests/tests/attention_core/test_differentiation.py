"""Gradients by complex step against calculus, finite differences, and one entry at a time."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from attention_core import reference
from attention_core.differentiation import STACK, gradients
from attention_core.draws import uniform
from parity_tests.tests.attention_core.layers import decoding


def test_complex_step_agrees_with_calculus_and_with_finite_differences():
    x = uniform("x", (3, 4))
    slopes = gradients(lambda a: (np.tanh(a["x"]),), {"x": x}, {"0": np.ones((3, 4))}, stacked=False)
    assert_allclose(slopes["x"], 1 / np.cosh(x) ** 2, rtol=1e-15)
    scores, factor = uniform("s", (2, 3, 4)), uniform("c", (2, 3, 4))
    exact = gradients(lambda a: (reference.masked_softmax(a["s"]),), {"s": scores}, {"0": factor}, stacked=False)["s"]
    for index in np.ndindex(scores.shape):
        shift = np.zeros_like(scores)
        shift[index] = 1e-6
        difference = (reference.masked_softmax(scores + shift) - reference.masked_softmax(scores - shift)) / 2e-6
        assert abs((difference * factor).sum() - exact[index]) < 1e-9


def test_stacked_perturbations_are_the_single_ones():
    made, memory, state = decoding(reference.BahdanauDecoder, attention_size=8)
    tokens, lens = np.arange(12).reshape(3, 4) % 11, np.array([7, 0, 3])
    arrays = {"memory": memory, "state": state, **made.parameters}
    names = list(made.parameters)

    def call(given):
        made.parameters = {name: given[name] for name in names}
        return made(tokens, given["memory"], given["state"], lens)

    outputs = call(arrays)
    factors = {str(position): uniform(f"c{position}", output.shape) for position, output in enumerate(outputs)}
    stacked, single = (gradients(call, arrays, factors, stacked=choice) for choice in (True, False))
    for name in arrays:
        assert_allclose(stacked[name], single[name], rtol=1e-13, atol=1e-16)
    assert (stacked["memory"][1] == 0).all() and np.abs(stacked["memory"][0]).min() > 0


@pytest.mark.parametrize("stacked", [True, False])
def test_a_scalar_beside_a_large_and_an_empty_array_has_its_gradient(stacked: bool):
    """Perturbations of several arrays share a pass, and those of a large one need several."""
    large, scalar = uniform("large", (STACK + 7,)), np.float64(3.0)
    arrays = {"empty": np.zeros((0, 2)), "large": large, "scalar": scalar}
    factor = uniform("factor", large.shape)
    slopes = gradients(lambda a: (a["large"] * a["scalar"][..., None],), arrays, {"0": factor}, stacked=stacked)
    assert_allclose(slopes["large"], 3.0 * factor, rtol=1e-15)
    assert_allclose(slopes["scalar"], large @ factor, rtol=1e-14)
    assert slopes["empty"].shape == (0, 2) and slopes["scalar"].shape == ()
