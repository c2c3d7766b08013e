"""Wrong decoders and searches."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.arrays import promote
from parity_tests.cases.decoders import DECODER
from parity_tests.mutants.mutant import Wrong, mutant
from parity_tests.mutants.shared import (
    has_padding,
    has_sizes,
    is_passed,
    is_scaled,
    unscaled_part,
    with_parameters,
    with_sizes,
)


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


DECODERS = "BahdanauDecoder-* LuongDecoder-* FixedContextDecoder-*"


def _is_reordered(state: Any, rows: Any) -> bool:
    """Whether a hypothesis goes on from the state of another."""
    first = state[0] if isinstance(state, tuple) else state
    return first.shape[-2] == len(rows) and bool((rows != np.arange(len(rows))).any())


def _is_ragged(self: Any, encoder_outputs: Any, valid_lens: Any) -> bool:
    """Whether a decoder attends to outputs of which lengths of sequences hide some."""
    by_sequence = self.attention is not None and valid_lens is not None and valid_lens.ndim == 1
    return by_sequence and has_padding(encoder_outputs, valid_lens)


@mutant("decoders.BahdanauDecoder.step")
def query_after_step(original: Any, self: Any) -> Any:
    """The query is the current state instead of the previous one."""
    _, after, _ = original()
    with _queries(self, after[..., -1, :, None, :]):
        return original()


@mutant("attention.AdditiveAttention.attend", cases="BahdanauDecoder-*")
def query_detached(original: Any, queries: Any) -> Any:
    """The backward of all steps leaves out what reaches a state as the query of the next step."""
    return original(queries=promote(queries).real)


@mutant("recurrent.GRU.step", cases="BahdanauDecoder-*")
def context_last(original: Any, inputs: Any) -> Any:
    """The decoder's input is [embedding; context]."""
    return original(inputs=np.roll(inputs, DECODER["embed_size"], axis=-1))


@mutant("recurrent.GRU.step", cases="BahdanauDecoder-context_alone*")
def context_of_zero(original: Any, inputs: Any) -> Any:
    """A decoder that reads the context alone reads nothing."""
    return original(inputs=inputs * 0.0)


@mutant("decoders.linear", cases="BahdanauDecoder-*", touches=is_passed("bias"))
def readout_without_bias(original: Any) -> Any:
    """The readout has no bias."""
    return original(bias=None)


@mutant("decoders.BahdanauDecoder.greedy", unseen="*-tie_greedy *-near_tie_float64")
def end_token_counted(original: Any, eos: int) -> Any:
    """The length of a decoded sequence counts its end token."""
    tokens, lengths, weights = original()
    return tokens, lengths + (tokens == eos).any(axis=1).astype(lengths.dtype), weights


@mutant("decoders.BahdanauDecoder.greedy", unseen="*-tie_greedy *-near_tie_float64")
def padded_with_zero(original: Any) -> Any:
    """What follows the end token is 0."""
    tokens, lengths, weights = original()
    return np.where(np.arange(tokens.shape[1]) <= lengths[:, None], tokens, 0).astype(np.int32), lengths, weights


@mutant("decoders.linear", cases="BahdanauDecoder-maxout", touches=lambda weight: weight.shape[-1] >= 12)
def maxout_of_halves(original: Any) -> Any:
    """The maxout readout takes the larger of two halves, not of two neighbours."""
    return np.stack(np.split(original(), 2, axis=-1), axis=-1).reshape(original().shape)


@mutant("decoders.Decoder.start", cases=DECODERS, touches=has_sizes(initial="learned"))
def learned_start_lost(original: Any) -> Any:
    """A decoder whose first state is learned starts at 0."""
    return original() * 0.0


@mutant("decoders.Decoder.start", cases=DECODERS, touches=has_sizes(initial="zero"))
def zero_start_ignored(original: Any) -> Any:
    """A decoder that should start at 0 does not."""
    return original() + 0.5


@mutant("decoders.LuongDecoder._advance")
def query_before_step(original: Any, self: Any, state: Any) -> Any:
    """Luong's decoder attends with the previous state, as Bahdanau's does."""
    with _queries(self, state.rnn[..., -1, :, None, : self.sizes["hidden_size"]]):
        return original()


@mutant("decoders.LuongDecoder._advance", touches=lambda state: state.fed.any())
def nothing_fed(original: Any, state: Any) -> Any:
    """Luong's decoder feeds back neither its attentional vector nor its context."""
    return original(state=state._replace(fed=np.zeros_like(state.fed)))


