"""What layers and their constructors refuse, by class: a call, and the words of its error."""

from __future__ import annotations

from typing import Any

from attention_core.errors import DtypeError, MaskError, OptionError, ShapeError, TokenError
from parity_tests.tests.attention_core.refusals_of_functions import I, Table

ADDITIVE = {"query_size": 9, "key_size": 10, "hidden_size": 8}
ENCODER = {"vocab_size": 11, "embed_size": 4, "hidden_size": 5, "num_layers": 2}
DECODER = {**ENCODER, "memory_size": 6, "attention_size": 8}
DECODING = {name: size for name, size in DECODER.items() if name != "attention_size"}
TRANSLATOR = {"source_vocab_size": 11, "target_vocab_size": 13, "embed_size": 4, "hidden_size": 5}
VISION = {
    "height": 4,
    "width": 6,
    "channels": 3,
    "patch_size": 2,
    "num_classes": 5,
    "features": 4,
    "num_heads": 2,
    "hidden_size": 3,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "AdditiveAttention": ADDITIVE,
    "GeneralAttention": {"query_size": 9, "key_size": 10, "time_major": True},
    "LocationAttention": {"query_size": 9, "num_positions": 6},
    "Translator": TRANSLATOR,
    "HardAttention": {"query_size": 9, "key_size": 10},
    "MultiHeadAttention": {"query_size": 9, "num_heads": 3},
    "LowRankAttention": {"num_positions": 8, "rank": 3},
    "CompressedAttention": {"query_size": 9, "key_size": 10, "stride": 3},
    "SegmentAttention": {"query_size": 10, "num_heads": 2},
    "InducedAttention": {"query_size": 9, "num_heads": 3, "num_inducing": 4, "key_size": 10},
    "NadarayaWatson": {},
    "LearnedPositions": {"num_positions": 7, "features": 4},
    "SinusoidalPositions": {"features": 4},
    "RotaryPositions": {"features": 4},
    "LSTM": {"input_size": 4, "hidden_size": 5},
    "Bridge": {"hidden_size": 5},
    "GRU": {"input_size": 4, "hidden_size": 5},
    "GRUEncoder": ENCODER,
    "BahdanauDecoder": DECODER,
    "DotProductAttention": {},
    "LocalAttention": {"query_size": 9, "key_size": 10, "window": 2, "mode": "predictive"},
    "LuongDecoder": DECODING,
    "FixedContextDecoder": {**DECODING, "initial": "zero"},
    "VisionTransformer": VISION,
}
"""How the layer that the words name is made, unless an entry says otherwise."""

