"""Weights move: every table is read in both directions, and what does not fit is refused by name and shape."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import backends
from attention_core.draws import uniform
from backends import weights
from backends.weights import SOURCES, WeightError, from_canonical, recognise, tables, to_canonical
from backends.weights.configs import layer_named
from backends.weights.rearrange import parsed, rearranged, solve
from backends.weights.table import Row, Source

Arrays = dict[str, np.ndarray]

TABLES = {name: source for name, source in SOURCES.items() if not source.framework}
FORMS = [
    pytest.param(form, id=f"{name}-{number}")
    for name, source in TABLES.items()
    for number, form in enumerate(source.forms)
]
CONFIGS: dict[str, dict[str, Any]] = {
    "GRU": {"input_size": 7, "hidden_size": 4},
    "LSTM": {"input_size": 7, "hidden_size": 4},
    "AdditiveAttention": {"query_size": 3, "key_size": 5, "hidden_size": 4},
    "GeneralAttention": {"query_size": 3, "key_size": 5},
    "DotProductAttention": {},
    "MultiHeadAttention": {"query_size": 6, "num_heads": 2, "key_size": 5, "value_size": 7, "hidden_size": 8},
    "GRUEncoder": {"vocab_size": 11, "embed_size": 5, "hidden_size": 4},
    "LSTMEncoder": {"vocab_size": 11, "embed_size": 5, "hidden_size": 4},
    "BahdanauDecoder": {"vocab_size": 11, "embed_size": 5, "hidden_size": 4, "memory_size": 3, "attention_size": 6},
}
STACKS = [{}, {"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True}]


def drawn(layer: str, **config: Any) -> Arrays:
    """Canonical arrays of a layer."""
    specification = layer_named(layer)
    shapes = specification.shapes(specification.sizes({**CONFIGS[layer], **config}))
    return {name: uniform(name, shape) for name, shape in shapes.items()}


def canonical(form: Source, **stack: Any) -> tuple[Arrays, dict[str, Any]]:
    """Canonical arrays that a table can hold, and the options that no shape shows."""
    if form.name == "torch.nn.MultiheadAttention":
        equal = "in_proj_weight" in form.rows[0].name
        sizes = {"hidden_size": 6, **({"key_size": 6, "value_size": 6} if equal else {})}
        return drawn("MultiHeadAttention", **sizes), {"num_heads": 2}
    arrays = drawn(form.layer, **{**form.config, **stack})
    for name, array in arrays.items():
        fixed = form.fixed.get(name.rpartition(".")[2])
        if fixed is not None:
            arrays[name] = np.eye(arrays[fixed.like].size) if fixed.like else np.zeros_like(array)
    for row in form.rows:
        arrays |= {
            hold[1:]: uniform(hold, (3, 8) if "weight" in row.name else (3,)) for hold in row.holds if hold[0] == "*"
        }
    return arrays, {"num_heads": 2} if form.layer == "MultiHeadAttention" else {}


def same(found: Arrays, wanted: Arrays) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].dtype == array.dtype and np.array_equal(found[name], array) for name, array in wanted.items()
    )


# ------------------------------------------------------------------------------------------------ round trips


@pytest.mark.parametrize("form", FORMS)
def test_every_table_is_its_own_inverse(form: Source):
    """Written under the source's names and read back: not one bit changes, whatever the spelling and the stack."""
    seen = 0
    for stack in STACKS if form.layer.startswith(("GRU", "LSTM")) else STACKS[:1]:
        arrays, options = canonical(form, **stack)
        prefix = "model." if form.stacked or "num_layers" not in stack else ("model.0.", "model.1.")
        for spelling in range(form.spellings):
            if stack.get("bidirectional") and len(form.words(spelling)) < len(form.words(0)):
                continue  # the bare names of a cell, which has one direction
            written = from_canonical(form.layer, arrays, form.name, prefix=prefix, spelling=spelling, **options)
            assert all(name.startswith("model.") for name in written)
            read = to_canonical(written, form.name, prefix=prefix, layer=form.layer, **options)
            assert same({**read.arrays, **read.beside}, arrays)
            assert set(read.used) == {name for name in read.arrays if name.rpartition(".")[2] not in form.fixed}
            seen += 1
    assert seen


