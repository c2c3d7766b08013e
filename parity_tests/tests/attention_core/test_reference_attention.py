"""Scores and attention layers of the reference against papers, arithmetic by hand, and identities."""

from __future__ import annotations

import decimal
import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from attention_core import reference
from attention_core.draws import uniform
from attention_core.operators import LAYERS
from attention_core.operators.multi_head import MULTI_HEAD_ATTENTION, remaining
from parity_tests.cases.suite import all_cases
from parity_tests.format.call import STEPS
from parity_tests.format.expected import build_reference, outputs
from parity_tests.tests.attention_core.layers import filled
from parity_tests.tests.attention_core.linear import by_weights

# With all keys equal every open key weighs the same, whatever the weights are: the means of the first 2 and 6 values.
KEYS, LENS = np.ones((2, 10, 2)), np.array([2, 6])
VALUES = np.tile(np.arange(40.0).reshape(1, 10, 4), (2, 1, 1))
CONTEXTS = [[[2.0, 3.0, 4.0, 5.0]], [[10.0, 11.0, 12.0, 13.0]]]


def test_equal_keys_average_the_first_values_under_dot_product_attention():
    context, weights = reference.DotProductAttention()(uniform("q", (2, 1, 2)), KEYS, VALUES, LENS)
    assert_allclose(context, CONTEXTS, rtol=1e-14)
    assert_allclose(weights[0, 0], [0.5, 0.5] + [0.0] * 8, rtol=1e-14)


def test_a_bias_of_ln_3_makes_a_weight_three_times_as_large():
    bias = np.array([[math.log(3.0), 0.0, 0.0, -np.inf]])
    _, weights = reference.DotProductAttention()(np.zeros((2, 1, 2)), KEYS[:, :4], VALUES[:, :4], bias=bias)
    assert_allclose(weights[:, 0], [[0.6, 0.2, 0.2, 0.0]] * 2, rtol=1e-14)


def test_equal_keys_average_the_first_values_under_additive_attention():
    context, _ = filled(reference.AdditiveAttention(20, 2, 8))(uniform("q", (2, 1, 20)), KEYS, VALUES, LENS)
    assert_allclose(context, CONTEXTS, rtol=1e-14)


def test_softmax_by_hand():
    scores = np.log([[[1.0, 2.0, 5.0], [3.0, 1.0, 4.0]]])
    mask = np.array([[[True, False, True], [False, False, False]]])
    assert_allclose(reference.masked_softmax(scores)[0], [[1 / 8, 2 / 8, 5 / 8], [3 / 8, 1 / 8, 4 / 8]])
    assert_allclose(reference.masked_softmax(scores, np.array([2]))[0], [[1 / 3, 2 / 3, 0], [3 / 4, 1 / 4, 0]])
    assert_allclose(reference.masked_softmax(scores, mask=mask)[0], [[1 / 6, 0, 5 / 6], [0, 0, 0]])


def test_scores_by_hand():
    queries, keys = np.array([[[1.0, 2.0]]]), np.array([[[3.0, 4.0], [-1.0, 0.5]]])
    assert_array_equal(reference.dot_score(queries, keys), [[[11.0, 0.0]]])
    assert_allclose(reference.scaled_dot_score(queries, keys), [[[11.0 / math.sqrt(2), 0.0]]])
    assert_array_equal(reference.scaled_dot_score(queries, keys, scale=0.25), [[[2.75, 0.0]]])
    capped = reference.scaled_dot_score(queries, keys, scale=0.25, softcap=2.75)
    assert_allclose(capped, [[[2.75 * math.tanh(1.0), 0.0]]])
    expected = [[[2 * math.tanh(4) - 3 * math.tanh(6), 2 * math.tanh(0) - 3 * math.tanh(2.5)]]]
    assert_allclose(reference.additive_score(queries, keys, np.array([2.0, -3.0])), expected, rtol=1e-15)


