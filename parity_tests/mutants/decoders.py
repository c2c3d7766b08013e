"""Wrong decoders and searches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from attention_core.reference.arrays import promote
from parity_tests.cases.case import Arrays, Case
from parity_tests.cases.decoders import DECODER
from parity_tests.mutants.mutant import Break, mutant
from parity_tests.mutants.shared import called_with, unscaled_parts, where_all, with_sizes


def _started(change: Callable[[Any, Any], Any]) -> Break:
    """A start that gives another state, made of the layer and the right one."""

    def wrong(original: Any) -> Any:
        return lambda self, *arrays, **given: change(self, original(self, *arrays, **given))

    return wrong


def _stepped(change: Callable[[Any], Any]) -> Break:
    """A step of Luong's decoder that reads another state."""

    def wrong(original: Any) -> Any:
        def advance(self: Any, embedded: Any, state: Any, *rest: Any) -> Any:
            return original(self, embedded, change(state), *rest)

        return advance

    return wrong


def _last_of_equal_tokens(original: Any) -> Any:
    def greedy(self: Any, *arrays: Any, bos: int, eos: int, **options: Any) -> Any:
        given, last = self.parameters, self.sizes["vocab_size"] - 1
        rows = {name: given[name][::-1] for name in ("embedding", "dense.W", "dense.b")}
        self.parameters = {**given, **rows}  # argmax takes the first: of the tokens in reverse
        tokens, *rest = original(self, *arrays, bos=last - bos, eos=last - eos, **options)
        self.parameters = given
        return ((last - tokens).astype(np.int32), *rest)

    return greedy


class _LastFirst:
    """NumPy, but of two equal numbers the last is sorted first."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def argsort(self, array: Any, **options: Any) -> Any:
        return array.shape[-1] - 1 - np.argsort(array[..., ::-1], **options)


def _greedy(change: Callable[..., tuple[Any, Any, Any]]) -> Break:
    def wrong(original: Any) -> Any:
        return lambda self, *arrays, **options: change(*original(self, *arrays, **options), options["eos"])

    return wrong


DECODING = tuple(f"BahdanauDecoder-{name}" for name in ("none", "one_key", "no_keys", "greedy"))


LUONG_STEPS = ("LuongDecoder-open", "LuongDecoder-not_fed", "LuongDecoder-no_steps")


def _memory_is_ragged(case: Case, inputs: Arrays) -> bool:
    lens, outputs = inputs.get("valid_lens"), inputs.get("encoder_outputs")
    if case.operator not in ("BahdanauDecoder", "LuongDecoder") or lens is None or outputs is None:
        return False
    return lens.ndim == 1 and bool((lens < outputs.shape[-2]).any())


@mutant(
    DECODING,
    of="decoders.BahdanauDecoder.step",
    red=("BahdanauDecoder-none:*", "BahdanauDecoder-greedy:weights"),
    green="*:gradient_dense.b",
)
def query_after_step(original: Any) -> Any:
    """The query is the current state instead of the previous one."""

    def step(self: Any, tokens: Any, state: Any, memory: Any, **masks: Any) -> Any:
        _, after, _ = original(self, tokens, state, memory, **masks)
        attend = self.attention.attend

        def later(queries: Any, memory: Any, *, dropout_mask: Any = None) -> Any:
            return attend(after[..., -1, :, None, :], memory, dropout_mask=dropout_mask)

        with mock.patch.object(self.attention, "attend", later):
            return original(self, tokens, state, memory, **masks)

    return step


@mutant(
    ("BahdanauDecoder-none", "BahdanauDecoder-no_keys"),
    of="attention.AdditiveAttention.attend",
    red="BahdanauDecoder-none:gradient_*",
    green="*:gradient_dense.*",
)
def query_detached(original: Any) -> Any:
    """The backward of all steps leaves out what reaches a state as the query of the next step.

    The state as a query passes no gradient on.
    """

    def attend(self: Any, queries: Any, memory: Any, **given: Any) -> Any:
        return original(self, promote(queries).real, memory, **given)

    return attend


@mutant(
    DECODING,
    of="recurrent.GRU.step",
    red="*:*",
    green=(
        "*:gradient_dense.b",
        *(
            f"BahdanauDecoder-{name}:{part}"
            for name in ("one_key", "no_keys")
            for part in ("weights", "gradient_attention.*")
        ),
        "BahdanauDecoder-no_keys:gradient_encoder_outputs",
    ),
)
def context_last(original: Any) -> Any:
    """The decoder's input is [embedding; context]."""

    def step(self: Any, inputs: Any, state: Any, *, dropout_mask: Any = None) -> Any:
        return original(self, np.roll(inputs, DECODER["embed_size"], axis=-1), state, dropout_mask=dropout_mask)

    return step