@mutant("decoders.LuongDecoder._advance", cases="Translator-luong_context")
def vector_for_context(original: Any) -> Any:
    """Luong's decoder feeds back its attentional vector instead of its context."""
    attentional, after, weights = original()
    return attentional, after._replace(fed=attentional), weights


@mutant("decoders.concatenate", cases="LuongDecoder-*")
def output_before_context(original: Any, arrays: Any) -> Any:
    """W_c reads the top output first, then the context."""
    return original(arrays=arrays[::-1])


@mutant("decoders.LuongDecoder._advance", touches=has_sizes(alignment="monotonic"))
def position_stands(original: Any, state: Any) -> Any:
    """The window of Luong's decoder stays where it began."""
    features, after, weights = original()
    return features, after._replace(position=state.position), weights


@mutant("decoders.FixedContextDecoder._advance")
def mean_for_last(original: Any, memory: Any) -> Any:
    """The fixed context is the mean of the encoder's outputs."""
    count = memory.values.shape[-2] if memory.mask is None else memory.mask.sum(axis=-1)[..., None]
    total = memory.values.sum(axis=-2, keepdims=True)
    mean = np.broadcast_to(total / np.maximum(count, 1), memory.values.shape)
    return original(memory=memory._replace(values=mean))


@mutant("search.penalty", cases="BahdanauDecoder-beam*", touches=lambda length_penalty: length_penalty)
def mean_for_penalty(lengths: Any, length_penalty: float) -> Any:
    """Hypotheses are ranked by a power of their length."""
    return np.maximum(lengths, 1.0) ** length_penalty


@mutant(cases="*Decoder-tie_*")
def last_of_ties() -> Mapping[str, Wrong]:
    """Of equal tokens and hypotheses, decoding takes the last."""
    return {"decoders.Decoder.greedy": _last_of_equal_tokens, "search.first_best": _last_best}


@mutant(
    "decoders.Decoder._reorder",
    "decoders.LuongDecoder._reorder",
    cases="BahdanauDecoder-beam LuongDecoder-beam",
    touches=_is_reordered,
    source="huggingface/transformers#46612",
)
def states_not_reordered(state: Any) -> Any:
    """A hypothesis goes on from the state of another."""
    return state


@mutant("decoders.Decoder.beam", cases="BahdanauDecoder-* LuongDecoder-*", source="facebookresearch/ParlAI#2047")
def width_of_one(original: Any, num_best: int) -> Any:
    """Beam search keeps one hypothesis, and returns it as all of the best."""
    return tuple(np.repeat(array, num_best, axis=1) for array in original(num_best=1, width=1))


@mutant("decoders.attention_layer", cases="BahdanauDecoder-score_*", touches=is_scaled)
def decoder_score_unscaled(original: Any, part: Any) -> Any:
    """The score of a decoder's attention is never scaled."""
    return unscaled_part(original, part)


@mutant("recurrent.LSTM.step", cases="*Decoder-lstm")
def cells_lost(original: Any, state: Any) -> Any:
    """The cells of a decoder's LSTM begin at 0 in every step."""
    return original(state=np.where(np.arange(state.shape[-1]) < state.shape[-1] // 2, state, 0.0))


@mutant("local.LocalAttention.attend", cases="LuongDecoder-predictive")
def window_everywhere(original: Any, self: Any) -> Any:
    """A predicted window of Luong's decoder is as wide as the sequence."""
    with with_sizes(self, window=50):
        return original()


@mutant(
    "decoders.Decoder.prepare",
    cases="BahdanauDecoder-* LuongDecoder-*",
    touches=_is_ragged,
    source="tensorflow/addons#133",
)
def memory_not_masked(original: Any, encoder_outputs: Any, valid_lens: Any) -> Any:
    """Encoder outputs behind a sequence's length are set to 0, and attended to."""
    real = (np.arange(encoder_outputs.shape[-2]) < valid_lens[:, None])[..., None]
    return original(encoder_outputs=np.where(real, encoder_outputs, encoder_outputs.dtype.type(0)), valid_lens=None)


@mutant(
    "search.penalty",
    cases="BahdanauDecoder-* LuongDecoder-*",
    touches=lambda length_penalty: length_penalty,
    source="huggingface/transformers#26624",
)
def start_counted(original: Any, lengths: Any) -> Any:
    """The length penalty counts the start token."""
    return original(lengths=lengths + 1)
