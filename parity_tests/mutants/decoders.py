"""Wrong decoders and searches."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.arrays import promote
from parity_tests.cases.decoders import DECODER
from parity_tests.format.case import Arrays, Case
from parity_tests.mutants.mutant import Wrong, mutant
from parity_tests.mutants.shared import unscaled_part, where_all, with_parameters, with_sizes


def _queries(decoder: Any, queries: Any) -> AbstractContextManager[Any]:
    """Within the context, a decoder's attention has other queries."""
    attend = decoder.attention.attend
    return mock.patch.object(decoder.attention, "attend", lambda _, memory, **given: attend(queries, memory, **given))


def _last_of_equal_tokens(original: Any, self: Any, bos: int, eos: int) -> Any:
    """Greedy decoding of a vocabulary in reverse, since argmax takes the first of equal tokens."""
    last = self.sizes["vocab_size"] - 1
    reverse = {name: self.parameters[name][::-1] for name in ("embedding", "dense.W", "dense.b")}
    with with_parameters(self, **reverse):
        tokens, *rest = original(bos=last - bos, eos=last - eos)
    return ((last - tokens).astype(np.int32), *rest)


def _last_best(original: Any, ranked: Any) -> Any:
    """Of equal hypotheses, the last is the best."""
    return ranked.shape[-1] - 1 - original(ranked=ranked[..., ::-1])


DECODING = "BahdanauDecoder-{none,one_key,no_keys,greedy}"
LUONG_STEPS = "LuongDecoder-{open,not_fed,no_steps}"


def _memory_is_ragged(case: Case, inputs: Arrays) -> bool:
    lens, outputs = inputs.get("valid_lens"), inputs.get("encoder_outputs")
    if case.operator not in ("BahdanauDecoder", "LuongDecoder") or lens is None or outputs is None:
        return False
    return lens.ndim == 1 and bool((lens < outputs.shape[-2]).any())


@mutant(
    DECODING,
    of="decoders.BahdanauDecoder.step",
    red="BahdanauDecoder-{none:*,greedy:weights}",
    green="*:gradient_dense.b",
)
def query_after_step(original: Any, self: Any) -> Any:
    """The query is the current state instead of the previous one."""
    _, after, _ = original()
    with _queries(self, after[..., -1, :, None, :]):
        return original()


@mutant(
    "BahdanauDecoder-{none,no_keys}",
    of="attention.AdditiveAttention.attend",
    red="BahdanauDecoder-none:gradient_*",
    green="*:gradient_dense.*",
)
def query_detached(original: Any, queries: Any) -> Any:
    """The backward of all steps leaves out what reaches a state as the query of the next step."""
    return original(queries=promote(queries).real)


@mutant(
    DECODING,
    of="recurrent.GRU.step",
    red="*:*",
    green=(
        "*:gradient_dense.b BahdanauDecoder-{one_key,no_keys}:{weights,gradient_attention.*} "
        "BahdanauDecoder-no_keys:gradient_encoder_outputs"
    ),
)
def context_last(original: Any, inputs: Any) -> Any:
    """The decoder's input is [embedding; context]."""
    return original(inputs=np.roll(inputs, DECODER["embed_size"], axis=-1))


@mutant(
    "BahdanauDecoder-{context_alone*,none}",
    of="recurrent.GRU.step",
    red="BahdanauDecoder-context_alone*:*",
    green="*:gradient_{dense.b,readout.b,embedding}",
)
def context_of_zero(original: Any, self: Any, inputs: Any) -> Any:
    """A decoder that reads the context alone reads nothing."""
    return original(inputs=inputs * 0.0) if self.sizes["input_size"] == DECODER["memory_size"] else original()


@mutant(DECODING, of="decoders.linear", red="*:{logits,gradient_dense.b} BahdanauDecoder-greedy:*")
def readout_without_bias(original: Any) -> Any:
    """The readout has no bias."""
    return original(bias=None)


@mutant("BahdanauDecoder-greedy", of="decoders.BahdanauDecoder.greedy", red="BahdanauDecoder-greedy:lengths")
def end_token_counted(original: Any, eos: int) -> Any:
    """The length of a decoded sequence counts its end token."""
    tokens, lengths, weights = original()
    return tokens, lengths + (tokens == eos).any(axis=1).astype(lengths.dtype), weights


