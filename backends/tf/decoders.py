"""Decoders in Keras: with attention by the previous state, by the current one, and without."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import keras
import tensorflow as tf

from attention_core.operators.decoders import BAHDANAU_DECODER, FIXED_CONTEXT_DECODER, LUONG_DECODER
from backends.tf import kernels
from backends.tf.arrays import Lengths, lengths
from backends.tf.attention import LAYERS, attention_layer
from backends.tf.local import LocalAttention
from backends.tf.masking import size
from backends.tf.memory import Memory, at_step, is_shared, last_open, zero_masked
from backends.tf.module import Specified, check_ids, draw_mask, draw_parameter, join_attached, mode_of, project
from backends.tf.pooling import average
from backends.tf.recurrent import Arranged, Layers, recurrent_layer
from backends.tf.search import beam_search, greedy_search, shaped_as

__all__ = ["LuongState", "BahdanauDecoder", "LuongDecoder", "FixedContextDecoder"]


ATTENTION = {**LAYERS, "LocalAttention": LocalAttention}
State = TypeVar("State")
"""The state between two steps: an array, or a `LuongState`."""
Decoded = tuple[tf.Tensor, Any, tf.Tensor]
"""Logits of one step or of all, or the features that they are projected from; the state after it; and weights."""
Masks = tuple[tf.Tensor | None, tf.Tensor | None]
"""Dropout masks between the recurrent layers and of the attention's weights."""
Lens: TypeAlias = tf.Tensor | None
"""The steps of each sequence that count, (batch,), where the others may be left out."""


class LuongState(NamedTuple):
    """The state of a LuongDecoder between two steps; made by `start`, read and returned by `step`.

    Shapes: rnn (num_layers, batch, state_size), fed (batch, fed_size), position (batch,), int32.
    """

    rnn: tf.Tensor
    fed: tf.Tensor
    position: tf.Tensor


