"""The same backend with one bug: `attention-parity check planted_bug.py` names the bug."""

import numpy_attention
from numpy_attention import *  # noqa: F403
from numpy_attention import Array, runtime  # noqa: F401

right = numpy_attention.masked_softmax


def masked_softmax(scores, mask=None):
    return right(scores, None if mask is None else Array(~mask.value))


numpy_attention.masked_softmax = masked_softmax  # which attention_pooling calls