def test_general_attention_is_a_bilinear_form():
    layer = reference.GeneralAttention(2, 3)
    matrix = np.array([[1.0, 0.0, 2.0], [0.0, -1.0, 0.0]])
    reference.set_parameters(layer, {"W": matrix})
    query, keys, values = np.array([[[3.0, 5.0]]]), uniform("k", (1, 4, 3)), uniform("v", (1, 4, 2))
    context, weights = layer(query, keys, values)
    scores = np.array([query[0, 0] @ matrix @ key for key in keys[0]])
    assert_allclose(weights[0, 0], np.exp(scores) / np.exp(scores).sum(), rtol=1e-14)
    assert_allclose(context[0, 0], weights[0, 0] @ values[0], rtol=1e-14)


def test_location_attention_weighs_positions_and_kernel_attention_near_keys():
    location, kernel = reference.LocationAttention(2, 3), reference.KernelAttention(width=0.5)
    reference.set_parameters(location, {"W": np.log([[2.0, 1.0], [6.0, 1.0], [9.0, 1.0]])})
    query, keys, values = np.array([[[1.0, 5.0]]]), np.array([[[1.0, 5.0], [1.0, 5.5]]]), uniform("v", (1, 2, 3))
    assert_allclose(location(query, keys, values)[1], [[[1 / 4, 3 / 4]]], rtol=1e-14)
    near = 1 / (1 + math.exp(-0.5))  # the second key is one width away
    assert_allclose(kernel(query, keys, values)[1], [[[near, 1 - near]]], rtol=1e-14)


def test_low_rank_attention_attends_to_sums_of_the_open_keys():
    layer = reference.LowRankAttention(3, 2, scale=1.0)
    weights = {"E": np.array([[1.0, 2.0, 9.0], [0.0, 1.0, 9.0]]), "F": np.array([[1.0, 1.0, 9.0], [3.0, 0.0, 9.0]])}
    reference.set_parameters(layer, weights)
    keys, values = np.log([[[2.0], [3.0], [np.nan]]]), np.array([[[1.0, 0.0], [0.0, 1.0], [np.nan, np.inf]]])
    context, seen = layer(np.array([[[1.0]]]), keys, values, np.array([2]))
    assert_allclose(seen, [[[18 / 21, 3 / 21]]], rtol=1e-14)  # exp(ln 2 + 2 ln 3) and exp(ln 3)
    assert_allclose(context, [[[27 / 21, 18 / 21]]], rtol=1e-14)


def test_compressed_attention_attends_to_blocks_of_keys():
    layer = reference.CompressedAttention(1, 1, 2, scale=1.0)
    weights = {"W_k": np.array([[1.0, 2.0]]), "b_k": np.ones(1), "W_v": np.array([[10.0, 1.0]]), "b_v": np.ones(1)}
    reference.set_parameters(layer, weights)
    keys, values = np.log([[[2.0], [3.0], [5.0], [np.nan], [np.inf]]]), np.array([[[2.0], [3.0], [4.0], [9.0], [9.0]]])
    context, seen = layer(np.array([[[1.0]]]), keys, values, np.array([3]))
    assert_allclose(seen, [[[18 / 23, 5 / 23, 0.0]]], rtol=1e-14)  # exp(ln 2 + 2 ln 3) and exp(ln 5), times e
    assert_allclose(context, [[[(18 * 24 + 5 * 41) / 23]]], rtol=1e-14)


def test_segment_attention_scores_content_and_distance():
    layer = reference.SegmentAttention(2, 1, hidden_size=1, bias=False)
    first, second = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])  # P[d] is (sin d, cos d)
    weights = {"W_q": 0.0 * first, "W_k": first, "W_v": second, "W_r": first, "W_o": second.T}
    reference.set_parameters(layer, {**weights, "u": np.log([[2.0]]), "v": np.array([[3.0]])})
    previous, inputs = np.array([[[np.nan, 9.0], [1.0, 4.0]]]), np.array([[[0.0, 5.0], [2.0, 7.0]]])
    context, seen = layer(inputs, previous, np.array([[[False, True, True, True]]]))
    rows = [2.0 * math.exp(3 * math.sin(1)), 1.0], [2.0 * math.exp(3 * math.sin(2)), math.exp(3 * math.sin(1)), 4.0]
    for row, of_row, expected in zip(seen[0], context[0], rows, strict=True):
        probabilities = np.array(expected) / sum(expected)
        assert_allclose(row, [0.0, *probabilities, *[0.0] * (3 - len(expected))], rtol=1e-14)
        assert_allclose(of_row, [0.0, probabilities @ [4.0, 5.0, 7.0][: len(expected)]], rtol=1e-14)


