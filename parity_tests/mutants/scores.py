"""Wrong scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attention_core.reference.arrays import align, promote
from parity_tests.format.call import SECOND
from parity_tests.format.case import Arrays, Case
from parity_tests.mutants.mutant import INPUTS, mutant
from parity_tests.mutants.shared import NOTHING, Holds, last_positions, where_all


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


def _of_one_scale(case: Case, inputs: Arrays) -> bool:
    """Whether inner products of more than one feature are scaled by the number of features."""
    if case.operator == "MultiHeadAttention":
        size = case.config.get("hidden_size", case.config["query_size"])
        return case.config.get("score", "scaled_dot") == "scaled_dot" and size > case.config["num_heads"]
    given = case.config.get("scale", case.options.get("scale"))
    return given is None and inputs["queries"].shape[-1] > 1


def _many_features(case: Case, inputs: Arrays) -> bool:
    return inputs["queries"].shape[-1] > 64


def _read(inputs: Arrays, change: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    """Inputs of which queries, keys and values are read from memory in a wrong way."""
    names = [prefix + name for prefix in ("", SECOND) for name in ("queries", "keys", "values")]
    return {name: change(array) if name in names else array for name, array in inputs.items()}


def _has_layout(*layouts: str) -> Holds:
    """Whether queries, keys or values of more than one entry have one of these memory layouts."""

    def holds(case: Case, inputs: Arrays) -> bool:
        named = [name for name in ("queries", "keys", "values") if case.layouts.get(name) in layouts]
        return any(inputs[name].size > 1 for name in named if name in inputs)

    return holds


def _of_other_sizes(case: Case, inputs: Arrays) -> bool:
    """Whether inner products are scaled by default, of another number of features than of queries."""
    *_, count, features = inputs["queries"].shape
    return case.config.get("scale", case.options.get("scale")) is None and 0 < features != count > 0


@mutant("scaled_dot_score-*", of="scaled_dot_score", red="*:*", green=NOTHING)
def scale_off(original: Any) -> Any:
    """The scale is off by 1e-5."""
    return original() * (1.0 + 1e-5)


@mutant(
    "scaled_dot_score-* DotProductAttention-open",
    of="scaled_dot_score",
    red="scaled_dot_score-*:* DotProductAttention-open:*",
    green=NOTHING + " *-scale:*",
    source="delzac/cntkx#10",
)
def scale_missing(original: Any, scale: float | None) -> Any:
    """Scores are not scaled unless a scale is given."""
    return original(scale=1.0 if scale is None else scale)


@mutant(
    "scaled_dot_score-{plain,cover_*,scale} DotProductAttention-open",
    of="scaled_dot_score",
    touches=where_all(_of_other_sizes),
)
def scale_of_the_queries(original: Any, queries: Any, scale: float | None) -> Any:
    """Scores are divided by the root of the number of queries, not of features."""
    return original(scale=max(queries.shape[-2], 1) ** -0.5 if scale is None else scale)


@mutant(
    "scaled_dot_score-* DotProductAttention-{softcap,open}",
    of="scaled_dot_score",
    red="*-softcap*:*",
)
def softcap_before_the_scale(original: Any, queries: Any, scale: float | None, softcap: float | None) -> Any:
    """Inner products are bounded, and then scaled."""
    factor = max(queries.shape[-1], 1) ** -0.5 if scale is None else scale
    return original(scale=1.0) * factor


@mutant("scaled_dot_score-*", of="scaled_dot_score", red="*-softcap*:*")
def softcap_not_multiplied(original: Any, softcap: float | None) -> Any:
    """The tanh of a score over its bound is not multiplied by the bound."""
    return original() / (softcap or 1.0)


@mutant("dot_score-*", of="dot_score", red="*:gradient_keys", green=NOTHING)
def gradient_stopped(original: Any, keys: Any) -> Any:
    """No gradient reaches the keys."""
    return original(keys=np.real(keys))


def _on_tensor_cores(queries: Any, keys: Any) -> bool:
    """Whether PyTorch and JAX leave the product of so many queries and keys to the tensor cores of a GPU."""
    return queries.shape[-1] >= 32 and all(size % 8 == 0 for size in (*queries.shape[-2:], keys.shape[-2]))


def _is_wide(case: Case) -> bool:
    """Whether the queries and keys of a case, or of its heads, are multiplied there."""
    if "queries" not in case.inputs or "keys" not in case.inputs:
        return False
    queries, keys, heads = case.inputs["queries"], case.inputs["keys"], case.options.get("num_heads", 1)
    return _on_tensor_cores(queries[..., : queries.shape[-1] // heads], keys)


def _left_on(name: str, operator: str, function: str) -> None:
    sentence = f"TF32 is left on in {operator}: where tensor cores multiply, 10 bits of each factor are kept."

    @mutant(f"{operator}-*", of=function, touches=_is_wide, dtype="float32", name=name, sentence=sentence)
    def tensor_float_32(original: Any, queries: Any, keys: Any) -> Any:
        if not _on_tensor_cores(queries, keys):
            return original()
        return original(queries=_to_tensor_float(queries), keys=_to_tensor_float(keys))


_left_on("tensor_float_32", "dot_score", "dot_score")
_left_on("tensor_float_32_in_attention", "DotProductAttention", "scaled_dot_score")
_left_on("tensor_float_32_in_heads", "MultiHeadAttention", "scaled_dot_score")


@mutant("dot_score-*", of="dot_score", red="dot_score-no_{keys,queries,batch}:*")
def empty_axis_guessed(original: Any) -> Any:
    """The size of an axis is inferred from the others, which raises where an axis is empty."""
    scores = original()
    return scores.reshape(scores.shape[0], -1, *scores.shape[2:])


@mutant(
    "additive_score-* AdditiveAttention-open",
    of="additive_score",
    red="additive_score-*:* AdditiveAttention-open:*",
    green=NOTHING,
)
def tanh_left_out(queries: Any, keys: Any, w_v: Any) -> Any:
    """The additive score has no tanh."""
    hidden = np.asarray(queries)[..., :, None, :] + np.asarray(keys)[..., None, :, :]
    return (hidden * align(np.asarray(w_v), 1, hidden.ndim)).sum(axis=-1)


@mutant("additive_score-*", of="additive_score", red="additive_score-large:gradient_{queries,keys}")
def exponentials_unbounded(queries: Any, keys: Any, w_v: Any) -> Any:
    """The additive score is computed by exponentials, however large they become.

    Blocked computation makes tanh of two exponentials, but bounds them.
    """
    a, c = np.exp(-2 * promote(queries)), np.exp(-2 * promote(keys))
    hidden = 2 / (1 + a[..., :, None, :] * c[..., None, :, :]) - 1
    return (hidden * align(promote(w_v), 1, hidden.ndim)).sum(axis=-1)


@mutant("additive_score-*", of="additive_score", red="*:*", green=NOTHING)
def last_block_lost(original: Any) -> Any:
    """The last queries, which fill no whole block, are left out of the additive score.

    The rows behind the last whole block of two are never written.
    """
    scores = original()
    return np.where(np.arange(scores.shape[-2])[:, None] < scores.shape[-2] // 2 * 2, scores, 0.0)


@mutant("additive_score-*", of="additive_score", red="*:*", green=NOTHING)
def w_v_ignored(original: Any, w_v: Any) -> Any:
    """Hidden features are summed without their weights."""
    return original(w_v=np.ones_like(w_v))


@mutant("cosine_score-*", of="scoring.direction", red="*:*", green=NOTHING + " cosine_score-huge:*")
def norm_guarded_by_eps(vectors: Any) -> Any:
    """Norms are kept from zero by adding 1e-8."""
    return vectors / (np.sqrt((vectors * vectors).sum(axis=-1, keepdims=True)) + 1e-8)


@mutant("cosine_score-*", of="scoring.direction", red="cosine_score-tiny:*")
def squares_underflow(vectors: Any) -> Any:
    """Squares of entries that underflow in single precision count as 0 in the length."""
    squares = vectors * vectors
    return _direction(vectors, np.where(squares.real < SMALLEST, 0.0, squares))


@mutant("cosine_score-*", of="scoring.direction", red="cosine_score-huge:*")
def squares_overflow(vectors: Any) -> Any:
    """Squares of entries that overflow in single precision make the length infinite."""
    squares = vectors * vectors
    return _direction(vectors, np.where(squares.real > LARGEST, np.inf, squares))


mutant(
    "location_score-*",
    of="location_score",
    red="location_score-{plain,heads}:*",
    name="last_positions",
    sentence="Location scores are taken from the last positions.",
)(last_positions)


@mutant(
    "gaussian_score-*",
    of="gaussian_score",
    touches=lambda case: case.name in ("plain", "heads", "large", "width") or case.drawn is not None,
)
def kernel_by_squares(queries: Any, keys: Any, w: Any) -> Any:
    """A kernel takes ‖q‖² + ‖k‖² - 2 qk for the squared distance: little is left of it where a key is near."""
    queries, keys = promote(queries), promote(keys)
    squares = (queries * queries).sum(-1)[..., :, None] + (keys * keys).sum(-1)[..., None, :]
    squares = squares - 2.0 * (queries @ keys.swapaxes(-1, -2))
    return -0.5 * squares * (1.0 if w is None else align(promote(w), 0, squares.ndim) ** 2)


@mutant(
    "scaled_dot_score-* MultiHeadAttention-none",
    of="scaled_dot_score",
    touches=where_all(_of_one_scale),
    source="esceptico/perceiver-io#9",
)
def divided_by_the_scale(original: Any, queries: Any, scale: float | None) -> Any:
    """Scores are divided by 1/√features."""
    return original(scale=max(queries.shape[-1], 1) ** 0.5 if scale is None else scale)


@mutant(
    "scaled_dot_score-*",
    of="scaled_dot_score",
    touches=where_all(_many_features),
    dtype="float16",
    source="triton-lang/triton#621",
)
def features_beyond_64(original: Any, queries: Any, keys: Any, scale: float | None) -> Any:
    """Scores leave out the features behind the 64th."""
    scale = max(queries.shape[-1], 1) ** -0.5 if scale is None else scale
    return original(queries=queries[..., :64], keys=keys[..., :64], scale=scale)


@mutant(
    "{scaled_dot_score,DotProductAttention}-cover_*",
    of=INPUTS,
    touches=where_all(_has_layout("transposed")),
    source="pytorch/pytorch#181133",
)
def permutation_ignored(inputs: Arrays) -> Arrays:
    """Queries, keys and values whose axes are permuted are read in memory order."""
    return _read(inputs, lambda array: array.ravel("K").reshape(array.shape))


@mutant(
    "{scaled_dot_score,DotProductAttention}-cover_*",
    of=INPUTS,
    touches=where_all(_has_layout("transposed", "strided")),
    source="pytorch/pytorch#187506",
)
def features_side_by_side(inputs: Arrays) -> Arrays:
    """The features of queries, keys and values are read as if they lay side by side in memory."""

    def read(array: np.ndarray) -> np.ndarray:
        strides = (*array.strides[:-1], min(array.strides[-1], array.itemsize))
        return np.lib.stride_tricks.as_strided(array, strides=strides, writeable=False) if array.size else array

    return _read(inputs, read)
