"""Decoders with attention in MXNet."""

from __future__ import annotations

import mxnet as mx
from mxnet import autograd, np
from mxnet.gluon import Block, nn

from attention_core.errors import check, check_options, check_tokens
from attention_core.operators import BAHDANAU_DECODER
from backends.mxnet.layers import AdditiveAttention, Memory, Uniform, initialise, linear, projected
from backends.mxnet.recurrent import GRU, embed

__all__ = ["BahdanauDecoder"]


class BahdanauDecoder(Block):
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
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
        with self.name_scope():
            self.embedding = nn.Embedding(
                vocab_size, embed_size, dtype=dtype, weight_initializer=Uniform(embed_size**-0.5)
            )
            self.attention = AdditiveAttention(hidden_size, memory_size, attention_size, dropout=dropout, dtype=dtype)
            self.rnn = GRU(memory_size + embed_size, hidden_size, num_layers, dropout=dropout, dtype=dtype)
            self.dense = linear(hidden_size, vocab_size, use_bias=True, dtype=dtype)
        initialise(self)

    def prepare(
        self,
        encoder_outputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
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
        tokens: np.ndarray,
        state: np.ndarray,
        memory: Memory,
        *,
        dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
        return projected(self.dense, output), state, weights

    def __call__(
        self,
        tokens: np.ndarray,
        encoder_outputs: np.ndarray,
        state: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
        return super().__call__(tokens, encoder_outputs, state, valid_lens, mask, dropout_mask, attention_dropout_mask)

    def forward(
        self,
        tokens: np.ndarray,
        encoder_outputs: np.ndarray,
        state: np.ndarray,
        valid_lens: np.ndarray | None,
        mask: np.ndarray | None,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The loop over the steps, in Python; what it calls are graphs."""
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        embedded = embed(self.specification.name, self.embedding, tokens)
        (batch, steps, _), keys = embedded.shape, encoder_outputs.shape[1]
        like = {"dtype": embedded.dtype, "ctx": embedded.ctx}
        if batch == 0 or steps == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            logits = np.zeros((batch, steps, self.sizes["vocab_size"]), **like)
            return logits, state, np.zeros((batch, steps, keys), **like)
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
        logits = self.dense(np.stack(outputs, axis=1))
        return logits, state, np.stack(weights, axis=1) if keys else np.zeros((batch, steps, 0), **like)

    def greedy(
        self,
        encoder_outputs: np.ndarray,
        state: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
        batch, keys, _ = encoder_outputs.shape
        ctx = encoder_outputs.ctx
        tokens = np.full((batch, max_steps), eos, dtype="int32", ctx=ctx)
        weights = np.zeros((batch, max_steps, keys), dtype=encoder_outputs.dtype, ctx=ctx)
        lengths = np.zeros((batch,), dtype="int32", ctx=ctx)
        if batch == 0:
            return tokens, lengths, weights
        ends = np.full((batch,), eos, dtype="int32", ctx=ctx)
        token = np.full((batch,), bos, dtype="int32", ctx=ctx)
        running = np.ones((batch,), dtype="bool", ctx=ctx)
        with autograd.pause():
            memory = self.prepare(encoder_outputs, valid_lens, mask)
            for t in range(max_steps):
                if not running.any():
                    break
                logits, state, attended = self.step(token, state, memory)
                token = np.where(running, np.argmax(logits, axis=-1).astype("int32"), ends)
                tokens[:, t] = token
                if keys:
                    weights[:, t] = np.where(running[:, None], attended, np.zeros_like(attended))
                running = running * (token != eos)
                lengths = lengths + running.astype("int32")
        return tokens, lengths, weights

    def advance(
        self,
        embedded: np.ndarray,
        state: np.ndarray,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step without the readout: (output, state, weights)."""
        factor = None if attention_dropout_mask is None else attention_dropout_mask[:, None]
        context, weights = self.attention.attend(state[-1][:, None], memory, dropout_mask=factor)
        inputs = np.concatenate([context[:, 0], embedded], axis=-1)
        output, state = self.rnn.step(inputs, state, dropout_mask=dropout_mask)
        return output, state, weights[:, 0]


def row(mask: np.ndarray | None, step: int) -> np.ndarray | None:
    """The mask's row for that step, or its only row, as (batch, 1, keys)."""
    return mask if mask is None or mask.shape[1] == 1 else mask[:, step : step + 1]
