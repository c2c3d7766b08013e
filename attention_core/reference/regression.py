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

    predictions[i] = sum over j of weights[i, j] values[j]
    weights as of KernelAttention

    width is in the units of queries and keys.
    """

    specification: Layer = NADARAYA_WATSON

    def __init__(self, *, width: float = 1.0, learned: bool = False) -> None:
        super().__init__(locals())
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

        predictions[i] = sum over j of weights[i, j] values[j]
        weights as of KernelAttention
        """
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        self.kernel.parameters = inner(self.parameters, "kernel.")
        queries, keys, values = (promote(array)[..., None] for array in (queries, keys, values))
        predictions, weights = self.kernel(queries, keys, values, valid_lens, mask)
        return predictions[..., 0], weights