@pytest.mark.parametrize("form", FORMS)
def test_what_was_converted_says_how_its_layer_is_made(form: Source):
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


SHARED = {"flax.linen.MultiHeadDotProductAttention", "flax.nnx.MultiHeadAttention"}
"""Two sources with the same names and shapes, and the same meaning."""


@pytest.mark.parametrize("form", FORMS)
def test_a_source_is_recognised_by_its_own_arrays_and_no_other_is(form: Source):
    arrays, options = canonical(form)
    for spelling in range(form.spellings):
        written = from_canonical(form.layer, arrays, form.name, spelling=spelling, **options)
        assert set(recognise(written)) == (SHARED if form.name in SHARED else {form.name})
        assert set(recognise({f"a.b.{name}": array for name, array in written.items()})) == set(recognise(written))


def test_sources_with_the_same_arrays_are_told_and_the_first_is_taken():
    arrays, options = canonical(SOURCES["flax.nnx.MultiHeadAttention"])
    written = from_canonical("MultiHeadAttention", arrays, "flax.nnx.MultiHeadAttention", **options)
    converted = to_canonical(written)
    assert same(converted.arrays, arrays) and converted.source == "flax.linen.MultiHeadDotProductAttention"
    assert converted.notes[-1] == "flax.nnx.MultiHeadAttention would be the same: same names, same arrays."


# ------------------------------------------------------------------------------------------------ by hand


def test_the_gates_of_keras_stand_in_another_order_and_its_kernels_are_transposed():
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
        "Two biases add up where only their sum acts: the sum is kept. On the way back it stands in one of the two, "
        "and the other is 0: the same function, other arrays.",
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
    wanted = softmaxed(queries @ arrays["linear_in.weight"].T @ keys.transpose(0, 2, 1)) @ keys
    np.testing.assert_allclose(answered(converted, queries, keys, keys)[0], wanted, rtol=0, atol=1e-14)
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
    found = answered(to_canonical(arrays), queries, keys, keys)[0]
    np.testing.assert_allclose(found, softmaxed(scores) @ keys, rtol=0, atol=1e-14)


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


def test_the_source_decides_how_a_square_matrix_stands():
    square = uniform("square", (4, 4))
    turned = {
        ("torch.nn.GRU", "weight_ih_l0"): False,
        ("keras.GRU", "gru_cell/kernel"): True,
        ("gluon.rnn.GRU", "_unfused.0.i2h_weight"): False,
        ("flax.nnx.GRUCell", "dense_i.kernel"): True,
    }
    for (name, first), transposed in turned.items():
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
    with pytest.raises(WeightError) as refused:
        to_canonical(arrays)
    assert str(refused.value) == "the arrays fit tfa.LuongAttention and other: give source=... , one of them."
    assert np.array_equal(to_canonical(arrays, "other").arrays["W"], arrays["memory_layer/kernel"])


# ------------------------------------------------------------------------------------------------ refusals


