"""Weights move: every table is read in both directions, and means what the source computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from attention_core.draws import uniform
from backends.weights import SOURCES, WeightError, from_canonical, recognise, to_canonical
from backends.weights.configs import layer_named
from backends.weights.table import Row, Source
from parity_tests.tests.weights.arrays import FORMS, STACKS, canonical, drawn, refusal, same


@pytest.mark.parametrize("form", FORMS)
def test_every_table_is_its_own_inverse(form: Source):
    """Written under the source's names and read back: not one bit changes, whatever the spelling and the stack."""
    seen = 0
    for stack in STACKS if form.layer.startswith(("GRU", "LSTM")) else STACKS[:1]:
        arrays, options = canonical(form, **stack)
        prefix = "model." if form.is_stacked or "num_layers" not in stack else ("model.0.", "model.1.")
        for spelling in range(form.spellings):
            if stack.get("bidirectional") and len(form.words(spelling)) < len(form.words(0)):
                continue  # the bare names of a cell, which has one direction
            written = from_canonical(form.layer, arrays, form.name, prefix=prefix, spelling=spelling, **options)
            assert all(name.startswith("model.") for name in written)
            read = to_canonical(written, form.name, prefix=prefix, layer=form.layer, **options)
            assert same({**read.arrays, **read.beside}, arrays)
            made = {name for name in read.arrays if name in form.sinusoids or form.fixed_value(name)}
            assert set(read.used) == set(read.arrays) - made
            seen += 1
    assert seen


@pytest.mark.parametrize("form", FORMS)
def test_converted_weights_include_the_constructor_arguments(form: Source):
    arrays, options = canonical(form)
    written = from_canonical(form.layer, arrays, form.name, **options)
    read = to_canonical(written, form.name, layer=form.layer, **options)
    layer = layer_named(read.layer)
    assert layer.shapes(layer.sizes(read.config)) == {name: array.shape for name, array in read.arrays.items()}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_conversion_keeps_the_dtype(dtype: str):
    import ml_dtypes  # noqa: F401  # teaches NumPy bfloat16

    arrays = {name: array.astype(dtype) for name, array in drawn("GRU").items()}
    for name in ("torch.nn.GRU", "keras.GRU", "onnx.GRU", "flax.linen.GRUCell"):
        assert same(to_canonical(from_canonical("GRU", arrays, name)).arrays, arrays)


HEADS = {"flax.linen.MultiHeadDotProductAttention", "flax.nnx.MultiHeadAttention"}
SHARED: dict[tuple[str, ...], set[str]] = {
    tuple(row.name for row in SOURCES["flax.nnx.MultiHeadAttention"].rows if row.axes): HEADS,
    tuple(row.name for row in SOURCES["flax.linen.MultiHeadDotProductAttention"].rows if row.axes): HEADS,
    tuple(row.name_in(0) for row in SOURCES["keras.MultiHeadAttention"].rows): {
        "keras.GroupQueryAttention",
        "keras.MultiHeadAttention",
    },
    tuple(row.name_in(1) for row in SOURCES["keras_hub.TransformerEncoder"].rows): {
        "keras_hub.TransformerDecoder",
        "keras_hub.TransformerEncoder",
    },
    ("gamma", "beta"): {"gluon.nn.LayerNorm", "keras.LayerNormalization"},
    ("weight",): {"torch.nn.LayerNorm", "torch.nn.RMSNorm"},
    ("scale",): {"flax.nnx.LayerNorm", "flax.nnx.RMSNorm", "keras.AdditiveAttention", "keras.RMSNormalization"},
    ("vars/0",): {"keras.LayerNormalization", "keras.AdditiveAttention", "keras.RMSNormalization"},
}
"""The sources of arrays with the same names and shapes."""


@pytest.mark.parametrize("form", FORMS)
def test_a_source_is_recognised_by_its_own_arrays_and_no_other_is(form: Source):
    arrays, options = canonical(form)
    for spelling in range(form.spellings):
        written = from_canonical(form.layer, arrays, form.name, spelling=spelling, **options)
        assert set(recognise(written)) == SHARED.get(tuple(written), {form.name})
        assert set(recognise({f"a.b.{name}": array for name, array in written.items()})) == set(recognise(written))


@pytest.mark.parametrize("options", [{}, {"epsilon": 1e-3}], ids=str)
@pytest.mark.parametrize("name", ["weight", "scale"])
def test_a_gain_alone_may_be_that_of_several_layers(name: str, options: dict[str, float]):
    message = refusal(lambda: to_canonical({name: uniform("gain", (6,))}, **options))
    assert message == f"the arrays fit {' and '.join(sorted(SHARED[name,]))}: pass source=... , one of them."


def test_sources_with_the_same_arrays_are_reported_and_the_first_is_used():
    arrays, options = canonical(SOURCES["flax.nnx.MultiHeadAttention"])
    written = from_canonical("MultiHeadAttention", arrays, "flax.nnx.MultiHeadAttention", **options)
    converted = to_canonical(written)
    assert same(converted.arrays, arrays) and converted.source == "flax.linen.MultiHeadDotProductAttention"
    assert converted.notes[-1] == "flax.nnx.MultiHeadAttention would give the same arrays."


