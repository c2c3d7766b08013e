"""Recurrent layers in MXNet."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from mxnet import np, npx
from mxnet.gluon import Block, nn

from attention_core.errors import check, check_options
from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.operators.recurrent import check_one_direction
from attention_core.specification import Layer, Part
from backends.mxnet.module import Uniform, drawn_mask, initialise

__all__ = ["GRU", "LSTM"]

SHUT = 3e4
"""What opens or shuts a gate to the last bit, in every floating type."""


class Recurrent(Block):
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
            self.layers = nn.Sequential()
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
        outputs, state = super().__call__(inputs, valid_lens, state, dropout_mask)
        return outputs, state

    def forward(
        self,
        inputs: np.ndarray,
        valid_lens: np.ndarray | None,
        state: np.ndarray,
        dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run over a batch of sequences; Gluon enters here."""
        batch, steps, _ = inputs.shape
        real, last = valid_steps(steps, valid_lens, inputs)
        order = reverse_order(batch, steps, valid_lens, inputs) if self.sizes["bidirectional"] else None
        inputs = np.swapaxes(inputs, 0, 1)  # the kernel wants time first
        outputs = np.where(real, inputs, np.zeros_like(inputs))
        directions = 1 if order is None else 2
        vectors = self.sizes["state_size"] // self.sizes["hidden_size"]
        held, ends = np.split(state, vectors, axis=-1), []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * np.swapaxes(dropout_mask[index - 1], 0, 1)
            own = [
                np.concatenate([part[index : index + 1] for part in held[side::directions]], axis=0)
                for side in range(directions)
            ]
            runs = [layer(outputs, own[0], real, last)]
            if order is not None:  # padding stands at the end in both directions: reversed are the valid steps alone
                turned, end = layer.backward(npx.gather_nd(outputs, order), own[1], real, last)
                runs.append((npx.gather_nd(turned, order), end))
            outputs = np.concatenate([run[0] for run in runs], axis=-1)
            ends.append(
                np.concatenate([run[1][part] for part in range(vectors // directions) for run in runs], axis=-1)
            )
        # Padding stands at the end, so no real step has seen it: clearing it here, once, is enough.
        outputs = np.where(real, outputs, np.zeros_like(outputs))
        return np.swapaxes(outputs, 0, 1), np.stack(ends)


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


class RecurrentLayer(Block):
    """The canonical parameters of one recurrent layer, and those of its backward direction in a layer of their own."""

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
            if bidirectional:
                self.backward = type(self)(input_size, hidden_size, dtype=dtype)

    def arrays(self, like: np.ndarray) -> list[np.ndarray]:
        """The parameters as arrays: matrices with a row for each unit of each gate, and biases."""
        rows, ctx = self.gates * self.hidden_size, like.ctx
        W, U, *biases = (getattr(self, name).data(ctx) for name in self.names)
        return [W.reshape(rows, -1), U.reshape(rows, -1), *(bias.reshape(-1) for bias in biases)]

    def step(self, inputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Output and state after one step: inputs (batch, features), state (batch, hidden_size or twice that)."""
        raise NotImplementedError

    def forward(
        self, inputs: np.ndarray, state: np.ndarray, real: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The outputs of all steps, and the state after the last valid one.

        Shapes: inputs (steps, batch, features), state (1, batch, hidden_size), or 2 for an LSTM; real and last (steps,
        batch or 1, 1), True at the valid steps, and at the last one of each sequence.
        """
        raise NotImplementedError


class GRULayer(RecurrentLayer):
    """One layer of a GRU."""

    gates, names = 3, ("W", "U", "b", "b_hn")

    def step(self, inputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Output and state after one step, which are the same."""
        W, U, b, b_hn = self.arrays(inputs)
        rows = 3 * self.hidden_size
        x_r, x_z, x_n = parted(npx.fully_connected(inputs, W, b, num_hidden=rows), 3)
        h_r, h_z, h_n = parted(npx.fully_connected(state, U, no_bias=True, num_hidden=rows), 3)
        r, z = npx.sigmoid(x_r + h_r), npx.sigmoid(x_z + h_z)
        n = npx.activation(x_n + r * (h_n + b_hn), act_type="tanh")
        state = (1.0 - z) * n + z * state
        return state, state

    def forward(
        self, inputs: np.ndarray, state: np.ndarray, real: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The outputs of all steps, and the state after the last valid one."""
        W, U, b, b_hn = self.arrays(inputs)
        # The kernel's hidden biases of r and z are redundant, and held at 0.
        parameters = flat(W, U, b, np.zeros_like(b[: 2 * self.hidden_size]), b_hn)
        outputs = npx.rnn(inputs, parameters, state, mode="gru", state_size=self.hidden_size, num_layers=1)
        return outputs, np.expand_dims(last_valid(outputs, state[0], last), 0)


class LSTMLayer(RecurrentLayer):
    """One layer of an LSTM."""

    gates = 4

    def step(self, inputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Output and state, which is output and cells, after one step."""
        W, U, b = self.arrays(inputs)
        rows, (output, cells) = 4 * self.hidden_size, parted(state, 2)
        given = npx.fully_connected(inputs, W, b, num_hidden=rows)
        i, f, g, o = parted(given + npx.fully_connected(output, U, no_bias=True, num_hidden=rows), 4)
        cells = npx.sigmoid(f) * cells + npx.sigmoid(i) * npx.activation(g, act_type="tanh")
        output = npx.sigmoid(o) * npx.activation(cells, act_type="tanh")
        return output, np.concatenate([output, cells], axis=-1)

    def forward(
        self, inputs: np.ndarray, state: np.ndarray, real: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The outputs of all steps, and the state after the last valid one."""
        W, U, b = self.arrays(inputs)
        # The kernel gives the cells of the last step alone. So padding carries one more feature, which shuts the input
        # gate and opens the forget gate: σ is exactly 0 and 1 there, and the cells stay as they are, gradients too.
        zeros = np.zeros((self.hidden_size, 1), dtype=b.dtype, ctx=b.ctx)
        keep = np.concatenate([zeros - 1.0, zeros + 1.0, zeros, zeros])
        padding = np.zeros_like(inputs[:, :, :1])
        padding = np.where(real, padding, padding + SHUT)
        outputs, _, cells = npx.rnn(
            np.concatenate([inputs, padding], axis=-1),
            # The kernel's hidden biases are redundant, and held at 0.
            flat(np.concatenate([W, keep], axis=-1), U, b, np.zeros_like(b)),
            state[:1],
            state[1:],
            mode="lstm",
            state_size=self.hidden_size,
            num_layers=1,
            state_outputs=True,
        )
        return outputs, np.concatenate([np.expand_dims(last_valid(outputs, state[0], last), 0), cells], axis=0)


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


def parted(array: np.ndarray, count: int) -> list[np.ndarray]:
    """The parts of the last axis of (batch, count · size): MXNet's split is slower by far."""
    size = array.shape[-1] // count
    return [npx.slice(array, begin=(None, part * size), end=(None, (part + 1) * size)) for part in range(count)]


def flat(*arrays: np.ndarray) -> np.ndarray:
    """All of them in one row, as the fused kernel takes its parameters."""
    return np.concatenate([array.reshape(-1) for array in arrays])


def last_valid(outputs: np.ndarray, state: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The output of each sequence's last valid step, or the state before it where there is none."""
    found = np.sum(np.where(last, outputs, np.zeros_like(outputs)), axis=0)
    return np.where(np.any(last, axis=0), found, state)
