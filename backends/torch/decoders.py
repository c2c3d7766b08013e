"""Decoders in PyTorch: with attention by the previous state, by the current one, and without."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators.decoders import (
    BAHDANAU_DECODER,
    FIXED_CONTEXT_DECODER,
    LUONG_DECODER,
    check_initial,
    check_search,
)
from attention_core.specification import Layer
from backends.torch.attention import LAYERS, AdditiveAttention, Memory, attention_layer, zero_masked
from backends.torch.blocked import blocked_steps, takes_steps
from backends.torch.encoders import embed
from backends.torch.local import LocalAttention
from backends.torch.module import drawn, drawn_mask
from backends.torch.pooling import attention_pooling
from backends.torch.recurrent import GRU, recurrent_layer

__all__ = ["LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"]


ATTENTION = {**LAYERS, "LocalAttention": LocalAttention}


class LuongState(NamedTuple):
    """The state of a LuongDecoder between two steps; made by `start`, read and given by `step`.

    Shapes: rnn (num_layers, batch, state_size), attentional (batch, hidden_size), position (batch,), int32.
    """

    rnn: torch.Tensor
    attentional: torch.Tensor
    position: torch.Tensor


class Decoder(nn.Module):
    """What the decoders share: they differ in `advance`, one step up to what the logits are made of."""

    specification: Layer
    attention: Any

    def __init__(self, *, dtype: torch.dtype | None, device: torch.device | str | None, **options: Any) -> None:
        super().__init__()
        self.sizes = check_options(self.specification, **options)
        vocab_size, parts = self.sizes["vocab_size"], self.specification.inside(self.sizes)
        self.embedding = nn.Embedding(vocab_size, self.sizes["embed_size"], dtype=dtype, device=device)
        first = (self.sizes["num_layers"], self.sizes["state_size"])
        learned = self.sizes["initial"] == "learned"
        self.register_parameter("initial", drawn(first, self.sizes["hidden_size"], dtype, device) if learned else None)
        attended = parts.get("attention")
        self.attention = None if attended is None else attention_layer(attended, ATTENTION, dtype=dtype, device=device)
        self.rnn = recurrent_layer(parts["rnn"], dtype=dtype, device=device)
        self.dense = nn.Linear(self.sizes["dense_size"], vocab_size, dtype=dtype, device=device)

    def advance(
        self,
        embedded: torch.Tensor,
        state: Any,
        memory: Memory,
        dropout_mask: torch.Tensor | None,
        attention_dropout_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """One step without the last projection: (features of the logits, state, weights)."""
        raise NotImplementedError

    def prepare(
        self,
        encoder_outputs: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> Memory:
        """Project and clear the encoder's outputs, once for all steps.

        memory = attention.prepare(encoder_outputs, encoder_outputs)

        Shapes: encoder_outputs (batch, keys, memory_size); valid_lens (batch,) or (batch, steps); mask
        (batch, steps, keys), each axis its size or 1.
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            self.dense.weight.dtype,
            encoder_outputs=encoder_outputs,
            valid_lens=valid_lens,
            mask=mask,
        )
        if self.attention is None:
            return zero_masked(encoder_outputs, encoder_outputs, valid_lens, mask)
        return self.attention.prepare(encoder_outputs, encoder_outputs, valid_lens, mask)

    def start(self, memory: Memory, state: torch.Tensor | None = None) -> Any:
        """The decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, as the option initial says

        Shapes: memory as from prepare; state (num_layers, batch, state_size), as is the result.
        """
        operator = self.specification.method("start")
        check_initial(operator.title, self.sizes["initial"], state)
        check(operator, self.sizes, self.dense.weight.dtype, memory=memory, state=state)
        if state is not None:
            return state
        batch = memory.values.shape[0]
        if self.initial is None:
            return memory.values.new_zeros(self.sizes["num_layers"], batch, self.sizes["state_size"])
        return self.initial[:, None].expand(-1, batch, -1)

    def step(
        self,
        tokens: torch.Tensor,
        state: Any,
        memory: Memory,
        *,
        dropout_mask: torch.Tensor | None = None,
        attention_dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """Decode one token.

        Shapes: tokens (batch,), state as from start, memory as from prepare, with one row in its mask, dropout_mask
        (num_layers - 1, batch, hidden_size), attention_dropout_mask (batch, keys); returns (logits, state, weights):
        (batch, vocab_size), the state after the step, (batch, keys).
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
        factor = None if attention_dropout_mask is None else attention_dropout_mask[:, None]
        memory = at_step(memory, 0)
        features, state, weights = self.advance(embedded, state, memory, dropout_mask, factor)
        return self.dense(features), state, weights

    def forward(
        self,
        tokens: torch.Tensor,
        encoder_outputs: torch.Tensor,
        state: torch.Tensor | None = None,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        dropout_mask: torch.Tensor | None = None,
        attention_dropout_mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """Decode given tokens, each step reading its own token (teacher forcing).

        logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)

        Shapes: state (num_layers, batch, state_size), the encoder's; valid_lens (batch,) or (batch, steps); mask
        (batch, steps, keys), each axis its size or 1; dropout_mask (num_layers - 1, batch, steps, hidden_size);
        attention_dropout_mask (batch, steps, keys).
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
        check_initial(self.specification.name, self.sizes["initial"], state)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        features, current, weights = self.run_forced(
            tokens, self.start(memory, state), memory, dropout_mask, attention_dropout_mask
        )
        return self.dense(features).transpose(0, 1).contiguous(), current, weights.transpose(0, 1).contiguous()

    def run_forced(
        self,
        tokens: torch.Tensor,
        state: Any,
        memory: Memory,
        dropout_mask: torch.Tensor | None,
        attention_dropout_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Any, torch.Tensor]:
        """All steps without the last projection, steps first: (features of the logits, state, weights)."""
        embedded = embed(self.specification.name, self.embedding, tokens.T)
        steps, batch, _ = embedded.shape
        if steps == 0:
            features = embedded.new_zeros(0, batch, self.sizes["dense_size"])
            return features, state, embedded.new_zeros(0, batch, memory.keys.shape[-2])
        one_row = memory.mask is None or memory.mask.shape[1] == 1
        features, weights = [], []
        # unbind, as the gradient of each embedded[t] would be an array of the size of embedded.
        for t, token in enumerate(embedded.unbind()):
            read, state, attended = self.advance(
                token,
                state,
                memory if one_row else at_step(memory, t),
                None if dropout_mask is None else dropout_mask[:, :, t],
                None if attention_dropout_mask is None else attention_dropout_mask[:, t : t + 1],
            )
            features.append(read)
            weights.append(attended)
        return torch.stack(features), state, torch.stack(weights)

    @torch.no_grad()
    def greedy(
        self,
        encoder_outputs: torch.Tensor,
        state: torch.Tensor | None = None,
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
        check_initial(operator.title, self.sizes["initial"], state)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        current, (batch, keys, _) = self.start(memory, state), encoder_outputs.shape
        tokens = torch.full((batch, max_steps), eos, dtype=torch.int32, device=encoder_outputs.device)
        weights = encoder_outputs.new_zeros(batch, max_steps, keys)
        token = tokens.new_full((batch,), bos)
        running = torch.ones_like(token, dtype=torch.bool)
        lengths = torch.zeros_like(token)
        for t in range(max_steps):
            if not running.any():
                break
            features, current, attended = self.advance(self.embedding(token), current, memory, None, None)
            token = torch.where(running, self.dense(features).argmax(dim=-1), eos).int()
            tokens[:, t] = token
            weights[:, t] = attended.masked_fill(~running[:, None], 0.0)
            running = running & (token != eos)
            lengths = lengths + running
        return tokens, lengths, weights

    @torch.no_grad()
    def beam(
        self,
        encoder_outputs: torch.Tensor,
        state: torch.Tensor | None = None,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Decode by keeping the best hypotheses of every step (beam search).

        score = sum of ln p(token[t]) / ((5 + n)/6)^length_penalty, n counting the tokens up to eos

        Every step ranks all continuations of the running hypotheses, and the finished ones as they are. Of two equal
        scores, the one that comes first by hypothesis, then by token, is the better.

        Shapes: as greedy. Returns (tokens, lengths, scores, weights), best first: (batch, num_best, max_steps) ids, eos
        from the end on; (batch, num_best) the number of tokens before eos; (batch, num_best);
        (batch, num_best, max_steps, keys), 0 after the end.
        """
        operator = self.specification.method("beam")
        check_options(
            operator,
            bos=bos,
            eos=eos,
            max_steps=max_steps,
            width=width,
            num_best=num_best,
            length_penalty=length_penalty,
        )
        vocab_size = self.sizes["vocab_size"]
        check_tokens(operator.title, "bos", bos, bos, vocab_size)
        check_tokens(operator.title, "eos", eos, eos, vocab_size)
        check_search(operator.title, width, num_best, vocab_size)
        check(
            operator,
            self.sizes,
            self.dense.weight.dtype,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
        )
        check_initial(operator.title, self.sizes["initial"], state)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        (batch, keys, _), device = encoder_outputs.shape, encoder_outputs.device
        # Hypothesis w of sequence b stands in row b width + w: each step is one step of the decoder.
        rows = torch.arange(batch, device=device).repeat_interleave(width)
        current, first = self.reordered(self.start(memory, state), rows), torch.arange(batch, device=device)[:, None]
        allowed = None if memory.mask is None else memory.mask.expand(batch, -1, -1)[rows]
        memory = Memory(memory.keys[rows], memory.values[rows], allowed)
        # Sums of logarithms are kept, and ranked, in float32 at least.
        exact = torch.promote_types(encoder_outputs.dtype, torch.float32)
        tokens = torch.full((batch, width, max_steps), eos, dtype=torch.int32, device=device)
        weights = encoder_outputs.new_zeros(batch, width, max_steps, keys)
        totals = torch.full((batch, width), -torch.inf, dtype=exact, device=device)
        totals[:, 0] = 0.0  # all hypotheses are the same at first: one of them is continued
        itself = torch.full((vocab_size,), -torch.inf, dtype=exact, device=device)
        itself[eos] = 0.0
        token = tokens.new_full((batch * width,), bos)
        counts = torch.zeros_like(token).reshape(batch, width)
        running = torch.ones_like(counts, dtype=torch.bool)
        for t in range(max_steps):
            if not running.any():
                break
            features, current, attended = self.advance(self.embedding(token), current, memory, None, None)
            logs = self.dense(features).log_softmax(dim=-1, dtype=exact).reshape(batch, width, vocab_size)
            candidates = totals[:, :, None] + torch.where(running[:, :, None], logs, itself)
            lengths = counts + running
            ranked = candidates / penalty(lengths, length_penalty, exact)[:, :, None]
            best = first_best(ranked.flatten(1), width)
            totals = candidates.flatten(1).gather(1, best)
            parents, chosen = best // vocab_size, (best % vocab_size).int()
            weights[:, :, t] = attended.reshape(batch, width, keys).masked_fill(~running[:, :, None], 0.0)
            weights, tokens, counts = weights[first, parents], tokens[first, parents], lengths[first, parents]
            tokens[:, :, t] = chosen
            running = running[first, parents] & (chosen != eos)
            current = self.reordered(current, (first * width + parents).flatten())
            token = chosen.flatten()
        ended = ~running & (counts > 0)
        scores = (totals / penalty(counts, length_penalty, exact)).to(encoder_outputs.dtype)
        return tokens[:, :num_best], (counts - ended.int())[:, :num_best], scores[:, :num_best], weights[:, :num_best]

    def reordered(self, state: Any, rows: torch.Tensor) -> Any:
        """The state of these rows of the batch, in this order."""
        return state[:, rows]


class BahdanauDecoder(Decoder):
    """Decode with attention whose query is the previous output of the top recurrent layer.

    context, weights = attention(top output, encoder_outputs)
    state' = rnn([context; embedding[token]], state);  logits = dense.W top output' + dense.b
    maxout: logits = dense.W m + dense.b, m[j] = max(t[2j], t[2j + 1]),
    t = readout.W [top output; embedding[token]; context] + readout.b

    Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state (num_layers, batch, state_size);
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
        score: str = "additive",
        num_positions: int | None = None,
        cell: str = "gru",
        initial: str = "encoder",
        readout: str = "dense",
        maxout_size: int | None = None,
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            memory_size=memory_size,
            attention_size=attention_size,
            score=score,
            num_positions=num_positions,
            cell=cell,
            initial=initial,
            readout=readout,
            maxout_size=maxout_size,
            dropout=dropout,
            dtype=dtype,
            device=device,
        )
        if readout == "maxout":
            read, pairs = self.sizes["readout_size"], self.sizes["maxout_size"]
            self.readout = nn.Linear(read, 2 * pairs, dtype=dtype, device=device)

    def advance(
        self,
        embedded: torch.Tensor,
        state: torch.Tensor,
        memory: Memory,
        dropout_mask: torch.Tensor | None,
        attention_dropout_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One step without the last projection: (features of the logits, state, weights)."""
        previous = state[-1, :, : self.sizes["hidden_size"]]
        context, weights = self.attention.attend_cleared(previous[:, None], memory, attention_dropout_mask)
        output, state = self.rnn.advance(torch.cat([context[:, 0], embedded], dim=-1), state, dropout_mask)
        if self.sizes["readout"] == "maxout":
            output = self.maxout(previous, embedded, context[:, 0])
        return output, state, weights[:, 0]

    def maxout(self, previous: torch.Tensor, embedded: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """M of the formula, of one step or of all."""
        pairs = self.readout(torch.cat([previous, embedded, context], dim=-1))
        first, second = pairs[..., 0::2], pairs[..., 1::2]
        return torch.where(first >= second, first, second)

    def run_forced(
        self,
        tokens: torch.Tensor,
        state: torch.Tensor,
        memory: Memory,
        dropout_mask: torch.Tensor | None,
        attention_dropout_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """All steps without the last projection; where `takes_steps` says so, as one function with its own backward."""
        attention, rnn, masks = self.attention, self.rnn, (dropout_mask, attention_dropout_mask)
        usual = isinstance(attention, AdditiveAttention) and isinstance(rnn, GRU)
        if not (usual and takes_steps(tokens, state, *memory, *masks)):
            return super().run_forced(tokens, state, memory, *masks)
        steps = tokens.shape[1]
        if dropout_mask is None:
            dropout_mask = drawn_mask(rnn.dropout, state[1:, :, None].expand(-1, -1, steps, -1))
        if attention_dropout_mask is None:
            attention_dropout_mask = drawn_mask(attention.dropout, memory.keys[:, None, :, 0].expand(-1, steps, -1))
        words, places = tokens.T.unique(return_inverse=True)
        embedded = embed(self.specification.name, self.embedding, words)
        outputs, last, weights, contexts = blocked_steps(
            embedded,
            places,
            state,
            memory,
            attention.W_q.weight,
            attention.w_v,
            [rnn.fused(own) for own in rnn.layers],
            dropout_mask,
            attention_dropout_mask,
        )
        if self.sizes["readout"] == "maxout":
            outputs = self.maxout(torch.cat([state[-1:], outputs[:-1]]), embedded[places], contexts)
        return outputs, last, weights


class LuongDecoder(Decoder):
    """Decode with attention whose query is the current output of the top recurrent layer.

    state' = rnn([embedding[token]; h̃], state), without h̃ unless input_feeding
    context, weights = attention(top output', encoder_outputs);  h̃' = tanh(W_c [context; top output']);
    logits = dense.W h̃' + dense.b

    Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state (num_layers, batch, state_size);
    returns (logits, state, weights): (batch, steps, vocab_size), a LuongState, (batch, steps, keys).
    """

    specification = LUONG_DECODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        attention_size: int | None = None,
        score: str = "general",
        num_positions: int | None = None,
        alignment: str = "global",
        window: int | None = None,
        input_feeding: bool = True,
        cell: str = "gru",
        initial: str = "encoder",
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            memory_size=memory_size,
            attention_size=attention_size,
            score=score,
            num_positions=num_positions,
            alignment=alignment,
            window=window,
            input_feeding=input_feeding,
            cell=cell,
            initial=initial,
            dropout=dropout,
            dtype=dtype,
            device=device,
        )
        read = self.sizes["memory_size + hidden_size"]
        self.W_c = nn.Linear(read, hidden_size, bias=False, dtype=dtype, device=device)

    def start(self, memory: Memory, state: torch.Tensor | None = None) -> LuongState:
        """The decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, as the option initial says; h̃ = 0, position = 0

        Shapes: memory as from prepare; state (num_layers, batch, state_size). Returns a LuongState.
        """
        rnn = super().start(memory, state)
        attentional = rnn.new_zeros(rnn.shape[1], self.sizes["hidden_size"])
        return LuongState(rnn, attentional, torch.zeros_like(attentional[:, 0], dtype=torch.int32))

    def advance(
        self,
        embedded: torch.Tensor,
        state: LuongState,
        memory: Memory,
        dropout_mask: torch.Tensor | None,
        attention_dropout_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, LuongState, torch.Tensor]:
        """One step without the last projection: (features of the logits, state, weights)."""
        inputs = torch.cat([embedded, state.attentional], dim=-1) if self.sizes["input_feeding"] else embedded
        output, rnn = self.rnn.advance(inputs, state.rnn, dropout_mask)
        at = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        context, weights = self.attention.attend(output[:, None], memory, **at, dropout_mask=attention_dropout_mask)
        attentional = torch.tanh(self.W_c(torch.cat([context[:, 0], output], dim=-1)))
        return attentional, LuongState(rnn, attentional, state.position + 1), weights[:, 0]

    def reordered(self, state: LuongState, rows: torch.Tensor) -> LuongState:
        """The state of these rows of the batch, in this order."""
        return LuongState(state.rnn[:, rows], state.attentional[rows], state.position[rows])


class FixedContextDecoder(Decoder):
    """Decode without attention: the context of every step is the encoder's last output.

    context = the last encoder output that is open, weights = 1 there
    state' = rnn([context; embedding[token]], state);  logits = dense.W top output' + dense.b

    Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state (num_layers, batch, state_size);
    returns (logits, state, weights): (batch, steps, vocab_size), the shape of state, (batch, steps, keys).
    """

    specification = FIXED_CONTEXT_DECODER

    def __init__(
        self,
        vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        memory_size: int | None = None,
        cell: str = "gru",
        initial: str = "encoder",
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            memory_size=memory_size,
            cell=cell,
            initial=initial,
            dropout=dropout,
            dtype=dtype,
            device=device,
        )
        self.dropout = nn.Dropout(dropout)

    def advance(
        self,
        embedded: torch.Tensor,
        state: torch.Tensor,
        memory: Memory,
        dropout_mask: torch.Tensor | None,
        attention_dropout_mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """One step without the last projection: (features of the logits, state, weights)."""
        scores = torch.zeros_like(memory.values[:, None, :, 0])
        if attention_dropout_mask is None:
            attention_dropout_mask = drawn_mask(self.dropout, scores)
        everything = torch.ones_like(scores, dtype=torch.bool)
        allowed = everything if memory.mask is None else everything & memory.mask
        last = allowed & (allowed.flip(-1).cumsum(dim=-1).flip(-1) == 1)
        context, weights = attention_pooling(scores, memory.values, mask=last, dropout_mask=attention_dropout_mask)
        inputs = torch.cat([context[:, 0], embedded], dim=-1)
        output, state = self.rnn.advance(inputs, state, dropout_mask)
        return output, state, weights[:, 0]


def first_best(ranked: torch.Tensor, width: int) -> torch.Tensor:
    """Where the largest of each row stand, best first; of equal ones the first. Sorting all would be slow."""
    ranked = ranked.masked_fill(ranked.isnan(), -torch.inf)
    lowest = ranked.topk(width, dim=-1).values[:, -1:]
    above, equal = ranked > lowest, ranked == lowest
    room = width - above.sum(dim=-1, keepdim=True)
    kept = above | (equal & (equal.cumsum(dim=-1) <= room))
    places = kept.nonzero()[:, 1].reshape(-1, width)
    order = ranked.gather(1, places).sort(dim=-1, descending=True, stable=True).indices
    return places.gather(1, order)


def penalty(lengths: torch.Tensor, length_penalty: float, dtype: torch.dtype) -> torch.Tensor:
    """((5 + n)/6)^α of Wu et al."""
    return ((5.0 + lengths.to(dtype)) / 6.0) ** length_penalty


def at_step(memory: Memory, step: int) -> Memory:
    """The memory with the mask's row for that step, or its only row, and with 0 where that hides a value."""
    if memory.mask is None:
        return memory
    row = memory.mask if memory.mask.shape[1] == 1 else memory.mask[:, step : step + 1]
    return memory._replace(values=memory.values.masked_fill(~row[:, 0, :, None], 0.0), mask=row)
