"""Wrong recurrent layers, encoders and bridges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference import recurrent
from attention_core.reference.arrays import align, linear
from parity_tests.cases.case import Arrays, Case
from parity_tests.mutants.mutant import Break, mutant
from parity_tests.mutants.shared import GATED, NOTHING, where_all


def _cell(change: Callable[..., Any]) -> Break:
    """One step of one layer, by another formula of its parameters: W, U, b, b_hn, inputs, state."""

    def wrong(original: Any) -> Any:
        def cell(self: Any, prefix: str, inputs: Any, state: Any) -> Any:
            return change(*(self.parameters[prefix + name] for name in ("W", "U", "b", "b_hn")), inputs, state)

        return cell

    return wrong


def _gates(W: Any, U: Any, b: Any, inputs: Any, state: Any) -> tuple[list[Any], list[Any]]:
    from_inputs = [linear(inputs, W[..., gate, :, :], b[..., gate, :]) for gate in range(3)]
    return from_inputs, [linear(state, U[..., gate, :, :]) for gate in range(3)]


def _lstm(change: Callable[..., tuple[Any, Any]]) -> Break:
    """One step of an LSTM, by another formula of its four gates before their nonlinearities, and its cells."""

    def wrong(original: Any) -> Any:
        def cell(self: Any, prefix: str, inputs: Any, state: Any) -> Any:
            weights, recurrent_weights, bias = (self.parameters[prefix + name] for name in ("W", "U", "b"))
            hidden, cells = np.split(state, 2, axis=-1)
            gates = [
                linear(inputs, weights[..., gate, :, :], bias[..., gate, :])
                + linear(hidden, recurrent_weights[..., gate, :, :])
                for gate in range(4)
            ]
            return np.concatenate(change(*gates, cells), axis=-1)

        return cell

    return wrong


def _lstm_step(i: Any, f: Any, g: Any, o: Any, cells: Any) -> tuple[Any, Any]:
    cells = recurrent.sigmoid(f) * cells + recurrent.sigmoid(i) * np.tanh(g)
    return recurrent.sigmoid(o) * np.tanh(cells), cells


LSTM_STEPS = ("LSTM-none", "LSTM-step", "LSTM-no_steps")


def _first(inputs: Arrays) -> np.ndarray:
    """The first argument: its first axis is that of sequences, if time is not."""
    return next(iter(inputs.values()))


def _both_directions(case: Case, inputs: Arrays) -> bool:
    """Whether a recurrent layer runs in both directions, over some steps."""
    return bool(case.config.get("bidirectional")) and _first(inputs).shape[1] > 0


def _several_sequences(case: Case, inputs: Arrays) -> bool:
    return _first(inputs).shape[0] > 1


def _ragged(case: Case, inputs: Arrays) -> bool:
    """Whether a sequence of a recurrent layer ends before its last step, and has a first one."""
    steps, lens = _first(inputs).shape[1], inputs.get("valid_lens")
    return lens is not None and bool(((lens > 0) & (lens < steps)).any())


@mutant(GATED, of="recurrent.GRU.cell", via=_cell, red="*:*", green=NOTHING)
def gates_swapped(W: Any, U: Any, b: Any, b_hn: Any, inputs: Any, state: Any) -> Any:
    """Reset and update gate are swapped."""
    x, h = _gates(W, U, b, inputs, state)
    update, reset = recurrent.sigmoid(x[0] + h[0]), recurrent.sigmoid(x[1] + h[1])
    new = np.tanh(x[2] + reset * (h[2] + align(b_hn, 1, state.ndim)))
    return (1.0 - update) * new + update * state


@mutant(GATED, of="recurrent.GRU.cell", via=_cell, red="*:*", green=NOTHING)
def update_inverted(W: Any, U: Any, b: Any, b_hn: Any, inputs: Any, state: Any) -> Any:
    """The update gate keeps the new state instead of the old one."""
    x, h = _gates(W, U, b, inputs, state)
    reset, update = recurrent.sigmoid(x[0] + h[0]), recurrent.sigmoid(x[1] + h[1])
    return update * np.tanh(x[2] + reset * (h[2] + align(b_hn, 1, state.ndim))) + (1.0 - update) * state


@mutant(GATED, of="recurrent.GRU.cell", via=_cell, red="*:*", green=NOTHING)
def reset_after_off(W: Any, U: Any, b: Any, b_hn: Any, inputs: Any, state: Any) -> Any:
    """The reset gate acts before the recurrent product."""
    x, h = _gates(W, U, b, inputs, state)
    reset, update = recurrent.sigmoid(x[0] + h[0]), recurrent.sigmoid(x[1] + h[1])
    new = np.tanh(x[2] + linear(reset * state, U[..., 2, :, :]) + align(b_hn, 1, state.ndim))
    return (1.0 - update) * new + update * state


@mutant(GATED, of="recurrent.GRU.cell", via=_cell, red="*:*", green=NOTHING)
def hidden_bias_dropped(W: Any, U: Any, b: Any, b_hn: Any, inputs: Any, state: Any) -> Any:
    """The hidden bias is not added."""
    x, h = _gates(W, U, b, inputs, state)
    reset, update = recurrent.sigmoid(x[0] + h[0]), recurrent.sigmoid(x[1] + h[1])
    return (1.0 - update) * np.tanh(x[2] + reset * h[2]) + update * state


@mutant(GATED, of="recurrent.GRU.cell", red="*:*", green=NOTHING)
def upper_layers_skipped(original: Any) -> Any:
    """Layers above the first pass on what they read."""

    def cell(self: Any, prefix: str, inputs: Any, state: Any) -> Any:
        return original(self, prefix, inputs, state) if prefix.startswith("0.") else inputs

    return cell


@mutant(
    ("GRU-none", "GRU-ragged", "GRU-closed"),
    of="recurrent.GRU.__call__",
    red=("GRU-ragged:*", "GRU-closed:*"),
    green="*:outputs",
)
def padding_moves_state(original: Any) -> Any:
    """Padded steps move the state."""

    def call(self: Any, inputs: Any, valid_lens: Any = None, state: Any = None, *, dropout_mask: Any = None) -> Any:
        _, moved = original(self, np.where(np.isfinite(inputs), inputs, 0.0), None, state, dropout_mask=dropout_mask)
        outputs, _ = original(self, inputs, valid_lens, state, dropout_mask=dropout_mask)
        return outputs, moved

    return call


@mutant(
    ("GRU-none", "GRU-ragged", "GRU-closed"),
    of="recurrent.GRU.__call__",
    red=("GRU-ragged:*", "GRU-closed:*"),
    green="*:state",
)
def padding_answers(original: Any) -> Any:
    """Outputs of padded steps are not 0."""

    def call(self: Any, inputs: Any, valid_lens: Any = None, state: Any = None, *, dropout_mask: Any = None) -> Any:
        outputs, _ = original(self, np.where(np.isfinite(inputs), inputs, 0.0), None, state, dropout_mask=dropout_mask)
        return outputs, original(self, inputs, valid_lens, state, dropout_mask=dropout_mask)[1]

    return call


@mutant(("GRU-none", "GRU-one_step"), of="recurrent.GRU.__call__", red="GRU-none:*", green="*:outputs")
def states_reversed(original: Any) -> Any:
    """The last states come back from the top layer down."""

    def call(self: Any, inputs: Any, valid_lens: Any = None, state: Any = None, *, dropout_mask: Any = None) -> Any:
        outputs, last = original(self, inputs, valid_lens, state, dropout_mask=dropout_mask)
        return outputs, last[..., ::-1, :, :]

    return call


@mutant(("GRUEncoder-none", "GRUEncoder-no_*"), of="encoders.embed", red="*:*", green=NOTHING)
def embedding_scaled(original: Any) -> Any:
    """Embedded tokens are multiplied by the root of their size."""
    return lambda title, tokens, table: original(title, tokens, table) * np.sqrt(table.shape[-1])


@mutant(LSTM_STEPS, of="recurrent.LSTM.cell", via=_lstm, red="*:*", green=NOTHING)
def gate_order_of_another(i: Any, f: Any, g: Any, o: Any, cells: Any) -> tuple[Any, Any]:
    """The gates of an LSTM are read in the order i, f, o, g."""
    return _lstm_step(i, f, o, g, cells)


@mutant(LSTM_STEPS, of="recurrent.LSTM.cell", via=_lstm, red="*:*", green=NOTHING)
def forget_bias_added(i: Any, f: Any, g: Any, o: Any, cells: Any) -> tuple[Any, Any]:
    """1 is added to the bias of the forget gate."""
    return _lstm_step(i, f + 1.0, g, o, cells)


@mutant(LSTM_STEPS, of="recurrent.LSTM.cell", via=_lstm, red="*:*", green=NOTHING)
def cells_not_squashed(i: Any, f: Any, g: Any, o: Any, cells: Any) -> tuple[Any, Any]:
    """The output of an LSTM is made of its cells without their tanh."""
    cells = recurrent.sigmoid(f) * cells + recurrent.sigmoid(i) * np.tanh(g)
    return recurrent.sigmoid(o) * cells, cells


@mutant(
    ("LSTM-none", "LSTM-no_steps"),
    of="recurrent.LSTM.__call__",
    red=("LSTM-none:*", "LSTM-no_steps:state", "LSTM-no_steps:gradient_state"),
    green="*:outputs",
)
def cells_first(original: Any) -> Any:
    """The state of an LSTM holds its cells first."""

    def call(self: Any, *arrays: Any, **given: Any) -> Any:
        outputs, state = original(self, *arrays, **given)
        return outputs, np.roll(state, state.shape[-1] // 2, axis=-1)

    return call


@mutant(
    ("GRU-both_open", "GRU-both_ragged", "LSTM-both_ragged"),
    of="recurrent.Recurrent.run",
    red="*-both_ragged:*",
    source="apache/mxnet#19323",
)
def backward_from_the_end(original: Any) -> Any:
    """The backward direction begins in the padding."""

    def run(self: Any, prefix: str, inputs: Any, state: Any, real: Any, backward: bool) -> Any:
        outputs, last = original(self, prefix, inputs, state, np.ones_like(real) if backward else real, backward)
        return np.where(real[..., None], outputs, 0.0), last

    return run


@mutant(("GRU-both_none", "GRU-none"), of="recurrent.GRU.__call__", red="GRU-both_none:*", green="*:state")
def directions_swapped(original: Any) -> Any:
    """Outputs hold the backward direction first."""

    def call(self: Any, *arrays: Any, **given: Any) -> Any:
        outputs, state = original(self, *arrays, **given)
        both = self.sizes["bidirectional"]
        return np.roll(outputs, self.sizes["hidden_size"], axis=-1) if both else outputs, state

    return call


@mutant(
    "Bridge-*",
    of="encoders.Bridge.__call__",
    red=("Bridge-concatenate_*:*state", "Bridge-project_*:*", "Bridge-backward_*:*"),
    green="*outputs",
)
def forward_for_backward(original: Any) -> Any:
    """A bridge takes the forward half for the backward one."""

    def call(self: Any, outputs: Any, state: Any) -> Any:
        hidden = self.sizes["hidden_size"]
        parts = state.reshape(*state.shape[:-1], self.sizes["parts"], 2 * hidden)
        return original(self, outputs, np.roll(parts, hidden, axis=-1).reshape(state.shape))

    return call


@mutant(
    "Bridge-*", of="encoders.Bridge.__call__", red=("Bridge-sum_*:encoder_outputs", "Bridge-sum_*:gradient_outputs")
)
def outputs_not_summed(original: Any) -> Any:
    """A bridge that sums hands on the forward outputs."""

    def call(self: Any, outputs: Any, state: Any) -> Any:
        merged, state = original(self, outputs, state)
        return merged if self.sizes["method"] != "sum" else outputs[..., : self.sizes["hidden_size"]], state

    return call


@mutant(
    "Bridge-*", of="encoders.Bridge.__call__", red=("Bridge-project_lstm:*", "Bridge-backward_lstm:*"), green="*outputs"
)
def one_weight_for_both(original: Any) -> Any:
    """Outputs and cells of an LSTM are bridged by the same weights."""

    def call(self: Any, outputs: Any, state: Any) -> Any:
        firsts = {
            name: np.repeat(
                array[..., :1, :] if name.endswith("b_s") else array[..., :1, :, :],
                self.sizes["parts"],
                axis=-2 if name.endswith("b_s") else -3,
            )
            for name, array in self.parameters.items()
        }
        with mock.patch.object(self, "parameters", firsts):
            return original(self, outputs, state)

    return call


@mutant(
    ("GRU-both_ragged", "GRU-both_open", "GRU-ragged"),
    of="recurrent.Recurrent.run",
    touches=where_all(_both_directions, _ragged),
    source="keras-team/keras#1934",
)
def mask_not_reversed(original: Any) -> Any:
    """The backward direction reads its steps reversed, and the mask of their padding as it is."""

    def run(self: Any, prefix: str, inputs: Any, state: Any, real: Any, backward: bool) -> Any:
        return original(self, prefix, inputs, state, real[:, ::-1] if backward else real, backward)

    return run


@mutant(
    ("GRU-both_none", "GRU-none"),
    of="recurrent.Recurrent.run",
    touches=where_all(_both_directions),
    source="keras-team/keras#1001",
)
def outputs_as_computed(original: Any) -> Any:
    """The backward direction's outputs stay in the order in which they are computed, the last step first."""

    def run(self: Any, prefix: str, inputs: Any, state: Any, real: Any, backward: bool) -> Any:
        outputs, last = original(self, prefix, inputs, state, real, backward)
        return outputs[..., ::-1, :] if backward else outputs, last

    return run


