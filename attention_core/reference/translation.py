"""The translator: encoder, bridge and decoder as one layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.operators.translation import TRANSLATOR
from attention_core.reference.arrays import Specified, inner, optional
from attention_core.reference.decoders import BahdanauDecoder, FixedContextDecoder, LuongDecoder
from attention_core.reference.encoders import Bridge, GRUEncoder, LSTMEncoder
from attention_core.specification import Layer

__all__ = ["Translator"]

CLASSES: dict[str, Any] = {
    made.__name__: made
    for made in (GRUEncoder, LSTMEncoder, Bridge, BahdanauDecoder, LuongDecoder, FixedContextDecoder)
}


class Translator(Specified):
    """Encode a sentence, and decode its translation with attention to it.

    outputs, state = encoder(source, valid_lens), then the bridge, if bidirectional
    logits, _, weights = decoder(inputs, outputs, state, valid_lens)

    Arguments: source_vocab_size and target_vocab_size are the numbers of token ids; embed_size, hidden_size, num_layers
    and cell are those of encoder and decoder; decoder is "bahdanau", "luong" or "fixed" (without attention); score,
    num_positions and readout are the decoder's, its defaults unless given; bidirectional is whether the
    encoder reads both ways, bridge how its two states are merged: "concatenate" doubles the decoder's hidden size.
    Parameters: those of the encoder as encoder..., of the bridge as bridge..., of the decoder as decoder....
    Raises: OptionError if a size is not positive, a name is unknown, or an option would be ignored.
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473.
    """

    specification: Layer = TRANSLATOR

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
        )
        parts = self.specification.inside(self.sizes)
        self.parts: dict[str, Any] = {name: CLASSES[part.layer.name](**part.config) for name, part in parts.items()}

    def encode(
        self, source: np.ndarray, valid_lens: np.ndarray | None, dropout_mask: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The encoder's outputs and state, as the decoder takes them."""
        for name, part in self.parts.items():
            part.parameters = inner(self.parameters, f"{name}.")
        outputs, state = self.parts["encoder"](source, valid_lens, dropout_mask=dropout_mask)
        return self.parts["bridge"](outputs, state) if "bridge" in self.parts else (outputs, state)

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

        Shapes: source (batch, keys) and inputs (batch, steps), token ids; valid_lens (batch,), the tokens of each
        source; encoder_dropout_mask (num_layers - 1, batch, keys, encoder_size), decoder_dropout_mask
        (num_layers - 1, batch, steps, decoder_size), attention_dropout_mask (batch, steps, keys). Returns
        (logits, weights): (batch, steps, target_vocab_size), (batch, steps, keys).
        Units: logits are natural logarithms.
        Raises: ShapeError, DtypeError; TokenError if an id is outside the vocabulary.
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
        logits, _, weights = self.parts["decoder"](
            inputs,
            outputs,
            state,
            valid_lens,
            dropout_mask=optional(decoder_dropout_mask),
            attention_dropout_mask=optional(attention_dropout_mask),
        )
        return logits, weights

    def greedy(
        self, source: np.ndarray, valid_lens: np.ndarray | None = None, *, bos: int, eos: int, max_steps: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Translate by feeding back the most probable token until the end token.

        tokens, lengths, weights = decoder.greedy(outputs, state, valid_lens)

        Shapes: source (batch, keys), valid_lens (batch,). Returns (tokens, lengths, weights) as the decoder's greedy:
        (batch, max_steps) ids, eos from the end on; (batch,); (batch, max_steps, keys).
        Raises: ShapeError, DtypeError, OptionError; TokenError if an id is outside the vocabulary.
        """
        self._check("greedy", source=source, valid_lens=valid_lens, bos=bos, eos=eos, max_steps=max_steps)
        outputs, state = self.encode(source, valid_lens)
        return self.parts["decoder"].greedy(outputs, state, valid_lens, bos=bos, eos=eos, max_steps=max_steps)

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

        tokens, lengths, scores, weights = decoder.beam(outputs, state, valid_lens)

        Shapes: source (batch, keys), valid_lens (batch,). Returns (tokens, lengths, scores, weights) as the decoder's
        beam, best first: (batch, num_best, max_steps), (batch, num_best), (batch, num_best),
        (batch, num_best, max_steps, keys).
        Raises: as greedy; OptionError if num_best is above width, or width above target_vocab_size.
        """
        self._check(
            "beam",
            source=source,
            valid_lens=valid_lens,
            bos=bos,
            eos=eos,
            max_steps=max_steps,
            width=width,
            num_best=num_best,
            length_penalty=length_penalty,
        )
        outputs, state = self.encode(source, valid_lens)
        return self.parts["decoder"].beam(
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
