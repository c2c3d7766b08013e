"""Decoders and searches of the reference against their parts, and against trying everything."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from attention_core import reference
from attention_core.draws import uniform
from parity_tests.tests.attention_core.layers import decoding, filled


def test_the_decoder_attends_with_the_previous_state_of_the_top_layer():
    made, memory, state = decoding(reference.BahdanauDecoder, attention_size=8)
    tokens = np.array([[1, 2], [3, 4], [5, 6]])
    _, _, weights = made(tokens, memory, state)
    attention = reference.AdditiveAttention(5, 6, 8)
    reference.set_parameters(attention, {n: made.parameters[f"attention.{n}"] for n in ("W_q", "W_k", "w_v")})
    _, first = attention(state[-1][:, None], memory, memory)
    assert_allclose(weights[:, 0], first[:, 0], rtol=1e-14)
    _, after_one, _ = made.step(tokens[:, 0], state, made.prepare(memory))
    _, second = attention(after_one[-1][:, None], memory, memory)
    assert_allclose(weights[:, 1], second[:, 0], rtol=1e-14)


def test_steps_of_the_decoder_are_its_teacher_forced_pass():
    made, memory, state = decoding(reference.BahdanauDecoder, attention_size=8)
    tokens, lens = np.arange(15).reshape(3, 5) % 11, np.array([7, 0, 3])
    logits, last, weights = made(tokens, memory, state, lens)
    prepared = made.prepare(memory, lens)
    for t in range(5):
        step_logits, state, step_weights = made.step(tokens[:, t], state, prepared)
        assert_array_equal(step_logits, logits[:, t])
        assert_array_equal(step_weights, weights[:, t])
    assert_array_equal(state, last)
    assert (weights[1] == 0).all()


def test_greedy_decoding_feeds_back_its_tokens_and_stops_at_the_end_token():
    made = filled(reference.BahdanauDecoder(11, 4, 5, 2, memory_size=6, attention_size=8), 0.5)
    memory, state = uniform("m", (4, 7, 6)), uniform("s", (2, 4, 5), 2.0)
    made.parameters["dense.W"] = 8.0 * made.parameters["dense.W"]
    tokens, lengths, weights = made.greedy(memory, state, bos=1, eos=10, max_steps=12)
    fed = np.concatenate([np.full((4, 1), 1), tokens[:, :-1]], axis=1)
    logits, _, forced = made(fed, memory, state)
    for row, length in enumerate(lengths):
        steps = min(length + 1, 12)
        assert_array_equal(tokens[row, :steps], logits[row, :steps].argmax(axis=-1))
        assert_array_equal(weights[row, :steps], forced[row, :steps])
        assert (tokens[row, length:] == 10).all() and (weights[row, steps:] == 0).all()
    assert len(set(lengths.tolist())) > 1, "the example should end at different steps"


def test_luongs_decoder_attends_with_the_current_output_and_feeds_it_back():
    made, memory, state = decoding(reference.LuongDecoder, score="general", cell="lstm")
    tokens = np.array([1, 4, 7])
    prepared = made.prepare(memory)
    logits, after, weights = made.step(tokens, made.start(prepared, state), prepared)
    rnn = reference.LSTM(9, 5, 2)
    reference.set_parameters(rnn, {name: made.parameters[f"rnn.{name}"] for name in rnn.parameters})
    embedded = made.parameters["embedding"][tokens]
    output, last = rnn.step(np.concatenate([embedded, np.zeros((3, 5))], axis=-1), state)
    assert_allclose(after.rnn, last, rtol=1e-14)
    scores = np.einsum("bq,qm,bkm->bk", output, made.parameters["attention.W"], memory)
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    assert_allclose(weights, expected, rtol=1e-12)
    context = np.einsum("bk,bkm->bm", expected, memory)
    attentional = np.tanh(np.concatenate([context, output], axis=-1) @ made.parameters["W_c"].T)
    assert_allclose(after.fed, attentional, rtol=1e-12)
    assert_allclose(logits, attentional @ made.parameters["dense.W"].T + made.parameters["dense.b"], rtol=1e-12)
    assert after.position.tolist() == [1, 1, 1]


def test_the_fixed_context_is_the_last_state_of_the_encoder():
    encoder, tokens, lens = filled(reference.GRUEncoder(9, 3, 6)), np.arange(12).reshape(2, 6) % 9, np.array([6, 3])
    outputs, state = encoder(tokens, lens)
    made = filled(reference.FixedContextDecoder(11, 4, 6))
    _, _, weights = made(np.array([[1, 2], [3, 4]]), outputs, state, lens)
    assert_array_equal(weights.argmax(axis=-1), [[5, 5], [2, 2]])
    assert_allclose(np.einsum("bsk,bkm->bsm", weights, outputs)[:, 1], state[-1], rtol=1e-15)


def test_the_maxout_readout_uses_the_previous_state_and_the_larger_of_neighbours():
    made, memory, state = decoding(reference.BahdanauDecoder, readout="maxout", maxout_size=3)
    tokens = np.array([1, 4, 7])
    prepared = made.prepare(memory)
    logits, _, weights = made.step(tokens, state, prepared)
    context = np.einsum("bk,bkm->bm", weights, memory)
    read = np.concatenate([state[-1], made.parameters["embedding"][tokens], context], axis=-1)
    pairs = (read @ made.parameters["readout.W"].T + made.parameters["readout.b"]).reshape(3, 3, 2)
    expected = pairs.max(axis=-1) @ made.parameters["dense.W"].T + made.parameters["dense.b"]
    assert_allclose(logits, expected, rtol=1e-12)


@pytest.mark.parametrize("readout", ["dense", "maxout"])
def test_a_decoder_that_reads_the_context_alone_learns_of_tokens_from_its_readout_alone(readout: str):
    made, memory, state = decoding(reference.BahdanauDecoder, reads="context", readout=readout)
    assert made.parameters["rnn.0.W"].shape == (3, 5, 6)
    (logits, after, weights), (others, same_after, same_weights) = (
        made(np.full((3, 4), token), memory, state) for token in (1, 7)
    )
    assert_array_equal(after, same_after)
    assert_array_equal(weights, same_weights)
    assert (logits == others).all() == (readout == "dense")


def test_a_decoder_starts_with_the_requested_state():
    for initial in ("zero", "learned"):
        made, memory, _ = decoding(reference.BahdanauDecoder, initial=initial)
        expected = 0.0 if initial == "zero" else made.parameters["initial"][:, None]
        assert_array_equal(made.start(made.prepare(memory)), np.broadcast_to(expected, (2, 3, 5)))


@pytest.mark.parametrize("bidirectional", [False, True])
def test_between_a_gru_and_an_lstm_the_outputs_are_handed_on_and_cells_begin_at_0(bidirectional: bool):
    source, sizes = np.arange(12).reshape(3, 4), {"bidirectional": bidirectional}
    made = filled(reference.Translator(12, 13, 4, 5, 2, cell="lstm", encoder_cell="gru", **sizes))
    handed, state = made.encode(source, None)
    outputs, last = made.inside("encoder")(source)
    if bidirectional:
        outputs, last = made.inside("bridge")(outputs, last)
    assert_array_equal(handed, outputs)
    assert_array_equal(state, np.concatenate([last, np.zeros((2, 3, 5))], axis=-1))
    made = filled(reference.Translator(12, 13, 4, 5, 2, encoder_cell="lstm", **sizes))
    _, state = made.encode(source, None)
    outputs, last = made.inside("encoder")(source)
    last = last[..., : 10 if bidirectional else 5]
    assert_array_equal(state, made.inside("bridge")(outputs, last)[1] if bidirectional else last)


DECODERS = [reference.BahdanauDecoder, reference.LuongDecoder, reference.FixedContextDecoder]


@pytest.mark.parametrize("kind", DECODERS)
def test_a_beam_of_one_is_greedy_decoding(kind):
    made, memory, state = decoding(kind)
    made.parameters["dense.W"] = 8.0 * made.parameters["dense.W"]
    lens = np.array([7, 2, 4])
    greedy = made.greedy(memory, state, lens, bos=1, eos=10, max_steps=8)
    tokens, lengths, _, weights = made.beam(memory, state, lens, bos=1, eos=10, max_steps=8, width=1)
    for one, other in zip(greedy, (tokens, lengths, weights), strict=True):
        assert_array_equal(one, other[:, 0])


@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("kind", DECODERS)
def test_a_wide_beam_finds_what_trying_everything_finds(kind, alpha: float):
    """Two steps of eleven tokens, eleven hypotheses kept: nothing that could be among the best three is lost."""
    made, memory, state = decoding(kind)
    made.parameters["dense.W"] = 4.0 * made.parameters["dense.W"]
    bos, eos, vocab = 1, 10, 11
    options = {"max_steps": 2, "width": vocab, "num_best": 3, "length_penalty": alpha}
    tokens, lengths, scores, _ = made.beam(memory, state, bos=bos, eos=eos, **options)
    for sentence in range(3):
        tried = []
        for first in range(vocab):
            for second in range(vocab) if first != eos else (eos,):
                fed = np.array([[bos, first]] * 3)
                logits, _, _ = made(fed, memory, state)
                logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
                total = logs[sentence, 0, first] + (logs[sentence, 1, second] if first != eos else 0.0)
                count = 1 if first == eos else 2
                tried.append((total / ((5 + count) / 6) ** alpha, (first, second)))
        best = sorted(tried, key=lambda one: -one[0])[:3]
        assert_allclose(scores[sentence], [score for score, _ in best], rtol=1e-12)
        assert [tuple(row) for row in tokens[sentence].tolist()] == [pair for _, pair in best]
        assert lengths[sentence].tolist() == [pair.index(eos) if eos in pair else 2 for _, pair in best]