def test_induced_attention_averages_what_the_inducing_points_have_averaged():
    layer = reference.InducedAttention(1, 1, 2)
    ones = {name: np.ones(array.shape) for name, array in layer.parameters.items() if array.ndim == 2}
    biases = {name: np.zeros(1) for name, array in layer.parameters.items() if array.ndim == 1}
    reference.set_parameters(layer, {**ones, **biases, "inducing": np.log([[2.0], [4.0]]), "spread.b_o": np.ones(1)})
    keys, values = np.array([[[0.0], [1.0], [np.nan]]] * 2), np.array([[[0.0], [1.0], [np.inf]]] * 2)
    context, weights = layer(np.array([[[1.0]]] * 2), keys, values, np.array([2, 0]))
    gathered = np.array([2 / 3, 4 / 5])  # e^0 and e^ln 2, e^0 and e^ln 4
    expected = np.exp(gathered) / np.exp(gathered).sum()
    assert_allclose(weights, [[expected], [[0.0, 0.0]]], rtol=1e-14)
    assert_allclose(context, [[[expected @ gathered + 1.0]], [[1.0]]], rtol=1e-14)


def test_concat_attention_is_additive_attention_with_the_halves_of_its_matrix():
    concat, additive = reference.ConcatAttention(4, 6, 5), reference.AdditiveAttention(4, 6, 5)
    matrix, v = uniform("W", (5, 10)), uniform("v", (5,))
    reference.set_parameters(concat, {"W": matrix, "v": v})
    reference.set_parameters(additive, {"W_q": matrix[:, :4], "W_k": matrix[:, 4:], "w_v": v})
    arrays = uniform("q", (2, 3, 4)), uniform("k", (2, 7, 6)), uniform("v", (2, 7, 3)), np.array([2, 5])
    for first, second in zip(concat(*arrays), additive(*arrays), strict=True):
        assert_array_equal(first, second)


def test_cosine_attention_does_not_see_the_length_of_a_key():
    query, keys, values = uniform("q", (1, 2, 3)), uniform("k", (1, 4, 3)), uniform("v", (1, 4, 2))
    first, _ = reference.CosineAttention(scale=4.0)(query, keys, values)
    longer, _ = reference.CosineAttention(scale=4.0)(query, keys * np.array([[[1.0], [8.0], [0.25], [64.0]]]), values)
    assert_allclose(first, longer, rtol=1e-14)
    assert_allclose(reference.CosineAttention()(query * 0.0, keys, values)[1], 0.25)


def test_cosines_by_hand():
    queries, keys = np.array([[[3.0, 4.0], [0.0, 0.0]]]), np.array([[[4.0, 3.0], [-8.0, 6.0], [0.0, 0.0]]])
    assert_allclose(reference.cosine_score(queries, keys), [[[0.96, 0.0, 0.0], [0.0, 0.0, 0.0]]], atol=1e-16)
    assert_allclose(reference.cosine_score(queries, keys, scale=5.0)[0, 0], [4.8, 0.0, 0.0], atol=1e-15)


def test_location_scores_do_not_require_keys():
    queries = np.array([[[0.5, -2.0, 7.0]]])
    assert_array_equal(reference.location_score(2, queries), [[[0.5, -2.0]]])


def test_a_gaussian_score_makes_the_weights_of_kernel_regression():
    """Nadaraya-Watson: weights are normalised Gaussians of the distance, of standard deviation 1/w."""
    queries, keys = np.array([[[1.0], [2.0]]]), np.array([[[0.0], [1.5], [4.0]]])
    assert_array_equal(reference.gaussian_score(queries, keys)[0, 0], [-0.5, -0.125, -4.5])
    weights = reference.masked_softmax(reference.gaussian_score(queries, keys, np.array(2.0)))
    kernel = np.exp(-0.5 * ((queries - keys.swapaxes(1, 2)) / 0.5) ** 2)
    assert_allclose(weights, kernel / kernel.sum(axis=-1, keepdims=True), rtol=1e-14)


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
    assert_allclose(additive, concat, rtol=1e-13)


