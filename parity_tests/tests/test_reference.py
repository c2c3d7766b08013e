"""The reference against facts that do not come from it: papers, arithmetic by hand, and identities."""

from __future__ import annotations

import math

import numpy as np
import pytest

from attention_core import reference
from attention_core.differentiation import gradients
from attention_core.draws import uniform
from attention_core.reference.recurrent import sigmoid

# With all keys equal every open key weighs the same, whatever the weights are: the means of the first 2 and 6 values.
KEYS, LENS = np.ones((2, 10, 2)), np.array([2, 6])
VALUES = np.tile(np.arange(40.0).reshape(1, 10, 4), (2, 1, 1))
CONTEXTS = [[[2.0, 3.0, 4.0, 5.0]], [[10.0, 11.0, 12.0, 13.0]]]


def test_the_textbook_example_of_dot_product_attention():
    context, weights = reference.DotProductAttention()(uniform("q", (2, 1, 2)), KEYS, VALUES, LENS)
    np.testing.assert_allclose(context, CONTEXTS, rtol=1e-14)
    np.testing.assert_allclose(weights[0, 0], [0.5, 0.5] + [0.0] * 8, rtol=1e-14)


def test_the_textbook_example_of_additive_attention():
    layer = reference.AdditiveAttention(20, 2, 8)
    reference.set_parameters(layer, {name: uniform(name, array.shape) for name, array in layer.parameters.items()})
    context, _ = layer(uniform("q", (2, 1, 20)), KEYS, VALUES, LENS)
    np.testing.assert_allclose(context, CONTEXTS, rtol=1e-14)


def test_softmax_by_hand():
    scores = np.log([[[1.0, 2.0, 5.0], [3.0, 1.0, 4.0]]])
    np.testing.assert_allclose(reference.masked_softmax(scores)[0], [[1 / 8, 2 / 8, 5 / 8], [3 / 8, 1 / 8, 4 / 8]])
    np.testing.assert_allclose(
        reference.masked_softmax(scores, np.array([2]))[0], [[1 / 3, 2 / 3, 0], [3 / 4, 1 / 4, 0]]
    )
    np.testing.assert_allclose(
        reference.masked_softmax(scores, mask=np.array([[[True, False, True], [False, False, False]]]))[0],
        [[1 / 6, 0, 5 / 6], [0, 0, 0]],
    )


def test_scores_by_hand():
    queries, keys = np.array([[[1.0, 2.0]]]), np.array([[[3.0, 4.0], [-1.0, 0.5]]])
    np.testing.assert_array_equal(reference.dot_score(queries, keys), [[[11.0, 0.0]]])
    np.testing.assert_allclose(reference.scaled_dot_score(queries, keys), [[[11.0 / math.sqrt(2), 0.0]]])
    np.testing.assert_array_equal(reference.scaled_dot_score(queries, keys, scale=0.25), [[[2.75, 0.0]]])
    expected = [[[2 * math.tanh(4) - 3 * math.tanh(6), 2 * math.tanh(0) - 3 * math.tanh(2.5)]]]
    np.testing.assert_allclose(reference.additive_score(queries, keys, np.array([2.0, -3.0])), expected, rtol=1e-15)


def test_general_attention_is_a_bilinear_form():
    layer = reference.GeneralAttention(2, 3)
    matrix = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 0.0]])
    reference.set_parameters(layer, {"W": matrix})
    query, keys, values = np.array([[[3.0, 5.0]]]), uniform("k", (1, 4, 3)), uniform("v", (1, 4, 2))
    context, weights = layer(query, keys, values)
    scores = np.array([query[0, 0] @ matrix @ key for key in keys[0]])
    np.testing.assert_allclose(weights[0, 0], np.exp(scores) / np.exp(scores).sum(), rtol=1e-14)
    np.testing.assert_allclose(context[0, 0], weights[0, 0] @ values[0], rtol=1e-14)


def test_concat_attention_is_additive_attention_with_the_halves_of_its_matrix():
    concat, additive = reference.ConcatAttention(4, 6, 5), reference.AdditiveAttention(4, 6, 5)
    matrix, v = uniform("W", (5, 10)), uniform("v", (5,))
    reference.set_parameters(concat, {"W": matrix, "v": v})
    reference.set_parameters(additive, {"W_q": matrix[:, :4], "W_k": matrix[:, 4:], "w_v": v})
    arrays = uniform("q", (2, 3, 4)), uniform("k", (2, 7, 6)), uniform("v", (2, 7, 3)), np.array([2, 5])
    for first, second in zip(concat(*arrays), additive(*arrays), strict=True):
        np.testing.assert_array_equal(first, second)