def test_heads_that_share_keys_are_those_of_the_layer_that_has_them():
    """With as many heads of keys as of queries, its arrays are those of the layer without them."""
    for count, source in ((2, "keras.MultiHeadAttention"), (1, "keras.GroupQueryAttention")):
        arrays = drawn("MultiHeadAttention", num_key_heads=count)
        converted = to_canonical(from_canonical("MultiHeadAttention", arrays, "keras.GroupQueryAttention", num_heads=2))
        assert converted.source == source and same(converted.arrays, arrays)
        assert converted.config.get("num_key_heads", 2) == count
    assert refusal(lambda: from_canonical("MultiHeadAttention", arrays, "keras.MultiHeadAttention", num_heads=2)) == (
        "keras.MultiHeadAttention cannot have arrays of these shapes: query/kernel from (8, 6), query/bias from (8,), "
        "key/kernel from (4, 5), key/bias from (4,), value/kernel from (4, 7), value/bias from (4,), "
        "attention_output/kernel from (6, 8), attention_output/bias from (6,)."
    )


def test_a_layer_of_self_attention_alone_may_be_causal_or_not():
    """KerasHub's file does not say whether it is of an encoder, or of a decoder without cross-attention."""
    arrays, options = canonical(SOURCES["keras_hub.TransformerEncoder"])
    written = from_canonical("TransformerEncoderLayer", arrays, "keras_hub.TransformerEncoder", spelling=1, **options)
    assert refusal(lambda: to_canonical(written, **options)) == (
        "the arrays fit keras_hub.TransformerDecoder and keras_hub.TransformerEncoder: pass source=... , one of them."
    )
    assert to_canonical(written, "keras_hub.TransformerDecoder", **options).config["causal"]


# ------------------------------------------------------------------------------------------------ by hand


def test_keras_has_another_gate_order_and_transposed_kernels():
    arrays = drawn("GRU")
    written = from_canonical("GRU", arrays, "keras.GRU")
    reset, update, new = arrays["0.W"]
    np.testing.assert_array_equal(written["gru_cell/kernel"], np.hstack([update.T, reset.T, new.T]))
    b, zero = arrays["0.b"], np.zeros(8)
    np.testing.assert_array_equal(
        written["gru_cell/bias"], [np.concatenate([b[1], b[0], b[2]]), np.concatenate([zero, arrays["0.b_hn"]])]
    )


def test_two_biases_become_one_where_only_their_sum_acts():
    written = from_canonical("GRU", drawn("GRU"), "torch.nn.GRU")
    written["bias_ih_l0"], written["bias_hh_l0"] = np.arange(12.0), np.arange(100.0, 112.0)
    converted = to_canonical(written)
    np.testing.assert_array_equal(converted.arrays["0.b"].ravel(), [*range(100, 116, 2), 8, 9, 10, 11])
    np.testing.assert_array_equal(converted.arrays["0.b_hn"], np.arange(108.0, 112.0))
    assert converted.used["0.b"] == ("bias_ih_l0", "bias_hh_l0") and converted.used["0.b_hn"] == ("bias_hh_l0",)
    assert converted.notes == (
        "Two biases add up where only their sum acts: the sum is kept. The reverse conversion writes it to one of the "
        "two and sets the other to 0: the same function with different arrays.",
    )
    back = from_canonical("GRU", converted.arrays, "torch.nn.GRU")
    np.testing.assert_array_equal(back["bias_hh_l0"], [0] * 8 + [108, 109, 110, 111])


def test_a_normalised_vector_of_tensorflow_addons_is_multiplied_by_its_gain():
    arrays = {
        "attention/memory_layer/kernel:0": uniform("memory", (5, 4)),
        "attention/query_layer/kernel:0": uniform("query", (3, 4)),
        "attention/attention_v:0": np.array([3.0, 0.0, 4.0, 0.0]),
        "attention/attention_g:0": np.array(2.0),
        "attention/attention_b:0": np.zeros(4),
    }
    converted = to_canonical(arrays)
    assert (converted.source, converted.layer) == ("tfa.BahdanauAttention", "AdditiveAttention")
    np.testing.assert_allclose(converted.arrays["w_v"], [1.2, 0.0, 1.6, 0.0], rtol=0, atol=1e-15)
    np.testing.assert_array_equal(converted.arrays["W_k"], arrays["attention/memory_layer/kernel:0"].T)
    assert converted.used["w_v"] == ("attention/attention_v:0", "attention/attention_g:0")
    arrays["attention/attention_b:0"][1] = 0.5
    with pytest.raises(WeightError, match=r"attention_b:0 is not 0: AdditiveAttention has no bias inside its tanh\.$"):
        to_canonical(arrays)


def test_a_scale_of_tensorflow_addons_is_multiplied_into_the_kernel():
    kernel = uniform("kernel", (5, 3))
    converted = to_canonical({"memory_layer/kernel": kernel, "attention_g": np.array(2.0)})
    np.testing.assert_array_equal(converted.arrays["W"], 2 * kernel.T)