@mutant("BahdanauDecoder-greedy", of="decoders.BahdanauDecoder.greedy", red="BahdanauDecoder-greedy:tokens")
def padded_with_zero(original: Any) -> Any:
    """What follows the end token is 0."""
    tokens, lengths, weights = original()
    return np.where(np.arange(tokens.shape[1]) <= lengths[:, None], tokens, 0).astype(np.int32), lengths, weights


@mutant(
    "BahdanauDecoder-{maxout,one_step}",
    of="decoders.linear",
    red="BahdanauDecoder-maxout:*",
    green="*:{state,weights,gradient_dense.b}",
)
def maxout_of_halves(original: Any, inputs: Any, weight: Any) -> Any:
    """The maxout readout takes the larger of two halves, not of two neighbours."""
    outputs = original()
    if weight.shape[-1] != inputs.shape[-1] or weight.shape[-1] < 12:
        return outputs
    return np.stack(np.split(outputs, 2, axis=-1), axis=-1).reshape(outputs.shape)


@mutant(
    "*Decoder-initial_*",
    of="decoders.Decoder.start",
    red="*Decoder-initial_learned:*",
    green="*:gradient_dense.b FixedContextDecoder-initial_learned:weights LuongDecoder-initial_learned:state.position",
)
def learned_start_lost(original: Any, self: Any) -> Any:
    """A decoder whose first state is learned starts at 0."""
    return original() * 0.0 if self.sizes["initial"] == "learned" else original()


@mutant(
    "*Decoder-initial_*",
    of="decoders.Decoder.start",
    red="*Decoder-initial_zero:*",
    green="*:gradient_dense.b FixedContextDecoder-initial_zero:weights LuongDecoder-initial_zero:state.position",
)
def zero_start_ignored(original: Any, self: Any) -> Any:
    """A decoder that should start at 0 does not."""
    return original() + 0.5 if self.sizes["initial"] == "zero" else original()


@mutant(
    LUONG_STEPS,
    of="decoders.LuongDecoder._advance",
    red="LuongDecoder-{open,not_fed}:*",
    green="*:{gradient_dense.b,state.position} LuongDecoder-not_fed:state.rnn",
)
def query_before_step(original: Any, self: Any, state: Any) -> Any:
    """Luong's decoder attends with the previous state, as Bahdanau's does."""
    with _queries(self, state.rnn[..., -1, :, None, : self.sizes["hidden_size"]]):
        return original()


@mutant(
    "LuongDecoder-{open,not_fed,context_fed,no_steps}",
    of="decoders.LuongDecoder._advance",
    red="LuongDecoder-{open,context_fed}:*",
    green="*:{gradient_dense.b,state.position}",
)
def nothing_fed(original: Any, state: Any) -> Any:
    """Luong's decoder feeds back neither its attentional vector nor its context."""
    return original(state=state._replace(fed=np.zeros_like(state.fed)))


@mutant(
    "Translator-{luong,luong_context}",
    of="decoders.LuongDecoder._advance",
    red="Translator-luong_context:*",
    green="*:gradient_decoder.dense.b",
)
def vector_for_context(original: Any) -> Any:
    """Luong's decoder feeds back its attentional vector instead of its context."""
    attentional, after, weights = original()
    return attentional, after._replace(fed=attentional), weights


@mutant(
    LUONG_STEPS,
    of="decoders.joined",
    red="LuongDecoder-{open,not_fed}:*",
    green="*:{gradient_dense.b,state.position} LuongDecoder-not_fed:{state.rnn,weights}",
)
def output_before_context(original: Any, arrays: Any) -> Any:
    """W_c reads the top output first, then the context."""
    return original(arrays=arrays[::-1])


@mutant(
    "LuongDecoder-{monotonic,no_steps}",
    of="decoders.LuongDecoder._advance",
    red="LuongDecoder-monotonic:*",
    green="*:gradient_dense.b",
)
def position_stands(original: Any, state: Any) -> Any:
    """The window of Luong's decoder stays where it began."""
    features, after, weights = original()
    return features, after._replace(position=state.position), weights


@mutant(
    "FixedContextDecoder-{ragged,one_key,no_keys}",
    of="decoders.FixedContextDecoder._advance",
    red="FixedContextDecoder-ragged:*",
    green="*:{weights,gradient_dense.b}",
)
def mean_for_last(original: Any, memory: Any) -> Any:
    """The fixed context is the mean of the encoder's outputs."""
    count = memory.values.shape[-2] if memory.mask is None else memory.mask.sum(axis=-1)[..., None]
    total = memory.values.sum(axis=-2, keepdims=True)
    mean = np.broadcast_to(total / np.maximum(count, 1), memory.values.shape)
    return original(memory=memory._replace(values=mean))


