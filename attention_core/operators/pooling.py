"""Attention pooling, as data."""

from __future__ import annotations

from attention_core.operators.common import (
    ALL_HEADS,
    BAHDANAU,
    CONTEXT,
    DROPOUT_MASK,
    MASK,
    SCORES,
    VALID_LENS,
    VALUES,
    WEIGHTS,
)
from attention_core.specification import Operator

ATTENTION_POOLING = Operator(
    name="attention_pooling",
    summary="Average the values of each query's open keys, weighted by the softmax of their scores.",
    formula="context[i] = sum over j of dropout_mask[i, j] weights[i, j] values[j];  weights = masked_softmax(scores)",
    source=BAHDANAU,
    tensors=(SCORES, VALUES, VALID_LENS, MASK),
    keyword_tensors=(DROPOUT_MASK,),
    outputs=(CONTEXT, WEIGHTS),
    notes=(
        "A query that may attend to nothing gets weights and context 0. A value that no query may attend to, NaN and "
        "inf included, has no effect and gets gradient 0. The weights are those before dropout. " + ALL_HEADS
    ),
)

OPERATORS = (ATTENTION_POOLING,)
