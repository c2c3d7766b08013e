"""Decoders: with attention by the previous state, by the current one, and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attention_core.operators.decoders import BAHDANAU_DECODER, FIXED_CONTEXT_DECODER, LUONG_DECODER
from attention_core.reference.arrays import Specified, align, inner, linear, optional, promote, tanh
from attention_core.reference.attention import LAYERS, attention_layer
from attention_core.reference.encoders import embed, known_tokens
from attention_core.reference.local import LocalAttention
from attention_core.reference.masking import attention_mask
from attention_core.reference.memory import Memory, zero_masked
from attention_core.reference.pooling import average
from attention_core.reference.recurrent import recurrent_layer
from attention_core.reference.search import beam_search, greedy_search
from attention_core.specification import Layer

__all__ = ["LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"]

ATTENTION = {**LAYERS, "LocalAttention": LocalAttention}


class LuongState(NamedTuple):
    """The state of a LuongDecoder between two steps; `start` makes it, `step` takes and returns it.

    Shapes: rnn (num_layers, batch, state_size), fed (batch, fed_size), position (batch,), int32.
    """

    rnn: np.ndarray
    fed: np.ndarray
    position: np.ndarray


class Decoder(Specified):
    """Base class of the decoders, which differ in `_advance`: one step up to the features of the logits."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
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

        The mask of the memory has one row, that of this step.
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
        keep the width best continuations; a finished hypothesis continues unchanged

        Every step ranks all continuations of the running hypotheses together with the finished ones. Of equal scores,
        the first by hypothesis, then by token, wins. A larger length_penalty favours longer hypotheses. With
        max_steps=0, one hypothesis has no tokens and score 0; the others have score -inf.
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
            self._reorder,
            self.start(memory, state),
            memory,
            vocab_size=self.sizes["vocab_size"],
            **options,
        )

    def _reorder(self, state: Any, rows: np.ndarray) -> Any:
        """Select rows of the batch from the state, in this order."""
        return state[..., rows, :]


class BahdanauDecoder(Decoder):
    """Decode with attention whose query is the previous output of the top recurrent layer.

    context, weights = attention(top output, encoder_outputs)
    state' = rnn([context; embedding[token]], state), without the embedding if reads='context'
    logits = dense.W top output' + dense.b
    maxout: logits = dense.W m + dense.b, m[j] = max(t[2j], t[2j + 1]), t = readout.W [top output; embedding[token];
    context] + readout.b

    The paper's form is readout='maxout', whose readout reads the previous state, with a bidirectional GRUEncoder and
    Bridge(method='backward'). Two differences are left: the GRU applies its reset gate after U2 h, the paper's before,
    and has biases. With readout='maxout', dense.W reads maxout_size features. With reads='context' and readout='dense',
    no token has an effect: each word is chosen without those before it. The scores dot, scaled_dot, cosine and gaussian
    compare features one by one, and need as many in a query as in a key.
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
        reads: str = "both",
        readout: str = "dense",
        maxout_size: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(locals())

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
        inputs = context[..., 0, :] if self.sizes["reads"] == "context" else concatenate(context[..., 0, :], embedded)
        features, state = self.rnn.step(inputs, promote(state), dropout_mask=dropout_mask)
        if self.sizes["readout"] == "maxout":
            read = concatenate(previous, embedded, context[..., 0, :])
            pairs = linear(read, self.parameters["readout.W"], self.parameters["readout.b"])
            first, second = pairs[..., 0::2], pairs[..., 1::2]
            features = np.where(first.real >= second.real, first, second)
        return features, state, weights[..., 0, :]


class LuongDecoder(Decoder):
    """Decode with attention whose query is the current output of the top recurrent layer.

    state' = rnn([embedding[token]; fed], state), fed = h̃, context or nothing of the step before, depending on the
    option input_feeding
    context', weights = attention(top output', encoder_outputs)
    h̃' = tanh(W_c [context'; top output'])
    logits = dense.W h̃' + dense.b

    Unless alignment='global', window is required. The scores dot, scaled_dot, cosine and gaussian compare features one
    by one, and need as many in a query as in a key.
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
        input_feeding: str = "attentional",
        cell: str = "gru",
        initial: str = "encoder",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(locals())

    def start(self, memory: Memory, state: np.ndarray | None = None) -> LuongState:
        """Return the decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, depending on the option initial
        """
        rnn = super().start(memory, state)
        fed = np.zeros((*rnn.shape[:-3], rnn.shape[-2], self.sizes["fed_size"]))
        return LuongState(rnn, fed, np.zeros(rnn.shape[-2], np.int32))

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
        inputs = embedded if self.sizes["input_feeding"] == "none" else concatenate(embedded, promote(state.fed))
        output, rnn = self.rnn.step(inputs, promote(state.rnn), dropout_mask=dropout_mask)
        at: dict[str, Any] = {}
        if self.sizes["alignment"] == "monotonic":
            at["offset"] = state.position
            if memory.mask is None:  # its rank distinguishes the batch from the leading axis of a perturbed pass
                memory = memory._replace(mask=np.ones((1, 1, memory.values.shape[-2]), bool))
        context, weights = self.attention.attend(
            output[..., None, :], memory, **at, dropout_mask=attention_dropout_mask
        )
        attentional = tanh(linear(concatenate(context[..., 0, :], output), self.parameters["W_c"]))
        fed = context[..., 0, :] if self.sizes["input_feeding"] == "context" else attentional
        return attentional, LuongState(rnn, fed, state.position + np.int32(1)), weights[..., 0, :]

    def _reorder(self, state: LuongState, rows: np.ndarray) -> LuongState:
        """Select rows of the batch from the state, in this order."""
        return LuongState(state.rnn[..., rows, :], state.fed[..., rows, :], state.position[rows])


class FixedContextDecoder(Decoder):
    """Decode without attention: the context of every step is the encoder's last output.

    context = the last open encoder output, weights = 1 there
    state' = rnn([context; embedding[token]], state)
    logits = dense.W top output' + dense.b

    With a GRUEncoder of one direction, that output is the encoder's last state. A sequence without an open key gets
    context 0 and weights 0. Dropout acts on the weight, as on those of attention.
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
        super().__init__(locals())

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
        output, state = self.rnn.step(
            concatenate(context[..., 0, :], embedded), promote(state), dropout_mask=dropout_mask
        )
        return output, state, weights[..., 0, :]


def concatenate(*arrays: np.ndarray) -> np.ndarray:
    """Concatenate the features."""
    lead = np.broadcast_shapes(*(array.shape[:-1] for array in arrays))
    return np.concatenate([np.broadcast_to(array, (*lead, array.shape[-1])) for array in arrays], axis=-1)


def row(mask: np.ndarray, step: int) -> np.ndarray:
    """Select the mask's row for that step, or its only row, as (batch, 1, keys)."""
    return mask if mask.shape[-2] == 1 else mask[..., step : step + 1, :]
