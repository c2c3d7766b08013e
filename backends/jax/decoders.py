"""Decoders in JAX: with attention by the previous state, by the current one, and without."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.tree_util import Partial
from jax.typing import DTypeLike

from attention_core.operators.decoders import BAHDANAU_DECODER, FIXED_CONTEXT_DECODER, LUONG_DECODER
from backends.jax.arrays import Lengths
from backends.jax.attention import LAYERS, attention_layer
from backends.jax.graphs import varying
from backends.jax.local import LocalAttention
from backends.jax.memory import Memory, at_step, last_open, zero_masked
from backends.jax.module import Specified, at_dtype, cast, check_ids, draw_mask, draw_parameter, dropout_layer
from backends.jax.pooling import average
from backends.jax.recurrent import recurrent_layer
from backends.jax.search import Masks, beam_search, greedy_search, steps_first

__all__ = ["LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"]


ATTENTION = {**LAYERS, "LocalAttention": LocalAttention}
State = TypeVar("State")
"""The state between two steps: an array, or a `LuongState`."""
Decoded = tuple[jax.Array, Any, jax.Array]
"""Logits of one step or of all, or the features that they are projected from; the state after it; and weights."""


class LuongState(NamedTuple):
    """The state of a LuongDecoder between two steps; made by `start`, read and returned by `step`.

    Shapes: rnn (num_layers, batch, state_size), fed (batch, fed_size), position (batch,), int32.
    """

    rnn: jax.Array
    fed: jax.Array
    position: jax.Array


class Decoder(Specified, Generic[State]):
    """Base class of the decoders, which differ in `_advance`: one step up to the features of the logits."""

    attention: Any = None

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        dtype, param_dtype, rngs = arguments["dtype"], arguments["param_dtype"], arguments["rngs"]
        parts = self.specification.inside(self.sizes)
        self.embedding = nnx.Embed(
            self.sizes["vocab_size"], self.sizes["embed_size"], dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        if "attention" in parts:
            self.attention = attention_layer(
                parts["attention"], ATTENTION, dtype=dtype, param_dtype=param_dtype, rngs=rngs
            )
        self.rnn = recurrent_layer(parts["rnn"], dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.dense = nnx.Linear(
            self.sizes["dense_size"], self.sizes["vocab_size"], dtype=dtype, param_dtype=param_dtype, rngs=rngs
        )
        if self.sizes["initial"] == "learned":
            shape = self.sizes["num_layers"], self.sizes["state_size"]
            self.initial = draw_parameter(shape, self.sizes["hidden_size"], param_dtype, rngs)
        self.dropout = dropout_layer(self.sizes["dropout"], rngs)

    @at_dtype
    def prepare(
        self, encoder_outputs: jax.Array, valid_lens: Lengths | None = None, mask: jax.Array | None = None
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

    @at_dtype
    def start(self, memory: Memory, state: jax.Array | None = None) -> State:
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

    @at_dtype
    def step(
        self,
        tokens: jax.Array,
        state: State,
        memory: Memory,
        *,
        dropout_mask: jax.Array | None = None,
        attention_dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, State, jax.Array]:
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
        between, factor = self._dropout_masks(tokens.shape, memory, **masks)
        return self._step(tokens, state, memory, (between, None if factor is None else factor[:, None]))

    @at_dtype
    def __call__(
        self,
        tokens: jax.Array,
        encoder_outputs: jax.Array,
        state: jax.Array | None = None,
        valid_lens: Lengths | None = None,
        mask: jax.Array | None = None,
        *,
        dropout_mask: jax.Array | None = None,
        attention_dropout_mask: jax.Array | None = None,
    ) -> tuple[jax.Array, State, jax.Array]:
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
        features, state, weights = self._features(tokens, state, **encoded, **masks)
        return self._logits(features), state, weights

    @at_dtype
    def greedy(
        self,
        encoder_outputs: jax.Array,
        state: jax.Array | None = None,
        valid_lens: Lengths | None = None,
        mask: jax.Array | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
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
        memory = self._prepare(encoder_outputs, valid_lens, mask)
        return greedy_search(
            Partial(Decoder._step, self),
            self._start(memory, state),
            memory,
            self._dropout_masks((encoder_outputs.shape[0], max_steps), memory),
            **options,
        )

    @at_dtype
    def beam(
        self,
        encoder_outputs: jax.Array,
        state: jax.Array | None = None,
        valid_lens: Lengths | None = None,
        mask: jax.Array | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
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
        memory = self._prepare(encoder_outputs, valid_lens, mask)
        return beam_search(
            Partial(Decoder._step, self),
            self._reorder,
            self._start(memory, state),
            memory,
            self._dropout_masks((encoder_outputs.shape[0] * width, max_steps), memory),
            vocab_size=self.sizes["vocab_size"],
            **options,
        )

    def _prepare(self, encoder_outputs: jax.Array, valid_lens: Lengths | None, mask: jax.Array | None) -> Memory:
        if self.attention is None:
            return zero_masked(encoder_outputs, encoder_outputs, valid_lens, mask)
        return self.attention._prepare(encoder_outputs, encoder_outputs, valid_lens, mask)

    def _features(
        self,
        tokens: jax.Array,
        state: jax.Array | None,
        *,
        encoder_outputs: jax.Array,
        valid_lens: Lengths | None,
        mask: jax.Array | None,
        dropout_mask: jax.Array | None,
        attention_dropout_mask: jax.Array | None,
    ) -> Decoded:
        """Return the features that the logits are projected from: (features, state, weights)."""
        memory = self._prepare(encoder_outputs, valid_lens, mask)
        masks = self._dropout_masks(tokens.shape, memory, dropout_mask, attention_dropout_mask)
        return self._run_forced(tokens, self._start(memory, state), memory, masks)

    def _start(self, memory: Memory, state: jax.Array | None) -> Any:
        if state is not None:
            return state
        shape = self.sizes["num_layers"], memory.values.shape[0], self.sizes["state_size"]
        if self.sizes["initial"] == "zero":
            return jnp.zeros(shape, memory.values.dtype)
        return jnp.broadcast_to(cast(self.initial, memory.values)[:, None], shape)

    def _step(self, tokens: jax.Array, state: Any, memory: Memory, masks: Masks = (None, None)) -> Decoded:
        embedded = self.embedding(tokens)
        features, state, weights = self._advance(embedded, state, memory, masks)
        return self._logits(features), state, weights

    def _advance(self, embedded: jax.Array, state: Any, memory: Memory, masks: Masks) -> Decoded:
        """Run one step up to the features of the logits: (features, state, weights)."""
        raise NotImplementedError

    # Compiled here, since jax.lax.scan outside of jit compiles its loop again in every call.
    @jax.jit
    def _run_forced(self, tokens: jax.Array, state: Any, memory: Memory, masks: Masks) -> Decoded:
        """Run all steps up to the features of the logits: (features, state, weights)."""
        embedded, (batch, keys, _) = jnp.swapaxes(self.embedding(tokens), 0, 1), memory.values.shape
        if tokens.shape[1] == 0:  # JAX traces a step even so, and there is no row of a mask for it
            width = self.sizes["readout_size" if self.sizes.get("readout") == "maxout" else "hidden_size"]
            features, weights = (jnp.zeros((batch, 0, size), embedded.dtype) for size in (width, keys))
            return features, state, weights

        # Computed again on the way back: a smaller program, and no step keeps its (batch, keys, attention_size).
        @partial(jax.checkpoint, prevent_cse=False)
        def step(state: Any, at: tuple[Any, ...]) -> tuple[Any, tuple[jax.Array, jax.Array]]:
            t, embedded, masks = at
            features, state, attended = layer._advance(embedded, state, at_step(memory, t), masks)
            return state, (features, attended)

        every = jnp.arange(len(embedded)), embedded, steps_first(masks)
        state, layer, memory = varying((state, self, memory), every)
        state, (features, weights) = jax.lax.scan(step, state, every)
        return jnp.swapaxes(features, 0, 1), state, jnp.swapaxes(weights, 0, 1)

    def _logits(self, features: jax.Array) -> jax.Array:
        """Project the features of one step, or of many at once."""
        return self.dense(features)

    @staticmethod
    def _reorder(state: Any, rows: jax.Array) -> Any:
        """Take the state of these rows of the batch, in this order."""
        return state[:, rows]

    def _dropout_masks(
        self,
        lead: tuple[int, ...],
        memory: Memory,
        dropout_mask: jax.Array | None = None,
        attention_dropout_mask: jax.Array | None = None,
    ) -> Masks:
        """Draw the masks that are not given, before the loop over the steps; lead is (batch,) or (batch, steps)."""
        (_, keys, _), dtype = memory.values.shape, memory.values.dtype
        if dropout_mask is None:
            between = (self.sizes["num_layers - 1"], *lead, self.sizes["hidden_size"])
            dropout_mask = draw_mask(self.rnn.dropout, jax.ShapeDtypeStruct(between, dtype))
        if attention_dropout_mask is None:
            attention_dropout_mask = draw_mask(self.dropout, jax.ShapeDtypeStruct((*lead, keys), dtype))
        return dropout_mask, attention_dropout_mask


class BahdanauDecoder(Decoder[jax.Array]):
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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
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
        layer = attention.BahdanauDecoder(vocab_size, embed_size, hidden_size, rngs=nnx.Rngs(0))
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
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(locals())
        if readout == "maxout":
            pairs = 2 * self.sizes["maxout_size"]
            self.readout = nnx.Linear(
                self.sizes["readout_size"], pairs, dtype=dtype, param_dtype=param_dtype, rngs=rngs
            )

    def _advance(self, embedded: jax.Array, state: jax.Array, memory: Memory, masks: Masks) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        previous = state[-1, :, : self.sizes["hidden_size"]]
        context, weights = self.attention._attend(previous[:, None], memory, dropout_mask=attention_dropout_mask)
        read = [context[:, 0]] if self.sizes["reads"] == "context" else [context[:, 0], embedded]
        output, state = self.rnn._advance(jnp.concatenate(read, axis=-1), state, dropout_mask)
        if self.sizes["readout"] == "maxout":
            output = jnp.concatenate([previous, embedded, context[:, 0]], axis=-1)
        return output, state, weights[:, 0]

    def _logits(self, features: jax.Array) -> jax.Array:
        if self.sizes["readout"] == "maxout":
            pairs = self.readout(features)
            first, second = pairs[..., 0::2], pairs[..., 1::2]
            features = jnp.where(first >= second, first, second)
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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
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
        layer = attention.LuongDecoder(vocab_size, embed_size, hidden_size, rngs=nnx.Rngs(0))
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
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(locals())
        joined = self.sizes["memory_size + hidden_size"]
        self.W_c = nnx.Linear(joined, hidden_size, use_bias=False, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def _start(self, memory: Memory, state: jax.Array | None) -> LuongState:
        rnn = super()._start(memory, state)
        batch = rnn.shape[1]
        return LuongState(rnn, jnp.zeros((batch, self.sizes["fed_size"]), rnn.dtype), jnp.zeros(batch, jnp.int32))

    def _advance(self, embedded: jax.Array, state: LuongState, memory: Memory, masks: Masks) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        feeding = self.sizes["input_feeding"]
        inputs = embedded if feeding == "none" else jnp.concatenate([embedded, state.fed], axis=-1)
        output, rnn = self.rnn._advance(inputs, state.rnn, dropout_mask)
        at = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        context, weights = self.attention._attend(output[:, None], memory, **at, dropout_mask=attention_dropout_mask)
        attentional = jnp.tanh(self.W_c(jnp.concatenate([context[:, 0], output], axis=-1)))
        fed = context[:, 0] if feeding == "context" else attentional
        return attentional, LuongState(rnn, fed, state.position + 1), weights[:, 0]

    @staticmethod
    def _reorder(state: LuongState, rows: jax.Array) -> LuongState:
        return LuongState(state.rnn[:, rows], state.fed[rows], state.position[rows])

    # particular to JAX

    @jax.jit
    def _run_forced(self, tokens: jax.Array, state: LuongState, memory: Memory, masks: Masks) -> Decoded:
        """Run all steps; without input feeding, all at once, since no step's attention waits for the one before."""
        if self.sizes["input_feeding"] != "none":
            return super()._run_forced(tokens, state, memory, masks)
        dropout_mask, attention_dropout_mask = masks
        outputs, rnn = self.rnn(self.embedding(tokens), None, state.rnn, dropout_mask=dropout_mask)
        at = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        context, weights = self.attention._attend(outputs, memory, **at, dropout_mask=attention_dropout_mask)
        attentional = jnp.tanh(self.W_c(jnp.concatenate([context, outputs], axis=-1)))
        steps = tokens.shape[1]
        last = attentional[:, -1] if steps else state.fed
        return attentional, LuongState(rnn, last, state.position + steps), weights


