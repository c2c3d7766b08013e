"""Flax' own cells and attention, of linen and of nnx, as targets: parameters are the leaves of params or of a state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen, nnx

import backends.jax
from backends.jax import runtime
from parity_tests.third_party.layers import stacked
from parity_tests.third_party.layers.own import longest, own_layers

Parameters: TypeAlias = dict[str, jax.Array]
Array: TypeAlias = jax.Array


def tree(parameters: Parameters) -> dict[str, Any]:
    """The last two parts of each name, a module's and its parameter's, as nested dictionaries."""
    nested: dict[str, Any] = {}
    for name, array in parameters.items():
        module, own = re.split(r"[./]", name)[-2:]
        nested.setdefault(module, {})[own] = array
    return nested


DIRECTIONS = ("forward_rnn", "backward_rnn")
"""What the names of a Bidirectional begin with."""


def directed(parameters: Parameters) -> list[Parameters]:
    """The parameters of each direction, or of the only one."""
    split = [{name: array for name, array in parameters.items() if direction in name} for direction in DIRECTIONS]
    return split if any(split) else [parameters]


def carried(state: Array, directions: int, lstm: bool) -> Any:
    """Flax' carry of one layer, of both directions if there are two: of an LSTM the cells come first."""
    parts = jnp.split(state[0], directions * (2 if lstm else 1), axis=-1)
    carries = [(parts[directions + place], parts[place]) if lstm else parts[place] for place in range(directions)]
    return tuple(carries) if directions == 2 else carries[0]


def stated(carry: Any, directions: int, lstm: bool) -> Array:
    """Our state of one layer: outputs, forward then backward, then cells."""
    carries = carry if directions == 2 else (carry,)
    parts = [own[1] for own in carries] + [own[0] for own in carries] if lstm else list(carries)
    return jnp.concatenate(parts, axis=-1)[None]


def open_keys(keys: Array, valid_lens: Array | None) -> Array | None:
    """True where a key is open: Flax' mask, (batch, heads, queries, keys)."""
    return None if valid_lens is None else (jnp.arange(keys.shape[1]) < valid_lens[:, None])[:, None, None, :]


# ------------------------------------------------------------------------------------------------ linen


def run_linen(
    cell: type[linen.GRUCell] | type[linen.LSTMCell],
    parameters: Parameters,
    inputs: Array,
    state: Array | None,
    hidden_size: int,
) -> tuple[Array, Array]:
    """Outputs and state of a stack of cells of linen, each in its RNN."""

    def run(own: Parameters, given: Array, first: Array | None) -> tuple[Array, Array]:
        lstm, directions = cell is linen.LSTMCell, directed(own)
        layers = [linen.RNN(cell(hidden_size, param_dtype=given.dtype)) for _ in directions]
        trees: dict[str, Any] = {"cell": tree(own)}
        layer: Any = layers[0]
        if len(directions) == 2:
            layer = linen.Bidirectional(*layers)
            trees = {name: {"cell": tree(part)} for name, part in zip(DIRECTIONS, directions, strict=True)}
        begin = None if first is None else carried(first, len(directions), lstm)
        carry, outputs = layer.apply({"params": trees}, given, initial_carry=begin, return_carry=True)
        return outputs, stated(carry, len(directions), lstm)

    return stacked(run, parameters, inputs, state, jnp.concatenate)


class LinenGRUCell:
    """flax.linen.GRUCell in an RNN, which takes lengths for the state alone: padded outputs are what the cell says."""

    @staticmethod
    def GRU(
        parameters: Parameters,
        inputs: Array,
        state: Array | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Array, Array]:
        """The arrays say the directions, and how many layers there are."""
        return run_linen(linen.GRUCell, parameters, inputs, state, hidden_size)


class LinenLSTMCell:
    """flax.linen.LSTMCell in an RNN."""

    @staticmethod
    def LSTM(
        parameters: Parameters,
        inputs: Array,
        state: Array | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Array, Array]:
        """The arrays say the directions, and how many layers there are."""
        return run_linen(linen.LSTMCell, parameters, inputs, state, hidden_size)


class LinenMultiHeadDotProductAttention:
    """flax.linen.MultiHeadDotProductAttention."""

    @staticmethod
    def MultiHeadAttention(
        parameters: Parameters,
        queries: Array,
        keys: Array,
        values: Array,
        valid_lens: Array | None = None,
        *,
        num_heads: int,
        hidden_size: int | None = None,
        bias: bool = True,
        per_head: bool = False,
    ) -> tuple[Array, Array]:
        """A mask is True where a key is open; the weights are sown."""
        layer = linen.MultiHeadDotProductAttention(
            num_heads, qkv_features=hidden_size, use_bias=bias, param_dtype=queries.dtype, deterministic=True
        )
        variables, mask = {"params": tree(parameters)}, open_keys(keys, valid_lens)
        context, sown = layer.apply(
            variables, queries, keys, values, mask=mask, sow_weights=True, mutable=["intermediates"]
        )
        weights = sown["intermediates"]["attention_weights"][0]
        return context, weights if per_head else weights.mean(1)


