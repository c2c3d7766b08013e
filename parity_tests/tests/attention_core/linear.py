"""Linear attention by its weights, which the implementations never compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_core.reference import attention_mask


def by_weights(inputs: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> np.ndarray:
    """The context of linear_attention: inner products of features, masked and normalised, times the values."""
    queries, keys = (
        np.where(inputs[name] > 0.0, inputs[name] + 1.0, np.exp(np.minimum(inputs[name], 0.0)))
        for name in ("queries", "keys")
    )
    allowed = attention_mask(keys.shape[-2], inputs.get("valid_lens"), inputs.get("mask"))
    weights = queries @ keys.swapaxes(-1, -2)
    if allowed is not None:
        weights = weights * (allowed if weights.ndim == allowed.ndim else allowed[:, None])
    if options.get("causal"):
        weights = np.tril(weights)
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0.0, 1.0, total) @ inputs["values"]
