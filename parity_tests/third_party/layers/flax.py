"""Flax' own cells and attention, of linen and of nnx, as targets: parameters are the leaves of params or of a state."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import linen, nnx

import backends.jax
from backends.jax import runtime
from parity_tests.third_party.layers.shared import WITHOUT_LENGTHS, backend_layers, matching, run_stack
from parity_tests.third_party.signatures import Attention, Outputs, Recurrent, takes

Parameters: TypeAlias = dict[str, jax.Array]
Array: TypeAlias = jax.Array


def tree(parameters: Parameters) -> dict[str, Any]:
    """The last two parts of each name, a module's and its parameter's, as nested dictionaries."""
    nested: dict[str, Any] = {}
    for name, array in parameters.items():
        module, parameter = re.split(r"[./]", name)[-2:]
        nested.setdefault(module, {})[parameter] = array
    return nested


DIRECTIONS = ("forward_rnn", "backward_rnn")
"""The prefixes of the names of a Bidirectional."""


def split_directions(parameters: Parameters) -> list[Parameters]:
    """The parameters of each direction, or of the only one."""
    split = [{name: array for name, array in parameters.items() if direction in name} for direction in DIRECTIONS]
    return split if any(split) else [parameters]


def carry_of(state: Array, directions: int, lstm: bool) -> Any:
    """Flax' carry of one layer, of both directions if there are two: of an LSTM the cells come first."""
    parts = jnp.split(state[0], directions * (2 if lstm else 1), axis=-1)
    carries = [(parts[directions + place], parts[place]) if lstm else parts[place] for place in range(directions)]
    return tuple(carries) if directions == 2 else carries[0]


def state_of(carry: Any, directions: int, lstm: bool) -> Array:
    """Our state of one layer: outputs, forward then backward, then cells."""
    carries = carry if directions == 2 else (carry,)
    parts = [pair[1] for pair in carries] + [pair[0] for pair in carries] if lstm else list(carries)
    return jnp.concatenate(parts, axis=-1)[None]


Run = Callable[[list[Parameters], Array, Any, int], tuple[Any, Array]]
"""Carry and outputs of one layer by its parameters in each direction, inputs, carry, and hidden size."""


def recurrent(run: Run, lstm: bool) -> Callable[..., Outputs]:
    """A stack of cells, each in its RNN, which takes lengths for the state alone: the cell goes on in padded steps.

    The arrays determine the directions and the number of layers.
    """

    @takes(Recurrent, "inputs", *WITHOUT_LENGTHS)
    def call(call: Recurrent) -> Outputs:
        def layer(parameters: Parameters, inputs: Array, state: Array | None) -> tuple[Array, Array]:
            directions = split_directions(parameters)
            first = None if state is None else carry_of(state, len(directions), lstm)
            carry, outputs = run(directions, inputs, first, call.hidden_size)
            return outputs, state_of(carry, len(directions), lstm)

        return run_stack(layer, call.parameters, call.inputs, call.state, jnp.concatenate)

    return call


def open_keys(call: Attention) -> Array | None:
    """True where a key is open: Flax' mask, (batch, heads, queries, keys)."""
    lens = call.valid_lens
    return None if lens is None else (jnp.arange(call.keys.shape[1]) < lens[:, None])[:, None, None, :]


HEADS = ("valid_lens", "num_heads", "hidden_size", "bias", "per_head")

# ------------------------------------------------------------------------------------------------ linen


def linen_recurrent(cell: type[linen.GRUCell] | type[linen.LSTMCell]) -> Callable[..., Outputs]:
    """flax.linen.GRUCell or LSTMCell."""

    def run(directions: list[Parameters], inputs: Array, first: Any, hidden_size: int) -> tuple[Any, Array]:
        layers = [linen.RNN(cell(hidden_size, param_dtype=inputs.dtype)) for _ in directions]
        trees: dict[str, Any] = {"cell": tree(directions[0])}
        layer: Any = layers[0]
        if len(directions) == 2:
            layer = linen.Bidirectional(*layers)
            trees = {name: {"cell": tree(part)} for name, part in zip(DIRECTIONS, directions, strict=True)}
        return layer.apply({"params": trees}, inputs, initial_carry=first, return_carry=True)

    return recurrent(run, cell is linen.LSTMCell)


@takes(Attention, *HEADS)
def linen_multi_head(call: Attention) -> Outputs:
    """flax.linen.MultiHeadDotProductAttention: its mask is True where a key is open, and the weights are sown."""
    arrays = (call.queries, call.keys, call.values)
    layer = linen.MultiHeadDotProductAttention(
        call.num_heads,
        qkv_features=call.hidden_size,
        use_bias=call.bias,
        param_dtype=call.queries.dtype,
        deterministic=True,
    )
    variables = {"params": tree(call.parameters)}
    context, sown = layer.apply(variables, *arrays, mask=open_keys(call), sow_weights=True, mutable=["intermediates"])
    weights = sown["intermediates"]["attention_weights"][0]
    return context, weights if call.per_head else weights.mean(1)


