"""Kernel regression as attention, in MXNet."""

from __future__ import annotations

import mxnet as mx
from mxnet import np
from mxnet.gluon import Block

from attention_core.errors import check, check_options
from attention_core.operators.regression import NADARAYA_WATSON
from backends.mxnet.attention import attention_layer

__all__ = ["NadarayaWatson"]


class NadarayaWatson(Block):
    """Kernel regression: predict at each query the average of the values, weighted by nearness of their keys.

    predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

    Shapes: queries (batch, queries), keys and values (batch, keys); returns (predictions, weights): (batch, queries),
    (batch, queries, keys).
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
        super().__init__(prefix=prefix, params=params)
        self.sizes = check_options(self.specification, width=width, learned=learned)
        with self.name_scope():
            self.kernel = attention_layer(self.specification.inside(self.sizes)["kernel"], dtype=dtype)

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

        Shapes: valid_lens (batch,) or (batch, queries), mask (batch, queries, keys), each axis its size or 1.
        """
        check(
            self.specification.method("call"),
            self.sizes,
            self.kernel.dtype,
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        return super().__call__(queries, keys, values, valid_lens, mask)

    def forward(
        self,
        queries: np.ndarray,
        keys: np.ndarray,
        values: np.ndarray,
        valid_lens: np.ndarray | None,
        mask: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The formula: points are vectors of one feature."""
        queries, keys, values = (np.expand_dims(array, -1) for array in (queries, keys, values))
        predictions, weights = self.kernel(queries, keys, values, valid_lens, mask)
        return predictions[..., 0], weights
