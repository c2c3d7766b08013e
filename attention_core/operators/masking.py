"""Which keys a query may attend to, and weights over them, as data."""

from __future__ import annotations

from attention_core.operators.common import (
    ALL_HEADS,
    CHILD,
    LIU,
    LONGFORMER,
    MASK,
    NUM_KEYS,
    NUM_QUERIES,
    OFFSET,
    SCORES,
    VALID_LENS,
    WEIGHTS,
)
from attention_core.rules import one_row
from attention_core.specification import FLOATING, Operator, Option, Tensor

_OUTPUT = Tensor("mask", MASK.axes, "True = may attend", "boolean", broadcast=True)

ATTENTION_MASK = Operator(
    name="attention_mask",
    summary="Combine lengths and a boolean mask into one mask of what each query may attend to.",
    formula="open[b, i, j] = (j < valid_lens[b, i]) and mask[b, i, j]",
    source="this specification; True means 'may attend', as in ONNX Attention",
    options=(NUM_KEYS,),
    tensors=(VALID_LENS, MASK),
    outputs=(_OUTPUT,),
    notes=(
        "Without lengths and mask the result is None: everything is open. Otherwise it has the rank of mask, or 3, and "
        "num_keys keys; its other axes are those given, or 1."
    ),
)

_RULE = Tensor(
    "mask",
    ("batch", "queries", "keys"),
    "True = may attend; the same for every sequence if offset is. With heads, insert their axis: mask[:, None]",
    "boolean",
    broadcast=True,
)
_CACHED = (
    "With n cached keys before the first query, offset is n. Where the last query is aligned with the last key, offset "
    "is num_keys - num_queries."
)
_SAME_AXES = "Both masks have heads, or neither; an axis of size 1 is extended to the size of the other."

CAUSAL_MASK = Operator(
    name="causal_mask",
    summary="Let each query attend to its own position and those before it.",
    formula="open[b, i, j] = j <= i + offset[b]",
    source="Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762",
    options=(NUM_QUERIES, NUM_KEYS),
    tensors=(),
    keyword_tensors=(OFFSET,),
    outputs=(_RULE,),
    notes=_CACHED,
)

WINDOW_MASK = Operator(
    name="window_mask",
    summary="Let each query attend to a window around its own position.",
    formula="open[b, i, j] = -left <= j - (i + offset[b]) <= right",
    source=LONGFORMER,
    options=(
        NUM_QUERIES,
        NUM_KEYS,
        Option("left", "int", "number of keys before the query's position", domain="count", keyword_only=True),
        Option("right", "int", "number of keys after the query's position", domain="count", keyword_only=True),
    ),
    tensors=(),
    keyword_tensors=(OFFSET,),
    outputs=(_RULE,),
    notes=_CACHED,
)

BLOCK_MASK = Operator(
    name="block_mask",
    summary="Let each query attend to the block of positions that contains it.",
    formula="open[b, i, j] = floor((i + offset[b]) / size) == floor(j / size)",
    source=LIU,
    options=(
        NUM_QUERIES,
        NUM_KEYS,
        Option("size", "int", "number of positions in a block", keyword_only=True),
    ),
    tensors=(),
    keyword_tensors=(OFFSET,),
    outputs=(_RULE,),
    notes="The first block begins at key 0. " + _CACHED,
)

STRIDE_MASK = Operator(
    name="stride_mask",
    summary="Let each query attend to every stride-th position, counted from its own.",
    formula="open[b, i, j] = (i + offset[b] - j) mod stride == 0",
    source=CHILD,
    options=(
        NUM_QUERIES,
        NUM_KEYS,
        Option("stride", "int", "distance between the positions that a query attends to", keyword_only=True),
    ),
    tensors=(),
    keyword_tensors=(OFFSET,),
    outputs=(_RULE,),
    notes="With window_mask, by mask_and, it makes a dilated window. " + _CACHED,
)

GLOBAL_MASK = Operator(
    name="global_mask",
    summary="Let global queries attend to every key, and every query to global keys.",
    formula="open[b, i, j] = global_queries[b, i] or global_keys[b, j]",
    source=LONGFORMER,
    tensors=(
        Tensor("global_queries", ("batch", "queries"), "True where a query attends to every key", "boolean"),
        Tensor("global_keys", ("batch", "keys"), "True where a key is attended to by every query", "boolean"),
    ),
    outputs=(Tensor("mask", ("batch", "queries", "keys"), "True = may attend", "boolean"),),
)

_TWO_MASKS = tuple(
    Tensor(name, MASK.axes, "True where a query may attend", "boolean", broadcast=True) for name in ("first", "second")
)