def test_pooling_by_hand_with_dropout():
    scores, values = np.log([[[1.0, 3.0]]]), np.array([[[10.0, 0.0], [0.0, 20.0]]])
    context, weights = reference.attention_pooling(scores, values, dropout_mask=np.array([[[0.0, 2.0]]]))
    assert_allclose(weights, [[[0.25, 0.75]]])
    assert_allclose(context, [[[0.0, 30.0]]])


def test_linear_attention_by_hand():
    """Features (2, 1) of the queries, (1, 2) and (½, 1) of the keys, and so weights of 4 and 2."""
    queries, keys = np.array([[[1.0, 0.0], [1.0, 0.0]]]), np.array([[[0.0, 1.0], [-math.log(2.0), 0.0]]])
    values = np.array([[[3.0, 6.0], [9.0, -6.0]]])
    assert_allclose(reference.linear_attention(queries, keys, values), [[[5.0, 2.0], [5.0, 2.0]]], rtol=1e-15)
    assert_allclose(reference.linear_attention(queries, keys, values, causal=True), [[[3, 6], [5, 2]]], rtol=1e-15)
    context, sums, norms = reference.linear_attention_step(
        queries[:, 1], keys[:, 1], values[:, 1], np.array([[[3.0, 6.0], [6.0, 12.0]]]), np.array([[1.0, 2.0]])
    )
    assert_allclose(context, [[5.0, 2.0]], rtol=1e-15)
    assert_allclose(sums, [[[7.5, 3.0], [15.0, 6.0]]], rtol=1e-15)
    assert_allclose(norms, [[1.5, 3.0]], rtol=1e-15)


@pytest.mark.parametrize("name", ["lens_and_mask", "heads", "causal_mask", "causal_blocks"])
def test_linear_attention_is_a_sum_of_all_values_by_quadratically_many_weights(name: str):
    (case,) = all_cases().select(f"linear_attention-{name}")
    assert_allclose(outputs(case, "float64")["context"], by_weights(case.inputs, case.options), rtol=1e-12)


@pytest.mark.parametrize("name", ["causal", "causal_blocks"])
def test_causal_linear_attention_is_a_recurrent_network(name: str):
    (case,) = all_cases().select(f"linear_attention-{name}")
    queries, keys, values = (case.inputs[key] for key in ("queries", "keys", "values"))
    norms = np.zeros_like(keys[:, 0])
    sums = norms[..., None] * values[:, 0, None]
    for step, expected in enumerate(outputs(case, "float64")["context"].swapaxes(0, 1)):
        row = (array[:, step] for array in (queries, keys, values))
        context, sums, norms = reference.linear_attention_step(*row, sums, norms)
        assert_allclose(context, expected, rtol=1e-12, atol=1e-14)


EXTENDED = [layer.name for layer in LAYERS if any(method.name.endswith(".extend") for method in layer.methods)]


@pytest.mark.parametrize("name", EXTENDED)
def test_steps_in_the_room_of_a_memory_give_what_a_call_gives(name: str):
    """A call with the steps in their places, of which the last is beyond the last key."""
    (case,) = all_cases().select(f"{name}-extended_at")
    given = {key: array.swapaxes(0, 1).copy() for key, array in case.inputs.items() if array.ndim == 3}
    inputs = {key: array.copy() for key, array in case.inputs.items() if not key.startswith(STEPS)}
    inputs |= {key: given[key] for key in ("queries", "keys", "values")}
    for row, places in enumerate(([3, 4], [5, 6])):
        for key in ("keys", "values"):
            inputs[key][row, places] = given[f"{STEPS}{key}"][row, :2]
        inputs["mask"][row, 0, places] = True
    layer = build_reference(replace(case, config={**case.config, "time_major": False}), case.parameters)
    context, weights = layer(**inputs)
    assert_allclose(context, outputs(case, "float64")["context"].swapaxes(0, 1), rtol=1e-12)
    assert_allclose(weights, outputs(case, "float64")["weights"], rtol=1e-12)


