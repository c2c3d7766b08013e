"""What functions refuse, by class: a call, and the words of its error."""

from __future__ import annotations

from typing import Any

import numpy as np

from attention_core.errors import AttentionError, DtypeError, MaskError, OptionError, ShapeError, TokenError

I = np.int32  # noqa: E741 (in a table of hundreds of shapes)
Table = dict[type[AttentionError], list[tuple[Any, ...]]]

FUNCTIONS: Table = {
    ShapeError: [
        (
            lambda p, a: p.attention_rollout(a(4, 2, 3, 5, 6)),
            "attention_rollout: axis 'steps' is both 5 and 6 in weights. Give the weights of self-attention, whose "
            "queries and keys are the same steps. Shapes: weights=(4, 2, 3, 5, 6).",
        ),
        (
            lambda p, a: p.attention_rollout(a(4, 2, 5, 5)),
            "attention_rollout: weights has 4 axes, expected (layers, batch, heads, steps, steps). Shapes: weights=(4, "
            "2, 5, 5).",
        ),
        (
            lambda p, a: p.attention_rollout(a(4, 2, 0, 5, 5)),
            "attention_rollout: axis 'heads' is 0 in weights, expected at least 1. Shapes: weights=(4, 2, 0, 5, 5).",
        ),
        (
            lambda p, a: p.patches(a(2, 4, 9, 3), patch_size=2),
            "patches: axis 'width' is 9 in images, expected a multiple of patch_size, which is 2. Crop or pad the "
            "images, or choose another patch_size. Shapes: images=(2, 4, 9, 3).",
        ),
        (
            lambda p, a: p.patches(a(2, 4, 8), patch_size=2),
            "patches: images has 3 axes, expected (batch, height, width, channels). Shapes: images=(2, 4, 8).",
        ),
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
            "masked_softmax: axis 'heads' is in scores but not in mask. Give mask[:, None], which is the same for "
            "every head. Shapes: scores=(2, 3, 5, 7), mask=(2, 5, 7).",
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
            lambda b, a: b.masked_softmax(a(2, 5, 7), mask=a(2, 7, dtype=bool)),
            "masked_softmax: mask has 2 axes, expected (batch, queries, keys) or (batch, heads, queries, keys). Give "
            "mask[:, None, :] if its axes are (batch, keys). Shapes: scores=(2, 5, 7), mask=(2, 7).",
        ),
        (
            lambda b, a: b.masked_softmax(a(2, 5, 7), mask=a(5, 7, dtype=bool)),
            "masked_softmax: mask has 2 axes, expected (batch, queries, keys) or (batch, heads, queries, keys). Give "
            "mask[None] if its axes are (queries, keys). Shapes: scores=(2, 5, 7), mask=(5, 7).",
        ),
        (
            lambda b, a: b.attention_mask(7, mask=a(5, 7, dtype=bool)),
            "attention_mask: mask has 2 axes, expected (batch, queries, keys) or (batch, heads, queries, keys). Give "
            "mask[:, None, :] if its axes are (batch, keys) or mask[None] if its axes are (queries, keys). "
            "Shapes: mask=(5, 7).",
        ),
        (
            lambda b, a: b.masked_softmax(a(2, 3, 5, 7), mask=a(2, 7, dtype=bool)),
            "masked_softmax: mask has 2 axes, expected (batch, queries, keys) or (batch, heads, queries, keys). Give "
            "mask[:, None, None, :] if its axes are (batch, keys). Shapes: scores=(2, 3, 5, 7), mask=(2, 7).",
        ),
        (
            lambda b, a: b.masked_softmax(a(2, 3, 5, 7), mask=a(5, 7, dtype=bool)),
            "masked_softmax: mask has 2 axes, expected (batch, queries, keys) or (batch, heads, queries, keys). Give "
            "mask[None, None] if its axes are (queries, keys). Shapes: scores=(2, 3, 5, 7), mask=(5, 7).",
        ),
        (
            lambda b, a: b.masked_softmax(a(2, 5, 7), mask=a(4, 4, dtype=bool)),
            "masked_softmax: mask has 2 axes, expected (batch, queries, keys) or (batch, heads, queries, keys). "
            "Shapes: scores=(2, 5, 7), mask=(4, 4).",
        ),
        (
            lambda b, a: b.attention_pooling(a(2, 5, 7), a(2, 6, 4)),
            "attention_pooling: axis 'keys' is 6 in values but 7 in scores. Give one value, and one column of the "
            "mask, for each key. Shapes: scores=(2, 5, 7), values=(2, 6, 4).",
        ),
        (
            lambda b, a: b.linear_attention(a(2, 5, 4), a(2, 7, 4), a(2, 7, 6), causal=True),
            "linear_attention: axis 'queries' is 5, expected 7 as axis 'keys': with causal=True query i attends to the "
            "keys up to i. Give a query for each key, or take single steps by linear_attention_step. Shapes: "
            "queries=(2, 5, 4), keys=(2, 7, 4), values=(2, 7, 6).",
        ),
        (
            lambda b, a: b.linear_attention(a(2, 5, 4), a(2, 7, 4), a(2, 7, 6), mask=a(2, 5, 7, dtype=bool)),
            "linear_attention: axis 'one' is 5 in mask, expected 1. Give a mask with one row, which is the same for "
            "every query: (batch, 1, keys). Shapes: queries=(2, 5, 4), keys=(2, 7, 4), values=(2, 7, 6), "
            "mask=(2, 5, 7).",
        ),
        (
            lambda b, a: b.linear_attention_step(a(2, 4), a(2, 4), a(2, 6), a(2, 4, 7), a(2, 4)),
            "linear_attention_step: axis 'value_features' is 7 in sums but 6 in values. Give both the same size. "
            "Shapes: queries=(2, 4), keys=(2, 4), values=(2, 6), sums=(2, 4, 7), norms=(2, 4).",
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
            lambda b, a: b.alibi_bias(0, 5, 7),
            "alibi_bias: num_heads is 0, expected a whole number of at least 1: number of heads.",
        ),
        (
            lambda b, a: b.relative_buckets(5, 7, num_buckets=3),
            "relative_buckets: num_buckets is 3, expected at least 4: with bidirectional=True, one in 4 has a single "
            "distance.",
        ),
        (
            lambda b, a: b.relative_bias(5, 7, a(32, 3), bidirectional=False, max_distance=16),
            "relative_bias: max_distance is 16, expected more than 16: with 32 buckets, all shorter distances have one "
            "each.",
        ),
        (
            lambda b, a: b.linear_attention(a(2, 5, 4), a(2, 7, 4), a(2, 7, 6), causal=1),
            "linear_attention: causal is 1, expected True or False: whether query i attends to the keys up to i alone, "
            "of as many as there are queries.",
        ),
        (
            lambda b, a: b.attention_mask(-1, a(2, dtype=I)),
            "attention_mask: num_keys is -1, expected a whole number of at least 0: number of keys.",
        ),
        (
            lambda b, a: b.scaled_dot_score(a(2, 5, 4), a(2, 7, 4), scale=float("nan")),
            "scaled_dot_score: scale is nan, expected a finite number: factor of the scores; 1/√features if None.",
        ),
        (
            lambda b, a: b.scaled_dot_score(a(2, 5, 4), a(2, 7, 4), softcap=0.0),
            "scaled_dot_score: softcap is 0.0, expected a finite number above 0: bound of the scores; none if None.",
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
            lambda b, a: b.causal_mask(5, 7, offset=1.5),
            "causal_mask: offset is a float, expected a whole number or an array (batch,). Convert it to an array of "
            "the framework first.",
        ),
        (
            lambda b, a: b.causal_mask(5, 7, offset=a(2)),
            "causal_mask: offset is float32, expected an integer type. Cast it to int32 first; fractions have no "
            "meaning here.",
        ),
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
"""A call gets the package, and a function that makes an array of that shape in the framework."""
