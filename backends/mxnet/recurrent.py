"""Recurrent layers in MXNet."""

from __future__ import annotations

from collections.abc import Mapping

import mxnet as mx
from mxnet import np, npx
from mxnet.gluon import Block, nn

from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.specification import Part
from backends.mxnet.arrays import Lengths, lengths
from backends.mxnet.module import Specified, Uniform, draw_mask, initialise

__all__ = ["GRU", "LSTM"]

HOLD = 1e4
"""An input of a sigmoid that gives exactly 1 in every floating type; its negative gives exactly 0."""


State = tuple[np.ndarray, ...]
"""The state of one layer in one direction: its output, (batch, hidden_size), and behind it an LSTM's cells."""


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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())
        shapes = self.specification.own_shapes(self.sizes)
        with self.name_scope():
            self.layers, self.backward_layers = nn.Sequential(), nn.Sequential()
            for index in range(num_layers):
                self.layers.add(Weights(shapes, f"{index}", hidden_size, dtype=dtype))
            for index in range(num_layers if bidirectional else 0):
                self.backward_layers.add(Weights(shapes, f"{index}.backward", hidden_size, dtype=dtype))
        self.dropout = dropout
        initialise(self)

    def step(
        self, inputs: np.ndarray, state: np.ndarray, *, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run one step.

        state'[l] = cell(x, state[l]), x = inputs for l = 0, else dropout_mask[l - 1] output'[l - 1]

        Args:
            inputs: (batch, input_size); one vector
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
            dropout_mask (default None): (num_layers - 1, batch, output_size); factor of the outputs of every layer but
                the top one
        Returns:
            output: (batch, output_size); output of the top layer
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        Raises:
            OptionError: a single step of a bidirectional layer
        """
        self._check("step", inputs=inputs, state=state, dropout_mask=dropout_mask)
        return self._advance(inputs, state, dropout_mask)

    def __call__(
        self,
        inputs: np.ndarray,
        valid_lens: Lengths | None = None,
        state: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run over a batch of sequences.

        outputs[t], state[t] = step(inputs[t], state[t - 1]) where t < valid_len; else 0 and state[t - 1]

        The backward direction runs from the last valid step to the first, and each layer reads both directions of the
        one below. What padded steps hold, NaN and inf included, has no effect and gets gradient 0.

        Args:
            inputs: (batch, steps, input_size); one vector for each step
            valid_lens (default None): integers (batch,), or a list; steps of each sequence; later ones output 0 and
                keep the state
            state (default None): (num_layers, batch, state_size); state before the first step; zeros if None
            dropout_mask (default None): (num_layers - 1, batch, steps, output_size); factor of the outputs of every
                layer but the top one
        Returns:
            outputs: (batch, steps, output_size); output of the top layer at each step: forward, then backward
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        """
        self._check("call", inputs=inputs, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        return super().__call__(inputs, valid_lens, state, dropout_mask)

    def forward(
        self,
        inputs: np.ndarray,
        valid_lens: Lengths | None,
        state: np.ndarray | None,
        dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gluon enters here, with positional arguments alone."""
        batch, steps, _ = inputs.shape
        like = {"dtype": inputs.dtype, "ctx": inputs.ctx}
        if state is None:
            state = np.zeros((self.sizes["num_layers"], batch, self.sizes["state_size"]), **like)
        if batch == 0 or steps == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            return np.zeros((batch, steps, self.sizes["output_size"]), **like), state
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, inputs, shape=self._between(batch, steps))
        inputs = np.swapaxes(inputs, 0, 1)  # the kernel takes time first
        if valid_lens is not None:
            valid_lens = np.minimum(np.maximum(lengths(valid_lens, inputs.ctx).astype("int64"), 0), steps)
            inputs = npx.sequence_mask(inputs, valid_lens, use_sequence_length=True)
        directions = [self.layers, self.backward_layers] if self.sizes["bidirectional"] else [self.layers]
        outputs, states = inputs, []
        for index in range(self.sizes["num_layers"]):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * np.swapaxes(dropout_mask[index - 1], 0, 1)
            vectors = self._vectors(state[index])
            runs = [
                self._run(layers[index], outputs, vectors[way :: len(directions)], valid_lens, backward=way == 1)
                for way, layers in enumerate(directions)
            ]
            outputs = np.concatenate([output for output, _ in runs], axis=-1)
            pairs = zip(*(last for _, last in runs), strict=True)
            states.append(np.concatenate([vector for pair in pairs for vector in pair], axis=-1))
        # Padding stands at the end, so no valid step has read it: clearing it here, once, is enough.
        if valid_lens is not None:
            outputs = npx.sequence_mask(outputs, valid_lens, use_sequence_length=True)
        return np.swapaxes(outputs, 0, 1), np.stack(states)

    def _advance(
        self, inputs: np.ndarray, state: np.ndarray, dropout_mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Run one step: (output, state)."""
        if inputs.shape[0] == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            return np.zeros((0, self.sizes["output_size"]), dtype=inputs.dtype, ctx=inputs.ctx), state
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, inputs, shape=self._between(inputs.shape[0]))
        output, states = inputs, []
        for index, weights in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            after = self._cell(weights, output, self._vectors(state[index]))
            output = after[0]
            states.append(np.concatenate(after, axis=-1))
        return output, np.stack(states)

    def _run(
        self, weights: Weights, inputs: np.ndarray, state: State, lens: np.ndarray | None, *, backward: bool
    ) -> tuple[np.ndarray, State]:
        """Run one layer in one direction: (outputs, last state)."""
        if backward:
            inputs = reverse_steps(inputs, lens)
        outputs, last = self._run_forward(weights, inputs, state, lens)
        return reverse_steps(outputs, lens) if backward else outputs, last

    def _run_forward(
        self, weights: Weights, inputs: np.ndarray, state: State, lens: np.ndarray | None
    ) -> tuple[np.ndarray, State]:
        """Run one layer from the first step to the last: (outputs, state after the last valid step)."""
        raise NotImplementedError

    def _cell(self, weights: Weights, inputs: np.ndarray, state: State) -> State:
        """Compute the next state of one layer."""
        raise NotImplementedError

    def _vectors(self, state: np.ndarray) -> State:
        """Split the state of a layer: outputs forward and backward, then an LSTM's cells alike."""
        return split(state, self.sizes["state_size"] // self.sizes["hidden_size"])

    def _between(self, *batch: int) -> tuple[int, ...]:
        """Return the shape of a dropout mask between the layers."""
        return self.sizes["num_layers - 1"], *batch, self.sizes["output_size"]

    # particular to MXNet

    def _kernel_weights(self, weights: Weights, ctx: mx.Context) -> list[np.ndarray]:
        """Arrange the parameters with the gates side by side."""
        W, U, b = (parameter.data(ctx) for parameter in (weights.W, weights.U, weights.b))
        return [W.reshape(-1, W.shape[-1]), U.reshape(-1, U.shape[-1]), b.reshape(-1)]


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
        dropout (default 0.0): dropout rate between recurrent layers in training
        bidirectional (default False): whether other weights read the valid steps in reverse, too
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
    Source: Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.GRU(input_size, hidden_size)
        outputs, state = layer(inputs)
    """

    specification = GRU_SPECIFICATION

    def _run_forward(
        self, weights: Weights, inputs: np.ndarray, state: State, lens: np.ndarray | None
    ) -> tuple[np.ndarray, State]:
        (W, U, b, b_hn), hidden = self._kernel_weights(weights, inputs.ctx), self.sizes["hidden_size"]
        # The kernel's hidden biases of r and z are redundant, and 0 here.
        parameters, before = flat(W, U, b, np.zeros_like(b[: 2 * hidden]), b_hn), np.expand_dims(state[0], 0)
        options = {"mode": "gru", "state_size": hidden, "num_layers": 1, "state_outputs": True}
        outputs, last = npx.rnn(inputs, parameters, before, **options)
        return outputs, (last[0] if lens is None else last_valid(outputs, state[0], lens),)

    def _cell(self, weights: Weights, inputs: np.ndarray, state: State) -> State:
        """Compute h'."""
        W, U, b, b_hn = self._kernel_weights(weights, inputs.ctx)
        x_r, x_z, x_n = split(npx.fully_connected(inputs, W, b, num_hidden=b.size), 3)
        h_r, h_z, h_n = split(npx.fully_connected(state[0], U, no_bias=True, num_hidden=b.size), 3)
        r, z = npx.sigmoid(x_r + h_r), npx.sigmoid(x_z + h_z)
        n = npx.activation(x_n + r * (h_n + b_hn), act_type="tanh")
        return ((1.0 - z) * n + z * state[0],)

    # particular to MXNet

    def _kernel_weights(self, weights: Weights, ctx: mx.Context) -> list[np.ndarray]:
        """Arrange the parameters with the gates side by side; and b_hn."""
        return [*super()._kernel_weights(weights, ctx), weights.b_hn.data(ctx)]


class LSTM(Recurrent):
    """Stacked long short-term memory over padded sequences.

    i = σ(W0 x + b0 + U0 h)
    f = σ(W1 x + b1 + U1 h)
    g = tanh(W2 x + b2 + U2 h)
    o = σ(W3 x + b3 + U3 h)
    c' = f * c + i * g
    h' = o * tanh(c')

    Nothing is added to the bias of the forget gate.

    Args:
        input_size: features of an input
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        dropout (default 0.0): dropout rate between recurrent layers in training
        bidirectional (default False): whether other weights read the valid steps in reverse, too
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
    Source: Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; forget gate: Gers et al. 2000; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.LSTM(input_size, hidden_size)
        outputs, state = layer(inputs)
    """

    specification = LSTM_SPECIFICATION

    def _run_forward(
        self, weights: Weights, inputs: np.ndarray, state: State, lens: np.ndarray | None
    ) -> tuple[np.ndarray, State]:
        W, U, b = self._kernel_weights(weights, inputs.ctx)
        if lens is not None:
            # The kernel returns the cells of the last step alone, so padding has to leave them as they are: one more
            # input, 1 where there is padding, closes the input gate and opens the forget gate, both to the last bit.
            steps, zeros = np.arange(inputs.shape[0], dtype="int64", ctx=inputs.ctx), np.zeros_like(U[:, :1])
            padding = np.expand_dims(steps[:, None] >= lens, -1)
            inputs = np.concatenate([inputs, padding.astype(inputs.dtype)], axis=-1)
            i, f, g, o = np.split(zeros, 4)
            W = np.concatenate([W, np.concatenate([i - HOLD, f + HOLD, g, o])], axis=-1)
        before = [np.expand_dims(vector, 0) for vector in state]
        # The kernel's hidden biases are redundant, and 0 here.
        parameters = flat(W, U, b, np.zeros_like(b))
        options = {"mode": "lstm", "state_size": self.sizes["hidden_size"], "num_layers": 1, "state_outputs": True}
        outputs, last, cells = npx.rnn(inputs, parameters, *before, **options)
        return outputs, (last[0] if lens is None else last_valid(outputs, state[0], lens), cells[0])

    def _cell(self, weights: Weights, inputs: np.ndarray, state: State) -> State:
        """Compute h' and c'."""
        (W, U, b), (hidden, cells) = self._kernel_weights(weights, inputs.ctx), state
        gates = npx.fully_connected(inputs, W, b, num_hidden=b.size)
        i, f, g, o = split(gates + npx.fully_connected(hidden, U, no_bias=True, num_hidden=b.size), 4)
        cells = npx.sigmoid(f) * cells + npx.sigmoid(i) * npx.activation(g, act_type="tanh")
        return npx.sigmoid(o) * npx.activation(cells, act_type="tanh"), cells


class Weights(Block):
    """The parameters of a layer whose canonical names begin with that prefix: of one recurrent layer and direction."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], prefix: str, fan_in: int, *, dtype: str) -> None:
        super().__init__()
        with self.name_scope():
            for path, shape in shapes.items():
                place, _, name = path.rpartition(".")
                if place == prefix:
                    setattr(self, name, self.params.get(name, shape=shape, dtype=dtype, init=Uniform(fan_in**-0.5)))


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(part: Part, *, dtype: str) -> Recurrent:
    """Make the recurrent layer inside another layer."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype)


def reverse_steps(sequences: np.ndarray, lens: np.ndarray | None) -> np.ndarray:
    """Reverse the valid steps of each sequence, (steps, batch, features); its padding stays."""
    if lens is None:
        return np.flip(sequences, 0)
    options = {"use_sequence_length": True}  # which NumPy arrays have no function for
    return mx.nd.SequenceReverse(sequences.as_nd_ndarray(), lens.as_nd_ndarray(), **options).as_np_ndarray()


# ------------------------------------------------------------------------------------------------ particular to MXNet


def last_valid(outputs: np.ndarray, state: np.ndarray, lens: np.ndarray) -> np.ndarray:
    """Take the output of each sequence's last valid step, or the state before it where there is none."""
    states = np.concatenate([np.expand_dims(state, 0), outputs]).as_nd_ndarray()
    return mx.nd.SequenceLast(states, (lens + 1).as_nd_ndarray(), use_sequence_length=True).as_np_ndarray()


def split(array: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
    """Split the last axis into equal parts; np.split is slower by far."""
    size = array.shape[-1] // count
    return tuple(npx.slice(array, begin=(None, part * size), end=(None, (part + 1) * size)) for part in range(count))


def flat(*arrays: np.ndarray) -> np.ndarray:
    """Arrange arrays as one vector, as the kernel takes its parameters."""
    return np.concatenate([array.reshape(-1) for array in arrays])
