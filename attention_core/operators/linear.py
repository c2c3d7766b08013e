"""Attention in time and memory linear in the number of keys, as data."""

from __future__ import annotations

from dataclasses import replace

from attention_core.operators.common import CONTEXT, KATHAROPOULOS, KEYS, LENS_FOR_ALL, MASK_FOR_ALL, QUERIES, VALUES
from attention_core.rules import one_row_of_mask, query_for_each_key
from attention_core.specification import Operator, Option, Tensor

LINEAR_ATTENTION = Operator(
    name="linear_attention",
    summary="Average the values of the open keys, weighted by inner products of positive features.",
    formula=(
        "context[i] = φ(queries[i])ᵀ S[i] / (φ(queries[i])ᵀ z[i]);  S[i] = sum over open j of φ(keys[j]) values[j]ᵀ;  "
        "z[i] = sum over open j of φ(keys[j]);  open j <= i if causal;  φ(x) = elu(x) + 1"
    ),
    source=f"{KATHAROPOULOS}, sections 3.2 and 3.3, arXiv:2006.16236",
    tensors=(
        QUERIES,
        KEYS,
        VALUES,
        LENS_FOR_ALL,
        MASK_FOR_ALL,
    ),
    options=(
        Option(
            "causal",
            "bool",
            "whether query i attends to the keys up to i alone, of as many as there are queries",
            "False",
            keyword_only=True,
        ),
    ),
    outputs=(CONTEXT,),
    rules=(one_row_of_mask, query_for_each_key),
    notes=(
        "No weights are computed: time and memory are linear in the number of keys, and if causal, in blocks of steps, "
        "too. φ(x) is x + 1 above 0 and exp(x) elsewhere, which keeps digits that elu(x) + 1 loses. A query that may "
        "attend to nothing gets context 0 and gradient 0, and so does one whose divisor underflows to 0. A hidden key "
        "or value, NaN and inf included, has no effect and gets gradient 0. Half precision is summed in float32."
    ),
)

_QUERIES, _KEYS, _VALUES, _CONTEXT = (
    replace(tensor, axes=(*tensor.axes[:2], tensor.axes[-1]), meaning=meaning)
    for tensor, meaning in (
        (QUERIES, "query vector of the step"),
        (KEYS, "key vector of the step"),
        (VALUES, "value vector of the step"),
        (CONTEXT, "weighted average of the values so far"),
    )
)
_SUMS = Tensor("sums", ("batch", "heads?", "features", "value_features"), "S of the steps before; 0 at first")
_NORMS = Tensor("norms", ("batch", "heads?", "features"), "z of the steps before; 0 at first")

LINEAR_ATTENTION_STEP = Operator(
    name="linear_attention_step",
    summary="Take one step of causal linear attention, as a recurrent network.",
    formula=(
        "context = φ(queries)ᵀ sums' / (φ(queries)ᵀ norms');  sums' = sums + φ(keys) valuesᵀ;  norms' = norms + φ(keys)"
    ),
    source=f"{KATHAROPOULOS}, section 3.4, arXiv:2006.16236",
    tensors=(_QUERIES, _KEYS, _VALUES, _SUMS, _NORMS),
    outputs=(
        _CONTEXT,
        replace(_SUMS, meaning="sums', for the next step"),
        replace(_NORMS, meaning="norms', for the next step"),
    ),
    notes=(
        "The steps of a sequence, one by one, give what linear_attention gives with causal; φ is the same. The sums "
        "grow with the steps, and half precision drops what is small beside them: decode in float32."
    ),
)

OPERATORS = (LINEAR_ATTENTION, LINEAR_ATTENTION_STEP)
