"""Formulas that an array may have been computed by, right ones and known mistakes, in the reference's arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from attention_core import reference
from attention_core.reference.arrays import sigmoid
from attention_core.reference.feed_forward import erf
from attention_core.reference.masking import softmax_over

Array = np.ndarray

BASES = (1e4, 5e5, 1e6, 1e5)
"""The bases of sinusoids and rotations that are tried."""

MOST_HEADS = 32

FILLS = {"": -np.inf, ", filled with -1e4": -1e4, ", filled with -1e9": -1e9}
"""What hidden scores are filled with; they have no weight with the first."""

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "no activation": lambda x: x,
    "ReLU": lambda x: np.maximum(x, 0.0),
    "GELU": lambda x: 0.5 * x * (1.0 + erf(x / 2**0.5).real),
    "tanh-approximated GELU": lambda x: 0.5 * x * (1.0 + np.tanh((2.0 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "sigmoid-approximated GELU": lambda x: x * sigmoid(1.702 * x),
    "SiLU": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "squared ReLU": lambda x: np.maximum(x, 0.0) ** 2,
    "ELU": lambda x: np.where(x > 0.0, x, np.expm1(np.minimum(x, 0.0))),
    "leaky ReLU (0.01)": lambda x: np.where(x > 0.0, x, 0.01 * x),
    "leaky ReLU (0.2)": lambda x: np.where(x > 0.0, x, 0.2 * x),
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "softmax": lambda x: softmax_over(x, np.ones(x.shape, bool)),
}


def sinusoids(steps: int, width: int) -> Iterator[tuple[str, Array]]:
    """Yield tables of sines and cosines, (steps, width), by base, rates, layout and first position."""
    for base, first in itertools.product(BASES, (0, 1)):
        rates = base ** (-np.arange(0, width, 2) / width)
        to_the_last = base ** (-np.arange(width // 2) / max(width // 2 - 1, 1))
        for title, rate in (("", rates), (", rates to the last", to_the_last)):
            angles = np.arange(first, first + steps)[:, None] * rate
            sines, cosines, end = np.sin(angles), np.cos(angles), f" from position {first}"
            yield f"base {base:g}{title}, interleaved{end}", np.stack([sines, cosines], -1).reshape(steps, -1)
            yield f"base {base:g}{title}, sines first{end}", np.concatenate([sines, cosines], -1)
            yield f"base {base:g}{title}, cosines first{end}", np.concatenate([cosines, sines], -1)


def rotations(x: Array) -> Iterator[tuple[str, Array]]:
    """Yield x, (..., steps, features) with an even number of features, rotated by its positions."""
    flat = x.reshape(-1, *x.shape[-2:])
    for base, first, layout in itertools.product(BASES, (0, 1), ("interleaved", "concatenated")):
        layer = reference.RotaryPositions(x.shape[-1], layout=layout, base=base)
        rotated = layer.rotate(flat, np.full(len(flat), first))
        yield f"base {base:g}, {layout}, from position {first}", rotated.reshape(x.shape)


def attentions(queries: Array, keys: Array, values: Array, heads: int, others: Sequence[Array]) -> dict[str, Array]:
    """Contexts, (batch, queries, features), by scale, mask and fill; others are arrays that may mean a mask."""
    q, k, v = (x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2) for x in (queries, keys, values))
    scores = q @ k.swapaxes(-1, -2)
    behind = np.arange(scores.shape[-1]) - np.arange(scores.shape[-2])[:, None]
    causal = {
        "causal": behind <= 0,
        "causal, without the key itself": behind < 0,
        "causal, one key further": behind <= 1,
    }
    masks = {"no mask": np.ones_like(behind, bool), **causal}
    for title, padding in (pair for other in others for pair in _paddings(other, len(queries), len(behind.T))):
        masks |= {title: padding, f"causal, and {title}": padding & causal["causal"]}
    scales = {f"1/√{size}": size**-0.5 for size in (q.shape[-1], keys.shape[-1], heads)} | {"1": 1.0}
    contexts = {}
    for (mask_name, mask), (scale_name, scale), (fill_name, fill) in itertools.product(
        masks.items(), scales.items(), FILLS.items()
    ):
        allowed = np.broadcast_to(mask | np.isfinite(fill), scores.shape)
        weights = softmax_over(np.where(mask, scale * scores, fill), allowed)
        contexts[f"scale {scale_name}, {mask_name}{fill_name}"] = (weights @ v).swapaxes(1, 2).reshape(queries.shape)
    return contexts


def _paddings(array: Array, batch: int, length: int) -> Iterator[tuple[str, Array]]:
    """Masks of keys that an input could mean: a mask itself, inverted, and lengths."""
    if array.shape == (batch, length):
        mask = (array != 0)[:, None, None, :]
        yield "the mask", mask
        yield "the inverted mask", ~mask
    elif array.shape == (batch,) and array.dtype.kind in "iu":
        yield "the lengths", (np.arange(length) < array[:, None])[:, None, None, :]


def recurrent_outputs(
    kind: str, x: Array, hidden: int, parameters: Sequence[Array], order: Sequence[int]
) -> Array | None:
    """The outputs of an LSTM or GRU whose stacked parameters, biases of inputs and state last, have their gates so.

    Gates i, f, g, o, or r, z, n, are those of PyTorch in order. None if the parameters are not those of a layer.
    """
    layer = reference.LSTM(x.shape[-1], hidden) if kind == "LSTM" else reference.GRU(x.shape[-1], hidden)
    gates = len(order)
    rows = [array if array.shape[0] == gates * hidden else array.T for array in parameters]
    stacked = [array.reshape(gates, hidden, *array.shape[1:])[list(order)] for array in rows]
    matrices = [array for array in stacked if array.ndim == 3]
    biases = [array for array in stacked if array.ndim == 2] or [np.zeros((gates, hidden))]
    if [array.shape[-1] for array in matrices] != [x.shape[-1], hidden] or len(biases) > 2:
        return None
    total, last = np.sum(biases, axis=0), np.zeros(hidden)
    if kind == "GRU" and len(biases) == 2:  # the reset gate acts on the last bias of the state
        last = biases[1][2]
        total = np.stack([total[0], total[1], biases[0][2]])
    layer.parameters = {"0.W": matrices[0], "0.U": matrices[1], "0.b": total}
    layer.parameters |= {"0.b_hn": last} if kind == "GRU" else {}
    return layer(x)[0]
