"""Recurrent layers."""

from __future__ import annotations

import numpy as np

from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.reference.arrays import Specified, align, linear, optional, promote, sigmoid, tanh
from attention_core.specification import Layer, Part

__all__ = ["GRU", "LSTM"]


class Recurrent(Specified):
    """Base class of the recurrent layers: a step, and a call that runs steps in one direction or both.

    A state is (num_layers, batch, state_size): the output of each layer, forward then backward, and after them, for an
    LSTM, the cells in the same order.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(locals())

    def _cell(self, prefix: str, inputs: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The next state, (batch, hidden_size) or twice as wide, of the layer whose parameters have that prefix."""
        raise NotImplementedError

    def step(
        self, inputs: np.ndarray, state: np.ndarray, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run one step.

        state'[l] = cell(x, state[l]), x = inputs for l = 0, else dropout_mask[l - 1] output'[l - 1]
        """
        self._check("step", inputs=inputs, state=state, dropout_mask=dropout_mask)
        output, states, dropout_mask = promote(inputs), [], optional(dropout_mask)
        for layer in range(self.sizes["num_layers"]):
            if layer > 0 and dropout_mask is not None:
                output = output * dropout_mask[..., layer - 1, :, :]
            states.append(self._cell(f"{layer}.", output, promote(state)[..., layer, :, :]))
            output = states[-1][..., : self.sizes["hidden_size"]]
        return output, np.stack(np.broadcast_arrays(*states), axis=-3)

    def __call__(
        self,
        inputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        state: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run over a batch of sequences.

        outputs[t], state[t] = step(inputs[t], state[t - 1]) where t < valid_len; else 0 and state[t - 1]

        The backward direction runs from the last valid step to the first, and each layer reads both directions of the
        one below. What padded steps hold, NaN and inf included, has no effect and gets gradient 0.
        """
        self._check("call", inputs=inputs, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        outputs, dropout_mask = promote(inputs), optional(dropout_mask)
        *lead, batch, steps, _ = outputs.shape
        hidden = self.sizes["hidden_size"]
        prefixes = ("", "backward.")[: self.sizes["output_size"] // hidden]
        shape = (*lead, self.sizes["num_layers"], batch, self.sizes["state_size"])
        state = np.zeros(shape) if state is None else promote(state)
        lens = np.full(batch, steps) if valid_lens is None else np.asarray(valid_lens)
        real = np.arange(steps) < lens[:, None]
        outputs = np.where(real[..., None], outputs, 0.0)
        # (..., num_layers, batch, parts, directions, hidden_size)
        states = state.reshape(*state.shape[:-1], self.parts, len(prefixes), hidden)
        ends = []
        for layer in range(self.sizes["num_layers"]):
            if layer > 0 and dropout_mask is not None:
                outputs = outputs * dropout_mask[..., layer - 1, :, :, :]
            both = [
                self._run(f"{layer}.{prefix}", outputs, states[..., layer, :, :, direction, :], real, bool(direction))
                for direction, prefix in enumerate(prefixes)
            ]
            outputs = np.concatenate([output for output, _ in both], axis=-1)
            ends.append(np.stack([end for _, end in both], axis=-2))
        return outputs, np.stack(ends, axis=-5).reshape(*outputs.shape[:-3], *state.shape[-3:])

    def _run(
        self, prefix: str, inputs: np.ndarray, state: np.ndarray, real: np.ndarray, backward: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Outputs of one layer in one direction, and its last state, (batch, parts, hidden_size)."""
        *_, batch, steps, _ = inputs.shape
        shapes = self.specification.shapes(self.sizes)  # without the leading axis of a perturbed pass
        names = [name for name in shapes if name.startswith(prefix) and name.count(".") == prefix.count(".")]
        dtype = np.result_type(inputs, state, *(self.parameters[name] for name in names))
        lead = np.broadcast_shapes(
            inputs.shape[:-3], state.shape[:-3], *(self.parameters[name].shape[: -len(shapes[name])] for name in names)
        )
        state = np.broadcast_to(state, (*lead, *state.shape[-3:])).reshape(
            *lead, batch, self.parts * self.sizes["hidden_size"]
        )
        outputs = np.zeros((*lead, batch, steps, self.sizes["hidden_size"]), dtype)
        for t in reversed(range(steps)) if backward else range(steps):
            new = self._cell(prefix, inputs[..., t, :], state)
            state = np.where(real[:, t, None], new, state)
            outputs[..., t, :] = np.where(real[:, t, None], new[..., : self.sizes["hidden_size"]], 0.0)
        return outputs, state.reshape(*lead, batch, self.parts, self.sizes["hidden_size"])

    @property
    def parts(self) -> int:
        """The number of vectors in a state for each layer and direction."""
        return int(self.sizes["state_size"]) // int(self.sizes["output_size"])


class GRU(Recurrent):
    """Stacked gated recurrent units over padded sequences.

    r = σ(W0 x + b0 + U0 h)
    z = σ(W1 x + b1 + U1 h)
    n = tanh(W2 x + b2 + r * (U2 h + b_hn))
    h' = (1 - z) * n + z * h
    """

    specification: Layer = GRU_SPECIFICATION

    def _cell(self, prefix: str, inputs: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Compute h' of the formula."""
        weights, recurrent, bias, hidden_bias = (self.parameters[prefix + name] for name in ("W", "U", "b", "b_hn"))
        from_inputs = [linear(inputs, weights[..., gate, :, :], bias[..., gate, :]) for gate in range(3)]
        from_state = [linear(state, recurrent[..., gate, :, :]) for gate in range(3)]
        reset = sigmoid(from_inputs[0] + from_state[0])
        update = sigmoid(from_inputs[1] + from_state[1])
        new = tanh(from_inputs[2] + reset * (from_state[2] + align(hidden_bias, 1, state.ndim)))
        return (1.0 - update) * new + update * state


class LSTM(Recurrent):
    """Stacked long short-term memory over padded sequences.

    i = σ(W0 x + b0 + U0 h)
    f = σ(W1 x + b1 + U1 h)
    g = tanh(W2 x + b2 + U2 h)
    o = σ(W3 x + b3 + U3 h)
    c' = f * c + i * g
    h' = o * tanh(c')

    Nothing is added to the bias of the forget gate.
    """

    specification: Layer = LSTM_SPECIFICATION

    def _cell(self, prefix: str, inputs: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Compute [h'; c'] of the formula."""
        weights, recurrent, bias = (self.parameters[prefix + name] for name in ("W", "U", "b"))
        hidden, cells = np.split(state, 2, axis=-1)
        gates = [
            linear(inputs, weights[..., gate, :, :], bias[..., gate, :]) + linear(hidden, recurrent[..., gate, :, :])
            for gate in range(4)
        ]
        cells = sigmoid(gates[1]) * cells + sigmoid(gates[0]) * tanh(gates[2])
        return np.concatenate([sigmoid(gates[3]) * tanh(cells), cells], axis=-1)


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(part: Part) -> Recurrent:
    """Make the recurrent layer inside another layer."""
    return LAYERS[part.layer.name](**part.config)
