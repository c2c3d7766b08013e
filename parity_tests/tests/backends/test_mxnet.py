"""The MXNet backend under Gluon's own ways: Trainer, parameter files, casts, dropout, NumPy mode, hybridized blocks."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest

from attention_core import reference
from attention_core.differentiation import gradients
from attention_core.draws import integers, uniform
from attention_core.errors import OptionError
from backends import mxnet as attention
from backends.mxnet import scoring
from backends.mxnet.arrays import from_numpy
from backends.mxnet.runtime import vjp

# isort: split
# MXNet cannot be imported before the backend has given NumPy its old alias back.
import mxnet as mx
from mxnet import autograd, gluon, np, npx

from backends.mxnet.blocked import additive, choice
from parity_tests.tests.places import ROOT

Arrays = dict[str, numpy.ndarray]

STACK = {"hidden_size": 8, "num_layers": 3}
OPTIONS: dict[str, dict[str, int]] = {
    "DotProductAttention": {},
    "AdditiveAttention": {"query_size": 4, "key_size": 9, "hidden_size": 10},
    "GeneralAttention": {"query_size": 4, "key_size": 9},
    "ConcatAttention": {"query_size": 4, "key_size": 9, "hidden_size": 10},
    "CosineAttention": {},
    "LocationAttention": {"query_size": 4, "num_positions": 9},
    "LocalAttention": {"query_size": 4, "key_size": 9, "window": 2, "mode": "predictive"},
    "MultiHeadAttention": {"query_size": 4, "num_heads": 2, "key_size": 9, "value_size": 6},
    "LSTM": {"input_size": 4, "bidirectional": True, **STACK},
    "LSTMEncoder": {"vocab_size": 11, "embed_size": 4, **STACK},
    "FixedContextDecoder": {"vocab_size": 11, "embed_size": 4, "memory_size": 6, **STACK},
    "GRU": {"input_size": 4, **STACK},
    "GRUEncoder": {"vocab_size": 11, "embed_size": 4, **STACK},
    "BahdanauDecoder": {"vocab_size": 11, "embed_size": 4, "memory_size": 6, "attention_size": 10, **STACK},
}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "DotProductAttention": {"queries": (2, 5, 4), "keys": (2, 7, 4), "values": (2, 7, 6)},
    "AdditiveAttention": {"queries": (2, 5, 4), "keys": (2, 7, 9), "values": (2, 7, 6)},
    "GeneralAttention": {"queries": (2, 5, 4), "keys": (2, 7, 9), "values": (2, 7, 6)},
    "ConcatAttention": {"queries": (2, 5, 4), "keys": (2, 7, 9), "values": (2, 7, 6)},
    "CosineAttention": {"queries": (2, 5, 4), "keys": (2, 7, 4), "values": (2, 7, 6)},
    "LocationAttention": {"queries": (2, 5, 4), "keys": (2, 7, 9), "values": (2, 7, 6)},
    "LocalAttention": {"queries": (2, 5, 4), "keys": (2, 7, 9), "values": (2, 7, 6)},
    "MultiHeadAttention": {"queries": (2, 5, 4), "keys": (2, 7, 9), "values": (2, 7, 6)},
    "LSTM": {"inputs": (2, 5, 4), "state": (3, 2, 32)},
    "LSTMEncoder": {"tokens": (2, 5), "state": (3, 2, 16)},
    "FixedContextDecoder": {"tokens": (2, 5), "encoder_outputs": (2, 7, 6), "state": (3, 2, 8)},
    "GRU": {"inputs": (2, 5, 4), "state": (3, 2, 8)},
    "GRUEncoder": {"tokens": (2, 5), "state": (3, 2, 8)},
    "BahdanauDecoder": {"tokens": (2, 5), "encoder_outputs": (2, 7, 6), "state": (3, 2, 8)},
}
TRAINABLE = [name for name, options in OPTIONS.items() if options]
MODES = pytest.mark.parametrize("hybrid", [False, True], ids=["eager", "hybridized"])
LAYERS = pytest.mark.parametrize("name", TRAINABLE)


def built(name: str, dtype: str = "float32", **options: Any) -> gluon.Block:
    typed = {"dtype": dtype} if name in TRAINABLE else {}
    return getattr(attention, name)(**OPTIONS[name], **options, **typed)


def drawn(name: str, dtype: str = "float32", seed: int = 0) -> Arrays:
    """Arguments of a call; of the second sequence, three keys or steps are valid."""
    arrays = {
        key: integers(key, shape, 11, seed) if key == "tokens" else uniform(key, shape, seed=seed).astype(dtype)
        for key, shape in SHAPES[name].items()
    }
    return {**arrays, "valid_lens": numpy.array([9, 3])}


def given(arrays: Arrays) -> dict[str, np.ndarray]:
    return {key: from_numpy(array) for key, array in arrays.items()}


def answers(layer: gluon.Block, arrays: Arrays) -> Arrays:
    """Outputs of a call, and gradients under random cotangents."""
    outputs = layer(**given(arrays))
    factors = {i: from_numpy(uniform(str(i), out.shape).astype(out.dtype)) for i, out in enumerate(outputs)}
    outputs, inputs, parameters = vjp(lambda layer, **named: layer(**named), given(arrays), factors, layer)
    found = {**{str(i): out for i, out in enumerate(outputs)}, **inputs}
    return {key: array.asnumpy() for key, array in found.items()} | parameters


def changed(before: Mapping[str, numpy.ndarray], layer: gluon.Block) -> list[str]:
    return [key for key, array in attention.get_parameters(layer).items() if (array != before[key]).any()]


# ------------------------------------------------------------------------------------------------ hybridize


@pytest.mark.parametrize(
    ("flags", "dtype"), [({}, "float64"), ({"static_alloc": True}, "float32")], ids=["plain", "static"]
)
@pytest.mark.parametrize("name", OPTIONS)
def test_what_gluon_hybridizes_inside_changes_nothing(name: str, flags: dict[str, bool], dtype: str):
    layer, calls = built(name, dtype), [drawn(name, dtype, seed) for seed in range(2)]
    eager = [answers(layer, arrays) for arrays in calls]
    layer.hybridize(**flags)
    for arrays, expected in zip(calls, eager, strict=True):
        for key, found in answers(layer, arrays).items():
            numpy.testing.assert_allclose(found, expected[key], 0, 16 * numpy.finfo(dtype).eps, err_msg=key)


@LAYERS
def test_new_parameters_take_effect_in_what_is_hybridized(name: str):
    layer, other, arrays = built(name), built(name), given(drawn(name))
    layer.hybridize()
    before = layer(**arrays)[0].asnumpy()
    attention.set_parameters(layer, attention.get_parameters(other))
    after = layer(**arrays)[0].asnumpy()
    assert numpy.abs(after - before).max() > 1e-3
    numpy.testing.assert_allclose(after, other(**arrays)[0].asnumpy(), rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------------ blocks


@pytest.fixture
def forced() -> Iterator[Callable[[str | None], None]]:
    """Choose the path of additive scores for one test."""
    before = choice.forced
    yield choice.set_path
    choice.set_path(before)


ROWS = pytest.mark.parametrize("rows", [1, 7], ids=["one", "several"])


def operands(*shape: int, rows: int) -> Arrays:
    """Arguments of additive_score."""
    shapes = {"queries": (*shape, rows, 11), "keys": (*shape, 5, 11), "w_v": (11,)}
    return {key: uniform(key, size) for key, size in shapes.items()}


def scored(arrays: Arrays) -> Arrays:
    """Scores, and gradients under random cotangents."""
    factor = from_numpy(uniform("cotangent", (*arrays["queries"].shape[:-1], arrays["keys"].shape[-2])))
    call = lambda _, **named: (attention.additive_score(**named),)  # noqa: E731
    outputs, found, _ = vjp(call, given(arrays), {0: factor})
    return {"scores": outputs[0].asnumpy(), **{key: array.asnumpy() for key, array in found.items()}}


@ROWS
def test_blocks_that_do_not_fill_their_axes_give_the_plain_numbers(rows: int, forced, monkeypatch):
    arrays = operands(3, 2, rows=rows)
    forced("plain")
    expected = scored(arrays)
    forced("blocked")
    for block, features in ((1, 1), (40, 4), (300, 4), (2000, 8)):
        monkeypatch.setattr(additive, "BLOCK", block)
        monkeypatch.setattr(additive, "FEATURES", features)
        for key, found in scored(arrays).items():
            numpy.testing.assert_allclose(found, expected[key], rtol=0, atol=1e-13, err_msg=key)


@ROWS
@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf, -1e308], ids=str)
def test_blocks_pass_on_what_is_not_finite_as_the_plain_formula_does(bad: float, rows: int, forced):
    arrays = operands(2, rows=rows)
    arrays["keys"][1, 3, 2] = bad
    forced("plain")
    expected = scored(arrays)
    forced("blocked")
    for key, found in scored(arrays).items():
        numpy.testing.assert_allclose(found, expected[key], rtol=0, atol=1e-13, err_msg=key)


@ROWS
def test_blocks_add_to_a_gradient_beside_arguments_that_want_none(rows: int, forced):
    forced("blocked")
    arrays = operands(2, rows=rows)
    named = given(arrays)
    named["keys"].attach_grad(grad_req="add")
    factor = from_numpy(uniform("cotangent", (2, rows, 5)))
    for _ in range(2):
        with autograd.record():
            scores = attention.additive_score(**named)
        scores.backward(factor)
    numpy.testing.assert_allclose(named["keys"].grad.asnumpy(), 2 * scored(arrays)["keys"], rtol=0, atol=1e-13)


@ROWS
def test_a_second_derivative_of_blocks_raises(rows: int, forced):
    forced("blocked")
    named = given(operands(2, rows=rows))
    named["keys"].attach_grad()
    with autograd.record():
        scores = attention.additive_score(**named)
        (slope,) = autograd.grad(scores, [named["keys"]], create_graph=True)
        total = (slope.as_np_ndarray() ** 2).sum() + (named["keys"] ** 2).sum()
    with pytest.raises(mx.MXNetError, match="non-differentiable"):
        total.backward()


def by_blocks(
    queries: numpy.ndarray, keys: numpy.ndarray, w_v: numpy.ndarray, cotangent: numpy.ndarray
) -> list[numpy.ndarray]:
    """Additive scores by the path that is forced, and the gradients of queries, keys and w_v."""
    named = {
        key: from_numpy(array) for key, array in zip(("queries", "keys", "w_v"), (queries, keys, w_v), strict=True)
    }
    call = lambda _, **named: (attention.additive_score(**named),)  # noqa: E731
    outputs, found, _ = vjp(call, named, {0: from_numpy(cotangent)})
    return [outputs[0].asnumpy(), *(found[key].asnumpy() for key in ("queries", "keys", "w_v"))]


def derived(arrays: list[numpy.ndarray], cotangent: numpy.ndarray) -> list[numpy.ndarray]:
    """Scores and gradients in float64, by the reference and by hand."""
    queries, keys, w_v, g = (array.astype(numpy.float64) for array in (*arrays, cotangent))
    tanh = numpy.tanh(queries[:, :, None] + keys[:, None])
    terms = g[..., None] * w_v * (1 - tanh) * (1 + tanh)
    of_w_v = (g[..., None] * tanh).sum(axis=(0, 1, 2))
    return [reference.additive_score(queries, keys, w_v), terms.sum(axis=2), terms.sum(axis=1), of_w_v]


def spans(name: str, *shape: int, least: float) -> numpy.ndarray:
    """Positive numbers of all magnitudes from that one up to 1."""
    return least ** (0.5 - 0.5 * uniform(name, shape))


def features(magnitudes: list[float], w_v: numpy.ndarray) -> list[numpy.ndarray]:
    """Queries and keys of a magnitude for each feature, and w_v."""
    return [uniform("queries", (2, 5, 4)) * magnitudes, uniform("keys", (2, 7, 4)) * magnitudes, w_v]


def pairs(centre: float, spread: float) -> list[numpy.ndarray]:
    """Queries and keys that cancel but for the spread, and w_v."""
    queries, keys, w_v = features([spread] * 4, uniform("w_v", (4,)))
    return [queries + centre, keys - centre, w_v]


MAGNITUDES = [1e-30, 1e-6, 1e-4, 1e-3, 0.1, 1.0, 3.0, 10.0, 100.0, 1e30]
ADDENDS: dict[str, list[numpy.ndarray]] = {
    **{f"{size:g}": features([size] * 4, uniform("w_v", (4,))) for size in MAGNITUDES},
    **{f"cancelling {centre:g}": pairs(centre, 1e-4 * centre) for centre in (1e-3, 0.5, 5.0, 15.0)},
    "cancelling by one": [numpy.full((2, 5, 4), 3.0), numpy.full((2, 7, 4), -3.0 * (1 + 2**-20)), uniform("w_v", (4,))],
    "one tiny": features([1e-6, 3.0, 3.0, 3.0], uniform("w_v", (4,))),
    "one tiny of large weight": features([1e-6, 3.0, 3.0, 3.0], numpy.array([1e6, 1e-3, 1e-3, 1e-3])),
    "tiny keys": [uniform("queries", (2, 5, 4), 3.0), uniform("keys", (2, 7, 4), 1e-6), uniform("w_v", (4,))],
    "tiny queries": [uniform("queries", (2, 5, 4), 1e-6), uniform("keys", (2, 7, 4), 3.0), uniform("w_v", (4,))],
    "large weights": features([1e-3] * 4, uniform("w_v", (4,), 1e30)),
}


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64])
@pytest.mark.parametrize("rows", [1, 5], ids=["one", "several"])
@pytest.mark.parametrize("name", ADDENDS)
def test_blocks_are_accurate_at_every_magnitude(forced, name: str, rows: int, dtype: type):
    forced("blocked")
    queries, *others = ADDENDS[name]
    arrays = [array.astype(dtype) for array in (queries[:, :rows], *others)]
    cotangent = uniform("cotangent", (2, rows, 7)).astype(dtype)
    expected = derived(arrays, cotangent)
    # Where tanh is near 1, the slope 1 - tanh² keeps an error of eps: so do the terms of the gradients.
    term = float(numpy.abs(arrays[2]).max())
    scales = [numpy.abs(expected[0]).max(), term, term, numpy.abs(expected[3]).max()]
    for own, other, scale in zip(by_blocks(*arrays, cotangent), expected, scales, strict=True):
        numpy.testing.assert_allclose(own, other, rtol=0, atol=15 * numpy.finfo(dtype).eps * scale)


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_of_one_sign_are_accurate_one_by_one(forced, sign: float, dtype: type):
    forced("blocked")
    queries, keys = spans("queries", 2, 5, 4, least=1e-6), spans("keys", 2, 7, 4, least=1e-6)
    queries[0, 0], keys[1, 3] = 1e-6, 1e-6  # so that some scores are small
    arrays = [array.astype(dtype) for array in (sign * queries, sign * keys, spans("w_v", 4, least=1e-6))]
    found = by_blocks(*arrays, numpy.ones((2, 5, 7), dtype))
    expected = derived(arrays, numpy.ones((2, 5, 7)))
    for own, other in zip(found, expected, strict=True):
        numpy.testing.assert_allclose(own, other, rtol=50 * numpy.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float64])
def test_scores_of_zeros_are_exactly_zero_in_blocks(forced, dtype: type):
    forced("blocked")
    arrays = [numpy.zeros((2, 5, 4), dtype), numpy.zeros((2, 7, 4), dtype), uniform("w_v", (4,)).astype(dtype)]
    scores, *_, of_w_v = by_blocks(*arrays, uniform("cotangent", (2, 5, 7)).astype(dtype))
    assert not numpy.any(scores) and not numpy.any(of_w_v)


@pytest.mark.parametrize("number", [numpy.inf, -numpy.inf, numpy.nan], ids=str)
@pytest.mark.parametrize("size", [1e-9, 1.0, 30.0])
def test_a_weight_that_is_not_finite_gives_the_same_scores_in_blocks(forced, size: float, number: float):
    forced("blocked")
    arrays = features([size] * 4, uniform("w_v", (4,)))
    arrays[0], arrays[1] = numpy.abs(arrays[0]), numpy.abs(arrays[1])
    arrays[0][1], arrays[1][1] = -arrays[0][1], -arrays[1][1]  # one infinity of either sign
    arrays[2][1] = number
    cotangent = uniform("cotangent", (2, 5, 7))
    found = by_blocks(*arrays, cotangent)
    forced("plain")
    for own, other in zip(found, by_blocks(*arrays, cotangent), strict=True):
        numpy.testing.assert_allclose(own, other, rtol=1e-13, atol=1e-13)


@MODES
@pytest.mark.parametrize("path", ["plain", "blocked"])
@pytest.mark.parametrize("name", [name for name in OPTIONS if "Attention" in name])
def test_without_weights_the_context_stays_and_the_weights_are_none(name: str, path: str, hybrid: bool, forced):
    layer, named = built(name, "float64"), given(drawn(name, "float64"))
    forced("plain")
    expected, _ = layer(**named)
    if hybrid:
        layer.hybridize()
    forced(path)
    lens = named.pop("valid_lens")
    queries = named.pop("queries")
    memory = layer.prepare(**named, valid_lens=lens)
    for context, weights in (
        layer(queries, **named, valid_lens=lens, need_weights=False),
        layer.attend(queries, memory, need_weights=False),
    ):
        numpy.testing.assert_allclose(context.asnumpy(), expected.asnumpy(), rtol=0, atol=1e-14)
        assert weights is None


def test_a_path_that_does_not_exist_is_refused():
    with pytest.raises(OptionError, match="path is 'fast', expected 'blocked' or 'plain', or None"):
        choice.set_path("fast")


@pytest.mark.parametrize("name", ["AdditiveAttention", "ConcatAttention"])
def test_a_layer_takes_blocks_and_its_numbers_are_the_same(name: str, forced, monkeypatch: pytest.MonkeyPatch):
    layer, arrays, taken = built(name, "float64"), drawn(name, "float64"), []
    forced("plain")
    expected = answers(layer, arrays)
    forced("blocked")
    whole = scoring.blocked_additive_score
    monkeypatch.setattr(scoring, "blocked_additive_score", lambda *named: taken.append(1) or whole(*named))
    for key, found in answers(layer, arrays).items():
        numpy.testing.assert_allclose(found, expected[key], rtol=0, atol=1e-13, err_msg=key)
    assert taken


# ------------------------------------------------------------------------------------------------ parameters


@LAYERS
def test_gluon_saves_and_loads_the_parameters(name: str, tmp_path: Path):
    first, second = built(name), built(name)
    assert changed(attention.get_parameters(first), second)
    first.save_parameters(str(tmp_path / "weights.params"))
    second.load_parameters(str(tmp_path / "weights.params"))
    assert not changed(attention.get_parameters(first), second)


@LAYERS
def test_layers_share_parameters_as_gluon_blocks_do(name: str):
    first = built(name, prefix="shared_")
    second = built(name, prefix="shared_", params=first.collect_params())
    attention.set_parameters(first, {key: 2 * array for key, array in attention.get_parameters(first).items()})
    assert not changed(attention.get_parameters(first), second)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@LAYERS
def test_initialising_again_draws_every_parameter_in_its_type(name: str, dtype: str):
    layer = built(name, dtype)
    before = attention.get_parameters(layer)
    layer.initialize(force_reinit=True)
    assert changed(before, layer) == list(before)
    for key, array in attention.get_parameters(layer).items():
        assert array.dtype == dtype and numpy.abs(array).max() <= 4**-0.5, key


@LAYERS
def test_a_cast_layer_computes_in_the_new_type(name: str):
    layer, wide, arrays = built(name), built(name, "float64"), given(drawn(name, "float64"))
    layer.hybridize()
    layer(**given(drawn(name)))
    attention.set_parameters(wide, {key: array.astype(float) for key, array in attention.get_parameters(layer).items()})
    layer.cast("float64")
    for found, expected in zip(layer(**arrays), wide(**arrays), strict=True):
        assert found.dtype == numpy.float64
        numpy.testing.assert_allclose(found.asnumpy(), expected.asnumpy(), rtol=0, atol=1e-14)


@LAYERS
def test_one_step_of_a_trainer_changes_every_parameter(name: str):
    layer = built(name)
    layer.hybridize()
    before = attention.get_parameters(layer)
    trainer = gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 0.1})
    with autograd.record():
        output = layer(**given(drawn(name)))[0]
        loss = (output * from_numpy(uniform("cotangent", output.shape).astype("float32"))).sum()
    loss.backward()
    trainer.step(1)
    without_influence = {"b_k"}  # of several heads under a scaled dot
    assert set(changed(before, layer)) - without_influence == set(before) - without_influence


class Translator(gluon.Block):
    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.encoder = attention.GRUEncoder(13, 4, 8, 3, dropout=0.1)
            self.decoder = attention.BahdanauDecoder(11, 4, 8, 3, attention_size=10, dropout=0.1)

    def forward(self, source: np.ndarray, lengths: np.ndarray, target: np.ndarray) -> np.ndarray:
        outputs, state = self.encoder(source, lengths)
        return self.decoder(target, outputs, state, lengths)[0]


@pytest.mark.parametrize(
    "flags",
    [{"active": False}, {}, {"static_alloc": True, "static_shape": True}],
    ids=["eager", "hybridized", "static"],
)
def test_encoder_and_decoder_learn_inside_a_plain_block(flags: dict[str, bool]):
    mx.random.seed(0)
    model, entropy = Translator(), gluon.loss.SoftmaxCrossEntropyLoss()
    model.hybridize(**flags)
    source, target = from_numpy(integers("s", (2, 7), 13)), from_numpy(integers("t", (2, 5), 11))
    lengths = np.array([7, 3], dtype="int32")
    trainer = gluon.Trainer(model.collect_params(), "adam", {"learning_rate": 0.05})
    before = float(entropy(model(source, lengths, target), target).mean())
    for _ in range(16):
        with autograd.record():
            loss = entropy(model(source, lengths, target), target).mean()
        loss.backward()
        trainer.step(1)
    assert float(entropy(model(source, lengths, target), target).mean()) < before / 2


# ------------------------------------------------------------------------------------------------ dropout


@MODES
@pytest.mark.parametrize("name", ["DotProductAttention", "AdditiveAttention", "GRU", "BahdanauDecoder"])
def test_dropout_draws_in_training_mode_alone(name: str, hybrid: bool):
    layer, arrays = built(name, dropout=0.5), given(drawn(name))
    layer.hybridize(hybrid)
    for mode, draws in (
        (autograd.predict_mode(), False),
        (autograd.record(), True),
        (autograd.record(train_mode=False), False),
        (autograd.train_mode(), True),
    ):
        with mode:
            assert bool((layer(**arrays)[0] != layer(**arrays)[0]).asnumpy().any()) == draws


@pytest.mark.parametrize("name", ["DotProductAttention", "AdditiveAttention", "GeneralAttention", "CosineAttention"])
def test_the_weights_are_those_before_dropout(name: str):
    layer, arrays = built(name, dropout=0.5), drawn(name)
    arrays["values"] = numpy.tile(numpy.eye(7, 6, dtype="float32"), (2, 1, 1))  # the context shows what was dropped
    _, expected = layer(**given(arrays))
    with autograd.train_mode():
        context, weights = (array.asnumpy() for array in layer(**given(arrays)))
    numpy.testing.assert_array_equal(weights, expected.asnumpy())
    seen = weights[..., :6] > 0
    assert set((context[seen] / weights[..., :6][seen]).round(5)) == {0.0, 2.0}


# ------------------------------------------------------------------------------------------------ MXNet's traps


@MODES
@pytest.mark.parametrize(("name", "hidden"), [("DotProductAttention", ["keys", "values"]), ("GRU", ["inputs"])])
def test_the_gradient_of_a_fill_goes_to_the_right_side(name: str, hidden: list[str], hybrid: bool):
    """Where a number is the fill, MXNet's `where` sends gradients to the wrong side."""
    layer, judge, arrays = built(name, "float64"), getattr(reference, name)(**OPTIONS[name]), drawn(name, "float64")
    layer.hybridize(hybrid)
    reference.set_parameters(judge, attention.get_parameters(layer))
    lens = arrays["valid_lens"]
    floating = {key: array for key, array in arrays.items() if key != "valid_lens"}
    factors = {str(i): uniform(str(i), output.shape) for i, output in enumerate(judge(**arrays))}
    found = answers(layer, arrays)
    for key, expected in gradients(lambda a: judge(**a, valid_lens=lens), floating, factors, stacked=False).items():
        numpy.testing.assert_allclose(found[key], expected, rtol=0, atol=1e-13, err_msg=key)
    for key in hidden:
        assert (found[key][1, 3:] == 0).all() and (found[key][1, :3] != 0).all()


