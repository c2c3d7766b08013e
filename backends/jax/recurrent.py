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
from backends.jax.module import Specified, drawn, drawn_mask, dropout_layer

__all__ = ["GRU", "LSTM"]

Parts = tuple[jax.Array, ...]
"""A state of one layer in one direction: its output, (batch, hidden_size), and after it, for an LSTM, the cells."""


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
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
        )
        shapes = self.specification.own_shapes(self.sizes)
        self.layers = nnx.List()
        for index in range(num_layers):
            self.layers.append(Weights(inner(shapes, f"{index}."), hidden_size, dtype=dtype, rngs=rngs))
            if bidirectional:
                backward = inner(shapes, f"{index}.backward.")
                self.layers[index].backward = Weights(backward, hidden_size, dtype=dtype, rngs=rngs)
        self.dropout = dropout_layer(dropout, rngs)

    def step(
        self, inputs: jax.Array, state: jax.Array, *, dropout_mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
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
        inputs: jax.Array,
        valid_lens: jax.Array | None = None,
        state: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
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
        batch, steps, _ = inputs.shape
        if state is None:
            state = jnp.zeros((self.sizes["num_layers"], batch, self.sizes["state_size"]), inputs.dtype)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, jax.ShapeDtypeStruct(self._between(batch, steps), inputs.dtype))
        real = None if valid_lens is None else (jnp.arange(steps) < valid_lens[:, None])[:, :, None]
        outputs, states = inputs if real is None else jnp.where(real, inputs, 0.0), []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * dropout_mask[index - 1]
            # Forward outputs and cells are the even parts, backward ones the odd parts.
            both = [layer, layer.backward] if self.sizes["bidirectional"] else [layer]
            before = jnp.split(state[index], self._parts * len(both), axis=-1)
            ran = [
                run(self._cell, weights, outputs, tuple(before[way :: len(both)]), real, reverse=bool(way))
                for way, weights in enumerate(both)
            ]
            outputs = jnp.concatenate([own for own, _ in ran], axis=-1)
            after = [part for parts in zip(*(last for _, last in ran), strict=True) for part in parts]
            states.append(jnp.concatenate(after, axis=-1))
        # No real step has seen padding, in either direction: clearing it here, once, is enough.
        return outputs if real is None else jnp.where(real, outputs, 0.0), jnp.stack(states)

    def _advance(
        self, inputs: jax.Array, state: jax.Array, dropout_mask: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        if dropout_mask is None:
            like = jax.ShapeDtypeStruct(self._between(inputs.shape[0]), inputs.dtype)
            dropout_mask = drawn_mask(self.dropout, like)
        output, states = inputs, []
        for index, weights in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            before = jnp.split(state[index], self._parts, axis=-1)
            after = self._cell(weights, project(weights, output), *before)
            output = after[0]
            states.append(jnp.concatenate(after, axis=-1))
        return output, jnp.stack(states)

    @staticmethod
    def _cell(weights: Weights, projected: jax.Array, *state: jax.Array) -> Parts:
        """The next state of one layer, from projected inputs."""
        raise NotImplementedError

    def _between(self, *batch: int) -> tuple[int, ...]:
        """The shape of a dropout mask, for a batch, or for a batch and steps."""
        return self.sizes["num_layers - 1"], *batch, self.sizes["output_size"]

    @property
    def _parts(self) -> int:
        """How many vectors a state holds for each layer and direction."""
        return int(self.sizes["state_size"]) // int(self.sizes["output_size"])


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
    Raises:
        OptionError: an argument is outside its domain
    Source: Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.GRU(input_size, hidden_size, rngs=nnx.Rngs(0))
        outputs, state = layer(inputs)
    """

    specification = GRU_SPECIFICATION

    @staticmethod
    def _cell(weights: Weights, projected: jax.Array, *state: jax.Array) -> Parts:
        """H' of the formula."""
        (hidden,) = state
        recurrent = by_gates(hidden, weights.U[...])
        reset, update = jnp.unstack(jax.nn.sigmoid(projected[..., :2, :] + recurrent[..., :2, :]), axis=-2)
        new = jnp.tanh(projected[..., 2, :] + reset * (recurrent[..., 2, :] + weights.b_hn[...]))
        return ((1.0 - update) * new + update * hidden,)


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
    Raises:
        OptionError: an argument is outside its domain
    Source: Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; forget gate: Gers et al. 2000; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.LSTM(input_size, hidden_size, rngs=nnx.Rngs(0))
        outputs, state = layer(inputs)
    """

    specification = LSTM_SPECIFICATION

    @staticmethod
    def _cell(weights: Weights, projected: jax.Array, *state: jax.Array) -> Parts:
        """H' and c' of the formula."""
        hidden, cells = state
        gates = projected + by_gates(hidden, weights.U[...])
        enter, forget, new, leave = jnp.unstack(gates, axis=-2)
        cells = jax.nn.sigmoid(forget) * cells + jax.nn.sigmoid(enter) * jnp.tanh(new)
        return jax.nn.sigmoid(leave) * jnp.tanh(cells), cells


class Weights(nnx.Module):
    """The canonical parameters of one recurrent layer in one direction, or of one layer's bridge."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], fan_in: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        for name, shape in shapes.items():
            setattr(self, name, drawn(shape, fan_in, dtype, rngs))


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(part: Part, *, dtype: DTypeLike, rngs: nnx.Rngs) -> Recurrent:
    """The recurrent layer that stands inside another one."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype, rngs=rngs)


def inner(shapes: Mapping[str, tuple[int, ...]], prefix: str) -> dict[str, tuple[int, ...]]:
    """The shapes whose names are the prefix and one word, named by that word."""
    own = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
    return {name: shape for name, shape in own.items() if "." not in name}


# ------------------------------------------------------------------------------------------------ particular to JAX


# Compiled here, since jax.lax.scan outside of jit compiles its loop again in every call.
@partial(jax.jit, static_argnames=("cell", "reverse"))
def run(
    cell: Callable[..., Parts],
    weights: Weights,
    inputs: jax.Array,
    state: Parts,
    real: jax.Array | None,
    reverse: bool = False,
) -> tuple[jax.Array, Parts]:
    """The output of each step, (batch, steps, hidden_size), and the state after the last real one.

    In reverse, that is the first step, and padding is what comes before the last real one.
    """

    def step(state: Parts, at: tuple[jax.Array, jax.Array | None]) -> tuple[Parts, jax.Array]:
        projected, real = at
        new = cell(weights, projected, *state)
        if real is not None:
            new = tuple(jnp.where(real, after, before) for after, before in zip(new, state, strict=True))
        return new, new[0]

    last, outputs = jax.lax.scan(step, state, (time_first(project(weights, inputs)), time_first(real)), reverse=reverse)
    return jnp.swapaxes(outputs, 0, 1), last


def project(weights: Weights, inputs: jax.Array) -> jax.Array:
    """What the inputs give to each gate, (..., gates, hidden_size): no step has to wait for another one."""
    return by_gates(inputs, weights.W[...]) + weights.b[...]


def by_gates(inputs: jax.Array, weights: jax.Array) -> jax.Array:
    """The product with the weights of each gate, (..., gates, hidden_size)."""
    gates, hidden_size, size = weights.shape
    # The barrier: XLA would fold the transpose into the product, which then takes twice the time on a CPU.
    turned = jax.lax.optimization_barrier(weights.reshape(gates * hidden_size, size).T)
    product = inputs @ turned
    return product.reshape(*inputs.shape[:-1], gates, hidden_size)


def time_first(array: jax.Array | None, axis: int = 1) -> jax.Array | None:
    """The array with its axis of steps in front, where jax.lax.scan expects it."""
    return None if array is None else jnp.moveaxis(array, axis, 0)