def test_heads_are_layers_of_their_own_added_up():
    layer = filled(reference.MultiHeadAttention(6, 2, key_size=4, value_size=3, hidden_size=8))
    queries, keys, values = uniform("q", (2, 3, 6)), uniform("k", (2, 5, 4)), uniform("v", (2, 5, 3))
    context, weights = layer(queries, keys, values, np.array([5, 2]), per_head=True)
    p, total = layer.parameters, layer.parameters["b_o"]
    for head in range(2):
        rows = slice(4 * head, 4 * head + 4)
        inputs = zip((queries, keys, values), "qkv", strict=True)
        projected = (array @ p[f"W_{name}"][rows].T + p[f"b_{name}"][rows] for array, name in inputs)
        pooled, attended = reference.DotProductAttention()(*projected, np.array([5, 2]))
        assert_allclose(weights[:, head], attended, rtol=1e-13)
        total = total + pooled @ p["W_o"][:, rows].T
    assert_allclose(context, total, rtol=1e-13)
    mean = layer(queries, keys, values, np.array([5, 2]))[1]
    assert_allclose(mean, weights.mean(axis=1), rtol=1e-15)


def test_a_pruned_head_contributes_nothing():
    layer, inputs = filled(reference.MultiHeadAttention(6, 2)), uniform("q", (2, 3, 6))
    off, _ = layer(inputs, inputs, inputs, head_mask=np.array([1.0, 0.0]))
    layer.parameters["W_o"][:, 3:] = 0.0
    assert_allclose(off, layer(inputs, inputs, inputs)[0], rtol=1e-14)


def test_the_rows_that_remain_without_heads_by_hand():
    """Six heads of two features, in groups of three: what is left of the groups decides the key heads."""
    sizes = MULTI_HEAD_ATTENTION.sizes({"query_size": 12, "num_heads": 6, "num_key_heads": 2})
    config, of_queries, of_keys = remaining(sizes, [4, 0])
    assert (config["num_heads"], config["num_key_heads"], config["hidden_size"]) == (4, 2, 8)
    assert of_queries == [2, 3, 4, 5, 6, 7, 10, 11] and of_keys == [0, 1, 2, 3]
    config, of_queries, of_keys = remaining(sizes, [0, 1, 2])
    assert (config["num_heads"], config["num_key_heads"]) == (3, 1) and of_keys == [2, 3]
    config, of_queries, of_keys = remaining(sizes, [5])
    assert (config["num_heads"], config["num_key_heads"]) == (5, 5) and of_keys == [0, 1, 0, 1, 0, 1, 2, 3, 2, 3]
    whole = remaining(sizes, [])
    assert whole.of_queries == [*range(12)] and whole.of_keys == [*range(4)]


def test_rollout_by_hand():
    """Two layers of two heads: mean, half of the identity, and the upper layer as the left factor."""
    lower = np.array([[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]])
    upper = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.0, 1.0]]])
    weights = np.stack([lower, upper])[:, None]
    below, above = np.array([[0.75, 0.25], [0.5, 0.5]]), np.array([[0.875, 0.125], [0.0, 1.0]])
    assert_allclose(reference.attention_rollout(weights), [above @ below])
    assert_allclose(reference.attention_rollout(weights, residual=0.0), [[[0.625, 0.375], [1.0, 0.0]]])
    assert_allclose(reference.attention_rollout(weights).sum(axis=-1), 1.0)


def test_importance_of_heads_by_hand():
    """Losses that are squares: a head off changes (a + b)² to b², and the slope there is 2(a + b)a."""
    a, b = np.array([3.0, -1.0]), np.array([1.0, 2.0])

    def losses(head_mask):
        return (head_mask @ np.array([1.0, 0.0]) * a + head_mask @ np.array([0.0, 1.0]) * b) ** 2

    ones = np.ones((2, 2))
    assert_allclose(reference.ablation_importance(losses, ones), [(1 - 16 + 4 - 1) / 2, (9 - 16 + 1 - 1) / 2])
    assert_allclose(reference.taylor_importance(losses, ones), [(24 + 2) / 2, (8 + 4) / 2])


