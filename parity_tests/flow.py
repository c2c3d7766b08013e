"""Attention flow: how much an output of several layers of self-attention can draw from each input.

    from parity_tests.flow import attention_flow

    flow = attention_flow(weights)  # weights of every layer and head, of any framework

Abnar and Zuidema 2020, section 3, arXiv:2005.00928. `attention_rollout` of every backend multiplies the layers instead.
Requires SciPy. It is computed in NumPy, and is not differentiable.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attention_core.errors import check
from attention_core.operators.multi_head import ATTENTION_ROLLOUT
from parity_tests.plots import as_numpy

UNIT = 2**30
"""The largest sum of capacities that leave a node, as SciPy's maximum flow counts: in 32-bit integers."""


_SPECIFICATION = replace(ATTENTION_ROLLOUT, name="attention_flow")
"""What it takes, which is what a rollout does."""


class SolverMissing(ImportError):
    """The library that computes a maximum flow is not installed."""


def attention_flow(weights: Any, *, residual: float = 0.5) -> np.ndarray:
    """Compute the maximum flow from each step at the top to each step at the bottom of the layers.

    It has shape (batch, steps at the top, steps at the bottom). The nodes of the graph are the inputs and the outputs
    of every layer. An edge from output i to input j of layer l has the capacity residual I[i, j] + (1 - residual) mean
    over h of weights[l, b, h, i, j]. Unlike a rollout, a flow does not shrink along a path: it is what the edges of all
    paths can carry together. So the flows from a step do not sum to 1: each is computed as if it were the only one.

    Arguments: weights (layers, batch, heads, steps, steps) is an array of any framework, the layer next to the inputs
    first; residual is the share of the residual connection around each layer. Capacities are rounded to multiples of
    2⁻³⁰. Raises: ShapeError, DtypeError and OptionError as attention_rollout; ValueError if a weight is negative or not
    finite; SolverMissing if SciPy is not installed.
    """
    weights = as_numpy(weights)
    check(_SPECIFICATION, weights=weights, residual=residual)
    capacities = residual * np.eye(weights.shape[-1]) + (1.0 - residual) * weights.astype(np.float64).mean(axis=2)
    if not (np.isfinite(capacities).all() and (capacities >= 0.0).all()):
        raise ValueError("attention_flow: weights holds a negative number, inf or NaN, expected probabilities.")
    unit = UNIT / max(1.0, capacities.sum(axis=-1).max(initial=0.0))
    whole = np.rint(unit * capacities).astype(np.int32)
    flows = np.zeros(capacities.shape[1:])
    for sequence in range(whole.shape[1]):
        flows[sequence] = _flows(whole[:, sequence]) / unit
    return flows


def _flows(capacities: np.ndarray) -> np.ndarray:
    """The maximum flows through one sequence's layers, as whole numbers.

    Node layer · steps + step is a step below that layer; the outputs of the last layer come behind all others.
    """
    try:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import maximum_flow
    except ModuleNotFoundError as error:
        raise SolverMissing("attention flow needs SciPy. Run: pip install scipy") from error
    layers, steps, _ = capacities.shape
    layer, top, bottom = np.nonzero(capacities)
    edges = ((layer + 1) * steps + top, layer * steps + bottom)
    graph = csr_matrix((capacities[layer, top, bottom], edges), shape=((layers + 1) * steps,) * 2)
    pairs = np.ndindex(steps, steps)
    flows = [maximum_flow(graph, layers * steps + source, sink).flow_value for source, sink in pairs]
    return np.reshape(flows, (steps, steps))