# ------------------------------------------------------------------------------------------------ nnx


def load(made: nnx.Module, parameters: Parameters) -> None:
    """Replace the module's parameters, all of them: nnx.update itself would pass over a name that it does not know."""
    state = nnx.state(made, nnx.Param)
    given = {(module, own): array for module, owned in tree(parameters).items() for own, array in owned.items()}
    known = {path for path, _ in state.flat_state()}
    if set(given) != known:
        raise ValueError(f"the module has the parameters {sorted(known)}, and is given {sorted(given)}")
    nnx.update(made, nnx.State.from_flat_path({path: nnx.Param(array) for path, array in given.items()}))


def run_nnx(
    cell: type[nnx.GRUCell] | type[nnx.LSTMCell] | type[nnx.OptimizedLSTMCell],
    parameters: Parameters,
    inputs: Array,
    state: Array | None,
    hidden_size: int,
) -> tuple[Array, Array]:
    """Outputs and state of a stack of cells of nnx, each in its RNN."""

    def run(own: Parameters, given: Array, first: Array | None) -> tuple[Array, Array]:
        lstm, directions = cell is not nnx.GRUCell, directed(own)
        layers = []
        for part in directions:
            made = cell(given.shape[-1], hidden_size, param_dtype=given.dtype, rngs=nnx.Rngs(0))
            load(made, part)
            layers.append(nnx.RNN(made))
        layer: Any = nnx.Bidirectional(*layers) if len(directions) == 2 else layers[0]
        width = hidden_size * len(directions) * (2 if lstm else 1)
        start = jnp.zeros((1, len(given), width), given.dtype) if first is None else first
        begin = carried(start, len(directions), lstm)
        carry, outputs = layer(given, initial_carry=begin, return_carry=True)
        return outputs, stated(carry, len(directions), lstm)

    return stacked(run, parameters, inputs, state, jnp.concatenate)


class NnxGRUCell:
    """flax.nnx.GRUCell in an RNN, which takes lengths for the state alone: padded outputs are what the cell says."""

    @staticmethod
    def GRU(
        parameters: Parameters,
        inputs: Array,
        state: Array | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Array, Array]:
        """The arrays say the directions, and how many layers there are."""
        return run_nnx(nnx.GRUCell, parameters, inputs, state, hidden_size)


class NnxLSTMCell:
    """flax.nnx.LSTMCell in an RNN."""

    @staticmethod
    def LSTM(
        parameters: Parameters,
        inputs: Array,
        state: Array | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Array, Array]:
        """The arrays say the directions, and how many layers there are."""
        return run_nnx(nnx.LSTMCell, parameters, inputs, state, hidden_size)


class NnxOptimizedLSTMCell:
    """flax.nnx.OptimizedLSTMCell in an RNN."""

    @staticmethod
    def LSTM(
        parameters: Parameters,
        inputs: Array,
        state: Array | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Array, Array]:
        """The arrays say the directions, and how many layers there are."""
        return run_nnx(nnx.OptimizedLSTMCell, parameters, inputs, state, hidden_size)


class NnxMultiHeadAttention:
    """flax.nnx.MultiHeadAttention."""

    @staticmethod
    def MultiHeadAttention(
        parameters: Parameters,
        queries: Array,
        keys: Array,
        values: Array,
        valid_lens: Array | None = None,
        *,
        num_heads: int,
        hidden_size: int | None = None,
        bias: bool = True,
        per_head: bool = False,
    ) -> tuple[Array, Array]:
        """A mask is True where a key is open; the weights are sown."""
        layer = nnx.MultiHeadAttention(
            num_heads,
            queries.shape[-1],
            hidden_size or queries.shape[-1],
            in_kv_features=keys.shape[-1],
            use_bias=bias,
            param_dtype=queries.dtype,
            deterministic=True,
            decode=False,
            rngs=nnx.Rngs(0),
        )
        load(layer, parameters)
        context = layer(queries, keys, values, mask=open_keys(keys, valid_lens), sow_weights=True)
        weights = nnx.pop(layer, nnx.Intermediate)["attention_weights"][0]
        return context, weights if per_head else weights.mean(1)


# ------------------------------------------------------------------------------------------------ ours


def load_own(layer: nnx.Module, parameters: Mapping[str, Array]) -> nnx.Module:
    """Replace the parameters of a layer of ours, by their paths in its state."""
    flat = dict(nnx.state(layer, nnx.Param).flat_state())
    known = {".".join(map(str, path)): path for path in flat}
    given = {known[longest(name, known)]: nnx.Param(array) for name, array in parameters.items()}
    if len(given) < len(flat):
        raise ValueError(f"the layer has {', '.join(known)}, and is given {', '.join(parameters)}")
    nnx.update(layer, nnx.State.from_flat_path(given))
    return layer


Own = own_layers(backends.jax, runtime, load_own, lambda array: array.dtype.name)
