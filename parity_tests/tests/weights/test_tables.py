"""The language of the tables, and what every table holds."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import numpy as np
import pytest

from attention_core.draws import uniform
from backends.weights import SOURCES, tables
from backends.weights.configs import layer_named
from backends.weights.rearrange import parse, rearrange_sides, solve


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
    left, right = parse(axes)
    sizes = solve([(left, start)], {})
    assert sizes is not None
    array = uniform(axes, start)
    turned = rearrange_sides(array, left, right, sizes)
    assert turned.shape == end
    np.testing.assert_array_equal(rearrange_sides(turned, right, left, sizes), array)


@pytest.mark.parametrize("axes", ["a b -> a", "a a -> a a", "a -> b"])
def test_a_rearrangement_that_could_not_be_turned_back_is_none(axes: str):
    with pytest.raises(ValueError, match="both sides have to name the same axes, each once"):
        parse(axes)


@pytest.mark.parametrize(
    ("axes", "shape"), [("(3 h) i", (13, 7)), ("(3 h) h'", (12, 5)), ("2 h", (3, 4)), ("h i", (3,)), ("(3 h)", (0,))]
)
def test_sizes_that_contradict_an_axis_are_found(axes: str, shape: tuple[int, ...]):
    sizes = solve([(parse(f"{axes} -> {axes}")[0], shape)], {})
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
        *("attention_parity.mxnet", "torch.nn.TransformerEncoderLayer", "torch.nn.TransformerDecoderLayer"),
        *("torch.nn.LayerNorm", "torch.nn.RMSNorm", "keras.LayerNormalization", "flax.nnx.LayerNorm"),
        *("flax.nnx.RMSNorm", "gluon.nn.LayerNorm", "torch.nn.TransformerEncoder", "torch.nn.TransformerDecoder"),
        *("torch.nn.Transformer", "keras.GroupQueryAttention", "keras.RMSNormalization"),
        *("keras_hub.TransformerEncoder", "keras_hub.TransformerDecoder"),
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
