"""Recurrent layers and encoders in PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators import GRU as GRU_SPECIFICATION
from attention_core.operators import GRU_ENCODER
from backends.torch.layers import drawn_mask

__all__ = ["GRU", "GRUEncoder"]


class GRU(nn.Module):
    """Stacked gated recurrent units over padded sequences.

    r = σ(W0 x + b0 + U0 h);  z = σ(W1 x + b1 + U1 h);  n = tanh(W2 x + b2 + r * (U2 h + b_hn));
    h' = (1 - z) * n + z * h

    Shapes: inputs (batch, steps, input_size), valid_lens (batch,), state (num_layers, batch, hidden_size), dropout_mask
    (num_layers - 1, batch, steps, hidden_size); returns (outputs, state).
    """

    specification = GRU_SPECIFICATION

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(
            self.specification, input_size=input_size, hidden_size=hidden_size, num_layers=num_layers, dropout=dropout
        )
        self.layers = nn.ModuleList(
            GRULayer(input_size if layer == 0 else hidden_size, hidden_size, dtype=dtype, device=device)
            for layer in range(num_layers)
        )
        self.dropout = nn.Dropout(dropout)

    def step(
        self, inputs: torch.Tensor, state: torch.Tensor, *, dropout_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run one step.

        Shapes: inputs (batch, input_size), state (num_layers, batch, hidden_size), dropout_mask
        (num_layers - 1, batch, hidden_size); returns (output, state).
        """
        check(
            self.specification.method("step"),
            self.sizes,
            self.layers[0].W.dtype,
            inputs=inputs,
            state=state,
            dropout_mask=dropout_mask,
        )
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, state[1:])
        output, states = inputs, []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                output = output * dropout_mask[index - 1]
            output = torch.gru_cell(output, state[index], *layer.fused())
            states.append(output)
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
            state = inputs.new_zeros(len(self.layers), batch, self.sizes["hidden_size"])
        if batch == 0 or steps == 0:  # the fused kernel refuses both
            return inputs.new_zeros(batch, steps, self.sizes["hidden_size"]), state
        if dropout_mask is None:
            dropout_mask = drawn_mask(self.dropout, state[1:, :, None].expand(-1, -1, steps, -1))
        if valid_lens is not None:
            padding = (torch.arange(steps, device=inputs.device) >= valid_lens[:, None])[:, :, None]
            inputs = inputs.masked_fill(padding, 0.0)
        outputs, states = inputs, []
        for index, layer in enumerate(self.layers):
            if index > 0 and dropout_mask is not None:
                outputs = outputs * dropout_mask[index - 1]
            outputs, last = torch.gru(
                outputs, state[index : index + 1], layer.fused(), True, 1, 0.0, self.training, False, True
            )
            states.append(last[0] if valid_lens is None else last_valid(outputs, state[index], valid_lens))
        # Padding stands at the end, so no real step has seen it: clearing it here, once, is enough.
        return outputs if valid_lens is None else outputs.masked_fill(padding, 0.0), torch.stack(states)


class GRULayer(nn.Module):
    """The canonical parameters of one recurrent layer."""

    def __init__(
        self, input_size: int, hidden_size: int, *, dtype: torch.dtype | None, device: torch.device | str | None
    ) -> None:
        super().__init__()
        bound = hidden_size**-0.5
        for name, shape in (
            ("W", (3, hidden_size, input_size)),
            ("U", (3, hidden_size, hidden_size)),
            ("b", (3, hidden_size)),
            ("b_hn", (hidden_size,)),
        ):
            values = torch.empty(shape, dtype=dtype, device=device).uniform_(-bound, bound)
            self.register_parameter(name, nn.Parameter(values))

    def fused(self) -> list[torch.Tensor]:
        """The parameters as PyTorch's kernels take them; the hidden biases of r and z are redundant, and held at 0."""
        hidden_bias = torch.cat([torch.zeros_like(self.b[:2]).flatten(), self.b_hn])
        return [self.W.flatten(0, 1), self.U.flatten(0, 1), self.b.flatten(), hidden_bias]


class GRUEncoder(nn.Module):
    """Embed tokens and run stacked gated recurrent units over them.

    outputs, state = GRU(embedding[tokens])

    Shapes: tokens (batch, steps), valid_lens (batch,), state (num_layers, batch, hidden_size), dropout_mask
    (num_layers - 1, batch, steps, hidden_size); returns (outputs, state).
    """

    specification = GRU_ENCODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(
            self.specification,
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            dropout=dropout,
        )
        self.embedding = nn.Embedding(vocab_size, embed_size, dtype=dtype, device=device)
        self.rnn = GRU(embed_size, hidden_size, num_layers, dropout=dropout, dtype=dtype, device=device)

    def forward(
        self,
        tokens: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        state: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode a batch of token sequences.

        outputs, state = GRU(embedding[tokens])
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.embedding.weight.dtype,
            tokens=tokens,
            valid_lens=valid_lens,
            state=state,
            dropout_mask=dropout_mask,
        )
        embedded = embed(self.specification.name, self.embedding, tokens)
        return self.rnn(embedded, valid_lens, state, dropout_mask=dropout_mask)


def embed(title: str, embedding: nn.Embedding, tokens: torch.Tensor) -> torch.Tensor:
    """The embedded tokens, which have to be ids of the vocabulary."""
    if tokens.numel() and not torch.compiler.is_compiling():
        check_tokens(title, "tokens", int(tokens.min()), int(tokens.max()), embedding.num_embeddings)
    return embedding(tokens.long())


def last_valid(outputs: torch.Tensor, state: torch.Tensor, valid_lens: torch.Tensor) -> torch.Tensor:
    """The output of each sequence's last valid step, or the state before it where there is none."""
    last = valid_lens.long().clamp(0, outputs.shape[1])
    rows = torch.arange(outputs.shape[0], device=outputs.device)
    return torch.where((last > 0)[:, None], outputs[rows, (last - 1).clamp(min=0)], state)
