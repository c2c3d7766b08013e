"""Recurrent layers, encoders, and the bridge from two directions to one, in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from attention_core.errors import check, check_options
from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.operators.recurrent import check_one_direction
from attention_core.specification import Layer, Part
from backends.torch.module import drawn, drawn_mask

__all__ = ["GRU", "LSTM"]

HOLD = 1e4  # as the input of a sigmoid, in every floating type, exactly 1, and its negative exactly 0


class Recurrent(nn.Module):
    """What the recurrent layers share: a step, and a call that runs steps in one direction or both.

    A state is (num_layers, batch, state_size): the output of each layer, forward then backward, and after them, for an
    LSTM, the cells in the same order.
    """

    specification: Layer

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        bidirectional: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(
            self.specification,
            input_size=input_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
            bidirectional=bidirectional,
        )
        shapes = self.specification.own_shapes(self.sizes)

        def made(pattern: str, layers: range) -> nn.ModuleList:
            found = [inner(shapes, pattern.format(layer)) for layer in layers]
            return nn.ModuleList(Weights(own, hidden_size, dtype=dtype, device=device) for own in found)

        self.layers = made("{}.", range(num_layers))
        self.backward_layers = made("{}.backward.", range(num_layers if bidirectional else 0))
        self.dropout = nn.Dropout(dropout)

    def cell(self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The next state of one layer, (batch, state_size)."""
        raise NotImplementedError

    def run(
        self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor, valid_lens: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of one layer from the first step on, and its last state, (batch, what a state holds, hidden_size)."""
        raise NotImplementedError

    def step(
        self, inputs: torch.Tensor, state: torch.Tensor, *, dropout_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one step.

        Shapes: inputs (batch, input_size), state (num_layers, batch, state_size), dropout_mask
        (num_layers - 1, batch, output_size); returns (output, state). A bidirectional layer has no step.
        """
        check_one_direction(self.specification.method("step").title, self.sizes)
        check(
            self.specification.method("step"),
            self.sizes,
            self.layers[0].W.dtype,
            inputs=inputs,
            state=state,
            dropout_mask=dropout_mask,
        )
        return self.advance(inputs, state, dropout_mask)

    def advance(
        self, inputs: torch.Tensor, state: torch.Tensor, dropout_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of checked arguments, for those who take many."""
        hidden = self.sizes["hidden_size"]
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, state[1:, :, :hidden])
        output, states = inputs, []
        for index, weights in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            states.append(self.cell(weights, output, state[index]))
            output = states[-1][:, :hidden]
        return output, torch.stack(states)

    def forward(
        self,
        inputs: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        state: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run over a batch of sequences.

        outputs[t], state[t] = step(inputs[t], state[t - 1]) where t < valid_len; else 0 and state[t - 1]

        The backward direction runs from the last valid step to the first, and each layer reads both directions of the
        one below.
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
            state = inputs.new_zeros(len(self.layers), batch, self.sizes["state_size"])
        if batch == 0 or steps == 0:  # the fused kernels refuse both
            return inputs.new_zeros(batch, steps, self.sizes["output_size"]), state
        if dropout_mask is None:
            between = inputs[None, :, :, :1].expand(len(self.layers) - 1, -1, -1, self.sizes["output_size"])
            dropout_mask = drawn_mask(self.dropout, between)
        if valid_lens is not None:
            valid_lens = valid_lens.long().clamp(0, steps)
            padding = padded(steps, valid_lens)
            inputs = inputs.masked_fill(padding, 0.0)
        directions = [self.layers, self.backward_layers] if self.sizes["bidirectional"] else [self.layers]
        # (num_layers, batch, what a state holds, directions, hidden_size)
        states = state.unflatten(-1, (-1, len(directions), self.sizes["hidden_size"]))
        outputs, ends = inputs, []
        for index in range(len(self.layers)):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * dropout_mask[index - 1]
            both = []
            for direction, layers in enumerate(directions):
                given = outputs if direction == 0 else turned(outputs, valid_lens)
                own, end = self.run(layers[index], given, states[index, :, :, direction], valid_lens)
                both.append((own if direction == 0 else turned(own, valid_lens), end))
            outputs = torch.cat([own for own, _ in both], dim=-1)
            ends.append(torch.stack([end for _, end in both], dim=-2).flatten(1))
        # Padding stands at the end, so no real step has seen it: clearing it here, once, is enough.
        return outputs if valid_lens is None else outputs.masked_fill(padding, 0.0), torch.stack(ends)

    @property
    def keeps(self) -> bool:
        """Whether the fused kernel keeps what its backward needs, which cuDNN does in training mode alone."""
        return self.training or torch.is_grad_enabled()


class GRU(Recurrent):
    """Stacked gated recurrent units over padded sequences.

    r = σ(W0 x + b0 + U0 h);  z = σ(W1 x + b1 + U1 h);  n = tanh(W2 x + b2 + r * (U2 h + b_hn));
    h' = (1 - z) * n + z * h

    Shapes: inputs (batch, steps, input_size), valid_lens (batch,), state (num_layers, batch, state_size), dropout_mask
    (num_layers - 1, batch, steps, output_size); returns (outputs, state). output_size and state_size are hidden_size,
    or twice that if bidirectional.
    """

    specification = GRU_SPECIFICATION

    def cell(self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """H' of the formula."""
        return torch.gru_cell(inputs, state, *self.fused(weights))

    def run(
        self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor, valid_lens: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of one layer from the first step on, and its last state, (batch, 1, hidden_size)."""
        before = state.transpose(0, 1).contiguous()
        outputs, last = torch.gru(inputs, before, self.fused(weights), True, 1, 0.0, self.keeps, False, True)
        end = last[0] if valid_lens is None else last_valid(outputs, state[:, 0], valid_lens)
        return outputs, end[:, None]

    def fused(self, weights: Weights) -> list[torch.Tensor]:
        """The parameters as PyTorch's kernels take them; the hidden biases of r and z are redundant, and held at 0."""
        hidden_bias = torch.cat([torch.zeros_like(weights.b[:2]).flatten(), weights.b_hn])
        return [weights.W.flatten(0, 1), weights.U.flatten(0, 1), weights.b.flatten(), hidden_bias]


class LSTM(Recurrent):
    """Stacked long short-term memory over padded sequences.

    i = σ(W0 x + b0 + U0 h);  f = σ(W1 x + b1 + U1 h);  g = tanh(W2 x + b2 + U2 h);  o = σ(W3 x + b3 + U3 h);
    c' = f * c + i * g;  h' = o * tanh(c')

    Shapes: as GRU, but state_size is 2 hidden_size, or 4 if bidirectional: the outputs of each direction, then the
    cells. Nothing is added to the bias of the forget gate.
    """

    specification = LSTM_SPECIFICATION

    def cell(self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """[h'; c'] of the formula."""
        return torch.cat(torch.lstm_cell(inputs, state.chunk(2, dim=-1), *self.fused(weights)), dim=-1)

    def run(
        self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor, valid_lens: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of one layer from the first step on, and its last state, (batch, 2, hidden_size)."""
        fused = self.fused(weights)
        if valid_lens is not None:
            # The kernel tells the cells of the last step alone, so padding has to leave them as they are: one more
            # input, 1 where there is padding, shuts the input gate and opens the forget gate, both to the last bit.
            inputs = torch.cat([inputs, padded(inputs.shape[1], valid_lens).to(inputs.dtype)], dim=-1)
            hold = torch.zeros_like(weights.b)
            hold[0], hold[1] = -HOLD, HOLD
            fused[0] = torch.cat([fused[0], hold.reshape(-1, 1)], dim=1)
        before = tuple(part[None].contiguous() for part in state.unbind(dim=1))
        outputs, hidden, cells = torch.lstm(inputs, before, fused, True, 1, 0.0, self.keeps, False, True)
        end = hidden[0] if valid_lens is None else last_valid(outputs, state[:, 0], valid_lens)
        return outputs, torch.stack([end, cells[0]], dim=1)

    def fused(self, weights: Weights) -> list[torch.Tensor]:
        """The parameters as PyTorch's kernels take them; the hidden biases are redundant, and held at 0."""
        bias = weights.b.flatten()
        return [weights.W.flatten(0, 1), weights.U.flatten(0, 1), bias, torch.zeros_like(bias)]


class Weights(nn.Module):
    """The canonical parameters of one recurrent layer in one direction, or of one layer's bridge."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        fan_in: int,
        *,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, drawn(shape, fan_in, dtype, device))


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(
    part: Part, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Recurrent:
    """The recurrent layer that stands inside another one."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype, device=device)


def inner(shapes: Mapping[str, tuple[int, ...]], prefix: str) -> dict[str, tuple[int, ...]]:
    """The shapes whose names are the prefix and one word, named by that word."""
    own = {name.removeprefix(prefix): shape for name, shape in shapes.items() if name.startswith(prefix)}
    return {name: shape for name, shape in own.items() if "." not in name}


def padded(steps: int, valid_lens: torch.Tensor) -> torch.Tensor:
    """Whether each step is behind the last valid one, (batch, steps, 1)."""
    return (torch.arange(steps, device=valid_lens.device) >= valid_lens[:, None])[:, :, None]


def turned(sequences: torch.Tensor, valid_lens: torch.Tensor | None) -> torch.Tensor:
    """The valid steps of each sequence in reverse order, and its padding where it was."""
    if valid_lens is None:
        return sequences.flip(1)
    batch, steps, _ = sequences.shape
    ahead = torch.arange(steps, device=sequences.device)
    order = torch.where(ahead < valid_lens[:, None], valid_lens[:, None] - 1 - ahead, ahead)
    return sequences[torch.arange(batch, device=sequences.device)[:, None], order]


def last_valid(outputs: torch.Tensor, state: torch.Tensor, valid_lens: torch.Tensor) -> torch.Tensor:
    """The output of each sequence's last valid step, or the state before it where there is none."""
    rows = torch.arange(outputs.shape[0], device=outputs.device)
    return torch.where((valid_lens > 0)[:, None], outputs[rows, (valid_lens - 1).clamp(min=0)], state)