def test_cosine_attention_does_not_see_the_length_of_a_key():
    query, keys, values = uniform("q", (1, 2, 3)), uniform("k", (1, 4, 3)), uniform("v", (1, 4, 2))
    first, _ = reference.CosineAttention(scale=4.0)(query, keys, values)
    longer, _ = reference.CosineAttention(scale=4.0)(query, keys * np.array([[[1.0], [8.0], [0.25], [64.0]]]), values)
    np.testing.assert_allclose(first, longer, rtol=1e-14)
    np.testing.assert_allclose(reference.CosineAttention()(query * 0.0, keys, values)[1], 0.25)


def test_cosines_by_hand():
    queries, keys = np.array([[[3.0, 4.0], [0.0, 0.0]]]), np.array([[[4.0, 3.0], [-8.0, 6.0], [0.0, 0.0]]])
    np.testing.assert_allclose(reference.cosine_score(queries, keys), [[[0.96, 0.0, 0.0], [0.0, 0.0, 0.0]]], atol=1e-16)
    np.testing.assert_allclose(reference.cosine_score(queries, keys, scale=5.0)[0, 0], [4.8, 0.0, 0.0], atol=1e-15)


def test_location_scores_do_not_ask_for_keys():
    queries = np.array([[[0.5, -2.0, 7.0]]])
    np.testing.assert_array_equal(reference.location_score(2, queries), [[[0.5, -2.0]]])


def test_a_gaussian_score_makes_the_weights_of_kernel_regression():
    """Nadaraya-Watson: weights are normalised Gaussians of the distance, of standard deviation 1/w."""
    queries, keys = np.array([[[1.0], [2.0]]]), np.array([[[0.0], [1.5], [4.0]]])
    np.testing.assert_array_equal(reference.gaussian_score(queries, keys)[0, 0], [-0.5, -0.125, -4.5])
    weights = reference.masked_softmax(reference.gaussian_score(queries, keys, np.array(2.0)))
    kernel = np.exp(-0.5 * ((queries - keys.swapaxes(1, 2)) / 0.5) ** 2)
    np.testing.assert_allclose(weights, kernel / kernel.sum(axis=-1, keepdims=True), rtol=1e-14)


def drawn_mask(mask: np.ndarray) -> list[str]:
    return ["".join("#" if is_open else "." for is_open in row) for row in mask[0]]


def test_rules_by_hand():
    assert drawn_mask(reference.causal_mask(3, 5)) == ["#....", "##...", "###.."]
    assert drawn_mask(reference.causal_mask(2, 5, offset=3)) == ["####.", "#####"]
    assert drawn_mask(reference.window_mask(4, 5, left=1, right=2)) == ["###..", "####.", ".####", "..###"]
    assert drawn_mask(reference.block_mask(5, 5, size=2)) == ["##...", "##...", "..##.", "..##.", "....#"]
    assert drawn_mask(reference.block_mask(2, 5, size=2, offset=3)) == ["..##.", "....#"]
    assert drawn_mask(reference.stride_mask(3, 7, stride=3)) == ["#..#..#", ".#..#..", "..#..#."]
    some = reference.global_mask(np.array([[False, True]]), np.array([[True, False, False]]))
    assert drawn_mask(some) == ["#..", "###"]


def test_a_step_with_a_cache_sees_the_row_that_a_full_pass_gives_it():
    for rule, own in (
        (reference.causal_mask, {}),
        (reference.window_mask, {"left": 2, "right": 0}),
        (reference.block_mask, {"size": 3}),
        (reference.stride_mask, {"stride": 2}),
    ):
        full = rule(7, 7, **own)
        for position in range(7):
            np.testing.assert_array_equal(rule(1, 7, **own, offset=position)[0, 0], full[0, position])


def test_rules_combine():
    window, stride = reference.window_mask(6, 6, left=4, right=0), reference.stride_mask(6, 6, stride=2)
    dilated = reference.mask_and(window, stride)
    assert drawn_mask(dilated)[5] == ".#.#.#" and drawn_mask(dilated)[0] == "#....."
    either = reference.mask_or(dilated, reference.global_mask(np.zeros((1, 6), bool), np.arange(6)[None] == 0))
    assert drawn_mask(either)[5] == "##.#.#"
    padded = reference.attention_mask(6, np.array([4]), either)
    assert drawn_mask(padded)[5] == "##.#.."