def test_a_window_by_hand():
    layer = reference.LocalAttention(2, 2, 1, score="dot")
    queries, keys, values = np.zeros((1, 3, 2)), uniform("k", (1, 5, 2)), uniform("v", (1, 5, 2))
    _, weights = layer(queries, keys, values, np.array([4]), offset=np.array([1]))
    third = 1 / 3
    assert_allclose(weights[0], [[third, third, third, 0, 0], [0, third, third, third, 0], [0, 0, 0.5, 0.5, 0]])


def test_a_predicted_window_by_hand():
    """With v_p = 0 the position is half of the valid length, 4: keys 1 to 3 are near 2, under a Gaussian of σ = ½."""
    layer = reference.LocalAttention(2, 2, 1, mode="predictive", score="dot")
    _, weights = layer(np.zeros((1, 1, 2)), np.zeros((1, 6, 2)), np.ones((1, 6, 1)), np.array([4]))
    assert_allclose(weights[0, 0], np.array([0, math.exp(-2), 1, math.exp(-2), 0, 0]) / 3, rtol=1e-15)


def test_hard_attention_selects_the_best_key_and_draws_by_probability():
    layer = reference.HardAttention(3, 3, score="dot")
    queries, keys, values = uniform("q", (1, 1, 3)), uniform("k", (1, 4, 3)), uniform("v", (1, 4, 2))
    context, weights = layer(queries, keys, values)
    best = int((keys[0] @ queries[0, 0]).argmax())
    assert weights[0, 0].tolist() == np.eye(4)[best].tolist()
    assert_array_equal(context[0, 0], values[0, best])
    soft = reference.masked_softmax(reference.dot_score(queries, keys))[0, 0]
    many = 4000
    noise = 0.5 * (uniform("noise", (1, many, 4)) + 1.0)
    _, chosen = layer(np.broadcast_to(queries, (1, many, 3)), keys, values, noise=noise)
    assert_allclose(chosen[0].mean(axis=0), soft, atol=0.03)


def test_log_probabilities_by_hand():
    """Scores ln 1, ln 2, ln 5 are probabilities 1/8, 2/8, 5/8; without the last key, 1/3 and 2/3; of none, ln 1."""
    layer = reference.HardAttention(1, 1, score="dot")
    memory = layer.prepare(np.log([[[1.0], [2.0], [5.0]]]), np.zeros((1, 3, 1)), np.array([[3, 3, 2, 0]]))
    first, second = np.eye(3)[:2]
    log_prob = layer.log_prob(np.ones((1, 4, 1)), memory, np.stack([[first, second, second, first]]))
    assert_allclose(np.exp(log_prob), [[1 / 8, 2 / 8, 2 / 3, 1]])


def test_log_probabilities_give_the_gradient_of_an_expected_loss():
    """The mean of loss · d log_prob over the keys as they are drawn, in a complex step of the query."""
    layer, losses = reference.HardAttention(3, 3, score="dot"), np.array([3.0, -1.0, 2.0, 0.5])
    queries = np.repeat(uniform("q", (1, 1, 3)) + 1e-20j * uniform("direction", (1, 1, 3)), 4, axis=1)
    memory = layer.prepare(uniform("k", (1, 4, 3)), uniform("v", (1, 4, 2)))
    log_prob = layer.log_prob(queries, memory, np.eye(4)[None])[0]
    soft = reference.masked_softmax(reference.dot_score(queries, memory.keys))[0, 0]
    assert_allclose(soft.real @ (losses * log_prob.imag), (soft @ losses).imag, rtol=1e-12)


def test_kernel_regression_by_hand():
    predictions, weights = reference.NadarayaWatson(width=0.5)(
        np.array([[1.0]]), np.array([[0.0, 2.0, 9.0]]), np.array([[3.0, 5.0, 100.0]]), np.array([2])
    )
    assert_allclose(weights[0, 0], [0.5, 0.5, 0.0])
    assert_allclose(predictions, [[4.0]])


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
            assert_allclose(table[list(place)], expected, atol=1e-15)


def test_the_permutation_leads_from_one_layout_to_the_other():
    inputs = uniform("x", (2, 3, 6))
    one, other = (
        reference.SinusoidalPositions(6, layout=layout)(inputs * 0.0) for layout in ("interleaved", "concatenated")
    )
    assert_array_equal(one[..., reference.position_permutation(6)], other)
