"""Weights of Gluon's own layers, and the files that MXNet writes, read without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from attention_core.draws import uniform
from backends import mxnet as attention
from backends import weights

# isort: split
# MXNet cannot be imported before the backend has given NumPy its old alias back.
import mxnet as mx
from mxnet import gluon

from parity_tests.tests.weights.arrays import STACKS, same

INPUTS = uniform("inputs", (3, 6, 5)).astype("float32")


def drawn(name: str, stack: dict[str, Any], of: Any) -> gluon.Block:
    """A layer with drawn parameters; biases would begin at 0, which hides them."""
    layer = getattr(gluon.rnn, name)(4, layout="NTC", input_size=5, **stack)
    layer.initialize()
    for number, parameter in enumerate(layer.collect_params().values()):
        parameter.set_data(of.array(uniform(f"parameter {number}", parameter.shape).astype("float32")))
    return layer


@pytest.mark.parametrize("numpy_style", [True, False])
@pytest.mark.parametrize("stack", STACKS, ids=str)
@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_a_file_of_a_recurrent_layer_and_its_canonical_arrays_compute_the_same(
    name: str, stack: dict[str, Any], numpy_style: bool, tmp_path: Path, answered
):
    with mx.util.np_array(numpy_style), mx.util.np_shape(numpy_style):
        of = mx.np if numpy_style else mx.nd
        layer = drawn(name, stack, of)
        expected = layer(of.array(INPUTS)).asnumpy()
        layer.save_parameters(str(tmp_path / "layer.params"))
    converted = weights.to_canonical(weights.read_arrays(tmp_path / "layer.params"))
    assert converted.source == f"gluon.rnn.{name}"
    numpy.testing.assert_allclose(answered(converted, INPUTS)[0], expected, rtol=0, atol=3e-6)


def test_a_file_of_a_normalization_and_its_canonical_arrays_compute_the_same(tmp_path: Path, answered):
    with mx.util.np_array(True), mx.util.np_shape(True):
        layer = gluon.nn.LayerNorm(epsilon=1e-3, in_channels=5)
        layer.initialize()
        for name, parameter in layer.collect_params().items():
            parameter.set_data(mx.np.array(uniform(name, parameter.shape)))
        expected = layer(mx.np.array(INPUTS)).asnumpy()
        layer.save_parameters(str(tmp_path / "layer.params"))
    converted = weights.to_canonical(weights.read_arrays(tmp_path / "layer.params"), epsilon=1e-3)
    assert converted.source == "gluon.nn.LayerNorm"
    numpy.testing.assert_allclose(answered(converted, INPUTS), expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_a_file_that_is_written_here_is_loaded_there(stack: dict[str, Any], tmp_path: Path):
    with mx.util.np_array(True), mx.util.np_shape(True):
        layer, other = drawn("GRU", stack, mx.np), gluon.rnn.GRU(4, layout="NTC", input_size=5, **stack)
        layer.save_parameters(str(tmp_path / "layer.params"))
        converted = weights.to_canonical(weights.read_arrays(tmp_path / "layer.params"))
        back = weights.from_canonical("GRU", converted.arrays, "gluon.rnn.GRU")
        weights.write_arrays(tmp_path / "back.params", back)
        other.load_parameters(str(tmp_path / "back.params"))
        inputs = mx.np.array(INPUTS)
        numpy.testing.assert_allclose(other(inputs).asnumpy(), layer(inputs).asnumpy(), rtol=0, atol=1e-6)


def test_the_older_names_are_read_too():
    with mx.util.np_array(False), mx.util.np_shape(False):
        layer = drawn("GRU", {"num_layers": 2, "bidirectional": True}, mx.nd)
        arrays = {name: parameter.data().asnumpy() for name, parameter in layer.collect_params().items()}
    converted = weights.to_canonical(arrays)
    assert converted.source == "gluon.rnn.GRU" and converted.config["num_layers"] == 2
    assert converted.notes[0].startswith("The names begin with 'gru")


class Textbook(gluon.Block):
    """The blocks of the textbook's decoder."""

    def __init__(self, recurrent: Any) -> None:
        super().__init__()
        self.attention = gluon.nn.Block()
        self.attention.W_k = gluon.nn.Dense(4, use_bias=False, flatten=False, in_units=4)
        self.attention.W_q = gluon.nn.Dense(4, use_bias=False, flatten=False, in_units=4)
        self.attention.w_v = gluon.nn.Dense(1, use_bias=False, flatten=False, in_units=4)
        self.embedding = gluon.nn.Embedding(11, 5)
        self.rnn = recurrent(4, num_layers=2, input_size=9)
        self.dense = gluon.nn.Dense(11, flatten=False, in_units=4)


