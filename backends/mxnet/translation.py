"""The translator in MXNet: encoder, bridge and decoder as one layer."""

from __future__ import annotations

import mxnet as mx
from mxnet import autograd, np
from mxnet.gluon import Block

from attention_core.errors import check, check_options
from attention_core.operators.translation import TRANSLATOR
from backends.mxnet.decoders import BahdanauDecoder, Decoder, FixedContextDecoder, LuongDecoder
from backends.mxnet.encoders import Bridge, Encoder, GRUEncoder, LSTMEncoder

__all__ = ["Translator"]

ENCODERS: dict[str, type[Encoder]] = {"GRUEncoder": GRUEncoder, "LSTMEncoder": LSTMEncoder}
DECODERS: dict[str, type[Decoder]] = {
    "BahdanauDecoder": BahdanauDecoder,
    "LuongDecoder": LuongDecoder,
    "FixedContextDecoder": FixedContextDecoder,
}


class Translator(Block):
    """Encode a sentence, and decode its translation with attention to it.

    outputs, state = encoder(source, valid_lens), then the bridge, if bidirectional
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
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(
            self.specification,
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
        )
        parts = self.specification.inside(self.sizes)
        made, inner = ENCODERS[parts["encoder"].layer.name], parts["encoder"].config
        chosen, outer = DECODERS[parts["decoder"].layer.name], parts["decoder"].config
        between = parts.get("bridge")
        with self.name_scope():
            self.encoder = made(**inner, dtype=dtype)
            self.bridge = None if between is None else Bridge(**between.config, dtype=dtype)
            self.decoder = chosen(**outer, dtype=dtype)

    def encode(
        self, source: np.ndarray, valid_lens: np.ndarray | None, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The encoder's outputs and state, as the decoder takes them."""
        outputs, state = self.encoder(source, valid_lens, dropout_mask=dropout_mask)
        return (outputs, state) if self.bridge is None else self.bridge(outputs, state)

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

        Shapes: encoder_dropout_mask (num_layers - 1, batch, keys, encoder_size), decoder_dropout_mask
        (num_layers - 1, batch, steps, decoder_size), attention_dropout_mask (batch, steps, keys).
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.decoder.dense.weight.dtype,
            source=source,
            inputs=inputs,
            valid_lens=valid_lens,
            encoder_dropout_mask=encoder_dropout_mask,
            decoder_dropout_mask=decoder_dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        masks = (encoder_dropout_mask, decoder_dropout_mask, attention_dropout_mask)
        return super().__call__(source, inputs, valid_lens, *masks)

    def forward(
        self,
        source: np.ndarray,
        inputs: np.ndarray,
        valid_lens: np.ndarray | None,
        encoder_dropout_mask: np.ndarray | None,
        decoder_dropout_mask: np.ndarray | None,
        attention_dropout_mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula."""
        outputs, state = self.encode(source, valid_lens, encoder_dropout_mask)
        logits, _, weights = self.decoder(
            inputs,
            outputs,
            state,
            valid_lens,
            dropout_mask=decoder_dropout_mask,
            attention_dropout_mask=attention_dropout_mask,
        )
        return logits, weights

    def greedy(
        self, source: np.ndarray, valid_lens: np.ndarray | None = None, *, bos: int, eos: int, max_steps: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Translate by feeding back the most probable token, up to an end token.

        tokens, lengths, weights = decoder.greedy(outputs, state, valid_lens)

        Shapes: returns (tokens, lengths, weights) as the decoder's greedy.
        """
        check(self.specification.method("greedy"), self.sizes, source=source, valid_lens=valid_lens)
        with autograd.pause():
            outputs, state = self.encode(source, valid_lens)
            return self.decoder.greedy(outputs, state, valid_lens, bos=bos, eos=eos, max_steps=max_steps)

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
        """Translate by keeping the best hypotheses of every step (beam search).

        tokens, lengths, scores, weights = decoder.beam(outputs, state, valid_lens)

        Shapes: returns (tokens, lengths, scores, weights) as the decoder's beam.
        """
        check(self.specification.method("beam"), self.sizes, source=source, valid_lens=valid_lens)
        with autograd.pause():
            outputs, state = self.encode(source, valid_lens)
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
