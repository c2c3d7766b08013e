"""Recurrent layers, encoders, and the bridge from two directions to one, in Keras."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.specification import Part
from backends.tf.masking import size
from backends.tf.module import Specified, chosen, drawn, drawn_mask

__all__ = ["GRU", "LSTM"]


class RecurrentLayer(keras.layers.Layer):
    """The canonical parameters of one recurrent layer in one direction, and their run over the steps."""

    gates: int

    def __init__(self, input_size: int, hidden_size: int, *, dtype: str, name: str) -> None:
        super().__init__(dtype=dtype, name=name, autocast=False)
        self.W = drawn(self, "W", (self.gates, hidden_size, input_size), hidden_size)
        self.U = drawn(self, "U", (self.gates, hidden_size, hidden_size), hidden_size)
        self.b = drawn(self, "b", (self.gates, hidden_size), hidden_size)

    def _cell(self, projected: tf.Tensor, state: tf.Tensor, *recurrence: tf.Tensor) -> tf.Tensor:
        """The state after one step, from W x + b and the state before."""
        raise NotImplementedError

    def call(self, inputs: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
        """The state before the first step and after every step: (batch, steps + 1, features of a state)."""
        batch, steps, (gates, hidden, features) = size(inputs, 0), size(inputs, 1), self.W.shape
        recurrence = self._recurrence()
        # The inputs of all steps are projected at once, before the loop.
        projected = self._project(tf.reshape(tf.transpose(inputs, (1, 0, 2)), (-1, features)))
        projected = tf.reshape(projected, (steps, batch, gates * hidden))
        projected = tf.TensorArray(inputs.dtype, size=steps).unstack(projected)
        # The state before the first step stands in front: an empty TensorArray cannot be stacked.
        states = tf.TensorArray(state.dtype, size=steps + 1).write(0, state)

        def advance(t: tf.Tensor, state: tf.Tensor, states: tf.TensorArray) -> tuple[tf.Tensor, ...]:
            after = self._cell(projected.read(t), state, *recurrence)
            after.set_shape(state.shape)
            return t + 1, after, states.write(t + 1, after)

        _, _, states = tf.while_loop(lambda t, *_: t < steps, advance, (0, state, states), maximum_iterations=steps)
        return tf.transpose(states.stack(), (1, 0, 2))

    def _project(self, inputs: tf.Tensor) -> tf.Tensor:
        """W x + b of the gates, side by side."""
        return tf.matmul(inputs, self._columns(0, self.W.shape[-1])) + tf.reshape(self.b.value, (-1,))

    def _columns(self, first: int, features: int) -> tf.Tensor:
        """What those features of x are multiplied by, (features, gates · hidden_size)."""
        return tf.transpose(tf.reshape(self.W.value[..., first : first + features], (-1, features)))

    def _recurrence(self) -> tuple[tf.Tensor, ...]:
        """What the cell reads beside: U with the gates side by side, (hidden_size, gates · hidden_size), and more."""
        return (tf.transpose(tf.reshape(self.U.value, (-1, self.U.shape[-1]))),)


class GRULayer(RecurrentLayer):
    """Of gated recurrent units."""

    gates = 3

    def __init__(self, input_size: int, hidden_size: int, *, dtype: str, name: str) -> None:
        super().__init__(input_size, hidden_size, dtype=dtype, name=name)
        self.b_hn = drawn(self, "b_hn", (hidden_size,), hidden_size)

    def _recurrence(self) -> tuple[tf.Tensor, ...]:
        """U with the three gates side by side, and b_hn."""
        return (*super()._recurrence(), self.b_hn.value)

    def _cell(self, projected: tf.Tensor, state: tf.Tensor, *recurrence: tf.Tensor) -> tf.Tensor:
        """H' of the formula."""
        recurrent, hidden_bias = recurrence
        input_r, input_z, input_n = tf.split(projected, 3, axis=-1)
        state_r, state_z, state_n = tf.split(tf.matmul(state, recurrent), 3, axis=-1)
        reset = tf.sigmoid(input_r + state_r)
        update = tf.sigmoid(input_z + state_z)
        new = tf.tanh(input_n + reset * (state_n + hidden_bias))
        return (1 - update) * new + update * state


