"""Wrong scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_core.reference.arrays import align, promote
from parity_tests.format.call import SECOND
from parity_tests.format.case import Arrays, Case
from parity_tests.mutants.mutant import INPUTS, Condition, mutant
from parity_tests.mutants.shared import is_passed, last_positions


def _to_tensor_float(array: np.ndarray) -> np.ndarray:
    """The array with 10 bits of each fraction, as TensorFloat-32 has."""
    array = np.asarray(array)
    fraction, exponent = np.frexp(array.real)
    rounded = np.ldexp(np.round(fraction * 2.0**11) * 2.0**-11, exponent)
    return rounded + 1j * array.imag if np.iscomplexobj(array) else rounded


SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def _direction(vectors: Any, squares: Any) -> Any:
    """Vectors divided by their lengths, which are made of these squares of their entries."""
    square = squares.sum(axis=-1, keepdims=True)
    zero = square.real == 0.0
    return np.where(zero, 0.0, vectors / np.sqrt(np.where(zero, 1.0, square)))


def _read(inputs: Arrays, change: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    """Inputs of which queries, keys and values are read from memory in a wrong way."""
    names = [prefix + name for prefix in ("", SECOND) for name in ("queries", "keys", "values")]
    return {name: change(array) if name in names else array for name, array in inputs.items()}


def _has_layout(*layouts: str) -> Condition:
    """The condition that several queries, keys or values of several features have one of these memory layouts."""

    def touches(case: Case) -> bool:
        names = [name for name in ("queries", "keys", "values") if case.layouts.get(name) in layouts]
        return any(case.inputs[name].size > case.inputs[name].shape[-1] > 1 for name in names)

    return touches


@mutant("scaled_dot_score")
def scale_off(original: Any) -> Any:
    """The scale is off by 1e-5."""
    return original() * (1.0 + 1e-5)


@mutant(
    "scaled_dot_score",
    cases="scaled_dot_score-* DotProductAttention-open",
    touches=lambda scale: scale is None,
    source="delzac/cntkx#10",
)
def scale_missing(original: Any) -> Any:
    """Scores are not scaled unless a scale is given."""
    return original(scale=1.0)


@mutant(
    "scaled_dot_score",
    cases="scaled_dot_score-* DotProductAttention-open",
    touches=lambda queries, scale: scale is None and queries.shape[-1] != queries.shape[-2],
)
def scale_of_the_queries(original: Any, queries: Any) -> Any:
    """Scores are divided by the root of the number of queries, not of features."""
    return original(scale=queries.shape[-2] ** -0.5)


@mutant("scaled_dot_score", cases="scaled_dot_score-* DotProductAttention-softcap", touches=is_passed("softcap"))
def softcap_before_the_scale(original: Any, queries: Any, scale: float | None) -> Any:
    """Inner products are bounded, and then scaled."""
    return original(scale=1.0) * (queries.shape[-1] ** -0.5 if scale is None else scale)


@mutant("scaled_dot_score", touches=is_passed("softcap"))
def softcap_not_multiplied(original: Any, softcap: float) -> Any:
    """The tanh of a score over its bound is not multiplied by the bound."""
    return original() / softcap


@mutant("dot_score")
def gradient_stopped(original: Any, keys: Any) -> Any:
    """No gradient reaches the keys."""
    return original(keys=np.real(keys))


def _on_tensor_cores(queries: Any, keys: Any) -> bool:
    """Whether PyTorch and JAX leave the product of so many queries and keys to the tensor cores of a GPU."""
    return queries.shape[-1] >= 32 and all(size % 8 == 0 for size in (*queries.shape[-2:], keys.shape[-2]))


def _left_on(name: str, operator: str, function: str) -> None:
    sentence = f"TF32 is left on in {operator}: where tensor cores multiply, 10 bits of each factor are kept."

    @mutant(function, cases=f"{operator}-*", touches=_on_tensor_cores, dtype="float32", name=name, sentence=sentence)
    def tensor_float_32(original: Any, queries: Any, keys: Any) -> Any:
        return original(queries=_to_tensor_float(queries), keys=_to_tensor_float(keys))


_left_on("tensor_float_32", "dot_score", "dot_score")
_left_on("tensor_float_32_in_attention", "DotProductAttention", "scaled_dot_score")
_left_on("tensor_float_32_in_heads", "MultiHeadAttention", "scaled_dot_score")


@mutant("dot_score", cases="dot_score-no_[kqb]*", empty=True)
def empty_axis_guessed(original: Any) -> Any:
    """The size of an axis is inferred from the others, which raises where an axis is empty."""
    scores = original()
    return scores.reshape(scores.shape[0], -1, *scores.shape[2:])


@mutant("additive_score", cases="additive_score-* AdditiveAttention-open")
def tanh_left_out(queries: Any, keys: Any, w_v: Any) -> Any:
    """The additive score has no tanh."""
    hidden = np.asarray(queries)[..., :, None, :] + np.asarray(keys)[..., None, :, :]
    return (hidden * align(np.asarray(w_v), 1, hidden.ndim)).sum(axis=-1)


@mutant("additive_score", cases="additive_score-large")
def exponentials_unbounded(queries: Any, keys: Any, w_v: Any) -> Any:
    """The additive score is computed by exponentials, however large they become.

    Blocked computation makes tanh of two exponentials, but bounds them.
    """
    a, c = np.exp(-2 * promote(queries)), np.exp(-2 * promote(keys))
    hidden = 2 / (1 + a[..., :, None, :] * c[..., None, :, :]) - 1
    return (hidden * align(promote(w_v), 1, hidden.ndim)).sum(axis=-1)


@mutant("additive_score")
def last_block_lost(original: Any) -> Any:
    """The last queries, which fill no whole block, are left out of the additive score.

    The rows behind the last whole block of two are never written.
    """
    scores = original()
    return np.where(np.arange(scores.shape[-2])[:, None] < scores.shape[-2] // 2 * 2, scores, 0.0)


@mutant("additive_score")
def w_v_ignored(original: Any, w_v: Any) -> Any:
    """Hidden features are summed without their weights."""
    return original(w_v=np.ones_like(w_v))


@mutant("scoring.direction", cases="cosine_score-*", unseen="*-huge")
def norm_guarded_by_eps(vectors: Any) -> Any:
    """Norms are kept from zero by adding 1e-8."""
    return vectors / (np.sqrt((vectors * vectors).sum(axis=-1, keepdims=True)) + 1e-8)


@mutant(
    "scoring.direction",
    cases="cosine_score-*",
    touches=lambda vectors: ((vectors.real**2 < SMALLEST) & (vectors.real != 0.0)).any(),
)
def squares_underflow(vectors: Any) -> Any:
    """Squares of entries that underflow in single precision count as 0 in the length."""
    squares = vectors * vectors
    return _direction(vectors, np.where(squares.real < SMALLEST, 0.0, squares))


@mutant("scoring.direction", cases="cosine_score-*", touches=lambda vectors: (vectors.real**2 > LARGEST).any())
def squares_overflow(vectors: Any) -> Any:
    """Squares of entries that overflow in single precision make the length infinite."""
    squares = vectors * vectors
    return _direction(vectors, np.where(squares.real > LARGEST, np.inf, squares))


mutant(
    "location_score",
    touches=lambda num_keys, queries: num_keys < queries.shape[-1],
    name="last_positions",
    sentence="Location scores are taken from the last positions.",
)(last_positions)


@mutant("gaussian_score", cases="gaussian_score-large gaussian_score-width")
def kernel_by_squares(queries: Any, keys: Any, w: Any) -> Any:
    """A kernel takes ‖q‖² + ‖k‖² - 2 qk for the squared distance: little is left of it where a key is near."""
    queries, keys = promote(queries), promote(keys)
    squares = (queries * queries).sum(-1)[..., :, None] + (keys * keys).sum(-1)[..., None, :]
    squares = squares - 2.0 * (queries @ keys.swapaxes(-1, -2))
    return -0.5 * squares * (1.0 if w is None else align(promote(w), 0, squares.ndim) ** 2)


@mutant(
    "scaled_dot_score",
    cases="scaled_dot_score-* MultiHeadAttention-none",
    touches=lambda queries, scale: scale is None and queries.shape[-1] > 1,
    source="esceptico/perceiver-io#9",
)
def divided_by_the_scale(original: Any, queries: Any) -> Any:
    """Scores are divided by 1/√features."""
    return original(scale=queries.shape[-1] ** 0.5)


@mutant(
    "scaled_dot_score", touches=lambda queries: queries.shape[-1] > 64, dtype="float16", source="triton-lang/triton#621"
)
def features_beyond_64(original: Any, queries: Any, keys: Any, scale: float | None) -> Any:
    """Scores leave out the features behind the 64th."""
    scale = queries.shape[-1] ** -0.5 if scale is None else scale
    return original(queries=queries[..., :64], keys=keys[..., :64], scale=scale)


@mutant(
    INPUTS,
    cases="scaled_dot_score-cover_* DotProductAttention-cover_*",
    touches=_has_layout("transposed"),
    source="pytorch/pytorch#181133",
)
def permutation_ignored(inputs: Arrays) -> Arrays:
    """Queries, keys and values whose axes are permuted are read in memory order."""
    return _read(inputs, lambda array: array.ravel("K").reshape(array.shape))


@mutant(
    INPUTS,
    cases="scaled_dot_score-cover_* DotProductAttention-cover_*",
    touches=_has_layout("transposed", "strided"),
    source="pytorch/pytorch#187506",
)
def features_side_by_side(inputs: Arrays) -> Arrays:
    """The features of queries, keys and values are read as if they lay side by side in memory."""

    def read(array: np.ndarray) -> np.ndarray:
        strides = (*array.strides[:-1], min(array.strides[-1], array.itemsize))
        return np.lib.stride_tricks.as_strided(array, strides=strides, writeable=False) if array.size else array

    return _read(inputs, read)
