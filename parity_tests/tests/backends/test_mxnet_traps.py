"""What MXNet itself does that the backend has to know of: crashes, counts, gradients, and what its import needs."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

import numpy
import pytest

from attention_core.draws import uniform
from attention_core.errors import OptionError
from backends import mxnet as attention
from backends.mxnet.arrays import from_numpy
from backends.mxnet.runtime import vjp

# isort: split
# MXNet cannot be imported before the backend has given NumPy its old alias back.
import mxnet as mx
from mxnet import autograd, np, npx

from parity_tests.tests.places import ROOT


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


def test_softmax_writes_outside_its_rows_where_a_length_is_out_of_range():
    """Shown in the middle row of an array; from an array of its own, this is the memory of something else."""
    for length, weights in ((-2, [1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1]), (6, [1] * 4 + [1 / 6] * 6 + [1] * 2)):
        out = np.ones((3, 4))
        scores = np.zeros((3, 4))[1:2]  # what is read behind it is 0, too
        npx.softmax(scores, np.array([length], dtype="int32"), axis=-1, use_length=True, out=out[1:2])
        numpy.testing.assert_allclose(out.reshape(-1).asnumpy(), weights, rtol=1e-6)


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


def test_the_import_adds_the_numpy_alias_used_by_mxnet():
    assert vars(numpy)["bool"] is bool


def test_the_import_switches_mxnet_to_numpy_arrays_and_shapes():
    assert npx.is_np_array() and npx.is_np_shape()


def test_a_rule_makes_its_mask_in_the_requested_context():
    rules = {
        "causal_mask": {},
        "window_mask": {"left": 1, "right": 1},
        "block_mask": {"size": 2},
        "stride_mask": {"stride": 2},
    }
    for name, own in rules.items():
        made = getattr(attention, name)(2, 3, **own, ctx=mx.cpu(1))
        assert made.ctx == mx.cpu(1) and made.dtype == bool and made.shape == (1, 2, 3)
    assert attention.alibi_bias(4, 2, 3, ctx=mx.cpu(1)).ctx == mx.cpu(1)
    assert attention.relative_buckets(2, 3, num_buckets=4, ctx=mx.cpu(1)).ctx == mx.cpu(1)


def test_rules_count_far_beyond_the_integers_of_float32():
    """MXNet counts in float32 unless told otherwise, which has no odd number beyond 2**24."""
    mask = attention.causal_mask(1, 2, offset=2**24)
    assert mask.asnumpy().all()
    assert attention.stride_mask(1, 2, stride=2, offset=2**24 + 1).asnumpy().tolist() == [[[False, True]]]


def test_an_additive_mask_in_bfloat16_is_refused():
    with pytest.raises(OptionError) as raised:
        attention.to_additive_mask(from_numpy(numpy.ones((2, 5, 7), bool)), dtype="bfloat16")
    with pytest.raises(OptionError, match="alibi_bias: dtype is 'bfloat16', expected one of 'float64', 'float32'"):
        attention.alibi_bias(4, 5, 7, dtype="bfloat16")
    assert str(raised.value) == (
        "to_additive_mask: dtype is 'bfloat16', expected one of 'float64', 'float32', 'float16': MXNet's arrays have "
        "no bfloat16."
    )
