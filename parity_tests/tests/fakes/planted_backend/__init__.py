"""The backend made of the reference, with the bug that $PLANTED names; none if it is empty."""

import os

import numpy_backend
from numpy_backend import *  # noqa: F403 (all but what follows is its own)

__all__ = numpy_backend.__all__

PLANTED = os.environ.get("PLANTED", "")


def scaled_dot_score(queries, keys, *, scale=None):
    """Score each query against each key by a scaled inner product."""
    if PLANTED == "scale_ignored":
        scale = None
    scores = numpy_backend.scaled_dot_score(queries, keys, scale=scale)
    return scores * (1 + 1e-5) if PLANTED == "scale_off" else scores


def masked_softmax(scores, valid_lens=None, mask=None):
    """Normalise scores over the keys each query may attend to."""
    if PLANTED == "mask_inverted" and mask is not None and scores.ndim == 4:
        mask = ~mask
    weights = numpy_backend.masked_softmax(scores, valid_lens, mask)
    return weights + 1e-9 if PLANTED == "one_query" and scores.shape[-2] == 1 else weights
