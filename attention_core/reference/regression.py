"""Kernel regression as attention in NumPy."""

from __future__ import annotations

import numpy as np

from attention_core.operators.regression import NADARAYA_WATSON
from attention_core.reference.arrays import Specified, inner, promote
from attention_core.reference.attention import KernelAttention
from attention_core.specification import Layer

__all__ = ["NadarayaWatson"]


class NadarayaWatson(Specified):
    """Kernel regression: average the values, weighted by how near their keys are to the query.

    predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

    Arguments: width is the standard deviation of the kernel, 1/w; with learned, w is a parameter with initial
    value 1/width, else a constant.
    Parameters: kernel.w (), if learned.
    Units: width is in those of queries and keys; predictions are in those of the values.
    Raises: OptionError if width is not a finite number above 0.
    Source: Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372.
    """

    specification: Layer = NADARAYA_WATSON

    def __init__(self, *, width: float = 1.0, learned: bool = False) -> None:
        super().__init__(width=width, learned=learned)
        self.kernel = KernelAttention(width=width, learned=learned)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None = None,
        mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predict at each query.

        predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

        Shapes: queries (batch, queries), keys and values (batch, keys), valid_lens (batch,) or (batch, queries), mask
        (batch, queries, keys), each axis its size or 1. Returns (predictions, weights): (batch, queries),
        (batch, queries, keys).
        Raises: ShapeError, DtypeError, MaskError.
        """
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        self.kernel.parameters = inner(self.parameters, "kernel.")
        queries, keys, values = (promote(array)[..., None] for array in (queries, keys, values))
        predictions, weights = self.kernel(queries, keys, values, valid_lens, mask)
        return predictions[..., 0], weights