def test_concat_with_the_halves_of_its_matrix_is_the_additive_score():
    """Luong's concat: vᵀ tanh(W [q; k]) with W = [W_q, W_k] side by side."""
    queries, keys = uniform("q", (2, 3, 4)), uniform("k", (2, 5, 6))
    matrix, w_v = uniform("W", (8, 10)), uniform("v", (8,))
    pairs = np.concatenate(
        [np.broadcast_to(queries[:, :, None, :], (2, 3, 5, 4)), np.broadcast_to(keys[:, None, :, :], (2, 3, 5, 6))],
        axis=-1,
    )
    concat = np.tanh(pairs @ matrix.T) @ w_v
    additive = reference.additive_score(queries @ matrix[:, :4].T, keys @ matrix[:, 4:].T, w_v)
    np.testing.assert_allclose(additive, concat, rtol=1e-13)


def test_pooling_by_hand_with_dropout():
    scores, values = np.log([[[1.0, 3.0]]]), np.array([[[10.0, 0.0], [0.0, 20.0]]])
    context, weights = reference.attention_pooling(scores, values, dropout_mask=np.array([[[0.0, 2.0]]]))
    np.testing.assert_allclose(weights, [[[0.25, 0.75]]])
    np.testing.assert_allclose(context, [[[0.0, 30.0]]])


def test_lengths_become_a_mask():
    mask = reference.attention_mask(4, np.array([2, 0, 9, -1]))
    assert mask.shape == (4, 1, 4) and mask.dtype == bool
    assert mask[:, 0].tolist() == [[True, True, False, False], [False] * 4, [True] * 4, [False] * 4]
    assert reference.attention_mask(4) is None
    both = reference.attention_mask(3, np.array([[1, 3]]), np.array([[[True, True, True], [False, True, True]]]))
    assert both.tolist() == [[[True, False, False], [False, True, True]]]


def test_lengths_apply_to_all_heads():
    mask = np.ones((2, 3, 5, 7), bool)
    combined = reference.attention_mask(7, np.array([2, 4]), mask)
    assert combined.shape == (2, 3, 5, 7)
    assert (combined.sum(axis=-1) == np.array([2, 4])[:, None, None]).all()


def test_a_step_of_a_gated_recurrent_unit_by_hand():
    layer = reference.GRU(1, 1)
    arrays = {"0.W": [0.1, 0.2, 0.3], "0.U": [0.4, 0.5, 0.6], "0.b": [0.7, 0.8, 0.9], "0.b_hn": [-1.0]}
    shapes = layer.specification.shapes(layer.sizes)
    reference.set_parameters(layer, {name: np.reshape(arrays[name], shapes[name]) for name in shapes})
    x, h = 2.0, 0.5
    r = 1 / (1 + math.exp(-(0.1 * x + 0.7 + 0.4 * h)))
    z = 1 / (1 + math.exp(-(0.2 * x + 0.8 + 0.5 * h)))
    n = math.tanh(0.3 * x + 0.9 + r * (0.6 * h - 1.0))
    output, state = layer.step(np.array([[x]]), np.array([[[h]]]))
    np.testing.assert_allclose(output, [[(1 - z) * n + z * h]], rtol=1e-15)
    np.testing.assert_array_equal(state[0], output)


def test_an_update_gate_of_one_keeps_the_state_and_of_zero_forgets_it():
    layer = reference.GRU(1, 1)
    for bias, expected in ((40.0, 0.5), (-40.0, math.tanh(2.0))):
        reference.set_parameters(
            layer,
            {
                "0.W": np.reshape([0.0, 0.0, 1.0], (3, 1, 1)),
                "0.U": np.zeros((3, 1, 1)),
                "0.b": np.array([[0.0], [bias], [0.0]]),
                "0.b_hn": np.zeros(1),
            },
        )
        output, _ = layer.step(np.array([[2.0]]), np.array([[[0.5]]]))
        np.testing.assert_allclose(output, [[expected]], rtol=1e-15)


def decoder(num_layers: int = 2) -> reference.BahdanauDecoder:
    made = reference.BahdanauDecoder(11, 4, 5, num_layers, memory_size=6, attention_size=8)
    reference.set_parameters(made, {name: uniform(name, array.shape, 0.5) for name, array in made.parameters.items()})
    return made


def test_the_decoder_attends_with_the_previous_state_of_the_top_layer():
    made, memory, state = decoder(), uniform("m", (3, 7, 6)), uniform("s", (2, 3, 5))
    tokens = np.array([[1, 2], [3, 4], [5, 6]])
    _, _, weights = made(tokens, memory, state)
    attention = reference.AdditiveAttention(5, 6, 8)
    reference.set_parameters(attention, {n: made.parameters[f"attention.{n}"] for n in ("W_q", "W_k", "w_v")})
    _, first = attention(state[-1][:, None], memory, memory)
    np.testing.assert_allclose(weights[:, 0], first[:, 0], rtol=1e-14)
    _, after_one, _ = made.step(tokens[:, 0], state, made.prepare(memory))
    _, second = attention(after_one[-1][:, None], memory, memory)
    np.testing.assert_allclose(weights[:, 1], second[:, 0], rtol=1e-14)


