"""Wrong attention layers with one head."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference import attention, local
from attention_core.reference.arrays import align, promote
from attention_core.reference.masking import biased, open_keys, softmax_over
from attention_core.reference.pooling import average, pool
from parity_tests.format.case import Arrays, Case
from parity_tests.format.expected import computed_gradients, cotangents
from parity_tests.mutants.mutant import ANSWER, mutant
from parity_tests.mutants.shared import NOTHING, last_positions, unscaled_part, with_parameters, with_sizes


@mutant(
    "DotProductAttention-*",
    of="attention.DotProductAttention.attend",
    red="*:*",
    green=NOTHING
    + " DotProductAttention-{none,open,gap_*,one_key,dropout,prepared_none,scale,extended}:*"
    + " DotProductAttention-context_{none,open,one_key,no_*,scale,block}:*"
    + " DotProductAttention-*{large,low}:gradient_[qk]* DotProductAttention-*bias_{hidden,softcap}:*",
)
def prepared_mask_lost(original: Any, memory: Any) -> Any:
    """The mask of a prepared memory is not used."""
    return original(memory=memory._replace(mask=None))


@mutant(
    "DotProductAttention-extended*",
    of="attention.DotProductAttention.extend",
    red="DotProductAttention-extended_{masked,open}:*",
)
def mask_of_the_last_query_kept(original: Any, memory: Any) -> Any:
    """A memory keeps what its last query could attend to, and not what any query could."""
    return original(memory=memory._replace(mask=None if memory.mask is None else memory.mask[..., -1:, :]))


@mutant(
    "DotProductAttention-extended{,_open,_at}",
    of="attention.DotProductAttention.extend",
    red="DotProductAttention-extended_open:*",
)
def open_steps_hidden(original: Any, memory: Any, keys: Any, mask: Any) -> Any:
    """Steps without a mask are hidden where the memory has one."""
    if memory.mask is None or mask is not None:
        return original()
    return original(mask=np.zeros((1, 1, keys.shape[-2]), bool))


@mutant(
    "DotProductAttention-extended*",
    of="attention.DotProductAttention.extend",
    red="DotProductAttention-extended_{at,over,groups}:*",
)
def steps_written_one_late(original: Any, position: Any) -> Any:
    """A step replaces the key behind the one that it should."""
    return original(position=None if position is None else position + 1)


@mutant(
    "DotProductAttention-{softcap,context_softcap,open}",
    of="attention.DotProductAttention.attend",
    red="DotProductAttention-*softcap:*",
)
def softcap_behind_the_mask(original: Any, self: Any) -> Any:
    """Hidden scores are bounded as the others are, and get a weight."""
    bound = self.sizes["softcap"]

    def bounded(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> Any:
        return pool(np.where(allowed, scores, -bound), values, np.ones_like(allowed), dropout_mask)

    with mock.patch.object(attention, "pool", pool if bound is None else bounded):
        return original()


@mutant(
    "DotProductAttention-{bias_softcap,context_bias_softcap,open}",
    of="attention.DotProductAttention.attend",
    red="DotProductAttention-*bias_softcap:*",
)
def bias_bounded_too(original: Any, self: Any, bias: Any) -> Any:
    """A bias is added before scores are bounded."""
    bound, score = self.sizes["softcap"], self._score

    def scored(queries: Any, keys: Any) -> Any:
        with with_sizes(self, softcap=None):
            return bound * np.tanh(biased(score(queries, keys), bias) / bound)

    with mock.patch.object(self, "_score", score if bound is None else scored):
        return original(bias=bias if bound is None else None)


@mutant(
    "{DotProduct,MultiHead}Attention-{groups,open} DotProductAttention-{context_groups,groups_one}",
    of="for_each_head",
    red="*-*groups:*",
    green="*:gradient_b_{k,o}",
)
def key_heads_tiled(original: Any, array: Any, queries: Any) -> Any:
    """Key heads are tiled, not repeated: query head h reads key head h mod key_heads."""
    heads, key_heads = queries.shape[-3], array.shape[-3]
    return original() if heads == key_heads else np.concatenate([array] * (heads // key_heads), axis=-3)


@mutant(
    "{DotProduct,MultiHead}Attention-{bias*,open}",
    of="biased",
    red="*-bias:* *-bias_hidden:*",
    green="*-bias:gradient_{bias,b_k,b_o}",
)
def bias_filled(original: Any, bias: Any) -> Any:
    """A bias of -inf is replaced by a large number: all keys are alike where it hides them all."""
    return original(bias=None if bias is None else np.where(bias == -np.inf, -1e9, bias))


@mutant(
    "{DotProduct,MultiHead}Attention-{bias*,open}",
    of="biased",
    red="*-bias_{keys,heads}:gradient_bias",
    green="*:{context,weights}",
)
def bias_of_the_first_query(original: Any, scores: Any, bias: Any) -> Any:
    """The gradient of a bias that is the same for all queries is that of the first query."""
    result = original()
    if bias is None or bias.shape[-2] > 1 or not np.iscomplexobj(bias):
        return result
    first = (np.arange(scores.shape[-2]) == 0)[:, None]
    return np.where(first, result, original(bias=bias.real))


@mutant("GeneralAttention-{open,no_keys}", of="attention.GeneralAttention._project", red="GeneralAttention-open:*")
def general_identity(original: Any, self: Any) -> Any:
    """The matrix of general attention is the identity."""
    with with_parameters(self, W=np.eye(*self.parameters["W"].shape[-2:])):
        return original()


@mutant(
    "ConcatAttention-{open,no_batch}", of="attention.ConcatAttention._{project,score}", red="ConcatAttention-open:*"
)
def concat_key_first(original: Any, self: Any) -> Any:
    """The columns of the key come first in the matrix of concat attention."""
    with with_parameters(self, W=np.roll(self.parameters["W"], -self.sizes["key_size"], axis=-1)):
        return original()


@mutant(
    "ConcatAttention-{open,with_bias_open}",
    of="attention.ConcatAttention._score",
    red="ConcatAttention-with_bias_open:*",
)
def concat_bias_twice(original: Any, self: Any, keys: Any) -> Any:
    """The bias of concat attention is added to query and key."""
    bias = self.parameters.get("b")
    return original() if bias is None else original(keys=keys + align(bias, 1, keys.ndim))


@mutant(
    "AdditiveAttention-{none,prepared}",
    of="attention.AdditiveAttention._{project,score}",
    red="AdditiveAttention-{none,prepared}:*",
)
def matrices_swapped(original: Any, self: Any) -> Any:
    """W_k projects the queries and W_q the keys."""
    with with_parameters(self, W_q=self.parameters["W_k"], W_k=self.parameters["W_q"]):
        return original()


@mutant(
    "AdditiveAttention-{none,ragged,no_batch}",
    of=ANSWER,
    red="AdditiveAttention-{none,ragged}:gradient_w_v",
)
def score_vector_of_each_sequence(case: Case, answer: Arrays) -> Arrays:
    """The score vector has a row for each sequence of the batch: its gradient is not summed over them."""
    right = answer.get("gradient_w_v")
    if right is None or len(answer["context"]) == 0:
        return answer
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
    "{DotProduct,Additive}Attention-time_major DotProductAttention-open",
    of="attention.Attention._to_batch_first",
    red="*-time_major:*",
)
def time_major_ignored(array: Any) -> Any:
    """Sequences whose time comes first are read as if their batch did."""
    return array


mutant(
    "LocationAttention-{open,one_key,no_*}",
    of="location_score",
    red="LocationAttention-open:*",
    green="*:gradient_keys",
    name="location_of_the_end",
    sentence="Location attention scores the last positions.",
)(last_positions)


@mutant(
    "KernelAttention-{open,constant} NadarayaWatson-ragged",
    of="gaussian_score",
    red="KernelAttention-open:* NadarayaWatson-ragged:*",
)
def width_for_inverse(original: Any, w: Any) -> Any:
    """The parameter is the width itself."""
    return original(w=None if w is None else 1.0 / w)


@mutant("LocalAttention-{open,wide,no_keys}", of="local.LocalAttention.attend", red="LocalAttention-{open,wide}:*")
def window_ignored(original: Any, self: Any) -> Any:
    """The window of local attention is one key wider."""
    with with_sizes(self, window=self.sizes["window"] + 1):
        return original()


@mutant(
    "LocalAttention-{predictive_open,open}",
    of="local.LocalAttention.attend",
    red="LocalAttention-predictive_open:*",
)
def centre_fixed(original: Any, self: Any) -> Any:
    """The predicted window is centred at the position of the query."""
    with with_sizes(self, mode="monotonic"):
        return original()


@mutant(
    "LocalAttention-predictive_{open,lens_and_mask}",
    of="local.LocalAttention.attend",
    red="LocalAttention-predictive_lens_and_mask:*",
)
def length_of_the_padding(original: Any, memory: Any) -> Any:
    """A predicted position is a share of all keys, padding included."""
    with mock.patch.object(local, "open_keys", lambda scores, lens, mask: open_keys(scores, lens, memory.mask)):
        return original(memory=memory._replace(mask=None))


@mutant(
    "LocalAttention-predictive_{open,no_keys}",
    of="pool",
    red="LocalAttention-predictive_open:*",
    green="*:weights",
)
def gaussian_renormalised(scores: Any, values: Any, allowed: Any, dropout_mask: Any) -> Any:
    """Weights under the Gaussian are normalised again in the context."""
    weights = softmax_over(scores, allowed)
    near = weights if dropout_mask is None else weights * dropout_mask
    total = near.sum(axis=-1, keepdims=True)
    return average(near / np.where(total.real == 0.0, 1.0, total), values, allowed), weights


@mutant(
    "*Attention-score_{scaled_dot,dot} MultiHeadAttention-open",
    of="attention_layer",
    red="LocalAttention-score_scaled_dot:* MultiHeadAttention-open:*",
    green="*:gradient_b_{k,v,o}",
)
def score_inside_unscaled(original: Any, part: Any) -> Any:
    """The score inside another layer is never scaled."""
    return unscaled_part(original, part)


@mutant("HardAttention-{open,one_key}", of="hard.HardAttention.attend", red="HardAttention-open:*")
def soft_for_hard(self: Any, queries: Any, memory: Any, need_weights: bool) -> Any:
    """Hard attention averages."""
    return attention.Attention.attend(self, queries, memory, need_weights=need_weights)


@mutant(
    "HardAttention-{open,no_queries}",
    of="hard.HardAttention.attend",
    red="HardAttention-open:gradient_*",
    green="*:gradient_values",
)
def straight_through(original: Any, self: Any, queries: Any, memory: Any) -> Any:
    """Gradients reach the scores of hard attention as if it were soft."""
    context, weights = original()
    scores = self._score(self._to_batch_first(promote(queries)), memory.keys)
    soft = softmax_over(scores, open_keys(scores, None, memory.mask))
    return context, weights + (soft - soft.real)


mutant_of_log_prob = partial(
    mutant,
    "HardAttention-log_prob*",
    of="hard.HardAttention.log_prob",
    green="*:gradient_values *_one_key:* *_no_*:*",
)


@mutant_of_log_prob(red="*:*")
def log_prob_of_the_best(original: Any, self: Any, queries: Any, memory: Any) -> Any:
    """The log-probability is that of the key with the highest score, whichever was drawn."""
    return original(weights=self.attend(queries, memory)[1])


@mutant_of_log_prob(red="*_{fully_masked,hidden_*,heads,time_major}:*")
def log_prob_over_hidden_keys(original: Any, memory: Any) -> Any:
    """Hidden keys count when scores are normalised to log-probabilities."""
    return original(memory=memory._replace(mask=None))


@mutant_of_log_prob(red="*_gap:*")
def log_of_the_softmax(self: Any, queries: Any, memory: Any, weights: Any) -> Any:
    """A log-probability is the logarithm of a softmax, which may be 0."""
    scores = self._score(self._to_batch_first(promote(queries)), memory.keys)
    allowed = open_keys(scores, None, memory.mask)
    probabilities = softmax_over(scores, allowed)
    return np.where(allowed, promote(weights) * np.log(np.where(allowed, probabilities, 1.0)), 0.0).sum(axis=-1)


@mutant_of_log_prob(red="*:gradient_*")
def log_prob_without_gradients(original: Any) -> Any:
    """No gradient passes a log-probability to the scores."""
    return original().real