def torch_gru(**changed: np.ndarray | None) -> Arrays:
    arrays: dict[str, Any] = {**from_canonical("GRU", drawn("GRU"), "torch.nn.GRU"), **changed}
    return {name: array for name, array in arrays.items() if array is not None}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"weight_ih_l0": np.ones((7, 12))},
            "torch.nn.GRU: weight_ih_l0 has shape (7, 12), expected (12, i) by the other arrays (axes '(3 h) i'). Its "
            "transpose would fit.",
        ),
        (
            {"weight_hh_l0": np.ones((4, 12))},
            'torch.nn.GRU: weight_hh_l0 has shape (4, 12), expected (12, 4) by the other arrays (axes "(3 h) h\'"). '
            "Its transpose would fit.",
        ),
        (
            {"bias_hh_l0": np.ones(13)},
            "torch.nn.GRU: bias_hh_l0 has shape (13,), expected (12,) by the other arrays (axes '(3 h)').",
        ),
        (
            {"weight_ih_l0": np.ones(84)},
            "torch.nn.GRU: weight_ih_l0 has shape (84,), expected (12, i) by the other arrays (axes '(3 h) i').",
        ),
        (
            {"weight_hh_l0": None},
            "torch.nn.GRU: missing: weight_hh_l0; found: weight_ih_l0, bias_ih_l0, bias_hh_l0.",
        ),
        ({"bias_hh_l0": None}, "torch.nn.GRU: missing: bias_hh_l0; found: weight_ih_l0, weight_hh_l0, bias_ih_l0."),
        (
            {"weight_ih_l1": np.ones((12, 4))},
            "torch.nn.GRU: missing: weight_hh_l1, bias_ih_l1, bias_hh_l1; found: weight_ih_l0, weight_ih_l1, "
            "weight_hh_l0, bias_ih_l0, bias_hh_l0.",
        ),
        ({"proj": np.ones(3)}, "torch.nn.GRU: left over: proj. If they belong to something else, take them out."),
    ],
)
def test_an_array_that_does_not_fit_is_named_with_both_shapes(changed: dict[str, Any], words: str):
    with pytest.raises(WeightError) as refused:
        to_canonical(torch_gru(**changed), "torch.nn.GRU")
    assert str(refused.value) == words


def test_without_a_source_a_refusal_says_what_nearly_fits():
    with pytest.raises(WeightError) as refused:
        to_canonical(torch_gru(weight_hh_l0=np.ones((4, 12))))
    assert "no source fits the arrays weight_ih_l0 (12, 7), weight_hh_l0 (4, 12)," in str(refused.value)
    assert "torch.nn.GRU: weight_hh_l0 has shape (4, 12), expected (12, 4)" in str(refused.value)
    assert str(refused.value).endswith(f"there are {', '.join(SOURCES)}.")


