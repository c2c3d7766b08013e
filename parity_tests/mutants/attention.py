"""Wrong attention layers with one head."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference import attention, local
from attention_core.reference.arrays import align, promote
from attention_core.reference.masking import add_bias, open_keys, softmax_over
from attention_core.reference.memory import Memory
from attention_core.reference.pooling import average, pool
from parity_tests.format.case import Arrays, Case
from parity_tests.format.expected import computed_gradients, cotangents
from parity_tests.mutants.mutant import ANSWER, mutant
from parity_tests.mutants.shared import (
    has_sizes,
    is_masked,
    is_passed,
    is_scaled,
    last_positions,
    unscaled_part,
    with_parameters,
    with_sizes,
)


@mutant("attention.DotProductAttention.attend", touches=is_masked)
def prepared_mask_lost(original: Any, memory: Any) -> Any:
    """The mask of a prepared memory is not used."""
    return original(memory=memory._replace(mask=None))


class _Grown(Memory):
    """A memory that counts how often it has grown."""

    times = 0


@mutant("attention.DotProductAttention.extend", cases="DotProductAttention-extended_often*")
def full_memory_kept(original: Any, memory: Any) -> Any:
    """A memory grows eight times, and ignores what is added then."""
    if getattr(memory, "times", 0) == 8:
        return memory
    grown = _Grown(*original())
    grown.times = getattr(memory, "times", 0) + 1
    return grown


def is_before_the_first_key(position: Any) -> bool:
    """Whether steps are added from a negative position on."""
    return position is not None and bool(np.any(np.less(position, 0)))


@mutant("attention.DotProductAttention.extend", touches=is_before_the_first_key)
def position_from_the_end(original: Any, memory: Any, position: Any) -> Any:
    """A negative position counts from the end, as an index of Python does."""
    return original(position=position % memory.keys.shape[-2])


@mutant("attention.DotProductAttention.extend", touches=is_before_the_first_key)
def position_clamped(original: Any, position: Any) -> Any:
    """Steps from a negative position on are moved to the first key, as dynamic_update_slice does."""
    return original(position=np.maximum(position, 0))


@mutant(
    "attention.DotProductAttention.extend",
    touches=lambda memory: is_masked(memory) and (memory.mask.any(axis=-2) != memory.mask[..., -1, :]).any(),
)
def mask_of_the_last_query_kept(original: Any, memory: Any) -> Any:
    """A memory keeps what its last query could attend to, and not what any query could."""
    return original(memory=memory._replace(mask=memory.mask[..., -1:, :]))


@mutant("attention.DotProductAttention.extend", touches=lambda memory, mask: memory.mask is not None and mask is None)
def open_steps_hidden(original: Any, keys: Any) -> Any:
    """Steps without a mask are hidden where the memory has one."""
    return original(mask=np.zeros((1, 1, keys.shape[-2]), bool))


@mutant("attention.DotProductAttention.extend", touches=is_passed("position"))
def steps_written_one_late(original: Any, position: Any) -> Any:
    """A step replaces the key behind the one that it should."""
    return original(position=position + 1)


@mutant(
    "attention.DotProductAttention.attend",
    touches=lambda self: self.sizes["softcap"] is not None,
    unseen="DotProductAttention-far",  # nothing is hidden
)
def softcap_behind_the_mask(original: Any, self: Any) -> Any:
    """Hidden scores are bounded as the others are, and get a weight."""
    bound = self.sizes["softcap"]

    def pool_bounded(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> Any:
        return pool(np.where(allowed, scores, -bound), values, np.ones_like(allowed), dropout_mask)

    with mock.patch.object(attention, "pool", pool_bounded):
        return original()


@mutant(
    "attention.DotProductAttention.attend",
    touches=lambda self, bias: self.sizes["softcap"] is not None and bias is not None,
)
def bias_bounded_too(original: Any, self: Any, bias: Any) -> Any:
    """A bias is added before scores are bounded."""
    bound, score = self.sizes["softcap"], self._score

    def score_biased(queries: Any, keys: Any) -> Any:
        with with_sizes(self, softcap=None):
            return bound * np.tanh(add_bias(score(queries, keys), bias) / bound)

    with mock.patch.object(self, "_score", score_biased):
        return original(bias=None)


@mutant(
    "for_each_head",
    cases="DotProductAttention-groups DotProductAttention-context_groups MultiHeadAttention-groups",
    touches=lambda array, queries: 1 < array.shape[-3] < queries.shape[-3],
)
def key_heads_tiled(array: Any, queries: Any) -> Any:
    """Key heads are tiled, not repeated: query head h reads key head h mod key_heads."""
    return np.concatenate([array] * (queries.shape[-3] // array.shape[-3]), axis=-3)


@mutant(
    "add_bias",
    cases="DotProductAttention-* MultiHeadAttention-*",
    touches=lambda bias: bias is not None and (bias == -np.inf).any(),
    unseen="*bias_softcap",
)
def bias_filled(original: Any, bias: Any) -> Any:
    """A bias of -inf is replaced by a large number: all keys are alike where it hides them all."""
    return original(bias=np.where(bias == -np.inf, -1e9, bias))


def _shared_axes(scores: Any, bias: Any, axes: Iterable[int]) -> list[int]:
    """Those of the axes over which a bias is the same."""
    shape = () if bias is None else align(bias, 2, scores.ndim).shape
    return [axis for axis in axes if shape and shape[axis] < scores.shape[axis]]


def _summed_over(axes: Callable[[int], Iterable[int]], name: str, of: str) -> None:
    sentence = f"The gradient of a bias that is the same for all {of} is that of the first."

    @mutant(
        "add_bias",
        cases="DotProductAttention-* MultiHeadAttention-*",
        touches=lambda scores, bias: bool(_shared_axes(scores, bias, axes(scores.ndim))),
        name=name,
        sentence=sentence,
    )
    def not_summed(original: Any, scores: Any, bias: Any) -> Any:
        if not np.iscomplexobj(bias):
            return original()
        shared = _shared_axes(scores, bias, axes(scores.ndim))
        first = np.all(np.indices(scores.shape, sparse=False)[shared] == 0, axis=0)
        return np.where(first, original(), original(bias=bias.real))


_summed_over(lambda rank: [rank - 2], "bias_of_the_first_query", "queries")
_summed_over(lambda rank: range(rank - 2), "bias_of_the_first_sequence", "sequences or heads")


def _has_shared_bias(case: Case) -> bool:
    """Whether a case differentiates a bias that is the same for several scores."""
    queries, keys, bias = (case.inputs[name] for name in ("queries", "keys", "bias"))
    return case.gradients and bias.shape != (*queries.shape[:-1], keys.shape[-2])


@mutant(ANSWER, cases="DotProductAttention-bias*", touches=_has_shared_bias)
def bias_not_summed(case: Case, answer: Arrays) -> Arrays:
    """The gradient of a bias that is the same for several scores has an entry for each of them."""
    dtype = answer["context"].dtype.name
    bias = np.broadcast_to(case.inputs["bias"], answer["weights"].shape)
    each = replace(case, inputs={**case.inputs, "bias": bias})
    gradients = computed_gradients(each, *each.at(dtype), cotangents(case, dtype))
    return {**answer, "gradient_bias": gradients["bias"].astype(dtype)}


@mutant(
    "for_each_head",
    cases="DotProductAttention-* MultiHeadAttention-*",
    touches=lambda array, queries: array.shape[-3] < queries.shape[-3],
)
def key_heads_not_summed(original: Any, array: Any, queries: Any) -> Any:
    """The gradient of a head of keys or values is that of the first query head that reads it."""
    first = np.arange(queries.shape[-3]) % (queries.shape[-3] // array.shape[-3]) == 0
    return np.where(first[:, None, None], original(), original(array=array.real))


@mutant("attention.GeneralAttention._project", cases="GeneralAttention-open")
def general_identity(original: Any, self: Any) -> Any:
    """The matrix of general attention is the identity."""
    with with_parameters(self, W=np.eye(*self.parameters["W"].shape[-2:])):
        return original()


@mutant("attention.ConcatAttention._project", "attention.ConcatAttention._score", cases="ConcatAttention-open")
def concat_key_first(original: Any, self: Any) -> Any:
    """The columns of the key come first in the matrix of concat attention."""
    with with_parameters(self, W=np.roll(self.parameters["W"], -self.sizes["key_size"], axis=-1)):
        return original()


@mutant("attention.ConcatAttention._score", touches=lambda self: self.sizes["bias"])
def concat_bias_twice(original: Any, self: Any, keys: Any) -> Any:
    """The bias of concat attention is added to query and key."""
    return original(keys=keys + align(self.parameters["b"], 1, keys.ndim))


@mutant("attention.AdditiveAttention._project", "attention.AdditiveAttention._score")
def matrices_swapped(original: Any, self: Any) -> Any:
    """W_k projects the queries and W_q the keys."""
    with with_parameters(self, W_q=self.parameters["W_k"], W_k=self.parameters["W_q"]):
        return original()


@mutant(ANSWER, cases="AdditiveAttention-*", touches=lambda case: case.gradients)
def score_vector_of_each_sequence(case: Case, answer: Arrays) -> Arrays:
    """The score vector has a row for each sequence of the batch: its gradient is not summed over them."""
    right = answer["gradient_w_v"]
    dtype = right.dtype.name
    factors, rows = cotangents(case, dtype), []
    for row in range(len(answer["context"])):
        of_row = {
            place: array * (np.arange(len(array)) == row)[(..., *[None] * (array.ndim - 1))]
            for place, array in factors.items()
        }
        rows.append(computed_gradients(case, *case.at(dtype), of_row)["w_v"].astype(right.dtype))
    return {**answer, "gradient_w_v": np.stack(rows)}


@mutant(
    "attention.Attention._to_batch_first",
    cases="DotProductAttention-* AdditiveAttention-*",
    touches=has_sizes(time_major=True),
)
def time_major_ignored(array: Any) -> Any:
    """Sequences whose time comes first are read as if their batch did."""
    return array


mutant(
    "location_score",
    cases="LocationAttention-open",
    touches=lambda num_keys, queries: num_keys < queries.shape[-1],
    name="location_of_the_end",
    sentence="Location attention scores the last positions.",
)(last_positions)


@mutant("gaussian_score", cases="KernelAttention-open NadarayaWatson-ragged", touches=is_passed("w"))
def width_for_inverse(original: Any, w: Any) -> Any:
    """The parameter is the width itself."""
    return original(w=1.0 / w)


@mutant("local.LocalAttention.attend", cases="LocalAttention-open LocalAttention-wide")
def window_ignored(original: Any, self: Any) -> Any:
    """The window of local attention is one key wider."""
    with with_sizes(self, window=self.sizes["window"] + 1):
        return original()


@mutant("local.LocalAttention.attend", touches=has_sizes(mode="monotonic"))
def local_window_exclusive(original: Any, self: Any) -> Any:
    """The keys at both ends of a window are outside of it."""
    with with_sizes(self, window=self.sizes["window"] - 0.5):
        return original()


@mutant("local.LocalAttention.attend", cases="LocalAttention-predictive_open", touches=has_sizes(mode="predictive"))
def centre_fixed(original: Any, self: Any) -> Any:
    """The predicted window is centred at the position of the query."""
    with with_sizes(self, mode="monotonic"):
        return original()


@mutant(
    "local.LocalAttention.attend", touches=lambda self, memory: self.sizes["mode"] == "predictive" and is_masked(memory)
)
def length_of_the_padding(original: Any, memory: Any) -> Any:
    """A predicted position is a share of all keys, padding included."""
    with mock.patch.object(local, "open_keys", lambda scores, lens, mask: open_keys(scores, lens, memory.mask)):
        return original(memory=memory._replace(mask=None))


@mutant("pool", cases="LocalAttention-predictive_*")
def gaussian_renormalised(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> Any:
    """Weights under the Gaussian are normalised again in the context."""
    weights = softmax_over(scores, allowed)
    near = weights if dropout_mask is None else weights * dropout_mask
    total = near.sum(axis=-1, keepdims=True)
    return average(near / np.where(total.real == 0.0, 1.0, total), values, allowed), weights


@mutant("attention_layer", cases="LocalAttention-score_* MultiHeadAttention-open", touches=is_scaled)
def score_inside_unscaled(original: Any, part: Any) -> Any:
    """The score inside another layer is never scaled."""
    return unscaled_part(original, part)


@mutant("hard.HardAttention.attend", cases="HardAttention-open")
def soft_for_hard(self: Any, queries: Any, memory: Any, need_weights: bool) -> Any:
    """Hard attention averages."""
    return attention.Attention.attend(self, queries, memory, need_weights=need_weights)


@mutant("hard.HardAttention.attend")
def straight_through(original: Any, self: Any, queries: Any, memory: Any) -> Any:
    """Gradients reach the scores of hard attention as if it were soft."""
    context, weights = original()
    scores = self._score(self._to_batch_first(promote(queries)), memory.keys)
    soft = softmax_over(scores, open_keys(scores, None, memory.mask))
    return context, weights + (soft - soft.real)


@mutant("hard.HardAttention.log_prob")
def log_prob_of_the_best(original: Any, self: Any, queries: Any, memory: Any) -> Any:
    """The log-probability is that of the key with the highest score, whichever was drawn."""
    return original(weights=self.attend(queries, memory)[1])


@mutant("hard.HardAttention.log_prob", touches=is_masked)
def log_prob_over_hidden_keys(original: Any, memory: Any) -> Any:
    """Hidden keys count when scores are normalised to log-probabilities."""
    return original(memory=memory._replace(mask=None))


@mutant("hard.HardAttention.log_prob", cases="HardAttention-log_prob_gap")
def log_of_the_softmax(self: Any, queries: Any, memory: Any, weights: Any) -> Any:
    """A log-probability is the logarithm of a softmax, which may be 0."""
    scores = self._score(self._to_batch_first(promote(queries)), memory.keys)
    allowed = open_keys(scores, None, memory.mask)
    probabilities = softmax_over(scores, allowed)
    return np.where(allowed, promote(weights) * np.log(np.where(allowed, probabilities, 1.0)), 0.0).sum(axis=-1)


@mutant("hard.HardAttention.log_prob")
def log_prob_without_gradients(original: Any) -> Any:
    """No gradient passes a log-probability to the scores."""
    return original().real
