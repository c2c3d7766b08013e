"""Cases of sentence pairs through encoder and decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attention_core import reference
from attention_core.operators import find
from attention_core.specification import Layer
from parity_tests import text
from parity_tests.cases.case import FULL, Arrays, Case, Sizes, drawn_parameters, first_steady
from parity_tests.cases.decoders import decoder_case, decoder_inputs, free_running, read_out
from parity_tests.cases.recurrent import encoder_case


def cases(pairs: Sequence[text.Pair]) -> Iterator[Case]:
    """Sentence pairs through the encoder, through the decoder, through both, and through the form of the paper."""
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
    given = {**inputs, **arrays, "targets": forced}
    yield translation(
        "greedy",
        f"{batch} sentences through encoder and decoder: logits of the given translations, and greedy decoding.",
        given,
        {"encoder": encoder},
        decoding,
    )
    both = {**encoder.config, "bidirectional": True, "num_layers": 1}
    bridge = {"hidden_size": sizes["hidden_size"], "method": "backward", "output_size": 6}
    yield translation(
        "paper",
        f"{batch} sentences through Bahdanau's own form: both directions, the backward state, the maxout readout.",
        given,
        {"encoder": layer_case("GRUEncoder", both), "bridge": layer_case("Bridge", bridge)},
        {**decoding, "hidden_size": 6, "memory_size": 10},
        {"readout": "maxout"},
    )


def layer_case(name: str, config: Mapping[str, Any]) -> Case:
    """A layer of a translation with its parameters; it is no case of its own."""
    layer = find(name)
    assert isinstance(layer, Layer)
    return Case(name, "", "", {}, config=config, parameters=drawn_parameters(layer, config))


def translation(
    name: str,
    shows: str,
    inputs: Arrays,
    layers: Mapping[str, Case],
    sizes: Sizes,
    variant: Mapping[str, Any] | None = None,
) -> Case:
    """Encoder, bridge if there is one, and a decoder whose tokens rounding cannot change."""
    arrays = {key: inputs[key] for key in ("tokens", "valid_lens", "targets")}
    state = None
    for part in layers.values():
        layer = getattr(reference, part.operator)(**part.config)
        reference.set_parameters(layer, part.parameters)
        if state is None:
            outputs, state = layer(arrays["tokens"], arrays["valid_lens"])
        else:
            outputs, state = layer(outputs, state)
    encoded = {**inputs, "encoder_outputs": outputs, "state": state}
    lens = arrays["valid_lens"]
    _, decoder = first_steady(
        lambda seed: read_out(free_running(sizes, name, "", encoded, lens, 12, options=variant), seed)
    )
    made = {**layers, "decoder": decoder}
    return Case(
        "sentences",
        name,
        shows,
        arrays,
        decoder.options,
        "translate",
        {part: {"layer": own.operator, **own.config} for part, own in made.items()},
        {f"{part}.{key}": array for part, own in made.items() for key, array in own.parameters.items()},
        gradients=False,
    )
