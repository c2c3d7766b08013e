"""Positions of vectors in a sequence."""

from __future__ import annotations

from dataclasses import replace

from attention_core.operators.common import NUM_KEYS, NUM_QUERIES, OFFSET, PRESS, RAFFEL, SU, VASWANI_POSITIONS
from attention_core.rules import distances_for_buckets, position_for_each_step
from attention_core.specification import FLOATING, Layer, Operator, Option, Parameter, Tensor

_POSITIONED = Tensor("inputs", ("batch", "steps", "features"), "one vector for each position")

_POSITIONED_OUT = Tensor("outputs", ("batch", "steps", "features"), "the inputs with their positions added")

_OFFSET = Option("offset", "int", "position of the first step", "0", "count", keyword_only=True)

_SINUSOID_FORMULA = (
    "outputs[t] = inputs[t] + P[t + offset];  P[p, 2i] = sin(p/10000^(2i/features)), "
    "P[p, 2i + 1] = cos(p/10000^(2i/features)); concatenated: all sines first, then all cosines"
)

SINUSOIDAL_POSITIONS = Layer(
    name="SinusoidalPositions",
    summary="Add the sines and cosines of its position to each input; it has no parameters.",
    formula=_SINUSOID_FORMULA,
    source=VASWANI_POSITIONS,
    options=(
        Option("features", "int", "features of an input", domain="even"),
        Option(
            "layout",
            "str",
            "whether sines and cosines alternate, or all sines come first",
            "'interleaved'",
            keyword_only=True,
            choices=("interleaved", "concatenated"),
        ),
    ),
    parameters=(),
    notes=(
        "Sines and cosines are interleaved in the paper; position_permutation returns the order that concatenates "
        "them. features is an even number."
    ),
    methods=(
        Operator(
            name="SinusoidalPositions.call",
            summary="Add the positions, starting at offset.",
            formula=_SINUSOID_FORMULA,
            source=VASWANI_POSITIONS,
            tensors=(_POSITIONED,),
            options=(_OFFSET,),
            outputs=(_POSITIONED_OUT,),
        ),
    ),
)

_LEARNED_FORMULA = "outputs[t] = inputs[t] + P[t + offset]"

LEARNED_POSITIONS = Layer(
    name="LearnedPositions",
    summary="Add a learned vector for its position to each input.",
    formula=_LEARNED_FORMULA,
    source="Gehring et al. 2017, section 3.1, arXiv:1705.03122",
    options=(
        Option("num_positions", "int", "positions that have a vector"),
        Option("features", "int", "features of an input"),
    ),
    parameters=(Parameter("P", ("num_positions", "features"), "one row for each position", "features"),),
    methods=(
        Operator(
            name="LearnedPositions.call",
            summary="Add the positions, starting at offset.",
            formula=_LEARNED_FORMULA,
            source="Gehring et al. 2017, section 3.1, arXiv:1705.03122",
            tensors=(_POSITIONED,),
            options=(_OFFSET,),
            outputs=(_POSITIONED_OUT,),
            rules=(position_for_each_step,),
        ),
    ),
    own_shapes=lambda sizes: {"P": (sizes["num_positions"], sizes["features"])},
)

ROTARY_LAYOUT = Option(
    "layout",
    "str",
    "whether a pair is two neighbours, or one feature of each half",
    "'interleaved'",
    keyword_only=True,
    choices=("interleaved", "concatenated"),
)

ROTARY_BASE = Option(
    "base", "float", "highest rate over the limit of the lowest", "10000.0", "positive", keyword_only=True
)

_ROTARY_FORMULA = (
    "outputs[t, 2i] = inputs[t, 2i] cos(a) - inputs[t, 2i + 1] sin(a), "
    "outputs[t, 2i + 1] = inputs[t, 2i] sin(a) + inputs[t, 2i + 1] cos(a);  a = (t + offset[b]) base^(-2i/features);  "
    "concatenated: features i and i + features/2 in place of 2i and 2i + 1"
)

_ROTATED = Tensor("inputs", ("batch", "heads?", "steps", "features"), "one vector for each position")

ROTARY_POSITIONS = Layer(
    name="RotaryPositions",
    summary="Rotate pairs of features by an angle proportional to the position; it has no parameters.",
    formula=_ROTARY_FORMULA,
    source=SU,
    options=(
        Option("features", "int", "features of an input", domain="even"),
        ROTARY_LAYOUT,
        ROTARY_BASE,
    ),
    parameters=(),
    notes=(
        "The inner product of a rotated query and a rotated key depends on the difference of their positions alone. "
        "position_permutation converts between the layouts. features is an even number. Angles are exact for large "
        "positions, and float32 at least in half precision."
    ),
    methods=(
        Operator(
            name="RotaryPositions.call",
            summary="Rotate the inputs, whose first step is at position offset.",
            formula=_ROTARY_FORMULA,
            source=SU,
            tensors=(_ROTATED,),
            keyword_tensors=(replace(OFFSET, meaning="position of the first step; 0 if None; may be negative"),),
            outputs=(replace(_ROTATED, name="outputs", meaning="the inputs, rotated"),),
        ),
    ),
)

