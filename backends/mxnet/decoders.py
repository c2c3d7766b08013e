"""Decoders in MXNet: with attention by the previous state, by the current one, and without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import mxnet as mx
from mxnet import autograd, np, npx

from attention_core.operators.decoders import BAHDANAU_DECODER, FIXED_CONTEXT_DECODER, LUONG_DECODER
from backends.mxnet.arrays import Lengths
from backends.mxnet.attention import LAYERS, attention_layer
from backends.mxnet.local import LocalAttention
from backends.mxnet.memory import Memory, at_step, last_open, zero_masked
from backends.mxnet.module import Specified, Uniform, check_ids, draw_mask, embedding, initialise, linear, project
from backends.mxnet.pooling import average
from backends.mxnet.recurrent import recurrent_layer
from backends.mxnet.search import beam_search, greedy_search

__all__ = ["LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"]


ATTENTION = {**LAYERS, "LocalAttention": LocalAttention}
State = TypeVar("State")
"""The state between two steps: an array, or a `LuongState`."""
Decoded = tuple[np.ndarray, Any, np.ndarray]
"""Logits of one step or of all, or the features that they are projected from; the state after it; and weights."""
Masks = tuple[np.ndarray | None, np.ndarray | None]
"""Dropout masks between the recurrent layers and of the attention's weights."""


class LuongState(NamedTuple):
    """The state of a LuongDecoder between two steps; made by `start`, read and returned by `step`.

    Shapes: rnn (num_layers, batch, state_size), fed (batch, fed_size), position (batch,), int32.
    """

    rnn: np.ndarray
    fed: np.ndarray
    position: np.ndarray


