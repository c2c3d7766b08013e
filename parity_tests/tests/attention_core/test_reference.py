"""The reference against facts that do not come from it: papers, arithmetic by hand, and identities."""

from __future__ import annotations

import decimal
import math

import ml_dtypes
import numpy as np
import pytest

from attention_core import reference
from attention_core.differentiation import gradients
from attention_core.draws import uniform
from attention_core.reference.recurrent import sigmoid
from attention_core.specification import FLOATING

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


def test_location_attention_weighs_positions_and_kernel_attention_near_keys():
    location, kernel = reference.LocationAttention(2, 3), reference.KernelAttention(width=0.5)
    reference.set_parameters(location, {"W": np.log([[2.0, 1.0], [6.0, 1.0], [9.0, 1.0]])})
    query, keys, values = np.array([[[1.0, 5.0]]]), np.array([[[1.0, 5.0], [1.0, 5.5]]]), uniform("v", (1, 2, 3))
    np.testing.assert_allclose(location(query, keys, values)[1], [[[1 / 4, 3 / 4]]], rtol=1e-14)
    near = 1 / (1 + math.exp(-0.5))  # the second key is one width away
    np.testing.assert_allclose(kernel(query, keys, values)[1], [[[near, 1 - near]]], rtol=1e-14)


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


def test_masks_of_other_conventions_by_hand():
    padding = np.array([[False, False, True], [True, True, True]])
    mask = reference.from_key_padding_mask(padding)
    assert mask.tolist() == [[[True, True, False]], [[False, False, False]]]
    assert reference.to_key_padding_mask(mask).tolist() == padding.tolist()
    assert reference.from_key_padding_mask(padding[:1]).tolist() == reference.attention_mask(3, np.array([2])).tolist()

    added = np.array([[[0.0, -1e4, -9999.0, -np.inf, -1e9, -0.5]]])
    assert drawn_mask(reference.from_additive_mask(added)) == ["#.#..#"]
    assert drawn_mask(reference.from_additive_mask(added, threshold=-0.5)) == ["#....."]
    assert drawn_mask(reference.from_additive_mask(added.astype("float32"), threshold=-0.1)) == ["#....."]

    assert reference.to_additive_mask(mask).tolist() == [[[0.0, 0.0, -np.inf]], [[-np.inf] * 3]]
    assert drawn_mask(reference.from_additive_mask(reference.to_additive_mask(mask))) == ["##."]


@pytest.mark.parametrize("dtype", FLOATING)
def test_the_least_finite_number_is_that_of_the_type(dtype: str):
    least = reference.to_additive_mask(np.array([[[True, False]]]), dtype=dtype, finite=True)[0, 0, 1]
    assert least == float(ml_dtypes.finfo(dtype).min)
    assert least.astype(dtype) == least


@pytest.mark.parametrize("dtype", FLOATING)
def test_a_fill_that_was_rounded_is_hidden_by_the_same_number(dtype: str):
    fill = np.full((1, 1, 1), -1e4).astype(dtype)
    assert not reference.from_additive_mask(fill).any()
    assert fill.astype(np.float64) > -1e4 or dtype != "bfloat16", "the test is to see a fill that rounding raised"


