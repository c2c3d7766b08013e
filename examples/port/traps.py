"""The cost of each porting pitfall: the largest error of the outputs, relative to the largest output.

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


def draw_parameters(layer: object, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Arrays as wide as after an initialisation, biases too."""
    parameters = reference.get_parameters(layer)
    return {name: uniform(f"traps/{name}", array.shape, scale * SIZE**-0.5) for name, array in parameters.items()}


def outputs(layer: object, arrays: Arrays, *inputs: np.ndarray, **options: np.ndarray) -> np.ndarray:
    """The layer's outputs with these arrays."""
    reference.set_parameters(layer, dict(arrays))
    return np.asarray(layer(*inputs, **options)[0])


def report(trap: str, actual: np.ndarray, expected: np.ndarray) -> None:
    print(f"{trap:<64} {np.abs(actual - expected).max() / np.abs(expected).max():.1e}")


def reset_before(arrays: Arrays) -> np.ndarray:
    """The GRU in which the reset gate acts before the product: n = tanh(W2 x + b2 + U2 (r * h))."""
    W, U, b = (arrays[f"0.{name}"] for name in "WUb")
    state, states = np.zeros((len(INPUTS), SIZE)), []
    for x in INPUTS.swapaxes(0, 1):
        r, z = (1.0 / (1.0 + np.exp(-(x @ W[gate].T + b[gate] + state @ U[gate].T))) for gate in (0, 1))
        state = (1.0 - z) * np.tanh(x @ W[2].T + b[2] + (r * state) @ U[2].T) + z * state
        states.append(state)
    return np.stack(states, axis=1)


def normalise(epsilon: float) -> np.ndarray:
    """Layer normalisation, without gain and bias."""
    centred = INPUTS - INPUTS.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)


gru = reference.GRU(SIZE, SIZE)
arrays = draw_parameters(gru)
expected = outputs(gru, arrays, INPUTS)
dropped = {"0.b_hn": 0.0 * arrays["0.b_hn"]}
moved = arrays["0.b"] + np.stack([dropped["0.b_hn"], dropped["0.b_hn"], arrays["0.b_hn"]])
wrong = {
    "gates z, r, n read as r, z, n": {name: arrays[name][[1, 0, 2]] for name in ("0.W", "0.U", "0.b")},
    "a square recurrent matrix transposed": {"0.U": arrays["0.U"].swapaxes(1, 2)},
    "the hidden bias of n dropped": dropped,
    "the hidden bias of n added to the other": {**dropped, "0.b": moved},
}
for trap, changed in wrong.items():
    report(f"GRU: {trap}", outputs(gru, {**arrays, **changed}, INPUTS), expected)
without = {**arrays, **dropped}
report("GRU: reset_after=False read as reset_after=True", outputs(gru, without, INPUTS), reset_before(without))

lstm = reference.LSTM(SIZE, SIZE)
arrays = draw_parameters(lstm)
expected = outputs(lstm, arrays, INPUTS)
swapped = {name: array[[0, 3, 1, 2]] for name, array in arrays.items()}
report("LSTM: gates i, o, f, g read as i, f, g, o", outputs(lstm, swapped, INPUTS), expected)

heads = reference.MultiHeadAttention(SIZE, HEADS)
arrays = draw_parameters(heads, 3.0)
inputs = (3.0 * INPUTS,) * 3
expected = outputs(heads, arrays, *inputs, valid_lens=LENS)
inverted = ~OPEN[:, None] & np.ones((4, 20, 1), bool)
report("attention: the mask inverted", outputs(heads, arrays, *inputs, mask=inverted), expected)
shape = (HEADS, SIZE // HEADS)
wrong = {
    "no scale": {name: arrays[name] * np.sqrt(SIZE / HEADS) for name in ("W_q", "b_q")},
    "(head size, heads) read as (heads, head size)": {
        name: array.reshape(*shape, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)
        for name, array in arrays.items()
        if name[2] in "qkv"
    },
}
for trap, changed in wrong.items():
    report(f"attention: {trap}", outputs(heads, {**arrays, **changed}, *inputs, valid_lens=LENS), expected)
report("layer normalisation: epsilon 1e-3 read as 1e-5", normalise(1e-5), normalise(1e-3))