@pytest.mark.parametrize("name", ["GRU", "LSTM"])
def test_the_textbooks_decoder_is_recognised_in_its_file(name: str, tmp_path: Path):
    decoder = Textbook(getattr(gluon.rnn, name))
    decoder.initialize()
    decoder.save_parameters(str(tmp_path / "decoder.params"))
    converted = weights.to_canonical(weights.read_arrays(tmp_path / "decoder.params"))
    assert (converted.source, converted.config["cell"]) == ("textbook.BahdanauDecoder", name.lower())
    numpy.testing.assert_array_equal(converted.arrays["dense.W"], decoder.dense.weight.data().asnumpy())
    first = next(one for key, one in decoder.rnn.collect_params().items() if key.endswith("_l0_i2h_weight"))
    numpy.testing.assert_array_equal(converted.arrays["rnn.0.W"].reshape(-1, 9), first.data().asnumpy())


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32", "int64", "uint8", "int8"])
@pytest.mark.parametrize("numpy_style", [True, False])
def test_every_dtype_is_read_as_mxnet_writes_it(dtype: str, numpy_style: bool, tmp_path: Path):
    path = tmp_path / "x.params"
    with mx.util.np_array(numpy_style), mx.util.np_shape(numpy_style):
        if numpy_style:
            mx.npx.save(str(path), {"x": mx.np.array([[1, 2, 3]], dtype=dtype), "one": mx.np.array(2, dtype=dtype)})
        else:
            mx.nd.save(str(path), {"arg:x": mx.nd.array([[1, 2, 3]], dtype=dtype)})
    arrays = weights.read_arrays(path)
    assert arrays["x"].dtype == dtype and arrays["x"].tolist() == [[1, 2, 3]]
    assert not numpy_style or arrays["one"].shape == ()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int32", "bool"])
def test_every_dtype_is_loaded_there_as_it_is_written_here(dtype: str, tmp_path: Path):
    arrays = {"x": numpy.arange(6).reshape(2, 3).astype(dtype), "one": numpy.ones((), dtype)}
    weights.write_arrays(tmp_path / "x.params", {**arrays, "none": numpy.zeros((0, 3), dtype)})
    with mx.util.np_array(True), mx.util.np_shape(True):
        loaded = mx.npx.load(str(tmp_path / "x.params"))
    assert loaded["none"].shape == (0, 3)
    assert same({name: loaded[name].asnumpy() for name in arrays}, arrays)


def test_sparse_arrays_and_arrays_without_names_are_refused(tmp_path: Path):
    with mx.util.np_array(False), mx.util.np_shape(False):
        mx.nd.save(str(tmp_path / "sparse.params"), {"x": mx.nd.array([[1, 0, 3]]).tostype("csr")})
        mx.nd.save(str(tmp_path / "list.params"), [mx.nd.array([[1, 0, 3]])])
    with pytest.raises(weights.WeightError, match="holds a sparse array: make it dense first"):
        weights.read_arrays(tmp_path / "sparse.params")
    with pytest.raises(weights.WeightError, match="names 0 of its 1 arrays: save them by name"):
        weights.read_arrays(tmp_path / "list.params")


@pytest.mark.parametrize("learned", ["BahdanauDecoder", "KernelAttention"])
def test_backend_layers_convert_through_their_files(learned: str, tmp_path: Path):
    options = {"KernelAttention": {"learned": True}}.get(learned, {"vocab_size": 11, "embed_size": 5, "hidden_size": 4})
    model = getattr(attention, learned)(**options)
    model.save_parameters(str(tmp_path / "model.params"))
    converted = weights.to_canonical(weights.read_arrays(tmp_path / "model.params"), "attention_parity.mxnet")
    assert converted.layer == learned and same(converted.arrays, attention.get_parameters(model))
    back = weights.from_canonical(learned, converted.arrays, "attention_parity.mxnet", **converted.config)
    weights.write_arrays(tmp_path / "back.params", back)
    model.load_parameters(str(tmp_path / "back.params"))