REFUSED: list[tuple[Any, str]] = [
    (lambda: to_canonical({}), "there are no arrays to convert."),
    (
        lambda: to_canonical({"a/b": np.ones(2), "a.b": np.ones(2)}),
        "a/b and a.b are two spellings of one name: take one of them out.",
    ),
    (lambda: to_canonical(torch_gru(), "torch.GRU"), f"no source 'torch.GRU'; there are {', '.join(SOURCES)}."),
    (
        lambda: to_canonical({"x": np.ones(2)}, "torch.nn.LSTM"),
        "torch.nn.LSTM: none of the arrays x (2,) has one of its names: weight_ih_l{layer}{direction}, "
        "weight_hh_l{layer}{direction}, bias_ih_l{layer}{direction}, bias_hh_l{layer}{direction}.",
    ),
    (
        lambda: to_canonical(torch_gru(bias_hh_l0=np.ones(12, "float32")), "torch.nn.GRU"),
        "torch.nn.GRU: the arrays are not of one floating dtype (weight_ih_l0 float64, weight_hh_l0 float64, "
        "bias_ih_l0 float64, bias_hh_l0 float32): cast them first.",
    ),
    (
        lambda: to_canonical({name: array.astype(int) for name, array in torch_gru().items()}, "torch.nn.GRU"),
        "torch.nn.GRU: the arrays are not of one floating dtype (weight_ih_l0 int64, weight_hh_l0 int64, bias_ih_l0 "
        "int64, bias_hh_l0 int64): cast them first.",
    ),
    (
        lambda: to_canonical(torch_gru(), "torch.nn.GRU", hidden_size=5),
        "GRU: hidden_size is 4 by the shapes of the arrays, given 5.",
    ),
    (
        lambda: to_canonical(torch_gru(), "torch.nn.GRU", units=4),
        "GRU has no option 'units'; it has bidirectional, dropout, hidden_size, input_size, num_layers.",
    ),
    (lambda: to_canonical(torch_gru(), "torch.nn.GRU", layer="LSTM"), "torch.nn.GRU holds GRU, not LSTM."),
    (lambda: from_canonical("LSTM", drawn("LSTM"), "torch.nn.GRU"), "torch.nn.GRU holds GRU, not LSTM."),
    (
        lambda: from_canonical("GRU", {**drawn("GRU"), "1.x": np.ones(2)}, "torch.nn.GRU"),
        "GRU: 1.x (2,) is left over; the layer has 0.W, 0.U, 0.b, 0.b_hn, 1.W, 1.U, 1.b, 1.b_hn.",
    ),
    (
        lambda: from_canonical("GRU", drawn("GRU"), "keras.GRU", spelling=3),
        "keras.GRU: spelling is 3, expected 0 to 2.",
    ),
    (
        lambda: from_canonical("GRU", drawn("GRU", num_layers=2), "keras.GRU"),
        "keras.GRU: prefix is '', expected 2 different prefixes, one for each layer.",
    ),
    (
        lambda: from_canonical("GRU", drawn("GRU", num_layers=2), "torch.nn.GRU", prefix=("a.", "b.")),
        "torch.nn.GRU: prefix is ('a.', 'b.'), expected one prefix for all layers.",
    ),
    (
        lambda: from_canonical("GRU", drawn("GRU"), "flax.nnx.GRUCell"),
        "flax.nnx.GRUCell can only have 0.b_hn as zeros: the cell has no hidden bias. Replace its dense_h by a Linear "
        "with use_bias=True and bias [0, 0, b_hn], or take flax.linen.GRUCell or backends.jax.GRU.",
    ),
    (
        lambda: from_canonical("AdditiveAttention", drawn("AdditiveAttention"), "keras.AdditiveAttention"),
        "keras.AdditiveAttention can only have W_q as the identity: it has no projections: set a Dense(use_bias=False) "
        "with kernel W_q.T before its queries, and hand it the identity.",
    ),
    (
        lambda: from_canonical("MultiHeadAttention", drawn("MultiHeadAttention"), "keras.MultiHeadAttention"),
        "MultiHeadAttention: num_heads is not seen in the shapes of the arrays: give num_heads=... .",
    ),
    (
        lambda: from_canonical(
            "MultiHeadAttention", drawn("MultiHeadAttention"), "flax.nnx.MultiHeadAttention", num_heads=2, score="dot"
        ),
        "flax.nnx.MultiHeadAttention has score='scaled_dot' alone, given 'dot'.",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words[:50] for _, words in REFUSED])
def test_a_refusal_says_what_is_wrong_and_what_to_do(call: Any, words: str):
    with pytest.raises(WeightError) as refused:
        call()
    assert str(refused.value) == words


def test_a_keras_gru_with_one_row_of_biases_is_another_function():
    arrays = from_canonical("GRU", drawn("GRU"), "keras.GRU")
    with pytest.raises(
        WeightError, match=r"gru_cell/bias \(12,\): one row of biases is reset_after=False, where the reset"
    ):
        to_canonical({**arrays, "gru_cell/bias": np.ones(12)}, "keras.GRU")


@pytest.mark.parametrize("name", ["torch.nn.GRU", "torch.nn.LSTM", "keras.GRU", "gluon.rnn.LSTM", "onnx.GRU"])
def test_a_layer_without_biases_gets_zeros_and_the_notes_say_so(name: str):
    layer = SOURCES[name].layer
    written = from_canonical(layer, drawn(layer), name)
    bare = {key: array for key, array in written.items() if "bias" not in key and key != "B"}
    assert len(bare) < len(written)
    converted = to_canonical(bare, name)
    assert not np.any(converted.arrays["0.b"]) and "0.b is 0: the source has none." in converted.notes


