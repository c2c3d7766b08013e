"""Wrong recurrent layers, encoders and bridges."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from attention_core.reference.arrays import align, linear, sigmoid
from parity_tests.mutants.mutant import mutant
from parity_tests.mutants.shared import has_sizes, with_parameters


def _with_gates(layer: Any, prefix: str, order: Sequence[int]) -> AbstractContextManager[Any]:
    """Within the context, the parameters of a layer's gates are read in another order."""
    arrays = {name: layer.parameters[prefix + name] for name in ("W", "U", "b")}
    axes = {"W": -3, "U": -3, "b": -2}
    return with_parameters(layer, **{prefix + name: array.take(order, axes[name]) for name, array in arrays.items()})


def _is_ragged(real: Any) -> bool:
    """Whether a sequence ends before its last step, and has a first one."""
    return bool((real.any(axis=1) & ~real.all(axis=1)).any())


def _has_padding(inputs: Any, valid_lens: Any) -> bool:
    """Whether a sequence ends before its last step."""
    return valid_lens is not None and bool((valid_lens < inputs.shape[-2]).any())


def _is_bridged_apart(self: Any) -> bool:
    """Whether a bridge has weights for outputs and cells each."""
    return self.sizes["parts"] == 2 and bool(self.parameters)


of_gru = partial(mutant, "recurrent.GRU._cell")
of_lstm = partial(mutant, "recurrent.LSTM._cell")


@of_gru()
def gates_swapped(original: Any, self: Any, prefix: str) -> Any:
    """Reset and update gate are swapped."""
    with _with_gates(self, prefix, [1, 0, 2]):
        return original()


@of_gru()
def update_inverted(original: Any, self: Any, prefix: str) -> Any:
    """The update gate keeps the new state instead of the old one."""
    sign = np.array([1.0, -1.0, 1.0])[:, None]  # 1 - σ(x) = σ(-x)
    W, U, b = (self.parameters[prefix + name] for name in ("W", "U", "b"))
    changed = {"W": W * sign[..., None], "U": U * sign[..., None], "b": b * sign}
    with with_parameters(self, **{prefix + name: array for name, array in changed.items()}):
        return original()


@of_gru()
def reset_after_off(self: Any, prefix: str, inputs: Any, state: Any) -> Any:
    """The reset gate acts before the recurrent product."""
    W, U, b, b_hn = (self.parameters[prefix + name] for name in ("W", "U", "b", "b_hn"))
    x = [linear(inputs, W[..., gate, :, :], b[..., gate, :]) for gate in range(3)]
    reset, update = (sigmoid(x[gate] + linear(state, U[..., gate, :, :])) for gate in range(2))
    new = np.tanh(x[2] + linear(reset * state, U[..., 2, :, :]) + align(b_hn, 1, state.ndim))
    return (1.0 - update) * new + update * state


@of_gru()
def hidden_bias_dropped(original: Any, self: Any, prefix: str) -> Any:
    """The hidden bias is not added."""
    with with_parameters(self, **{f"{prefix}b_hn": np.zeros(self.sizes["hidden_size"])}):
        return original()


@of_gru(touches=lambda prefix: not prefix.startswith("0."))
def upper_layers_skipped(inputs: Any) -> Any:
    """Layers above the first pass on what they read."""
    return inputs


@mutant("recurrent.GRU.__call__", cases="GRU-ragged", touches=_has_padding)
def padding_moves_state(original: Any, inputs: Any) -> Any:
    """Padded steps move the state."""
    _, moved = original(inputs=np.where(np.isfinite(inputs), inputs, 0.0), valid_lens=None)
    return original()[0], moved


@mutant("recurrent.GRU.__call__", touches=_has_padding)
def padding_answers(original: Any, inputs: Any) -> Any:
    """Outputs of padded steps are not 0."""
    outputs, _ = original(inputs=np.where(np.isfinite(inputs), inputs, 0.0), valid_lens=None)
    return outputs, original()[1]


@mutant("recurrent.GRU.__call__", cases="GRU-none", touches=lambda self: self.sizes["num_layers"] > 1)
def states_reversed(original: Any) -> Any:
    """The last states come back from the top layer down."""
    outputs, last = original()
    return outputs, last[..., ::-1, :, :]


@mutant("encoders.embed", cases="GRUEncoder-*")
def embedding_scaled(original: Any, table: Any) -> Any:
    """Embedded tokens are multiplied by the root of their size."""
    return original() * np.sqrt(table.shape[-1])


@of_lstm()
def gate_order_of_another(original: Any, self: Any, prefix: str) -> Any:
    """The gates of an LSTM are read in the order i, f, o, g."""
    with _with_gates(self, prefix, [0, 1, 3, 2]):
        return original()


@mutant("recurrent.LSTM._cell", "recurrent.GRU._cell")
def dropout_for_bias(original: Any, self: Any, prefix: str) -> Any:
    """The dropout rate stands in the place of the option bias: there are no biases, and nothing is dropped."""
    biases = {name: array for name, array in self.parameters.items() if name.startswith(f"{prefix}b")}
    with with_parameters(self, **{name: np.zeros(array.shape) for name, array in biases.items()}):
        return original()


@of_lstm()
def forget_bias_added(original: Any, self: Any, prefix: str) -> Any:
    """1 is added to the bias of the forget gate."""
    forget = np.array([0.0, 1.0, 0.0, 0.0])[:, None]
    with with_parameters(self, **{f"{prefix}b": self.parameters[f"{prefix}b"] + forget}):
        return original()


@of_lstm()
def cells_not_squashed(original: Any) -> Any:
    """The output of an LSTM is made of its cells without their tanh."""
    outputs, cells = np.split(original(), 2, axis=-1)
    return np.concatenate([outputs / np.tanh(cells) * cells, cells], axis=-1)


