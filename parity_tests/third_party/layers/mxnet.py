"""Gluon's recurrent layers as targets: parameters are those of a .params file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

# isort: off
from backends.mxnet import runtime  # first: it makes MXNet's import work beside a newer NumPy

import backends.mxnet
import mxnet as mx
from mxnet import autograd, np, npx
from mxnet.gluon import Block, rnn

from parity_tests.third_party.layers.own import longest, own_layers

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
            ends = [own for own in behind if name.endswith(own)]
            (behind[ends[0]] if ends else known[longest(name, known)]).set_data(array)
    return layer


def load_own(layer: Block, parameters: Mapping[str, Array]) -> Block:
    """The same for a layer of ours, which is made in its dtype."""
    known = layer._collect_params_with_prefix()
    with autograd.pause():
        for name, array in parameters.items():
            known[longest(name, known)].set_data(array)
    return layer


Own = own_layers(backends.mxnet, runtime, load_own, lambda array: array.dtype.name)


def recurrent(
    made: type[rnn.GRU] | type[rnn.LSTM],
    parameters: Parameters,
    inputs: Array,
    state: Array | None,
    hidden: int,
    layers: int,
    bidirectional: bool,
) -> tuple[Array, Array]:
    """Outputs and state of a fused layer."""
    layer = made(hidden, layers, "NTC", input_size=inputs.shape[-1], bidirectional=bidirectional)
    load(layer, parameters)
    batch, directions, parts = len(inputs), 2 if bidirectional else 1, len(layer.state_info())
    if state is None:
        state = np.zeros((layers, batch, parts * directions * hidden), dtype=inputs.dtype)
    # Ours: (layers, batch, parts · directions · hidden); theirs: (layers · directions, batch, hidden) of each part.
    first = state.reshape(layers, batch, parts, directions, hidden).transpose(2, 0, 3, 1, 4)
    first = first.reshape(parts, layers * directions, batch, hidden)
    outputs, last = layer(inputs, [first[part] for part in range(parts)])
    last = np.stack(list(last)).reshape(parts, layers, directions, batch, hidden).transpose(1, 3, 0, 2, 4)
    return outputs, last.reshape(layers, batch, -1)


class GRU:
    """mxnet.gluon.rnn.GRU."""

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
        """Lengths need cuDNN: on a CPU, MXNet refuses use_sequence_length."""
        return recurrent(rnn.GRU, parameters, inputs, state, hidden_size, num_layers, bidirectional)


class LSTM:
    """mxnet.gluon.rnn.LSTM."""

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
        """Lengths need cuDNN: on a CPU, MXNet refuses use_sequence_length."""
        return recurrent(rnn.LSTM, parameters, inputs, state, hidden_size, num_layers, bidirectional)


# ------------------------------------------------------------------------------------------------ from their formulas


def part_of(parameters: Parameters, name: str) -> Parameters:
    """The arrays of a part, by their names in it."""
    return {
        path.rpartition(f"{name}.")[2]: array for path, array in parameters.items() if f".{path}".count(f".{name}.")
    }


class TextbookEncoder:
    """The recurrent encoder of Dive into Deep Learning: an embedding, then Gluon's own layer."""

    @staticmethod
    def GRUEncoder(
        parameters: Parameters,
        tokens: Array,
        state: Array | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Array, Array]:
        """Without lengths, as the layer."""
        inputs = np.take(part_of(parameters, "embedding")["weight"], tokens, axis=0)
        return recurrent(rnn.GRU, part_of(parameters, "rnn"), inputs, state, hidden_size, num_layers, bidirectional)

    @staticmethod
    def LSTMEncoder(
        parameters: Parameters,
        tokens: Array,
        state: Array | None = None,
        *,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Array, Array]:
        """Without lengths, as the layer."""
        inputs = np.take(part_of(parameters, "embedding")["weight"], tokens, axis=0)
        return recurrent(rnn.LSTM, part_of(parameters, "rnn"), inputs, state, hidden_size, num_layers, bidirectional)


def projected(parameters: Parameters, name: str, inputs: Array) -> Array:
    """An nn.Dense of that name over the last axis, with a bias if there is one."""
    found = part_of(parameters, name)
    outputs = np.dot(inputs, found["weight"].T)
    return outputs + found["bias"] if "bias" in found else outputs


class TextbookBahdanauDecoder:
    """The attention decoder of Dive into Deep Learning, from its formulas; hidden scores are -1e6 there."""

    @staticmethod
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
        """The query is the top layer's last output; the recurrent layer reads [context; embedded token]."""
        made = rnn.LSTM if cell == "lstm" else rnn.GRU
        layer = made(hidden_size, num_layers, "NTC", input_size=encoder_outputs.shape[-1] + embed_size)
        load(layer, part_of(parameters, "rnn"))
        embedded = np.take(part_of(parameters, "embedding")["weight"], tokens, axis=0)
        keys = projected(parameters, "attention.W_k", encoder_outputs)
        parts = [state[..., start : start + hidden_size] for start in range(0, state.shape[-1], hidden_size)]
        logits, weights = [], []
        for step in range(tokens.shape[1]):
            query = projected(parameters, "attention.W_q", parts[0][-1])[:, None]
            scores = projected(parameters, "attention.w_v", np.tanh(query + keys)).swapaxes(1, 2)
            if valid_lens is not None:
                opened = np.arange(keys.shape[1], dtype=valid_lens.dtype) < valid_lens[:, None]
                scores = np.where(opened[:, None], scores, np.full_like(scores, -1e6))
            weight = npx.softmax(scores, axis=-1)
            context = npx.batch_dot(weight, encoder_outputs)
            inputs = np.concatenate([context, embedded[:, step : step + 1]], axis=-1)
            outputs, last = layer(inputs, parts)
            parts = list(last)
            logits.append(projected(parameters, "dense", outputs))
            weights.append(weight)
        return np.concatenate(logits, axis=1), np.concatenate(parts, axis=-1), np.concatenate(weights, axis=1)
