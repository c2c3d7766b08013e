"""How well a key matches a query: scores of projected tensors."""

from __future__ import annotations

import numpy as np

from attention_core.errors import check_options
from attention_core.operators import ADDITIVE_SCORE, DOT_SCORE, SCALED_DOT_SCORE
from attention_core.reference.arrays import align, check, promote


def dot_score(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Score each query against each key by their inner product.

    scores[i, j] = sum over c of queries[i, c] keys[j, c]

    Shapes: queries (batch, queries, features), keys (batch, keys, features), both with heads after batch or without;
    the result (batch, queries, keys), or (batch, heads, queries, keys).
    Units: scores are logits (natural logarithm).
    Raises: ShapeError if axes do not fit; DtypeError if the two are not of one floating type.
    Source: Luong et al. 2015, section 3.1, arXiv:1508.04025.
    """
    check(DOT_SCORE, queries=queries, keys=keys)
    return promote(queries) @ promote(keys).swapaxes(-1, -2)


def scaled_dot_score(queries: np.ndarray, keys: np.ndarray, *, scale: float | None = None) -> np.ndarray:
    """Score each query against each key by a scaled inner product.

    scores[i, j] = scale · sum over c of queries[i, c] keys[j, c]

    Shapes: as dot_score. scale is 1/√features unless given.
    Units: scores are logits (natural logarithm).
    Raises: ShapeError, DtypeError, as dot_score; OptionError if scale is not a finite number.
    Source: Vaswani et al. 2017, section 3.2.1, arXiv:1706.03762.
    """
    check_options(SCALED_DOT_SCORE, scale=scale)
    check(SCALED_DOT_SCORE, queries=queries, keys=keys)
    if scale is None:
        scale = max(queries.shape[-1], 1) ** -0.5
    return promote(queries) @ promote(keys).swapaxes(-1, -2) * scale


def additive_score(queries: np.ndarray, keys: np.ndarray, w_v: np.ndarray) -> np.ndarray:
    """Score each projected query against each projected key by a weighted tanh of their sum.

    scores[i, j] = sum over h of w_v[h] tanh(queries[i, h] + keys[j, h])

    Shapes: queries (batch, queries, hidden_size), keys (batch, keys, hidden_size), both with heads after batch or
    without; w_v (hidden_size,); the result (batch, queries, keys), or (batch, heads, queries, keys).
    Units: scores are logits (natural logarithm).
    Raises: ShapeError if axes do not fit; DtypeError if the three are not of one floating type.
    Source: Bahdanau et al. 2015, section 3.1 and appendix A.1.2, arXiv:1409.0473.
    """
    check(ADDITIVE_SCORE, queries=queries, keys=keys, w_v=w_v)
    hidden = np.tanh(promote(queries)[..., :, None, :] + promote(keys)[..., None, :, :])
    return (hidden * align(promote(w_v), 1, hidden.ndim)).sum(axis=-1)