class Decoder(Specified, Generic[State]):
    """Base class of the decoders, which differ in `_advance`: one step up to the features of the logits."""

    attention: Any

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        dtype = arguments["dtype"]
        vocab_size, parts = self.sizes["vocab_size"], self.specification.inside(self.sizes)
        first, learned = (self.sizes["num_layers"], self.sizes["state_size"]), self.sizes["initial"] == "learned"
        drawn, attended = Uniform(self.sizes["hidden_size"] ** -0.5), parts.get("attention")
        with self.name_scope():
            self.embedding = embedding(vocab_size, self.sizes["embed_size"], dtype=dtype)
            self.initial = self.params.get("initial", shape=first, dtype=dtype, init=drawn) if learned else None
            self.attention = None if attended is None else attention_layer(attended, ATTENTION, dtype=dtype)
            self.rnn = recurrent_layer(parts["rnn"], dtype=dtype)
            self.dense = linear(self.sizes["dense_size"], vocab_size, use_bias=True, dtype=dtype)
        self.dropout = self.sizes["dropout"]
        initialise(self)

    def prepare(
        self, encoder_outputs: np.ndarray, valid_lens: Lengths | None = None, mask: np.ndarray | None = None
    ) -> Memory:
        """Project the encoder's outputs and zero the hidden ones, once for all steps.

        memory = attention.prepare(encoder_outputs, encoder_outputs)

        Args:
            encoder_outputs: (batch, keys, memory_size); keys and values of the attention
            valid_lens (default None): integers (batch, [steps]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, steps, keys), broadcast; True where a query may attend
        Returns:
            memory: a `Memory`, which `attend` and `step` take
        Raises:
            ShapeError: more keys than a location score has positions
        """
        self._check("prepare", encoder_outputs=encoder_outputs, valid_lens=valid_lens, mask=mask)
        return self._prepare(encoder_outputs, valid_lens, mask)

    def start(self, memory: Memory, state: np.ndarray | None = None) -> State:
        """Return the decoder's state before its first step.

        state = the encoder's state, 0, or the parameter initial, depending on the option initial

        Args:
            memory: as `prepare` returns it
            state (default None): (num_layers, batch, state_size); the encoder's last state if initial='encoder', else
                None
        Returns:
            state: what the next `step` takes
        Raises:
            OptionError: a state that would be ignored, or a missing one that is required
        """
        self._check("start", memory=memory, state=state)
        return self._start(memory, state)

    def step(
        self,
        tokens: np.ndarray,
        state: State,
        memory: Memory,
        *,
        dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, State, np.ndarray]:
        """Decode one token.

        The mask of the memory has one row, that of this step.

        Args:
            tokens: integers (batch,); token ids
            state: as `start` returns it
            memory: as `prepare` returns it
            dropout_mask (default None): (num_layers - 1, batch, output_size); factor of the outputs of every layer but
                the top one
            attention_dropout_mask (default None): (batch, keys); factor of each weight
        Returns:
            logits: (batch, vocab_size); scores of the next token (natural logarithm)
            state: what the next `step` takes
            weights: (batch, keys); probabilities over the keys
        """
        masks = {"dropout_mask": dropout_mask, "attention_dropout_mask": attention_dropout_mask}
        self._check("step", tokens=tokens, state=state, memory=memory, **masks)
        check_ids(self.specification.name, "tokens", tokens, self.sizes["vocab_size"])
        factor = None if attention_dropout_mask is None else attention_dropout_mask[:, None]
        return self._step(tokens, state, memory, (dropout_mask, factor))

    def __call__(
        self,
        tokens: np.ndarray,
        encoder_outputs: np.ndarray,
        state: np.ndarray | None = None,
        valid_lens: Lengths | None = None,
        mask: np.ndarray | None = None,
        *,
        dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, State, np.ndarray]:
        """Decode given tokens: each step reads the given token, not the predicted one (teacher forcing).

        logits[t], state[t], weights[t] = step(tokens[t], state[t - 1], memory)

        Args:
            tokens: integers (batch, steps); token ids
            encoder_outputs: (batch, keys, memory_size); keys and values of the attention
            state (default None): (num_layers, batch, state_size); the encoder's last state if initial='encoder', else
                None
            valid_lens (default None): integers (batch, [steps]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, steps, keys), broadcast; True where a query may attend
            dropout_mask (default None): (num_layers - 1, batch, steps, output_size); factor of the outputs of every
                layer but the top one
            attention_dropout_mask (default None): (batch, steps, keys); factor of each weight
        Returns:
            logits: (batch, steps, vocab_size); scores of each next token (natural logarithm)
            state: what the next `step` takes
            weights: (batch, steps, keys); probabilities over the keys
        Raises:
            ShapeError: more keys than a location score has positions
            OptionError: a state that would be ignored, or a missing one that is required
        """
        encoded: dict[str, Any] = {"encoder_outputs": encoder_outputs, "valid_lens": valid_lens, "mask": mask}
        masks = {"dropout_mask": dropout_mask, "attention_dropout_mask": attention_dropout_mask}
        self._check("call", tokens=tokens, state=state, **encoded, **masks)
        check_ids(self.specification.name, "tokens", tokens, self.sizes["vocab_size"])
        return super().__call__(tokens, state, encoded, (dropout_mask, attention_dropout_mask))

    def greedy(
        self,
        encoder_outputs: np.ndarray,
        state: np.ndarray | None = None,
        valid_lens: Lengths | None = None,
        mask: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Decode by feeding back the most probable token until the end token.

        token[t] = argmax of logits[t], logits[t] = step(token[t - 1]), token[-1] = bos; stop at eos

        Args:
            encoder_outputs: (batch, keys, memory_size); keys and values of the attention
            state (default None): (num_layers, batch, state_size); the encoder's last state if initial='encoder', else
                None
            valid_lens (default None): integers (batch,), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, one, keys), broadcast; True where a query may attend
            bos: token that starts a sequence
            eos: token that ends a sequence
            max_steps: maximum number of tokens to decode
        Returns:
            tokens: integers (batch, max_steps); decoded ids, padded with eos
            lengths: integers (batch,); number of tokens before eos
            weights: (batch, max_steps, keys); probabilities over the keys; 0 after the step that gave eos
        Raises:
            ShapeError: more keys than a location score has positions
            OptionError: a state that would be ignored, or a missing one that is required
            TokenError: a first or last token outside the vocabulary
        """
        options = {"bos": bos, "eos": eos, "max_steps": max_steps}
        self._check("greedy", encoder_outputs=encoder_outputs, state=state, valid_lens=valid_lens, mask=mask, **options)
        with autograd.pause():
            memory = self._prepare(encoder_outputs, valid_lens, mask)
            return greedy_search(self._step, self._start(memory, state), memory, **options)

    def beam(
        self,
        encoder_outputs: np.ndarray,
        state: np.ndarray | None = None,
        valid_lens: Lengths | None = None,
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

        Args:
            encoder_outputs: (batch, keys, memory_size); keys and values of the attention
            state (default None): (num_layers, batch, state_size); the encoder's last state if initial='encoder', else
                None
            valid_lens (default None): integers (batch,), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, one, keys), broadcast; True where a query may attend
            bos: token that starts a sequence
            eos: token that ends a sequence
            max_steps: maximum number of tokens to decode
            width: hypotheses kept at each step
            num_best (default 1): hypotheses returned, best first
            length_penalty (default 0.0): exponent α; 0 ranks by log probability
        Returns:
            tokens: integers (batch, num_best, max_steps); decoded ids, padded with eos
            lengths: integers (batch, num_best); number of tokens before eos
            scores: (batch, num_best); best first; natural logarithms, divided by the length penalty
            weights: (batch, num_best, max_steps, keys); probabilities over the keys; 0 after the step that gave eos
        Raises:
            ShapeError: more keys than a location score has positions
            OptionError: a state that would be ignored, or a missing one that is required
            TokenError: a first or last token outside the vocabulary
            OptionError: num_best above width, or width above vocab_size
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
        with autograd.pause():
            memory = self._prepare(encoder_outputs, valid_lens, mask)
            return beam_search(
                self._step,
                self._reorder,
                self._start(memory, state),
                memory,
                vocab_size=self.sizes["vocab_size"],
                **options,
            )

    def _prepare(self, encoder_outputs: np.ndarray, valid_lens: Lengths | None, mask: np.ndarray | None) -> Memory:
        if self.attention is None:
            return zero_masked(encoder_outputs, encoder_outputs, valid_lens, mask)
        return self.attention._prepare(encoder_outputs, encoder_outputs, valid_lens, mask)

    def _features(
        self,
        tokens: np.ndarray,
        state: np.ndarray | None,
        *,
        encoder_outputs: np.ndarray,
        valid_lens: Lengths | None,
        mask: np.ndarray | None,
        dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> Decoded:
        """Return the features that the logits are projected from: (features, state, weights)."""
        memory = self._prepare(encoder_outputs, valid_lens, mask)
        return self._run_forced(tokens, self._start(memory, state), memory, (dropout_mask, attention_dropout_mask))

    def _start(self, memory: Memory, state: np.ndarray | None) -> Any:
        if state is not None:
            return state
        batch, ctx = memory.values.shape[0], memory.values.ctx
        shape = (self.sizes["num_layers"], batch, self.sizes["state_size"])
        if self.initial is None or batch == 0:
            return np.zeros(shape, dtype=memory.values.dtype, ctx=ctx)
        return np.broadcast_to(self.initial.data(ctx)[:, None], shape)

    def _step(self, tokens: np.ndarray, state: Any, memory: Memory, masks: Masks = (None, None)) -> Decoded:
        batch, keys, _ = memory.values.shape
        if batch == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            like = {"dtype": memory.values.dtype, "ctx": memory.values.ctx}
            return np.zeros((0, self.sizes["vocab_size"]), **like), state, np.zeros((0, keys), **like)
        embedded = self.embedding(tokens)
        features, state, weights = self._advance(embedded, state, memory, masks)
        return self._logits(features), state, weights

    def _advance(self, embedded: np.ndarray, state: Any, memory: Memory, masks: Masks) -> Decoded:
        """Run one step up to the features of the logits: (features, state, weights)."""
        raise NotImplementedError

    def _run_forced(self, tokens: np.ndarray, state: Any, memory: Memory, masks: Masks) -> Decoded:
        """Run all steps up to the features of the logits: (features, state, weights)."""
        if tokens.size == 0:  # over an empty axis, MXNet reads foreign memory or crashes
            like = {"dtype": memory.values.dtype, "ctx": memory.values.ctx}
            width = self.sizes["readout_size" if self.sizes.get("readout") == "maxout" else "hidden_size"]
            keys = memory.values.shape[1]
            return np.zeros((*tokens.shape, width), **like), state, np.zeros((*tokens.shape, keys), **like)
        embedded, keys = self.embedding(tokens), memory.values.shape[1]
        features, weights = [], []
        for t in range(embedded.shape[1]):
            read, state, attended = self._advance(embedded[:, t], state, at_step(memory, t), masks_at(masks, t))
            features.append(read)
            weights.append(attended)
        read = np.stack(features, axis=1)
        if keys == 0:  # MXNet stacks no empty arrays
            return read, state, np.zeros((*tokens.shape, 0), dtype=embedded.dtype, ctx=embedded.ctx)
        return read, state, np.stack(weights, axis=1)

    def _logits(self, features: np.ndarray) -> np.ndarray:
        """Project the features of one step, or of many at once."""
        return project(self.dense, features)

    def _reorder(self, state: Any, rows: np.ndarray) -> Any:
        """Take the state of these rows of the batch, in this order."""
        return np.take(state, rows, axis=1)

    def forward(
        self, tokens: np.ndarray, state: np.ndarray | None, encoded: Mapping[str, Any], masks: Masks
    ) -> Decoded:
        """Gluon enters here, with positional arguments alone."""
        named = dict(zip(("dropout_mask", "attention_dropout_mask"), masks, strict=True))
        features, state, weights = self._features(tokens, state, **encoded, **named)
        return self._logits(features), state, weights


class BahdanauDecoder(Decoder[np.ndarray]):
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

    Args:
        vocab_size: number of token ids
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        memory_size (default None): features of the encoder's outputs; hidden_size if None
        attention_size (default None): hidden features of an additive or concat score; hidden_size if None
        score (default 'additive'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'location', 'gaussian'
        num_positions (default None): number of positions to score, for score='location' only
        cell (default 'gru'): the recurrent layer, by name: 'gru', 'lstm'
        initial (default 'encoder'): first state: the encoder's last state, zeros, or a parameter: 'encoder', 'zero',
            'learned'
        reads (default 'both'): what the recurrent layer reads: the context and the embedded token, or the context
            alone: 'both', 'context'
        readout (default 'dense'): logits from the new top output, or as in the paper from the previous one, the token
            and the context: 'dense', 'maxout'
        maxout_size (default None): pairs in the maxout readout; hidden_size if None
        dropout (default 0.0): dropout rate of the attention weights, and between recurrent layers, in training
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        initial: (num_layers, state_size), the first state, if initial='learned'
        readout.W: (2 maxout_size, hidden_size + embed_size + memory_size), weights of the maxout readout, if
            readout='maxout'
        readout.b: (2 maxout_size,), biases of the maxout readout
        dense.W: (vocab_size, hidden_size), weights of the logits
        dense.b: (vocab_size,), biases of the logits
        attention.*: the attention layer of score
        rnn.*: the GRU or LSTM, which reads the context first, then the embedded token, if reads='both'
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473; maxout readout: appendix A.2.2
    Example:
        layer = attention.BahdanauDecoder(vocab_size, embed_size, hidden_size)
        logits, state, weights = layer(tokens, encoder_outputs, state)
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
        reads: str = "both",
        readout: str = "dense",
        maxout_size: int | None = None,
        dropout: float = 0.0,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())
        if readout == "maxout":
            with self.name_scope():
                self.readout = linear(
                    self.sizes["readout_size"], 2 * self.sizes["maxout_size"], use_bias=True, dtype=dtype
                )
            initialise(self)

    def _advance(self, embedded: np.ndarray, state: np.ndarray, memory: Memory, masks: Masks) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        previous = state[-1] if self.sizes["cell"] == "gru" else state[-1][:, : self.sizes["hidden_size"]]
        query = np.expand_dims(previous, 1)
        context, weights = self.attention._attend(query, memory, dropout_mask=attention_dropout_mask)
        context = np.squeeze(context, 1)
        inputs = context if self.sizes["reads"] == "context" else np.concatenate([context, embedded], axis=-1)
        output, state = self.rnn._advance(inputs, state, dropout_mask)
        if self.sizes["readout"] == "maxout":
            output = np.concatenate([previous, embedded, context], axis=-1)
        return output, state, weights[:, 0]

    def _logits(self, features: np.ndarray) -> np.ndarray:
        if self.sizes["readout"] == "maxout":
            pairs = self.readout(features)
            features = np.maximum(pairs[..., 0::2], pairs[..., 1::2])
        return super()._logits(features)


class LuongDecoder(Decoder[LuongState]):
    """Decode with attention whose query is the current output of the top recurrent layer.

    state' = rnn([embedding[token]; fed], state), fed = h̃, context or nothing of the step before, depending on the
    option input_feeding
    context', weights = attention(top output', encoder_outputs)
    h̃' = tanh(W_c [context'; top output'])
    logits = dense.W h̃' + dense.b

    Unless alignment='global', window is required. The scores dot, scaled_dot, cosine and gaussian compare features one
    by one, and need as many in a query as in a key.

    Args:
        vocab_size: number of token ids
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        memory_size (default None): features of the encoder's outputs; hidden_size if None
        attention_size (default None): hidden features of an additive or concat score; hidden_size if None
        score (default 'general'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'location', 'gaussian'
        num_positions (default None): number of positions to score, for score='location' only
        alignment (default 'global'): attention to all keys, or to a window around the step or around a predicted
            position: 'global', 'monotonic', 'predictive'
        window (default None): keys on either side of the centre; None if 'global'
        input_feeding (default 'attentional'): what of a step is an input of the next: its attentional vector, as in the
            paper, its context, or nothing: 'attentional', 'context', 'none'
        cell (default 'gru'): the recurrent layer, by name: 'gru', 'lstm'
        initial (default 'encoder'): first state: the encoder's last state, zeros, or a parameter: 'encoder', 'zero',
            'learned'
        dropout (default 0.0): dropout rate of the attention weights, and between recurrent layers, in training
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        initial: (num_layers, state_size), the first state, if initial='learned'
        W_c: (hidden_size, memory_size + hidden_size), projects [context; top output]; no bias
        dense.W: (vocab_size, hidden_size), weights of the logits
        dense.b: (vocab_size,), biases of the logits
        attention.*: the attention layer of score, inside a LocalAttention unless global
        rnn.*: the GRU or LSTM, which reads the embedded token, then what is fed
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025; input feeding: section 3.3
    Example:
        layer = attention.LuongDecoder(vocab_size, embed_size, hidden_size)
        logits, state, weights = layer(tokens, encoder_outputs, state)
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
        input_feeding: str = "attentional",
        cell: str = "gru",
        initial: str = "encoder",
        dropout: float = 0.0,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())
        with self.name_scope():
            self.W_c = linear(self.sizes["memory_size + hidden_size"], hidden_size, use_bias=False, dtype=dtype)
        initialise(self)

    def _start(self, memory: Memory, state: np.ndarray | None) -> LuongState:
        rnn = super()._start(memory, state)
        fed = np.zeros((rnn.shape[1], self.sizes["fed_size"]), dtype=rnn.dtype, ctx=rnn.ctx)
        return LuongState(rnn, fed, np.zeros(rnn.shape[1:2], dtype="int32", ctx=rnn.ctx))

    def _advance(self, embedded: np.ndarray, state: LuongState, memory: Memory, masks: Masks) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        feeding = self.sizes["input_feeding"]
        inputs = embedded if feeding == "none" else np.concatenate([embedded, state.fed], axis=-1)
        output, rnn = self.rnn._advance(inputs, state.rnn, dropout_mask)
        at = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        query = np.expand_dims(output, 1)
        context, weights = self.attention._attend(query, memory, **at, dropout_mask=attention_dropout_mask)
        context = np.squeeze(context, 1)
        joined = np.concatenate([context, output], axis=-1)
        attentional = npx.activation(self.W_c(joined), act_type="tanh")
        fed = context if feeding == "context" else attentional
        return attentional, LuongState(rnn, fed, state.position + 1), weights[:, 0]

    def _reorder(self, state: LuongState, rows: np.ndarray) -> LuongState:
        return LuongState(
            np.take(state.rnn, rows, axis=1),
            np.take(state.fed, rows, axis=0),
            np.take(state.position, rows, axis=0),
        )


