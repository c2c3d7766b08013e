"""Kernel regression as attention, in MXNet."""

from __future__ import annotations

import mxnet as mx
from mxnet import np

from attention_core.operators.regression import NADARAYA_WATSON
from backends.mxnet.arrays import Lengths
from backends.mxnet.attention import KernelAttention
from backends.mxnet.module import Specified

__all__ = ["NadarayaWatson"]


class NadarayaWatson(Specified):
    """Kernel regression: average the values, weighted by how near their keys are to the query.

    predictions[i] = sum over j of weights[i, j] values[j]
    weights as of KernelAttention

    width is in the units of queries and keys.

    Args:
        width (default 1.0): standard deviation of the kernel, 1/w
        learned (default False): whether w is a parameter with initial value 1/width, or the constant 1/width
        dtype: floating type of the parameters
        prefix: prefix of the parameters' names in Gluon
        params: a ParameterDict whose parameters are shared
    Parameters:
        kernel.*: the KernelAttention that weighs the keys
    Source: Nadaraya 1964, doi:10.1137/1109020; Watson 1964, Sankhya A 26, 359-372
    Example:
        layer = attention.NadarayaWatson()
        predictions, weights = layer(queries, keys, values)
    """

    specification = NADARAYA_WATSON

    def __init__(
        self,
        *,
        width: float = 1.0,
        learned: bool = False,
        dtype: str = "float32",
        prefix: str | None = None,
        params: mx.gluon.ParameterDict | None = None,
    ) -> None:
        super().__init__(locals())
        with self.name_scope():
            self.kernel = KernelAttention(width=width, learned=learned, dtype=dtype)

    def __call__(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: Lengths | None = None,
        mask: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Predict at each query.

        predictions[i] = sum over j of weights[i, j] values[j]
        weights as of KernelAttention

        Args:
            queries: (batch, queries); points at which to predict
            keys: (batch, keys); observed points
            values: (batch, keys); observed values
            valid_lens (default None): integers (batch, [queries]), or a list; key j is open where j < valid_len
            mask (default None): booleans (batch, queries, keys), broadcast; True where a query may attend
        Returns:
            predictions: (batch, queries); weighted averages of the values, in their units
            weights: (batch, queries, keys); probabilities over the keys
        """
        self._check("call", queries=queries, keys=keys, values=values, valid_lens=valid_lens, mask=mask)
        return super().__call__(queries, keys, values, valid_lens, mask)

    def forward(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: Lengths | None,
        mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Points are vectors of one feature; Gluon enters here."""
        queries, keys, values = (np.expand_dims(array, -1) for array in (queries, keys, values))
        predictions, weights = self.kernel(queries, keys, values, valid_lens, mask)
        return predictions[..., 0], weights