@mutant(DECODING, of="decoders.linear", red=("*:logits", "*:gradient_dense.b", "BahdanauDecoder-greedy:*"))
def readout_without_bias(original: Any) -> Any:
    """The readout has no bias."""
    return lambda inputs, weight, bias=None: original(inputs, weight)


@mutant(
    "BahdanauDecoder-greedy", of="decoders.BahdanauDecoder.greedy", via=_greedy, red="BahdanauDecoder-greedy:lengths"
)
def end_token_counted(tokens: Any, lengths: Any, weights: Any, eos: int) -> tuple[Any, Any, Any]:
    """The length of a decoded sequence counts its end token."""
    return tokens, lengths + (tokens == eos).any(axis=1).astype(lengths.dtype), weights


@mutant(
    "BahdanauDecoder-greedy", of="decoders.BahdanauDecoder.greedy", via=_greedy, red="BahdanauDecoder-greedy:tokens"
)
def padded_with_zero(tokens: Any, lengths: Any, weights: Any, eos: int) -> tuple[Any, Any, Any]:
    """What follows the end token is 0."""
    return np.where(np.arange(tokens.shape[1]) <= lengths[:, None], tokens, 0).astype(np.int32), lengths, weights


@mutant(
    ("BahdanauDecoder-maxout", "BahdanauDecoder-one_step"),
    of="decoders.linear",
    red="BahdanauDecoder-maxout:*",
    green=("*:state", "*:weights", "*:gradient_dense.b"),
)
def maxout_of_halves(original: Any) -> Any:
    """The maxout readout takes the larger of two halves, not of two neighbours.

    The readout whose pairs are the two halves, as where a matrix is split in two.
    """

    def call(inputs: Any, weight: Any, bias: Any = None) -> Any:
        outputs = original(inputs, weight, bias)
        if weight.shape[-1] != inputs.shape[-1] or weight.shape[-1] < 12:
            return outputs
        first, second = np.split(outputs, 2, axis=-1)
        return np.stack([first, second], axis=-1).reshape(outputs.shape)

    return call


@mutant(
    "*Decoder-initial_*",
    of="decoders.Decoder.start",
    via=_started,
    red="*Decoder-initial_learned:*",
    green=(
        "*:gradient_dense.b",
        "FixedContextDecoder-initial_learned:weights",
        "LuongDecoder-initial_learned:state.position",
    ),
)
def learned_start_lost(layer: Any, state: Any) -> Any:
    """A decoder whose first state is learned starts at 0."""
    return state * 0.0 if layer.sizes["initial"] == "learned" else state


@mutant(
    "*Decoder-initial_*",
    of="decoders.Decoder.start",
    via=_started,
    red="*Decoder-initial_zero:*",
    green=(
        "*:gradient_dense.b",
        "FixedContextDecoder-initial_zero:weights",
        "LuongDecoder-initial_zero:state.position",
    ),
)
def zero_start_ignored(layer: Any, state: Any) -> Any:
    """A decoder that should start at 0 does not."""
    return state + 0.5 if layer.sizes["initial"] == "zero" else state


@mutant(
    LUONG_STEPS,
    of="decoders.LuongDecoder.advance",
    red=("LuongDecoder-open:*", "LuongDecoder-not_fed:*"),
    green=("*:gradient_dense.b", "*:state.position", "LuongDecoder-not_fed:state.rnn"),
)
def query_before_step(original: Any) -> Any:
    """Luong's decoder attends with the previous state.

    Luong's decoder with the query of Bahdanau's.
    """

    def advance(
        self: Any, embedded: Any, state: Any, memory: Any, dropout_mask: Any, attention_dropout_mask: Any
    ) -> Any:
        attend, hidden = self.attention.attend, self.sizes["hidden_size"]

        def earlier(queries: Any, memory: Any, **given: Any) -> Any:
            return attend(state.rnn[..., -1, :, None, :hidden], memory, **given)

        with mock.patch.object(self.attention, "attend", earlier):
            return original(self, embedded, state, memory, dropout_mask, attention_dropout_mask)

    return advance


