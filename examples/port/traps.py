"""What each trap of a port costs: the largest error of the outputs, in parts of the largest output.

python examples/port/traps.py
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attention_core import reference
from attention_core.draws import uniform

Arrays = Mapping[str, np.ndarray]
SIZE, HEADS = 32, 4
INPUTS = uniform("traps/inputs", (4, 20, SIZE))
LENS = np.array([20, 7, 13, 4], np.int32)
OPEN = np.arange(20) < LENS[:, None]


def drawn(layer: object, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Arrays as wide as after an initialisation, biases too."""
    given = reference.get_parameters(layer)
    return {name: uniform(f"traps/{name}", array.shape, scale * SIZE**-0.5) for name, array in given.items()}


def said(layer: object, arrays: Arrays, *inputs: np.ndarray, **options: np.ndarray) -> np.ndarray:
    """The layer's outputs with these arrays."""
    reference.set_parameters(layer, dict(arrays))
    return np.asarray(layer(*inputs, **options)[0])


def told(trap: str, found: np.ndarray, right: np.ndarray) -> None:
    print(f"{trap:<64} {np.abs(found - right).max() / np.abs(right).max():.1e}")


def reset_before(arrays: Arrays) -> np.ndarray:
    """The GRU in which the reset gate acts before the product: n = tanh(W2 x + b2 + U2 (r * h))."""
    W, U, b = (arrays[f"0.{name}"] for name in "WUb")
    state, outputs = np.zeros((len(INPUTS), SIZE)), []
    for x in INPUTS.swapaxes(0, 1):
        r, z = (1.0 / (1.0 + np.exp(-(x @ W[gate].T + b[gate] + state @ U[gate].T))) for gate in (0, 1))
        state = (1.0 - z) * np.tanh(x @ W[2].T + b[2] + (r * state) @ U[2].T) + z * state
        outputs.append(state)
    return np.stack(outputs, axis=1)


def normalised(epsilon: float) -> np.ndarray:
    """Layer normalisation, without gain and bias."""
    centred = INPUTS - INPUTS.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)


gru = reference.GRU(SIZE, SIZE)
own = drawn(gru)
right = said(gru, own, INPUTS)
gates = ("0.W", "0.U", "0.b")
moved = own["0.b"] + np.stack([0.0 * own["0.b_hn"], 0.0 * own["0.b_hn"], own["0.b_hn"]])
without = {**own, "0.b_hn": 0.0 * own["0.b_hn"]}
told("GRU: gates z, r, n read as r, z, n", said(gru, {**own, **{k: own[k][[1, 0, 2]] for k in gates}}, INPUTS), right)
told("GRU: a square recurrent matrix transposed", said(gru, {**own, "0.U": own["0.U"].swapaxes(1, 2)}, INPUTS), right)
told("GRU: the hidden bias of n dropped", said(gru, without, INPUTS), right)
told("GRU: the hidden bias of n added to the other", said(gru, {**without, "0.b": moved}, INPUTS), right)
told("GRU: reset_after=False read as reset_after=True", said(gru, without, INPUTS), reset_before(without))

lstm = reference.LSTM(SIZE, SIZE)
own = drawn(lstm)
right = said(lstm, own, INPUTS)
told(
    "LSTM: gates i, o, f, g read as i, f, g, o", said(lstm, {k: a[[0, 3, 1, 2]] for k, a in own.items()}, INPUTS), right
)

heads = reference.MultiHeadAttention(SIZE, HEADS)
own = drawn(heads, 3.0)
given = (3.0 * INPUTS,) * 3
right = said(heads, own, *given, valid_lens=LENS)
unscaled = {k: a * np.sqrt(SIZE / HEADS) if k in ("W_q", "b_q") else a for k, a in own.items()}
shape = (HEADS, SIZE // HEADS)
turned = {k: a.reshape(*shape, *a.shape[1:]).swapaxes(0, 1).reshape(a.shape) for k, a in own.items() if k[2] in "qkv"}
told("attention: the mask inverted", said(heads, own, *given, mask=~OPEN[:, None] & np.ones((4, 20, 1), bool)), right)
told("attention: no scale", said(heads, unscaled, *given, valid_lens=LENS), right)
told(
    "attention: (head size, heads) read as (heads, head size)",
    said(heads, {**own, **turned}, *given, valid_lens=LENS),
    right,
)
told("layer normalisation: epsilon 1e-3 read as 1e-5", normalised(1e-5), normalised(1e-3))
