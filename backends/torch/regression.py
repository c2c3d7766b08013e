"""Kernel regression as attention, in PyTorch."""

from __future__ import annotations

import torch
from torch import nn

from attention_core.errors import check, check_options
from attention_core.operators.regression import NADARAYA_WATSON
from backends.torch.attention import KernelAttention
from backends.torch.module import dtype_of

__all__ = ["NadarayaWatson"]


class NadarayaWatson(nn.Module):
    """Kernel regression: predict at each query the average of the values, weighted by nearness of their keys.

    predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention

    Shapes: queries (batch, queries), keys and values (batch, keys), valid_lens (batch,) or (batch, queries), mask
    (batch, queries, keys), each axis its size or 1; returns (predictions, weights): (batch, queries),
    (batch, queries, keys).
    """

    specification = NADARAYA_WATSON

    def __init__(
        self,
        *,
        width: float = 1.0,
        learned: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.sizes = check_options(self.specification, width=width, learned=learned)
        self.kernel = KernelAttention(width=width, learned=learned, dtype=dtype, device=device)

    def forward(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        valid_lens: torch.Tensor | None = None,
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Predict at each query.

        predictions[i] = sum over j of weights[i, j] values[j];  weights as of KernelAttention
        """
        check(
            self.specification.method("call"),
            self.sizes,
            dtype_of(self),
            queries=queries,
            keys=keys,
            values=values,
            valid_lens=valid_lens,
            mask=mask,
        )
        predictions, weights = self.kernel(queries[..., None], keys[..., None], values[..., None], valid_lens, mask)
        return predictions[..., 0], weights
