"""MXNet's own softmax under lengths, as a target, and attention by it."""

from __future__ import annotations

from types import SimpleNamespace

# First, since MXNet cannot be imported with NumPy 1.24 and later before it.
from backends.mxnet import runtime

# isort: split
from mxnet import np, npx


def _masked_softmax(scores: np.ndarray, valid_lens: np.ndarray | None = None) -> np.ndarray:
    if valid_lens is None:
        return npx.softmax(scores, axis=-1)
    return npx.softmax(scores, lengths(valid_lens, scores), axis=-1, use_length=True)


def lengths(valid_lens: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """A length for every row of the scores, which it asks for, in a signed type."""
    rows = scores.shape[:-1]
    missing = len(rows) - valid_lens.ndim
    at = 1 if valid_lens.ndim == 2 else valid_lens.ndim
    shape = (*valid_lens.shape[:at], *(1 for _ in range(missing)), *valid_lens.shape[at:])
    return np.broadcast_to(valid_lens.astype("int32").reshape(shape), rows)


def _dot_product_attention(
    parameters: dict[str, np.ndarray],
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    valid_lens: np.ndarray | None = None,
    *,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    factor = queries.shape[-1] ** -0.5 if scale is None else scale
    scores = np.matmul(queries, np.swapaxes(keys, -1, -2)) * factor
    weights = _masked_softmax(scores, valid_lens)
    return np.matmul(weights, values), weights


softmax_use_length = SimpleNamespace(
    runtime=runtime, masked_softmax=_masked_softmax, DotProductAttention=_dot_product_attention
)