@pytest.mark.parametrize("form", FORMS)
def test_no_shape_raises_anything_but_a_refusal(form: Source):
    arrays, options = canonical(form)
    written = from_canonical(form.layer, arrays, form.name, **options)
    refused = 0
    for name in written:
        for shape in ((), (0,), (1,), (3,), (0, 4), (1, 1), (5, 13), (0, 2, 2), (3, 0, 2), (2, 3, 5), (2, 2, 2, 2)):
            try:
                to_canonical({**written, name: np.ones(shape)}, form.name, **options)
            except WeightError:
                refused += 1
    assert refused


# ------------------------------------------------------------------------------------------------ prefixes


def test_a_prefix_takes_what_is_under_it_and_nothing_else():
    arrays = {f"encoder.rnn.{name}": array for name, array in torch_gru().items()} | {
        "decoder.dense.weight": np.ones((3, 2))
    }
    with pytest.raises(WeightError) as refused:
        to_canonical(arrays, "torch.nn.GRU")
    assert str(refused.value) == (
        "torch.nn.GRU: left over: decoder.dense.weight. If they belong to something else, give prefix='encoder.rnn.'."
    )
    converted = to_canonical(arrays, prefix="encoder.rnn.")
    assert converted.source == "torch.nn.GRU" and "The names begin with 'encoder.rnn.'." in converted.notes
    with pytest.raises(WeightError, match=r"none of the arrays .* has one of its names"):
        to_canonical(arrays, "torch.nn.GRU", prefix="decoder.")


def test_the_same_layer_twice_is_refused_until_a_prefix_says_which():
    arrays = {f"{part}.{name}": array for part in ("encoder", "decoder") for name, array in torch_gru().items()}
    assert recognise(arrays) == ["torch.nn.GRU"]
    with pytest.raises(WeightError) as refused:
        to_canonical(arrays)
    assert str(refused.value) == (
        "torch.nn.GRU fits under several prefixes: 'encoder.', 'decoder.'. Give prefix=... , one of them."
    )
    assert same(to_canonical(arrays, prefix="decoder.").arrays, drawn("GRU"))


def test_layers_under_their_own_prefixes_become_one_stack():
    arrays = drawn("GRU", num_layers=2)
    written = from_canonical("GRU", arrays, "keras.GRU", prefix=("layers/gru/", "layers/gru_1/"), spelling=1)
    assert list(written)[:2] == ["layers/gru/cell/vars/0", "layers/gru/cell/vars/1"]
    converted = to_canonical(written, prefix=("layers/gru/", "layers/gru_1/"))
    assert same(converted.arrays, arrays) and converted.config["num_layers"] == 2


def test_layers_in_the_wrong_order_do_not_make_a_stack():
    written = from_canonical("GRU", drawn("GRU", num_layers=2), "keras.GRU", prefix=("a/", "b/"))
    with pytest.raises(WeightError, match=r"GRU: 1\.W has shape \(3, 4, 7\), expected \(3, 4, 4\)\.$"):
        to_canonical(written, prefix=("b/", "a/"))


# ------------------------------------------------------------------------------------------------ the engine


@pytest.mark.parametrize(
    ("axes", "start", "end"),
    [
        ("(3 h) i -> 3 h i", (12, 7), (3, 4, 7)),
        ("i (3 h) -> 3 h i", (7, 12), (3, 4, 7)),
        ("2 (2 3 h) -> (2 2 3) h", (2, 24), (12, 4)),
        ("1 a -> (1 a)", (1, 5), (5,)),
        ("h h' -> h h'", (4, 4), (4, 4)),
        ("n d q -> q (n d)", (2, 4, 3), (3, 8)),
    ],
)
def test_a_rearrangement_turns_back_what_it_has_turned(axes: str, start: tuple[int, ...], end: tuple[int, ...]):
    left, right = parsed(axes)
    sizes = solve([(left, start)], {})
    assert sizes is not None
    array = uniform(axes, start)
    turned = rearranged(array, left, right, sizes)
    assert turned.shape == end
    np.testing.assert_array_equal(rearranged(turned, right, left, sizes), array)