class Decoder(Specified, Generic[State]):
    """Base class of the decoders, which differ in `_advance`: one step up to the features of the logits."""

    attention: Any

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__(arguments)
        sizes, dtype = self.sizes, self.dtype_policy
        parts, vocab_size = self.specification.inside(sizes), sizes["vocab_size"]
        with keras.name_scope(self.name, caller=self):
            self.embedding = keras.layers.Embedding(vocab_size, sizes["embed_size"], dtype=dtype, name="embedding")
            self.rnn = recurrent_layer(parts["rnn"], dtype=dtype, name="rnn")
            self.embedding.supports_masking = True  # Keras attaches the mask of the tokens to the logits
            for layer in (self.embedding, self.rnn):
                layer.build(None)
        self.attention = None
        if "attention" in parts:
            self.attention = attention_layer(parts["attention"], ATTENTION, caller=self, name="attention")
        first, learned = (sizes["num_layers"], sizes["state_size"]), sizes["initial"] == "learned"
        self.initial = draw_parameter(self, "initial", first, sizes["hidden_size"]) if learned else None
        self.dense = self._projection("dense", sizes["dense_size"], vocab_size, use_bias=True)
        self.dropout = keras.layers.Dropout(sizes["dropout"], autocast=False)

    def prepare(
        self, encoder_outputs: tf.Tensor, valid_lens: Lengths | None = None, mask: tf.Tensor | None = None
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
        return self._prepare(self._cast(encoder_outputs), valid_lens, mask)

    def start(self, memory: Memory, state: tf.Tensor | None = None) -> State:
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
        memory, state = self._cast((memory, state))
        return self._start(memory, state)

    def step(
        self,
        tokens: tf.Tensor,
        state: State,
        memory: Memory,
        *,
        dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, State, tf.Tensor]:
        """Decode one token.

        The mask of the memory has one row, that of this step.

        Args:
            tokens: integers (batch,); token ids
            state: as `start` returns it
            memory: as `prepare` returns it
            dropout_mask (default None): (num_layers - 1, batch, output_size); factor of the outputs of every layer but
                the top one
            attention_dropout_mask (default None): (batch, keys); factor of each weight
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            logits: (batch, vocab_size); scores of the next token (natural logarithm)
            state: what the next `step` takes
            weights: (batch, keys); probabilities over the keys
        """
        masks = {"dropout_mask": dropout_mask, "attention_dropout_mask": attention_dropout_mask}
        self._check("step", tokens=tokens, state=state, memory=memory, **masks)
        check_ids(self.specification.name, "tokens", tokens, self.sizes["vocab_size"])
        state, memory, masks = self._cast((state, memory, masks))
        between, factor = self._dropout_masks((size(memory.values, 0),), memory, **masks, training=training)
        return self._step(tokens, state, memory, (between, None if factor is None else factor[:, None]))

    def __call__(
        self,
        tokens: tf.Tensor,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor | None = None,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, State, tf.Tensor]:
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
            training: whether dropout is active; by default the mode of the enclosing layer
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
        # Keras takes a mask given by keyword for one that belongs to the first input, and warns that it gets lost.
        return super().__call__(tokens, encoder_outputs, state, lengths(valid_lens), mask, **masks, **mode_of(training))

    def call(
        self,
        tokens: tf.Tensor,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor | None = None,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, State, tf.Tensor]:
        """Decode given tokens, each step reading its own token (teacher forcing); Keras enters here."""
        encoded: dict[str, Any] = {"encoder_outputs": encoder_outputs, "valid_lens": valid_lens, "mask": mask}
        masks = {"dropout_mask": dropout_mask, "attention_dropout_mask": attention_dropout_mask}
        features, state, weights = self._features(tokens, state, **encoded, **masks, training=training)
        return self._logits(features), state, weights

    def greedy(
        self,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor | None = None,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
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
        encoder_outputs, state = self._cast((encoder_outputs, state))
        memory, step = self._prepare(encoder_outputs, valid_lens, mask), partial(self._step, layers=self._of_steps())
        return greedy_search(step, self._start(memory, state), memory, **options)

    def beam(
        self,
        encoder_outputs: tf.Tensor,
        state: tf.Tensor | None = None,
        valid_lens: Lengths | None = None,
        mask: tf.Tensor | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
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
        options: dict[str, Any] = {"bos": bos, "eos": eos, "max_steps": max_steps, "width": width}
        options |= {"num_best": num_best, "length_penalty": length_penalty}
        self._check("beam", encoder_outputs=encoder_outputs, state=state, valid_lens=valid_lens, mask=mask, **options)
        encoder_outputs, state = self._cast((encoder_outputs, state))
        memory, step = self._prepare(encoder_outputs, valid_lens, mask), partial(self._step, layers=self._of_steps())
        start, options["vocab_size"] = self._start(memory, state), self.sizes["vocab_size"]
        return beam_search(step, self._reorder, start, memory, **options)

    def _prepare(self, encoder_outputs: tf.Tensor, valid_lens: Lengths | None, mask: tf.Tensor | None) -> Memory:
        if self.attention is None:
            return zero_masked(encoder_outputs, encoder_outputs, valid_lens, join_attached(mask, encoder_outputs))
        return self.attention._prepare(encoder_outputs, encoder_outputs, valid_lens, mask)

    def _features(
        self,
        tokens: tf.Tensor,
        state: tf.Tensor | None,
        *,
        encoder_outputs: tf.Tensor,
        valid_lens: Lengths | None,
        mask: tf.Tensor | None,
        dropout_mask: tf.Tensor | None,
        attention_dropout_mask: tf.Tensor | None,
        training: bool | None,
        lens: Lens = None,
    ) -> Decoded:
        """Return the features that the logits are projected from: (features, state, weights)."""
        memory, lead = self._prepare(encoder_outputs, valid_lens, mask), (size(tokens, 0), size(tokens, 1))
        masks = self._dropout_masks(lead, memory, dropout_mask, attention_dropout_mask, training)
        return self._run_forced(tokens, self._start(memory, state), memory, masks, lens)

    def _start(self, memory: Memory, state: tf.Tensor | None) -> Any:
        if state is not None:
            return state
        shape = (self.sizes["num_layers"], size(memory.values, 0), self.sizes["state_size"])
        if self.initial is None:
            return tf.zeros(shape, memory.values.dtype)
        return tf.broadcast_to(self._cast(self.initial.value)[:, None], shape)

    def _step(
        self, tokens: tf.Tensor, state: Any, memory: Memory, masks: Masks = (None, None), layers: Arranged | None = None
    ) -> Decoded:
        columns, of_layers = self._of_steps() if layers is None else layers
        embedded = self._embed(tokens, columns)
        features, state, weights = self._advance(embedded, state, memory, masks, of_layers)
        return self._logits(features), state, weights

    def _advance(self, embedded: tf.Tensor, state: Any, memory: Memory, masks: Masks, layers: Layers) -> Decoded:
        """Run one step up to the features of the logits: (features, state, weights)."""
        raise NotImplementedError

    def _run_forced(self, tokens: tf.Tensor, state: Any, memory: Memory, masks: Masks, lens: Lens) -> Decoded:
        """Run all steps up to the features of the logits: (features, state, weights)."""
        columns, layers = self._of_steps()
        embedded = self._embed(tokens, columns)
        batch, steps, keys = size(tokens, 0), size(tokens, 1), size(memory.values, 1)
        dtype, width = embedded.dtype, "readout_size" if self.sizes.get("readout") == "maxout" else "hidden_size"
        embedded = tf.transpose(embedded, (1, 0, 2))
        embedded = tf.TensorArray(dtype, size=steps, element_shape=embedded.shape[1:]).unstack(embedded)
        # Row 0 comes before the first step: an empty TensorArray cannot be stacked. Without their shapes, TensorFlow
        # Lite takes both for one.
        features, weights = (
            tf.TensorArray(dtype, size=steps + 1, element_shape=row.shape).write(0, row)
            for row in (tf.zeros((batch, self.sizes[width]), dtype), tf.zeros((batch, keys), dtype))
        )

        def advance(
            t: tf.Tensor, state: Any, features: tf.TensorArray, weights: tf.TensorArray
        ) -> tuple[tf.Tensor, Any, tf.TensorArray, tf.TensorArray]:
            given = at_step(memory, t), masks_at(masks, t), layers
            read, after, attended = self._advance(embedded.read(t), state, *given)
            return t + 1, shaped_as(after, state), features.write(t + 1, read), weights.write(t + 1, attended)

        loop = 0, state, features, weights
        _, state, features, weights = tf.while_loop(lambda t, *_: t < steps, advance, loop, maximum_iterations=steps)
        features, weights = (tf.transpose(array.stack()[1:], (1, 0, 2)) for array in (features, weights))
        return features, state, weights

    def _logits(self, features: tf.Tensor) -> tf.Tensor:
        """Project the features of one step, or of many at once."""
        return self.dense(features)

    def _reorder(self, state: Any, rows: tf.Tensor) -> Any:
        """Take the state of these rows of the batch, in this order."""
        return tf.gather(state, rows, axis=1)

    def _dropout_masks(
        self,
        lead: tuple[int | tf.Tensor, ...],
        memory: Memory,
        dropout_mask: tf.Tensor | None,
        attention_dropout_mask: tf.Tensor | None,
        training: bool | None,
    ) -> Masks:
        """Draw the masks that are not given, before the loop over the steps; lead is (batch,) or (batch, steps)."""
        values, between = memory.values, (self.sizes["num_layers - 1"], *lead, self.sizes["hidden_size"])
        if dropout_mask is None:
            dropout_mask = draw_mask(self.dropout, values, training, shape=between)
        if attention_dropout_mask is None:
            attention_dropout_mask = draw_mask(self.dropout, values, training, shape=(*lead, size(values, 1)))
        return dropout_mask, attention_dropout_mask

    # particular to TensorFlow

    def _embed(self, tokens: tf.Tensor, columns: tf.Tensor | None) -> tf.Tensor:
        """Compute each step's part of the inputs that needs its token alone."""
        return self.embedding(tokens)

    def _of_steps(self) -> Arranged:
        """Lay out the weights by which `_embed` projects, if it does, and the recurrent layers', once for all."""
        return None, self.rnn._of_steps()


@keras.saving.register_keras_serializable(package="attention_parity")
class BahdanauDecoder(Decoder[tf.Tensor]):
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
        name: the layer's name in Keras
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        if readout == "maxout":
            pairs = 2 * self.sizes["maxout_size"]
            self.readout = self._projection("readout", self.sizes["readout_size"], pairs, use_bias=True)

    def _advance(self, embedded: tf.Tensor, state: tf.Tensor, memory: Memory, masks: Masks, layers: Layers) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        previous = tf.unstack(state, num=self.sizes["num_layers"])[-1][:, : self.sizes["hidden_size"]]
        context, weights = self.attention._attend(previous[:, None], memory, dropout_mask=attention_dropout_mask)
        context, known = tf.squeeze(context, axis=1), embedded
        if self.sizes["readout"] == "maxout":
            known, embedded = tf.split(embedded, [-1, self.sizes["embed_size"]], axis=-1)
        features, state = self.rnn._advance(context, state, dropout_mask, layers, known)
        if self.sizes["readout"] == "maxout":
            features = tf.concat([previous, embedded, context], axis=-1)
        return features, state, tf.squeeze(weights, axis=1)

    def _run_forced(self, tokens: tf.Tensor, state: tf.Tensor, memory: Memory, masks: Masks, lens: Lens) -> Decoded:
        """Run all steps, as one function where a kernel serves them: (features, state, weights)."""
        kernel = kernels.of("decoder_steps", self, tokens, state, memory, masks)
        if kernel is None:
            return super()._run_forced(tokens, state, memory, masks, lens)
        outputs, last, weights, contexts = kernel(self, tokens, state, memory, masks, lens)
        if self.sizes["readout"] == "maxout":
            previous = tf.concat([state[-1, :, None, : self.sizes["hidden_size"]], outputs[:, :-1]], axis=1)
            outputs = tf.concat([previous, self.embedding(tokens), contexts], axis=-1)
        return outputs, last, weights

    def _logits(self, features: tf.Tensor) -> tf.Tensor:
        if self.sizes["readout"] == "maxout":
            pairs = self.readout(features)
            first, second = pairs[..., 0::2], pairs[..., 1::2]
            features = tf.where(first >= second, first, second)
        return super()._logits(features)

    # particular to TensorFlow

    def _embed(self, tokens: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        """Compute the token's part in the first recurrent layer's W x + b, followed by the embedding for maxout."""
        known = self.rnn._project_known(self.embedding, tokens, columns)
        return known if self.sizes["readout"] == "dense" else tf.concat([known, self.embedding(tokens)], axis=-1)

    def _of_steps(self) -> Arranged:
        """Lay out the weights of the first layer for tokens, and all layers' without them, once for all steps."""
        of_context = self.sizes["memory_size"]
        return self.rnn._of_known(slice(of_context, None)), self.rnn._of_steps(slice(of_context))


@keras.saving.register_keras_serializable(package="attention_parity")
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
        name: the layer's name in Keras
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        self.W_c = self._projection("W_c", self.sizes["memory_size + hidden_size"], self.sizes["hidden_size"])

    def _start(self, memory: Memory, state: tf.Tensor | None) -> LuongState:
        rnn, batch = super()._start(memory, state), size(memory.values, 0)
        fed = tf.zeros((batch, self.sizes["fed_size"]), rnn.dtype)
        return LuongState(rnn, fed, tf.zeros((batch,), tf.int32))

    def _advance(self, embedded: tf.Tensor, state: LuongState, memory: Memory, masks: Masks, layers: Layers) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        feeding = self.sizes["input_feeding"]
        inputs = embedded if feeding == "none" else tf.concat([embedded, state.fed], axis=-1)
        output, rnn = self.rnn._advance(inputs, state.rnn, dropout_mask, layers)
        attended = self._attentional(output[:, None], state, memory, attention_dropout_mask)
        attentional, context, weights = (tf.squeeze(array, axis=1) for array in attended)
        fed = context if feeding == "context" else attentional
        return attentional, LuongState(rnn, fed, state.position + 1), weights

    def _reorder(self, state: LuongState, rows: tf.Tensor) -> LuongState:
        rnn = tf.gather(state.rnn, rows, axis=1)
        return LuongState(rnn, tf.gather(state.fed, rows), tf.gather(state.position, rows))

    def _run_forced(self, tokens: tf.Tensor, state: LuongState, memory: Memory, masks: Masks, lens: Lens) -> Decoded:
        """Run all steps, as one function where a kernel serves them; without input feeding, at once."""
        feeding = self.sizes["input_feeding"]
        if feeding == "none" and is_shared(memory.mask):
            return self._run_at_once(tokens, state, memory, masks)
        kernel = None
        if feeding == "attentional":
            kernel = kernels.of("decoder_steps", self, tokens, state.rnn, memory, masks)
        if kernel is None:
            return super()._run_forced(tokens, state, memory, masks, lens)
        attentional, last, weights, *_ = kernel(self, tokens, state.rnn, memory, masks, lens, state.fed)
        return attentional, LuongState(last, attentional[:, -1], state.position + tokens.shape[1]), weights

    # particular to TensorFlow

    def _run_at_once(self, tokens: tf.Tensor, state: LuongState, memory: Memory, masks: Masks) -> Decoded:
        """Run the layers over all steps, then attend with all their outputs."""
        dropout_mask, attention_dropout_mask = masks
        outputs, rnn = self.rnn.call(self.embedding(tokens), None, state.rnn, dropout_mask=dropout_mask)
        attentional, _, weights = self._attentional(outputs, state, memory, attention_dropout_mask)
        last = tf.concat([state.fed[:, None], attentional], axis=1)[:, -1]  # of no steps, too
        return attentional, LuongState(rnn, last, state.position + size(tokens, 1)), weights

    def _attentional(
        self, outputs: tf.Tensor, state: LuongState, memory: Memory, mask: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Attend with the top outputs of some steps, the first after the state: (h̃, context, weights)."""
        at = {"offset": state.position} if self.sizes["alignment"] == "monotonic" else {}
        context, weights = self.attention._attend(outputs, memory, **at, dropout_mask=mask)
        return tf.tanh(project(self.W_c, tf.concat([context, outputs], axis=-1))), context, weights


@keras.saving.register_keras_serializable(package="attention_parity")
class FixedContextDecoder(Decoder[tf.Tensor]):
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
        name: the layer's name in Keras
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
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())

    def _advance(self, embedded: tf.Tensor, state: tf.Tensor, memory: Memory, masks: Masks, layers: Layers) -> Decoded:
        dropout_mask, attention_dropout_mask = masks
        last = last_open(memory)
        weights = tf.cast(last, memory.values.dtype)
        context = average(weights, memory.values, last, attention_dropout_mask)
        inputs = tf.concat([tf.squeeze(context, axis=1), embedded], axis=-1)
        output, state = self.rnn._advance(inputs, state, dropout_mask, layers)
        return output, state, tf.squeeze(weights, axis=1)

    # particular to TensorFlow

    def _run_forced(self, tokens: tf.Tensor, state: tf.Tensor, memory: Memory, masks: Masks, lens: Lens) -> Decoded:
        """Run all steps at once where they share a mask, since no step's context waits for the one before."""
        if not is_shared(memory.mask):
            return super()._run_forced(tokens, state, memory, masks, lens)
        dropout_mask, attention_dropout_mask = masks
        last = last_open(memory)
        weights = tf.repeat(tf.cast(last, memory.values.dtype), size(tokens, 1), axis=1)
        context = average(weights, memory.values, last, attention_dropout_mask)
        inputs = tf.concat([context, self.embedding(tokens)], axis=-1)
        return *self.rnn.call(inputs, None, state, dropout_mask=dropout_mask), weights


def masks_at(masks: Masks, step: tf.Tensor) -> Masks:
    """Take the dropout masks of that step."""
    between, attention = masks
    return None if between is None else between[:, :, step], None if attention is None else attention[:, step, None]
