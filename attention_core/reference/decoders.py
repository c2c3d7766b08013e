"""Decoders with attention."""

from __future__ import annotations

import numpy as np

from attention_core.errors import check_options, check_tokens
from attention_core.operators import BAHDANAU_DECODER
from attention_core.reference.arrays import check, linear, optional, promote
from attention_core.reference.layers import AdditiveAttention, Memory
from attention_core.reference.masking import attention_mask
from attention_core.reference.recurrent import GRU, embed, inner, known_tokens
from attention_core.specification import Layer


class BahdanauDecoder:
    """Decode with additive attention whose query is the previous state of the top recurrent layer.

    context, weights = AdditiveAttention(top state, encoder_outputs)
    state' = GRU([context; embedding[token]], state);  logits = dense.W state'[top] + dense.b

    Arguments: vocab_size is the number of token ids, embed_size the features of an embedded token, hidden_size those of
    each of num_layers recurrent layers; memory_size the features of the encoder's outputs and attention_size the hidden
    features of the attention, both hidden_size unless given; dropout is the rate at which attention weights, and
    features between recurrent layers, are dropped in training, which the reference leaves to the two dropout masks.
    Parameters: embedding (vocab_size, embed_size); attention.W_q (attention_size, hidden_size),
    attention.W_k (attention_size, memory_size), attention.w_v (attention_size,); rnn.l.W, rnn.l.U, rnn.l.b, rnn.l.b_hn
    as in GRU, with memory_size + embed_size inputs, the context first; dense.W (vocab_size, hidden_size),
    dense.b (vocab_size,).
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473; with GRU layers and a dense readout.
    """

    specification: Layer = BAHDANAU_DECODER

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
    ) -> None:
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
        sizes = self.sizes
        self.parameters = {name: np.zeros(shape) for name, shape in self.specification.shapes(sizes).items()}
        self.attention = AdditiveAttention(hidden_size, sizes["memory_size"], sizes["attention_size"], dropout=dropout)
        self.rnn = GRU(sizes["memory_size"] + embed_size, hidden_size, num_layers, dropout=dropout)

    def prepare(
        self, encoder_outputs: np.ndarray, valid_lens: np.ndarray | None = None, mask: np.ndarray | None = None
    ) -> Memory:
        """Project and clear the encoder's outputs, once for all steps.

        memory = AdditiveAttention.prepare(encoder_outputs, encoder_outputs)

        Shapes: encoder_outputs (batch, keys, memory_size); valid_lens (batch,) or (batch, steps); mask
        (batch, steps, keys), each axis its size or 1.
        Raises: ShapeError, DtypeError, MaskError.
        """
        check(
            self.specification.method("prepare"),
            self.sizes,
            encoder_outputs=encoder_outputs,
            valid_lens=valid_lens,
            mask=mask,
        )
        self.attention.parameters = inner(self.parameters, "attention.")
        allowed = attention_mask(encoder_outputs.shape[-2], valid_lens, mask)
        return self.attention.prepare(encoder_outputs, encoder_outputs, None, allowed)

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

        context, weights = attend(state[top], memory);  state' = GRU([context; embedding[token]], state);
        logits = dense.W state'[top] + dense.b

        Shapes: tokens (batch,), state (num_layers, batch, hidden_size), dropout_mask
        (num_layers - 1, batch, hidden_size), attention_dropout_mask (batch, keys). Returns (logits, state, weights):
        (batch, vocab_size), the shape of state, (batch, keys). The memory's mask has one row.
        Units: logits are natural logarithms.
        Raises: ShapeError, DtypeError; TokenError if an id is outside the vocabulary.
        """
        check(
            self.specification.method("step"),
            self.sizes,
            tokens=tokens,
            state=state,
            memory=memory,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        self.attention.parameters = inner(self.parameters, "attention.")
        self.rnn.parameters = inner(self.parameters, "rnn.")
        state = promote(state)
        embedded = embed(self.specification.name, tokens, self.parameters["embedding"])
        factor = None if attention_dropout_mask is None else attention_dropout_mask[..., None, :]
        context, weights = self.attention.attend(state[..., -1, :, None, :], memory, dropout_mask=factor)
        context = context[..., 0, :]
        embedded = np.broadcast_to(embedded, context.shape[:-1] + embedded.shape[-1:])
        inputs = np.concatenate([context, embedded], axis=-1)
        output, state = self.rnn.step(inputs, state, dropout_mask=optional(dropout_mask))
        return linear(output, self.parameters["dense.W"], self.parameters["dense.b"]), state, weights[..., 0, :]

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

        Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state
        (num_layers, batch, hidden_size); valid_lens (batch,) or (batch, steps) and mask (batch, steps, keys), each axis
        its size or 1, say what each step may attend to; dropout_mask (num_layers - 1, batch, steps, hidden_size),
        attention_dropout_mask (batch, steps, keys). Returns (logits, state, weights): (batch, steps, vocab_size), the
        shape of state, (batch, steps, keys).
        Units: logits are natural logarithms.
        Raises: ShapeError, DtypeError, MaskError; TokenError if an id is outside the vocabulary.
        """
        check(
            self.specification.method("call"),
            self.sizes,
            tokens=tokens,
            encoder_outputs=encoder_outputs,
            state=state,
            valid_lens=valid_lens,
            mask=mask,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        known_tokens(self.specification.name, tokens, self.sizes["vocab_size"])
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        state, steps = promote(state), tokens.shape[1]
        lead, (batch, keys) = state.shape[:-3], encoder_outputs.shape[-3:-1]
        dtype = np.result_type(state, *memory[:2], *self.parameters.values())
        logits = np.zeros((*lead, batch, steps, self.sizes["vocab_size"]), dtype)
        weights = np.zeros((*lead, batch, steps, keys), dtype)
        for t in range(steps):
            logits[..., t, :], state, weights[..., t, :] = self.step(
                tokens[:, t],
                state,
                memory if memory.mask is None else memory._replace(mask=row(memory.mask, t)),
                dropout_mask=None if dropout_mask is None else dropout_mask[..., t, :],
                attention_dropout_mask=None if attention_dropout_mask is None else attention_dropout_mask[..., t, :],
            )
        return logits, state, weights

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

        Shapes: encoder_outputs (batch, keys, memory_size), state (num_layers, batch, hidden_size), valid_lens (batch,),
        mask (batch, 1, keys). Returns (tokens, lengths, weights): (batch, max_steps) ids, eos from the end on;
        (batch,) the number of tokens before eos; (batch, max_steps, keys), 0 after the step that gave eos.
        Raises: ShapeError, DtypeError, MaskError; OptionError; TokenError if bos or eos is outside the vocabulary.
        """
        operator = self.specification.method("greedy")
        check_options(operator, bos=bos, eos=eos, max_steps=max_steps)
        vocab_size = self.sizes["vocab_size"]
        check_tokens(operator.title, "bos", bos, bos, vocab_size)
        check_tokens(operator.title, "eos", eos, eos, vocab_size)
        check(operator, self.sizes, encoder_outputs=encoder_outputs, state=state, valid_lens=valid_lens, mask=mask)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        batch, keys = encoder_outputs.shape[:2]
        tokens = np.full((batch, max_steps), eos, np.int32)
        weights = np.zeros((batch, max_steps, keys))
        lengths = np.zeros(batch, np.int32)
        token, running = np.full(batch, bos, np.int32), np.full(batch, True)
        for t in range(max_steps):
            logits, state, attended = self.step(token, state, memory)
            weights[:, t] = np.where(running[:, None], attended, 0.0)
            token = np.where(running, logits.argmax(axis=-1), eos).astype(np.int32)
            tokens[:, t] = token
            running = running & (token != eos)
            lengths += running
        return tokens, lengths, weights


def row(mask: np.ndarray, step: int) -> np.ndarray:
    """The mask's row for that step, or its only row, as (batch, 1, keys)."""
    return mask if mask.shape[-2] == 1 else mask[..., step : step + 1, :]
