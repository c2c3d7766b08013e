"""Refusals: the same class and the same words in the reference and in every backend, before any arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attention_core import errors, reference
from attention_core.errors import (
    AttentionError,
    DtypeError,
    MaskError,
    OptionError,
    ParameterError,
    ShapeError,
    TokenError,
)

I = np.int32  # noqa: E741 (in a table of hundreds of shapes)
Table = dict[type[AttentionError], list[tuple[Any, ...]]]

# Call and words, by class. A call gets the package, and a function that makes an array of that shape in the framework.
FUNCTIONS: Table = {
    ShapeError: [
        (
            lambda b, a: b.dot_score(a(2, 5, 4), a(2, 7, 8)),
            "dot_score: axis 'features' is 8 in keys but 4 in queries. Project one of the two, or use "
            "AdditiveAttention, whose keys may have another size. Shapes: queries=(2, 5, 4), keys=(2, 7, 8).",
        ),
        (
            lambda b, a: b.location_score(9, a(2, 5, 7)),
            "location_score: num_keys is 9 but queries has 7 positions. Score only the first keys, or make the layer "
            "with a position for each key.",
        ),
        (
            lambda b, a: b.gaussian_score(a(2, 5, 4), a(2, 7, 4), a(4)),
            "gaussian_score: w has 1 axis, expected (). Shapes: queries=(2, 5, 4), keys=(2, 7, 4), w=(4,).",
        ),
        (
            lambda b, a: b.mask_or(a(2, 5, 7, dtype=bool), a(2, 4, 7, dtype=bool)),
            "mask_or: axis 'queries' is 4 in second but 5 in first. Give one row of the mask, of the scores and of the "
            "lengths for each query. Shapes: first=(2, 5, 7), second=(2, 4, 7).",
        ),
        (
            lambda b, a: b.global_mask(a(2, 5, dtype=bool), a(3, 7, dtype=bool)),
            "global_mask: axis 'batch' is 3 in global_keys but 2 in global_queries. All arguments share one batch "
            "size. Shapes: global_queries=(2, 5), global_keys=(3, 7).",
        ),
        (
            lambda b, a: b.from_key_padding_mask(a(2, 1, 7, dtype=bool)),
            "from_key_padding_mask: key_padding_mask has 3 axes, expected (batch, keys). Shapes: "
            "key_padding_mask=(2, 1, 7).",
        ),
        (
            lambda b, a: b.to_key_padding_mask(a(2, 5, 7, dtype=bool)),
            "to_key_padding_mask: axis 'queries' is 5 in mask, expected 1: a key padding mask hides a key from every "
            "query. Pass a mask with several rows as mask. Shapes: mask=(2, 5, 7).",
        ),
        (
            lambda b, a: b.to_key_padding_mask(a(2, 0, 7, dtype=bool)),
            "to_key_padding_mask: axis 'queries' is 0 in mask, expected 1: a key padding mask hides a key from every "
            "query. Pass a mask with several rows as mask. Shapes: mask=(2, 0, 7).",
        ),
        (
            lambda b, a: b.from_additive_mask(a(5, 7)),
            "from_additive_mask: additive_mask has 2 axes, expected (batch, queries, keys) or (batch, heads, queries, "
            "keys). Shapes: additive_mask=(5, 7).",
        ),
        (
            lambda b, a: b.dot_score(a(5, 4), a(2, 7, 4)),
            "dot_score: queries has 2 axes, expected (batch, queries, features) or (batch, heads, queries, features). "
            "Shapes: queries=(5, 4), keys=(2, 7, 4).",
        ),
        (
            lambda b, a: b.scaled_dot_score(a(2, 3, 5, 4), a(2, 7, 4)),
            "scaled_dot_score: axis 'heads' is in queries but not in keys. Split queries, keys and values into the "
            "same heads, and give a mask an axis for them. Shapes: queries=(2, 3, 5, 4), keys=(2, 7, 4).",
        ),
        (
            lambda b, a: b.masked_softmax(a(2, 5, 7), None, a(2, 5, 6, dtype=bool)),
            "masked_softmax: axis 'keys' is 6 in mask but 7 in scores. Give one value, and one column of the mask, for "
            "each key. Shapes: scores=(2, 5, 7), mask=(2, 5, 6).",
        ),
        (
            lambda b, a: b.masked_softmax(a(2, 3, 5, 7), None, a(2, 5, 7, dtype=bool)),
            "masked_softmax: axis 'heads' is in scores but not in mask. Split queries, keys and values into the same "
            "heads, and give a mask an axis for them. Shapes: scores=(2, 3, 5, 7), mask=(2, 5, 7).",
        ),
        (
            lambda b, a: b.masked_softmax(a(2, 5, 7), a(10, dtype=I)),
            "masked_softmax: axis 'batch' is 10 in valid_lens but 2 in scores. All arguments share one batch size. "
            "Shapes: scores=(2, 5, 7), valid_lens=(10,).",
        ),
        (
            lambda b, a: b.attention_mask(7, a(2, 5, 7, dtype=I)),
            "attention_mask: valid_lens has 3 axes, expected (batch,) or (batch, queries). Shapes: valid_lens=(2, 5, "
            "7).",
        ),
        (
            lambda b, a: b.attention_pooling(a(2, 5, 7), a(2, 6, 4)),
            "attention_pooling: axis 'keys' is 6 in values but 7 in scores. Give one value, and one column of the "
            "mask, for each key. Shapes: scores=(2, 5, 7), values=(2, 6, 4).",
        ),
        (
            lambda b, a: b.additive_score(a(2, 5, 8), a(2, 7, 8), a(9)),
            "additive_score: axis 'hidden_size' is 9 in w_v but 8 in queries. Project both to the same hidden size, or "
            "make the layer with this one. Shapes: queries=(2, 5, 8), keys=(2, 7, 8), w_v=(9,).",
        ),
        (
            lambda b, a: b.attention_pooling(a(2, 5, 7), a(2, 7, 4), dropout_mask=a(2, 1, 7)),
            "attention_pooling: axis 'queries' is 1 in dropout_mask but 5 in scores. Give one row of the mask, of the "
            "scores and of the lengths for each query. Shapes: scores=(2, 5, 7), values=(2, 7, 4), "
            "dropout_mask=(2, 1, 7).",
        ),
        (
            lambda b, a: b.masked_cross_entropy(a(2, 5, 7), a(2, 4, dtype=I)),
            "masked_cross_entropy: axis 'steps' is 4 in targets but 5 in logits. Give every step its own row, or one "
            "row for all steps. Shapes: logits=(2, 5, 7), targets=(2, 4).",
        ),
    ],
    OptionError: [
        (
            lambda b, a: b.window_mask(5, 7, left=-1, right=2),
            "window_mask: left is -1, expected a whole number of at least 0: number of keys before the query's "
            "position.",
        ),
        (
            lambda b, a: b.stride_mask(5, 7, stride=0),
            "stride_mask: stride is 0, expected a whole number of at least 1: distance between the positions that a "
            "query attends to.",
        ),
        (
            lambda b, a: b.causal_mask(5, 7, offset=1.5),
            "causal_mask: offset is 1.5, expected a whole number of at least 0: position of the first query among the "
            "keys.",
        ),
        (
            lambda b, a: b.from_additive_mask(a(2, 5, 7), threshold=-np.inf),
            "from_additive_mask: threshold is -inf, expected a finite number: a key is hidden where additive_mask is "
            "at most this.",
        ),
        (
            lambda b, a: b.to_additive_mask(a(2, 5, 7, dtype=bool), dtype="int32"),
            "to_additive_mask: dtype is 'int32', expected one of 'float64', 'float32', 'float16', 'bfloat16': floating "
            "type of the result.",
        ),
        (
            lambda b, a: b.to_additive_mask(a(2, 5, 7, dtype=bool), finite=-1e9),
            "to_additive_mask: finite is -1000000000.0, expected True or False: whether to fill with the lowest "
            "finite number, not -inf.",
        ),
        (
            lambda b, a: b.attention_mask(-1, a(2, dtype=I)),
            "attention_mask: num_keys is -1, expected a whole number of at least 0: number of keys.",
        ),
        (
            lambda b, a: b.scaled_dot_score(a(2, 5, 4), a(2, 7, 4), scale=float("nan")),
            "scaled_dot_score: scale is nan, expected a finite number: factor of the scores; 1/√features if None.",
        ),
    ],
    MaskError: [
        (
            lambda b, a: b.mask_and(a(2, 5, 7, dtype=bool), a(2, 5, 7, dtype=I)),
            "mask_and: second is int32, expected bool. True means 'may attend': compare first, mask != 0 where 1 "
            "stands for an open key, mask == 0 where 1 stands for a hidden one.",
        ),
        (
            lambda b, a: b.from_key_padding_mask(a(2, 7, dtype=I)),
            "from_key_padding_mask: key_padding_mask is int32, expected bool. True means 'hidden': compare first, "
            "mask == 0 where 1 stands for an open key, mask != 0 where 1 stands for a hidden one.",
        ),
        (
            lambda b, a: b.masked_softmax(a(2, 5, 7), None, a(2, 5, 7)),
            "masked_softmax: mask is float32, expected bool. True means 'may attend': compare first, mask != 0 where 1 "
            "stands for an open key, mask == 0 where 1 stands for a hidden one.",
        ),
    ],
    DtypeError: [
        (
            lambda b, a: b.from_additive_mask(a(2, 5, 7, dtype=bool)),
            "from_additive_mask: additive_mask is bool, expected a floating type, one of float64, float32, float16, "
            "bfloat16. A mask of True and False, or of 1 and 0, is not additive: after a cast it would hide nothing.",
        ),
        (
            lambda b, a: b.dot_score(a(2, 5, 4), a(2, 7, 4, dtype=np.float64)),
            "dot_score: keys is float64 but queries is float32. Nothing is cast silently: cast one of the two.",
        ),
        (
            lambda b, a: b.masked_softmax(a(2, 5, 7, dtype=I)),
            "masked_softmax: scores is int32, expected a floating type, one of float64, float32, float16, bfloat16. "
            "Cast it first.",
        ),
        (
            lambda b, a: b.masked_softmax(a(2, 5, 7), a(2)),
            "masked_softmax: valid_lens is float32, expected an integer type. Cast it to int32 first; fractions have "
            "no meaning here.",
        ),
        (
            lambda b, a: b.attention_mask(7, a(2, dtype=bool)),
            "attention_mask: valid_lens is bool, expected an integer type. Cast it to int32 first; fractions have no "
            "meaning here.",
        ),
        (
            lambda b, a: b.dot_score([[[1.0]]], a(1, 1, 1)),
            "dot_score: queries is a list, expected an array (batch, queries, features) or (batch, heads, queries, "
            "features). Convert it to an array of the framework first.",
        ),
    ],
    TokenError: [
        (
            lambda b, a: b.masked_cross_entropy(a(2, 5, 7), a(2, 5, dtype=I, fill=7)),
            "masked_cross_entropy: targets holds the id 7, expected 0 to 6 (vocab_size is 7). Map unknown tokens to "
            "an id of the vocabulary, and make the layer as large as the vocabulary.",
        ),
    ],
}

ADDITIVE = {"query_size": 9, "key_size": 10, "hidden_size": 8}
ENCODER = {"vocab_size": 11, "embed_size": 4, "hidden_size": 5, "num_layers": 2}
DECODER = {**ENCODER, "memory_size": 6, "attention_size": 8}
DECODING = {name: size for name, size in DECODER.items() if name != "attention_size"}
TRANSLATOR = {"source_vocab_size": 11, "target_vocab_size": 13, "embed_size": 4, "hidden_size": 5}

CONFIGS: dict[str, dict[str, Any]] = {
    "AdditiveAttention": ADDITIVE,
    "GeneralAttention": {"query_size": 9, "key_size": 10, "time_major": True},
    "LocationAttention": {"query_size": 9, "num_positions": 6},
    "Translator": TRANSLATOR,
    "HardAttention": {"query_size": 9, "key_size": 10},
    "MultiHeadAttention": {"query_size": 9, "num_heads": 3},
    "NadarayaWatson": {},
    "LearnedPositions": {"num_positions": 7, "features": 4},
    "SinusoidalPositions": {"features": 4},
    "LSTM": {"input_size": 4, "hidden_size": 5},
    "Bridge": {"hidden_size": 5},
    "GRU": {"input_size": 4, "hidden_size": 5},
    "GRUEncoder": ENCODER,
    "BahdanauDecoder": DECODER,
    "DotProductAttention": {},
    "LocalAttention": {"query_size": 9, "key_size": 10, "window": 2, "mode": "predictive"},
    "LuongDecoder": DECODING,
    "FixedContextDecoder": {**DECODING, "initial": "zero"},
}
"""How the layer that the words name is made, unless an entry says otherwise."""

# Call and words, by class, and the layer with its options where they are others. A call gets the layer.
LAYERS: Table = {
    ShapeError: [
        (
            lambda layer, a: layer(a(2, 5, 10), a(2, 7, 10), a(2, 7, 6)),
            "AdditiveAttention: axis 'query_size' is 10 in queries but 9 in the layer. Make the layer with the "
            "query_size of the queries. Shapes: queries=(2, 5, 10), keys=(2, 7, 10), values=(2, 7, 6).",
        ),
        (
            lambda layer, a: layer.prepare(a(2, 7, 9), a(2, 7, 6)),
            "AdditiveAttention.prepare: axis 'key_size' is 9 in keys but 10 in the layer. Make the layer with the "
            "key_size of the keys. Shapes: keys=(2, 7, 9), values=(2, 7, 6).",
        ),
        (
            lambda layer, a: layer.attend(a(3, 5, 9), layer.prepare(a(2, 7, 10), a(2, 7, 6))),
            "AdditiveAttention.attend: axis 'batch' is 2 in memory.keys but 3 in queries. All arguments share one "
            "batch size. Shapes: queries=(3, 5, 9), memory.keys=(2, 7, 8), memory.values=(2, 7, 6).",
        ),
        (
            lambda layer, a: layer(a(5, 2, 9), a(7, 3, 10), a(7, 3, 6)),
            "GeneralAttention: axis 'batch' is 3 in keys but 2 in queries. All arguments share one batch size. "
            "Shapes: queries=(5, 2, 9), keys=(7, 3, 10), values=(7, 3, 6).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 9), a(2, 7, 4), a(2, 7, 6)),
            "LocationAttention: num_keys is 7 but queries has 6 positions. Score only the first keys, or make the "
            "layer with a position for each key.",
        ),
        (
            lambda layer, a: layer(a(3, 9, dtype=I), a(3, 7, 6), a(2, 3, 5)),
            "LocationAttention: num_keys is 7 but queries has 6 positions. Score only the first keys, or make the "
            "layer with a position for each key.",
            ("BahdanauDecoder", {**DECODING, "score": "location", "num_positions": 6}),
        ),
        (
            lambda layer, a: layer(a(3, 7, dtype=I), a(2, 9, dtype=I)),
            "Translator: axis 'batch' is 2 in inputs but 3 in source. All arguments share one batch size. Shapes: "
            "source=(3, 7), inputs=(2, 9).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 9), a(2, 7, 10), a(2, 7, 6), noise=a(2, 5, 6)),
            "HardAttention: axis 'keys' is 6 in noise but 7 in keys. Give one value, and one column of the mask, for "
            "each key. Shapes: queries=(2, 5, 9), keys=(2, 7, 10), values=(2, 7, 6), noise=(2, 5, 6).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 9), a(2, 7, 9), a(2, 7, 6)),
            "MultiHeadAttention: axis 'value_size' is 6 in values but 9 in the layer. Make the layer with the "
            "value_size of the values. Shapes: queries=(2, 5, 9), keys=(2, 7, 9), values=(2, 7, 6).",
        ),
        (
            lambda layer, a: layer(a(2, 5), a(2, 7), a(2, 6)),
            "NadarayaWatson: axis 'keys' is 6 in values but 7 in keys. Give one value, and one column of the mask, for "
            "each key. Shapes: queries=(2, 5), keys=(2, 7), values=(2, 6).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 4), offset=3),
            "LearnedPositions: the last step is at position 7 but num_positions is 7. Give fewer steps or a smaller "
            "offset, or make the layer with a position for each step.",
        ),
        (
            lambda layer, a: layer(a(2, 5, 6)),
            "SinusoidalPositions: axis 'features' is 6 in inputs but 4 in the layer. Make the layer with the features "
            "of the inputs. Shapes: inputs=(2, 5, 6).",
        ),
        (
            lambda layer, a: layer(a(3, 7, 4), None, a(1, 3, 5)),
            "LSTM: axis 'state_size' is 5 in state but 10 in the layer. A state holds hidden_size numbers for each "
            "direction, and an LSTM's as many again for its cells. Shapes: inputs=(3, 7, 4), state=(1, 3, 5).",
        ),
        (
            lambda layer, a: layer(a(3, 7, 5), a(1, 3, 10)),
            "Bridge: axis 'both_outputs' is 5 in outputs but 10 in the layer. A bridge takes the outputs of a "
            "bidirectional encoder: 2 hidden_size features. Shapes: outputs=(3, 7, 5), state=(1, 3, 10).",
        ),
        (
            lambda layer, a: layer(a(3, 7, 5)),
            "GRU: axis 'input_size' is 5 in inputs but 4 in the layer. Make the layer with the input_size of the "
            "inputs. Shapes: inputs=(3, 7, 5).",
        ),
        (
            lambda layer, a: layer(a(3, 7, dtype=I), None, a(1, 3, 5)),
            "GRUEncoder: axis 'num_layers' is 1 in state but 2 in the layer. Give one state for each recurrent layer: "
            "decoder and encoder have the same num_layers. Shapes: tokens=(3, 7), state=(1, 3, 5).",
        ),
        (
            lambda layer, a: layer(a(3, 7, dtype=I), a(3, 8, 5), a(2, 3, 5)),
            "BahdanauDecoder: axis 'memory_size' is 5 in encoder_outputs but 6 in the layer. Make the decoder with "
            "memory_size, the size of the encoder's outputs. Shapes: tokens=(3, 7), encoder_outputs=(3, 8, 5), "
            "state=(2, 3, 5).",
        ),
        (
            lambda layer, a: layer.step(
                a(3, dtype=I), a(2, 3, 5), layer.prepare(a(3, 8, 6), None, a(3, 4, 8, dtype=bool))
            ),
            "BahdanauDecoder.step: axis 'one' is 4 in memory.mask but 1 in the layer. A single step and greedy "
            "decoding take a mask with one row: (batch, 1, keys). Shapes: tokens=(3,), state=(2, 3, 5), "
            "memory.keys=(3, 8, 8), memory.values=(3, 8, 6), memory.mask=(3, 4, 8).",
        ),
    ],
    MaskError: [
        (
            lambda layer, a: layer(a(2, 5, 4), a(2, 7, 4), a(2, 7, 6), None, a(2, 5, 7, dtype=I)),
            "DotProductAttention: mask is int32, expected bool. True means 'may attend': compare first, mask != 0 "
            "where 1 stands for an open key, mask == 0 where 1 stands for a hidden one.",
        ),
    ],
    TokenError: [
        (
            lambda layer, a: layer(a(3, 7, dtype=I, fill=11), a(3, 9, dtype=I)),
            "GRUEncoder: tokens holds the id 11, expected 0 to 10 (vocab_size is 11). Map unknown tokens to an id of "
            "the vocabulary, and make the layer as large as the vocabulary.",
            ("Translator", TRANSLATOR),
        ),
        (
            lambda layer, a: layer(a(3, 7, dtype=I, fill=11)),
            "GRUEncoder: tokens holds the id 11, expected 0 to 10 (vocab_size is 11). Map unknown tokens to an id of "
            "the vocabulary, and make the layer as large as the vocabulary.",
        ),
        (
            lambda layer, a: layer(a(3, 7, dtype=I, fill=-1), a(3, 8, 6), a(2, 3, 5)),
            "BahdanauDecoder: tokens holds the id -1, expected 0 to 10 (vocab_size is 11). Map unknown tokens to an "
            "id of the vocabulary, and make the layer as large as the vocabulary.",
        ),
        (
            lambda layer, a: layer.greedy(a(3, 8, 6), a(2, 3, 5), bos=1, eos=11, max_steps=4),
            "BahdanauDecoder.greedy: eos holds the id 11, expected 0 to 10 (vocab_size is 11). Map unknown tokens to "
            "an id of the vocabulary, and make the layer as large as the vocabulary.",
        ),
    ],
    DtypeError: [
        (
            lambda layer, a: layer.greedy(a(3, 7, dtype=I), a(3), bos=1, eos=2, max_steps=4),
            "Translator.greedy: valid_lens is float32, expected an integer type. Cast it to int32 first; fractions "
            "have no meaning here.",
        ),
        (
            lambda layer, a: layer(a(3, 7)),
            "GRUEncoder: tokens is float32, expected an integer type. Cast it to int32 first; fractions have no "
            "meaning here.",
        ),
    ],
    OptionError: [
        (
            lambda layer, a: layer.beam(a(3, 7, dtype=I), bos=1, eos=2, max_steps=4, width=2, num_best=3),
            "Translator.beam: num_best is 3, expected at most width, which is 2. Widen the beam.",
        ),
        (
            lambda layer, a: layer(a(2, 5, 9), a(2, 7, 10), a(2, 7, 6), offset=a(2, dtype=I)),
            "LocalAttention: offset is given, expected None: mode='predictive' predicts the centre of its window.",
        ),
        (
            lambda layer, a: layer(a(2, 5, 9), a(2, 7, 9), a(2, 7, 9), per_head=1),
            "MultiHeadAttention: per_head is 1, expected True or False: whether to return the weights of every head, "
            "or their mean.",
        ),
        (
            lambda layer, a: layer.step(a(3, 4), a(1, 3, 10)),
            "GRU.step: bidirectional is True, expected False: the backward direction begins at the last step. Call the "
            "layer on whole sequences.",
            ("GRU", {"input_size": 4, "hidden_size": 5, "bidirectional": True}),
        ),
        (
            lambda layer, a: layer(a(3, 7, dtype=I), a(3, 8, 6)),
            "LuongDecoder: state is None, expected a value: initial='encoder' starts with the encoder's last state.",
        ),
        (
            lambda layer, a: layer(a(3, 7, dtype=I), a(3, 8, 6), a(2, 3, 5)),
            "FixedContextDecoder: state is given, expected None: initial='zero' starts without the encoder's state.",
        ),
        (
            lambda layer, a: layer.beam(a(3, 8, 6), a(2, 3, 5), bos=1, eos=2, max_steps=4, width=2, num_best=3),
            "LuongDecoder.beam: num_best is 3, expected at most width, which is 2. Widen the beam.",
        ),
        (
            lambda layer, a: layer.beam(a(3, 8, 6), a(2, 3, 5), bos=1, eos=2, max_steps=4, width=12),
            "BahdanauDecoder.beam: width is 12, expected at most vocab_size, which is 11: a first step has no more "
            "hypotheses.",
            ("BahdanauDecoder", DECODING),
        ),
        (
            lambda layer, a: layer.greedy(a(3, 8, 6), a(2, 3, 5), bos=1, eos=2, max_steps=-1),
            "BahdanauDecoder.greedy: max_steps is -1, expected a whole number of at least 0: maximum number of "
            "tokens to decode.",
        ),
    ],
}

CONSTRUCTORS = [
    (
        {"query_size": 9, "key_size": 10, "score": "dot"},
        "HardAttention: a key has 10 features but a query 9, and score='dot' compares them one by one. Give both the "
        "same size, or take score='general'.",
    ),
    (
        {"query_size": 9, "num_heads": 2},
        "MultiHeadAttention: hidden_size is 9, expected a multiple of num_heads, which is 2. Every head has the same "
        "number of features.",
    ),
    (
        {"width": -1.0},
        "KernelAttention: width is -1.0, expected a finite number above 0: standard deviation of the kernel, 1/w.",
    ),
    (
        {"features": 3},
        "SinusoidalPositions: features is 3, expected an even number of at least 2: features of an input.",
    ),
    (
        {**DECODING, "alignment": "predictive"},
        "LuongDecoder: window is None, expected a value: alignment='predictive' sees a window.",
    ),
    (
        {"hidden_size": 5, "method": "mean"},
        "Bridge: method is 'mean', expected one of 'concatenate', 'sum', 'project', 'backward': how to "
        "merge the two directions.",
    ),
    (
        {**ADDITIVE, "hidden_size": 0},
        "AdditiveAttention: hidden_size is 0, expected a whole number of at least 1: features of the hidden layer.",
    ),
    (
        {**ADDITIVE, "dropout": 1.0},
        "AdditiveAttention: dropout is 1.0, expected a rate of at least 0 and less than 1: dropout rate of the "
        "weights in training.",
    ),
    (
        {"scale": float("inf")},
        "DotProductAttention: scale is inf, expected a finite number: factor of the scores; 1/√features if None.",
    ),
    (
        {"input_size": 4, "hidden_size": 5, "num_layers": 1.5},
        "GRU: num_layers is 1.5, expected a whole number of at least 1: number of stacked recurrent layers.",
    ),
    (
        {**DECODER, "memory_size": -6},
        "BahdanauDecoder: memory_size is -6, expected a whole number of at least 1: features of the encoder's outputs; "
        "hidden_size if None.",
    ),
]


def entries() -> Iterator[Any]:
    """Layer, its options, call, class and words of each refusal; a function has no layer."""
    for kind, rows in FUNCTIONS.items():
        yield from (pytest.param("", {}, *row, kind, id=row[1].partition(",")[0]) for row in rows)
    for kind, rows in LAYERS.items():
        for call, words, *other in rows:
            name = words.partition(":")[0].partition(".")[0]
            yield pytest.param(
                *(other[0] if other else (name, CONFIGS[name])), call, words, kind, id=words.partition(",")[0]
            )


REFUSALS = pytest.mark.parametrize(("layer", "config", "call", "words", "kind"), list(entries()))


def refused(call: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(AttentionError) as raised:
        call()
    assert (type(raised.value), str(raised.value)) == (kind, words)


@REFUSALS
def test_the_reference_refuses(layer: str, config: dict[str, Any], call: Any, words: str, kind: type[AttentionError]):
    target = getattr(reference, layer)(**config) if layer else reference
    standard = np.float64 if layer else np.float32  # a layer of the reference has no other dtype

    def array(*shape: int, dtype: Any = standard, fill: int = 0) -> np.ndarray:
        return np.full(shape, fill, dtype)

    name = np.dtype(standard).name
    refused(
        lambda: call(target, array), kind, words.replace("float32, expected an integer", f"{name}, expected an integer")
    )


@REFUSALS
def test_a_backend_refuses(
    backend: SimpleNamespace, layer: str, config: dict[str, Any], call: Any, words: str, kind: type[AttentionError]
):
    package = backend.package
    target = backend.runtime.build(getattr(package, layer), config, "float32") if layer else package

    def array(*shape: int, dtype: Any = np.float32, fill: int = 0) -> Any:
        return backend.runtime.from_numpy(np.full(shape, fill, dtype))

    refused(lambda: call(target, array), kind, words)


@pytest.mark.parametrize(("config", "words"), CONSTRUCTORS, ids=[words.partition(",")[0] for _, words in CONSTRUCTORS])
def test_a_constructor_refuses(backend: SimpleNamespace, config: dict[str, Any], words: str):
    layer = words.partition(":")[0]
    refused(lambda: backend.runtime.build(getattr(backend.package, layer), config, "float32"), OptionError, words)
    refused(lambda: getattr(reference, layer)(**config), OptionError, words)


def test_an_unknown_option_is_pythons_own_refusal(backend: SimpleNamespace):
    with pytest.raises(TypeError, match=r"AdditiveAttention.__init__\(\) got an unexpected keyword argument 'rate'"):
        backend.package.AdditiveAttention(**ADDITIVE, rate=0.5)
    with pytest.raises(TypeError, match=r"scaled_dot_score\(\) got an unexpected keyword argument 'scael'"):
        backend.package.scaled_dot_score(None, None, scael=1.0)


def test_a_layer_refuses_another_floating_type(backend: SimpleNamespace):
    layer = backend.runtime.build(backend.package.AdditiveAttention, ADDITIVE, "float32")
    arrays = [backend.runtime.from_numpy(np.zeros(shape)) for shape in ((2, 5, 9), (2, 7, 10), (2, 7, 6))]
    refused(
        lambda: layer(*arrays),
        DtypeError,
        "AdditiveAttention: queries is float64 but the layer is float32. "
        "Nothing is cast silently: cast one of the two.",
    )


def test_parameters_that_do_not_fit_are_named(backend: SimpleNamespace):
    layer = backend.runtime.build(backend.package.AdditiveAttention, ADDITIVE, "float32")
    good = backend.package.get_parameters(layer)
    names = "It has W_q, W_k, w_v."
    for arrays, words in (
        (
            {"W_q": good["W_q"], "w_v": good["w_v"], "bias": good["w_v"]},
            f"AdditiveAttention: the arrays are not this layer's (missing: W_k; unknown: bias). {names}",
        ),
        (
            {**good, "W_k": good["W_k"].T},
            "AdditiveAttention: W_k has shape (10, 8), expected (8, 10). The transpose would "
            "fit: canonical matrices are (outputs, inputs).",
        ),
        ({**good, "w_v": good["w_v"][1:]}, "AdditiveAttention: w_v has shape (7,), expected (8,)."),
        (
            {**good, "W_q": good["W_q"].astype(np.float64)},
            "AdditiveAttention: W_q is float64, expected float32. Nothing is "
            "cast silently: cast the arrays first, or make the layer with their dtype.",
        ),
    ):
        refused(lambda arrays=arrays: backend.package.set_parameters(layer, arrays), ParameterError, words)
    after = backend.package.get_parameters(layer)
    assert all(np.array_equal(after[name], good[name]) for name in good), "a refusal must lose nothing"


def test_a_size_that_is_unknown_while_tracing_fits_anything():
    from attention_core.operators.scoring import DOT_SCORE

    unknown = SimpleNamespace(shape=(None, 5, None), dtype=np.dtype("float32"))
    sizes = errors.check(DOT_SCORE, queries=unknown, keys=np.zeros((2, 7, 4), np.float32))
    assert sizes == {"batch": 2, "queries": 5, "keys": 7, "features": 4}


@pytest.mark.parametrize("name", ["float32", "float64", "int32", "bool"])
def test_dtypes_have_one_name(name: str):
    kinds = [np.dtype(name), np.dtype(name).type, SimpleNamespace(name=name)]
    assert {errors.dtype_name(kind) for kind in kinds} == {name}