class FixedContextDecoder(Decoder[np.ndarray]):
    """Decode without attention: the context of every step is the encoder's last output.

    context = the last open encoder output, weights = 1 there
    state' = rnn([context; embedding[token]], state)
    logits = dense.W top output' + dense.b

    With a GRUEncoder of one direction, that output is the encoder's last state. A sequence without an open key gets
    context 0 and weights 0. Dropout acts on the weight, as on those of attention.

    Args:
        vocab_size: number of token ids
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        memory_size (default None): features of the encoder's outputs; hidden_size if None
        cell (default 'gru'): the recurrent layer, by name: 'gru', 'lstm'
        initial (default 'encoder'): first state: the encoder's last state, zeros, or a parameter: 'encoder', 'zero',
            'learned'
        dropout (default 0.0): dropout rate of the attention weights, and between recurrent layers, in training
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        initial: (num_layers, state_size), the first state, if initial='learned'
        dense.W: (vocab_size, hidden_size), weights of the logits
        dense.b: (vocab_size,), biases of the logits
        rnn.*: the GRU or LSTM, which reads the context first, then the embedded token
    Source: Cho et al. 2014, section 2.2, arXiv:1406.1078; the last output in place of its projection
    Example:
        layer = attention.FixedContextDecoder(vocab_size, embed_size, hidden_size)
        logits, state, weights = layer(tokens, encoder_outputs, state)
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())

    def _advance(self, embedded: np.ndarray, state: np.ndarray, memory: Memory, masks: Masks) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        last = last_open(memory)
        weights = last.astype(memory.values.dtype)
        if attention_dropout_mask is None:
            attention_dropout_mask = draw_mask(self.dropout, weights)
        context = average(weights, memory.values, last, attention_dropout_mask)
        inputs = np.concatenate([np.squeeze(context, 1), embedded], axis=-1)
        output, state = self.rnn._advance(inputs, state, dropout_mask)
        return output, state, weights[:, 0]


def masks_at(masks: Masks, step: int) -> Masks:
    """Take the dropout masks of that step."""
    between, attention = masks
    return None if between is None else between[:, :, step], None if attention is None else attention[
        :, step : step + 1
    ]