def test_the_gradient_of_hidden_scores_is_zero_and_of_visible_ones_that_of_softmax():
    scores, cotangent = from_numpy(uniform("s", (2, 5, 7))), uniform("c", (2, 5, 7))
    scores.attach_grad()
    with autograd.record():
        weights = attention.masked_softmax(scores, np.array([2, 4], dtype="int32"))
    weights.backward(from_numpy(cotangent))
    w, gradient = weights.asnumpy(), scores.grad.asnumpy()
    expected = w * (cotangent - (w * cotangent).sum(axis=-1, keepdims=True))
    numpy.testing.assert_allclose(gradient, expected, rtol=0, atol=1e-15)
    assert ((gradient != 0).sum(axis=-1) == [[2] * 5, [4] * 5]).all()


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_lengths_of_every_type_count_beyond_127_keys(dtype: str):
    lens = np.array([100, 3], dtype=dtype)
    weights = attention.masked_softmax(np.zeros((2, 5, 300)), lens).asnumpy()
    assert ((weights > 0).sum(axis=-1) == [[100] * 5, [3] * 5]).all()
    outputs, _ = attention.GRU(4, 8)(np.ones((2, 200, 4)), lens)
    assert ((outputs.asnumpy() != 0).all(axis=-1).sum(axis=-1) == [100, 3]).all()