@mutant(
    ("LSTM-none", "LSTM-ragged", "LSTM-both_ragged", "LSTM-closed"),
    of="recurrent.Recurrent.run",
    touches=where_all(_ragged),
    source="keras-team/keras#7227",
)
def last_output_repeated(original: Any) -> Any:
    """Padded steps repeat the last output."""

    def run(self: Any, prefix: str, inputs: Any, state: Any, real: Any, backward: bool) -> Any:
        outputs, last = original(self, prefix, inputs, state, real, backward)
        if backward or not real.size:
            return outputs, last
        ends = np.minimum(np.arange(real.shape[1]), np.maximum(real.sum(axis=1) - 1, 0)[:, None])
        return outputs[..., np.arange(len(real))[:, None], ends, :], last

    return run


@mutant(
    ("LSTM-both_none", "LSTM-none"),
    of="recurrent.Recurrent.__call__",
    touches=where_all(_both_directions, _several_sequences),
    source="graykode/nlp-tutorial#38",
)
def directions_mixed(original: Any) -> Any:
    """The last states of both directions are reshaped for each sequence, and those of sequences are mixed.

    (directions, batch, hidden_size) viewed as (batch, directions · hidden_size).
    """

    def call(self: Any, *arrays: Any, **given: Any) -> Any:
        outputs, state = original(self, *arrays, **given)
        if not self.sizes["bidirectional"]:
            return outputs, state
        *lead, batch, size = state.shape
        parts = state.reshape(*lead, batch, self.parts, 2, self.sizes["hidden_size"])
        mixed = np.moveaxis(parts, -4, -2).reshape(*lead, self.parts, batch, size // self.parts)
        return outputs, np.moveaxis(mixed, -3, -2).reshape(state.shape)

    return call


@mutant(
    ("GRU-both_none", "GRU-none"),
    of="recurrent.Recurrent.__call__",
    touches=where_all(_both_directions),
    source="ematvey/tensorflow-seq2seq-tutorials#1",
)
def forward_twice(original: Any) -> Any:
    """Outputs of both directions are the forward ones, twice."""

    def call(self: Any, *arrays: Any, **given: Any) -> Any:
        outputs, state = original(self, *arrays, **given)
        forward = outputs[..., : self.sizes["hidden_size"]]
        return np.concatenate([forward, forward], axis=-1) if self.sizes["bidirectional"] else outputs, state

    return call


@mutant(
    ("LSTM-none", "LSTM-step", "LSTM-no_steps"),
    of="recurrent.LSTM.cell",
    via=_lstm,
    red="*:*",
    green=NOTHING,
    source="CrispStrobe/CrispASR#106",
)
def gate_order_of_onnx(i: Any, o: Any, f: Any, g: Any, cells: Any) -> Any:
    """The gates of an LSTM are read in the order i, o, f, g."""
    return _lstm_step(i, f, g, o, cells)
