"""Recurrent layers in MXNet."""

from __future__ import annotations

from collections.abc import Mapping

import mxnet as mx
from mxnet import np, npx
from mxnet.gluon import Block, nn

from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.specification import Part
from backends.mxnet.module import Specified, Uniform, drawn_mask, initialise

__all__ = ["GRU", "LSTM"]

HOLD = 3e4  # as the input of a sigmoid, in every floating type, exactly 1, and its negative exactly 0


class Recurrent(Specified):
    """What the recurrent layers share: a step, and a call that runs steps in one direction or both.

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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
            prefix=prefix,
            params=params,
        )
        shapes = self.specification.own_shapes(self.sizes)
        self.dropout = dropout
        with self.name_scope():
            self.layers = nn.Sequential()
            with self.layers.name_scope():
                for layer in range(num_layers):
                    self.layers.add(Weights(inner(shapes, f"{layer}."), hidden_size, dtype=dtype))
            if bidirectional:
                for layer, weights in enumerate(self.layers):
                    with weights.name_scope():
                        weights.backward = Weights(inner(shapes, f"{layer}.backward."), hidden_size, dtype=dtype)
        initialise(self)

    def step(
        self, inputs: np.ndarray, state: np.ndarray, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run one step.

        Args:
            inputs: (batch, input_size); one vector
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
            dropout_mask (default None): (num_layers - 1, batch, output_size); 0 or 1/(1 - rate), a factor of the
                outputs of every layer but the top one
        Returns:
            output: (batch, output_size); output of the top layer
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
            OptionError: an argument is outside its domain
        """
        self._check("step", inputs=inputs, state=state, dropout_mask=dropout_mask)
        return self._advance(inputs, state, dropout_mask)

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

        Args:
            inputs: (batch, steps, input_size); one vector for each step
            valid_lens (default None): integers (batch,); steps of each sequence; later ones give 0 and leave the state
                alone
            state (default None): (num_layers, batch, state_size); state before the first step; zeros unless given
            dropout_mask (default None): (num_layers - 1, batch, steps, output_size); 0 or 1/(1 - rate), a factor of the
                outputs of every layer but the top one
        Returns:
            outputs: (batch, steps, output_size); output of the top layer at each step: forward, then backward
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
        """
        self._check("call", inputs=inputs, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        return super().__call__(inputs, valid_lens, state, dropout_mask)

    def _advance(
        self, inputs: np.ndarray, state: np.ndarray, dropout_mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        batch, between = inputs.shape[0], len(self.layers) - 1
        if batch == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            return np.zeros((0, self.sizes["output_size"]), dtype=inputs.dtype, ctx=inputs.ctx), state
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (between, batch, self.sizes["output_size"]), inputs)
        output, states = inputs, []
        for index, weights in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            output, held = self._cell(weights, output, state[index])
            states.append(held)
        return output, np.stack(states)

    def _cell(self, weights: Weights, inputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Output and next state of one layer, (batch, hidden_size) and (batch, state_size)."""
        raise NotImplementedError

    def _run(
        self, weights: Weights, inputs: np.ndarray, state: np.ndarray, real: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Outputs of one layer from the first step on, and its last state.

        Shapes: inputs (steps, batch, features), state (1, batch, hidden_size), or 2 for an LSTM; real and last (steps,
        batch or 1, 1), True at the valid steps, and at the last one of each sequence.
        """
        raise NotImplementedError

    def forward(
        self,
        inputs: np.ndarray,
        valid_lens: np.ndarray | None,
        state: np.ndarray | None,
        dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gluon enters here, with positional arguments alone."""
        batch, steps, _ = inputs.shape
        like, between = {"dtype": inputs.dtype, "ctx": inputs.ctx}, len(self.layers) - 1
        if state is None:
            state = np.zeros((len(self.layers), batch, self.sizes["state_size"]), **like)
        if batch == 0 or steps == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            return np.zeros((batch, steps, self.sizes["output_size"]), **like), state
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, (between, batch, steps, self.sizes["output_size"]), inputs)
        real, last = valid_steps(steps, valid_lens, inputs)
        order = reverse_order(batch, steps, valid_lens, inputs) if self.sizes["bidirectional"] else None
        inputs = np.swapaxes(inputs, 0, 1)  # the kernel wants time first
        outputs = np.where(real, inputs, np.zeros_like(inputs))
        directions = 1 if order is None else 2
        vectors = self.sizes["state_size"] // self.sizes["hidden_size"]
        held, ends = np.split(state, vectors, axis=-1), []
        for index, weights in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * np.swapaxes(dropout_mask[index - 1], 0, 1)
            own = [
                np.concatenate([part[index : index + 1] for part in held[side::directions]], axis=0)
                for side in range(directions)
            ]
            runs = [self._run(weights, outputs, own[0], real, last)]
            if order is not None:  # padding stands at the end in both directions: reversed are the valid steps alone
                turned, end = self._run(weights.backward, npx.gather_nd(outputs, order), own[1], real, last)
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

    r = σ(W0 x + b0 + U0 h)
    z = σ(W1 x + b1 + U1 h)
    n = tanh(W2 x + b2 + r * (U2 h + b_hn))
    h' = (1 - z) * n + z * h

    Args:
        input_size: features of an input
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        dropout (default 0.0): rate at which features are dropped between recurrent layers in training
        bidirectional (default False): whether a second set of weights reads the steps from the last valid one to the
            first
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Parameters:
        {layer}.W: (3, hidden_size, input_size, then output_size), input weights of the gates r, z, n
        {layer}.U: (3, hidden_size, hidden_size), hidden weights of the gates r, z, n
        {layer}.b: (3, hidden_size), biases of the gates r, z, n
        {layer}.b_hn: (hidden_size,), bias of U2 h, inside the reset gate
        {layer}.backward.W: (3, hidden_size, input_size, then output_size), input weights of the gates r, z, n, of the
            backward direction
        {layer}.backward.U: (3, hidden_size, hidden_size), hidden weights of the gates r, z, n, of the backward
            direction
        {layer}.backward.b: (3, hidden_size), biases of the gates r, z, n, of the backward direction
        {layer}.backward.b_hn: (hidden_size,), bias of U2 h, inside the reset gate, of the backward direction
    Raises:
        OptionError: an argument is outside its domain
    Source: Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.GRU(input_size, hidden_size)
        outputs, state = layer(inputs)
    """

    specification = GRU_SPECIFICATION

    def _cell(self, weights: Weights, inputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """H' of the formula, as output and as state."""
        W, U, b, b_hn = self._fused(weights, inputs.ctx)
        rows = 3 * self.sizes["hidden_size"]
        x_r, x_z, x_n = parted(npx.fully_connected(inputs, W, b, num_hidden=rows), 3)
        h_r, h_z, h_n = parted(npx.fully_connected(state, U, no_bias=True, num_hidden=rows), 3)
        r, z = npx.sigmoid(x_r + h_r), npx.sigmoid(x_z + h_z)
        n = npx.activation(x_n + r * (h_n + b_hn), act_type="tanh")
        state = (1.0 - z) * n + z * state
        return state, state

    def _run(
        self, weights: Weights, inputs: np.ndarray, state: np.ndarray, real: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Outputs of one layer from the first step on, and its last state, (1, batch, hidden_size)."""
        W, U, b, b_hn = self._fused(weights, inputs.ctx)
        hidden = self.sizes["hidden_size"]
        # The kernel's hidden biases of r and z are redundant, and held at 0.
        parameters = flat(W, U, b, np.zeros_like(b[: 2 * hidden]), b_hn)
        outputs = npx.rnn(inputs, parameters, state, mode="gru", state_size=hidden, num_layers=1)
        return outputs, np.expand_dims(last_valid(outputs, state[0], last), 0)

    def _fused(self, weights: Weights, ctx: mx.Context) -> list[np.ndarray]:
        """The parameters as arrays: W and U with a row for each unit of each gate, b of all gates, and b_hn."""
        W, U, b, b_hn = (own.data(ctx) for own in (weights.W, weights.U, weights.b, weights.b_hn))
        rows = 3 * self.sizes["hidden_size"]
        return [W.reshape(rows, -1), U.reshape(rows, -1), b.reshape(-1), b_hn]


class LSTM(Recurrent):
    """Stacked long short-term memory over padded sequences.

    i = σ(W0 x + b0 + U0 h)
    f = σ(W1 x + b1 + U1 h)
    g = tanh(W2 x + b2 + U2 h)
    o = σ(W3 x + b3 + U3 h)
    c' = f * c + i * g
    h' = o * tanh(c')

    Args:
        input_size: features of an input
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        dropout (default 0.0): rate at which features are dropped between recurrent layers in training
        bidirectional (default False): whether a second set of weights reads the steps from the last valid one to the
            first
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Parameters:
        {layer}.W: (4, hidden_size, input_size, then output_size), input weights of the gates i, f, g, o
        {layer}.U: (4, hidden_size, hidden_size), hidden weights of the gates i, f, g, o
        {layer}.b: (4, hidden_size), biases of the gates i, f, g, o
        {layer}.backward.W: (4, hidden_size, input_size, then output_size), input weights of the gates i, f, g, o, of
            the backward direction
        {layer}.backward.U: (4, hidden_size, hidden_size), hidden weights of the gates i, f, g, o, of the backward
            direction
        {layer}.backward.b: (4, hidden_size), biases of the gates i, f, g, o, of the backward direction
    Raises:
        OptionError: an argument is outside its domain
    Source: Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; forget gate: Gers et al. 2000; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.LSTM(input_size, hidden_size)
        outputs, state = layer(inputs)
    """

    specification = LSTM_SPECIFICATION

    def _cell(self, weights: Weights, inputs: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """H', and [h'; c'] of the formula."""
        W, U, b = self._fused(weights, inputs.ctx)
        rows, (output, cells) = 4 * self.sizes["hidden_size"], parted(state, 2)
        given = npx.fully_connected(inputs, W, b, num_hidden=rows)
        i, f, g, o = parted(given + npx.fully_connected(output, U, no_bias=True, num_hidden=rows), 4)
        cells = npx.sigmoid(f) * cells + npx.sigmoid(i) * npx.activation(g, act_type="tanh")
        output = npx.sigmoid(o) * npx.activation(cells, act_type="tanh")
        return output, np.concatenate([output, cells], axis=-1)

    def _run(
        self, weights: Weights, inputs: np.ndarray, state: np.ndarray, real: np.ndarray, last: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Outputs of one layer from the first step on, and its last state, (2, batch, hidden_size)."""
        W, U, b = self._fused(weights, inputs.ctx)
        hidden = self.sizes["hidden_size"]
        # The kernel tells the cells of the last step alone, so padding has to leave them as they are: one more input,
        # not 0 where there is padding, shuts the input gate and opens the forget gate, both to the last bit.
        zeros = np.zeros((hidden, 1), dtype=b.dtype, ctx=b.ctx)
        hold = np.concatenate([zeros - 1.0, zeros + 1.0, zeros, zeros])
        padding = np.zeros_like(inputs[:, :, :1])
        padding = np.where(real, padding, padding + HOLD)
        outputs, _, cells = npx.rnn(
            np.concatenate([inputs, padding], axis=-1),
            # The kernel's hidden biases are redundant, and held at 0.
            flat(np.concatenate([W, hold], axis=-1), U, b, np.zeros_like(b)),
            state[:1],
            state[1:],
            mode="lstm",
            state_size=hidden,
            num_layers=1,
            state_outputs=True,
        )
        return outputs, np.concatenate([np.expand_dims(last_valid(outputs, state[0], last), 0), cells], axis=0)

    def _fused(self, weights: Weights, ctx: mx.Context) -> list[np.ndarray]:
        """The parameters as arrays: W and U with a row for each unit of each gate, and b of all gates."""
        W, U, b = (own.data(ctx) for own in (weights.W, weights.U, weights.b))
        rows = 4 * self.sizes["hidden_size"]
        return [W.reshape(rows, -1), U.reshape(rows, -1), b.reshape(-1)]


class Weights(Block):
    """The canonical parameters of one recurrent layer in one direction, or of one layer's bridge."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], fan_in: int, *, dtype: str) -> None:
        super().__init__()
        with self.name_scope():
            for name, shape in shapes.items():
                setattr(self, name, self.params.get(name, shape=shape, dtype=dtype, init=Uniform(fan_in**-0.5)))


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(part: Part, *, dtype: str) -> Recurrent:
    """The recurrent layer that stands inside another one."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype)


def inner(shapes: Mapping[str, tuple[int, ...]], prefix: str) -> dict[str, tuple[int, ...]]:
    """The shapes whose names are the prefix and one word, named by that word."""
    own = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
    return {name: shape for name, shape in own.items() if "." not in name}


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
