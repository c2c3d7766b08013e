"""Cases of sentence pairs through encoder and decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attention_core import reference
from parity_tests import text
from parity_tests.cases.case import FULL, Case, first_steady
from parity_tests.cases.decoders import decoder_case, decoder_inputs, free_running, read_out
from parity_tests.cases.recurrent import encoder_case


def cases(pairs: Sequence[text.Pair]) -> Iterator[Case]:
    """Sentence pairs through the encoder, through the decoder, and through both."""
    split = text.characters if all(" " not in target for _, target in pairs) else text.words
    sources, targets = ([split(sentence) for sentence in side] for side in zip(*pairs, strict=True))
    source_words, target_words = text.Vocabulary.of(sources), text.Vocabulary.of(targets)
    tokens, lens = text.padded([source_words.ids([*s, text.EOS]) for s in sources], 0)
    forced, _ = text.padded([target_words.ids([text.BOS, *t]) for t in targets], 0)
    batch, keys = tokens.shape
    sizes = {
        "batch": batch,
        "keys": keys,
        "steps": forced.shape[1],
        "embed_size": 4,
        "hidden_size": 5,
        "memory_size": 5,
        "attention_size": 6,
    }
    encoding = {**sizes, "vocab_size": len(source_words)}
    decoding = {**sizes, "vocab_size": len(target_words)}
    arrays = {"tokens": tokens, "valid_lens": lens}
    encoder = encoder_case(encoding, "sentences", f"{batch} sentences.", 2, arrays, FULL)
    yield encoder
    # Drawn, not encoded: the bits of inputs may not depend on the processor, as those of tanh do.
    inputs = {**decoder_inputs(decoding, 2), "tokens": forced, "valid_lens": lens}
    decoder = decoder_case(decoding, "sentences", f"{batch} sentences, given their translations.", 2, inputs)
    yield decoder
    layer = reference.GRUEncoder(**encoder.config)
    reference.set_parameters(layer, encoder.parameters)
    outputs, state = layer(tokens, lens)
    encoded = {**inputs, "encoder_outputs": outputs, "state": state}
    _, greedy = first_steady(lambda seed: read_out(free_running(decoding, "greedy", "", encoded, lens, 12), seed))
    yield Case(
        "sentences",
        "greedy",
        f"{batch} sentences through encoder and decoder: logits of the given translations, and greedy decoding.",
        {"tokens": tokens, "valid_lens": lens, "targets": forced},
        greedy.options,
        "translate",
        {
            "encoder": {"layer": "GRUEncoder", **encoder.config},
            "decoder": {"layer": "BahdanauDecoder", **greedy.config},
        },
        {f"encoder.{k}": v for k, v in encoder.parameters.items()}
        | {f"decoder.{k}": v for k, v in greedy.parameters.items()},
        gradients=False,
    )
