"""Gluon's own layers, and third-party layers in Gluon, as targets: parameters are those of a .params file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

# isort: off
from backends.mxnet import runtime  # first: it makes MXNet's import work beside a newer NumPy

import backends.mxnet
import mxnet as mx
from mxnet import autograd, np, npx
from mxnet.gluon import Block, nn, rnn

from parity_tests.third_party.layers.shared import WITHOUT_LENGTHS, backend_layers, matching, part_of
from parity_tests.third_party.signatures import Outputs, Recurrent, takes
from parity_tests.workers.target import NotImplementedHere

# isort: on

Parameters: TypeAlias = dict[str, np.ndarray]
Array: TypeAlias = np.ndarray


def load(layer: Block, parameters: Mapping[str, Array]) -> Block:
    """Set the layer's parameters, by their names in save_parameters, or in collect_params behind any prefix."""
    known = layer._collect_params_with_prefix()
    behind = getattr(layer, "_reg_params", {}) if isinstance(layer, rnn.rnn_layer._RNNLayer) else {}
    dtype = next(iter(parameters.values())).dtype
    with autograd.pause():
        layer.initialize(mx.init.Zero())
        layer.cast(dtype.name)  # afterwards, since MXNet draws no float64
        for name, array in parameters.items():
            ends = [end for end in behind if name.endswith(end)]
            (behind[ends[0]] if ends else known[matching(name, known)]).set_data(array)
    return layer


def load_backend_layer(layer: Block, parameters: Mapping[str, Array]) -> Block:
    """The same for a backend's layer, which is made in its dtype."""
    known = layer._collect_params_with_prefix()
    with autograd.pause():
        for name, array in parameters.items():
            known[matching(name, known)].set_data(array)
    return layer


attention_parity = backend_layers(backends.mxnet, runtime, load_backend_layer, lambda array: array.dtype.name)


def run(made: type[rnn.GRU] | type[rnn.LSTM], call: Recurrent) -> Outputs:
    """Outputs and state of a fused layer, without lengths: on a CPU, MXNet refuses use_sequence_length."""
    inputs, hidden, layers, directions = call.inputs, call.hidden_size, call.num_layers, call.directions
    layer = made(hidden, layers, "NTC", input_size=inputs.shape[-1], bidirectional=call.bidirectional)
    load(layer, call.parameters)
    batch, parts, state = len(inputs), len(layer.state_info()), call.state
    if state is None:
        state = np.zeros((layers, batch, parts * directions * hidden), dtype=inputs.dtype)
    # Ours: (layers, batch, parts · directions · hidden); theirs: (layers · directions, batch, hidden) of each part.
    first = state.reshape(layers, batch, parts, directions, hidden).transpose(2, 0, 3, 1, 4)
    first = first.reshape(parts, layers * directions, batch, hidden)
    outputs, last = layer(inputs, [first[part] for part in range(parts)])
    last = np.stack(list(last)).reshape(parts, layers, directions, batch, hidden).transpose(1, 3, 0, 2, 4)
    return outputs, last.reshape(layers, batch, -1)


def recurrent(made: type[rnn.GRU] | type[rnn.LSTM]) -> Callable[..., Outputs]:
    """mxnet.gluon.rnn.GRU or LSTM."""
    return takes(Recurrent, "inputs", *WITHOUT_LENGTHS)(lambda call: run(made, call))


GRU, LSTM = recurrent(rnn.GRU), recurrent(rnn.LSTM)


def LayerNorm(parameters: Parameters, inputs: Array, *, epsilon: float) -> Array:
    """mxnet.gluon.nn.LayerNorm, which always has a beta."""
    if inputs.dtype.name == "float64" and float(np.array(epsilon, "float32")) != epsilon:
        raise NotImplementedHere(f"MXNet holds epsilon {epsilon} in float32, also in a layer of float64")
    return load(nn.LayerNorm(epsilon=epsilon, in_channels=inputs.shape[-1]), parameters)(inputs)


# ------------------------------------------------------------------------------------------------ from their formulas


def encoder(made: type[rnn.GRU] | type[rnn.LSTM]) -> Callable[..., Outputs]:
    """The recurrent encoder of Dive into Deep Learning: an embedding, then Gluon's layer, without lengths."""

    @takes(Recurrent, "tokens", *WITHOUT_LENGTHS)
    def call(call: Recurrent) -> Outputs:
        inputs = np.take(part_of(call.parameters, "embedding")["weight"], call.tokens, axis=0)
        return run(made, replace(call, inputs=inputs, parameters=part_of(call.parameters, "rnn")))

    return call


GRUEncoder, LSTMEncoder = encoder(rnn.GRU), encoder(rnn.LSTM)


def project(parameters: Parameters, name: str, inputs: Array) -> Array:
    """An nn.Dense of that name over the last axis, with a bias if there is one."""
    arrays = part_of(parameters, name)
    outputs = np.dot(inputs, arrays["weight"].T)
    return outputs + arrays["bias"] if "bias" in arrays else outputs


def BahdanauDecoder(
    parameters: Parameters,
    tokens: Array,
    encoder_outputs: Array,
    state: Array,
    valid_lens: Array | None = None,
    *,
    embed_size: int,
    hidden_size: int,
    num_layers: int = 1,
    cell: str = "gru",
) -> tuple[Array, Array, Array]:
    """The attention decoder of Dive into Deep Learning, from its formulas; hidden scores are -1e6 there.

    The query is the top layer's last output; the recurrent layer reads [context; embedded token].
    """
    made = rnn.LSTM if cell == "lstm" else rnn.GRU
    layer = made(hidden_size, num_layers, "NTC", input_size=encoder_outputs.shape[-1] + embed_size)
    load(layer, part_of(parameters, "rnn"))
    embedded = np.take(part_of(parameters, "embedding")["weight"], tokens, axis=0)
    keys = project(parameters, "attention.W_k", encoder_outputs)
    parts = [state[..., start : start + hidden_size] for start in range(0, state.shape[-1], hidden_size)]
    logits, weights = [], []
    for step in range(tokens.shape[1]):
        query = project(parameters, "attention.W_q", parts[0][-1])[:, None]
        scores = project(parameters, "attention.w_v", np.tanh(query + keys)).swapaxes(1, 2)
        if valid_lens is not None:
            opened = np.arange(keys.shape[1], dtype=valid_lens.dtype) < valid_lens[:, None]
            scores = np.where(opened[:, None], scores, np.full_like(scores, -1e6))
        weight = npx.softmax(scores, axis=-1)
        context = npx.batch_dot(weight, encoder_outputs)
        inputs = np.concatenate([context, embedded[:, step : step + 1]], axis=-1)
        outputs, last = layer(inputs, parts)
        parts = list(last)
        logits.append(project(parameters, "dense", outputs))
        weights.append(weight)
    return np.concatenate(logits, axis=1), np.concatenate(parts, axis=-1), np.concatenate(weights, axis=1)
