"""The flow of attention through layers: by hand, and against every path and every cut that a small graph has."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pytest

from attention_core import draws, reference
from attention_core.errors import OptionError, ShapeError
from parity_tests.flow import SolverMissing, attention_flow

CLOSE = {"rtol": 0.0, "atol": 1e-8}


def drawn(layers: int, batch: int, heads: int, steps: int) -> np.ndarray:
    """Weights of self-attention, some of which are 0."""
    weights = np.maximum(draws.uniform("flow", (layers, batch, heads, steps, steps), 1.0), 0.0) + 0.1 * np.eye(steps)
    return weights / weights.sum(axis=-1, keepdims=True)


def test_two_layers_by_hand():
    """Capacities, top to bottom: a path through each middle step carries the smaller of its two edges."""
    upper, lower = [[0.6, 0.4], [0.0, 1.0]], [[0.75, 0.25], [0.5, 0.5]]
    flow = attention_flow(np.array([lower, upper])[:, None, None], residual=0.0)
    # From 0 to 0: min(0.6, 0.75) + min(0.4, 0.5); from 0 to 1: min(0.6, 0.25) + min(0.4, 0.5); from 1: one path each.
    np.testing.assert_allclose(flow, [[[1.0, 0.65], [0.5, 0.5]]], **CLOSE)


def test_the_residual_connection_and_the_mean_of_heads_are_capacities():
    """Half of the identity, and a quarter of each of two heads."""
    heads = [[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]]
    np.testing.assert_allclose(attention_flow(np.array([[heads]])), [[[0.75, 0.25], [0.5, 0.5]]], **CLOSE)


def test_the_flow_of_one_layer_is_its_weights():
    weights = drawn(1, 2, 3, 5)
    np.testing.assert_allclose(attention_flow(weights, residual=0.0), weights[0].mean(axis=1), **CLOSE)
    np.testing.assert_allclose(attention_flow(weights), reference.attention_rollout(weights), **CLOSE)


def test_a_flow_is_at_least_each_path_and_their_products_and_at_most_each_end():
    """At least the bottleneck of a path, and the rollout, which is a flow; at most what leaves and what arrives."""
    weights, steps = drawn(3, 2, 3, 4), range(4)
    flow, edges = attention_flow(weights), 0.5 * np.eye(4) + 0.5 * weights.mean(axis=2)
    for path in itertools.product(steps, repeat=4):
        along = np.array([edges[layer, :, path[layer + 1], path[layer]] for layer in range(3)])
        assert (flow[:, path[3], path[0]] >= along.min(axis=0) - 1e-8).all()
    assert (flow >= reference.attention_rollout(weights) - 1e-8).all() and (flow <= 1.0 + 1e-8).all()
    assert (flow <= edges[0].sum(axis=1)[:, None, :] + 1e-8).all()


def test_a_flow_is_the_smallest_cut():
    """Over all ways to part the nodes between a top and a bottom step."""
    weights = drawn(2, 1, 1, 3)
    flow, edges = attention_flow(weights, residual=0.25)[0], 0.25 * np.eye(3) + 0.75 * weights[:, 0, 0]
    for source, sink in itertools.product(range(3), repeat=2):
        cuts = []
        for parts in itertools.product((False, True), repeat=6):
            top, middle, bottom = np.eye(3, dtype=bool)[source], np.array(parts[:3]), np.array(parts[3:])
            bottom = np.where(np.arange(3) == sink, False, bottom)
            cuts.append(edges[1][top][:, ~middle].sum() + edges[0][middle][:, ~bottom].sum())
        np.testing.assert_allclose(flow[source, sink], min(cuts), **CLOSE)


def test_weights_that_sum_to_more_than_one_are_scaled_to_the_solvers_integers():
    weights = drawn(2, 1, 2, 4)
    np.testing.assert_allclose(
        attention_flow(1e6 * weights, residual=0.0), 1e6 * attention_flow(weights, residual=0.0), rtol=1e-6
    )


@pytest.mark.parametrize("shape", [(2, 0, 3, 4, 4), (2, 1, 3, 0, 0)])
def test_an_empty_axis_has_an_empty_flow(shape: tuple[int, ...]):
    assert attention_flow(np.zeros(shape)).shape == (shape[1], *shape[3:])


def test_what_does_not_fit_is_refused_by_name():
    with pytest.raises(ShapeError, match="attention_flow: axis 'steps' is both 5 and 6 in weights"):
        attention_flow(np.zeros((1, 2, 3, 5, 6)))
    with pytest.raises(OptionError, match=r"residual is 1\.0, expected a rate"):
        attention_flow(drawn(1, 1, 1, 2), residual=1.0)
    for wrong in (-0.5, np.inf, np.nan):
        with pytest.raises(ValueError, match="holds a negative number, inf or NaN"):
            attention_flow(np.full((1, 1, 1, 2, 2), wrong))


def test_a_missing_library_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(SolverMissing, match="Run: pip install scipy"):
        attention_flow(drawn(1, 1, 1, 2))
