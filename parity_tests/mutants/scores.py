"""Wrong scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_core.reference.arrays import align, promote
from parity_tests.cases.call import SECOND
from parity_tests.cases.case import Arrays, Case
from parity_tests.mutants.mutant import INPUTS, Break, mutant
from parity_tests.mutants.shared import NOTHING, Holds, of_the_last, where_all, without_scale


def _to_tensor_float(array: np.ndarray) -> np.ndarray:
    """The array with 10 bits of each fraction, as TensorFloat-32 has."""
    array = np.asarray(array)
    fraction, exponent = np.frexp(array.real)
    rounded = np.ldexp(np.round(fraction * 2.0**11) * 2.0**-11, exponent)
    return rounded + 1j * array.imag if np.iscomplexobj(array) else rounded


def _squares_of_single(low: bool) -> Break:
    """Lengths from squares that are lost where float32 does not hold them: at its lower end, or at its upper."""
    least, most = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

    def direction(vectors: Any) -> Any:
        squares = vectors * vectors
        squares = (
            np.where(squares.real < least, 0.0, squares) if low else np.where(squares.real > most, np.inf, squares)
        )
        square = squares.sum(axis=-1, keepdims=True)
        zero = square.real == 0.0
        return np.where(zero, 0.0, vectors / np.sqrt(np.where(zero, 1.0, square)))

    return lambda original: direction


def _of_one_scale(case: Case, inputs: Arrays) -> bool:
    """Whether inner products of more than one feature are scaled as features say."""
    if case.operator == "MultiHeadAttention":
        size = case.config.get("hidden_size", case.config["query_size"])
        return case.config.get("score", "scaled_dot") == "scaled_dot" and size > case.config["num_heads"]
    given = case.config.get("scale", case.options.get("scale"))
    return given is None and inputs["queries"].shape[-1] > 1


def _many_features(case: Case, inputs: Arrays) -> bool:
    return inputs["queries"].shape[-1] > 64


def _read(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Arrays], Arrays]:
    """Queries, keys and values that are read from memory otherwise than as they lie."""
    names = [prefix + name for prefix in ("", SECOND) for name in ("queries", "keys", "values")]
    return lambda inputs: {name: change(array) if name in names else array for name, array in inputs.items()}


def _in_the_order_of_memory(array: np.ndarray) -> np.ndarray:
    return array.ravel("K").reshape(array.shape)


def _features_side_by_side(array: np.ndarray) -> np.ndarray:
    apart = array.size > 0 and array.strides[-1] > array.itemsize
    strides = (*array.strides[:-1], array.itemsize)
    return np.lib.stride_tricks.as_strided(array, strides=strides, writeable=False) if apart else array


def _laid(*layouts: str) -> Holds:
    """Whether one of the three lies in memory so, and has more than one feature, or is more than a vector."""

    def holds(case: Case, inputs: Arrays) -> bool:
        named = [name for name in ("queries", "keys", "values") if case.layouts.get(name) in layouts]
        return any(inputs[name].size > 1 for name in named if name in inputs)

    return holds


@mutant("scaled_dot_score-*", of="scaled_dot_score", red="scaled_dot_score-scale:*")
def scale_ignored(original: Any) -> Any:
    """The scale that is given is ignored."""
    return without_scale(original)


@mutant("scaled_dot_score-*", of="scaled_dot_score", red="*:*", green=NOTHING)
def scale_off(original: Any) -> Any:
    """The scale is off by 1e-5."""
    return lambda queries, keys, *, scale=None: original(queries, keys, scale=scale) * (1.0 + 1e-5)


@mutant(
    ("scaled_dot_score-*", "DotProductAttention-open"),
    of="scaled_dot_score",
    red=("scaled_dot_score-*:*", "DotProductAttention-open:*"),
    green=(*NOTHING, "*-scale:*"),
    source="delzac/cntkx#10",
)
def scale_missing(original: Any) -> Any:
    """Scores are not scaled unless a scale is given."""
    return lambda queries, keys, *, scale=None: original(queries, keys, scale=1.0 if scale is None else scale)


@mutant("dot_score-*", of="dot_score", red="*:gradient_keys", green=NOTHING)
def gradient_stopped(original: Any) -> Any:
    """No gradient reaches the keys."""
    return lambda queries, keys: original(queries, np.real(keys))


@mutant("dot_score-*", of="dot_score", red="*:*", dtype="float32")
def tensor_float_32(original: Any) -> Any:
    """TF32 is left on: products keep 10 bits of each factor."""
    return lambda queries, keys: original(_to_tensor_float(queries), _to_tensor_float(keys))


@mutant("dot_score-*", of="dot_score", red=("dot_score-no_keys:*", "dot_score-no_queries:*", "dot_score-no_batch:*"))
def empty_axis_guessed(original: Any) -> Any:
    """The size of an axis is left to be guessed: where there is nothing, it raises."""

    def call(queries: Any, keys: Any) -> Any:
        scores = original(queries, keys)
        return scores.reshape(scores.shape[0], -1, *scores.shape[2:])

    return call


@mutant(
    ("additive_score-*", "AdditiveAttention-open"),
    of="additive_score",
    red=("additive_score-*:*", "AdditiveAttention-open:*"),
    green=NOTHING,
)
def tanh_left_out(original: Any) -> Any:
    """The additive score has no tanh."""

    def score(queries: Any, keys: Any, w_v: Any) -> Any:
        hidden = np.asarray(queries)[..., :, None, :] + np.asarray(keys)[..., None, :, :]
        return (hidden * align(np.asarray(w_v), 1, hidden.ndim)).sum(axis=-1)

    return score


@mutant(
    "additive_score-*",
    of="additive_score",
    red=("additive_score-large:gradient_queries", "additive_score-large:gradient_keys"),
)
def exponentials_unbounded(original: Any) -> Any:
    """The additive score is computed by exponentials, however large they become.

    Tanh by two exponentials, as blocks compute it, without asking how large they become.
    """

    def score(queries: Any, keys: Any, w_v: Any) -> Any:
        a, c = np.exp(-2 * promote(queries)), np.exp(-2 * promote(keys))
        hidden = 2 / (1 + a[..., :, None, :] * c[..., None, :, :]) - 1
        return (hidden * align(promote(w_v), 1, hidden.ndim)).sum(axis=-1)

    return score


@mutant("additive_score-*", of="additive_score", red="*:*", green=NOTHING)
def last_block_lost(original: Any) -> Any:
    """The last queries, which fill no whole block, are left out of the additive score.

    The rows behind the last whole block of two are never written.
    """

    def score(queries: Any, keys: Any, w_v: Any) -> Any:
        scores = original(queries, keys, w_v)
        whole = scores.shape[-2] // 2 * 2
        return np.where(np.arange(scores.shape[-2])[:, None] < whole, scores, 0.0)

    return score


@mutant("additive_score-*", of="additive_score", red="*:*", green=NOTHING)
def w_v_ignored(original: Any) -> Any:
    """Hidden features are summed without their weights."""
    return lambda queries, keys, w_v: original(queries, keys, np.ones_like(w_v))


@mutant("cosine_score-*", of="cosine_score", red="cosine_score-scale:*")
def cosine_scale_ignored(original: Any) -> Any:
    """The scale of the cosines is ignored."""
    return without_scale(original)


@mutant("cosine_score-*", of="scoring.direction", red="*:*", green=(*NOTHING, "cosine_score-huge:*"))
def norm_guarded_by_eps(original: Any) -> Any:
    """Norms are kept from zero by adding 1e-8."""
    return lambda vectors: vectors / (np.sqrt((vectors * vectors).sum(axis=-1, keepdims=True)) + 1e-8)


@mutant("cosine_score-*", of="scoring.direction", red="cosine_score-tiny:*")
def squares_underflow(original: Any) -> Any:
    """Lengths are of squares that single precision takes for 0."""
    return _squares_of_single(low=True)(original)


@mutant("cosine_score-*", of="scoring.direction", red="cosine_score-huge:*")
def squares_overflow(original: Any) -> Any:
    """Lengths are of squares that are infinite in single precision."""
    return _squares_of_single(low=False)(original)


@mutant("gaussian_score-*", of="gaussian_score", red="gaussian_score-width:*")
def kernel_width_ignored(original: Any) -> Any:
    """The width of the kernel is ignored."""
    return lambda queries, keys, w=None: original(queries, keys)


@mutant("location_score-*", of="location_score", red=("location_score-plain:*", "location_score-heads:*"))
def last_positions(original: Any) -> Any:
    """Location scores are taken from the last positions."""
    return of_the_last(original)


@mutant(
    "gaussian_score-*",
    of="gaussian_score",
    touches=lambda case: case.name in ("plain", "heads", "large", "width") or case.drawn is not None,
)
def kernel_by_squares(original: Any) -> Any:
    """A kernel takes ‖q‖² + ‖k‖² - 2 qk for the squared distance: little is left of it where a key is near."""

    def score(queries: Any, keys: Any, w: Any = None) -> Any:
        queries, keys = promote(queries), promote(keys)
        squares = (queries * queries).sum(-1)[..., :, None] + (keys * keys).sum(-1)[..., None, :]
        squares = squares - 2.0 * (queries @ keys.swapaxes(-1, -2))
        return -0.5 * squares * (1.0 if w is None else align(promote(w), 0, squares.ndim) ** 2)

    return score


@mutant(
    ("scaled_dot_score-*", "MultiHeadAttention-none"),
    of="scaled_dot_score",
    touches=where_all(_of_one_scale),
    source="esceptico/perceiver-io#9",
)
def divided_by_the_scale(original: Any) -> Any:
    """Scores are divided by 1/√features."""

    def score(queries: Any, keys: Any, *, scale: float | None = None) -> Any:
        return original(queries, keys, scale=max(queries.shape[-1], 1) ** 0.5 if scale is None else scale)

    return score


@mutant(
    "scaled_dot_score-*",
    of="scaled_dot_score",
    touches=where_all(_many_features),
    dtype="float16",
    source="triton-lang/triton#621",
)
def features_beyond_64(original: Any) -> Any:
    """Scores leave out the features behind the 64th."""

    def score(queries: Any, keys: Any, *, scale: float | None = None) -> Any:
        scale = max(queries.shape[-1], 1) ** -0.5 if scale is None else scale
        return original(queries[..., :64], keys[..., :64], scale=scale)

    return score


@mutant(
    ("scaled_dot_score-cover_*", "DotProductAttention-cover_*"),
    of=INPUTS,
    touches=where_all(_laid("transposed")),
    source="pytorch/pytorch#181133",
)
def permutation_ignored(inputs: Arrays) -> Arrays:
    """Queries, keys and values whose axes are permuted are read in the order in which they lie in memory."""
    return _read(_in_the_order_of_memory)(inputs)


@mutant(
    ("scaled_dot_score-cover_*", "DotProductAttention-cover_*"),
    of=INPUTS,
    touches=where_all(_laid("transposed", "strided")),
    source="pytorch/pytorch#187506",
)
def features_side_by_side(inputs: Arrays) -> Arrays:
    """The features of queries, keys and values are read as if they lay side by side in memory."""
    return _read(_features_side_by_side)(inputs)