@pytest.mark.parametrize("biased", [0.0, 0.5])
def test_opennmts_bias_of_the_query_has_no_place_unless_it_is_zero(biased: float):
    arrays, _ = canonical(SOURCES["opennmt.GlobalAttention"].also[0])
    written = from_canonical("AdditiveAttention", arrays, "opennmt.GlobalAttention")
    assert written["linear_query.bias"].shape == (4,)
    written["linear_query.bias"][2] = biased
    if biased:
        with pytest.raises(
            WeightError, match=r"linear_query\.bias is not 0: AdditiveAttention has no bias inside its tanh"
        ):
            to_canonical(written)
    else:
        assert "linear_query.bias is 0 and left out." in to_canonical(written).notes


def softmaxed(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_opennmts_general_attention_projects_the_query_and_computes_the_same(answered):
    queries, keys = uniform("queries", (2, 4, 3)), uniform("keys", (2, 6, 5))
    arrays = {"linear_in.weight": uniform("linear_in", (5, 3)), "linear_out.weight": uniform("linear_out", (3, 8))}
    converted = to_canonical(arrays)
    expected = softmaxed(queries @ arrays["linear_in.weight"].T @ keys.transpose(0, 2, 1)) @ keys
    np.testing.assert_allclose(answered(converted, queries, keys, keys)[0], expected, rtol=0, atol=1e-14)
    np.testing.assert_array_equal(converted.beside["W_c"], arrays["linear_out.weight"])


def test_opennmts_mlp_attention_computes_the_same(answered):
    queries, keys = uniform("queries", (2, 4, 3)), uniform("keys", (2, 6, 5))
    arrays = {
        "linear_context.weight": uniform("context", (4, 5)),
        "linear_query.weight": uniform("query", (4, 3)),
        "v.weight": uniform("v", (1, 4)),
        "linear_out.weight": uniform("linear_out", (3, 8)),
    }
    query, context = queries @ arrays["linear_query.weight"].T, keys @ arrays["linear_context.weight"].T
    scores = np.tanh(query[:, :, None] + context[:, None]) @ arrays["v.weight"][0]
    actual = answered(to_canonical(arrays), queries, keys, keys)[0]
    np.testing.assert_allclose(actual, softmaxed(scores) @ keys, rtol=0, atol=1e-14)


def test_tensorflow_addons_attention_computes_the_same(answered):
    queries, keys = uniform("queries", (2, 4, 3)), uniform("keys", (2, 6, 5))
    memory, query, v = uniform("memory", (5, 4)), uniform("query", (3, 4)), uniform("v", (4,))
    gain = np.array(1.5)
    additive = to_canonical({"memory_layer/kernel": memory, "query_layer/kernel": query, "attention_v": v})
    scores = np.tanh((queries @ query)[:, :, None] + (keys @ memory)[:, None]) @ v
    np.testing.assert_allclose(answered(additive, queries, keys, keys)[0], softmaxed(scores) @ keys, rtol=0, atol=1e-14)
    kernel = uniform("kernel", (5, 3))
    luong = to_canonical({"memory_layer/kernel": kernel, "attention_g": gain})
    scores = gain * (queries @ (keys @ kernel).transpose(0, 2, 1))
    np.testing.assert_allclose(answered(luong, queries, keys, keys)[0], softmaxed(scores) @ keys, rtol=0, atol=1e-14)


# ------------------------------------------------------------------------------------------------ square matrices


def test_the_source_determines_whether_a_square_matrix_is_transposed():
    square = uniform("square", (4, 4))
    kernels = {
        ("torch.nn.GRU", "weight_ih_l0"): False,
        ("keras.GRU", "gru_cell/kernel"): True,
        ("gluon.rnn.GRU", "_unfused.0.i2h_weight"): False,
        ("flax.nnx.GRUCell", "dense_i.kernel"): True,
    }
    for (name, first), transposed in kernels.items():
        arrays = drawn("GRU", input_size=4)
        arrays["0.W"], arrays["0.b_hn"] = np.stack([square] * 3), np.zeros(4)
        written = from_canonical("GRU", arrays, name)[first]
        np.testing.assert_array_equal(written, np.hstack([square.T] * 3) if transposed else np.vstack([square] * 3))
    assert np.array_equal(to_canonical({"linear_in.weight": square, "linear_out.weight": square}).arrays["W"], square.T)


def test_sources_that_would_turn_a_matrix_differently_are_refused(monkeypatch: pytest.MonkeyPatch):
    other = replace(
        SOURCES["tfa.LuongAttention"], name="other", rows=(Row("memory_layer/kernel", "q k -> q k", ("W",)),)
    )
    monkeypatch.setitem(SOURCES, "other", replace(other, also=()))
    arrays = {"memory_layer/kernel": uniform("square", (4, 4))}
    assert set(recognise(arrays)) == {"tfa.LuongAttention", "other"}
    assert (
        refusal(lambda: to_canonical(arrays))
        == "the arrays fit tfa.LuongAttention and other: pass source=... , one of them."
    )
    assert np.array_equal(to_canonical(arrays, "other").arrays["W"], arrays["memory_layer/kernel"])