@mutant(
    LUONG_STEPS,
    of="decoders.LuongDecoder.advance",
    via=_stepped,
    red="LuongDecoder-open:*",
    green=("*:gradient_dense.b", "*:state.position"),
)
def nothing_fed(state: Any) -> Any:
    """Luong's decoder does not feed back its attentional vector."""
    return state._replace(attentional=np.zeros_like(state.attentional))


@mutant(
    LUONG_STEPS,
    of="decoders.joined",
    red=("LuongDecoder-open:*", "LuongDecoder-not_fed:*"),
    green=(
        "*:gradient_dense.b",
        "*:state.position",
        "LuongDecoder-not_fed:state.rnn",
        "LuongDecoder-not_fed:weights",
    ),
)
def output_before_context(original: Any) -> Any:
    """W_c reads the top output first, then the context."""
    return lambda *arrays: original(*reversed(arrays))


@mutant(
    ("LuongDecoder-monotonic", "LuongDecoder-no_steps"),
    of="decoders.LuongDecoder.advance",
    red="LuongDecoder-monotonic:*",
    green="*:gradient_dense.b",
)
def position_stands(original: Any) -> Any:
    """The window of Luong's decoder stays where it began."""

    def advance(self: Any, embedded: Any, state: Any, *rest: Any) -> Any:
        features, after, weights = original(self, embedded, state, *rest)
        return features, after._replace(position=state.position), weights

    return advance


@mutant(
    ("FixedContextDecoder-ragged", "FixedContextDecoder-one_key", "FixedContextDecoder-no_keys"),
    of="decoders.FixedContextDecoder.advance",
    red="FixedContextDecoder-ragged:*",
    green=("*:weights", "*:gradient_dense.b"),
)
def mean_for_last(original: Any) -> Any:
    """The fixed context is the mean of the encoder's outputs."""

    def advance(self: Any, embedded: Any, state: Any, memory: Any, *rest: Any) -> Any:
        mask = memory.mask
        count = memory.values.shape[-2] if mask is None else mask.sum(axis=-1)[..., None]
        total = memory.values.sum(axis=-2, keepdims=True)
        mean = np.broadcast_to(total / np.maximum(count, 1), memory.values.shape)
        return original(self, embedded, state, memory._replace(values=mean), *rest)

    return advance


@mutant("BahdanauDecoder-beam*", of="decoders.penalty", red="BahdanauDecoder-beam_penalty:scores")
def penalty_ignored(original: Any) -> Any:
    """Hypotheses are ranked by the sum of their logarithms alone."""
    return lambda lengths, length_penalty: original(lengths, 0.0)


@mutant("BahdanauDecoder-beam*", of="decoders.penalty", red="BahdanauDecoder-beam_penalty:*")
def mean_for_penalty(original: Any) -> Any:
    """Hypotheses are ranked by a power of their length."""
    return lambda lengths, length_penalty: np.maximum(lengths, 1.0) ** length_penalty


@mutant(
    ("*Decoder-greedy", "*Decoder-beam*", "*Decoder-tie_*"),
    red=("*Decoder-tie_*:tokens", "*Decoder-tie_*:weights", "*Decoder-tie_end:*"),
    green=("FixedContextDecoder-tie_greedy:weights", "*-tie_beam:weights"),
)
def last_of_ties() -> Mapping[str, Break]:
    """Of equal tokens and hypotheses, decoding takes the last."""
    return {"decoders.Decoder.greedy": _last_of_equal_tokens, "decoders.np": lambda original: _LastFirst()}


