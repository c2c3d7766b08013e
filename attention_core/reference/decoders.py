"""Decoders: with attention by the previous state, by the current one, and without."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attention_core.operators.decoders import BAHDANAU_DECODER, FIXED_CONTEXT_DECODER, LUONG_DECODER
from attention_core.reference.arrays import Specified, align, inner, linear, optional, promote
from attention_core.reference.attention import LAYERS, Memory, attention_layer, zero_masked
from attention_core.reference.encoders import embed, known_tokens
from attention_core.reference.local import LocalAttention
from attention_core.reference.masking import attention_mask
from attention_core.reference.pooling import average
from attention_core.reference.recurrent import recurrent_layer
from attention_core.reference.search import beam_search, greedy_search
from attention_core.specification import Layer

__all__ = ["LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"]

ATTENTION = {**LAYERS, "LocalAttention": LocalAttention}


class LuongState(NamedTuple):
    """The state of a LuongDecoder between two steps; `start` makes it, `step` takes and returns it.

    Shapes: rnn (num_layers, batch, state_size), attentional (batch, hidden_size), position (batch,), int32.
    """

    rnn: np.ndarray
    attentional: np.ndarray
    position: np.ndarray


class Decoder(Specified):
    """Base class of the decoders, which differ in `_advance`: one step up to the features of the logits."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        parts = self.specification.inside(self.sizes)
        self.rnn = recurrent_layer(parts["rnn"])
        self.attention = attention_layer(parts["attention"], ATTENTION) if "attention" in parts else None

    def _advance(
        self,
        embedded: np.ndarray,
        state: Any,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """One step without the last projection: (features of the logits, state, weights)."""
        raise NotImplementedError

    def prepare(
        self, encoder_outputs: np.ndarray, valid_lens: np.ndarray | None = None, mask: np.ndarray | None = None
    ) -> Memory:
        """Project the encoder's outputs and zero the hidden ones, once for all steps.

        memory = attention.prepare(encoder_outputs, encoder_outputs)

        Shapes: encoder_outputs (batch, keys, memory_size); valid_lens (batch,) or (batch, steps); mask
        (batch, steps, keys), each axis its size or 1.
        Raises: ShapeError, DtypeError, MaskError.
        """
        self._check("prepare", encoder_outputs=encoder_outputs, valid_lens=valid_lens, mask=mask)
        allowed = attention_mask(encoder_outputs.shape[-2], valid_lens, mask)
        if self.attention is None:
            return zero_masked(promote(encoder_outputs), promote(encoder_outputs), None, allowed)
        self.attention.parameters = inner(self.parameters, "attention.")
        return self.attention.prepare(encoder_outputs, encoder_outputs, None, allowed)

    def start(self, memory: Memory, state: np.ndarray | None = None) -> Any:
        """Return the decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, depending on the option initial

        Shapes: memory as from prepare; state (num_layers, batch, state_size), as is the result.
        Raises: ShapeError, DtypeError; OptionError if state is required and missing, or would be ignored.
        """
        self._check("start", memory=memory, state=state)
        if state is not None:
            return promote(state)
        *lead, batch, _, _ = memory.values.shape
        zero = np.zeros((*lead, self.sizes["num_layers"], batch, self.sizes["state_size"]))
        if self.sizes["initial"] == "zero":
            return zero
        return zero + align(self.parameters["initial"][..., :, None, :], 3, zero.ndim)

    def step(
        self,
        tokens: np.ndarray,
        state: Any,
        memory: Memory,
        *,
        dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """Decode one token.

        Shapes: tokens (batch,), state as from start, memory as from prepare, with one row in its mask; dropout_mask
        (num_layers - 1, batch, hidden_size), attention_dropout_mask (batch, keys). Returns (logits, state, weights):
        (batch, vocab_size), the state after the step, (batch, keys).
        Units: logits are natural logarithms.
        Raises: ShapeError, DtypeError; TokenError if an id is outside the vocabulary.
        """
        self._check(
            "step",
            tokens=tokens,
            state=state,
            memory=memory,
            dropout_mask=dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        if self.attention is not None:
            self.attention.parameters = inner(self.parameters, "attention.")
        self.rnn.parameters = inner(self.parameters, "rnn.")
        embedded = embed(self.specification.name, tokens, self.parameters["embedding"])
        factor = None if attention_dropout_mask is None else promote(attention_dropout_mask)[..., None, :]
        features, state, weights = self._advance(embedded, state, memory, optional(dropout_mask), factor)
        return linear(features, self.parameters["dense.W"], self.parameters["dense.b"]), state, weights

    def __call__(
        self,
        tokens: np.ndarray,
        encoder_outputs: np.ndarray,
        state: np.ndarray | None = None,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, Any, np.ndarray]:
        """Decode given tokens: each step reads the given token, not the predicted one (teacher forcing).

        logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)

        Shapes: tokens (batch, steps), encoder_outputs (batch, keys, memory_size), state
        (num_layers, batch, state_size), the encoder's; valid_lens (batch,) or (batch, steps) and mask
        (batch, steps, keys), each axis its size or 1, for what each step may attend to; dropout_mask
        (num_layers - 1, batch, steps, hidden_size), attention_dropout_mask (batch, steps, keys). Returns
        (logits, state, weights): (batch, steps, vocab_size), the state after the last step, (batch, steps, keys).
        Units: logits are natural logarithms.
        Raises: ShapeError, DtypeError, MaskError; TokenError if an id is outside the vocabulary; OptionError if state
        is required and missing, or would be ignored.
        """
        self._check(
            "call",
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
        current, (batch, keys), steps = self.start(memory, state), encoder_outputs.shape[-3:-1], tokens.shape[1]
        logits, weights = [], []
        for t in range(steps):
            scores, current, attended = self.step(
                tokens[:, t],
                current,
                memory if memory.mask is None else memory._replace(mask=row(memory.mask, t)),
                dropout_mask=None if dropout_mask is None else dropout_mask[..., t, :],
                attention_dropout_mask=None if attention_dropout_mask is None else attention_dropout_mask[..., t, :],
            )
            logits.append(scores)
            weights.append(attended)
        if not steps:
            lead, dtype = (*memory.values.shape[:-3], batch, 0), memory.values.dtype
            return np.zeros((*lead, self.sizes["vocab_size"]), dtype), current, np.zeros((*lead, keys), dtype)
        all_logits, all_weights = (np.stack(np.broadcast_arrays(*arrays), axis=-2) for arrays in (logits, weights))
        return all_logits, current, all_weights

    def greedy(
        self,
        encoder_outputs: np.ndarray,
        state: np.ndarray | None = None,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Decode by feeding back the most probable token until the end token.

        token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos

        Shapes: encoder_outputs (batch, keys, memory_size), state (num_layers, batch, state_size), the encoder's,
        valid_lens (batch,), mask (batch, 1, keys). Returns (tokens, lengths, weights): (batch, max_steps) ids, eos from
        the end on; (batch,) the number of tokens before eos; (batch, max_steps, keys), 0 after the step that gave eos.
        Raises: ShapeError, DtypeError, MaskError; OptionError; TokenError if bos or eos is outside the vocabulary.
        """
        options = {"bos": bos, "eos": eos, "max_steps": max_steps}
        self._check("greedy", encoder_outputs=encoder_outputs, state=state, valid_lens=valid_lens, mask=mask, **options)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        return greedy_search(self.step, self.start(memory, state), memory, **options)

    def beam(
        self,
        encoder_outputs: np.ndarray,
        state: np.ndarray | None = None,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Decode by keeping the best hypotheses at every step (beam search).

        score = sum of ln p(token[t]) / ((5 + n)/6)^length_penalty, n counting the tokens up to eos

        Every step ranks all continuations of the running hypotheses together with the finished hypotheses, and keeps
        the best `width` of them. A hypothesis that reaches eos is finished and keeps its score. Of equal scores, the
        first by hypothesis, then by token, wins.

        Arguments: width is the number of hypotheses kept for each sequence, num_best the number returned;
        length_penalty is α of the paper, 0 for the plain sum, larger for longer hypotheses.
        Shapes: encoder_outputs, state, valid_lens and mask as in greedy. Returns (tokens, lengths, scores, weights),
        best first: (batch, num_best, max_steps) ids, eos from the end on; (batch, num_best) the tokens before eos;
        (batch, num_best); (batch, num_best, max_steps, keys), 0 after the step that gave eos.
        Edge cases: with max_steps=0 one hypothesis has no tokens and score 0; the others have score -inf.
        Units: scores are natural logarithms, divided by the penalty.
        Raises: as greedy; OptionError if num_best is above width, or width above vocab_size.
        Source: Wu et al. 2016, section 7, arXiv:1609.08144, without coverage; beams as in Sutskever et al. 2014.
        """
        options: dict[str, Any] = {
            "bos": bos,
            "eos": eos,
            "max_steps": max_steps,
            "width": width,
            "num_best": num_best,
            "length_penalty": length_penalty,
        }
        self._check("beam", encoder_outputs=encoder_outputs, state=state, valid_lens=valid_lens, mask=mask, **options)
        memory = self.prepare(encoder_outputs, valid_lens, mask)
        return beam_search(
            self.step,
            self._reordered,
            self.start(memory, state),
            memory,
            vocab_size=self.sizes["vocab_size"],
            **options,
        )

    def _reordered(self, state: Any, rows: np.ndarray) -> Any:
        """Select rows of the batch from the state, in this order."""
        return state[..., rows, :]


class BahdanauDecoder(Decoder):
    """Decode with attention whose query is the previous output of the top recurrent layer.

    context, weights = attention(top output, encoder_outputs)
    state' = rnn([context; embedding[token]], state);  logits = dense.W top output' + dense.b
    maxout: logits = dense.W m + dense.b, m[j] = max(t[2j], t[2j + 1]),
    t = readout.W [top output; embedding[token]; context] + readout.b

    Arguments: vocab_size is the number of token ids, embed_size the features of an embedded token, hidden_size those of
    each of num_layers recurrent layers; memory_size is the features of the encoder's outputs, hidden_size unless given;
    score is the score of the attention by name, attention_size the hidden features of an additive or concat score,
    hidden_size unless given, num_positions for score="location" only; cell is "gru" or "lstm"; initial is where the
    first state comes from: "encoder", "zero" or "learned"; readout is "dense" or "maxout", maxout_size its pairs,
    hidden_size unless given; dropout is the rate at which attention weights, and features between recurrent layers, are
    dropped in training, which the reference leaves to the two dropout masks.
    Parameters: embedding (vocab_size, embed_size); initial (num_layers, state_size), if learned; readout.W
    (2 maxout_size, hidden_size + embed_size + memory_size), readout.b (2 maxout_size,), if maxout; dense.W
    (vocab_size, hidden_size or maxout_size), dense.b (vocab_size,); those of the attention as attention.W_q, ...; those
    of the GRU or LSTM as rnn.l.W, ..., with memory_size + embed_size inputs, the context first.
    Differences from the paper, whose form is a bidirectional GRUEncoder, Bridge(method="backward") and
    readout="maxout": the GRU here applies its reset gate after U2 h, the paper's before,
    and has biases. All else is the paper's, whose readout reads the previous state, too.
    Raises: OptionError if a size is not positive, dropout is not in [0, 1), the score cannot compare state and encoder
    outputs, or an argument would be ignored.
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473; maxout readout: appendix A.2.2.
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
        score: str = "additive",
        num_positions: int | None = None,
        cell: str = "gru",
        initial: str = "encoder",
        readout: str = "dense",
        maxout_size: int | None = None,
        dropout: float = 0.0,
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
        )

    def _advance(
        self,
        embedded: np.ndarray,
        state: np.ndarray,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step without the last projection: (features of the logits, state, weights)."""
        assert self.attention is not None
        previous = promote(state)[..., -1, :, : self.sizes["hidden_size"]]
        context, weights = self.attention.attend(previous[..., None, :], memory, dropout_mask=attention_dropout_mask)
        inputs = joined(context[..., 0, :], embedded)
        features, state = self.rnn.step(inputs, promote(state), dropout_mask=dropout_mask)
        if self.sizes["readout"] == "maxout":
            read = joined(previous, embedded, context[..., 0, :])
            pairs = linear(read, self.parameters["readout.W"], self.parameters["readout.b"])
            first, second = pairs[..., 0::2], pairs[..., 1::2]
            features = np.where(first.real >= second.real, first, second)
        return features, state, weights[..., 0, :]


class LuongDecoder(Decoder):
    """Decode with attention whose query is the current output of the top recurrent layer.

    state' = rnn([embedding[token]; h̃], state), without h̃ unless input_feeding
    context, weights = attention(top output', encoder_outputs);  h̃' = tanh(W_c [context; top output']);
    logits = dense.W h̃' + dense.b

    Arguments: vocab_size, embed_size, hidden_size, num_layers, memory_size, attention_size, score, num_positions, cell,
    initial and dropout as in BahdanauDecoder; alignment is "global", or the mode of a LocalAttention: "monotonic" or
    "predictive", which need window; input_feeding is whether h̃ of a step is an input of the next.
    Parameters: embedding (vocab_size, embed_size); initial (num_layers, state_size), if learned; W_c
    (hidden_size, memory_size + hidden_size), the context first, no bias; dense.W (vocab_size, hidden_size), dense.b
    (vocab_size,); those of the attention as attention.W, or attention.scored.W if local; those of the GRU or LSTM as
    rnn.l.W, ..., with embed_size inputs, or embed_size + hidden_size with input_feeding, the token first.
    Raises: OptionError if a size is not positive, dropout is not in [0, 1), the score cannot compare state and encoder
    outputs, or an argument is missing or would be ignored.
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025; input feeding: section 3.3.
    """

    specification: Layer = LUONG_DECODER

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
        )

    def start(self, memory: Memory, state: np.ndarray | None = None) -> LuongState:
        """Return the decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, depending on the option initial; h̃ = 0, position = 0

        Shapes: memory as from prepare; state (num_layers, batch, state_size). Returns a LuongState.
        Raises: ShapeError, DtypeError; OptionError if state is required and missing, or would be ignored.
        """
        rnn = super().start(memory, state)
        attentional = np.zeros((*rnn.shape[:-3], rnn.shape[-2], self.sizes["hidden_size"]))
        return LuongState(rnn, attentional, np.zeros(rnn.shape[-2], np.int32))

    def _advance(
        self,
        embedded: np.ndarray,
        state: LuongState,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, LuongState, np.ndarray]:
        """One step without the last projection: (features of the logits, state, weights)."""
        assert self.attention is not None
        inputs = joined(embedded, promote(state.attentional)) if self.sizes["input_feeding"] else embedded
        output, rnn = self.rnn.step(inputs, promote(state.rnn), dropout_mask=dropout_mask)
        at: dict[str, Any] = {}
        if self.sizes["alignment"] == "monotonic":
            at["offset"] = state.position
            if memory.mask is None:  # its rank distinguishes the batch from the leading axis of a perturbed pass
                memory = memory._replace(mask=np.ones((1, 1, memory.values.shape[-2]), bool))
        context, weights = self.attention.attend(
            output[..., None, :], memory, **at, dropout_mask=attention_dropout_mask
        )
        attentional = np.tanh(linear(joined(context[..., 0, :], output), self.parameters["W_c"]))
        return attentional, LuongState(rnn, attentional, state.position + np.int32(1)), weights[..., 0, :]

    def _reordered(self, state: LuongState, rows: np.ndarray) -> LuongState:
        """Select rows of the batch from the state, in this order."""
        return LuongState(state.rnn[..., rows, :], state.attentional[..., rows, :], state.position[rows])


class FixedContextDecoder(Decoder):
    """Decode without attention: the context of every step is the encoder's last output.

    context = the last open encoder output, weights = 1 there
    state' = rnn([context; embedding[token]], state);  logits = dense.W top output' + dense.b

    With a GRUEncoder of one direction, that output is the encoder's last state. Dropout acts on the weight, as on those
    of attention.

    Arguments: vocab_size, embed_size, hidden_size, num_layers, memory_size, cell, initial and dropout as in
    BahdanauDecoder.
    Parameters: embedding (vocab_size, embed_size); initial (num_layers, state_size), if learned; dense.W
    (vocab_size, hidden_size), dense.b (vocab_size,); those of the GRU or LSTM as rnn.l.W, ..., with
    memory_size + embed_size inputs, the context first.
    Edge cases: a sequence without an open key gets context 0 and weights 0.
    Raises: OptionError if a size is not positive or dropout is not in [0, 1).
    Source: Cho et al. 2014, section 2.2, arXiv:1406.1078; the last output in place of its projection.
    """

    specification: Layer = FIXED_CONTEXT_DECODER

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
        )

    def _advance(
        self,
        embedded: np.ndarray,
        state: np.ndarray,
        memory: Memory,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step without the last projection: (features of the logits, state, weights)."""
        *lead, batch, keys, _ = memory.values.shape
        allowed = np.broadcast_to(True if memory.mask is None else memory.mask, (batch, 1, keys))
        ends = (np.arange(1, keys + 1) * allowed).max(axis=-1, keepdims=True, initial=0)
        weights = np.zeros((*lead, batch, 1, keys)) + np.where(np.arange(1, keys + 1) == ends, 1.0, 0.0)
        context = average(weights, memory.values, weights > 0.0, attention_dropout_mask)
        output, state = self.rnn.step(joined(context[..., 0, :], embedded), promote(state), dropout_mask=dropout_mask)
        return output, state, weights[..., 0, :]


def joined(*arrays: np.ndarray) -> np.ndarray:
    """Concatenate the features."""
    lead = np.broadcast_shapes(*(array.shape[:-1] for array in arrays))
    return np.concatenate([np.broadcast_to(array, (*lead, array.shape[-1])) for array in arrays], axis=-1)


def row(mask: np.ndarray, step: int) -> np.ndarray:
    """Select the mask's row for that step, or its only row, as (batch, 1, keys)."""
    return mask if mask.shape[-2] == 1 else mask[..., step : step + 1, :]