CRASHES = """
from backends import mxnet as attention
from backends.mxnet.runtime import vjp
import mxnet as mx
from mxnet import np

q, k, v = np.ones((2, 5, 4)), np.ones((2, 7, 4)), np.ones((2, 7, 6))
dot, additive, gru = attention.DotProductAttention(), attention.AdditiveAttention(4, 4, 10), attention.GRU(4, 8, 3)
encoder, decoder = attention.GRUEncoder(11, 4, 8, 3), attention.BahdanauDecoder(11, 4, 8, 3)
tokens = lambda *shape: np.zeros(shape, dtype="int32")
for hybrid in (False, True):
    for layer in (dot, additive, gru, encoder, decoder):
        layer.hybridize(hybrid)
    for lens, total in (([-9, -(2**31)], 0), ([2**31 - 1, 8], 10)):
        lens = np.array(lens, dtype="int64").astype("int32")
        assert [round(float(layer(q, k, v, lens)[1].sum())) for layer in (dot, additive)] == [total, total]
        assert bool(abs(gru(np.ones((2, 6, 4)), lens)[1]).sum() > 0) == bool(total)
    for layer in (dot, additive):
        layer(q[:0], k[:0], v[:0], tokens(0))
        layer(q, k, v[:, :, :0], tokens(2))
        layer(np.zeros((2, 0, 5, 4)), np.zeros((2, 0, 7, 4)), np.zeros((2, 0, 7, 6)))
        for some, keys, values in ((q[:, :0], k, v), (q, k[:, :0], v[:, :0])):
            arrays, ones = {"queries": some, "keys": keys, "values": values}, np.ones((2, some.shape[1], 6))
            outputs, inputs, parameters = vjp(lambda layer, **given: layer(**given), arrays, {0: ones}, layer)
            for array in (*outputs, *inputs.values(), *parameters.values()):
                assert float(abs(array).sum()) == 0
    dot(q[:, :, :0], k[:, :, :0], v)
    gru(np.zeros((0, 6, 4)), tokens(0)), gru(np.zeros((2, 0, 4)), tokens(2))
    gru.step(np.zeros((0, 4)), np.zeros((3, 0, 8)))
    encoder(tokens(0, 6)), encoder(tokens(2, 0))
    for batch, steps, keys in ((0, 5, 7), (2, 0, 7), (2, 5, 0)):
        memory, state = np.zeros((batch, keys, 8)), np.zeros((3, batch, 8))
        assert decoder(tokens(batch, steps), memory, state)[2].shape == (batch, steps, keys)
        assert decoder.greedy(memory, state, bos=1, eos=2, max_steps=steps)[2].shape == (batch, steps, keys)
        assert decoder.step(tokens(batch), state, decoder.prepare(memory))[2].shape == (batch, keys)
mx.nd.waitall()
print("alive")
"""