class LSTMLayer(RecurrentLayer):
    """Of long short-term memory."""

    gates = 4

    def _cell(self, projected: tf.Tensor, state: tf.Tensor, *recurrence: tf.Tensor) -> tf.Tensor:
        """[h'; c'] of the formula."""
        (recurrent,) = recurrence
        hidden, cells = tf.split(state, 2, axis=-1)
        gates = projected + tf.matmul(hidden, recurrent)
        taken, kept, new, given = tf.split(gates, 4, axis=-1)
        cells = tf.sigmoid(kept) * cells + tf.sigmoid(taken) * tf.tanh(new)
        return tf.concat([tf.sigmoid(given) * tf.tanh(cells), cells], axis=-1)


class Recurrent(Specified):
    """What the recurrent layers share: a step, and a call that runs steps in one direction or both.

    A state is (num_layers, batch, state_size): the output of each layer, forward then backward, and after them, for an
    LSTM, the cells in the same order.
    """

    layer: type[RecurrentLayer]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
            dtype=dtype,
            name=name,
        )
        with keras.name_scope(self.name, caller=self):
            self.layers = self._stacked("layer_{}")
            self.backward = self._stacked("layer_{}_backward") if bidirectional else []
            for layer in (*self.layers, *self.backward):
                layer.build(None)
        self.dropout = keras.layers.Dropout(dropout, autocast=False)

    def step(
        self,
        inputs: tf.Tensor,
        state: tf.Tensor,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run one step.

        Args:
            inputs: (batch, input_size); one vector
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
            dropout_mask (default None): (num_layers - 1, batch, output_size); 0 or 1/(1 - rate), a factor of the
                outputs of every layer but the top one
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            output: (batch, output_size); output of the top layer
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
            OptionError: an argument is outside its domain
        """
        self._check("step", inputs=inputs, state=state, dropout_mask=dropout_mask)
        if dropout_mask is None:
            between = tf.zeros((self.sizes["num_layers - 1"], size(inputs, 0), self.sizes["output_size"]), inputs.dtype)
            dropout_mask = drawn_mask(self.dropout, between, training)
        return self._advance(inputs, state, dropout_mask, self._of_steps())

    def __call__(
        self,
        inputs: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        state: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
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
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            outputs: (batch, steps, output_size); output of the top layer at each step: forward, then backward
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        Raises:
            ShapeError, DtypeError: an array does not fit the operator or the other arrays
        """
        self._check("call", inputs=inputs, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        return super().__call__(inputs, valid_lens, state, dropout_mask=dropout_mask, **chosen(training))

    def call(
        self,
        inputs: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        state: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run over a batch of sequences; Keras enters here."""
        batch, steps, sizes = size(inputs, 0), size(inputs, 1), self.sizes
        if state is None:
            state = tf.zeros((sizes["num_layers"], batch, sizes["state_size"]), inputs.dtype)
        if dropout_mask is None:
            between = tf.zeros((sizes["num_layers - 1"], batch, steps, sizes["output_size"]), inputs.dtype)
            dropout_mask = drawn_mask(self.dropout, between, training)
        lens = None
        if valid_lens is not None:
            lens = tf.clip_by_value(tf.cast(valid_lens, tf.int64), 0, tf.cast(steps, tf.int64))
            real = (tf.range(steps, dtype=tf.int64) < lens[:, None])[:, :, None]
            inputs = tf.where(real, inputs, 0.0)
        outputs, ends = inputs, []
        ways = [self.layers, self.backward] if sizes["bidirectional"] else [self.layers]
        parts = sizes["state_size"] // sizes["output_size"]
        for index, before in enumerate(tf.unstack(state, num=sizes["num_layers"])):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * dropout_mask[index - 1]
            starts = divided(before, parts, len(ways))
            both = [
                self._run(layers[index], outputs, start, lens, backward=layers is not self.layers)
                for layers, start in zip(ways, starts, strict=True)
            ]
            outputs = tf.concat([own for own, _ in both], axis=-1)
            ends.append(united([end for _, end in both], parts))
        # Padding stands at the end of either direction, so no real step has seen it: clearing it once is enough.
        return outputs if lens is None else tf.where(real, outputs, 0.0), tf.stack(ends)

    def _advance(
        self,
        inputs: tf.Tensor,
        state: tf.Tensor,
        dropout_mask: tf.Tensor | None,
        weights: Sequence[tuple[tf.Tensor, ...]],
        known: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """One step: (output, state).

        weights are as _of_steps gave them. known is the part of layer 0's W x + b that _project_known gave, of features
        that stand behind those of inputs.
        """
        output, states = inputs, tf.unstack(state, num=len(self.layers))
        for index, (layer, (columns, bias, *recurrence)) in enumerate(zip(self.layers, weights, strict=True)):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            rest = bias if index > 0 or known is None else known
            states[index] = layer._cell(tf.matmul(output, columns) + rest, states[index], *recurrence)
            output = states[index][:, : self.sizes["hidden_size"]]
        return output, tf.stack(states)

    def _run(
        self, layer: RecurrentLayer, inputs: tf.Tensor, state: tf.Tensor, lens: tf.Tensor | None, *, backward: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Outputs of one layer in one direction, and its last state."""
        states = layer(reversed_steps(inputs, lens) if backward else inputs, state)
        outputs = states[:, 1:, : self.sizes["hidden_size"]]
        last = states[:, -1] if lens is None else tf.gather(states, lens, axis=1, batch_dims=1)
        return reversed_steps(outputs, lens) if backward else outputs, last

    def _stacked(self, names: str) -> list[RecurrentLayer]:
        """The layers of one direction."""
        sizes, dtype = self.sizes, self.variable_dtype
        inputs = [sizes["input_size"], *[sizes["output_size"]] * sizes["num_layers - 1"]]
        return [
            self.layer(features, sizes["hidden_size"], dtype=dtype, name=names.format(index))
            for index, features in enumerate(inputs)
        ]

    def _of_steps(self, known: int = 0) -> list[tuple[tf.Tensor, ...]]:
        """What _advance reads of each layer, laid out once for all steps; that many features of layer 0 are known."""
        read = [self.sizes["input_size"] - known, *[self.sizes["output_size"]] * (len(self.layers) - 1)]
        return [
            (layer._columns(0, features), tf.reshape(layer.b.value, (-1,)), *layer._recurrence())
            for layer, features in zip(self.layers, read, strict=True)
        ]

    def _project_known(self, inputs: tf.Tensor) -> tf.Tensor:
        """The part of layer 0's W x + b of the last features of x, which are known for all steps before the first."""
        layer, features = self.layers[0], inputs.shape[-1]
        columns = layer._columns(self.sizes["input_size"] - features, features)
        rows = tf.matmul(tf.reshape(inputs, (-1, features)), columns) + tf.reshape(layer.b.value, (-1,))
        return tf.reshape(rows, [size(inputs, axis) for axis in range(inputs.shape.rank - 1)] + [rows.shape[-1]])


@keras.saving.register_keras_serializable(package="attention_parity")
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
        name: the layer's name in Keras
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
    layer = GRULayer


@keras.saving.register_keras_serializable(package="attention_parity")
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
        name: the layer's name in Keras
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
    layer = LSTMLayer


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(part: Part, *, dtype: str | tf.DType | None, name: str) -> Recurrent:
    """The recurrent layer that stands inside another one."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype, name=name)


def reversed_steps(steps: tf.Tensor, lens: tf.Tensor | None) -> tf.Tensor:
    """The steps of each sequence from its last valid one to its first; padding stays where it is."""
    return tf.reverse(steps, [1]) if lens is None else tf.reverse_sequence(steps, lens, seq_axis=1, batch_axis=0)


def divided(state: tf.Tensor, parts: int, directions: int) -> list[tf.Tensor]:
    """Of the state of one layer, [h_f; h_b; c_f; c_b], that of each direction: [h_f; c_f] and [h_b; c_b]."""
    pieces = tf.split(state, parts * directions, axis=-1)
    return [tf.concat(pieces[direction::directions], axis=-1) for direction in range(directions)]


def united(states: Sequence[tf.Tensor], parts: int) -> tf.Tensor:
    """The state of one layer from those of its directions."""
    pieces = [tf.split(state, parts, axis=-1) for state in states]
    return tf.concat([own[part] for part in range(parts) for own in pieces], axis=-1)