LAYERS: Table = {
    ShapeError: [
        (
            lambda layer, a: layer(a(5, 3, 4, 6)),
            "VisionTransformer: axis 'height' is 3 in images but 4 in the layer. Give images as (batch, height, width, "
            "channels), or make the layer with these sizes. Shapes: images=(5, 3, 4, 6).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 4), offset=[1, 2, 3]),
            "RotaryPositions: axis 'batch' is 3 in offset but 2 in inputs. All arguments share one batch size. Shapes: "
            "inputs=(2, 5, 4), offset=(3,).",
        ),
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
            lambda layer, a: layer(a(2, 5, 4), a(2, 9, 4), a(2, 9, 6)),
            "LowRankAttention: num_keys is 9 but num_positions is 8. Give only the first keys, or make the layer with "
            "a position for each key.",
        ),
        (
            lambda layer, a: layer(a(2, 5, 4), a(2, 7, 4), a(2, 7, 6), a(2, 5, dtype=I)),
            "LowRankAttention: valid_lens has 2 axes, expected (batch,). Shapes: queries=(2, 5, 4), keys=(2, 7, 4), "
            "values=(2, 7, 6), valid_lens=(2, 5).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 4), a(2, 7, 4), a(2, 7, 6), None, a(2, 5, 7, dtype=bool)),
            "LowRankAttention: axis 'one' is 5 in mask but 1 in the layer. Give a mask with one row, which is the same "
            "for every query: (batch, 1, keys). Shapes: queries=(2, 5, 4), keys=(2, 7, 4), values=(2, 7, 6), "
            "mask=(2, 5, 7).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 4), a(2, 7, 4), a(2, 7, 6), None, a(2, 7, dtype=bool)),
            "LowRankAttention: mask has 2 axes, expected (batch, one, keys) or (batch, heads, one, keys). Give "
            "mask[:, None, :] if its axes are (batch, keys). Shapes: queries=(2, 5, 4), keys=(2, 7, 4), "
            "values=(2, 7, 6), mask=(2, 7).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 9), a(2, 7, 10), a(2, 7, 10), dropout_mask=a(2, 5, 7)),
            "CompressedAttention: axis 'blocks' is 7 in dropout_mask, expected 3: 7 keys make a block of each 3. Give "
            "a factor for each block.",
        ),
        (
            lambda layer, a: layer(a(2, 5, 10), a(2, 4, 10), a(2, 1, 5, dtype=bool)),
            "SegmentAttention: axis 'keys' is 5 in mask, expected 9: previous has 4 steps, and inputs 5. Give a column "
            "for each of them, oldest first. Shapes: inputs=(2, 5, 10), previous=(2, 4, 10), mask=(2, 1, 5).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 10), dropout_mask=a(2, 2, 5, 9)),
            "SegmentAttention: axis 'keys' is 9 in dropout_mask, expected 5: previous has 0 steps, and inputs 5. Give "
            "a column for each of them, oldest first. Shapes: inputs=(2, 5, 10), dropout_mask=(2, 2, 5, 9).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 9), a(2, 7, 10), a(2, 7, 11)),
            "InducedAttention: axis 'value_size' is 11 in values but 10 in the layer. Make the layer with the "
            "value_size of the values. Shapes: queries=(2, 5, 9), keys=(2, 7, 10), values=(2, 7, 11).",
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
            lambda layer, a: layer(a(2, 3, 5, 4), a(2, 3, 7, 4), a(2, 3, 7, 6), None, a(2, 5, 7, dtype=bool)),
            "DotProductAttention: axis 'heads' is in queries but not in mask. Give mask[:, None], which is the same "
            "for every head. Shapes: queries=(2, 3, 5, 4), keys=(2, 3, 7, 4), values=(2, 3, 7, 6), mask=(2, 5, 7).",
        ),
        (
            lambda layer, a: layer(a(2, 3, 5, 4), a(2, 3, 7, 4), a(2, 3, 7, 6), bias=a(2, 5, 7)),
            "DotProductAttention: axis 'heads' is in queries but not in bias. Give bias[:, None], which is the same "
            "for every head. Shapes: queries=(2, 3, 5, 4), keys=(2, 3, 7, 4), values=(2, 3, 7, 6), bias=(2, 5, 7).",
        ),
        (
            lambda layer, a: layer(a(2, 3, 5, 4), a(2, 2, 7, 4), a(2, 2, 7, 6)),
            "DotProductAttention: axis 'heads' is 3, expected a multiple of axis 'key_heads', which is 2. Every key "
            "head is read by as many query heads as the others. Shapes: queries=(2, 3, 5, 4), keys=(2, 2, 7, 4), "
            "values=(2, 2, 7, 6).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 4), a(2, 7, 4), a(2, 7, 6), bias=a(7)),
            "DotProductAttention: bias has 1 axis, expected (queries, keys) or (batch, queries, keys) or (batch, "
            "heads, queries, keys). Shapes: queries=(2, 5, 4), keys=(2, 7, 4), values=(2, 7, 6), bias=(7,).",
        ),
        (
            lambda layer, a: layer.prepare(a(2, 3, 7, 4), a(2, 3, 7, 6), None, a(2, 7, dtype=bool)),
            "DotProductAttention.prepare: mask has 2 axes, expected (batch, queries, keys) or (batch, heads, queries, "
            "keys). Give mask[:, None, None, :] if its axes are (batch, keys) or mask[None, None] if its axes are "
            "(queries, keys). Shapes: keys=(2, 3, 7, 4), values=(2, 3, 7, 6), mask=(2, 7).",
        ),
        (
            lambda layer, a: layer(a(2, 5, 9), a(2, 7, 9), a(2, 7, 9), None, a(2, 7, dtype=bool)),
            "MultiHeadAttention: mask has 2 axes, expected (batch, queries, keys) or (batch, heads, queries, keys). "
            "Give mask[:, None, :] if its axes are (batch, keys). Shapes: queries=(2, 5, 9), keys=(2, 7, 9), "
            "values=(2, 7, 9), mask=(2, 7).",
        ),
        (
            lambda layer, a: layer.step(
                a(3, dtype=I), a(2, 3, 5), layer.prepare(a(3, 8, 6), None, a(3, 4, 8, dtype=bool))
            ),
            "BahdanauDecoder.step: axis 'one' is 4 in memory.mask but 1 in the layer. Give a mask with one row, "
            "which is the same for every query: (batch, 1, keys). Shapes: tokens=(3,), state=(2, 3, 5), "
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
            lambda layer, a: layer.pruned(1),
            "MultiHeadAttention.pruned: heads is 1, expected a list of whole numbers of at least 0: numbers of the "
            "heads to leave out.",
        ),
        (
            lambda layer, a: layer.pruned([-1]),
            "MultiHeadAttention.pruned: heads is [-1], expected a list of whole numbers of at least 0: numbers of the "
            "heads to leave out.",
        ),
        (
            lambda layer, a: layer.pruned([True, False, False]),
            "MultiHeadAttention.pruned: heads is [True, False, False], expected a list of whole numbers of at least 0: "
            "numbers of the heads to leave out.",
        ),
        (
            lambda layer, a: layer.pruned([1, 3]),
            "MultiHeadAttention.pruned: heads is [1, 3], expected numbers from 0 to 2: the layer has 3 heads.",
        ),
        (
            lambda layer, a: layer.pruned([2, 2]),
            "MultiHeadAttention.pruned: heads is [2, 2], expected each head once.",
        ),
        (
            lambda layer, a: layer.pruned([0, 2, 1]),
            "MultiHeadAttention.pruned: heads is [0, 2, 1], expected at most 2 of the 3 heads: a layer has at least "
            "one.",
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
"""A call gets the layer that the words name, unless the entry has another one with its options."""

CONSTRUCTORS = [
    (
        {**VISION, "height": 5},
        "VisionTransformer: height is 5, expected a multiple of patch_size, which is 2. Crop or pad the images, or "
        "choose another patch_size.",
    ),
    (
        {"query_size": 9, "key_size": 10, "score": "dot"},
        "HardAttention: a key has 10 features but a query 9, and score='dot' compares them one by one. Give both the "
        "same size, or take score='general'.",
    ),
    (
        {"query_size": 4, "num_heads": 3},
        "SegmentAttention: hidden_size is 4, expected a multiple of num_heads, which is 3. Every head has the same "
        "number of features.",
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
        {"query_size": 9, "num_heads": 3, "num_key_heads": 2},
        "MultiHeadAttention: num_heads is 3, expected a multiple of num_key_heads, which is 2. Every key head is read "
        "by as many query heads as the others.",
    ),
    (
        {"query_size": 9, "num_heads": 3, "score": "additive", "softcap": 50.0},
        "MultiHeadAttention: softcap is 50.0, expected None: score='additive' has no bound.",
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
"""The options of the layer that the words name, and the words."""