@pytest.mark.parametrize("axes", ["a b -> a", "a a -> a a", "a -> b"])
def test_a_rearrangement_that_could_not_be_turned_back_is_none(axes: str):
    with pytest.raises(ValueError, match="both sides have to name the same axes, each once"):
        parsed(axes)


@pytest.mark.parametrize(
    ("axes", "shape"), [("(3 h) i", (13, 7)), ("(3 h) h'", (12, 5)), ("2 h", (3, 4)), ("h i", (3,)), ("(3 h)", (0,))]
)
def test_sizes_that_contradict_an_axis_are_found(axes: str, shape: tuple[int, ...]):
    sizes = solve([(parsed(f"{axes} -> {axes}")[0], shape)], {})
    assert sizes is None or (shape == (0,) and sizes["h"] == 0)


@pytest.mark.parametrize("module", [entry.name for entry in pkgutil.iter_modules(tables.__path__)])
def test_a_source_is_a_file_with_a_docstring_a_link_and_one_table(module: str):
    file = importlib.import_module(f"backends.weights.tables.{module}")
    assert "https://" in (file.__doc__ or "")
    assert SOURCES[file.SOURCE.name] is file.SOURCE
    for form in file.SOURCE.forms:
        assert form.name == file.SOURCE.name and {len(row.spellings) for row in form.rows} <= {1, form.spellings}
        layer = layer_named(form.layer)
        known = {parameter.name for parameter in layer.parameters}
        for row in form.rows:
            assert all(hold.lstrip("+*").format(layer=0, backward="") for hold in row.holds)
            if layer.name in ("GRU", "LSTM"):
                held = {hold.lstrip("+").partition(":")[0].replace("{backward}", "") for hold in row.holds}
                assert held <= known, row


def test_the_specification_of_the_issue_is_covered():
    assert set(SOURCES) >= {
        *("torch.nn.GRU", "torch.nn.LSTM", "torch.nn.MultiheadAttention", "keras.GRU", "keras.LSTM"),
        *("keras.MultiHeadAttention", "keras.AdditiveAttention", "flax.linen.GRUCell", "flax.linen.LSTMCell"),
        *("flax.linen.MultiHeadDotProductAttention", "flax.nnx.GRUCell", "flax.nnx.LSTMCell"),
        *("flax.nnx.OptimizedLSTMCell", "flax.nnx.MultiHeadAttention", "gluon.rnn.GRU", "gluon.rnn.LSTM", "onnx.GRU"),
        *("onnx.LSTM", "textbook.BahdanauDecoder", "opennmt.GlobalAttention", "tfa.BahdanauAttention"),
        *("tfa.LuongAttention", "attention_parity.torch", "attention_parity.tf", "attention_parity.jax"),
        "attention_parity.mxnet",
    }


def test_neither_a_framework_nor_a_file_library_is_imported():
    code = (
        "import sys, numpy as np; from backends import weights\n"
        "weights.recognise({'weight_ih_l0': np.ones((12, 7)), 'weight_hh_l0': np.ones((12, 4))})\n"
        "weights.recognise({'something': np.ones(2)})\n"
        "print(sorted({'torch', 'tensorflow', 'keras', 'jax', 'flax', 'mxnet', 'h5py', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------------ files


ARRAYS = {"a.b": np.arange(6.0).reshape(2, 3), "scalar": np.array(2.5, "float32"), "none": np.zeros((0, 4), "int64")}


@pytest.mark.parametrize("suffix", [".safetensors", ".params"])
def test_what_is_written_is_read(suffix: str, tmp_path: Path):
    weights.write_arrays(tmp_path / f"x{suffix}", ARRAYS)
    assert same(weights.read_arrays(tmp_path / f"x{suffix}"), ARRAYS)
    assert [path.name for path in tmp_path.iterdir()] == [f"x{suffix}"]


def test_anybodys_safetensors_are_read(tmp_path: Path):
    safetensors.numpy.save_file(ARRAYS, tmp_path / "x.safetensors", {"format": "pt"})
    assert same(weights.read_arrays(tmp_path / "x.safetensors"), ARRAYS)


def test_our_own_safetensors_are_checked_by_their_digest(tmp_path: Path):
    path = tmp_path / "x.safetensors"
    backends.save_arrays(path, ARRAYS)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightError, match="does not match its digest"):
        weights.read_arrays(path)


