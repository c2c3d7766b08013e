"""Translators in Keras: an encoder and a decoder as one layer, recurrent or a Transformer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from attention_core.operators.translation import TRANSFORMER_TRANSLATOR, TRANSLATOR, masks_of
from backends.tf.arrays import Lengths, lengths
from backends.tf.decoders import BahdanauDecoder, Decoder, FixedContextDecoder, LuongDecoder
from backends.tf.encoders import Bridge, Encoder, GRUEncoder, LSTMEncoder
from backends.tf.module import Specified, check_ids, mode_of
from backends.tf.transformer import TransformerDecoder, TransformerEncoder

__all__ = ["Translator", "TransformerTranslator"]

ENCODERS: dict[str, type[Encoder]] = {"GRUEncoder": GRUEncoder, "LSTMEncoder": LSTMEncoder}
DECODERS: dict[str, Callable[..., Decoder]] = {
    "BahdanauDecoder": BahdanauDecoder,
    "LuongDecoder": LuongDecoder,
    "FixedContextDecoder": FixedContextDecoder,
}


class EncoderDecoder(Specified):
    """Base class of the translators: greedy and beam search on the output of `encode`."""

    decoder: Any

    def encode(
        self, source: tf.Tensor, valid_lens: Lengths | None, *, training: bool | None = None
    ) -> tuple[tf.Tensor, ...]:
        """Return what the decoder reads of the encoder: its outputs, and its state if it has one."""
        raise NotImplementedError

    def greedy(
        self, source: tf.Tensor, valid_lens: Lengths | None = None, *, bos: int, eos: int, max_steps: int
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Translate by feeding back the most probable token until the end token.

        tokens, lengths, weights = decoder.greedy(*encode(source, valid_lens), valid_lens)

        Args:
            source: integers (batch, keys); token ids of the sentences to translate
            valid_lens (default None): integers (batch,), or a list; tokens of each source; the rest is padding
            bos: token that starts a sequence
            eos: token that ends a sequence
            max_steps: maximum number of tokens to decode
        Returns:
            tokens: integers (batch, max_steps); decoded ids, padded with eos
            lengths: integers (batch,); number of tokens before eos
            weights: (batch, max_steps, keys); probabilities over the keys; 0 after the step that gave eos
        Raises:
            ShapeError: more keys than a location score has positions
            TokenError: a first or last token outside the vocabulary
            ShapeError: a token beyond the last position, of a source or of its translation
        """
        options = {"bos": bos, "eos": eos, "max_steps": max_steps}
        self._check("greedy", source=source, valid_lens=valid_lens, **options)
        return self.decoder.greedy(*self.encode(source, valid_lens, training=False), valid_lens, **options)

    def beam(
        self,
        source: tf.Tensor,
        valid_lens: Lengths | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Translate by keeping the best hypotheses at every step (beam search).

        tokens, lengths, scores, weights = decoder.beam(*encode(source, valid_lens), valid_lens)

        Args:
            source: integers (batch, keys); token ids of the sentences to translate
            valid_lens (default None): integers (batch,), or a list; tokens of each source; the rest is padding
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
            TokenError: a first or last token outside the vocabulary
            OptionError: num_best above width, or width above vocab_size
            ShapeError: a token beyond the last position, of a source or of its translation
        """
        options: dict[str, Any] = {
            "bos": bos,
            "eos": eos,
            "max_steps": max_steps,
            "width": width,
            "num_best": num_best,
            "length_penalty": length_penalty,
        }
        self._check("beam", source=source, valid_lens=valid_lens, **options)
        return self.decoder.beam(*self.encode(source, valid_lens, training=False), valid_lens, **options)


@keras.saving.register_keras_serializable(package="attention_parity")
class Translator(EncoderDecoder):
    """Encode a sentence, and decode its translation with attention to it.

    outputs, state = encoder(source, valid_lens), then the bridge, if bidirectional
    logits, _, weights = decoder(inputs, outputs, state, valid_lens)

    With bridge='concatenate', the decoder's hidden size is twice the encoder's. Between a GRU and an LSTM, only the
    outputs in the state are handed on and bridged: a decoder's memory cells begin at 0, an encoder's are not used.

    Args:
        source_vocab_size: number of token ids of the sources
        target_vocab_size: number of token ids of the translations
        embed_size: features of an embedded token
        hidden_size: features of the output of each recurrent layer and direction
        num_layers (default 1): number of stacked recurrent layers
        cell (default 'gru'): the recurrent layer, by name: 'gru', 'lstm'
        encoder_cell (default None): the encoder's recurrent layer, by name; cell if None: 'gru', 'lstm'
        decoder (default 'bahdanau'): Bahdanau's decoder, Luong's, or the one without attention: 'bahdanau', 'luong',
            'fixed'
        score (default None): name of the score; the decoder's default if None: 'dot', 'scaled_dot', 'general',
            'additive', 'concat', 'concat_bias', 'cosine', 'location', 'gaussian'
        num_positions (default None): number of positions to score, for score='location' only
        bidirectional (default False): whether other weights read the valid steps in reverse, too
        bridge (default None): how to merge the two directions; 'project' if None: 'concatenate', 'sum', 'project',
            'backward'
        reads (default None): what the recurrent layer of Bahdanau's decoder reads; 'both' if None: 'both', 'context'
        readout (default None): the readout of Bahdanau's decoder; 'dense' if None: 'dense', 'maxout'
        input_feeding (default None): what a step of Luong's decoder feeds to the next; 'attentional' if None:
            'attentional', 'context', 'none'
        dropout (default 0.0): dropout rate of the attention weights, and between recurrent layers, in training
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        encoder.*: the GRUEncoder or LSTMEncoder
        bridge.*: the Bridge, if bidirectional
        decoder.*: the decoder
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473
    Example:
        layer = attention.Translator(source_vocab_size, target_vocab_size, embed_size, hidden_size)
        logits, weights = layer(source, inputs)
    """

    specification = TRANSLATOR

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        embed_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        cell: str = "gru",
        encoder_cell: str | None = None,
        decoder: str = "bahdanau",
        score: str | None = None,
        num_positions: int | None = None,
        bidirectional: bool = False,
        bridge: str | None = None,
        reads: str | None = None,
        readout: str | None = None,
        input_feeding: str | None = None,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        parts, dtype = self.specification.inside(self.sizes), self.dtype_policy
        with keras.name_scope(self.name, caller=self):
            self.encoder = ENCODERS[parts["encoder"].layer.name](**parts["encoder"].config, dtype=dtype, name="encoder")
            self.bridge = Bridge(**parts["bridge"].config, dtype=dtype, name="bridge") if "bridge" in parts else None
            self.decoder = DECODERS[parts["decoder"].layer.name](**parts["decoder"].config, dtype=dtype, name="decoder")
            for layer in filter(None, (self.encoder, self.bridge, self.decoder)):
                layer.build(None)

    def encode(
        self,
        source: tf.Tensor,
        valid_lens: Lengths | None,
        dropout_mask: tf.Tensor | None = None,
        *,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the encoder's outputs and state, in the form that the decoder takes."""
        outputs, state = self.encoder(source, valid_lens, dropout_mask=dropout_mask, training=training)
        cells = self.sizes["encoder_cell"], self.sizes["cell"]
        if cells == ("lstm", "gru"):
            state = state[..., : self.sizes["encoder_size"]]
        if self.bridge is not None:
            outputs, state = self.bridge(outputs, state)
        if cells == ("gru", "lstm"):
            state = tf.concat([state, tf.zeros_like(state)], axis=-1)
        return outputs, state

    def __call__(
        self,
        source: tf.Tensor,
        inputs: tf.Tensor,
        valid_lens: Lengths | None = None,
        *,
        encoder_dropout_mask: tf.Tensor | None = None,
        decoder_dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode the sources, and decode given translations (teacher forcing).

        outputs, state = encoder(source, valid_lens), then the bridge, if bidirectional
        logits, _, weights = decoder(inputs, outputs, state, valid_lens)

        Args:
            source: integers (batch, keys); token ids of the sentences to translate
            inputs: integers (batch, steps); input tokens of the decoder: bos, then the translation
            valid_lens (default None): integers (batch,), or a list; tokens of each source; the rest is padding
            encoder_dropout_mask (default None): (num_layers - 1, batch, keys, encoder_size); factor of the outputs of
                every encoder layer but the top one
            decoder_dropout_mask (default None): (num_layers - 1, batch, steps, decoder_size); factor of the outputs of
                every decoder layer but the top one
            attention_dropout_mask (default None): (batch, steps, keys); factor of each weight
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            logits: (batch, steps, target_vocab_size); scores of the token that follows each input (natural logarithm)
            weights: (batch, steps, keys); probabilities over the source tokens
        Raises:
            ShapeError: more keys than a location score has positions
        """
        masks = {
            "encoder_dropout_mask": encoder_dropout_mask,
            "decoder_dropout_mask": decoder_dropout_mask,
            "attention_dropout_mask": attention_dropout_mask,
        }
        self._check("call", source=source, inputs=inputs, valid_lens=valid_lens, **masks)
        # Encoder and decoder refuse these tokens, too, but Keras rewrites what is raised inside of a call.
        check_ids(self.encoder.specification.name, "tokens", source, self.sizes["source_vocab_size"])
        check_ids(self.decoder.specification.name, "tokens", inputs, self.sizes["target_vocab_size"])
        return super().__call__(source, inputs, lengths(valid_lens), **masks, **mode_of(training))

    def call(
        self,
        source: tf.Tensor,
        inputs: tf.Tensor,
        valid_lens: Lengths | None = None,
        *,
        encoder_dropout_mask: tf.Tensor | None = None,
        decoder_dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode the sources, and decode given translations (teacher forcing); Keras enters here."""
        outputs, state = self.encode(source, valid_lens, encoder_dropout_mask, training=training)
        logits, _, weights = self.decoder(
            inputs,
            outputs,
            state,
            valid_lens,
            dropout_mask=decoder_dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
            training=training,
        )
        return logits, weights

    def _features(
        self,
        source: tf.Tensor,
        inputs: tf.Tensor,
        valid_lens: Lengths | None,
        *,
        encoder_dropout_mask: tf.Tensor | None = None,
        decoder_dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None,
        lens: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Encode the sources, and return the features that the logits are projected from, up to step lens (batch,)."""
        outputs, state = self.encode(source, valid_lens, encoder_dropout_mask, training=training)
        encoded: dict[str, Any] = {"encoder_outputs": outputs, "valid_lens": valid_lens, "mask": None}
        masks = {"dropout_mask": decoder_dropout_mask, "attention_dropout_mask": attention_dropout_mask}
        return self.decoder._features(inputs, state, **encoded, **masks, training=training, lens=lens)[0]

    # particular to TensorFlow

    def compute_mask(self, inputs: tf.Tensor, previous_mask: tf.Tensor | None) -> None:
        """Attach nothing: the mask of the source ends here, and the decoder has attached that of its tokens."""


@keras.saving.register_keras_serializable(package="attention_parity")
class TransformerTranslator(EncoderDecoder):
    """Encode a sentence, and decode its translation, by self-attention and attention to the encoded sentence.

    outputs, _ = encoder(source, valid_lens)
    logits, weights = decoder(inputs, outputs, valid_lens)

    Args:
        source_vocab_size: number of token ids of the sources
        target_vocab_size: number of token ids of the translations
        features: features of a step
        num_heads: number of heads
        hidden_size: hidden features of the feed-forward network
        num_layers (default 1): number of layers
        positions (default 'sinusoidal'): where positions enter: added to embedded tokens, by rotated queries and keys
            of self-attention, by a bias of its scores, learned for each distance or falling with it, or not at all:
            'sinusoidal', 'learned', 'rotary', 'relative', 'alibi', 'none'
        num_positions (default None): positions that have a vector, for positions='learned' only
        num_buckets (default None): buckets of distances, for positions='relative' only
        max_distance (default None): distance from which on all share the last bucket; 128 if None; for
            positions='relative' only
        num_key_heads (default None): number of heads of keys and values; num_heads if None
        score (default 'scaled_dot'): name of the score: 'dot', 'scaled_dot', 'general', 'additive', 'concat',
            'concat_bias', 'cosine', 'gaussian'
        rotary_layout (default None): which features rotate together by position: neighbours, or one of each half; none
            if None; scores 'dot' and 'scaled_dot' only: 'interleaved', 'concatenated'
        rotary_base (default None): highest rate over the limit of the lowest; 10000.0 if None; needs rotary_layout
        norm (default 'post'): whether sums are normalized, as in the paper, or what a sublayer reads: 'post', 'pre'
        rms (default False): whether RMSNorm takes the place of LayerNorm
        activation (default 'relu'): max(0, x), x Φ(x), its tanh form, or x σ(x): 'relu', 'gelu', 'gelu_tanh', 'silu'
        gated (default False): whether a second projection multiplies the hidden features
        bias (default True): whether projections, networks and LayerNorm have biases
        epsilon (default 1e-05): number added to the mean square under the root
        dropout (default 0.0): dropout rate of the weights, of hidden features and of what a sublayer adds, in training
        last_norm (default None): whether the outputs of the last layer are normalized; with norm='pre' only if None
        tied (default False): whether logits are inner products with the embedding, in place of dense.W x + dense.b:
            Press and Wolf 2017, section 2, arXiv:1608.05859
        shared (default False): whether encoder and decoder have one embedding
        dtype: floating type of the parameters
        name: the layer's name in Keras
    Parameters:
        encoder.*: the TransformerEncoder
        decoder.*: the TransformerDecoder
    Source: Vaswani et al. 2017, section 3.1, arXiv:1706.03762
    Example:
        layer = attention.TransformerTranslator(source_vocab_size, target_vocab_size, features, num_heads, hidden_size)
        logits, weights = layer(source, inputs)
    """

    specification = TRANSFORMER_TRANSLATOR

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        features: int,
        num_heads: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        positions: str = "sinusoidal",
        num_positions: int | None = None,
        num_buckets: int | None = None,
        max_distance: int | None = None,
        num_key_heads: int | None = None,
        score: str = "scaled_dot",
        rotary_layout: str | None = None,
        rotary_base: float | None = None,
        norm: str = "post",
        rms: bool = False,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        epsilon: float = 1e-5,
        dropout: float = 0.0,
        last_norm: bool | None = None,
        tied: bool = False,
        shared: bool = False,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(locals())
        parts, policy = self.specification.inside(self.sizes), self.dtype_policy
        with keras.name_scope(self.name, caller=self):
            self.encoder = TransformerEncoder(**parts["encoder"].config, dtype=policy, name="encoder")
            self.decoder = TransformerDecoder(**parts["decoder"].config, dtype=policy, name="decoder")
            if shared:
                self.encoder._tracker.untrack(self.encoder.embedding)  # else it would stay among the weights
                self.encoder.embedding = self.decoder.embedding
            for layer in (self.encoder, self.decoder):
                layer.build(None)

    def encode(
        self, source: tf.Tensor, valid_lens: Lengths | None, *, training: bool | None = None, **masks: tf.Tensor | None
    ) -> tuple[tf.Tensor]:
        """Return the encoder's outputs, in the form that the decoder takes."""
        return self.encoder(source, valid_lens, need_weights=False, training=training, **masks)[:1]

    def __call__(
        self,
        source: tf.Tensor,
        inputs: tf.Tensor,
        valid_lens: Lengths | None = None,
        *,
        encoder_embedding_dropout_mask: tf.Tensor | None = None,
        encoder_self_dropout_mask: tf.Tensor | None = None,
        encoder_hidden_dropout_mask: tf.Tensor | None = None,
        encoder_dropout_mask: tf.Tensor | None = None,
        decoder_embedding_dropout_mask: tf.Tensor | None = None,
        decoder_self_dropout_mask: tf.Tensor | None = None,
        decoder_attention_dropout_mask: tf.Tensor | None = None,
        decoder_hidden_dropout_mask: tf.Tensor | None = None,
        decoder_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode the sources, and decode given translations (teacher forcing).

        outputs, _ = encoder(source, valid_lens)
        logits, weights = decoder(inputs, outputs, valid_lens)

        The weights are the mean over the heads of the decoder's last layer.

        Args:
            source: integers (batch, keys); token ids of the sentences to translate
            inputs: integers (batch, steps); input tokens of the decoder: bos, then the translation
            valid_lens (default None): integers (batch,), or a list; tokens of each source; the rest is padding
            encoder_embedding_dropout_mask (default None): (batch, keys, features); factor of the embedded tokens with
                their positions
            encoder_self_dropout_mask (default None): (num_layers, batch, heads, keys, keys); factor of each weight of
                self-attention
            encoder_hidden_dropout_mask (default None): (num_layers, batch, keys, hidden_size); factor of each hidden
                feature
            encoder_dropout_mask (default None): (num_layers, encoder_sublayers, batch, keys, features); factor of what
                each sublayer adds, in order
            decoder_embedding_dropout_mask (default None): (batch, steps, features); factor of the embedded tokens with
                their positions
            decoder_self_dropout_mask (default None): (num_layers, batch, heads, steps, steps); factor of each weight of
                self-attention
            decoder_attention_dropout_mask (default None): (num_layers, batch, heads, steps, keys); factor of each
                weight of cross-attention
            decoder_hidden_dropout_mask (default None): (num_layers, batch, steps, hidden_size); factor of each hidden
                feature
            decoder_dropout_mask (default None): (num_layers, decoder_sublayers, batch, steps, features); factor of what
                each sublayer adds, in order
            training: whether dropout is active; by default the mode of the enclosing layer
        Returns:
            logits: (batch, steps, target_vocab_size); scores of the token that follows each input (natural logarithm)
            weights: (batch, steps, keys); probabilities over the source tokens
        Raises:
            ShapeError: a token beyond the last position, of a source or of its translation
        """
        masks = {
            "encoder_embedding_dropout_mask": encoder_embedding_dropout_mask,
            "encoder_self_dropout_mask": encoder_self_dropout_mask,
            "encoder_hidden_dropout_mask": encoder_hidden_dropout_mask,
            "encoder_dropout_mask": encoder_dropout_mask,
            "decoder_embedding_dropout_mask": decoder_embedding_dropout_mask,
            "decoder_self_dropout_mask": decoder_self_dropout_mask,
            "decoder_attention_dropout_mask": decoder_attention_dropout_mask,
            "decoder_hidden_dropout_mask": decoder_hidden_dropout_mask,
            "decoder_dropout_mask": decoder_dropout_mask,
        }
        self._check("call", source=source, inputs=inputs, valid_lens=valid_lens, **masks)
        # Encoder and decoder refuse these tokens, too, but Keras rewrites what is raised inside of a call.
        check_ids("TransformerEncoder", "tokens", source, self.sizes["source_vocab_size"])
        check_ids("TransformerDecoder", "tokens", inputs, self.sizes["target_vocab_size"])
        return super().__call__(source, inputs, lengths(valid_lens), **masks, **mode_of(training))

    def call(
        self,
        source: tf.Tensor,
        inputs: tf.Tensor,
        valid_lens: Lengths | None = None,
        *,
        training: bool | None = None,
        **masks: tf.Tensor | None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode the sources, and decode given translations (teacher forcing); Keras enters here."""
        encoded = self.encode(source, valid_lens, training=training, **masks_of("encoder", masks))
        return self.decoder(inputs, *encoded, valid_lens, training=training, **masks_of("decoder", masks))

    def _features(
        self,
        source: tf.Tensor,
        inputs: tf.Tensor,
        valid_lens: Lengths | None,
        *,
        training: bool | None,
        **masks: tf.Tensor | None,
    ) -> tf.Tensor:
        """Encode the sources, and return the features that the logits are projected from."""
        (outputs,) = self.encode(source, valid_lens, training=training, **masks_of("encoder", masks))
        encoded: dict[str, Any] = {"encoder_outputs": outputs, "valid_lens": valid_lens, "mask": None}
        options = {"need_weights": False, "training": training}
        return self.decoder._features(inputs, **encoded, **options, **masks_of("decoder", masks))[0]

    # particular to TensorFlow

    def compute_mask(self, inputs: tf.Tensor, previous_mask: tf.Tensor | None) -> None:
        """Attach nothing: the mask of the source ends here, and the decoder has attached that of its tokens."""