POSITION_PERMUTATION = Operator(
    name="position_permutation",
    summary="Return the order that turns interleaved sines and cosines into concatenated ones.",
    formula="permutation[i] = 2i for i < features/2, else 2i + 1 - features;  concatenated = interleaved[permutation]",
    source="this specification",
    options=(Option("features", "int", "features of an input", domain="even"),),
    tensors=(),
    outputs=(Tensor("permutation", ("features",), "interleaved index of each concatenated feature, int32", "integer"),),
)

_BIAS = Tensor(
    "bias",
    ("batch", "heads", "queries", "keys"),
    "numbers to add to the scores; the same for every sequence if offset is",
    broadcast=True,
)

ALIBI_BIAS = Operator(
    name="alibi_bias",
    summary="Return a bias that falls with the distance of a key from the query, at another rate in each head.",
    formula=(
        "bias[b, h, i, j] = -slope[h] |j - (i + offset[b])|;  slope[h] = 2^(-8(h + 1)/num_heads) if num_heads is a "
        "power of two;  otherwise the slopes of p heads, p being the next lower power of two, and then slopes 0, 2, 4, "
        "... of 2p heads"
    ),
    source=PRESS,
    options=(
        Option("num_heads", "int", "number of heads"),
        NUM_QUERIES,
        NUM_KEYS,
        Option("dtype", "str", "floating type of the result", "'float32'", keyword_only=True, choices=FLOATING),
    ),
    tensors=(),
    keyword_tensors=(OFFSET,),
    outputs=(_BIAS,),
    notes=(
        "dtype is that of the scores. The paper's attention is causal: with causal_mask, given the same offset, the "
        "bias is the paper's. Keys after the query fall alike."
    ),
)

_BIDIRECTIONAL = Option(
    "bidirectional",
    "bool",
    "whether keys after the query have buckets of their own; otherwise they share that of distance 0",
    "True",
    keyword_only=True,
)

_MAX_DISTANCE = Option(
    "max_distance", "int", "distance from which on all share the last bucket", "128", keyword_only=True
)

_BUCKET_FORMULA = (
    "n(d) = d if d < e, else e + floor((m - e) ln(d/e)/ln(max_distance/e)), at most m - 1;  "
    "m = floor(num_buckets/2) if bidirectional, else num_buckets;  e = floor(m/2)"
)

_BUCKET_NOTES = (
    "The logarithms are compared in whole numbers, since n(d) >= e + k where d^(m - e) e^k >= max_distance^k e^(m - e):"
    " all frameworks return the same buckets. If bidirectional, an odd number of buckets leaves the last one unused."
)

RELATIVE_BUCKETS = Operator(
    name="relative_buckets",
    summary="Return the bucket of each pair of query and key by the difference of their positions.",
    formula=(
        "buckets[b, i, j] = n(|r|) + (m if r > 0), r = j - (i + offset[b]);  if not bidirectional: n(max(-r, 0));  "
        f"{_BUCKET_FORMULA}"
    ),
    source=RAFFEL,
    options=(
        NUM_QUERIES,
        NUM_KEYS,
        Option("num_buckets", "int", "number of buckets", keyword_only=True),
        _BIDIRECTIONAL,
        _MAX_DISTANCE,
    ),
    tensors=(),
    keyword_tensors=(OFFSET,),
    outputs=(
        Tensor(
            "buckets",
            ("batch", "queries", "keys"),
            "row of the table for each pair, int32; the same for every sequence if offset is",
            "integer",
            broadcast=True,
        ),
    ),
    rules=(distances_for_buckets,),
    notes=_BUCKET_NOTES,
)

RELATIVE_BIAS = Operator(
    name="relative_bias",
    summary="Return a bias that is looked up by the difference of the positions of query and key.",
    formula="bias[b, h, i, j] = table[buckets[b, i, j], h], buckets as relative_buckets returns them",
    source=RAFFEL,
    options=(NUM_QUERIES, NUM_KEYS, _BIDIRECTIONAL, _MAX_DISTANCE),
    tensors=(Tensor("table", ("num_buckets", "heads"), "a number for each bucket and head"),),
    keyword_tensors=(OFFSET,),
    outputs=(_BIAS,),
    rules=(distances_for_buckets,),
    notes="The gradient of an entry of the table is the sum over all pairs in its bucket.",
)

OPERATORS = (
    SINUSOIDAL_POSITIONS,
    LEARNED_POSITIONS,
    ROTARY_POSITIONS,
    POSITION_PERMUTATION,
    ALIBI_BIAS,
    RELATIVE_BUCKETS,
    RELATIVE_BIAS,
)