class FixedContextDecoder(Decoder[jax.Array]):
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
        dtype: floating type to which inputs and parameters are cast; by default no input of another one is accepted
        param_dtype: floating type of the parameters
        rngs: streams of random numbers, for the first values of the parameters and for dropout
    Parameters:
        embedding: (vocab_size, embed_size), one row for each token id
        initial: (num_layers, state_size), the first state, if initial='learned'
        dense.W: (vocab_size, hidden_size), weights of the logits
        dense.b: (vocab_size,), biases of the logits
        rnn.*: the GRU or LSTM, which reads the context first, then the embedded token
    Source: Cho et al. 2014, section 2.2, arXiv:1406.1078; the last output in place of its projection
    Example:
        layer = attention.FixedContextDecoder(vocab_size, embed_size, hidden_size, rngs=nnx.Rngs(0))
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
        dtype: DTypeLike | None = None,
        param_dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(locals())

    def _advance(self, embedded: jax.Array, state: jax.Array, memory: Memory, masks: Masks) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        last = last_open(memory)
        weights = last.astype(memory.values.dtype)
        context = average(weights, memory.values, last, attention_dropout_mask)
        inputs = jnp.concatenate([context[:, 0], embedded], axis=-1)
        output, state = self.rnn._advance(inputs, state, dropout_mask)
        return output, state, weights[:, 0]

    # particular to JAX

    @jax.jit
    def _run_forced(self, tokens: jax.Array, state: jax.Array, memory: Memory, masks: Masks) -> Decoded:
        """Run all steps at once, since no step's context waits for the one before."""
        dropout_mask, attention_dropout_mask = masks
        embedded, (batch, keys, _) = self.embedding(tokens), memory.values.shape
        last = jnp.broadcast_to(last_open(memory), (batch, tokens.shape[1], keys))
        weights = last.astype(memory.values.dtype)
        # Taken, not averaged: of all steps at once, a weight of 0 does not silence the NaN that another step takes.
        # Where nothing is open, the place is outside: 0.
        places = jnp.where(last, jnp.arange(keys), keys).min(axis=-1, keepdims=True, initial=keys)
        context = jnp.take_along_axis(memory.values, places, axis=1, mode="fill", fill_value=0)
        if attention_dropout_mask is not None:
            context = context * jnp.sum(weights * attention_dropout_mask, axis=-1, keepdims=True)
        inputs = jnp.concatenate([context, embedded], axis=-1)
        outputs, state = self.rnn(inputs, None, state, dropout_mask=dropout_mask)
        return outputs, state, weights
