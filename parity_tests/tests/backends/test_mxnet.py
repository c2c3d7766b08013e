"""The MXNet backend under Gluon's own ways: Trainer, parameter files, casts, dropout, NumPy mode, hybridized blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from attention_core import reference
from attention_core.differentiation import gradients
from attention_core.draws import integers, uniform
from backends import mxnet as attention
from backends.mxnet import kernels
from backends.mxnet.arrays import from_numpy
from backends.mxnet.runtime import vjp

# isort: split
# MXNet cannot be imported before the backend has given NumPy its old alias back.
import mxnet as mx
from mxnet import autograd, gluon, np, npx

from backends.mxnet.blocked import additive
from parity_tests.tests.backends import magnitudes

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
    "LowRankAttention": {"num_positions": 9, "rank": 3},
    "CompressedAttention": {"query_size": 4, "key_size": 9, "stride": 3, "value_size": 6},
    "InducedAttention": {"query_size": 4, "num_heads": 2, "num_inducing": 3, "key_size": 9, "value_size": 6},
    "SegmentAttention": {"query_size": 4, "num_heads": 2},
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
    "LowRankAttention": {"queries": (2, 5, 4), "keys": (2, 7, 4), "values": (2, 7, 6)},
    "CompressedAttention": {"queries": (2, 5, 4), "keys": (2, 7, 9), "values": (2, 7, 6)},
    "InducedAttention": {"queries": (2, 5, 4), "keys": (2, 7, 9), "values": (2, 7, 6)},
    "SegmentAttention": {"inputs": (2, 5, 4), "previous": (2, 7, 4)},
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


@pytest.fixture(autouse=True)
def _seeded() -> None:
    mx.random.seed(0)


def built(name: str, dtype: str = "float32", **options: Any) -> gluon.Block:
    typed = {"dtype": dtype} if name in TRAINABLE else {}
    return getattr(attention, name)(**OPTIONS[name], **options, **typed)


def drawn(name: str, dtype: str = "float32", seed: int = 0) -> Arrays:
    """Arguments of a call; of the second sequence, three keys or steps are valid, where lengths can be given."""
    arrays = {
        key: integers(key, shape, 11, seed) if key == "tokens" else uniform(key, shape, seed=seed).astype(dtype)
        for key, shape in SHAPES[name].items()
    }
    return arrays if name == "SegmentAttention" else {**arrays, "valid_lens": numpy.array([9, 3])}


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
    before = kernels.forced
    yield kernels.set_path
    kernels.set_path(before)


ROWS = pytest.mark.parametrize("rows", [1, 7], ids=["one", "several"])


def operands(*shape: int, rows: int) -> Arrays:
    """Arguments of additive_score."""
    shapes = {"queries": (*shape, rows, 11), "keys": (*shape, 5, 11), "w_v": (11,)}
    return {key: uniform(key, size) for key, size in shapes.items()}


def scored(arrays: Arrays, cotangent: numpy.ndarray) -> list[numpy.ndarray]:
    """Scores, and the gradients of queries, keys and w_v."""
    call = lambda _, **named: (attention.additive_score(**named),)  # noqa: E731
    outputs, found, _ = vjp(call, given(arrays), {0: from_numpy(cotangent)})
    return [outputs[0].asnumpy(), *(array.asnumpy() for array in found.values())]


@ROWS
@pytest.mark.parametrize("sizes", [(1, 1), (40, 4), (300, 4), (2000, 8)], ids=str)
def test_blocks_of_any_size_agree_with_the_formula(sizes: tuple[int, int], rows: int, forced, monkeypatch):
    forced("blocked")
    monkeypatch.setattr(additive, "BLOCK", sizes[0])
    monkeypatch.setattr(additive, "FEATURES", sizes[1])
    arrays, cotangent = operands(3, 2, rows=rows), uniform("cotangent", (3, 2, rows, 5))
    for found, expected in zip(scored(arrays, cotangent), magnitudes.exact(*arrays.values(), cotangent), strict=True):
        numpy.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf, -1e308], ids=str)
def test_one_query_passes_on_what_is_not_finite(bad: float):
    arrays, cotangent = operands(2, rows=1), uniform("cotangent", (2, 1, 5))
    arrays["keys"][1, 3, 2] = bad
    for found, expected in zip(scored(arrays, cotangent), magnitudes.exact(*arrays.values(), cotangent), strict=True):
        numpy.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", magnitudes.CASES)
def test_one_query_is_accurate_at_every_magnitude(name: str, dtype: str):
    """It has a formula of its own."""
    queries, *others = magnitudes.CASES[name]
    arrays = [array.astype(dtype) for array in (queries[:, :1], *others, magnitudes.cotangent()[:, :1])]
    found = scored(dict(zip(magnitudes.SIZES, arrays, strict=False)), arrays[3])
    assert max(magnitudes.errors(name, found, magnitudes.exact(*arrays), arrays[2])) < 1.0


@ROWS
def test_blocks_add_to_a_gradient_beside_arguments_that_want_none(rows: int, forced):
    forced("blocked")
    arrays = operands(2, rows=rows)
    named = given(arrays)
    named["keys"].attach_grad(grad_req="add")
    cotangent = uniform("cotangent", (2, rows, 5))
    for _ in range(2):
        with autograd.record():
            scores = attention.additive_score(**named)
        scores.backward(from_numpy(cotangent))
    numpy.testing.assert_allclose(named["keys"].grad.asnumpy(), 2 * scored(arrays, cotangent)[2], rtol=0, atol=1e-13)


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
    alone = [layer(**named, need_weights=False)]
    if hasattr(layer, "prepare"):
        queries = named.pop("queries")
        alone.append(layer.attend(queries, layer.prepare(**named), need_weights=False))
    for context, weights in alone:
        numpy.testing.assert_allclose(context.asnumpy(), expected.asnumpy(), rtol=0, atol=1e-14)
        assert weights is None


@pytest.mark.parametrize("name", ["AdditiveAttention", "ConcatAttention"])
def test_a_layer_uses_blocks_with_equal_results(name: str, forced, monkeypatch: pytest.MonkeyPatch):
    layer, arrays, taken = built(name, "float64"), drawn(name, "float64"), []
    forced("plain")
    expected = answers(layer, arrays)
    forced("blocked")
    (kernel,) = kernels.registry["additive_score"]
    counted = kernel._replace(compute=lambda *named: taken.append(1) or kernel.compute(*named))
    monkeypatch.setitem(kernels.registry, "additive_score", [counted])
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
    """In float64: in float32, rounding can swallow steps of 1e-8, as those of InducedAttention are."""
    layer = built(name, "float64")
    layer.hybridize()
    before = attention.get_parameters(layer)
    trainer = gluon.Trainer(layer.collect_params(), "sgd", {"learning_rate": 0.1})
    with autograd.record():
        output = layer(**given(drawn(name, "float64")))[0]
        loss = (output * from_numpy(uniform("cotangent", output.shape))).sum()
    loss.backward()
    trainer.step(1)
    without_influence = {key for key in before if key.endswith("b_k")}  # of several heads under a scaled dot
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


def test_other_devices_than_a_cpu_use_blocks_from_a_size_of_their_own_on():
    gpu: Any = SimpleNamespace(device_type="gpu")
    queries, keys = (SimpleNamespace(shape=(3, count, 5), ctx=gpu) for count in (4, 7))
    assert not kernels.use_blocks(queries, keys, 1)
    assert [kernels.use_blocks(queries, keys, 1, 3 * 4 * 7 * 5 + more) for more in (0, 1)] == [True, False]


def test_a_projection_of_patches_is_a_strided_convolution():
    shapes = {"images": (2, 4, 6, 3), "W_p": (5, 12), "b_p": (5,)}
    images, W, b = (from_numpy(uniform(name, shape)) for name, shape in shapes.items())
    filters, size = W.reshape(5, 2, 2, 3).transpose(0, 3, 1, 2), (2, 2)
    convolved = npx.convolution(images.transpose(0, 3, 1, 2), filters, b, kernel=size, stride=size, num_filter=5)
    projected = np.dot(attention.patches(images, patch_size=2), W.T) + b
    expected = convolved.reshape(2, 5, 6).swapaxes(1, 2).asnumpy()
    numpy.testing.assert_allclose(projected.asnumpy(), expected, rtol=1e-13, atol=1e-14)