def test_odd_lengths_and_empty_axes_do_not_crash_the_process():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", CRASHES], env=environment, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (0, "alive\n"), ran.stderr[-2000:]


# ------------------------------------------------------------------------------------------------ the import


def test_a_call_that_changes_its_argument_cannot_hide_behind_a_copy():
    given = np.zeros(3)

    def change(layer: None, array: np.ndarray) -> tuple[np.ndarray]:
        with autograd.pause():
            array[0] = 1.0
        return (2 * array,)

    vjp(change, {"array": given}, {0: np.ones(3)})
    assert given.tolist() == [1.0, 0.0, 0.0] and given.grad is None


@pytest.mark.parametrize(
    ("module", "attribute", "value", "message"),
    [
        (numpy, "__version__", "2.0.0", "needs NumPy below 2, and this is 2.0.0: install 'numpy>=1.23.5,<2'"),
        (sys, "version_info", (3, 13), "runs on Python up to 3.12: use Python 3.11"),
    ],
    ids=["numpy", "python"],
)
def test_what_is_too_new_is_named_before_mxnet_fails(module, attribute, value, message, monkeypatch):
    with monkeypatch.context() as patched, pytest.raises(ImportError) as caught:
        patched.setattr(module, attribute, value)
        runpy.run_path(attention.__file__)
    assert message in str(caught.value)


