"""The translator in Keras: encoder, bridge and decoder as one layer."""

from __future__ import annotations

import keras
import tensorflow as tf

from attention_core.errors import check
from attention_core.operators.translation import TRANSLATOR
from backends.tf.decoders import BahdanauDecoder, Decoder, FixedContextDecoder, LuongDecoder, check_room
from backends.tf.encoders import Bridge, Encoder, GRUEncoder, LSTMEncoder
from backends.tf.module import Specified, chosen
from backends.tf.recurrent import check_known

__all__ = ["Translator"]

ENCODERS: dict[str, type[Encoder]] = {"GRUEncoder": GRUEncoder, "LSTMEncoder": LSTMEncoder}
DECODERS: dict[str, type[Decoder]] = {
    "BahdanauDecoder": BahdanauDecoder,
    "LuongDecoder": LuongDecoder,
    "FixedContextDecoder": FixedContextDecoder,
}


@keras.saving.register_keras_serializable(package="attention_parity")
class Translator(Specified):
    """Encode a sentence, and decode its translation with attention to it.

    outputs, state = encoder(source, valid_lens), then the bridge, if bidirectional;
    logits, _, weights = decoder(inputs, outputs, state, valid_lens)

    Shapes: source (batch, keys), inputs (batch, steps), valid_lens (batch,); returns (logits, weights):
    (batch, steps, target_vocab_size), (batch, steps, keys).
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
        decoder: str = "bahdanau",
        score: str | None = None,
        num_positions: int | None = None,
        bidirectional: bool = False,
        bridge: str | None = None,
        readout: str | None = None,
        dropout: float = 0.0,
        dtype: str | tf.DType | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            source_vocab_size=source_vocab_size,
            target_vocab_size=target_vocab_size,
            embed_size=embed_size,
            hidden_size=hidden_size,
            num_layers=num_layers,
            cell=cell,
            decoder=decoder,
            score=score,
            num_positions=num_positions,
            bidirectional=bidirectional,
            bridge=bridge,
            readout=readout,
            dropout=dropout,
            dtype=dtype,
            name=name,
        )
        parts, dtype = self.specification.inside(self.sizes), self.variable_dtype
        with keras.name_scope(self.name, caller=self):
            made, inner = ENCODERS[parts["encoder"].layer.name], parts["encoder"].config
            self.encoder = made(**inner, dtype=dtype, name="encoder")
            between = parts.get("bridge")
            self.bridge = None if between is None else Bridge(**between.config, dtype=dtype, name="bridge")
            selected, outer = DECODERS[parts["decoder"].layer.name], parts["decoder"].config
            self.decoder = selected(**outer, dtype=dtype, name="decoder")
            for layer in filter(None, (self.encoder, self.bridge, self.decoder)):
                layer.build(None)

    def check(
        self,
        source: tf.Tensor,
        inputs: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        *,
        encoder_dropout_mask: tf.Tensor | None = None,
        decoder_dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
    ) -> None:
        """Refuse arguments of a call that do not fit, and tokens outside the vocabularies where they are known."""
        check(
            self.specification.method("call"),
            self.sizes,
            self.variable_dtype,
            source=source,
            inputs=inputs,
            valid_lens=valid_lens,
            encoder_dropout_mask=encoder_dropout_mask,
            decoder_dropout_mask=decoder_dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        # Encoder and decoder refuse these, too, but Keras rewrites what is raised inside of a call.
        check_known(self.encoder.specification.name, source, self.sizes["source_vocab_size"])
        check_known(self.decoder.specification.name, inputs, self.sizes["target_vocab_size"])
        check_room(self.sizes, source)

    def encode(
        self,
        source: tf.Tensor,
        valid_lens: tf.Tensor | None,
        dropout_mask: tf.Tensor | None = None,
        *,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The encoder's outputs and state, as the decoder takes them."""
        outputs, state = self.encoder(source, valid_lens, dropout_mask=dropout_mask, training=training)
        return (outputs, state) if self.bridge is None else self.bridge(outputs, state)

    def __call__(
        self,
        source: tf.Tensor,
        inputs: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        *,
        encoder_dropout_mask: tf.Tensor | None = None,
        decoder_dropout_mask: tf.Tensor | None = None,
        attention_dropout_mask: tf.Tensor | None = None,
        training: bool | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Encode the sources, and decode given translations (teacher forcing).

        outputs, state = encoder(source, valid_lens), then the bridge, if bidirectional;
        logits, _, weights = decoder(inputs, outputs, state, valid_lens)

        Shapes: encoder_dropout_mask (num_layers - 1, batch, keys, encoder_size), decoder_dropout_mask
        (num_layers - 1, batch, steps, decoder_size), attention_dropout_mask (batch, steps, keys).
        """
        masks = {
            "encoder_dropout_mask": encoder_dropout_mask,
            "decoder_dropout_mask": decoder_dropout_mask,
            "attention_dropout_mask": attention_dropout_mask,
        }
        self.check(source, inputs, valid_lens, **masks)
        return super().__call__(source, inputs, valid_lens, **masks, **chosen(training))

    def call(
        self,
        source: tf.Tensor,
        inputs: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
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

    def greedy(
        self, source: tf.Tensor, valid_lens: tf.Tensor | None = None, *, bos: int, eos: int, max_steps: int
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Translate by feeding back the most probable token, up to an end token.

        tokens, lengths, weights = decoder.greedy(outputs, state, valid_lens)

        Shapes: returns (tokens, lengths, weights) as the decoder's greedy.
        """
        check(self.specification.method("greedy"), self.sizes, source=source, valid_lens=valid_lens)
        outputs, state = self.encode(source, valid_lens, training=False)
        return self.decoder.greedy(outputs, state, valid_lens, bos=bos, eos=eos, max_steps=max_steps)

    def beam(
        self,
        source: tf.Tensor,
        valid_lens: tf.Tensor | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
        """Translate by keeping the best hypotheses of every step (beam search).

        tokens, lengths, scores, weights = decoder.beam(outputs, state, valid_lens)

        Shapes: returns (tokens, lengths, scores, weights) as the decoder's beam.
        """
        check(self.specification.method("beam"), self.sizes, source=source, valid_lens=valid_lens)
        outputs, state = self.encode(source, valid_lens, training=False)
        return self.decoder.beam(
            outputs,
            state,
            valid_lens,
            bos=bos,
            eos=eos,
            max_steps=max_steps,
            width=width,
            num_best=num_best,
            length_penalty=length_penalty,
        )
