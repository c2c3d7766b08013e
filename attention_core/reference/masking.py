"""Which keys a query may attend to, and weights over them."""

from __future__ import annotations

import numpy as np

from attention_core.errors import check_options
from attention_core.operators import ATTENTION_MASK, MASKED_SOFTMAX
from attention_core.reference.arrays import check, promote


def attention_mask(
    num_keys: int, valid_lens: np.ndarray | None = None, mask: np.ndarray | None = None
) -> np.ndarray | None:
    """Combine lengths and a boolean mask into one mask of what each query may attend to.

    open[b, i, j] = (j < valid_lens[b, i]) and mask[b, i, j]

    Shapes: valid_lens (batch,) for all queries of a sequence, or (batch, queries); mask (batch, queries, keys), or
    (batch, heads, queries, keys), each axis its size or 1. The result has the rank of mask (3 without one) and
    num_keys keys; its other axes are those given, or 1: (batch, 1, keys) or (batch, queries, keys). Without lengths
    and mask it is None: everything is open.
    Edge cases: a length below 0 counts as 0, one beyond num_keys as num_keys.
    Raises: ShapeError if the axes do not fit; DtypeError if lengths are not integers; MaskError if mask is not boolean;
    OptionError if num_keys is negative.
    Source: this specification; True means "may attend", as in ONNX Attention.
    """
    check_options(ATTENTION_MASK, num_keys=num_keys)
    check(ATTENTION_MASK, {"keys": num_keys}, valid_lens=valid_lens, mask=mask)
    if valid_lens is None:
        return None if mask is None else mask & np.ones(num_keys, bool)
    lens = valid_lens[:, None, None] if valid_lens.ndim == 1 else valid_lens[:, :, None]
    open_keys = np.arange(num_keys) < lens
    if mask is None:
        return open_keys
    return mask & (open_keys if mask.ndim == 3 else open_keys[:, None])


def masked_softmax(
    scores: np.ndarray, valid_lens: np.ndarray | None = None, mask: np.ndarray | None = None
) -> np.ndarray:
    """Normalise scores over the keys each query may attend to.

    weights[i, j] = open[i, j] exp(scores[i, j]) / sum over open k of exp(scores[i, k])

    Shapes: scores (batch, queries, keys) or (batch, heads, queries, keys); valid_lens and mask as in attention_mask,
    the mask with as many axes as scores. The result has the shape of scores.
    Units: scores are logits (natural logarithm); weights are probabilities.
    Edge cases: a score of -inf counts as hidden. A query that may attend to nothing gets weights 0. A hidden score,
    NaN and inf included, changes nothing and gets gradient 0.
    Raises: ShapeError, DtypeError, MaskError, as attention_mask.
    Source: Vaswani et al. 2017, section 3.2.3, arXiv:1706.03762; closed rows as in ONNX Attention.
    """
    check(MASKED_SOFTMAX, scores=scores, valid_lens=valid_lens, mask=mask)
    return softmax_over(promote(scores), open_keys(scores, valid_lens, mask))


def open_keys(scores: np.ndarray, valid_lens: np.ndarray | None, mask: np.ndarray | None) -> np.ndarray:
    """What each query may attend to, in the shape of scores: by lengths, by mask, and by scores above -inf."""
    allowed = attention_mask(scores.shape[-1], valid_lens, mask)
    seen = scores.real != -np.inf
    if allowed is None:
        return seen
    if mask is None and scores.ndim == 4:
        allowed = allowed[:, None]
    return seen & allowed


def softmax_over(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Softmax of the allowed scores; 0 elsewhere, and in rows that allow nothing."""
    if scores.shape[-1] == 0:
        return scores
    highest = np.where(allowed, scores.real, -np.inf).max(axis=-1, keepdims=True)
    highest = np.where(highest == -np.inf, 0.0, highest)
    exponentials = np.where(allowed, np.exp(np.where(allowed, scores, highest) - highest), 0.0)
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total.real == 0.0, 1.0, total)
