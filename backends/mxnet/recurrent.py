"""Recurrent layers, encoders, and the bridge from two directions to one, in MXNet."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import mxnet as mx
from mxnet import np
from mxnet.gluon import HybridBlock, nn

from attention_core.errors import check, check_options
from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.operators.recurrent import check_one_direction
from attention_core.specification import Layer, Part
from backends.mxnet.module import Uniform, drawn_mask, initialise

__all__ = ["GRU", "LSTM"]

SHUT = 3e4
"""What opens or shuts a gate to the last bit, in every floating type."""


class Recurrent(HybridBlock):
    """What the recurrent layers share: a step, and a call that runs steps in one direction or both.

    A state is (num_layers, batch, state_size): the output of each layer, forward then backward, and after them, for an
    LSTM, the cells in the same order.
    """

    specification: Layer

    def __init__(
        self,
        kind: type[RecurrentLayer],
        *,
        dtype: str,
        prefix: str | None,
        params: mx.gluon.ParameterDict | None,
        **options: Any,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = sizes = check_options(self.specification, **options)
        self.dropout = sizes["dropout"]
        with self.name_scope():
            self.layers = nn.HybridSequential()
            with self.layers.name_scope():
                for layer in range(sizes["num_layers"]):
                    read = sizes["output_size"] if layer else sizes["input_size"]
                    self.layers.add(kind(read, sizes["hidden_size"], bidirectional=sizes["bidirectional"], dtype=dtype))
        initialise(self)

    def step(
        self, inputs: np.ndarray, state: np.ndarray, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run one step.

        state'[l] = cell(x, state[l]), with x = inputs for layer 0 and dropout_mask[l - 1] output'[l - 1] above

        Shapes: inputs (batch, input_size), state (num_layers, batch, state_size), dropout_mask
        (num_layers - 1, batch, output_size); returns (output, state).
        """
        operator = self.specification.method("step")
        check_one_direction(operator.title, self.sizes)
        check(operator, self.sizes, self.layers[0].W.dtype, inputs=inputs, state=state, dropout_mask=dropout_mask)
        if inputs.shape[0] == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            return np.zeros((0, self.sizes["output_size"]), dtype=inputs.dtype, ctx=inputs.ctx), state
        return self.advance(inputs, state, dropout_mask)

    def advance(
        self, inputs: np.ndarray, state: np.ndarray, dropout_mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """One step of arrays that were checked."""
        if dropout_mask is None:
            dropout_mask = drawn_mask(
                self.dropout, (len(self.layers) - 1, *inputs.shape[:1], self.sizes["output_size"]), inputs
            )
        output, states = inputs, []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            output, held = layer.step(output, state[index])
            states.append(held)
        return output, np.stack(states)

    def hybrid_forward(
        self,
        F: ModuleType,
        inputs: np.ndarray,
        state: np.ndarray,
        real: np.ndarray,
        last: np.ndarray,
        order: np.ndarray | None,
        dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula of a call.

        Shapes: real and last (steps, batch, 1), True at the valid steps, and at the last one of each sequence; order
        (2, steps, batch), the places of the valid steps in reverse, if bidirectional.
        """
        inputs = F.np.swapaxes(inputs, 0, 1)  # the kernel wants time first
        outputs = F.np.where(real, inputs, F.np.zeros_like(inputs))
        directions = 1 if order is None else 2
        vectors = self.sizes["state_size"] // self.sizes["hidden_size"]
        held = F.np.split(state, vectors, axis=-1)
        ends = []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * F.np.swapaxes(dropout_mask[index - 1], 0, 1)
            own = [
                F.np.concatenate([part[index : index + 1] for part in held[side::directions]], axis=0)
                for side in range(directions)
            ]
            runs = [layer(outputs, own[0], real, last)]
            if order is not None:  # padding stands at the end in both directions: reversed are the valid steps alone
                turned, end = layer.backward(F.npx.gather_nd(outputs, order), own[1], real, last)
                runs.append((F.npx.gather_nd(turned, order), end))
            outputs = F.np.concatenate([run[0] for run in runs], axis=-1)
            ends.append(
                F.np.concatenate([run[1][part] for part in range(vectors // directions) for run in runs], axis=-1)
            )
        # Padding stands at the end, so no real step has seen it: clearing it here, once, is enough.
        outputs = F.np.where(real, outputs, F.np.zeros_like(outputs))
        return F.np.swapaxes(outputs, 0, 1), F.np.stack(ends)

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
        one below.
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.layers[0].W.dtype,
            inputs=inputs,
            valid_lens=valid_lens,
            state=state,
            dropout_mask=dropout_mask,
        )
        batch, steps, _ = inputs.shape
        like, between = {"dtype": inputs.dtype, "ctx": inputs.ctx}, len(self.layers) - 1
        if state is None:
            state = np.zeros((len(self.layers), batch, self.sizes["state_size"]), **like)
        if batch == 0 or steps == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            return np.zeros((batch, steps, self.sizes["output_size"]), **like), state
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (between, batch, steps, self.sizes["output_size"]), inputs)
        if between == 0:
            dropout_mask = None
        elif dropout_mask is None:  # a graph has all its arguments in every call: these ones change nothing
            dropout_mask = np.ones((between, 1, 1, 1), **like)
        order = reverse_order(batch, steps, valid_lens, inputs) if self.sizes["bidirectional"] else None
        outputs, state = super().__call__(inputs, state, *valid_steps(steps, valid_lens, inputs), order, dropout_mask)
        return outputs, state


class GRU(Recurrent):
    """Stacked gated recurrent units over padded sequences.

    r = σ(W0 x + b0 + U0 h);  z = σ(W1 x + b1 + U1 h);  n = tanh(W2 x + b2 + r * (U2 h + b_hn));
    h' = (1 - z) * n + z * h

    Shapes: inputs (batch, steps, input_size), valid_lens (batch,), state (num_layers, batch, state_size), dropout_mask
    (num_layers - 1, batch, steps, output_size); returns (outputs, state). output_size and state_size are hidden_size,
    or twice that if bidirectional, forward then backward.
    """

    specification = GRU_SPECIFICATION

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            GRULayer,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
            dtype=dtype,
            prefix=prefix,
            params=params,
        )


class LSTM(Recurrent):
    """Stacked long short-term memory over padded sequences.

    i = σ(W0 x + b0 + U0 h);  f = σ(W1 x + b1 + U1 h);  g = tanh(W2 x + b2 + U2 h);  o = σ(W3 x + b3 + U3 h);
    c' = f * c + i * g;  h' = o * tanh(c')

    Shapes: as GRU, but state_size is twice output_size: outputs, then cells, each forward then backward.
    """

    specification = LSTM_SPECIFICATION

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            LSTMLayer,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
            dtype=dtype,
            prefix=prefix,
            params=params,
        )


class GRUCell(HybridBlock):
    """One step of a layer of a GRU, as one graph; the parameters are the layer's."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def hybrid_forward(
        self,
        F: ModuleType,
        inputs: np.ndarray,
        state: np.ndarray,
        W: np.ndarray,
        U: np.ndarray,
        b: np.ndarray,
        b_hn: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula."""
        rows = 3 * self.hidden_size
        W, U, b = F.np.reshape(W, (rows, -1)), F.np.reshape(U, (rows, -1)), F.np.reshape(b, (-1,))
        from_inputs = F.npx.fully_connected(inputs, W, b, num_hidden=rows)
        from_state = F.npx.fully_connected(state, U, no_bias=True, num_hidden=rows)
        x_r, x_z, x_n = gates(F, from_inputs, 3, self.hidden_size)
        h_r, h_z, h_n = gates(F, from_state, 3, self.hidden_size)
        r = F.npx.sigmoid(x_r + h_r)
        z = F.npx.sigmoid(x_z + h_z)
        n = F.npx.activation(x_n + r * (h_n + b_hn), act_type="tanh")
        state = (1.0 - z) * n + z * state
        return state, state


class LSTMCell(HybridBlock):
    """One step of a layer of an LSTM, as one graph; the parameters are the layer's."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size

    def hybrid_forward(
        self, F: ModuleType, inputs: np.ndarray, state: np.ndarray, W: np.ndarray, U: np.ndarray, b: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula."""
        rows = 4 * self.hidden_size
        W, U, b = F.np.reshape(W, (rows, -1)), F.np.reshape(U, (rows, -1)), F.np.reshape(b, (-1,))
        output, cells = F.np.split(state, 2, axis=-1)
        from_inputs = F.npx.fully_connected(inputs, W, b, num_hidden=rows)
        from_state = F.npx.fully_connected(output, U, no_bias=True, num_hidden=rows)
        i, f, g, o = gates(F, from_inputs + from_state, 4, self.hidden_size)
        cells = F.npx.sigmoid(f) * cells + F.npx.sigmoid(i) * F.npx.activation(g, act_type="tanh")
        output = F.npx.sigmoid(o) * F.npx.activation(cells, act_type="tanh")
        return output, F.np.concatenate([output, cells], axis=-1)


def gates(F: ModuleType, array: np.ndarray, count: int, size: int) -> list[np.ndarray]:
    """The parts of the last axis of (batch, count · size), one for each gate: MXNet's split is slower by far."""
    return [F.npx.slice(array, begin=(None, part * size), end=(None, (part + 1) * size)) for part in range(count)]


class RecurrentLayer(HybridBlock):
    """The canonical parameters of one recurrent layer, and those of its backward direction in a layer of their own."""

    cell_type: type[HybridBlock]
    gates: int
    names: tuple[str, ...] = ("W", "U", "b")

    def __init__(self, input_size: int, hidden_size: int, *, bidirectional: bool = False, dtype: str) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        shapes = {
            "W": (self.gates, hidden_size, input_size),
            "U": (self.gates, hidden_size, hidden_size),
            "b": (self.gates, hidden_size),
            "b_hn": (hidden_size,),
        }
        drawn = Uniform(hidden_size**-0.5)
        with self.name_scope():
            for name in self.names:
                setattr(self, name, self.params.get(name, shape=shapes[name], dtype=dtype, init=drawn))
            self.cell = self.cell_type(hidden_size)
            if bidirectional:
                self.backward = type(self)(input_size, hidden_size, dtype=dtype)

    def step(self, inputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Output and state after one step: inputs (batch, features), state (batch, hidden_size or twice that)."""
        output, state = self.cell(inputs, state, *(getattr(self, name).data(inputs.ctx) for name in self.names))
        return output, state


class GRULayer(RecurrentLayer):
    """One layer of a GRU."""

    cell_type, gates = GRUCell, 3
    names = ("W", "U", "b", "b_hn")

    def hybrid_forward(
        self,
        F: ModuleType,
        inputs: np.ndarray,
        state: np.ndarray,
        real: np.ndarray,
        last: np.ndarray,
        W: np.ndarray,
        U: np.ndarray,
        b: np.ndarray,
        b_hn: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The outputs of all steps, and the state: inputs (steps, batch, features), state (1, batch, hidden_size)."""
        # The kernel's hidden biases of r and z are redundant, and held at 0.
        parameters = flat(F, W, U, b, F.np.zeros_like(b[:2]), b_hn)
        outputs = F.npx.rnn(inputs, parameters, state, mode="gru", state_size=self.hidden_size, num_layers=1)
        return outputs, F.np.expand_dims(last_valid(F, outputs, state[0], last), 0)


class LSTMLayer(RecurrentLayer):
    """One layer of an LSTM."""

    cell_type, gates = LSTMCell, 4

    def hybrid_forward(
        self,
        F: ModuleType,
        inputs: np.ndarray,
        state: np.ndarray,
        real: np.ndarray,
        last: np.ndarray,
        W: np.ndarray,
        U: np.ndarray,
        b: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The outputs of all steps, and the state: inputs (steps, batch, features), state (2, batch, hidden_size)."""
        # The kernel gives the cells of the last step alone. So padding carries one more feature, which shuts the input
        # gate and opens the forget gate: σ is exactly 0 and 1 there, and the cells stay as they are, gradients too.
        zeros, rows = F.np.zeros_like(b[:1]), 4 * self.hidden_size
        keep = F.np.reshape(F.np.concatenate([zeros - 1.0, zeros + 1.0, zeros, zeros]), (rows, 1))
        padding = F.np.zeros_like(inputs[:, :, :1])
        padding = F.np.where(real, padding, padding + SHUT)
        outputs, _, cells = F.npx.rnn(
            F.np.concatenate([inputs, padding], axis=-1),
            # The kernel's hidden biases are redundant, and held at 0.
            flat(F, F.np.concatenate([F.np.reshape(W, (rows, -1)), keep], axis=-1), U, b, F.np.zeros_like(b)),
            state[:1],
            state[1:],
            mode="lstm",
            state_size=self.hidden_size,
            num_layers=1,
            state_outputs=True,
        )
        return outputs, F.np.concatenate([F.np.expand_dims(last_valid(F, outputs, state[0], last), 0), cells], axis=0)


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(part: Part, *, dtype: str) -> Recurrent:
    """The recurrent layer that stands inside another one."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype)


def valid_steps(steps: int, valid_lens: np.ndarray | None, like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which steps are valid, and which is the last valid one of each sequence: (steps, batch or 1, 1)."""
    step = np.arange(steps, dtype="int64", ctx=like.ctx)[:, None, None]
    if valid_lens is None:
        return step >= 0, step == steps - 1
    lens = valid_lens.astype("int64")[:, None]
    return step < lens, step == np.minimum(lens, steps) - 1


def reverse_order(batch: int, steps: int, valid_lens: np.ndarray | None, like: np.ndarray) -> np.ndarray:
    """Which step and sequence stands where, when the valid steps are reversed: (2, steps, batch)."""
    step = np.arange(steps, dtype="int64", ctx=like.ctx)[:, None]
    sequence = np.broadcast_to(np.arange(batch, dtype="int64", ctx=like.ctx), (steps, batch))
    lens = np.full((batch,), steps, dtype="int64", ctx=like.ctx) if valid_lens is None else valid_lens.astype("int64")
    last = np.maximum(np.minimum(lens, steps), 0) - 1  # from the least length that a type holds, 1 cannot be taken
    step, opposite = np.broadcast_to(step, (steps, batch)), last - step
    return np.stack([np.where(opposite >= 0, opposite, step), sequence])


def flat(F: ModuleType, *arrays: np.ndarray) -> np.ndarray:
    """All of them in one row, as the fused kernel takes its parameters."""
    return F.np.concatenate([F.np.reshape(array, (-1,)) for array in arrays])


def last_valid(F: ModuleType, outputs: np.ndarray, state: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The output of each sequence's last valid step, or the state before it where there is none."""
    found = F.np.sum(F.np.where(last, outputs, F.np.zeros_like(outputs)), axis=0)
    return F.np.where(F.np.any(last, axis=0), found, state)