def test_the_import_gives_numpy_the_alias_that_mxnet_reads():
    assert vars(numpy)["bool"] is bool


def test_the_import_switches_mxnet_to_numpy_arrays_and_shapes():
    assert npx.is_np_array() and npx.is_np_shape()


def test_a_rule_makes_its_mask_in_the_context_that_is_asked_for():
    rules = {
        "causal_mask": {},
        "window_mask": {"left": 1, "right": 1},
        "block_mask": {"size": 2},
        "stride_mask": {"stride": 2},
    }
    for name, own in rules.items():
        made = getattr(attention, name)(2, 3, **own, ctx=mx.cpu(1))
        assert made.ctx == mx.cpu(1) and made.dtype == bool and made.shape == (1, 2, 3)


def test_rules_count_far_beyond_what_float32_holds():
    """MXNet counts in float32 unless told otherwise, which has no odd number beyond 2**24."""
    mask = attention.causal_mask(1, 2, offset=2**24)
    assert mask.asnumpy().all()
    assert attention.stride_mask(1, 2, stride=2, offset=2**24 + 1).asnumpy().tolist() == [[[False, True]]]


def test_an_additive_mask_in_bfloat16_is_refused():
    with pytest.raises(OptionError) as raised:
        attention.to_additive_mask(from_numpy(numpy.ones((2, 5, 7), bool)), dtype="bfloat16")
    assert str(raised.value) == (
        "to_additive_mask: dtype is 'bfloat16', expected one of 'float64', 'float32', 'float16': MXNet's arrays have "
        "no bfloat16."
    )
