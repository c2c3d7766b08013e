"""Recurrent layers, encoders, and the bridge from two directions to one, in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import torch
from torch import nn

from attention_core.operators.recurrent import GRU as GRU_SPECIFICATION
from attention_core.operators.recurrent import LSTM as LSTM_SPECIFICATION
from attention_core.specification import Part
from backends.torch.arrays import Lengths, autocast_dtype, lengths
from backends.torch.graphs import leaves_graph, outside_graph, scan, takes_scan
from backends.torch.module import Specified, draw_mask, draw_parameter, redraw

__all__ = ["GRU", "LSTM"]

HOLD = 1e4
"""An input of a sigmoid that gives exactly 1 in every floating type; its negative gives exactly 0."""


State = tuple[torch.Tensor, ...]
"""The state of one layer in one direction: its output, (batch, hidden_size), and behind it an LSTM's cells."""
Layers: TypeAlias = list[list[torch.Tensor]]
"""The parameters of each layer as PyTorch's kernels take them."""
Laid: TypeAlias = Layers | None
"""Those parameters, laid out once for all steps; None where each step arranges them, as a hook may gather them then."""


class Recurrent(Specified):
    """Base class of the recurrent layers: a step, and a call that runs steps in one direction or both.

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
        super().__init__(locals())
        shapes = self.specification.own_shapes(self.sizes)
        self.layers = nn.ModuleList(
            Weights(shapes, f"{index}", hidden_size, dtype=dtype, device=device) for index in range(num_layers)
        )
        self.backward_layers = nn.ModuleList(
            Weights(shapes, f"{index}.backward", hidden_size, dtype=dtype, device=device)
            for index in range(num_layers if bidirectional else 0)
        )
        self.dropout = nn.Dropout(dropout)

    def step(
        self, inputs: torch.Tensor, state: torch.Tensor, *, dropout_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one step.

        state'[l] = cell(x, state[l]), x = inputs for l = 0, else dropout_mask[l - 1] output'[l - 1]

        Args:
            inputs: (batch, input_size); one vector
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
            dropout_mask (default None): (num_layers - 1, batch, output_size); factor of the outputs of every layer but
                the top one
        Returns:
            output: (batch, output_size); output of the top layer
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        Raises:
            OptionError: a single step of a bidirectional layer
        """
        self._check("step", inputs=inputs, state=state, dropout_mask=dropout_mask)
        return self._advance(inputs, state, dropout_mask)

    def forward(
        self,
        inputs: torch.Tensor,
        valid_lens: Lengths | None = None,
        state: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run over a batch of sequences.

        outputs[t], state[t] = step(inputs[t], state[t - 1]) where t < valid_len; else 0 and state[t - 1]

        The backward direction runs from the last valid step to the first, and each layer reads both directions of the
        one below. What padded steps hold, NaN and inf included, has no effect and gets gradient 0.

        Args:
            inputs: (batch, steps, input_size); one vector for each step
            valid_lens (default None): integers (batch,), or a list; steps of each sequence; later ones output 0 and
                keep the state
            state (default None): (num_layers, batch, state_size); state before the first step; zeros if None
            dropout_mask (default None): (num_layers - 1, batch, steps, output_size); factor of the outputs of every
                layer but the top one
        Returns:
            outputs: (batch, steps, output_size); output of the top layer at each step: forward, then backward
            state: (num_layers, batch, state_size); state of each recurrent layer: outputs, then the cells of an LSTM
        """
        self._check("call", inputs=inputs, valid_lens=valid_lens, state=state, dropout_mask=dropout_mask)
        if leaves_graph(inputs):
            return outside_graph(self.forward, inputs, valid_lens, state, dropout_mask=dropout_mask)
        batch, steps, _ = inputs.shape
        if state is None:
            state = inputs.new_zeros(self.sizes["num_layers"], batch, self.sizes["state_size"])
        if batch == 0 or steps == 0:  # the fused kernels refuse both
            return inputs.new_zeros(batch, steps, self.sizes["output_size"]), state
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, inputs, shape=self._between(batch, steps))
        if valid_lens is not None:
            valid_lens = lengths(valid_lens, inputs.device).long().clamp(0, steps)
            valid = valid_steps(steps, valid_lens)
            inputs = torch.where(valid, inputs, 0.0)
        directions = [self.layers, self.backward_layers] if self.sizes["bidirectional"] else [self.layers]
        outputs, states = inputs, []
        for index in range(self.sizes["num_layers"]):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * dropout_mask[index - 1]
            vectors = self._vectors(state[index])
            runs = [
                self._run(layers[index], outputs, vectors[way :: len(directions)], valid_lens, backward=way == 1)
                for way, layers in enumerate(directions)
            ]
            outputs = torch.cat([output for output, _ in runs], dim=-1)
            pairs = zip(*(last for _, last in runs), strict=True)
            states.append(torch.cat([vector for pair in pairs for vector in pair], dim=-1))
        # Padding stands at the end, so no valid step has read it: clearing it here, once, is enough.
        return outputs if valid_lens is None else torch.where(valid, outputs, 0.0), torch.stack(states)

    def _advance(
        self,
        inputs: torch.Tensor,
        state: torch.Tensor,
        dropout_mask: torch.Tensor | None,
        layers: Laid = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one step: (output, state). layers is what `_of_steps` gives."""
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, inputs, shape=self._between(inputs.shape[0]))
        output, states = inputs, []
        for index, weights in enumerate(self._of_steps() if layers is None else layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            after = self._cell(weights, output, self._vectors(state[index]))
            output = after[0]
            states.append(torch.cat(after, dim=-1))
        return output, torch.stack(states)

    def _run(
        self, weights: Weights, inputs: torch.Tensor, state: State, lens: torch.Tensor | None, *, backward: bool
    ) -> tuple[torch.Tensor, State]:
        """Run one layer in one direction: (outputs, last state)."""
        if backward:
            inputs = reverse_steps(inputs, lens)
        run = self._run_scanned if takes_scan(self, inputs) else self._run_forward
        outputs, last = run(weights, inputs, state, lens)
        return reverse_steps(outputs, lens) if backward else outputs, last

    def _run_forward(
        self, weights: Weights, inputs: torch.Tensor, state: State, lens: torch.Tensor | None
    ) -> tuple[torch.Tensor, State]:
        """Run one layer from the first step to the last: (outputs, state after the last valid step)."""
        raise NotImplementedError

    def _cell(self, weights: list[torch.Tensor], inputs: torch.Tensor, state: State) -> State:
        """Compute the next state of one layer."""
        raise NotImplementedError

    def _vectors(self, state: torch.Tensor) -> State:
        """Split the state of a layer: outputs forward and backward, then an LSTM's cells alike."""
        return state.split(self.sizes["hidden_size"], dim=-1)

    def _between(self, *batch: int) -> tuple[int, ...]:
        """Return the shape of a dropout mask between the layers."""
        return self.sizes["num_layers - 1"], *batch, self.sizes["output_size"]

    # particular to PyTorch

    def _kernel_weights(self, weights: Weights) -> list[torch.Tensor]:
        """Arrange the parameters as PyTorch's kernels take them; their redundant hidden biases are 0."""
        bias = weights.b.flatten()
        return [weights.W.flatten(0, 1), weights.U.flatten(0, 1), bias, torch.zeros_like(bias)]

    def _of_steps(self) -> Layers:
        """Arrange the parameters of each layer, which a decoder does once for all steps."""
        return [self._kernel_weights(weights) for weights in self.layers]

    @property
    def _keeps(self) -> bool:
        """Whether the kernel keeps what its backward needs, which cuDNN does in training mode alone."""
        return self.training or torch.is_grad_enabled()

    def _run_scanned(
        self, weights: Weights, inputs: torch.Tensor, state: State, lens: torch.Tensor | None
    ) -> tuple[torch.Tensor, State]:
        """Run one layer as `_run_forward`, for a number of steps that a graph leaves open."""
        steps = {"inputs": inputs.transpose(0, 1)}
        if lens is not None:
            steps["valid"] = valid_steps(inputs.shape[1], lens).transpose(0, 1)

        def advance(state: State, step: dict[str, torch.Tensor]) -> tuple[State, State]:
            after = self._cell(self._kernel_weights(weights), step["inputs"], state)
            if "valid" in step:
                after = tuple(torch.where(step["valid"], *pair) for pair in zip(after, state, strict=True))
            return after, after[:1]

        last, (outputs,) = scan(advance, state, steps)
        return outputs.transpose(0, 1), last


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
        dropout (default 0.0): dropout rate between recurrent layers in training
        bidirectional (default False): whether other weights read the valid steps in reverse, too
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
    Source: Cho et al. 2014, section 2.3, arXiv:1406.1078; hidden bias inside the reset gate as in cuDNN; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.GRU(input_size, hidden_size)
        outputs, state = layer(inputs)
    """

    specification = GRU_SPECIFICATION

    def _run_forward(
        self, weights: Weights, inputs: torch.Tensor, state: State, lens: torch.Tensor | None
    ) -> tuple[torch.Tensor, State]:
        before = state[0][None].contiguous()
        outputs, last = torch.gru(inputs, before, self._kernel_weights(weights), True, 1, 0.0, self._keeps, False, True)
        return outputs, (last[0] if lens is None else last_valid(outputs, state[0], lens),)

    def _cell(self, weights: list[torch.Tensor], inputs: torch.Tensor, state: State) -> State:
        """Compute h'."""
        return (torch.gru_cell(inputs, *state, *weights),)

    # particular to PyTorch

    def _kernel_weights(self, weights: Weights) -> list[torch.Tensor]:
        """Arrange the parameters as PyTorch's kernels take them; their redundant hidden biases of r and z are 0."""
        *others, zeros = super()._kernel_weights(weights)
        return [*others, torch.cat([zeros[: -len(weights.b_hn)], weights.b_hn])]


class LSTM(Recurrent):
    """Stacked long short-term memory over padded sequences.

    i = σ(W0 x + b0 + U0 h)
    f = σ(W1 x + b1 + U1 h)
    g = tanh(W2 x + b2 + U2 h)
    o = σ(W3 x + b3 + U3 h)
    c' = f * c + i * g
    h' = o * tanh(c')

    Nothing is added to the bias of the forget gate.

    Args:
        input_size: features of an input
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        dropout (default 0.0): dropout rate between recurrent layers in training
        bidirectional (default False): whether other weights read the valid steps in reverse, too
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
    Source: Hochreiter and Schmidhuber 1997, doi:10.1162/neco.1997.9.8.1735; forget gate: Gers et al. 2000; both
    directions: Schuster and Paliwal 1997, doi:10.1109/78.650093
    Example:
        layer = attention.LSTM(input_size, hidden_size)
        outputs, state = layer(inputs)
    """

    specification = LSTM_SPECIFICATION

    def _run_forward(
        self, weights: Weights, inputs: torch.Tensor, state: State, lens: torch.Tensor | None
    ) -> tuple[torch.Tensor, State]:
        fused = self._kernel_weights(weights)
        dtype = autocast_dtype(inputs)
        if dtype is not None:  # PyTorch casts the weights alone, which its kernel then refuses
            inputs, state = inputs.to(dtype), tuple(vector.to(dtype) for vector in state)
        if lens is not None:
            # The kernel returns the cells of the last step alone, so padding has to leave them as they are: one more
            # input, 1 where there is padding, closes the input gate and opens the forget gate, both to the last bit.
            padding = ~valid_steps(inputs.shape[1], lens)
            inputs = torch.cat([inputs, padding.to(inputs.dtype)], dim=-1)
            hold = torch.zeros_like(weights.b)
            hold[0], hold[1] = -HOLD, HOLD
            fused[0] = torch.cat([fused[0], hold.reshape(-1, 1)], dim=1)
        before = tuple(vector[None].contiguous() for vector in state)
        outputs, last, cells = torch.lstm(inputs, before, fused, True, 1, 0.0, self._keeps, False, True)
        return outputs, (last[0] if lens is None else last_valid(outputs, state[0], lens), cells[0])

    def _cell(self, weights: list[torch.Tensor], inputs: torch.Tensor, state: State) -> State:
        """Compute h' and c'."""
        return torch.lstm_cell(inputs, state, *weights)


class Weights(nn.Module):
    """The parameters of a layer whose canonical names begin with that prefix: of one recurrent layer and direction."""

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        prefix: str,
        fan_in: int,
        *,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        super().__init__()
        self.fan_in = fan_in
        for path, shape in shapes.items():
            place, _, name = path.rpartition(".")
            if place == prefix:
                self.register_parameter(name, draw_parameter(shape, fan_in, dtype, device))

    # particular to PyTorch

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for parameter in self.parameters():
            redraw(parameter, self.fan_in)


LAYERS: dict[str, type[Recurrent]] = {"GRU": GRU, "LSTM": LSTM}


def recurrent_layer(
    part: Part, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Recurrent:
    """Make the recurrent layer inside another layer."""
    return LAYERS[part.layer.name](**part.config, dtype=dtype, device=device)


def valid_steps(steps: int, lens: torch.Tensor) -> torch.Tensor:
    """Mark the valid steps of each sequence, (batch, steps, 1)."""
    return (torch.arange(steps, device=lens.device) < lens[:, None])[:, :, None]


def reverse_steps(sequences: torch.Tensor, lens: torch.Tensor | None) -> torch.Tensor:
    """Reverse the valid steps of each sequence; its padding stays."""
    if lens is None:
        return sequences.flip(1)
    batch, steps, _ = sequences.shape
    ahead = torch.arange(steps, device=sequences.device)
    order = torch.where(ahead < lens[:, None], lens[:, None] - 1 - ahead, ahead)
    return sequences[torch.arange(batch, device=sequences.device)[:, None], order]


# ------------------------------------------------------------------------------------------------ particular to PyTorch


def last_valid(outputs: torch.Tensor, state: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
    """Take the output of each sequence's last valid step, or the state before it where there is none."""
    rows = torch.arange(outputs.shape[0], device=outputs.device)
    return torch.where((lens > 0)[:, None], outputs[rows, (lens - 1).clamp(min=0)], state)
