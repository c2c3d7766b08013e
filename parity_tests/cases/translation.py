"""Cases of the translators, with every option and with sentence pairs, and of their loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attention_core import draws
from attention_core.operators.translation import TRANSLATORS
from parity_tests.cases.decoders import SPECIAL, WIDE, score_variants, with_readout
from parity_tests.cases.masking import BATCH_LENS
from parity_tests.cases.recurrent import padding_embedded
from parity_tests.cases.seeds import first_steady
from parity_tests.cases.transformer import VARIANTS as SUBLAYERS
from parity_tests.cases.transformer import dropping
from parity_tests.format.case import DTYPES, EXACT, FULL, SEED, Arrays, Case, Sizes, layer_case
from parity_tests.format.families import Family
from parity_tests.translation import corpus

TRANSLATOR = {
    "batch": 3,
    "embed_size": 4,
    "hidden_size": 5,
    "keys": 7,
    "steps": 9,
    "source_vocab_size": 11,
    "target_vocab_size": 13,
}
LENS = np.array([7, 2, 4], np.int32)


def translator_inputs(sizes: Sizes) -> Arrays:
    """Source tokens, and input tokens of the decoder."""
    shapes = {"source": (sizes["batch"], sizes["keys"]), "inputs": (sizes["batch"], sizes["steps"])}
    vocabularies = {"source": sizes["source_vocab_size"], "inputs": sizes["target_vocab_size"]}
    return {
        name: draws.integers(f"Translator/{name}", shape, vocabularies[name], SEED) for name, shape in shapes.items()
    }


def translator_case(
    label: str,
    shows: str,
    inputs: Arrays,
    dtypes: tuple[str, ...] = EXACT,
    sizes: Sizes = TRANSLATOR,
    variant: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Case:
    """A call of the translator; variant holds arguments of its constructor beside the sizes."""
    names = ("source_vocab_size", "target_vocab_size", "embed_size", "hidden_size")
    config: dict[str, Any] = {**{name: sizes[name] for name in names}, "num_layers": 2, **(variant or {})}
    # Encoder outputs that are nearly alike would give gradients of the scores that are mere rounding.
    wide = {f"decoder.{name}": factor for name, factor in WIDE.items()}
    recurrent = [f"encoder.rnn.{layer}{direction}.W" for layer in range(2) for direction in ("", ".backward")]
    wide |= dict.fromkeys(("encoder.embedding", *recurrent), 4.0)
    return layer_case("Translator", label, shows, inputs, config, dtypes, wide, **changes)


def translator_cases() -> Iterator[Case]:
    """Teacher-forced passes, greedy decoding and beam search."""
    sizes = TRANSLATOR
    plain = translator_inputs(sizes)
    ragged = {**plain, "valid_lens": LENS}
    yield translator_case("none", "No lengths.", plain)
    yield translator_case("ragged", "One length for each source.", ragged, DTYPES)
    fully_masked = {**plain, "valid_lens": np.array([0, 7, -2], np.int32)}
    yield translator_case("fully_masked", "Sources without a token.", fully_masked, FULL)
    padding = np.arange(sizes["keys"]) >= LENS[:, None]
    source = np.where(padding, 0, np.maximum(plain["source"], 1)).astype(np.int32)
    for value in (np.nan, np.inf):
        shows = f"The padding token is embedded as {value}."
        case = translator_case(f"hidden_{value}", shows, {**ragged, "source": source}, FULL)
        yield padding_embedded(case, "encoder.embedding", value)
    shapes = {
        "encoder_dropout_mask": (1, sizes["batch"], sizes["keys"], sizes["hidden_size"]),
        "decoder_dropout_mask": (1, sizes["batch"], sizes["steps"], sizes["hidden_size"]),
        "attention_dropout_mask": (sizes["batch"], sizes["steps"], sizes["keys"]),
    }
    masks = {name: draws.dropout_mask(f"Translator/{name}", shape, 0.3, SEED) for name, shape in shapes.items()}
    yield translator_case("dropout", "Dropout between layers, and of the weights.", {**ragged, **masks}, FULL)
    for label, shows, dtypes, variant in VARIANTS:
        yield translator_case(label, shows, ragged, dtypes, variant=variant)
    for label, shows, axis, size in (
        ("one_key", "Sources of one token.", "keys", 1),
        ("one_step", "A single step.", "steps", 1),
        ("no_keys", "There are no source tokens: every step is fully masked.", "keys", 0),
        ("no_steps", "There are no steps.", "steps", 0),
        ("no_batch", "There are no sentences.", "batch", 0),
    ):
        small = {**sizes, axis: size}
        lens = np.full(small["batch"], small["keys"], np.int32)
        yield translator_case(label, shows, {**translator_inputs(small), "valid_lens": lens}, EXACT, small)
    searched = {name: ragged[name] for name in ("source", "valid_lens")}
    for label, shows, search in (
        ("greedy", "Free-running, each sentence up to its end token.", {}),
        ("beam", "The best two of three hypotheses.", {"width": 3, "num_best": 2}),
        (
            "beam_penalty",
            "Hypotheses ranked with a length penalty.",
            {"width": 4, "num_best": 4, "length_penalty": 1.5},
        ),
    ):
        yield searching(translator_case(label, shows, searched, FULL), 9, search)


def searching(case: Case, max_steps: int, search: Mapping[str, Any]) -> Case:
    """The case as greedy decoding, or as a beam search if `search` has its width."""
    options = {**SPECIAL, "max_steps": max_steps, **search}
    return replace(case, method="beam" if search else "greedy", options=options, gradients=False)


PAPER = {"bidirectional": True, "bridge": "backward", "readout": "maxout"}
"""The form of Bahdanau et al.: both directions, the backward state, the maxout readout."""

VARIANTS: tuple[tuple[str, str, tuple[str, ...], dict[str, Any]], ...] = (
    ("lstm", "Long short-term memory.", FULL, {"cell": "lstm"}),
    ("gru_lstm", "A GRU encoder and an LSTM decoder.", FULL, {"encoder_cell": "gru", "cell": "lstm"}),
    ("lstm_gru", "An LSTM encoder and a GRU decoder.", FULL, {"encoder_cell": "lstm", "cell": "gru"}),
    ("luong", "Luong's decoder.", FULL, {"decoder": "luong", "input_feeding": "attentional"}),
    ("luong_context", "Luong's decoder, fed the context.", EXACT, {"decoder": "luong", "input_feeding": "context"}),
    ("luong_unfed", "Luong's decoder, fed nothing.", EXACT, {"decoder": "luong", "input_feeding": "none"}),
    ("fixed", "The decoder without attention.", FULL, {"decoder": "fixed"}),
    ("dense", "The defaults of Bahdanau's decoder.", EXACT, {"readout": "dense", "reads": "both"}),
    ("context_alone", "A decoder that reads the context alone.", EXACT, {"reads": "context"}),
    ("paper", "The form of the paper.", FULL, PAPER),
    ("both", "Both directions, projected.", EXACT, {"bidirectional": True}),
    *(
        (f"both_{method}", f"Both directions, bridged by {method}.", EXACT, {"bidirectional": True, "bridge": method})
        for method in ("concatenate", "sum", "project")
    ),
    ("both_lstm", "Both directions of an LSTM.", EXACT, {"bidirectional": True, "cell": "lstm", "bridge": "backward"}),
    (
        "both_gru_lstm",
        "Both directions of a GRU, projected to the first outputs of an LSTM.",
        EXACT,
        {"bidirectional": True, "encoder_cell": "gru", "cell": "lstm"},
    ),
    (
        "both_lstm_gru",
        "Both directions of an LSTM, concatenated to the first state of a GRU.",
        EXACT,
        {"bidirectional": True, "encoder_cell": "lstm", "bridge": "concatenate"},
    ),
    *((label, shows, EXACT, options) for label, shows, options in score_variants()),
)


def decides(case: Case) -> bool:
    """Whether a token depends on the numbers of a case."""
    searched = case.operator in TRANSLATORS and case.method in ("greedy", "beam")
    return searched and "sentences" not in case.name


def with_seed(case: Case, seed: int) -> Case:
    """Return the case with a readout of that seed, which decides its tokens."""
    return with_readout(case, seed)


TRANSFORMER = {
    "batch": 5,
    "features": 8,
    "num_heads": 2,
    "hidden_size": 6,
    "keys": 7,
    "steps": 4,
    "source_vocab_size": 11,
    "target_vocab_size": 13,
}
SOURCE_LENS = np.array([7, 2, 4, 1, 6], np.int32)


def transformer_case(
    label: str,
    shows: str,
    inputs: Arrays,
    dtypes: tuple[str, ...] = EXACT,
    variant: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Case:
    """A call of the Transformer; variant holds arguments of its constructor beside the sizes."""
    names = ("source_vocab_size", "target_vocab_size", "features", "num_heads", "hidden_size")
    config: dict[str, Any] = {**{name: TRANSFORMER[name] for name in names}, **(variant or {})}
    return layer_case("TransformerTranslator", label, shows, inputs, config, dtypes, **changes)


def transformer_cases() -> Iterator[Case]:
    """Teacher-forced passes, greedy decoding and beam search of the Transformer."""
    sizes = TRANSFORMER
    case, plain = transformer_case, translator_inputs(sizes)
    ragged = {**plain, "valid_lens": SOURCE_LENS}
    yield case("none", "No lengths.", plain)
    for label, shows, options, dtypes in SUBLAYERS:
        shared = {"num_heads": 4, "num_key_heads": 2} if "num_key_heads" in options else {}
        layers = {"num_layers": 2} if label == "plain" else {}
        kinds = FULL if label == "plain" else dtypes  # rounded to bfloat16, a hidden feature near 0 changes its sign
        yield case(label, shows, ragged, kinds, {**options, **shared, **layers})
    learned = {"positions": "learned", "num_positions": 7}
    yield case("learned", "Positions that are learned, as many as the longest source has.", ragged, FULL, learned)
    yield case("no_positions", "No positions.", ragged, EXACT, {"positions": "none"})
    rotary = {"positions": "rotary", "rotary_base": 50.0, "rotary_layout": "concatenated"}
    yield case("rotary", "Rotated queries and keys.", ragged, FULL, rotary)
    pairs = {"positions": "rotary", "rotary_layout": "interleaved"}
    yield case("rotary_pairs", "Rotated as in the paper.", ragged, EXACT, pairs)
    yield case("alibi", "A bias that falls with the distance.", ragged, EXACT, {"positions": "alibi"})
    no_last_norm = {"norm": "pre", "last_norm": False}
    yield case("no_last_norm", "No norm behind the last layers.", ragged, EXACT, no_last_norm)
    yield case("last_norm", "Encoder and decoder as torch.nn.Transformer has them.", ragged, EXACT, {"last_norm": True})
    relative = {"positions": "relative", "num_buckets": 6, "max_distance": 5}
    yield case("relative", "A table of distances in the encoder, and one in the decoder.", ragged, FULL, relative)
    one = {"source_vocab_size": 13, "target_vocab_size": 13, "shared": True}
    yield case("shared", "One embedding for sources and translations.", ragged, EXACT, one)
    yield case("tied", "One matrix for both embeddings and the logits.", ragged, DTYPES, {**one, "tied": True})
    fully_masked = {**plain, "valid_lens": np.array([0, 7, -2, 3, 9], np.int32)}
    yield case("fully_masked", "Sources without a token.", fully_masked, FULL)
    padding = np.arange(sizes["keys"]) >= SOURCE_LENS[:, None]
    source = np.where(padding, 0, np.maximum(plain["source"], 1)).astype(np.int32)
    for value in (np.nan, np.inf):
        shows = f"The padding token is embedded as {value}."
        hidden = case(f"hidden_{value}", shows, {**ragged, "source": source}, FULL)
        yield padding_embedded(hidden, "encoder.embedding", value)
    masks = dropping(
        "TransformerTranslator",
        encoder_embedding_dropout_mask=(5, 7, 8),
        encoder_self_dropout_mask=(1, 5, 2, 7, 7),
        encoder_hidden_dropout_mask=(1, 5, 7, 6),
        encoder_dropout_mask=(1, 2, 5, 7, 8),
        decoder_embedding_dropout_mask=(5, 4, 8),
        decoder_self_dropout_mask=(1, 5, 2, 4, 4),
        decoder_attention_dropout_mask=(1, 5, 2, 4, 7),
        decoder_hidden_dropout_mask=(1, 5, 4, 6),
        decoder_dropout_mask=(1, 3, 5, 4, 8),
    )
    yield case("dropout", "Dropout everywhere.", {**ragged, **masks})
    for label, shows, axis in (
        ("no_keys", "There are no source tokens: no step sees a key.", "keys"),
        ("no_steps", "There are no steps.", "steps"),
        ("no_batch", "There are no sentences.", "batch"),
    ):
        yield case(label, shows, translator_inputs({**sizes, axis: 0}))
    searched = {name: ragged[name] for name in ("source", "valid_lens")}
    greedy = case("greedy", "Free-running, each sentence up to its end token.", searched, FULL)
    yield searching(greedy, 9, {})
    shows = "The best two of three hypotheses, with a length penalty."
    beam = case("beam", shows, searched, FULL, {"norm": "pre", "positions": "learned", "num_positions": 9})
    yield searching(beam, 9, {"width": 3, "num_best": 2, "length_penalty": 0.75})


def sentence_cases(pairs: Sequence[corpus.Pair]) -> Iterator[Case]:
    """Sentence pairs, given their translations and translated."""
    split = corpus.characters if all(" " not in target for _, target in pairs) else corpus.words
    tokenised = [(split(source), split(target)) for source, target in pairs]
    sources, targets = (corpus.Vocabulary.of([pair[side] for pair in tokenised]) for side in (0, 1))
    longest = max(len(sentence) for pair in tokenised for sentence in pair) + 1
    batch = corpus.encode(tokenised, sources, targets, longest)
    source = batch.source[:, : batch.source_lens.max()]
    inputs = batch.inputs[:, : batch.target_lens.max()]
    arrays = {"source": source, "inputs": inputs, "valid_lens": batch.source_lens}
    sizes = {**TRANSLATOR, "source_vocab_size": len(sources), "target_vocab_size": len(targets)}
    what = f"{len(pairs)} sentences"
    yield translator_case("sentences", f"{what}, given their translations.", arrays, FULL, sizes)
    searched = {name: arrays[name] for name in ("source", "valid_lens")}
    for name, shows, variant in (("greedy", "translated", {}), ("paper", "translated in the form of the paper", PAPER)):
        case = translator_case(f"sentences_{name}", f"{what}, {shows}.", searched, FULL, sizes, variant)
        yield first_steady(partial(with_readout, searching(case, 12, {})))[1]


def cross_entropy_cases() -> Iterator[Case]:
    """The loss of logits."""
    logits = draws.uniform("masked_cross_entropy/logits", (2, 7, 5), 4.0, SEED)
    targets = draws.integers("masked_cross_entropy/targets", (2, 7), 5, SEED)
    given = {"logits": logits, "targets": targets}

    def case(label: str, shows: str, inputs: Arrays, dtypes: tuple[str, ...] = EXACT) -> Case:
        return Case("masked_cross_entropy", label, shows, inputs, dtypes=dtypes)

    ragged = {**given, "valid_lens": BATCH_LENS}
    yield case("none", "No lengths.", given, FULL)
    yield case("ragged", "One length for each sequence.", ragged, DTYPES)
    whole, none = np.array([7, 9], np.int32), np.array([-1, 4], np.int32)
    yield case("open", "Lengths that hide nothing, one beyond the end.", {**given, "valid_lens": whole})
    yield case("fully_masked", "A sequence without an open step.", {**given, "valid_lens": none}, FULL)
    yield case("targets_int64", "Targets of another integer type.", {**ragged, "targets": targets.astype(np.int64)})
    padding = np.arange(7) >= BATCH_LENS[:, None]
    for value in (np.nan, np.inf):
        hidden = {**ragged, "logits": np.where(padding[..., None], value, logits)}
        yield case(f"hidden_{value}", f"{value} in logits that are not open.", hidden, FULL)
    yield case("large", "Logits to ±2e4, whose exponentials overflow.", {**ragged, "logits": 5e3 * logits}, FULL)
    small = {"logits": logits[:, :1], "targets": targets[:, :1]}
    yield case("one_step", "A single step.", {**small, "valid_lens": np.ones(2, np.int32)})
    yield case("no_open", "No step is open.", {**given, "valid_lens": np.zeros(2, np.int32)}, FULL)
    yield case("no_steps", "There are no steps.", {"logits": logits[:, :0], "targets": targets[:, :0]})
    yield case("no_batch", "There are no sequences.", {"logits": logits[:0], "targets": targets[:0]})


FAMILIES = (
    Family(("Translator",), translator_cases),
    Family(("TransformerTranslator",), transformer_cases),
    Family(("masked_cross_entropy",), cross_entropy_cases),
)


def sentence_family(pairs: Sequence[corpus.Pair]) -> Family:
    """The family with the sentences of `pairs`."""
    return Family(("Translator",), partial(sentence_cases, pairs))