@pytest.mark.parametrize("suffix", [".safetensors", ".params"])
def test_every_truncated_file_is_refused(suffix: str, tmp_path: Path):
    weights.write_arrays(tmp_path / f"x{suffix}", ARRAYS)
    data = (tmp_path / f"x{suffix}").read_bytes()
    for length in range(len(data)):
        (tmp_path / f"short{suffix}").write_bytes(data[:length])
        with pytest.raises(WeightError):
            weights.read_arrays(tmp_path / f"short{suffix}")


def test_no_changed_byte_of_a_params_file_raises_anything_else(tmp_path: Path):
    weights.write_arrays(tmp_path / "x.params", ARRAYS)
    data = (tmp_path / "x.params").read_bytes()
    refused = 0
    for place in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            (tmp_path / "bad.params").write_bytes(data[:place] + bytes([data[place] ^ change]) + data[place + 1 :])
            try:
                weights.read_arrays(tmp_path / "bad.params")
            except WeightError:
                refused += 1
    assert refused > len(data)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.safetensors", b"no weights", "the header is wrong: "),
        ("x.params", b"no weights, but some more bytes", "the file does not begin as MXNet's files of arrays do."),
        ("x.safetensors", b"", "the file is empty."),
        ("x.params", b"", "the file is empty."),
        ("x.pt", b"", "the file is empty."),
        ("x.onnx", b"", "the file is empty."),
        ("x.weights.h5", b"", "the file is empty."),
        (
            "x.npz",
            b"PK",
            "a file of this kind cannot be read; one can be: .safetensors, .pt, .pth, .bin, .h5, .params, ",
        ),
        ("x.safetensors", None, "there is no such file."),
    ],
)
def test_a_wrong_file_is_refused(name: str, content: bytes | None, words: str, tmp_path: Path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightError) as refused:
        weights.read_arrays(tmp_path / name)
    assert str(refused.value).startswith(f"{tmp_path / name}: {words}")


def test_a_file_without_arrays_is_refused(tmp_path: Path):
    weights.write_arrays(tmp_path / "x.params", {})
    with pytest.raises(WeightError, match="the file holds no arrays"):
        weights.read_arrays(tmp_path / "x.params")


@pytest.mark.parametrize(("name", "library"), [("x.weights.h5", "h5py"), ("x.onnx", "onnx"), ("x.pt", "torch")])
def test_a_library_that_is_absent_is_asked_for(
    name: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / name).write_bytes(b"something")
    with pytest.raises(WeightError) as refused:
        weights.read_arrays(tmp_path / name)
    assert str(refused.value) == (f"{tmp_path / name}: this kind of file needs {library}. Run: pip install {library}.")


@pytest.mark.parametrize(
    ("name", "words"), [("x.onnx", "cannot be written; one can be: .safetensors, .pt"), ("x.txt", "cannot be written")]
)
def test_a_kind_that_cannot_be_written_is_refused(name: str, words: str, tmp_path: Path):
    with pytest.raises(WeightError, match=words):
        weights.write_arrays(tmp_path / name, ARRAYS)
    assert not list(tmp_path.iterdir())
