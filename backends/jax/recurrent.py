"""Recurrent layers, encoders, and the bridge from two directions to one, in JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.specification import Part
from backends.jax.arrays import Lengths
from backends.jax.graphs import varying
from backends.jax.module import Specified, at_dtype, cast, draw_mask, draw_parameter, dropout_layer

__all__ = ["GRU", "LSTM"]


State = tuple[jax.Array, ...]
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
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(locals())
        shapes = self.specification.own_shapes(self.sizes)
        self.layers = nnx.List(
            Weights(shapes, f"{index}", hidden_size, param_dtype=param_dtype, rngs=rngs) for index in range(num_layers)
        )
        self.backward_layers = nnx.List(
            Weights(shapes, f"{index}.backward", hidden_size, param_dtype=param_dtype, rngs=rngs)
            for index in range(num_layers if bidirectional else 0)
        )
        self.dropout = dropout_layer(dropout, rngs)

    @at_dtype
    def step(
        self, inputs: jax.Array, state: jax.Array, *, dropout_mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
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

    @at_dtype
    def __call__(
        self,
        inputs: jax.Array,
        valid_lens: Lengths | None = None,
        state: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
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
        batch, steps, _ = inputs.shape
        if state is None:
            state = jnp.zeros((self.sizes["num_layers"], batch, self.sizes["state_size"]), inputs.dtype)
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, inputs, shape=self._between(batch, steps))
        if valid_lens is not None:
            valid_lens = jnp.asarray(valid_lens)
            valid = valid_steps(steps, valid_lens)
            inputs = jnp.where(valid, inputs, 0.0)
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
            outputs = jnp.concatenate([output for output, _ in runs], axis=-1)
            pairs = zip(*(last for _, last in runs), strict=True)
            states.append(jnp.concatenate([vector for pair in pairs for vector in pair], axis=-1))
        # No valid step has read padding, in either direction: clearing it here, once, is enough.
        return outputs if valid_lens is None else jnp.where(valid, outputs, 0.0), jnp.stack(states)

    def _advance(
        self, inputs: jax.Array, state: jax.Array, dropout_mask: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Run one step: (output, state)."""
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, inputs, shape=self._between(inputs.shape[0]))
        output, states = inputs, []
        for index, weights in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            after = self._cell(weights, project(weights, output), self._vectors(state[index]))
            output = after[0]
            states.append(jnp.concatenate(after, axis=-1))
        return output, jnp.stack(states)

    def _run(
        self, weights: Weights, inputs: jax.Array, state: State, lens: jax.Array | None, *, backward: bool
    ) -> tuple[jax.Array, State]:
        """Run one layer in one direction: (outputs, last state)."""
        return scan(self._cell, weights, inputs, state, lens, backward)

    @staticmethod
    def _cell(weights: Weights, projected: jax.Array, state: State) -> State:
        """Compute the next state of one layer from W x + b and the state."""
        raise NotImplementedError

    def _vectors(self, state: jax.Array) -> State:
        """Split the state of a layer: outputs forward and backward, then an LSTM's cells alike."""
        return tuple(jnp.split(state, self.sizes["state_size"] // self.sizes["hidden_size"], axis=-1))

    def _between(self, *batch: int) -> tuple[int, ...]:
        """Return the shape of a dropout mask between the layers."""
        return self.sizes["num_layers - 1"], *batch, self.sizes["output_size"]


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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
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
        layer = attention.GRU(input_size, hidden_size, rngs=nnx.Rngs(0))
        outputs, state = layer(inputs)
    """

    specification = GRU_SPECIFICATION

    @staticmethod
    def _cell(weights: Weights, projected: jax.Array, state: State) -> State:
        """Compute h'."""
        x_r, x_z, x_n = jnp.split(projected, 3, axis=-1)
        h_r, h_z, h_n = jnp.split(multiply(state[0], weights.U), 3, axis=-1)
        r, z = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
        n = jnp.tanh(x_n + r * (h_n + cast(weights.b_hn, h_n)))
        return ((1.0 - z) * n + z * state[0],)


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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
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
        layer = attention.LSTM(input_size, hidden_size, rngs=nnx.Rngs(0))
        outputs, state = layer(inputs)
    """

    specification = LSTM_SPECIFICATION

    @staticmethod
    def _cell(weights: Weights, projected: jax.Array, state: State) -> State:
        """Compute h' and c'."""
        hidden, cells = state
        i, f, g, o = jnp.split(projected + multiply(hidden, weights.U), 4, axis=-1)
        cells = jax.nn.sigmoid(f) * cells + jax.nn.sigmoid(i) * jnp.tanh(g)
        return jax.nn.sigmoid(o) * jnp.tanh(cells), cells


class Weights(nnx.Module):
    """The parameters of a layer whose canonical names begin with that prefix: of one recurrent layer and direction."""

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], prefix: str, fan_in: int, *, param_dtype: DTypeLike, rngs: nnx.Rngs
    ) -> None:
        for path, shape in shapes.items():
            place, _, name = path.rpartition(".")
            if place == prefix:
                setattr(self, name, draw_parameter(shape, fan_in, param_dtype, rngs))


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(part: Part, *, dtype: DTypeLike | None, param_dtype: DTypeLike, rngs: nnx.Rngs) -> Recurrent:
    """Make the recurrent layer inside another layer."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype, param_dtype=param_dtype, rngs=rngs)


def valid_steps(steps: int, lens: jax.Array) -> jax.Array:
    """Mark the valid steps of each sequence, (batch, steps, 1)."""
    return (jnp.arange(steps) < lens[:, None])[:, :, None]


# ------------------------------------------------------------------------------------------------ particular to JAX


# Compiled here, since jax.lax.scan outside of jit compiles its loop again in every call.
@partial(jax.jit, static_argnames=("cell", "backward"))
def scan(
    cell: Callable[..., State],
    weights: Weights,
    inputs: jax.Array,
    state: State,
    lens: jax.Array | None,
    backward: bool,
) -> tuple[jax.Array, State]:
    """Run one layer in one direction; padding, which a backward scan meets first, leaves the state alone."""
    valid = None if lens is None else valid_steps(inputs.shape[1], lens)
    state, weights = varying((state, weights), inputs, lens)

    def step(state: State, at: tuple[jax.Array, jax.Array | None]) -> tuple[State, jax.Array]:
        projected, valid = at
        after = cell(weights, projected, state)
        if valid is not None:
            after = tuple(jnp.where(valid, new, old) for new, old in zip(after, state, strict=True))
        return after, after[0]

    # The inputs of all steps are projected at once, before the loop.
    steps = time_first(project(weights, inputs)), time_first(valid)
    last, outputs = jax.lax.scan(step, state, steps, reverse=backward)
    return jnp.swapaxes(outputs, 0, 1), last


def project(weights: Weights, inputs: jax.Array) -> jax.Array:
    """Compute W x + b, the gates side by side."""
    return multiply(inputs, weights.W) + cast(weights.b, inputs).reshape(-1)


def multiply(inputs: jax.Array, gates: nnx.Param) -> jax.Array:
    """Multiply inputs by the matrices of the gates, (gates, hidden_size, features), side by side."""
    # The barrier: XLA would fold the transpose into the product, which then takes twice the time on a CPU.
    return inputs @ jax.lax.optimization_barrier(cast(gates, inputs).reshape(-1, gates.shape[-1]).T)


def time_first(array: jax.Array | None, axis: int = 1) -> jax.Array | None:
    """Move the time axis to the front."""
    return None if array is None else jnp.moveaxis(array, axis, 0)
