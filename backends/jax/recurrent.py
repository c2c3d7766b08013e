"""Recurrent layers, encoders, and the bridge from two directions to one, in JAX."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.core import freeze
from jax.typing import DTypeLike

from attention_core.errors import check, check_options
from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.operators.recurrent import check_one_direction
from attention_core.specification import Layer, Part
from backends.jax.module import drawn, drawn_mask, dropout_layer

__all__ = ["GRU", "LSTM"]

Parts = tuple[jax.Array, ...]


class RecurrentLayer(nnx.Module):
    """The canonical parameters of one recurrent layer in one direction.

    Its state is a tuple: the output, (batch, hidden_size), and after it, for an LSTM, the cells.
    """

    gates: int

    def __init__(self, input_size: int, hidden_size: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.W = drawn((self.gates, hidden_size, input_size), hidden_size, dtype, rngs)
        self.U = drawn((self.gates, hidden_size, hidden_size), hidden_size, dtype, rngs)
        self.b = drawn((self.gates, hidden_size), hidden_size, dtype, rngs)

    def project(self, inputs: jax.Array) -> jax.Array:
        """What the inputs give to each gate, (..., gates, hidden_size): no step has to wait for another one."""
        return by_gates(inputs, self.W[...]) + self.b[...]

    def advance(self, projected: jax.Array, *state: jax.Array) -> Parts:
        """The state after one step, from projected inputs."""
        raise NotImplementedError

    # Compiled here, since jax.lax.scan outside of jit compiles its loop again in every call.
    @partial(jax.jit, static_argnames="reverse")
    def run(
        self, inputs: jax.Array, state: Parts, real: jax.Array | None, reverse: bool = False
    ) -> tuple[jax.Array, Parts]:
        """The output of each step, (batch, steps, hidden_size), and the state after the last real one.

        In reverse, that is the first step, and padding is what comes before the last real one.
        """

        def step(state: Parts, at: tuple[jax.Array, jax.Array | None]) -> tuple[Parts, jax.Array]:
            projected, real = at
            new = self.advance(projected, *state)
            if real is not None:
                new = tuple(jnp.where(real, after, before) for after, before in zip(new, state, strict=True))
            return new, new[0]

        steps = time_first(self.project(inputs)), time_first(real)
        last, outputs = jax.lax.scan(step, state, steps, reverse=reverse)
        return jnp.swapaxes(outputs, 0, 1), last


def by_gates(inputs: jax.Array, weights: jax.Array) -> jax.Array:
    """The product with the weights of each gate, (..., gates, hidden_size)."""
    gates, hidden_size, size = weights.shape
    # The barrier: XLA would fold the transpose into the product, which then takes twice the time on a CPU.
    turned = jax.lax.optimization_barrier(weights.reshape(gates * hidden_size, size).T)
    product = inputs @ turned
    return product.reshape(*inputs.shape[:-1], gates, hidden_size)


class GRULayer(RecurrentLayer):
    """One layer of a GRU in one direction."""

    gates = 3

    def __init__(self, input_size: int, hidden_size: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        super().__init__(input_size, hidden_size, dtype=dtype, rngs=rngs)
        self.b_hn = drawn((hidden_size,), hidden_size, dtype, rngs)

    def advance(self, projected: jax.Array, *state: jax.Array) -> Parts:
        """The state after one step, from projected inputs."""
        (hidden,) = state
        recurrent = by_gates(hidden, self.U[...])
        reset, update = jnp.unstack(jax.nn.sigmoid(projected[..., :2, :] + recurrent[..., :2, :]), axis=-2)
        new = jnp.tanh(projected[..., 2, :] + reset * (recurrent[..., 2, :] + self.b_hn[...]))
        return ((1.0 - update) * new + update * hidden,)


class LSTMLayer(RecurrentLayer):
    """One layer of an LSTM in one direction."""

    gates = 4

    def advance(self, projected: jax.Array, *state: jax.Array) -> Parts:
        """The state after one step, from projected inputs."""
        hidden, cells = state
        gates = projected + by_gates(hidden, self.U[...])
        enter, forget, new, leave = jnp.unstack(gates, axis=-2)
        cells = jax.nn.sigmoid(forget) * cells + jax.nn.sigmoid(enter) * jnp.tanh(new)
        return jax.nn.sigmoid(leave) * jnp.tanh(cells), cells


class Recurrent(nnx.Module):
    """What the recurrent layers share: a step, and a call that runs steps in one direction or both.

    A state is (num_layers, batch, state_size): the output of each layer, forward then backward, and after them, for an
    LSTM, the cells in the same order.
    """

    specification: Layer
    layer: type[RecurrentLayer]

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
        self.sizes = freeze(
            check_options(
                self.specification,
                input_size=input_size,
                hidden_size=hidden_size,
                num_layers=num_layers,
                dropout=dropout,
                bidirectional=bidirectional,
            )
        )
        self.layers = nnx.List()
        for index in range(num_layers):
            size = self.sizes["output_size"] if index else input_size
            self.layers.append(self.layer(size, hidden_size, dtype=dtype, rngs=rngs))
            if bidirectional:
                self.layers[index].backward = self.layer(size, hidden_size, dtype=dtype, rngs=rngs)
        self.dropout = dropout_layer(dropout, rngs)

    def step(
        self, inputs: jax.Array, state: jax.Array, *, dropout_mask: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Run one step.

        state'[l] = cell(x, state[l]), with x = inputs for layer 0 and dropout_mask[l - 1] output'[l - 1] above

        Shapes: inputs (batch, input_size), state (num_layers, batch, state_size), dropout_mask
        (num_layers - 1, batch, output_size); returns (output, state).
        """
        operator = self.specification.method("step")
        check_one_direction(operator.title, self.sizes)
        check(operator, self.sizes, self.layers[0].W.dtype, inputs=inputs, state=state, dropout_mask=dropout_mask)
        if dropout_mask is None:
            like = jax.ShapeDtypeStruct(self.between(inputs.shape[0]), inputs.dtype)
            dropout_mask = drawn_mask(self.dropout, like)
        output, states = inputs, []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            after = layer.advance(layer.project(output), *jnp.split(state[index], self.parts, axis=-1))
            output = after[0]
            states.append(jnp.concatenate(after, axis=-1))
        return output, jnp.stack(states)

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

        Shapes: inputs (batch, steps, input_size), valid_lens (batch,), state (num_layers, batch, state_size),
        dropout_mask (num_layers - 1, batch, steps, output_size); returns (outputs, state).
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
        if state is None:
            state = jnp.zeros((self.sizes["num_layers"], batch, self.sizes["state_size"]), inputs.dtype)
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, jax.ShapeDtypeStruct(self.between(batch, steps), inputs.dtype))
        real = None if valid_lens is None else (jnp.arange(steps) < valid_lens[:, None])[:, :, None]
        outputs, states = inputs if real is None else jnp.where(real, inputs, 0.0), []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * dropout_mask[index - 1]
            # Forward outputs and cells are the even parts, backward ones the odd parts.
            both = [layer, layer.backward] if self.sizes["bidirectional"] else [layer]
            before = jnp.split(state[index], self.parts * len(both), axis=-1)
            ran = [
                each.run(outputs, tuple(before[way :: len(both)]), real, reverse=bool(way))
                for way, each in enumerate(both)
            ]
            outputs = jnp.concatenate([own for own, _ in ran], axis=-1)
            after = [part for parts in zip(*(last for _, last in ran), strict=True) for part in parts]
            states.append(jnp.concatenate(after, axis=-1))
        # No real step has seen padding, in either direction: clearing it here, once, is enough.
        return outputs if real is None else jnp.where(real, outputs, 0.0), jnp.stack(states)

    def between(self, *batch: int) -> tuple[int, ...]:
        """The shape of a dropout mask, for a batch, or for a batch and steps."""
        return self.sizes["num_layers - 1"], *batch, self.sizes["output_size"]

    @property
    def parts(self) -> int:
        """How many vectors a state holds for each layer and direction."""
        return int(self.sizes["state_size"]) // int(self.sizes["output_size"])


