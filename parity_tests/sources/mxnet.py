"""Gluon's recurrent layers as targets: parameters are those of a .params file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

# isort: off
from backends.mxnet import runtime  # first: it makes MXNet's import work beside a newer NumPy

import backends.mxnet
import mxnet as mx
from mxnet import autograd, np
from mxnet.gluon import Block, rnn

from parity_tests.sources.own import longest, own_layers

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
    layer: rnn.GRU | rnn.LSTM, parameters: Parameters, inputs: Array, state: Array | None
) -> tuple[Array, Array]:
    """Outputs and state of a fused layer."""
    load(layer, parameters)
    batch, hidden, directions, layers = len(inputs), layer._hidden_size, layer._dir, layer._num_layers
    parts = len(layer.state_info())
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
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Array, Array]:
        """Lengths need cuDNN: on a CPU, MXNet refuses use_sequence_length."""
        layer = rnn.GRU(hidden_size, num_layers, "NTC", input_size=input_size, bidirectional=bidirectional)
        return recurrent(layer, parameters, inputs, state)


class LSTM:
    """mxnet.gluon.rnn.LSTM."""

    @staticmethod
    def LSTM(
        parameters: Parameters,
        inputs: Array,
        state: Array | None = None,
        *,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bidirectional: bool = False,
    ) -> tuple[Array, Array]:
        """Lengths need cuDNN: on a CPU, MXNet refuses use_sequence_length."""
        layer = rnn.LSTM(hidden_size, num_layers, "NTC", input_size=input_size, bidirectional=bidirectional)
        return recurrent(layer, parameters, inputs, state)