@mutant(
    ("BahdanauDecoder-beam", "LuongDecoder-beam", "BahdanauDecoder-greedy"),
    of=("decoders.Decoder.reordered", "decoders.LuongDecoder.reordered"),
    red=("*-beam:scores", "*-beam:weights", "LuongDecoder-beam:tokens"),
    source="huggingface/transformers#46612",
)
def states_not_reordered(original: Any) -> Any:
    """A hypothesis goes on from the state of another."""

    def reordered(self: Any, state: Any, rows: Any) -> Any:
        first = state[0] if isinstance(state, tuple) else state
        return original(self, state, rows) if first.shape[-2] != len(rows) else state

    return reordered


@mutant(
    ("BahdanauDecoder-beam*", "LuongDecoder-beam"),
    of="decoders.Decoder.beam",
    red="*-beam*:*",
    source="facebookresearch/ParlAI#2047",
)
def width_of_one(original: Any) -> Any:
    """Beam search keeps one hypothesis, and gives it as all of the best."""

    def beam(self: Any, *arrays: Any, num_best: int = 1, width: int, **options: Any) -> Any:
        found = original(self, *arrays, num_best=1, width=1, **options)
        return tuple(np.repeat(array, num_best, axis=1) for array in found)

    return beam


@mutant(
    ("BahdanauDecoder-score_scaled_dot", "BahdanauDecoder-score_dot"),
    of="decoders.attention_layer",
    red="BahdanauDecoder-score_scaled_dot:*",
    green="*:gradient_dense.b",
)
def decoder_score_unscaled(original: Any) -> Any:
    """The score of a decoder's attention is never scaled."""
    return unscaled_parts(original)


@mutant(
    ("*Decoder-lstm", "BahdanauDecoder-one_step"),
    of="recurrent.LSTM.step",
    red="*Decoder-lstm:*",
    green=("*:gradient_dense.b", "*:state.position", "FixedContextDecoder-lstm:weights"),
)
def cells_lost(original: Any) -> Any:
    """The cells of a decoder's LSTM begin at 0 in every step."""

    def step(self: Any, inputs: Any, state: Any, **given: Any) -> Any:
        outputs = np.arange(state.shape[-1]) < state.shape[-1] // 2
        return original(self, inputs, np.where(outputs, state, 0.0), **given)

    return step


@mutant(("BahdanauDecoder-greedy", "LuongDecoder-greedy"), of="decoders.Decoder.greedy", red="*-greedy:weights")
def bos_ignored(original: Any) -> Any:
    """Greedy decoding begins with token 0."""
    return called_with(bos=0)(original)


@mutant(
    ("LuongDecoder-predictive", "LuongDecoder-open"),
    of="local.LocalAttention.attend",
    red="LuongDecoder-predictive:*",
    green=("*:gradient_dense.b", "*:state.position"),
)
def window_everywhere(original: Any) -> Any:
    """A predicted window of Luong's decoder is as wide as the sequence."""
    return with_sizes(window=lambda sizes: 50)(original)


@mutant(
    ("BahdanauDecoder-*ragged", "BahdanauDecoder-none", "LuongDecoder-ragged", "BahdanauDecoder-beam"),
    of="decoders.Decoder.prepare",
    touches=where_all(_memory_is_ragged),
    source="tensorflow/addons#133",
)
def memory_not_masked(original: Any) -> Any:
    """Encoder outputs behind a sequence's length are set to 0, and attended to.

    Encoder outputs behind a sequence's length are set to 0, and are attended to.
    """

    def prepare(self: Any, encoder_outputs: Any, valid_lens: Any = None, mask: Any = None) -> Any:
        if self.attention is None or valid_lens is None or valid_lens.ndim > 1:
            return original(self, encoder_outputs, valid_lens, mask)
        real = np.arange(encoder_outputs.shape[-2]) < valid_lens[:, None]
        return original(self, np.where(real[..., None], encoder_outputs, encoder_outputs.dtype.type(0)), None, mask)

    return prepare


@mutant(
    ("BahdanauDecoder-beam*", "LuongDecoder-beam*"),
    of="decoders.penalty",
    touches=lambda case: case.options.get("length_penalty", 0.0) != 0.0,
    source="huggingface/transformers#26624",
)
def start_counted(original: Any) -> Any:
    """The length penalty counts the start token."""
    return lambda lengths, length_penalty: original(lengths + 1, length_penalty)