def test_an_additive_mask_under_a_plain_softmax_does_to_closed_rows_what_porters_are_told():
    mask, scores = np.array([[[True, False], [False, False]]]), np.array([[[1.0, 2.0], [-3.0, 5.0]]])

    def plain_softmax(logits: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
            return exponentials / exponentials.sum(axis=-1, keepdims=True)

    assert np.isnan(plain_softmax(scores + reference.to_additive_mask(mask))[0, 1]).all()
    finite = reference.to_additive_mask(mask, dtype="float64", finite=True)
    assert plain_softmax(scores + finite)[0].tolist() == [[1.0, 0.0], [0.5, 0.5]]
    assert reference.masked_softmax(scores, mask=mask)[0].tolist() == [[1.0, 0.0], [0.0, 0.0]]


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


def filled(layer, bound: float = 0.8):
    """The layer with drawn parameters."""
    reference.set_parameters(
        layer, {name: uniform(name, array.shape, bound) for name, array in layer.parameters.items()}
    )
    return layer


def test_a_step_of_long_short_term_memory_by_hand():
    layer = reference.LSTM(1, 1)
    arrays = {"0.W": [0.1, 0.2, 0.3, 0.4], "0.U": [0.5, 0.6, 0.7, 0.8], "0.b": [0.9, -1.0, 1.1, 1.2]}
    shapes = layer.specification.shapes(layer.sizes)
    reference.set_parameters(layer, {name: np.reshape(arrays[name], shapes[name]) for name in shapes})
    x, h, c = 2.0, 0.5, -0.25
    i, f, o = (
        1 / (1 + math.exp(-(arrays["0.W"][gate] * x + arrays["0.U"][gate] * h + arrays["0.b"][gate])))
        for gate in (0, 1, 3)
    )
    g = math.tanh(0.3 * x + 0.7 * h + 1.1)
    output, state = layer.step(np.array([[x]]), np.array([[[h, c]]]))
    np.testing.assert_allclose(state[0, 0], [o * math.tanh(f * c + i * g), f * c + i * g], rtol=1e-15)
    np.testing.assert_array_equal(output[0], state[0, 0, :1])


@pytest.mark.parametrize("kind", [reference.GRU, reference.LSTM])
def test_the_backward_direction_is_the_forward_one_of_the_reversed_sequence(kind):
    both, inputs = filled(kind(4, 5, bidirectional=True)), uniform("x", (2, 6, 4))
    outputs, state = both(inputs, np.array([4, 6]))
    one = kind(4, 5)
    for direction, prefix in enumerate(("0.", "0.backward.")):
        own = {f"0.{name[len(prefix) :]}": array for name, array in both.parameters.items() if name.startswith(prefix)}
        reference.set_parameters(one, {name: own[name] for name in one.parameters})
        for sequence, length in enumerate((4, 6)):
            read = inputs[sequence : sequence + 1, :length]
            expected, last = one(read[:, ::-1] if direction else read)
            found = outputs[sequence, :length, 5 * direction : 5 * direction + 5]
            np.testing.assert_allclose(found, expected[0, ::-1] if direction else expected[0], atol=1e-15)
            parts = state[0, sequence].reshape(-1, 2, 5)[:, direction]
            np.testing.assert_allclose(parts.ravel(), last[0, 0], atol=1e-15)


def test_bridges_by_hand():
    outputs, state = np.array([[[1.0, 2.0, 10.0, 20.0]]]), np.array([[[1.0, 2.0, 10.0, 20.0]]])
    same, kept = reference.Bridge(2)(outputs, state)
    np.testing.assert_array_equal(same, outputs)
    np.testing.assert_array_equal(kept, state)
    summed, added = reference.Bridge(2, method="sum")(outputs, state)
    assert summed.tolist() == [[[11.0, 22.0]]] and added.tolist() == [[[11.0, 22.0]]]
    backward = reference.Bridge(2, method="backward", output_size=1)
    reference.set_parameters(backward, {"0.W": np.array([[[0.01, 0.02]]]), "0.b_s": np.array([[0.5]])})
    np.testing.assert_allclose(backward(outputs, state)[1], [[[math.tanh(0.1 + 0.4 + 0.5)]]])
    cells = np.array([[[1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0]]])
    assert reference.Bridge(2, method="sum", cell="lstm")(outputs, cells)[1].tolist() == [[[11.0, 22.0, 33.0, 44.0]]]


def test_heads_are_layers_of_their_own_added_up():
    layer = filled(reference.MultiHeadAttention(6, 2, key_size=4, value_size=3, hidden_size=8))
    queries, keys, values = uniform("q", (2, 3, 6)), uniform("k", (2, 5, 4)), uniform("v", (2, 5, 3))
    context, weights = layer(queries, keys, values, np.array([5, 2]), per_head=True)
    p, total = layer.parameters, layer.parameters["b_o"]
    for head in range(2):
        rows = slice(4 * head, 4 * head + 4)
        own = (
            array @ p[f"W_{name}"][rows].T + p[f"b_{name}"][rows]
            for array, name in ((queries, "q"), (keys, "k"), (values, "v"))
        )
        found, attended = reference.DotProductAttention()(*own, np.array([5, 2]))
        np.testing.assert_allclose(weights[:, head], attended, rtol=1e-13)
        total = total + found @ p["W_o"][:, rows].T
    np.testing.assert_allclose(context, total, rtol=1e-13)
    mean = layer(queries, keys, values, np.array([5, 2]))[1]
    np.testing.assert_allclose(mean, weights.mean(axis=1), rtol=1e-15)


def test_a_head_that_is_off_gives_nothing():
    layer, inputs = filled(reference.MultiHeadAttention(6, 2)), uniform("q", (2, 3, 6))
    off, _ = layer(inputs, inputs, inputs, head_mask=np.array([1.0, 0.0]))
    layer.parameters["W_o"][:, 3:] = 0.0
    np.testing.assert_allclose(off, layer(inputs, inputs, inputs)[0], rtol=1e-14)


def test_importance_of_heads_by_hand():
    """Losses that are squares: a head off changes (a + b)² to b², and the slope there is 2(a + b)a."""
    a, b = np.array([3.0, -1.0]), np.array([1.0, 2.0])

    def losses(head_mask):
        return (head_mask @ np.array([1.0, 0.0]) * a + head_mask @ np.array([0.0, 1.0]) * b) ** 2

    ones = np.ones((2, 2))
    np.testing.assert_allclose(
        reference.ablation_importance(losses, ones), [(1 - 16 + 4 - 1) / 2, (9 - 16 + 1 - 1) / 2]
    )
    np.testing.assert_allclose(reference.taylor_importance(losses, ones), [(24 + 2) / 2, (8 + 4) / 2])


def test_a_window_by_hand():
    layer = reference.LocalAttention(2, 2, 1, score="dot")
    queries, keys, values = np.zeros((1, 3, 2)), uniform("k", (1, 5, 2)), uniform("v", (1, 5, 2))
    _, weights = layer(queries, keys, values, np.array([4]), offset=np.array([1]))
    third = 1 / 3
    expected = [[third, third, third, 0, 0], [0, third, third, third, 0], [0, 0, 0.5, 0.5, 0]]
    np.testing.assert_allclose(weights[0], expected)


def test_a_predicted_window_by_hand():
    """With v_p = 0 the position is half of the valid length, 4: keys 1 to 3 are near 2, under a Gaussian of σ = ½."""
    layer = reference.LocalAttention(2, 2, 1, mode="predictive", score="dot")
    _, weights = layer(np.zeros((1, 1, 2)), np.zeros((1, 6, 2)), np.ones((1, 6, 1)), np.array([4]))
    np.testing.assert_allclose(weights[0, 0], np.array([0, math.exp(-2), 1, math.exp(-2), 0, 0]) / 3, rtol=1e-15)


def test_hard_attention_takes_the_best_and_draws_by_probability():
    layer = reference.HardAttention(3, 3, score="dot")
    queries, keys, values = uniform("q", (1, 1, 3)), uniform("k", (1, 4, 3)), uniform("v", (1, 4, 2))
    context, weights = layer(queries, keys, values)
    best = int((keys[0] @ queries[0, 0]).argmax())
    assert weights[0, 0].tolist() == np.eye(4)[best].tolist()
    np.testing.assert_array_equal(context[0, 0], values[0, best])
    soft = reference.masked_softmax(reference.dot_score(queries, keys))[0, 0]
    many = 4000
    noise = 0.5 * (uniform("noise", (1, many, 4)) + 1.0)
    _, chosen = layer(np.broadcast_to(queries, (1, many, 3)), keys, values, noise=noise)
    np.testing.assert_allclose(chosen[0].mean(axis=0), soft, atol=0.03)


def test_kernel_regression_by_hand():
    predictions, weights = reference.NadarayaWatson(width=0.5)(
        np.array([[1.0]]), np.array([[0.0, 2.0, 9.0]]), np.array([[3.0, 5.0, 100.0]]), np.array([2])
    )
    np.testing.assert_allclose(weights[0, 0], [0.5, 0.5, 0.0])
    np.testing.assert_allclose(predictions, [[4.0]])


PI = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899")


@pytest.mark.parametrize("layout", ["interleaved", "concatenated"])
def test_sinusoids_are_exact_at_position_ten_thousand(layout: str):
    """Angles as decimals of 60 digits, taken off by whole turns before the sine."""
    features = 64
    table = reference.SinusoidalPositions(features, layout=layout)(np.zeros((1, 2, features)), offset=9_999)[0, 1]
    with decimal.localcontext(prec=60):
        for pair in range(features // 2):
            angle = 10_000 * decimal.Decimal(10_000) ** (decimal.Decimal(-2 * pair) / features) % (2 * PI)
            place = (2 * pair, 2 * pair + 1) if layout == "interleaved" else (pair, features // 2 + pair)
            expected = math.sin(float(angle)), math.cos(float(angle))
            np.testing.assert_allclose(table[list(place)], expected, atol=1e-15)


def test_the_permutation_leads_from_one_layout_to_the_other():
    inputs = uniform("x", (2, 3, 6))
    one, other = (
        reference.SinusoidalPositions(6, layout=layout)(inputs * 0.0) for layout in ("interleaved", "concatenated")
    )
    np.testing.assert_array_equal(one[..., reference.position_permutation(6)], other)


def decoding(kind, **options):
    """A decoder with drawn parameters, encoder outputs and a state."""
    made = filled(kind(11, 4, 5, 2, memory_size=6, **options))
    return made, uniform("m", (3, 7, 6)), uniform("s", (2, 3, made.sizes["state_size"]))


def test_luongs_decoder_attends_with_the_current_output_and_feeds_it_back():
    made, memory, state = decoding(reference.LuongDecoder, score="general", cell="lstm")
    tokens = np.array([1, 4, 7])
    prepared = made.prepare(memory)
    logits, after, weights = made.step(tokens, made.start(prepared, state), prepared)
    rnn = reference.LSTM(9, 5, 2)
    own = {name.removeprefix("rnn."): array for name, array in made.parameters.items() if name.startswith("rnn.")}
    reference.set_parameters(rnn, own)
    embedded = made.parameters["embedding"][tokens]
    output, last = rnn.step(np.concatenate([embedded, np.zeros((3, 5))], axis=-1), state)
    np.testing.assert_allclose(after.rnn, last, rtol=1e-14)
    scores = np.einsum("bq,qm,bkm->bk", output, made.parameters["attention.W"], memory)
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, rtol=1e-12)
    context = np.einsum("bk,bkm->bm", expected, memory)
    attentional = np.tanh(np.concatenate([context, output], axis=-1) @ made.parameters["W_c"].T)
    np.testing.assert_allclose(after.attentional, attentional, rtol=1e-12)
    np.testing.assert_allclose(
        logits, attentional @ made.parameters["dense.W"].T + made.parameters["dense.b"], rtol=1e-12
    )
    assert after.position.tolist() == [1, 1, 1]


def test_the_fixed_context_is_the_last_state_of_the_encoder():
    encoder, tokens, lens = filled(reference.GRUEncoder(9, 3, 6)), np.arange(12).reshape(2, 6) % 9, np.array([6, 3])
    outputs, state = encoder(tokens, lens)
    made = filled(reference.FixedContextDecoder(11, 4, 6))
    _, _, weights = made(np.array([[1, 2], [3, 4]]), outputs, state, lens)
    np.testing.assert_array_equal(weights.argmax(axis=-1), [[5, 5], [2, 2]])
    np.testing.assert_allclose(np.einsum("bsk,bkm->bsm", weights, outputs)[:, 1], state[-1], rtol=1e-15)


def test_the_maxout_readout_reads_the_previous_state_and_takes_the_larger_of_neighbours():
    made, memory, state = decoding(reference.BahdanauDecoder, readout="maxout", maxout_size=3)
    tokens = np.array([1, 4, 7])
    prepared = made.prepare(memory)
    logits, _, weights = made.step(tokens, state, prepared)
    context = np.einsum("bk,bkm->bm", weights, memory)
    read = np.concatenate([state[-1], made.parameters["embedding"][tokens], context], axis=-1)
    pairs = (read @ made.parameters["readout.W"].T + made.parameters["readout.b"]).reshape(3, 3, 2)
    expected = pairs.max(axis=-1) @ made.parameters["dense.W"].T + made.parameters["dense.b"]
    np.testing.assert_allclose(logits, expected, rtol=1e-12)


def test_a_decoder_starts_where_it_is_told():
    for initial in ("zero", "learned"):
        made, memory, _ = decoding(reference.BahdanauDecoder, initial=initial)
        found = made.start(made.prepare(memory))
        expected = 0.0 if initial == "zero" else made.parameters["initial"][:, None]
        np.testing.assert_array_equal(found, np.broadcast_to(expected, (2, 3, 5)))


DECODERS = [reference.BahdanauDecoder, reference.LuongDecoder, reference.FixedContextDecoder]


@pytest.mark.parametrize("kind", DECODERS)
def test_a_beam_of_one_is_greedy_decoding(kind):
    made, memory, state = decoding(kind)
    made.parameters["dense.W"] = 8.0 * made.parameters["dense.W"]
    lens = np.array([7, 2, 4])
    tokens, lengths, weights = made.greedy(memory, state, lens, bos=1, eos=10, max_steps=8)
    found = made.beam(memory, state, lens, bos=1, eos=10, max_steps=8, width=1)
    for one, other in zip((tokens, lengths, weights), (found[0], found[1], found[3]), strict=True):
        np.testing.assert_array_equal(one, other[:, 0])


@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("kind", DECODERS)
def test_a_wide_beam_finds_what_trying_everything_finds(kind, alpha: float):
    """Two steps of eleven tokens, eleven hypotheses kept: nothing that could be among the best three is lost."""
    made, memory, state = decoding(kind)
    made.parameters["dense.W"] = 4.0 * made.parameters["dense.W"]
    bos, eos, vocab = 1, 10, 11
    tokens, lengths, scores, _ = made.beam(
        memory, state, bos=bos, eos=eos, max_steps=2, width=vocab, num_best=3, length_penalty=alpha
    )
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
        np.testing.assert_allclose(scores[sentence], [score for score, _ in best], rtol=1e-12)
        assert [tuple(row) for row in tokens[sentence].tolist()] == [pair for _, pair in best]
        assert lengths[sentence].tolist() == [pair.index(eos) if eos in pair else 2 for _, pair in best]


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
