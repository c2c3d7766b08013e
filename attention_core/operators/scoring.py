"""The score functions, as data."""

from __future__ import annotations

from attention_core.operators.common import (
    BAHDANAU,
    GEMMA,
    GRAVES,
    KEYS,
    LUONG,
    NADARAYA,
    NUM_KEYS,
    QUERIES,
    SCALE,
    SCORES,
    SOFTCAP,
    VASWANI,
)
from attention_core.rules import position_for_each_key
from attention_core.specification import Operator, Option, Tensor

DOT_SCORE = Operator(
    name="dot_score",
    summary="Score each query against each key by their inner product.",
    formula="scores[i, j] = sum over c of queries[i, c] keys[j, c]",
    source=LUONG,
    tensors=(QUERIES, KEYS),
    outputs=(SCORES,),
)

SCALED_DOT_SCORE = Operator(
    name="scaled_dot_score",
    summary="Score each query against each key by a scaled inner product.",
    formula=(
        "scores[i, j] = cap(scale · sum over c of queries[i, c] keys[j, c]);  cap(x) = softcap · tanh(x / softcap), or "
        "x without softcap"
    ),
    source=f"{VASWANI}; softcap: {GEMMA}",
    tensors=(QUERIES, KEYS),
    options=(SCALE, SOFTCAP),
    outputs=(SCORES,),
)

ADDITIVE_SCORE = Operator(
    name="additive_score",
    summary="Score each projected query against each projected key by a weighted tanh of their sum.",
    formula="scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])",
    source=BAHDANAU,
    tensors=(
        Tensor("queries", ("batch", "heads?", "queries", "hidden_size"), "projected queries, W_q q"),
        Tensor("keys", ("batch", "heads?", "keys", "hidden_size"), "projected keys, W_k k"),
        Tensor("w_v", ("hidden_size",), "weight of each hidden feature"),
    ),
    outputs=(SCORES,),
)

COSINE_SCORE = Operator(
    name="cosine_score",
    summary="Score each query against each key by the cosine of the angle between them.",
    formula="scores[i, j] = scale · sum over c of queries[i, c] keys[j, c] / (‖queries[i]‖ ‖keys[j]‖)",
    source=GRAVES,
    tensors=(QUERIES, KEYS),
    options=(Option("scale", "float", "factor of the cosines; 1 if None", "None", "number", keyword_only=True),),
    outputs=(SCORES,),
    notes=(
        "The score of a zero vector is 0, and so are its gradients. The length of any other vector has no effect, even "
        "where squares of its entries underflow or overflow in the type of the arrays. Graves et al. call scale the "
        "key strength β."
    ),
)

LOCATION_SCORE = Operator(
    name="location_score",
    summary="Score each position by the projected query alone; the keys do not matter.",
    formula="scores[i, j] = queries[i, j]",
    source=LUONG,
    options=(NUM_KEYS,),
    tensors=(Tensor("queries", ("batch", "heads?", "queries", "positions"), "projected queries, W q"),),
    outputs=(SCORES,),
    rules=(position_for_each_key,),
    notes="The first num_keys positions are taken.",
)

GAUSSIAN_SCORE = Operator(
    name="gaussian_score",
    summary="Score each query against each key by a Gaussian kernel of their distance.",
    formula="scores[i, j] = -½ sum over c of ((queries[i, c] - keys[j, c]) w)²",
    source=NADARAYA,
    tensors=(QUERIES, KEYS, Tensor("w", (), "inverse width of the kernel; 1 if None", optional=True)),
    outputs=(SCORES,),
    notes=(
        "Their softmax are the weights of Nadaraya-Watson kernel regression with a kernel of standard deviation 1/w; w "
        "is in 1/(units of queries and keys)."
    ),
)

OPERATORS = (
    DOT_SCORE,
    SCALED_DOT_SCORE,
    ADDITIVE_SCORE,
    COSINE_SCORE,
    LOCATION_SCORE,
    GAUSSIAN_SCORE,
)