@mutant("BahdanauDecoder-beam*", of="search.penalty", red="BahdanauDecoder-beam_penalty:*")
def mean_for_penalty(lengths: Any, length_penalty: float) -> Any:
    """Hypotheses are ranked by a power of their length."""
    return np.maximum(lengths, 1.0) ** length_penalty


@mutant(
    "*Decoder-{greedy,beam*,tie_*}",
    red="*Decoder-tie_*:{tokens,weights} *Decoder-tie_end:*",
    green="FixedContextDecoder-tie_greedy:weights *-tie_beam:weights",
)
def last_of_ties() -> Mapping[str, Wrong]:
    """Of equal tokens and hypotheses, decoding takes the last."""
    return {"decoders.Decoder.greedy": _last_of_equal_tokens, "search.first_best": _last_best}


@mutant(
    "BahdanauDecoder-{beam,greedy} LuongDecoder-beam",
    of="decoders.{Decoder,LuongDecoder}._reordered",
    red="*-beam:{scores,weights} LuongDecoder-beam:tokens",
    source="huggingface/transformers#46612",
)
def states_not_reordered(original: Any, state: Any, rows: Any) -> Any:
    """A hypothesis goes on from the state of another."""
    first = state[0] if isinstance(state, tuple) else state
    return original() if first.shape[-2] != len(rows) else state


@mutant(
    "BahdanauDecoder-beam* LuongDecoder-beam",
    of="decoders.Decoder.beam",
    red="*-beam*:*",
    source="facebookresearch/ParlAI#2047",
)
def width_of_one(original: Any, num_best: int) -> Any:
    """Beam search keeps one hypothesis, and returns it as all of the best."""
    return tuple(np.repeat(array, num_best, axis=1) for array in original(num_best=1, width=1))


@mutant(
    "BahdanauDecoder-score_{scaled_dot,dot}",
    of="decoders.attention_layer",
    red="BahdanauDecoder-score_scaled_dot:*",
    green="*:gradient_dense.b",
)
def decoder_score_unscaled(original: Any, part: Any) -> Any:
    """The score of a decoder's attention is never scaled."""
    return unscaled_part(original, part)


@mutant(
    "*Decoder-lstm BahdanauDecoder-one_step",
    of="recurrent.LSTM.step",
    red="*Decoder-lstm:*",
    green="*:{gradient_dense.b,state.position} FixedContextDecoder-lstm:weights",
)
def cells_lost(original: Any, state: Any) -> Any:
    """The cells of a decoder's LSTM begin at 0 in every step."""
    return original(state=np.where(np.arange(state.shape[-1]) < state.shape[-1] // 2, state, 0.0))


@mutant(
    "LuongDecoder-{predictive,open}",
    of="local.LocalAttention.attend",
    red="LuongDecoder-predictive:*",
    green="*:{gradient_dense.b,state.position}",
)
def window_everywhere(original: Any, self: Any) -> Any:
    """A predicted window of Luong's decoder is as wide as the sequence."""
    with with_sizes(self, window=50):
        return original()


@mutant(
    "BahdanauDecoder-{*ragged,none,beam} LuongDecoder-ragged",
    of="decoders.Decoder.prepare",
    touches=where_all(_memory_is_ragged),
    source="tensorflow/addons#133",
)
def memory_not_masked(original: Any, self: Any, encoder_outputs: Any, valid_lens: Any) -> Any:
    """Encoder outputs behind a sequence's length are set to 0, and attended to."""
    if self.attention is None or valid_lens is None or valid_lens.ndim > 1:
        return original()
    real = (np.arange(encoder_outputs.shape[-2]) < valid_lens[:, None])[..., None]
    return original(encoder_outputs=np.where(real, encoder_outputs, encoder_outputs.dtype.type(0)), valid_lens=None)


@mutant(
    "{Bahdanau,Luong}Decoder-beam*",
    of="search.penalty",
    touches=lambda case: case.options.get("length_penalty", 0.0) != 0.0,
    source="huggingface/transformers#26624",
)
def start_counted(original: Any, lengths: Any) -> Any:
    """The length penalty counts the start token."""
    return original(lengths=lengths + 1)
