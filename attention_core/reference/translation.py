"""Translators: an encoder and a decoder as one layer, recurrent or a Transformer, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.operators.translation import TRANSFORMER_TRANSLATOR, TRANSLATOR, masks_of
from attention_core.reference.arrays import optional
from attention_core.reference.decoders import BahdanauDecoder, FixedContextDecoder, LuongDecoder
from attention_core.reference.encoders import Bridge, GRUEncoder, LSTMEncoder
from attention_core.reference.transformer import TransformerDecoder, TransformerEncoder
from attention_core.reference.transformer_layers import Container
from attention_core.specification import Layer

__all__ = ["Translator", "TransformerTranslator"]


class EncoderDecoder(Container):
    """Base class of the translators: searches with what `encode` gives."""

    def encode(self, source: np.ndarray, valid_lens: np.ndarray | None) -> tuple[np.ndarray, ...]:
        """What the decoder takes of the encoder: its outputs, and its state if it has one."""
        raise NotImplementedError

    def greedy(
        self, source: np.ndarray, valid_lens: np.ndarray | None = None, *, bos: int, eos: int, max_steps: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Translate by feeding back the most probable token until the end token.

        tokens, lengths, weights = decoder.greedy(*encode(source, valid_lens), valid_lens)
        """
        options = {"bos": bos, "eos": eos, "max_steps": max_steps}
        self._check("greedy", source=source, valid_lens=valid_lens, **options)
        encoded = self.encode(source, valid_lens)
        return self.inside("decoder").greedy(*encoded, valid_lens, **options)

    def beam(
        self,
        source: np.ndarray,
        valid_lens: np.ndarray | None = None,
        *,
        bos: int,
        eos: int,
        max_steps: int,
        width: int,
        num_best: int = 1,
        length_penalty: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Translate by keeping the best hypotheses at every step (beam search).

        tokens, lengths, scores, weights = decoder.beam(*encode(source, valid_lens), valid_lens)
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
        encoded = self.encode(source, valid_lens)
        return self.inside("decoder").beam(*encoded, valid_lens, **options)


class Translator(EncoderDecoder):
    """Encode a sentence, and decode its translation with attention to it.

    outputs, state = encoder(source, valid_lens), then the bridge, if bidirectional
    logits, _, weights = decoder(inputs, outputs, state, valid_lens)

    With bridge='concatenate', the decoder's hidden size is twice the encoder's. Between a GRU and an LSTM, only the
    outputs in the state are handed on and bridged: a decoder's memory cells begin at 0, an encoder's are not used.
    """

    specification: Layer = TRANSLATOR
    classes = (GRUEncoder, LSTMEncoder, Bridge, BahdanauDecoder, LuongDecoder, FixedContextDecoder)

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
    ) -> None:
        super().__init__(locals())

    def encode(
        self, source: np.ndarray, valid_lens: np.ndarray | None, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The encoder's outputs and state, as the decoder takes them."""
        outputs, state = self.inside("encoder")(source, valid_lens, dropout_mask=dropout_mask)
        cells = self.sizes["encoder_cell"], self.sizes["cell"]
        if cells == ("lstm", "gru"):
            state = state[..., : self.sizes["encoder_size"]]
        if "bridge" in self.parts:
            outputs, state = self.inside("bridge")(outputs, state)
        if cells == ("gru", "lstm"):
            state = np.concatenate([state, np.zeros_like(state)], axis=-1)
        return outputs, state

    def __call__(
        self,
        source: np.ndarray,
        inputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        *,
        encoder_dropout_mask: np.ndarray | None = None,
        decoder_dropout_mask: np.ndarray | None = None,
        attention_dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encode the sources, and decode given translations (teacher forcing).

        outputs, state = encoder(source, valid_lens), then the bridge, if bidirectional
        logits, _, weights = decoder(inputs, outputs, state, valid_lens)
        """
        self._check(
            "call",
            source=source,
            inputs=inputs,
            valid_lens=valid_lens,
            encoder_dropout_mask=encoder_dropout_mask,
            decoder_dropout_mask=decoder_dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        outputs, state = self.encode(source, valid_lens, optional(encoder_dropout_mask))
        logits, _, weights = self.inside("decoder")(
            inputs,
            outputs,
            state,
            valid_lens,
            dropout_mask=optional(decoder_dropout_mask),
            attention_dropout_mask=optional(attention_dropout_mask),
        )
        return logits, weights


class TransformerTranslator(EncoderDecoder):
    """Encode a sentence, and decode its translation, by self-attention and attention to the encoded sentence.

    outputs, _ = encoder(source, valid_lens)
    logits, weights = decoder(inputs, outputs, valid_lens)
    """

    specification: Layer = TRANSFORMER_TRANSLATOR
    classes = (TransformerEncoder, TransformerDecoder)

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
    ) -> None:
        super().__init__(locals())

    def encode(
        self, source: np.ndarray, valid_lens: np.ndarray | None, **masks: np.ndarray | None
    ) -> tuple[np.ndarray]:
        """The encoder's outputs, as the decoder takes them."""
        return self.inside("encoder")(source, valid_lens, need_weights=False, **masks)[:1]

    def __call__(
        self,
        source: np.ndarray,
        inputs: np.ndarray,
        valid_lens: np.ndarray | None = None,
        *,
        encoder_embedding_dropout_mask: np.ndarray | None = None,
        encoder_self_dropout_mask: np.ndarray | None = None,
        encoder_hidden_dropout_mask: np.ndarray | None = None,
        encoder_dropout_mask: np.ndarray | None = None,
        decoder_embedding_dropout_mask: np.ndarray | None = None,
        decoder_self_dropout_mask: np.ndarray | None = None,
        decoder_attention_dropout_mask: np.ndarray | None = None,
        decoder_hidden_dropout_mask: np.ndarray | None = None,
        decoder_dropout_mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Encode the sources, and decode given translations (teacher forcing).

        outputs, _ = encoder(source, valid_lens)
        logits, weights = decoder(inputs, outputs, valid_lens)

        The weights are the mean over the heads of the decoder's last layer.
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
        masks = {name: optional(mask) for name, mask in masks.items()}
        encoded = self.encode(source, valid_lens, **masks_of("encoder", masks))
        return self.inside("decoder")(inputs, *encoded, valid_lens, **masks_of("decoder", masks))
