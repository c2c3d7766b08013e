"""Memory layouts: the same values of an array, arranged differently in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np


def _transpose(array: np.ndarray) -> np.ndarray:
    return np.array(array.T, order="C").T


def _stride(array: np.ndarray) -> np.ndarray:
    wide = _junk((*array.shape[:-1], 2 * array.shape[-1]), array)
    wide[..., ::2] = array
    return wide[..., ::2]


def _reverse(array: np.ndarray) -> np.ndarray:
    backward = (slice(None, None, -1),) * array.ndim
    return array[backward].copy()[backward]


def _expand(array: np.ndarray) -> np.ndarray:
    return np.broadcast_to(array[:1].copy(), array.shape)


def _offset(array: np.ndarray) -> np.ndarray:
    large = _junk(tuple(size + 2 for size in array.shape), array)
    inside = (slice(1, -1),) * array.ndim
    large[inside] = array
    return large[inside]


def _readonly(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "transposed": _transpose,
    "strided": _stride,
    "reversed": _reverse,
    "expanded": _expand,
    "offset": _offset,
    "readonly": _readonly,
}
"""transposed: the first axis varies fastest; strided: every other element of a longer array; reversed: each axis runs
backward in memory; expanded: stride 0 along the first axis, whose entries are alike; offset: a view into a larger one.
Memory between and around the values is NaN, the largest whole number, or True.
"""


def arrange(array: np.ndarray, layout: str = "") -> np.ndarray:
    """Copy the array into a memory layout; C order by default, and for scalars and empty arrays."""
    return LAYOUTS[layout](array) if layout and array.size and array.ndim else array.copy()


def _junk(shape: tuple[int, ...], like: np.ndarray) -> np.ndarray:
    if like.dtype.kind == "b":
        return np.ones(shape, bool)
    return np.full(shape, np.iinfo(like.dtype).max if like.dtype.kind in "iu" else np.nan, like.dtype)