MASK_AND = Operator(
    name="mask_and",
    summary="Combine two masks: a key is open where both masks open it.",
    formula="open[b, i, j] = first[b, i, j] and second[b, i, j]",
    source="this specification",
    tensors=_TWO_MASKS,
    outputs=(_OUTPUT,),
    notes=_SAME_AXES,
)

MASK_OR = Operator(
    name="mask_or",
    summary="Combine two masks: a key is open where either mask opens it.",
    formula="open[b, i, j] = first[b, i, j] or second[b, i, j]",
    source="this specification",
    tensors=_TWO_MASKS,
    outputs=(_OUTPUT,),
    notes=_SAME_AXES,
)

_KEY_PADDING_MASK = Tensor("key_padding_mask", ("batch", "keys"), "True = hidden from every query", "boolean")
_ONE_ROW = Tensor("mask", ("batch", "one", "keys"), "True = may attend; the same for every query", "boolean")

FROM_KEY_PADDING_MASK = Operator(
    name="from_key_padding_mask",
    summary="Convert a key padding mask (True = hidden) to a mask (True = may attend).",
    formula="open[b, 0, j] = not key_padding_mask[b, j]",
    source="this specification; key_padding_mask as in torch.nn.MultiheadAttention",
    tensors=(_KEY_PADDING_MASK,),
    outputs=(_ONE_ROW,),
)

TO_KEY_PADDING_MASK = Operator(
    name="to_key_padding_mask",
    summary="Convert a mask with one row for all queries to a key padding mask (True = hidden).",
    formula="hidden[b, j] = not mask[b, 0, j]",
    source="this specification; key_padding_mask as in torch.nn.MultiheadAttention",
    tensors=(_ONE_ROW,),
    outputs=(_KEY_PADDING_MASK,),
    rules=(one_row,),
    notes="attention_mask makes such a mask of one length for each sequence.",
)

_ADDITIVE_MASK = Tensor(
    "additive_mask",
    MASK.axes,
    "numbers added to the scores: 0 for an open key, at most threshold for a hidden one",
    broadcast=True,
)

FROM_ADDITIVE_MASK = Operator(
    name="from_additive_mask",
    summary="Convert an additive mask, which other libraries add to the scores, to a boolean mask.",
    formula="open[b, i, j] = additive_mask[b, i, j] > threshold",
    source="this specification",
    options=(
        Option(
            "threshold",
            "float",
            "a key is hidden where additive_mask is at most this",
            "-10000.0",
            "number",
            keyword_only=True,
        ),
    ),
    tensors=(_ADDITIVE_MASK,),
    outputs=(_OUTPUT,),
    notes=(
        "The threshold is first rounded to the dtype of additive_mask, so that a fill with the same number is hidden "
        "in every dtype. Fills of -1e9, the lowest finite number and -inf are hidden, too, and so is NaN. A bias above "
        "the threshold is open, and its value is lost; attention layers take one as bias."
    ),
)

TO_ADDITIVE_MASK = Operator(
    name="to_additive_mask",
    summary="Convert a boolean mask to an additive mask, which other libraries add to the scores.",
    formula="additive_mask[b, i, j] = 0 if mask[b, i, j] else -inf; if finite, the lowest finite number of dtype",
    source="this specification",
    options=(
        Option("dtype", "str", "floating type of the result", "'float32'", keyword_only=True, choices=FLOATING),
        Option(
            "finite",
            "bool",
            "whether to fill with the lowest finite number, not -inf",
            "False",
            keyword_only=True,
        ),
    ),
    tensors=(Tensor("mask", MASK.axes, "True where a query may attend", "boolean", broadcast=True),),
    outputs=(Tensor("additive_mask", MASK.axes, "numbers to add to the scores", broadcast=True),),
    notes="dtype is that of the scores to which the mask is added.",
)

MASKED_SOFTMAX = Operator(
    name="masked_softmax",
    summary="Normalise scores over the keys each query may attend to.",
    formula="weights[i, j] = open[i, j] exp(scores[i, j]) / sum over open k of exp(scores[i, k])",
    source="Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762; fully masked rows as in ONNX Attention",
    tensors=(SCORES, VALID_LENS, MASK),
    outputs=(WEIGHTS,),
    notes=(
        "A query that may attend to nothing gets weights 0. A score of -inf counts as hidden. A hidden score, NaN and "
        "inf included, has no effect and gets gradient 0. " + ALL_HEADS
    ),
)

OPERATORS = (
    ATTENTION_MASK,
    CAUSAL_MASK,
    WINDOW_MASK,
    BLOCK_MASK,
    STRIDE_MASK,
    GLOBAL_MASK,
    MASK_AND,
    MASK_OR,
    FROM_KEY_PADDING_MASK,
    TO_KEY_PADDING_MASK,
    FROM_ADDITIVE_MASK,
    TO_ADDITIVE_MASK,
    MASKED_SOFTMAX,
)
