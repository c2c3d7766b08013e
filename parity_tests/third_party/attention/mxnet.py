"""MXNet's own softmax under lengths, and attention by it, as a target."""

from __future__ import annotations

from types import SimpleNamespace

# First, since MXNet cannot be imported with NumPy 1.24 and later before it.
from backends.mxnet import runtime

# isort: split
from mxnet import np, npx

from parity_tests.third_party.signatures import Attention, Outputs, takes


def masked_softmax(scores: np.ndarray, valid_lens: np.ndarray | None = None) -> np.ndarray:
    """npx.softmax, which takes a length for every row of the scores, in a signed type."""
    if valid_lens is None:
        return npx.softmax(scores, axis=-1)
    rows = scores.shape[:-1]
    missing = len(rows) - valid_lens.ndim
    at = 1 if valid_lens.ndim == 2 else valid_lens.ndim
    shape = (*valid_lens.shape[:at], *(1 for _ in range(missing)), *valid_lens.shape[at:])
    lengths = np.broadcast_to(valid_lens.astype("int32").reshape(shape), rows)
    return npx.softmax(scores, lengths, axis=-1, use_length=True)


@takes(Attention, "valid_lens", "scale")
def attend(call: Attention) -> Outputs:
    """DotProductAttention by that softmax."""
    scores = np.matmul(call.queries, np.swapaxes(call.keys, -1, -2)) * call.factor
    weights = masked_softmax(scores, call.valid_lens)
    return np.matmul(weights, call.values), weights


softmax_use_length = SimpleNamespace(runtime=runtime, masked_softmax=masked_softmax, DotProductAttention=attend)