linen_layers = SimpleNamespace(
    GRU=linen_recurrent(linen.GRUCell),
    LSTM=linen_recurrent(linen.LSTMCell),
    MultiHeadAttention=linen_multi_head,
)

# ------------------------------------------------------------------------------------------------ nnx


def load(made: nnx.Module, parameters: Parameters) -> None:
    """Replace all of the module's parameters: nnx.update itself would ignore a name that it does not know."""
    state = nnx.state(made, nnx.Param)
    given = {(module, name): array for module, arrays in tree(parameters).items() for name, array in arrays.items()}
    known = {path for path, _ in state.flat_state()}
    if set(given) != known:
        raise ValueError(f"the module has the parameters {sorted(known)}, not {sorted(given)}")
    nnx.update(made, nnx.State.from_flat_path({path: nnx.Param(array) for path, array in given.items()}))


def nnx_recurrent(
    cell: type[nnx.GRUCell] | type[nnx.LSTMCell] | type[nnx.OptimizedLSTMCell],
) -> Callable[..., Outputs]:
    """flax.nnx.GRUCell, LSTMCell or OptimizedLSTMCell."""
    lstm = cell is not nnx.GRUCell

    def run(directions: list[Parameters], inputs: Array, first: Any, hidden_size: int) -> tuple[Any, Array]:
        layers = []
        for part in directions:
            made = cell(inputs.shape[-1], hidden_size, param_dtype=inputs.dtype, rngs=nnx.Rngs(0))
            load(made, part)
            layers.append(nnx.RNN(made))
        layer: Any = nnx.Bidirectional(*layers) if len(directions) == 2 else layers[0]
        if first is None:
            width = hidden_size * len(directions) * (2 if lstm else 1)
            first = carry_of(jnp.zeros((1, len(inputs), width), inputs.dtype), len(directions), lstm)
        return layer(inputs, initial_carry=first, return_carry=True)

    return recurrent(run, lstm)


@takes(Attention, *HEADS)
def nnx_multi_head(call: Attention) -> Outputs:
    """flax.nnx.MultiHeadAttention: its mask is True where a key is open, and the weights are sown."""
    arrays = (call.queries, call.keys, call.values)
    layer = nnx.MultiHeadAttention(
        call.num_heads,
        call.queries.shape[-1],
        call.hidden_size or call.queries.shape[-1],
        in_kv_features=call.keys.shape[-1],
        use_bias=call.bias,
        param_dtype=call.queries.dtype,
        deterministic=True,
        decode=False,
        rngs=nnx.Rngs(0),
    )
    load(layer, call.parameters)
    context = layer(*arrays, mask=open_keys(call), sow_weights=True)
    weights = nnx.pop(layer, nnx.Intermediate)["attention_weights"][0]
    return context, weights if call.per_head else weights.mean(1)


def layer_norm(parameters: Parameters, inputs: Array, *, bias: bool = True, epsilon: float) -> Array:
    """flax.nnx.LayerNorm."""
    settings = {"epsilon": epsilon, "use_bias": bias, "param_dtype": inputs.dtype, "rngs": nnx.Rngs(0)}
    return load_by_paths(nnx.LayerNorm(inputs.shape[-1], **settings), parameters)(inputs)


def rms_norm(parameters: Parameters, inputs: Array, *, epsilon: float) -> Array:
    """flax.nnx.RMSNorm."""
    layer = nnx.RMSNorm(inputs.shape[-1], epsilon=epsilon, param_dtype=inputs.dtype, rngs=nnx.Rngs(0))
    return load_by_paths(layer, parameters)(inputs)


nnx_layers = SimpleNamespace(
    GRU=nnx_recurrent(nnx.GRUCell),
    LSTM=nnx_recurrent(nnx.LSTMCell),
    MultiHeadAttention=nnx_multi_head,
    LayerNorm=layer_norm,
    RMSNorm=rms_norm,
)
nnx_optimized = SimpleNamespace(LSTM=nnx_recurrent(nnx.OptimizedLSTMCell))

# ------------------------------------------------------------------------------------------------ the backend


def load_by_paths(layer: nnx.Module, parameters: Mapping[str, Array]) -> Any:
    """Replace the parameters of a layer, by their paths in its state."""
    flat = dict(nnx.state(layer, nnx.Param).flat_state())
    known = {".".join(map(str, path)): path for path in flat}
    given = {known[matching(name, known)]: nnx.Param(array) for name, array in parameters.items()}
    if len(given) < len(flat):
        raise ValueError(f"the layer has {', '.join(known)}, not {', '.join(parameters)}")
    nnx.update(layer, nnx.State.from_flat_path(given))
    return layer


attention_parity = backend_layers(backends.jax, runtime, load_by_paths, lambda array: array.dtype.name)
