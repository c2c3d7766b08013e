"""What does not fit a table is refused by name and shape, and a prefix says which arrays are meant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.weights import SOURCES, Prefix, WeightError, from_canonical, recognise, to_canonical
from backends.weights.table import Source
from parity_tests.tests.weights.arrays import CONFIGS, FORMS, Arrays, canonical, drawn, refusal, same, torch_gru


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
    assert refusal(lambda: to_canonical(torch_gru(**changed), "torch.nn.GRU")) == words


def test_without_a_source_an_error_names_the_closest_sources():
    message = refusal(lambda: to_canonical(torch_gru(weight_hh_l0=np.ones((4, 12)))))
    assert "no source fits the arrays weight_ih_l0 (12, 7), weight_hh_l0 (4, 12)," in message
    assert "torch.nn.GRU: weight_hh_l0 has shape (4, 12), expected (12, 4)" in message
    assert message.endswith("if only some of the arrays belong to it, prefix=... .") and len(message) < 2_000


ENCODER = "TransformerEncoderLayer"
STACK, TRANSLATOR = "torch.nn.TransformerEncoder", "TransformerTranslator"
OPTIONS = {name: CONFIGS["TransformerEncoder"][name] for name in ("num_heads", "norm", "activation", "epsilon")}
PASSED = (
    " cannot be inferred from the shapes of the arrays: pass num_heads=..., norm=..., activation=..., epsilon=... ."
)


def stack(prefix: Prefix = "") -> Arrays:
    """The arrays of an encoder of PyTorch with its embeddings."""
    return from_canonical("TransformerEncoder", drawn("TransformerEncoder"), STACK, prefix=prefix, **OPTIONS)


REFUSED: list[tuple[Any, str]] = [
    (lambda: to_canonical({}), "there are no arrays to convert."),
    (
        lambda: to_canonical({"a/b": np.ones(2), "a.b": np.ones(2)}),
        "a/b and a.b are two spellings of one name: remove one of them.",
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
        "GRU: hidden_size is 4 by the shapes of the arrays, but 5 was passed.",
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
        "flax.nnx.GRUCell requires 0.b_hn to be zeros: the cell has no hidden bias. Replace its dense_h by a Linear "
        "with use_bias=True and bias [0, 0, b_hn], or use flax.linen.GRUCell or backends.jax.GRU.",
    ),
    (
        lambda: from_canonical("AdditiveAttention", drawn("AdditiveAttention"), "keras.AdditiveAttention"),
        "keras.AdditiveAttention requires W_q to be the identity: it has no projections: set a Dense(use_bias=False) "
        "with kernel W_q.T before its queries, and pass it the identity.",
    ),
    (
        lambda: from_canonical("MultiHeadAttention", drawn("MultiHeadAttention"), "keras.MultiHeadAttention"),
        "MultiHeadAttention: num_heads cannot be inferred from the shapes of the arrays: pass num_heads=... .",
    ),
    (
        lambda: from_canonical(ENCODER, drawn(ENCODER), f"torch.nn.{ENCODER}"),
        "TransformerEncoderLayer: num_heads, norm, activation, epsilon cannot be inferred from the shapes of the "
        "arrays: pass num_heads=..., norm=..., activation=..., epsilon=... .",
    ),
    (
        lambda: from_canonical(ENCODER, drawn(ENCODER, rms=True), f"torch.nn.{ENCODER}", **CONFIGS[ENCODER]),
        "TransformerEncoderLayer: rms is True by the shapes of the arrays, but False was passed.",
    ),
    (
        lambda: from_canonical(ENCODER, drawn(ENCODER, gated=True), f"torch.nn.{ENCODER}", **CONFIGS[ENCODER]),
        "torch.nn.TransformerEncoderLayer has no place for feed_forward.W_3 (8, 6).",
    ),
    (
        lambda: from_canonical(ENCODER, drawn(ENCODER, num_key_heads=1), f"torch.nn.{ENCODER}", **CONFIGS[ENCODER]),
        "torch.nn.TransformerEncoderLayer holds self_attention.W_q (6, 6), self_attention.W_k (3, 6), "
        "self_attention.W_v (3, 6) in one array; their shapes must be equal.",
    ),
    (
        lambda: to_canonical({f"tf.{n}": a for n, a in stack().items() if n != "embedding.weight"}, STACK, **OPTIONS),
        "torch.nn.TransformerEncoder: missing: tf.embedding.weight; found: tf.positions.weight, "
        "tf.layers.0.self_attn.in_proj_weight, tf.layers.1.self_attn.in_proj_weight, "
        "tf.layers.0.self_attn.in_proj_bias, tf.layers.1.self_attn.in_proj_bias, "
        "tf.layers.0.self_attn.out_proj.weight, tf.layers.1.self_attn.out_proj.weight, "
        "tf.layers.0.self_attn.out_proj.bias and 19 more. For parts with other names, pass prefix={'': 'tf.', "
        "'embedding': ...}.",
    ),
    (
        lambda: to_canonical(stack(), STACK, prefix={"embedding": "tokens."}),
        "no array begins with 'tokens.', the prefix of embedding.",
    ),
    (
        lambda: to_canonical(stack(), STACK, prefix={"": "encoder."}),
        "no array begins with 'encoder.', the prefix of the layer.",
    ),
    (lambda: to_canonical(stack(), STACK), "TransformerEncoder: num_heads, norm, activation, epsilon" + PASSED),
    (
        lambda: to_canonical({n: a for n, a in stack().items() if "positions" not in n}, STACK, norm="pre"),
        "TransformerEncoder: num_heads, positions, activation, epsilon"
        + PASSED.replace("norm=..., ", "positions=..., "),
    ),
    (
        lambda: stack({"embeddings": "tokens."}),
        "there is no part 'embeddings'; the names begin with embedding, positions, layers, norm.",
    ),
    (
        lambda: stack({"embedding": "tokens.", "positions": "tokens."}),
        "tokens.weight is two different arrays: give their parts different prefixes.",
    ),
    (
        lambda: from_canonical(
            TRANSLATOR, drawn(TRANSLATOR, norm="post"), "torch.nn.Transformer", **{**OPTIONS, "norm": "post"}
        ),
        "torch.nn.Transformer: encoder.norm.g is missing, which encoder.norm.weight is made of.",
    ),
    (
        lambda: from_canonical(
            "MultiHeadAttention", drawn("MultiHeadAttention"), "flax.nnx.MultiHeadAttention", num_heads=2, score="dot"
        ),
        "flax.nnx.MultiHeadAttention has score='scaled_dot' only, but 'dot' was passed.",
    ),
]


@pytest.mark.parametrize(("call", "words"), REFUSED, ids=[words[:50] for _, words in REFUSED])
def test_an_error_states_the_cause_and_the_remedy(call: Any, words: str):
    assert refusal(lambda: call()) == words


def test_a_keras_gru_with_one_row_of_biases_is_another_function():
    arrays = from_canonical("GRU", drawn("GRU"), "keras.GRU")
    with pytest.raises(
        WeightError, match=r"gru_cell/bias \(12,\): one row of biases is reset_after=False, where the reset"
    ):
        to_canonical({**arrays, "gru_cell/bias": np.ones(12)}, "keras.GRU")


@pytest.mark.parametrize("name", ["torch.nn.GRU", "torch.nn.LSTM", "keras.GRU", "gluon.rnn.LSTM", "onnx.GRU"])
def test_a_layer_without_biases_has_zeros_and_a_note(name: str):
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


def test_a_prefix_selects_only_the_arrays_under_it():
    arrays = {f"encoder.rnn.{name}": array for name, array in torch_gru().items()} | {
        "decoder.dense.weight": np.ones((3, 2))
    }
    assert refusal(lambda: to_canonical(arrays, "torch.nn.GRU")) == (
        "torch.nn.GRU: left over: decoder.dense.weight. If they belong to something else, pass prefix='encoder.rnn.'."
    )
    converted = to_canonical(arrays, prefix="encoder.rnn.")
    assert converted.source == "torch.nn.GRU" and "The names begin with 'encoder.rnn.'." in converted.notes
    with pytest.raises(WeightError, match=r"none of the arrays .* has one of its names"):
        to_canonical(arrays, "torch.nn.GRU", prefix="decoder.")


def test_two_equal_layers_require_a_prefix():
    arrays = {f"{part}.{name}": array for part in ("encoder", "decoder") for name, array in torch_gru().items()}
    assert recognise(arrays) == ["torch.nn.GRU"]
    assert refusal(lambda: to_canonical(arrays)) == (
        "torch.nn.GRU fits under several prefixes: 'encoder.', 'decoder.'. Pass prefix=... , one of them."
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


@pytest.mark.parametrize(
    "prefix",
    [
        {"embedding": "tokens."},
        {"": "stack.", "embedding": "tokens."},
        {"": "stack.", "embedding": "stack.tokens.", "layers.0": "first/"},
    ],
    ids=str,
)
def test_a_part_may_have_a_prefix_of_its_own(prefix: dict[str, str]):
    """Also one inside the prefix of the rest, or where the rest has none."""
    written = stack(prefix)
    assert f"{prefix['embedding']}weight" in written and f"{prefix.get('', '')}norm.weight" in written
    converted = to_canonical(written, prefix=prefix, **OPTIONS)
    assert same(converted.arrays, drawn("TransformerEncoder"))
    assert converted.used["embedding"] == (f"{prefix['embedding']}weight",)