@mutant("recurrent.LSTM.__call__", cases="LSTM-none")
def cells_first(original: Any) -> Any:
    """The state of an LSTM holds its cells first."""
    outputs, state = original()
    return outputs, np.roll(state, state.shape[-1] // 2, axis=-1)


@mutant(
    "recurrent.Recurrent._run",
    cases="GRU-* LSTM-*",
    touches=lambda real, backward: backward and _is_ragged(real),
    source="apache/mxnet#19323",
)
def backward_from_the_end(original: Any, real: Any) -> Any:
    """The backward direction begins in the padding."""
    outputs, last = original(real=np.ones_like(real))
    return np.where(real[..., None], outputs, 0.0), last


@mutant("recurrent.GRU.__call__", touches=has_sizes(bidirectional=True))
def directions_swapped(original: Any, self: Any) -> Any:
    """Outputs hold the backward direction first."""
    outputs, state = original()
    return np.roll(outputs, self.sizes["hidden_size"], axis=-1), state


@mutant("encoders.Bridge.__call__", touches=lambda self: self.sizes["method"] != "sum")
def forward_for_backward(original: Any, self: Any, state: Any) -> Any:
    """A bridge takes the forward half for the backward one."""
    halves = state.reshape(*state.shape[:-1], self.sizes["parts"], 2, self.sizes["hidden_size"])
    return original(state=halves[..., ::-1, :].reshape(state.shape))


@mutant("encoders.Bridge.__call__", touches=has_sizes(method="sum"))
def outputs_not_summed(original: Any, self: Any, outputs: Any) -> Any:
    """A bridge that sums hands on the forward outputs."""
    _, state = original()
    return outputs[..., : self.sizes["hidden_size"]], state


@mutant("encoders.Bridge.__call__", touches=_is_bridged_apart)
def one_weight_for_both(original: Any, self: Any) -> Any:
    """Outputs and cells of an LSTM are bridged by the same weights."""
    axes = {name: -2 if name.endswith("b_s") else -3 for name in self.parameters}
    outputs_alone = np.zeros(self.sizes["parts"], int)
    firsts = {name: array.take(outputs_alone, axes[name]) for name, array in self.parameters.items()}
    with with_parameters(self, **firsts):
        return original()


@mutant(
    "recurrent.Recurrent.__call__",
    "transformer_layers.TransformerEncoderLayer.__call__",
    cases="GRU-* LSTM-* TransformerEncoderLayer-*",
    touches=lambda arguments: not any(arguments.get(name) is not None for name in ("valid_lens", "mask", "state")),
)
def batch_for_steps(original: Any, inputs: Any) -> Any:
    """The sequences of a batch are read as steps, and the steps as sequences."""
    outputs, state = original(inputs=inputs.swapaxes(-2, -3))
    return outputs.swapaxes(-2, -3), state


@mutant(
    "recurrent.Recurrent._run",
    cases="GRU-*",
    touches=lambda real, backward: backward and _is_ragged(real),
    source="keras-team/keras#1934",
)
def mask_not_reversed(original: Any, real: Any) -> Any:
    """The backward direction reads its steps reversed, and the mask of their padding as it is."""
    return original(real=real[:, ::-1])


@mutant(
    "recurrent.Recurrent._run", cases="GRU-both_none", touches=lambda backward: backward, source="keras-team/keras#1001"
)
def outputs_as_computed(original: Any) -> Any:
    """The backward direction's outputs stay in the order in which they are computed, the last step first."""
    outputs, last = original()
    return outputs[..., ::-1, :], last


@mutant(
    "recurrent.Recurrent._run",
    cases="LSTM-*",
    touches=lambda real, backward: not backward and _is_ragged(real),
    source="keras-team/keras#7227",
)
def last_output_repeated(original: Any, real: Any) -> Any:
    """Padded steps repeat the last output."""
    outputs, last = original()
    ends = np.minimum(np.arange(real.shape[1]), np.maximum(real.sum(axis=1) - 1, 0)[:, None])
    return outputs[..., np.arange(len(real))[:, None], ends, :], last


@mutant(
    "recurrent.Recurrent.__call__",
    cases="LSTM-*",
    touches=has_sizes(bidirectional=True),
    source="graykode/nlp-tutorial#38",
)
def directions_mixed(original: Any, self: Any) -> Any:
    """The last states of both directions are reshaped for each sequence, and those of sequences are mixed.

    (directions, batch, hidden_size) viewed as (batch, directions · hidden_size).
    """
    outputs, state = original()
    *lead, batch, size = state.shape
    parts = state.reshape(*lead, batch, self.parts, 2, self.sizes["hidden_size"])
    mixed = np.moveaxis(parts, -4, -2).reshape(*lead, self.parts, batch, size // self.parts)
    return outputs, np.moveaxis(mixed, -3, -2).reshape(state.shape)


@mutant(
    "recurrent.Recurrent.__call__",
    cases="GRU-*",
    touches=has_sizes(bidirectional=True),
    source="ematvey/tensorflow-seq2seq-tutorials#1",
)
def forward_twice(original: Any, self: Any) -> Any:
    """Outputs of both directions are the forward ones, twice."""
    outputs, state = original()
    forward = outputs[..., : self.sizes["hidden_size"]]
    return np.concatenate([forward, forward], axis=-1), state


@of_lstm(source="CrispStrobe/CrispASR#106")
def gate_order_of_onnx(original: Any, self: Any, prefix: str) -> Any:
    """The gates of an LSTM are read in the order i, o, f, g."""
    with _with_gates(self, prefix, [0, 2, 3, 1]):
        return original()
