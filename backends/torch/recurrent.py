"""Recurrent layers, encoders, and the bridge from two directions to one, in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.specification import Part
from backends.torch.module import Specified, drawn, drawn_mask

__all__ = ["GRU", "LSTM"]

HOLD = 1e4  # as the input of a sigmoid, in every floating type, exactly 1, and its negative exactly 0


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
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
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

    def step(
        self, inputs: torch.Tensor, state: torch.Tensor, *, dropout_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
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
                given = outputs if direction == 0 else reversed_steps(outputs, valid_lens)
                own, end = self._run(layers[index], given, states[index, :, :, direction], valid_lens)
                both.append((own if direction == 0 else reversed_steps(own, valid_lens), end))
            outputs = torch.cat([own for own, _ in both], dim=-1)
            ends.append(torch.stack([end for _, end in both], dim=-2).flatten(1))
        # Padding stands at the end, so no real step has seen it: clearing it here, once, is enough.
        return outputs if valid_lens is None else outputs.masked_fill(padding, 0.0), torch.stack(ends)

    def _advance(
        self, inputs: torch.Tensor, state: torch.Tensor, dropout_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.sizes["hidden_size"]
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, state[1:, :, :hidden])
        output, states = inputs, []
        for index, weights in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            states.append(self._cell(weights, output, state[index]))
            output = states[-1][:, :hidden]
        return output, torch.stack(states)

    def _cell(self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """The next state of one layer, (batch, state_size)."""
        raise NotImplementedError

    def _run(
        self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor, valid_lens: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of one layer from the first step on, and its last state, (batch, what a state holds, hidden_size)."""
        raise NotImplementedError

    @property
    def _keeps(self) -> bool:
        """Whether the fused kernel keeps what its backward needs, which cuDNN does in training mode alone."""
        return self.training or torch.is_grad_enabled()


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
        device: where to allocate
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
        layer = attention.GRU(input_size, hidden_size)
        outputs, state = layer(inputs)
    """

    specification = GRU_SPECIFICATION

    def _cell(self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """H' of the formula."""
        return torch.gru_cell(inputs, state, *self._fused(weights))

    def _run(
        self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor, valid_lens: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of one layer from the first step on, and its last state, (batch, 1, hidden_size)."""
        before = state.transpose(0, 1).contiguous()
        outputs, last = torch.gru(inputs, before, self._fused(weights), True, 1, 0.0, self._keeps, False, True)
        end = last[0] if valid_lens is None else last_valid(outputs, state[:, 0], valid_lens)
        return outputs, end[:, None]

    def _fused(self, weights: Weights) -> list[torch.Tensor]:
        """The parameters as PyTorch's kernels take them; the hidden biases of r and z are redundant, and held at 0."""
        hidden_bias = torch.cat([torch.zeros_like(weights.b[:2]).flatten(), weights.b_hn])
        return [weights.W.flatten(0, 1), weights.U.flatten(0, 1), weights.b.flatten(), hidden_bias]


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
        device: where to allocate
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
        layer = attention.LSTM(input_size, hidden_size)
        outputs, state = layer(inputs)
    """

    specification = LSTM_SPECIFICATION

    def _cell(self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """[h'; c'] of the formula."""
        return torch.cat(torch.lstm_cell(inputs, state.chunk(2, dim=-1), *self._fused(weights)), dim=-1)

    def _run(
        self, weights: Weights, inputs: torch.Tensor, state: torch.Tensor, valid_lens: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of one layer from the first step on, and its last state, (batch, 2, hidden_size)."""
        fused = self._fused(weights)
        if valid_lens is not None:
            # The kernel tells the cells of the last step alone, so padding has to leave them as they are: one more
            # input, 1 where there is padding, shuts the input gate and opens the forget gate, both to the last bit.
            inputs = torch.cat([inputs, padded(inputs.shape[1], valid_lens).to(inputs.dtype)], dim=-1)
            hold = torch.zeros_like(weights.b)
            hold[0], hold[1] = -HOLD, HOLD
            fused[0] = torch.cat([fused[0], hold.reshape(-1, 1)], dim=1)
        before = tuple(part[None].contiguous() for part in state.unbind(dim=1))
        outputs, hidden, cells = torch.lstm(inputs, before, fused, True, 1, 0.0, self._keeps, False, True)
        end = hidden[0] if valid_lens is None else last_valid(outputs, state[:, 0], valid_lens)
        return outputs, torch.stack([end, cells[0]], dim=1)

    def _fused(self, weights: Weights) -> list[torch.Tensor]:
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


def reversed_steps(sequences: torch.Tensor, valid_lens: torch.Tensor | None) -> torch.Tensor:
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
