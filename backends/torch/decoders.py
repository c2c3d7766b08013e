"""Decoders with attention in PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators import BAHDANAU_DECODER
from backends.torch.layers import AdditiveAttention, Memory
from backends.torch.recurrent import GRU, embed

__all__ = ["BahdanauDecoder"]


class BahdanauDecoder(nn.Module):
    """Decode with additive attention whose query is the previous state of the top recurrent layer.

    context, weights = AdditiveAttention(top state, encoder_outputs)
    state' = GRU([context; embedding[token]], state);  logits = dense.W state'[top] + dense.b

    Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state (num_layers, batch, hidden_size);
    returns (logits, state, weights): (batch, steps, vocab_size), the shape of state, (batch, steps, keys).
    """

    specification = BAHDANAU_DECODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        attention_size: int | None = None,
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
            memory_size=memory_size,
            attention_size=attention_size,
            dropout=dropout,
        )
        memory_size, attention_size = self.sizes["memory_size"], self.sizes["attention_size"]
        self.embedding = nn.Embedding(vocab_size, embed_size, dtype=dtype, device=device)
        self.attention = AdditiveAttention(
            hidden_size, memory_size, attention_size, dropout=dropout, dtype=dtype, device=device
        )
        self.rnn = GRU(memory_size + embed_size, hidden_size, num_layers, dropout=dropout, dtype=dtype, device=device)
        self.dense = nn.Linear(hidden_size, vocab_size, dtype=dtype, device=device)

    def prepare(
        self,
        encoder_outputs: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> Memory:
        """Project and clear the encoder's outputs, once for all steps.

        memory = AdditiveAttention.prepare(encoder_outputs, encoder_outputs)
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.dense.weight.dtype,
            encoder_outputs=encoder_outputs,
            valid_lens=valid_lens,
            mask=mask,
        )
        return self.attention.prepare(encoder_outputs, encoder_outputs, valid_lens, mask)

    def step(
        self,
        tokens: torch.Tensor,
        state: torch.Tensor,
        memory: Memory,
        *,
        dropout_mask: torch.Tensor | None = None,
        attention_dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Decode one token.

        Shapes: tokens (batch,), state (num_layers, batch, hidden_size), dropout_mask
        (num_layers - 1, batch, hidden_size), attention_dropout_mask (batch, keys); returns (logits, state, weights):
        (batch, vocab_size), the shape of state, (batch, keys).
        """
        check(
            self.specification.method("step"),
            self.sizes,
            self.dense.weight.dtype,
            tokens=tokens,
            state=state,
            memory=memory,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        embedded = embed(self.specification.name, self.embedding, tokens)
        output, state, weights = self.advance(embedded, state, memory, dropout_mask, attention_dropout_mask)
        return self.dense(output), state, weights

    def forward(
        self,
        tokens: torch.Tensor,
        encoder_outputs: torch.Tensor,
        state: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
        attention_dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Decode given tokens, each step reading its own token (teacher forcing).

        logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)

        Shapes: valid_lens (batch,) or (batch, steps); mask (batch, steps, keys), each axis its size or 1; dropout_mask
        (num_layers - 1, batch, steps, hidden_size); attention_dropout_mask (batch, steps, keys).
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.dense.weight.dtype,
            tokens=tokens,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        embedded = embed(self.specification.name, self.embedding, tokens)
        batch, steps, _ = embedded.shape
        outputs, weights = [], []
        for t in range(steps):
            output, state, attended = self.advance(
                embedded[:, t],
                state,
                memory._replace(mask=row(memory.mask, t)),
                None if dropout_mask is None else dropout_mask[:, :, t],
                None if attention_dropout_mask is None else attention_dropout_mask[:, t],
            )
            outputs.append(output)
            weights.append(attended)
        if steps == 0:
            keys, vocab_size = encoder_outputs.shape[1], self.sizes["vocab_size"]
            return embedded.new_zeros(batch, 0, vocab_size), state, embedded.new_zeros(batch, 0, keys)
        return self.dense(torch.stack(outputs, dim=1)), state, torch.stack(weights, dim=1)

    @torch.no_grad()
    def greedy(
        self,
        encoder_outputs: torch.Tensor,
        state: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Decode by feeding back the most probable token, up to an end token.

        token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos

        Shapes: valid_lens (batch,), mask (batch, 1, keys). Returns (tokens, lengths, weights): (batch, max_steps) ids,
        eos from the end on; (batch,) the number of tokens before eos; (batch, max_steps, keys), 0 after the end.
        """
        operator = self.specification.method("greedy")
        check_options(operator, bos=bos, eos=eos, max_steps=max_steps)
        check_tokens(operator.title, "bos", bos, bos, self.sizes["vocab_size"])
        check_tokens(operator.title, "eos", eos, eos, self.sizes["vocab_size"])
        check(
            operator,
            self.sizes,
            self.dense.weight.dtype,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
        )
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        batch, keys, _ = encoder_outputs.shape
        tokens = torch.full((batch, max_steps), eos, dtype=torch.int32, device=encoder_outputs.device)
        weights = encoder_outputs.new_zeros(batch, max_steps, keys)
        token = tokens.new_full((batch,), bos)
        running = torch.ones_like(token, dtype=torch.bool)
        lengths = torch.zeros_like(token)
        for t in range(max_steps):
            if not running.any():
                break
            logits, state, attended = self.step(token, state, memory)
            token = torch.where(running, logits.argmax(dim=-1), eos).int()
            tokens[:, t] = token
            weights[:, t] = attended.masked_fill(~running[:, None], 0.0)
            running = running & (token != eos)
            lengths = lengths + running
        return tokens, lengths, weights

    def advance(
        self,
        embedded: torch.Tensor,
        state: torch.Tensor,
        memory: Memory,
        dropout_mask: torch.Tensor | None,
        attention_dropout_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One step without the readout: (output, state, weights)."""
        factor = None if attention_dropout_mask is None else attention_dropout_mask[:, None]
        context, weights = self.attention.attend(state[-1][:, None], memory, dropout_mask=factor)
        inputs = torch.cat([context[:, 0], embedded], dim=-1)
        output, state = self.rnn.step(inputs, state, dropout_mask=dropout_mask)
        return output, state, weights[:, 0]


def row(mask: torch.Tensor | None, step: int) -> torch.Tensor | None:
    """The mask's row for that step, or its only row, as (batch, 1, keys)."""
    return mask if mask is None or mask.shape[1] == 1 else mask[:, step : step + 1]