def test_steps_of_the_decoder_are_its_teacher_forced_pass():
    made, memory, state = decoder(), uniform("m", (3, 7, 6)), uniform("s", (2, 3, 5))
    tokens, lens = np.arange(15).reshape(3, 5) % 11, np.array([7, 0, 3])
    logits, last, weights = made(tokens, memory, state, lens)
    prepared = made.prepare(memory, lens)
    for t in range(5):
        own_logits, state, own_weights = made.step(tokens[:, t], state, prepared)
        np.testing.assert_array_equal(own_logits, logits[:, t])
        np.testing.assert_array_equal(own_weights, weights[:, t])
    np.testing.assert_array_equal(state, last)
    assert (weights[1] == 0).all()


def test_greedy_decoding_feeds_back_its_tokens_and_stops_at_the_end_token():
    made, memory, state = decoder(), uniform("m", (4, 7, 6)), uniform("s", (2, 4, 5), 2.0)
    made.parameters["dense.W"] = 8.0 * made.parameters["dense.W"]
    tokens, lengths, weights = made.greedy(memory, state, bos=1, eos=10, max_steps=12)
    fed = np.concatenate([np.full((4, 1), 1), tokens[:, :-1]], axis=1)
    logits, _, forced = made(fed, memory, state)
    for row, length in enumerate(lengths):
        steps = min(length + 1, 12)
        np.testing.assert_array_equal(tokens[row, :steps], logits[row, :steps].argmax(axis=-1))
        np.testing.assert_array_equal(weights[row, :steps], forced[row, :steps])
        assert (tokens[row, length:] == 10).all() and (weights[row, steps:] == 0).all()
    assert len(set(lengths.tolist())) > 1, "the example should end at different steps"


def test_padded_steps_give_zero_and_leave_the_state_alone():
    layer = reference.GRU(4, 5, 2)
    reference.set_parameters(layer, {name: uniform(name, array.shape) for name, array in layer.parameters.items()})
    inputs, state = uniform("x", (3, 6, 4)), uniform("h", (2, 3, 5))
    outputs, last = layer(inputs, np.array([2, 0, 6]), state)
    assert (outputs[0, 2:] == 0).all() and (outputs[1] == 0).all()
    np.testing.assert_array_equal(last[:, 1], state[:, 1])
    np.testing.assert_array_equal(last[:, 0], layer(inputs[:, :2], None, state)[1][:, 0])


@pytest.mark.parametrize("x", [-800.0, -3.0, 0.0, 0.5, 40.0])
def test_the_sigmoid_is_right_in_both_tails(x: float):
    expected = 1 / (1 + math.exp(-x)) if x > -700 else 0.0
    assert abs(float(sigmoid(np.array(x))) - expected) < 1e-16


def test_complex_step_agrees_with_calculus_and_with_finite_differences():
    x = uniform("x", (3, 4))
    found = gradients(lambda a: (np.tanh(a["x"]),), {"x": x}, {"0": np.ones((3, 4))}, stacked=False)
    np.testing.assert_allclose(found["x"], 1 / np.cosh(x) ** 2, rtol=1e-15)
    scores, factor = uniform("s", (2, 3, 4)), uniform("c", (2, 3, 4))
    exact = gradients(lambda a: (reference.masked_softmax(a["s"]),), {"s": scores}, {"0": factor}, stacked=False)["s"]
    for index in np.ndindex(scores.shape):
        shift = np.zeros_like(scores)
        shift[index] = 1e-6
        difference = (reference.masked_softmax(scores + shift) - reference.masked_softmax(scores - shift)) / 2e-6
        assert abs((difference * factor).sum() - exact[index]) < 1e-9


def test_stacked_perturbations_are_the_single_ones():
    made, memory, state = decoder(), uniform("m", (3, 7, 6)), uniform("s", (2, 3, 5))
    tokens, lens = np.arange(12).reshape(3, 4) % 11, np.array([7, 0, 3])
    arrays = {"memory": memory, "state": state, **made.parameters}
    names = list(made.parameters)

    def call(given):
        made.parameters = {name: given[name] for name in names}
        return made(tokens, given["memory"], given["state"], lens)

    outputs = call(arrays)
    factors = {str(position): uniform(f"c{position}", output.shape) for position, output in enumerate(outputs)}
    stacked, single = (gradients(call, arrays, factors, stacked=choice) for choice in (True, False))
    for name in arrays:
        np.testing.assert_allclose(stacked[name], single[name], rtol=1e-13, atol=1e-16)
    assert (stacked["memory"][1] == 0).all() and np.abs(stacked["memory"][0]).min() > 0
