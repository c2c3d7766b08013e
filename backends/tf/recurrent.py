"""Recurrent layers, encoders, and the bridge from two directions to one, in Keras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.specification import Part
from backends.tf.arrays import Lengths, lengths
from backends.tf.masking import size
from backends.tf.module import Specified, attached_mask, draw_mask, draw_parameter, is_usual, mode_of, with_mask

__all__ = ["GRU", "LSTM"]


State = tuple[tf.Tensor, ...]
"""The state of one layer in one direction: its output, (batch, hidden_size), and behind it an LSTM's cells."""
Layers = Sequence[tuple[tf.Tensor, ...]]
"""The weights of the recurrent layers, laid out for a step."""
Arranged = tuple[tf.Tensor | None, Layers]
"""The weights by which tokens are projected before their step, if they are, and those of the recurrent layers."""


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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        shapes, dtype = self.specification.own_shapes(self.sizes), self.dtype_policy
        with keras.name_scope(self.name, caller=self):
            self.layers = [
                Weights(shapes, f"{index}", hidden_size, dtype=dtype, name=f"layer_{index}")
                for index in range(num_layers)
            ]
            self.backward_layers = [
                Weights(shapes, f"{index}.backward", hidden_size, dtype=dtype, name=f"layer_{index}_backward")
                for index in range(num_layers if bidirectional else 0)
            ]
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

        state'[l] = cell(x, state[l]), x = inputs for l = 0, else dropout_mask[l - 1] output'[l - 1]

        Args:
            inputs: (batch, input_size); one vector
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
            dropout_mask (default None): (num_layers - 1, batch, output_size); factor of the outputs of every layer but
                the top one
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            output: (batch, output_size); output of the top layer
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        Raises:
            OptionError: a single step of a bidirectional layer
        """
        self._check("step", inputs=inputs, state=state, dropout_mask=dropout_mask)
        inputs, state, dropout_mask = self._cast((inputs, state, dropout_mask))
        if dropout_mask is None:
            shape = self._between(size(inputs, 0))
            dropout_mask = draw_mask(self.dropout, inputs, training, shape=shape)
        return self._advance(inputs, state, dropout_mask, self._of_steps())

    def __call__(
        self,
        inputs: tf.Tensor,
        valid_lens: Lengths | None = None,
        state: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
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
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            outputs: (batch, steps, output_size); output of the top layer at each step: forward, then backward
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        """
        self._check("call", inputs=inputs, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        return super().__call__(inputs, lengths(valid_lens), state, dropout_mask=dropout_mask, **mode_of(training))

    def call(
        self,
        inputs: tf.Tensor,
        valid_lens: Lengths | None = None,
        state: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run over a batch of sequences; Keras enters here."""
        batch, steps = size(inputs, 0), size(inputs, 1)
        if state is None:
            state = tf.zeros((self.sizes["num_layers"], batch, self.sizes["state_size"]), inputs.dtype)
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, inputs, training, shape=self._between(batch, steps))
        attached = attached_mask(inputs)
        if attached is not None:  # masked steps may stand anywhere: they go behind the others, and come back
            if valid_lens is not None:
                attached = tf.logical_and(attached, valid_steps(steps, tf.cast(valid_lens, tf.int64))[:, :, 0])
            valid_lens = tf.math.count_nonzero(attached, axis=1)
            order = tf.argsort(tf.cast(attached, tf.int32), direction="DESCENDING", stable=True)
            inputs = in_order(inputs, order)
            if dropout_mask is not None:
                dropout_mask = tf.transpose(in_order(tf.transpose(dropout_mask, (1, 2, 0, 3)), order), (2, 0, 1, 3))
        if valid_lens is not None:
            valid_lens = tf.clip_by_value(tf.cast(valid_lens, tf.int64), 0, tf.cast(steps, tf.int64))
            valid = valid_steps(steps, valid_lens)
            inputs = tf.where(valid, inputs, 0.0)
        directions = [self.layers, self.backward_layers] if self.sizes["bidirectional"] else [self.layers]
        outputs, states = inputs, []
        for index in range(self.sizes["num_layers"]):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * dropout_mask[index - 1]
            vectors = self._vectors(state[index])
            runs = [
                self._run(layers[index], outputs, vectors[way :: len(directions)], valid_lens, backward=way == 1)
                for way, layers in enumerate(directions)
            ]
            outputs = tf.concat([output for output, _ in runs], axis=-1)
            pairs = zip(*(last for _, last in runs), strict=True)
            states.append(tf.concat([vector for pair in pairs for vector in pair], axis=-1))
        # Padding stands at the end, so no valid step has read it: clearing it here, once, is enough.
        outputs = outputs if valid_lens is None else tf.where(valid, outputs, 0.0)
        if attached is not None:
            outputs = with_mask(in_order(outputs, tf.argsort(order)), attached)
        return outputs, tf.stack(states)

    def _advance(
        self,
        inputs: tf.Tensor,
        state: tf.Tensor,
        dropout_mask: tf.Tensor | None,
        weights: Sequence[tuple[tf.Tensor, ...]],
        known: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Run one step: (output, state).

        weights are those of _of_steps; known is what _project_known computed of some features of the inputs, which are
        then missing in inputs.
        """
        output, states = inputs, []
        for index, (columns, bias, *recurrence) in enumerate(weights):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            projected = tf.matmul(output, columns) + (bias if index > 0 or known is None else known)
            after = self._cell(recurrence, projected, self._vectors(state[index]))
            output = after[0]
            states.append(tf.concat(after, axis=-1))
        return output, tf.stack(states)

    def _run(
        self, weights: Weights, inputs: tf.Tensor, state: State, lens: tf.Tensor | None, *, backward: bool
    ) -> tuple[tf.Tensor, State]:
        """Run one layer in one direction: (outputs, last state)."""
        if backward:
            inputs = reverse_steps(inputs, lens)
        outputs, last = self._run_forward(weights, inputs, state, lens)
        return reverse_steps(outputs, lens) if backward else outputs, last

    def _run_forward(
        self, weights: Weights, inputs: tf.Tensor, state: State, lens: tf.Tensor | None
    ) -> tuple[tf.Tensor, State]:
        """Run one layer from the first step to the last: (outputs, state after the last valid step)."""
        batch, steps = size(inputs, 0), size(inputs, 1)
        columns, bias, *recurrence = self._columns(weights)
        # The inputs of all steps are projected at once, before the loop.
        projected = tf.matmul(tf.reshape(tf.transpose(inputs, (1, 0, 2)), (-1, columns.shape[0])), columns) + bias
        projected = tf.reshape(projected, (steps, batch, bias.shape[0]))
        projected = tf.TensorArray(inputs.dtype, size=steps, element_shape=projected.shape[1:]).unstack(projected)
        # The state before the first step comes first: an empty TensorArray cannot be stacked.
        states = [
            tf.TensorArray(vector.dtype, size=steps + 1, element_shape=vector.shape).write(0, vector)
            for vector in state
        ]

        def advance(t: tf.Tensor, state: State, states: list[tf.TensorArray]) -> tuple[Any, ...]:
            after = self._cell(recurrence, projected.read(t), state)
            for new, old in zip(after, state, strict=True):
                new.set_shape(old.shape)
            return t + 1, after, [array.write(t + 1, vector) for array, vector in zip(states, after, strict=True)]

        loop = 0, state, states
        _, last, states = tf.while_loop(lambda t, *_: t < steps, advance, loop, maximum_iterations=steps)
        vectors = [tf.transpose(array.stack(), (1, 0, 2)) for array in states]
        if lens is not None:
            last = tuple(tf.gather(vector, lens, axis=1, batch_dims=1) for vector in vectors)
        return tf.slice(vectors[0], (0, 1, 0), (-1, -1, -1)), last  # not [:, 1:], whose gradient is slow

    def _cell(self, recurrence: Sequence[tf.Tensor], projected: tf.Tensor, state: State) -> State:
        """Compute the next state of one layer from W x + b, the state, and what _columns arranges behind W and b."""
        raise NotImplementedError

    def _vectors(self, state: tf.Tensor) -> State:
        """Split the state of a layer: outputs forward and backward, then an LSTM's cells alike."""
        return tuple(tf.split(state, self.sizes["state_size"] // self.sizes["hidden_size"], axis=-1))

    def _between(self, *batch: int | tf.Tensor) -> tuple[int | tf.Tensor, ...]:
        """Return the shape of a dropout mask between the layers."""
        return self.sizes["num_layers - 1"], *batch, self.sizes["output_size"]

    # particular to TensorFlow

    def _columns(self, weights: Weights, features: slice = slice(None)) -> tuple[tf.Tensor, ...]:
        """Arrange those features of W, b, and U with the gates side by side."""
        W, U, b = self._cast((weights.W.value, weights.U.value, weights.b.value))
        return side_by_side(of_features(W, features)), tf.reshape(b, (-1,)), side_by_side(U)

    def _of_steps(self, features: slice = slice(None)) -> list[tuple[tf.Tensor, ...]]:
        """Arrange the parameters of each layer once for all steps, layer 0's with those features of its input alone."""
        return [self._columns(weights, slice(None) if index else features) for index, weights in enumerate(self.layers)]

    def _of_known(self, features: slice) -> tf.Tensor:
        """Arrange layer 0's W for those features of its input, which are known before its first step."""
        return side_by_side(of_features(self._cast(self.layers[0].W.value), features))

    def _project_known(
        self, embedding: keras.layers.Embedding, tokens: tf.Tensor, columns: tf.Tensor, count: int | None = None
    ) -> tf.Tensor:
        """Compute the part of embedded tokens in layer 0's W x + b; columns are those of W for their features.

        They are known for all steps before the first: it is one product, of the tokens or, where these are more, of the
        vocabulary. Where the layer reads no token, those features are none, and b is left. count is the most tokens
        that there can be, where their shape does not show it.
        """
        b, count = self._cast(self.layers[0].b.value), tokens.shape.num_elements() or count or 0
        whole = count > embedding.input_dim and is_usual(embedding, keras.layers.Embedding)
        inputs = self._cast(tf.convert_to_tensor(embedding.embeddings)) if whole else embedding(tokens)
        inputs = inputs if columns.shape[0] else inputs[..., :0]
        rows = tf.matmul(tf.reshape(inputs, (-1, columns.shape[0])), columns) + tf.reshape(b, (-1,))
        if whole:
            return keras.ops.take(rows, tf.cast(tokens, tf.int32), axis=0)  # a gather takes no 8-bit indices
        return tf.reshape(rows, [size(tokens, axis) for axis in range(tokens.shape.rank)] + [rows.shape[-1]])


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
        dropout (default 0.0): dropout rate between recurrent layers in training
        bidirectional (default False): whether other weights read the valid steps in reverse, too
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
    Source: Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.GRU(input_size, hidden_size)
        outputs, state = layer(inputs)
    """

    specification = GRU_SPECIFICATION

    def _cell(self, recurrence: Sequence[tf.Tensor], projected: tf.Tensor, state: State) -> State:
        """Compute h'."""
        U, b_hn = recurrence
        x_r, x_z, x_n = tf.split(projected, 3, axis=-1)
        h_r, h_z, h_n = tf.split(tf.matmul(state[0], U), 3, axis=-1)
        r, z = tf.sigmoid(x_r + h_r), tf.sigmoid(x_z + h_z)
        n = tf.tanh(x_n + r * (h_n + b_hn))
        return ((1.0 - z) * n + z * state[0],)

    # particular to TensorFlow

    def _columns(self, weights: Weights, features: slice = slice(None)) -> tuple[tf.Tensor, ...]:
        """Arrange those features of W, b, and U with the gates side by side; and b_hn."""
        return *super()._columns(weights, features), self._cast(weights.b_hn.value)


@keras.saving.register_keras_serializable(package="attention_parity")
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
    Source: Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; forget gate: Gers et al. 2000; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.LSTM(input_size, hidden_size)
        outputs, state = layer(inputs)
    """

    specification = LSTM_SPECIFICATION

    def _cell(self, recurrence: Sequence[tf.Tensor], projected: tf.Tensor, state: State) -> State:
        """Compute h' and c'."""
        (U,), (hidden, cells) = recurrence, state
        i, f, g, o = tf.split(projected + tf.matmul(hidden, U), 4, axis=-1)
        cells = tf.sigmoid(f) * cells + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(cells), cells


class Weights(keras.layers.Layer):
    """The parameters of a layer whose canonical names begin with that prefix: of one recurrent layer and direction."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], prefix: str, fan_in: int, *, dtype: str, name: str
    ) -> None:
        super().__init__(dtype=dtype, name=name, autocast=False)
        for path, shape in shapes.items():
            place, _, parameter = path.rpartition(".")
            if place == prefix:
                setattr(self, parameter, draw_parameter(self, parameter, shape, fan_in))
        self.built = True


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(part: Part, *, dtype: str | tf.DType | None, name: str) -> Recurrent:
    """Make the recurrent layer inside another layer."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype, name=name)


def valid_steps(steps: int | tf.Tensor, lens: tf.Tensor) -> tf.Tensor:
    """Mark the valid steps of each sequence, (batch, steps, 1)."""
    return (tf.range(steps, dtype=tf.int64) < lens[:, None])[:, :, None]


def reverse_steps(sequences: tf.Tensor, lens: tf.Tensor | None) -> tf.Tensor:
    """Reverse the valid steps of each sequence; its padding stays."""
    if lens is None:
        return tf.reverse(sequences, [1])
    # Not tf.reverse_sequence, which is slower and cannot be vectorised by tf.vectorized_map.
    step, end = tf.range(size(sequences, 1), dtype=lens.dtype), lens[:, None]
    return in_order(sequences, tf.where(step < end, end - 1 - step, step))


# ------------------------------------------------------------------------------------------- particular to TensorFlow


def in_order(sequences: tf.Tensor, order: tf.Tensor) -> tf.Tensor:
    """Arrange the steps of each sequence in an order of its own, (batch, steps)."""
    return tf.gather(sequences, order, axis=1, batch_dims=1)


def of_features(W: tf.Tensor, features: slice) -> tf.Tensor:
    """Take the columns of those features, by a function whose gradient is faster than that of W[..., features]."""
    start, stop, _ = features.indices(W.shape[-1])
    return tf.slice(W, (0, 0, start), (-1, -1, stop - start))


def side_by_side(gates: tf.Tensor) -> tf.Tensor:
    """Arrange the matrices of the gates, (gates, hidden_size, features), as (features, gates · hidden_size)."""
    return tf.transpose(tf.reshape(gates, (-1, gates.shape[-1])))