class GRU(Recurrent):
    """Stacked gated recurrent units over padded sequences.

    r = σ(W0 x + b0 + U0 h);  z = σ(W1 x + b1 + U1 h);  n = tanh(W2 x + b2 + r * (U2 h + b_hn));
    h' = (1 - z) * n + z * h

    Shapes: inputs (batch, steps, input_size), valid_lens (batch,), state (num_layers, batch, state_size), dropout_mask
    (num_layers - 1, batch, steps, output_size); returns (outputs, state). state_size and output_size are hidden_size
    for each direction.
    """

    specification = GRU_SPECIFICATION
    layer = GRULayer


class LSTM(Recurrent):
    """Stacked long short-term memory over padded sequences.

    i = σ(W0 x + b0 + U0 h);  f = σ(W1 x + b1 + U1 h);  g = tanh(W2 x + b2 + U2 h);  o = σ(W3 x + b3 + U3 h);
    c' = f * c + i * g;  h' = o * tanh(c')

    Nothing is added to the bias of the forget gate.

    Shapes: as GRU; state_size is twice as large: outputs, forward then backward, and then the cells.
    """

    specification = LSTM_SPECIFICATION
    layer = LSTMLayer


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(part: Part, **keywords: Any) -> Recurrent:
    """The recurrent layer that stands inside another one."""
    return LAYERS[part.layer.name](**part.config, **keywords)


def time_first(array: jax.Array | None, axis: int = 1) -> jax.Array | None:
    """The array with its axis of steps in front, where jax.lax.scan expects it."""
    return None if array is None else jnp.moveaxis(array, axis, 0)
