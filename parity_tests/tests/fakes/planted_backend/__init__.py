"""The backend made of the reference, with the bug that $PLANTED names; none if it is empty."""

import os

import numpy as np
import numpy_backend
from numpy_backend import *  # noqa: F403 (all but what follows is its own)

__all__ = numpy_backend.__all__

PLANTED = os.environ.get("PLANTED", "")
BUFFERS = {}


def scaled_dot_score(queries, keys, *, scale=None, softcap=None):
    """Score each query against each key by a scaled inner product."""
    if PLANTED == "scale_ignored":
        scale = None
    scores = numpy_backend.scaled_dot_score(queries, keys, scale=scale, softcap=softcap)
    if PLANTED == "buffer_reused":
        buffer = BUFFERS.setdefault((scores.shape, scores.dtype), np.empty_like(scores))
        buffer[...] = scores
        return buffer
    transposed = PLANTED == "transposed" and queries.flags.f_contiguous and not queries.flags.c_contiguous
    return scores * (1 + 1e-5) if PLANTED == "scale_off" or transposed else scores


def masked_softmax(scores, valid_lens=None, mask=None):
    """Normalise scores over the keys each query may attend to."""
    if PLANTED == "mask_inverted" and mask is not None and scores.ndim == 4:
        mask = ~mask
    weights = numpy_backend.masked_softmax(scores, valid_lens, mask)
    return weights + 1e-9 if PLANTED == "one_query" and scores.shape[-2] == 1 else weights


class DotProductAttention(numpy_backend.DotProductAttention):
    """Attention by inner products."""

    def __call__(self, queries, keys, values, *arguments, **options):
        """Attend."""
        context, weights = super().__call__(queries, keys, values, *arguments, **options)
        return context * (1 + 1e-5) if PLANTED == "values_are_keys" and values is keys else context, weights
